package work

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"runtime/debug"
	"time"

	"larder/internal/coordinator"
	"larder/internal/engine/crashguard"
	"larder/internal/engine/ring"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/prep"
	"larder/internal/prep/fields"
	"larder/jobs"
	"larder/tiers"
)

// worker is what one goroutine of the pool owns.
type worker struct {
	p      *Pool
	prep   *prep.Worker
	fields *fields.Worker
	read   []byte // read buffer

	filled  []coordinator.Filled // rows of one batch that are not reported yet
	keys    []ident.Key          // of the rows that are written together, reused
	views   []tiers.View         // of these
	most    int                  // of them
	touched byte                 // of what was read to have it in a cache: has no meaning
	waited  time.Duration        // for room in a tier, in the running piece of work
	running piece                // of work that is measured; zero = none
	object  ident.ObjectID
	line    *crashguard.Line // what it prepares
}

func (p *Pool) work(ctx context.Context, line *crashguard.Line) {
	w := &worker{p: p, prep: prep.NewWorker(p.cfg.Limits), line: line}
	w.prep.DecodeBy(p.cfg.Outside)
	w.fields = fields.NewWorker(w.prep)
	defer w.prep.Close()
	for {
		t, ok := p.next(false)
		w.report(&t)
		if !ok {
			if t, ok = p.next(true); !ok {
				return
			}
		}
		if t.native != nil {
			w.doNative(ctx, &t)
			continue
		}
		switch x := t.what.(type) {
		case coordinator.Prepare:
			if x.Into != nil {
				w.note(t.job, x.Key.Object, x.Into.Seed, x.Into.Instance)
			} else {
				w.note(t.job, x.Key.Object, 0, 0)
			}
			ev := w.guard(x.Flight, func() coordinator.Prepared { return w.doPrepare(ctx, t, &x) })
			w.line.Clear()
			p.consumed(&t)
			w.send(ev)
		case coordinator.Augment:
			w.note(t.job, x.Key.Object, x.Seed, x.Instance)
			ev := w.guard(x.Flight, func() coordinator.Prepared { return w.doAugment(t, &x) })
			w.line.Clear()
			w.send(ev)
		case *coordinator.Fill:
			if w.filled == nil {
				w.most = unreportedOf(t.job)
				w.filled = make([]coordinator.Filled, 0, max(w.most, len(t.rows)))
			}
			if t.rows != nil {
				w.copyRows(&t)
			} else {
				w.note(t.job, x.Object, x.Seed, x.Instance)
				w.filled = append(w.filled, w.guardFill(t, x))
				w.line.Clear()
			}
			if t.ring != nil {
				t.ring.Release()
			}
		}
	}
}

// mostKept bounds what a worker keeps for its next read: one huge file must not keep the memory of every worker.
const mostKept = 64 << 20

// note notes what the worker begins, for the next daemon in case this one dies of it.
func (w *worker) note(j *Job, x ident.ObjectID, seed uint64, instance uint32) {
	w.object = x
	if w.line != nil && j != nil {
		s, _ := j.Data.Sample(x)
		w.line.Set(crashguard.Piece{Job: j.ID, Sample: s, Instance: instance, Seed: seed})
	}
}

// maxUnreported is how many rows of a batch a worker fills before it reports them to the coordinator, manyUnreported of
// a batch of records.
const maxUnreported, manyUnreported = 8, 32

func unreportedOf(j *Job) int {
	if j != nil && j.Made != nil {
		return manyUnreported
	}
	return maxUnreported
}

// report sends the filled rows to the coordinator, unless the worker continues with the same batch: the coordinator
// would wake for each row, and has nothing to do for a batch before it is whole.
func (w *worker) report(next *task) {
	if len(w.filled) == 0 {
		return
	}
	x, fill := next.what.(*coordinator.Fill)
	if fill && len(w.filled) < w.most && x.Delivery == w.filled[0].Delivery {
		return
	}
	if w.p.cfg.SendAll != nil && w.most == manyUnreported {
		all := make([]coordinator.Event, len(w.filled))
		for i := range w.filled {
			all[i] = &w.filled[i]
		}
		w.p.cfg.SendAll(all)
	} else {
		for i := range w.filled {
			w.p.cfg.Send(&w.filled[i])
		}
	}
	w.filled = nil    // the coordinator has them: one allocation for all of them, none for each
	runtime.Gosched() // see send
}

// send hands an event to the coordinator and lets it run. Its goroutine has just become the next one of this
// processor, which is about to be in a C call for a millisecond: it would wait there until the runtime takes the
// processor away, for which it looks every 20 microseconds from then on.
func (w *worker) send(ev coordinator.Event) {
	w.p.cfg.Send(ev)
	runtime.Gosched()
}

// guard reports a panic in a decoder or an op, which is a bug, as the failure of one sample.
func (w *worker) guard(id coordinator.FlightID, do func() coordinator.Prepared) (ev coordinator.Prepared) {
	defer func() {
		if r := recover(); r != nil {
			ev = coordinator.Prepared{Flight: id, Err: w.panicked(r)}
		}
	}()
	return do()
}

func (w *worker) guardFill(t task, x *coordinator.Fill) (ev coordinator.Filled) {
	defer func() {
		if r := recover(); r != nil {
			ev = coordinator.Filled{Delivery: x.Delivery, Row: x.Row, Err: w.panicked(r)}
		}
	}()
	return w.doFill(t, x)
}

func (w *worker) panicked(r any) string {
	w.running.end(0, 0)
	w.running = piece{}
	w.p.cfg.Note(slog.LevelError, "preparing a sample panicked: please report this",
		"panic", r, "stack", string(debug.Stack()))
	return "larder panicked while preparing it; the daemon's log has the stack"
}

// doPrepare reads and decodes one object.
func (w *worker) doPrepare(ctx context.Context, t task, x *coordinator.Prepare) coordinator.Prepared {
	store := w.p.cfg.Store
	ev := coordinator.Prepared{Flight: x.Flight}
	var enc []byte
	ekey := ident.Key{Object: x.Key.Object, Form: ident.Encoded}
	if x.From == ident.Encoded {
		v, err := store.Open(ekey)
		if err != nil {
			ev.Lost = true
			return ev
		}
		defer v.Close()
		enc = v.Bytes
	} else {
		b, held, err := t.read, t.held, t.err
		if t.size == 0 {
			if b, held, err = w.p.readFor(ctx, &t, w.read[:0]); err == nil {
				w.read = b
			}
			w.p.readQueued()
			if cap(w.read) > mostKept {
				w.read = nil
			}
		}
		if err != nil {
			ev.Err, ev.Away = err.Error(), w.p.cfg.Away != nil && w.p.cfg.Away(ctx, x.Key.Object, err)
			return ev
		}
		enc = b
		if ev.Held = held; !held {
			ev.Read = int64(len(b))
		}
		if x.KeepEncoded {
			w.p.cfg.Tiers.Wait(t.after)
			ev.Encoded = w.keep(ekey, b, tiers.Meta{})
		}
	}
	if bad, stopping := w.p.cfg.Verdict(ctx, t.job.Recipe, x.Key.Object, enc); bad != "" || stopping {
		ev.Err, ev.Lost = bad, stopping
		return ev
	}
	if t.job.Made != nil {
		return w.prepareRecord(t, x, enc, ev)
	}
	leave := w.p.heavy.enter(w.prep.Memory(enc))
	defer leave()
	if x.Into != nil {
		return w.inPlace(t, x.Into, enc, ev)
	}
	w.begin(t.job, Decode)
	kept, img, err := w.make(t, x.Key, x.Keep, func(alloc allocator) (prep.Image, error) {
		return w.prep.DecodeCompact(t.job.Recipe, enc, alloc)
	})
	w.end(err)
	return w.finish(ev, kept, img, err)
}

// inPlace decodes an object straight into the only row that needs it. Now and then it decodes and augments in two
// steps, with the same bytes as the result, because the model of the tiers needs to know what each step costs.
func (w *worker) inPlace(t task, x *coordinator.Fill, enc []byte, ev coordinator.Prepared) coordinator.Prepared {
	j := t.job
	key := j.key(x.Object, x.Seed, x.Instance)
	var dst []byte
	// The ring is not held before: many such tasks may wait, and a client that is gone needs its memory no more.
	row := w.p.cfg.Rings.Hold(ring.Key{Job: x.Job, Rank: x.Rank, Inc: x.Inc})
	if row != nil {
		defer row.Release()
		dst = row.Image(x.Slot, x.Row)
	} else { // the client is gone, but the coordinator still asks what became of the object
		dst = w.p.scratch(j.Recipe.Output().SampleBytes)
		defer w.p.free(dst)
	}
	_, _, decoded, err := w.prep.DecodedShape(j.Recipe, enc)
	switch {
	case err != nil:
	case w.p.cfg.Meters.due(j.RecipeKey()):
		err = w.inSteps(j, enc, key, dst)
	default:
		w.begin(j, InPlace)
		err = w.prep.DecodeInto(j.Recipe, enc, key, dst)
		w.end(err)
	}
	if err != nil {
		return failed(ev, err)
	}
	ev.Bytes = int64(decoded)
	if j.Recipe.Random() {
		ev.Augments = 1
	}
	if row != nil {
		sample, _ := j.Data.Sample(x.Object)
		row.Put(x.Slot, x.Row, j.Data.Label(sample), int64(sample))
	}
	return ev
}

// inSteps is DecodeInto with each of its steps measured.
func (w *worker) inSteps(j *Job, enc []byte, key prep.RandKey, dst []byte) error {
	var buf []byte
	defer func() {
		if buf != nil {
			w.p.free(buf)
		}
	}()
	w.begin(j, Decode)
	img, err := w.prep.DecodeCompact(j.Recipe, enc, func(n int) ([]byte, error) {
		buf = w.p.scratch(n)
		return buf, nil
	})
	w.end(err)
	if err != nil {
		return err
	}
	w.begin(j, Augment)
	err = w.prep.AugmentInto(j.Recipe, img, key, dst)
	w.end(err)
	return err
}

type allocator = func(n int) ([]byte, error)

// make produces an image in its tier when keep is asked and there is room, else in a working copy. When the tier was
// shrunk meanwhile the work is done again: the sample is never lost.
func (w *worker) make(
	t task, k ident.Key, keep bool, produce func(allocator) (prep.Image, error),
) (kept bool, img prep.Image, err error) {
	var buf *tiers.Buf
	defer func() {
		if buf != nil { // a decoder or an op has panicked: the room must not stay taken
			buf.Abort()
		}
	}()
	img, err = produce(func(n int) ([]byte, error) {
		if !keep {
			return w.p.scratch(n), nil
		}
		begun := time.Now()
		defer func() { w.waited += time.Since(begun) }()
		w.p.cfg.Tiers.Wait(t.after)
		b, err := w.p.cfg.Store.Alloc(k, int64(n))
		switch {
		case err == nil:
			buf = b
			return b.Bytes, nil
		case errors.Is(err, tiers.ErrFull):
			return w.p.scratch(n), nil
		}
		return nil, err
	})
	if buf == nil {
		return false, img, err
	}
	made := buf
	buf = nil
	if err != nil {
		made.Abort()
		return false, img, err
	}
	meta := tiers.Meta{Width: uint32(img.W), Height: uint32(img.H), Channels: uint32(img.C), Planes: uint32(img.Planes)}
	if err := made.Commit(meta); err != nil {
		return w.make(t, k, false, produce)
	}
	return true, img, nil
}

// begin measures a piece of work until end. What fails does not count.
func (w *worker) begin(j *Job, s Step) {
	w.waited = 0
	w.running = w.p.cfg.Meters.work(j.RecipeKey(), s)
}

func (w *worker) end(err error) {
	n := 1
	if err != nil {
		n = 0
	}
	took := w.running.end(w.waited, n)
	if err == nil && w.running.m != nil {
		w.p.cfg.Worked(w.running.step, w.object, took)
	}
	w.running = piece{}
}

// finish turns the outcome of make into the event.
func (w *worker) finish(ev coordinator.Prepared, kept bool, img prep.Image, err error) coordinator.Prepared {
	if err != nil {
		return failed(ev, err)
	}
	ev.Kept, ev.Bytes = kept, int64(len(img.Pix))
	if !kept {
		w.hold(ev.Flight, img)
	}
	return ev
}

// keep copies bytes into a tier; false when it has no room.
func (w *worker) keep(k ident.Key, b []byte, m tiers.Meta) bool {
	buf, err := w.p.cfg.Store.Alloc(k, int64(len(b)))
	if err != nil {
		return false
	}
	copy(buf.Bytes, b)
	return buf.Commit(m) == nil
}

// hold keeps a working copy until it is discarded.
func (w *worker) hold(id coordinator.FlightID, img prep.Image) {
	w.p.mu.Lock()
	w.p.mu.copied += int64(cap(img.Pix)) - int64(cap(w.p.mu.copies[id].Pix))
	w.p.mu.copies[id] = img
	w.p.mu.Unlock()
}

// open finds an image in a working copy or a tier; the view must be closed when the image is not needed any more.
func (w *worker) open(s coordinator.Source) (img prep.Image, view tiers.View, ok bool) {
	if s.Flight != 0 {
		w.p.mu.Lock()
		img, ok = w.p.mu.copies[s.Flight]
		w.p.mu.Unlock()
		return img, view, ok // the coordinator discards it only after this task is answered
	}
	v, err := w.p.cfg.Store.Open(s.Key)
	if err != nil {
		return img, view, false
	}
	img = prep.Image{W: int(v.Meta.Width), H: int(v.Meta.Height), C: int(v.Meta.Channels),
		Planes: prep.Planes(v.Meta.Planes)}
	img.Pix = v.Bytes[:img.Planes.Bytes(img.W, img.H)]
	return img, v, true
}

// doAugment runs the random suffix once for a share group.
func (w *worker) doAugment(t task, x *coordinator.Augment) coordinator.Prepared {
	if t.job.Made != nil {
		return w.augmentRecord(t, x)
	}
	ev := coordinator.Prepared{Flight: x.Flight}
	src, view, ok := w.open(x.From)
	if !ok {
		ev.Lost = true
		return ev
	}
	defer view.Close()
	key := t.job.key(x.Key.Object, x.Seed, x.Instance)
	w.begin(t.job, Augment)
	kept, img, err := w.make(t, x.Key, x.Keep, func(alloc allocator) (prep.Image, error) {
		return w.prep.Augment(t.job.Recipe, src, key, alloc)
	})
	w.end(err)
	return w.finish(ev, kept, img, err)
}

// doFill writes one row of a slot. For fixed shapes this is the collate: pixels go straight to their place in the
// batch.
func (w *worker) doFill(t task, x *coordinator.Fill) coordinator.Filled {
	ev := coordinator.Filled{Delivery: x.Delivery, Row: x.Row}
	if t.ring == nil {
		return ev // the client is gone: the row will not be read
	}
	if t.job.Made != nil {
		return w.fillRecord(t, x, ev)
	}
	src, view, ok := w.open(x.From)
	if !ok {
		ev.Lost = true
		return ev
	}
	defer view.Close()
	j, r := t.job, t.ring
	sample, _ := j.Data.Sample(x.Object)
	var err error
	kind := Augment
	if x.From.Key.Form == ident.Augmented {
		kind = Finish
	}
	w.begin(j, kind)
	switch {
	case r.Ragged():
		img := src
		var full error // the memory for rings is used up
		room := func(n int) (b []byte, err error) {
			b, full = r.Room(x, n)
			return b, full
		}
		if x.From.Key.Form == ident.Augmented {
			if img.Pix, err = room(len(src.Pix)); err == nil {
				copy(img.Pix, src.Pix)
			}
		} else {
			img, err = w.prep.Augment(j.Recipe, src, j.key(x.Object, x.Seed, x.Instance), room)
		}
		if full != nil {
			r.Fail(full)
		} else if err == nil {
			r.Shape(x, img.H, img.W, img.C)
		}
	case x.From.Key.Form == ident.Augmented:
		err = w.prep.Finish(j.Recipe, src, j.key(x.Object, x.Seed, x.Instance), r.Image(x.Slot, x.Row))
	default:
		err = w.prep.AugmentInto(j.Recipe, src, j.key(x.Object, x.Seed, x.Instance), r.Image(x.Slot, x.Row))
	}
	w.end(err)
	if err != nil {
		ev.Err = describe(err)
		return ev
	}
	if x.From.Key.Form == ident.Decoded && j.Recipe.Random() {
		ev.Augments = 1
	}
	r.Put(x.Slot, x.Row, j.Data.Label(sample), int64(sample))
	return ev
}

// failed is the event of a sample that could not be made. Decoders that have stopped say nothing about it.
func failed(ev coordinator.Prepared, err error) coordinator.Prepared {
	if errors.Is(err, prep.ErrStopped) {
		ev.Lost = true
		return ev
	}
	ev.Err, ev.Kind, ev.At = describe(err), badKind(err), damagedAt(err)
	return ev
}

// badKind tells an image that is refused only because it is damaged from one that cannot be prepared.
func badKind(err error) jobs.BadKind {
	if prep.IsCorrupt(err) {
		return jobs.SampleDamaged
	}
	return jobs.SampleFailed
}

// damagedAt is 1 + the offset of the damage in the stored bytes; 0 = not known.
func damagedAt(err error) int64 {
	if at, ok := prep.DamagedAt(err); ok {
		return at + 1
	}
	return 0
}

// describe gives the reason alone: file and hint are added where the sample is reported.
func describe(err error) string {
	if f, ok := errors.AsType[*errs.Error](err); ok {
		s := f.Message
		if f.Err != nil {
			s += ": " + f.Err.Error()
		}
		return s
	}
	return err.Error()
}
