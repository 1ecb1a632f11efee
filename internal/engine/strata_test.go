package engine

import (
	"slices"
	"testing"

	"larder/internal/ident"
)

// TestStrataSets: quartiles of what differs, groups of classes; the last part is what is in none.
func TestStrataSets(t *testing.T) {
	var all []strataItem
	for i := range 103 {
		all = append(all, strataItem{ident.ObjectID(i), int64(i * 37 % 103)})
	}
	sets := quartiles(slices.Clone(all))
	if len(sets) != 3 || len(sets[0])+len(sets[1])+len(sets[2]) != 78 {
		t.Fatalf("%d sets", len(sets))
	}
	for q, set := range sets {
		for _, x := range set {
			if key := int(x) * 37 % 103; key*4/103 != q {
				t.Errorf("the object of rank %d is in quartile %d", key, q)
			}
		}
	}
	for classes, want := range map[int]int{0: 0, 1: 0, 2: 1, 16: 15, 40: 15, 1000: 15} {
		for i := range all {
			all[i].key = int64(i % max(1, classes))
		}
		sets := labelGroups(all, classes)
		if len(sets) != min(want, 102) && classes < 1000 {
			t.Errorf("%d classes make %d sets", classes, len(sets))
		}
		seen := map[ident.ObjectID]bool{}
		for _, set := range sets {
			for _, x := range set {
				if seen[x] {
					t.Fatalf("object %d is in two sets", x)
				}
				seen[x] = true
			}
		}
	}
	if quartiles(nil) != nil && len(quartiles(nil)) > 0 || len(labelGroups(nil, 5)) > 0 {
		t.Error("sets of nothing")
	}
}
