package tiers

import (
	"sync"

	"larder/internal/ident"
	"larder/tiers/encoded"
)

// table is the shelf of decoded and augmented: maps under a lock. Values are pointers to what lives off the heap.
//
// Keys differ in little but the object, so each plane has a map of its own: the keys of that are a sixth as large, and
// what is looked up at random among many lies in fewer cache lines.
type table struct {
	mu struct {
		sync.Mutex
		planes map[ident.Key]plane // by a key of its entries without the object; none is empty
		n      int                 // of entries
		closed bool
	}
}

// plane is the entries whose keys differ in the object alone.
type plane map[ident.ObjectID]*slab

func planeOf(k ident.Key) ident.Key {
	k.Object = 0
	return k
}

var _ shelf = (*table)(nil)

func newTable() *table {
	t := &table{}
	t.mu.planes = make(map[ident.Key]plane)
	return t
}

func (t *table) put(s *slab) bool {
	t.mu.Lock()
	of := planeOf(s.key)
	p := t.mu.planes[of]
	old := p[s.key.Object] // the key was committed a moment ago
	kept := !t.mu.closed
	if kept {
		if p == nil {
			p = plane{}
			t.mu.planes[of] = p
		}
		if p[s.key.Object] = s; old == nil {
			t.mu.n++
		}
	}
	t.mu.Unlock()
	if kept && old != nil {
		old.Release()
	}
	return kept
}

func (t *table) open(k ident.Key) *slab {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.mu.planes[planeOf(k)][k.Object]
	if s == nil || !s.Retain() { // the shelf has a reference, so Retain works
		return nil
	}
	return s
}

func (t *table) openAll(keys []ident.Key, out []*slab) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var of ident.Key
	var p plane
	for i, k := range keys { // mostly of one job, and so of one plane
		if n := planeOf(k); i == 0 || n != of {
			of, p = n, t.mu.planes[n]
		}
		out[i] = p[k.Object]
	}
	// A slab of many is in no cache. Loads wait for memory together, what Retain does waits each time: so these go first.
	here := int32(0)
	for _, s := range out {
		if s != nil {
			here |= s.refs.Load()
		}
	}
	if here == 0 {
		return // none is here: the shelf has a reference of each
	}
	for i, s := range out {
		if s != nil && !s.Retain() {
			out[i] = nil
		}
	}
}

func (t *table) drop(k ident.Key) { t.dropIf(k, nil) }

func (t *table) dropIf(k ident.Key, only *slab) {
	t.mu.Lock()
	of := planeOf(k)
	p := t.mu.planes[of]
	s := p[k.Object]
	if s == nil || only != nil && s != only {
		t.mu.Unlock()
		return
	}
	if delete(p, k.Object); len(p) == 0 {
		delete(t.mu.planes, of)
	}
	t.mu.n--
	t.mu.Unlock()
	s.Release()
}

func (t *table) len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.n
}

func (t *table) resize(int64) {}

func (t *table) close() {
	t.mu.Lock()
	planes := t.mu.planes
	t.mu.planes, t.mu.n = make(map[ident.Key]plane), 0
	t.mu.closed = true
	t.mu.Unlock()
	for _, p := range planes {
		for _, s := range p {
			s.Release()
		}
	}
}

// handles is the shelf of encoded: ristretto holds the handles.
type handles struct{ index *encoded.Index[*slab] }

var _ shelf = handles{}

func newHandles(budget int64) (handles, error) {
	x, err := encoded.New[*slab](budget)
	return handles{x}, err
}

func (h handles) put(s *slab) bool { return h.index.Offer(s.key.Object, s, s.ext.Size()) }

func (h handles) open(k ident.Key) *slab {
	s, ok := h.index.Open(k.Object)
	if !ok {
		return nil
	}
	return s
}

func (h handles) openAll(keys []ident.Key, out []*slab) {
	for i, k := range keys {
		out[i] = h.open(k)
	}
}

func (h handles) drop(k ident.Key)            { h.index.Remove(k.Object) }
func (h handles) dropIf(k ident.Key, s *slab) { h.index.RemoveIf(k.Object, s) }
func (h handles) len() int                    { return h.index.Len() }
func (h handles) resize(bytes int64)          { h.index.SetMaxCost(bytes) }
func (h handles) close()                      { h.index.Close() }
