package trace

import (
	"cmp"
	"maps"
	"slices"

	"larder/internal/ident"
)

// Interrupted notes that the daemon went away and that its successor continues where it was: what was in memory has
// left it, and samples of running epochs that were recorded and come a second time, because they had not been used, are
// left out from now on.
func (a *Assembler) Interrupted() {
	type place struct {
		object uint32
		form   ident.Form
	}
	held := map[place]struct{}{}
	for _, m := range a.t.Moves {
		if p := (place{m.Object, m.Form}); m.In {
			held[p] = struct{}{}
		} else {
			delete(held, p)
		}
	}
	for _, p := range slices.SortedFunc(maps.Keys(held),
		func(x, y place) int { return cmp.Or(cmp.Compare(x.object, y.object), cmp.Compare(x.form, y.form)) }) {
		a.Move(p.object, p.form, false)
	}
	a.had = make([]set, len(a.order))
	begun := make([]bool, len(a.order))
	left := len(a.order)
	for i := a.t.Pick.Len() - 1; i >= 0 && left > 0; i-- {
		n := a.t.Pick.Job[i] & JobMask
		if begun[n] {
			continue
		}
		a.had[n].add(a.t.Pick.Object[i])
		if a.t.Pick.Job[i]&Begins != 0 {
			begun[n] = true
			left--
		}
	}
}

// fresh is what of a batch was not recorded before an interruption; the batch is not changed.
func (a *Assembler) fresh(job int, begins bool, objects []uint32) []uint32 {
	if job >= len(a.had) || len(a.had[job]) == 0 {
		return objects
	}
	if begins {
		a.had[job] = nil // nothing of another epoch comes again
		return objects
	}
	return slices.DeleteFunc(slices.Clone(objects), a.had[job].has)
}

// set is a set of objects.
type set []uint64

func (s *set) add(x uint32) {
	if n := int(x>>6) + 1 - len(*s); n > 0 {
		*s = append(*s, make([]uint64, n)...)
	}
	(*s)[x>>6] |= 1 << (x & 63)
}

func (s set) has(x uint32) bool { return int(x>>6) < len(s) && s[x>>6]>>(x&63)&1 == 1 }
