package coordinator

import (
	"testing"

	"larder/dsa"
	"larder/internal/ident"
)

// inPlaceForGroups has a job in the order of the dataset prepare four samples in place, which then members of two
// share groups ask for, so that each is asked for more than once. It returns the members.
func inPlaceForGroups(t *testing.T, r *rig) []*peer {
	r.hold = is[Prepare]
	r.join("seq", 0, 4, 4, order(dsa.Sequential), fixedShape, func(e *Register) { e.Spec.Epochs = 1 })
	shared := func(k ident.RecipeID) func(*Register) {
		return func(e *Register) { e.Share, e.Key, e.AugmentedBytes = true, k, 150 }
	}
	var members []*peer
	for i, name := range []string{"a", "a2", "b", "b2"} {
		key := ident.RecipeID(5 + i/2)
		members = append(members, r.attach(r.register(name, 0, 4, 4, order(dsa.Stratified), shared(key)), 0))
	}
	for _, p := range members {
		p.epoch(0)
	}
	later := 0
	for _, f := range r.c.flights.flightByID {
		if !f.later.held {
			continue
		}
		later++
		if n := r.c.needs.index.Pins(f.later.h); n != 1 {
			t.Errorf("the entry of %s has %d pins", f.key, n)
		}
	}
	if later == 0 {
		t.Fatal("nobody waits for what is being prepared in place")
	}
	r.check()
	return members
}

// What is prepared in place for a job in the order of the dataset, and asked for more than once by visible jobs
// meanwhile, keeps no pin when all is done: also where the work fails, and is tried again.
func TestNoPinIsLeftOnWhatManyAskedForWhileItWasPreparedInPlace(t *testing.T) {
	for name, fails := range map[string]bool{"done": false, "tried again": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, [ident.NumForms]int64{ident.Decoded: 10 * sampleBytes, ident.Augmented: 10 * 150})
			members := inPlaceForGroups(t, r)
			if fails {
				todo := r.todo
				r.todo = nil
				for _, e := range todo {
					p, ok := e.(Prepare)
					if !ok || r.c.flights.flightByID[p.Flight].phase != flightInPlace {
						r.todo = append(r.todo, e)
						continue
					}
					r.todo = append(r.todo, r.c.Step(r.now, Prepared{Flight: p.Flight, Err: "try again"}, nil)...)
					f := r.c.flights.flightByID[p.Flight]
					if f == nil || !f.visible || !f.entry.held || f.later.held || f.alone {
						t.Fatalf("it failed in place, and is %+v", f)
					}
					r.check()
				}
			}
			r.hold = nil
			r.run()
			for _, p := range members {
				p.drain()
			}
			r.check()
			if n := r.c.Stats().Decodes; fails && n != 4 {
				t.Errorf("%d decodes of 4 samples", n)
			}
			for _, f := range []ident.Form{ident.Decoded, ident.Augmented} {
				if n := r.c.Pinned(f); n > 0 {
					t.Errorf("%d pinned entries are left, %s", n, f)
				}
			}
		})
	}
}
