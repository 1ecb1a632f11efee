package source

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/spool"
	"larder/tiers/disk"
)

func zstdOf(t testing.TB, b []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	must(t, err)
	return w.EncodeAll(b, nil)
}

// Compressed tars are the same dataset of images as plain ones, in a folder and in a bucket, also after a restart.
func TestImagesOfCompressedTars(t *testing.T) {
	plain, root, b := t.TempDir(), t.TempDir(), newBucket(t)
	pack := map[string]func(testing.TB, []byte) []byte{"0.tar.gz": gzipOf, "1.tgz": gzipOf, "2.tar.zst": zstdOf}
	for i, name := range []string{"0.tar.gz", "1.tgz", "2.tar.zst"} {
		content := shard(t, fmt.Sprintf("%d-a=%d", i, i%3), fmt.Sprintf("x/%d ü=1", i), fmt.Sprint(i, "-b"))
		write(t, plain, fmt.Sprint(i, ".tar"), content)
		packed := string(pack[name](t, []byte(content)))
		write(t, root, name, packed)
		b.put(t, "set/"+name, packed)
	}
	index := t.TempDir()
	c, _ := open(t, index)
	simple, err := c.Add(t.Context(), "", "wds:"+plain)
	must(t, err)
	want := strings.Join(listing(t, c, simple), "\n")
	for _, suffix := range []string{".tar.gz", ".tgz", ".tar.zst"} {
		want = strings.ReplaceAll(want, fmt.Sprint(slices.Index([]string{".tar.gz", ".tgz", ".tar.zst"}, suffix), ".tar/"),
			fmt.Sprint(slices.Index([]string{".tar.gz", ".tgz", ".tar.zst"}, suffix), suffix, "/"))
	}
	d, err := c.Add(t.Context(), "", "wds:"+root)
	must(t, err)
	if got := strings.Join(listing(t, c, d), "\n"); got != want || len(want) == 0 {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	again, ev := open(t, index)
	d2, err := again.Add(t.Context(), "", d.URI())
	must(t, err)
	if got := strings.Join(listing(t, again, d2), "\n"); got != want || ev.count("indexed") != 0 {
		t.Errorf("after a restart, %v: %s", ev.n, got)
	}
	stored := b.open(t, "")
	d3, err := stored.Add(t.Context(), "", "wds:s3://data/set/{0.tar.gz,1.tgz,2.tar.zst}")
	must(t, err)
	reads := b.reads.Load()
	for range 3 {
		if got := strings.Join(listing(t, stored, d3), "\n"); got != want {
			t.Errorf("of a bucket: %s", got)
		}
	}
	if n := b.reads.Load() - reads; n != 3 { // small files: one read each, the first time
		t.Errorf("27 images took %d reads", n)
	}
	if _, err := c.Probe(t.Context(), d.Object(0)); !errs.Is(err, errs.SampleBad) { // it was read, and is no image
		t.Errorf("probe: %v", err)
	}
}

// A shard that changes is an error of its samples until it is indexed again; what is kept of the old one is not used.
func TestACompressedTarChanges(t *testing.T) {
	root := t.TempDir()
	write(t, root, "a.tar.gz", string(gzipOf(t, []byte(shard(t, "1=2", "2=0")))))
	c, _ := open(t, "")
	d, err := c.Add(t.Context(), "", "wds:"+root)
	must(t, err)
	listing(t, c, d)
	write(t, root, "a.tar.gz", string(gzipOf(t, []byte(shard(t, "2=0", "new=3")))))
	if b, err := c.Read(t.Context(), d.Object(0), nil); !errs.Is(err, errs.DatasetUnread) {
		t.Errorf("%q, %v", b, err)
	}
	d, err = c.Add(t.Context(), "", d.URI())
	must(t, err)
	if got := listing(t, c, d); len(got) != 2 || got[0] != "1 a.tar.gz/2 0 0 image of 2" ||
		got[1] != "2 a.tar.gz/new 3 3 image of new" {
		t.Errorf("%q", got)
	}
}

// A shard that is larger than the spool is no fault of its samples, and the error says what to do.
func TestACompressedTarLargerThanTheSpool(t *testing.T) {
	root := t.TempDir()
	write(t, root, "a.tar.gz", string(gzipOf(t, []byte(shard(t, strings.Repeat("k", 90)+"=1", "b=1")))))
	tier, err := disk.Open(disk.Config{Dir: t.TempDir(), Size: 8 << 10, Memory: 300})
	must(t, err)
	for _, blocks := range []spool.Spool{spool.NewMemory(300), tier} {
		c, err := OpenCatalog(CatalogConfig{Spool: blocks, Logger: slog.New(slog.DiscardHandler)})
		must(t, err)
		d, err := c.Add(t.Context(), "", "wds:"+root)
		must(t, err)
		_, err = c.Read(t.Context(), d.Object(0), nil)
		if !errs.Is(err, errs.ResourceExceeded) || !strings.Contains(err.Error(), "tiers.disk") {
			t.Errorf("%T: %v", blocks, err)
		}
		if !c.Away(t.Context(), d.Object(0), err) {
			t.Errorf("%T: %v counts as a bad sample", blocks, err)
		}
		if blocks == spool.Spool(tier) {
			tier.Resize(4 << 20)
			_, err := c.Read(t.Context(), d.Object(0), nil)
			must(t, err)
		}
		must(t, c.Close())
	}
	must(t, tier.Close())
}

// TestDamagedCompressedTars: cut or flipped at 200 places each, a shard is an error with words or gives images; the
// checksum of gzip finds every flip that matters.
func TestDamagedCompressedTars(t *testing.T) {
	var samples []string
	for i := range 30 {
		samples = append(samples, fmt.Sprintf("%02d=%d", i, i%4))
	}
	whole := []byte(shard(t, samples...))
	for name, content := range map[string][]byte{"a.tar.gz": gzipOf(t, whole), "a.tar.zst": zstdOf(t, whole)} {
		root := t.TempDir()
		var before, after runtime.MemStats
		for i := range 400 {
			damaged := bytes.Clone(content)
			if i < 200 {
				damaged = damaged[:i*len(content)/200]
			} else {
				damaged[(i-200)*len(damaged)/200] ^= 1 << (i % 8)
			}
			write(t, root, name, string(damaged))
			c, _ := open(t, "")
			runtime.ReadMemStats(&before)
			d, err := c.Add(t.Context(), "", "wds:"+root+"/"+name)
			if _, ok := errors.AsType[*errs.Error](err); err != nil && !ok {
				t.Fatalf("%s, damage %d: %v", name, i, err)
			}
			if i < 200 && err == nil {
				t.Errorf("%s cut to %d of %d bytes was indexed", name, len(damaged), len(content))
			}
			if err == nil {
				for s := range ident.SampleID(d.Len()) {
					b, err := c.Read(t.Context(), d.Object(s), nil)
					if err != nil || !strings.HasPrefix(string(b), "image of ") {
						t.Errorf("%s, damage %d: sample %d is %.20q, %v", name, i, s, b, err)
					}
				}
			}
			if runtime.ReadMemStats(&after); after.TotalAlloc-before.TotalAlloc > 256<<20 {
				t.Fatalf("%s, damage %d: %d bytes were used", name, i, after.TotalAlloc-before.TotalAlloc)
			}
		}
		must(t, os.RemoveAll(root))
	}
}
