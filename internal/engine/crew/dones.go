package crew

import (
	"slices"
	"time"

	"larder/internal/engine/ring"
	"larder/internal/engine/work"
	"larder/internal/record"
	"larder/internal/session/wire"
)

// answered is a task that a stack answers, and its place there.
type answered struct {
	t  *task
	at int
}

// Dones takes a stack of records over. An error is a breach of the protocol, after which the session ends.
func (w *Worker) Dones(d wire.DonesFrame) error {
	c := w.c
	c.mu.Lock()
	since := w.since
	tasks, known := w.tasksOf(d.First, int(d.Count))
	w.taking += len(tasks)
	c.mu.Unlock()
	if !known {
		return wire.Violation("DONES of tasks %d to %d, which this worker does not have", d.First,
			d.First+uint64(d.Count)-1)
	}
	w.freed = append(w.freed, d.Offset)
	took := c.cfg.Now().Sub(since) / time.Duration(d.Count)
	st, err := w.stackAt(d)
	bytes := int64(d.Bytes) / int64(d.Count)
	if err == nil {
		bytes = st.Size()
	}
	var fits fitting
	defer fits.close()
	for _, a := range tasks {
		kept, why := false, err
		if why == nil {
			kept, why = c.takeSample(a, st, &fits)
		}
		w.took(a.t, took, kept, bytes, why)
	}
	c.mu.Lock()
	w.taking -= len(tasks)
	w.pace.note(len(tasks), bytes)
	c.mu.Unlock()
	clear(tasks)
	w.stacked = tasks[:0]
	return nil
}

// tasksOf takes the tasks out of the worker's hands that it answers, without those that were given up or that another
// worker has answered. It takes none, and known is false, if the worker does not have one of them. Crew.mu is held.
func (w *Worker) tasksOf(first uint64, n int) (out []answered, known bool) {
	if w.closed {
		return nil, true
	}
	out = w.stacked[:0]
	if i := w.find(first); i >= 0 && len(w.held)-i >= n && w.held[i+n-1].id == first+uint64(n-1) &&
		!slices.ContainsFunc(w.held[i:i+n], func(h held) bool { return !h.sent }) {
		for k, h := range w.held[i : i+n] {
			out = append(out, answered{h.t, k})
			w.leave(h.in)
		}
		w.held = slices.Delete(w.held, i, i+n)
		w.since = w.c.cfg.Now()
		if i == 0 {
			w.arm()
		}
		return out, true
	}
	for k := range n {
		id := first + uint64(k)
		i := w.find(id)
		if (i < 0 || !w.held[i].sent) && !slices.ContainsFunc(w.lent, func(h held) bool { return h.id == id }) {
			return nil, false
		}
	}
	for k := range n {
		if t, _ := w.taskOf(first + uint64(k)); t != nil {
			out = append(out, answered{t, k})
		}
	}
	return out, true
}

// stackAt opens the stack of an answer.
func (w *Worker) stackAt(d wire.DonesFrame) (*record.Stack, error) {
	src, err := w.memoryAt(d.Offset, d.Bytes)
	if err != nil {
		return nil, err
	}
	st, err := record.OpenStack(src, int(d.Count))
	if err == nil && st.Size() > w.c.cfg.MaxRecord {
		err = w.c.tooLarge(uint64(st.Size()))
	}
	return st, err
}

// fitting is what a stack was compared with last, and the ring that it went to, which is held.
type fitting struct {
	made *work.Made
	last uint32
	err  error
	key  ring.Key
	ring *ring.Ring
}

// ringOf is Crew.ringOf, until close.
func (f *fitting) ringOf(c *Crew, t *task) *ring.Ring {
	if t.ring != nil {
		return t.ring
	}
	if k := t.ringKey(); f.ring == nil || f.key != k {
		f.close()
		f.key, f.ring = k, c.cfg.Rings.Hold(k)
	}
	return f.ring
}

func (f *fitting) close() {
	if f.ring != nil {
		f.ring.Release()
		f.ring = nil
	}
}

// takeSample copies a sample of a stack to where it belongs, and checks the copy. Values that may be anything go
// straight to the row of a batch: there is nothing in them to check.
func (c *Crew) takeSample(a answered, st *record.Stack, fits *fitting) (kept bool, err error) {
	t, src := a.t, found{stack: st, sample: a.at}
	if t.last < t.end {
		return false, c.pass(t, src)
	}
	if t.fill == nil || st.Bools() {
		return c.put(t, src)
	}
	r := fits.ringOf(c, t)
	if r == nil {
		return false, nil
	}
	if r.Ragged() {
		return c.put(t, src)
	}
	if fits.made != t.job.Made || fits.last != t.last {
		fits.made, fits.last, fits.err = t.job.Made, t.last, fitsOf(t, st)
	}
	if fits.err != nil {
		return false, fits.err
	}
	return false, work.PutStack(r, t.fill, t.job, st, a.at)
}

// fitsOf checks the form of a stack as Accept checks a record's.
func fitsOf(t *task, st *record.Stack) error {
	if t.last == 1 {
		if err := st.Fits(&t.job.Made.Item); err != nil {
			return err
		}
	}
	if t.last == t.job.Made.Steps {
		return st.Fits(&t.job.Made.Out)
	}
	return nil
}
