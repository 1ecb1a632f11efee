package source

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"larder/internal/store"
	"larder/tiers/disk"
)

// tarOf is a tar of images, named by their numbers.
func tarOf(t *testing.T, images ...string) string {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i, m := range images {
		must(t, w.WriteHeader(&tar.Header{Name: fmt.Sprintf("%d.jpg", i), Size: int64(len(m)), Mode: 0o644}))
		_, err := w.Write([]byte(m))
		must(t, err)
	}
	must(t, w.Close())
	return b.String()
}

// TestAForcedScanOfReplacedBytes: a web server that says neither a tag nor a time has a version of the size alone. A
// forced scan has the places of other bytes of that size, with a disk tier, too.
func TestAForcedScanOfReplacedBytes(t *testing.T) {
	was := tarOf(t, strings.Repeat("a", 100), strings.Repeat("b", 2000), "c")
	now := tarOf(t, strings.Repeat("A", 2000), strings.Repeat("B", 100), "C")
	if len(was) != len(now) {
		t.Fatalf("%d bytes, and %d", len(was), len(now))
	}
	for _, withTier := range []bool{false, true} {
		var file atomic.Pointer[string]
		file.Store(&was)
		web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.ServeContent(w, r, "", time.Time{}, strings.NewReader(*file.Load()))
		}))
		stores := store.New(store.Config{Log: slog.New(slog.DiscardHandler), Settings: func(string, string) store.Settings {
			s := store.Default()
			s.RetryFor, s.Hedge = time.Second, 0
			return s
		}})
		cfg := CatalogConfig{IndexDir: t.TempDir(), Stores: stores, Logger: slog.New(slog.DiscardHandler)}
		var tier *disk.Store
		if withTier {
			var err error
			tier, err = disk.Open(disk.Config{Dir: t.TempDir(), Size: 64 << 20})
			must(t, err)
			cfg.Kept, cfg.Spool = tier, tier
		}
		c, err := OpenCatalog(cfg)
		must(t, err)
		uri := "wds:" + web.URL + "/{0..1}.tar"
		for _, content := range []string{was, now} {
			file.Store(&content)
			root := t.TempDir()
			write(t, root, "0.tar", content)
			write(t, root, "1.tar", content)
			local, err := c.Add(t.Context(), "", "wds:"+root)
			must(t, err)
			d, ok := c.Get(uri)
			if !ok {
				d, err = c.Add(t.Context(), "", uri)
			} else {
				d, err = c.Reindex(t.Context(), d.URI())
			}
			must(t, err)
			for range 2 {
				if got, want := liveRecords(t, c, d), liveRecords(t, c, local); len(want) != 6 || !slices.Equal(got, want) {
					t.Errorf("tier %v: %.80q, not %.80q", withTier, got, want)
				}
				if withTier {
					tier.Flush()
				}
			}
		}
		must(t, c.Close())
		if withTier {
			must(t, tier.Close())
		}
		stores.Close()
		web.Close()
	}
}

// TestAForcedScanReadsTheStore: bytes that are kept do not count, nor do notes; without force both do.
func TestAForcedScanReadsTheStore(t *testing.T) {
	const n = 5
	b := newBucket(t)
	for i := range n {
		b.put(t, fmt.Sprintf("j/%d.jsonl", i), fmt.Sprintf("{\"x\": %d}\n", i))
	}
	tier, err := disk.Open(disk.Config{Dir: t.TempDir(), Size: 64 << 20})
	must(t, err)
	c, err := OpenCatalog(CatalogConfig{IndexDir: t.TempDir(), Stores: b.stores, Kept: tier, Spool: tier,
		Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	const uri = "jsonl:s3://data/j"
	_, err = c.Add(t.Context(), "", uri)
	must(t, err)
	tier.Flush()
	reads := b.gets()
	d := lookForChanges(t, c, uri)
	if r := reads.Load(); r != 0 || d.LiveCount() != n {
		t.Errorf("%d reads where nothing changed, %d samples", r, d.LiveCount())
	}
	d, err = c.Reindex(t.Context(), uri)
	must(t, err)
	if r := reads.Load(); r != 2*n || d.LiveCount() != n { // for the fields, and for the places
		t.Errorf("a forced scan took %d reads of %d files, %d samples", r, n, d.LiveCount())
	}
	must(t, errors.Join(c.Close(), tier.Close()))
}
