package coordinator

import (
	"slices"

	"larder/internal/ident"
	"larder/jobs"
)

// Several ranks that replace bad samples get equally many batches (jobs.Spec.InStep): what is left at the end of an
// epoch may be too little for all of them, and which rank is short is known only when its samples have been prepared.
// So a step is dealt when every rank has its batch of it. A rank that has nothing gets a sample of a rank that has
// several. Where there are fewer samples than ranks the step is skipped: its samples return to the epoch, where they
// take the place of bad ones of later steps, or are dropped. The decision is durable before a batch of the step leaves:
// a rank that was given its batch may wait for the others, and not come back to a restarted daemon before they have
// theirs.

// requestDeal marks a job whose ranks are in step, so that deal looks at its steps at the end of this Step.
func (pl *planner) requestDeal(s *stream) {
	if s.job.Spec.InStep() {
		s.deal, pl.dealing = true, true
	}
}

// deal decides every step of which each rank has its batch.
func (pl *planner) deal() {
	if !pl.dealing {
		return
	}
	pl.dealing = false
	for _, s := range pl.roster.order {
		if !s.deal {
			continue
		}
		s.deal = false
		for r := range s.ranks {
			if q := s.ranks[r].planned; len(q) > 0 {
				for pl.dealStep(s, q[0].ledger, q[0].epoch) {
				}
			}
		}
	}
}

// dealStep decides the next step of an epoch; false when some rank's batch of it is not known yet, or there is none.
func (pl *planner) dealStep(s *stream, l *jobs.Ledger, epoch uint32) bool {
	step := l.Dealing
	var all, empty []*delivery
	good := 0
	for r := range s.ranks {
		d, waits := s.batchOf(r, l, epoch, step)
		if waits {
			return false
		}
		if d != nil {
			all = append(all, d)
			if n := d.filledRows(); n > 0 {
				good += n
			} else {
				empty = append(empty, d)
			}
		}
	}
	if len(all) == 0 {
		return false
	}
	var back []ident.ObjectID
	switch {
	case len(empty) == 0:
	case good >= len(all):
		for _, d := range empty {
			pl.move(s, all, d)
		}
		return false
	default:
		back = pl.returnStep(s, l, all)
	}
	l.Dealing++
	pl.step.persist(RecordDealt{Job: s.job.ID, Epoch: epoch, Step: step, Objects: back, GivenUp: l.GivenUp}, func() {
		l.Dealt = max(l.Dealt, step+1)
		for r := range s.ranks {
			if !s.job.State.Ended() {
				pl.sendReady(s, r)
			}
		}
	})
	return true
}

// batchOf is what a rank has of a step that is not decided; waits when that is to come. A rank that has left the epoch
// has no part.
func (s *stream) batchOf(r int, l *jobs.Ledger, epoch uint32, step int) (d *delivery, waits bool) {
	k, q := &s.job.Ranks[r], &s.ranks[r]
	for _, d := range q.planned {
		if d.ledger == l && d.step == step {
			return d, !d.complete()
		}
	}
	if k.Phase == jobs.Waiting || k.Phase == jobs.Left {
		return nil, false
	}
	if slices.ContainsFunc(q.resends, func(b resend) bool { return b.ledger == l && b.step == step }) {
		return nil, true // it is sent again
	}
	if l != s.job.Ledger() || step >= s.job.Spec.Batches(r) {
		return nil, false // all of it was planned
	}
	switch {
	case k.Phase == jobs.InEpoch:
		return nil, k.Epoch == epoch && k.Step <= step
	case q.kept != nil && q.kept.asked == int64(epoch):
		return nil, q.kept.had <= step
	case q.kept != nil:
		return nil, q.kept.asked < int64(epoch)
	}
	return nil, s.restored() // it may come back
}

// filledRows counts the rows of a batch that hold their sample.
func (d *delivery) filledRows() int {
	n := 0
	for i := range d.rows {
		if d.rows[i].state == rowDone {
			n++
		}
	}
	return n
}

// move takes a sample out of the batch of the step that has most, and prepares it for one that has none.
func (pl *planner) move(s *stream, all []*delivery, to *delivery) {
	from := slices.MaxFunc(all, func(a, b *delivery) int { return a.filledRows() - b.filledRows() })
	i := len(from.rows) - 1
	for from.rows[i].state != rowDone {
		i--
	}
	x := from.rows[i].object
	from.rows[i].state = rowMoved
	pl.step.persist(RecordReturned{Job: s.job.ID, Rank: from.rank, Inc: from.inc, Epoch: from.epoch, Step: from.step,
		Objects: []ident.ObjectID{x}}, nil)
	pl.step.persist(RecordAssigned{Job: s.job.ID, Rank: to.rank, Inc: to.inc, Epoch: to.epoch, Step: to.step,
		Objects: []ident.ObjectID{x}}, nil)
	w, at := row{object: x, turn: pl.flights.takeTurn(s)}, 0
	if len(to.rows) == 0 {
		to.rows = append(to.rows, w)
	} else if at = slices.IndexFunc(to.rows, func(w row) bool { return w.state == rowFailed }); at >= 0 {
		to.rows[at] = w
	}
	if at >= len(to.fills) {
		to.fills = append(to.fills, Fill{}) // none is being filled
	}
	if to.phase == deliveryComplete {
		to.become(deliveryFilling)
	}
	to.pending++
	pl.flights.source(to, at)
}

// returnStep takes out of the batches of a step what is there, and returns it to the epoch.
func (pl *planner) returnStep(s *stream, l *jobs.Ledger, all []*delivery) []ident.ObjectID {
	var back []ident.ObjectID
	for _, d := range all {
		d.rows = slices.DeleteFunc(d.rows, func(w row) bool {
			if w.state == rowDone {
				back = append(back, w.object)
			}
			return w.state == rowDone
		})
	}
	l.GivenUp += len(back)
	pl.returnSamples(s, returns{{l, back}})
	return back
}

// blockedBy returns the ranks that the next batch of a rank waits for, when that batch is complete.
func (s *stream) blockedBy(r int) []jobs.Behind {
	q := s.ranks[r].planned
	if !s.job.Spec.InStep() || len(q) == 0 || !q[0].complete() || q[0].step < q[0].ledger.Dealing {
		return nil
	}
	var out []jobs.Behind
	for o := range s.ranks {
		if _, waits := s.batchOf(o, q[0].ledger, q[0].epoch, q[0].ledger.Dealing); waits && o != r {
			k := &s.job.Ranks[o]
			out = append(out, jobs.Behind{Rank: o, Client: k.PresenceOf(s.ranks[o].lives), Epoch: q[0].epoch, InEpoch: true})
		}
	}
	return out
}

// waitsForAbsent reports whether a client waits for the part of a step that a rank without a client must have first.
func (s *stream) waitsForAbsent() bool {
	for r := range s.ranks {
		if !s.job.Ranks[r].Attached() || !s.batchUnderWay(r) {
			continue
		}
		if slices.ContainsFunc(s.blockedBy(r), func(b jobs.Behind) bool { return b.Client != jobs.Present }) {
			return true
		}
	}
	return false
}
