package coordinator

import (
	"fmt"
	"slices"

	"larder/dsa"
	"larder/internal/bits"
	"larder/internal/errs"
	"larder/jobs"
)

// lifecycle decides when jobs, attachments and epochs begin and end: it handles registration, attachment, requests for
// an epoch, departure, reconnection, and the restart of a daemon. What is in a batch is up to the planner.
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
func (lc *lifecycle) register(e Register) {
	if err := e.Spec.Validate(); err != nil {
		lc.step.reply(e.Token, Reply{Err: err})
		return
	}
	if live := len(lc.roster.order); live >= min(bits.MaxJobs, lc.cfg.MaxJobs) {
		giveWay(lc)
	}
	if len(lc.roster.order) >= bits.MaxJobs {
		lc.step.reply(e.Token, Reply{Err: errs.New(errs.JobLimit, e.Spec.Name, "end a job first",
			"register job %s: %d jobs draw already, which is the limit of one daemon", e.Spec.Name, bits.MaxJobs)})
		return
	}
	if e.Member == nil {
		e.Member = Members(e.Sample.Subset)
	}
	job, err := lc.jobs.Add(e.Spec, e.Member)
	if err != nil {
		lc.step.reply(e.Token, Reply{Err: err})
		return
	}
	s := lc.newStream(job, e)
	if e.Rest != nil {
		lc.takeRest(s, e.Rest)
	}
	lc.step.persist(RecordRegistered{Job: job.ID, Token: e.Token, Name: e.Spec.Name, Seed: s.seed}, func() {
		lc.step.reply(e.Token, Reply{Job: job.ID})
	})
}

// newStream enters a job in the roster.
func (lc *lifecycle) newStream(job *jobs.Job, e Register) *stream {
	s := &stream{
		job: job, dataset: lc.tiering.datasetOf(e.Dataset,
			e.Names), sample: e.Sample, prefix: lc.roster.prefixOf(e.Prefix), suffix: e.Suffix, seed: e.Sample.Seed,
		augBytes: e.AugmentedBytes, tail: e.Spec.Subset, ranks: make([]rankQueue,
			e.Spec.World), script: e.Script, knownBad: new(bits.Set), making: e.Making,
	}
	if e.Share {
		lc.roster.joinGroup(s, e.Key)
	}
	lc.roster.streams[job.ID] = s
	lc.roster.order = append(lc.roster.order, s)
	job.Promise = promise(e)
	for _, ids := range e.Strata {
		if err := lc.sampler.Stratum(ids); err != nil {
			lc.step.complain(job.ID, err)
		}
	}
	lc.tiering.recount(s, e.Sample.Subset, true)
	return s
}

// joinSampler makes the sampler draw for a job; one of order given it does not get to know.
func (lc *lifecycle) joinSampler(s *stream) error {
	j := s.job
	if j.Spec.Given {
		s.become(samplingGiven)
		return nil
	}
	s.sample.Recipe = uint32(s.prefix)
	s.sample.Ahead = j.Spec.Batch * j.Spec.Slots * j.Spec.World // all its free slots are planned at once
	if err := lc.sampler.Join(j.ID, s.sample); err != nil {
		return err
	}
	s.become(samplingDraws)
	lc.roster.joinPrefix(s, lc.sampler.JobSet(j.ID))
	return nil
}

// activate marks the job as drawing: it needs what remains of its epoch (guarantee G5).
func (lc *lifecycle) activate(s *stream) {
	if s.draws() && !s.job.Active() && !s.job.Paused() {
		lc.setActive(s, true)
		lc.needs.refreshNeeds(s)
	}
}

func (lc *lifecycle) setActive(s *stream, on bool) {
	s.job.SetActive(on)
	if s.joined() {
		lc.sampler.SetActive(s.job.ID, on)
	}
}

func (lc *lifecycle) drain(e Drain) {
	s := lc.roster.streams[e.Job]
	if s == nil {
		lc.step.reply(e.Token, Reply{Err: jobGone(e.Job, "")})
		return
	}
	paused := s.job.Paused()
	s.job.StartDraining()
	if paused { // it is to finish its epoch
		lc.afterPause(s)
	}
	lc.endIfDrained(s)
	lc.step.answer(e.Token, Reply{Job: e.Job})
}

// endIfDrained ends a draining job when no client is in the middle of an epoch any more.
func (lc *lifecycle) endIfDrained(s *stream) {
	if !s.job.Draining() || s.job.State.Ended() {
		return
	}
	for r := range s.job.Ranks {
		if k := s.ranks[r].kept; s.job.Busy(r) || k != nil && k.phase == keptRunning {
			return
		}
	}
	lc.endJob(s, jobs.Done, "drained")
}

func (lc *lifecycle) kill(e Kill) {
	s := lc.roster.streams[e.Job]
	if s == nil {
		lc.step.reply(e.Token, Reply{Err: jobGone(e.Job, "")})
		return
	}
	switch {
	case !e.Unused:
		lc.endJob(s, jobs.Dead, e.Reason)
	case jobs.Unattached(s.job):
		lc.endJob(s, jobs.Done, "its client left before its first epoch")
	}
	lc.step.answer(e.Token, Reply{Job: e.Job})
}

// endJob takes a job out of everything; others keep their picks, cells and speed.
func (lc *lifecycle) endJob(s *stream, state jobs.State, reason string) {
	j := s.job
	for r := range j.Ranks {
		if k := &j.Ranks[r]; k.Attached() {
			k.Vanish()
			lc.step.emit(CloseRank{Job: j.ID, Rank: r, Inc: k.Incarnation, Reason: reason})
		}
		lc.planner.cancel(s, r, nil)
	}
	if l := j.Ledger(); l != nil && !s.restored() && l.Open() && l.Delivered == 0 &&
		!slices.ContainsFunc(j.Ranks, func(k jobs.Rank) bool { return k.Asked == int64(l.Epoch) }) {
		j.Forget() // it was only prepared ahead: no client began it
	}
	lc.jobs.End(j, state, reason)
	if s.joined() {
		lc.roster.leavePrefix(s)
		lc.sampler.Leave(j.ID)
		lc.planner.moveBlocks()
		lc.planner.dropAll(s)
	}
	if s.draws() {
		s.become(samplingOutside)
	}
	lc.roster.leaveGroup(s)
	lc.flights.leave(s)
	delete(lc.roster.streams, j.ID)
	for i, o := range lc.roster.order {
		if o == s {
			lc.roster.order = append(lc.roster.order[:i], lc.roster.order[i+1:]...)
			break
		}
	}
	lc.step.persist(RecordEnded{Job: j.ID, Reason: reason}, nil)
	lc.step.emit(JobEnded{Job: j.ID})
	lc.tiering.recount(s, s.sample.Subset, false)
	lc.needs.refreshNeeds(s)
	jobs.Shed(j)
}

// tick ends the jobs whose leases ran out and the attachments of idle clients, and makes stalled jobs inactive.
func (lc *lifecycle) tick() {
	for _, j := range lc.jobs.Expired(lc.step.now) {
		if s := lc.roster.streams[j.ID]; s != nil {
			lc.expired(s)
		}
	}
	if lc.cfg.IdleTimeout > 0 {
		lc.detachIdle()
	}
	for _, s := range lc.roster.order {
		if at := lc.idleAt(s); s.draws() && s.job.Active() && !at.IsZero() && !at.After(lc.step.now) {
			lc.setActive(s, false)
			lc.needs.refreshNeeds(s)
		}
	}
}

// expired ends a job whose client did not come back and whose process has ended. While other ranks continue their epoch
// the job lives; it ends when one of them would wait for the lost rank forever.
func (lc *lifecycle) expired(s *stream) {
	j := s.job
	waits := s.waitsForAbsent()
	for r := range j.Ranks {
		waits = waits || j.Ranks[r].Phase == jobs.Waiting
	}
	switch {
	case lc.mayReturn(s):
		lc.jobs.Suspect(j, lc.step.now)
	case jobs.Unattached(j):
		lc.endJob(s, jobs.Dead, "the process that registered it ended before its first batch, and no other one "+
			"took its place within the lease")
	case j.Attached() == 0:
		lc.endJob(s, jobs.Dead, "its client vanished and did not come back within the lease")
	case waits:
		lc.endJob(s, jobs.Dead, fmt.Sprintf("the client of rank %d vanished and did not come back within the lease",
			j.Vanished()))
	case j.Draining():
		for r := range j.Ranks {
			lc.dropKept(s, r)
		}
		lc.planner.requestDeal(s)
		lc.jobs.Suspect(j, lc.step.now)
		lc.endIfDrained(s)
	default:
		lc.jobs.Suspect(j, lc.step.now)
	}
}
