package coordinator

import (
	"errors"
	"fmt"

	"larder/internal/bits"
	"larder/internal/ident"
	"larder/jobs"
)

// Check tests every invariant of the core and of its rooms, O(everything); for tests and builds with invariants.
func (c *Core) Check() error {
	err := errors.Join(c.sampler.Check(), c.index.Check())
	for _, f := range tierForms {
		if c.index.Used(f) > c.index.Budget(f) {
			err = errors.Join(err, fmt.Errorf("%s: %d bytes used of %d", f, c.index.Used(f), c.index.Budget(f)))
		}
	}
	if c.stats.Violations > 0 {
		err = errors.Join(err, fmt.Errorf("%d violations were caught", c.stats.Violations))
	}
	for _, s := range c.order {
		err = errors.Join(err, c.checkStream(s))
	}
	if c.refresh.left == 0 { // else levels are being told
		err = errors.Join(err, c.checkLevels())
	}
	running, copies := 0, 0
	for id, f := range c.flightByID { // order-free: only the order of messages depends on it
		if f.id != id || c.flights.get(f.key) != f {
			err = errors.Join(err, fmt.Errorf("flight %d of %s is not filed under its key", id, f.key))
		}
		if f.handedOut() {
			running++
		}
		if f.phase == flightCopied {
			copies++
		}
		if f.phase == flightInPlace && (!f.alone || len(f.rows) == 0 || f.rows[0].d.rows[f.rows[0].row].state != rowFilling) ||
			f.alone && (f.key.Form != ident.Decoded || f.entry.held || f.phase != flightInPlace && len(f.rows)+len(f.augments)+f.users > 1) {
			err = errors.Join(err, fmt.Errorf("flight %d of %s is shared, or not filling the row that it is alone for", id, f.key))
		}
		if f.phase <= flightQueued && !f.refill && len(f.rows) == 0 && len(f.augments) == 0 {
			err = errors.Join(err, fmt.Errorf("flight %d of %s waits for nobody", id, f.key))
		}
		if f.phase == flightCopied && f.users == 0 {
			err = errors.Join(err, fmt.Errorf("flight %d of %s holds a copy nobody reads", id, f.key))
		}
		if queued := c.queueOf(f).has(f); queued != (f.phase == flightQueued) || queued != (f.phase <= flightQueued && (f.parent == nil || f.parent.phase == flightCopied)) {
			err = errors.Join(err, fmt.Errorf("flight %d of %s: in the queue: %v", id, f.key, queued))
		}
	}
	if copies != c.copies || copies > 3*c.cfg.InFlight+c.cfg.Ahead {
		err = errors.Join(err, fmt.Errorf("%d working copies, %d are counted, %d are allowed", copies, c.copies, 3*c.cfg.InFlight+c.cfg.Ahead))
	}
	if running != c.running || running > c.mostRunning() {
		err = errors.Join(err, fmt.Errorf("%d flights run, %d are counted, %d are allowed", running, c.running, c.mostRunning()))
	}
	if c.flights.n != len(c.flightByID) {
		err = errors.Join(err, fmt.Errorf("%d flights are filed under their keys, %d under their numbers", c.flights.n, len(c.flightByID)))
	}
	return errors.Join(err, c.queue.check(), c.onCopies.check())
}

// checkLevels tests that the sampler knows what is at hand, and for whom; but once a job has read in order, it may take less for at hand
// than it is told. A flight for an instance that its group has left is told when it ends.
func (c *Core) checkLevels() error {
	var err error
	flying := new(bits.Set)
	for _, f := range c.flightByID { // order-free: a set
		flying.Add(uint32(f.key.Object))
	}
	for _, s := range c.order {
		for _, x := range s.sample.Subset {
			is := c.level(x, ident.Key{})
			mine := is.rest
			if is.jobs&s.set != 0 {
				mine = is.own
			}
			told, own := c.sampler.Level(x), c.sampler.LevelOf(x, s.job.ID)
			if !flying.Has(uint32(x)) && (told != is.own || s.joined && own != mine && !c.inOrder) {
				err = errors.Join(err, fmt.Errorf("object %d is at level %d for job %d and %+v in all, the sampler was told %d and %d", x, mine, s.job.ID, is, own, told))
			}
		}
	}
	return err
}

func (c *Core) checkStream(s *stream) error {
	var err error
	j := s.job
	for r := range j.Ranks {
		k := &j.Ranks[r]
		taken := map[int]bool{}
		for _, d := range s.ranks[r].planned {
			if taken[d.slot] {
				err = errors.Join(err, fmt.Errorf("job %d rank %d: slot %d is planned twice", j.ID, r, d.slot))
			}
			taken[d.slot] = true
			if st := k.Slots[d.slot].State; st != jobs.Filling && st != jobs.Ready {
				err = errors.Join(err, fmt.Errorf("job %d rank %d: slot %d is planned but in state %d", j.ID, r, d.slot, st))
			}
			pending := 0
			for i := range d.rows {
				w := &d.rows[i]
				if w.state == rowWaiting || w.state == rowFilling {
					pending++
				}
				if w.state == rowWaiting && w.flight == nil && !s.isOwed(d, i) {
					err = errors.Join(err, fmt.Errorf("job %d rank %d: row %d waits for nothing", j.ID, r, i))
				}
			}
			if pending != d.pending {
				err = errors.Join(err, fmt.Errorf("job %d rank %d: %d rows pending, %d counted", j.ID, r, pending, d.pending))
			}
		}
	}
	if l := j.Ledger(); l != nil && s.joined && l.Open() && len(s.catching) == 0 {
		if picked := l.Committed(); picked+c.sampler.Remaining(j.ID) != j.Spec.Subset {
			err = errors.Join(err, fmt.Errorf("job %d epoch %d: %d picked + %d remaining of %d", j.ID, l.Epoch, picked,
				c.sampler.Remaining(j.ID), j.Spec.Subset))
		}
	}
	return err
}

// Pinned counts pinned entries of a form, for tests of who pins what.
func (c *Core) Pinned(f ident.Form) int {
	n := 0
	for _, k := range c.entries(f) {
		if h, ok := c.index.Lookup(k); ok && c.index.Pins(h) > 0 {
			n++
		}
	}
	return n
}
