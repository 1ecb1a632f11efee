package work

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"larder/internal/coordinator"
	"larder/internal/engine/crashguard"
	"larder/internal/engine/ring"
	"larder/internal/heap"
	"larder/internal/ident"
	"larder/internal/prep"
	"larder/tiers"
)

// Config is what a Pool needs.
type Config struct {
	Workers   int          // at least 1
	Readers   int          // reads at once from storage that is slow; 0 = the constant of that name
	Own       int64        // bytes of the daemon's own memory, for samples in work; 0 = 1 GiB
	ReadAhead int64        // bytes that may be read ahead of the workers
	Limits    prep.Limits  // of one image
	Outside   prep.Outside // decodes images in the place of the workers; nil = they do
	Store     *tiers.Store
	Tiers     *Serial // carries out what was decided about the tiers before a task
	Rings     *ring.Set
	Meters    *Meters
	File      *crashguard.File // notes what workers prepare; nil = that is not noted

	// Bytes is the stored size of an object, Read its content, appended to buf.
	Bytes func(ident.ObjectID) int64
	Read  func(ctx context.Context, o ident.ObjectID, buf []byte) ([]byte, error)
	// Away reports whether an error of Read says that the place of the object failed, not the object.
	Away func(ctx context.Context, o ident.ObjectID, err error) bool
	// InBlock reports whether an object lies in a block that a job holds, from which Read copies it, and whether that
	// block is there: else Read waits for it. Nil = there are no blocks.
	InBlock func(ident.ObjectID) (held, there bool)
	// Verdict says why stored bytes may not be decoded here, see crashguard.Guard.
	Verdict func(context.Context, *prep.Recipe, ident.ObjectID, []byte) (bad string, stopping bool)
	// Send takes what became of a task: a coordinator.Prepared or a *coordinator.Filled. It is false when the loop has
	// ended.
	Send func(coordinator.Event) bool
	// SendAll is Send for several of them, in order; it takes the slice over. nil = Send.
	SendAll func([]coordinator.Event) bool
	// Made finds the record of a flight that workers of clients have made and no tier holds.
	Made func(coordinator.FlightID) ([]byte, bool)
	// Worked is called with what a piece of work that went well took of a core.
	Worked func(Step, ident.ObjectID, time.Duration)
	// Note writes a line to the log without waiting for it.
	Note func(level slog.Level, msg string, args ...any)
}

// task is one piece of work for a worker.
type task struct {
	what  coordinator.Effect // Prepare, Augment or *Fill, boxed once, by the coordinator
	turn  uint64             // its place among the work of all jobs
	job   *Job
	ring  *ring.Ring
	after uint64 // mark of Config.Tiers that must be done before something is stored

	// rows of a batch that are copies of records, and that are written together, what being the first; nil = what is alone
	rows []*coordinator.Fill

	native *native // what somebody else asks for: ops on a record, or a record that is read, which what says

	size int64  // bytes that are read ahead for it; 0 = none are
	read []byte // what was read ahead
	err  error  // or why it could not be read
	held bool   // it came from a block in memory
}

// Before is the order of work: by turn, equal turns in any order. Fills have no precedence over preparations: a job
// that runs on hits would starve one that misses.
func (t *task) Before(o *task) bool { return t.turn < o.turn }

type taskQueue = heap.Heap[task, *task]

// Pool is the preparation workers. Its queue is bounded by what the coordinator hands out: its InFlight preparations,
// and the rows of the rings.
type Pool struct {
	cfg   Config
	heavy *gate // for large images that are being decoded
	room  int64 // bytes that working copies may have when another one is begun, and that are kept for the next ones
	wg    sync.WaitGroup

	mu struct {
		sync.Mutex
		fresh   taskQueue // Prepare: they make working copies, unless a tier keeps the result
		tasks   taskQueue // the others: they read copies and entries
		ahead   ahead
		copies  map[coordinator.FlightID]prep.Image // working copies no tier holds
		spare   [][]byte                            // memory of old working copies
		copied  int64                               // bytes of copies
		spared  int64                               // bytes of spare
		turn    uint64                              // the latest that was begun
		stopped bool
	}
	workable *sync.Cond   // for workers: there may be a task to begin
	unread   *sync.Cond   // for readers: there may be a task to read for
	quick    atomic.Int64 // tasks with rows of records that were added since Flush
	open     task         // rows that more may join until Flush; owned by the goroutine that adds
}

// maxCopies is how many working copies there may be for a worker when it begins another one. Large ones are fewer:
// together they may have a quarter of the daemon's own memory, unless there is but one.
const maxCopies = 4

// New returns a Pool that does nothing before Start.
func New(cfg Config) *Pool {
	if cfg.Own <= 0 {
		cfg.Own = 1 << 30
	}
	if cfg.Readers <= 0 {
		cfg.Readers = Readers
	}
	p := &Pool{cfg: cfg, heavy: newGate(cfg.Own), room: cfg.Own / 4}
	p.workable, p.unread = sync.NewCond(&p.mu.Mutex), sync.NewCond(&p.mu.Mutex)
	p.mu.ahead.budget = cfg.ReadAhead
	p.mu.copies = map[coordinator.FlightID]prep.Image{}
	return p
}

// Start starts workers and readers.
func (p *Pool) Start(ctx context.Context) {
	for i := range p.cfg.Workers {
		p.wg.Go(func() { p.work(ctx, p.cfg.File.Line(i)) })
	}
	for range p.cfg.Readers {
		p.wg.Go(func() { p.readAhead(ctx) })
	}
}

// Stop waits for the work under way and drops the rest.
func (p *Pool) Stop() {
	p.mu.Lock()
	p.mu.stopped = true
	p.mu.Unlock()
	p.workable.Broadcast()
	p.unread.Broadcast()
	p.wg.Wait()
	var natives []*native
	defer func() {
		for _, n := range natives {
			n.stopped()
		}
	}()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range slices.Concat(p.mu.tasks, p.mu.ahead.unread) { // never run: they still hold their rings
		if t.ring != nil {
			t.ring.Release()
		}
		if t.native != nil {
			natives = append(natives, t.native)
		}
	}
	if p.open.ring != nil {
		p.open.ring.Release()
	}
	p.open = task{}
	p.mu.tasks, p.mu.fresh, p.mu.ahead.unread, p.mu.copies, p.mu.spare = nil, nil, nil, nil, nil
}

// Add queues a Prepare, Augment or *Fill of the coordinator, with its turn. j may be nil when the job is not known any
// more. r is the ring of a Fill, which the Pool releases; nil = its client is gone. Rows of records may wait for Flush:
// most of them are copies that take less than to wake a worker. One goroutine calls Add, Join and Flush.
func (p *Pool) Add(what coordinator.Effect, turn uint64, j *Job, r *ring.Ring) {
	t := task{what: what, turn: turn, job: j, ring: r}
	x, fill := what.(*coordinator.Fill)
	if fill && r != nil && j != nil && j.Made != nil && j.Made.Ready(x.From.Key.Form) {
		p.closeRows()
		p.open = t
		p.open.rows = append(make([]*coordinator.Fill, 0, rowsTogether(r)), x)
		return
	}
	if !fill { // a row is stored nowhere
		t.after = p.cfg.Tiers.Mark()
	}
	p.mu.Lock()
	if p.readsAhead(&t) {
		p.mu.ahead.unread.Push(t)
		p.mu.Unlock()
		p.unread.Signal()
		return
	}
	t.size = 0
	p.enqueue(t)
	p.mu.Unlock()
	if fill && j != nil && j.Made != nil {
		p.quick.Add(1)
		return
	}
	p.workable.Signal()
}

// Rows of small records take less to copy than to hand over. So rows of a batch are one task, up to so many and, unless
// it is one row, to so many bytes: what keeps a core busy for a tenth of a millisecond, so that no other job's turn
// comes noticeably late and the workers share the rows of a batch that is larger.
const mostRows, mostRowBytes = 256, 256 << 10

// raggedRows are together in a ring of rows whose sizes differ, which are not known before.
const raggedRows = 4

// rowsTogether is how many rows of a ring are one task at most.
func rowsTogether(r *ring.Ring) int {
	if r.Ragged() {
		return min(raggedRows, max(1, r.Rows))
	}
	return max(1, min(mostRows, r.Rows, mostRowBytes/int(max(1, r.SlotBytes/int64(max(1, r.Rows))))))
}

// Join adds a row to the one that was added before it, if both can be written together: rows of one batch that are
// copies of records. They have the turn of the first one. False: it is to be added.
func (p *Pool) Join(x *coordinator.Fill) bool {
	rows := p.open.rows
	if len(rows) == 0 || len(rows) == cap(rows) {
		return false
	}
	first := rows[0]
	if x.Delivery != first.Delivery || x.Inc != first.Inc || x.From.Key.Form != first.From.Key.Form {
		return false
	}
	p.open.rows = append(p.open.rows, x)
	return true
}

// closeRows queues the rows that waited for more.
func (p *Pool) closeRows() {
	if len(p.open.rows) == 0 {
		return
	}
	p.mu.Lock()
	p.mu.tasks.Push(p.open)
	p.mu.Unlock()
	p.open = task{}
	p.quick.Add(1)
}

// Flush has the workers begin what waits for it.
func (p *Pool) Flush() {
	p.closeRows()
	for range min(p.quick.Swap(0), int64(p.cfg.Workers)) {
		p.workable.Signal()
	}
}

// enqueue gives a task to the workers; p.mu is held.
func (p *Pool) enqueue(t task) {
	x, fresh := t.what.(coordinator.Prepare)
	fresh = fresh && t.native == nil // who asked for what is read beside it keeps the result
	if _, augment := t.what.(coordinator.Augment); augment && t.job != nil && t.job.ByClients() {
		fresh = true // it makes a copy of a record that is none of these copies
	}
	if fresh && x.Into == nil {
		p.mu.fresh.Push(t)
	} else {
		p.mu.tasks.Push(t)
	}
}

// Discard drops the working copy of a flight.
func (p *Pool) Discard(id coordinator.FlightID) {
	p.mu.Lock()
	img, ok := p.mu.copies[id]
	if ok {
		delete(p.mu.copies, id)
		p.mu.copied -= int64(cap(img.Pix))
		p.recycle(img.Pix)
	}
	p.mu.Unlock()
	if ok {
		p.workable.Signal() // a worker may wait for room
	}
}

// Held is the bytes of working copies.
func (p *Pool) Held() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.copied
}

// recycle keeps the memory of a few working copies; p.mu is held.
func (p *Pool) recycle(b []byte) {
	if n := int64(cap(b)); len(p.mu.spare) < 2*p.cfg.Workers && p.mu.spared+n <= p.room {
		p.mu.spare = append(p.mu.spare, b[:0])
		p.mu.spared += n
	}
}

// free ends the use of scratch.
func (p *Pool) free(b []byte) {
	p.mu.Lock()
	p.recycle(b)
	p.mu.Unlock()
}

// scratch returns n bytes for a working copy.
func (p *Pool) scratch(n int) []byte {
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

// roomForCopy reports whether another working copy may be begun; p.mu is held. What reads copies needs no new one, so
// waiting ends.
func (p *Pool) roomForCopy() bool {
	n := len(p.mu.copies)
	return n == 0 || n < maxCopies*p.cfg.Workers && p.mu.copied < p.room
}

// next returns the first task, and waits for one if it may; false = there is none, or the Pool has stopped.
func (p *Pool) next(wait bool) (task, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		if p.mu.stopped {
			return task{}, false
		}
		fresh := len(p.mu.fresh) > 0 && p.roomForCopy() // else their memory must be freed first
		if fresh && (len(p.mu.tasks) == 0 || p.mu.fresh[0].turn < p.mu.tasks[0].turn) {
			return p.begun(p.mu.fresh.Pop()), true
		}
		if len(p.mu.tasks) > 0 {
			return p.begun(p.mu.tasks.Pop()), true
		}
		if !wait {
			return task{}, false
		}
		p.workable.Wait()
	}
}

// begun notes the turn of a task that is begun; p.mu is held.
func (p *Pool) begun(t task) task {
	p.mu.turn = max(p.mu.turn, t.turn)
	return t
}
