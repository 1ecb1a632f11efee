package coordinator

import (
	"slices"

	"larder/dsa"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/jobs"
)

// changeSubset gives a job another subset from its next epoch on. An epoch that was only prepared ahead is restarted
// with it.
func (lc *lifecycle) changeSubset(e ChangeSubset) {
	s := lc.roster.streams[e.Job]
	if s == nil {
		lc.step.reply(e.Token, Reply{Err: jobGone(e.Job, "")})
		return
	}
	j := s.job
	if e.Rank < 0 || e.Rank >= j.Spec.World {
		lc.step.reply(e.Token, Reply{Err: errs.New(errs.Invalid, j.Spec.Name, "ranks count from 0",
			"change the subset for rank %d of job %s, which has world_size %d",
			e.Rank, j.Spec.Name, j.Spec.World)})
		return
	}
	if s.script != nil {
		e.Subset = nil // its orders are what they are
	}
	if e.Subset != nil {
		if n := j.Spec.Epochs; j.Draining() || n != 0 && j.Begun() && j.Epoch+1 >= n && s.asked(j.Epoch) {
			lc.step.reply(e.Token, Reply{Err: errs.New(errs.JobEnded, j.Spec.Name, "make a new Loader with the other subset",
				"change the subset of job %s, of which epoch %d is the last one", j.Spec.Name, j.Epoch)})
			return
		}
		spec := j.Spec
		spec.Subset = len(e.Subset)
		if err := spec.Validate(); err != nil {
			lc.step.reply(e.Token, Reply{Err: err})
			return
		}
		if e.Member == nil {
			e.Member = Members(e.Subset)
		}
	}
	s.gone = e.Gone
	if e.Subset != nil {
		j.Next, s.next = &jobs.Next{Mark: e.Mark, Subset: len(e.Subset), Member: e.Member}, e.Subset
	}
	first := j.Since
	if j.Next != nil {
		at, awaited := lc.awaited(s)
		switch {
		case awaited:
			first = at
		case s.rest != nil:
			first = s.rest.Epoch + 1
		case j.Whole != nil: // the epoch is the remainder that an earlier job left
			first = j.Epoch + 1
		case !j.Begun():
			first = 0
			if err := lc.takeNext(s, 0); err != nil {
				lc.step.complain(j.ID, err)
			}
		case s.asked(j.Epoch):
			first = j.Epoch + 1
		case (j.Attached() > 0 || s.anyKept()) && j.Ledger().Delivered == 0:
			first = j.Epoch
			lc.restartEpoch(s)
		case lc.takesPart(s): // some rank has had its part and gone
			first = j.Epoch + 1
		default: // a client that comes back restarts the epoch
			first = j.Epoch
		}
		lc.step.persist(RecordSubsetChanged{Job: j.ID, Epoch: first, Mark: e.Mark}, nil)
	}
	if j.State.Ended() {
		lc.step.reply(e.Token, Reply{Err: jobGone(j.ID, j.Spec.Name)})
		return
	}
	spec := j.Upcoming()
	lc.step.answer(e.Token, Reply{Job: j.ID, Epoch: first, Samples: spec.Subset, Batches: spec.Batches(e.Rank)})
	lc.planner.plan(s)
}

// anyKept reports whether some client is gone and may come back into its epoch.
func (s *stream) anyKept() bool {
	return slices.ContainsFunc(s.ranks, func(q rankQueue) bool { return q.kept != nil && q.kept.asked >= 0 })
}

// restartEpoch restarts the running epoch, of which no client has seen anything, with the next subset.
func (lc *lifecycle) restartEpoch(s *stream) {
	j := s.job
	epoch := j.Epoch
	j.Forget()
	for r := range j.Ranks { // before anything is canceled: nothing is planned into the slots that come free
		if k := &j.Ranks[r]; k.Phase == jobs.InEpoch && k.Epoch == epoch {
			k.StepOut()
		}
	}
	for r := range j.Ranks {
		lc.planner.cancel(s, r, func(d *delivery) bool { return d.epoch == epoch })
	}
	lc.begin(s, epoch)
}

// takeNext puts a job on the subset that waits for its next epoch, if one does.
func (lc *lifecycle) takeNext(s *stream, epoch uint32) error {
	j := s.job
	if j.Next == nil {
		return nil
	}
	if s.joined() {
		if err := lc.sampler.Change(j.ID, s.next); err != nil {
			return err
		}
	}
	was := s.sample.Subset
	s.sample.Subset, s.next = s.next, nil
	j.Change(*j.Next, epoch)
	j.Next = nil
	lc.tiering.recount(s, s.sample.Subset, true)
	lc.tiering.recount(s, was, false)
	return nil
}

// isGone reports whether the object was removed from the job's dataset, or replaced in it, since its subset was
// selected.
func (s *stream) isGone(x ident.ObjectID) bool { return s.gone != nil && s.gone.Has(uint32(x)) }

// removed is the report on a sample that is gone. It is drawn like any other and left out of its batch, as quarantined
// ones are: so the cells keep their proportions, and all ranks still get equally many batches.
func removed(x ident.ObjectID) jobs.Bad {
	return jobs.Bad{Object: x, Reason: "removed from the dataset", Kind: jobs.SampleRemoved}
}

// goneFor reports whether a job that waits for the flight was told that its object was removed: then that it cannot be
// read says nothing about the sample, which may come back.
func (fl *flights) goneFor(f *flight) bool {
	for _, w := range f.rows {
		if w.d.s.isGone(f.key.Object) {
			return true
		}
	}
	return slices.ContainsFunc(f.augments, fl.goneFor)
}

// pause begins or ends the pause of a job: a paused job plans nothing.
func (lc *lifecycle) pause(e Pause) {
	s := lc.roster.streams[e.Job]
	if s == nil {
		lc.step.reply(e.Token, Reply{Err: jobGone(e.Job, "")})
		return
	}
	j := s.job
	switch {
	case e.On && j.Draining():
		lc.step.reply(e.Token, Reply{Err: errs.New(errs.JobEnded, j.Spec.Name, "kill it if it is to stop at once",
			"pause job %s, which is being drained", j.Spec.Name)})
		return
	case e.On && !j.Paused():
		if j.Active() {
			lc.setActive(s, false)
			lc.needs.refreshNeeds(s)
		}
		j.Pause()
		lc.step.persist(RecordPaused{Job: j.ID}, nil)
	case !e.On:
		lc.unpause(s)
	}
	lc.step.answer(e.Token, Reply{Job: j.ID})
}

// unpause ends the pause of a job, which continues where it was.
func (lc *lifecycle) unpause(s *stream) {
	if s.job.Paused() {
		s.job.Unpause()
		lc.afterPause(s)
	}
}

// afterPause makes a job plan again whose pause has ended.
func (lc *lifecycle) afterPause(s *stream) {
	j := s.job
	for r := range j.Ranks {
		j.Ranks[r].LastTake, j.Ranks[r].Heard = lc.step.now, lc.step.now // it was not idle, it was stopped
	}
	lc.step.persist(RecordUnpaused{Job: j.ID}, nil)
	if j.Attached() > 0 {
		lc.activate(s)
		lc.advance(s)
		lc.planner.plan(s)
	}
}

// promise states what an order keeps, in the sampler's own words, before the job draws.
func promise(e Register) string {
	if e.Spec.Given {
		return "given: the client says which samples come and when, as often as it likes; no other job's order depends on it"
	}
	spec := e.Sample
	spec.Subset = []ident.ObjectID{0}
	s := dsa.New(0)
	if s.Join(1, spec) != nil {
		return "" // the sampler will say why when the job begins
	}
	return s.Promise(1)
}
