package source

import (
	"slices"
	"sort"
	"sync"

	"larder/internal/ident"
	"larder/internal/xrand"
)

// NoObject is the object of a sample that has none: an id out of range, or a tombstone older than this daemon.
const NoObject = ^ident.ObjectID(0)

// fileMeta is what identifies a stored file beside its occurrence.
type fileMeta struct {
	dev, ino uint64
	size     int64 // bytes of the sample in the file
	mtime    int64 // ns since 1970
	off      int64 // of the sample's first byte in the file; 0 unless the file is packed
}

// object is one object as the table gives it, and its row of 48 bytes unless it is in a stretch. The first six fields
// are its identity: it is compared in full, never by hash alone. ordinal distinguishes samples of one dataset that name
// the same file.
type object struct {
	ino     uint64
	mtime   int64
	off     int64 // first byte in the file; 0 unless the file is a shard
	size    int64
	dev     uint32 // index into objectTable.devs
	ordinal uint32

	root   uint32 // the root that named it first, and there
	sample ident.SampleID
}

func (o *object) same(p *object) bool {
	return o.ino == p.ino && o.mtime == p.mtime && o.off == p.off && o.size == p.size && o.dev == p.dev &&
		o.ordinal == p.ordinal
}

func (o *object) hash() uint64 {
	return xrand.Hash(o.ino, uint64(o.mtime), uint64(o.off), uint64(o.size), uint64(o.dev)<<32|uint64(o.ordinal))
}

// objectTable gives identities dense ids, append-only: an identity never changes. Objects are rows, or in stretches
// (see stretch), never both. slots and tags are an open hash table of rows with linear probing, at most 3/4 full; a Go
// map with these keys would need twice the memory of the rows themselves. A search reads a row, which no cache has,
// only where the tag fits.
//
// Those who read never wait for the table to grow, which takes seconds at 2^26 rows: it grows under making alone.
type objectTable struct {
	making sync.Mutex                 // of those who make ids: taken before mu, and held over all of room and internLocked
	slots  []uint32                   // numbers of rows; guarded by making
	tags   []uint8                    // of each slot: tagOf what it holds; 0 = nothing. Guarded by making
	files  map[fileVersion][]*stretch // guarded by making

	mu    sync.RWMutex // guards what follows; written with making held, too
	devs  []uint64
	rows  []object
	parts []tablePart // which objects are where, by their first id
	n     uint32      // ids handed out
}

// tablePart is a run of ids: a stretch, or rows one behind the other.
type tablePart struct {
	first ident.ObjectID
	row   uint32   // of the first; of a stretch, how many rows there are before it
	in    *stretch // nil = they are rows
}

func (t *objectTable) len() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return int(t.n)
}

// get returns the object of an id.
func (t *objectTable) get(id ident.ObjectID) (object, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.getLocked(id)
}

func (t *objectTable) getLocked(id ident.ObjectID) (object, bool) {
	if uint32(id) >= t.n {
		return object{}, false
	}
	p := t.part(id)
	if p.in != nil {
		return p.in.object(uint32(id - p.first)), true
	}
	return t.rows[p.row+uint32(id-p.first)], true
}

// part is that of an id that there is.
func (t *objectTable) part(id ident.ObjectID) *tablePart {
	if len(t.parts) == 1 {
		return &t.parts[0]
	}
	i := sort.Search(len(t.parts), func(i int) bool { return t.parts[i].first > id })
	return &t.parts[i-1]
}

// meta returns what get does, with the device itself.
func (t *objectTable) meta(id ident.ObjectID) (fileMeta, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	o, ok := t.getLocked(id)
	if !ok {
		return fileMeta{}, false
	}
	return fileMeta{dev: t.devs[o.dev], ino: o.ino, size: o.size, mtime: o.mtime, off: o.off}, true
}

// devLocked is the number of a device.
// REQUIRES: making and mu are held.
func (t *objectTable) devLocked(dev uint64) uint32 {
	i := slices.Index(t.devs, dev) // a machine has few devices
	if i < 0 {
		i = len(t.devs)
		t.devs = append(t.devs, dev)
	}
	return uint32(i)
}

// objectOf is the row of a file and occurrence that is named by (root, sample).
// REQUIRES: making and mu are held.
func (t *objectTable) objectOf(f *fileMeta, ordinal, root uint32, sample ident.SampleID) object {
	return object{ino: f.ino, mtime: f.mtime, off: f.off, size: f.size, dev: t.devLocked(f.dev), ordinal: ordinal,
		root: root, sample: sample}
}

// internLocked returns the id of a file and occurrence; a new one is remembered as named by (root, sample).
// REQUIRES: making and mu are held.
func (t *objectTable) internLocked(f fileMeta, ordinal, root uint32, sample ident.SampleID) ident.ObjectID {
	o := t.objectOf(&f, ordinal, root, sample)
	return t.addLocked(&o, o.hash())
}

// addLocked returns the id of an object whose row has the hash h; a new one gets a row.
// REQUIRES: making and mu are held.
func (t *objectTable) addLocked(o *object, h uint64) ident.ObjectID {
	if len(t.files) > 0 {
		if id, ok := t.findInFiles(o); ok {
			return id
		}
	}
	t.roomToFind(1) // nothing to do after room
	tag, mask := tagOf(h), uint64(len(t.slots)-1)
	for i := h & mask; ; i = (i + 1) & mask {
		switch t.tags[i] {
		case 0:
			return t.addRow(o, i, tag)
		case tag:
			if row := t.slots[i]; t.rows[row].same(o) {
				return t.idOfRow(row)
			}
		}
	}
}

// addRow gives a new object the next id, and a row that a slot leads to.
// REQUIRES: making and mu are held.
func (t *objectTable) addRow(o *object, slot uint64, tag uint8) ident.ObjectID {
	id, row := ident.ObjectID(t.n), uint32(len(t.rows))
	if k := len(t.parts); k == 0 || t.parts[k-1].in != nil {
		t.parts = append(t.parts, tablePart{first: id, row: row})
	}
	t.rows = append(t.rows, *o)
	t.n++
	t.slots[slot], t.tags[slot] = row, tag
	return id
}

// find returns the id of an identity.
// REQUIRES: making is held.
func (t *objectTable) find(o *object) (ident.ObjectID, bool) {
	if id, ok := t.findInFiles(o); ok {
		return id, true
	}
	if len(t.rows) == 0 {
		return 0, false
	}
	h := o.hash()
	tag, mask := tagOf(h), uint64(len(t.slots)-1)
	for i := h & mask; t.tags[i] != 0; i = (i + 1) & mask {
		if row := t.slots[i]; t.tags[i] == tag && t.rows[row].same(o) {
			return t.idOfRow(row), true
		}
	}
	return 0, false
}

// idOfRow is the id of the object in a row.
// REQUIRES: making is held.
func (t *objectTable) idOfRow(row uint32) ident.ObjectID {
	p := &t.parts[0]
	if len(t.parts) > 1 { // the last part that does not begin behind it; stretches have no rows of their own
		p = &t.parts[sort.Search(len(t.parts), func(i int) bool { return t.parts[i].row > row })-1]
	}
	return p.first + ident.ObjectID(row-p.row)
}

// nameLocked says that a sample of another root names an object from now on. It has a row.
// REQUIRES: making and mu are held.
func (t *objectTable) nameLocked(id ident.ObjectID, root uint32) {
	p := t.part(id)
	t.rows[p.row+uint32(id-p.first)].root = root
}

// tagOf is a part of a hash that its place in the table does not follow from, and never 0.
func tagOf(h uint64) uint8 { return uint8(h>>56) | 1 }

// room makes room for n more rows, while others read.
// REQUIRES: making is held, and mu is not.
func (t *objectTable) room(n int) {
	if len(t.rows)+n > cap(t.rows) {
		rows := slices.Grow(slices.Clip(t.rows), n) // a copy: only who holds making writes to the rows
		t.mu.Lock()
		t.rows = rows
		t.mu.Unlock()
	}
	t.roomToFind(n)
}

// roomToFind makes room for n more rows in slots.
func (t *objectTable) roomToFind(n int) {
	size := max(1024, len(t.slots))
	for 3*size < 4*(len(t.rows)+n) {
		size *= 2
	}
	if size == len(t.slots) {
		return
	}
	t.slots, t.tags = make([]uint32, size), make([]uint8, size)
	mask := uint64(size - 1)
	for row := range t.rows {
		h := t.rows[row].hash()
		i := h & mask
		for t.tags[i] != 0 {
			i = (i + 1) & mask
		}
		t.slots[i], t.tags[i] = uint32(row), tagOf(h)
	}
}

// reverse maps objects back to the samples of one dataset: runs of consecutive objects and samples, sorted by object.
// A dataset that was indexed alone is one run.
type reverse []run

type run struct {
	object ident.ObjectID
	sample ident.SampleID
	n      uint32
}

func (r reverse) find(o ident.ObjectID) (ident.SampleID, bool) {
	i, found := slices.BinarySearchFunc(r, o, func(x run, o ident.ObjectID) int {
		switch {
		case x.object < o:
			return -1
		case x.object > o:
			return 1
		}
		return 0
	})
	if !found {
		if i == 0 {
			return 0, false
		}
		i--
	}
	if d := uint32(o - r[i].object); d < r[i].n {
		return r[i].sample + ident.SampleID(d), true
	}
	return 0, false
}

// named says that a sample has, or had, an object.
type named struct {
	object ident.ObjectID
	sample ident.SampleID
	rank   uint8 // 0 the sample lives and has it, 1 the sample is a tombstone, 2 the file has changed since
}

// makeReverse sorts and compresses. When several samples had an object, the lowest rank wins.
func makeReverse(all []named) reverse {
	less := func(a, b named) int {
		if a.object != b.object {
			if a.object < b.object {
				return -1
			}
			return 1
		}
		return int(a.rank) - int(b.rank)
	}
	if !slices.IsSortedFunc(all, less) {
		slices.SortStableFunc(all, less)
	}
	var r reverse
	for i, x := range all {
		if i > 0 && all[i-1].object == x.object {
			continue
		}
		if k := len(r) - 1; k >= 0 && r[k].object+ident.ObjectID(r[k].n) == x.object &&
			r[k].sample+ident.SampleID(r[k].n) == x.sample {
			r[k].n++
			continue
		}
		r = append(r, run{x.object, x.sample, 1})
	}
	return slices.Clip(r)
}

func sampleID(i int) ident.SampleID { return ident.SampleID(i) }
