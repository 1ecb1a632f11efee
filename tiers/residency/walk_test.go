package residency

import (
	"slices"
	"testing"

	"larder/internal/ident"
	"larder/internal/xrand"
)

// TestWalkGoesByObject: a walk in slices finds each entry whose need is not below 0 once, by object, and stops at the
// same objects whatever lies there besides.
func TestWalkGoesByObject(t *testing.T) {
	walk := func(neutral bool) (seen []ident.Key, stops []ident.ObjectID) {
		x := newIndex(1 << 20)
		r := xrand.New(3)
		for range 300 {
			k := ident.Key{Object: ident.ObjectID(r.IntN(2000)), Form: ident.Decoded, Recipe: ident.RecipeID(1 + r.IntN(3))}
			x.Admit(k, 1, r.IntN(3), nil)
			if neutral {
				k.Object, k.Recipe = k.Object+1, 9
				x.Admit(k, 1, -1, nil)
			}
		}
		for at, n := ident.ObjectID(0), 0; at < 1<<13; stops = append(stops, at) {
			at, n = x.Walk(at, 1<<13, 50, func(_ Handle, k ident.Key) { seen = append(seen, k) })
			if n > 50 {
				t.Fatalf("%d entries at once", n)
			}
		}
		return seen, stops
	}
	seen, stops := walk(false)
	if len(seen) < 200 || len(stops) < 5 {
		t.Fatalf("%d entries, %d slices", len(seen), len(stops))
	}
	if !slices.IsSortedFunc(seen, func(a, b ident.Key) int { return int(a.Object) - int(b.Object) }) {
		t.Error("the entries do not come by object")
	}
	met := map[ident.Key]bool{}
	for _, k := range seen {
		if met[k] {
			t.Errorf("%s comes twice", k)
		}
		met[k] = true
	}
	if again, at := walk(true); !slices.Equal(seen, again) || !slices.Equal(stops, at) {
		t.Error("entries of a need below 0 show in the walk")
	}
}
