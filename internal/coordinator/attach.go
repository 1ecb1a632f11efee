package coordinator

import (
	"slices"
	"time"

	"larder/internal/errs"
	"larder/jobs"
)

// attach gives a rank to a client.
func (lc *lifecycle) attach(e Attach) {
	s := lc.roster.streams[e.Job]
	if s == nil {
		lc.step.reply(e.Token, Reply{Err: jobGone(e.Job, "")})
		return
	}
	j := s.job
	if e.Rank < 0 || e.Rank >= j.Spec.World {
		lc.step.reply(e.Token, Reply{Err: errs.New(errs.Invalid, j.Spec.Name, "ranks count from 0",
			"attach rank %d of job %s, which has world_size %d",
			e.Rank, j.Spec.Name, j.Spec.World)})
		return
	}
	k := &j.Ranks[e.Rank]
	if k.Attached() && e.Again == k.Incarnation { // the end of its old connection is yet to be seen
		lc.endAttachment(s, e.Rank, false, CloseRank{})
		if lc.roster.streams[e.Job] == nil {
			lc.step.reply(e.Token, Reply{Err: jobGone(e.Job, j.Spec.Name)})
			return
		}
	}
	if e.Held != 0 && e.Held < k.Incarnation {
		lc.step.reply(e.Token, Reply{Err: errs.New(errs.Stale, j.Spec.Name, "make a new Loader",
			"attach rank %d of job %s as incarnation %d, which incarnation %d has replaced",
			e.Rank, j.Spec.Name, e.Held, k.Incarnation)})
		return
	}
	if k.Attached() {
		lc.step.reply(e.Token, Reply{Err: errs.New(errs.RankHeld, j.Spec.Name,
			"give this Loader another job name, or end the other process",
			"rank %d of job %s is held by a live client (incarnation %d)",
			e.Rank, j.Spec.Name, k.Incarnation)})
		return
	}
	lc.jobs.Recover(j)
	inc := j.Attach(e.Rank, lc.step.now)
	if j.Vanished() >= 0 {
		lc.jobs.Suspect(j, lc.step.now)
	}
	if s.ranks[e.Rank].returned = e.Held != 0; e.Held == 0 {
		lc.dropKept(s, e.Rank)
		lc.planner.requestDeal(s)
	}
	next, rest := uint32(0), s.rest != nil
	switch {
	case j.Begun():
		next = s.firstEpoch(e.Rank)
	case rest:
		next = s.rest.Epoch
	}
	s.ranks[e.Rank].lives = false // it has come
	lc.step.persist(RecordAttached{Job: j.ID, Rank: e.Rank, Inc: inc, Client: e.Client}, func() {
		lc.step.reply(e.Token, Reply{Job: j.ID, Inc: inc, Epoch: next, Rest: rest})
	})
}

// detached frees what a client held. Samples that it was not given return to the job.
func (lc *lifecycle) detached(e Detached) {
	s, k := lc.roster.live(e.Job, e.Rank, e.Inc)
	if s == nil {
		return
	}
	lc.waited(s, k, e.Waited)
	s.ranks[e.Rank].lives = e.Lives
	lc.endAttachment(s, e.Rank, e.Clean, CloseRank{})
}

// endAttachment ends the attachment of a rank's client; how is the effect that says why.
func (lc *lifecycle) endAttachment(s *stream, r int, clean bool, how CloseRank) {
	j, k := s.job, &s.job.Ranks[r]
	was := *k
	if clean {
		k.Leave()
	} else {
		k.Vanish()
	}
	if clean || how.Stale {
		s.ranks[r].sent = nil
		lc.planner.cancel(s, r, nil)
		lc.dropKept(s, r)
	} else {
		lc.keepForReconnect(s, r, was)
	}
	how.Job, how.Rank, how.Inc = j.ID, r, k.Incarnation
	lc.step.emit(how)
	lc.planner.requestDeal(s)
	if !clean {
		lc.jobs.Suspect(j, lc.step.now)
	}
	switch {
	case j.Draining():
		lc.endIfDrained(s)
	case j.Attached() > 0:
		lc.advance(s)
		lc.planner.plan(s)
	case clean && j.Vanished() < 0: // else a rank has its lease to come back
		lc.endJob(s, jobs.Done, "its client left")
	default:
		lc.setActive(s, false)
		lc.needs.refreshNeeds(s)
	}
}

// clientGone begins the lease of a job whose client has ended: no client will come back unless it is started again.
func (lc *lifecycle) clientGone(e ClientGone) {
	s := lc.roster.streams[e.Job]
	if s == nil || e.Rank < 0 || e.Rank >= len(s.ranks) || s.job.Ranks[e.Rank].Incarnation != e.Inc ||
		!s.ranks[e.Rank].lives {
		return
	}
	s.ranks[e.Rank].lives = false
	if s.job.State == jobs.Suspect {
		lc.jobs.Suspect(s.job, lc.step.now)
	}
}

// mayReturn reports whether the process of a client that vanished lives: it hears of its loss with its next call,
// however late that is.
func (lc *lifecycle) mayReturn(s *stream) bool {
	for r := range s.ranks {
		k := &s.job.Ranks[r]
		if s.connectionLost(r) && (lc.cfg.IdleTimeout <= 0 || lc.step.now.Sub(k.Heard) < lc.cfg.IdleTimeout) {
			return true
		}
	}
	return false
}

func (lc *lifecycle) released(e Released) {
	s, k := lc.roster.live(e.Job, e.Rank, e.Inc)
	if s == nil || !k.Release(e.Slot, e.Gen) {
		return // an old client, or a slot taken back: nothing of it may count
	}
	q := &s.ranks[e.Rank]
	q.sent = slices.DeleteFunc(q.sent, func(d *delivery) bool {
		if d.slot != e.Slot || d.gen != e.Gen {
			return false
		}
		spareArray(&lc.planner.spareRows, d.rows) // nothing waits in a batch that was sent
		d.rows = nil
		return true
	})
	at := lc.step.now.Add(-max(e.Ago, 0))
	if at.Before(k.LastTake) {
		at = k.LastTake
	}
	k.Took(at, e.Waited)
	s.keeping.idle = e.Waited <= patience
	if at.After(k.Heard) {
		k.Heard = at
	}
	lc.waited(s, k, e.Waited)
	lc.activate(s)
	lc.planner.plan(s)
}

// waited counts what a rank has waited.
func (lc *lifecycle) waited(s *stream, k *jobs.Rank, d time.Duration) {
	k.Waited += d
	s.job.Stats.Wait += d
	lc.roster.datasets[s.dataset].stats.Wait += d
	lc.step.stats.Wait += d
}
