package source

import (
	"cmp"
	"context"
	"math"
	"slices"
	"sort"
	"sync"
	"sync/atomic"

	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/source/packed"
)

// NoBlock is the block of an object that lies in none: see dsa.NoBlock.
const NoBlock = ^uint32(0)

// blockGap is the most bytes between two samples of a block: what lies there is read with them.
const blockGap = 1 << 20

// fileKey names a version of a packed file of a root. One that takes the place of another may have its size and time:
// device and inode tell them apart.
type fileKey struct {
	root, dir   uint32
	size, mtime int64
	dev, ino    uint64
}

func keyOfFile(root, dir uint32, d *dirRow, mtime int64) fileKey {
	return fileKey{root: root, dir: dir, size: d.size, mtime: mtime, dev: d.dev, ino: d.ino}
}

// blockRow is a block: the bytes from..to of a file, which hold whole samples, one behind the other. Of a file that is
// decoded in pieces (packed.Decoded), from..to is what Sample.Off counts, and the block is some pieces of it.
type blockRow struct {
	file     fileKey
	from, to int64
	decoded  bool
	first    ident.ObjectID // a sample of it, which names the file
}

// block is what is known of a blockRow.
type block struct {
	blockRow
	bytes  int64            // of memory: as the file says, and as it was once it has been there
	pieces []ident.ObjectID // a sample of each, where it is decoded
}

// BlockSize is what a block of a dataset has: bytes in memory, and samples.
type BlockSize struct {
	Bytes   int64
	Samples int
}

// Blocks says which samples of a dataset lie together, in blocks of so many bytes. It is safe for concurrent use.
type Blocks struct {
	size int64
	all  *layouts
	now  atomic.Pointer[blockMap]
}

// blockMap is the blocks of one version of a dataset.
type blockMap struct {
	of      *snapshot
	low     ident.ObjectID
	block   []uint32 // by object, from low on
	ids     []uint32 // of the blocks
	samples []int    // of each of them
	uncut   bool     // some of them have more bytes than asked for: they are one piece
}

// Of is the block of an object, NoBlock if the dataset did not have it when Blocks was called last.
func (b *Blocks) Of(x ident.ObjectID) uint32 {
	m := b.now.Load()
	if x < m.low || int(x-m.low) >= len(m.block) {
		return NoBlock
	}
	return m.block[x-m.low]
}

// Len is the number of blocks.
func (b *Blocks) Len() int { return len(b.now.Load().ids) }

// Uncut reports whether blocks are larger than was asked for, because a file is read in larger pieces, such as row
// groups.
func (b *Blocks) Uncut() bool { return b.now.Load().uncut }

// Sizes are those of all blocks, in no order. Of one that is decoded, its bytes are what its file says, until it has
// been in memory.
func (b *Blocks) Sizes() []BlockSize {
	m := b.now.Load()
	out := make([]BlockSize, len(m.ids))
	b.all.mu.Lock()
	defer b.all.mu.Unlock()
	for i, id := range m.ids {
		out[i] = BlockSize{b.all.all[id].bytes, m.samples[i]}
	}
	return out
}

// layouts are the blocks of datasets, and every block that was ever found: a number never changes its meaning.
type layouts struct {
	mu  sync.Mutex // guards what follows
	of  map[layoutKey]*Blocks
	ids map[blockRow]uint32
	all []block
}

type layoutKey struct {
	root uint32
	size int64
}

// Blocks finds the blocks of a dataset as it is now: runs of samples of one file that take at most size bytes, with
// what lies between them; a larger sample is a block by itself. In a file that is decoded in pieces a block is whole
// pieces; such files are opened for it. Equal datasets and sizes give equal blocks. What was returned before for them
// is brought up to date. Errors: UNSUPPORTED where samples do not lie together, those of opening files, the context's.
func (c *Catalog) Blocks(ctx context.Context, d *Dataset, size int64) (*Blocks, error) {
	snap := d.snap.Load()
	if err := inBlocks(d, snap); err != nil {
		return nil, err
	}
	key := layoutKey{d.rs.index, size}
	if b := c.layouts.known(key, snap); b != nil {
		return b, nil
	}
	pieces, err := c.piecesOf(ctx, d.rs, snap)
	if err != nil {
		return nil, err
	}
	l := &c.layouts
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of == nil {
		l.of, l.ids = map[layoutKey]*Blocks{}, map[blockRow]uint32{}
	}
	b := l.of[key]
	if b == nil {
		b = &Blocks{size: size, all: l}
		l.of[key] = b
	}
	b.now.Store(l.lay(c, snap, size, pieces))
	return b, nil
}

// known are the blocks that were found before; nil = there are none for this version.
func (l *layouts) known(key layoutKey, snap *snapshot) *Blocks {
	l.mu.Lock()
	defer l.mu.Unlock()
	if b := l.of[key]; b != nil && b.now.Load().of == snap {
		return b
	}
	return nil
}

// inBlocks says why samples do not lie together.
func inBlocks(d *Dataset, snap *snapshot) error {
	why, hint := "", "use order stratified, or pack the dataset: larder pack "+d.URI()+" --to wds:DIR"
	switch {
	case snap.made != nil:
		why = "worker processes make its samples, which lie nowhere"
		hint = "use order stratified"
	case snap.labels == nil:
		why = "each of its images is a file of its own"
	default:
		for i := range snap.dirs {
			f, scheme := &snap.dirs[i], d.rs.format.Scheme()
			if f.live && !packed.InRanges(scheme, f.rel) && !packed.Decoded(scheme, f.rel) {
				return noBlocks(d.URI(), scheme, f.rel)
			}
		}
	}
	if why == "" {
		return nil
	}
	return errs.New(errs.Unsupported, "order", hint, "order blocks on %s: %s", d.URI(), why)
}

// noBlocks is the error about a file whose samples do not lie together.
func noBlocks(uri, scheme, rel string) error {
	why, hint := packed.WhyNoBlocks(scheme, rel)
	if why == "" {
		why = "has samples that are neither ranges of its bytes nor decoded in blocks"
		hint = "use order stratified: a sample of such a file is a few reads wherever it lies"
	}
	return errs.New(errs.Unsupported, "order", hint, "order blocks on %s: %s %s", uri, printable(rel), why)
}

// openAtOnce is how many files are opened at once to find their pieces.
const openAtOnce = 16

// piecesOf are the pieces of the files of a version, by row of dirs: nothing for one that is not decoded in pieces.
func (c *Catalog) piecesOf(ctx context.Context, rs *rootState, snap *snapshot) ([][]packed.Block, error) {
	out := make([][]packed.Block, len(snap.dirs))
	cut := make([]packed.ByPlace, len(snap.dirs))   // those whose samples say the pieces
	first := make([]ident.ObjectID, len(snap.dirs)) // a sample of each
	for i := range first {
		first[i] = NoObject
	}
	for s := range ident.SampleID(snap.Len()) {
		if !snap.Live(s) {
			continue
		}
		i, x := snap.dir(s), snap.object(s)
		if row, ok := c.objects.get(x); ok && packed.DecodedAt(rs.format.Scheme(), snap.dirs[i].rel, row.off) {
			first[i] = x
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wait sync.WaitGroup
	slots := make(chan struct{}, openAtOnce)
	for i, x := range first {
		if x == NoObject {
			continue
		}
		slots <- struct{}{}
		wait.Go(func() {
			defer func() { <-slots }()
			if ctx.Err() != nil {
				return
			}
			var err error
			if out[i], cut[i], err = c.piecesIn(ctx, rs, snap, x, uint32(i)); err != nil {
				cancel(err)
			}
		})
	}
	wait.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	c.cutByPlace(snap, cut, out)
	return out, nil
}

// cutByPlace finds the pieces of files by the places of their samples.
func (c *Catalog) cutByPlace(snap *snapshot, cut []packed.ByPlace, out [][]packed.Block) {
	for s := range ident.SampleID(snap.Len()) {
		i := snap.dir(s)
		if cut[i] == nil || !snap.Live(s) {
			continue
		}
		row, _ := c.objects.get(snap.object(s))
		first := packed.Block{First: cut[i].Piece(row.off)}
		if n := len(out[i]); n == 0 || out[i][n-1] != first { // samples are in the order of the file, mostly
			out[i] = append(out[i], first)
		}
	}
	for i := range cut {
		if cut[i] != nil {
			slices.SortFunc(out[i], func(a, b packed.Block) int { return cmp.Compare(a.First, b.First) })
			out[i] = slices.Compact(out[i])
		}
	}
}

// piecesIn opens one file, whose samples say the pieces where by is not nil.
func (c *Catalog) piecesIn(
	ctx context.Context, rs *rootState, snap *snapshot, x ident.ObjectID, dir uint32,
) (pieces []packed.Block, by packed.ByPlace, err error) {
	d := &snap.dirs[dir]
	row, _ := c.objects.get(x)
	f, err := c.openOnce(ctx, rs, snap, openKey{keyOfFile(rs.index, dir, d, row.mtime), snap.mark}, d)
	if err != nil {
		c.noteChange(x, err)
		if ofPlace(err) || ctx.Err() != nil {
			return nil, nil, err
		}
		return nil, nil, readError(join(snap.root, d.rel), err)
	}
	defer c.files.done(f, false)
	switch p := f.rows.(type) {
	case packed.ByPlace:
		return nil, p, nil
	case packed.InPieces:
		return p.Blocks(), nil, nil
	}
	return nil, nil, noBlocks(rs.uri, rs.format.Scheme(), d.rel)
}

// placed is where a sample lies.
type placed struct {
	x        ident.ObjectID
	file     fileKey
	off, end int64
}

// lay cuts the files of a version into blocks; l.mu is held.
func (l *layouts) lay(c *Catalog, snap *snapshot, size int64, pieces [][]packed.Block) *blockMap {
	all := make([]placed, 0, snap.live)
	high := ident.ObjectID(0)
	m := &blockMap{of: snap, low: NoObject}
	decoded := map[fileKey][]packed.Block{} // lookups only; a file of several datasets may have another row here
	for s := range ident.SampleID(snap.Len()) {
		x := snap.object(s)
		if !snap.Live(s) {
			continue
		}
		if file, row, ok := c.fileOf(x); ok {
			all = append(all, placed{x, file, row.off, row.off + row.size})
			if p := pieces[snap.dir(s)]; len(p) > 0 {
				decoded[file] = p
			}
			m.low, high = min(m.low, x), max(high, x)
		}
	}
	if len(all) == 0 {
		m.low = 0
		return m
	}
	m.block = make([]uint32, high-m.low+1)
	for i := range m.block {
		m.block[i] = NoBlock
	}
	slices.SortFunc(all, func(a, b placed) int {
		return cmp.Or(cmp.Compare(a.file.root, b.file.root), cmp.Compare(a.file.dir, b.file.dir),
			cmp.Compare(a.file.mtime, b.file.mtime), cmp.Compare(a.off, b.off), cmp.Compare(a.x, b.x))
	})
	for len(all) > 0 {
		b, n := blockRow{}, 0
		var bytes int64
		var touch []ident.ObjectID
		if p := decoded[all[0].file]; len(p) > 0 {
			b, n, bytes, touch = somePieces(all, p, size)
			m.uncut = m.uncut || bytes > size
		} else {
			b, n = oneRange(all, size)
			bytes = b.to - b.from
		}
		id := l.number(block{b, bytes, touch})
		for _, p := range all[:n] {
			m.block[p.x-m.low] = id
		}
		m.ids, m.samples = append(m.ids, id), append(m.samples, n)
		all = all[n:]
	}
	return m
}

// oneRange is the block with the first of some samples, and how many of them it has.
func oneRange(all []placed, size int64) (blockRow, int) {
	n, end := 1, all[0].end
	for n < len(all) && all[n].file == all[0].file && all[n].off-end <= blockGap &&
		max(end, all[n].end)-all[0].off <= size {
		end = max(end, all[n].end)
		n++
	}
	return blockRow{file: all[0].file, from: all[0].off, to: end, first: all[0].x}, n
}

// somePieces is oneRange for a file that is decoded in pieces: the piece of the first sample, and those that follow it
// while all of them have at most size bytes. touch has a sample of each.
func somePieces(all []placed, pieces []packed.Block, size int64) (
	b blockRow, n int, bytes int64, touch []ident.ObjectID,
) {
	b = blockRow{file: all[0].file, to: math.MaxInt64, decoded: true, first: all[0].x}
	for n < len(all) && all[n].file == b.file {
		at := max(sort.Search(len(pieces), func(i int) bool { return pieces[i].First > all[n].off })-1, 0)
		end, has, k := int64(math.MaxInt64), int64(0), n
		if at+1 < len(pieces) {
			end = pieces[at+1].First
		}
		for k < len(all) && all[k].file == b.file && (all[k].off < end || k == n) {
			has += all[k].end - all[k].off + perRecord
			k++
		}
		if pieces[at].Bytes > 0 {
			has = pieces[at].Bytes
		}
		if n > 0 && bytes+has > size {
			b.to = pieces[at].First
			break
		}
		if n == 0 {
			b.from = min(pieces[at].First, all[0].off)
		}
		bytes, touch, n = bytes+has, append(touch, all[n].x), k
	}
	return b, n, bytes, touch
}

// number is that of a block.
func (l *layouts) number(b block) uint32 {
	id, ok := l.ids[b.blockRow]
	if !ok {
		id = uint32(len(l.all))
		l.ids[b.blockRow] = id
		l.all = append(l.all, b)
	}
	return id
}

// row is the block of a number.
func (l *layouts) row(id uint32) (block, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if int64(id) >= int64(len(l.all)) {
		return block{}, false
	}
	return l.all[id], true
}

// learn notes how many bytes a block had in memory.
func (l *layouts) learn(id uint32, bytes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all[id].bytes = bytes
}

// fileOf is the packed file that an object lies in.
func (c *Catalog) fileOf(x ident.ObjectID) (fileKey, object, bool) {
	row, ok := c.objects.get(x)
	if !ok {
		return fileKey{}, row, false
	}
	snap := c.rootAt(row.root).snap.Load()
	if snap == nil || snap.labels == nil || !snap.has(row.sample) {
		return fileKey{}, row, false
	}
	dir := snap.dir(row.sample)
	return keyOfFile(row.root, dir, &snap.dirs[dir], row.mtime), row, true
}
