package cachepolicy

import (
	"github.com/google/btree"

	"larder/internal/invariant"
	"larder/internal/xrand"
)

// needEvictor lets the entry go that the fewest active jobs still need. Among equals chance decides: a tie number is
// drawn when an entry comes and whenever its need changes (sampler-sim.md 8.3). A newcomer takes the place of an
// entry of equal need too (measured slightly better than strict: 1.247 against 1.252 of the bound), but only if
// somebody needs the newcomer at all: entries nobody needs stay until their place is wanted.
//
// A tie lives as long as the need does, so entries that have stayed have higher ties than the average newcomer: with
// needs that never change the policy tends to never-evict, which is the best there is for shuffled epochs.
//
// refcount is Joader's RefCnt (Xie et al., NeurIPS 2022), with counts that follow the jobs instead of the released
// code's, which are frozen when an entry comes: the same order, but a newcomer that somebody could use takes the place of the
// least needed entry even if it is needed less itself.
type needEvictor struct {
	name  string
	least int  // newcomers of a lower need displace nothing
	equal bool // a newcomer displaces only what is needed as little as itself
	r     *xrand.Rand
	tree  *btree.BTreeG[needItem]
	slots []needSlot // by handle
}

type needItem struct {
	tie  uint64
	need int32
	h    uint32
}

// needSlot keeps its tie after a Remove, for Restore.
type needSlot struct {
	tie  uint64
	need int32
	in   bool
}

func newNeed(r *xrand.Rand) *needEvictor { return newByNeed("need", 1, true, r) }

func newRefcount(r *xrand.Rand) *needEvictor { return newByNeed("refcount", 0, false, r) }

func newByNeed(name string, least int, equal bool, r *xrand.Rand) *needEvictor {
	return &needEvictor{name: name, least: least, equal: equal, r: r, tree: btree.NewG(32, func(a, b needItem) bool {
		if a.need != b.need {
			return a.need < b.need
		}
		if a.tie != b.tie {
			return a.tie < b.tie
		}
		return a.h < b.h // once in 2^64; only makes the order total
	})}
}

func (e *needEvictor) Name() string { return e.name }
func (e *needEvictor) Len() int     { return e.tree.Len() }

func (e *needEvictor) Insert(h uint32, need int) { e.put(h, int32(need), e.r.Uint64()) }

func (e *needEvictor) Restore(h uint32, need int) {
	if int(h) >= len(e.slots) {
		invariant.Violated("%s: Restore(%d) of an entry that never was in", e.name, h)
	}
	e.put(h, int32(need), e.slots[h].tie)
}

func (e *needEvictor) put(h uint32, need int32, tie uint64) {
	for int(h) >= len(e.slots) {
		e.slots = append(e.slots, needSlot{})
	}
	if e.slots[h].in {
		invariant.Violated("%s: entry %d is in already", e.name, h)
	}
	e.slots[h] = needSlot{tie: tie, need: need, in: true}
	e.tree.ReplaceOrInsert(needItem{tie: tie, need: need, h: h})
}

func (e *needEvictor) Update(h uint32, need int) {
	if s := e.slot(h); s.need != int32(need) {
		e.Remove(h)
		e.Insert(h, need)
	}
}

func (e *needEvictor) Hit(h uint32) { e.slot(h) }

func (e *needEvictor) Remove(h uint32) {
	s := e.slot(h)
	s.in = false
	if _, ok := e.tree.Delete(needItem{tie: s.tie, need: s.need, h: h}); !ok {
		invariant.Violated("%s: entry %d is not where its need %d puts it", e.name, h, s.need)
	}
}

func (e *needEvictor) slot(h uint32) *needSlot {
	if int(h) >= len(e.slots) || !e.slots[h].in {
		invariant.Violated("%s: entry %d is not in", e.name, h)
	}
	return &e.slots[h]
}

func (e *needEvictor) Victim(need int) (uint32, bool) {
	v, ok := e.tree.Min()
	return v.h, ok && need >= e.least && (!e.equal || int(v.need) <= need)
}

func (e *needEvictor) Coldest() (uint32, bool) {
	v, ok := e.tree.Min()
	return v.h, ok
}
