package coresim

import (
	"slices"
	"time"

	"larder/internal/coordinator"
	"larder/internal/ident"
)

// What happens to clients that live on: their connection is cut, their daemon dies, or their training continues in
// another job.

// cut ends the connection of a rank. Its client comes back after a while and continues where it was.
func (s *crowd) cut(c *simClient, rank int, away time.Duration) {
	k := c.ranks[rank]
	if k == nil || c.departed || k.phase == gone || k.phase == asking {
		return
	}
	s.cuts++
	s.lose(k)
	s.report(coordinator.Detached{Job: c.id, Rank: k.rank, Inc: k.inc, Lives: true})
	s.clock.after(away, func() { s.reconnect(c, k) })
}

// lose ends an attachment as its client sees it: what was on its way is lost.
func (s *crowd) lose(k *simRank) {
	k.become(gone)
	k.away = true
	for _, x := range k.inbox {
		s.machine.rows.release(x.Delivery)
	}
	k.inbox = nil
}

// reconnect takes a rank again for the client that had it.
func (s *crowd) reconnect(c *simClient, was *simRank) {
	if !was.away || c.departed || c.ranks[was.rank] != was {
		return
	}
	was.away = false
	s.ask(func(t coordinator.Token) coordinator.Event {
		return coordinator.Attach{Token: t, Job: c.id, Rank: was.rank, Held: was.inc}
	}, func(r coordinator.Reply) {
		if r.Err != nil {
			s.checks.fail("attach %s again: %v", c.c.Spec.Name, r.Err)
			return
		}
		k := &simRank{rank: was.rank, inc: r.Inc, epoch: was.epoch, got: was.got, inEpoch: was.inEpoch, bad: was.bad,
			batches: was.batches, rec: was.rec, ended: map[uint32]*coordinator.EndEpoch{}, since: s.clock.now,
			again: was.again}
		c.ranks[k.rank] = k
		s.resume(c, k)
	})
}

// resume asks for the rest of a rank's epoch.
func (s *crowd) resume(c *simClient, k *simRank) {
	s.ask(func(t coordinator.Token) coordinator.Event {
		return coordinator.StartEpoch{Token: t, Job: c.id, Rank: k.rank, Inc: k.inc, Epoch: k.epoch, From: k.inEpoch + 1}
	}, func(r coordinator.Reply) {
		if r.Err != nil {
			s.checks.fail("step %d of epoch %d of %s: %v", k.inEpoch, k.epoch, c.c.Spec.Name, r.Err)
			return
		}
		if k.phase != gone {
			k.become(waiting)
			s.tell(c, k)
			s.next(c, k)
		}
	})
}

// tell gives the next batches of an index stream, as far ahead as the client may.
func (s *crowd) tell(c *simClient, k *simRank) {
	if c.c.Given == nil {
		return
	}
	all := c.c.Given(k.epoch)
	first := max(k.told, k.inEpoch)
	last := min(len(all), k.inEpoch+c.c.Spec.StreamAhead())
	if last <= first && last < len(all) || k.told > len(all) {
		return
	}
	k.told = last
	if last == len(all) {
		k.told++ // the end, too
	}
	s.ask(func(t coordinator.Token) coordinator.Event {
		return coordinator.Picks{Token: t, Job: c.id, Rank: k.rank, Inc: k.inc, Epoch: k.epoch, First: first,
			Batches: all[first:last], End: last == len(all)}
	}, func(r coordinator.Reply) {
		if r.Err != nil {
			s.checks.fail("steps %d to %d of epoch %d of %s: %v", first, last, k.epoch, c.c.Spec.Name, r.Err)
		}
	})
}

// resumeElsewhere kills the job of a client, whose training continues in another job with what is left of the epoch.
func (s *crowd) resumeElsewhere(c *simClient) {
	step, epoch := c.ranks[0].inEpoch, c.ranks[0].epoch
	for _, k := range c.ranks {
		if k == nil || k.epoch != epoch || k.phase == gone {
			return
		}
		step = min(step, k.inEpoch)
	}
	rest := s.journal.jobs[c.id].left(epoch, step)
	if rest == nil || len(rest.Before) >= len(c.c.Sample.Subset) {
		return
	}
	next := *c.c.Then
	s.resumed = append(s.resumed, Resumed{next.Spec.Name, c.c.Spec.Name, epoch, rest.Before})
	for _, k := range c.ranks {
		s.lose(k)
		k.away = false
	}
	s.depart(c)
	s.report(coordinator.Kill{Job: c.id, Reason: "its training continues in another job"})
	s.pending++
	s.clock.after(time.Millisecond, func() { s.joinWith(&next, rest) })
}

// selections are the subsets that a job begins with: what is left of an epoch, then the whole.
func selections(c *Client, rest *coordinator.Rest) []Selection {
	if rest == nil {
		return []Selection{{0, c.Sample.Subset}}
	}
	left := slices.DeleteFunc(slices.Clone(c.Sample.Subset), func(x ident.ObjectID) bool {
		return slices.Contains(rest.Before, x)
	})
	return []Selection{{rest.Epoch, left}, {rest.Epoch + 1, c.Sample.Subset}}
}

// lives reports whether the process of a rank's client lives.
func (s *crowd) lives(id ident.JobID, rank int) bool {
	c := s.clients[id]
	if c == nil || c.ranks[rank] == nil {
		return false
	}
	k := c.ranks[rank]
	return !k.dead && (k.phase != gone || k.away)
}

// restart has the daemon die, and another one restore the jobs from the journal. Clients live on. A request that is
// not answered yet is waited for: what a client does without an answer is not modelled.
func (s *sim) restart() {
	if s.crowd.open > 0 {
		s.clock.after(10*time.Microsecond, s.restart)
		return
	}
	s.daemon++
	s.clock.forgetTasks()
	was := s.machine
	s.machine = newMachine(s.m, &s.clock, &s.checks, s.step, s.ofDaemon)
	s.machine.jobs, s.machine.memory.sizes, s.machine.memory.peak = was.jobs, was.memory.sizes, was.memory.peak
	s.timer = time.Time{}
	if err := s.begin(); err != nil {
		s.checks.fail("restart: %v", err)
		return
	}
	var back []*simRank
	for _, id := range s.crowd.journal.ids {
		c := s.crowd.clients[id]
		if c == nil || c.departed {
			continue
		}
		for _, k := range c.ranks {
			if k != nil && k.phase != gone {
				s.crowd.lose(k)
				back = append(back, k)
			}
		}
	}
	for _, ev := range s.crowd.journal.restores(s.crowd.lives) {
		s.crowd.ask(func(t coordinator.Token) coordinator.Event {
			ev.Token = t
			return ev
		}, func(r coordinator.Reply) {
			if r.Err != nil {
				s.checks.fail("restore job %d: %v", ev.ID, r.Err)
			}
		})
	}
	for _, id := range s.crowd.journal.ids {
		if s.crowd.journal.jobs[id].ended {
			s.core.Reserve(id)
		}
		c := s.crowd.clients[id]
		if c == nil || c.departed {
			continue
		}
		for _, k := range c.ranks {
			if slices.Contains(back, k) {
				s.clock.after(time.Millisecond, func() { s.crowd.reconnect(c, k) })
			}
		}
	}
}
