package disk

import (
	"slices"
	"testing"

	"larder/internal/xrand"
)

// TestChoose checks the decision against its definition, on random candidates.
func TestChoose(t *testing.T) {
	r := xrand.New(1, 2)
	for range 2000 {
		all := make([]candidate, r.IntN(12))
		var room int64
		need, equal := r.IntN(4), r.IntN(2) == 0
		may := func(c candidate) bool { return !c.pinned && (c.need < need || equal && c.need == need) }
		for i := range all {
			all[i] = candidate{need: r.IntN(4), used: uint64(r.IntN(5)), room: 1 + int64(r.IntN(10)), pinned: r.IntN(4) == 0}
			if may(all[i]) {
				room += all[i].room
			}
		}
		want := int64(r.IntN(40)) - 5
		got, ok := choose(all, want, need, equal)
		if ok != (want <= 0 || room >= want) {
			t.Fatalf("%d of %d bytes: %v", want, room, ok)
		}
		var free int64
		for n, i := range got {
			if !may(all[i]) || slices.Contains(got[:n], i) {
				t.Fatalf("%d leaves: %+v", i, all[i])
			}
			if free >= want {
				t.Fatalf("%d leaves, and %d bytes were free of %d", i, free, want)
			}
			free += all[i].room
			for k := range all { // whoever stays is needed more, or as much and used later
				a, b := all[i], all[k]
				if may(b) && !slices.Contains(got, k) && (b.need < a.need || b.need == a.need && b.used < a.used) {
					t.Fatalf("%+v leaves and %+v stays", a, b)
				}
			}
		}
		if ok && want > 0 && free < want {
			t.Fatalf("%d bytes become free of %d", free, want)
		}
	}
}
