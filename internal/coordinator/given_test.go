package coordinator

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"larder/dsa"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/xrand"
	"larder/jobs"
)

func asGiven(e *Register) { e.Spec.Given, e.Spec.Advance = true, jobs.OnRequest }

// give sends the next batches of an index stream.
func (p *peer) give(epoch uint32, first int, end bool, batches ...[]ident.ObjectID) Reply {
	p.r.t.Helper()
	return p.r.ask(func(t Token) Event {
		return Picks{Token: t, Job: p.job, Rank: p.rank, Inc: p.inc, Epoch: epoch, First: first, Batches: batches, End: end}
	})
}

func batchesOf(size int, ids ...ident.ObjectID) [][]ident.ObjectID {
	return slices.Collect(slices.Chunk(ids, size))
}

// stream gives a whole epoch, as its client would: as far ahead as it may, and more with each batch that it gets.
func (p *peer) stream(epoch uint32, batches [][]ident.ObjectID) (got []ident.ObjectID) {
	p.r.t.Helper()
	p.epoch(epoch)
	most := p.r.job(p.job).Spec.StreamAhead()
	sent := 0
	for done := 0; ; done++ {
		if to := min(len(batches), done+most); to > sent || sent == 0 {
			p.r.ok(p.give(epoch, sent, to == len(batches), batches[sent:to]...))
			sent = to
		}
		d := p.next()
		if d == nil {
			return got
		}
		got = append(got, p.r.objects(d)...)
		p.release(d)
		p.r.run()
	}
}

// A client that says which samples come gets exactly those, repeats and all, each time as another instance.
func TestGivenOrder(t *testing.T) {
	r := decodedTier(t, 8)
	p := r.attach(r.register("a", 0, 10, 4, asGiven), 0)
	type taken struct {
		x        ident.ObjectID
		instance uint32
	}
	seen := map[taken]bool{}
	for epoch := range uint32(3) {
		rng := xrand.New(7, uint64(epoch))
		var ids []ident.ObjectID
		for range 41 {
			ids = append(ids, ident.ObjectID(rng.IntN(4)*rng.IntN(4)))
		}
		from := len(r.got)
		if got := p.stream(epoch, batchesOf(4, ids...)); !slices.Equal(got, ids) {
			t.Fatalf("epoch %d: got %v, want %v", epoch, got, ids)
		}
		for _, d := range r.got[from:] {
			for _, i := range d.Rows {
				f := r.rows[d.Delivery][i]
				if k := (taken{f.Object, f.Instance}); seen[k] {
					t.Fatalf("object %d came twice as instance %d", f.Object, f.Instance)
				} else {
					seen[k] = true
				}
			}
		}
		end := r.ends[len(r.ends)-1]
		if end.Batches != 11 || end.Samples != 41 || end.Account == nil || end.Account.State != jobs.Complete ||
			end.Account.Subset != 41 || end.Account.Delivered != 41 {
			t.Fatalf("epoch %d ended as %+v, with the account %+v", epoch, end, end.Account)
		}
		r.check()
	}
	if len(r.ends) != 3 {
		t.Errorf("%d ends of 3 epochs", len(r.ends))
	}
}

// An epoch takes as many instances as its most frequent sample has picks, however long it is, also where a daemon that
// died goes on with it: there are 2^32 of them, and an epoch may have a billion picks.
func TestGivenInstances(t *testing.T) {
	r, p, log, reg := recordedRun(t, asGiven, slots(3))
	c := &streamer{t: t, r: r, reg: reg, log: log, peer: p, instances: map[ident.ObjectID]map[uint32][2]int{}}
	all := []ident.ObjectID{0, 1, 2, 3, 4, 5, 6, 7, 8}
	newest := uint32(0)
	for c.epoch = range uint32(5) {
		c.batches, c.got, c.step, c.sent, c.held = batchesOf(4, all...), nil, 0, 0, nil
		if c.epoch == 2 {
			c.batches = append(c.batches, batchesOf(4, 7, 7, 7)...)
		}
		if c.epoch > 0 {
			c.peer.epoch(c.epoch)
			c.peer.seen = len(c.r.got)
		}
		for died := false; c.step < len(c.batches); {
			c.tell()
			c.r.run()
			if !c.take() {
				t.Fatalf("epoch %d: nothing comes after step %d", c.epoch, c.step)
			}
			if !died && c.step == 2 {
				died = true
				c.dies(nil)
			}
		}
		for c.take() {
		}
		for _, at := range c.instances {
			for instance := range at {
				newest = max(newest, instance)
			}
		}
		if want := []uint32{0, 1, 5, 6, 7}[c.epoch]; newest != want {
			t.Fatalf("after epoch %d the newest instance is %d, want %d", c.epoch, newest, want)
		}
	}
}

// An epoch may have no batch at all, and its end may be said later than its last batch.
func TestGivenEnds(t *testing.T) {
	r := decodedTier(t, 8)
	p := r.attach(r.register("a", 0, 10, 4, asGiven), 0)
	if got := p.stream(0, nil); len(got) != 0 || len(r.ends) != 1 {
		t.Fatalf("an empty epoch gave %v and ended %d times", got, len(r.ends))
	}
	p.epoch(1)
	r.ok(p.give(1, 0, false, batchesOf(4, 9, 9, 9)...))
	if got := p.drain(); !slices.Equal(got, []ident.ObjectID{9, 9, 9}) || len(r.ends) != 1 {
		t.Fatalf("got %v, %d ends", got, len(r.ends))
	}
	if f := r.job(p.job).Facts[0]; f.Progress != jobs.AwaitsPicks ||
		!strings.Contains(jobs.WaitOf(f, jobs.Machine{}).Text, "which samples come next") {
		t.Errorf("it waits for %+v", jobs.WaitOf(f, jobs.Machine{}))
	}
	r.ok(p.give(1, 1, true))
	if len(r.ends) != 2 || r.ends[1].Batches != 1 {
		t.Errorf("the ends are %+v", r.ends)
	}
}

// What a client must not send is refused, and changes nothing.
func TestGivenRefuses(t *testing.T) {
	r := decodedTier(t, 8)
	p := r.attach(r.register("a", 0, 10, 2, asGiven), 0)
	most := r.job(p.job).Spec.StreamAhead()
	all := slices.Repeat(batchesOf(2, 1, 1), most+4)
	refused := func(what string, reply Reply, reason errs.Reason) {
		t.Helper()
		f, ok := errors.AsType[*errs.Error](reply.Err)
		if !ok || f.Reason != reason {
			t.Errorf("%s: %v", what, reply.Err)
		}
		r.check()
	}
	refused("before the epoch", p.give(0, 0, false, all[0]), errs.Protocol)
	p.epoch(0)
	refused("of another epoch", p.give(1, 0, false, all[0]), errs.Protocol)
	refused("too many", p.give(0, 0, false, all[:most+1]...), errs.Protocol)
	refused("a gap", p.give(0, 1, false, all[0]), errs.Protocol)
	refused("a sample outside", p.give(0, 0, false, batchesOf(2, 3, 10)...), errs.Invalid)
	r.ok(p.give(0, 0, false, all[:3]...))
	r.ok(p.give(0, 1, false, all[:4]...)) // two of them are known
	refused("an end that was passed", p.give(0, 0, true, all[0]), errs.Protocol)
	r.ok(p.give(0, 5, true))
	r.ok(p.give(0, 4, true, all[0]))
	refused("more behind the end", p.give(0, 5, false, all[0]), errs.Protocol)
	refused("another end", p.give(0, 4, true), errs.Protocol)
	if got := p.drain(); len(got) != 10 || len(r.ends) != 1 {
		t.Errorf("%d samples and %d ends", len(got), len(r.ends))
	}
	q := r.join("b", 0, 10, 2)
	refused("for a job with an order", q.give(0, 0, false, all[0]), errs.Protocol)
	for _, change := range []func(*Register){
		func(e *Register) { e.Spec.World = 2 },
		func(e *Register) { e.Spec.OnError = jobs.Substitute },
		func(e *Register) { e.Spec.DropLast = true },
	} {
		refused("a spec", r.ask(func(t Token) Event {
			return registration(t, "c", 0, 10, 2, asGiven, change)
		}), errs.Unsupported)
	}
}

// beside runs two jobs with orders of their own for two epochs, and returns what they got and what was done for them.
func beside(t *testing.T, mode dsa.Mode, tier, given int) (orders [2][]ident.ObjectID, done [2]jobs.Stats) {
	r := decodedTier(t, tier)
	inMode := func(e *Register) { e.Sample.Mode, e.Sample.Seed = mode, 3 }
	a := r.attach(r.register("a", 0, 60, 5, inMode), 0)
	b := r.attach(r.register("b", 20, 80, 5, inMode), 0)
	var g *peer
	if given > 0 {
		g = r.attach(r.register("g", 0, 80, 4, asGiven), 0)
	}
	rng := xrand.New(5, 6)
	for epoch := range uint32(2) {
		a.epoch(epoch)
		b.epoch(epoch)
		if g != nil {
			g.epoch(epoch)
		}
		for step := 0; ; step++ {
			more := false
			for i, p := range []*peer{a, b} {
				if d := p.next(); d != nil {
					more = true
					orders[i] = append(orders[i], r.objects(d)...)
					p.release(d)
					r.run()
				}
			}
			for range given {
				var ids []ident.ObjectID
				for range 4 {
					ids = append(ids, ident.ObjectID(rng.IntN(20)+rng.IntN(2)*60))
				}
				if g != nil && more {
					r.ok(g.give(epoch, r.job(g.job).Ranks[0].Step, false, ids))
					if d := g.next(); d != nil {
						g.release(d)
						r.run()
					}
				}
			}
			if !more {
				break
			}
		}
	}
	for i, p := range []*peer{a, b} {
		done[i] = r.job(p.job).Stats
	}
	return orders, done
}

// No order of another job depends on an index stream: with one beside them, jobs get the very samples in the very order
// that they get without. An index stream may save them work by what it has decoded; it never costs them any.
func TestGivenReachesNoOrder(t *testing.T) {
	for _, mode := range []dsa.Mode{dsa.Stratified, dsa.Epoch, dsa.Strict, dsa.Fixed, dsa.Sequential} {
		for _, tier := range []int{0, 20, 80} {
			t.Run(fmt.Sprintf("%s in %d", mode, tier), func(t *testing.T) {
				alone, did := beside(t, mode, tier, 0)
				with, does := beside(t, mode, tier, 2)
				for i := range alone {
					if len(alone[i]) != 120 || !slices.Equal(alone[i], with[i]) {
						t.Errorf("job %d got other samples, or in another order:\n%v\n%v", i, alone[i], with[i])
					}
				}
				decodes := func(s [2]jobs.Stats) uint64 { return s[0].Decodes + s[1].Decodes }
				if decodes(does) > decodes(did) {
					t.Errorf("%d decodes instead of %d", decodes(does), decodes(did))
				}
			})
		}
	}
}

// A job that advances on request has nothing of its next epoch before its client asks for it, and then all of it.
func TestEpochsBeginOnRequest(t *testing.T) {
	for _, advance := range []jobs.Advance{jobs.Early, jobs.OnRequest} {
		r := decodedTier(t, 0)
		p := r.join("a", 0, 10, 2, order(dsa.Stratified), func(e *Register) { e.Spec.Advance = advance })
		for epoch := range uint32(3) {
			if epoch > 0 {
				p.epoch(epoch)
			}
			if got := p.drain(); len(got) != 10 {
				t.Errorf("epoch %d gave %v", epoch, got)
			}
			ahead := len(r.prepares) - 10*int(epoch+1)
			if (ahead > 0) != (advance == jobs.Early) {
				t.Errorf("advance %d: after epoch %d, %d samples of the next one were prepared", advance, epoch, ahead)
			}
		}
	}
}
