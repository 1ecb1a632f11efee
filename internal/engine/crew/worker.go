package crew

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"larder/internal/engine/work"
	"larder/internal/errs"
	"larder/internal/session"
	"larder/internal/session/wire"
	"larder/internal/shm"
	"larder/tiers"
)

// Worker is one worker process. Done, Failed, Grow and Close are called by one goroutine, that of its session.
type Worker struct {
	c       *Crew
	id      uint32
	pid     int32
	uid     uint32
	client  string
	inline  bool
	window  int
	recipes []*work.Job // by their place in WORK: any job of the recipe
	out     session.Hand
	input   *shm.Segment
	memory  *shm.Segment // of the goroutine of its session

	// giving is held while a task is given, so that the frames have the order of held. Taken before Crew.mu.
	giving sync.Mutex

	// Guarded by Crew.mu.
	held    []held // oldest first
	lent    []held // taken back from an inline worker that has not answered them
	taking  int    // records that are being copied out of its memory
	slots   []bool // of the input memory that are in use
	ready   bool
	closed  bool
	done    uint64
	oldest  time.Time   // the oldest task has been the oldest since
	since   time.Time   // the last answer, or the beginning of the first task
	disarm  func() bool // of the deadline; nil = there is none
	filling [][2]int64  // by slot: pages that are present
}

// held is a task at a worker.
type held struct {
	t    *task
	id   uint64 // of the task at this worker
	slot int    // of its input; -1 = it has none
	sent bool   // its input is there: it may be answered
}

// Attach makes a worker of a session. recipes are jobs whose recipes it can run, all of one dataset, in the order of
// the request. It gets nothing before Start. The Crew takes the memory over, also when it fails.
func (c *Crew) Attach(
	req *wire.WorkRequest, recipes []*work.Job, peer shm.Peer, memory *shm.Segment, out session.Hand,
) (*Worker, error) {
	w := &Worker{c: c, pid: req.PID, uid: peer.UID, client: req.Client, inline: req.Inline, window: c.cfg.Window,
		recipes: recipes, out: out, memory: memory}
	if w.pid <= 0 {
		w.pid = peer.PID
	}
	if n := int(min(req.Window, 1<<16)); n > 0 {
		w.window = min(w.window, n)
	}
	w.slots, w.filling = make([]bool, w.window), make([][2]int64, w.window)
	input, err := shm.CreateSparse("larder-worker-input", c.slotBytes()*int64(w.window))
	if err != nil {
		memory.Release()
		return nil, err
	}
	w.input = input
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.stopped {
		memory.Release()
		input.Release()
		return nil, errs.New(errs.Unavailable, "", "start it again: larder serve", "the daemon is stopping")
	}
	c.mu.came++
	w.id = c.mu.came
	c.mu.workers = append(c.mu.workers, w)
	return w, nil
}

const page = 4096

// slotBytes is the address space for the input of one task.
func (c *Crew) slotBytes() int64 { return (c.cfg.MaxRecord + page - 1) / page * page }

// Info is what the worker is told.
func (w *Worker) Info() wire.WorkResult {
	return wire.WorkResult{Worker: w.id, InBytes: uint64(w.input.Size()), Window: uint32(w.window)}
}

// Input is the memory in which inputs of tasks lie. It is valid until Close.
func (w *Worker) Input() *shm.Segment { return w.input }

// Start makes the worker ready for tasks.
func (w *Worker) Start() {
	w.c.mu.Lock()
	w.ready = true
	w.c.mu.Unlock()
	w.pump()
}

// fits reports whether the worker knows a recipe for tasks of a queue.
func (w *Worker) fits(f fit) bool { return w.recipeFor(f) >= 0 }

func (w *Worker) recipeFor(f fit) int {
	for i, j := range w.recipes {
		id := j.Recipe.Prefix()
		if f.whole {
			id = j.Recipe.ID()
		}
		if id == f.recipe {
			return i
		}
	}
	return -1
}

// hasRoom reports whether the worker may have one more task; Crew.mu is held.
func (w *Worker) hasRoom() bool {
	return w.ready && !w.closed && len(w.held)+len(w.lent)+w.taking < w.window
}

// pump gives the worker what there is for it.
func (w *Worker) pump() {
	for w.give() {
	}
}

// give gives the worker one task; false = there is none for it, or it has enough.
func (w *Worker) give() bool {
	w.giving.Lock()
	defer w.giving.Unlock()
	c := w.c
	c.mu.Lock()
	if !w.hasRoom() {
		c.mu.Unlock()
		return false
	}
	t := c.take(w)
	if t == nil {
		c.mu.Unlock()
		return false
	}
	c.mu.next++
	t.id = c.mu.next
	t.tries++
	if t.tries > 1 {
		c.mu.stats.Retries++
	}
	h := held{t: t, id: t.id, slot: -1}
	if t.first > 0 {
		for i, used := range w.slots {
			if !used {
				w.slots[i], h.slot = true, i
				break
			}
		}
		w.input.Retain() // the worker may end while the input is copied
	}
	w.held = append(w.held, h)
	if len(w.held) == 1 {
		w.since = c.cfg.Now()
		w.arm()
	}
	f := wire.TaskFrame{Task: t.id, Sample: uint64(t.sample), Seed: t.seed, Instance: t.instance,
		Recipe: uint32(w.recipeFor(t.fit)), First: t.first, Last: t.last, Timeout: t.job.Made.Timeout}
	c.mu.Unlock()
	if h.slot >= 0 && !w.putInput(h, &f) {
		c.mu.Lock()
		held := w.letGo(t.id, false) != nil
		c.mu.Unlock()
		if held {
			c.cfg.Send(t.lost())
			t.release()
		}
		return true
	}
	c.mu.Lock()
	for i := range w.held { // none when the worker ended meanwhile
		if w.held[i].t == t {
			w.held[i].sent = true
		}
	}
	c.mu.Unlock()
	w.out.Task(f)
	return true
}

// putInput copies the input of a task to where the worker can read it; false = it is gone.
func (w *Worker) putInput(h held, f *wire.TaskFrame) bool {
	defer w.input.Release()
	blob, view, ok := w.c.open(h.t)
	if !ok {
		return false
	}
	defer view.Close()
	at, n := int64(h.slot)*w.c.slotBytes(), int64(len(blob))
	if n > w.c.slotBytes() {
		return false
	}
	if have := &w.filling[h.slot]; n > have[1] { // of the one who holds the slot
		if w.input.Reserve(at, n) != nil {
			return false
		}
		have[1] = n
	}
	copy(w.input.Bytes()[at:], blob)
	f.Offset, f.Bytes = uint64(at), uint64(n)
	return true
}

// open finds the input of a task.
func (c *Crew) open(t *task) ([]byte, tiers.View, bool) {
	if t.from.Flight != 0 {
		b, ok := c.Copy(t.from.Flight) // discarded only after this task is answered
		return b, tiers.View{}, ok
	}
	v, err := c.cfg.Store.Open(t.from.Key)
	return v.Bytes, v, err == nil
}

// letGo takes a task out of the worker's hands; nil = it does not have it, or answers what it was not sent. Crew.mu is
// held.
func (w *Worker) letGo(id uint64, answered bool) *task {
	for i, h := range w.held {
		if h.id != id {
			continue
		}
		if answered && !h.sent {
			return nil
		}
		w.held = append(w.held[:i], w.held[i+1:]...)
		if h.slot >= 0 {
			w.slots[h.slot] = false
		}
		w.since = w.c.cfg.Now()
		if i == 0 {
			w.arm()
		}
		return h.t
	}
	return nil
}

// arm sets the deadline of the worker's oldest task; Crew.mu is held. An inline worker has none: it answers when its
// script waits for a batch.
func (w *Worker) arm() {
	if w.disarm != nil {
		w.disarm()
		w.disarm = nil
	}
	w.oldest = w.c.cfg.Now()
	if len(w.held) == 0 {
		return
	}
	id, d := w.held[0].id, w.held[0].t.job.Made.Timeout
	switch {
	case w.inline:
		w.disarm = w.c.cfg.After(patience, func() { w.takeBack(id) })
	case d > 0:
		w.disarm = w.c.cfg.After(d, func() { w.late(id, d) })
	}
}

// late gives a worker up that did not answer in time.
func (w *Worker) late(id uint64, after time.Duration) {
	c := w.c
	c.mu.Lock()
	if w.closed || len(w.held) == 0 || w.held[0].id != id {
		c.mu.Unlock()
		return
	}
	c.mu.stats.Late++
	c.mu.Unlock()
	w.end(fmt.Sprintf("worker %d (pid %d) worked on it for more than %v (sample_timeout)", w.id, w.pid, after), true)
	w.out.Gone(errs.New(errs.Unavailable, "worker", "raise sample_timeout, or find out where the sample hangs",
		"worker %d of pid %d did not answer within %v and lost its tasks", w.id, w.pid, after))
}

// Close ends the worker. clean says that it left in order.
func (w *Worker) Close(clean bool) {
	why := fmt.Sprintf("worker %d (pid %d) ended while it worked on it", w.id, w.pid)
	if clean {
		why = ""
	}
	if n := w.end(why, false); n > 0 && !clean {
		w.c.mu.Lock()
		w.c.mu.stats.Deaths++
		w.c.mu.Unlock()
		w.c.cfg.Note(slog.LevelWarn, "a worker ended with tasks in hand", "worker", w.id, "pid", w.pid, "client", w.client,
			"tasks", n)
	}
	w.memory.Release()
}

// end takes the worker's tasks back, once; why blames the oldest one, unless it is empty: at once when that is certain,
// else as judge finds. It returns how many there were.
func (w *Worker) end(why string, certain bool) int {
	c := w.c
	c.mu.Lock()
	if w.closed {
		c.mu.Unlock()
		return 0
	}
	w.closed = true
	if w.disarm != nil {
		w.disarm()
	}
	for i, o := range c.mu.workers {
		if o == w {
			c.mu.workers = append(c.mu.workers[:i:i], c.mu.workers[i+1:]...)
			break
		}
	}
	back := w.held
	w.held, w.lent = nil, nil
	c.refresh() // others may now do what was better done by this one
	c.mu.Unlock()
	w.giving.Lock()   // whose input is still copied may be answered, and the input used again, only after that
	w.giving.Unlock() //nolint:gocritic,staticcheck // an empty critical section is the wait
	for i, h := range back {
		switch {
		case i > 0 || why == "":
			c.again(w, h.t, "", false)
		case certain:
			c.again(w, h.t, why, true)
		default:
			c.judge(w, h.t, why)
		}
	}
	w.input.Release()
	return len(back)
}
