package dsa

import (
	"fmt"
	"slices"
)

// steps says what each pass does, in terms of the components.
func (s *Sampler) steps() (t [numPasses]step) {
	subset := func(j *job) int { return len(j.subset) }
	t = [numPasses]step{ // joins and changes of a subset
		passRenew: {
			length: func(*job) int { return 0 },
			close:  s.dropSubset,
		},
		passScan: {
			length: subset,
			slice:  func(j *job, from, to int) { j.passes.top = max(j.passes.top, slices.Max(j.subset[from:to])) },
			close:  checkIDs,
		},
		passGrow: {
			length: func(j *job) int { return int(j.passes.top) + 1 },
			slice:  func(_ *job, _, to int) { s.objects.grow(to) },
		},
		passIndex: {
			length: subset,
			open:   func(j *job) { j.index.begin(j.passes.top) },
			slice:  func(j *job, from, to int) { j.passes.err = j.index.add(j.subset[from:to]) },
			close: func(j *job) {
				j.tiled.begin(j.tiles, j.index.places())
			},
		},
		passForget: {
			open: func(*job) { s.forgetting = s.cells.mayForget(s.pool.visible) },
			length: func(*job) int {
				if !s.forgetting {
					return 0
				}
				return s.objects.n
			},
			slice: func(_ *job, from, to int) {
				for x := from; x < to; x++ {
					s.pool.hide(uint32(x))
					s.objects.at(uint32(x)).cell = 0
				}
			},
			close: s.forgetCells,
		},
		passCount: {
			length: subset,
			open:   func(*job) { s.cells.beginCount() },
			slice:  func(j *job, from, to int) { s.cells.count(j.subset[from:to]) },
		},
		passSplit: {
			length: subset,
			open:   s.cells.split,
			slice:  func(j *job, from, to int) { s.cells.assign(j.subset[from:to]) },
		},
		passMembers: {
			length: func(*job) int { return s.cells.move.n },
			slice:  func(_ *job, from, to int) { s.cells.moveMembers(to - from) },
			close:  s.tapes.freshAfterJoin,
		},
	}
	epochSteps(s, &t)
	return t
}

// epochSteps says what the passes of epochs do.
func epochSteps(s *Sampler, t *[numPasses]step) {
	t[passClear] = step{
		length: func(j *job) int { return j.index.places() },
		slice:  s.draws.clearNeeds,
	}
	t[passMark] = step{
		length: func(j *job) int {
			if !j.visible() {
				return 0
			}
			return s.pool.entries.n
		},
		open:  (*job).needAll,
		slice: s.pool.needAll,
		close: s.beginDraws,
	}
	t[passCarry] = step{
		length: func(j *job) int { return len(j.subset) },
		slice: func(j *job, from, to int) {
			for _, x := range j.subset[from:to] {
				j.tiled.prev.set(j.index.of(uint32(x)), j.before.tile(uint32(x)))
			}
		},
		close: func(j *job) { j.before = nil },
	}
	t[passShuffle] = step{
		length: func(j *job) int { return len(j.subset) },
		open: func(j *job) {
			j.prescribed.order = resize(j.prescribed.order, len(j.subset))
			j.prescribed.shuffle.begin(j.seed, j.owed.epoch)
		},
		slice: func(j *job, from, to int) { j.prescribed.shuffle.slice(j.prescribed.order, from, to) },
	}
}

// checkIDs ends passScan: a subset with an id out of range is refused.
func checkIDs(j *job) {
	if j.passes.top >= MaxObjects {
		j.passes.err = fmt.Errorf("%w: %d, the limit is %d", ErrObjectID, j.passes.top, MaxObjects-1)
		j.passes.todo = j.passes.todo[:0]
	}
}

// forgetCells ends passForget. The cells go here and not before: objects that the pass has not come to are asked for
// theirs.
func (s *Sampler) forgetCells(*job) {
	if !s.forgetting {
		return
	}
	s.cells.forget()
	for _, ids := range s.cells.strata {
		s.work.addStratum(ids)
	}
}

// beginDraws ends passMark: the job's epoch counts, and its draws begin.
func (s *Sampler) beginDraws(j *job) {
	j.owed.fresh = false
	if j.visible() {
		s.jobs.marked = s.jobs.marked.With(j.slot)
		if s.jobs.slow != 0 { // beside it and another one, slow jobs may not count any more
			s.jobs.reclassify(j)
		}
	}
	switch {
	case j.usesTape():
		s.tapes.adopt(j)
	case j.mode == Strict:
		j.openAll()
	default:
	}
}

// dropSubset does passRenew: it forgets the subset before a change.
func (s *Sampler) dropSubset(j *job) {
	if j.tiles > 1 && j.before == nil { // else the epoch that was to carry tiles over has not begun
		j.before = &oldSubset{index: j.index, tiles: j.tiled.cur}
	}
	j.index, j.owed.left, j.passes.top = index{}, nil, 0
	j.queue, j.groups, j.tape = strictQueue{}, groups{}, tape{}
	s.cells.forgetJob(j.slot)
	s.jobs.forgetOverlap(j.slot)
	j.peers.neighbours, j.peers.overlap = 0, [MaxJobs]uint32{}
	s.jobs.forgetPace(j.slot)
}

// free frees the slot of a job that has left, when its last pass is done.
func (s *Sampler) free(j *job) {
	if j.phase != jobLeft || s.jobs.slot[j.slot] != j { // a stratum has no slot to free
		return
	}
	s.pool.forgetOwner(j.slot)
	s.jobs.release(j)
	s.cells.forgetJob(j.slot)
}

// oldSubset is the index and the tiles of a job before its subset changed.
type oldSubset struct {
	index index
	tiles packed
}

// tile returns the tile of x in the epoch before the change. For a new object it returns any tile: its cell holds new
// objects only.
func (o *oldSubset) tile(x uint32) uint8 {
	if l, ok := o.index.member(x); ok {
		return o.tiles.get(l)
	}
	return 0
}
