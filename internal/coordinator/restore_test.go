package coordinator

import (
	"fmt"
	"slices"
	"testing"

	"larder/dsa"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/testenv/lane"
	"larder/internal/xrand"
	"larder/jobs"
)

// journaled folds what a core persisted as the journal does: the two newest epochs of a job.
type journaled struct {
	incs   map[int]ident.Incarnation
	epochs []RestoredEpoch
	bad    []jobs.Bad
	before map[uint32][]ident.ObjectID // orders of all epochs
	seed   uint64
}

// at finds an epoch; -1 = it is not known.
func (l *journaled) at(epoch uint32) int {
	return slices.IndexFunc(l.epochs, func(e RestoredEpoch) bool { return e.Epoch == epoch })
}

func (l *journaled) add(p Persist, reg Register) {
	switch p := p.Record.(type) {
	case RecordRegistered:
		l.seed = p.Seed
	case RecordAttached:
		l.incs[p.Rank] = p.Inc
	case RecordEpochStarted:
		if at := l.at(p.Epoch); at >= 0 {
			l.epochs = slices.Delete(l.epochs, at, at+1)
		}
		l.epochs = append(l.epochs, RestoredEpoch{Epoch: p.Epoch, Instance: p.Instance, Subset: reg.Spec.Subset,
			Member: Members(reg.Sample.Subset), Rest: p.Remainder, ByPick: !p.Counted})
		if len(l.epochs) > 2 {
			old := l.epochs[0]
			l.epochs = l.epochs[1:]
			l.before[old.Epoch] = nil
			for _, b := range old.Batches {
				l.before[old.Epoch] = append(l.before[old.Epoch], b.Objects...)
			}
		}
	case RecordGivenEarlier:
		e := &l.epochs[l.at(p.Epoch)]
		e.Earlier = append(e.Earlier, p.Objects...)
	case RecordAssigned:
		e := &l.epochs[l.at(p.Epoch)]
		e.Batches = append(e.Batches, RestoredBatch{Rank: p.Rank, Step: p.Step, Objects: p.Objects})
	case RecordReturned:
		if at := l.at(p.Epoch); at >= 0 && len(p.Objects) > 0 {
			l.epochs[at].takeOut(p.Step, p.Objects, func(rank int) bool { return rank == p.Rank })
		} else if at >= 0 {
			l.epochs[at].Batches = slices.DeleteFunc(l.epochs[at].Batches,
				func(b RestoredBatch) bool { return b.Rank == p.Rank && b.Step == p.Step })
		}
	case RecordDealt:
		e := &l.epochs[l.at(p.Epoch)]
		e.Dealt = max(e.Dealt, p.Step+1)
		e.GivenUp = p.GivenUp
		e.takeOut(p.Step, p.Objects, func(int) bool { return true })
	case RecordQuarantined:
		l.bad = append(l.bad, jobs.Bad{Object: p.Object, Reason: p.Reason})
	}
}

// takeOut takes samples out of the batches that some ranks have of a step.
func (e *RestoredEpoch) takeOut(step int, gone []ident.ObjectID, of func(rank int) bool) {
	for i := range e.Batches {
		if b := &e.Batches[i]; b.Step == step && of(b.Rank) {
			b.Objects = slices.DeleteFunc(slices.Clone(b.Objects), func(x ident.ObjectID) bool {
				return slices.Contains(gone,
					x)
			})
		}
	}
}

// trainee is a client that lives on while its daemon dies.
type trainee struct {
	peer  *peer
	inc   ident.Incarnation
	epoch uint32
	step  int // the next it is to get
	done  bool
	got   [][]ident.ObjectID // by epoch
	bad   []int
	full  []int // by epoch: batches that had samples
}

// Daemons die and connections are cut at any moment, and their jobs continue: every client gets every batch of every
// epoch once, under its number, and every epoch is the subset, for any order, any ranks and any bad samples.
func TestRestartsLoseNothing(t *testing.T) {
	n := lane.Times(120, 400)
	if testing.Short() {
		n = 60
	}
	restarts, cuts := 0, 0
	for seed := range uint64(n) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r, c := restartHistory(t, seed, false)
			restarts, cuts = restarts+r, cuts+c
		})
		if t.Failed() {
			return
		}
	}
	t.Logf("%d histories with %d restarts and %d cuts", n, restarts, cuts)
	if restarts < 2*n || cuts < 3*n {
		t.Errorf("only %d restarts and %d cuts in %d histories", restarts, cuts, n)
	}
}

// restartHistory is one of them; inStep: of ranks that get their steps together, with any share of bad samples.
func restartHistory(t *testing.T, seed uint64, inStep bool) (restarts, cuts int) {
	r := xrand.New(seed, 11)
	const epochs = 4
	size := 12 + r.IntN(60)
	world := 1 + r.IntN(3)
	reg := registration(0, "lr", 0, size, 1+r.IntN(6), func(e *Register) {
		e.Spec.World, e.Spec.Slots = world, 2+r.IntN(3)
		e.Sample.Mode = dsa.Mode(r.IntN(6))
		e.Sample.Seed = seed
		e.Spec.OnError = jobs.OnError(r.IntN(3))
		e.Spec.Even, e.Spec.DropLast = world > 1 && r.IntN(2) == 0, r.IntN(3) == 0
		e.Spec.Epochs = epochs
		e.Share = r.IntN(3) == 0
		e.AugmentedBytes = 100
	})
	if inStep {
		world = 2 + r.IntN(3)
		reg.Spec.World, reg.Spec.Even, reg.Spec.OnError = world, true, jobs.Substitute
	}
	if reg.Spec.Validate() != nil {
		return 0, 0
	}
	bad := map[ident.ObjectID]bool{}
	for range r.IntN(3) {
		bad[ident.ObjectID(r.IntN(size))] = true
	}
	if inStep {
		spoil(r, &reg.Spec, bad)
	}
	log := &journaled{incs: map[int]ident.Incarnation{}, before: map[uint32][]ident.ObjectID{}}
	newWorld := func() *rig {
		g := newRig(t, [ident.NumForms]int64{ident.Encoded: int64(r.IntN(2)) * 2000,
			ident.Decoded: int64(r.IntN(3)) * 10 * sampleBytes, ident.Augmented: int64(r.IntN(2)) * 1000})
		g.bad = bad
		g.record = func(p Persist) {
			log.add(p, reg)
		}
		return g
	}
	g := newWorld()
	var id ident.JobID
	reg.Token = 1
	g.token = 1
	g.step(reg)
	g.run()
	id = g.ok(g.replies[1]).Job
	clients := make([]*trainee, world)
	for k := range clients {
		c := &trainee{full: make([]int, epochs), got: make([][]ident.ObjectID, epochs), bad: make([]int, epochs)}
		c.peer = g.attach(id, k)
		c.inc = c.peer.inc
		c.peer.epoch(0)
		clients[k] = c
	}
	left := 3 + r.IntN(6)
	for turn := 0; ; turn++ {
		if turn > 20_000 {
			t.Fatalf("no end: epochs %v", log.epochs)
		}
		var live []*trainee
		for _, c := range clients {
			if !c.done {
				live = append(live, c)
			}
		}
		if len(live) == 0 {
			break
		}
		if restarts < left && r.IntN(25) == 0 {
			restarts++
			// What is decided and not done is lost, and so is what a client was sent and did not read.
			g = newWorld()
			ev := Restore{Register: reg, ID: id, Seed: log.seed, Bad: slices.Clone(log.bad), Epochs: slices.Clone(log.epochs)}
			for k := range world {
				ev.Ranks = append(ev.Ranks, log.incs[k])
			}
			if len(log.epochs) > 0 && log.epochs[0].Epoch > 0 {
				ev.Before = log.before[log.epochs[0].Epoch-1]
			}
			rep := g.ok(g.ask(func(t Token) Event { ev.Token = t; return ev }))
			if rep.Job != id {
				t.Fatalf("job %d became %d", id, rep.Job)
			}
			g.check()
			turns := make([]int, world)
			for k := range turns {
				turns[k] = k
			}
			r.Shuffle(world, func(i, k int) { turns[i], turns[k] = turns[k], turns[i] })
			for _, k := range turns {
				c := clients[k]
				if c.done {
					continue
				}
				a := g.ok(g.ask(func(t Token) Event { return Attach{Token: t, Job: id, Rank: k, Held: c.inc} }))
				if a.Inc <= c.inc || a.Epoch > c.epoch {
					t.Fatalf("rank %d came back as %d after %d, to epoch %d from %d", k, a.Inc, c.inc, a.Epoch, c.epoch)
				}
				c.inc = a.Inc
				c.peer = &peer{r: g, job: id, rank: k, inc: a.Inc}
				g.ok(g.ask(func(t Token) Event {
					return StartEpoch{Token: t, Job: id, Rank: k, Inc: c.inc, Epoch: c.epoch, From: c.step + 1}
				}))
			}
			continue
		}
		c := live[r.IntN(len(live))]
		if r.IntN(20) == 0 {
			cuts++
			c.isCut(g, r)
			continue
		}
		if r.IntN(4) > 0 {
			g.run()
		} else if len(g.todo) > 0 && r.IntN(2) == 0 { // one thing
			e := g.todo[0]
			g.todo = g.todo[1:]
			g.do(e)
		}
		d := c.peer.next()
		if d == nil {
			spec := reg.Spec
			if c.step == spec.Batches(c.peer.rank) { // it has had its last one
				if c.epoch++; c.epoch == epochs {
					c.done = true
					continue
				}
				c.step = 0
				c.peer.epoch(c.epoch)
			}
			continue
		}
		if d.Epoch != c.epoch || d.Step != c.step {
			t.Fatalf("rank %d got epoch %d step %d, and epoch %d step %d is next", c.peer.rank, d.Epoch, d.Step, c.epoch, c.step)
		}
		c.got[c.epoch] = append(c.got[c.epoch], g.objects(d)...)
		c.bad[c.epoch] += len(d.Bad)
		if len(d.Rows) > 0 {
			c.full[c.epoch]++
		}
		c.step++
		if r.IntN(8) > 0 {
			c.peer.release(d)
		} else {
			g.run()
			c.peer.release(d)
		}
	}
	for e := range epochs {
		seen := map[ident.ObjectID]int{}
		failed := 0
		for _, c := range clients {
			for _, x := range c.got[e] {
				seen[x]++
				if seen[x] > 1 || bad[x] || int(x) >= size {
					t.Fatalf("epoch %d: sample %d was given %d times, broken %v", e, x, seen[x], bad[x])
				}
			}
			failed += c.bad[e]
		}
		least := reg.Spec.Dealt()
		if reg.Spec.InStep() {
			least -= (world - 1) * reg.Spec.Slots
			for k, c := range clients {
				if c.full[e] != clients[0].full[e] {
					t.Fatalf("epoch %d: rank 0 got %d batches and rank %d got %d", e, clients[0].full[e], k, c.full[e])
				}
			}
		}
		if got := len(seen) + failed; got > size || got < least {
			t.Fatalf("epoch %d: %d delivered and %d reported of %d, of which %d are dealt", e, len(seen), failed, size,
				reg.Spec.Dealt())
		}
	}
	return restarts, cuts
}

// isCut has a client lose its connection while its daemon lives, perhaps before the daemon sees it, and come back.
func (c *trainee) isCut(g *rig, r *xrand.Rand) {
	g.t.Helper()
	p := c.peer
	if held := g.hold; r.IntN(2) == 0 { // nothing is prepared between this and what comes before and after it
		g.hold = func(e Effect) bool {
			switch e.(type) {
			case Persist, Reply:
				return false
			}
			return true
		}
		defer func() { g.hold = held }()
	}
	again := ident.Incarnation(0)
	if r.IntN(2) == 0 {
		g.step(Detached{Job: p.job, Rank: p.rank, Inc: p.inc, Lives: r.IntN(2) == 0})
		if r.IntN(2) == 0 {
			g.run()
		}
	} else {
		again = p.inc
	}
	a := g.ok(g.ask(func(t Token) Event { return Attach{Token: t, Job: p.job, Rank: p.rank, Held: c.inc, Again: again} }))
	if a.Inc <= c.inc || a.Epoch > c.epoch {
		g.t.Fatalf("rank %d came back as %d after %d, to epoch %d from %d", p.rank, a.Inc, c.inc, a.Epoch, c.epoch)
	}
	c.inc = a.Inc
	c.peer = &peer{r: g, job: p.job, rank: p.rank, inc: a.Inc}
	if r.IntN(4) == 0 { // again, before it has said anything
		c.isCut(g, r)
		return
	}
	from := c.step + 1
	if c.step == 0 && r.IntN(2) == 0 {
		from = 0 // it has not heard that the epoch began
	}
	g.ok(g.ask(func(t Token) Event {
		return StartEpoch{Token: t, Job: p.job, Rank: p.rank, Inc: c.inc, Epoch: c.epoch, From: from}
	}))
	g.check()
	if r.IntN(3) == 0 { // and before it has got anything again
		c.isCut(g, r)
	}
}

// recordedRun is a job of 40 samples, in batches of 4, whose first epoch has begun, and the log of it.
func recordedRun(t *testing.T, change ...func(*Register)) (*rig, *peer, *journaled, Register) {
	t.Helper()
	log := &journaled{incs: map[int]ident.Incarnation{}, before: map[uint32][]ident.ObjectID{}}
	reg := registration(1, "lr", 0, 40, 4, change...)
	g := decodedTier(t, 10)
	g.record = func(p Persist) { log.add(p, reg) }
	g.token = 1
	g.step(reg)
	g.run()
	p := g.attach(g.ok(g.replies[1]).Job, 0)
	p.epoch(0)
	return g, p, log, reg
}

// A batch that was given out comes again with the same samples under the same number, and what was not given out is
// what it would have been: the rest of the subset.
func TestGivenAgainUnderItsNumber(t *testing.T) {
	g, p, log, reg := recordedRun(t, order(dsa.Stratified), slots(4))
	id := p.job
	first := map[int][]ident.ObjectID{}
	for step := range 4 {
		first[step] = g.objects(p.must()) // four are out, none is released
	}
	g2 := decodedTier(t, 10)
	ev := Restore{Register: reg, ID: id, Seed: log.seed, Ranks: []ident.Incarnation{p.inc}, Epochs: log.epochs}
	g2.ok(g2.ask(func(t Token) Event { ev.Token = t; return ev }))
	if j := g2.job(id); j.State != jobs.Suspect || g2.c.needs.sampler.Remaining(id) != 24 {
		t.Errorf("restored as %v with %d samples to go", j.State, g2.c.needs.sampler.Remaining(id))
	}
	refused(t, g2.ask(func(t Token) Event { return Attach{Token: t, Job: id, Held: p.inc, Rank: 7} }), errs.Invalid)
	a := g2.ok(g2.ask(func(t Token) Event { return Attach{Token: t, Job: id, Held: p.inc} }))
	q := &peer{r: g2, job: id, inc: a.Inc}
	refused(t, g2.ask(func(t Token) Event { return StartEpoch{Token: t, Job: id, Inc: q.inc, From: 6} }), errs.Stale,
		"4 batches")
	g2.ok(g2.ask(func(t Token) Event { return StartEpoch{Token: t, Job: id, Inc: q.inc, From: 3} }))
	for step := 2; step < 4; step++ {
		d := q.must()
		if got := g2.objects(d); d.Step != step || !slices.Equal(got, first[step]) {
			t.Errorf("step %d is %v, was %v", d.Step, got, first[step])
		}
		q.release(d)
		g2.run()
	}
	rest := q.drain()
	all := slices.Concat(first[0], first[1], first[2], first[3], rest)
	slices.Sort(all)
	if len(slices.Compact(all)) != 40 {
		t.Errorf("the epoch was %d samples", len(all))
	}
	if e := g2.ends[0]; e.Account == nil || e.Account.State != jobs.Complete || e.Account.Delivered != 40 {
		t.Errorf("the account: %+v", e.Account)
	}
}

// Batches that an earlier daemon sent stay in the recorded order when another client takes the rank: the first client
// may have received them, and states that it saved continue after them.
func TestAnotherClientGivesNothingBack(t *testing.T) {
	for _, begins := range []bool{true, false} {
		g, p, log, reg := recordedRun(t, order(dsa.Stratified), slots(4))
		for range 4 {
			g.objects(p.must())
		}
		g2 := decodedTier(t, 10)
		var returned []Persist
		g2.record = func(x Persist) {
			if back, ok := x.Record.(RecordReturned); ok && back.Epoch == 0 {
				returned = append(returned, x)
			}
		}
		ev := Restore{Register: reg, ID: p.job, Seed: log.seed, Ranks: []ident.Incarnation{p.inc}, Epochs: log.epochs}
		g2.ok(g2.ask(func(t Token) Event { ev.Token = t; return ev }))
		q := g2.attach(p.job, 0)
		if begins {
			q.epoch(1)
			g2.run()
		}
		q.detach(true)
		g2.run()
		if len(returned) != 0 {
			t.Errorf("another client, which begins an epoch: %v, returned %+v", begins, returned)
		}
	}
}

// A client that does not come back loses its job when the lease runs out, as ever; ids are not reused.
func TestRestoredJobHasALease(t *testing.T) {
	g := decodedTier(t, 10)
	reg := registration(0, "lr", 0, 40, 4)
	g.ok(g.ask(func(t Token) Event { return Restore{Register: withToken(reg, t), ID: 9, Ranks: []ident.Incarnation{3}} }))
	refused(t, g.ask(func(t Token) Event { return Restore{Register: withToken(reg, t), ID: 9} }), errs.StateDamaged)
	if w := g.after(11e9); !hasPrefix(w, "job 9 ended") {
		t.Errorf("after the lease: %v", w)
	}
	if id := g.register("next", 0, 10, 2); id != 10 {
		t.Errorf("the next job is %d", id)
	}
}

// The lease of a job runs out when the process of its client has ended, not before: it may not have looked yet.
func TestALivingClientKeepsItsJob(t *testing.T) {
	g := decodedTier(t, 10)
	reg := registration(0, "lr", 0, 40, 4)
	g.ok(g.ask(func(t Token) Event {
		return Restore{Register: withToken(reg, t), ID: 9, Ranks: []ident.Incarnation{3}, Lives: []bool{true}}
	}))
	for range 5 {
		if g.after(11e9); g.job(9).State != jobs.Suspect {
			t.Fatalf("%s though its client lives", g.job(9).State)
		}
	}
	g.step(ClientGone{Job: 9, Inc: 2}) // of an earlier client
	if g.after(11e9); g.job(9).State != jobs.Suspect {
		t.Fatalf("%s because an earlier client ended", g.job(9).State)
	}
	g.step(ClientGone{Job: 9, Inc: 3})
	if g.after(9e9); g.job(9).State != jobs.Suspect {
		t.Errorf("%s before the lease was over", g.job(9).State)
	}
	if w := g.after(2e9); !hasPrefix(w, "job 9 ended") {
		t.Errorf("after the lease: %v", w)
	}
	// The same when its connection ends and its daemon lives.
	a := g.join("cut", 0, 20, 2)
	g.step(Detached{Job: a.job, Inc: a.inc, Lives: true})
	g.after(30e9)
	b := g.ok(g.ask(func(t Token) Event { return Attach{Token: t, Job: a.job, Held: a.inc} }))
	g.step(ClientGone{Job: a.job, Inc: a.inc}) // late news
	g.step(Detached{Job: a.job, Inc: b.Inc})
	if g.after(11e9); g.job(a.job).State != jobs.Dead {
		t.Errorf("%s after the lease of a client whose process is not known to live", g.job(a.job).State)
	}
}

func withToken(r Register, t Token) Register { r.Token = t; return r }

// BenchmarkRestore restores 8 jobs that are in the middle of an epoch of 1.28 million samples and know the one before.
func BenchmarkRestore(b *testing.B) {
	const n, batch = 1_280_000, 256
	order := make([]ident.ObjectID, n)
	for i := range order {
		order[i] = ident.ObjectID(i)
	}
	xrand.New(1).Shuffle(n, func(i, j int) { order[i], order[j] = order[j], order[i] })
	reg := registration(1, "", 0, n, batch, func(e *Register) { e.Sample.Mode = dsa.Stratified })
	reg.Member = Members(reg.Sample.Subset)
	p := RestoredEpoch{Epoch: 1, Instance: 1, Subset: n, Member: reg.Member}
	for step := range n / batch / 2 {
		p.Batches = append(p.Batches, RestoredBatch{Step: step, Objects: order[step*batch : (step+1)*batch]})
	}
	for b.Loop() {
		g := &rig{}
		c, err := New(Config{Seed: 1, Bytes: func(ident.ObjectID) int64 { return 100 }})
		if err != nil {
			b.Fatal(err)
		}
		g.c = c
		for j := range 8 {
			r := reg
			r.Spec.Name = fmt.Sprint("job", j)
			for _, e := range c.Step(g.now, Restore{Register: r, ID: ident.JobID(j + 1), Ranks: []ident.Incarnation{1},
				Before: order, Epochs: []RestoredEpoch{p}}, nil) {
				if rep, ok := e.(Reply); ok && rep.Err != nil {
					b.Fatal(rep.Err)
				}
			}
		}
	}
}
