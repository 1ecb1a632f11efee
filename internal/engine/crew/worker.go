package crew

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"larder/internal/coordinator"
	"larder/internal/engine/work"
	"larder/internal/errs"
	"larder/internal/session"
	"larder/internal/session/wire"
	"larder/internal/shm"
)

// Worker is one worker process. Done, Failed, Settle, Grow and Close are called by one goroutine, that of its session.
type Worker struct {
	c       *Crew
	id      uint32
	pid     int32
	client  client
	inline  bool
	most    int         // tasks that the worker can have
	mark    int64       // where in its memory it says what it works on; -1 = nowhere
	recipes []*work.Job // by their place in WORK: any job of the recipe
	out     session.Hand
	input   *shm.Segment

	// Of the goroutine of its session. memory is changed, and its mark is read, under Crew.mu.
	memory  *shm.Segment
	freed   []uint64            // records that were taken over, or refused, since the last Settle
	answers []coordinator.Event // what became of tasks since then
	tally   tally               // of the records that were taken over since then
	stacked []answered          // of the last stack; memory only
	words   *shm.Segment        // where the worker says why it ends; nil = nowhere. Changed and read under Crew.mu

	// giving is held while tasks are given, so that the frames have the order of held. Taken before Crew.mu.
	giving  sync.Mutex
	frames  []wire.TaskFrame // of those that hold giving
	present int64            // of the input memory: pages that are there, from the beginning on

	// Guarded by Crew.mu.
	held    []held // oldest first, by rising numbers
	last    uint64 // number of the last task
	lent    []held // that others have answered, or may answer, and this worker has not: its answers will be too late
	taking  int    // records that are being copied out of its memory
	inputs  []span // of the input memory that are in use, by place
	ready   bool
	closed  bool
	done    uint64
	pace    pace
	oldest  time.Time // the oldest task has been the oldest since
	since   time.Time // the last answer, or the beginning of the first task
	begun   time.Time // since when it is seen at the task begunID, which is not its oldest one
	begunID uint64
	alarm   time.Time   // when the timer rings
	disarm  func() bool // of the timer; nil = there is none
}

// held is a task at a worker.
type held struct {
	t    *task
	id   uint64 // of the task at this worker
	in   span   // of its input; empty = it has none
	sent bool   // its input is there: it may be answered
}

// Attach makes a worker of a session. recipes are jobs whose recipes it can run, all of one dataset, in the order of
// the request. It gets nothing before Start. The Crew takes the memory over, also when it fails.
func (c *Crew) Attach(
	req *wire.WorkRequest, recipes []*work.Job, peer shm.Peer, memory *shm.Segment, out session.Hand,
) (*Worker, error) {
	w := &Worker{c: c, pid: req.PID, client: client{req.Client, peer.UID, req.Tells}, inline: req.Inline,
		most: c.cfg.Window, recipes: recipes, out: out, memory: memory}
	if w.pid <= 0 {
		w.pid = peer.PID
	}
	most := uint32(mostWindow)
	if req.Batch {
		most = mostBatch
	}
	if n := int(min(req.Window, most)); n > 0 && (n <= w.most || req.Mark != nil) {
		w.most = n
	}
	if w.mark = -1; req.Mark != nil {
		if w.mark = int64(min(*req.Mark, 1<<62)); w.mark%8 != 0 || w.mark+8 > memory.Size() {
			memory.Release()
			return nil, errs.New(errs.Invalid, "mark", "choose a multiple of 8 within the memory",
				"a worker marks its task at byte %d of its memory of %d", *req.Mark, memory.Size())
		}
	}
	w.pace = pace{window: min(c.cfg.Window, w.most), batch: req.Batch}
	input, err := shm.CreateSparse("larder-worker-input", c.slotBytes()*int64(c.cfg.Window))
	if err != nil {
		memory.Release()
		return nil, err
	}
	w.input = input
	c.mu.Lock()
	if c.mu.stopped {
		c.mu.Unlock()
		memory.Release()
		input.Release()
		return nil, errs.New(errs.Unavailable, "", "start it again: larder serve", "the daemon is stopping")
	}
	c.mu.came++
	w.id = c.mu.came
	c.mu.workers = append(c.mu.workers, w)
	c.mu.Unlock()
	if req.Ended != nil {
		hear(c, w.client, *req.Ended)
	}
	return w, nil
}

const page = 4096

// MaxMemory is the most bytes that the memory of a worker may have: room for a few of the largest records, and always
// for a mark and a small one.
func (c *Crew) MaxMemory() int64 { return max(4*c.cfg.MaxRecord, 64<<10) }

// slotBytes is the address space for the input of one task.
func (c *Crew) slotBytes() int64 { return (c.cfg.MaxRecord + page - 1) / page * page }

// Info is what the worker is told.
func (w *Worker) Info() wire.WorkResult {
	return wire.WorkResult{Worker: w.id, InBytes: uint64(w.input.Size()), Window: uint32(w.most),
		MaxRecord: uint64(w.c.cfg.MaxRecord), MaxMemory: uint64(w.c.MaxMemory()), MaxWords: wire.MaxWords}
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

// room is how many more tasks the worker may have; Crew.mu is held.
func (w *Worker) room() int {
	if !w.ready || w.closed {
		return 0
	}
	return max(0, w.pace.window-len(w.held)-len(w.lent)-w.taking)
}

// find is the place in held of a task; -1 = the worker does not have it. Crew.mu is held.
func (w *Worker) find(id uint64) int {
	i, ok := slices.BinarySearchFunc(w.held, id, func(h held, id uint64) int { return cmp.Compare(h.id, id) })
	if !ok {
		return -1
	}
	return i
}

// letGo takes a task out of the worker's hands; nil = it does not have it, or answers what it was not sent. Crew.mu is
// held.
func (w *Worker) letGo(id uint64, answered bool) *task {
	i := w.find(id)
	if i < 0 || answered && !w.held[i].sent {
		return nil
	}
	h := w.held[i]
	if i == 0 {
		w.held[0], w.held = held{}, w.held[1:]
	} else {
		w.held = slices.Delete(w.held, i, i+1)
	}
	w.leave(h.in)
	w.since = w.c.cfg.Now()
	if i == 0 {
		w.arm()
	}
	return h.t
}

// arm notes when the worker's oldest task became that, and has the timer ring when it has been it for too long; Crew.mu
// is held. A timer that rings earlier is left as it is: it looks again.
func (w *Worker) arm() {
	w.oldest = w.c.cfg.Now()
	w.watch(w.oldest)
}

// watch has the timer ring a deadline after a time; Crew.mu is held.
func (w *Worker) watch(from time.Time) {
	d := w.deadline()
	if d <= 0 || w.disarm != nil && !w.alarm.After(from.Add(d)) {
		return
	}
	if w.disarm != nil {
		w.disarm()
	}
	w.alarm = from.Add(d)
	w.disarm = w.c.cfg.After(w.alarm.Sub(w.c.cfg.Now()), w.ring)
}

// deadline is how long a task may be the worker's oldest one; 0 = there is none, or for ever. An inline worker answers
// when its script waits for a batch. One whose tasks were all answered by others is at one of them still. One that says
// why it ends has a little longer. Crew.mu is held.
func (w *Worker) deadline() time.Duration {
	if w.inline {
		if len(w.held) == 0 {
			return 0
		}
		return patience
	}
	d := w.timeout()
	if d > 0 && w.words != nil { // it stops a task by itself, and says where that was
		d += d/4 + 2*time.Second
	}
	return d
}

// timeout is how long the worker's oldest task may take; 0 = there is none, or for ever. Crew.mu is held.
func (w *Worker) timeout() time.Duration {
	switch {
	case len(w.held) > 0:
		return w.held[0].t.job.Made.Timeout
	case len(w.lent) > 0:
		return w.lent[0].t.job.Made.Timeout
	}
	return 0
}

// ring looks whether the oldest task has been that for too long.
func (w *Worker) ring() {
	c := w.c
	c.mu.Lock()
	w.disarm = nil
	d, now, from := w.deadline(), c.cfg.Now(), w.oldest
	if i := w.at(); i > 0 { // the oldest one is done, and its answer waits for this one's
		if id := w.held[i].id; id != w.begunID {
			w.begunID, w.begun = id, now
		}
		from = w.begun
	}
	switch {
	case w.closed || d <= 0:
		c.mu.Unlock()
	case now.Before(from.Add(d)):
		w.watch(from)
		c.mu.Unlock()
	case w.inline:
		w.takeBack()
	default:
		c.mu.stats.Late++
		after := w.timeout()
		c.mu.Unlock()
		w.late(after)
	}
}

// marked is the number of the task that the worker says it is at; false = it says nothing. Crew.mu is held.
func (w *Worker) marked() (id uint64, ok bool) {
	if w.mark < 0 || w.memory == nil || w.mark+8 > w.memory.Size() {
		return 0, false
	}
	return atomic.LoadUint64((*uint64)(unsafe.Pointer(&w.memory.Bytes()[w.mark]))), true //nolint:gosec // aligned, within
}

// at is the place in held of the task that the worker is at: the one that it marked, or the oldest one if it marks none
// ever. -1 = the one that it marked is not there: it is at none, at several at once, or at one that was taken from it.
// Crew.mu is held.
func (w *Worker) at() int {
	id, ok := w.marked()
	if !ok {
		return 0
	}
	return w.find(id)
}

// late gives a worker up that did not answer in time.
func (w *Worker) late(after time.Duration) {
	why := fmt.Sprintf("worker %d (pid %d) worked on it for more than %v (sample_timeout)", w.id, w.pid, after)
	if _, where := w.lastWords(); where != "" {
		why += "\n" + where
	}
	w.end(why, true)
	w.out.Gone(errs.New(errs.Unavailable, "worker", "raise sample_timeout, or find out where the sample hangs",
		"worker %d of pid %d did not answer within %v and lost its tasks", w.id, w.pid, after))
}

// Words takes over the memory in which the worker says why it ends.
func (w *Worker) Words(memory *shm.Segment) {
	w.c.mu.Lock()
	old := w.words
	w.words = memory
	w.c.mu.Unlock()
	if old != nil {
		old.Release()
	}
}

// lastWords is why the worker ends and where it is, as it says itself; empty = it says nothing.
func (w *Worker) lastWords() (why, where string) {
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	if w.words == nil {
		return "", ""
	}
	return wire.LastWords(w.words.Bytes())
}

// Close ends the worker. clean says that it left in order.
func (w *Worker) Close(clean bool) {
	w.report()
	why, said := w.ending(clean)
	if n := w.end(why, said); n > 0 && !clean {
		w.c.mu.Lock()
		w.c.mu.stats.Deaths++
		w.c.mu.Unlock()
		first, _, _ := strings.Cut(why, "\n")
		w.c.cfg.Note(slog.LevelWarn, "a worker ended with tasks in hand", "worker", w.id, "pid", w.pid,
			"client", w.client.name, "tasks", n, "reason", first)
	}
	w.c.mu.Lock()
	memory, words := w.memory, w.words
	w.memory, w.words = nil, nil
	w.c.mu.Unlock()
	memory.Release()
	if words != nil {
		words.Release()
	}
}

// ending is what the end of the session says of the task that the worker was at. said: the worker says itself why it
// ended, so it did not leave with its client.
func (w *Worker) ending(clean bool) (why string, said bool) {
	if clean || w.inline { // a script that was interrupted does not go on in the middle of an answer
		return "", false
	}
	why = fmt.Sprintf("worker %d (pid %d) ended while it worked on it", w.id, w.pid)
	own, where := w.lastWords()
	if own != "" {
		why += ": " + own
	}
	if where != "" {
		why += "\n" + where
	}
	return why, own != ""
}

// end takes the worker's tasks back, once; why blames the one that it is at, unless it is empty or nobody knows which
// one that is: at once when that is certain, else as judge finds. It returns how many there were.
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
	back, at := w.held, w.at()
	id, marks := w.marked()
	several := marks && id == 0
	w.held, w.lent = nil, nil
	c.refresh() // others may now do what was better done by this one
	c.mu.Unlock()
	w.giving.Lock()   // whose input is still copied may be answered, and the input used again, only after that
	w.giving.Unlock() //nolint:gocritic,staticcheck // an empty critical section is the wait
	for i, h := range back {
		if i != at && at >= 0 || w.inline {
			h.t.tries-- // it was none
		}
		h.t.alone = h.t.alone || several
		switch {
		case i != at || why == "":
			c.again(w, h.t, "", false)
		case certain:
			c.again(w, h.t, why, true)
		default:
			c.judge(w, h.t, why)
		}
	}
	c.mu.Lock()
	delete(c.mu.judged.told, w)
	c.mu.Unlock()
	w.input.Release()
	return len(back)
}
