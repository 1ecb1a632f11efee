package dsa

import (
	"fmt"

	"larder/internal/ident"
)

// Change gives the job another subset from its next epoch on: a dataset has grown or shrunk, or the script wants other samples.
// New objects are cells of their own, because no subset held them before, and objects that stay keep their tiles. What is to go at
// once is withdrawn besides (Withdraw). subset is retained and never modified. That it is no set, or holds an id out of
// range, shows at StartEpoch, or in slices in Err; the job can then only leave.
func (s *Sampler) Change(id ident.JobID, subset []ident.ObjectID) error {
	j := s.byID[id]
	if j == nil {
		return fmt.Errorf("dsa: change the subset of job %d: %w", id, ErrNoJob)
	}
	if len(subset) == 0 {
		return fmt.Errorf("dsa: change the subset of job %d: %w", id, ErrEmptySubset)
	}
	j.next = subset
	return nil
}

// formerly is the index and the tiles of a job before its subset changed.
type formerly struct {
	at  index
	cur packed
}

// tile returns the tile of x in the epoch before the change; of a new object, any: it shares its cell with new ones only.
func (f *formerly) tile(x uint32) uint8 {
	if l, ok := f.at.member(x); ok {
		return f.cur.get(l)
	}
	return 0
}

// change puts an idle job on its next subset, once what an epoch that was given up a moment ago needed is cleared.
func (s *Sampler) change(j *job) {
	if len(j.todo) > 1 || len(j.todo) == 1 && j.todo[0] != passClear { // seldom: changed twice, or before the join is done
		s.settle()
	}
	s.unlay(j)
	j.subset, j.next = j.next, nil
	s.later(j, passRenew, passScan, passGrow, passIndex, passCount, passSplit, passMembers)
}

// renew forgets the subset before a change. Until then passClear needs what there was.
func (s *Sampler) renew(j *job) {
	if j.tiles > 1 && j.was == nil { // else the epoch that was to carry tiles over has not begun
		j.was = &formerly{at: j.at, cur: j.cur}
	}
	j.at, j.left, j.top, j.names, j.groups, j.tape = index{}, nil, 0, names{}, groups{}, tape{}
	for c := range s.cells {
		s.cells[c].live = s.cells[c].live.Without(j.slot)
	}
	for _, k := range s.slot {
		if k != nil {
			k.near, k.overlap[j.slot] = k.near.Without(j.slot), 0
		}
	}
	j.near, j.overlap = 0, [MaxJobs]uint32{}
	s.forgetPace(j.slot)
}

// Stratum makes a set of objects a static class of its own, for good: cells are split by it, so that its share of what remains is kept
// throughout each epoch of Stratified and Epoch jobs whatever tells its objects from others: their size, their cost, a group of
// labels. Running jobs get a fresh order for what their epochs still owe, as at a join. ids are distinct, retained and not modified;
// that they are not, in slices, is never told.
func (s *Sampler) Stratum(ids []ident.ObjectID) error {
	if len(ids) == 0 {
		return fmt.Errorf("dsa: stratum: %w", ErrEmptySubset)
	}
	j := s.stratum(ids)
	s.finish()
	if j.err != nil {
		return fmt.Errorf("dsa: stratum: %w", j.err)
	}
	s.strata = append(s.strata, ids)
	return nil
}

// stratum splits the cells as a job would that joins and leaves at once. It takes no slot: there may be more of them than jobs.
func (s *Sampler) stratum(ids []ident.ObjectID) *job {
	j := &job{mode: Sequential, tiles: 1, subset: ids, class: true}
	s.later(j, passScan, passGrow, passIndex, passCount, passSplit, passMembers)
	return j
}
