package coordinator

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"larder/dsa"
	"larder/internal/ident"
	"larder/internal/testenv/lane"
	"larder/internal/xrand"
	"larder/jobs"
)

// inStep makes a job whose ranks get their steps together.
func inStep(world, slots int, mode dsa.Mode) func(*Register) {
	return func(e *Register) {
		e.Spec.World, e.Spec.Slots, e.Spec.Even, e.Spec.OnError = world, slots, true, jobs.Substitute
		e.Sample.Mode, e.Sample.Seed = mode, 5
	}
}

// spoil makes samples bad: none, any share, all, a run of neighbours, or those of one rank in the order of the dataset.
func spoil(r *xrand.Rand, s *jobs.Spec, bad map[ident.ObjectID]bool) {
	switch r.IntN(5) {
	case 0:
		for range r.IntN(2 * s.Subset) {
			bad[ident.ObjectID(r.IntN(s.Subset))] = true
		}
	case 1:
		for x := range s.Subset {
			bad[ident.ObjectID(x)] = true
		}
	case 2:
		from := r.IntN(s.Subset)
		for x := from; x < min(from+1+r.IntN(s.Subset), s.Subset); x++ {
			bad[ident.ObjectID(x)] = true
		}
	case 3:
		rank := r.IntN(s.World)
		for step := range s.Batches(rank) {
			for i := range s.Rows(rank, step) {
				bad[ident.ObjectID(s.Position(rank, step)+i)] = true
			}
		}
	}
}

// both are the ranks of a job, in its first epoch.
func both(r *rig, id ident.JobID, world int) []*peer {
	r.t.Helper()
	var out []*peer
	for k := range world {
		out = append(out, r.attach(id, k))
	}
	for _, p := range out {
		r.token++
		r.step(StartEpoch{Token: r.token, Job: id, Rank: p.rank, Inc: p.inc})
	}
	r.run()
	return out
}

// count takes all batches, in turn, and counts those of an epoch that have samples.
func count(r *rig, peers []*peer, epoch uint32) (full []int, seen []ident.ObjectID) {
	r.t.Helper()
	full = make([]int, len(peers))
	for more := true; more; {
		more = false
		for k, p := range peers {
			d := p.next()
			if d == nil {
				continue
			}
			more = true
			if d.Epoch == epoch {
				full[k] += min(len(d.Rows), 1)
				seen = append(seen, r.objects(d)...)
			}
			p.release(d)
			r.run()
		}
	}
	return full, seen
}

func TestRanksGetEquallyManyBatches(t *testing.T) {
	odd := func(x int) bool { return x%2 == 1 }
	for _, x := range []struct {
		name                      string
		size, world, batch, slots int
		bad                       func(int) bool
		batches                   [2]int // of each rank, in the first and the second epoch
		dropped                   int
	}{
		{"none is bad", 40, 2, 4, 3, func(int) bool { return false }, [2]int{5, 5}, 0},
		// 35 left, in 5 steps
		{"five of forty", 40, 2, 4, 3, func(x int) bool { return x%9 == 3 && x < 40 }, [2]int{5, 5}, 0},
		{"half, and little ahead", 96, 3, 4, 2, odd, [2]int{4, 4}, 0},
		{"all are bad", 40, 2, 4, 3, func(int) bool { return true }, [2]int{}, 0},
		{"one is good", 40, 2, 4, 3, func(x int) bool { return x != 17 }, [2]int{}, 1},
		{"all of rank 1, with the whole epoch planned at once", 16, 2, 4, 8, func(x int) bool { return x/4%2 == 1 },
			[2]int{2, 1}, 0},
	} {
		for _, mode := range []dsa.Mode{dsa.Sequential, dsa.Fixed, dsa.Strict, dsa.Stratified, dsa.Epoch} {
			if x.slots == 8 && mode != dsa.Sequential { // in the others chance says who has the bad ones
				continue
			}
			t.Run(fmt.Sprint(x.name, " ", mode), func(t *testing.T) {
				r := decodedTier(t, 10)
				good := 0
				for o := range x.size {
					if r.bad[ident.ObjectID(o)] = x.bad(o); !x.bad(o) {
						good++
					}
				}
				id := r.register("a", 0, x.size, x.batch, inStep(x.world, x.slots, mode))
				peers := both(r, id, x.world)
				for epoch := range 2 {
					full, seen := count(r, peers, uint32(epoch))
					for k := range full {
						if full[k] != x.batches[epoch] {
							t.Errorf("epoch %d: rank %d got %d batches, want %d", epoch, k, full[k], x.batches[epoch])
						}
					}
					slices.Sort(seen)
					if n := len(seen); n != len(slices.Compact(seen)) || n != good-x.dropped {
						t.Errorf("epoch %d: %d samples of %d good ones, and %d may be dropped", epoch, n, good, x.dropped)
					}
					l := r.job(id).Ledgers[epoch]
					if l.State != jobs.Complete || l.Delivered+l.Quarantined+l.Dropped != x.size || l.Dropped != x.dropped ||
						l.Quarantined != x.size-good {
						t.Errorf("epoch %d: %+v", epoch, *l)
					}
					r.check()
					for _, p := range peers {
						r.token++
						r.step(StartEpoch{Token: r.token, Job: id, Rank: p.rank, Inc: p.inc, Epoch: uint32(epoch + 1)})
					}
					r.run()
				}
			})
		}
	}
}

// TestAStepWaitsForAllRanks: a rank is ahead of another by what the other's ring holds, and says what it waits for.
// Ranks of other jobs do not wait.
func TestAStepWaitsForAllRanks(t *testing.T) {
	for name, free := range map[string]func(*Register){
		"none":       func(e *Register) { e.Spec.Even = false },
		"skip":       func(e *Register) { e.Spec.OnError = jobs.Skip },
		"substitute": nil,
	} {
		r := decodedTier(t, 30)
		change := []func(*Register){inStep(2, 3, dsa.Stratified)}
		if free != nil {
			change = append(change, free)
		}
		id := r.register("a", 0, 80, 4, change...)
		p := both(r, id, 2)
		n := len(p[0].drain()) / 4
		if free != nil {
			if n != 10 {
				t.Errorf("%s: rank 0 got %d batches without rank 1, want all 10", name, n)
			}
			continue
		}
		if n != 3 {
			t.Errorf("rank 0 got %d batches while rank 1 holds its first three", n)
		}
		if w := r.waits(id, 0); w.Cause != jobs.OtherRank || !slices.Equal(w.Ranks, []int{1}) ||
			!strings.Contains(w.Text, "rank 1, whose batch of this step is not ready") {
			t.Errorf("%+v", w)
		}
		p[1].release(p[1].must())
		r.run()
		if d := p[0].next(); d == nil || d.Step != 3 {
			t.Errorf("step 3 is there for rank 1, and rank 0 got %+v", d)
		}
	}
}

// TestARankThatGoesHoldsNoOther: in order, by another epoch, by a client that takes its place; and one that does not
// come back ends the job when another waits for it.
func TestARankThatGoesHoldsNoOther(t *testing.T) {
	for name, go_ := range map[string]func(*rig, *peer){
		"left":    func(r *rig, p *peer) { p.detach(true) },
		"another": func(r *rig, p *peer) { p.detach(false); r.run(); r.attach(p.job, p.rank) },
		"broke": func(r *rig, p *peer) {
			r.token++
			r.step(StartEpoch{Token: r.token, Job: p.job, Rank: p.rank, Inc: p.inc, Epoch: 1})
		},
	} {
		r := decodedTier(t, 30)
		p := both(r, r.register("a", 0, 80, 4, inStep(2, 3, dsa.Stratified)), 2)
		first := len(p[0].drain())
		go_(r, p[1])
		r.run()
		if n := first + len(p[0].drain()); n < 40 {
			t.Errorf("%s: rank 0 got %d samples of the 40 that it is dealt", name, n)
		}
	}
	r := decodedTier(t, 30)
	p := both(r, r.register("a", 0, 80, 4, inStep(2, 3, dsa.Stratified)), 2)
	p[0].drain()
	p[1].detach(false)
	r.run()
	if w := r.waits(p[0].job, 0); w.Cause != jobs.OtherRank || !strings.Contains(w.Text, "rank 1, whose client is gone") {
		t.Errorf("%+v", w)
	}
	r.after(11e9)
	if j := r.job(p[0].job); j.State != jobs.Dead || !strings.Contains(j.Reason, "rank 1 vanished") {
		t.Errorf("%s: %s", j.State, j.Reason)
	}
}

// TestRanksStayInStep: ranks get equally many batches in every epoch, no sample twice, and little is dropped; with any
// bad samples, at any speeds, through deaths of daemons and cut connections.
func TestRanksStayInStep(t *testing.T) {
	n := lane.Times(120, 400)
	if testing.Short() {
		n = 60
	}
	restarts, cuts := 0, 0
	for seed := range uint64(n) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r, c := restartHistory(t, 100_000+seed, true)
			restarts, cuts = restarts+r, cuts+c
		})
		if t.Failed() {
			return
		}
	}
	if restarts < 2*n || cuts < 2*n {
		t.Errorf("only %d restarts and %d cuts in %d histories", restarts, cuts, n)
	}
}

// A batch leaves when it is durable that its step was dealt: after a crash its rank may wait for the others, and they
// must get theirs without it.
func TestADealtStepIsDurable(t *testing.T) {
	r := decodedTier(t, 30)
	r.hold = func(e Effect) bool { return describe(e) == "persist dealt of job 1" }
	p := both(r, r.register("a", 0, 40, 4, inStep(2, 3, dsa.Stratified)), 2)
	if len(r.got) > 0 {
		t.Errorf("%d batches left before their step was recorded", len(r.got))
	}
	r.hold = nil
	r.run()
	if a, b := p[0].must(), p[1].must(); a.Step != 0 || b.Step != 0 || len(a.Rows) != 4 || len(b.Rows) != 4 {
		t.Errorf("%+v and %+v", a, b)
	}
}

// A sample that goes from one rank's batch to another's belongs to that one: whichever of the two leaves before it is
// ready.
func TestASampleThatWasMoved(t *testing.T) {
	for _, leaves := range [][]int{{}, {0}, {1}, {0, 1}, {1, 0}} {
		for _, how := range []string{"in order", "another epoch", "cut"} {
			r := decodedTier(t, 2)
			for x := range 16 {
				r.bad[ident.ObjectID(x)] = x/4%2 == 1 // all of rank 1
			}
			moved := false
			r.record = func(p Persist) {
				back, ok := p.Record.(RecordReturned)
				moved = moved || ok && len(back.Objects) == 1
			}
			r.hold = func(e Effect) bool {
				_, fills := e.(*Fill)
				_, prepares := e.(Prepare)
				return moved && (fills || prepares)
			}
			p := both(r, r.register("a", 0, 16, 4, inStep(2, 8, dsa.Sequential)), 2)
			if !moved {
				t.Fatal("no sample was moved")
			}
			for _, k := range leaves {
				switch q := p[k]; how {
				case "in order":
					q.detach(true)
				case "cut":
					q.detach(false)
				default:
					r.token++
					r.step(StartEpoch{Token: r.token, Job: q.job, Rank: q.rank, Inc: q.inc, Epoch: 1})
				}
			}
			r.check()
			r.hold = nil
			r.run()
			r.check()
			_, seen := count(r, p, 0)
			slices.Sort(seen)
			if n := len(seen); n != len(slices.Compact(seen)) || len(leaves) == 0 && n != 8 {
				t.Errorf("ranks %v, %s: samples %v", leaves, how, seen)
			}
		}
	}
}
