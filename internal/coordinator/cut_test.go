package coordinator

import (
	"fmt"
	"slices"
	"testing"

	"larder/dsa"
	"larder/internal/ident"
	"larder/jobs"
)

// cut ends the connection of a client whose process lives; it comes back and says which step it needs. Nothing is
// prepared meanwhile.
func (p *peer) cut(epoch uint32, step int) *peer {
	p.r.t.Helper()
	held := p.r.hold
	defer func() { p.r.hold = held }()
	p.r.hold = func(e Effect) bool {
		switch e.(type) {
		case Persist, Reply:
			return false
		}
		return true
	}
	p.r.step(Detached{Job: p.job, Rank: p.rank, Inc: p.inc, Lives: true})
	a := p.r.ok(p.r.ask(func(t Token) Event { return Attach{Token: t, Job: p.job, Rank: p.rank, Held: p.inc} }))
	q := &peer{r: p.r, job: p.job, rank: p.rank, inc: a.Inc}
	p.r.ok(p.r.ask(func(t Token) Event {
		return StartEpoch{Token: t, Job: q.job, Rank: q.rank, Inc: q.inc, Epoch: epoch, From: step + 1}
	}))
	return q
}

// A batch that was sent, and comes again because its connection was cut, is cut again before it is ready: however often
// that happens, it is counted once and none of its samples return to the epoch.
func TestCutsInARowCountABatchOnce(t *testing.T) {
	for _, cuts := range []int{1, 2, 3} {
		t.Run(fmt.Sprint(cuts), func(t *testing.T) {
			r := decodedTier(t, 10)
			returned := 0
			r.record = func(p Persist) {
				if kindOf[RecordReturned](p) {
					returned++
				}
			}
			p := r.join("a", 0, 40, 4, order(dsa.Stratified), slots(4))
			var first [][]ident.ObjectID
			for range 4 {
				first = append(first, r.objects(p.must()))
			}
			for range cuts {
				p = p.cut(0, 1)
			}
			r.run()
			all := slices.Clone(first[0])
			for step := 1; step < 4; step++ {
				d := p.must()
				if got := r.objects(d); d.Step != step || !d.Again || !slices.Equal(got, first[step]) {
					t.Errorf("step %d (again %v) is %v, step %d was %v", d.Step, d.Again, got, step, first[step])
				}
				all = append(all, r.objects(d)...)
				p.release(d)
				r.run()
			}
			all = append(all, p.drain()...)
			slices.Sort(all)
			if n := len(slices.Compact(all)); n != 40 || len(all) != 40 {
				t.Errorf("%d samples, %d of them different, of 40", len(all), n)
			}
			account := r.ends[len(r.ends)-1]
			if account.Samples != 40 || account.Account == nil || account.Account.State != jobs.Complete ||
				account.Account.Delivered != 40 {
				t.Errorf("the account is %+v: %+v", account, account.Account)
			}
			if s := r.job(p.job).Stats; s.Samples != 40 || s.Batches != 10 || returned != 0 {
				t.Errorf("%d samples in %d batches, %d batches were returned", s.Samples, s.Batches, returned)
			}
			r.check()
		})
	}
}

// A client that was cut and leaves in order before it got its batches again had them: the others' epoch does not owe
// them.
func TestWhatWasSentIsNotGivenBackByAClientThatLeaves(t *testing.T) {
	for _, then := range []string{"leaves", "is cut, and another one comes"} {
		t.Run(then, func(t *testing.T) {
			r := decodedTier(t, 10)
			id := r.register("a", 0, 40, 2, order(dsa.Stratified), slots(2), func(e *Register) { e.Spec.World = 2 })
			p, other := r.attach(id, 0), r.attach(id, 1)
			for _, c := range []*peer{p, other} {
				r.ask(func(t Token) Event { return StartEpoch{Token: t, Job: id, Rank: c.rank, Inc: c.inc} })
			}
			p.must()
			p.must()
			p = p.cut(0, 0)
			j := r.job(id)
			before := j.Ledger().Committed()
			r.record = func(p Persist) {
				if p, ok := p.Record.(RecordReturned); ok {
					t.Errorf("step %d of rank %d is returned, and was sent", p.Step, p.Rank)
				}
			}
			if then == "leaves" {
				p.detach(true)
			} else {
				r.step(Detached{Job: id, Inc: p.inc, Lives: true})
				r.ok(r.ask(func(t Token) Event { return Attach{Token: t, Job: id} }))
			}
			r.run()
			j = r.job(id)
			if l := j.Ledger(); l.Committed() != before || l.Delivered != 8 {
				t.Errorf("%d picks are out and %d delivered, %d were out", l.Committed(), l.Delivered, before)
			}
			r.check()
		})
	}
}
