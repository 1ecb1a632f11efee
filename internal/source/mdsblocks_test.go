package source

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"larder/internal/errs"
	"larder/tiers/disk"
)

// packedIndex is the index of one shard that is compressed.
func packedIndex(codec string, raw int) string {
	return fmt.Sprintf(`{"version":2,"shards":[{"format":"mds","compression":%q,"raw_data":{"basename":`+
		`"shard.00000.mds","bytes":%d},"zip_data":{"basename":"shard.00000.mds.%s","bytes":9}}]}`, codec, raw, codec)
}

// mdsImages is a shard of images with labels.
func mdsImages(t *testing.T, images ...string) string {
	t.Helper()
	head, err := json.Marshal(map[string]any{"column_names": []string{"image", "label"}, "format": "mds", "version": 2,
		"column_encodings": []string{"jpeg", "int"}, "column_sizes": []any{nil, 8}})
	must(t, err)
	le := binary.LittleEndian
	at, data := 4+4*(len(images)+1)+len(head), []byte{}
	out := le.AppendUint32(nil, uint32(len(images)))
	for i, x := range images {
		out = le.AppendUint32(out, uint32(at+len(data)))
		data = append(le.AppendUint32(data, uint32(len(x))), x...)
		data = le.AppendUint64(data, uint64(i))
	}
	out = le.AppendUint32(out, uint32(at+len(data)))
	return string(append(append(out, head...), data...))
}

// Compressed shards are the same images as others, in a folder and in a bucket, also after a restart; a bucket is asked
// for one of them once. A shard that changes is indexed again.
func TestImagesOfCompressedShards(t *testing.T) {
	shard := mdsImages(t, "image of one", "two", "the third")
	plain, root, b := t.TempDir(), t.TempDir(), newBucket(t)
	write(t, plain, "index.json", `{"version":2,"shards":[{"format":"mds","compression":null,"raw_data":{"basename":`+
		`"shard.00000.mds"}}]}`)
	write(t, plain, "shard.00000.mds", shard)
	for name, content := range map[string]string{"index.json": packedIndex("gz", len(shard)), // order-free: two files
		"shard.00000.mds.gz": string(gzipOf(t, []byte(shard)))} {
		write(t, root, name, content)
		b.put(t, "set/"+name, content)
	}
	index := t.TempDir()
	c, _ := open(t, index)
	simple, err := c.Add(t.Context(), "", "mds:"+plain)
	must(t, err)
	want := strings.Join(listing(t, c, simple), "\n")
	want = strings.ReplaceAll(want, ".mds/", ".mds.gz/")
	d, err := c.Add(t.Context(), "", "mds:"+root)
	must(t, err)
	if got := strings.Join(listing(t, c, d), "\n"); got != want || !strings.Contains(want, "the third") {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	again, ev := open(t, index)
	d2, err := again.Add(t.Context(), "", d.URI())
	must(t, err)
	if got := strings.Join(listing(t, again, d2), "\n"); got != want || ev.count("indexed") != 0 {
		t.Errorf("after a restart, %v: %s", ev.n, got)
	}
	stored := b.open(t, "")
	d3, err := stored.Add(t.Context(), "", "mds:s3://data/set")
	must(t, err)
	reads := b.reads.Load()
	for range 3 {
		if got := strings.Join(listing(t, stored, d3), "\n"); got != want {
			t.Errorf("of a bucket: %s", got)
		}
	}
	if n := b.reads.Load() - reads; n != 1 {
		t.Errorf("9 images took %d reads", n)
	}
	other := mdsImages(t, "new", "newer")
	write(t, root, "shard.00000.mds.gz", string(gzipOf(t, []byte(other))))
	if _, err := c.Add(t.Context(), "", d.URI()); !errs.Is(err, errs.DatasetUnread) ||
		!strings.Contains(fmt.Sprint(err), "index.json says") {
		t.Errorf("a shard that is not what the index says: %v", err)
	}
	write(t, root, "index.json", packedIndex("gz", len(other)))
	d, err = c.Add(t.Context(), "", d.URI())
	must(t, err)
	if got := listing(t, c, d); !slices.ContainsFunc(got, func(x string) bool { return strings.HasSuffix(x, " newer") }) ||
		len(got) != 2 {
		t.Errorf("%q", got)
	}
}

// A disk tier keeps what a compressed shard of a bucket unpacks to: it is fetched once, also by the next process.
func TestCompressedShardsInADiskTier(t *testing.T) {
	shard := mdsFile(t, "one", "two", "three")
	b, dir, index := newBucket(t), t.TempDir(), t.TempDir()
	b.put(t, "set/index.json", packedIndex("zstd", len(shard)))
	b.put(t, "set/shard.00000.mds.zstd", string(zstdOf(t, []byte(shard))))
	var want []string
	for try := range 2 {
		tier, err := disk.Open(disk.Config{Dir: dir, Size: 256 << 20, Memory: 1 << 20})
		must(t, err)
		c, err := OpenCatalog(CatalogConfig{Stores: b.stores, Spool: tier, IndexDir: index,
			Logger: slog.New(slog.DiscardHandler)})
		must(t, err)
		d, err := c.Add(t.Context(), "", "mds:s3://data/set?fields=text")
		must(t, err)
		reads := b.reads.Load()
		for range 2 {
			got := recordsOf(t, c, d)
			if want == nil {
				want = got
			}
			if !slices.Equal(got, want) || len(got) != 3 {
				t.Errorf("%q", got)
			}
		}
		if n := b.reads.Load() - reads; n != int64(1-try) {
			t.Errorf("process %d: 6 records took %d reads", try, n)
		}
		must(t, c.Close())
		must(t, tier.Close())
	}
}
