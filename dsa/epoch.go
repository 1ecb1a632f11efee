package dsa

import (
	"fmt"

	"larder/internal/ident"
)

// StartEpoch makes the job need its whole subset again. An unfinished epoch is abandoned first. epoch is what a Fixed
// order is derived from; the other modes only keep it.
func (s *Sampler) StartEpoch(id ident.JobID, epoch uint32) error {
	if w := s.walks.byID[id]; w != nil {
		return s.startWalk(w, epoch)
	}
	j := s.jobs.byID[id]
	if j == nil {
		return fmt.Errorf("dsa: start epoch %d of job %d: %w", epoch, id, ErrNoJob)
	}
	s.abandon(j)
	if j.passes.err != nil {
		return fmt.Errorf("dsa: start epoch %d of job %d: %w", epoch, id, j.passes.err)
	}
	if j.next != nil {
		s.change(j)
	}
	j.become(jobRunning)
	j.owed.epoch, j.owed.remaining, j.prescribed.cursor = epoch, len(j.subset), 0
	if j.visible() && s.jobs.comparePace(j) {
		s.jobs.reclassify(j)
	}
	if j.visible() || len(j.passes.todo) > 0 {
		s.work.add(j, passMark)
	} else {
		j.needAll()
	}
	if j.before != nil || j.tiles > 1 && j.passes.has(passRenew) {
		s.work.add(j, passCarry)
	}
	if j.mode == Fixed {
		s.work.add(j, passShuffle)
	}
	s.work.finish()
	if j.passes.err != nil {
		j.become(jobIdle)
		j.owed.remaining = 0
		return fmt.Errorf("dsa: start epoch %d of job %d: %w", epoch, id, j.passes.err)
	}
	return nil
}

// startWalk is StartEpoch of a job of mode Blocks.
func (s *Sampler) startWalk(w *walk, epoch uint32) error {
	s.walks.start(w, epoch)
	if !s.work.sliced {
		w.build(len(w.subset))
	}
	if w.err != nil {
		s.walks.abandon(w)
		return fmt.Errorf("dsa: start epoch %d of job %d: %w", epoch, w.id, w.err)
	}
	return nil
}

// Abandon drops what remains of the job's epoch; the job is idle until StartEpoch. For the tiles of the next epoch the
// rest of the order counts as drawn uniformly and not delivered, which keeps the promise of Stratified.
func (s *Sampler) Abandon(id ident.JobID) {
	if w := s.walks.byID[id]; w != nil {
		s.walks.abandon(w)
		return
	}
	if j := s.jobs.byID[id]; j != nil {
		s.abandon(j)
		s.work.finish()
	}
}

// abandon is Abandon without doing the passes.
func (s *Sampler) abandon(j *job) {
	if !j.running() {
		return
	}
	if j.owed.remaining > 0 {
		marked := !j.passes.has(passMark) || s.work.begun(j, passMark)
		s.work.cancel(j, passMark, passCarry, passShuffle)
		if marked && j.visible() && j.passes.err == nil {
			j.quota.plan(j.owed.remaining, len(j.subset), j.tiles)
			s.work.add(j, passClear)
		}
	}
	j.queue.drawn, j.queue.head = j.queue.drawn[:0], 0 // of a Strict job; openAll follows
	s.jobs.marked = s.jobs.marked.Without(j.slot)
	s.layouts.invalidate(j)
	j.become(jobIdle)
	j.owed.remaining = 0
}

// Return takes back picks that were committed in this epoch and never delivered: they are needed again. Objects that
// are not in the subset, or not taken in the running epoch, are ignored. A job with a tape draws from a fresh order
// afterwards.
func (s *Sampler) Return(id ident.JobID, ids []ident.ObjectID) {
	if w := s.walks.byID[id]; w != nil {
		w.giveBack(ids)
		return
	}
	j := s.settled(id)
	if j == nil {
		return
	}
	back := 0
	for _, x := range ids {
		l, ok := j.index.member(uint32(x))
		if !ok || has(j.owed.left, l) {
			continue
		}
		back++
		if j.mode == Strict {
			j.discardQueue()
			j.openPlace(l)
		}
		s.layouts.invalidate(j)
		set(j.owed.left, l)
		if j.visible() {
			s.pool.needAgain(uint32(x), j)
		}
	}
	if back == 0 {
		return
	}
	j.owed.remaining += back
	j.prescribed.cursor = 0
	if j.usesTape() {
		s.tapes.freshAfterReturn(j)
	}
}

// Withdraw takes objects out of what the running epoch still owes without choosing them, in the order given:
// quarantined ones, or those that a resumed job has had already. Objects that the epoch does not owe are ignored. It
// returns how many were taken out.
func (s *Sampler) Withdraw(id ident.JobID, ids []ident.ObjectID) int {
	if w := s.walks.byID[id]; w != nil {
		return s.walks.withdraw(w, ids)
	}
	j := s.settled(id)
	if j == nil {
		return 0
	}
	if j.visible() && j.mode != Strict && s.pool.entries.n <= 1 && !s.jobs.following.Has(j.slot) {
		// The pool is empty and the job follows no neighbour, as at the start of a daemon: no other job is concerned.
		n := j.withdraw(ids, &s.objects)
		if n > 0 {
			s.layouts.invalidate(j)
			if j.usesTape() {
				s.tapes.freshAfterReturn(j)
			}
		}
		return n
	}
	n := 0
	for _, x := range ids {
		if !s.objects.known(uint32(x)) {
			continue
		}
		l, ok := j.index.find(uint32(x))
		if !ok || !has(j.owed.left, l) {
			continue
		}
		if n++; n == 1 {
			s.layouts.invalidate(j)
		}
		if j.mode == Strict {
			j.discardQueue()
			j.closePlace(l)
		}
		if j.visible() {
			s.take(j, uint32(x), l)
		} else { // the job has not touched the object, so it does not become neutral
			j.owed.remaining--
			unset(j.owed.left, l)
		}
	}
	if n > 0 && j.usesTape() {
		s.tapes.freshAfterReturn(j)
	}
	return n
}

// settled returns the job if its epoch runs, with all passes done that concern it; else nil.
func (s *Sampler) settled(id ident.JobID) *job {
	j := s.jobs.byID[id]
	if j == nil || !j.running() {
		return nil
	}
	if len(j.passes.todo) > 0 {
		s.work.settle()
	}
	if j.passes.err != nil {
		return nil
	}
	return j
}
