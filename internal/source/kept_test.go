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

// asked is a disk tier that holds nothing, and remembers for whom it was asked.
type asked struct{ whom []disk.Whom }

func (a *asked) Get(whom disk.Whom, _ disk.Key, _ []byte) bool {
	a.whom = append(a.whom, whom)
	return false
}

func (a *asked) Has(disk.Key) bool { return false }

func (a *asked) Put(whom disk.Whom, _ disk.Key, _ []byte) { a.whom = append(a.whom, whom) }

// TestReadsSayForWhom: the disk tier learns the dataset, and how many jobs want a sample.
func TestReadsSayForWhom(t *testing.T) {
	b := newBucket(t)
	b.put(t, "train/c/1.png", "content")
	a := &asked{}
	c, err := OpenCatalog(CatalogConfig{Stores: b.stores, Kept: a})
	must(t, err)
	t.Cleanup(func() { must(t, c.Close()) })
	d, err := c.Add(t.Context(), "", "imagefolder:s3://data/train")
	must(t, err)
	for _, n := range []int{3, 0} {
		a.whom = nil
		_, err = c.Read(ForReaders(t.Context(), n), d.Object(0), nil)
		must(t, err)
		if want := (disk.Whom{Group: d.URI(), Jobs: n}); len(a.whom) != 2 || a.whom[0] != want || a.whom[1] != want {
			t.Errorf("%d jobs: the disk tier was asked for %+v, want %+v twice", n, a.whom, want)
		}
	}
}
