package source

import (
	"math"
	"sort"

	"larder/internal/ident"
)

// stretch is a run of objects that lie in one packed file, one behind the other: consecutive ids, named first by
// consecutive samples. What they share is here once, and they are found by where they lie, so that an object costs 12
// bytes instead of a row and its place in the hash table; none where places and sizes are arithmetic, as those of rows
// of arrays are.
type stretch struct {
	key    fileVersion
	root   uint32
	first  ident.ObjectID
	sample ident.SampleID
	n      uint32
	at     []inFile // nil = the k-th lies at off + k*step and has size bytes
	off    int64
	step   int64
	size   int64
}

// fileVersion is what objects of one packed file share of their identity.
type fileVersion struct {
	ino   uint64
	mtime int64
	dev   uint32 // index into objectTable.devs
}

// inFile is where an object lies in its file: an offset in two halves, so that a place takes 12 bytes.
type inFile struct{ low, high, size uint32 }

func (p inFile) off() int64 { return int64(p.high)<<32 | int64(p.low) }

const (
	minStretch   = 8  // objects that are worth a stretch
	maxStretches = 64 // of one file, each of which a search looks at; further objects of it are rows
)

// place is the k-th object's.
func (s *stretch) place(k uint32) (off, size int64) {
	if s.at == nil {
		return s.off + int64(k)*s.step, s.size
	}
	return s.at[k].off(), int64(s.at[k].size)
}

func (s *stretch) object(k uint32) object {
	off, size := s.place(k)
	return object{ino: s.key.ino, mtime: s.key.mtime, off: off, size: size, dev: s.key.dev, root: s.root,
		sample: s.sample + ident.SampleID(k)}
}

// find returns the object that lies at off and has that size.
func (s *stretch) find(off, size int64) (ident.ObjectID, bool) {
	var k int
	if s.at == nil {
		d := off - s.off
		if d < 0 || size != s.size || d%s.step != 0 || d/s.step >= int64(s.n) {
			return 0, false
		}
		k = int(d / s.step)
	} else {
		k = sort.Search(len(s.at), func(i int) bool { return s.at[i].off() >= off })
		if k == len(s.at) || s.at[k].off() != off || int64(s.at[k].size) != size {
			return 0, false
		}
	}
	return s.first + ident.ObjectID(k), true
}

// findInFiles returns the object of an identity that a stretch holds.
// REQUIRES: making is held.
func (t *objectTable) findInFiles(o *object) (ident.ObjectID, bool) {
	if len(t.files) == 0 || o.ordinal != 0 {
		return 0, false
	}
	for _, s := range t.files[fileVersion{o.ino, o.mtime, o.dev}] {
		if id, ok := s.find(o.off, o.size); ok {
			return id, true
		}
	}
	return 0, false
}

// internStretch gives ids to the objects of consecutive samples that may make a stretch. It ends before the first that
// is known where the first of them is not, and the other way round: added is how many it made, rows how many it leaves
// to be looked up or made one by one.
// REQUIRES: ids make a stretch (stretchOf). Neither making nor mu is held.
func (t *objectTable) internStretch(root uint32, ids []ident.SampleID, meta []fileMeta) (
	first ident.ObjectID, added, rows int,
) {
	t.making.Lock()
	defer t.making.Unlock()
	m := &meta[ids[0]]
	t.mu.Lock()
	key := fileVersion{m.ino, m.mtime, t.devLocked(m.dev)}
	t.mu.Unlock()
	if len(t.files[key]) >= maxStretches {
		return 0, 0, len(ids)
	}
	known := func(id ident.SampleID) bool {
		o := object{ino: key.ino, mtime: key.mtime, dev: key.dev, off: meta[id].off, size: meta[id].size}
		_, ok := t.find(&o)
		return ok
	}
	n, isKnown := 0, false
	if len(t.rows) == 0 && len(t.files[key]) == 0 { // nothing is
		n = len(ids)
	} else {
		isKnown, n = known(ids[0]), 1
		for n < len(ids) && known(ids[n]) == isKnown {
			n++
		}
	}
	if isKnown || n < minStretch {
		return 0, 0, n
	}
	s := &stretch{key: key, root: root, sample: ids[0], n: uint32(n)}
	s.fill(ids[:n], meta)
	t.mu.Lock()
	defer t.mu.Unlock()
	s.first = ident.ObjectID(t.n)
	t.n += s.n
	t.parts = append(t.parts, tablePart{first: s.first, row: uint32(len(t.rows)), in: s})
	if t.files == nil {
		t.files = map[fileVersion][]*stretch{}
	}
	t.files[key] = append(t.files[key], s)
	return s.first, n, 0
}

// fill notes where the objects lie.
func (s *stretch) fill(ids []ident.SampleID, meta []fileMeta) {
	a, b := &meta[ids[0]], &meta[ids[1]]
	s.off, s.step, s.size = a.off, b.off-a.off, a.size
	even := true
	for k, id := range ids {
		even = even && meta[id].size == s.size && meta[id].off == s.off+int64(k)*s.step
	}
	if even {
		return
	}
	s.at = make([]inFile, len(ids))
	for k, id := range ids {
		m := &meta[id]
		s.at[k] = inFile{uint32(m.off), uint32(m.off >> 32), uint32(m.size)}
	}
}

// stretchOf counts the first of ids that can make a stretch: consecutive samples in one file, each behind the one
// before, of less than 4 GiB. Others are rows.
func stretchOf(ids []ident.SampleID, meta []fileMeta) int {
	for k, id := range ids {
		m := &meta[id]
		if m.off < 0 || m.size < 0 || m.size > math.MaxUint32 {
			return k
		}
		if k == 0 {
			continue
		}
		last := &meta[ids[k-1]]
		if id != ids[k-1]+1 || m.dev != last.dev || m.ino != last.ino || m.mtime != last.mtime || m.off <= last.off {
			return k
		}
	}
	return len(ids)
}

// splitStretches cuts samples into those of stretches and others, in order.
func splitStretches(ids []ident.SampleID, meta []fileMeta, f func(part []ident.SampleID, isStretch bool)) {
	from := 0 // of those that no stretch has
	for i := 0; i < len(ids); {
		n := max(stretchOf(ids[i:], meta), 1)
		if n >= minStretch {
			if from < i {
				f(ids[from:i], false)
			}
			f(ids[i:i+n], true)
			from = i + n
		}
		i += n
	}
	if from < len(ids) {
		f(ids[from:], false)
	}
}
