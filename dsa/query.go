package dsa

import (
	"fmt"
	mathbits "math/bits"

	"larder/internal/bits"
	"larder/internal/ident"
)

// Ready reports whether the job may pick: it is known and no work is left to do for it. An idle job is ready when its
// join is done.
func (s *Sampler) Ready(id ident.JobID) bool {
	if w := s.walks.byID[id]; w != nil {
		return w.ready()
	}
	j := s.jobs.find(id)
	return j != nil && (!s.work.sliced || s.work.ready(j))
}

// Settled reports whether no pass of the job waits, so that Withdraw has nothing to do before its own work.
func (s *Sampler) Settled(id ident.JobID) bool {
	if w := s.walks.byID[id]; w != nil {
		return w.ready()
	}
	j := s.jobs.byID[id]
	return j != nil && len(j.passes.todo) == 0
}

// Err returns why a job that was joined in slices cannot draw, nil for any other: its subset is no set, or holds an id
// out of range. It stays until the job leaves.
func (s *Sampler) Err(id ident.JobID) error {
	if j := s.jobs.byID[id]; j != nil {
		return j.passes.err
	}
	if w := s.walks.byID[id]; w != nil && w.err != nil {
		return fmt.Errorf("dsa: job %d: %w", id, w.err)
	}
	return nil
}

// JobSet returns the set of the job alone, for SetLevelFor and NeedOf; the empty set if it has not joined, or has mode
// Sequential or Blocks. It is the same until the job leaves.
func (s *Sampler) JobSet(id ident.JobID) bits.JobSet {
	if j := s.jobs.byID[id]; j != nil && j.visible() {
		return bits.JobSet(0).With(j.slot)
	}
	return 0
}

// Level returns the level that SetLevel set last, the higher one of SetLevelFor; 0 for an object without one.
func (s *Sampler) Level(x ident.ObjectID) uint8 {
	if !s.objects.known(uint32(x)) {
		return 0
	}
	if e := s.pool.entry(uint32(x)); e != nil {
		return uint8(e.state & levelMask)
	}
	return 0
}

// LevelOf returns the level that SetLevelFor set last for a job; 0 for an unknown job.
func (s *Sampler) LevelOf(x ident.ObjectID, id ident.JobID) uint8 {
	j := s.jobs.byID[id]
	if j == nil || !s.objects.known(uint32(x)) {
		return 0
	}
	return uint8(s.pool.level(uint32(x), j.slot))
}

// Neutral reports whether x owes its place in memory to a sequential job alone. The evictor must evict such objects
// first, and must not let one displace another object: then what visible jobs find is what it would be without the
// sequential job.
func (s *Sampler) Neutral(x ident.ObjectID) bool {
	if !s.objects.known(uint32(x)) {
		return false
	}
	e := s.pool.entry(uint32(x))
	return e != nil && e.state&neutralBit != 0 && e.state&visMask == 0
}

// Need returns how many active visible jobs still need x in their running epoch. Eviction compares it. A Strict job
// that has x in its queue, and so takes it within its window, counts as many times as all jobs together: otherwise what
// epochs that have just begun need at some time would push out what a job is about to take.
func (s *Sampler) Need(x ident.ObjectID) int { return s.NeedOf(x, allJobs) }

// NeedOf is Need among some jobs (see JobSet): those that a form of x serves.
func (s *Sampler) NeedOf(x ident.ObjectID, jobs bits.JobSet) int {
	if !s.objects.known(uint32(x)) {
		return 0
	}
	return s.pool.needOf(uint32(x), jobs)
}

// Readers counts the jobs whose subset has x, active or not, in every epoch. Need is what is left of that in this one.
func (s *Sampler) Readers(x ident.ObjectID) int {
	n := 0
	if s.objects.known(uint32(x)) {
		n = s.cells.of(uint32(x)).live.Len()
	}
	for left := s.jobs.unseen; left != 0; left &= left - 1 { // these have no cells
		if j := s.jobs.slot[mathbits.TrailingZeros64(uint64(left))]; j.phase != jobLeft {
			if _, ok := j.index.member(uint32(x)); ok {
				n++
			}
		}
	}
	for _, w := range s.walks.byID { // order-free: they are counted
		if w.all != nil && w.all.Has(uint32(x)) {
			n++
		}
	}
	return n
}

// Needs reports whether the job, active or not, still needs x in its running epoch.
func (s *Sampler) Needs(id ident.JobID, x ident.ObjectID) bool {
	if w := s.walks.byID[id]; w != nil {
		return w.settle() && w.phase != walkIdle && w.left.Has(uint32(x))
	}
	j := s.jobs.byID[id]
	return j != nil && s.objects.known(uint32(x)) && j.needs(uint32(x))
}

// Remaining returns how many samples the job's running epoch still owes; 0 when idle.
func (s *Sampler) Remaining(id ident.JobID) int {
	if j := s.jobs.byID[id]; j != nil {
		return j.owed.remaining
	}
	if w := s.walks.byID[id]; w != nil {
		return w.remaining()
	}
	return 0
}

// Len returns the size of the job's subset; 0 for an unknown job.
func (s *Sampler) Len(id ident.JobID) int {
	if j := s.jobs.byID[id]; j != nil {
		return len(j.subset)
	}
	if w := s.walks.byID[id]; w != nil {
		return len(w.subset)
	}
	return 0
}

// Jobs returns the joined jobs, ascending, without those of mode Blocks.
func (s *Sampler) Jobs() []ident.JobID { return s.jobs.ids() }

// Room returns what SetRoom set.
func (s *Sampler) Room() int { return s.layouts.room }
