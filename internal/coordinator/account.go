package coordinator

import (
	"larder/internal/invariant"
	"larder/jobs"
)

// sendReady sends complete batches of a rank, in order, if its client asked for their epoch.
func (pl *planner) sendReady(s *stream, r int) {
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
		delete(pl.deliveries, d.id)
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
		k.Heard = pl.step.now // it is its turn from here on
		pl.account(d, len(rows))
		if k.Epoch == d.epoch {
			k.Sent++
		}
		k.Got += len(rows)
		q.sent = append(q.sent, d)
		pl.step.emit(Deliver{Delivery: d.id, Job: j.ID, Rank: r, Inc: d.inc, Slot: d.slot, Gen: d.gen, Epoch: d.epoch,
			Step: d.step,
			Rows: rows, Bad: d.bad, Again: d.again != nil})
		spareArray(&pl.spareFills, d.fills) // all are answered
		d.fills = nil
		if d.last && d.again != nil {
			pl.endEpochAgain(s, r)
		} else if d.last {
			pl.endEpoch(s, r, epochEnd{d.epoch, d.step + 1, d.ledger})
		}
		if d.last {
			if s.job.State.Ended() {
				return
			}
		}
	}
	pl.endStream(s, r)
}

// account enters a batch that leaves with so many rows; one that comes again only as far as it differs.
func (pl *planner) account(d *delivery, rows int) {
	s := d.s
	all := &pl.roster.datasets[s.dataset].stats
	if was := d.again; was != nil {
		d.ledger.Delivered += rows - was.rows
		d.ledger.Quarantined += len(d.bad) - was.bad
		s.job.Stats.Note(d.bad[min(was.bad, len(d.bad)):])
		all.Quarantined += uint64(len(d.bad) - was.bad)
		return
	}
	d.ledger.Deliver(rows, d.bad)
	if rows > 0 {
		s.given, s.last = true, max(s.last, d.newest())
	}
	s.job.Stats.Samples += uint64(rows)
	s.job.Stats.Batches++
	pl.step.stats.Samples += uint64(rows)
	pl.step.stats.Batches++
	s.job.Stats.Note(d.bad)
	s.job.Rate.Add(pl.step.now, rows)
	all.Samples, all.Batches, all.Quarantined = all.Samples+uint64(rows), all.Batches+1, all.Quarantined+uint64(len(d.bad))
}

// final reports whether no epoch follows that one.
func (s *stream) final(epoch uint32) bool {
	return s.job.Draining() || s.job.Spec.Epochs != 0 && epoch+1 >= s.job.Spec.Epochs
}

// epochEnd is an epoch of which a rank got its last batch.
type epochEnd struct {
	epoch   uint32
	batches int // that the rank got
	ledger  *jobs.Ledger
}

// endEpoch sends a rank the end of its epoch, and closes the account when it was the last rank.
func (pl *planner) endEpoch(s *stream, r int, end epochEnd) {
	j, k := s.job, &s.job.Ranks[r]
	k.Ended = int64(end.epoch)
	e := EndEpoch{Job: j.ID, Rank: r, Inc: k.Incarnation, Epoch: end.epoch, Batches: end.batches, Samples: k.Got,
		Final: s.final(end.epoch)}
	e.Account = pl.closeRank(s, end.epoch, end.ledger)
	s.ranks[r].lastEnd = e
	pl.step.emit(e)
	pl.endIfDrained(s)
}

// closeRank counts a rank that is done with an epoch, and closes the account with the last one; then it returns a copy.
func (pl *planner) closeRank(s *stream, epoch uint32, l *jobs.Ledger) *jobs.Ledger {
	if l.Ranks++; l.Ranks != len(s.job.Ranks) { // counted there: a rank may be an epoch ahead of the others
		return nil
	}
	if err := l.Close(); err != nil {
		pl.step.complain(s.job.ID, err)
	}
	account := *l
	pl.step.persist(RecordEpochEnded{Job: s.job.ID, Epoch: epoch, State: account.State}, nil)
	return &account
}

// endEpochAgain sends a client the end of its epoch once more: it came when its connection was gone.
func (pl *planner) endEpochAgain(s *stream, r int) {
	k := &s.job.Ranks[r]
	e := s.ranks[r].lastEnd
	e.Inc, e.Final = k.Incarnation, s.final(e.Epoch)
	k.Ended = int64(e.Epoch)
	pl.step.emit(e)
	pl.endIfDrained(s)
}
