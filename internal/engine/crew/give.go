package crew

import (
	"math"
	"slices"
	"time"

	"larder/internal/coordinator"
	"larder/internal/session/wire"
	"larder/tiers"
)

const (
	// mostWindow is the most tasks that a worker may have, mostBatch of one that takes TASKS.
	mostWindow, mostBatch = 64, wire.MaxTasks
	// atOnce is the work that a worker may have, where its window allows that few tasks only: it lasts until the daemon
	// has taken over what was answered, and is little to do again for others if the worker ends. Where tasks travel in
	// numbers it lasts until daemon and worker have had their turns on a busy processor.
	atOnce, atOnceBatch = 4 * time.Millisecond, 16 * time.Millisecond
	// atOnceBytes bounds the records of that work.
	atOnceBytes = 4 << 20
)

// pace is how fast a worker answers, and how many tasks it may have for that. Crew.mu guards it.
type pace struct {
	window int
	batch  bool          // tasks travel in numbers
	task   time.Duration // of a task, of late
	bytes  int64         // of a record, of late
	begun  time.Time     // the tasks that are not answered yet began
	n      int           // tasks that were answered since
}

// settle takes what was answered into account: slow tasks and large records count at once, quick and small ones when
// they are the rule.
func (p *pace) settle(now time.Time, least, most int) {
	some, room := atOnce, int64(mostWindow)
	if p.batch {
		some, room = atOnceBatch, mostBatch
	}
	if p.n > 0 {
		took := now.Sub(p.begun) / time.Duration(p.n)
		if p.task == 0 {
			p.task = took
		}
		p.task = max(took, p.task-(p.task-took)/4)
		n := min(int64(some/max(p.task, 1)), atOnceBytes/max(p.bytes, 1))
		p.window = min(max(int(min(n, room)), least), most)
	}
	p.begun, p.n = now, 0
}

// note adds answers, with records of so many bytes each.
func (p *pace) note(n int, bytes int64) {
	p.n += n
	p.bytes = max(bytes, p.bytes-(p.bytes-bytes)/64)
}

// pump gives the worker what there is for it.
func (w *Worker) pump() { w.give(math.MaxInt, nil) }

// Settle sends what the worker is to know, after answers.
func (w *Worker) Settle() {
	w.report()
	c := w.c
	c.mu.Lock()
	w.pace.settle(c.cfg.Now(), min(c.cfg.Window, w.most), w.most)
	c.mu.Unlock()
	w.give(math.MaxInt, w.freed)
	w.freed = w.freed[:0]
}

// report sends what became of tasks.
func (w *Worker) report() {
	w.countNow()
	if all := w.answers; w.c.cfg.SendAll != nil && len(all) > 1 {
		w.answers = make([]coordinator.Event, 0, len(all))
		w.c.cfg.SendAll(all)
		return
	}
	for i, ev := range w.answers {
		w.c.cfg.Send(ev)
		w.answers[i] = nil
	}
	w.answers = w.answers[:0]
}

// give gives the worker up to n tasks, as far as there are any and it has room, and says what was freed. It returns how
// many it gave.
func (w *Worker) give(n int, freed []uint64) int {
	w.giving.Lock()
	defer w.giving.Unlock()
	c := w.c
	w.frames = w.frames[:0]
	inputs := false
	c.mu.Lock()
	for n = min(n, w.room()); len(w.frames) < n; {
		t := c.take(w)
		if t == nil {
			break
		}
		inputs = inputs || t.first > 0
		w.frames = append(w.frames, w.hold(t))
	}
	c.mu.Unlock()
	if inputs {
		w.putInputs()
	}
	if len(w.frames) > 0 || len(freed) > 0 {
		w.out.Give(freed, w.frames)
	}
	return len(w.frames)
}

// hold enters a task among those of the worker; Crew.mu and giving are held.
func (w *Worker) hold(t *task) wire.TaskFrame {
	c := w.c
	w.last++
	t.tries++
	if t.tries > 1 {
		c.mu.stats.Retries++
	}
	w.held = append(w.held, held{t: t, id: w.last, sent: t.first == 0})
	if len(w.held) == 1 {
		w.since = c.cfg.Now()
		w.pace.begun = w.since
		w.arm()
	}
	return wire.TaskFrame{Task: w.last, Sample: uint64(t.sample), Seed: t.seed, Instance: t.instance, Alone: t.alone,
		Recipe: uint32(w.recipeFor(t.fit)), First: t.first, Last: t.last, Timeout: t.job.Made.Timeout}
}

// putInputs copies the inputs of the tasks in frames to where the worker can read them. Tasks whose input is gone are
// answered, those whose input has no room are given back; both leave frames. giving is held.
func (w *Worker) putInputs() {
	c, out := w.c, w.frames[:0]
	w.input.Retain() // the worker may end while inputs are copied
	defer w.input.Release()
	full := false
	for _, f := range w.frames {
		if f.First > 0 {
			var t *task
			c.mu.Lock()
			if i := w.find(f.Task); i >= 0 {
				t = w.held[i].t
			}
			c.mu.Unlock()
			if t == nil { // the worker ended
				break
			}
			there := !full
			if there {
				there, full = w.putInput(t, &f)
			}
			if !there {
				w.unhold(t, f.Task, full)
				continue
			}
		}
		out = append(out, f)
	}
	w.frames = out
}

// unhold takes back a task that the worker does not know of: one that waits for room, or whose input is gone.
func (w *Worker) unhold(t *task, id uint64, waits bool) {
	c := w.c
	c.mu.Lock()
	held := w.letGo(id, false) != nil
	waits = waits && !c.unwanted(t) // Closed or Ended may have come since it was taken
	if held && waits {
		t.tries--
		c.enqueue(t)
	}
	c.mu.Unlock()
	if held && !waits {
		c.dropBlob(t)
		c.cfg.Send(t.lost())
		t.release()
	}
}

// putInput copies the input of a task; false = it is gone, or full: there is no room for it until another task is
// answered.
func (w *Worker) putInput(t *task, f *wire.TaskFrame) (there, full bool) {
	blob, view, ok := w.c.open(t)
	if !ok {
		return false, false
	}
	defer view.Close()
	n := int64(len(blob))
	in, ok, others := w.reserve(n)
	if !ok {
		return false, others
	}
	copy(w.input.Bytes()[in.at:], blob)
	f.Offset, f.Bytes = uint64(in.at), uint64(n)
	c := w.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := w.find(f.Task); i >= 0 { // else the worker ended meanwhile
		w.held[i].in, w.held[i].sent = in, true
	}
	return true, false
}

// open finds the input of a task.
func (c *Crew) open(t *task) ([]byte, tiers.View, bool) {
	if t.blob != nil {
		return t.blob, tiers.View{}, true
	}
	if t.from.Flight != 0 {
		b, ok := c.Copy(t.from.Flight) // discarded only after this task is answered
		return b, tiers.View{}, ok
	}
	v, err := c.cfg.Store.Open(t.from.Key)
	return v.Bytes, v, err == nil
}

// span is a part of the input memory.
type span struct{ at, n int64 }

// reserve finds room for an input, whose pages are there then. others says that it is in use. giving is held.
func (w *Worker) reserve(n int64) (in span, ok, others bool) {
	c := w.c
	in.n = (n + page - 1) / page * page
	c.mu.Lock()
	i := 0
	for ; i < len(w.inputs) && w.inputs[i].at-in.at < in.n; i++ {
		in.at = w.inputs[i].at + w.inputs[i].n
	}
	others = len(w.inputs) > 0
	if ok = in.at+in.n <= w.input.Size(); ok {
		w.inputs = slices.Insert(w.inputs, i, in)
	}
	c.mu.Unlock()
	if end := in.at + in.n; ok && end > w.present {
		if w.input.Reserve(w.present, end-w.present) != nil {
			c.mu.Lock()
			w.leave(in)
			c.mu.Unlock()
			return span{}, false, others
		}
		w.present = end
	}
	return in, ok, others
}

// leave frees a part of the input memory; Crew.mu is held.
func (w *Worker) leave(in span) {
	w.inputs = slices.DeleteFunc(w.inputs, func(s span) bool { return s == in && in.n > 0 })
}
