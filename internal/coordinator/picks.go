package coordinator

import (
	"larder/dsa"
	"larder/internal/ident"
	"larder/jobs"
	"slices"
)

// samplerPerStep is how many objects of the sampler's work one Step does: joins and epoch starts of large subsets
// continue in later ones, so that no step takes long.
const samplerPerStep = 8192

// ready reports whether samples can be drawn for the job now. What the sampler has left to do for it is done as far as
// this Step may; the rest is done by later ones, which then plan.
func (pl *planner) ready(s *stream) bool {
	if !pl.sampler.Ready(s.job.ID) && pl.step.slice > 0 {
		pl.work()
	}
	if pl.sampler.Ready(s.job.ID) && len(s.catching) == 0 {
		s.become(samplingDraws)
		return true
	}
	s.become(samplingWaits)
	pl.awaiting = true
	return false
}

// work does the sampler's share of this Step.
func (pl *planner) work() {
	pl.sampler.Work(pl.step.slice)
	pl.step.spent.sampler += pl.step.slice
	pl.step.slice = 0
}

// samplerSlice takes the sampler's work on and plans for those who waited for it.
func (pl *planner) samplerSlice() {
	if pl.step.slice > 0 {
		pl.work()
	}
	for pl.planWaiting() {
	}
}

// planWaiting plans for one job that waited for the sampler and need not any more, or ends it; false when there is
// none.
func (pl *planner) planWaiting() bool {
	if !pl.awaiting {
		return false
	}
	pl.awaiting = false
	for _, s := range pl.roster.order {
		if !s.waits() && len(s.deferred) == 0 {
			continue
		}
		pl.awaiting = true
		if err := pl.sampler.Err(s.job.ID); err != nil {
			pl.endJob(s, jobs.Dead, err.Error())
			return true
		}
		if pl.sampler.Ready(s.job.ID) && len(s.catching) == 0 {
			s.become(samplingDraws)
			pl.failDeferred(s)
			pl.plan(s)
			return true
		}
	}
	return false
}

// positional reports whether the job's order is a list of positions.
func (s *stream) positional() bool {
	return s.sample.Mode == dsa.Fixed || s.sample.Mode == dsa.Sequential
}

// pick draws the next sample of the job's order. The caller enters it in the ledger.
func (pl *planner) pick(s *stream, pos int) (ident.ObjectID, bool) {
	var x ident.ObjectID
	var ok bool
	if s.positional() {
		if pos >= s.tail {
			return 0, false
		}
		x, ok = pl.sampler.At(s.job.ID, s.place(pos))
	} else {
		x, ok = pl.sampler.Next(s.job.ID)
		pl.moveBlocks()
	}
	return x, ok
}

// commit enters picks in the ledger: those of a batch at once, because each is somewhere else in memory.
func (pl *planner) commit(s *stream, l *jobs.Ledger, picks []ident.ObjectID) {
	if err := l.CommitAll(picks); err != nil { // a defect: it must not hide the other picks
		pl.step.complain(s.job.ID, err)
	}
}

// substitute draws another sample of the running epoch in place of one that cannot be prepared. The caller enters it in
// the ledger.
func (pl *planner) substitute(d *delivery) (ident.ObjectID, bool) {
	s := d.s
	if s.job.Spec.OnError != jobs.Substitute || d.ledger != s.job.Ledger() || !d.ledger.Open() {
		return 0, false
	}
	if !s.positional() {
		return pl.pick(s, 0)
	}
	for s.tail > 0 { // from the end of the order, so that what comes before keeps its place
		s.tail--
		pos := s.place(s.tail)
		if x, ok := pl.sampler.At(s.job.ID, pos); ok {
			return x, true
		}
	}
	return 0, false
}

// deferredRow is a row that failed while no other sample could be drawn. failRow is repeated for it later.
type deferredRow struct {
	d   *delivery
	row int
	bad jobs.Bad
}

func (s *stream) isDeferred(d *delivery, i int) bool {
	return slices.ContainsFunc(s.deferred, func(o deferredRow) bool { return o.d == d && o.row == i })
}

// failDeferred repeats failRow for the deferred rows, now that the sampler is ready.
func (pl *planner) failDeferred(s *stream) {
	late := s.deferred
	s.deferred = nil
	for _, o := range late {
		if o.d.phase == deliveryFilling { // else the row left with its batch
			pl.failRow(o.d, o.row, o.bad)
		}
	}
}

// recordBad makes a quarantined sample that another job had found bad survive for this one too: what its batches have
// in place of it is not to be taken for more than fits them. The batch leaves when that is durable.
func (pl *planner) recordBad(d *delivery, bad jobs.Bad) {
	s := d.s
	if bad.Kind != jobs.SampleRemoved {
		pl.roster.datasets[s.dataset].bad.Add(uint32(bad.Object))
	}
	key := ident.Key{Object: bad.Object, Form: ident.Decoded, Recipe: pl.roster.prefixes[s.prefix].id}
	if pl.flights.isQuarantined(key) && s.knownBad.Add(uint32(bad.Object)) {
		pl.persistOf(d, RecordQuarantined{Job: s.job.ID, Object: bad.Object, Reason: bad.Reason, Kind: bad.Kind})
		d.unlogged++
	}
}

// failRow leaves a sample out of its batch, with a report, or puts another in its place.
func (pl *planner) failRow(d *delivery, i int, bad jobs.Bad) {
	if s := d.s; s.job.Spec.OnError == jobs.Substitute && d.ledger == s.job.Ledger() && d.ledger.Open() &&
		!pl.sampler.Ready(s.job.ID) {
		s.deferred = append(s.deferred, deferredRow{d, i, bad})
		s.become(samplingWaits)
		pl.awaiting = true
		return
	}
	d.bad = append(d.bad, bad)
	pl.recordBad(d, bad)
	if x, ok := pl.substitute(d); ok {
		d.rows[i] = row{object: x, turn: d.rows[i].turn}
		// in one record with what it takes the place of: a restart must not find the one without the other
		if d.picks != nil {
			*d.picks = append(*d.picks, x)
		} else {
			pl.commit(d.s, d.ledger, []ident.ObjectID{x})
			pl.step.persist(RecordAssigned{Job: d.s.job.ID, Rank: d.rank, Inc: d.inc, Epoch: d.epoch, Step: d.step,
				Objects: []ident.ObjectID{x}}, nil)
		}
		pl.flights.source(d, i)
		return
	}
	d.rows[i].state = rowFailed
	d.pending--
	pl.settle(d)
}

// catchWork is what taking an object out of an epoch, and writing that down, costs beside the sampler's other work.
const catchWork = 4

// catchUp withdraws from the sampler, as far as this Step may, what earlier jobs had of running epochs.
func (pl *planner) catchUp() {
	if !pl.catching {
		return
	}
	pl.catching = false
	for _, s := range pl.roster.order {
		for len(s.catching) > 0 && pl.step.slice >= catchWork && pl.sampler.Settled(s.job.ID) {
			k := &s.catching[0]
			if k.start {
				k.start = false
				if err := pl.sampler.StartEpoch(s.job.ID, k.epoch); err != nil {
					pl.step.complain(s.job.ID, err)
				}
				continue // its passes come first
			}
			part := k.objects[:min(len(k.objects), pl.step.slice/catchWork)]
			k.objects = k.objects[len(part):]
			pl.step.slice -= catchWork * len(part)
			pl.step.spent.sampler += catchWork * len(part)
			pl.sampler.Withdraw(s.job.ID, part)
			if k.persist && len(part) > 0 {
				pl.step.persist(RecordGivenEarlier{Job: s.job.ID, Epoch: s.job.Epoch, Chunk: k.chunk, Objects: part}, nil)
				k.chunk++
			}
			if len(k.objects) == 0 {
				s.catching = s.catching[1:]
			}
		}
		pl.catching = pl.catching || len(s.catching) > 0
	}
}

// expectCatchUp makes the next Steps look for a job that catches up.
func (pl *planner) expectCatchUp() { pl.catching = true }

// catchesUp reports whether some job waits for catchUp.
func (pl *planner) catchesUp() bool {
	if !pl.catching {
		return false
	}
	for _, s := range pl.roster.order {
		if len(s.catching) > 0 {
			return true
		}
	}
	return false
}

// catching is what the sampler must know before a job draws from the remainder of an epoch.
type catching struct {
	epoch   uint32 // begin this first, when start is set
	start   bool
	objects []ident.ObjectID
	persist bool // as given out by an earlier job
	chunk   int  // of persist, so far
}
