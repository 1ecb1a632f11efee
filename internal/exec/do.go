package exec

import (
	"larder/internal/coordinator"
	"larder/internal/invariant"
	"larder/internal/journal"
)

// Do carries out one effect. It runs in the loop's goroutine and never blocks: work goes to the pool, batches to the
// goroutine of their ring, records to the journal.
func (e *Engine) Do(eff coordinator.Effect) {
	switch x := eff.(type) {
	case coordinator.Prepare:
		e.pool.add(task{prepare: &x, job: e.job(x.Job)})
	case coordinator.Augment:
		e.pool.add(task{augment: &x, job: e.job(x.Job)})
	case coordinator.Fill:
		r := e.ring(x.Job, x.Rank, x.Inc)
		if r != nil {
			r.seg.Retain() // nothing is unmapped under a writer
		}
		e.pool.add(task{fill: &x, job: e.job(x.Job), ring: r})
	case coordinator.Discard:
		e.pool.discard(x.Flight)
	case coordinator.FreeKey:
		e.cfg.Store.Free(x.Key)
	case coordinator.SetBudget:
		if err := e.cfg.Store.SetBudget(x.Form, x.Bytes); err != nil {
			e.cfg.Log.Error("a tier could not be resized", "form", x.Form.String(), "bytes", x.Bytes, "err", err)
		} else {
			e.cfg.Log.Info("tier resized", "form", x.Form.String(), "bytes", x.Bytes)
		}
	case coordinator.Deliver:
		if r := e.ring(x.Job, x.Rank, x.Inc); r != nil {
			r.push(x)
		}
	case coordinator.EndEpoch:
		if r := e.ring(x.Job, x.Rank, x.Inc); r != nil {
			r.push(x)
		}
	case coordinator.CloseRank:
		e.closeRing(x)
	case coordinator.JobEnded:
		e.jobEnded(x.Job)
	case coordinator.Persist:
		e.persist(x)
	case coordinator.Reply:
		e.mu.Lock()
		ch := e.mu.tokens[x.Token]
		e.mu.Unlock()
		if ch != nil {
			ch <- x // one reply a token, and room for it
		}
	case coordinator.Complain:
		e.cfg.Log.Error("invariant violated: please report this", "job", uint32(x.Job), "what", x.Text)
	default:
		invariant.Violated("exec: unknown effect %T", eff)
	}
}

// recordKinds are the journal's words for what the coordinator persists.
var recordKinds = map[coordinator.RecordKind]journal.Kind{
	coordinator.RecRegister: journal.Registered, coordinator.RecAttach: journal.Attached, coordinator.RecEpoch: journal.EpochStarted,
	coordinator.RecAssign: journal.Assigned, coordinator.RecReturn: journal.Returned, coordinator.RecEpochEnd: journal.EpochEnded, coordinator.RecQuarantine: journal.Quarantined,
	coordinator.RecEnd: journal.Ended,
}

func (e *Engine) persist(p coordinator.Persist) {
	rec := journal.Record{
		Kind: recordKinds[p.Kind], Job: p.Job, Rank: uint32(p.Rank), Incarnation: p.Inc, Epoch: p.Epoch, Step: uint32(p.Step),
		Objects: p.Objects, Text: p.Text,
	}
	e.cfg.Journal.Append(rec, func(err error) {
		if err != nil {
			e.cfg.Log.Error("the journal failed; no batch can leave any more", "err", err)
			return
		}
		e.send(coordinator.Persisted{Seq: p.Seq})
	})
}
