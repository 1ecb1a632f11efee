package coordinator

import (
	"slices"
	"testing"
	"time"

	"larder/dsa"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/jobs"
)

func ranks(n int) func(*Register) {
	return func(e *Register) { e.Spec.World = n }
}

func slots(n int) func(*Register) {
	return func(e *Register) { e.Spec.Slots = n }
}

func TestADetachedClientGivesBackWhatItWasNotGiven(t *testing.T) {
	r := decodedTier(t, 20)
	p := r.join("a", 0, 12, 2, slots(4))
	d := p.must()
	p.release(d)
	r.run()
	words := p.detach(false) // with batches in its hands
	if !hasPrefix(words, "close job 1 rank 0") {
		t.Errorf("%v", words)
	}
	j := r.job(1)
	if j.State != jobs.Suspect || j.Active() {
		t.Errorf("%s, active %v", j.State, j.Active())
	}
	r.run()
	r.check()
	if n := r.c.Pinned(ident.Decoded); n != 0 {
		t.Errorf("%d entries are pinned for a dead client", n)
	}
	if len(r.c.planner.deliveries) != 0 || len(r.c.flights.flightByID) != 0 {
		t.Errorf("%d batches and %d flights are left", len(r.c.planner.deliveries), len(r.c.flights.flightByID))
	}
}

// A rank that leaves in order does not end the job of a rank that has its lease to come back.
func TestALeavingRankWaitsForAVanishedOne(t *testing.T) {
	r := decodedTier(t, 20)
	id := r.register("a", 0, 12, 2, ranks(2))
	a, b := r.attach(id, 0), r.attach(id, 1)
	a.epoch(0)
	b.epoch(0)
	b.detach(false)
	a.detach(true)
	if j := r.job(id); j.State != jobs.Suspect {
		t.Fatalf("%s, with rank 1 to come back", j.State)
	}
	b = r.attach(id, 1)
	b.detach(true)
	if j := r.job(id); j.State != jobs.Done {
		t.Errorf("%s after the last rank left", j.State)
	}
	id = r.register("b", 0, 12, 2, ranks(2))
	a, b = r.attach(id, 0), r.attach(id, 1)
	b.detach(false)
	a.detach(true)
	r.after(r.c.cfg.Lease + time.Second)
	if j := r.job(id); j.State != jobs.Dead {
		t.Errorf("%s after the lease", j.State)
	}
}

func TestPlannedButUnsentBatchesReturnToTheEpoch(t *testing.T) {
	r := decodedTier(t, 20)
	r.hold = is[*Fill]
	a := r.join("a", 0, 12, 2, slots(4))
	if n := r.c.needs.sampler.Remaining(a.job); n != 4 {
		t.Fatalf("%d remain", n)
	}
	if words := a.detach(false); slices.Contains(words, "persist return of job 1") ||
		r.c.needs.sampler.Remaining(a.job) != 4 {
		t.Errorf("what is kept for a client that may come back was returned: %v", words)
	}
	words := r.step(Attach{Token: 99, Job: a.job}) // another client
	if got := slices.IndexFunc(words, func(w string) bool { return w == "persist return of job 1" }); got < 0 {
		t.Errorf("nothing is journaled as returned: %v", words)
	}
	if n := r.c.needs.sampler.Remaining(a.job); n != 12 {
		t.Errorf("%d remain of 12", n)
	}
	if l := r.job(1).Ledgers[0]; l.State != jobs.Running {
		t.Errorf("%+v", l)
	}
	r.hold = nil
	r.run() // writers that were under way end
	r.check()
	if len(r.got) != 0 || len(r.c.planner.deliveries) != 0 {
		t.Errorf("%d batches were sent without a client, %d are left", len(r.got), len(r.c.planner.deliveries))
	}
}

func TestAFlightWithoutWaitersIsGivenUp(t *testing.T) {
	r := decodedTier(t, 20)
	r.hold = is[Prepare]
	a := r.join("a", 0, 12, 2, slots(4)) // 4 preparations are handed out, 4 wait
	if n := r.c.flights.queue.Len(); n != 4 {
		t.Fatalf("%d wait", n)
	}
	a.detach(false)
	if n := r.c.flights.queue.Len(); n != 0 {
		t.Errorf("%d flights without a waiter are queued", n)
	}
	if n := len(r.c.flights.flightByID); n != 4 {
		t.Errorf("%d flights are under way", n)
	}
	r.hold = nil
	r.run()
	r.check()
	if n := r.c.Tiers()[1].Entries; n != 4 { // the work that was done is kept
		t.Errorf("%d entries", n)
	}
}

func TestTheNeighbourOfADeadClientGoesOn(t *testing.T) {
	r := decodedTier(t, 20)
	r.hold = is[Prepare]
	a := r.join("a", 0, 8, 2)
	b := r.join("b", 0, 8, 2, slots(5)) // waits for the same flights
	a.detach(false)
	r.hold = nil
	r.run()
	if got := b.drain(); !slices.Equal(got[:8], ids(0, 8)) {
		t.Errorf("b got %v", got)
	}
}

func TestTakeoverByAHigherIncarnation(t *testing.T) {
	r := decodedTier(t, 20)
	a := r.join("a", 0, 8, 2)
	d := a.must()
	refused(t, r.ask(func(t Token) Event { return Attach{Token: t, Job: 1} }), errs.RankHeld, "rank 0", "incarnation 1")
	refused(t, r.ask(func(t Token) Event { return Attach{Token: t, Job: 1, Rank: 1} }), errs.Invalid, "rank 1",
		"world_size 1")
	refused(t, r.ask(func(t Token) Event { return Attach{Token: t, Job: 9} }), errs.JobEnded)
	a.detach(false)
	r.run()
	b := r.attach(1, 0)
	if b.inc != 2 || r.job(1).State != jobs.Live || !r.job(1).Lease.IsZero() {
		t.Fatalf("incarnation %d, %s", b.inc, r.job(1).State)
	}
	refused(t, r.ask(func(t Token) Event { return Attach{Token: t, Job: 1, Held: 1} }), errs.Stale, "incarnation 1")
	b.epoch(0)
	// What the dead client still says must not touch the ring of the new one.
	before := r.job(1).Ranks[0]
	if words := a.release(d); len(words) != 0 {
		t.Errorf("a stale release did %v", words)
	}
	if words := a.detach(true); len(words) != 0 {
		t.Errorf("a stale goodbye did %v", words)
	}
	refused(t, a.tryEpoch(1), errs.Stale)
	if now := r.job(1).Ranks[0]; !slices.Equal(now.Slots, before.Slots) || !now.Attached() {
		t.Errorf("%+v, before %+v", now, before)
	}
	if got := b.drain(); !slices.Equal(got[:8], ids(0, 8)) { // the epoch restarts
		t.Errorf("got %v", got)
	}
}

func TestTheLeaseOfAVanishedClientRunsOut(t *testing.T) {
	r := decodedTier(t, 20)
	a := r.join("a", 0, 8, 2)
	a.detach(false)
	r.run()
	if d := r.c.Deadline(); !d.Equal(r.now.Add(10 * time.Second)) {
		t.Errorf("deadline in %s", d.Sub(r.now))
	}
	r.after(10*time.Second - 1)
	if r.job(1).State != jobs.Suspect {
		t.Error("ended early")
	}
	words := r.after(1)
	r.expect(words[:2], "persist end of job 1", "job 1 ended")
	if j := r.job(1); j.State != jobs.Dead || j.Reason == "" || j.Ledgers[0].State != jobs.Abandoned {
		t.Errorf("%s %q, epoch %s", j.State, j.Reason, j.Ledgers[0].State)
	}
	refused(t, r.ask(func(t Token) Event { return Attach{Token: t, Job: 1} }), errs.JobEnded)
	r.register("a", 0, 8, 2) // the name is free
}

func TestALostRankEndsTheJobOnlyWhenOthersWouldWaitForIt(t *testing.T) {
	r := decodedTier(t, 20)
	id := r.register("a", 0, 16, 2, ranks(2))
	p, q := r.attach(id, 0), r.attach(id, 1)
	p.epoch(0)
	q.epoch(0)
	q.must()
	q.detach(false)
	r.run()
	r.after(11 * time.Second)
	if j := r.job(id); j.State != jobs.Suspect || !j.Ranks[0].Attached() {
		t.Fatalf("%s: rank 0 is in the middle of its epoch", j.State)
	}
	if got := p.drain(); len(got) != 8 {
		t.Errorf("rank 0 got %v", got)
	}
	p.epoch(1) // which cannot begin without rank 1
	if d := p.next(); d != nil {
		t.Errorf("%+v", d)
	}
	r.after(11 * time.Second)
	if j := r.job(id); j.State != jobs.Dead || len(r.closed) != 2 ||
		r.closed[1].Reason != "the client of rank 1 vanished and did not come back within the lease" {
		t.Errorf("%s %+v", j.State, r.closed)
	}
}

func TestALostRankThatComesBackMeetsTheOthersInTheNextEpoch(t *testing.T) {
	r := decodedTier(t, 20)
	id := r.register("a", 0, 16, 2, ranks(2))
	p, q := r.attach(id, 0), r.attach(id, 1)
	p.epoch(0)
	q.epoch(0)
	q.detach(false)
	r.run()
	p.drain()
	p.epoch(1)
	q = r.attach(id, 1)
	if j := r.job(id); j.State != jobs.Live || !j.Lease.IsZero() {
		t.Errorf("%s, lease %s", j.State, j.Lease)
	}
	q.epoch(1)
	got := append(p.drain(), q.drain()...)
	if slices.Sort(got); !slices.Equal(slices.Compact(got), ids(0, 16)) {
		t.Errorf("together they got %v", got)
	}
	if l := r.job(id).Ledgers; l[0].State != jobs.Abandoned || l[1].State != jobs.Complete {
		t.Errorf("epochs %s, %s", l[0].State, l[1].State)
	}
}

func TestRanksGetDisjointPartsAndTheLastOneClosesTheAccount(t *testing.T) {
	r := decodedTier(t, 40)
	id := r.register("a", 0, 21, 4, ranks(2), func(e *Register) { e.Sample.Mode = dsa.Stratified })
	p, q := r.attach(id, 0), r.attach(id, 1)
	p.epoch(0)
	if p.next() != nil {
		t.Error("a rank begins before the others are there")
	}
	q.epoch(0)
	got := append(p.drain(), q.drain()...)
	if len(got) != 21 {
		t.Errorf("%d samples", len(got))
	}
	if slices.Sort(got); !slices.Equal(slices.Compact(got), ids(0, 21)) {
		t.Errorf("together they got %v", got)
	}
	if len(r.ends) != 2 || r.ends[0].Account != nil || r.ends[1].Account == nil || r.ends[0].Batches != r.ends[1].Batches {
		t.Errorf("%+v", r.ends)
	}
}

func TestBreakLeavesTheEpochAndBeginsTheNextAfresh(t *testing.T) {
	r := decodedTier(t, 20)
	a := r.join("a", 0, 12, 2)
	held := a.must()
	a.epoch(1) // with a batch of epoch 0 in its hands
	for d := a.next(); d != nil; d = a.next() {
		if d.Epoch == 0 { // was in the socket already: unseen
			a.release(d)
			r.run()
			continue
		}
		if d.Slot == held.Slot {
			t.Fatal("a batch came in the slot that the client still holds")
		}
		a.release(d)
		r.run()
	}
	a.release(held)
	r.run()
	a.drain()
	l := r.job(1).Ledgers
	if l[0].State != jobs.Abandoned || l[1].State != jobs.Complete {
		t.Errorf("epochs %s, %s", l[0].State, l[1].State)
	}
	seen := map[ident.ObjectID]bool{}
	for _, d := range r.got {
		if d.Epoch == 1 {
			for _, x := range r.objects(&d) {
				if seen[x] {
					t.Errorf("%d came twice", x)
				}
				seen[x] = true
			}
		}
	}
	if len(seen) != 12 {
		t.Errorf("%d of 12", len(seen))
	}
}

func TestEpochsEnd(t *testing.T) {
	r := decodedTier(t, 20)
	a := r.join("a", 0, 6, 2, func(e *Register) { e.Spec.Epochs = 2 })
	a.drain()
	a.epoch(1)
	a.drain()
	if len(r.ends) != 2 || r.ends[0].Final || !r.ends[1].Final {
		t.Errorf("%+v", r.ends)
	}
	refused(t, a.tryEpoch(2), errs.JobEnded, "2 epochs")
	words := a.detach(true)
	if !hasPrefix(words, "job 1 ended") || r.job(1).State != jobs.Done {
		t.Errorf("%v", words)
	}
}

func TestDrainLetsTheRunningEpochEnd(t *testing.T) {
	r := decodedTier(t, 20)
	a := r.join("a", 0, 12, 2, slots(4))
	d := a.must()
	r.ok(r.ask(func(t Token) Event { return Drain{Token: t, Job: 1} }))
	if r.job(1).State != jobs.Live {
		t.Fatal("the epoch was cut off")
	}
	got := r.objects(d)
	a.release(d)
	r.run()
	got = append(got, a.drain()...)
	if !slices.Equal(got, ids(0, 12)) {
		t.Errorf("got %v", got)
	}
	if len(r.ends) != 1 || !r.ends[0].Final || r.ends[0].Account.State != jobs.Complete {
		t.Errorf("%+v", r.ends)
	}
	if len(r.closed) != 1 || r.closed[0].Reason != "drained" || r.job(1).State != jobs.Done {
		t.Errorf("%+v, %s", r.closed, r.job(1).State)
	}
	refused(t, r.ask(func(t Token) Event { return Drain{Token: t, Job: 1} }), errs.JobEnded)
}

// All batches of the epoch are planned and the next one is prepared ahead: the epoch the client is in still runs.
func TestDrainDoesNotMistakeThePreparedEpochForTheRunningOne(t *testing.T) {
	r := decodedTier(t, 20)
	a := r.join("a", 0, 4, 2, slots(4))
	if r.job(1).Epoch != 1 {
		t.Fatal("epoch 1 is not prepared ahead")
	}
	r.hold = is[*Fill]
	b := r.join("b", 4, 8, 2, slots(4)) // nothing of it is delivered yet
	for id := range ident.JobID(2) {
		r.ok(r.ask(func(t Token) Event { return Drain{Token: t, Job: id + 1} }))
	}
	if got := a.drain(); !slices.Equal(got, ids(0, 4)) {
		t.Errorf("a got %v", got)
	}
	r.hold = nil
	r.run()
	if got := b.drain(); !slices.Equal(got, ids(4, 8)) {
		t.Errorf("b got %v", got)
	}
	if r.job(1).State != jobs.Done || r.job(2).State != jobs.Done {
		t.Errorf("%s, %s", r.job(1).State, r.job(2).State)
	}
}

func TestADrainedJobBeginsNoEpoch(t *testing.T) {
	r := decodedTier(t, 20)
	a := r.join("a", 0, 12, 2)
	a.must()
	r.ok(r.ask(func(t Token) Event { return Drain{Token: t, Job: 1} }))
	refused(t, a.tryEpoch(1), errs.JobEnded, "drained") // it broke out of its epoch
	if r.job(1).State != jobs.Done || len(r.closed) != 1 {
		t.Errorf("%s", r.job(1).State)
	}
	idle := r.attach(r.register("b", 0, 4, 2), 0)
	r.ok(r.ask(func(t Token) Event { return Drain{Token: t, Job: idle.job} }))
	if r.job(idle.job).State != jobs.Done {
		t.Error("a job that is in no epoch has nothing to finish")
	}
}

func TestADrainedJobWaitsForEveryRank(t *testing.T) {
	r := decodedTier(t, 40)
	id := r.register("a", 0, 16, 2, ranks(2))
	p, q := r.attach(id, 0), r.attach(id, 1)
	p.epoch(0)
	q.epoch(0)
	p.drain()
	r.ok(r.ask(func(t Token) Event { return Drain{Token: t, Job: id} }))
	refused(t, p.tryEpoch(1), errs.JobEnded)
	if got := q.drain(); len(got) != 8 {
		t.Errorf("rank 1 got %v", got)
	}
	if r.job(id).State != jobs.Done {
		t.Errorf("%s", r.job(id).State)
	}
	// A rank that vanishes meanwhile may come back, and is waited for no longer than its lease.
	id = r.register("b", 0, 16, 2, ranks(2))
	p, q = r.attach(id, 0), r.attach(id, 1)
	p.epoch(0)
	q.epoch(0)
	r.ok(r.ask(func(t Token) Event { return Drain{Token: t, Job: id} }))
	p.drain()
	q.detach(false)
	r.run()
	if r.job(id).State != jobs.Suspect {
		t.Errorf("%s within the lease", r.job(id).State)
	}
	r.after(r.c.cfg.Lease + time.Second)
	if r.job(id).State != jobs.Done {
		t.Errorf("%s", r.job(id).State)
	}
}

func TestAStalledJobNeedsNothingUntilItTakesAgain(t *testing.T) {
	r := decodedTier(t, 40)
	a := r.join("a", 0, 20, 2, func(e *Register) { e.Sample.Mode = dsa.Stratified })
	for range 3 { // a second a step
		d := a.must()
		r.now = r.now.Add(time.Second)
		a.release(d)
		r.run()
	}
	need := func() (n int) {
		for _, x := range ids(0, 20) {
			n += r.c.needs.sampler.Need(x)
		}
		return n
	}
	if need() == 0 || !r.job(1).Active() {
		t.Fatal("it needs nothing though it draws")
	}
	if d := r.c.Deadline().Sub(r.now); d != 10*time.Second {
		t.Errorf("looked at again in %s, not after ten steps", d)
	}
	r.after(10*time.Second - 1)
	if need() == 0 {
		t.Error("given up early")
	}
	r.after(1)
	if need() != 0 || r.job(1).Active() {
		t.Errorf("%d needs of a job that takes nothing", need())
	}
	if !r.c.Deadline().IsZero() {
		t.Error("the clock runs for nothing")
	}
	d := a.must()
	a.release(d)
	r.run()
	if need() == 0 || !r.job(1).Active() {
		t.Error("it draws again and needs nothing")
	}
	seen := a.drain()
	if len(seen) == 0 || r.job(1).Ledgers[0].State != jobs.Complete {
		t.Error("its epoch was not completed")
	}
}

func TestWaitingForUsIsNoIdleness(t *testing.T) {
	r := decodedTier(t, 40)
	r.hold = is[*Fill]
	r.join("a", 0, 4, 2) // both batches are planned, none is there
	r.after(time.Hour)
	if !r.job(1).Active() {
		t.Error("a client that waits for its batch was taken for a stalled one")
	}
	r.hold = nil
	r.run()
}

func TestAJobThatIsAheadOfItsClientsBuffersNoMoreThanItsRing(t *testing.T) {
	r := decodedTier(t, 100)
	r.join("a", 0, 100, 2, slots(5)) // its client takes nothing
	if len(r.got) != 5 || len(r.prepares) != 10 {
		t.Errorf("%d batches, %d preparations", len(r.got), len(r.prepares))
	}
	if r.c.Pinned(ident.Decoded) != 0 {
		t.Error("it pins memory beside its ring")
	}
}

func TestReconfigureIsAllOrNothing(t *testing.T) {
	r := newRig(t, [ident.NumForms]int64{ident.Encoded: 1000, ident.Decoded: 6000})
	before := r.c.Tiers()
	rep := r.ask(func(t Token) Event {
		return Reconfigure{Token: t, Tiers: TierConfig{Total: 5000,
			Sizes: [ident.NumForms]int64{ident.Encoded: 3000, ident.Decoded: 3000}}}
	})
	refused(t, rep, errs.ResourceExceeded, "tiers.encoded 2.93KiB + tiers.decoded 2.93KiB exceed tiers.total 4.88KiB")
	if after := r.c.Tiers(); !slices.Equal(before, after) {
		t.Errorf("%+v, before %+v", after, before)
	}
	words := r.step(Reconfigure{Token: 77, Tiers: TierConfig{Total: 8000,
		Sizes: [ident.NumForms]int64{ident.Encoded: 5000, ident.Decoded: 3000}}})
	r.expect(words, "budget decoded 3000", "budget encoded 5000", "reply") // shrinks first
	words = r.step(Reconfigure{Token: 78, Tiers: TierConfig{Total: 8000,
		Sizes: [ident.NumForms]int64{ident.Encoded: 5000, ident.Decoded: 3000}}})
	r.expect(words, "reply")
}

func TestRefusedRegistrations(t *testing.T) {
	r := newRig(t, [ident.NumForms]int64{ident.Decoded: 6000}, func(c *Config) { c.MaxJobs = 1 })
	refused(t, r.ask(func(t Token) Event { return registration(t, "a", 0, 0, 2) }), errs.SubsetEmpty)
	r.register("a", 0, 4, 2)
	refused(t, r.ask(func(t Token) Event { return registration(t, "a", 0, 4, 2) }), errs.AlreadyExists)
	refused(t, r.ask(func(t Token) Event { return registration(t, "b", 0, 4, 2) }), errs.JobLimit, "1 jobs live")
	if _, err := New(Config{Tiers: TierConfig{Policy: [ident.NumForms]string{ident.Decoded: "nead"}}}); err == nil {
		t.Error("an unknown policy was taken")
	}
}

// Start-time fair queueing: a job with batches of 7 beside one with batches of 64, both short of data, get as many
// rows.
func TestSmallBatchesAreNotStarvedByLargeOnes(t *testing.T) {
	r := newRig(t, [ident.NumForms]int64{}, func(c *Config) { c.InFlight = 1 })
	r.hold = func(e Effect) bool { return is[Prepare](e) }
	small := r.join("small", 0, 3500, 7, slots(6), func(e *Register) { e.Sample.Mode = dsa.Stratified })
	large := r.join("large", 5000, 8500, 64, slots(6), func(e *Register) { e.Sample.Mode = dsa.Stratified })
	served := map[ident.JobID]int{}
	for range 1500 {
		i := slices.IndexFunc(r.todo, is[Prepare])
		p := r.todo[i].(Prepare)
		r.todo = slices.Delete(r.todo, i, i+1)
		served[p.Job]++
		r.do(p)
		r.run()
		for _, c := range []*peer{small, large} { // both work on a batch in no time
			for d := c.next(); d != nil; d = c.next() {
				c.release(d)
				r.run()
			}
		}
	}
	if s, l := served[small.job], served[large.job]; s < 700 || l < 700 {
		t.Errorf("small got %d rows, large %d", s, l)
	}
	r.hold = nil
}

func TestInspectCopiesAreTheirOwn(t *testing.T) {
	r := decodedTier(t, 20)
	r.bad[0] = true
	a := r.join("a", 0, 12, 2)
	v := r.job(1)
	slot, bad := v.Ranks[0].Slots[0], v.Stats.Bad
	picked := v.Ledgers[0].Delivered
	a.drain()
	if v.Ranks[0].Slots[0] != slot || v.Ledgers[0].Delivered != picked || len(bad) != 1 || v.Ledgers[0].Committed() != 0 {
		t.Error("a view changed with its job")
	}
	if n := len(r.c.Jobs(false)); n != 1 {
		t.Errorf("%d jobs", n)
	}
	a.detach(true)
	r.run()
	if len(r.c.Jobs(false)) != 0 || len(r.c.Jobs(true)) != 1 {
		t.Error("ended jobs are not distinguished")
	}
	if v, ok := r.c.Job("a"); !ok || v.State != jobs.Done {
		t.Errorf("%s", v.State)
	}
}
