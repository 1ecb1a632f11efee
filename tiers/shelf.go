package tiers

import (
	"sync"

	"larder/internal/ident"
	"larder/tiers/encoded"
)

// table is the shelf of decoded and augmented: a map under a lock. Values are pointers to what lives off the heap.
type table struct {
	mu struct {
		sync.Mutex
		slabs  map[ident.Key]*slab
		closed bool
	}
}

var _ shelf = (*table)(nil)

func newTable() *table {
	t := &table{}
	t.mu.slabs = make(map[ident.Key]*slab)
	return t
}

func (t *table) put(s *slab) bool {
	t.mu.Lock()
	old := t.mu.slabs[s.key] // the key was committed a moment ago
	kept := !t.mu.closed
	if kept {
		t.mu.slabs[s.key] = s
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
	s := t.mu.slabs[k]
	if s == nil || !s.Retain() { // the shelf has a reference, so Retain works
		return nil
	}
	return s
}

func (t *table) openAll(keys []ident.Key, out []*slab) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, k := range keys {
		out[i] = t.mu.slabs[k]
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
	s := t.mu.slabs[k]
	if s == nil || only != nil && s != only {
		t.mu.Unlock()
		return
	}
	delete(t.mu.slabs, k)
	t.mu.Unlock()
	s.Release()
}

func (t *table) len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.mu.slabs)
}

func (t *table) resize(int64) {}

func (t *table) close() {
	t.mu.Lock()
	slabs := t.mu.slabs
	t.mu.slabs = make(map[ident.Key]*slab)
	t.mu.closed = true
	t.mu.Unlock()
	for _, s := range slabs {
		s.Release()
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
