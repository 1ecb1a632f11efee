package coordinator

import (
	"slices"
	"testing"

	"larder/dsa"
	"larder/internal/bits"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/jobs"
)

func objectsFrom(from, to int) []ident.ObjectID {
	var out []ident.ObjectID
	for x := from; x < to; x++ {
		out = append(out, ident.ObjectID(x))
	}
	return out
}

func (r *rig) change(p *peer, mark uint32, subset []ident.ObjectID, gone ...ident.ObjectID) Reply {
	r.t.Helper()
	var g *bits.Set
	if len(gone) > 0 {
		g = Members(gone)
	}
	return r.ask(func(t Token) Event {
		return ChangeSubset{Token: t, Job: p.job, Rank: p.rank, Mark: mark, Subset: subset, Gone: g}
	})
}

func sorted(x []ident.ObjectID) []ident.ObjectID {
	x = slices.Clone(x)
	slices.Sort(x)
	return x
}

var allModes = []dsa.Mode{dsa.Sequential, dsa.Fixed, dsa.Strict, dsa.Stratified, dsa.Epoch, dsa.Blocks}

// TestTheSubsetChangesAtTheBorderOfAnEpoch: an epoch that runs is as it was; the next has the new subset, ledger and
// remaining with it.
func TestTheSubsetChangesAtTheBorderOfAnEpoch(t *testing.T) {
	for _, m := range allModes {
		r := decodedTier(t, 100)
		p := r.join("a", 0, 40, 4, order(m), slots(2))
		d := p.must()
		got := r.objects(d)
		rep := r.ok(r.change(p, 7, objectsFrom(30, 60)))
		if rep.Epoch != 1 || rep.Samples != 30 || rep.Batches != 8 {
			t.Errorf("%s: %+v", m, rep)
		}
		if j := r.job(p.job); j.Spec.Subset != 40 || j.Mark != 0 || j.Next == nil || j.Next.Mark != 7 {
			t.Errorf("%s: before: %+v", m, j)
		}
		p.release(d)
		r.run()
		got = append(got, p.drain()...)
		if !slices.Equal(sorted(got), objectsFrom(0, 40)) {
			t.Errorf("%s: the running epoch had %v", m, sorted(got))
		}
		r.check()
		rep = r.ok(p.tryEpoch(1))
		if rep.Samples != 30 || rep.Batches != 8 {
			t.Errorf("%s: epoch 1: %+v", m, rep)
		}
		if got := p.drain(); !slices.Equal(sorted(got), objectsFrom(30, 60)) {
			t.Errorf("%s: the next epoch had %v", m, sorted(got))
		}
		j := r.job(p.job)
		if j.Spec.Subset != 30 || j.Mark != 7 || j.Since != 1 || j.Next != nil {
			t.Errorf("%s: after: %+v", m, j)
		}
		for _, l := range j.Ledgers[:2] {
			if l.State != jobs.Complete || l.Delivered != l.Subset {
				t.Errorf("%s: %+v", m, *l)
			}
		}
		r.check()
	}
}

// TestAnEpochThatWasPreparedAheadIsBegunAnew: an epoch that no client has seen can
// still be replaced.
func TestAnEpochThatWasPreparedAheadIsBegunAnew(t *testing.T) {
	for _, m := range allModes {
		r := decodedTier(t, 100)
		p := r.join("a", 0, 8, 4, order(m), slots(6))
		if got := p.drain(); len(got) != 8 {
			t.Fatalf("%s: %d samples", m, len(got))
		}
		if j := r.job(p.job); j.Epoch != 1 {
			t.Fatalf("%s: epoch %d, wanted the next one prepared", m, j.Epoch)
		}
		if rep := r.ok(r.change(p, 1, objectsFrom(4, 20))); rep.Epoch != 1 || rep.Samples != 16 {
			t.Errorf("%s: %+v", m, rep)
		}
		r.run()
		r.check()
		p.epoch(1)
		if got := p.drain(); !slices.Equal(sorted(got), objectsFrom(4, 20)) {
			t.Errorf("%s: %v", m, sorted(got))
		}
		var epochs []uint32
		for _, l := range r.job(p.job).Ledgers {
			epochs = append(epochs, l.Epoch)
		}
		if !slices.Equal(epochs, []uint32{0, 1, 2}) {
			t.Errorf("%s: accounts of epochs %v", m, epochs)
		}
	}
}

func TestASubsetBeforeTheFirstEpochAndBadOnes(t *testing.T) {
	r := decodedTier(t, 100)
	job := r.register("a", 0, 40, 4, order(dsa.Epoch), func(e *Register) { e.Spec.World, e.Spec.Epochs = 2, 2 })
	p := &peer{r: r, job: job}
	if rep := r.ok(r.change(p, 1, objectsFrom(0, 10))); rep.Epoch != 0 || rep.Samples != 10 || rep.Batches != 2 {
		t.Errorf("%+v", rep)
	}
	refused(t, r.change(p, 2, objectsFrom(0, 1)), errs.SubsetEmpty, "1 samples", "2 ranks")
	refused(t, r.ask(func(t Token) Event { return ChangeSubset{Token: t, Job: job, Rank: 2} }), errs.Invalid, "rank 2",
		"world_size 2")
	refused(t, r.ask(func(t Token) Event { return ChangeSubset{Token: t, Job: 99} }), errs.JobEnded)
	a, b := r.attach(job, 0), r.attach(job, 1)
	a.epoch(0)
	b.epoch(0)
	if got := append(a.drain(), b.drain()...); !slices.Equal(sorted(got), objectsFrom(0, 10)) {
		t.Errorf("%v", sorted(got))
	}
	a.epoch(1)
	if rep := r.change(a, 3, objectsFrom(0, 20)); rep.Err == nil {
		t.Error("the last epoch runs, and a subset was taken for the next")
	} else {
		refused(t, rep, errs.JobEnded, "epoch 1 is the last one")
	}
}

// TestWhatIsGoneIsDrawnNoMore: removed samples are counted and left out, at once and without a word to the client; the
// rest is whole.
func TestWhatIsGoneIsDrawnNoMore(t *testing.T) {
	for _, m := range allModes {
		for _, answer := range []jobs.OnError{jobs.Raise, jobs.Skip, jobs.Substitute} {
			r := decodedTier(t, 100)
			p := r.join("a", 0, 40, 4, order(m), slots(2), func(e *Register) { e.Spec.OnError = answer })
			first := p.must()
			got := r.objects(first)
			gone := objectsFrom(20, 40)
			for _, x := range gone {
				r.bad[x] = true
			}
			planned := 2 * 4 // what was drawn before
			r.ok(r.change(p, 1, objectsFrom(0, 20), gone...))
			p.release(first)
			r.run()
			for {
				d := p.next()
				if d == nil {
					break
				}
				for _, b := range d.Bad {
					if b.Kind != jobs.SampleRemoved || b.Object < 20 {
						t.Errorf("%s: %+v", m, b)
					}
				}
				got = append(got, r.objects(d)...)
				p.release(d)
				r.run()
				r.check()
			}
			late := 0
			for _, x := range got {
				if x >= 20 {
					late++
				}
			}
			if late > planned {
				t.Errorf("%s: %d removed samples came", m, late)
			}
			if keep := sorted(slices.DeleteFunc(slices.Clone(got),
				func(x ident.ObjectID) bool { return x >= 20 })); !slices.Equal(keep, objectsFrom(0, 20)) {
				t.Errorf("%s: of those that stayed %v came", m, keep)
			}
			l := r.job(p.job).Ledgers[0]
			if l.State != jobs.Complete || l.Removed != 20-late || l.Quarantined != l.Removed || l.Delivered != len(got) ||
				l.Dropped != 0 {
				t.Errorf("%s: %+v with %d that came late", m, *l, late)
			}
			if r.c.Stats().Quarantined != 0 {
				t.Errorf("%s: %d samples count as broken", m, r.c.Stats().Quarantined)
			}
			p.epoch(1)
			if got := p.drain(); !slices.Equal(sorted(got), objectsFrom(0, 20)) {
				t.Errorf("%s: the next epoch had %v", m, sorted(got))
			}
			// They come back: what could not be read then is no broken sample.
			clear(r.bad)
			r.ok(r.change(p, 2, objectsFrom(0, 40)))
			p.epoch(2)
			p.drain()
			p.epoch(3)
			if got := p.drain(); !slices.Equal(sorted(got), objectsFrom(0, 40)) {
				t.Errorf("%s: when they were back: %v", m, sorted(got))
			}
		}
	}
}

// TestAPausedJobPlansNothing: it keeps what remains, needs nothing, holds its ranks, and later continues exactly
// where it was.
func TestAPausedJobPlansNothing(t *testing.T) {
	for _, m := range allModes {
		r := decodedTier(t, 100)
		p := r.join("a", 0, 40, 4, order(m), slots(2))
		other := r.join("b", 0, 40, 4, order(dsa.Epoch))
		var got []ident.ObjectID
		d := p.must()
		got = append(got, r.objects(d)...)
		pause := func(on bool) { r.ok(r.ask(func(t Token) Event { return Pause{Token: t, Job: p.job, On: on} })) }
		pause(true)
		pause(true)
		if j := r.job(p.job); !j.Paused() || j.Active() || j.State != jobs.Live {
			t.Errorf("%s: %+v", m, j)
		}
		left := r.c.needs.sampler.Remaining(p.job)
		p.release(d)
		r.run()
		got = append(got, p.drain()...)
		if len(got) != 8 || r.c.needs.sampler.Remaining(p.job) != left || left != 32 {
			t.Errorf("%s: %d samples came, %d remained and remain %d", m, len(got), left, r.c.needs.sampler.Remaining(p.job))
		}
		if n := len(other.drain()); n != 40 {
			t.Errorf("%s: the neighbour got %d", m, n)
		}
		for x := range ident.ObjectID(40) {
			if n := r.c.needs.sampler.Need(x); n > 1 { // the neighbour's next epoch
				t.Errorf("%s: object %d is needed by %d", m, x, n)
			}
		}
		r.after(1000 * r.c.cfg.Lease)
		if j := r.job(p.job); j.State != jobs.Live || j.Attached() != 1 {
			t.Errorf("%s: a pause cost the job its ranks: %s", m, j.State)
		}
		r.check()
		pause(false)
		if got = append(got, p.drain()...); !slices.Equal(sorted(got), objectsFrom(0, 40)) {
			t.Errorf("%s: %v", m, sorted(got))
		}
		if l := r.job(p.job).Ledgers[0]; l.State != jobs.Complete || l.Delivered != 40 {
			t.Errorf("%s: %+v", m, *l)
		}
		r.check()
	}
}

func TestPausesAtTheEndsOfAJob(t *testing.T) {
	r := decodedTier(t, 100)
	job := r.register("a", 0, 8, 4, order(dsa.Stratified))
	pause := func(on bool) Reply { return r.ask(func(t Token) Event { return Pause{Token: t, Job: job, On: on} }) }
	r.ok(pause(true))
	p := r.attach(job, 0)
	p.epoch(0)
	if p.next() != nil || r.job(job).Begun() {
		t.Error("a job that was paused before it began has begun")
	}
	r.ok(r.change(p, 1, objectsFrom(0, 12)))
	r.ok(pause(false))
	if got := p.drain(); !slices.Equal(sorted(got), objectsFrom(0, 12)) {
		t.Errorf("%v", got)
	}
	r.ok(pause(true))
	r.ok(r.ask(func(t Token) Event { return Drain{Token: t, Job: job} })) // it ends in order, so it is unpaused
	if j := r.job(job); j.State != jobs.Done || j.Paused() {
		t.Errorf("%s paused %v: %s", j.State, j.Paused(), j.Reason)
	}
	refused(t, pause(true), errs.JobEnded)
}

// failsLate returns a job with substitutes, some of whose samples are about to fail while the sampler has work to do
// that concerns all jobs, because a large one has joined.
func failsLate(t *testing.T) (*rig, *peer) {
	t.Helper()
	const n = 5 * samplerPerStep
	r := decodedTier(t, 100)
	p := r.join("a", 0, n, 4, order(dsa.Stratified), slots(2), func(e *Register) { e.Spec.OnError = jobs.Substitute })
	for r.c.needs.sampler.Work(0) {
		r.after(0)
	}
	d := p.must()
	r.hold = func(e Effect) bool { _, ok := e.(Prepare); return ok }
	p.release(d)
	r.run()
	large := r.register("large", 100, n+100, 4, order(dsa.Epoch))
	q := r.attach(large, 0)
	q.epoch(0) // from here on the sampler has work to do that concerns all
	for _, e := range r.todo {
		if x, ok := e.(Prepare); ok {
			r.bad[x.Key.Object] = true
		}
	}
	r.hold = nil
	for i := 0; r.c.needs.sampler.Ready(p.job) && i < 1000; i++ {
		r.step(Tick{})
	}
	return r, p
}

// TestARowThatFailsWaitsForTheSampler: a substitute is not drawn by doing all the sampler's work in one step.
func TestARowThatFailsWaitsForTheSampler(t *testing.T) {
	r, p := failsLate(t)
	owing := 0
	for i := 0; len(r.todo) > 0 && i < 100; i++ {
		e := r.todo[0]
		r.todo = r.todo[1:]
		r.do(e)
		owing = max(owing, len(r.c.roster.streams[p.job].deferred))
	}
	if owing == 0 {
		t.Error("no row had to wait: a substitute was drawn in the same step")
	}
	for i := 0; r.c.needs.sampler.Work(0) && i < 1000; i++ {
		r.after(0)
		r.check()
	}
	r.run()
	if p.next() == nil {
		t.Error("no batch came")
	}
	if err := r.c.Check(); err != nil {
		t.Error(err)
	}
}

// TestAChangeWaitsForAClientThatReconnects: the subset changes after a client has reconnected and before it has said at
// which step of its epoch it continues. The next epoch, which is prepared ahead, restarts with the new subset, and the
// client gets what is left of its own.
func TestAChangeWaitsForAClientThatReconnects(t *testing.T) {
	for _, m := range allModes {
		r := decodedTier(t, 100)
		p := r.join("a", 0, 12, 4, order(m), slots(3))
		d := p.must()
		got := r.objects(d)
		p.release(d)
		r.run()
		if j := r.job(p.job); j.Epoch != 1 {
			t.Fatalf("%s: epoch %d is the newest", m, j.Epoch)
		}
		r.step(Detached{Job: p.job, Rank: p.rank, Inc: p.inc, Lives: true})
		r.run()
		a := r.ok(r.ask(func(t Token) Event { return Attach{Token: t, Job: p.job, Rank: p.rank, Held: p.inc} }))
		q := &peer{r: r, job: p.job, rank: p.rank, inc: a.Inc}
		if rep := r.ok(r.change(q, 7, objectsFrom(30, 60))); rep.Epoch != 1 || rep.Samples != 30 {
			t.Errorf("%s: %+v", m, rep)
		}
		r.check()
		r.ok(r.ask(func(t Token) Event {
			return StartEpoch{Token: t, Job: q.job, Rank: q.rank, Inc: q.inc, Epoch: 0, From: 2}
		}))
		r.run()
		if got = append(got, q.drain()...); !slices.Equal(sorted(got), objectsFrom(0, 12)) {
			t.Errorf("%s: the running epoch had %v", m, sorted(got))
		}
		q.epoch(1)
		if got := q.drain(); !slices.Equal(sorted(got), objectsFrom(30, 60)) {
			t.Errorf("%s: the next epoch had %v", m, sorted(got))
		}
	}
}
