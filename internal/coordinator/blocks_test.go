package coordinator

import (
	"fmt"
	"slices"
	"testing"

	"larder/dsa"
	"larder/internal/ident"
	"larder/internal/xrand"
	"larder/jobs"
)

// shelf follows which jobs hold which blocks.
type shelf struct {
	t     *testing.T
	held  map[ident.JobID]map[uint32]bool
	reads int // blocks that came while no job held them
	most  int // that one job held at once
}

func (h *shelf) see(e Effect) {
	h.t.Helper()
	switch x := e.(type) {
	case HoldBlock:
		mine := h.held[x.Job]
		if mine == nil {
			mine = map[uint32]bool{}
			h.held[x.Job] = mine
		}
		if mine[x.Block] {
			h.t.Errorf("job %d holds block %d twice", x.Job, x.Block)
		}
		if !h.any(x.Block) {
			h.reads++
		}
		mine[x.Block] = true
		h.most = max(h.most, len(mine))
	case DropBlock:
		if !h.held[x.Job][x.Block] {
			h.t.Errorf("job %d drops block %d, which it does not hold", x.Job, x.Block)
		}
		delete(h.held[x.Job], x.Block)
	case Prepare:
		if x.From == ident.Stored && h.held[x.Job] != nil && !h.any(blockOf(x.Key.Object)) {
			h.t.Errorf("object %d is prepared for job %d, and its block is not in memory", x.Key.Object, x.Job)
		}
	}
}

func (h *shelf) any(block uint32) bool {
	for _, mine := range h.held { // order-free
		if mine[block] {
			return true
		}
	}
	return false
}

func watch(r *rig) *shelf {
	h := &shelf{t: r.t, held: map[ident.JobID]map[uint32]bool{}}
	r.see = h.see
	return h
}

// A block is in memory from before its first sample is prepared until the last one is: with any tiers, several ranks,
// samples that fail, clients that leave in the middle.
func TestBlocksAreHeldWhileTheyAreNeeded(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := xrand.New(seed, 3)
			n, world := 60+rng.IntN(60), 1+rng.IntN(2)
			r := decodedTier(t, rng.IntN(2)*30)
			h := watch(r)
			job := r.register("a", 0, n, 1+rng.IntN(7), order(dsa.Blocks), slots(2+rng.IntN(3)), func(e *Register) {
				e.Spec.World, e.Sample.Window, e.Spec.OnError = world, 1+rng.IntN(4), jobs.OnError(rng.IntN(3))
			})
			for range rng.IntN(4) {
				r.bad[ident.ObjectID(rng.IntN(n))] = true
			}
			peers := both(r, job, world)
			got := map[ident.ObjectID]int{}
			for leaves := rng.IntN(3) * n / 3; ; {
				more := false
				for _, p := range peers {
					if d := p.next(); d != nil {
						more = true
						for _, x := range r.objects(d) {
							got[x]++
						}
						p.release(d)
						r.run()
					}
				}
				if !more || leaves > 0 && len(got) > leaves {
					break
				}
			}
			for x, times := range got { // order-free
				if times != 1 {
					t.Errorf("object %d came %d times", x, times)
				}
			}
			r.check()
			r.ask(func(t Token) Event { return Kill{Token: t, Job: job, Reason: "done"} })
			if left := h.held[job]; len(left) > 0 {
				t.Errorf("%d blocks are held by nobody", len(left))
			}
		})
	}
}

// Alone, a job reads each block once in an epoch, and holds few.
func TestBlocksAreReadOnce(t *testing.T) {
	const n, window = 640, 4
	r := decodedTier(t, 0)
	h := watch(r)
	p := r.join("a", 0, n, 4, order(dsa.Blocks), func(e *Register) {
		e.Sample.Window, e.Spec.Advance = window, jobs.OnRequest
	})
	for epoch := range uint32(3) {
		if epoch > 0 {
			p.epoch(epoch)
		}
		if got := p.drain(); !slices.Equal(sorted(got), objectsFrom(0, n)) {
			t.Errorf("epoch %d: %v", epoch, got)
		}
		if want := int(epoch+1) * n / blockSize; h.reads != want {
			t.Errorf("%d reads of %d blocks", h.reads, want)
		}
	}
	// a window, the block that comes next, and those of the 3 batches of 4 that are being prepared
	if h.most > window+1+2 {
		t.Errorf("%d blocks at once", h.most)
	}
	r.step(BlockRead{Job: p.job, Bytes: 800})
	if s := r.job(p.job).Stats; s.SourceBytes < 800 || r.c.Stats().SourceReads == 0 {
		t.Errorf("%+v", s)
	}
}

// Two jobs read the blocks together, also when the second begins in the middle.
func TestJobsMeetOnBlocks(t *testing.T) {
	const n, epochs = 1600, 4
	const blocks = n / blockSize
	for _, late := range []int{0, n / 3, n / 2} {
		r := decodedTier(t, 0)
		h := watch(r)
		here := func(e *Register) { e.Sample.Window, e.Sample.Seed = 4, e.Sample.Seed+uint64(len(e.Spec.Name)) }
		a := r.join("a", 0, n, 8, order(dsa.Blocks), here)
		take := func(p *peer) int {
			d := p.next()
			if d == nil {
				return 0
			}
			p.release(d)
			r.run()
			return len(d.Rows)
		}
		for had := 0; had < late; {
			had += take(a)
		}
		from := h.reads
		b := r.join("bb", 0, n, 8, order(dsa.Blocks), here)
		peers, had := []*peer{a, b}, [2]int{late, 0}
		for had[0] < late+epochs*n {
			for i, p := range peers {
				k := take(p)
				if had[i] += k; k == 0 {
					p.epoch(uint32(had[i] / n))
				}
			}
		}
		if reads := h.reads - from; reads > epochs*blocks*11/10 {
			t.Errorf("late by %d: %d reads of %d blocks in %d epochs", late, reads, blocks, epochs)
		}
		r.check()
	}
}

// besideBlocks runs two jobs with orders of their own for two epochs, perhaps beside a walk through blocks.
func besideBlocks(t *testing.T, mode dsa.Mode, tier int, walk bool) (orders [2][]ident.ObjectID) {
	r := decodedTier(t, tier)
	inMode := func(e *Register) { e.Sample.Mode, e.Sample.Seed = mode, 3 }
	peers := []*peer{r.attach(r.register("a", 0, 60, 5, inMode), 0), r.attach(r.register("b", 20, 80, 5, inMode), 0)}
	var w *peer
	if walk {
		w = r.attach(r.register("w", 0, 80, 4, order(dsa.Blocks)), 0)
	}
	passes := uint32(0)
	for epoch := range uint32(2) {
		for _, p := range peers {
			p.epoch(epoch)
		}
		if w != nil && epoch == 0 {
			w.epoch(0)
		}
		for more := true; more; {
			more = false
			for i, p := range peers {
				if d := p.next(); d != nil {
					more = true
					orders[i] = append(orders[i], r.objects(d)...)
					p.release(d)
					r.run()
				}
			}
			if w == nil {
				continue
			}
			if d := w.next(); d != nil {
				w.release(d)
				r.run()
			} else {
				passes++
				w.epoch(passes)
			}
		}
	}
	if walk && passes < 1 {
		t.Error("the walk came to no end")
	}
	return orders
}

// No order of another job depends on a walk through blocks: with one beside them, jobs get the very samples in the very
// order that they get without.
func TestBlocksReachNoOrder(t *testing.T) {
	for _, mode := range []dsa.Mode{dsa.Stratified, dsa.Epoch, dsa.Strict, dsa.Fixed, dsa.Sequential} {
		for _, tier := range []int{0, 20, 80} {
			t.Run(fmt.Sprintf("%s in %d", mode, tier), func(t *testing.T) {
				alone, with := besideBlocks(t, mode, tier, false), besideBlocks(t, mode, tier, true)
				for i := range alone {
					if len(alone[i]) != 120 || !slices.Equal(alone[i], with[i]) {
						t.Errorf("job %d got other samples, or in another order:\n%v\n%v", i, alone[i], with[i])
					}
				}
			})
		}
	}
}
