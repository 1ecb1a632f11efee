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
	tars := []string{tarOf(t, strings.Repeat("a", 100), strings.Repeat("b", 2000), "c"),
		tarOf(t, strings.Repeat("A", 2000), strings.Repeat("B", 100), "C")}
	lines := []string{"{\"x\": 1}\n{\"x\": 22}\n{\"x\": 3}\n", "{\"x\": 44}\n{\"x\": 5}\n{\"x\": 6}\n"}
	replaceBehindTheWeb(t, "wds", "tar", tars)
	replaceBehindTheWeb(t, "jsonl", "jsonl", lines)
}

// replaceBehindTheWeb compares the samples of two contents of equal size, one after the other, with those of a folder.
func replaceBehindTheWeb(t *testing.T, scheme, suffix string, contents []string) {
	t.Helper()
	if len(contents[0]) != len(contents[1]) {
		t.Fatalf("%d bytes, and %d", len(contents[0]), len(contents[1]))
	}
	for _, withTier := range []bool{false, true} {
		var file atomic.Pointer[string]
		file.Store(&contents[0])
		web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/0."+suffix && r.URL.Path != "/1."+suffix {
				http.NotFound(w, r)
				return
			}
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
		uri := scheme + ":" + web.URL + "/{0..1}." + suffix
		for _, content := range contents {
			file.Store(&content)
			root := t.TempDir()
			write(t, root, "0."+suffix, content)
			write(t, root, "1."+suffix, content)
			local, err := c.Add(t.Context(), "", scheme+":"+root)
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
					t.Errorf("%s, tier %v: %.80q, not %.80q", scheme, withTier, got, want)
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
