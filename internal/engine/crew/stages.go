package crew

import (
	"errors"

	"larder/internal/engine/work"
	"larder/internal/prep"
)

// A task whose steps are built-in ops in part goes to and fro: what a worker of a client has made is kept in the
// daemon's memory (pass), built-in ops are run on it by the daemon's own workers (native), and the next stage begins
// (onward). Where samples are read from files, the first stage is theirs too (reads.go).

// pass keeps what a stage made as the input of the next one. It is counted with the copies that no tier holds, which is
// errNoRoom for what was read where there is none.
func (c *Crew) pass(t *task, src found) error {
	blob := c.scratch(src.size())
	src.copyTo(blob)
	if err := t.job.Made.Accept(blob, t.last, c.cfg.MaxRecord); err != nil {
		c.free(blob)
		return err
	}
	c.dropBlob(t)
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.job.Made.Reads(t.first) && !c.fits(t, int64(cap(blob))) {
		c.recycle(blob)
		return errNoRoom
	}
	t.blob = blob
	c.mu.held[t.fit] += int64(cap(blob))
	return nil
}

// dropBlob ends the use of what a stage made.
func (c *Crew) dropBlob(t *task) {
	if t.blob == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.held[t.fit] -= int64(cap(t.blob)); c.mu.held[t.fit] <= 0 {
		delete(c.mu.held, t.fit)
	}
	c.recycle(t.blob)
	t.blob = nil
	c.refresh() // one may have waited for room
}

// onward begins the stage behind the one that is done, as a task of its own: an inline worker from which the old one
// was taken back may answer that too late.
func (c *Crew) onward(old *task) {
	next := *old
	t := &next
	t.first, t.tries = old.last, 0
	t.last, t.runs = t.job.Made.Next(t.first, t.end)
	c.requeue(t)
}

// native has the daemon's workers run the ops of a stage.
func (c *Crew) native(t *task) {
	blob, view, ok := c.open(t)
	if !ok {
		c.dropBlob(t)
		c.cfg.Send(t.lost())
		t.release()
		return
	}
	c.cfg.Native(t.job, t.runs, t.randKey(), blob, func(out []byte, err error) {
		defer view.Close()
		switch {
		case errors.Is(err, work.ErrStopped):
			t.release()
		case err != nil:
			c.fail(t, err.Error())
		default:
			c.nativeDone(t, out)
		}
	})
}

// randKey is what the built-in ops of a task draw by.
func (t *task) randKey() prep.RandKey {
	return prep.RandKey{Seed: t.seed, Instance: t.instance, Sample: uint64(t.sample)}
}

// nativeDone goes on behind what the daemon's workers have made.
func (c *Crew) nativeDone(t *task, out []byte) {
	var kept bool
	var err error
	if t.last < t.end {
		if err = c.pass(t, found{whole: out}); err == nil {
			c.onward(t)
			return
		}
		if errors.Is(err, errNoRoom) {
			c.requeue(t)
			return
		}
	} else if kept, err = c.put(t, found{whole: out}); err == nil {
		c.count(nil, tallyOf(t))
		c.dropBlob(t)
		c.cfg.Send(t.done(kept, int64(len(out))))
		t.release()
		return
	}
	c.fail(t, "what its built-in ops made does not fit: "+err.Error())
}
