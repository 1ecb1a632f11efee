package source

import (
	"slices"
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

// object is one row of the object table, 48 bytes. The first six fields are its identity: it is compared in full, never
// by hash alone. ordinal distinguishes samples of one dataset that name the same file.
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

// objectTable gives identities dense ids, append-only: an identity never changes. slots and tags are an open hash table
// of ids with linear probing, at most 3/4 full; a Go map with these keys would need twice the memory of the rows
// themselves. A search reads a row, which no cache has, only where the tag fits.
//
// Those who read never wait for the table to grow, which takes seconds at 2^26 rows: it grows under making alone.
type objectTable struct {
	making sync.Mutex // of those who make ids: taken before mu, and held over all of room and internLocked
	slots  []uint32   // guarded by making
	tags   []uint8    // of each slot: tagOf what it holds; 0 = nothing. Guarded by making

	mu   sync.RWMutex // guards what follows; written with making held, too
	devs []uint64
	rows []object
}

func (t *objectTable) len() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.rows)
}

// get returns the row of an id.
func (t *objectTable) get(id ident.ObjectID) (object, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if int64(id) >= int64(len(t.rows)) {
		return object{}, false
	}
	return t.rows[id], true
}

// meta returns what get does, with the device itself.
func (t *objectTable) meta(id ident.ObjectID) (fileMeta, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if int64(id) >= int64(len(t.rows)) {
		return fileMeta{}, false
	}
	o := &t.rows[id]
	return fileMeta{dev: t.devs[o.dev], ino: o.ino, size: o.size, mtime: o.mtime, off: o.off}, true
}

// objectOf is the row of a file and occurrence that is named by (root, sample).
// REQUIRES: making and mu are held.
func (t *objectTable) objectOf(f *fileMeta, ordinal, root uint32, sample ident.SampleID) object {
	dev := slices.Index(t.devs, f.dev) // a machine has few devices
	if dev < 0 {
		dev = len(t.devs)
		t.devs = append(t.devs, f.dev)
	}
	return object{ino: f.ino, mtime: f.mtime, off: f.off, size: f.size, dev: uint32(dev), ordinal: ordinal, root: root,
		sample: sample}
}

// internLocked returns the id of a file and occurrence; a new one is remembered as named by (root, sample).
// REQUIRES: making and mu are held.
func (t *objectTable) internLocked(f fileMeta, ordinal, root uint32, sample ident.SampleID) ident.ObjectID {
	o := t.objectOf(&f, ordinal, root, sample)
	return t.addLocked(&o, o.hash())
}

// addLocked returns the id of a row with the hash h; a new row is added.
// REQUIRES: making and mu are held.
func (t *objectTable) addLocked(o *object, h uint64) ident.ObjectID {
	t.roomToFind(1) // nothing to do after room
	tag, mask := tagOf(h), uint64(len(t.slots)-1)
	for i := h & mask; ; i = (i + 1) & mask {
		switch t.tags[i] {
		case 0:
			id := uint32(len(t.rows))
			t.rows = append(t.rows, *o)
			t.slots[i], t.tags[i] = id, tag
			return ident.ObjectID(id)
		case tag:
			if id := t.slots[i]; t.rows[id].same(o) {
				return ident.ObjectID(id)
			}
		}
	}
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
	for id := range t.rows {
		h := t.rows[id].hash()
		i := h & mask
		for t.tags[i] != 0 {
			i = (i + 1) & mask
		}
		t.slots[i], t.tags[i] = uint32(id), tagOf(h)
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
