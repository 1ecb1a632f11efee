package source

import (
	"archive/zip"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/store"
	"larder/tiers/disk"
)

// tars are n shards of so many samples each.
func tars(t testing.TB, n, each int) []string {
	out := make([]string, n)
	for i := range out {
		var samples []string
		for k := range each {
			samples = append(samples, fmt.Sprintf("%d-%03d=%d", i, k, k%3))
		}
		out[i] = shard(t, samples...)
	}
	return out
}

// objectsByBlock are the samples of a dataset by block, in the order of their ids.
func objectsByBlock(t testing.TB, b *Blocks, d *Dataset) map[uint32][]ident.ObjectID {
	t.Helper()
	out := map[uint32][]ident.ObjectID{}
	for s := range ident.SampleID(d.Len()) {
		id := b.Of(d.Object(s))
		if id == NoBlock {
			t.Fatalf("sample %d lies in no block", s)
		}
		out[id] = append(out[id], d.Object(s))
	}
	return out
}

// requests are the most and the least that a bucket was sent on behalf of reads: some are second ones beside slow ones.
func requests(b *bucketOf) (most, least int) {
	most = int(b.reads.Load())
	least = most
	for _, c := range b.stores.Counters() {
		least -= int(c.Hedges)
	}
	return most, least
}

func heldBytes(c *Catalog) int64 {
	return c.held.used.Load()
}

// shelf is memory for blocks: so many bytes, 0 = any number.
type shelf struct {
	most       int64
	mu         sync.Mutex
	used, peak int64
}

func (s *shelf) Take(n int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.most > 0 && s.used+n > s.most {
		return errors.New("the shelf is full")
	}
	s.used += n
	s.peak = max(s.peak, s.used)
	return nil
}

func (s *shelf) Give(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used -= n
}

// holdAll holds blocks for a job, and counts the bytes that were read for it.
func holdAll[T any](c *Catalog, groups map[uint32]T, room Room, by ident.JobID, read *atomic.Int64) {
	for id := range groups { // order-free
		c.HoldBlock(id, room, Holder{ID: by, Read: func(n int64, _ error) {
			if read != nil {
				read.Add(n)
			}
		}})
	}
}

func dropAll[T any](c *Catalog, groups map[uint32]T, by ident.JobID) {
	for id := range groups { // order-free
		c.DropBlock(id, by)
	}
}

func contents(t testing.TB, c *Catalog, d *Dataset) []string {
	t.Helper()
	var out []string
	for s := range ident.SampleID(d.Len()) {
		b, err := c.Read(t.Context(), d.Object(s), nil)
		must(t, err)
		out = append(out, string(b))
	}
	return out
}

// Samples that lie together in a shard are one read, in a folder and in a store: every sample is what it is without.
func TestABlockIsOneRead(t *testing.T) {
	b, root := newBucket(t), t.TempDir()
	for i, content := range tars(t, 3, 20) {
		write(t, root, fmt.Sprintf("%d.tar", i), content)
		b.put(t, fmt.Sprintf("%d.tar", i), content)
	}
	c := b.open(t, "")
	for _, uri := range []string{"wds:" + root, "wds:s3://data/{0..2}.tar", "wds:s3://data/{0..2}.tar?fields=jpg,cls"} {
		d, err := c.Add(t.Context(), "", uri)
		must(t, err)
		want := contents(t, c, d)
		blocks, err := c.Blocks(t.Context(), d, 16<<10)
		must(t, err)
		groups := objectsByBlock(t, blocks, d)
		if len(groups) != blocks.Len() || blocks.Len() < 6 || blocks.Len() > 12 {
			t.Fatalf("%s: %d blocks, %d by sample", uri, blocks.Len(), len(groups))
		}
		all := int64(0)
		for _, s := range blocks.Sizes() {
			if all += s.Bytes; s.Bytes > 16<<10 || s.Samples < 1 {
				t.Errorf("%s: a block of %d bytes, %d samples", uri, s.Bytes, s.Samples)
			}
		}
		most, least := requests(b)
		var first, second atomic.Int64
		room := &shelf{most: all}
		holdAll(c, groups, room, 1, &first)
		holdAll(c, groups, room, 2, &second)
		if held, _ := c.InBlock(d.Object(0)); !held {
			t.Errorf("%s: sample 0 is in no block", uri)
		}
		if got := contents(t, c, d); !slices.Equal(got, want) {
			t.Errorf("%s: %q, not %q", uri, got, want)
		}
		c.held.reads.Wait() // what a block took is told after its samples are there
		nowMost, nowLeast := requests(b)
		if n := blocks.Len(); strings.Contains(uri, "s3:") && (nowMost-most < n || nowLeast-least > n) {
			t.Errorf("%s: %d to %d requests for %d blocks", uri, nowLeast-least, nowMost-most, n)
		}
		dropAll(c, groups, 1)
		if heldBytes(c) != all {
			t.Errorf("%s: of %d bytes that another job holds %d are there", uri, all, heldBytes(c))
		}
		dropAll(c, groups, 2)
		dropAll(c, groups, 2) // once too often
		if n := heldBytes(c); n != 0 || room.used != 0 || room.peak != all {
			t.Errorf("%s: %d bytes stay, %d of %d were taken", uri, n, room.peak, all)
		}
		if first.Load() != all || second.Load() != 0 {
			t.Errorf("%s: %d and %d of %d bytes were read for two jobs", uri, first.Load(), second.Load(), all)
		}
		if got := contents(t, c, d); !slices.Equal(got, want) {
			t.Errorf("%s: without blocks: %q, not %q", uri, got, want)
		}
	}
}

// With a disk tier that holds them, images and records of blocks in a store are fetched in the first epoch only, each
// block in one piece.
func TestBlocksOfAStoreAreKept(t *testing.T) {
	b := newBucket(t)
	for i, content := range tars(t, 3, 20) {
		b.put(t, fmt.Sprintf("%d.tar", i), content)
	}
	for _, uri := range []string{"wds:s3://data/{0..2}.tar", "wds:s3://data/{0..2}.tar?fields=jpg,cls"} {
		tier, err := disk.Open(disk.Config{Dir: t.TempDir(), Size: 64 << 20})
		must(t, err)
		index := t.TempDir()
		_, err = b.open(t, index).Add(t.Context(), "", uri) // else the tier has what the index read
		must(t, err)
		c, err := OpenCatalog(CatalogConfig{IndexDir: index, Stores: b.stores, Kept: tier, Spool: tier,
			Logger: slog.New(slog.DiscardHandler)})
		must(t, err)
		d, err := c.Add(t.Context(), "", uri)
		must(t, err)
		blocks, err := c.Blocks(t.Context(), d, 16<<10)
		must(t, err)
		groups := objectsByBlock(t, blocks, d)
		var first []string
		for epoch := range 3 {
			holdAll(c, groups, &shelf{}, 1, nil)
			most, least := requests(b)
			got := contents(t, c, d)
			tier.Flush()
			nowMost, nowLeast := requests(b)
			if epoch == 0 {
				first = got
			}
			if n := blocks.Len(); epoch == 0 && (nowMost-most < n || nowLeast-least > n+3) { // and the ends of 3 files
				t.Errorf("%s: %d to %d requests for %d blocks", uri, nowLeast-least, nowMost-most, n)
			}
			if epoch > 0 && nowMost != most {
				t.Errorf("%s: %d requests in epoch %d", uri, nowMost-most, epoch)
			}
			if !slices.Equal(got, first) {
				t.Errorf("%s: epoch %d has other samples", uri, epoch)
			}
			dropAll(c, groups, 1)
		}
		if n := heldBytes(c); n != 0 {
			t.Errorf("%s: %d bytes stay", uri, n)
		}
		must(t, errors.Join(c.Close(), tier.Close()))
	}
}

// Equal blocks have equal numbers, whatever subset or uri names them; others have others.
func TestBlocksHaveNumbers(t *testing.T) {
	root := t.TempDir()
	for i, content := range tars(t, 2, 20) {
		write(t, root, fmt.Sprintf("%d.tar", i), content)
	}
	c := newBucket(t).open(t, "")
	d, err := c.Add(t.Context(), "", "wds:"+root)
	must(t, err)
	small, err := c.Blocks(t.Context(), d, 8<<10)
	must(t, err)
	again, err := c.Blocks(t.Context(), d, 8<<10)
	must(t, err)
	large, err := c.Blocks(t.Context(), d, 32<<10)
	must(t, err)
	if small != again || small.Len() <= large.Len() || small.Of(d.Object(0)) == large.Of(d.Object(0)) {
		t.Errorf("%d and %d blocks", small.Len(), large.Len())
	}
	before := small.Of(d.Object(25))
	write(t, root, "0.tar", tars(t, 1, 30)[0]) // the first shard is another one
	d, err = c.Reindex(t.Context(), d.URI())
	must(t, err)
	_, err = c.Blocks(t.Context(), d, 8<<10)
	must(t, err)
	objectsByBlock(t, small, d)
	if now := small.Of(d.Object(25)); now != before {
		t.Errorf("a block of a file that is as it was has the number %d, and had %d", now, before)
	}
	if small.Of(1<<20) != NoBlock {
		t.Error("an object of nowhere lies in a block")
	}
}

// A block that cannot be read costs nothing but speed, and errors are those of its samples.
func TestABlockThatChanged(t *testing.T) {
	b := newBucket(t)
	content := tars(t, 1, 20)[0]
	b.put(t, "0.tar", content)
	c := b.open(t, "")
	d, err := c.Add(t.Context(), "", "wds:s3://data/0.tar")
	must(t, err)
	blocks, err := c.Blocks(t.Context(), d, 1<<20)
	must(t, err)
	b.put(t, "0.tar", strings.Replace(content, "image of 0-001", "picture 0-001.", 1))
	id := blocks.Of(d.Object(1))
	c.HoldBlock(id, &shelf{}, Holder{ID: 1, Read: func(int64, error) { t.Error("it was read") }})
	if _, err := c.Read(t.Context(), d.Object(1), nil); !errors.Is(err, store.ErrChanged) {
		t.Errorf("%v", err)
	}
	c.DropBlock(id, 1)
	if heldBytes(c) != 0 {
		t.Error("memory stays")
	}
	c.HoldBlock(1<<30, &shelf{}, Holder{}) // no block
}

// Where samples do not lie together, an order of blocks is refused, with what to do.
func TestNoBlocks(t *testing.T) {
	c := newBucket(t).open(t, "")
	root := tree(t, "a/1.jpg", "b/2.jpg")
	write(t, root, "d.npz", zipOf(t, zip.Deflate, "x.npy", npyFile(5)))
	write(t, root, "t.bin", "\x01\x00\x02\x00\x09\x00\x03\x00\x04\x00\x09\x00")
	write(t, root, "f.fa.gz", bgzipped(t, ">a\nACGT\n>b\nMKV\n"))
	for uri, want := range map[string]string{
		"imagefolder:" + root:              "larder pack",
		"lmdb:packed/testdata/data.mdb":    "data.mdb keeps its values on pages in the order in which they were written",
		"beton:packed/testdata/five.beton": "five.beton keeps its samples on pages in the order",
		"npz:" + root + "/d.npz":           "d.npz has members that are compressed, each as a whole write it with numpy",
		"tokens:" + root + "/t.bin?seq_len=2&doc=9&borders=stop": "t.bin has windows that mind the borders of documents, " +
			"and lie at places of their own leave out ?borders=",
		"fasta:" + root + "/f.fa.gz": "f.fa.gz is compressed in blocks of 64 KiB, which are read one by one unpack it",
	} {
		d, err := c.Add(t.Context(), "", uri)
		must(t, err)
		_, err = c.Blocks(t.Context(), d, 1<<20)
		if !errs.Is(err, errs.Unsupported) || !strings.Contains(fullText(err), want) {
			t.Errorf("%s: %v", uri, err)
		}
	}
}

// bgzipped is a file of bgzip: a block with the content, and the empty one at the end.
func bgzipped(t *testing.T, content string) string {
	t.Helper()
	var out []byte
	for _, part := range []string{content, ""} {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		z.Extra = []byte("BC\x02\x00\x00\x00")
		_, err := z.Write([]byte(part))
		must(t, errors.Join(err, z.Close()))
		block := b.Bytes()
		binary.LittleEndian.PutUint16(block[16:], uint16(len(block)-1))
		out = append(out, block...)
	}
	return string(out)
}

func fullText(err error) string {
	if f, ok := errors.AsType[*errs.Error](err); ok {
		return f.Message + " " + f.Hint
	}
	return err.Error()
}
