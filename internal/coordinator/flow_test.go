package coordinator

import (
	"slices"
	"testing"

	"larder/internal/ident"
	"larder/jobs"
)

func is[T Effect](e Effect) bool { _, ok := e.(T); return ok }

func kindOf[T Record](p Persist) bool { _, ok := p.Record.(T); return ok }

func ids(from, to int) []ident.ObjectID {
	var out []ident.ObjectID
	for x := from; x < to; x++ {
		out = append(out, ident.ObjectID(x))
	}
	return out
}

func TestOneBatchFromRegistrationToTheNextSlot(t *testing.T) {
	r := decodedTier(t, 10)
	r.expect(r.step(registration(1, "a", 0, 10, 2)), "persist register of job 1") // no reply before it is durable
	r.expect(r.step(Persisted{Seq: 1}), "reply")
	r.expect(r.step(Attach{Token: 2, Job: 1}), "persist attach of job 1")
	r.expect(r.step(Persisted{Seq: 2}), "reply")
	r.expect(r.step(StartEpoch{Token: 3, Job: 1, Inc: 1}),
		"reply",
		"persist epoch of job 1",
		"persist assign of job 1",
		"persist assign of job 1",
		"persist assign of job 1",
		"prepare 0 from stored, keep", // four at once are handed out, the rest waits without memory
		"prepare 1 from stored, keep",
		"prepare 2 from stored, keep",
		"prepare 3 from stored, keep")
	r.expect(r.step(Prepared{Flight: 1, Kept: true, Bytes: sampleBytes, Read: 100}), "fill 0 for job 1 from decoded",
		"prepare 4 from stored, keep")
	r.expect(r.step(Prepared{Flight: 2, Kept: true, Bytes: sampleBytes, Read: 100}), "fill 1 for job 1 from decoded",
		"prepare 5 from stored, keep")
	r.expect(r.step(Filled{Delivery: 1, Row: 0, Augments: 1}))
	r.expect(r.step(Filled{Delivery: 1, Row: 1, Augments: 1})) // whole, but its picks are not durable yet
	r.expect(r.step(Persisted{Seq: 3}))
	r.expect(r.step(Persisted{Seq: 4}), "deliver job 1 rank 0 epoch 0 step 0: 2 rows")
	if s := r.c.Stats(); s.Decodes != 2 || s.SourceReads != 2 || s.SourceBytes != 200 || s.Augments != 2 ||
		s.Samples != 2 || s.Batches != 1 {
		t.Errorf("%+v", s)
	}
	r.expect(r.step(Released{Job: 1, Inc: 1, Slot: 0, Gen: 2})) // not the generation of the lease
	r.expect(r.step(Released{Job: 1, Inc: 2, Slot: 0, Gen: 1})) // not the incarnation
	r.expect(r.step(Released{Job: 1, Inc: 1, Slot: 0, Gen: 1}), "persist assign of job 1")
	r.expect(r.step(Released{Job: 1, Inc: 1, Slot: 0, Gen: 1})) // twice
	r.check()
}

func TestBatchesLeaveInOrderHoweverTheyBecomeReady(t *testing.T) {
	r := decodedTier(t, 10)
	r.hold = is[*Fill]
	r.join("a", 0, 8, 2)
	fills := slices.DeleteFunc(slices.Clone(r.todo), func(e Effect) bool { return !is[*Fill](e) })
	r.todo = nil
	if len(fills) != 6 {
		t.Fatalf("%d fills", len(fills))
	}
	slices.Reverse(fills)
	for i, e := range fills {
		f := e.(*Fill)
		words := r.step(Filled{Delivery: f.Delivery, Row: f.Row})
		if last := i == len(fills)-1; hasPrefix(words, "deliver") != last {
			t.Fatalf("after fill %d: %v", i, words)
		}
	}
	r.hold = nil
	r.run()
	for step, d := range r.got {
		if d.Step != step {
			t.Errorf("batch %d came as number %d", d.Step, step)
		}
	}
}

func TestTwoJobsShareOneFlight(t *testing.T) {
	r := decodedTier(t, 10)
	r.hold = is[Prepare]
	r.join("a", 0, 4, 2)
	b := r.register("b", 0, 4, 2)
	p := r.attach(b, 0)
	if words := r.step(StartEpoch{Token: 99, Job: b, Inc: p.inc}); hasPrefix(words, "prepare") {
		t.Errorf("b prepares again what is under way: %v", words)
	}
	r.hold = nil
	r.run()
	if s := r.c.Stats(); s.Decodes != 4 || s.SourceReads != 4 || s.Hits[ident.Decoded] < 4 {
		t.Errorf("%+v", s)
	}
	if got := p.drain(); len(got) < 4 || !slices.Equal(got[:4], ids(0, 4)) {
		t.Errorf("b got %v", got)
	}
}

func TestAHitNeedsNoWork(t *testing.T) {
	r := decodedTier(t, 10)
	a := r.join("a", 0, 4, 2)
	a.drain()
	prepared := len(r.prepares)
	b := r.join("b", 0, 4, 2)
	if got := b.drain(); !slices.Equal(got, ids(0, 4)) || len(r.prepares) != prepared {
		t.Errorf("b got %v with %d preparations", got, len(r.prepares)-prepared)
	}
	if j := r.job(b.job); j.Stats.Decodes != 0 || j.Stats.Hits[ident.Decoded] < 4 || j.Stats.Samples != 4 {
		t.Errorf("%+v", j.Stats)
	}
}

func TestWithoutATierTheCopyIsDiscardedAfterItsLastReader(t *testing.T) {
	r := newRig(t, [ident.NumForms]int64{})
	r.hold = is[*Fill]
	a := r.join("a", 0, 1, 1, func(e *Register) { e.Spec.Slots = 2 })
	b := r.attach(r.register("b", 0, 1, 1), 0)
	r.step(StartEpoch{Token: 99, Job: b.job, Inc: b.inc}) // joins while the copy is being read
	if len(r.prepares) != 1 {
		t.Fatalf("%d preparations", len(r.prepares))
	}
	if hasPrefix(r.words(), "discard") {
		t.Error("the copy is gone before it was read")
	}
	r.hold = nil
	r.run()
	if len(a.drain()) != 1 || len(b.drain()) < 1 {
		t.Error("a row is missing")
	}
	r.check()
	if n := len(r.c.flights.flightByID); n != 0 {
		t.Errorf("%d flights are left", n)
	}
}

// words are the effects that are left to do.
func (r *rig) words() []string {
	var out []string
	for _, e := range r.todo {
		out = append(out, describe(e))
	}
	return out
}

func TestEvictionMakesRoomAndWaitsForReaders(t *testing.T) {
	r := decodedTier(t, 2)
	r.hold = is[*Fill]
	// both samples resident and pinned by fills
	a := r.join("a", 0, 2, 1, func(e *Register) { e.Sample.Mode = 0; e.Spec.Slots = 2 })
	if n := r.c.Pinned(ident.Decoded); n != 2 {
		t.Fatalf("%d entries are pinned", n)
	}
	words := r.step(Reconfigure{Token: 50, Tiers: TierConfig{Total: 0}})
	r.expect(words, "budget decoded 0", "reply") // nothing is freed under a reader
	if used := r.c.Tiers()[1].Used; used != 0 {
		t.Errorf("%d bytes are still promised", used)
	}
	r.hold = nil
	freed := 0
	for len(r.todo) > 0 {
		e := r.todo[0]
		r.todo = r.todo[1:]
		if is[FreeKey](e) {
			freed++
		}
		r.do(e)
	}
	if freed != 2 {
		t.Errorf("%d entries were freed", freed)
	}
	if len(a.drain()) != 2 {
		t.Error("a sample was lost with its cache entry")
	}
}

func TestALostEntryCostsAReadAndNoSample(t *testing.T) {
	r := decodedTier(t, 10)
	a := r.join("a", 0, 4, 4)
	a.drain()
	r.hold = is[*Fill]
	b := r.join("b", 0, 4, 4, func(e *Register) { e.Spec.Epochs = 1 })
	prepared := len(r.prepares)
	f := r.todo[slices.IndexFunc(r.todo, is[*Fill])].(*Fill)
	r.todo = slices.DeleteFunc(r.todo, func(e Effect) bool {
		g, ok := e.(*Fill)
		return ok && g.Delivery == f.Delivery &&
			g.Row == f.Row
	})
	words := r.step(Filled{Delivery: f.Delivery, Row: f.Row, Lost: true})
	if !hasPrefix(words, "prepare 0 from stored, keep") {
		t.Errorf("after the loss: %v", words)
	}
	r.hold = nil
	r.run()
	if got := b.drain(); !slices.Equal(got, ids(0, 4)) || len(r.prepares) != prepared+1 {
		t.Errorf("b got %v with %d preparations", got, len(r.prepares)-prepared)
	}
}

func TestAnEncodedCopySparesTheRead(t *testing.T) {
	r := newRig(t, [ident.NumForms]int64{ident.Encoded: 400})
	a := r.join("a", 0, 4, 2)
	a.drain()
	a.epoch(1)
	a.drain()
	if s := r.c.Stats(); s.SourceReads != 4 || s.Decodes < 8 {
		t.Errorf("%d reads, %d decodes", s.SourceReads, s.Decodes)
	}
	// The copy is lost: it is read again.
	r.hold = is[Prepare]
	a.epoch(2)
	if i := slices.IndexFunc(r.todo, func(e Effect) bool {
		p, ok := e.(Prepare)
		return ok &&
			p.From == ident.Encoded
	}); i >= 0 {
		p := r.todo[i].(Prepare)
		r.todo = slices.Delete(r.todo, i, i+1)
		words := r.step(Prepared{Flight: p.Flight, Lost: true})
		if !hasPrefix(words, "prepare") || !hasPrefix(words, "free encoded") {
			t.Errorf("after the loss: %v", words)
		}
	} else {
		t.Error("nothing is prepared from an encoded copy")
	}
	r.hold = nil
	r.run()
	a.drain()
}

// TestReadsSayHowManyJobsHaveASample: the disk tier keeps bytes by that, also of what a job has taken already.
func TestReadsSayHowManyJobsHaveASample(t *testing.T) {
	r := newRig(t, [ident.NumForms]int64{ident.Encoded: 400})
	a, b := r.join("a", 0, 8, 2), r.join("b", 4, 12, 2)
	r.prepares = nil // b was not there yet
	for i := range 3 {
		a.epoch(uint32(i))
		b.epoch(uint32(i))
		a.drain()
		b.drain()
	}
	stored := 0
	for _, p := range r.prepares {
		want := 1
		switch {
		case p.From != ident.Stored:
			want = 0
		case p.Key.Object >= 4 && p.Key.Object < 8:
			want = 2
		}
		if p.From == ident.Stored {
			stored++
		}
		if p.Readers != want {
			t.Errorf("%s from %v is for %d jobs, want %d", p.Key, p.From, p.Readers, want)
		}
	}
	if stored < 12 {
		t.Errorf("%d reads in three epochs of 12 samples, of which memory has room for four", stored)
	}
}

func broken(r *rig, how jobs.OnError) *peer {
	r.bad[1] = true
	p := r.attach(r.register("a", 0, 6, 3, func(e *Register) { e.Spec.OnError = how }), 0)
	p.epoch(0)
	return p
}

func TestASampleThatFailsTwiceIsQuarantined(t *testing.T) {
	for _, how := range []jobs.OnError{jobs.Raise, jobs.Skip} {
		r := decodedTier(t, 10)
		p := broken(r, how)
		d := p.must()
		if got := r.objects(d); !slices.Equal(got, []ident.ObjectID{0, 2}) || len(d.Bad) != 1 ||
			d.Bad[0] != (jobs.Bad{Object: 1, At: 8, Reason: "it is broken"}) {
			t.Errorf("batch %v, bad %v", got, d.Bad)
		}
		tried := 0
		for _, x := range r.prepares {
			if x.Key.Object == 1 {
				tried++
			}
		}
		if tried != 2 {
			t.Errorf("it was tried %d times", tried)
		}
		p.release(d)
		r.run()
		p.drain()
		if l := r.job(p.job).Ledgers[0]; l.State != jobs.Complete || l.Delivered != 5 || l.Quarantined != 1 {
			t.Errorf("%+v", l)
		}
		if e := r.ends[0]; e.Samples != 5 || e.Batches != 2 {
			t.Errorf("%+v", e)
		}
		// Another job and the next epoch cause no further prepare.
		n := len(r.prepares)
		q := r.join("b", 0, 2, 2)
		if d := q.must(); len(d.Rows) != 1 || len(d.Bad) != 1 || len(r.prepares) != n {
			t.Errorf("%+v after %d preparations", d, len(r.prepares)-n)
		}
		if s := r.c.Stats(); s.Quarantined != 1 {
			t.Errorf("%d objects are quarantined", s.Quarantined)
		}
	}
}

func TestSubstituteTakesAnotherSampleOfTheEpoch(t *testing.T) {
	r := decodedTier(t, 10)
	r.bad[1] = true
	p := r.join("a", 0, 9, 3, func(e *Register) { e.Spec.OnError, e.Spec.Slots = jobs.Substitute, 2 })
	d := p.must()
	if got := r.objects(d); !slices.Equal(got, []ident.ObjectID{0, 8, 2}) || len(d.Bad) != 1 { // from the end of the order
		t.Errorf("batch %v, bad %v", got, d.Bad)
	}
	p.release(d)
	r.run()
	// one short: there is no ninth good sample
	if got := p.drain(); !slices.Equal(got[:5], []ident.ObjectID{3, 4, 5, 6, 7}) {
		t.Errorf("the rest is %v", got)
	}
	if l := r.job(p.job).Ledgers[0]; l.State != jobs.Complete || l.Delivered != 8 || l.Quarantined != 1 {
		t.Errorf("%+v", l)
	}
}

func TestSubstituteTakesFromWhatWouldBeDropped(t *testing.T) {
	r := decodedTier(t, 10)
	r.bad[1] = true
	p := r.join("a", 0, 8, 3, func(e *Register) {
		e.Spec.OnError, e.Spec.Slots, e.Spec.DropLast = jobs.Substitute, 2,
			true
	})
	got := p.drain()
	if want := []ident.ObjectID{0, 7, 2, 3, 4, 5}; !slices.Equal(got[:6], want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if l := r.job(p.job).Ledgers[0]; l.State != jobs.Complete || l.Delivered != 6 || l.Quarantined != 1 || l.Dropped != 1 {
		t.Errorf("%+v", l)
	}
}

func TestAQuarantineIsNotTakenToOtherRecipes(t *testing.T) {
	r := decodedTier(t, 10)
	p := broken(r, jobs.Skip)
	p.drain()
	delete(r.bad, 1) // it is the other recipe's prefix that cannot be done
	q := r.join("b", 0, 3, 3, func(e *Register) { e.Prefix = 77 })
	if d := q.must(); len(d.Rows) != 3 || len(d.Bad) != 0 {
		t.Errorf("%+v", d)
	}
}

func TestAnAugmentationThatFailsCostsItsRowOnly(t *testing.T) {
	r := decodedTier(t, 10)
	r.badFill[1] = true
	p := r.join("a", 0, 3, 3)
	if d := p.must(); len(d.Rows) != 2 || len(d.Bad) != 1 {
		t.Errorf("%+v", d)
	}
	delete(r.badFill, 1)
	q := r.join("b", 0, 3, 3)
	if d := q.must(); len(d.Rows) != 3 {
		t.Errorf("%+v", d)
	}
}

func TestShareGroupsAugmentOnceAndNewJobsMeetTheRunningInstance(t *testing.T) {
	r := newRig(t, [ident.NumForms]int64{ident.Decoded: 20 * sampleBytes, ident.Augmented: 20 * 150})
	shared := func(e *Register) { e.Share, e.Key, e.AugmentedBytes, e.Spec.Slots = true, 9, 150, 2 }
	a := r.join("a", 0, 8, 4, shared)
	a.drain()
	a.epoch(1)
	a.drain()
	a.epoch(2)
	b := r.attach(r.register("b", 0, 8, 4, shared), 0)
	instances := func(p *peer) map[uint32]bool {
		out := map[uint32]bool{}
		for _, d := range r.got {
			if d.Job == p.job {
				for _, i := range d.Rows {
					out[r.rows[d.Delivery][i].Instance] = true
				}
			}
		}
		return out
	}
	b.epoch(0)
	if j := r.job(b.job); j.Group != 1 || j.Offset == 0 || j.Offset != r.job(a.job).Epoch {
		t.Fatalf("group %d, offset %d; a is in epoch %d", j.Group, j.Offset, r.job(a.job).Epoch)
	}
	b.drain()
	b.epoch(1)
	b.drain()
	a.drain()
	a.epoch(3)
	a.drain()
	if len(r.augments) == 0 {
		t.Error("nothing was augmented for the group")
	}
	for x := range instances(b) {
		if x < r.job(b.job).Offset {
			t.Errorf("b got instance %d below its offset %d", x, r.job(b.job).Offset)
		}
	}
	type made struct {
		x ident.ObjectID
		i uint32
	}
	seen := map[made]int{}
	for _, x := range r.augments {
		if seen[made{x.Key.Object, x.Instance}]++; x.Instance != x.Key.Instance || seen[made{x.Key.Object, x.Instance}] > 1 {
			t.Errorf("object %d, instance %d (key says %d) was made again", x.Key.Object, x.Instance, x.Key.Instance)
		}
	}
	if a, b := r.c.roster.streams[a.job], r.c.roster.streams[b.job]; a.seed != b.seed {
		t.Error("one group has two seeds")
	}
	r.check()
}
