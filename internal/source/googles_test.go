package source

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestDatasetsOfGoogle: gs:// is read as s3:// is, over Google's interface for S3. A folder of images, tars, lines, a
// table and a list are indexed, read, taken from the saved index without a request, and checked again. They are what
// the same files in a folder are.
func TestDatasetsOfGoogle(t *testing.T) {
	tars := map[string]string{"train-0.tar": shard(t, "1=1"), "train-1.tar": shard(t, "2=0"),
		"train-2.tar": shard(t, "3=")}
	list := map[string]string{"set/list.csv": "path,label\nx/1.jpg,1\nx/2.jpg,0\n", "set/x/1.jpg": "one",
		"set/x/2.jpg": "two"}
	for uri, files := range map[string]map[string]string{
		"imagefolder:%s":             {"a/1.jpg": "image 1", "a/2.png": "image 2", "b/3.jpg": "image 3"},
		"wds:%s/train-{0..2}.tar":    tars,
		"jsonl:%s":                   {"a.jsonl": "{\"x\": 1}\n", "b.jsonl": "{\"x\": 2}\n{\"x\": 3}\n"},
		"parquet:%s/part-0.parquet":  {"part-0.parquet": parquetFile(t, 10)},
		"imagefiles:%s/set/list.csv": list,
	} { // order-free: each by itself
		b, root, index := newBucket(t), t.TempDir(), t.TempDir()
		for n, c := range files { // order-free
			write(t, root, n, c)
			b.put(t, "sets/"+n, c)
		}
		local, _ := open(t, "")
		here, err := local.Add(t.Context(), "", fmt.Sprintf(uri, root))
		must(t, err)
		want := append(keys(here), recordsOf(t, local, here)...)

		remote := fmt.Sprintf(uri, "gs://data/sets")
		c := b.open(t, index)
		d, err := c.Add(t.Context(), "", remote)
		must(t, err)
		if got := append(keys(d), recordsOf(t, c, d)...); !slices.Equal(got, want) || d.URI() != remote {
			t.Errorf("%s: %q, not %q", remote, got, want)
		}
		if path, _ := c.ObjectPath(d.Object(0)); !strings.HasPrefix(path, "gs://data/sets/") {
			t.Errorf("%s: the first sample lies in %s", remote, path)
		}
		reads, lists := b.reads.Load(), b.lists.Load()
		again := b.open(t, index)
		d2, err := again.Add(t.Context(), "", remote)
		must(t, err)
		if r, l := b.reads.Load()-reads, b.lists.Load()-lists; r != 0 || l != 0 {
			t.Errorf("%s: the saved index took %d reads and %d lists", remote, r, l)
		}
		if got := append(keys(d2), recordsOf(t, again, d2)...); !slices.Equal(got, want) ||
			d2.Fingerprint() != d.Fingerprint() {
			t.Errorf("%s from the saved index: %q, not %q", remote, got, want)
		}
		d2, err = again.Reindex(t.Context(), remote)
		must(t, err)
		if got := append(keys(d2), recordsOf(t, again, d2)...); !slices.Equal(got, want) {
			t.Errorf("%s checked again: %q, not %q", remote, got, want)
		}
		other, err := c.Add(t.Context(), "", fmt.Sprintf(uri, "s3://data/sets")) // another place, though the server is one
		must(t, err)
		if other.Object(0) == d.Object(0) {
			t.Errorf("%s shares its objects with s3://", remote)
		}
	}
}
