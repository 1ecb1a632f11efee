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
func (c *planner) ready(s *stream) bool {
	if !c.sampler.Ready(s.job.ID) && c.step.slice > 0 {
		c.work()
	}
	s.waits = !c.sampler.Ready(s.job.ID) || len(s.catching) > 0
	c.awaiting = c.awaiting || s.waits
	return !s.waits
}

// work does the sampler's share of this Step.
func (c *planner) work() {
	c.sampler.Work(c.step.slice)
	c.step.spent.sampler += c.step.slice
	c.step.slice = 0
}

// samplerSlice takes the sampler's work on and plans for those who waited for it.
func (c *planner) samplerSlice() {
	if c.step.slice > 0 {
		c.work()
	}
	for c.planWaiting() {
	}
}

// planWaiting plans for one job that waited for the sampler and need not any more, or ends it; false when there is
// none.
func (c *planner) planWaiting() bool {
	if !c.awaiting {
		return false
	}
	c.awaiting = false
	for _, s := range c.roster.order {
		if !s.waits && len(s.owed) == 0 {
			continue
		}
		c.awaiting = true
		if err := c.sampler.Err(s.job.ID); err != nil {
			c.endJob(s, jobs.Dead, err.Error())
			return true
		}
		if c.sampler.Ready(s.job.ID) && len(s.catching) == 0 {
			s.waits = false
			c.failOwed(s)
			c.plan(s)
			return true
		}
	}
	return false
}

// positional reports whether the job's order is a list of positions.
func (s *stream) positional() bool {
	return s.sample.Mode == dsa.Fixed || s.sample.Mode == dsa.Sequential
}

// pick commits the next sample of the job's order.
func (c *planner) pick(s *stream, pos int) (ident.ObjectID, bool) {
	var x ident.ObjectID
	var ok bool
	if s.positional() {
		if pos >= s.tail {
			return 0, false
		}
		x, ok = c.sampler.At(s.job.ID, s.place(pos))
	} else {
		x, ok = c.sampler.Next(s.job.ID)
	}
	if !ok {
		return 0, false
	}
	if err := s.job.Ledger().Commit(x); err != nil {
		c.step.complain(s.job.ID, err)
	}
	return x, true
}

// substitute draws another sample of the running epoch in place of one that cannot be prepared.
func (c *planner) substitute(d *delivery) (ident.ObjectID, bool) {
	s := d.s
	if s.job.Spec.OnError != jobs.Substitute || d.ledger != s.job.Ledger() || !d.ledger.Open() {
		return 0, false
	}
	if !s.positional() {
		return c.pick(s, 0)
	}
	for s.tail > 0 { // from the end of the order, so that what comes before keeps its place
		s.tail--
		pos := s.place(s.tail)
		if x, ok := c.sampler.At(s.job.ID, pos); ok {
			if err := d.ledger.Commit(x); err != nil {
				c.step.complain(s.job.ID, err)
			}
			return x, true
		}
	}
	return 0, false
}

// owed is a row that failed while no other sample could be drawn.
type owed struct {
	d   *delivery
	row int
	bad jobs.Bad
}

func (s *stream) isOwed(d *delivery, i int) bool {
	return slices.ContainsFunc(s.owed, func(o owed) bool { return o.d == d && o.row == i })
}

// failOwed does what failRow put off, when the sampler is ready.
func (c *planner) failOwed(s *stream) {
	late := s.owed
	s.owed = nil
	for _, o := range late {
		if o.d.phase == deliveryFilling { // else the row left with its batch
			c.failRow(o.d, o.row, o.bad)
		}
	}
}

// recordBad makes a quarantined sample that another job had found bad survive for this one too: what its batches have
// in place of it is not to be taken for more than fits them. The batch leaves when that is durable.
func (c *planner) recordBad(d *delivery, bad jobs.Bad) {
	s := d.s
	if !bad.Removed {
		c.roster.datasets[s.dataset].bad.Add(uint32(bad.Object))
	}
	if _, ok := c.flights.quarantine[ident.Key{Object: bad.Object, Form: ident.Decoded,
		Recipe: c.roster.prefixes[s.prefix].id}]; ok && s.knownBad.Add(uint32(bad.Object)) {
		c.persistOf(d, RecordQuarantined{Job: s.job.ID, Object: bad.Object, Reason: bad.Reason, Corrupt: bad.Corrupt})
		d.unlogged++
	}
}

// failRow leaves a sample out of its batch, with a report, or puts another in its place.
func (c *planner) failRow(d *delivery, i int, bad jobs.Bad) {
	if s := d.s; s.job.Spec.OnError == jobs.Substitute && d.ledger == s.job.Ledger() && d.ledger.Open() &&
		!c.sampler.Ready(s.job.ID) {
		s.owed, s.waits = append(s.owed, owed{d, i, bad}), true
		c.awaiting = true
		return
	}
	d.bad = append(d.bad, bad)
	c.recordBad(d, bad)
	if x, ok := c.substitute(d); ok {
		d.rows[i] = row{object: x, turn: d.rows[i].turn}
		// in one record with what it takes the place of: a restart must not find the one without the other
		if d.picks != nil {
			*d.picks = append(*d.picks, x)
		} else {
			c.step.persist(RecordAssigned{Job: d.s.job.ID, Rank: d.rank, Inc: d.inc, Epoch: d.epoch, Step: d.step,
				Objects: []ident.ObjectID{x}}, nil)
		}
		c.flights.source(d, i)
		return
	}
	d.rows[i].state = rowFailed
	d.pending--
	c.settle(d)
}

// catchWork is what taking an object out of an epoch, and writing that down, costs beside the sampler's other work.
const catchWork = 4

// catchUp withdraws from the sampler, as far as this Step may, what earlier jobs had of running epochs.
func (c *planner) catchUp() {
	if !c.catching {
		return
	}
	c.catching = false
	for _, s := range c.roster.order {
		for len(s.catching) > 0 && c.step.slice >= catchWork && c.sampler.Settled(s.job.ID) {
			k := &s.catching[0]
			if k.start {
				k.start = false
				if err := c.sampler.StartEpoch(s.job.ID, k.epoch); err != nil {
					c.step.complain(s.job.ID, err)
				}
				continue // its passes come first
			}
			part := k.objects[:min(len(k.objects), c.step.slice/catchWork)]
			k.objects = k.objects[len(part):]
			c.step.slice -= catchWork * len(part)
			c.step.spent.sampler += catchWork * len(part)
			c.sampler.Withdraw(s.job.ID, part)
			if k.persist && len(part) > 0 {
				c.step.persist(RecordGivenEarlier{Job: s.job.ID, Epoch: s.job.Epoch, Chunk: k.chunk, Objects: part}, nil)
				k.chunk++
			}
			if len(k.objects) == 0 {
				s.catching = s.catching[1:]
			}
		}
		c.catching = c.catching || len(s.catching) > 0
	}
}

// catchesUp reports whether some job waits for catchUp.
func (c *planner) catchesUp() bool {
	if !c.catching {
		return false
	}
	for _, s := range c.roster.order {
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
