package crew

import (
	"errors"

	"larder/internal/coordinator"
	"larder/internal/engine/work"
)

// mostReads is how many items the daemon's workers read for the Crew at once: enough for those of a large machine, and
// for storage that is slow.
const mostReads = 64

// reads is the tasks that begin with reading an item, by turn for each fit. They wait for room: an item that is read
// is held until a worker has made something of it. It belongs to the Crew and is guarded by its lock.
type reads struct {
	queues  map[fit]*queue
	order   []fit // of queues, so that no decision follows from the order of a map
	running int   // that the daemon's workers have
	look    bool  // there may be room for one
	sizes   map[fit]*sizes
}

// sizes is what is known of the records of a fit before they are read.
type sizes struct {
	running int   // reads that may become records that are held; probes are not among them
	largest int64 // bytes of a record up to now
}

// errNoRoom is a record that was read and has no room: it was larger than those before it, or others came first. It is
// read again when there is room.
var errNoRoom = errors.New("there is no room for it")

// sized is what is known of a fit.
func (r *reads) sized(f fit) *sizes {
	x := r.sizes[f]
	if x == nil {
		x = &sizes{}
		if r.sizes == nil {
			r.sizes = map[fit]*sizes{}
		}
		r.sizes[f] = x
	}
	return x
}

// forget drops what is known of jobs that have ended.
func (r *reads) forget(ended func(fit) bool) {
	for f, x := range r.sizes { // order-free: each by itself
		if x.running == 0 && ended(f) {
			delete(r.sizes, f)
		}
	}
}

func (r *reads) push(t *task) {
	q := r.queues[t.fit]
	if q == nil {
		q = &queue{}
		if r.queues == nil {
			r.queues = map[fit]*queue{}
		}
		r.queues[t.fit] = q
		r.order = append(r.order, t.fit)
	}
	q.push(t)
}

// due reports whether the feeder is to look.
func (r *reads) due() bool { return r.look && len(r.order) > 0 }

// remove takes out what is asked for, and returns it.
func (r *reads) remove(is func(*task) bool) (out []*task) {
	order := r.order
	r.order = nil
	for _, f := range order {
		out = append(out, r.queues[f].remove(is)...)
		r.keep(f)
	}
	return out
}

// keep enters a fit in the order again, unless nothing is left of it.
func (r *reads) keep(f fit) {
	if r.queues[f].len() == 0 {
		delete(r.queues, f)
		return
	}
	r.order = append(r.order, f)
}

// waiting counts the tasks of some fits.
func (r *reads) waiting(is func(fit) bool) (n int) {
	for _, f := range r.order {
		if is(f) {
			n += r.queues[f].len()
		}
	}
	return n
}

// startReads takes the tasks whose items are to be read now, in turn; c.mu is held.
func (c *Crew) startReads() (out []*task) {
	r := &c.mu.reads
	r.look = false
	for r.running < mostReads {
		var best *queue
		var turn uint64
		for _, f := range r.order {
			q := r.queues[f]
			if t := q.first(func(*task) bool { return true }); t != nil && c.mayRead(t) && (best == nil || t.turn < turn) {
				best, turn = q, t.turn
			}
		}
		if best == nil {
			break
		}
		t := best.pop(func(*task) bool { return true })
		out = append(out, t)
		r.running++
		r.sized(t.fit).running++
		if best.len() == 0 {
			r.remove(func(*task) bool { return false })
		}
	}
	return out
}

// mayHold reports whether there is room for one more record of a fit that no tier holds; c.mu is held.
func (c *Crew) mayHold(f fit) bool {
	n := c.mu.held[f]
	return n == 0 || n < c.share()
}

// mayRead reports whether there is room for the record of a task beside those of its fit that are being read, each of
// them as large as the largest one up to now, or as what is stored of this one; c.mu is held.
func (c *Crew) mayRead(t *task) bool {
	n, x := c.mu.held[t.fit], sizes{}
	if known := c.mu.reads.sizes[t.fit]; known != nil {
		x = *known
	}
	size := max(x.largest, t.job.Data.Bytes(t.sample))
	return n == 0 && x.running == 0 || n+int64(x.running+1)*size <= c.share()
}

// share is what the records of one fit may take, where it has more than one: an equal part for each that has any, so
// that a job whose workers are away keeps no other from going on. What one has when another comes stays; c.mu is held.
func (c *Crew) share() int64 { return c.cfg.Room / int64(max(len(c.mu.held), 1)) }

// fits reports whether a record that was read may be held; c.mu is held. So the records of a fit that were read and
// wait for a worker never take more than its share, but for a single one. Probes come on top, of which the coordinator
// has one for each place that failed.
func (c *Crew) fits(t *task, size int64) bool {
	n := c.mu.held[t.fit]
	x := c.mu.reads.sized(t.fit)
	x.largest = max(x.largest, size)
	return t.probe || n == 0 || n+size <= c.share()
}

// read has the daemon's workers make the first stage of a task.
func (c *Crew) read(t *task) {
	item := work.Item{Object: t.key.Object, Readers: t.wanted}
	c.cfg.Read(t.job, item, t.runs, t.randKey(), func(out []byte, ev coordinator.Prepared) {
		defer c.wasRead(t.fit, t.probe)
		c.mu.Lock()
		stopped := c.mu.stopped
		c.mu.Unlock()
		t.read += ev.Read
		t.held = t.held || ev.Held
		switch {
		case stopped || ev.Lost: // the daemon stops
			t.release()
		case ev.Err != "":
			c.unread(t, ev)
		default:
			if t.probe {
				c.cfg.Send(coordinator.ItemRead{Flight: t.flight})
			}
			c.nativeDone(t, out)
		}
	})
}

// wasRead ends a read whose record is held now, or has an answer. Until then it counts as running: a record that were
// neither would be room for one more.
func (c *Crew) wasRead(f fit, probe bool) {
	c.mu.Lock()
	c.mu.reads.running--
	if !probe {
		c.mu.reads.sized(f).running--
	}
	c.mu.reads.look = true
	c.mu.Unlock()
	c.wake.Signal()
}

// requeue has a task wait for room again: one whose item was read, or of the next stage. What nobody waits for any more
// is answered.
func (c *Crew) requeue(t *task) {
	c.mu.Lock()
	switch {
	case c.mu.stopped:
		c.mu.Unlock()
		t.release()
		return
	case c.unwanted(t):
		c.mu.dropped = append(c.mu.dropped, t)
	default:
		c.mu.added = append(c.mu.added, t)
	}
	c.mu.Unlock()
	c.wake.Signal()
}

// unread answers a task whose item could not be read, as the daemon's workers answer those of other jobs.
func (c *Crew) unread(t *task, ev coordinator.Prepared) {
	c.mu.Lock()
	c.mu.stats.Failed++
	c.mu.Unlock()
	ev.Flight, ev.Read = t.flight, t.read
	c.cfg.Send(ev)
	t.release()
}
