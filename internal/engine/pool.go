package engine

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"larder/internal/coordinator"
	"larder/internal/engine/crashguard"
	"larder/internal/engine/ring"
	"larder/internal/errs"
	"larder/internal/heap"
	"larder/internal/ident"
	"larder/internal/prep"
	"larder/tiers"
)

var pid = os.Getpid()

// task is one piece of work for a worker.
type task struct {
	what  coordinator.Effect // Prepare, Augment or *Fill, boxed once, by the coordinator
	turn  uint64             // its place among the work of all jobs
	job   *job
	ring  *ring.Ring
	after uint64 // what the keeper must have done before something is stored

	size int64  // of what was read ahead for it; 0 = nothing was
	read []byte // that
	err  error  // or why it was not
}

// Before is the order of work: by turn, equal turns in any order. Fills have no precedence over preparations: a job that runs on hits would
// starve one that misses.
func (t *task) Before(o *task) bool { return t.turn < o.turn }

type taskQueue = heap.Heap[task, *task]

// pool is the preparation workers. Its queue is bounded by what the coordinator hands out: its InFlight preparations, and
// the rows of the rings.
type pool struct {
	e     *Engine
	heavy *gate // of images that are being decoded
	room  int64 // bytes that working copies may have when another one is begun, and that are kept for the next ones
	wg    sync.WaitGroup

	mu struct {
		sync.Mutex
		fresh   taskQueue // Prepare: they make working copies, unless a tier keeps the result
		tasks   taskQueue // what reads copies and entries
		ahead   ahead
		copies  map[coordinator.FlightID]prep.Image // working copies no tier holds
		spare   [][]byte                            // memory of old working copies
		copied  int64                               // bytes of copies
		spared  int64                               // bytes of spare
		stopped bool
	}
	wake   *sync.Cond // of workers
	unread *sync.Cond // of readers
}

// mostCopies is how many working copies there may be for a worker when it begins another one. Large ones are fewer: together they may have a
// quarter of the daemon's own memory, unless there is but one.
const mostCopies = 4

func newPool(e *Engine) *pool {
	own := e.cfg.Own
	if own <= 0 {
		own = 1 << 30
	}
	p := &pool{e: e, heavy: newGate(own), room: own / 4}
	p.wake, p.unread = sync.NewCond(&p.mu.Mutex), sync.NewCond(&p.mu.Mutex)
	p.mu.ahead.budget = e.cfg.ReadAhead
	p.mu.copies = map[coordinator.FlightID]prep.Image{}
	return p
}

func (p *pool) start(ctx context.Context) {
	for i := range p.e.cfg.Workers {
		p.wg.Go(func() { p.work(ctx, p.e.cfg.Decoding.Line(i)) })
	}
	for range readers {
		p.wg.Go(func() { p.read(ctx) })
	}
}

func (p *pool) stop() {
	p.mu.Lock()
	p.mu.stopped = true
	p.mu.Unlock()
	p.wake.Broadcast()
	p.unread.Broadcast()
	p.wg.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.mu.tasks { // never run: they still hold their rings
		if t.ring != nil {
			t.ring.Release()
		}
	}
	p.mu.tasks, p.mu.fresh, p.mu.ahead.unread, p.mu.copies, p.mu.spare = nil, nil, nil, nil, nil
}

func (p *pool) add(t task) {
	t.after = p.e.keeper.mark()
	p.mu.Lock()
	if p.readsAhead(&t) {
		p.mu.ahead.unread.Push(t)
		p.mu.Unlock()
		p.unread.Signal()
		return
	}
	t.size = 0
	p.ready(t)
	p.mu.Unlock()
	p.wake.Signal()
}

// ready gives a task to the workers; p.mu is held.
func (p *pool) ready(t task) {
	if x, fresh := t.what.(coordinator.Prepare); fresh && x.Into == nil {
		p.mu.fresh.Push(t)
	} else {
		p.mu.tasks.Push(t)
	}
}

func (p *pool) discard(id coordinator.FlightID) {
	p.mu.Lock()
	img, ok := p.mu.copies[id]
	if ok {
		delete(p.mu.copies, id)
		p.mu.copied -= int64(cap(img.Pix))
		p.recycle(img.Pix)
	}
	p.mu.Unlock()
	if ok {
		p.wake.Signal() // a worker may wait for room
	}
}

// recycle keeps the memory of a few working copies; p.mu is held.
func (p *pool) recycle(b []byte) {
	if n := int64(cap(b)); len(p.mu.spare) < 2*p.e.cfg.Workers && p.mu.spared+n <= p.room {
		p.mu.spare = append(p.mu.spare, b[:0])
		p.mu.spared += n
	}
}

// giveBack ends the use of scratch.
func (p *pool) giveBack(b []byte) {
	p.mu.Lock()
	p.recycle(b)
	p.mu.Unlock()
}

// scratch returns n bytes for a working copy.
func (p *pool) scratch(n int) []byte {
	p.mu.Lock()
	for i, b := range p.mu.spare {
		if cap(b) >= n {
			last := len(p.mu.spare) - 1
			p.mu.spare[i], p.mu.spare[last] = p.mu.spare[last], nil
			p.mu.spare = p.mu.spare[:last]
			p.mu.spared -= int64(cap(b))
			p.mu.Unlock()
			return b[:n]
		}
	}
	if len(p.mu.spare) > 0 { // make room for a larger one
		p.mu.spared -= int64(cap(p.mu.spare[0]))
		p.mu.spare = slices.Delete(p.mu.spare, 0, 1)
	}
	p.mu.Unlock()
	return make([]byte, n, n+n/4)
}

// roomForCopy tells whether another working copy may be begun; p.mu is held. What reads copies needs no new one, so waiting ends.
func (p *pool) roomForCopy() bool {
	n := len(p.mu.copies)
	return n == 0 || n < mostCopies*p.e.cfg.Workers && p.mu.copied < p.room
}

// next returns the task that is first, and waits for one if it may; false = there is none, or none any more.
func (p *pool) next(wait bool) (task, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		if p.mu.stopped {
			return task{}, false
		}
		fresh := len(p.mu.fresh) > 0 && p.roomForCopy() // else their memory is to be freed first
		if fresh && (len(p.mu.tasks) == 0 || p.mu.fresh[0].turn < p.mu.tasks[0].turn) {
			return p.mu.fresh.Pop(), true
		}
		if len(p.mu.tasks) > 0 {
			return p.mu.tasks.Pop(), true
		}
		if !wait {
			return task{}, false
		}
		p.wake.Wait()
	}
}

// worker is what one goroutine of the pool owns.
type worker struct {
	p    *pool
	prep *prep.Worker
	read []byte // read buffer

	filled  []coordinator.Filled // rows of one batch that the coordinator does not know of yet
	waited  time.Duration        // for room in a tier, in the running piece of work
	running piece                // of work that is measured; zero = none
	object  ident.ObjectID
	line    *crashguard.Line // what it prepares
}

func (p *pool) work(ctx context.Context, line *crashguard.Line) {
	w := &worker{p: p, prep: prep.NewWorker(p.e.cfg.Limits), line: line}
	defer w.prep.Close()
	for {
		t, ok := p.next(false)
		w.tell(&t)
		if !ok {
			if t, ok = p.next(true); !ok {
				return
			}
		}
		switch x := t.what.(type) {
		case coordinator.Prepare:
			if x.Into != nil {
				w.at(t.job, x.Key.Object, x.Into.Seed, x.Into.Instance)
			} else {
				w.at(t.job, x.Key.Object, 0, 0)
			}
			ev := w.guard(x.Flight, func() coordinator.Prepared { return w.doPrepare(ctx, t, &x) })
			w.line.Clear()
			p.consumed(&t)
			w.send(ev)
		case coordinator.Augment:
			w.at(t.job, x.Key.Object, x.Seed, x.Instance)
			ev := w.guard(x.Flight, func() coordinator.Prepared { return w.doAugment(t, &x) })
			w.line.Clear()
			w.send(ev)
		case *coordinator.Fill:
			w.at(t.job, x.Object, x.Seed, x.Instance)
			ev := w.guardFill(t, x)
			w.line.Clear()
			if t.ring != nil {
				t.ring.Release()
			}
			if w.filled == nil {
				w.filled = make([]coordinator.Filled, 0, mostUntold)
			}
			w.filled = append(w.filled, ev)
		}
	}
}

// at notes what the worker begins, for the next daemon in case this one dies of it.
func (w *worker) at(j *job, x ident.ObjectID, seed uint64, instance uint32) {
	w.object = x
	if w.line != nil && j != nil {
		s, _ := j.data.Sample(x)
		w.line.Set(crashguard.Piece{Job: j.id, Sample: s, Instance: instance, Seed: seed})
	}
}

// mostUntold is how many rows of a batch a worker fills before it tells the coordinator.
const mostUntold = 8

// tell tells the coordinator of rows, unless the worker goes on with the same batch: it would wake for each row, and has nothing to do for a batch
// before it is whole.
func (w *worker) tell(next *task) {
	if len(w.filled) == 0 {
		return
	}
	if x, fill := next.what.(*coordinator.Fill); fill && len(w.filled) < mostUntold && x.Delivery == w.filled[0].Delivery {
		return
	}
	for i := range w.filled {
		w.p.e.send(&w.filled[i])
	}
	w.filled = nil    // the coordinator has them: one allocation for all of them, none for each
	runtime.Gosched() // see send
}

// send hands an event to the coordinator and lets it run. Its goroutine has just become the next one of this processor, which is about to be in a C call
// for a millisecond: it would wait there until the runtime takes the processor away, for which it looks every 20 microseconds from then on.
func (w *worker) send(ev coordinator.Event) {
	w.p.e.send(ev)
	runtime.Gosched()
}

// A panic in a decoder or an op is a bug, but of one sample: it is reported as that sample's failure.
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
	w.running.end(0, false)
	w.running = piece{}
	w.p.e.note(slog.LevelError, "preparing a sample panicked: please report this", "panic", r, "stack", string(debug.Stack()))
	return "larder panicked while preparing it; the daemon's log has the stack"
}

// doPrepare reads and decodes one object.
func (w *worker) doPrepare(ctx context.Context, t task, x *coordinator.Prepare) coordinator.Prepared {
	store := w.p.e.cfg.Store
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
		b, err := t.read, t.err
		if t.size == 0 {
			if b, err = w.p.e.readObject(ctx, x.Key.Object, w.read[:0]); err == nil {
				w.read = b
			}
			if cap(w.read) > 64<<20 {
				w.read = nil // one huge file must not occupy every worker for ever
			}
		}
		if err != nil {
			ev.Err = err.Error()
			return ev
		}
		enc = b
		ev.Read = int64(len(b))
		if x.KeepEncoded {
			w.p.e.keeper.wait(t.after)
			ev.Encoded = w.keep(ekey, b, tiers.Meta{})
		}
	}
	if bad, wait := w.p.e.guard.Verdict(ctx, t.job.recipe, x.Key.Object, enc); bad != "" || wait {
		ev.Err, ev.Lost = bad, wait
		return ev
	}
	leave := w.p.heavy.enter(w.prep.Memory(enc))
	defer leave()
	if x.Into != nil {
		return w.inPlace(t, x.Into, enc, ev)
	}
	w.begin(t.job, stepDecode)
	kept, img, err := w.make(t, x.Key, x.Keep, func(alloc allocator) (prep.Image, error) { return w.prep.Decode(t.job.recipe, enc, alloc) })
	w.end(err)
	return w.finish(ev, kept, img, err)
}

// inPlace decodes an object straight into the row that alone wants it. Now and then it goes the long way, with the same bytes, because the
// model of the tiers needs to know what each half of it costs.
func (w *worker) inPlace(t task, x *coordinator.Fill, enc []byte, ev coordinator.Prepared) coordinator.Prepared {
	j := t.job
	key := j.key(x.Object, x.Seed, x.Instance)
	var dst []byte
	// The ring is not held before: many such tasks may wait, and a client that is gone needs its memory no more.
	row := w.p.e.rings.Hold(ring.Key{Job: x.Job, Rank: x.Rank, Inc: x.Inc})
	if row != nil {
		defer row.Release()
		dst = row.Image(x.Slot, x.Row)
	} else { // the client is gone, but what became of the object is still asked for
		dst = w.p.scratch(j.recipe.Output().SampleBytes)
		defer w.p.giveBack(dst)
	}
	width, height, err := w.prep.DecodedShape(j.recipe, enc)
	switch {
	case err != nil:
	case w.p.e.meters.due(j):
		err = w.inSteps(j, enc, key, dst)
	default:
		w.begin(j, stepInPlace)
		err = w.prep.DecodeInto(j.recipe, enc, key, dst)
		w.end(err)
	}
	if err != nil {
		ev.Err, ev.Corrupt, ev.At = describe(err), prep.IsCorrupt(err), damagedAt(err)
		return ev
	}
	ev.Bytes = int64(width) * int64(height) * 3
	if j.recipe.Random() {
		ev.Augments = 1
	}
	if row != nil {
		sample, _ := j.data.Sample(x.Object)
		row.Put(x.Slot, x.Row, j.data.Label(sample), int64(sample))
	}
	return ev
}

// inSteps is DecodeInto with each of its halves measured.
func (w *worker) inSteps(j *job, enc []byte, key prep.RandKey, dst []byte) error {
	var buf []byte
	defer func() {
		if buf != nil {
			w.p.giveBack(buf)
		}
	}()
	w.begin(j, stepDecode)
	img, err := w.prep.Decode(j.recipe, enc, func(n int) ([]byte, error) {
		buf = w.p.scratch(n)
		return buf, nil
	})
	w.end(err)
	if err != nil {
		return err
	}
	w.begin(j, stepAugment)
	err = w.prep.AugmentInto(j.recipe, img, key, dst)
	w.end(err)
	return err
}

type allocator = func(n int) ([]byte, error)

// make produces an image in its tier when keep is asked and there is room, else in a working copy. A tier that takes its
// room back meanwhile (it was shrunk) costs the work again, never the sample.
func (w *worker) make(t task, k ident.Key, keep bool, produce func(allocator) (prep.Image, error)) (kept bool, img prep.Image, err error) {
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
		w.p.e.keeper.wait(t.after)
		b, err := w.p.e.cfg.Store.Alloc(k, int64(n))
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
	if err := made.Commit(tiers.Meta{Width: uint32(img.W), Height: uint32(img.H), Channels: uint32(img.C)}); err != nil {
		return w.make(t, k, false, produce)
	}
	return true, img, nil
}

// begin measures a piece of work until end, unless it fails.
func (w *worker) begin(j *job, s step) {
	w.waited = 0
	w.running = w.p.e.meters.work(j, s)
}

func (w *worker) end(err error) {
	took := w.running.end(w.waited, err == nil)
	if r := w.p.e.recorder.Load(); r != nil && err == nil && w.running.m != nil {
		r.worked(w.running.step, w.object, took)
	}
	w.running = piece{}
}

// finish turns the outcome of make into the event.
func (w *worker) finish(ev coordinator.Prepared, kept bool, img prep.Image, err error) coordinator.Prepared {
	if err != nil {
		ev.Err, ev.Corrupt, ev.At = describe(err), prep.IsCorrupt(err), damagedAt(err)
		return ev
	}
	ev.Kept, ev.Bytes = kept, int64(len(img.Pix))
	if !kept {
		w.hold(ev.Flight, img)
	}
	return ev
}

// keep copies bytes into a tier; false when it has no room.
func (w *worker) keep(k ident.Key, b []byte, m tiers.Meta) bool {
	buf, err := w.p.e.cfg.Store.Alloc(k, int64(len(b)))
	if err != nil {
		return false
	}
	copy(buf.Bytes, b)
	return buf.Commit(m) == nil
}

func (w *worker) hold(id coordinator.FlightID, img prep.Image) {
	w.p.mu.Lock()
	w.p.mu.copied += int64(cap(img.Pix)) - int64(cap(w.p.mu.copies[id].Pix))
	w.p.mu.copies[id] = img
	w.p.mu.Unlock()
}

// open finds an image in a working copy or a tier; hold must be closed when it is not needed any more.
func (w *worker) open(s coordinator.Source) (img prep.Image, hold tiers.View, ok bool) {
	if s.Flight != 0 {
		w.p.mu.Lock()
		img, ok = w.p.mu.copies[s.Flight]
		w.p.mu.Unlock()
		return img, hold, ok // the coordinator discards it only after this task is answered
	}
	v, err := w.p.e.cfg.Store.Open(s.Key)
	if err != nil {
		return img, hold, false
	}
	n := int(v.Meta.Width) * int(v.Meta.Height) * int(v.Meta.Channels)
	return prep.Image{Pix: v.Bytes[:n], W: int(v.Meta.Width), H: int(v.Meta.Height), C: int(v.Meta.Channels)}, v, true
}

// doAugment runs the random suffix once for a share group.
func (w *worker) doAugment(t task, x *coordinator.Augment) coordinator.Prepared {
	ev := coordinator.Prepared{Flight: x.Flight}
	src, hold, ok := w.open(x.From)
	if !ok {
		ev.Lost = true
		return ev
	}
	defer hold.Close()
	key := t.job.key(x.Key.Object, x.Seed, x.Instance)
	w.begin(t.job, stepAugment)
	kept, img, err := w.make(t, x.Key, x.Keep, func(alloc allocator) (prep.Image, error) { return w.prep.Augment(t.job.recipe, src, key, alloc) })
	w.end(err)
	return w.finish(ev, kept, img, err)
}

// doFill writes one row of a slot. For fixed shapes this is the collate: pixels go straight to their place in the batch.
func (w *worker) doFill(t task, x *coordinator.Fill) coordinator.Filled {
	ev := coordinator.Filled{Delivery: x.Delivery, Row: x.Row}
	if t.ring == nil {
		return ev // the client is gone; nobody will look
	}
	src, hold, ok := w.open(x.From)
	if !ok {
		ev.Lost = true
		return ev
	}
	defer hold.Close()
	j, r := t.job, t.ring
	sample, _ := j.data.Sample(x.Object)
	var err error
	kind := stepAugment
	if x.From.Key.Form == ident.Augmented {
		kind = stepFinish
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
			img, err = w.prep.Augment(j.recipe, src, j.key(x.Object, x.Seed, x.Instance), room)
		}
		if full != nil {
			r.Fail(full)
		} else if err == nil {
			r.Shape(x, img.H, img.W, img.C)
		}
	case x.From.Key.Form == ident.Augmented:
		err = w.prep.Finish(j.recipe, src, r.Image(x.Slot, x.Row))
	default:
		err = w.prep.AugmentInto(j.recipe, src, j.key(x.Object, x.Seed, x.Instance), r.Image(x.Slot, x.Row))
	}
	w.end(err)
	if err != nil {
		ev.Err = describe(err)
		return ev
	}
	if x.From.Key.Form == ident.Decoded && j.recipe.Random() {
		ev.Augments = 1
	}
	r.Put(x.Slot, x.Row, j.data.Label(sample), int64(sample))
	return ev
}

// describe gives the reason alone: file and hint are added where the sample is reported.
func damagedAt(err error) int64 {
	if at, ok := prep.DamagedAt(err); ok {
		return at + 1
	}
	return 0
}

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
