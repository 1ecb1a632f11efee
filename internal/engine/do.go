package engine

import (
	"errors"
	"fmt"
	"log/slog"

	"larder/internal/coordinator"
	"larder/internal/engine/record"
	"larder/internal/engine/ring"
	"larder/internal/engine/work"
	"larder/internal/invariant"
	larderv1 "larder/proto/larder/v1"
	"larder/tiers"
)

// Do carries out one effect. It runs in the loop's goroutine and never blocks: work goes to the pool, batches to the
// goroutine of their ring, records to the journal, what changes the tiers to e.tierWork.
func (e *Engine) Do(eff coordinator.Effect) {
	e.recorder.Effect(eff)
	switch x := eff.(type) {
	case coordinator.Prepare:
		e.hand(eff, x.Turn, e.jobs.byID(x.Job).forWork())
	case coordinator.Augment:
		e.handAugment(eff, &x)
	case *coordinator.Fill:
		e.handFill(x)
	case coordinator.Discard:
		e.pool.Discard(x.Flight)
		e.crew.Discard(x.Flight)
	case coordinator.HoldBlock:
		e.holdBlock(x)
	case coordinator.DropBlock:
		e.dropBlock(x)
	case coordinator.FreeKey:
		e.tierWork.Add(func() { e.cfg.Data.Store.Free(x.Key) })
	case coordinator.SetBudget:
		e.tierWork.Add(func() { resize(e.cfg.Data.Store, x, e.log) })
	case coordinator.Solve: // one at a time; it takes milliseconds
		e.background.Go(func() { e.loop.send(x.Do()) })
	case coordinator.Deliver:
		if r := e.rings.Get(ring.Key{Job: x.Job, Rank: x.Rank, Inc: x.Inc}); r != nil {
			r.Push(x)
		}
	case coordinator.EndEpoch:
		if r := e.rings.Get(ring.Key{Job: x.Job, Rank: x.Rank, Inc: x.Inc}); r != nil {
			r.PushEnd(&larderv1.EpochEnd{
				Epoch: x.Epoch, Batches: uint64(x.Batches), Samples: uint64(x.Samples), Final: x.Final, Account: account(x.Account),
			})
		}
	case coordinator.CloseRank:
		key := ring.Key{Job: x.Job, Rank: x.Rank, Inc: x.Inc}
		r := e.rings.Take(key) // before Closed: what a worker gives back later finds no ring
		e.crew.Closed(key)
		if r != nil {
			r.Close(closeReason(&x, r.Job()))
		}
	case coordinator.JobEnded:
		if j := e.jobs.end(x.Job); j != nil {
			e.log.note(slog.LevelInfo, "job ended", "job", j.spec.GetName(), "id", uint32(x.Job))
			j.dropWindow(e.room)
			e.endMade(j)
			j.subsets.shed()
		}
	case coordinator.Persist:
		e.persist(x)
	case coordinator.Reply:
		e.loop.answer(x)
	case coordinator.PlaceFailed:
		e.log.note(slog.LevelWarn, "storage fails: samples of it wait, none is given up", "dataset",
			e.library.nameOf(x.Dataset), "object", uint32(x.Object), "err", x.Why)
	case coordinator.PlaceBack:
		e.log.note(slog.LevelInfo, "storage is not waited for any more", "dataset", e.library.nameOf(x.Dataset),
			"failed_for", x.After, "err", x.Why)
	case coordinator.Complain:
		e.log.note(slog.LevelError, invariant.Broken+": please report this", "job", uint32(x.Job), "what", x.Text)
	default:
		invariant.Violated("exec: unknown effect %T", eff)
	}
}

// hand passes work to the workers of the daemon, or to those of clients.
func (e *Engine) hand(eff coordinator.Effect, turn uint64, j *work.Job) {
	if j != nil && j.ByClients() {
		e.crew.Add(eff, j, nil)
		return
	}
	e.pool.Add(eff, turn, j, nil)
}

// handAugment is hand for a shared sample: one that built-in ops make needs no worker of a client.
func (e *Engine) handAugment(eff coordinator.Effect, x *coordinator.Augment) {
	j := e.jobs.byID(x.Job).forWork()
	if j != nil && j.ByClients() && j.Made.Suffix() != nil {
		e.pool.Add(eff, x.Beside, j, nil)
		return
	}
	e.hand(eff, x.Turn, j)
}

// handFill is hand for a row: one that is a copy of a record, or that built-in ops make of one, needs no worker of a
// client.
func (e *Engine) handFill(x *coordinator.Fill) {
	if e.pool.Join(x) {
		return
	}
	j, r := e.jobs.byID(x.Job).forWork(), e.rings.Hold(ring.Key{Job: x.Job, Rank: x.Rank, Inc: x.Inc})
	if j != nil && j.ByClients() && !j.Made.Ready(x.From.Key.Form) && j.Made.Suffix() == nil {
		e.crew.Add(x, j, r)
		return
	}
	e.pool.Add(x, x.Beside, j, r)
}

// Flush implements coordinator.Executor: workers begin what Do had for them.
func (e *Engine) Flush() {
	e.crew.Flush()
	e.pool.Flush()
}

// Unread implements coordinator.Executor: slots that clients gave back in release words.
func (e *Engine) Unread(dst []coordinator.Event) []coordinator.Event {
	e.unread = e.rings.Collect(e.unread[:0])
	for i := range e.unread {
		ev := released(&e.unread[i])
		e.recorder.Event(ev)
		dst = append(dst, ev)
	}
	return dst
}

// resize gives a tier its budget.
func resize(store *tiers.Store, x coordinator.SetBudget, log *logQueue) {
	if err := store.SetBudget(x.Form, x.Bytes); err != nil {
		log.note(slog.LevelError, "a tier could not be resized", "form", x.Form.String(), "bytes", x.Bytes, "err", err)
		return
	}
	log.note(slog.LevelInfo, "tier resized", "form", x.Form.String(), "bytes", x.Bytes)
}

// persist hands a record to the journal. When that fails the engine ends: what was promised could not be kept, and
// trying again could make a record durable that others are believed to have replaced.
func (e *Engine) persist(p coordinator.Persist) {
	rec, err := record.Of(p.Record, recordJobs{e.jobs})
	if err != nil {
		e.breakDown(fmt.Errorf("a record could not be made: %w", err))
		return
	}
	seq := e.cfg.Journal.Log.Append(rec, func(err error) {
		if err != nil {
			e.breakDown(fmt.Errorf("the journal failed: %w", err))
			return
		}
		e.loop.send(coordinator.Persisted{Seq: p.Seq})
	})
	if seq == 0 {
		e.breakDown(errors.New("the journal was closed under the engine"))
	}
}
