package source

import (
	"cmp"
	"slices"
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

// blockRow is a block: the bytes from..to of a file, which hold whole samples, one behind the other.
type blockRow struct {
	file     fileKey
	from, to int64
	first    ident.ObjectID // a sample of it, which names the file
}

// Blocks says which samples of a dataset lie together, in blocks of so many bytes. It is safe for concurrent use.
type Blocks struct {
	size int64
	now  atomic.Pointer[blockMap]
}

// blockMap is the blocks of one version of a dataset.
type blockMap struct {
	of    *snapshot
	low   ident.ObjectID
	block []uint32 // by object, from low on
	bytes []int64  // of each block, the largest first
	each  int      // samples of a block, on average; at least 1
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
func (b *Blocks) Len() int { return len(b.now.Load().bytes) }

// Each is how many samples a block has, on average.
func (b *Blocks) Each() int { return b.now.Load().each }

// Largest is how many bytes the n largest blocks have together.
func (b *Blocks) Largest(n int) int64 {
	sum := int64(0)
	for i, bytes := range b.now.Load().bytes {
		if i >= n {
			break
		}
		sum += bytes
	}
	return sum
}

// layouts are the blocks of datasets, and every block that was ever found: a number never changes its meaning.
type layouts struct {
	mu  sync.Mutex // guards what follows
	of  map[layoutKey]*Blocks
	ids map[blockRow]uint32
	all []blockRow
}

type layoutKey struct {
	root uint32
	size int64
}

// Blocks finds the blocks of a dataset as it is now: runs of samples of one file that take at most size bytes, with
// what lies between them; a larger sample is a block by itself. Equal datasets and sizes give equal blocks. What was
// returned before for them is brought up to date. Error: UNSUPPORTED where samples do not lie together.
func (c *Catalog) Blocks(d *Dataset, size int64) (*Blocks, error) {
	snap := d.snap.Load()
	if err := inBlocks(d, snap); err != nil {
		return nil, err
	}
	l := &c.layouts
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of == nil {
		l.of, l.ids = map[layoutKey]*Blocks{}, map[blockRow]uint32{}
	}
	key := layoutKey{d.rs.index, size}
	b := l.of[key]
	if b == nil {
		b = &Blocks{size: size}
		l.of[key] = b
	}
	if m := b.now.Load(); m == nil || m.of != snap {
		b.now.Store(l.lay(c, snap, size))
	}
	return b, nil
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
			if f := &snap.dirs[i]; f.live && !packed.InRanges(d.rs.format.Scheme(), f.rel) {
				why = "samples of " + printable(f.rel) + " are no ranges of its bytes"
				hint = "use order stratified: such files are unpacked once, and then every sample is one read"
				break
			}
		}
	}
	if why == "" {
		return nil
	}
	return errs.New(errs.Unsupported, "order", hint, "order blocks on %s: %s", d.URI(), why)
}

// placed is where a sample lies.
type placed struct {
	x        ident.ObjectID
	file     fileKey
	off, end int64
}

// lay cuts the files of a version into blocks; l.mu is held.
func (l *layouts) lay(c *Catalog, snap *snapshot, size int64) *blockMap {
	all := make([]placed, 0, snap.live)
	high := ident.ObjectID(0)
	m := &blockMap{of: snap, low: NoObject, each: 1}
	for s := range snap.objs {
		x := snap.objs[s]
		if !snap.Live(sampleID(s)) {
			continue
		}
		if file, row, ok := c.fileOf(x); ok {
			all = append(all, placed{x, file, row.off, row.off + row.size})
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
		n, end := 1, all[0].end
		for n < len(all) && all[n].file == all[0].file && all[n].off-end <= blockGap &&
			max(end, all[n].end)-all[0].off <= size {
			end = max(end, all[n].end)
			n++
		}
		id := l.number(blockRow{all[0].file, all[0].off, end, all[0].x})
		for _, p := range all[:n] {
			m.block[p.x-m.low] = id
		}
		m.bytes = append(m.bytes, end-all[0].off)
		all = all[n:]
	}
	m.each = max(snap.live/len(m.bytes), 1)
	slices.SortFunc(m.bytes, func(a, b int64) int { return cmp.Compare(b, a) })
	return m
}

// number is that of a block.
func (l *layouts) number(r blockRow) uint32 {
	id, ok := l.ids[r]
	if !ok {
		id = uint32(len(l.all))
		l.ids[r] = id
		l.all = append(l.all, r)
	}
	return id
}

// row is the block of a number.
func (l *layouts) row(id uint32) (blockRow, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if int64(id) >= int64(len(l.all)) {
		return blockRow{}, false
	}
	return l.all[id], true
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
	dir := snap.dirOf[row.sample]
	return keyOfFile(row.root, dir, &snap.dirs[dir], row.mtime), row, true
}
