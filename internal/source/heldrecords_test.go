package source

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"larder/internal/ident"
	"larder/internal/source/packed"
	"larder/internal/spool"
	"larder/internal/xrand"
)

// countedSpool counts the blocks that are asked for.
type countedSpool struct {
	spool.Spool
	asked atomic.Int64
}

func (s *countedSpool) Block(ctx context.Context, key string, make spool.Make) (spool.Reader, error) {
	s.asked.Add(1)
	return s.Spool.Block(ctx, key, make)
}

// decodedSets are the sets of files that are decoded in pieces, by uri, and how many pieces each has.
func decodedSets(t *testing.T) (sets map[string]map[string]string, pieces map[string]int) {
	sets, pieces = recordSets(t), map[string]int{}
	sets["csv:%s/c.csv.zst"] = map[string]string{"c.csv.zst": string(zstdOf(t, []byte("x,y\n1,2\n3,4\n")))}
	sets["jsonl:%s/l.jsonl.gz"] = map[string]string{"l.jsonl.gz": string(gzipOf(t, []byte("{\"x\": 1}\n{\"x\": 2}\n")))}
	var frames []byte // of one MiB, in runs of four
	r := xrand.New(6)
	for range 9 {
		frame := make([]byte, 1<<20)
		for i := range frame {
			if frame[i] = ' ' + byte(r.Uint64()&63); i%(100<<10) == 0 {
				frame[i] = '\n'
			}
		}
		frames = append(frames, zstdOf(t, frame)...)
	}
	rows := npyFile(40 * (32 << 10)) // of 128 KiB each, for rows of four bytes
	sets["npy:%s/n.npy"] = map[string]string{"n.npy": strings.Replace(rows, "(1310720, 4)", "(40, 131072)", 1)}
	sets["text:%s/f.txt.zst"] = map[string]string{"f.txt.zst": string(frames)}
	for uri := range sets { // order-free
		scheme, at, _ := strings.Cut(uri, ":")
		at, _, _ = strings.Cut(at, "?")
		if !packed.Decoded(scheme, path.Base(at)) {
			delete(sets, uri)
			continue
		}
		pieces[uri] = 1
	}
	mds := mdsFile(t, "a", "bc", "def")
	sets["mds:%s/z?fields=text"] = map[string]string{"z/index.json": packedIndex("zstd", len(mds)),
		"z/shard.00000.mds.zstd": string(zstdOf(t, []byte(mds)))}
	pieces["mds:%s/z?fields=text"] = 1
	delete(sets, "npz:%s/deflated.npz") // its members are compressed, each as a whole
	pieces["npy:%s/n.npy"] = 5
	pieces["text:%s/f.txt.zst"] = 3
	pieces["parquet:%s/p.parquet"] = 4 // ten rows, three in a row group
	pieces["hf:%s/rows.arrow"] = 2
	if len(sets) < 8 {
		t.Fatalf("%d sets", len(sets))
	}
	return sets, pieces
}

// bytesOf are the bytes that a bucket's stores sent.
func bytesOf(b *bucketOf) (n uint64) {
	for _, c := range b.stores.Counters() {
		n += c.Bytes
	}
	return n
}

// Pieces of files that are decoded as a whole are decoded once for all jobs that hold them, in memory and not in the
// spool, in a folder and in a store. Samples are what they are without.
func TestPiecesAreHeld(t *testing.T) {
	sets, pieces := decodedSets(t)
	for uri, files := range sets { // order-free: each by itself
		b, root := newBucket(t), t.TempDir()
		for name, content := range files { // order-free: files of one folder
			b.put(t, "set/"+name, content)
			write(t, root, name, content)
		}
		counted := &countedSpool{Spool: spool.NewMemory(64 << 20)}
		c, err := OpenCatalog(CatalogConfig{Stores: b.stores, Spool: counted, Logger: slog.New(slog.DiscardHandler)})
		must(t, err)
		for _, place := range []string{root, "s3://data/set"} {
			d, err := c.Add(t.Context(), "", fmt.Sprintf(uri, place))
			must(t, err)
			plain, _ := open(t, "")
			same, err := plain.Add(t.Context(), "", fmt.Sprintf(uri, root))
			must(t, err)
			want := recordsOf(t, plain, same)
			blocks, err := c.Blocks(t.Context(), d, 1)
			must(t, err)
			groups := objectsByBlock(t, blocks, d)
			if len(groups) != pieces[uri] || blocks.Len() != pieces[uri] || !blocks.Uncut() {
				t.Errorf("%s: %d blocks, %d by sample, of %d pieces", d.URI(), blocks.Len(), len(groups), pieces[uri])
			}
			room, asked := &shelf{}, counted.asked.Load()
			var first, second atomic.Int64
			holdAll(c, groups, room, 1, &first)
			holdAll(c, groups, room, 2, &second)
			before := bytesOf(b)
			for range 3 {
				if got := recordsOf(t, c, d); !slices.Equal(got, want) {
					t.Errorf("%s: %q, not %q", d.URI(), got, want)
				}
			}
			c.held.reads.Wait() // what a block took is told after its samples are there
			sent := int64(bytesOf(b) - before)
			if stored := place != root; first.Load() == 0 || second.Load() != 0 || stored && sent > first.Load() {
				t.Errorf("%s: %d and %d bytes were read for two jobs, and the store sent %d", d.URI(), first.Load(),
					second.Load(), sent)
			}
			if all := sizeOf(files); first.Load() > 2*all {
				t.Errorf("%s: %d bytes were read of %d", d.URI(), first.Load(), all)
			}
			if n := counted.asked.Load() - asked; n != 0 {
				t.Errorf("%s: the spool was asked %d times", d.URI(), n)
			}
			learned := int64(0)
			for _, s := range blocks.Sizes() {
				learned += s.Bytes
			}
			if heldBytes(c) != learned || room.used != learned {
				t.Errorf("%s: %d bytes are held, %d were taken, and blocks say %d", d.URI(), heldBytes(c), room.used, learned)
			}
			dropAll(c, groups, 1)
			dropAll(c, groups, 2)
			if heldBytes(c) != 0 || room.used != 0 {
				t.Errorf("%s: %d bytes stay, %d taken", d.URI(), heldBytes(c), room.used)
			}
		}
		must(t, c.Close())
	}
}

func sizeOf(files map[string]string) (n int64) {
	for _, content := range files { // order-free
		n += int64(len(content))
	}
	return n
}

// Neighbouring pieces are one block while they fit its size, and none is cut.
func TestPiecesAreJoined(t *testing.T) {
	root := t.TempDir()
	write(t, root, "p.parquet", parquetFile(t, 30))
	c, _ := open(t, "")
	d, err := c.Add(t.Context(), "", "parquet:"+root+"/p.parquet")
	must(t, err)
	one, err := c.Blocks(t.Context(), d, 1)
	must(t, err)
	largest := int64(0)
	for _, s := range one.Sizes() {
		largest = max(largest, s.Bytes)
	}
	for size, want := range map[int64]int{1: 10, 2*largest + 1: 5, 1 << 30: 1} { // order-free
		b, err := c.Blocks(t.Context(), d, size)
		must(t, err)
		if b.Len() != want {
			t.Errorf("%d blocks of %d bytes, not %d", b.Len(), size, want)
		}
		room := &shelf{}
		groups := objectsByBlock(t, b, d)
		holdAll(c, groups, room, 1, nil)
		if got := recordsOf(t, c, d); len(got) != 30 || room.used == 0 {
			t.Errorf("%d records, %d bytes are held", len(got), room.used)
		}
		dropAll(c, groups, 1)
		if room.used != 0 {
			t.Errorf("%d bytes stay", room.used)
		}
	}
}

// Without room a block is not there: its samples are read one by one, through the spool, and its holder is told. No
// more than the room is ever taken.
func TestPiecesWithoutRoom(t *testing.T) {
	sets, _ := decodedSets(t)
	for uri, files := range sets { // order-free: each by itself
		root := t.TempDir()
		for name, content := range files { // order-free: files of one folder
			write(t, root, name, content)
		}
		c, _ := open(t, "")
		d, err := c.Add(t.Context(), "", fmt.Sprintf(uri, root))
		must(t, err)
		want := recordsOf(t, c, d)
		blocks, err := c.Blocks(t.Context(), d, 1)
		must(t, err)
		groups := objectsByBlock(t, blocks, d)
		for _, most := range []int64{1, recordStep * perRecord, 2*leastChunk + 2*recordStep*perRecord} {
			room := &shelf{most: most}
			var lost atomic.Int64
			for id := range groups { // order-free
				c.HoldBlock(id, room, Holder{ID: 1, Read: func(_ int64, err error) {
					if errors.Is(err, spool.ErrFull) {
						lost.Add(1)
					}
				}})
			}
			if got := recordsOf(t, c, d); !slices.Equal(got, want) {
				t.Errorf("%s: %q, not %q", d.URI(), got, want)
			}
			dropAll(c, groups, 1)
			c.held.reads.Wait()
			if room.peak > most || room.used != 0 || most < leastChunk && lost.Load() != int64(len(groups)) {
				t.Errorf("%s: %d of %d bytes were taken, %d stay; %d of %d blocks had no room", d.URI(), room.peak, most,
					room.used, lost.Load(), len(groups))
			}
		}
	}
}

// A row group that is damaged costs its own samples, with the words that they have without blocks; a file that changed
// costs its samples until it is indexed again.
func TestPiecesThatFail(t *testing.T) {
	root := t.TempDir()
	content := []byte(parquetFile(t, 9))
	write(t, root, "p.parquet", string(content))
	c, _ := open(t, "")
	d, err := c.Add(t.Context(), "", "parquet:"+root+"/p.parquet")
	must(t, err)
	want := recordsOf(t, c, d)
	blocks, err := c.Blocks(t.Context(), d, 1)
	must(t, err)
	groups := objectsByBlock(t, blocks, d)
	room := &shelf{}
	holdAll(c, groups, room, 1, nil)
	if got := recordsOf(t, c, d); !slices.Equal(got, want) {
		t.Errorf("%q, not %q", got, want)
	}
	dropAll(c, groups, 1)
	for i := 4; i < 40; i++ { // pages of the first row group
		content[i] ^= 0x55
	}
	write(t, root, "q.parquet", string(content))
	broken, err := c.Add(t.Context(), "", "parquet:"+root+"/q.parquet")
	if err != nil {
		t.Fatal(err)
	}
	blocks, err = c.Blocks(t.Context(), broken, 1)
	must(t, err)
	groups = objectsByBlock(t, blocks, broken)
	plain := errorsOf(t, c, broken)
	holdAll(c, groups, room, 1, nil)
	held := errorsOf(t, c, broken)
	if !slices.Equal(plain, held) || plain[0] == "" || plain[8] != "" {
		t.Errorf("with blocks %q, without %q", held, plain)
	}
	dropAll(c, groups, 1)
	c.held.reads.Wait()
	if room.used != 0 {
		t.Errorf("%d bytes stay", room.used)
	}
}

func errorsOf(t *testing.T, c *Catalog, d *Dataset) (out []string) {
	t.Helper()
	for s := range ident.SampleID(d.Len()) {
		text := ""
		if _, err := c.Read(t.Context(), d.Object(s), nil); err != nil {
			text = err.Error()
		}
		out = append(out, text)
	}
	return out
}
