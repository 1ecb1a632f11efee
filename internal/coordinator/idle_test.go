package coordinator

import (
	"slices"
	"testing"
	"time"

	"larder/dsa"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/testenv"
	"larder/internal/xrand"
	"larder/jobs"
)

func idleAfter(d time.Duration) func(*Config) { return func(c *Config) { c.IdleTimeout = d } }

// A client that leaves its batches alone is live until the timeout is over, then its job is suspect, another client may
// take the rank, and what the silent one still says counts for nothing. Without another client the job is dead when the
// lease is over. Its neighbour keeps its picks and its epoch.
func TestASilentClientLosesItsRank(t *testing.T) {
	r := newRig(t, [ident.NumForms]int64{ident.Decoded: 40 * sampleBytes}, idleAfter(time.Minute))
	a := r.join("a", 0, 20, 2, func(e *Register) { e.Sample.Mode = dsa.Stratified })
	b := r.join("b", 0, 20, 2, func(e *Register) { e.Sample.Mode = dsa.Stratified })
	first := r.objects(b.must())
	held := a.must()
	var seen []ident.ObjectID
	for range 59 { // the neighbour is not silent
		if d := b.next(); d != nil {
			seen = append(seen, r.objects(d)...)
			b.release(d)
		}
		r.after(time.Second)
	}
	if r.job(a.job).State != jobs.Live || len(r.closed) > 0 {
		t.Fatalf("%s before the timeout: %v", r.job(a.job).State, r.closed)
	}
	r.after(time.Second)
	var lost []CloseRank
	for _, x := range r.closed {
		if x.Job == a.job {
			lost = append(lost, x)
		}
	}
	if len(lost) != 1 || !lost[0].Stale || lost[0].Inc != a.inc || lost[0].Reason == "" ||
		r.job(a.job).State != jobs.Suspect {
		t.Fatalf("%s after the timeout: %v", r.job(a.job).State, lost)
	}
	if r.c.needs.sampler.Remaining(a.job) != 20 && r.job(a.job).Active() {
		t.Error("it counts as needing something")
	}
	// What it says when it wakes.
	r.expect(a.release(held))
	refused(t, a.tryEpoch(1), errs.Stale, "lost its rank")
	r.expect(a.detach(true))
	refused(t, r.ask(func(tok Token) Event { return Attach{Token: tok, Job: b.job, Rank: 0} }), errs.RankHeld)
	next := r.attach(a.job, 0)
	if next.inc != a.inc+1 || r.job(a.job).State != jobs.Live {
		t.Errorf("incarnation %d after %d, %s", next.inc, a.inc, r.job(a.job).State)
	}
	refused(t, r.ask(func(tok Token) Event { return Attach{Token: tok, Job: a.job, Rank: 0, Held: a.inc} }), errs.Stale)
	next.epoch(1)
	if got := next.drain(); len(got) != 20 {
		t.Errorf("its successor has %d samples", len(got))
	}
	// The neighbour: nothing lost, nothing twice, no other slot than its own.
	seen = append(append(seen, first...), b.drain()...)
	slices.Sort(seen)
	if len(seen) < 20 || r.job(b.job).State == jobs.Dead {
		t.Errorf("the neighbour has %d samples, %s", len(seen), r.job(b.job).State)
	}
	r.after(time.Minute)
	r.after(11 * time.Second)
	if j := r.job(a.job); j.State != jobs.Dead {
		t.Errorf("%s after another silence and the lease", j.State)
	}
	r.check()
}

// A client that waits for the daemon, for other ranks or for the end of a pause is not silent. Without a timeout no
// client is.
func TestWaitingIsNoSilence(t *testing.T) {
	sizes := [ident.NumForms]int64{ident.Decoded: 40 * sampleBytes}
	r := newRig(t, sizes, idleAfter(time.Minute))
	r.hold = is[*Fill]
	a := r.join("a", 0, 4, 2)
	r.after(time.Hour)
	r.hold = nil
	r.run()
	if r.job(a.job).State != jobs.Live {
		t.Error("it waited for its batches")
	}
	r.after(time.Minute - 1) // its time begins with the batch
	if r.job(a.job).State != jobs.Live {
		t.Error("it had its batch for less than the timeout")
	}
	r.after(1)
	if r.job(a.job).State != jobs.Suspect {
		t.Error("it has its batch and is silent")
	}

	r = newRig(t, sizes, idleAfter(time.Minute))
	id := r.register("two", 0, 200, 2, ranks(2))
	x, y := r.attach(id, 0), r.attach(id, 1)
	x.epoch(0)
	y.epoch(0)
	x.drain()
	r.ask(func(tok Token) Event { return StartEpoch{Token: tok, Job: id, Rank: 0, Inc: x.inc, Epoch: 1} })
	for range 40 {
		y.release(y.must())
		r.run()
		r.after(30 * time.Second)
	}
	if k := r.job(id).Ranks[0]; !k.Attached() {
		t.Error("it waited for the other rank")
	}

	r = newRig(t, sizes, idleAfter(time.Minute))
	p := r.join("p", 0, 8, 2)
	r.ok(r.ask(func(tok Token) Event { return Pause{Token: tok, Job: p.job, On: true} }))
	r.after(time.Hour)
	if r.job(p.job).State != jobs.Live {
		t.Error("its job was paused")
	}
	r.ok(r.ask(func(tok Token) Event { return Pause{Token: tok, Job: p.job} }))
	r.after(time.Minute - 1)
	if r.job(p.job).State != jobs.Live {
		t.Error("its job was paused until a moment ago")
	}

	r = newRig(t, sizes)
	q := r.join("q", 0, 8, 2)
	r.after(1000 * time.Hour)
	if r.job(q.job).State != jobs.Live {
		t.Error("there is no timeout")
	}
}

// Names registered twice, ranks attached twice, by any client, with any incarnation; clients of yesterday that release,
// ask and leave; silence and leases that run out; daemons that begin again. There is one holder of a rank at a time,
// incarnations of a name only rise, every request gets one answer, and the others of the rank a typed one. LARDER_STALE
// is how many histories are tried.
func TestStaleClients(t *testing.T) {
	n := testenv.Count(t, "LARDER_STALE", 100)
	answers := map[errs.Reason]int{}
	for seed := range uint64(n) {
		staleHistory(t, xrand.New(seed, 17), answers)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	for _, want := range []errs.Reason{"", errs.AlreadyExists, errs.RankHeld, errs.Stale, errs.JobEnded} {
		if answers[want] == 0 {
			t.Errorf("no client got the error %q: %v", want, answers)
		}
	}
	t.Logf("nightly: %d histories, answers: %v", n, answers)
}

func staleHistory(t *testing.T, rnd *xrand.Rand, answers map[errs.Reason]int) {
	t.Helper()
	r := newRig(t, [ident.NumForms]int64{ident.Decoded: 30 * sampleBytes}, idleAfter(20*time.Second))
	names := []string{"a", "b"}
	holder := map[string]*peer{}             // by name: the client that holds rank 0
	newest := map[string]ident.Incarnation{} // by name: the highest that a client had
	var all []*peer
	name := map[*peer]string{}
	witness := r.join("witness", 0, 12, 3, func(e *Register) { e.Sample.Mode = dsa.Stratified })
	epoch, had := uint32(0), 0
	taken := func() { // the neighbour is served whatever they do
		if d := witness.next(); d != nil {
			had += len(d.Rows)
			witness.release(d)
			r.run()
			return
		}
		if had != 12 {
			t.Errorf("epoch %d of the neighbour had %d samples", epoch, had)
		}
		epoch, had = epoch+1, 0
		witness.epoch(epoch)
	}
	note := func(rep Reply) Reply {
		reason := errs.Reason("")
		if rep.Err != nil {
			reason = errs.From(rep.Err).Reason
		}
		answers[reason]++
		return rep
	}
	jobOf := map[string]ident.JobID{}
	for range 60 {
		who := names[rnd.IntN(len(names))]
		switch rnd.IntN(9) {
		case 0:
			rep := note(r.ask(func(tok Token) Event { return registration(tok, who, 0, 12, 1+rnd.IntN(3)) }))
			if live := jobOf[who] != 0 && !r.job(jobOf[who]).State.Ended(); live != (rep.Err != nil) {
				t.Errorf("register %s, of which one lives: %v: %v", who, live, rep.Err)
			}
			if rep.Err == nil {
				jobOf[who] = rep.Job
			}
		case 1, 2:
			if jobOf[who] == 0 {
				continue
			}
			held := ident.Incarnation(0)
			if rnd.IntN(3) == 0 {
				held = ident.Incarnation(rnd.IntN(int(newest[who]) + 2))
			}
			h, ended := holder[who], r.job(jobOf[who]).State.Ended()
			rep := note(r.ask(func(tok Token) Event { return Attach{Token: tok, Job: jobOf[who], Rank: 0, Held: held} }))
			switch {
			case ended:
				if rep.Err == nil {
					t.Errorf("attached to a job that has ended")
				}
			case rep.Err == nil && h != nil:
				t.Errorf("%s has two holders", who)
			case rep.Err == nil && rep.Inc <= newest[who]:
				t.Errorf("incarnation %d of %s after %d", rep.Inc, who, newest[who])
			case rep.Err == nil && held != 0 && held < newest[who]:
				t.Errorf("incarnation %d of %s came back after %d", held, who, newest[who])
			case rep.Err == nil:
				newest[who] = rep.Inc
				p := &peer{r: r, job: jobOf[who], inc: rep.Inc}
				holder[who], name[p] = p, who
				all = append(all, p)
			case h == nil && (held == 0 || held >= newest[who]):
				t.Errorf("no client has %s, and incarnation %d is refused: %v", who, held, rep.Err)
			}
		case 3, 4, 5, 6:
			if len(all) == 0 {
				continue
			}
			p := all[rnd.IntN(len(all))]
			holds := holder[name[p]] == p
			switch rnd.IntN(3) {
			case 0:
				e := uint32(rnd.IntN(30))
				if rep := note(p.tryEpoch(e)); !holds && !errs.Is(rep.Err, errs.Stale) && !errs.Is(rep.Err, errs.JobEnded) {
					t.Errorf("a client of yesterday begins an epoch: %v", rep.Err)
				}
			case 1:
				if words := p.r.step(Released{Job: p.job, Inc: p.inc, Slot: rnd.IntN(3), Gen: uint64(rnd.IntN(6))}); !holds &&
					len(words) > 0 {
					t.Errorf("a client of yesterday releases: %v", words)
				}
			case 2:
				if words := p.detach(rnd.IntN(2) == 0); !holds && len(words) > 0 {
					t.Errorf("a client of yesterday leaves: %v", words)
				}
				if holds {
					delete(holder, name[p])
				}
			}
			r.run()
		case 7:
			r.after(time.Duration(rnd.IntN(12)) * time.Second)
		case 8:
			if p := holder[who]; p != nil {
				if d := p.next(); d != nil && rnd.IntN(2) == 0 {
					p.release(d)
					r.run()
				}
			}
		}
		for _, who := range names { // who lost the rank, or its job
			if p := holder[who]; p != nil {
				if s, _ := r.c.roster.live(p.job, 0, p.inc); s == nil {
					delete(holder, who)
				}
			}
		}
		taken()
	}
	for range 6 {
		taken()
	}
	r.check()
}
