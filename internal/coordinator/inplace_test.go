package coordinator

import (
	"slices"
	"testing"

	"larder/dsa"
	"larder/internal/bits"
	"larder/internal/ident"
	"larder/jobs"
)

// fixedShape makes samples of one size, so that they can be prepared in place.
func fixedShape(e *Register) { e.AugmentedBytes = 150 }

// TestWhatOneRowWantsIsPreparedInPlace: one task for read, decode and row, no working copy, and meanwhile no job
// finds it in a cache.
func TestWhatOneRowWantsIsPreparedInPlace(t *testing.T) {
	r := newRig(t, [ident.NumForms]int64{ident.Encoded: 200})
	r.hold = is[Prepare]
	a := r.join("a", 0, 6, 2, fixedShape)
	r.expect(r.words(),
		"prepare 0 from stored, keep encoded, in place for job 1", "prepare 1 from stored, keep encoded, in place for job 1",
		"prepare 2 from stored, in place for job 1", "prepare 3 from stored, in place for job 1")
	r.check()
	r.hold = nil
	r.run()
	if got := a.drain(); len(got) < 6 || !slices.Equal(got[:6], ids(0, 6)) {
		t.Errorf("a got %v", got)
	}
	s := r.c.Stats()
	if s.InPlace != s.Decodes || s.Augments != s.Decodes || s.Decodes < 6 || r.job(a.job).Stats.Augments != s.Augments {
		t.Errorf("%+v", s)
	}
	if n := r.c.roster.prefixes[0].decoded.n; n != int64(s.Decodes) {
		t.Errorf("%d samples were weighed, %d decoded", n, s.Decodes)
	}
}

// TestLevelOfWhatIsPreparedInPlace: the sampler learns of it what stays: the original bytes, or nothing, until another
// job shares it. It learns nothing of what a job in the order of the dataset has prepared.
func TestLevelOfWhatIsPreparedInPlace(t *testing.T) {
	for name, c := range map[string]struct {
		mode          dsa.Mode
		kept, not, by uint8
	}{
		"fixed":      {dsa.Fixed, isEncoded, 0, isDecoded},
		"sequential": {dsa.Sequential, 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, [ident.NumForms]int64{ident.Encoded: 200})
			r.hold = is[Prepare]
			inMode := func(e *Register) { e.Sample.Mode, e.Sample.Seed = c.mode, 3 }
			r.join("a", 0, 6, 2, fixedShape, inMode)
			var begun []ident.ObjectID
			for _, e := range r.todo {
				begun = append(begun, e.(Prepare).Key.Object)
			}
			if len(begun) != 4 {
				t.Fatalf("%v", r.words())
			}
			level := func(x ident.ObjectID) uint8 { return r.c.needs.level(x, ident.Key{}).own }
			if level(begun[0]) != c.kept || level(begun[2]) != c.not {
				t.Errorf("%d is kept, and at level %d; %d is not, and at level %d", begun[0], level(begun[0]), begun[2],
					level(begun[2]))
			}
			flying := r.c.flights.flying.of(begun[2])
			r.c.flights.shareFlight(flying, r.c.roster.order[0])
			if flying.phase == flightQueued && level(begun[2]) != c.by {
				t.Errorf("%d is shared, and at level %d", begun[2], level(begun[2]))
			}
			r.check()
		})
	}
}

// TestWhatIsSharedOrKeptIsNotPreparedInPlace: the other cases go by tier or working copy.
func TestWhatIsSharedOrKeptIsNotPreparedInPlace(t *testing.T) {
	shuffled := func(e *Register) { e.Sample.Mode, e.AugmentedBytes = dsa.Stratified, 150 }
	long := func(e *Register) { shuffled(e); e.Spec.Epochs = 9 }
	other := func(e *Register) { shuffled(e); e.Prefix = 7 }
	for name, c := range map[string]struct {
		decoded int
		jobs    []func(*Register)
		want    int  // prepared in place, of what the last job has planned
		stored  bool // the encoded tier has room
	}{
		"alone":                    {0, []func(*Register){shuffled}, 4, false},
		"no fixed size":            {0, []func(*Register){func(*Register) {}}, 0, false},
		"room in the tier":         {8, []func(*Register){long}, 0, false},
		"room that pays later":     {8, []func(*Register){shuffled}, 4, true},
		"not read again":           {8, []func(*Register){shuffled}, 0, false},
		"another needs it":         {0, []func(*Register){shuffled, shuffled}, 0, false},
		"another in order":         {0, []func(*Register){fixedShape, shuffled}, 0, false},
		"another, of other prefix": {0, []func(*Register){other, shuffled}, 4, false},
	} {
		t.Run(name, func(t *testing.T) {
			sizes := [ident.NumForms]int64{ident.Decoded: int64(c.decoded) * sampleBytes}
			if c.stored {
				sizes[ident.Encoded] = 8 * sampleBytes
			}
			r := newRig(t, sizes)
			r.hold = is[Prepare]
			last := ident.JobID(0)
			var peers []*peer
			for i, change := range c.jobs {
				peers = append(peers, r.attach(r.register(string(rune('a'+i)), 0, 8, 4, change,
					func(e *Register) { e.Spec.Slots = 2 }), 0))
			}
			for _, p := range peers { // all have begun before anything is planned for the last
				p.epoch(0)
				last = p.job
			}
			r.hold = func(e Effect) bool { p, ok := e.(Prepare); return ok && p.Job == last }
			r.run()
			n := 0
			for _, e := range r.todo {
				if p, ok := e.(Prepare); ok && p.Into != nil {
					n++
				}
			}
			if n != c.want {
				t.Errorf("%d are prepared in place, want %d: %v", n, c.want, r.words())
			}
			r.check()
			r.hold = nil
			r.run()
			for _, p := range peers {
				if d := p.next(); d == nil || len(d.Rows) != 4 {
					t.Errorf("job %d got %v", p.job, d)
				}
			}
		})
	}
}

// TestAnotherJobComesWhileASampleIsPreparedInPlace: what is not begun yet is shared after all; what is begun is
// prepared once more, from the original bytes when they are kept.
func TestAnotherJobComesWhileASampleIsPreparedInPlace(t *testing.T) {
	for name, c := range map[string]struct {
		encoded int64
		change  func(*Register)
		reads   uint64
		again   ident.Form
	}{
		"nothing is kept":  {0, fixedShape, 16, ident.Stored},
		"encoded":          {1200, fixedShape, 12, ident.Encoded},
		"of no fixed size": {1200, func(*Register) {}, 12, ident.Encoded},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, [ident.NumForms]int64{ident.Encoded: c.encoded})
			two := func(e *Register) { e.Spec.Epochs = 1 }
			r.hold = is[Prepare]
			a := r.join("a", 0, 12, 4, fixedShape, two)
			b := r.join("b", 0, 12, 4, c.change, two)
			r.check()
			if n := len(r.todo); n != 4 {
				t.Fatalf("%v", r.words())
			}
			r.hold = nil
			r.run()
			for _, p := range []*peer{a, b} {
				if got := p.drain(); !slices.Equal(got, ids(0, 12)) {
					t.Errorf("job %d got %v", p.job, got)
				}
			}
			var again []Prepare
			for _, p := range r.prepares {
				if p.Key.Object == 0 {
					again = append(again, p)
				}
			}
			if len(again) != 2 || again[0].Into == nil || again[1].Into != nil || again[1].From != c.again {
				t.Errorf("sample 0 was prepared so: %+v", again)
			}
			if s := r.c.Stats(); s.Decodes != 16 || s.InPlace != 4 || s.Augments != 24 || s.SourceReads != c.reads {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestASampleThatFailsInPlaceIsTriedInTwoSteps: a broken one is quarantined, one that this recipe cannot take is not,
// as when it is never prepared in place; and a job that waits meanwhile gets the error too.
func TestASampleThatFailsInPlaceIsTriedInTwoSteps(t *testing.T) {
	for name, onError := range map[string]jobs.OnError{"skip": jobs.Skip, "substitute": jobs.Substitute} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, [ident.NumForms]int64{})
			policy := func(e *Register) { e.Spec.OnError, e.Spec.Epochs = onError, 1 }
			r.bad[2], r.badFill[5] = true, true
			r.hold = is[Prepare]
			a := r.join("a", 0, 8, 4, fixedShape, policy)
			b := r.join("b", 0, 4, 4, fixedShape, policy)
			r.hold = nil
			r.run()
			want := []ident.ObjectID{0, 1, 3, 4, 6, 7}
			got := a.drain()
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("a got %v", got)
			}
			if got = b.drain(); len(got) != 3 || slices.Contains(got, 2) {
				t.Errorf("b got %v", got)
			}
			tries := map[ident.ObjectID][]bool{}
			for _, p := range r.prepares {
				tries[p.Key.Object] = append(tries[p.Key.Object], p.Into != nil)
			}
			if !slices.Equal(tries[2], []bool{true, false}) || !slices.Equal(tries[5], []bool{true, false}) {
				t.Errorf("tried in place: %v and %v", tries[2], tries[5])
			}
			if s := r.c.Stats(); s.Quarantined != 1 {
				t.Errorf("%+v", s)
			}
			r.check()
		})
	}
}

// TestASlotIsNotUsedAgainWhileItIsWrittenInPlace: a client that leaves does not free the slots that a worker writes
// into.
func TestASlotIsNotUsedAgainWhileItIsWrittenInPlace(t *testing.T) {
	for _, fails := range []bool{false, true} {
		r := newRig(t, [ident.NumForms]int64{})
		r.hold = is[Prepare]
		a := r.join("a", 0, 40, 2, fixedShape)
		held := slices.Clone(r.todo)
		a.epoch(1) // cancels what is planned
		for _, e := range r.todo[len(held):] {
			if p, ok := e.(Prepare); ok {
				t.Fatalf("%v is written while all slots are: %v", p.Into, r.words())
			}
		}
		r.check()
		r.todo = nil
		for _, e := range held {
			p := e.(Prepare)
			for _, q := range r.todo {
				if q, ok := q.(Prepare); ok && q.Into != nil && q.Into.Slot == p.Into.Slot && p.Into.Row == 1 &&
					q.Into.Delivery == p.Into.Delivery {
					t.Errorf("slot %d is given out before both rows are written", p.Into.Slot)
				}
			}
			r.bad[p.Key.Object] = fails
			r.do(e)
			r.check()
			r.bad[p.Key.Object] = false
		}
		r.hold = nil
		r.run()
		if got := a.drain(); len(got) < 40 || !slices.Equal(got[:40], ids(0, 40)) {
			t.Errorf("a got %v", got)
		}
		if n := len(r.c.flights.flightByID); n > 12 {
			t.Errorf("%d flights are left", n)
		}
		r.check()
	}
}

// TestForget: what memory has of some objects goes at once, in slices, also while it is read and prepared; the epoch
// continues, exactly once, and what was reported free is free.
func TestForget(t *testing.T) {
	r := decodedTier(t, 1500)
	p := r.join("a", 0, 1200, 40, slots(3))
	p.drain()
	p.epoch(1)
	r.run()
	some := new(bits.Set)
	for x := range 1200 {
		if x%3 != 0 {
			some.Add(uint32(x))
		}
	}
	if used := r.c.needs.index.Used(ident.Decoded); used != 1200*sampleBytes {
		t.Fatalf("%d bytes are used", used)
	}
	freed, steps := int64(0), 0
	for from := 0; ; {
		r.token++
		r.step(Forget{Token: r.token, Objects: some, From: from})
		if err := r.c.Check(); err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(r.todo, func(e Effect) bool { x, ok := e.(Reply); return ok && x.Token == r.token })
		if i < 0 {
			t.Fatal("no answer")
		}
		a, _ := r.todo[i].(Reply)
		freed += a.Freed
		steps++
		if from = a.Next; from == 0 {
			break
		}
	}
	if freed != 800*sampleBytes || steps < 3 || r.c.needs.index.Used(ident.Decoded) != 400*sampleBytes {
		t.Errorf("%d bytes in %d steps, %d are used", freed, steps, r.c.needs.index.Used(ident.Decoded))
	}
	got := p.drain()
	slices.Sort(got)
	if len(got) != 1200 || len(slices.Compact(got)) != 1200 {
		t.Errorf("%d samples", len(got))
	}
	for _, from := range []int{-1, 1 << 30} {
		r.token++
		r.step(Forget{Token: r.token, Objects: some, From: from})
	}
}
