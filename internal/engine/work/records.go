package work

import (
	"larder/internal/coordinator"
	"larder/internal/engine/ring"
	"larder/internal/record"
	"larder/tiers"
)

// fillRecord writes one row of a batch of records: a copy of what workers of clients have made.
func (w *worker) fillRecord(t task, x *coordinator.Fill, ev coordinator.Filled) coordinator.Filled {
	var blob []byte
	var view tiers.View
	ok := false
	if x.From.Flight != 0 {
		blob, ok = w.p.cfg.Made(x.From.Flight) // the coordinator discards it only after this task is answered
	} else if v, err := w.p.cfg.Store.Open(x.From.Key); err == nil {
		blob, view, ok = v.Bytes, v, true
	}
	defer view.Close()
	if !ok {
		ev.Lost = true
		return ev
	}
	w.begin(t.job, Finish)
	v, err := record.Open(blob)
	if err == nil {
		err = PutRecord(t.ring, x, t.job, v)
	}
	w.end(err)
	if err != nil {
		ev.Err = describe(err)
	}
	return ev
}

// PutRecord writes a row of a batch of records. The error is about the record; a ring that cannot have more memory
// fails, which its client is told.
func PutRecord(r *ring.Ring, x *coordinator.Fill, j *Job, v record.View) error {
	if err := r.PutRecord(x, v); err != nil {
		return err
	}
	sample, _ := j.Data.Sample(x.Object)
	r.Put(x.Slot, x.Row, 0, int64(sample))
	return nil
}
