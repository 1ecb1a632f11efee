package exec

import (
	"container/heap"
	"context"
	"errors"
	"log/slog"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"larder/internal/coordinator"
	"larder/internal/fault"
	"larder/internal/ident"
	"larder/internal/prep"
	"larder/tiers"
)

var pid = os.Getpid()

// task is one piece of work for a worker: exactly one of prepare, augment and fill is set.
type task struct {
	prepare *coordinator.Prepare
	augment *coordinator.Augment
	fill    *coordinator.Fill
	job     *job
	ring    *ring
	after   uint64 // what the keeper must have done before something is stored
}

// turn is the task's place among the work of all jobs.
func (t *task) turn() uint64 {
	switch {
	case t.prepare != nil:
		return t.prepare.Turn
	case t.augment != nil:
		return t.augment.Turn
	default:
		return t.fill.Turn
	}
}

// taskQueue is a heap of tasks by turn. Fills have no precedence over preparations: a job that runs on hits would starve
// one that misses.
type taskQueue []task

func (q taskQueue) Len() int           { return len(q) }
func (q taskQueue) Less(i, j int) bool { return q[i].turn() < q[j].turn() }
func (q taskQueue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *taskQueue) Push(x any)        { *q = append(*q, x.(task)) }
func (q *taskQueue) Pop() any {
	old := *q
	t := old[len(old)-1]
	old[len(old)-1] = task{}
	*q = old[:len(old)-1]
	return t
}

// pool is the preparation workers. Its queue is bounded by what the coordinator hands out: its InFlight preparations, and
// the rows of the rings.
type pool struct {
	e  *Engine
	wg sync.WaitGroup

	mu struct {
		sync.Mutex
		tasks   taskQueue
		copies  map[coordinator.FlightID]prep.Image // working copies no tier holds
		spare   [][]byte                            // memory of old working copies
		stopped bool
	}
	wake *sync.Cond
}

func newPool(e *Engine) *pool {
	p := &pool{e: e}
	p.wake = sync.NewCond(&p.mu.Mutex)
	p.mu.copies = map[coordinator.FlightID]prep.Image{}
	return p
}

func (p *pool) start(ctx context.Context) {
	for range p.e.cfg.Workers {
		p.wg.Go(func() { p.work(ctx) })
	}
}

func (p *pool) stop() {
	p.mu.Lock()
	p.mu.stopped = true
	p.mu.Unlock()
	p.wake.Broadcast()
	p.wg.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.mu.tasks { // never run: they still hold their rings
		if t.ring != nil {
			t.ring.release()
		}
	}
	p.mu.tasks, p.mu.copies, p.mu.spare = nil, nil, nil
}

func (p *pool) add(t task) {
	t.after = p.e.keeper.mark()
	p.mu.Lock()
	heap.Push(&p.mu.tasks, t)
	p.mu.Unlock()
	p.wake.Signal()
}

func (p *pool) discard(id coordinator.FlightID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if img, ok := p.mu.copies[id]; ok {
		delete(p.mu.copies, id)
		p.recycle(img.Pix)
	}
}

// recycle keeps the memory of a few working copies; p.mu is held.
func (p *pool) recycle(b []byte) {
	if len(p.mu.spare) < 2*p.e.cfg.Workers && cap(b) <= 64<<20 {
		p.mu.spare = append(p.mu.spare, b[:0])
	}
}

// scratch returns n bytes for a working copy.
func (p *pool) scratch(n int) []byte {
	p.mu.Lock()
	for i, b := range p.mu.spare {
		if cap(b) >= n {
			last := len(p.mu.spare) - 1
			p.mu.spare[i] = p.mu.spare[last]
			p.mu.spare = p.mu.spare[:last]
			p.mu.Unlock()
			return b[:n]
		}
	}
	if len(p.mu.spare) > 0 { // make room for a larger one
		p.mu.spare = p.mu.spare[1:]
	}
	p.mu.Unlock()
	return make([]byte, n, n+n/4)
}

func (p *pool) next() (task, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		if p.mu.stopped {
			return task{}, false
		}
		if len(p.mu.tasks) > 0 {
			return heap.Pop(&p.mu.tasks).(task), true
		}
		p.wake.Wait()
	}
}

// worker is what one goroutine of the pool owns.
type worker struct {
	p    *pool
	prep *prep.Worker
	read []byte // read buffer

	waited time.Duration // for room in a tier, in the running piece of work
	given  func()        // gives that up, after a panic
}

func (p *pool) work(ctx context.Context) {
	w := &worker{p: p, prep: prep.NewWorker(p.e.cfg.Limits)}
	defer w.prep.Close()
	for {
		t, ok := p.next()
		if !ok {
			return
		}
		switch {
		case t.prepare != nil:
			p.e.send(w.guardPrepare(ctx, t))
		case t.augment != nil:
			p.e.send(w.guardAugment(t))
		default:
			ev := w.guardFill(t)
			if t.ring != nil {
				t.ring.release()
			}
			p.e.send(ev)
		}
	}
}

// A panic in a decoder or an op is a bug, but of one sample: it is reported as that sample's failure.
func (w *worker) guardPrepare(ctx context.Context, t task) (ev coordinator.Prepared) {
	defer func() {
		if r := recover(); r != nil {
			ev = coordinator.Prepared{Flight: t.prepare.Flight, Err: w.panicked(r)}
		}
	}()
	return w.doPrepare(ctx, t)
}

func (w *worker) guardAugment(t task) (ev coordinator.Prepared) {
	defer func() {
		if r := recover(); r != nil {
			ev = coordinator.Prepared{Flight: t.augment.Flight, Err: w.panicked(r)}
		}
	}()
	return w.doAugment(t)
}

func (w *worker) guardFill(t task) (ev coordinator.Filled) {
	defer func() {
		if r := recover(); r != nil {
			ev = coordinator.Filled{Delivery: t.fill.Delivery, Row: t.fill.Row, Err: w.panicked(r)}
		}
	}()
	return w.doFill(t)
}

func (w *worker) panicked(r any) string {
	if w.given != nil {
		w.given()
		w.given = nil
	}
	w.p.e.note(slog.LevelError, "preparing a sample panicked: please report this", "panic", r, "stack", string(debug.Stack()))
	return "larder panicked while preparing it; the daemon's log has the stack"
}

// doPrepare reads and decodes one object.
func (w *worker) doPrepare(ctx context.Context, t task) coordinator.Prepared {
	x, store := t.prepare, w.p.e.cfg.Store
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
		end := w.p.e.meters.reading()
		b, err := w.p.e.cfg.Catalog.Read(ctx, x.Key.Object, w.read[:0])
		end(len(b))
		if err != nil {
			ev.Err = err.Error()
			return ev
		}
		w.read, enc = b, b
		ev.Read = int64(len(b))
		if cap(w.read) > 64<<20 {
			w.read = nil // one huge file must not occupy every worker for ever
		}
		if x.KeepEncoded {
			w.p.e.keeper.wait(t.after)
			ev.Encoded = w.keep(ekey, b, tiers.Meta{})
		}
	}
	end := w.work(t.job, stepDecode)
	kept, img, err := w.make(t, x.Key, x.Keep, func(alloc allocator) (prep.Image, error) { return w.prep.Decode(t.job.recipe, enc, alloc) })
	end(err)
	return w.finish(ev, kept, img, err)
}

type allocator = func(n int) ([]byte, error)

// make produces an image in its tier when keep is asked and there is room, else in a working copy. A tier that takes its
// room back meanwhile (it was shrunk) costs the work again, never the sample.
func (w *worker) make(t task, k ident.Key, keep bool, produce func(allocator) (prep.Image, error)) (kept bool, img prep.Image, err error) {
	var buf *tiers.Buf
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
	if err != nil {
		buf.Abort()
		return false, img, err
	}
	if err := buf.Commit(tiers.Meta{Width: uint32(img.W), Height: uint32(img.H), Channels: uint32(img.C)}); err != nil {
		return w.make(t, k, false, produce)
	}
	return true, img, nil
}

// work measures a piece of work, unless it fails.
func (w *worker) work(j *job, s step) (end func(error)) {
	w.waited = 0
	done := w.p.e.meters.work(j, s)
	w.given = func() { done(0, false) }
	return func(err error) {
		w.given = nil
		done(w.waited, err == nil)
	}
}

// finish turns the outcome of make into the event.
func (w *worker) finish(ev coordinator.Prepared, kept bool, img prep.Image, err error) coordinator.Prepared {
	if err != nil {
		ev.Err = describe(err)
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
	w.p.mu.copies[id] = img
	w.p.mu.Unlock()
}

// open finds an image in a working copy or a tier; release must be called when it is not needed any more.
func (w *worker) open(s coordinator.Source) (img prep.Image, release func(), ok bool) {
	if s.Flight != 0 {
		w.p.mu.Lock()
		img, ok = w.p.mu.copies[s.Flight]
		w.p.mu.Unlock()
		return img, func() {}, ok // the coordinator discards it only after this task is answered
	}
	v, err := w.p.e.cfg.Store.Open(s.Key)
	if err != nil {
		return img, nil, false
	}
	n := int(v.Meta.Width) * int(v.Meta.Height) * int(v.Meta.Channels)
	return prep.Image{Pix: v.Bytes[:n], W: int(v.Meta.Width), H: int(v.Meta.Height), C: int(v.Meta.Channels)}, v.Close, true
}

// doAugment runs the random suffix once for a share group.
func (w *worker) doAugment(t task) coordinator.Prepared {
	x := t.augment
	ev := coordinator.Prepared{Flight: x.Flight}
	src, release, ok := w.open(x.From)
	if !ok {
		ev.Lost = true
		return ev
	}
	defer release()
	key := t.job.key(x.Key.Object, x.Seed, x.Instance)
	end := w.work(t.job, stepAugment)
	kept, img, err := w.make(t, x.Key, x.Keep, func(alloc allocator) (prep.Image, error) { return w.prep.Augment(t.job.recipe, src, key, alloc) })
	end(err)
	return w.finish(ev, kept, img, err)
}

// doFill writes one row of a slot. For fixed shapes this is the collate: pixels go straight to their place in the batch.
func (w *worker) doFill(t task) coordinator.Filled {
	x := t.fill
	ev := coordinator.Filled{Delivery: x.Delivery, Row: x.Row}
	if t.ring == nil {
		return ev // the client is gone; nobody will look
	}
	src, release, ok := w.open(x.From)
	if !ok {
		ev.Lost = true
		return ev
	}
	defer release()
	j, r := t.job, t.ring
	sample, _ := j.data.Sample(x.Object)
	var err error
	kind := stepAugment
	if x.From.Key.Form == ident.Augmented {
		kind = stepFinish
	}
	end := w.work(j, kind)
	switch {
	case r.ragged():
		img := src
		var full error // the memory for rings is used up
		room := func(n int) (b []byte, err error) {
			b, full = r.room(x, n)
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
			r.fail(full)
		} else if err == nil {
			r.shape(x, img.H, img.W, img.C)
		}
	case x.From.Key.Form == ident.Augmented:
		err = w.prep.Finish(j.recipe, src, r.image(x.Slot, x.Row))
	default:
		err = w.prep.AugmentInto(j.recipe, src, j.key(x.Object, x.Seed, x.Instance), r.image(x.Slot, x.Row))
	}
	end(err)
	if err != nil {
		ev.Err = describe(err)
		return ev
	}
	if x.From.Key.Form == ident.Decoded && j.recipe.Random() {
		ev.Augments = 1
	}
	r.put(x.Slot, x.Row, j.data.Label(sample), int64(sample))
	return ev
}

// describe gives the reason alone: file and hint are added where the sample is reported.
func describe(err error) string {
	if f, ok := errors.AsType[*fault.Error](err); ok {
		s := f.Message
		if f.Err != nil {
			s += ": " + f.Err.Error()
		}
		return s
	}
	return err.Error()
}
