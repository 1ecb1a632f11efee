package coordinator

import (
	"fmt"
	"slices"
	"time"

	"larder/dsa"
	"larder/internal/bits"
	"larder/internal/errs"
	"larder/jobs"
)

// lifecycle is jobs, their clients and their epochs: who registers, attaches, asks for an epoch, leaves, vanishes and comes
// back, and what a restarted daemon puts back. What is in a batch is the planner's.
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
		job: job, dataset: c.tiering.datasetOf(e.Dataset, e.Names), sample: e.Sample, prefix: c.roster.prefixOf(e.Prefix), suffix: e.Suffix, seed: e.Sample.Seed,
		augBytes: e.AugmentedBytes, tail: e.Spec.Subset, ranks: make([]rankQueue, e.Spec.World), script: e.Script, knownBad: new(bits.Set),
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

// enlist tells whom decoded samples serve: a job begins to draw, or ends.
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

// attach gives a rank to a client.
func (c *lifecycle) attach(e Attach) {
	s := c.roster.streams[e.Job]
	if s == nil {
		c.step.reply(e.Token, Reply{Err: jobGone(e.Job, "")})
		return
	}
	j := s.job
	if e.Rank < 0 || e.Rank >= j.Spec.World {
		c.step.reply(e.Token, Reply{Err: errs.New(errs.Invalid, j.Spec.Name, "ranks count from 0", "attach rank %d of job %s, which has world_size %d",
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
			"attach rank %d of job %s as incarnation %d, which incarnation %d has replaced", e.Rank, j.Spec.Name, e.Held, k.Incarnation)})
		return
	}
	if k.Attached() {
		c.step.reply(e.Token, Reply{Err: errs.New(errs.RankHeld, j.Spec.Name,
			"give this Loader another job name, or end the other process", "rank %d of job %s is held by a live client (incarnation %d)",
			e.Rank, j.Spec.Name, k.Incarnation)})
		return
	}
	c.jobs.Recover(j)
	inc := j.Attach(e.Rank, c.step.now)
	if j.Vanished() >= 0 {
		c.jobs.Suspect(j, c.step.now)
	}
	if s.ranks[e.Rank].returned = e.Held != 0; e.Held == 0 {
		c.giveUpKept(s, e.Rank)
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

// startEpoch serves a client's iter(). A prepared-ahead epoch nobody saw yet is simply used; anything else begins the
// epoch afresh, once all ranks of the job ask for it or are done with theirs.
func (c *lifecycle) startEpoch(e StartEpoch) {
	s, k := c.roster.live(e.Job, e.Rank, e.Inc)
	if s == nil {
		c.step.reply(e.Token, Reply{Err: c.noLonger(e.Job, e.Rank, e.Inc)})
		return
	}
	j := s.job
	if j.Spec.Epochs != 0 && e.Epoch >= j.Spec.Epochs {
		c.step.reply(e.Token, Reply{Err: errs.New(errs.JobEnded, j.Spec.Name, "register it with more epochs",
			"epoch %d of job %s, which has %d epochs", e.Epoch, j.Spec.Name, j.Spec.Epochs)})
		return
	}
	if j.Drain && !s.keeps(e.Rank, e.Epoch) && (!j.Begun || j.Epoch != e.Epoch || !c.asked(s, e.Epoch)) { // others may still wait for this rank in the running one
		c.step.reply(e.Token, Reply{Err: errs.New(errs.JobEnded, j.Spec.Name, "make a new Loader to go on",
			"epoch %d of job %s, which is being drained and begins none", e.Epoch, j.Spec.Name)})
		k.Asked = k.Ended // it is done with the running one
		if k.Phase == jobs.InEpoch {
			k.StepOut()
		}
		c.planner.cancel(s, e.Rank, nil)
		c.planner.mayDeal(s)
		c.endIfDrained(s)
		return
	}
	if _, ok := s.scripted(e.Epoch); !ok {
		c.step.reply(e.Token, Reply{Err: errs.New(errs.JobEnded, j.Spec.Name, "iterate the epochs that it has, or export more of them",
			"epoch %d of job %s, whose recorded order has %s", e.Epoch, j.Spec.Name, s.scriptedEpochs())})
		return
	}
	if err := s.agrees(e.Rank, e.Epoch); err != nil {
		c.step.reply(e.Token, Reply{Err: err})
		return
	}
	k.Got, k.Heard = 0, c.step.now
	q := &s.ranks[e.Rank]
	q.sent = nil // whoever asks for an epoch has had what he wanted of the one before
	from := e.From
	switch {
	case from == 1 && (!j.Begun || e.Epoch > j.Epoch):
		from = 0 // it was asked for, and had not begun
	case q.kept != nil:
		from = s.onAgain(e.Rank, e.Epoch, from)
	case from == 0 && q.returned && q.recovery == recoveryOffered && e.Epoch == j.Epoch && k.Phase != jobs.InEpoch:
		from = 1 // the client has seen nothing of it, its neighbours may have
	}
	switch {
	case from > 0:
	case q.kept != nil:
		c.leaveKept(s, e.Rank, e.Epoch)
		c.giveUpKept(s, e.Rank)
	case s.restored():
		c.hadAll(s, e.Rank, e.Epoch)
	}
	switch {
	case from > 0:
		if err := c.goOn(s, e.Rank, e.Epoch, from-1); err != nil {
			c.step.reply(e.Token, Reply{Err: err})
			return
		}
	case k.Phase == jobs.InEpoch && k.Epoch == e.Epoch && k.Sent == 0:
		k.Asked = int64(e.Epoch) // prepared ahead, or a second iter() before the first batch
		c.planner.cancelBefore(s, e.Rank, e.Epoch)
	case j.Begun && j.Epoch == e.Epoch && k.Phase == jobs.Idle && k.Attaches == 1 && k.Asked < 0:
		k.Asked = int64(e.Epoch) // a rank that comes later than the others to the epoch they are in
		c.enter(s, e.Rank)
		defer c.endEmpty(s)
	default:
		k.Await(e.Epoch)
		c.planner.cancel(s, e.Rank, nil) // after the rank has left the epoch: nothing is planned into the slots that come free
	}
	spec := j.Upcoming()
	if k.Phase == jobs.InEpoch {
		spec = j.Spec
	}
	r := Reply{Job: j.ID, Epoch: e.Epoch, Samples: spec.Subset, Batches: spec.Batches(e.Rank)}
	r.Whole, r.WholeBatches = s.wholeOf(e.Epoch, e.Rank)
	c.step.reply(e.Token, r)
	c.touch(s)
	c.advance(s)
	c.planner.plan(s)
	c.planner.sendReady(s, e.Rank)
	c.planner.mayDeal(s)
}

// advance begins the next epoch when every rank is done with the running one: it asked for another, or all its batches
// are planned and its client is in this epoch (so planning is ahead of the clients by one epoch at the most).
func (c *lifecycle) advance(s *stream) {
	j := s.job
	if j.Drain || j.Paused || s.owesBack() && !c.allAsk(s) {
		return
	}
	for r := range j.Ranks {
		if s.isBehind(r) {
			return
		}
	}
	next, asked := c.awaited(s)
	if !asked {
		if !j.Begun || j.Attached() == 0 {
			return
		}
		next = j.Epoch + 1
		if j.Spec.Epochs != 0 && next >= j.Spec.Epochs {
			return
		}
		if _, ok := s.scripted(next); !ok {
			return
		}
		if j.Spec.OnError == jobs.Substitute && s.unsettled() {
			return // a sample that fails may still need another one of this epoch
		}
	}
	c.begin(s, next)
}

// isBehind tells whether the next epoch cannot begin before the rank is done with the running one, and has asked for it.
func (s *stream) isBehind(r int) bool {
	k := &s.job.Ranks[r]
	return !s.job.Exhausted(r) || k.Phase != jobs.Waiting && k.Phase != jobs.Left && k.Asked != int64(s.job.Epoch)
}

// begin starts an epoch for the job and all its ranks.
func (c *lifecycle) begin(s *stream, epoch uint32) {
	j := s.job
	rest := s.rest
	s.rest, s.catching, s.places = nil, nil, nil
	if rest != nil && rest.Epoch != epoch {
		rest = nil
	}
	var err error
	if rest == nil {
		j.Restore()
		s.takeScript(epoch)
		err = c.takeNext(s, epoch)
	}
	if err != nil {
		c.step.complain(j.ID, err)
		c.endJob(s, jobs.Dead, err.Error())
		return
	}
	if !s.joined {
		if err := c.enrol(s); err != nil {
			c.endJob(s, jobs.Dead, err.Error())
			return
		}
	}
	s.forgetBack(epoch)
	if rest != nil {
		err = c.beginRest(s, rest)
	} else {
		err = c.sampler.StartEpoch(j.ID, epoch)
	}
	if err != nil {
		c.step.complain(j.ID, err)
		c.endJob(s, jobs.Dead, err.Error())
		return
	}
	if l := j.Ledger(); l != nil && l.Open() && !c.finishing(s, l) {
		l.Abandon()
	}
	if rest == nil {
		c.nextInstance(s, epoch)
	}
	if p, _ := s.scripted(epoch); p != nil {
		j.Offset = p.Instance - epoch
	}
	j.Epoch, j.Begun = epoch, true
	if s.places == nil {
		s.tail = j.Spec.Subset
	}
	j.Open(epoch)
	c.setActive(s, !j.Paused)
	for r := range j.Ranks {
		k := &j.Ranks[r]
		if !k.Attached() || k.Phase == jobs.Waiting && k.Next != epoch {
			continue
		}
		if k.Phase == jobs.InEpoch && k.Epoch == epoch { // it has had the epoch, which another rank's new client begins afresh
			continue
		}
		c.enter(s, r)
	}
	c.step.persist(RecordEpochStarted{Job: j.ID, Epoch: epoch, Instance: s.instance(), Remainder: rest != nil}, nil)
	c.tiering.repartition(true)
	c.needs.refreshNeeds()
	c.endEmpty(s)
}

// enter makes a rank take part in the running epoch from its first batch.
func (c *lifecycle) enter(s *stream, r int) {
	s.job.Ranks[r].Enter(s.job.Epoch)
}

// finishing tells whether planned batches of that account are still on their way to their ranks.
func (c *lifecycle) finishing(s *stream, l *jobs.Ledger) bool {
	for r := range s.ranks {
		for _, d := range s.ranks[r].planned {
			if d.ledger == l {
				return true
			}
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

// detached frees what a client held. What it was not given goes back to the job.
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
		c.giveUpKept(s, r)
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

func (c *lifecycle) drain(e Drain) {
	s := c.roster.streams[e.Job]
	if s == nil {
		c.step.reply(e.Token, Reply{Err: jobGone(e.Job, "")})
		return
	}
	s.job.Drain = true
	c.resume(s) // it is to finish its epoch
	c.endIfDrained(s)
	c.step.answer(e.Token, Reply{Job: e.Job})
}

// endIfDrained ends a draining job when no client is in the midst of an epoch any more.
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

// asked tells whether some client has asked for the epoch, one that may come back included.
func (c *lifecycle) asked(s *stream, epoch uint32) bool {
	for r := range s.job.Ranks {
		if k := &s.job.Ranks[r]; k.Attached() && k.Asked == int64(epoch) || s.keeps(r, epoch) {
			return true
		}
	}
	return false
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
	if l := j.Ledger(); l != nil && !s.restored() && l.Open() && l.Delivered == 0 && !slices.ContainsFunc(j.Ranks, func(k jobs.Rank) bool { return k.Asked == int64(l.Epoch) }) {
		j.Forget() // it was only prepared ahead: nobody began it
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

// expired ends a job whose client did not come back, and is not there to. While other ranks go on with their epoch the job lives; it ends when
// one of them would wait for the lost rank for ever.
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
		c.endJob(s, jobs.Dead, fmt.Sprintf("the client of rank %d vanished and did not come back within the lease", j.Vanished()))
	case j.Drain:
		for r := range j.Ranks {
			c.giveUpKept(s, r)
		}
		c.planner.mayDeal(s)
		c.jobs.Suspect(j, c.step.now)
		c.endIfDrained(s)
	default:
		c.jobs.Suspect(j, c.step.now)
	}
}
