package dsa

import (
	"errors"
	"fmt"
	"slices"

	"larder/internal/ident"
)

// The errors of Join, Change, Stratum and StartEpoch. Each is wrapped with the details.
var (
	// ErrJobExists says that a job with this id has joined already.
	ErrJobExists = errors.New("job has joined already")
	// ErrNoJob says that no job with this id has joined.
	ErrNoJob = errors.New("no such job")
	// ErrEmptySubset says that a subset holds no object.
	ErrEmptySubset = errors.New("subset is empty")
	// ErrDuplicateObject says that a subset holds an object twice.
	ErrDuplicateObject = errors.New("subset holds an object twice")
	// ErrTooManyJobs says that MaxJobs have joined.
	ErrTooManyJobs = errors.New("too many jobs")
	// ErrTiles says that JobSpec.Tiles is negative or above MaxTiles.
	ErrTiles = errors.New("tiles out of range")
	// ErrMode says that JobSpec.Mode is no mode.
	ErrMode = errors.New("unknown mode")
	// ErrWindow says that a job of mode Blocks has no window, or no blocks.
	ErrWindow = errors.New("no window of blocks")
	// ErrObjectID says that an id is MaxObjects or above.
	ErrObjectID = errors.New("object id out of range")
)

// Join registers a job; it is active, and idle until StartEpoch. On an error nothing has changed. In slices, a subset
// that is no set is found out later: see Err.
func (s *Sampler) Join(id ident.JobID, spec JobSpec) error {
	if spec.Mode == Blocks {
		return s.joinWalk(id, spec)
	}
	if err := s.jobs.admit(id, spec); err != nil {
		return fmt.Errorf("dsa: join job %d: %w", id, err)
	}
	if s.jobs.live.Len() >= MaxJobs {
		s.work.settle() // frees the slots of those that have left
	}
	j := &job{owed: owed{fresh: true}, jobSpec: jobSpec{id: id, mode: spec.Mode, tiles: 1, seed: spec.Seed,
		ahead: spec.Ahead, recipe: spec.Recipe, subset: spec.Subset}}
	if spec.Mode == Stratified {
		j.tiles = spec.Tiles
		if j.tiles == 0 {
			j.tiles = DefaultTiles
		}
	}
	s.jobs.join(j)
	if j.visible() && j.slot >= inlineSlots && s.pool.marks.n == 0 {
		s.pool.marks.extend(s.pool.entries.n)
	}
	s.strict.setAhead()
	s.work.add(j, j.membership(passScan, passGrow, passIndex, passForget, passCount, passSplit, passMembers)...)
	s.work.finish()
	if err := j.passes.err; err != nil {
		s.Leave(id)
		return fmt.Errorf("dsa: join job %d: %w", id, err)
	}
	return nil
}

// joinWalk is Join of a job of mode Blocks.
func (s *Sampler) joinWalk(id ident.JobID, spec JobSpec) error {
	err := s.walks.admit(id, spec)
	if s.jobs.byID[id] != nil {
		err = ErrJobExists
	}
	if err != nil {
		return fmt.Errorf("dsa: join job %d: %w", id, err)
	}
	w := s.walks.join(id, spec)
	if s.work.sliced {
		return nil
	}
	if w.build(len(w.subset)); w.err != nil {
		s.walks.leave(w)
		return fmt.Errorf("dsa: join job %d: %w", id, w.err)
	}
	return nil
}

// Leave removes the job. Its subset stays in the cells: what it left in the caches must not tell objects apart.
func (s *Sampler) Leave(id ident.JobID) {
	if w := s.walks.byID[id]; w != nil {
		s.walks.leave(w)
		return
	}
	j := s.jobs.byID[id]
	if j == nil {
		return
	}
	s.abandon(j)
	s.jobs.leave(j)
	if j.visible() {
		s.pool.latest = noObject
	}
	s.jobs.reclassify(j)
	s.strict.setAhead()
	s.work.cancel(j, passRenew, passScan, passGrow, passIndex, passForget, passCount, passSplit, passMembers)
	if len(j.passes.todo) == 0 {
		s.free(j)
	}
	s.work.finish()
}

// Change gives the job another subset from its next epoch on: a dataset has grown or shrunk, or the script asks for
// other samples. New objects are in cells of their own, because no subset held them before, and objects that stay keep
// their tiles. Samples that must leave the running epoch are withdrawn besides (Withdraw). subset is retained and never
// modified. That it is no set, or holds an id out of range, shows at StartEpoch, or in slices in Err; the job can then
// only leave.
func (s *Sampler) Change(id ident.JobID, subset []ident.ObjectID) error {
	j, w := s.jobs.byID[id], s.walks.byID[id]
	switch {
	case j == nil && w == nil:
		return fmt.Errorf("dsa: change the subset of job %d: %w", id, ErrNoJob)
	case len(subset) == 0:
		return fmt.Errorf("dsa: change the subset of job %d: %w", id, ErrEmptySubset)
	case w != nil:
		w.next = subset
	default:
		j.next = subset
	}
	return nil
}

// change puts an idle job on its next subset, once what an abandoned epoch needed is cleared.
func (s *Sampler) change(j *job) {
	if todo := j.passes.todo; len(todo) > 1 || len(todo) == 1 && todo[0] != passClear {
		// This is rare: the subset was changed twice, or before the join was done.
		s.work.settle()
	}
	s.layouts.invalidate(j)
	j.subset, j.next = j.next, nil
	s.work.add(j, j.membership(passRenew, passScan, passGrow, passIndex, passCount, passSplit, passMembers)...)
}

// membership leaves out what an invisible job has no part in: cells are of visible jobs alone. If it split some, the
// orders of its neighbours would begin afresh, and their cells would be others.
func (j *job) membership(passes ...pass) []pass {
	if j.visible() {
		return passes
	}
	return slices.DeleteFunc(passes, func(p pass) bool {
		return p == passForget || p == passCount || p == passSplit || p == passMembers
	})
}

// Stratum makes a set of objects a static class of its own, permanently: cells are split by it, so that its share of
// what remains is kept throughout each epoch of Stratified and Epoch jobs whatever distinguishes its objects: their
// size, their cost, a group of labels. Running jobs get a fresh order for what their epochs still owe, as at a join.
// ids must be distinct; they are retained and not modified. In slices, duplicates are not reported.
func (s *Sampler) Stratum(ids []ident.ObjectID) error {
	if len(ids) == 0 {
		return fmt.Errorf("dsa: stratum: %w", ErrEmptySubset)
	}
	j := s.work.addStratum(ids)
	s.work.finish()
	if j.passes.err != nil {
		return fmt.Errorf("dsa: stratum: %w", j.passes.err)
	}
	s.cells.strata = append(s.cells.strata, ids)
	return nil
}

// SetActive sets whether the job takes batches. A stalled job keeps its remaining set but counts as needing nothing, so
// that nothing is kept in memory, and no sample is chosen, for its sake.
func (s *Sampler) SetActive(id ident.JobID, active bool) {
	j := s.jobs.byID[id]
	if j == nil || s.jobs.active.Has(j.slot) == active {
		return
	}
	if active {
		s.jobs.active = s.jobs.active.With(j.slot)
	} else {
		s.jobs.active = s.jobs.active.Without(j.slot)
	}
	s.jobs.forgetPace(j.slot)
	s.jobs.reclassify(j)
}
