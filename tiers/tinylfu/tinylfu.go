// Package tinylfu is ristretto's own policy as a cachepolicy.Evictor: what ristretto's TinyLFU admission and sampled
// LFU would keep, asked of ristretto itself, which holds keys and no bytes here.
//
// It stands outside cachepolicy's registry because it is not deterministic: ristretto counts hits through lossy
// buffers, samples victims in map order, and seeds itself. Two runs with one seed differ. On shuffled epochs it keeps
// less than never evicting (docs/policies.md); it is there to be compared with, and for requests that repeat.
//
// An Evictor belongs to one goroutine; ristretto's own goroutines run until Close.
package tinylfu

import (
	"container/list"
	"fmt"
	"slices"
	"sync"

	"github.com/dgraph-io/ristretto/v2"

	"larder/cachepolicy"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/invariant"
	"larder/internal/xrand"
)

// Name is the name of the policy in configurations and scenarios.
const Name = "tinylfu"

// Breaks says in words which promises the policy does not keep.
const Breaks = "epoch, stratified: samples whose ids share counters of the sketch look more popular than others " +
	"of their cell; and it is not deterministic: runs with one seed differ"

// Evictor asks ristretto, to which every entry has cost 1 and whose capacity is always what the tier holds.
type Evictor struct {
	cache *ristretto.Cache[uint64, uint64]

	handles map[uint64]uint32 // of the entries, by key; lookups only
	slots   []slot            // by handle
	age     *list.List        // handles, the oldest first

	newcomer uint64
	offered  bool     // ristretto has decided about the newcomer, and the Evictor does not know the result yet
	refused  bool     // the decision
	victims  []uint64 // that ristretto gave up for the newcomer and that are still entries here, the next one first

	hooks struct { // ristretto's goroutine writes them
		sync.Mutex
		evicted  []uint64
		rejected bool
	}
}

type slot struct {
	key uint64
	at  *list.Element // nil = out
}

var _ cachepolicy.Sighted = (*Evictor)(nil)

// New returns an empty Evictor for a tier of about that many entries; they size the sketch, and bound nothing.
func New(entries int) (*Evictor, error) {
	e := &Evictor{handles: map[uint64]uint32{}, age: list.New()}
	var err error
	e.cache, err = ristretto.NewCache(&ristretto.Config[uint64, uint64]{
		NumCounters:            min(max(10*int64(entries), 1<<10), 1<<26),
		MaxCost:                1,
		BufferItems:            64,
		KeyToHash:              func(k uint64) (uint64, uint64) { return k, 0 },
		IgnoreInternalCost:     true,
		TtlTickerDurationInSec: 1 << 30, // nothing expires
		OnEvict: func(i *ristretto.Item[uint64]) {
			e.hooks.Lock()
			e.hooks.evicted = append(e.hooks.evicted, i.Key)
			e.hooks.Unlock()
		},
		OnReject: func(*ristretto.Item[uint64]) {
			e.hooks.Lock()
			e.hooks.rejected = true
			e.hooks.Unlock()
		},
	})
	if err != nil {
		return nil, fmt.Errorf("make a cache for policy %s: %w", Name, err)
	}
	return e, nil
}

// Close ends ristretto's goroutines.
func (e *Evictor) Close() { e.cache.Close() }

// Name is tinylfu.
func (e *Evictor) Name() string { return Name }

// Len is the number of entries.
func (e *Evictor) Len() int { return e.age.Len() }

// keyOf mixes, because ristretto's shards and sketch rows take bits as they come.
func keyOf(k ident.Key) uint64 {
	return xrand.Hash(uint64(k.Object)|uint64(k.Form)<<32, uint64(k.Recipe), uint64(k.Group)<<32|uint64(k.Instance))
}

// Admit counts the request.
func (e *Evictor) Admit(k ident.Key, _ int) bool {
	e.Newcomer(k)
	e.cache.Get(e.newcomer)
	return true
}

// Newcomer says whom Victim and Insert are about.
func (e *Evictor) Newcomer(k ident.Key) {
	e.withdraw()
	e.newcomer = keyOf(k)
}

// set offers a key to ristretto with room for so many, and returns what that did.
func (e *Evictor) set(key uint64, room int) (kept bool, evicted []uint64) {
	e.cache.UpdateMaxCost(int64(room))
	e.hooks.evicted, e.hooks.rejected = e.hooks.evicted[:0], false
	for !e.cache.Set(key, key, 1) {
		e.cache.Wait() // its buffer is full
	}
	e.cache.Wait()
	e.hooks.Lock()
	defer e.hooks.Unlock()
	return !e.hooks.rejected, append([]uint64(nil), e.hooks.evicted...)
}

func (e *Evictor) del(key uint64) {
	e.cache.Del(key)
	e.cache.Wait()
}

// withdraw undoes what ristretto did for a newcomer that did not come.
func (e *Evictor) withdraw() {
	if !e.offered {
		return
	}
	e.offered = false
	if !e.refused {
		e.del(e.newcomer)
	}
	for _, v := range e.victims {
		e.set(v, e.Len()+1)
	}
	e.victims = e.victims[:0]
}

// Victim offers the newcomer to ristretto, which is full, and says what it gives up for it.
func (e *Evictor) Victim(int) (uint32, bool) {
	for !e.offered || !e.refused && len(e.victims) == 0 {
		if e.Len() == 0 {
			return 0, false
		}
		if e.offered { // one victim was not enough: ask again
			e.del(e.newcomer)
		}
		kept, evicted := e.set(e.newcomer, e.Len())
		e.offered, e.refused = true, !kept
		for _, v := range evicted {
			if _, ok := e.handles[v]; ok {
				e.victims = append(e.victims, v)
			}
		}
		if kept && len(e.victims) == 0 { // ristretto lost an entry before: no entry had to leave
			v := e.slots[e.age.Front().Value.(uint32)].key
			e.del(v)
			e.victims = append(e.victims, v)
		}
	}
	if e.refused {
		return 0, false
	}
	return e.handles[e.victims[0]], true
}

// Coldest is the oldest entry: ristretto evicts only for a newcomer.
func (e *Evictor) Coldest() (uint32, bool) {
	if e.age.Len() == 0 {
		return 0, false
	}
	return e.age.Front().Value.(uint32), true
}

// Insert takes the newcomer in.
func (e *Evictor) Insert(h uint32, _ int) {
	for int(h) >= len(e.slots) {
		e.slots = append(e.slots, slot{})
	}
	if e.slots[h].at != nil {
		invariant.Violated("tinylfu: entry %d is in already", h)
	}
	if !e.offered || e.refused || len(e.victims) > 0 {
		e.withdraw()
		e.set(e.newcomer, e.Len()+1)
	}
	e.offered = false
	e.enter(h, e.newcomer, e.age.PushBack(h))
}

func (e *Evictor) enter(h uint32, key uint64, at *list.Element) {
	e.slots[h] = slot{key, at}
	e.handles[key] = h
}

// Restore takes back what was a Victim.
func (e *Evictor) Restore(h uint32, _ int) {
	if int(h) >= len(e.slots) || e.slots[h].at != nil {
		invariant.Violated("tinylfu: entry %d was not removed", h)
	}
	e.withdraw()
	e.set(e.slots[h].key, e.Len()+1)
	e.enter(h, e.slots[h].key, e.age.PushFront(h))
}

// Update changes nothing: TinyLFU does not know needs.
func (e *Evictor) Update(h uint32, _ int) { e.slot(h) }

// Hit counts the request.
func (e *Evictor) Hit(h uint32) {
	s := e.slot(h)
	e.withdraw()
	e.cache.Get(s.key)
}

// Remove takes the entry out.
func (e *Evictor) Remove(h uint32) {
	s := e.slot(h)
	if len(e.victims) > 0 && e.victims[0] == s.key {
		e.victims = append(e.victims[:0], e.victims[1:]...)
	} else {
		e.withdraw()
		e.del(s.key)
	}
	e.age.Remove(s.at)
	delete(e.handles, s.key)
	s.at = nil
}

func (e *Evictor) slot(h uint32) *slot {
	if int(h) >= len(e.slots) || e.slots[h].at == nil {
		invariant.Violated("tinylfu: entry %d is not in", h)
	}
	return &e.slots[h]
}

// Make returns the Evictor of a name: this one, or one of cachepolicy's registry. entries is about how many the tier
// holds. One that has a Close method needs it called.
func Make(name string, r *xrand.Rand, g cachepolicy.Given, entries int) (cachepolicy.Evictor, error) {
	if name == Name {
		e, err := New(entries)
		if err != nil {
			return nil, err
		}
		return e, nil
	}
	e, err := cachepolicy.NewGiven(name, r, g)
	if f := errs.From(err); err != nil && !Known(name) {
		return nil, errs.New(f.Reason, f.Subject, cachepolicy.Hint(name, Names()), "%s", f.Message)
	}
	return e, err
}

// Known reports whether Make knows the name.
func Known(name string) bool {
	return name == Name || slices.Contains(cachepolicy.Names(), name) || cachepolicy.NeedsFuture(name)
}

// Names lists all policies: cachepolicy's, the default first, and tinylfu.
func Names() []string { return append(cachepolicy.Names(), Name) }

// BreaksOf is cachepolicy.Breaks for all policies.
func BreaksOf(name string) string {
	if name == Name {
		return Breaks
	}
	return cachepolicy.Breaks(name)
}
