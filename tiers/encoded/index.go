package encoded

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/dgraph-io/ristretto/v2"

	"larder/internal/ident"
	"larder/internal/xrand"
)

// Handle is a counted reference to a slab. The zero value stands for none.
type Handle interface {
	comparable
	Retain() bool // false: it is gone already
	Release()     // must not call the Index
}

// Index maps objects to handles, and owns one reference of each. Safe for concurrent use.
type Index[H Handle] struct {
	cache *ristretto.Cache[uint64, H]

	// life is held for reading by whatever talks to ristretto, for writing by Close: a Set that meets a Close panics.
	life   sync.RWMutex
	closed bool

	// If taking both, take barrier before mu. No lock is held while a handle is released.
	barrier sync.Mutex // held during Wait
	settled uint64     // guarded by barrier: the highest seq that a finished Wait covers

	mu    sync.Mutex
	exact map[uint64]record[H] // by ristretto key
	dirty map[uint64]uint64    // deleted keys whose deletion may still be queued, by seq
	seq   uint64               // of sets and deletes that have been queued

	surprises atomic.Uint64
}

type record[H Handle] struct {
	h     H
	stage stage
}

// stage says who may end a record. A Del that overtook the Set of its key would leave the value in ristretto forever,
// so a Remove that meets an offer leaves the work to the one who offers.
type stage uint8

const (
	offering stage = iota // Offer is at it
	doomed                // Offer is at it, and removes it at its end
	resident              // Set and decided
	deleting              // a Del is under way, and releases the handle
)

// New returns an empty index for at most maxCost bytes.
func New[H Handle](maxCost int64) (*Index[H], error) {
	x := &Index[H]{exact: make(map[uint64]record[H]), dirty: make(map[uint64]uint64)}
	var err error
	x.cache, err = ristretto.NewCache(&ristretto.Config[uint64, H]{
		// The sketch matters for policy tinylfu only; ten counters for each object of 64 KiB, within reason.
		NumCounters:        min(max(maxCost/(64<<10)*10, 1<<12), 1<<22),
		MaxCost:            max(maxCost, 1),
		BufferItems:        64,
		KeyToHash:          func(k uint64) (uint64, uint64) { return k, 0 },
		OnEvict:            x.drop,
		OnReject:           x.drop,
		IgnoreInternalCost: true,
		// Nothing expires; the ticker is only kept from waking up.
		TtlTickerDurationInSec: 1 << 30,
	})
	if err != nil {
		return nil, fmt.Errorf("make the handle cache of the encoded tier: %w", err)
	}
	return x, nil
}

// key is a bijection of the object: mixed, because ristretto's shards and sketch rows take bits as they come.
func key(o ident.ObjectID) uint64 { return xrand.Mix(uint64(o)) }

// drop is ristretto's callback for a value that it dropped. It may come twice, with a zero value, or about a value that
// stays (a rejected second Set of a key); the exact index knows better.
func (x *Index[H]) drop(item *ristretto.Item[H]) {
	var none H
	if item == nil || item.Value == none {
		return
	}
	x.mu.Lock()
	r, ok := x.exact[item.Key]
	ours := ok && r.h == item.Value && r.stage != deleting
	if ours {
		delete(x.exact, item.Key)
	}
	x.mu.Unlock()
	if ours {
		x.surprises.Add(1)
		item.Value.Release()
	}
}

// Offer takes over one reference to h if it says true: h is in, and visible. False: it was not kept, and the reference
// is still the caller's. That is so when the object is in already, is just being removed, or ristretto's buffer is
// full; it costs a later read, never data. cost is in bytes, positive, and within what SetMaxCost allows for all
// together.
func (x *Index[H]) Offer(o ident.ObjectID, h H, cost int64) bool {
	x.life.RLock()
	defer x.life.RUnlock()
	if x.closed {
		return false
	}
	k := key(o)
	x.mu.Lock()
	if seq, dirty := x.dirty[k]; dirty {
		x.mu.Unlock()
		x.settle(seq)
		x.mu.Lock()
	}
	_, taken := x.exact[k]
	_, dirty := x.dirty[k] // removed again meanwhile
	if taken || dirty {
		x.mu.Unlock()
		return false
	}
	x.exact[k] = record[H]{h: h, stage: offering}
	x.mu.Unlock()

	if !x.cache.Set(k, h, cost) {
		// No hook was or will be called.
		x.mu.Lock()
		delete(x.exact, k)
		x.mu.Unlock()
		return false
	}
	x.settle(x.queued())
	x.mu.Lock()
	r, ok := x.exact[k]
	if ok && r.stage == offering {
		x.exact[k] = record[H]{h: h, stage: resident}
	}
	x.mu.Unlock()
	if ok && r.stage == doomed {
		x.remove(o, doomed)
	}
	// If it is not there, ristretto chose to drop it, and the hook released it.
	return true
}

// Open returns the object's handle, retained for the caller.
func (x *Index[H]) Open(o ident.ObjectID) (h H, ok bool) {
	x.life.RLock()
	defer x.life.RUnlock()
	if x.closed {
		return h, false
	}
	h, ok = x.cache.Get(key(o))
	var none H
	if !ok || h == none || !h.Retain() {
		return none, false
	}
	return h, true
}

// Remove drops the object's handle; false when there was none. Memory returns when the last reference is released.
func (x *Index[H]) Remove(o ident.ObjectID) bool {
	x.life.RLock()
	defer x.life.RUnlock()
	return x.remove(o, resident)
}

// RemoveIf is Remove if the handle is still h.
func (x *Index[H]) RemoveIf(o ident.ObjectID, h H) bool {
	x.life.RLock()
	defer x.life.RUnlock()
	x.mu.Lock()
	same := x.exact[key(o)].h == h
	x.mu.Unlock()
	// Another handle can come only after this one was removed; dropping that one too costs a read, no more.
	return same && x.remove(o, resident)
}

// remove ends a record that is in stage at; one that is still being offered is left to Offer.
// REQUIRES: life is held for reading.
func (x *Index[H]) remove(o ident.ObjectID, at stage) bool {
	if x.closed {
		return false
	}
	k := key(o)
	x.mu.Lock()
	r, ok := x.exact[k]
	if ok && r.stage == offering {
		x.exact[k] = record[H]{h: r.h, stage: doomed}
		x.mu.Unlock()
		return true
	}
	if !ok || r.stage != at {
		x.mu.Unlock()
		return false
	}
	x.exact[k] = record[H]{h: r.h, stage: deleting}
	x.mu.Unlock()

	x.cache.Del(k)

	x.mu.Lock()
	delete(x.exact, k)
	x.seq++
	x.dirty[k] = x.seq
	x.mu.Unlock()
	// Del is queued before the bytes come free, so whatever is put in their place is decided after it: the cost that
	// ristretto counts never exceeds the bytes in use.
	r.h.Release()
	return true
}

// queued numbers a Set that has just been queued.
func (x *Index[H]) queued() uint64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.seq++
	return x.seq
}

// settle returns when everything queued up to seq is decided and its hooks have run. Those that come together share one
// Wait: the first one in waits for all that queued before it, the others find that done.
func (x *Index[H]) settle(seq uint64) {
	x.barrier.Lock()
	defer x.barrier.Unlock()
	if x.settled >= seq {
		return
	}
	x.mu.Lock()
	upto := x.seq
	x.mu.Unlock()
	x.cache.Wait()
	x.settled = upto
	x.mu.Lock()
	for k, s := range x.dirty {
		if s <= upto {
			delete(x.dirty, k)
		}
	}
	x.mu.Unlock()
}

// SetMaxCost raises the bound on cost. It is never lowered: ristretto would evict by its own choice at the next Set.
// The arena's budget shrinks instead, and keeps offers out.
func (x *Index[H]) SetMaxCost(bytes int64) {
	x.life.RLock()
	defer x.life.RUnlock()
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.closed && bytes > x.cache.MaxCost() {
		x.cache.UpdateMaxCost(bytes)
	}
}

// Len returns the number of objects.
func (x *Index[H]) Len() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.exact)
}

// Surprises counts handles that ristretto gave up by its own choice. With offers within the bound it stays 0.
func (x *Index[H]) Surprises() uint64 { return x.surprises.Load() }

// Check compares the exact index with ristretto, once everything queued is decided. Call it when nothing else runs.
func (x *Index[H]) Check() error {
	x.settle(x.queued())
	x.mu.Lock()
	defer x.mu.Unlock()
	held := make(map[H]bool)
	x.cache.IterValues(func(h H) bool {
		held[h] = true
		return false
	})
	for k, r := range x.exact {
		if !held[r.h] {
			return fmt.Errorf("encoded: key %016x is in the exact index and not in ristretto", k)
		}
	}
	if len(held) != len(x.exact) {
		return fmt.Errorf("encoded: ristretto holds %d handles, the exact index %d", len(held), len(x.exact))
	}
	return nil
}

// Close releases every handle and stops ristretto's goroutines. A second Close does nothing.
func (x *Index[H]) Close() {
	x.life.Lock()
	defer x.life.Unlock()
	if x.closed {
		return
	}
	x.closed = true
	x.cache.Wait()
	// Released by us, so that Close does not depend on which values ristretto's Clear reports.
	x.mu.Lock()
	exact := x.exact
	x.exact = make(map[uint64]record[H])
	x.mu.Unlock()
	for _, r := range exact {
		r.h.Release()
	}
	x.cache.Close()
}
