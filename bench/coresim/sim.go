package coresim

import (
	"time"

	"github.com/cespare/xxhash/v2"

	"larder/internal/coordinator"
	"larder/internal/ident"
	"larder/jobs"
)

// sim runs one scenario: it hands the effects of the coordinator to the machine and to the clients, and steps the
// coordinator with what these report.
//
//	agenda ──▶ machine, crowd ──event──▶ Core.Step ──effects──▶ decisions, machine, crowd ──▶ agenda
type sim struct {
	m    *Model
	core *coordinator.Core

	clock     clock
	checks    checks
	decisions decisions
	machine   machine
	crowd     crowd
	outside   Outside // nil = no workers of clients

	out    []coordinator.Effect
	last   coordinator.Event
	timer  time.Time // the deadline of the coordinator that is on the agenda
	steps  int
	picks  uint64
	solves int
	daemon int // how many daemons have died
}

var simEpoch = time.Unix(1_700_000_000, 0)

// Run simulates until every client left, or until limit of virtual time: then CutOff is set with a Collector, else it
// is a failure. The errors are those of the coordinator's configuration, and what Progress or Decisions return.
func Run(m Model, clients []Client, limit time.Duration) (*Result, error) {
	m.Workers = max(m.Workers, 1)
	if m.Cores < 1 {
		m.Cores = m.Workers
	}
	s := &sim{m: &m, decisions: decisions{hash: xxhash.New(), to: m.Decisions}}
	s.checks.clock = &s.clock
	s.machine = newMachine(&m, &s.clock, &s.checks, s.step, s.ofDaemon)
	if err := s.begin(); err != nil {
		return nil, err
	}
	kept := &keeper{clock: &s.clock}
	s.crowd = crowd{m: &m, clock: &s.clock, checks: &s.checks, seen: kept, machine: &s.machine, report: s.step,
		running: func() []jobs.Job { return s.core.Jobs(false) }, pending: len(clients),
		clients: map[ident.JobID]*simClient{}, waiting: map[coordinator.Token]func(coordinator.Reply){},
		subsets: map[string][]Selection{}, journal: newJournal(m.journals(clients))}
	if m.trusts() {
		s.crowd.seen = &collected{clock: &s.clock, to: m.Collect}
	}
	if m.Outside != nil {
		s.outside = m.Outside(Desk{s})
		s.crowd.enrolled = s.outside.Joined
	}
	s.plan(clients)
	cutOff, err := s.loop(limit)
	if err != nil {
		return nil, err
	}
	return &Result{
		Stats: s.core.Stats(), Epochs: kept.epochs, Elapsed: s.clock.now, Hash: s.decisions.hash.Sum64(),
		Peak: s.machine.memory.peak, Solves: s.solves, Copies: s.machine.memory.mostCopies, Failures: s.checks.failures,
		Jobs: s.core.Jobs(true), Paused: s.crowd.pauses, Subsets: s.crowd.subsets, Tiers: s.core.Tiers(),
		Events: s.events(), Picks: s.picks, CutOff: cutOff, Cuts: s.crowd.cuts, Restarts: s.daemon,
		Resumed: s.crowd.resumed,
	}, nil
}

// begin has a daemon run, with the tiers that the model has for it.
func (s *sim) begin() error {
	m := s.m
	core, err := coordinator.New(coordinator.Config{
		Seed: m.Seed, Tiers: m.Tiers, Lease: m.Lease, InFlight: 2 * m.Workers, Ahead: m.Ahead, Bytes: m.Bytes,
		Usable: m.Usable, Refill: m.Refill,
		Granule: func(_ ident.Form, n int64) int64 { return s.machine.memory.granules(n) },
	})
	if err != nil {
		return err
	}
	s.core = core
	for _, t := range core.Tiers() {
		s.machine.memory.budget[t.Form] = t.Budget
	}
	return nil
}

// plan enters what the model and the clients do at times of their own.
func (s *sim) plan(clients []Client) {
	for i := range clients {
		c := &clients[i]
		s.clock.at(c.Start, func() { s.crowd.join(c) })
	}
	for at, t := range s.m.Resize {
		s.clock.at(at, func() { s.step(coordinator.Reconfigure{Tiers: t}) })
	}
	for at, r := range s.m.Rates {
		s.clock.at(at, func() { s.step(coordinator.Measured{Rates: r}) })
	}
	for _, at := range s.m.Restarts {
		s.clock.at(at, s.restart)
	}
	for _, d := range s.m.Data {
		s.clock.at(d.At, func() { s.crowd.changeData(d) })
	}
	if s.m.Measure > 0 {
		s.clock.at(s.m.Measure, s.machine.measure)
	}
}

// events counts what the coordinator handled: steps and picks.
func (s *sim) events() uint64 { return uint64(s.steps) + s.picks }

const progressEvery = 1 << 16 // events

// loop runs the agenda until it is empty, the limit is over or something failed. What was decided is settled in any
// case, also in a panic: what was decided last shows why.
func (s *sim) loop(limit time.Duration) (cutOff bool, err error) {
	defer func() {
		if late := s.decisions.settle(); err == nil {
			err = late
		}
	}()
	last := s.events()
	for s.clock.now <= limit && len(s.checks.failures) == 0 {
		// Once all have left, only reports of rates are to come. Tests let every timer run out.
		if s.m.trusts() && s.crowd.over() {
			break
		}
		a, ok := s.clock.advance()
		if !ok {
			break
		}
		switch {
		case a.do != nil:
			a.do()
		case a.read:
			s.machine.haveRead(a.task)
		default:
			s.machine.worked(a.task)
		}
		if s.events()-last >= progressEvery {
			last = s.events()
			if s.m.Progress != nil {
				if err := s.m.Progress(s.clock.now, s.core.Stats().Samples); err != nil {
					return false, err
				}
			}
		}
		if len(s.decisions.note) >= noteAtOnce {
			if err := s.decisions.settle(); err != nil {
				return false, err
			}
		}
	}
	if s.clock.now > limit {
		if !s.m.trusts() {
			s.checks.fail("still running after %s of virtual time", limit)
		}
		return true, nil
	}
	s.verify(s.machine.memory.check)
	s.checkOutside(true)
	return false, nil
}

// step hands an event to the coordinator and does what it decides.
func (s *sim) step(ev coordinator.Event) {
	s.out = s.core.Step(simEpoch.Add(s.clock.now), ev, s.out[:0])
	out := s.out
	s.last = ev
	s.out = nil // a step inside of what is done below has its own
	s.steps++
	for _, e := range out {
		s.decisions.describe(e)
	}
	for i, e := range out {
		s.do(e)
		out[i] = nil
	}
	s.out = out
	if s.m.Check > 0 && s.steps%s.m.Check == 0 {
		s.verify(s.core.Check)
		s.verify(s.machine.check)
		s.checkOutside(false)
	}
	switch ev.(type) {
	case *coordinator.Filled, *coordinator.Prepared: // most of all; others follow soon that look at the time
		if s.m.trusts() {
			return
		}
	}
	s.wakeAt(s.core.Deadline())
}

// verify makes a broken invariant a failure.
func (s *sim) verify(check func() error) {
	if err := check(); err != nil {
		s.checks.fail("after %T, step %d: %v", s.last, s.steps, err)
	}
}

// wakeAt steps the coordinator at its deadline, unless it has another by then.
func (s *sim) wakeAt(d time.Time) {
	if d.IsZero() || d.Equal(s.timer) {
		return
	}
	s.timer = d
	s.clock.at(d.Sub(simEpoch), func() {
		if s.timer.Equal(d) {
			s.timer = time.Time{}
			s.step(coordinator.Tick{})
		}
	})
}

// do carries out a decision.
func (s *sim) do(eff coordinator.Effect) {
	if s.outside != nil && s.outside.Do(eff) {
		return
	}
	switch x := eff.(type) {
	case coordinator.Prepare:
		held := s.machine.inBlock(x)
		s.machine.add(task{turn: x.Turn, what: eff, object: x.Key.Object, fresh: x.Into == nil,
			read: x.From == ident.Stored && !held, held: held})
	case coordinator.Augment:
		s.machine.add(task{turn: x.Turn, what: eff, object: x.Key.Object})
	case *coordinator.Fill:
		s.machine.add(task{turn: x.Turn, what: eff, object: x.Object})
	case coordinator.Discard:
		s.machine.memory.discard(x.Flight)
		s.machine.serve() // a worker may wait for room
	case coordinator.HoldBlock:
		s.machine.holdBlock(x)
	case coordinator.DropBlock:
		s.machine.dropBlock(x)
	case coordinator.FreeKey:
		s.machine.memory.free(x.Key)
	case coordinator.SetBudget:
		s.machine.memory.budget[x.Form] = x.Bytes
	case coordinator.Solve: // the daemon takes milliseconds for it; here they do not count
		s.solves++
		s.ofDaemon(0, func() { s.step(x.Do()) })
	case coordinator.Deliver:
		s.crowd.deliver(x)
	case coordinator.EndEpoch:
		s.crowd.endEpoch(x)
	case coordinator.CloseRank:
		s.crowd.closeRank(x)
	case coordinator.Persist:
		s.picks += assigned(x.Record)
		s.ofDaemon(50*time.Microsecond, func() {
			s.crowd.journal.add(x.Record)
			s.step(coordinator.Persisted{Seq: x.Seq})
		})
	case coordinator.Reply:
		s.crowd.replied(x)
	case coordinator.Complain:
		s.checks.fail("job %d: %s", x.Job, x.Text)
	}
}

// ofDaemon calls do when d has passed, unless the daemon has died by then.
func (s *sim) ofDaemon(d time.Duration, do func()) {
	was := s.daemon
	s.clock.after(d, func() {
		if s.daemon == was {
			do()
		}
	})
}
