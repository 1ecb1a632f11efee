package coresim

import (
	"time"

	"larder/internal/coordinator"
	"larder/internal/ident"
)

// Outside makes samples that workers of clients make, in place of the machine of the Model: that of jobs with
// Client.Making.Workers.
type Outside interface {
	// Joined is told of each job that is registered, before it is attached.
	Joined(id ident.JobID, c *Client)
	// Do carries out an effect, and reports whether it was one for Outside alone. It sees all of them.
	Do(eff coordinator.Effect) bool
	// Check returns an invariant that is broken. It is called between events, and with over set at the end.
	Check(core *coordinator.Core, over bool) error
}

// Desk is what an Outside has of a simulation.
type Desk struct{ s *sim }

// Now is the virtual time.
func (d Desk) Now() time.Duration { return d.s.clock.now }

// After calls do when a time has passed.
func (d Desk) After(t time.Duration, do func()) { d.s.clock.after(t, do) }

// Report hands an event to the coordinator, at once. It must not be called from Do.
func (d Desk) Report(ev coordinator.Event) { d.s.step(ev) }

// Wrote notes that a row of a batch is written.
func (d Desk) Wrote(x *coordinator.Fill) { d.s.machine.rows.write(x) }

// Fail ends the run: something is wrong.
func (d Desk) Fail(format string, args ...any) { d.s.checks.fail(format, args...) }

// Jobs counts the clients that have not come, or not left.
func (d Desk) Jobs() int { return d.s.crowd.pending + d.s.crowd.joined - d.s.crowd.left }

// checkOutside makes a broken invariant of the Outside a failure.
func (s *sim) checkOutside(over bool) {
	if s.outside != nil && len(s.checks.failures) == 0 {
		s.verify(func() error { return s.outside.Check(s.core, over) })
	}
}
