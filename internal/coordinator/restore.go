package coordinator

import (
	"slices"

	"larder/internal/bits"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/jobs"
)

// Restore puts a job back as the journal has it, before any client is there: same id, incarnations, epoch, order. Its
// clients have a lease to come back. It takes time in proportion to what the epoch had given out, so it is for the
// start of a daemon. The Reply says at once whether it worked.
type Restore struct {
	Register // Spec and Sample have the subset in force
	ID       ident.JobID
	Seed     uint64              // of its random parameters: in a share group not its own
	Ranks    []ident.Incarnation // the newest of each
	Lives    []bool              // of each: the process of its client does
	Left     bool                // no client ever came, and the process that registered it is gone
	Mark     uint32              // of the subset in force, and its first epoch
	Since    uint32
	Next     *jobs.Next // the subset of its next epoch, with its objects; nil = the same
	NextIDs  []ident.ObjectID
	Paused   bool
	Bad      []jobs.Bad       // quarantined
	Before   []ident.ObjectID // the order of the epoch before the first of Epochs, as far as known
	Epochs   []RestoredEpoch  // that ran: the newest last; at most one before it
}

// RestoredEpoch is an epoch of which something was given out.
type RestoredEpoch struct {
	Epoch, Instance uint32
	ByPick          bool // of order given: each pick has an instance of its own, see picks
	Subset          int  // samples, and which
	Member          *bits.Set
	Batches         []RestoredBatch // in the order of their assignment
	// Of an epoch of which an earlier job had something, Subset and Member are what that one left.
	Rest    bool
	Earlier []ident.ObjectID // what it had, in order
	Places  []uint32         // as in Rest
	// Where a step is dealt to all ranks together: so many steps were, and so many samples returned to the epoch, see
	// planner.deal.
	Dealt, GivenUp int
}

// RestoredBatch is what was promised to a rank in a step; several of one step belong together.
type RestoredBatch struct {
	Rank, Step int
	Objects    []ident.ObjectID
}

func (Restore) isEvent() {}

// resend is a batch that a rank gets again, under its number, when its client asks for it.
type resend struct {
	epoch, instance uint32
	ledger          *jobs.Ledger
	step            int
	last            bool             // the rank's last of the epoch
	objects         []ident.ObjectID // that can be prepared
	places          []uint32         // of order given: by how much their instances differ from that of the epoch
	bad             []jobs.Bad
	origin          origin
	was             counted // what the account has of it, when it comes from its client
}

// restore adds a job as it was. Nothing of it is persisted: the journal has it.
func (lc *lifecycle) restore(e Restore) {
	j, err := lc.restored(e)
	if err != nil {
		lc.step.reply(e.Token, Reply{Err: err})
		return
	}
	lc.step.reply(e.Token, Reply{Job: j.ID})
}

func (lc *lifecycle) restored(e Restore) (*jobs.Job, error) {
	if err := e.Spec.Validate(); err != nil {
		return nil, err
	}
	if e.Member == nil {
		e.Member = Members(e.Sample.Subset)
	}
	given, err := e.given()
	if err != nil {
		return nil, err
	}
	j, err := lc.jobs.Restore(e.ID, e.Spec, e.Member, e.Ranks, lc.step.now)
	if err != nil {
		return nil, err
	}
	if e.Left && jobs.Unattached(j) {
		lc.jobs.Suspect(j, lc.step.now)
	}
	s := lc.newStream(j, e.Register)
	s.seed = e.Seed
	if s.group != nil {
		if len(s.group.members) == 1 {
			s.group.seed = e.Seed
		}
		s.seed = s.group.seed
	}
	if e.Rest != nil {
		lc.takeRest(s, e.Rest)
	}
	for r := range min(len(e.Lives), len(s.ranks)) {
		s.ranks[r].lives = e.Lives[r]
	}
	j.Mark, j.Since, j.Next, s.next = e.Mark, e.Since, e.Next, e.NextIDs
	if e.Paused {
		j.Pause()
	}
	for _, bad := range e.Bad {
		s.knownBad.Add(uint32(bad.Object))
		key := ident.Key{Object: bad.Object, Form: ident.Decoded, Recipe: lc.roster.prefixes[s.prefix].id}
		lc.flights.quarantineSample(key, bad)
	}
	if len(e.Epochs) > 0 {
		if err := lc.restoreEpochs(s, e, given); err != nil {
			lc.endJob(s, jobs.Dead, err.Error())
			return nil, err
		}
	}
	if s.visible() {
		lc.tiering.setRoom()
	}
	lc.tiering.repartition(true)
	return j, nil
}

// given sorts what was given out by epoch and rank, and checks that the steps of each rank are all there.
func (e *Restore) given() ([][][]resend, error) {
	out := make([][][]resend, len(e.Epochs))
	bad := make(map[ident.ObjectID]jobs.Bad, len(e.Bad))
	for _, b := range e.Bad {
		bad[b.Object] = b
	}
	for i, p := range e.Epochs {
		spec := e.Spec
		spec.Subset = p.Subset
		out[i] = make([][]resend, spec.World)
		picked := picks{all: p.ByPick}
		for _, b := range p.Batches {
			if b.Rank < 0 || b.Rank >= spec.World || b.Step < 0 ||
				!spec.Given && b.Step >= spec.Batches(b.Rank) ||
				b.Step > len(out[i][b.Rank]) {
				return nil, errs.New(errs.StateDamaged, e.Spec.Name, "register the job again",
					"restore job %s: step %d of rank %d of epoch %d does not follow from its spec",
					e.Spec.Name, b.Step, b.Rank, p.Epoch)
			}
			list := &out[i][b.Rank]
			if b.Step == len(*list) {
				*list = append(*list, resend{epoch: p.Epoch, instance: p.Instance, step: b.Step,
					last: b.Step == spec.Batches(b.Rank)-1, origin: fromJournal})
			}
			to := &(*list)[b.Step]
			if !spec.Given && len(bad) == 0 && len(to.objects) == 0 { // nearly always; what comes on top goes to a copy
				to.objects = slices.Clip(b.Objects)
			} else {
				for _, x := range b.Objects {
					at := uint32(0)
					if spec.Given { // each pick is an instance of its own
						at = picked.add(x)
					}
					if q, ok := bad[x]; ok {
						to.bad = append(to.bad, q)
						continue
					}
					to.objects = append(to.objects, x)
					if spec.Given {
						to.places = append(to.places, at)
					}
				}
			}
			if len((*list)[b.Step].objects) > spec.Batch {
				return nil, errs.New(errs.StateDamaged, e.Spec.Name, "register the job again",
					"restore job %s: step %d of rank %d of epoch %d has more than %d samples",
					e.Spec.Name, b.Step, b.Rank, p.Epoch, spec.Batch)
			}
		}
	}
	return out, nil
}

// restoreEpochs enters in sampler and accounts what was handed out. The tiles of the newest epoch follow from the order
// of the one before it, so that the sampler goes through that one, too.
func (lc *lifecycle) restoreEpochs(s *stream, e Restore, given [][][]resend) error {
	j := s.job
	if err := lc.joinSampler(s); err != nil {
		return err
	}
	if len(e.Before) > 0 && s.joined() {
		if err := lc.sampler.StartEpoch(j.ID, e.Epochs[0].Epoch-1); err != nil {
			return err
		}
		lc.sampler.Withdraw(j.ID, e.Before)
	}
	for i, p := range e.Epochs {
		if s.joined() {
			if err := lc.sampler.StartEpoch(j.ID, p.Epoch); err != nil {
				return err
			}
		}
		l := withSubset(e.Spec, p.Subset).Ledger(p.Epoch, p.Member)
		l.Dealing, l.Dealt, l.GivenUp = p.Dealt, p.Dealt, p.GivenUp
		j.Ledgers = append(j.Ledgers, l)
		lc.sampler.Withdraw(j.ID, p.Earlier)
		for _, b := range p.Batches {
			if err := l.CommitAll(b.Objects); err != nil {
				return errs.New(errs.StateDamaged, e.Spec.Name, "register the job again", "restore job %s", e.Spec.Name).
					Because(err)
			}
			lc.sampler.Withdraw(j.ID, b.Objects)
			s.given = s.given || len(b.Objects) > 0
		}
		s.last = max(s.last, p.Instance)
		if l.Stream {
			s.countPicks(p)
		}
		for r := range given[i] {
			for k := range given[i][r] {
				given[i][r][k].ledger = l
			}
			s.ranks[r].resends = append(s.ranks[r].resends, given[i][r]...)
		}
		j.Epoch, j.Offset = p.Epoch, p.Instance-p.Epoch
	}
	j.Begin(j.Epoch)
	for r := range s.ranks {
		s.ranks[r].recovery = recoveryOffered
	}
	if p := e.Epochs[len(e.Epochs)-1]; p.Rest {
		j.Rest(p.Member)
		s.tail = p.Subset
		s.setPlaces(p.Places)
	}
	lc.setActive(s, false) // until a client is back
	return nil
}

// countPicks counts what was picked in an epoch of order given, and the instances that it took.
func (s *stream) countPicks(p RestoredEpoch) {
	s.picked = picks{all: p.ByPick}
	for _, b := range p.Batches {
		for _, x := range b.Objects {
			s.last = max(s.last, p.Instance+s.picked.add(x))
		}
	}
}

func withSubset(spec jobs.Spec, subset int) jobs.Spec {
	spec.Subset = subset
	return spec
}

// firstEpoch is the one that a client of a restored job may continue.
func (s *stream) firstEpoch(r int) uint32 {
	q := &s.ranks[r]
	switch {
	case q.kept != nil && q.returned && q.kept.asked >= 0:
		return min(uint32(q.kept.asked), s.job.Epoch)
	case s.restored() && len(q.resends) > 0:
		return q.resends[0].epoch
	}
	return s.job.Epoch
}

// continueAt takes a rank of a restored job to a step of an epoch: what it has had before counts as delivered, what was
// given out after that comes again under its number.
func (lc *lifecycle) continueAt(s *stream, r int, epoch uint32, step int) error {
	j, k, q := s.job, &s.job.Ranks[r], &s.ranks[r]
	if q.kept != nil {
		return lc.reconnect(s, r, epoch, step)
	}
	known := q.recovery == recoveryOffered && k.Phase == jobs.Idle &&
		(epoch == j.Epoch || len(q.resends) > 0 && q.resends[0].epoch == epoch)
	had := 0
	for _, b := range q.resends {
		if b.epoch == epoch {
			had++
		}
	}
	switch {
	case !known:
		return errs.New(errs.Stale, j.Spec.Name, "start the epoch again",
			"continue with step %d of epoch %d of job %s, which cannot be continued", step, epoch, j.Spec.Name)
	case step > had:
		return errs.New(errs.Stale, j.Spec.Name, "start the epoch again, from a checkpoint",
			"continue with step %d of epoch %d of job %s, of which rank %d was given %d batches", step, epoch, j.Spec.Name, r,
			had)
	}
	q.returned, q.recovery = true, recoveryContinued // the client that has its position gets the rank
	lc.countFinished(s, r, epoch)
	last, over := 0, false
	var l *jobs.Ledger
	rest := q.resends[:0]
	for _, b := range q.resends {
		if b.epoch != epoch || b.step >= step {
			rest = append(rest, b)
			continue
		}
		l, last, over = b.ledger, b.step, b.last
		l.Deliver(len(b.objects), b.bad)
		k.Got += len(b.objects)
	}
	q.resends = rest
	k.Enter(j.Epoch)
	k.Asked = int64(epoch)
	for i := range rest {
		if rest[i].origin == fromJournal {
			rest[i].origin = fromPlan
		}
		if rest[i].epoch == j.Epoch {
			k.Step = rest[i].step + 1
		}
	}
	if epoch == j.Epoch {
		k.Sent, k.Step = step, had
	}
	if epoch == j.Epoch {
		defer lc.endEmpty(s)
	}
	if l != nil && over { // its end had been sent, or was about to be
		lc.planner.endEpoch(s, r, epochEnd{epoch, last + 1, l})
	}
	return nil
}

// countFinished enters in the account, for a client that asks for a later epoch, the epochs before it of which an
// earlier daemon gave out all: the client has had those batches.
func (lc *lifecycle) countFinished(s *stream, r int, next uint32) {
	q := &s.ranks[r]
	for len(q.resends) > 0 && q.resends[0].epoch < next {
		b, n := q.resends[0], 0
		for n < len(q.resends) && q.resends[n].epoch == b.epoch {
			n++
		}
		all := q.resends[:n]
		q.resends = q.resends[n:]
		if !wholeEpoch(all) || !q.returned || !b.ledger.Open() {
			continue
		}
		for _, b := range all {
			b.ledger.Deliver(len(b.objects), b.bad)
		}
		lc.planner.closeRank(s, b.epoch, b.ledger)
	}
}

// wholeEpoch reports whether an earlier daemon gave out all batches of an epoch of a rank. What a client of this one
// left behind is accounted for elsewhere.
func wholeEpoch(list []resend) bool {
	for i := range list {
		if list[i].origin != fromJournal || list[i].step != i {
			return false
		}
	}
	return len(list) > 0 && list[len(list)-1].last
}

// restored reports whether the job was restored, and has begun no epoch since.
func (s *stream) restored() bool { return s.ranks[0].recovery != recoveryNone }

// hasResends reports whether some rank must get a batch again.
func (s *stream) hasResends() bool {
	for r := range s.ranks {
		if len(s.ranks[r].resends) > 0 {
			return true
		}
	}
	return false
}

// allAskForAnother reports whether every rank that must get a batch again has asked for another epoch instead.
func (lc *lifecycle) allAskForAnother(s *stream) bool {
	for r := range s.ranks {
		if len(s.ranks[r].resends) > 0 && s.job.Ranks[r].Phase != jobs.Waiting {
			return false
		}
	}
	return true
}

// dropResends drops the batches that were to be sent again, because an epoch begins. What a client may come back for in
// an earlier one stays.
func (s *stream) dropResends(begins uint32) {
	for r := range s.ranks {
		q := &s.ranks[r]
		q.recovery = recoveryNone
		if q.kept != nil && q.kept.asked < int64(begins) {
			q.resends = slices.DeleteFunc(q.resends, func(b resend) bool { return b.epoch >= begins })
			continue
		}
		q.resends, q.returned, q.kept = nil, false, nil
	}
}
