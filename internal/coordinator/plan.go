package coordinator

import (
	"larder/dsa"
	"larder/internal/ident"
	"larder/jobs"
)

// planner makes batches: it commits picks to them, sends them in order when they are complete, and keeps the account of
// each epoch. The lifecycle decides when an epoch or a job begins or ends.
type planner struct {
	step    *step
	roster  *roster
	flights *flights
	sampler *dsa.Sampler

	deliveries   map[DeliveryID]*delivery
	nextDelivery DeliveryID
	spareRows    [][]row  // of batches that were released
	spareFills   [][]Fill // of batches that were sent
	// Three independent hints, no states: without one of them a Step need not visit the streams.
	awaiting bool // some stream waits for the sampler or has deferred rows
	catching bool // some stream has samples to withdraw from the sampler
	dealing  bool // some stream has steps to decide
	leaving  bool // some stream has left blocks that it still holds

	// What the planner needs of the lifecycle, which is above it.
	advance      func(*stream)                                    // begins the next epoch if each rank is done
	endJob       func(s *stream, state jobs.State, reason string) // ends a job at once
	endIfDrained func(*stream)                                    // ends a draining job when no client is in an epoch
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
	at     uint32 // of an index stream: its place in the batch, by which its instance differs from that of the batch
	turn   uint64 // its place among the work of all jobs
	state  rowState
	pin    pin     // what it holds in the index
	flight *flight // what it waits for
}

// batchUnderWay reports whether a batch of the epoch that the rank's client asked for is being assembled.
func (s *stream) batchUnderWay(r int) bool {
	q := s.ranks[r].planned
	return len(q) > 0 && s.job.Ranks[r].Asked == int64(q[0].epoch)
}

// plan commits batches for every rank of the job that has a free slot.
func (pl *planner) plan(s *stream) {
	for progress := true; progress; {
		progress = false
		for r := range s.job.Ranks {
			if pl.planOne(s, r) {
				progress = true
			}
		}
		if progress {
			pl.advance(s)
		}
	}
}

// planOne plans one batch of a rank; false when it has no room or nothing to plan.
func (pl *planner) planOne(s *stream, r int) bool {
	j, k := s.job, &s.job.Ranks[r]
	if k.Phase != jobs.InEpoch || j.Paused() {
		return false
	}
	if len(s.ranks[r].resends) > 0 {
		return pl.planResend(s, r)
	}
	if !j.HasBatch(r) || j.Draining() && k.Asked != int64(k.Epoch) {
		return false
	}
	if !j.Spec.Given && !pl.ready(s) { // asked first: a slot that was taken must be filled
		return false
	}
	slot, gen, ok := k.FreeSlot()
	if !ok {
		return false
	}
	pl.nextDelivery++
	d := &delivery{
		id: pl.nextDelivery, s: s, rank: r, inc: k.Incarnation, slot: slot, gen: gen,
		epoch: k.Epoch, instance: s.instance(), step: k.Step,
		ledger: j.Ledger(), last: k.Step == j.Spec.Batches(r)-1,
		unlogged: 1, // its picks
	}
	if j.Spec.Given {
		pl.planGiven(d)
		return true
	}
	want, pos := j.Spec.Rows(r, k.Step), j.Spec.Position(r, k.Step)
	k.Step++
	d.rows, d.fills = again(&pl.spareRows, want)[:0], again(&pl.spareFills, want)
	pl.deliveries[d.id] = d
	s.ranks[r].planned = append(s.ranks[r].planned, d)

	picks := make([]ident.ObjectID, 0, want)
	for i := range want {
		x, ok := pl.pick(s, pos+i)
		if !ok {
			break // substitutes used up what remained: the batch is short
		}
		picks = append(picks, x)
		d.rows = append(d.rows, row{object: x, turn: pl.flights.takeTurn(s)})
		d.pending++
		d.picks = &picks
		pl.flights.source(d, len(d.rows)-1)
		d.picks = nil
	}
	pl.commit(s, d.ledger, picks)
	pl.persistOf(d, RecordAssigned{Job: j.ID, Rank: r, Inc: k.Incarnation, Epoch: d.epoch, Step: d.step, Objects: picks})
	return true
}

// mostSpare bounds the arrays of batches that are kept to be used again. A slot that comes free takes the next batch at
// once, so few are enough.
const mostSpare = 16

// again is an array of n, of a batch that is gone if there is one: else a sample would cost 200 bytes of garbage. What
// is in it has no meaning.
func again[T any](spare *[][]T, n int) []T {
	if last := len(*spare) - 1; last >= 0 {
		a := (*spare)[last]
		(*spare)[last] = nil
		if *spare = (*spare)[:last]; cap(a) >= n {
			return a[:n]
		}
	}
	return make([]T, n)
}

// spareArray keeps an array that nothing refers to any more.
func spareArray[T any](spare *[][]T, a []T) {
	if len(*spare) < mostSpare && cap(a) > 0 {
		*spare = append(*spare, a)
	}
}

// written reports whether the journal has all of a batch that a restart needs.
func (d *delivery) written() bool { return d.unlogged == 0 }

// complete reports whether all rows and records of a batch are there.
func (d *delivery) complete() bool { return d.pending == 0 && d.written() }

// persistOf has a record made durable that a batch waits for, which counts it in unlogged.
func (pl *planner) persistOf(d *delivery, r Record) {
	pl.step.persist(r, func() {
		d.unlogged--
		pl.settle(d)
	})
}

// settle sends the batch when it is complete, or drops it when it was canceled and nothing writes into its slot.
func (pl *planner) settle(d *delivery) {
	switch {
	case d.phase == deliverySent || d.phase == deliveryReleased: // its slot may be another batch's
	case d.phase == deliveryCanceled:
		for i := range d.rows {
			if d.rows[i].state == rowFilling {
				return
			}
		}
		d.become(deliveryReleased)
		delete(pl.deliveries, d.id)
		if s, k := pl.roster.live(d.s.job.ID, d.rank, d.inc); s != nil {
			k.Slots[d.slot].State = jobs.Free
			pl.plan(s)
		}
	case d.complete():
		s := d.s
		if d.phase != deliveryComplete {
			d.become(deliveryComplete)
		}
		s.job.Ranks[d.rank].Slots[d.slot].State = jobs.Ready
		pl.requestDeal(s)
		pl.sendReady(s, d.rank)
		if s.job.Spec.OnError == jobs.Substitute && !s.job.State.Ended() {
			pl.advance(s)
			pl.plan(s)
		}
	}
}

// unsettled reports whether a planned batch has rows that are neither there nor given up.
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

// cancelBefore cancels what is left of earlier epochs than the one the client asks for now: it left them.
func (pl *planner) cancelBefore(s *stream, r int, epoch uint32) {
	var old *jobs.Ledger
	pl.cancel(s, r, func(d *delivery) bool {
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

// cancel cancels what is planned for a rank and not sent; which selects, nil = everything. Slots come free when
// nothing writes into them.
func (pl *planner) cancel(s *stream, r int, which func(*delivery) bool) {
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
	var returns returns
	for _, d := range planned {
		pl.cancelDelivery(d, r, &returns)
	}
	pl.returnSamples(s, returns)
	for _, d := range planned {
		pl.settle(d)
	}
}

// returns are samples that go back to the epochs they were picked in, in the order of the epochs.
type returns []returned

type returned struct {
	ledger  *jobs.Ledger
	objects []ident.ObjectID
}

// add appends samples of an epoch.
func (q *returns) add(l *jobs.Ledger, objects ...ident.ObjectID) {
	if n := len(*q); n == 0 || (*q)[n-1].ledger != l {
		*q = append(*q, returned{ledger: l})
	}
	last := &(*q)[len(*q)-1]
	last.objects = append(last.objects, objects...)
}

// returnSamples takes samples out of the accounts of their epochs, where those are open, and lets the sampler deal
// those of the running epoch again.
func (pl *planner) returnSamples(s *stream, all returns) {
	var running []ident.ObjectID
	for _, q := range all {
		if !q.ledger.Open() {
			continue
		}
		for _, x := range q.objects {
			if err := q.ledger.Return(x); err != nil {
				pl.step.complain(s.job.ID, err)
			}
		}
		if q.ledger == s.job.Ledger() {
			running = append(running, q.objects...)
		}
	}
	if len(running) > 0 && s.joined() {
		pl.sampler.Return(s.job.ID, running)
	}
}

// cancelDelivery cancels one delivery of rank r. It adds to returns the samples that the job's epoch may deal again.
func (pl *planner) cancelDelivery(d *delivery, r int, returns *returns) {
	job := d.s.job
	d.become(deliveryCanceled)
	open := d.ledger.Open() && d.again == nil // what was sent before stays counted
	if d.again == nil {
		pl.step.persist(RecordReturned{Job: job.ID, Rank: r, Inc: d.inc, Epoch: d.epoch, Step: d.step}, nil)
	}
	for i := range d.rows {
		w := &d.rows[i]
		if open && w.state != rowMoved {
			returns.add(d.ledger, w.object)
		}
		if w.state == rowWaiting {
			pl.flights.leaveFlight(d, i)
		}
	}
	for _, b := range d.bad { // substitutes replaced them: they return to the epoch too
		if open && !d.holds(b.Object) {
			returns.add(d.ledger, b.Object)
		}
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

// planResend plans a batch that must be sent again; false when there is no room.
func (pl *planner) planResend(s *stream, r int) bool {
	k, q := &s.job.Ranks[r], &s.ranks[r]
	slot, gen, ok := k.FreeSlot()
	if !ok {
		return false
	}
	b := q.resends[0]
	q.resends = q.resends[1:]
	pl.nextDelivery++
	d := &delivery{
		id: pl.nextDelivery, s: s, rank: r, inc: k.Incarnation, slot: slot, gen: gen,
		epoch: b.epoch, instance: b.instance, step: b.step,
		ledger: b.ledger, last: b.last, bad: b.bad,
	}
	if b.origin == fromClient {
		d.again = &b.was
	}
	pl.deliveries[d.id] = d
	q.planned = append(q.planned, d)
	d.rows, d.fills = again(&pl.spareRows, len(b.objects))[:0], again(&pl.spareFills, len(b.objects))
	for i, x := range b.objects {
		w := row{object: x, turn: pl.flights.takeTurn(s)}
		if b.places != nil {
			w.at = b.places[i]
		}
		d.rows = append(d.rows, w)
	}
	d.pending = len(d.rows)
	for i := range d.rows {
		pl.flights.source(d, i)
	}
	pl.settle(d) // it may hold nothing that can be prepared
	return true
}
