package coordinator

import (
	"fmt"
	"slices"

	"larder/dsa"
	"larder/internal/bits"
	"larder/internal/errs"
	"larder/jobs"
)

// lifecycle is jobs, their clients and their epochs: who registers, attaches, asks for an epoch, leaves, vanishes and
// comes back, and what a restarted daemon puts back. What is in a batch is the planner's.
type lifecycle struct {
	cfg     *Config
	step    *step
	roster  *roster
	needs   *needs
	tiering *tiering
	flights *flights
	planner *planner
	sampler *dsa.Sampler

	jobs *jobs.Registry
}

// register adds a job; the answer leaves when its record is durable.
func (c *lifecycle) register(e Register) {
	if err := e.Spec.Validate(); err != nil {
		c.step.reply(e.Token, Reply{Err: err})
		return
	}
	if len(c.roster.order) >= bits.MaxJobs {
		c.step.reply(e.Token, Reply{Err: errs.New(errs.ResourceExceeded, e.Spec.Name, "end a job first",
			"register job %s: %d jobs draw already, which is the limit of one daemon", e.Spec.Name, bits.MaxJobs)})
		return
	}
	if e.Member == nil {
		e.Member = Members(e.Sample.Subset)
	}
	job, err := c.jobs.Add(e.Spec, e.Member)
	if err != nil {
		c.step.reply(e.Token, Reply{Err: err})
		return
	}
	s := c.newStream(job, e)
	if e.Rest != nil {
		c.takeRest(s, e.Rest)
	}
	c.step.persist(RecordRegistered{Job: job.ID, Token: e.Token, Name: e.Spec.Name, Seed: s.seed}, func() {
		c.step.reply(e.Token, Reply{Job: job.ID})
	})
}

// newStream makes a job part of the core.
func (c *lifecycle) newStream(job *jobs.Job, e Register) *stream {
	s := &stream{
		job: job, dataset: c.tiering.datasetOf(e.Dataset,
			e.Names), sample: e.Sample, prefix: c.roster.prefixOf(e.Prefix), suffix: e.Suffix, seed: e.Sample.Seed,
		augBytes: e.AugmentedBytes, tail: e.Spec.Subset, ranks: make([]rankQueue,
			e.Spec.World), script: e.Script, knownBad: new(bits.Set),
	}
	if e.Share {
		c.roster.joinGroup(s, e.Key)
	}
	c.roster.streams[job.ID] = s
	c.roster.order = append(c.roster.order, s)
	job.Promise = promise(e.Sample)
	for _, ids := range e.Strata {
		if err := c.sampler.Stratum(ids); err != nil {
			c.step.complain(job.ID, err)
		}
	}
	c.tiering.recount(s, e.Sample.Subset, true)
	return s
}

// enrol makes a job begin to draw.
func (c *lifecycle) enrol(s *stream) error {
	j := s.job
	s.sample.Recipe = uint32(s.prefix)
	s.sample.Ahead = j.Spec.Batch * j.Spec.Slots * j.Spec.World // all its free slots are planned at once
	if err := c.sampler.Join(j.ID, s.sample); err != nil {
		return err
	}
	s.joined = true
	c.enlist(s, true)
	c.roster.inOrder = c.roster.inOrder || s.sample.Mode == dsa.Sequential
	return nil
}

// enlist keeps whom decoded samples serve: a job begins to draw, or ends.
func (c *lifecycle) enlist(s *stream, in bool) {
	p := &c.roster.prefixes[s.prefix]
	if in {
		s.set = c.sampler.JobSet(s.job.ID)
		p.jobs |= s.set
	} else {
		p.jobs &^= s.set
		s.set = 0
	}
}

// touch marks the job as drawing: it needs what remains of its epoch (guarantee G5).
func (c *lifecycle) touch(s *stream) {
	if s.joined && !s.job.Active && !s.job.Paused {
		c.setActive(s, true)
		c.needs.refreshNeeds()
	}
}

func (c *lifecycle) setActive(s *stream, on bool) {
	s.job.Active = on
	if s.joined {
		c.sampler.SetActive(s.job.ID, on)
	}
}

func (c *lifecycle) drain(e Drain) {
	s := c.roster.streams[e.Job]
	if s == nil {
		c.step.reply(e.Token, Reply{Err: jobGone(e.Job, "")})
		return
	}
	s.job.Drain = true
	c.unpause(s) // it is to finish its epoch
	c.endIfDrained(s)
	c.step.answer(e.Token, Reply{Job: e.Job})
}

// endIfDrained ends a draining job when no client is in the middle of an epoch any more.
func (c *lifecycle) endIfDrained(s *stream) {
	if !s.job.Drain || s.job.State.Ended() {
		return
	}
	for r := range s.job.Ranks {
		if k := s.ranks[r].kept; s.job.Busy(r) || k != nil && !k.waiting && k.asked >= 0 && !k.ended {
			return
		}
	}
	c.endJob(s, jobs.Done, "drained")
}

func (c *lifecycle) kill(e Kill) {
	s := c.roster.streams[e.Job]
	if s == nil {
		c.step.reply(e.Token, Reply{Err: jobGone(e.Job, "")})
		return
	}
	switch {
	case !e.Unused:
		c.endJob(s, jobs.Dead, e.Reason)
	case !slices.ContainsFunc(s.job.Ranks, func(k jobs.Rank) bool { return k.Attaches > 0 }):
		c.endJob(s, jobs.Done, "its client left before its first epoch")
	}
	c.step.answer(e.Token, Reply{Job: e.Job})
}

// endJob takes a job out of everything; others keep their picks, cells and speed.
func (c *lifecycle) endJob(s *stream, state jobs.State, reason string) {
	j := s.job
	for r := range j.Ranks {
		if k := &j.Ranks[r]; k.Attached() {
			k.Vanish()
			c.step.emit(CloseRank{Job: j.ID, Rank: r, Inc: k.Incarnation, Reason: reason})
		}
		c.planner.cancel(s, r, nil)
	}
	if l := j.Ledger(); l != nil && !s.restored() && l.Open() && l.Delivered == 0 &&
		!slices.ContainsFunc(j.Ranks, func(k jobs.Rank) bool { return k.Asked == int64(l.Epoch) }) {
		j.Forget() // it was only prepared ahead: no client began it
	}
	c.jobs.End(j, state, reason)
	if s.joined {
		c.enlist(s, false)
		c.sampler.Leave(j.ID)
		s.joined = false
	}
	c.roster.leaveGroup(s)
	delete(c.roster.streams, j.ID)
	for i, o := range c.roster.order {
		if o == s {
			c.roster.order = append(c.roster.order[:i], c.roster.order[i+1:]...)
			break
		}
	}
	c.step.persist(RecordEnded{Job: j.ID, Reason: reason}, nil)
	c.step.emit(JobEnded{Job: j.ID})
	c.tiering.recount(s, s.sample.Subset, false)
	c.needs.refreshNeeds()
}

// tick lets leases run out and takes stalled jobs out of the needs.
func (c *lifecycle) tick() {
	for _, j := range c.jobs.Expired(c.step.now) {
		if s := c.roster.streams[j.ID]; s != nil {
			c.expired(s)
		}
	}
	if c.cfg.IdleTimeout > 0 {
		c.loseIdle()
	}
	changed := false
	for _, s := range c.roster.order {
		if at := c.idleAt(s); s.joined && s.job.Active && !at.IsZero() && !at.After(c.step.now) {
			c.setActive(s, false)
			changed = true
		}
	}
	if changed {
		c.needs.refreshNeeds()
	}
}

// expired ends a job whose client did not come back, and is not there to. While other ranks continue their epoch the
// job lives; it ends when one of them would wait for the lost rank forever.
func (c *lifecycle) expired(s *stream) {
	j := s.job
	waits := s.held()
	for r := range j.Ranks {
		waits = waits || j.Ranks[r].Phase == jobs.Waiting
	}
	switch {
	case c.mayCome(s):
		c.jobs.Suspect(j, c.step.now)
	case j.Attached() == 0:
		c.endJob(s, jobs.Dead, "its client vanished and did not come back within the lease")
	case waits:
		c.endJob(s, jobs.Dead, fmt.Sprintf("the client of rank %d vanished and did not come back within the lease",
			j.Vanished()))
	case j.Drain:
		for r := range j.Ranks {
			c.dropKept(s, r)
		}
		c.planner.mayDeal(s)
		c.jobs.Suspect(j, c.step.now)
		c.endIfDrained(s)
	default:
		c.jobs.Suspect(j, c.step.now)
	}
}
