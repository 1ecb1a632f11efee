package crew

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"larder/internal/engine/ring"
	"larder/internal/engine/work"
	"larder/internal/record"
	"larder/internal/session/wire"
	"larder/internal/shm"
	"larder/internal/units"
	"larder/tiers"
)

// maxTries is how often one task is given to workers, whatever they say.
const maxTries = 16

// mostFailures is after how many failures that count a sample is left out.
const mostFailures = 2

// again gives a task to a worker once more, or answers it as failed. counts says that it counts for the sample.
func (c *Crew) again(w *Worker, t *task, why string, counts bool) {
	if counts {
		t.failures++
	}
	if t.failures >= mostFailures || t.tries >= maxTries {
		if why == "" {
			why = fmt.Sprintf("%d workers gave it back", t.tries)
		}
		c.fail(t, tried(why, t.failures))
		return
	}
	t.avoid = w.id
	c.mu.Lock()
	if c.mu.stopped {
		c.mu.Unlock()
		t.release()
		return
	}
	if c.unwanted(t) {
		c.mu.dropped = append(c.mu.dropped, t)
	} else {
		c.mu.added = append(c.mu.added, t)
	}
	c.mu.Unlock()
	c.wake.Signal()
}

// unwanted reports whether no job waits for a task that comes back from a worker: Closed and Ended, which drop such
// tasks, did not see it there. A task that came after the end of its job is what other jobs wait for. c.mu is held.
func (c *Crew) unwanted(t *task) bool {
	return t.fill != nil && c.cfg.Rings.Get(t.ringKey()) == nil || !t.followed && c.cfg.Ended(t.job.ID)
}

func (c *Crew) fail(t *task, why string) {
	c.dropBlob(t)
	c.mu.Lock()
	c.mu.stats.Failed++
	c.mu.Unlock()
	c.cfg.Send(t.failed(why))
	t.release()
}

// Done takes a record over. An error is a breach of the protocol, after which the session ends.
func (w *Worker) Done(d wire.DoneFrame) error {
	c := w.c
	c.mu.Lock()
	since := w.since
	t, known := w.taskOf(d.Task)
	if t != nil {
		w.taking++
	}
	c.mu.Unlock()
	switch {
	case t == nil && known:
		w.freed = append(w.freed, d.Offset)
		return nil
	case t == nil:
		return wire.Violation("DONE of task %d, which this worker does not have", d.Task)
	}
	took := c.cfg.Now().Sub(since)
	kept, err := w.takeOver(t, d)
	w.freed = append(w.freed, d.Offset)
	c.mu.Lock()
	w.taking--
	w.pace.note(1, int64(min(d.Bytes, 1<<62)))
	c.mu.Unlock()
	w.took(t, took, kept, int64(d.Bytes), err)
	return nil
}

// took goes on behind a record that was taken over, or refused.
func (w *Worker) took(t *task, took time.Duration, kept bool, bytes int64, err error) {
	if err == nil {
		w.stageDone(t, took, kept, bytes)
		return
	}
	c := w.c
	c.mu.Lock()
	c.mu.stats.Refused++
	c.mu.Unlock()
	why := fmt.Sprintf("worker %d (pid %d) made something that does not fit: %v", w.id, w.pid, err)
	c.cfg.Note(slog.LevelWarn, "a record was refused", "worker", w.id, "pid", w.pid, "sample", uint64(t.sample),
		"reason", err.Error())
	c.refuse(w, t, why)
}

// refuse tries again what would fail again with the same worker: only if there is another one.
func (c *Crew) refuse(w *Worker, t *task, why string) {
	c.mu.Lock()
	other := c.manned(t.fit, w)
	c.mu.Unlock()
	if !other {
		t.failures = mostFailures
	}
	c.again(w, t, why, true)
}

// stageDone goes on behind what the worker has made.
func (w *Worker) stageDone(t *task, took time.Duration, kept bool, bytes int64) {
	c := w.c
	t.took += took
	if t.last < t.end {
		c.mu.Lock()
		w.done++
		c.mu.Unlock()
		c.onward(t)
		return
	}
	w.counted(t)
	c.dropBlob(t)
	w.answers = append(w.answers, t.done(kept, bytes))
	t.release()
}

// tally is records of one kind of work that are not counted yet.
type tally struct {
	job  *work.Job
	fit  fit
	step work.Step
	n    int
	took time.Duration
}

// tallyOf is that of one record.
func tallyOf(t *task) tally { return tally{t.job, t.fit, t.step(), 1, t.took} }

// counted counts a record, with others of its kind at once.
func (w *Worker) counted(t *task) {
	x := tallyOf(t)
	if w.tally.n > 0 && (x.job != w.tally.job || x.fit != w.tally.fit || x.step != w.tally.step) {
		w.countNow()
	}
	x.n, x.took = x.n+w.tally.n, x.took+w.tally.took
	w.tally = x
}

func (w *Worker) countNow() {
	if w.tally.n > 0 {
		w.c.count(w, w.tally)
	}
	w.tally = tally{}
}

// count enters what records took into the counters and the meters. w is nil when the last stage was built-in ops.
func (c *Crew) count(w *Worker, x tally) {
	c.mu.Lock()
	c.mu.stats.Tasks += uint64(x.n)
	c.mu.stats.Seconds[x.step] += x.took.Seconds()
	if w != nil {
		w.done += uint64(x.n)
	}
	workers := 0
	for _, o := range c.mu.workers {
		if o.fits(x.fit) {
			workers++
		}
	}
	c.mu.Unlock()
	c.cfg.Meters.Foreign(x.job.RecipeKey(), x.step, x.n, x.took, workers)
}

// takeOver copies a record out of the worker's memory and checks the copy.
func (w *Worker) takeOver(t *task, d wire.DoneFrame) (kept bool, err error) {
	c := w.c
	if d.Bytes > uint64(c.cfg.MaxRecord) {
		return false, c.tooLarge(d.Bytes)
	}
	src, err := w.memoryAt(d.Offset, d.Bytes)
	if err != nil {
		return false, err
	}
	if t.last < t.end {
		return false, c.pass(t, found{whole: src})
	}
	return c.put(t, found{whole: src})
}

func (c *Crew) tooLarge(n uint64) error {
	return fmt.Errorf("a record of %s, and %s are the most (workers.max_record)", units.Size(int64(min(n, 1<<62))),
		units.Size(c.cfg.MaxRecord))
}

// memoryAt is a part of the worker's memory.
func (w *Worker) memoryAt(at, bytes uint64) ([]byte, error) {
	mem := w.memory.Bytes()
	if n := uint64(len(mem)); at > n || bytes > n-at {
		return nil, fmt.Errorf("a record of %d bytes at %d lies outside the %d bytes of its memory", bytes, at, n)
	}
	return mem[at : at+bytes : at+bytes], nil
}

// found is an untrusted record: a whole one, or a sample of a stack.
type found struct {
	whole  []byte
	stack  *record.Stack
	sample int
}

func (f found) size() int {
	if f.stack != nil {
		return int(f.stack.Size())
	}
	return len(f.whole)
}

// copyTo copies the record to memory of its size.
func (f found) copyTo(dst []byte) {
	if f.stack != nil {
		f.stack.Record(dst, f.sample)
	} else {
		copy(dst, f.whole)
	}
}

// put copies the record of a whole task to where it belongs, and checks the copy.
func (c *Crew) put(t *task, src found) (kept bool, err error) {
	if t.keep && t.fill == nil {
		c.cfg.Tiers.Wait(t.after)
		b, err := c.cfg.Store.Alloc(t.key, int64(src.size()))
		switch {
		case err == nil:
			blob := b.Bytes[:src.size()]
			src.copyTo(blob)
			if err := t.job.Made.Accept(blob, t.last, c.cfg.MaxRecord); err != nil {
				b.Abort()
				return false, err
			}
			if b.Commit(tiers.Meta{}) == nil {
				return true, nil
			}
		case !errors.Is(err, tiers.ErrFull):
			return false, err
		}
	}
	blob := c.scratch(src.size())
	src.copyTo(blob)
	if err := t.job.Made.Accept(blob, t.last, c.cfg.MaxRecord); err != nil {
		c.free(blob)
		return false, err
	}
	if t.fill != nil {
		defer c.free(blob)
		return false, c.write(t, blob)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.copies[t.flight] = copied{blob, t.fit}
	c.mu.held[t.fit] += int64(cap(blob))
	return false, nil
}

// write writes a row of a batch.
func (c *Crew) write(t *task, blob []byte) error {
	r, release := c.ringOf(t)
	if r == nil {
		return nil
	}
	defer release()
	v, err := record.Open(blob)
	if err != nil {
		return err
	}
	return work.PutRecord(r, t.fill, t.job, v)
}

// ringOf is the ring of a task's row. nil = its client is gone: in place the coordinator still asks what became of the
// sample.
func (c *Crew) ringOf(t *task) (r *ring.Ring, release func()) {
	if t.ring != nil {
		return t.ring, func() {}
	}
	if r = c.cfg.Rings.Hold(t.ringKey()); r == nil {
		return nil, nil
	}
	return r, r.Release
}

// taskOf is the task that the worker answers. nil with known: it was given up a moment ago, or another worker has
// answered it. Crew.mu is held.
func (w *Worker) taskOf(id uint64) (t *task, known bool) {
	if t = w.letGo(id, true); t != nil || w.closed {
		return t, true
	}
	return w.letGoLent(id)
}

// Failed takes a failure. An error is a breach of the protocol, after which the session ends.
func (w *Worker) Failed(id uint64, f wire.Failure) error {
	c := w.c
	c.mu.Lock()
	t, known := w.taskOf(id)
	c.mu.Unlock()
	switch {
	case t == nil && known:
	case t == nil:
		return wire.Violation("FAILED of task %d, which this worker does not have", id)
	case f.Retry:
		c.again(w, t, reasonOf(f), false)
	default:
		c.refuse(w, t, reasonOf(f))
	}
	return nil
}

// reasonOf is the exception in one line, and the traceback behind it.
func reasonOf(f wire.Failure) string {
	kind := f.Type
	if kind == "" {
		kind = "the worker failed"
	}
	why := kind + ": " + f.Message
	if tb := strings.TrimSpace(f.Traceback); tb != "" {
		why += "\n" + tb
	}
	return why
}

// Grow replaces the worker's memory for records that come later. The Crew takes it over.
func (w *Worker) Grow(memory *shm.Segment) {
	w.c.mu.Lock()
	old := w.memory
	w.memory = memory
	w.c.mu.Unlock()
	old.Release()
}
