package coordinator

import (
	"larder/internal/errs"
	"larder/jobs"
)

// startEpoch serves a client's iter(). A prepared-ahead epoch that no client has seen is used as it is; anything else
// restarts the epoch, once all ranks of the job ask for it or are done with theirs.
func (lc *lifecycle) startEpoch(e StartEpoch) {
	s, k := lc.roster.live(e.Job, e.Rank, e.Inc)
	if s == nil {
		lc.step.reply(e.Token, Reply{Err: lc.rankLost(e.Job, e.Rank, e.Inc)})
		return
	}
	if drains, why := s.refuseEpoch(e.Rank, e.Epoch); why != nil {
		lc.step.reply(e.Token, Reply{Err: why})
		if drains {
			lc.doneDraining(s, e.Rank)
		}
		return
	}
	j := s.job
	k.Got, k.Heard = 0, lc.step.now
	k.Stream = jobs.Stream{}
	s.ranks[e.Rank].sent = nil // a client that asks for an epoch has had what it wanted of the one before
	from := lc.continuesFrom(s, e)
	late := false
	switch {
	case from > 0:
		if err := lc.continueAt(s, e.Rank, e.Epoch, from-1); err != nil {
			lc.step.reply(e.Token, Reply{Err: err})
			return
		}
	case k.Phase == jobs.InEpoch && k.Epoch == e.Epoch && k.Sent == 0:
		k.Asked = int64(e.Epoch) // prepared ahead, or a second iter() before the first batch
		lc.planner.cancelBefore(s, e.Rank, e.Epoch)
	case j.Begun() && j.Epoch == e.Epoch && k.Phase == jobs.Idle && k.Attaches == 1 && k.Asked < 0:
		k.Asked = int64(e.Epoch) // a rank that comes later than the others to the epoch they are in
		lc.enter(s, e.Rank)
		late = true
	default:
		k.Await(e.Epoch) // before anything is canceled: nothing is planned into the slots that come free
		lc.planner.cancel(s, e.Rank, nil)
	}
	spec := j.Upcoming()
	if k.Phase == jobs.InEpoch {
		spec = j.Spec
	}
	r := Reply{Job: j.ID, Epoch: e.Epoch, Samples: spec.Subset, Batches: spec.Batches(e.Rank)}
	r.Whole, r.WholeBatches = s.wholeOf(e.Epoch, e.Rank)
	lc.step.reply(e.Token, r)
	lc.activate(s)
	lc.advance(s)
	lc.planner.plan(s)
	lc.planner.sendReady(s, e.Rank)
	lc.planner.requestDeal(s)
	if late {
		lc.endEmpty(s)
	}
}

// refuseEpoch says why a client cannot have the epoch that it asks for; nil = it can. drains reports whether that is
// because the job is being drained.
func (s *stream) refuseEpoch(r int, epoch uint32) (drains bool, why error) {
	name := s.job.Spec.Name
	if n := s.job.Spec.Epochs; n != 0 && epoch >= n {
		return false, errs.New(errs.JobEnded, name, "register it with more epochs",
			"epoch %d of job %s, which has %d epochs", epoch, name, n)
	}
	if s.drainsBefore(r, epoch) {
		return true, errs.New(errs.JobEnded, name, "make a new Loader to continue",
			"epoch %d of job %s, which is being drained and begins none", epoch, name)
	}
	if _, ok := s.scripted(epoch); !ok {
		return false, errs.New(errs.JobEnded, name, "iterate the epochs that it has, or export more of them",
			"epoch %d of job %s, whose recorded order has %s", epoch, name, s.scriptedEpochs())
	}
	return false, s.refuseMixedStart(r, epoch)
}

// drainsBefore reports whether the job is being drained and the epoch is none that it still finishes: not one into
// which the client of the rank comes back, nor the running one, in which other ranks may wait for this one.
func (s *stream) drainsBefore(r int, epoch uint32) bool {
	j := s.job
	running := j.Begun() && j.Epoch == epoch && s.asked(epoch)
	return j.Draining() && !s.keepsFor(r, epoch) && !running
}

// doneDraining takes a rank out of the epoch of a job that is being drained: its client wants the next one.
func (lc *lifecycle) doneDraining(s *stream, r int) {
	k := &s.job.Ranks[r]
	k.Asked = k.Ended
	if k.Phase == jobs.InEpoch {
		k.StepOut()
	}
	lc.planner.cancel(s, r, nil)
	lc.planner.requestDeal(s)
	lc.endIfDrained(s)
}

// continuesFrom is where a client continues that was cut off or restored: 1 + its step, or 0 when it begins the epoch.
// What it has left of earlier epochs is given up then.
func (lc *lifecycle) continuesFrom(s *stream, e StartEpoch) int {
	j, k, q := s.job, &s.job.Ranks[e.Rank], &s.ranks[e.Rank]
	from := e.From
	switch {
	case from == 1 && (!j.Begun() || e.Epoch > j.Epoch):
		from = 0 // it was asked for, and had not begun
	case q.kept != nil:
		from = s.reconnectStep(e.Rank, e.Epoch, from)
	case from == 0 && q.returned && q.recovery == recoveryOffered && e.Epoch == j.Epoch && k.Phase != jobs.InEpoch:
		from = 1 // the client has seen nothing of it, its neighbours may have
	}
	switch {
	case from > 0:
	case q.kept != nil:
		lc.dropKeptBefore(s, e.Rank, e.Epoch)
		lc.dropKept(s, e.Rank)
	case s.restored():
		lc.countFinished(s, e.Rank, e.Epoch)
	}
	return from
}

// advance begins the next epoch when every rank is done with the running one: it asked for another, or all its batches
// are planned and its client is in this epoch (so planning is ahead of the clients by one epoch at the most). A job
// that advances on request begins none by itself.
func (lc *lifecycle) advance(s *stream) {
	j := s.job
	if j.Draining() || j.Paused() || s.hasResends() && !lc.allAskForAnother(s) {
		return
	}
	for r := range j.Ranks {
		if s.isBehind(r) {
			return
		}
	}
	next, asked := lc.awaited(s)
	if !asked {
		if !j.Begun() || j.Attached() == 0 || j.Spec.Advance == jobs.OnRequest {
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
	lc.begin(s, next)
}

// isBehind reports whether the next epoch cannot begin before the rank is done with the running one, and has asked for
// it.
func (s *stream) isBehind(r int) bool {
	k := &s.job.Ranks[r]
	return !s.job.Exhausted(r) || k.Phase != jobs.Waiting && k.Phase != jobs.Left && k.Asked != int64(s.job.Epoch)
}

// begin starts an epoch for the job and all its ranks.
func (lc *lifecycle) begin(s *stream, epoch uint32) {
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
		err = lc.takeNext(s, epoch)
	}
	if err != nil {
		lc.step.complain(j.ID, err)
		lc.endJob(s, jobs.Dead, err.Error())
		return
	}
	if !s.draws() {
		if err := lc.joinSampler(s); err != nil {
			lc.endJob(s, jobs.Dead, err.Error())
			return
		}
	}
	s.dropResends(epoch)
	lc.takeBackUnseen(s, epoch)
	switch {
	case rest != nil:
		err = lc.beginRest(s, rest)
	case j.Spec.Given:
		s.picked = picks{}
	default:
		err = lc.sampler.StartEpoch(j.ID, epoch)
	}
	lc.planner.moveBlocks()
	if err != nil {
		lc.step.complain(j.ID, err)
		lc.endJob(s, jobs.Dead, err.Error())
		return
	}
	if l := j.Ledger(); l != nil && l.Open() && !lc.finishing(s, l) {
		l.Abandon()
	}
	if rest == nil {
		lc.nextInstance(s, epoch)
	}
	if p, _ := s.scripted(epoch); p != nil {
		j.Offset = p.Instance - epoch
	}
	j.Begin(epoch)
	if s.places == nil {
		s.tail = j.Spec.Subset
	}
	j.Open(epoch)
	lc.setActive(s, !j.Paused())
	for r := range j.Ranks {
		k := &j.Ranks[r]
		if !k.Attached() || k.Phase == jobs.Waiting && k.Next != epoch {
			continue
		}
		// it has had the epoch, which another rank's new client begins again
		if k.Phase == jobs.InEpoch && k.Epoch == epoch {
			continue
		}
		// its client has reconnected, and has yet to say at which step of an earlier epoch it continues
		if s.ranks[r].kept != nil {
			continue
		}
		lc.enter(s, r)
	}
	lc.step.persist(RecordEpochStarted{Job: j.ID, Epoch: epoch, Instance: s.instance(), Remainder: rest != nil,
		Counted: j.Spec.Given}, nil)
	if s.visible() {
		lc.tiering.setRoom()
	}
	lc.tiering.repartition(true)
	lc.needs.refreshNeeds(s)
	lc.endEmpty(s)
}

// takeBackUnseen returns what is prepared of an epoch that is about to begin again and of which no client has seen
// anything: its samples would be dealt once more. Once one rank has had a part of it, all ranks keep theirs, because
// these are disjoint.
func (lc *lifecycle) takeBackUnseen(s *stream, epoch uint32) {
	had := func(r int) bool { return s.job.Ranks[r].Phase == jobs.InEpoch && s.job.Ranks[r].Epoch == epoch }
	for r := range s.job.Ranks {
		if had(r) && s.job.Ranks[r].Sent > 0 {
			return
		}
	}
	for r := range s.job.Ranks {
		if had(r) {
			s.job.Ranks[r].Await(epoch)
			lc.planner.cancel(s, r, nil)
		}
	}
}

// enter makes a rank take part in the running epoch from its first batch.
func (lc *lifecycle) enter(s *stream, r int) {
	s.job.Ranks[r].Enter(s.job.Epoch)
}

// finishing reports whether planned batches of that account are still on their way to their ranks.
func (lc *lifecycle) finishing(s *stream, l *jobs.Ledger) bool {
	for r := range s.ranks {
		for _, d := range s.ranks[r].planned {
			if d.ledger == l {
				return true
			}
		}
	}
	return false
}

// asked reports whether some client has asked for the epoch, one that may come back included.
func (s *stream) asked(epoch uint32) bool {
	for r := range s.job.Ranks {
		if k := &s.job.Ranks[r]; k.Attached() && k.Asked == int64(epoch) || s.keepsFor(r, epoch) {
			return true
		}
	}
	return false
}

// awaited returns the epoch that a rank has asked for and that waits for the other ranks.
func (lc *lifecycle) awaited(s *stream) (epoch uint32, ok bool) {
	for r := range s.job.Ranks {
		if k := &s.job.Ranks[r]; k.Phase == jobs.Waiting && (!ok || k.Next < epoch) {
			epoch, ok = k.Next, true
		}
	}
	return epoch, ok
}

// takesPart reports whether a client takes part in the running epoch.
func (lc *lifecycle) takesPart(s *stream) bool {
	for r := range s.job.Ranks {
		if k := &s.job.Ranks[r]; k.Phase == jobs.InEpoch && k.Epoch == s.job.Epoch {
			return true
		}
	}
	return false
}

// nextInstance gives the epoch that begins the instance it takes, epoch + offset. Each one is above all that the job
// was given something of, so none comes to it twice (guarantee G3), whatever epochs its clients ask for, in whatever
// order, and however often one is begun again. So the offset grows when an epoch is begun again of which something was
// given. It also grows in a share group, whose members skip to where another one is: skipped
// instances are never computed, and they meet again however far others have drawn ahead. (With offsets that never
// change, four jobs at speeds 1, 1/2 and 1/4 augment 9,900 times for 7,200 instances of samples when all that is wanted
// fits, and 7,300 times with this; with a sixth of that, 11,400 and 8,300 times.) The journal has the instance of every
// epoch.
func (lc *lifecycle) nextInstance(s *stream, epoch uint32) {
	j := s.job
	at := epoch + j.Offset
	if s.given {
		at = max(at, s.last+1)
	}
	for r := range s.ranks { // what other ranks are still to be given of an epoch that is begun again
		for _, d := range s.ranks[r].planned {
			at = max(at, d.newest()+1)
		}
	}
	if g := s.group; g != nil {
		for _, m := range g.members {
			if m != s && m.joined() && m.job.Active() {
				at = max(at, lc.meetingInstance(m))
			}
		}
	}
	j.Offset = at - epoch
}

// meetingInstance is the instance in which most can be shared with a member: that of its epoch, or the next one when
// little is left of it.
func (lc *lifecycle) meetingInstance(m *stream) uint32 {
	if m.hasNextEpoch() && lc.sampler.Remaining(m.job.ID) < m.job.Spec.Subset/littleLeft {
		return m.instance() + 1
	}
	return m.instance()
}

// littleLeft is the part of an epoch that is too little to meet in. At a half members go ahead of each other in turn,
// so that more instances are taken (8,400 for 7,200); at a quarter those that are slow by a half meet less (8,000 for
// 7,350 augmentations).
const littleLeft = 3

// endEmpty ends the epoch for ranks that get nothing of it: less may be left of one than there are ranks.
func (lc *lifecycle) endEmpty(s *stream) {
	j := s.job
	for r := range j.Ranks {
		if k := &j.Ranks[r]; j.Whole != nil && k.Phase == jobs.InEpoch && k.Epoch == j.Epoch && k.Asked == int64(j.Epoch) &&
			k.Ended != k.Asked && j.Spec.Batches(r) == 0 {
			lc.planner.endEpoch(s, r, epochEnd{j.Epoch, 0, j.Ledger()})
		}
	}
}
