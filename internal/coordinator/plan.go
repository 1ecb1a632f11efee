package coordinator

import (
	"slices"
	"time"

	"larder/dsa"
	"larder/internal/ident"
	"larder/internal/invariant"
	"larder/jobs"
)

// planner makes batches: it commits picks to them, sends them in order when they are complete, and keeps the account of
// each epoch. When an epoch or a job is to begin or end the lifecycle decides.
type planner struct {
	step    *step
	roster  *roster
	flights *flights
	sampler *dsa.Sampler

	deliveries   map[DeliveryID]*delivery
	nextDelivery DeliveryID
	// What nearly every Step would look for in vain is looked for only when it may be there.
	awaiting bool // some stream waits or is owed rows
	catching bool // some stream is catching up
	dealing  bool // steps of some stream are to be looked at

	advance      func(*stream)                                    // begins the next epoch when every rank is done with this one
	endJob       func(s *stream, state jobs.State, reason string) // ends a job at once
	endIfDrained func(*stream)                                    // ends a draining job when no client is in an epoch
}

// filled takes the result of a fill.
func (c *planner) filled(e Filled) {
	if d := c.deliveries[e.Delivery]; d != nil {
		c.flights.filled(d, e)
	}
}

// delivery is one planned batch: its slot is taken, its picks are committed.
type delivery struct {
	id       DeliveryID
	s        *stream
	rank     int
	inc      ident.Incarnation
	slot     int
	gen      uint64
	epoch    uint32
	instance uint32 // of its random parameters
	step     int
	ledger   *jobs.Ledger
	rows     []row
	fills    []Fill // of the rows, as they were last asked for
	pending  int    // rows neither filled nor failed
	phase    deliveryPhase
	unlogged int // records of its picks and bad samples that are not durable: after a restart they would be missing
	bad      []jobs.Bad
	last     bool              // the rank's last batch of the epoch
	picks    *[]ident.ObjectID // of its record, while it is being planned
	again    *counted          // it was sent before, to a client that may not have got it; nil = it was not
}

type rowState uint8

const (
	rowWaiting rowState = iota // for its source
	rowFilling                 // the executor writes it
	rowDone
	rowFailed
	rowMoved // its sample is in another rank's batch of the step now
)

// counted is what the account has of a batch that was sent.
type counted struct{ rows, bad int }

// row is one sample of a batch.
type row struct {
	object ident.ObjectID
	turn   uint64 // its place among the work of all jobs
	state  rowState
	pin    pin     // what it holds in the index
	flight *flight // what it waits for
}

// idleAt is when a job that takes nothing stops counting as needing something: ten of its steps, at least 2 s; before a
// step time is known, 30 s (design.md G5). Zero = it is waiting for us, which is no idleness.
func (c *lifecycle) idleAt(s *stream) time.Time {
	var at time.Time
	for r := range s.job.Ranks {
		k := &s.job.Ranks[r]
		if !k.Attached() {
			continue
		}
		if !k.Holds() && (k.Phase == jobs.InEpoch && k.Asked == int64(k.Epoch) && k.Step < s.job.Spec.Batches(r) || s.owes(r)) {
			return time.Time{}
		}
		wait := 30 * time.Second
		if k.StepTime > 0 {
			wait = max(10*k.StepTime, 2*time.Second)
		}
		if t := k.LastTake.Add(wait); t.After(at) {
			at = t
		}
	}
	return at
}

// owes tells whether a batch of the epoch that the rank's client asked for is under way.
func (s *stream) owes(r int) bool {
	q := s.ranks[r].planned
	return len(q) > 0 && s.job.Ranks[r].Asked == int64(q[0].epoch)
}

// plan commits batches for every rank of the job that has a free slot.
func (c *planner) plan(s *stream) {
	for progress := true; progress; {
		progress = false
		for r := range s.job.Ranks {
			if c.planOne(s, r) {
				progress = true
			}
		}
		if progress {
			c.advance(s)
		}
	}
}

// planOne plans one batch of a rank; false when it has no room or nothing to plan.
func (c *planner) planOne(s *stream, r int) bool {
	j, k := s.job, &s.job.Ranks[r]
	if k.Phase != jobs.InEpoch || j.Paused {
		return false
	}
	if len(s.ranks[r].back) > 0 {
		return c.planBack(s, r)
	}
	if k.Step >= j.Spec.Batches(r) || j.Drain && k.Asked != int64(k.Epoch) {
		return false
	}
	if !c.ready(s) { // asked first: a slot that was taken is to be filled
		return false
	}
	slot, gen, ok := k.FreeSlot()
	if !ok {
		return false
	}
	c.nextDelivery++
	d := &delivery{
		id: c.nextDelivery, s: s, rank: r, inc: k.Incarnation, slot: slot, gen: gen, epoch: k.Epoch, instance: s.instance(), step: k.Step,
		ledger: j.Ledger(), last: k.Step == j.Spec.Batches(r)-1,
		unlogged: 1, // its picks
	}
	want, pos := j.Spec.Rows(r, k.Step), j.Spec.Position(r, k.Step)
	k.Step++
	d.rows, d.fills = make([]row, 0, want), make([]Fill, want)
	c.deliveries[d.id] = d
	s.ranks[r].planned = append(s.ranks[r].planned, d)

	picks := make([]ident.ObjectID, 0, want)
	for i := range want {
		x, ok := c.pick(s, pos+i)
		if !ok {
			break // substitutes used up what remained: the batch is short
		}
		picks = append(picks, x)
		d.rows = append(d.rows, row{object: x, turn: c.flights.takeTurn(s)})
		d.pending++
		d.picks = &picks
		c.flights.source(d, len(d.rows)-1)
		d.picks = nil
	}
	c.persistOf(d, RecordAssigned{Job: j.ID, Rank: r, Inc: k.Incarnation, Epoch: d.epoch, Step: d.step, Objects: picks})
	return true
}

// samplerPerStep is how many objects of the sampler's work one Step does: joins and epoch starts of large subsets go on in later
// ones, so that no step takes long.
const samplerPerStep = 8192

// ready tells whether samples can be drawn for the job now. What the sampler has left to do for it is done as far as this Step
// may; the rest is done by later ones, which then plan.
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

// planWaiting plans for one job that waited for the sampler and need not any more, or ends it; false when there is none.
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

// positional tells whether the job's order is a list of positions.
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
		if o.d.phase != deliveryCanceled {
			c.failRow(o.d, o.row, o.bad)
		}
	}
}

// recordBad makes a quarantined sample that another job had found bad survive for this one too: what its batches have in place of it is
// not to be taken for more than fits them. The batch leaves when that is durable.
func (c *planner) recordBad(d *delivery, bad jobs.Bad) {
	s := d.s
	if !bad.Removed {
		c.roster.datasets[s.dataset].bad.Add(uint32(bad.Object))
	}
	if _, ok := c.flights.quarantine[ident.Key{Object: bad.Object, Form: ident.Decoded, Recipe: c.roster.prefixes[s.prefix].id}]; ok && s.knownBad.Add(uint32(bad.Object)) {
		c.persistOf(d, RecordQuarantined{Job: s.job.ID, Object: bad.Object, Reason: bad.Reason, Corrupt: bad.Corrupt})
		d.unlogged++
	}
}

// failRow leaves a sample out of its batch, with a report, or puts another in its place.
func (c *planner) failRow(d *delivery, i int, bad jobs.Bad) {
	if s := d.s; s.job.Spec.OnError == jobs.Substitute && d.ledger == s.job.Ledger() && d.ledger.Open() && !c.sampler.Ready(s.job.ID) {
		s.owed, s.waits = append(s.owed, owed{d, i, bad}), true
		c.awaiting = true
		return
	}
	d.bad = append(d.bad, bad)
	c.recordBad(d, bad)
	if x, ok := c.substitute(d); ok {
		d.rows[i] = row{object: x, turn: d.rows[i].turn}
		if d.picks != nil { // in one record with what it takes the place of: a restart must not find the one without the other
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

// written tells whether the journal has all of a batch that a restart needs.
func (d *delivery) written() bool { return d.unlogged == 0 }

// complete tells whether all rows and records of a batch are there.
func (d *delivery) complete() bool { return d.pending == 0 && d.written() }

// persistOf has a record made durable that a batch waits for, which counts it in unlogged.
func (c *planner) persistOf(d *delivery, r Record) {
	c.step.persist(r, func() {
		d.unlogged--
		c.settle(d)
	})
}

// settle sends the batch when it is complete, or lets go of it when it was canceled and nothing writes into its slot.
func (c *planner) settle(d *delivery) {
	switch {
	case d.phase == deliverySent || d.phase == deliveryReleased: // its slot may be another batch's
	case d.phase == deliveryCanceled:
		for i := range d.rows {
			if d.rows[i].state == rowFilling {
				return
			}
		}
		d.become(deliveryReleased)
		delete(c.deliveries, d.id)
		if s, k := c.roster.live(d.s.job.ID, d.rank, d.inc); s != nil {
			k.Slots[d.slot].State = jobs.Free
			c.plan(s)
		}
	case d.complete():
		s := d.s
		if d.phase != deliveryComplete {
			d.become(deliveryComplete)
		}
		s.job.Ranks[d.rank].Slots[d.slot].State = jobs.Ready
		c.mayDeal(s)
		c.sendReady(s, d.rank)
		if s.job.Spec.OnError == jobs.Substitute && !s.job.State.Ended() {
			c.advance(s)
			c.plan(s)
		}
	}
}

// unsettled tells whether a planned batch has rows that are neither there nor given up.
func (s *stream) unsettled() bool {
	for r := range s.ranks {
		for _, d := range s.ranks[r].planned {
			if d.pending > 0 {
				return true
			}
		}
	}
	return false
}

// sendReady sends complete batches of a rank, in order, if its client asked for their epoch.
func (c *planner) sendReady(s *stream, r int) {
	j, k := s.job, &s.job.Ranks[r]
	q := &s.ranks[r]
	for len(q.planned) > 0 {
		d := q.planned[0]
		if !d.complete() || k.Asked != int64(d.epoch) || j.Spec.InStep() && d.step >= d.ledger.Dealt {
			return
		}
		q.planned = append(q.planned[:0], q.planned[1:]...)
		if d.phase == deliveryFilling { // its last row has just come, and settle is about to see it
			d.become(deliveryComplete)
		}
		d.become(deliverySent)
		delete(c.deliveries, d.id)
		rows := make([]int, 0, len(d.rows))
		for i := range d.rows {
			if d.rows[i].state == rowDone {
				rows = append(rows, i)
			}
		}
		if invariant.Enabled && k.Slots[d.slot].Gen != d.gen {
			invariant.Violated("coordinator: slot %d of job %d rank %d was taken twice", d.slot, j.ID, r)
		}
		k.Slots[d.slot].State = jobs.Leased
		k.Heard = c.step.now // it is its turn from here on
		c.account(d, len(rows))
		if k.Epoch == d.epoch {
			k.Sent++
		}
		k.Got += len(rows)
		q.sent = append(q.sent, d)
		c.step.emit(Deliver{Delivery: d.id, Job: j.ID, Rank: r, Inc: d.inc, Slot: d.slot, Gen: d.gen, Epoch: d.epoch, Step: d.step,
			Rows: rows, Bad: d.bad, Again: d.again != nil})
		if d.last && d.again != nil {
			c.endEpochAgain(s, r)
		} else if d.last {
			c.endEpoch(s, r, epochEnd{d.epoch, d.step + 1, d.ledger})
		}
		if d.last {
			if s.job.State.Ended() {
				return
			}
		}
	}
}

// account enters a batch that leaves with so many rows; one that comes again only as far as it differs.
func (c *planner) account(d *delivery, rows int) {
	s := d.s
	all := &c.roster.datasets[s.dataset].stats
	if was := d.again; was != nil {
		d.ledger.Delivered += rows - was.rows
		d.ledger.Quarantined += len(d.bad) - was.bad
		s.job.Stats.Note(d.bad[min(was.bad, len(d.bad)):])
		all.Quarantined += uint64(len(d.bad) - was.bad)
		return
	}
	d.ledger.Deliver(rows, d.bad)
	if rows > 0 {
		s.given, s.last = true, max(s.last, d.instance)
	}
	s.job.Stats.Samples += uint64(rows)
	s.job.Stats.Batches++
	c.step.stats.Samples += uint64(rows)
	c.step.stats.Batches++
	s.job.Stats.Note(d.bad)
	s.job.Rate.Add(c.step.now, rows)
	all.Samples, all.Batches, all.Quarantined = all.Samples+uint64(rows), all.Batches+1, all.Quarantined+uint64(len(d.bad))
}

// final tells whether no epoch follows that one.
func (s *stream) final(epoch uint32) bool {
	return s.job.Drain || s.job.Spec.Epochs != 0 && epoch+1 >= s.job.Spec.Epochs
}

// epochEnd is an epoch of which a rank got its last batch.
type epochEnd struct {
	epoch   uint32
	batches int // that the rank got
	ledger  *jobs.Ledger
}

// endEpoch sends a rank the end of its epoch, and closes the account when it was the last rank.
func (c *planner) endEpoch(s *stream, r int, end epochEnd) {
	j, k := s.job, &s.job.Ranks[r]
	k.Ended = int64(end.epoch)
	e := EndEpoch{Job: j.ID, Rank: r, Inc: k.Incarnation, Epoch: end.epoch, Batches: end.batches, Samples: k.Got,
		Final: s.final(end.epoch)}
	e.Account = c.closeRank(s, end.epoch, end.ledger)
	s.ranks[r].lastEnd = e
	c.step.emit(e)
	c.endIfDrained(s)
}

// closeRank counts a rank that is done with an epoch, and closes the account with the last one; then it returns a copy.
func (c *planner) closeRank(s *stream, epoch uint32, l *jobs.Ledger) *jobs.Ledger {
	if l.Ranks++; l.Ranks != len(s.job.Ranks) { // counted there: a rank may be an epoch ahead of the others
		return nil
	}
	if err := l.Close(); err != nil {
		c.step.complain(s.job.ID, err)
	}
	account := *l
	c.step.persist(RecordEpochEnded{Job: s.job.ID, Epoch: epoch, State: account.State}, nil)
	return &account
}

// cancelBefore takes back what is left of earlier epochs than the one the client asks for now: it left them.
func (c *planner) cancelBefore(s *stream, r int, epoch uint32) {
	var old *jobs.Ledger
	c.cancel(s, r, func(d *delivery) bool {
		if d.epoch == epoch {
			return false
		}
		old = d.ledger
		return true
	})
	if old != nil {
		old.Abandon()
	}
}

// cancel takes back what is planned for a rank and not sent; which selects, nil = everything. Slots come free when
// nothing writes into them.
func (c *planner) cancel(s *stream, r int, which func(*delivery) bool) {
	q := &s.ranks[r]
	var planned, keep []*delivery
	for _, d := range q.planned {
		if which == nil || which(d) {
			planned = append(planned, d)
		} else {
			keep = append(keep, d)
		}
	}
	q.planned = keep
	if len(planned) == 0 {
		return
	}
	var back []ident.ObjectID
	for _, d := range planned {
		d.become(deliveryCanceled)
		open := d.ledger.Open() && d.again == nil // what was sent before stays counted
		if d.again == nil {
			c.step.persist(RecordReturned{Job: s.job.ID, Rank: r, Inc: d.inc, Epoch: d.epoch, Step: d.step}, nil)
		}
		for i := range d.rows {
			w := &d.rows[i]
			if open && w.state != rowMoved {
				if err := d.ledger.Return(w.object); err != nil {
					c.step.complain(s.job.ID, err)
				}
				if d.ledger == s.job.Ledger() {
					back = append(back, w.object)
				}
			}
			if w.state == rowWaiting {
				c.flights.unwait(d, i)
			}
		}
		for _, b := range d.bad { // replaced by substitutes: the epoch owes them again
			if open && !d.holds(b.Object) {
				if err := d.ledger.Return(b.Object); err != nil {
					c.step.complain(s.job.ID, err)
				}
				if d.ledger == s.job.Ledger() {
					back = append(back, b.Object)
				}
			}
		}
	}
	if len(back) > 0 && s.joined {
		c.sampler.Return(s.job.ID, back)
	}
	for _, d := range planned {
		c.settle(d)
	}
}

func (d *delivery) holds(x ident.ObjectID) bool {
	for i := range d.rows {
		if d.rows[i].object == x && d.rows[i].state != rowMoved {
			return true
		}
	}
	return false
}
