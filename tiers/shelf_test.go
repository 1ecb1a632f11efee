package tiers

import (
	"testing"

	"larder/internal/ident"
	"larder/internal/xrand"
)

// The table is a map of whole keys, however they are filed: compared with one in a random sequence of calls. A plane
// goes with its last entry.
func TestTableIsAMapOfKeys(t *testing.T) {
	r, table, model := xrand.New(1), newTable(), map[ident.Key]*slab{}
	key := func() ident.Key {
		k := ident.Key{Object: ident.ObjectID(r.IntN(6)), Form: ident.Decoded, Recipe: ident.RecipeID(r.IntN(2))}
		if r.IntN(2) == 0 {
			k.Form, k.Group, k.Instance = ident.Augmented, uint32(r.IntN(2)), uint32(r.IntN(2))
		}
		return k
	}
	const own = 1 << 20 // references of the test: no slab is freed
	all := []*slab{}
	for range 5000 {
		switch k := key(); r.IntN(4) {
		case 0:
			s := &slab{key: k}
			s.refs.Store(own + 1)
			if !table.put(s) {
				t.Fatalf("%s was not kept", k)
			}
			model[k], all = s, append(all, s)
		case 1:
			table.drop(k)
			delete(model, k)
		case 2:
			other := &slab{key: k}
			table.dropIf(k, other) // it is not the one that is in
			if s := model[k]; s != nil && r.IntN(2) == 0 {
				table.dropIf(k, s)
				delete(model, k)
			}
		case 3:
			keys, out := []ident.Key{k, key(), key()}, make([]*slab, 3)
			table.openAll(keys, out)
			for i, s := range out {
				if s != model[keys[i]] || table.open(keys[i]) != s {
					t.Fatalf("%s is another entry, or none", keys[i])
				}
				if s != nil {
					s.refs.Add(-2)
				}
			}
		}
		planes := map[ident.Key]bool{}
		for k := range model {
			planes[planeOf(k)] = true
		}
		if table.len() != len(model) || len(table.mu.planes) != len(planes) {
			t.Fatalf("%d entries in %d planes, want %d in %d", table.len(), len(table.mu.planes), len(model), len(planes))
		}
	}
	table.close()
	if table.len() != 0 || table.put(all[0]) {
		t.Error("a closed table holds or takes entries")
	}
	for _, s := range all {
		if n := s.refs.Load(); n != own {
			t.Fatalf("%s has %d references of the table", s.key, n-own)
		}
	}
}
