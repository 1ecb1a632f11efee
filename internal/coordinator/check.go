package coordinator

import (
	"errors"
	"fmt"
	"slices"

	"larder/internal/bits"
	"larder/internal/ident"
	"larder/jobs"
)

// Check tests every invariant of the core, its components and the pure packages that it uses, O(everything); for tests
// and builds with invariants.
func (c *Core) Check() error {
	err := errors.Join(c.needs.sampler.Check(), c.needs.index.Check(), c.tiering.Check(), c.planner.Check(),
		c.step.Check(), c.roster.Check(), c.life.Check())
	if c.step.stats.Violations > 0 {
		err = errors.Join(err, fmt.Errorf("%d violations were caught", c.step.stats.Violations))
	}
	return errors.Join(err, c.needs.Check(), c.flights.Check(), c.checkPins())
}

// Check tests that no effect is left over from a Step, and that only records wait that are not durable.
func (st *step) Check() error {
	var err error
	if st.out != nil {
		err = fmt.Errorf("%d effects are left over between two steps", len(st.out))
	}
	if st.durable > st.nextSeq {
		err = errors.Join(err, fmt.Errorf("record %d is durable, of %d", st.durable, st.nextSeq))
	}
	for seq := range st.persists { // order-free: only the order of messages depends on it
		if seq <= st.durable || seq > st.nextSeq {
			err = errors.Join(err, fmt.Errorf("a callback waits for record %d; %d of %d are durable", seq, st.durable,
				st.nextSeq))
		}
	}
	return err
}

// Check tests that live jobs are listed once, by id, and that prefixes and share groups have the jobs that have them.
func (ro *roster) Check() error {
	var err error
	wrong := func(format string, args ...any) { err = errors.Join(err, fmt.Errorf(format, args...)) }
	if len(ro.streams) != len(ro.order) {
		wrong("%d jobs are listed by id and %d in order", len(ro.streams), len(ro.order))
	}
	grouped, all := 0, make([]bits.JobSet, len(ro.prefixes))
	for i, s := range ro.order {
		id := s.job.ID
		if ro.streams[id] != s || s.job.State.Ended() || i > 0 && ro.order[i-1].job.ID >= id {
			wrong("job %d, which is %s, is in place %d of the live jobs", id, s.job.State, i)
		}
		if s.dataset < 0 || s.dataset >= len(ro.datasets) || s.prefix < 0 || s.prefix >= len(ro.prefixes) {
			wrong("job %d has dataset %d and prefix %d", id, s.dataset, s.prefix)
			continue
		}
		if (s.joined() && s.visible()) != (s.set.Len() == 1) || all[s.prefix]&s.set != 0 {
			wrong("job %d, joined %v, is the set %x", id, s.joined(), s.set)
		}
		all[s.prefix] |= s.set
		if g := s.group; g != nil {
			grouped++
			if !slices.Contains(g.members, s) || s.seed != g.seed || s.job.Group != g.id || ro.groupOf(g.id) != g {
				wrong("job %d is not what its share group %d says", id, g.id)
			}
		}
	}
	for i := range ro.prefixes {
		if ro.prefixes[i].jobs != all[i] {
			wrong("prefix %d has jobs %x, %x are joined", i, ro.prefixes[i].jobs, all[i])
		}
	}
	for _, g := range ro.groups {
		grouped -= len(g.members)
		if len(g.members) == 0 || g.id > ro.lastID {
			wrong("share group %d of %d has %d members", g.id, ro.lastID, len(g.members))
		}
	}
	if grouped != 0 {
		wrong("%d jobs more have a share group than share groups have members", grouped)
	}
	return err
}

// Check tests that the registry's live jobs are those of the roster, and that the state of each job agrees with its
// lease, with the sampler and with what its ranks have.
func (lc *lifecycle) Check() error {
	err, live := lc.jobs.Check(), 0
	for j := range lc.jobs.All() {
		if j.State.Ended() {
			continue
		}
		live++
		s := lc.roster.streams[j.ID]
		if s == nil || s.job != j {
			err = errors.Join(err, fmt.Errorf("job %d is live and not in the roster", j.ID))
			continue
		}
		if j.Begun() != s.draws() {
			err = errors.Join(err, fmt.Errorf("job %d: begun %v, known to the sampler %v", j.ID, j.Begun(), s.draws()))
		}
		if l := j.Ledger(); j.Begun() && (l == nil || l.Epoch != j.Epoch) {
			err = errors.Join(err, fmt.Errorf("job %d is in epoch %d, of which it has no account", j.ID, j.Epoch))
		}
		for r := range s.ranks {
			if e := s.checkRank(r); e != nil {
				err = errors.Join(err, fmt.Errorf("job %d rank %d: %w", j.ID, r, e))
			}
		}
	}
	if live != len(lc.roster.order) {
		err = errors.Join(err, fmt.Errorf("%d jobs are live, %d are in the roster", live, len(lc.roster.order)))
	}
	return err
}

// checkRank tests that what a rank has agrees with its phase.
func (s *stream) checkRank(r int) error {
	k, q := &s.job.Ranks[r], &s.ranks[r]
	switch {
	case !k.Attached() && len(q.planned)+len(q.sent) > 0:
		return fmt.Errorf("it is %s, and has %d batches planned and %d sent", k.Phase, len(q.planned), len(q.sent))
	case k.Phase == jobs.InEpoch && !s.job.Begun():
		return fmt.Errorf("it is %s, and none was begun", k.Phase)
	case q.kept != nil && k.Attached() && (k.Phase != jobs.Idle || !q.returned):
		return fmt.Errorf("it is %s, and something is kept for a client that is gone", k.Phase)
	case q.recovery != recoveryNone && !s.restored():
		return fmt.Errorf("it may continue what another daemon began, and its job may not")
	}
	return nil
}

// Check tests that no tier holds more than it may.
func (ti *tiering) Check() error {
	var err error
	for _, f := range tierForms {
		if ti.index.Used(f) > ti.index.Budget(f) {
			err = errors.Join(err, fmt.Errorf("%s: %d bytes used of %d", f, ti.index.Used(f), ti.index.Budget(f)))
		}
	}
	return err
}

// Check tests that each flight is filed, in the queue that its phase says, and has a waiter, and that no more
// run and no more copies exist than may.
func (fl *flights) Check() error {
	var err error
	running, copies := 0, 0
	for id, f := range fl.flightByID { // order-free: only the order of messages depends on it
		if f.id != id || fl.flying.get(f.key) != f {
			err = errors.Join(err, fmt.Errorf("flight %d of %s is not filed under its key", id, f.key))
		}
		if f.handedOut() {
			f.count(&running, 1)
		}
		if f.phase == flightCopied {
			f.count(&copies, 1)
		}
		err = errors.Join(err, f.check())
		if f.alone && f.entry.held && !fl.needs.neutral(f.entry.h) {
			err = errors.Join(err, fmt.Errorf("flight %d of %s is alone, and its result is kept", f.id, f.key))
		}
		if f.follower() != nil && !f.followedBy(f.job) || f.phase <= flightAway && fl.roster.streams[f.job] == nil {
			err = errors.Join(err, fmt.Errorf("flight %d of %s is the work of job %d, which does not wait for it", id, f.key,
				f.job))
		}
		if queued := fl.queueOf(f).has(f); queued != (f.phase == flightQueued || f.phase == flightAway) {
			err = errors.Join(err, fmt.Errorf("flight %d of %s: in the queue: %v", id, f.key, queued))
		}
	}
	if most := 3*fl.cfg.InFlight + fl.cfg.Ahead; copies != fl.copies || copies > most {
		err = errors.Join(err, fmt.Errorf("%d working copies, %d are counted, %d are allowed", copies, fl.copies, most))
	}
	if running != fl.running || running > fl.mostRunning() {
		err = errors.Join(err, fmt.Errorf("%d flights run, %d are counted, %d are allowed", running, fl.running,
			fl.mostRunning()))
	}
	if fl.flying.n != len(fl.flightByID) {
		err = errors.Join(err, fmt.Errorf("%d flights are filed under their keys, %d under their numbers", fl.flying.n,
			len(fl.flightByID)))
	}
	return errors.Join(err, fl.checkOutages(), fl.queue.check(), fl.onCopies.check(), fl.foreign.check())
}

// check tests that the phase of a flight agrees with its source and with who waits for it.
func (f *flight) check() error {
	var err error
	if f.alone && f.key.Form != ident.Decoded {
		err = errors.Join(err, fmt.Errorf("flight %d of %s is alone, and not decoded", f.id, f.key))
	}
	if f.alone && f.phase != flightInPlace && f.phase != flightCopied && f.visibleUsers() > 1 {
		err = errors.Join(err, fmt.Errorf("flight %d of %s is alone, and shared", f.id, f.key))
	}
	switch f.phase {
	case flightWaits, flightQueued, flightAway:
		if !f.refill && len(f.rows) == 0 && len(f.augments) == 0 {
			err = errors.Join(err, fmt.Errorf("flight %d of %s: nothing waits for it", f.id, f.key))
		}
		if there := f.parent == nil || f.parent.phase == flightCopied; there != (f.phase != flightWaits) {
			err = errors.Join(err, fmt.Errorf("flight %d of %s is in phase %d, and its source is there: %v", f.id, f.key,
				f.phase, there))
		}
	case flightInPlace:
		if !f.alone || len(f.rows) == 0 || f.rows[0].d.rows[f.rows[0].row].state != rowFilling {
			err = errors.Join(err, fmt.Errorf("flight %d of %s does not fill the row that it is alone for", f.id, f.key))
		}
	case flightCopied:
		if f.users == 0 {
			err = errors.Join(err, fmt.Errorf("flight %d of %s has a copy that nothing reads", f.id, f.key))
		}
	case flightRunning:
	case flightOver, numFlightPhases:
		err = errors.Join(err, fmt.Errorf("flight %d of %s is over, and not forgotten", f.id, f.key))
	}
	return err
}

// Check tests that the sampler was told what is cached, and for whom, but for what is neutral. An object of which
// something is in preparation may differ: a flight for an instance that its group has left is entered when it ends.
func (ne *needs) Check() error {
	if ne.refresh.phase != refreshNone { // levels are being recomputed
		return nil
	}
	var err error
	for _, s := range ne.roster.order {
		for _, x := range s.sample.Subset {
			is := ne.level(x, ident.Key{})
			mine := is.rest
			if is.jobs&s.set != 0 {
				mine = is.own
			}
			all, own := ne.sampler.Level(x), ne.sampler.LevelOf(x, s.job.ID)
			if ne.flying.of(x) == nil && (all != is.own || s.joined() && s.visible() && own != mine) {
				err = errors.Join(err, fmt.Errorf("object %d is at level %d for job %d and %+v in all, the sampler has %d and %d",
					x, mine, s.job.ID, is, own, all))
			}
		}
	}
	return err
}

// Check tests that the batches of each rank have their slots, their rows and their account.
func (pl *planner) Check() error {
	var err error
	for _, s := range pl.roster.order {
		err = errors.Join(err, pl.checkStream(s))
	}
	return err
}

func (pl *planner) checkStream(s *stream) error {
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
				if w.state == rowWaiting && w.flight == nil && !s.isDeferred(d, i) {
					err = errors.Join(err, fmt.Errorf("job %d rank %d: row %d waits for nothing", j.ID, r, i))
				}
			}
			if pending != d.pending {
				err = errors.Join(err, fmt.Errorf("job %d rank %d: %d rows pending, %d counted", j.ID, r, pending, d.pending))
			}
		}
	}
	if l := j.Ledger(); l != nil && l.Stream && l.Open() && l.Committed() != l.Subset {
		err = errors.Join(err, fmt.Errorf("job %d epoch %d: %d picked of a stream of %d", j.ID, l.Epoch, l.Committed(),
			l.Subset))
	}
	if l := j.Ledger(); l != nil && s.joined() && l.Open() && len(s.catching) == 0 {
		if picked := l.Committed(); picked+pl.sampler.Remaining(j.ID) != j.Spec.Subset {
			err = errors.Join(err, fmt.Errorf("job %d epoch %d: %d picked + %d remaining of %d", j.ID, l.Epoch, picked,
				pl.sampler.Remaining(j.ID), j.Spec.Subset))
		}
	}
	return err
}

// Pinned counts pinned entries of a form, for tests of who pins what.
func (c *Core) Pinned(f ident.Form) int {
	n := 0
	for _, k := range c.needs.entries(f) {
		if h, ok := c.needs.index.Lookup(k); ok && c.needs.index.Pins(h) > 0 {
			n++
		}
	}
	return n
}
