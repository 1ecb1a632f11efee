package coordinator

import (
	"testing"
	"time"

	"larder/dsa"
	"larder/internal/ident"
	"larder/tiers/residency"
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
		if !f.later.entry.held {
			continue
		}
		later++
		if n := r.c.needs.index.Pins(f.later.entry.h); n != 1 {
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
					if f == nil || !f.visible || !f.entry.held || f.later.entry.held || f.alone {
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

// A shuffled job that comes upon decoded samples which a job in the order of the dataset is reading has those kept as
// if they were not there: decoded, and their original bytes for a job whose recipe begins otherwise.
func TestWhatIsReadForAnotherJobIsKeptAsIfItWereNotThere(t *testing.T) {
	kept := func(beside bool) (decoded, encoded int) {
		r := newRig(t, [ident.NumForms]int64{ident.Encoded: 40 * 100, ident.Decoded: 40 * sampleBytes})
		if beside {
			r.hold = is[*Fill]
			r.join("seq", 0, 16, 16, order(dsa.Sequential), func(e *Register) { e.Spec.Epochs = 1 })
			if p := r.c.Pinned(ident.Decoded); p != 16 {
				t.Fatalf("%d samples are being read", p)
			}
		}
		shuffled := order(dsa.Stratified)
		other := r.attach(r.register("other", 0, 16, 2, shuffled, func(e *Register) { e.Prefix = 7 }), 0)
		same := r.attach(r.register("same", 0, 16, 2, shuffled), 0)
		other.epoch(0)
		same.epoch(0)
		r.check()
		seen := func(f ident.Form) (n int) {
			r.c.needs.index.Each(f, func(h residency.Handle, _ ident.Key) {
				if !r.c.needs.neutral(h) {
					n++
				}
			})
			return n
		}
		decoded, encoded = seen(ident.Decoded), seen(ident.Encoded)
		r.hold = nil
		r.run()
		if a, b := len(other.drain()), len(same.drain()); a != 16 || b != 16 {
			t.Errorf("%d and %d samples came", a, b)
		}
		r.check()
		return decoded, encoded
	}
	decoded, encoded := kept(false)
	if d, e := kept(true); encoded == 0 || d != decoded || e != encoded {
		t.Errorf("%d samples are kept decoded and %d encoded, instead of %d and %d", d, e, decoded, encoded)
	}
}

// Augmented samples for jobs in the order of the dataset leave when the last job that would take them ends: others of
// that kind displace nothing, so they would stay for good.
func TestAugmentedSamplesLeaveWithTheLastOfTheirJobs(t *testing.T) {
	r := newRig(t, [ident.NumForms]int64{ident.Decoded: 40 * sampleBytes, ident.Augmented: 10 * 150})
	shared := func(e *Register) { e.Share, e.Key, e.AugmentedBytes, e.Spec.Epochs = true, 5, 150, 1 }
	var pair []*peer
	for _, name := range []string{"a", "b"} {
		pair = append(pair, r.attach(r.register(name, 0, 40, 4, order(dsa.Sequential), shared), 0))
	}
	for _, p := range pair {
		p.epoch(0)
	}
	r.run()
	pair[0].drain()
	if n := r.c.needs.index.Entries(ident.Augmented); n != 10 {
		t.Fatalf("%d augmented samples wait for the other job", n)
	}
	r.ok(r.ask(func(t Token) Event { return Kill{Token: t, Job: pair[1].job} }))
	r.wait(time.Second)
	if n := r.c.needs.index.Entries(ident.Augmented); n != 0 {
		t.Errorf("%d augmented samples stay that nobody takes", n)
	}
	r.check()
}

// A sample that a shuffled job asks for while it is prepared in place for another job, and that is to be kept, counts
// as cached from that moment, not from when it is there.
func TestWhatIsPreparedInPlaceAndKeptCountsAtOnce(t *testing.T) {
	r := decodedTier(t, 50, func(c *Config) { c.InFlight = 10 })
	seq := ident.JobID(0)
	r.hold = func(e Effect) bool { p, ok := e.(Prepare); return ok && p.Job == seq }
	seq = r.register("seq", 0, 4, 4, order(dsa.Sequential), fixedShape, func(e *Register) { e.Spec.Epochs = 1 })
	r.attach(seq, 0).epoch(0)
	r.run()
	p := r.join("a", 0, 40, 1, order(dsa.Stratified))
	r.run()
	later := 0
	for d := p.next(); d != nil; d = p.next() {
		p.release(d)
		r.run()
		for _, f := range r.c.flights.flightByID {
			if !f.later.entry.held {
				continue
			}
			later++
			if l := r.c.needs.sampler.Level(f.key.Object); l != isDecoded {
				t.Errorf("%s is at level %d", f.key, l)
			}
		}
	}
	if later == 0 {
		t.Error("no sample is to be kept that is prepared in place")
	}
	r.hold = nil
	r.run()
	r.check()
}

// What a shuffled job finds being prepared in place for another job weighs once for it, although its row is sourced
// again when that is over.
func TestWhatIsPreparedInPlaceIsWeighedOnce(t *testing.T) {
	for name, shared := range map[string]bool{"alone": false, "in a share group": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, [ident.NumForms]int64{ident.Augmented: 10 * 150})
			seq := ident.JobID(0)
			r.hold = func(e Effect) bool { p, ok := e.(Prepare); return ok && p.Job == seq }
			seq = r.register("seq", 0, 4, 4, order(dsa.Sequential), fixedShape, func(e *Register) { e.Spec.Epochs = 1 })
			first := r.attach(seq, 0)
			first.epoch(0)
			inPlace := 0
			for _, f := range r.c.flights.flightByID {
				if f.phase == flightInPlace {
					inPlace++
				}
			}
			var peers []*peer
			for i := range 2 {
				peers = append(peers, r.attach(r.register(string(rune('a'+i)), 0, 4, 4, order(dsa.Stratified),
					func(e *Register) { e.Share, e.Key, e.AugmentedBytes, e.Spec.Epochs = shared, 5, 150, 1 }), 0))
			}
			for _, p := range peers {
				p.epoch(0)
			}
			counts := func() (n int64) {
				for _, p := range peers {
					n += r.c.roster.streams[p.job].stored.n
				}
				return n
			}
			before := counts()
			if inPlace != 4 || before == 0 {
				t.Fatalf("%d samples are prepared in place, and %d were weighed for jobs that came to them", inPlace, before)
			}
			r.hold = nil
			r.run()
			if n := counts(); n != before {
				t.Errorf("%d samples were weighed, and %d more when what was in place was over", before, n-before)
			}
			for _, p := range append(peers, first) {
				p.drain()
			}
			r.check()
		})
	}
}
