package coordinator

import (
	"larder/internal/errs"
	"larder/jobs"
	"slices"
	"time"
)

// attach gives a rank to a client.
func (c *lifecycle) attach(e Attach) {
	s := c.roster.streams[e.Job]
	if s == nil {
		c.step.reply(e.Token, Reply{Err: jobGone(e.Job, "")})
		return
	}
	j := s.job
	if e.Rank < 0 || e.Rank >= j.Spec.World {
		c.step.reply(e.Token, Reply{Err: errs.New(errs.Invalid, j.Spec.Name, "ranks count from 0",
			"attach rank %d of job %s, which has world_size %d",
			e.Rank, j.Spec.Name, j.Spec.World)})
		return
	}
	k := &j.Ranks[e.Rank]
	if k.Attached() && e.Again == k.Incarnation { // the end of its old connection is yet to be seen
		c.lose(s, e.Rank, false, CloseRank{})
		if c.roster.streams[e.Job] == nil {
			c.step.reply(e.Token, Reply{Err: jobGone(e.Job, j.Spec.Name)})
			return
		}
	}
	if e.Held != 0 && e.Held < k.Incarnation {
		c.step.reply(e.Token, Reply{Err: errs.New(errs.Stale, j.Spec.Name, "make a new Loader",
			"attach rank %d of job %s as incarnation %d, which incarnation %d has replaced",
			e.Rank, j.Spec.Name, e.Held, k.Incarnation)})
		return
	}
	if k.Attached() {
		c.step.reply(e.Token, Reply{Err: errs.New(errs.RankHeld, j.Spec.Name,
			"give this Loader another job name, or end the other process",
			"rank %d of job %s is held by a live client (incarnation %d)",
			e.Rank, j.Spec.Name, k.Incarnation)})
		return
	}
	c.jobs.Recover(j)
	inc := j.Attach(e.Rank, c.step.now)
	if j.Vanished() >= 0 {
		c.jobs.Suspect(j, c.step.now)
	}
	if s.ranks[e.Rank].returned = e.Held != 0; e.Held == 0 {
		c.dropKept(s, e.Rank)
		c.planner.mayDeal(s)
	}
	next, rest := uint32(0), s.rest != nil
	switch {
	case j.Begun:
		next = s.firstEpoch(e.Rank)
	case rest:
		next = s.rest.Epoch
	}
	s.ranks[e.Rank].lives = false // it has come
	c.step.persist(RecordAttached{Job: j.ID, Rank: e.Rank, Inc: inc, Client: e.Client}, func() {
		c.step.reply(e.Token, Reply{Job: j.ID, Inc: inc, Epoch: next, Rest: rest})
	})
}

// detached frees what a client held. Samples that it was not given return to the job.
func (c *lifecycle) detached(e Detached) {
	s, k := c.roster.live(e.Job, e.Rank, e.Inc)
	if s == nil {
		return
	}
	c.waited(s, k, e.Waited)
	s.ranks[e.Rank].lives = e.Lives
	c.lose(s, e.Rank, e.Clean, CloseRank{})
}

// lose takes a rank from its client; how says why its attachment ends.
func (c *lifecycle) lose(s *stream, r int, clean bool, how CloseRank) {
	j, k := s.job, &s.job.Ranks[r]
	was := *k
	if clean {
		k.Leave()
	} else {
		k.Vanish()
	}
	if clean || how.Stale {
		s.ranks[r].sent = nil
		c.planner.cancel(s, r, nil)
		c.dropKept(s, r)
	} else {
		c.keep(s, r, was)
	}
	how.Job, how.Rank, how.Inc = j.ID, r, k.Incarnation
	c.step.emit(how)
	c.planner.mayDeal(s)
	if !clean {
		c.jobs.Suspect(j, c.step.now)
	}
	switch {
	case j.Drain:
		c.endIfDrained(s)
	case j.Attached() > 0:
		c.advance(s)
		c.planner.plan(s)
	case clean && j.Vanished() < 0: // else a rank has its lease to come back
		c.endJob(s, jobs.Done, "its client left")
	default:
		c.setActive(s, false)
		c.needs.refreshNeeds()
	}
}

// clientGone begins the lease of a job whose client has ended: no client will come back unless it is started again.
func (c *lifecycle) clientGone(e ClientGone) {
	s := c.roster.streams[e.Job]
	if s == nil || e.Rank < 0 || e.Rank >= len(s.ranks) || s.job.Ranks[e.Rank].Incarnation != e.Inc ||
		!s.ranks[e.Rank].lives {
		return
	}
	s.ranks[e.Rank].lives = false
	if s.job.State == jobs.Suspect {
		c.jobs.Suspect(s.job, c.step.now)
	}
}

// mayCome reports whether the process of a client that vanished lives: it hears of its loss with its next call, however
// late that is.
func (c *lifecycle) mayCome(s *stream) bool {
	for r := range s.ranks {
		k := &s.job.Ranks[r]
		if s.hasLost(r) && (c.cfg.IdleTimeout <= 0 || c.step.now.Sub(k.Heard) < c.cfg.IdleTimeout) {
			return true
		}
	}
	return false
}

func (c *lifecycle) released(e Released) {
	s, k := c.roster.live(e.Job, e.Rank, e.Inc)
	if s == nil || !k.Release(e.Slot, e.Gen) {
		return // an old client, or a slot taken back: nothing of it may count
	}
	q := &s.ranks[e.Rank]
	q.sent = slices.DeleteFunc(q.sent, func(d *delivery) bool { return d.slot == e.Slot && d.gen == e.Gen })
	k.Took(c.step.now, e.Waited)
	k.Heard = c.step.now
	c.waited(s, k, e.Waited)
	c.touch(s)
	c.planner.plan(s)
}

// waited counts what a rank has waited.
func (c *lifecycle) waited(s *stream, k *jobs.Rank, d time.Duration) {
	k.Waited += d
	s.job.Stats.Wait += d
	c.roster.datasets[s.dataset].stats.Wait += d
	c.step.stats.Wait += d
}
