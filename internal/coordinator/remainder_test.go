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

// given is what a token of a job says was handed out: all of what jobs before it had, and the batches below a step.
func (l *journaled) given(epoch uint32, step int) (out []ident.ObjectID) {
	for _, e := range l.epochs {
		if e.Epoch != epoch {
			continue
		}
		out = append(out, e.Earlier...)
		mine := slices.DeleteFunc(slices.Clone(e.Batches), func(b RestoredBatch) bool { return b.Step >= step })
		slices.SortStableFunc(mine, func(a, b RestoredBatch) int { return (a.Step-b.Step)*1000 + a.Rank - b.Rank })
		for _, b := range mine {
			out = append(out, b.Objects...)
		}
	}
	return out
}

// lefts makes what is left of an epoch.
func lefts(sample dsa.JobSpec, epoch, instance uint32, before, previous []ident.ObjectID) *Rest {
	return &Rest{Epoch: epoch, Instance: instance, Before: before, Places: Places(sample, epoch, before),
		Previous: previous}
}

// Jobs die and others continue with what a token says they left, in other batches, on other ranks, again and again in
// one epoch, and daemons die between. What was handed out up to each token and what the last job gets is the subset,
// once; the epoch after it is whole.
func TestResumeChains(t *testing.T) {
	n := lane.Times(120, 400)
	if testing.Short() {
		n = 60
	}
	resumes, deaths := 0, 0
	for seed := range uint64(n) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			a, b := resumeHistory(t, seed)
			resumes, deaths = resumes+a, deaths+b
		})
		if t.Failed() {
			return
		}
	}
	t.Logf("%d histories with %d resumes and %d deaths of daemons", n, resumes, deaths)
	if resumes < 4*n || deaths < n/2 {
		t.Errorf("only %d resumes and %d deaths in %d histories", resumes, deaths, n)
	}
}

func resumeHistory(t *testing.T, seed uint64) (resumes, deaths int) {
	r := xrand.New(seed, 12)
	size := 60 + r.IntN(200)
	mode := dsa.Mode(r.IntN(6))
	onError := jobs.OnError(r.IntN(3))
	bad := map[ident.ObjectID]bool{}
	for range r.IntN(3) {
		bad[ident.ObjectID(r.IntN(size))] = true
	}
	spec := func(world, batch int) func(*Register) {
		return func(e *Register) {
			e.Spec.World, e.Spec.Batch, e.Spec.Slots = world, batch, 2+r.IntN(3)
			e.Sample.Mode, e.Sample.Seed = mode, seed
			// then ranks get their steps together
			e.Spec.OnError, e.Spec.Even = onError, seed%2 == 0 && onError == jobs.Substitute
		}
	}
	var log *journaled
	var reg Register
	var g *rig
	newDaemon := func() {
		g = newRig(t, [ident.NumForms]int64{ident.Decoded: int64(r.IntN(3)) * 10 * sampleBytes})
		g.bad = bad
		g.record = func(p Persist) {
			if of := p.Record.JobID(); of == 1 || of%2 == 1 { // the neighbours are even
				log.add(p, reg)
			}
		}
	}
	log = &journaled{incs: map[int]ident.Incarnation{}, before: map[uint32][]ident.ObjectID{}}
	newDaemon()
	orders := map[uint32][]ident.ObjectID{}
	handed := map[uint32]map[ident.ObjectID]int{}
	failed := map[uint32]int{}
	type taken struct {
		step, bad int
		objects   []ident.ObjectID
	}
	count := func(epoch uint32, b taken) {
		if handed[epoch] == nil {
			handed[epoch] = map[ident.ObjectID]int{}
		}
		for _, x := range b.objects {
			handed[epoch][x]++
		}
		failed[epoch] += b.bad
	}
	const epochs = 3
	var rest *Rest
	epoch, job := uint32(0), ident.JobID(1)
	for attempt := 0; ; attempt++ {
		if attempt > 200 {
			t.Fatal("no end")
		}
		world, batch := 1+r.IntN(3), 1+r.IntN(7)
		reg = registration(0, fmt.Sprint("lr", attempt), 0, size, batch, spec(world, batch))
		reg.Rest = rest
		if rest != nil && len(rest.Before) == size { // nothing is left: the script continues with the next epoch
			epoch++
			reg.Rest = lefts(reg.Sample, epoch, epoch, nil, orders[epoch-1])
		}
		if epoch == epochs {
			break
		}
		*log = journaled{incs: map[int]ident.Incarnation{}, before: map[uint32][]ident.ObjectID{}}
		g.ok(g.ask(func(t Token) Event { return withToken(reg, t) }))
		if attempt == 0 && r.IntN(2) == 0 {
			g.ok(g.ask(func(t Token) Event {
				return registration(t, "neighbour", size/2, size+20, 4, func(e *Register) { e.Sample.Mode = dsa.Epoch })
			}))
		} else {
			k := g.ok(g.ask(func(t Token) Event { return registration(t, fmt.Sprint("idle", attempt), 0, size, 4) })).Job
			g.ok(g.ask(func(t Token) Event { return Kill{Token: t, Job: k} }))
		}
		var peers []*peer
		attach := func(held []ident.Incarnation, step []int) {
			peers = nil
			for k := range world {
				ev := Attach{Job: job, Rank: k}
				from := 0
				if held != nil {
					ev.Held, from = held[k], step[k]+1
				}
				a := g.ok(g.ask(func(t Token) Event { ev.Token = t; return ev }))
				if held == nil && reg.Rest != nil && (a.Epoch != epoch || !a.Rest) {
					t.Fatalf("epoch %d is to be continued, rest %v", a.Epoch, a.Rest)
				}
				peers = append(peers, &peer{r: g, job: job, rank: k, inc: a.Inc})
				g.ok(g.ask(func(t Token) Event {
					return StartEpoch{Token: t, Job: job, Rank: k, Inc: a.Inc, Epoch: epoch, From: from}
				}))
			}
		}
		attach(nil, nil)
		steps := make([]int, world)
		stop := r.IntN(6) // steps before it dies
		if attempt > 40 {
			stop = 1 << 30
		}
		idle := 0
		var held []taken // some of them beyond what every rank has had
		for idle < 3 {
			if r.IntN(30) == 0 && deaths < 3 { // the daemon dies in the middle of it
				deaths++
				incs := make([]ident.Incarnation, world)
				for k, p := range peers {
					incs[k] = p.inc
				}
				newDaemon()
				ev := Restore{Register: withToken(reg, 0), ID: job, Seed: log.seed, Bad: slices.Clone(log.bad), Ranks: incs}
				ev.Rest = nil
				for _, e := range log.epochs {
					if e.Rest {
						e.Member = Members(reg.Sample.Subset)
						for _, x := range e.Earlier {
							e.Member.Remove(uint32(x))
						}
						if rest := reg.Rest; len(e.Earlier) < len(rest.Before) { // it had not got as far as to draw
							ev.Rest = rest
							continue
						}
						e.Subset, e.Places = e.Member.Len(), Places(reg.Sample, e.Epoch, e.Earlier)
					}
					ev.Epochs = append(ev.Epochs, e)
				}
				if len(log.epochs) == 0 {
					ev.Rest = reg.Rest
				}
				g.ok(g.ask(func(t Token) Event { ev.Token = t; return ev }))
				g.c.Reserve(job + 1)
				attach(incs, steps)
				idle = 0
				continue
			}
			g.run()
			for g.c.Deadline().Equal(g.now) { // as the loop does
				g.after(0)
			}
			moved := false
			for k, p := range peers {
				if steps[k] >= stop {
					continue
				}
				if d := p.next(); d != nil {
					if d.Epoch != epoch || d.Step != steps[k] {
						t.Fatalf("rank %d got epoch %d step %d, and epoch %d step %d is next", k, d.Epoch, d.Step, epoch, steps[k])
					}
					held = append(held, taken{d.Step, len(d.Bad), g.objects(d)})
					steps[k]++
					p.release(d)
					moved = true
				}
			}
			idle++
			if moved {
				idle = 0
			}
		}
		// Every rank has had all that it gets, or stop batches. The token says the least of them, as a training that
		// synchronises would.
		at := slices.Min(steps)
		whole := reg.Spec
		if reg.Rest != nil {
			whole.Subset = size - len(reg.Rest.Before)
		}
		most := 0
		for k := range world {
			most = max(most, whole.Batches(k))
		}
		if slices.Max(steps) == most { // the epoch is over
			at = most
		}
		for _, b := range held {
			if b.step < at {
				count(epoch, b)
			}
		}
		before := log.given(epoch, at)
		dropped := 0 // the next job has that
		if reg.Spec.Even {
			dropped = (world - 1) * (1 + reg.Spec.Slots)
		}
		if at == most && (len(before) > size || len(before) < size-dropped) {
			t.Fatalf("epoch %d was %d of %d samples", epoch, len(before), size)
		}
		if at == most {
			orders[epoch] = before
		}
		instance := uint32(0)
		for _, e := range log.epochs {
			if e.Epoch == epoch {
				instance = e.Instance
			}
		}
		if instance != epoch {
			t.Fatalf("epoch %d has instance %d", epoch, instance)
		}
		rest = lefts(reg.Sample, epoch, instance, before, orders[max(epoch, 1)-1])
		resumes++
		for _, p := range peers {
			p.detach(false)
		}
		g.ok(g.ask(func(t Token) Event { return Kill{Token: t, Job: job, Reason: "it died"} }))
		g.run()
		g.check()
		job += 2
	}
	for e := range uint32(epochs) {
		for x, k := range handed[e] {
			if k != 1 || bad[x] || int(x) >= size {
				t.Fatalf("epoch %d: sample %d was handed out %d times", e, x, k)
			}
		}
		if got := len(handed[e]) + failed[e]; got != size {
			t.Fatalf("epoch %d: %d handed out and %d reported of %d", e, len(handed[e]), failed[e], size)
		}
		if mode == dsa.Fixed && len(bad) == 0 {
			want := dsa.FixedOrder(nil, seed, e, size)
			for i, x := range orders[e] {
				if uint32(x) != want[i] {
					t.Fatalf("epoch %d has another order from position %d on", e, i)
				}
			}
		}
	}
	return resumes, deaths
}

// A job was to continue with the remainder of an epoch, and its client loads no state: the client gets the next epoch,
// whole. Ranks that do not agree are refused.
func TestRemainderIsNotRequested(t *testing.T) {
	g := decodedTier(t, 10)
	reg := registration(0, "a", 0, 40, 4, func(e *Register) { e.Spec.World, e.Sample.Mode = 2, dsa.Stratified })
	reg.Rest = lefts(reg.Sample, 3, 3, reg.Sample.Subset[:10], nil)
	id := g.ok(g.ask(func(t Token) Event { return withToken(reg, t) })).Job
	if j := g.job(id); j.Spec.Subset != 30 {
		t.Errorf("%d samples are left", j.Spec.Subset)
	}
	p, q := g.attach(id, 0), g.attach(id, 1)
	p.epoch(3)
	refused(t, q.tryEpoch(4), errs.Stale, "load the same state_dict")
	p.epoch(4)
	q.epoch(4)
	var all []ident.ObjectID
	for range 10 {
		all = append(append(all, p.drain()...), q.drain()...)
	}
	slices.Sort(all)
	if len(slices.Compact(all)) != 40 {
		t.Errorf("the epoch was %d samples", len(all))
	}
}

// Fewer samples are left of an epoch than there are ranks: ranks without a sample get the end of the epoch, and the
// next epoch begins for all.
func TestFewerThanRanksAreLeft(t *testing.T) {
	g := decodedTier(t, 10)
	reg := registration(0, "a", 0, 40, 4, func(e *Register) { e.Spec.World, e.Sample.Mode = 4, dsa.Epoch })
	reg.Rest = lefts(reg.Sample, 0, 0, reg.Sample.Subset[:38], nil)
	id := g.ok(g.ask(func(t Token) Event { return withToken(reg, t) })).Job
	var peers []*peer
	for k := range 4 {
		peers = append(peers, g.attach(id, k))
		peers[k].epoch(0)
	}
	var got []ident.ObjectID
	for _, p := range peers {
		got = append(got, p.drain()...)
	}
	if len(got) != 2 || len(g.ends) != 4 {
		t.Fatalf("%d samples, %d ranks got the end", len(got), len(g.ends))
	}
	for _, e := range g.ends {
		if want := 1; e.Rank >= 2 {
			want = 0
			if e.Batches != want {
				t.Errorf("rank %d: %d batches", e.Rank, e.Batches)
			}
		} else if e.Batches != want {
			t.Errorf("rank %d: %d batches", e.Rank, e.Batches)
		}
	}
	for _, p := range peers {
		p.epoch(1)
	}
	got = nil
	for range 4 {
		for _, p := range peers {
			got = append(got, p.drain()...)
		}
	}
	slices.Sort(got)
	if len(slices.Compact(got)) != 40 {
		t.Errorf("the next epoch was %d samples", len(got))
	}
}

// A job with given orders has each epoch as it is given, in its instance, and no other epoch.
func TestScript(t *testing.T) {
	g := decodedTier(t, 10)
	reg := registration(0, "a", 0, 20, 4)
	orders := map[uint32][]ident.ObjectID{}
	for e, n := range map[uint32]int{2: 20, 3: 12, 4: 20} {
		list := slices.Clone(reg.Sample.Subset)
		xrand.New(uint64(e), 5).Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		orders[e] = list[:n]
	}
	for e := uint32(2); e <= 4; e++ {
		reg.Script = append(reg.Script, Scripted{Epoch: e, Instance: 10 * e, Objects: orders[e], Member: Members(orders[e])})
	}
	reg.Sample.Subset, reg.Member, reg.Spec.Subset = orders[2], nil, 20
	id := g.ok(g.ask(func(t Token) Event { return withToken(reg, t) })).Job
	p := g.attach(id, 0)
	refused(t, p.tryEpoch(0), errs.JobEnded, "epochs 2 to 4")
	for _, e := range []uint32{2, 3, 4} {
		p.epoch(e)
		if got := p.drain(); !slices.Equal(got, orders[e]) {
			t.Errorf("epoch %d: %v, want %v", e, got, orders[e])
		}
		if j := g.job(id); j.Epoch == e && j.Epoch+j.Offset != 10*e {
			t.Errorf("epoch %d has instance %d", e, j.Epoch+j.Offset)
		}
	}
	refused(t, p.tryEpoch(5), errs.JobEnded)
}
