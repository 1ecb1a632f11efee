package cachepolicy

import (
	"cmp"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"larder/internal/xrand"
)

// change is what Update does to one entry.
func (it *needItem) change(n int, tie func(int) uint64) {
	switch {
	case it.need == int32(n):
	case it.need < 0 || n < 0:
		it.need, it.tie = int32(n), tie(n)
	default:
		it.need, it.tie = int32(n), nextTie(it.tie)
	}
}

// What leaves is the first in the order of need, tie and handle, with a tie drawn for each arrival and each change of
// need, and none for an update that changes nothing: compared with a list that is sorted by it, beside the same
// generators, one for entries of a need below 0 and one for the others. A newcomer displaces what is needed no more
// than itself, and without need only what is below 0; below 0 itself, nothing.
func TestNeedLeavesInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64().Draw(t, "seed")
		e, r, apart := newNeed(xrand.New(seed)), xrand.New(seed), newApart()
		tie := func(need int) uint64 {
			if need < 0 {
				return apart.Uint64()
			}
			return r.Uint64()
		}
		var model, gone []needItem
		in := func(h uint32) int { return slices.IndexFunc(model, func(it needItem) bool { return it.h == h }) }
		handle := rapid.Uint32Range(0, 60)
		need := rapid.IntRange(-1, 9)
		t.Repeat(map[string]func(*rapid.T){
			"insert": func(t *rapid.T) {
				h, n := handle.Draw(t, "handle"), need.Draw(t, "need")
				if in(h) >= 0 {
					t.Skip("it is in")
				}
				e.Insert(h, n)
				model = append(model, needItem{tie: tie(n), need: int32(n), h: h})
				gone = gone[:0]
			},
			"update": func(t *rapid.T) {
				if len(model) == 0 {
					t.Skip("empty")
				}
				it, n := &model[rapid.IntRange(0, len(model)-1).Draw(t, "which")], need.Draw(t, "need")
				e.Update(it.h, n)
				it.change(n, tie)
				gone = gone[:0]
			},
			"remove": func(t *rapid.T) {
				if len(model) == 0 {
					t.Skip("empty")
				}
				i := rapid.IntRange(0, len(model)-1).Draw(t, "which")
				e.Remove(model[i].h)
				gone = append(gone, model[i])
				model = slices.Delete(model, i, i+1)
			},
			"restore": func(t *rapid.T) {
				for _, it := range slices.Backward(gone) {
					if in(it.h) < 0 {
						e.Restore(it.h, int(it.need))
						model = append(model, it)
					}
				}
				gone = gone[:0]
			},
			"": func(t *rapid.T) {
				if e.Len() != len(model) {
					t.Fatalf("%d entries, want %d", e.Len(), len(model))
				}
				h, ok := e.Coldest()
				if ok != (len(model) > 0) {
					t.Fatalf("%d entries, one to leave: %v", len(model), ok)
				}
				if !ok {
					return
				}
				first := slices.MinFunc(model, func(a, b needItem) int {
					return cmp.Or(cmp.Compare(a.need, b.need), cmp.Compare(a.tie, b.tie), cmp.Compare(a.h, b.h))
				})
				if h != first.h {
					t.Fatalf("entry %d is to leave, want %d", h, first.h)
				}
				for n := -1; n < 10; n++ {
					want := n >= 0 && int(first.need) < 0 || n >= 1 && int(first.need) <= n
					if v, ok := e.Victim(n); ok != want || ok && v != h {
						t.Fatalf("for a newcomer of need %d entry %d leaves (%v), the first is %d of need %d", n, v, ok, h, first.need)
					}
				}
			},
		})
	})
}
