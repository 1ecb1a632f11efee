package crew

import (
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"larder/internal/coordinator"
	"larder/internal/engine/ring"
	"larder/internal/engine/work"
	"larder/internal/ident"
	"larder/internal/prep"
	"larder/tiers"
)

// Config is what a Crew needs.
type Config struct {
	Window    int   // tasks that a worker may have at once, or more if they are quick; at least 1
	MaxRecord int64 // bytes of the largest record
	Room      int64 // bytes that records may have that no tier holds: an equal share for each job that has any
	Store     *tiers.Store
	Tiers     *work.Serial // carries out what was decided about the tiers before a task
	Rings     *ring.Set
	Meters    *work.Meters
	// Send takes what became of a task: a coordinator.Prepared or coordinator.Filled. It is false when the loop has ended.
	Send func(coordinator.Event) bool
	// SendAll is Send for several of them, in order; it takes the slice over. nil = Send.
	SendAll func([]coordinator.Event) bool
	// Owns reports whether a process holds a rank of a job.
	Owns func(pid int32, job ident.JobID) bool
	// Native runs built-in ops on a record, in another goroutine, and calls done there with what came of it, which is not
	// to be kept. It does not wait.
	Native func(j *work.Job, runs []work.Run, key prep.RandKey, blob []byte, done func(out []byte, err error))
	// Read reads an object of a job as a record and runs built-in ops on it, in another goroutine, and calls done there
	// with the record, which is not to be kept, and with what was read, or why there is none. Lost: the daemon stops. It
	// does not wait. Nil = no job has samples that are read.
	Read func(j *work.Job, item work.Item, runs []work.Run, key prep.RandKey,
		done func(out []byte, ev coordinator.Prepared))
	// Ended reports whether a job has ended.
	Ended func(job ident.JobID) bool
	// Note writes a line to the log without waiting for it.
	Note func(level slog.Level, msg string, args ...any)
	// After calls f in another goroutine after d; stop keeps that from happening. nil = time.AfterFunc.
	After func(d time.Duration, f func()) (stop func() bool)
	// Now is the time; nil = time.Now.
	Now func() time.Time
}

// Crew is the workers of clients, and the tasks for them. It is safe for concurrent use.
type Crew struct {
	cfg    Config
	feeder sync.WaitGroup

	mu struct {
		sync.Mutex
		stopped bool
		workers []*Worker      // in the order in which they came
		came    uint32         // number of the last worker
		queues  map[fit]*queue // of tasks that no worker has
		order   []fit          // of queues, so that no decision follows from the order of a map
		fresh   []*Worker      // that may have room for a task, for the feeder
		coming  []*task        // added since Flush
		added   []*task        // for the feeder
		dropped []*task        // for the feeder to answer: whoever drops them must not wait
		reads   reads          // tasks that begin with reading
		judged  verdicts       // of workers that ended
		copies  map[coordinator.FlightID]copied
		held    map[fit]int64 // bytes of copies
		spare   [][]byte
		stats   Stats
	}
	wake   *sync.Cond  // for the feeder
	unsent atomic.Bool // something was added since Flush
}

// copied is a record that no tier holds.
type copied struct {
	blob []byte
	fit  fit
}

// Stats counts since the start of the daemon.
type Stats struct {
	Tasks   uint64                    // records that were taken over
	Retries uint64                    // tasks that were given to a worker again
	Refused uint64                    // records that did not fit
	Failed  uint64                    // tasks that workers could not do
	Late    uint64                    // workers that did not answer in time
	Deaths  uint64                    // workers that ended with tasks in hand
	Seconds [work.InPlace + 1]float64 // of workers, by step
}

// fit says which workers can do a task: those that know a recipe with this prefix, or this very recipe. Both name the
// dataset too, by its uri and fingerprint: one that was removed and declared again is the same to a worker.
type fit struct {
	recipe ident.RecipeID
	whole  bool        // recipe is the whole one, not its prefix
	job    ident.JobID // whose tasks these are: jobs have queues of their own
}

// New returns a Crew without workers.
func New(cfg Config) *Crew {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.After == nil {
		cfg.After = func(d time.Duration, f func()) func() bool { return time.AfterFunc(d, f).Stop }
	}
	cfg.Window = max(cfg.Window, 1)
	c := &Crew{cfg: cfg}
	c.wake = sync.NewCond(&c.mu.Mutex)
	c.mu.queues = map[fit]*queue{}
	c.mu.copies = map[coordinator.FlightID]copied{}
	c.mu.held = map[fit]int64{}
	c.mu.judged = newVerdicts()
	return c
}

// Start starts handing out tasks.
func (c *Crew) Start() { c.feeder.Go(c.feed) }

// Stop ends handing out tasks and drops those that no worker has. Sessions of workers end by themselves.
func (c *Crew) Stop() {
	c.mu.Lock()
	c.mu.stopped = true
	var drop []*task
	for _, f := range c.mu.order {
		drop = append(drop, c.mu.queues[f].all()...)
	}
	drop = append(drop, c.mu.reads.remove(func(*task) bool { return true })...)
	drop = append(append(append(drop, c.mu.coming...), c.mu.added...), c.mu.dropped...)
	for t, v := range c.mu.judged.tasks { // order-free: all of them are dropped
		v.stop()
		drop = append(drop, t)
	}
	c.mu.judged = newVerdicts()
	c.mu.queues, c.mu.order, c.mu.coming, c.mu.added = map[fit]*queue{}, nil, nil, nil
	c.mu.Unlock()
	c.wake.Broadcast()
	c.feeder.Wait()
	for _, t := range drop {
		t.release()
	}
}

// Add takes a Prepare, Augment or *Fill of the coordinator, to hand it out after Flush. It does not wait. r is the ring
// of a Fill, which the Crew releases; nil = its client is gone.
func (c *Crew) Add(what coordinator.Effect, j *work.Job, r *ring.Ring) {
	t := newTask(what, j, r, c.cfg.Tiers.Mark())
	t.followed = c.cfg.Ended(j.ID)
	c.mu.Lock()
	if c.mu.stopped {
		c.mu.Unlock()
		t.release()
		return
	}
	c.mu.coming = append(c.mu.coming, t)
	c.mu.Unlock()
	c.unsent.Store(true)
}

// Flush has the feeder hand out what was added, so that what one step of the coordinator asks for travels together.
func (c *Crew) Flush() {
	if !c.unsent.Swap(false) {
		return
	}
	c.mu.Lock()
	c.mu.added = append(c.mu.added, c.mu.coming...)
	clear(c.mu.coming)
	c.mu.coming = c.mu.coming[:0]
	c.mu.Unlock()
	c.wake.Signal()
}

// Discard drops the working copy of a flight.
func (c *Crew) Discard(id coordinator.FlightID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	x, ok := c.mu.copies[id]
	if !ok {
		return
	}
	delete(c.mu.copies, id)
	if c.mu.held[x.fit] -= int64(cap(x.blob)); c.mu.held[x.fit] <= 0 {
		delete(c.mu.held, x.fit)
	}
	c.recycle(x.blob)
	c.refresh() // one may have waited for room
}

// refresh has the feeder look whether any worker may have a task now; c.mu is held.
func (c *Crew) refresh() {
	c.mu.fresh = append(c.mu.fresh[:0], c.mu.workers...)
	c.mu.reads.look = true
	c.wake.Signal()
}

// Copy is the working copy of a flight, until Discard.
func (c *Crew) Copy(id coordinator.FlightID) ([]byte, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	x, ok := c.mu.copies[id]
	return x.blob, ok
}

// Stats returns the counters.
func (c *Crew) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.stats
}

// feed gives tasks to workers until Stop.
func (c *Crew) feed() {
	for c.await() {
		c.round()
	}
}

// await waits until the feeder has something to do; false after Stop.
func (c *Crew) await() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.mu.added) == 0 && len(c.mu.fresh) == 0 && len(c.mu.dropped) == 0 && !c.mu.reads.due() && !c.mu.stopped {
		c.wake.Wait()
	}
	return !c.mu.stopped
}

// round does what there is for the feeder.
func (c *Crew) round() {
	c.mu.Lock()
	if c.mu.stopped {
		c.mu.Unlock()
		return
	}
	added, fresh, dropped := c.mu.added, c.mu.fresh, c.mu.dropped
	c.mu.added, c.mu.fresh, c.mu.dropped = nil, nil, nil
	var trivial, native, reading []*task
	for _, t := range added {
		switch {
		case t.answered():
			trivial = append(trivial, t)
		case t.job.Made.Reads(t.first) && t.probe: // it waits for no room, because other jobs wait for it
			c.mu.reads.running++
			reading = append(reading, t)
		case t.job.Made.Reads(t.first):
			c.mu.reads.push(t)
		case len(t.runs) > 0:
			native = append(native, t)
		default:
			c.enqueue(t)
		}
	}
	reading = append(reading, c.startReads()...)
	c.mu.Unlock()
	for _, t := range reading {
		c.read(t)
	}
	for _, t := range native {
		c.native(t)
	}
	for _, t := range trivial {
		c.cfg.Send(t.trivial())
		t.release()
	}
	for _, t := range dropped {
		c.dropBlob(t)
		c.cfg.Send(t.lost())
		t.release()
	}
	for _, w := range fresh {
		w.pump()
	}
	// The least busy worker first, and each its share, until nobody has room for what is there: a worker may be given
	// older tasks than the new ones, or none, when its input memory is full.
	var full []*Worker
	for left := len(added); len(added) > 0; {
		w, n := c.idlest(max(left, 1), full)
		if w == nil {
			break
		}
		if n = w.give(n, nil); n == 0 {
			full = append(full, w)
		}
		left -= n
	}
}

// idlest is a worker that has room for a task that it can do, the one with the fewest, and its share of so many new
// tasks. It is none of full.
func (c *Crew) idlest(left int, full []*Worker) (best *Worker, share int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, w := range c.mu.workers {
		if w.room() == 0 || slices.Contains(full, w) || c.peek(w) == nil {
			continue
		}
		n++
		if best == nil || len(w.held) < len(best.held) {
			best = w
		}
	}
	return best, (left + n - 1) / max(n, 1)
}

// enqueue puts a task where workers find it; c.mu is held.
func (c *Crew) enqueue(t *task) {
	q := c.mu.queues[t.fit]
	if q == nil {
		q = &queue{}
		c.mu.queues[t.fit] = q
		c.mu.order = append(c.mu.order, t.fit)
	}
	q.push(t)
}

// peek is the queue with the task that a worker is to do next; nil = there is none for it. c.mu is held.
func (c *Crew) peek(w *Worker) *queue {
	q := c.next(w, false)
	if q == nil && w.inline {
		q = c.next(w, true)
	}
	return q
}

// next is peek; an inline worker is given what belongs to other jobs only with others.
func (c *Crew) next(w *Worker, others bool) *queue {
	var best *queue
	var turn uint64
	for _, f := range c.mu.order {
		if !c.serves(w, f, others) {
			continue
		}
		q := c.mu.queues[f]
		t := q.first(func(t *task) bool { return c.mayDo(w, t) })
		if t != nil && (best == nil || t.turn < turn) {
			best, turn = q, t.turn
		}
	}
	return best
}

// take removes the task that a worker is to do next; nil = there is none for it. c.mu is held.
func (c *Crew) take(w *Worker) *task {
	q := c.peek(w)
	if q == nil {
		return nil
	}
	t := q.pop(func(t *task) bool { return c.mayDo(w, t) })
	if q.len() == 0 {
		c.forget(t.fit)
	}
	return t
}

// mayDo reports whether a worker whose recipe fits may have a task: not one that it failed, while another worker could
// have it, and not one whose record would have no room. c.mu is held.
func (c *Crew) mayDo(w *Worker, t *task) bool {
	keeps := t.blob == nil && (t.copies() || t.last < t.end)
	if keeps && !c.mayHold(t.fit) {
		return false
	}
	if t.avoid != w.id {
		return true
	}
	return !c.manned(t.fit, w)
}

const maxSpare = 16

// recycle keeps memory of a few records; c.mu is held.
func (c *Crew) recycle(b []byte) {
	if len(c.mu.spare) < maxSpare && int64(cap(b)) <= max(c.cfg.Room/maxSpare, 1<<20) {
		c.mu.spare = append(c.mu.spare, b[:0])
	}
}

// scratch returns n bytes.
func (c *Crew) scratch(n int) []byte {
	c.mu.Lock()
	for i, b := range c.mu.spare {
		if cap(b) >= n {
			last := len(c.mu.spare) - 1
			c.mu.spare[i], c.mu.spare[last] = c.mu.spare[last], nil
			c.mu.spare = c.mu.spare[:last]
			c.mu.Unlock()
			return b[:n]
		}
	}
	if len(c.mu.spare) == maxSpare { // make room for a larger one
		c.mu.spare = append(c.mu.spare[:0], c.mu.spare[1:]...)
	}
	c.mu.Unlock()
	return make([]byte, n, n+n/4)
}

// free ends the use of scratch.
func (c *Crew) free(b []byte) {
	c.mu.Lock()
	c.recycle(b)
	c.mu.Unlock()
}

// Closed answers the tasks for the rows of a ring whose client is gone: nobody reads them, and they hold its memory.
func (c *Crew) Closed(k ring.Key) {
	c.drop(func(t *task) bool { return t.fill != nil && t.ringKey() == k })
}

// Ended answers the tasks of a job that has ended, and of those that ended before: a job that followed them may have
// been the last. What others wait for comes again.
func (c *Crew) Ended(id ident.JobID) {
	c.mu.Lock()
	c.mu.reads.forget(func(f fit) bool { return f.job == id || c.cfg.Ended(f.job) })
	c.mu.Unlock()
	c.drop(func(t *task) bool { return t.job.ID == id || c.cfg.Ended(t.job.ID) })
}

// drop answers the tasks that no worker has, of those that are asked for.
func (c *Crew) drop(is func(*task) bool) {
	c.mu.Lock()
	var out []*task
	for _, f := range append([]fit(nil), c.mu.order...) {
		q := c.mu.queues[f]
		out = append(out, q.remove(is)...)
		if q.len() == 0 {
			c.forget(f)
		}
	}
	out = append(out, c.mu.reads.remove(is)...)
	for _, list := range []*[]*task{&c.mu.coming, &c.mu.added} {
		*list = slices.DeleteFunc(*list, func(t *task) bool {
			if is(t) {
				out = append(out, t)
				return true
			}
			return false
		})
	}
	c.mu.dropped = append(c.mu.dropped, out...)
	c.mu.Unlock()
	c.wake.Signal()
}

// forget removes an empty queue; c.mu is held.
func (c *Crew) forget(f fit) {
	delete(c.mu.queues, f)
	for i, o := range c.mu.order {
		if o == f {
			c.mu.order = append(c.mu.order[:i], c.mu.order[i+1:]...)
			return
		}
	}
}
