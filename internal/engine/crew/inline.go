package crew

import (
	"slices"
	"time"
)

// patience is how long an inline worker keeps a task that another worker could begin.
const patience = time.Second

// serves reports whether a worker may have tasks of a queue. An inline worker works only while its script waits for a
// batch, so it has those of its own jobs, and with others also what no worker process can do: their own script may
// train for long, or have ended. c.mu is held.
func (c *Crew) serves(w *Worker, f fit, others bool) bool {
	return w.fits(f) && (!w.inline || c.cfg.Owns(w.pid, f.job) || others && !c.manned(f, nil))
}

// manned reports whether a worker process can do tasks of a queue, but for one. c.mu is held.
func (c *Crew) manned(f fit, but *Worker) bool {
	return slices.ContainsFunc(c.mu.workers, func(w *Worker) bool { return w != but && !w.inline && w.fits(f) })
}

// takeBack takes the oldest task from an inline worker whose script does not come to it, once another worker has
// nothing else to do. Whichever answers first answers it. Crew.mu is held, and not any more when it returns.
func (w *Worker) takeBack() {
	c, h := w.c, w.held[0]
	idle := func(o *Worker) bool { return o != w && o.room() > 0 && c.serves(o, h.t.fit, true) && c.peek(o) == nil }
	if !h.sent || !slices.ContainsFunc(c.mu.workers, idle) {
		w.watch(c.cfg.Now())
		c.mu.Unlock()
		return
	}
	w.held = slices.Delete(w.held, 0, 1)
	w.lent = append(w.lent, h)
	w.arm()
	h.t.tries-- // it was none
	c.mu.Unlock()
	c.again(w, h.t, "", false)
}

// letGoLent is letGo for a task that was taken back: nil with known = another worker answered it, or it was dropped.
// Crew.mu is held.
func (w *Worker) letGoLent(id uint64) (t *task, known bool) {
	c := w.c
	i := slices.IndexFunc(w.lent, func(h held) bool { return h.id == id })
	if i < 0 {
		return nil, false
	}
	h := w.lent[i]
	w.lent = slices.Delete(w.lent, i, i+1)
	w.leave(h.in)
	w.since = c.cfg.Now()
	if k := slices.Index(c.mu.added, h.t); k >= 0 {
		c.mu.added = slices.Delete(c.mu.added, k, k+1)
		return h.t, true
	}
	if q := c.mu.queues[h.t.fit]; q != nil && len(q.remove(func(t *task) bool { return t == h.t })) > 0 {
		if q.len() == 0 {
			c.forget(h.t.fit)
		}
		return h.t, true
	}
	for _, o := range c.mu.workers {
		k := slices.IndexFunc(o.held, func(x held) bool { return x.t == h.t })
		if k < 0 || !o.held[k].sent {
			continue
		}
		o.lent = append(o.lent, o.held[k]) // its answer will be too late
		o.held = slices.Delete(o.held, k, k+1)
		if k == 0 {
			o.arm()
		}
		return h.t, true
	}
	return nil, true
}
