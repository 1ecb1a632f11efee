package cachepolicy

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"larder/internal/ident"
	"larder/internal/xrand"
)

func TestIDTableAgainstMap(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var table idTable
		model := map[uint64]uint64{}
		ids := rapid.Uint64Range(1, 60) // neighbours, so that they collide
		for _, op := range rapid.SliceOfN(rapid.IntRange(0, 2), 1, 300).Draw(rt, "ops") {
			id := ids.Draw(rt, "id")
			switch op {
			case 0, 1:
				v := rapid.Uint64().Draw(rt, "v")
				table.put(id, v)
				model[id] = v
			default:
				table.del(id)
				delete(model, id)
			}
			if table.len != len(model) {
				rt.Fatalf("%d ids, want %d", table.len, len(model))
			}
			for id := uint64(1); id <= 60; id++ {
				v, ok := table.get(id)
				if want, in := model[id]; ok != in || ok && v != want {
					rt.Fatalf("%d: %d %v, want %d %v", id, v, ok, want, in)
				}
			}
		}
	})
}

func TestIDsDiffer(t *testing.T) {
	seen := map[uint64]ident.Key{}
	for o := range ident.ObjectID(40) {
		for _, f := range []ident.Form{ident.Encoded, ident.Decoded, ident.Augmented} {
			for a := range uint32(4) {
				for b := range uint32(4) {
					k := ident.Key{Object: o, Form: f, Recipe: ident.RecipeID(a), Group: b, Instance: a * b}
					if old, ok := seen[idOf(k)]; ok && old != k || idOf(k) == 0 {
						t.Fatalf("%v and %v have one id", old, k)
					}
					seen[idOf(k)] = k
				}
			}
		}
	}
}

// A count-min sketch never counts too little, within what four bits hold; and rarely too much, when it is as large as
// what it counts. After ten additions an entry all counts halve.
func TestSketch(t *testing.T) {
	var s sketch
	s.add(1) // before it has a size it counts nothing
	if s.count(1) != 0 {
		t.Error("a sketch without a size counts")
	}
	const entries = 1024
	s.grow(entries)
	s.grow(10)
	r, exact := xrand.New(1), map[uint64]uint64{}
	for s.added < 10*entries-1 {
		id := xrand.Mix(uint64(r.IntN(entries)))
		before, full := s.added, s.count(id) == 15
		s.add(id)
		exact[id] = min(15, exact[id]+1)
		if (s.added == before) != full {
			t.Fatal("an addition was lost")
		}
	}
	over := 0
	for id, n := range exact {
		got := s.count(id)
		if got < n {
			t.Fatalf("%x: counted %d of %d", id, got, n)
		}
		if got > n {
			over++
		}
	}
	// A counter of a row is shared with a chance of 1-exp(-1/4), so all four of an id are with that to the fourth: 0.24 %.
	if over > 20 {
		t.Errorf("%d of %d ids are counted too often", over, len(exact))
	}
	was := map[uint64]uint64{}
	for id := range exact {
		was[id] = s.count(id)
	}
	rare := xrand.Mix(1 << 40)
	for s.added != 0 {
		s.add(rare)
		rare++
	}
	lower := 0
	for id, n := range was {
		if s.count(id) <= (n+1)/2+1 {
			lower++
		}
	}
	if lower < len(was)*9/10 {
		t.Errorf("%d of %d counts were halved", lower, len(was))
	}
}

func TestGhostsAgainstList(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var g ghosts
		var model []uint64
		drop := func(id uint64) bool {
			i := slices.Index(model, id)
			if i >= 0 {
				model = slices.Delete(model, i, i+1)
			}
			return i >= 0
		}
		most := rapid.IntRange(0, 40).Draw(rt, "most")
		for _, op := range rapid.SliceOfN(rapid.IntRange(0, 1<<12), 1, 600).Draw(rt, "ops") {
			id := uint64(1 + op/4%60)
			if op%4 == 0 {
				if got, want := g.take(id), drop(id); got != want {
					rt.Fatalf("take %d: %v, want %v", id, got, want)
				}
			} else {
				limit := max(0, most-op/240%5)
				g.add(id, limit)
				drop(id)
				model = append(model, id)
				model = model[max(0, len(model)-limit):]
			}
			if g.turns.len != len(model) || len(g.ring) > max(16, 4*(most+1)) {
				rt.Fatalf("%d ghosts in a ring of %d, want %d", g.turns.len, len(g.ring), len(model))
			}
		}
		for id := uint64(1); id <= 60; id++ {
			if got, want := g.take(id), drop(id); got != want {
				rt.Fatalf("in the end %d: %v, want %v", id, got, want)
			}
		}
	})
}
