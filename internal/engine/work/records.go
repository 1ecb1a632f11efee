package work

import (
	"larder/internal/coordinator"
	"larder/internal/engine/ring"
	"larder/internal/prep"
	"larder/internal/record"
	"larder/tiers"
)

// prepareRecord makes the record of a sample of its stored form.
func (w *worker) prepareRecord(
	t task, x *coordinator.Prepare, enc []byte, ev coordinator.Prepared,
) coordinator.Prepared {
	schema := &t.job.Made.Out
	leave := w.p.heavy.enter(w.prep.RecordMemory(schema, enc))
	defer leave()
	if x.Into != nil {
		return w.recordInPlace(t, x.Into, enc, ev)
	}
	w.begin(t.job, Decode)
	kept, img, err := w.make(t, x.Key, x.Keep, func(alloc allocator) (prep.Image, error) {
		b, err := w.prep.Record(schema, enc, alloc)
		return prep.Image{Pix: b}, err
	})
	w.end(err)
	return w.finish(ev, kept, img, err)
}

// recordInPlace writes a record straight into the only row that needs it. Now and then its steps are measured, because
// the model of the tiers needs to know what each costs.
func (w *worker) recordInPlace(t task, x *coordinator.Fill, enc []byte, ev coordinator.Prepared) coordinator.Prepared {
	j := t.job
	row := w.p.cfg.Rings.Hold(ring.Key{Job: x.Job, Rank: x.Rank, Inc: x.Inc})
	if row != nil { // nil: the client is gone, but the coordinator still asks what became of the object
		defer row.Release()
	}
	var buf []byte
	defer func() {
		if buf != nil {
			w.p.free(buf)
		}
	}()
	made := func() (v record.View, err error) {
		b, err := w.prep.Record(&j.Made.Out, enc, func(n int) ([]byte, error) {
			buf = w.p.scratch(n)
			return buf, nil
		})
		if err == nil {
			v, err = record.Open(b)
		}
		return v, err
	}
	put := func(v record.View) error {
		if row == nil {
			return nil
		}
		return PutRecord(row, x, j, v)
	}
	var v record.View
	var err error
	if w.p.cfg.Meters.due(j.RecipeKey()) {
		w.begin(j, Decode)
		v, err = made()
		if w.end(err); err == nil {
			w.begin(j, Augment)
			err = put(v)
			w.end(err)
		}
	} else {
		w.begin(j, InPlace)
		if v, err = made(); err == nil {
			err = put(v)
		}
		w.end(err)
	}
	if err != nil {
		ev.Err, ev.Kind, ev.At = describe(err), badKind(err), damagedAt(err)
		return ev
	}
	ev.Bytes = int64(len(v.Bytes()))
	return ev
}

// finished finds the record that a row is made of. The view must be closed when it is not needed any more.
func (w *worker) finished(t task, s coordinator.Source) (blob []byte, view tiers.View, ok bool) {
	switch {
	case s.Flight == 0:
		v, err := w.p.cfg.Store.Open(s.Key)
		return v.Bytes, v, err == nil
	case t.job.ByClients():
		blob, ok = w.p.cfg.Made(s.Flight)
	default:
		w.p.mu.Lock()
		blob, ok = w.p.mu.copies[s.Flight].Pix, w.p.mu.copies[s.Flight].Pix != nil
		w.p.mu.Unlock()
	}
	return blob, view, ok // the coordinator discards it only after this task is answered
}

// fillRecord writes one row of a batch of records: a copy of what was made.
func (w *worker) fillRecord(t task, x *coordinator.Fill, ev coordinator.Filled) coordinator.Filled {
	blob, view, ok := w.finished(t, x.From)
	if !ok {
		ev.Lost = true
		return ev
	}
	defer view.Close()
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
