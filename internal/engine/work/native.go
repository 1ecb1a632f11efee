package work

import (
	"context"
	"encoding/binary"
	"errors"

	"larder/internal/coordinator"
	"larder/internal/ident"
	"larder/internal/prep"
	"larder/internal/record"
)

// ErrStopped is why the ops of a record were not run.
var ErrStopped = errors.New("the daemon is stopping")

// native is ops on a record of somebody else, or a record that is read for somebody else.
type native struct {
	runs []Run
	key  prep.RandKey
	blob []byte
	done func(out []byte, err error)
	read func(out []byte, ev coordinator.Prepared) // instead of done: the record is read and decoded first
}

func (n *native) stopped() {
	if n.read != nil {
		n.read(nil, coordinator.Prepared{Lost: true, Err: ErrStopped.Error()})
		return
	}
	n.done(nil, ErrStopped)
}

// Native runs built-in ops of a job on a record in a worker of the pool, as of a job that is not behind. It does not
// wait. done is called once, by that worker or by Stop; the record that it gets is not to be kept.
func (p *Pool) Native(j *Job, runs []Run, key prep.RandKey, blob []byte, done func(out []byte, err error)) {
	p.addNative(task{job: j, native: &native{runs: runs, key: key, blob: blob, done: done}})
}

// Item is an object that is read for somebody else.
type Item struct {
	Object  ident.ObjectID
	Readers int // jobs whose subset has it, as of a coordinator.Prepare; 0 = not known
}

// Read reads and decodes an object of a job as a record and runs the ops of runs on it, which draw by key, as of a job
// that is not behind. It does not wait. done is called once: with the record, which is not to be kept, and what was
// read, or with why there is none. Lost says that the Pool has stopped.
func (p *Pool) Read(
	j *Job, item Item, runs []Run, key prep.RandKey, done func(out []byte, ev coordinator.Prepared),
) {
	p.addNative(task{job: j, native: &native{runs: runs, key: key, read: done},
		what: coordinator.Prepare{Key: ident.Key{Object: item.Object, Form: ident.Decoded}, From: ident.Stored,
			Readers: item.Readers}})
}

func (p *Pool) addNative(t task) {
	p.mu.Lock()
	if p.mu.stopped {
		p.mu.Unlock()
		t.native.stopped()
		return
	}
	t.turn = p.mu.turn + 1
	if p.readsAhead(&t) {
		p.mu.ahead.unread.Push(t)
		p.mu.Unlock()
		p.unread.Signal()
		return
	}
	t.size = 0
	p.mu.tasks.Push(t)
	p.mu.Unlock()
	p.workable.Signal()
}

// doNative runs one.
func (w *worker) doNative(ctx context.Context, t *task) {
	n := t.native
	if n.read == nil {
		out, err := w.guardNative(n)
		n.done(out, err)
		if out != nil {
			w.p.free(out)
		}
		return
	}
	w.note(t.job, t.what.(coordinator.Prepare).Key.Object, n.key.Seed, n.key.Instance)
	var out []byte
	ev := w.guard(0, func() (ev coordinator.Prepared) {
		out, ev = w.readRecord(ctx, t)
		return ev
	})
	w.line.Clear()
	w.p.consumed(t)
	if ev.Err != "" || ev.Lost {
		out = nil
	}
	n.read(out, ev)
	if out != nil {
		w.p.free(out)
	}
}

func (w *worker) guardNative(n *native) (out []byte, err error) {
	defer func() {
		if r := recover(); r != nil {
			out, err = nil, errors.New(w.panicked(r))
		}
	}()
	if out, err = w.runOps(n.runs, n.blob, n.key, w.scratch); err != nil {
		return nil, errors.New(describe(err))
	}
	return out, nil
}

// readRecord reads an object and makes a record of it, in scratch.
func (w *worker) readRecord(ctx context.Context, t *task) (out []byte, ev coordinator.Prepared) {
	o, n := t.what.(coordinator.Prepare).Key.Object, t.native
	enc, held, err := t.read, t.held, t.err
	if t.size == 0 {
		if enc, held, err = w.p.readFor(ctx, t, w.read[:0]); err == nil && cap(enc) <= mostKept {
			w.read = enc
		}
		w.p.readQueued()
	}
	if err != nil {
		ev.Err, ev.Away = err.Error(), w.p.cfg.Away != nil && w.p.cfg.Away(ctx, o, err)
		return nil, ev
	}
	if ev.Held = held; !held {
		ev.Read = int64(len(enc))
	}
	if bad, stopping := w.p.cfg.Verdict(ctx, t.job.Recipe, o, enc); bad != "" || stopping {
		ev.Err, ev.Lost = bad, stopping
		return nil, ev
	}
	if enc, err = t.job.stored(o, enc); err != nil {
		return nil, failed(ev, err)
	}
	if out, err = w.item(t.job.Made, enc, w.scratch); err == nil && len(n.runs) > 0 {
		item := out
		out, err = w.runOps(n.runs, item, n.key, w.scratch)
		w.p.free(item)
	}
	if err != nil {
		return nil, failed(ev, err)
	}
	return out, ev
}

// ImageSchema is the records that the images of a folder, or of files without other fields, are to steps in Python.
var ImageSchema = record.Schema{Fields: []record.Field{
	{Name: "image", Kind: record.Array, DType: record.Uint8, Shape: []int64{record.Ragged, record.Ragged, 3}},
	{Name: "label", Kind: record.Scalar, DType: record.Int64},
}}

// storedImage is how a record of ImageSchema is stored.
var storedImage = record.Schema{Fields: []record.Field{
	{Name: "image", Kind: record.Bytes, DType: record.Uint8, Shape: []int64{record.Ragged}},
	{Name: "label", Kind: record.Scalar, DType: record.Int64},
}}

// stored is the stored record of what was read of an object.
func (j *Job) stored(o ident.ObjectID, enc []byte) ([]byte, error) {
	if !j.Made.Image {
		return enc, nil
	}
	s, _ := j.Data.Sample(o)
	label := binary.LittleEndian.AppendUint64(nil, uint64(j.Data.Label(s)))
	return record.Encode(&storedImage, []record.Content{{Data: enc}, {Data: label}})
}
