package cachepolicy

import (
	"github.com/google/btree"

	"larder/internal/ident"
	"larder/internal/invariant"
)

// Future knows the requests to come. Its time is whatever orders requests: their numbers, or samples of
// virtual time. Both methods are about one instant; the owner moves it before each request reaches the policy.
type Future interface {
	// Now returns the time of the current request.
	Now() uint64
	// Next returns the time of the next request for k after Now; false when no such request is known.
	Next(k ident.Key) (at uint64, ok bool)
}

// foresight evicts the entry whose next request is furthest off, and does not admit a newcomer whose own is further
// (Belady, IBM Systems Journal 5(2), 1966: MIN, with bypass). With the whole future, and entries of one size, no policy
// has more hits. Requests beyond the horizon count as unknown; unknown ones are furthest off, and among them the oldest
// entry goes (first in, first out).
//
// A next request is looked up when an entry is used, when its need changes, before the entry is given up, and once it
// is overdue, so a Future may learn and forget requests as epochs begin and jobs leave.
type foresight struct {
	name    string
	future  Future
	horizon uint64 // 0 = none
	tree    *btree.BTreeG[dueItem]
	slots   []dueSlot // by handle
	seq     uint64
	key     ident.Key // of the newcomer
}

type dueItem struct {
	at  uint64 // never when unknown
	seq uint64 // order of arrival
	h   uint32
}

type dueSlot struct {
	key ident.Key
	dueItem
	in bool
}

const never = ^uint64(0)

func newForesight(name string, f Future, horizon uint64) *foresight {
	return &foresight{name: name, future: f, horizon: horizon, tree: btree.NewG(32, func(a, b dueItem) bool {
		if a.at != b.at {
			return a.at < b.at
		}
		return a.seq > b.seq // of equals the oldest is furthest
	})}
}

func (f *foresight) Name() string { return f.name }
func (f *foresight) Len() int     { return f.tree.Len() }

func (f *foresight) Newcomer(k ident.Key) { f.key = k }

func (f *foresight) Admit(k ident.Key, _ int) bool {
	f.Newcomer(k)
	return true
}

func (f *foresight) next(k ident.Key) uint64 {
	at, ok := f.future.Next(k)
	if now := f.future.Now(); !ok || at <= now || f.horizon > 0 && at-now > f.horizon {
		return never
	}
	return at
}

func (f *foresight) Insert(h uint32, _ int) {
	f.seq++
	f.put(h, f.key, dueItem{f.next(f.key), f.seq, h})
}

func (f *foresight) put(h uint32, k ident.Key, it dueItem) {
	for int(h) >= len(f.slots) {
		f.slots = append(f.slots, dueSlot{})
	}
	if f.slots[h].in {
		invariant.Violated("%s: entry %d is in already", f.name, h)
	}
	f.slots[h] = dueSlot{k, it, true}
	f.tree.ReplaceOrInsert(it)
}

func (f *foresight) Restore(h uint32, _ int) {
	if int(h) >= len(f.slots) {
		invariant.Violated("%s: Restore(%d) of an entry that never was in", f.name, h)
	}
	f.put(h, f.slots[h].key, f.slots[h].dueItem)
}

func (f *foresight) Update(h uint32, _ int) { f.look(h) }
func (f *foresight) Hit(h uint32)           { f.look(h) }

// look asks again when h is wanted, and reports whether that has changed.
func (f *foresight) look(h uint32) bool {
	s := f.slot(h)
	at := f.next(s.key)
	if at == s.at {
		return false
	}
	f.tree.Delete(s.dueItem)
	s.at = at
	f.tree.ReplaceOrInsert(s.dueItem)
	return true
}

func (f *foresight) Remove(h uint32) {
	s := f.slot(h)
	s.in = false
	if _, ok := f.tree.Delete(s.dueItem); !ok {
		invariant.Violated("%s: entry %d is not where its next use puts it", f.name, h)
	}
}

func (f *foresight) slot(h uint32) *dueSlot {
	if int(h) >= len(f.slots) || !f.slots[h].in {
		invariant.Violated("%s: entry %d is not in", f.name, h)
	}
	return &f.slots[h]
}

func (f *foresight) Victim(int) (uint32, bool) {
	h, ok := f.Coldest()
	if !ok {
		return 0, false
	}
	at := f.slots[h].at
	return h, at == never || f.next(f.key) < at
}

// Coldest ends because each look gives an overdue entry a time after now, and what was furthest and is not any more is
// a known request, and no look makes it unknown again while time stands still.
func (f *foresight) Coldest() (uint32, bool) {
	for now := f.future.Now(); ; {
		v, ok := f.tree.Min()
		if !ok {
			return 0, false
		}
		if v.at <= now {
			f.look(v.h)
			continue
		}
		if v, _ = f.tree.Max(); !f.look(v.h) {
			return v.h, true
		}
	}
}
