package coordinator

import (
	"slices"

	"larder/internal/errs"
	"larder/internal/ident"
	"larder/jobs"
)

// kept is where the client of a rank was when its connection ended. While no other client has taken the rank it may
// come back and continue at the step that it needs: what it was sent and may not have got, and what was planned for it,
// is kept as it is in rankQueue.resends.
type kept struct {
	asked int64 // the epoch that it had asked for last; -1 = none
	phase keptPhase
	had   int // steps of it that were sent or planned
	got   int // samples of it that the client has for certain
}

// keepForReconnect records what a client that vanished was sent and what was planned for it.
func (lc *lifecycle) keepForReconnect(s *stream, r int, was jobs.Rank) {
	q := &s.ranks[r]
	if was.Phase == jobs.Idle { // it had not asked for anything since it came: what was kept before is kept
		q.sent = nil
		lc.planner.cancel(s, r, nil)
		return
	}
	k := &kept{asked: was.Asked, phase: keptPhaseOf(&was), got: was.Got}
	var list []resend
	for _, d := range q.sent {
		if int64(d.epoch) != was.Asked || was.Phase == jobs.Waiting {
			continue // it has left that one
		}
		b := resendOf(d, func(w *row) bool { return w.state == rowDone })
		b.origin, b.was = fromClient, counted{len(b.objects), len(b.bad)}
		k.got -= b.was.rows
		list = append(list, b)
	}
	planned := q.planned
	q.sent, q.planned = nil, nil
	for _, d := range planned {
		list = append(list, resendOf(d, func(w *row) bool { return w.state != rowFailed && w.state != rowMoved }))
		d.become(deliveryCanceled)
		for i := range d.rows {
			if d.rows[i].state == rowWaiting {
				lc.flights.leaveFlight(d, i)
			}
		}
	}
	q.resends = append(list, q.resends...)
	for _, b := range q.resends {
		if int64(b.epoch) == was.Asked {
			k.had = b.step + 1
		}
	}
	switch {
	case k.phase.ended():
		k.had = q.lastEnd.Batches
	case int64(was.Epoch) == was.Asked && was.Phase == jobs.InEpoch:
		k.had = was.Step
	}
	q.kept = k
	for _, d := range planned {
		lc.planner.settle(d)
	}
}

// resendOf returns what must be sent again of a delivery; which selects its rows.
func resendOf(d *delivery, which func(*row) bool) resend {
	b := resend{epoch: d.epoch, instance: d.instance, ledger: d.ledger, step: d.step, last: d.last,
		bad: slices.Clip(d.bad), objects: make([]ident.ObjectID, 0, len(d.rows))}
	if d.again != nil {
		b.origin, b.was = fromClient, *d.again
	}
	for i := range d.rows {
		if w := &d.rows[i]; which(w) {
			b.objects = append(b.objects, w.object)
			if d.s.job.Spec.Given {
				b.places = append(b.places, w.at)
			}
		}
	}
	return b
}

// keepsFor reports whether the client of a rank is gone and may come back into that epoch.
func (s *stream) keepsFor(r int, epoch uint32) bool {
	k := s.ranks[r].kept
	return k != nil && k.asked == int64(epoch)
}

// reconnectStep returns where a client that reconnects continues: 0 = it begins the epoch, else 1 + its step.
func (s *stream) reconnectStep(r int, epoch uint32, from int) int {
	q := &s.ranks[r]
	switch {
	case !q.returned:
		return from
	case from <= 1 && q.kept.phase.waited() && q.kept.asked == int64(epoch):
		return 0 // it was asked for, and had not begun
	case from == 0 && (q.kept.asked == int64(epoch) || q.kept.asked < int64(epoch) && epoch == s.job.Epoch) &&
		q.kept.left(q, epoch, 0) == 0:
		return 1 // the client has seen nothing of it, or had no answer
	}
	return from
}

// left is how many steps of an epoch cannot be given any more to a client that needs it from a step on.
func (k *kept) left(q *rankQueue, epoch uint32, step int) int {
	n, had := 0, 0
	for _, b := range q.resends {
		if b.epoch != epoch {
			continue
		}
		had = b.step + 1
		if b.step >= step {
			n++
		}
	}
	if k.asked == int64(epoch) {
		had = k.had
	}
	return had - step - n
}

// reconnect is continueAt for a client whose connection had ended while the daemon lived.
func (lc *lifecycle) reconnect(s *stream, r int, epoch uint32, step int) error {
	j, k, q := s.job, &s.job.Ranks[r], &s.ranks[r]
	was := q.kept
	stale := func(format string, args ...any) error {
		return errs.New(errs.Stale, j.Spec.Name, "start the epoch again, from a checkpoint",
			"continue with step %d of epoch %d of job %s, "+format,
			append([]any{step, epoch, j.Spec.Name}, args...)...)
	}
	known := q.returned && k.Phase == jobs.Idle && (was.asked == int64(epoch) || was.asked < int64(epoch) &&
		epoch == j.Epoch && step == 0)
	if !known {
		return stale("which cannot be continued")
	}
	switch n := was.left(q, epoch, step); {
	case n < 0:
		return stale("of which rank %d was given %d batches", r, step+n)
	case n > 0:
		return stale("which its client has returned")
	}
	for _, b := range q.resends {
		if b.epoch == epoch && b.step < step && b.origin != fromClient {
			return stale("of which rank %d was given %d batches", r, b.step)
		}
	}
	had := 0
	if was.asked == int64(epoch) {
		had, k.Got = was.had, was.got
	} else {
		lc.dropKeptBefore(s, r, epoch)
	}
	rest := q.resends[:0]
	for _, b := range q.resends {
		if b.epoch == epoch {
			had = max(had, b.step+1)
			if b.step < step {
				k.Got += b.was.rows
				continue
			}
		}
		rest = append(rest, b)
	}
	q.resends, q.kept = rest, nil
	k.Enter(j.Epoch)
	k.Asked = int64(epoch)
	for _, b := range rest {
		if b.epoch == j.Epoch {
			k.Step = b.step + 1
		}
	}
	if epoch == j.Epoch {
		k.Sent, k.Step = step, had
		defer lc.endEmpty(s)
	}
	if was.phase.ended() && was.asked == int64(epoch) && step == had {
		lc.planner.endEpochAgain(s, r)
	}
	return nil
}

// dropKeptBefore drops what was kept of epochs before next, because the client begins that one.
func (lc *lifecycle) dropKeptBefore(s *stream, r int, next uint32) {
	for _, b := range lc.returnKept(s, r, func(b *resend) bool { return b.epoch < next }) {
		if b.origin != fromClient {
			b.ledger.Abandon()
		}
	}
}

// dropKept gives up all that was kept for a client: another one has the rank, or it restarts the epoch.
func (lc *lifecycle) dropKept(s *stream, r int) {
	lc.returnKept(s, r, nil)
	s.ranks[r].kept = nil
}

// returnKept returns what was planned for a client that is gone, and never sent, to its epoch; which selects, nil =
// everything. It returns what it took out. What an earlier daemon gave out stays in the order that is recorded: the
// client may have had it, and states that it saved say so.
func (lc *lifecycle) returnKept(s *stream, r int, which func(*resend) bool) (gone []resend) {
	q := &s.ranks[r]
	q.resends = slices.DeleteFunc(slices.Clone(q.resends), func(b resend) bool {
		if b.origin == fromJournal || which != nil && !which(&b) {
			return false
		}
		gone = append(gone, b)
		return true
	})
	var returns returns
	for _, b := range gone {
		if b.origin == fromClient {
			continue
		}
		lc.step.persist(RecordReturned{Job: s.job.ID, Rank: r, Inc: s.job.Ranks[r].Incarnation, Epoch: b.epoch, Step: b.step},
			nil)
		returns.add(b.ledger, b.objects...)
		for _, bad := range b.bad {
			returns.add(b.ledger, bad.Object)
		}
	}
	lc.planner.returnSamples(s, returns)
	return gone
}
