package work

import (
	"time"

	"larder/internal/coordinator"
	"larder/internal/engine/ring"
	"larder/internal/errs"
	"larder/internal/prep"
	"larder/internal/record"
	"larder/tiers"
)

// openRecord finds a record in a working copy, of this package or of the workers of clients, or in a tier. The view
// must be closed when the record is not needed any more.
func (w *worker) openRecord(s coordinator.Source) (blob []byte, view tiers.View, ok bool) {
	if s.Flight == 0 {
		v, err := w.p.cfg.Store.Open(s.Key)
		return v.Bytes, v, err == nil
	}
	w.p.mu.Lock()
	img, ok := w.p.mu.copies[s.Flight]
	w.p.mu.Unlock()
	if ok { // the coordinator discards it only after this task is answered
		return img.Pix, view, true
	}
	blob, ok = w.p.cfg.Made(s.Flight)
	return blob, view, ok
}

// scratch is an allocator of memory that is freed with Pool.free.
func (w *worker) scratch(n int) ([]byte, error) { return w.p.scratch(n), nil }

// runOps runs built-in ops on a record. The result lies in memory from alloc, which is called once; blob is only read.
func (w *worker) runOps(runs []Run, blob []byte, key prep.RandKey, alloc allocator) ([]byte, error) {
	if len(runs) == 0 {
		return nil, errs.New(errs.Internal, "", "this is a bug of larder", "a record was to be made by no op")
	}
	leave := w.p.heavy.enter(2 * int64(len(blob)))
	defer leave()
	var between []byte
	defer func() {
		if between != nil {
			w.p.free(between)
		}
	}()
	for i := range runs {
		v, err := record.Open(blob)
		if err != nil {
			return nil, err
		}
		to := alloc
		if i < len(runs)-1 {
			to = w.scratch
		}
		if blob, err = w.fields.Run(runs[i].Stage, v, key, to); err != nil {
			return nil, err
		}
		if between != nil {
			w.p.free(between)
			between = nil
		}
		if i < len(runs)-1 {
			between = blob
		}
	}
	return blob, nil
}

// prepareRecord makes the decoded form of a record of its stored one.
func (w *worker) prepareRecord(
	t task, x *coordinator.Prepare, enc []byte, ev coordinator.Prepared,
) coordinator.Prepared {
	if x.Into != nil {
		return w.recordInPlace(t, x.Into, enc, ev)
	}
	w.begin(t.job, Decode)
	kept, img, err := w.make(t, x.Key, x.Keep, func(alloc allocator) (prep.Image, error) {
		b, err := w.storedRecord(t.job.Made, enc, alloc)
		return prep.Image{Pix: b}, err
	})
	w.end(err)
	return w.finish(ev, kept, img, err)
}

// storedRecord makes the decoded form: it decodes the images of a stored record, and runs the ops before the cut. The
// result lies in memory from alloc, which is called once.
func (w *worker) storedRecord(m *Made, enc []byte, alloc allocator) ([]byte, error) {
	prefix := m.Prefix()
	if len(prefix) == 0 {
		return w.item(m, enc, alloc)
	}
	if b, ok := w.prep.Whole(&m.Item, enc); ok {
		return w.runOps(prefix, b, prep.RandKey{}, alloc) // they draw nothing
	}
	var item []byte
	defer func() {
		if item != nil {
			w.p.free(item)
		}
	}()
	b, err := w.item(m, enc, func(n int) ([]byte, error) {
		item = w.p.scratch(n)
		return item, nil
	})
	if err != nil {
		return nil, err
	}
	return w.runOps(prefix, b, prep.RandKey{}, alloc)
}

// decodedRecord is storedRecord, but for records that are the same decoded: then the result is enc, without a copy.
func (w *worker) decodedRecord(m *Made, enc []byte, alloc allocator) ([]byte, error) {
	if len(m.Prefix()) == 0 {
		if b, ok := w.prep.Whole(&m.Item, enc); ok {
			return b, nil
		}
	}
	return w.storedRecord(m, enc, alloc)
}

// item decodes the images of a stored record.
func (w *worker) item(m *Made, enc []byte, alloc allocator) ([]byte, error) {
	leave := w.p.heavy.enter(w.prep.RecordMemory(&m.Item, enc))
	defer leave()
	return w.prep.Record(&m.Item, enc, alloc)
}

// recordInPlace writes a record straight into the only row that needs it. Now and then its steps are measured, because
// the model of the tiers needs to know what each costs.
func (w *worker) recordInPlace(t task, x *coordinator.Fill, enc []byte, ev coordinator.Prepared) coordinator.Prepared {
	j := t.job
	row := w.p.cfg.Rings.Hold(ring.Key{Job: x.Job, Rank: x.Rank, Inc: x.Inc})
	if row != nil { // nil: the client is gone, but the coordinator still asks what became of the object
		defer row.Release()
	}
	var bufs [][]byte
	defer func() {
		for _, b := range bufs {
			w.p.free(b)
		}
	}()
	alloc := func(n int) ([]byte, error) {
		b := w.p.scratch(n)
		bufs = append(bufs, b)
		return b, nil
	}
	first := InPlace
	if w.p.cfg.Meters.due(j.RecipeKey()) {
		first = Decode
	}
	w.begin(j, first)
	if first == InPlace {
		if n, ok := w.recordAtOnce(row, x, j, enc, alloc); ok {
			w.end(nil)
			return placed(ev, n, j)
		}
	}
	decoded, err := w.decodedRecord(j.Made, enc, alloc)
	if err == nil && first == Decode {
		w.end(nil)
		w.begin(j, Augment)
	}
	if err == nil {
		err = w.putStored(row, x, j, decoded, alloc)
	}
	if w.end(err); err != nil {
		return failed(ev, err)
	}
	return placed(ev, int64(len(decoded)), j)
}

// placed is what became of a record whose decoded form has some bytes, and that was written in place.
func placed(ev coordinator.Prepared, bytes int64, j *Job) coordinator.Prepared {
	ev.Bytes = bytes
	if j.Recipe.Random() {
		ev.Augments = 1
	}
	return ev
}

// recordAtOnce is for recipes of one run, whose first op is random, on records with one image file: of it only that is
// decoded which the ops look at. false = it has to be done in two steps.
func (w *worker) recordAtOnce(
	row *ring.Ring, x *coordinator.Fill, j *Job, enc []byte, alloc allocator,
) (bytes int64, ok bool) {
	suffix := j.Made.Suffix()
	if len(suffix) != 1 || j.Made.Cut != 1 {
		return 0, false
	}
	leave := w.p.heavy.enter(w.prep.RecordMemory(&j.Made.Item, enc))
	defer leave()
	blob, bytes, ok := w.fields.RunFile(suffix[0].Stage, enc, j.key(x.Object, x.Seed, x.Instance), alloc)
	if !ok {
		return 0, false
	}
	v, err := record.Open(blob)
	if err == nil && row != nil {
		err = PutRecord(row, x, j, v)
	}
	return bytes, err == nil
}

// putStored runs the ops behind the cut on the decoded form, and writes the row; row may be nil.
func (w *worker) putStored(row *ring.Ring, x *coordinator.Fill, j *Job, blob []byte, alloc allocator) (err error) {
	if suffix := j.Made.Suffix(); suffix != nil {
		if blob, err = w.runOps(suffix, blob, j.key(x.Object, x.Seed, x.Instance), alloc); err != nil {
			return err
		}
	}
	v, err := record.Open(blob)
	if err != nil || row == nil {
		return err
	}
	return PutRecord(row, x, j, v)
}

// augmentRecord runs the built-in ops of a suffix once for a share group.
func (w *worker) augmentRecord(t task, x *coordinator.Augment) coordinator.Prepared {
	ev := coordinator.Prepared{Flight: x.Flight}
	blob, view, ok := w.openRecord(x.From)
	if !ok {
		ev.Lost = true
		return ev
	}
	defer view.Close()
	key := t.job.key(x.Key.Object, x.Seed, x.Instance)
	w.begin(t.job, Augment)
	kept, img, err := w.make(t, x.Key, x.Keep, func(alloc allocator) (prep.Image, error) {
		out, err := w.runOps(t.job.Made.Suffix(), blob, key, alloc)
		return prep.Image{Pix: out}, err
	})
	w.end(err)
	return w.finish(ev, kept, img, err)
}

// fillRecord writes one row of a batch of records: a copy of one, or what the suffix makes of one.
func (w *worker) fillRecord(t task, x *coordinator.Fill, ev coordinator.Filled) coordinator.Filled {
	blob, view, ok := w.openRecord(x.From)
	defer view.Close()
	if !ok {
		ev.Lost = true
		return ev
	}
	var err error
	if j := t.job; j.Made.Ready(x.From.Key.Form) {
		w.begin(j, Finish)
	} else {
		w.begin(j, Augment)
		key := j.key(x.Object, x.Seed, x.Instance)
		if blob, err = w.runOps(j.Made.Suffix(), blob, key, w.scratch); err == nil {
			defer w.p.free(blob)
			if j.Recipe.Random() {
				ev.Augments = 1
			}
		}
	}
	v := record.View{}
	if err == nil {
		v, err = record.Open(blob)
	}
	if err == nil {
		err = PutRecord(t.ring, x, t.job, v)
	}
	w.end(err)
	if err != nil {
		ev.Err = describe(err)
	}
	return ev
}

// copyRows writes rows that are copies of records. No decoder and no op sees them, so they are not noted as what the
// worker prepares.
func (w *worker) copyRows(t *task) {
	first := t.rows[0].From.Key.Form
	w.keys = w.keys[:0]
	for _, x := range t.rows {
		if x.From.Flight == 0 {
			w.keys = append(w.keys, x.From.Key)
		}
	}
	w.views = w.p.cfg.Store.OpenAll(first, w.keys, w.views[:0])
	w.begin(t.job, Finish)
	w.touched += touch(w.views)
	good, at, from := 0, 0, len(w.filled)
	for _, x := range t.rows {
		var v *tiers.View
		if x.From.Flight == 0 {
			v = &w.views[at]
			at++
		}
		ev := w.guardCopy(t, x, v)
		if !ev.Lost && ev.Err == "" {
			good++
		}
		w.filled = append(w.filled, ev)
	}
	measured := w.running.m != nil // a panic ends the measure
	took := w.running.end(0, good) / time.Duration(max(good, 1))
	w.running = piece{}
	for i, x := range t.rows {
		if ev := &w.filled[from+i]; measured && !ev.Lost && ev.Err == "" {
			w.p.cfg.Worked(Finish, x.Object, took)
		}
	}
}

// touchStride is how far apart touch reads, and touchBytes how much of a row it reads.
const touchStride, touchBytes = 512, 4096

// touch reads a little of every entry. Entries are in no cache, and to copy one waits for its header, then for its
// values: with every row again. Loads that do not depend on each other wait for memory together.
func touch(views []tiers.View) (sum byte) {
	for i := range views {
		b := views[i].Bytes
		for at := 0; at < min(len(b), touchBytes); at += touchStride {
			sum += b[at]
		}
	}
	return sum
}

// guardCopy writes one of them, from an entry, which it closes, or from a working copy if v is nil.
func (w *worker) guardCopy(t *task, x *coordinator.Fill, v *tiers.View) (ev coordinator.Filled) {
	defer func() {
		if v != nil {
			v.Close()
		}
		if r := recover(); r != nil {
			ev = coordinator.Filled{Delivery: x.Delivery, Row: x.Row, Err: w.panicked(r)}
		}
	}()
	ev = coordinator.Filled{Delivery: x.Delivery, Row: x.Row}
	var blob []byte
	there := false
	if v != nil {
		blob, there = v.Bytes, v.Bytes != nil
	} else {
		blob, _, there = w.openRecord(x.From) // of a flight: there is no View
	}
	if !there {
		ev.Lost = true
		return ev
	}
	r, err := record.Open(blob)
	if err == nil {
		err = PutRecord(t.ring, x, t.job, r)
	}
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

// PutStack is PutRecord for a sample of a stack.
func PutStack(r *ring.Ring, x *coordinator.Fill, j *Job, st *record.Stack, at int) error {
	if err := r.PutStack(x, st, at); err != nil {
		return err
	}
	sample, _ := j.Data.Sample(x.Object)
	r.Put(x.Slot, x.Row, 0, int64(sample))
	return nil
}
