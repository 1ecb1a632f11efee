package source

import (
	"context"
	"fmt"
	"testing"

	"larder/internal/ident"
	"larder/tiers/disk"
)

// TestKept: objects of a bucket are fetched once with a disk tier, another version of an object is another one, and
// files of folders are not kept.
func TestKept(t *testing.T) {
	b := newBucket(t)
	for i := range 20 {
		b.put(t, fmt.Sprintf("train/c%d/%d.png", i%2, i), fmt.Sprint("content of ", i))
	}
	dir := t.TempDir()
	read := func(want func(i int) string) {
		t.Helper()
		tier, err := disk.Open(disk.Config{Dir: dir, Size: 8 << 20})
		must(t, err)
		c, err := OpenCatalog(CatalogConfig{Stores: b.stores, Kept: tier})
		must(t, err)
		d, err := c.Add(context.Background(), "", "imagefolder:s3://data/train")
		must(t, err)
		seen := map[string]bool{}
		for range 3 {
			for i := range d.Len() {
				got, err := c.Read(context.Background(), d.Object(ident.SampleID(i)), nil)
				must(t, err)
				seen[string(got)] = true
			}
			tier.Flush()
		}
		for i := range 20 {
			if !seen[want(i)] {
				t.Errorf("%q was not read", want(i))
			}
		}
		if len(seen) != 20 {
			t.Errorf("%d contents were read of 20", len(seen))
		}
		must(t, c.Close())
		must(t, tier.Close())
	}
	content := func(i int) string { return fmt.Sprint("content of ", i) }
	read(content)
	if n := b.reads.Load(); n != 20 {
		t.Errorf("20 objects were fetched by %d requests", n)
	}
	read(content)
	if n := b.reads.Load(); n != 20 {
		t.Errorf("they were fetched again after a restart: %d requests", n)
	}
	b.put(t, "train/c1/7.png", "something else")
	read(func(i int) string {
		if i == 7 {
			return "something else"
		}
		return content(i)
	})
	if n := b.reads.Load(); n != 21 {
		t.Errorf("one changed object: %d requests in all, want 21", n)
	}
}
