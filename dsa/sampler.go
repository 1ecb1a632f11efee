package dsa

import (
	"larder/internal/bits"
	"larder/internal/ident"
	"larder/internal/xrand"
)

// Sampler decides the picks of all jobs of a daemon. It is not safe for concurrent use.
//
// Its components each have their own fields, invariants and Check; they know the components that they read, never the
// Sampler.
//
//	jobs    who has joined, and which jobs count for what        jobs.go, pace.go
//	cells   which objects the same jobs hold                     cells.go
//	pool    what is available, for whom, and who prefers it      pool.go, prefer.go
//	tapes   step 1 of a pick: which cell and tile                tape.go
//	follows the same where nothing stays available               follow.go
//	scans   both steps where cells are too small to choose in    scan.go, scanorder.go
//	draws   step 2: which object of the cell and tile            draw.go, lists.go, smallcell.go
//	strict  both steps for Strict jobs, drawn in rounds          strict.go
//	walks   jobs that go through blocks, whom the others ignore  walk.go
//	layouts what a job's draws are made from                     layout.go, groups.go
//	work    what calls leave to do, in slices                    work.go, passes.go
type Sampler struct {
	rng     *xrand.Rand
	objects objectTable
	jobs    roster
	cells   cells
	pool    pool
	tapes   tapes
	follows follows
	scans   scans
	draws   draws
	strict  strictDraws
	walks   walks
	layouts layouts
	work    work

	forgetting bool // the passForget that is under way empties the cells
}

// New returns a sampler without jobs. All its choices derive from seed.
func New(seed uint64) *Sampler {
	s := &Sampler{rng: xrand.New(0x6473615f73616d70, seed)}
	s.jobs = roster{byID: make(map[ident.JobID]*job)}
	s.cells = cells{objects: &s.objects, jobs: &s.jobs, list: make([]cell, 1), scanSize: smallCell}
	s.pool = pool{objects: &s.objects, jobs: &s.jobs, cells: &s.cells, lists: &s.draws, scans: &s.scans,
		owners: []owners{{jobs: allJobs}}, latest: noObject}
	s.pool.entries.extend(1)
	s.draws = draws{rng: s.rng, objects: &s.objects, jobs: &s.jobs, cells: &s.cells, pool: &s.pool}
	s.scans = scans{rng: xrand.New(0x6473615f7363616e, seed), jobs: &s.jobs, cells: &s.cells, draws: &s.draws,
		tapes: &s.tapes, room: &s.layouts.room, manyCells: manyCells, fewAvailable: fewAvailable}
	s.tapes = tapes{rng: s.rng, scans: &s.scans, jobs: &s.jobs, cells: &s.cells, invalidate: s.layouts.invalidate}
	s.follows = follows{rng: s.rng, objects: &s.objects, jobs: &s.jobs, draws: &s.draws, layout: &s.layouts.current}
	s.strict = strictDraws{rng: s.rng, jobs: &s.jobs, draws: &s.draws}
	s.layouts = layouts{objects: &s.objects, jobs: &s.jobs, cells: &s.cells, pool: &s.pool, draws: &s.draws,
		follows: &s.follows, scans: &s.scans, room: MaxObjects}
	s.walks = walks{byID: make(map[ident.JobID]*walk), dice: xrand.New(0x6473615f6c65616b, seed)}
	s.work = work{steps: s.steps(), ended: s.free}
	return s
}

// Next commits one pick of the job and returns it. It returns false when the job's epoch owes nothing more, or the job
// is idle, unknown or not Ready. The caller says with SetLevel, before the next call, what the pick makes available.
// For Fixed and Sequential the pick is the first position that is not taken.
func (s *Sampler) Next(id ident.JobID) (ident.ObjectID, bool) {
	if w := s.walks.byID[id]; w != nil {
		return s.nextOfWalk(w)
	}
	j := s.jobs.find(id)
	if j == nil || j.owed.remaining == 0 {
		return 0, false
	}
	if s.work.sliced && !s.work.ready(j) {
		return 0, false
	}
	x := s.choose(j)
	j.pace.took++
	s.take(j, x, j.index.of(x))
	return ident.ObjectID(x), true
}

// nextOfWalk is Next of a job of mode Blocks.
func (s *Sampler) nextOfWalk(w *walk) (ident.ObjectID, bool) {
	if s.work.sliced && !w.ready() {
		return 0, false
	}
	x, ok := s.walks.pick(w)
	if ok {
		s.Touch(x)
	}
	return x, ok
}

// BlockMoves returns which blocks jobs of mode Blocks have begun to hold, and have left, since the last call, in order.
// A job holds a block before Next returns a sample of it. The result is good until the next call of the Sampler.
func (s *Sampler) BlockMoves() []BlockMove {
	all := s.walks.moves
	s.walks.moves = all[:0]
	return all
}

// choose is the rule of a pick: step 1 names the cell and the tile, step 2 the object.
func (s *Sampler) choose(j *job) uint32 {
	if j.stale {
		s.layouts.run(j)
	}
	switch {
	case j.mode <= Fixed: // the order is prescribed
		return j.firstFree()
	case j.mode == Strict: // both steps at once, together with other strict jobs
		return s.strict.pick(j)
	case s.jobs.scanning.Has(j.slot): // both steps at once, along an order that jobs share
		return s.scans.pick(j)
	case s.jobs.following.Has(j.slot): // step 1 follows a neighbour's draw
		return s.follows.pick(j)
	}
	cell, number := s.tapes.next(j)
	if r := j.groups.rowOf(cell); r >= 0 {
		return s.draws.pickRow(j, r, number)
	}
	return s.draws.pickSmall(j, cell, number)
}

// At commits the pick at position pos of this epoch's order of a Fixed or Sequential job. It returns false if the
// position is taken or out of range, or the job has no such order.
func (s *Sampler) At(id ident.JobID, pos int) (ident.ObjectID, bool) {
	j := s.jobs.find(id)
	if j == nil || j.owed.remaining == 0 || pos < 0 || pos >= len(j.subset) || j.mode > Fixed ||
		s.work.sliced && !s.work.ready(j) {
		return 0, false
	}
	x, free := j.position(pos)
	if !free {
		return 0, false
	}
	j.pace.took++
	s.take(j, x, j.index.of(x))
	return ident.ObjectID(x), true
}

// Touch notes that a job which the sampler does not know takes x, in an order of its own: what it brings into memory is
// neutral. No choice, and nothing that choices are drawn from, is any other for it.
func (s *Sampler) Touch(x ident.ObjectID) {
	if x >= MaxObjects || s.pool.apart {
		return
	}
	if !s.objects.known(uint32(x)) {
		s.objects.grow(int(x) + 1)
	}
	s.pool.latest = noObject
	s.pool.makeNeutral(uint32(x))
}

// take commits that a job takes x, whose place is l: it needs x no more.
func (s *Sampler) take(j *job, x, l uint32) {
	if j.tiles > 1 {
		j.setTile(l)
	}
	if s.jobs.following.Has(j.slot) {
		s.follows.removeCommon(j, x, l)
	}
	j.owed.remaining--
	unset(j.owed.left, l)
	if !j.visible() {
		if !s.pool.apart {
			s.pool.latest = noObject
			s.pool.makeNeutral(x)
		}
		return
	}
	s.pool.latest, s.pool.taker = x, j.slot
	if e := s.pool.entry(x); e != nil {
		s.pool.take(e, j)
	}
}

// SetLevel sets how much of the work on x is done, as decided at the commit of a pick or of an eviction. level is a
// form (ident.Form): 0 = in storage, 1 = encoded in memory, 2 = decoded, in memory or in flight. Anything above 2
// counts as 2.
func (s *Sampler) SetLevel(x ident.ObjectID, level uint8) {
	level = min(level, uint8(decoded))
	s.SetLevelFor(x, level, allJobs, level)
}

// SetLevelFor is SetLevel where the work serves some jobs only: for those of jobs (see JobSet) x is at level, for the
// rest at the level rest, which counts as no more than the other. Level 3 is for a sample that is augmented as those
// jobs will take it; anything above counts as 3. Which jobs those are must not depend on what x is, only on what
// happened to it.
func (s *Sampler) SetLevelFor(x ident.ObjectID, level uint8, jobs bits.JobSet, rest uint8) {
	if x >= MaxObjects {
		return
	}
	if !s.objects.known(uint32(x)) {
		if level == 0 {
			return
		}
		s.objects.grow(int(x) + 1)
	}
	if ^jobs != 0 {
		jobs &= s.jobs.live // a slot that is free now may be another job's later
	}
	own := min(uint16(level), augmented)
	s.pool.setLevel(uint32(x), own, min(own, uint16(rest)), jobs)
}

// SetRoom sets how many samples stay available after the jobs that loaded them have taken them. With none, Stratified
// and Epoch jobs find only what others load at the same moment, and draw accordingly (follow.go) from their next epoch
// on. A new sampler has room.
func (s *Sampler) SetRoom(samples int) { s.layouts.room = max(samples, 0) }

// SetDecoding sets whether decoded objects stay in memory. Where they do, an encoded object is preferred only in place
// of one that would be read (prefer.go). It takes effect for Stratified and Epoch jobs from their next epoch on at the
// latest. In a new sampler no object stays decoded.
func (s *Sampler) SetDecoding(on bool) { s.pool.decoding = on }

// KeepApart says that the caller tells apart what jobs of mode Sequential or Blocks, and others that the sampler does
// not know, bring into memory: SetLevel is called only for what is there for the sake of the visible jobs. No object is
// neutral from now on.
// REQUIRES: no job has joined.
func (s *Sampler) KeepApart() { s.pool.apart = true }

// InSlices leaves work to Work from now on: Join, StartEpoch, Abandon, Leave and Return take microseconds, and until
// Ready reports true for a job, Next and At return false for it.
func (s *Sampler) InSlices() { s.work.sliced = true }

// Work does what calls have left to do, up to budget objects of it (some 20 ns each), and reports whether there is
// more.
func (s *Sampler) Work(budget int) (more bool) {
	budget -= s.walks.work(budget)
	for budget > 0 && len(s.work.line) > 0 {
		budget -= s.work.walk(budget)
	}
	for budget > 0 {
		j := s.layouts.current.job
		if j == nil {
			if j = s.layouts.next(); j == nil {
				return s.walks.hasWork()
			}
		}
		budget -= s.layouts.slice(j, budget)
	}
	return s.walks.hasWork() || len(s.work.line) > 0 || s.layouts.current.job != nil || s.layouts.next() != nil
}
