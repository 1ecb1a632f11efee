package coordinator

import (
	"testing"

	"pgregory.net/rapid"

	"larder/internal/ident"
)

// The table of flights finds what a map of their keys finds, however objects fall on its slots, and how many make
// something of one object.
func TestFlyingAgainstMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var table flying
		model := map[ident.Key]*flight{}
		var filed []*flight
		// Few objects, and some of which many belong to one slot while the table is small: multiples of 2^26 differ in six
		// bits only.
		object := rapid.OneOf(rapid.Uint32Range(0, 40), rapid.Map(rapid.Uint32Range(0, 63),
			func(x uint32) uint32 { return x << 26 }))
		key := func(t *rapid.T) ident.Key {
			return ident.Key{Object: ident.ObjectID(object.Draw(t, "object")), Form: ident.Decoded,
				Recipe: ident.RecipeID(rapid.IntRange(1, 3).Draw(t, "recipe"))}
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				k := key(t)
				if model[k] != nil {
					t.Skip("it is made already")
				}
				f := &flight{key: k}
				table.add(f)
				model[k] = f
				filed = append(filed, f)
			},
			"remove": func(t *rapid.T) {
				if len(filed) == 0 {
					t.Skip("empty")
				}
				i := rapid.IntRange(0, len(filed)-1).Draw(t, "which")
				f := filed[i]
				filed[i] = filed[len(filed)-1]
				filed = filed[:len(filed)-1]
				table.remove(f)
				table.remove(f) // it is out already
				table.remove(&flight{key: f.key})
				delete(model, f.key)
			},
			"get": func(t *rapid.T) {
				k := key(t)
				if f := table.get(k); f != model[k] {
					t.Fatalf("%s: %p, want %p", k, f, model[k])
				}
			},
			"": func(t *rapid.T) {
				if table.n != len(model) {
					t.Fatalf("%d flights, want %d", table.n, len(model))
				}
				for _, f := range filed {
					if table.get(f.key) != f {
						t.Fatalf("%s is not found", f.key)
					}
				}
				if 2*table.used > len(table.slots) {
					t.Fatalf("%d of %d slots are used", table.used, len(table.slots))
				}
			},
		})
	})
}
