package coordinator

import (
	"context"
	"time"
)

// Executor carries effects out. Its methods must not block and must not call back into the loop.
type Executor interface {
	// Do carries out one effect; results come as events. It may wait for Flush.
	Do(Effect)
	// Flush follows the effects of one or more steps, before the loop waits for anything.
	Flush()
	// Unread appends events that have happened and that have not been sent yet. They are taken before a Tick, because a
	// decision by time must not miss what a client did before that time.
	Unread(dst []Event) []Event
}

// Inspect runs F in the loop's goroutine between two steps: for status, never to change anything.
type Inspect struct{ F func(*Core) }

func (Inspect) isEvent() {}

// Several is events that came at once: each of them is a step, in order. Passing them to the loop together costs less.
type Several []Event

func (Several) isEvent() {}

// Clock gives Loop the time and timers; tests pass their own.
type Clock struct {
	Now   func() time.Time
	Timer func(time.Duration) Timer // makes a timer that fires after a time
}

// Timer is a time.Timer of a Clock. After Stop or Reset no earlier value is received.
type Timer interface {
	Chan() <-chan time.Time
	Reset(time.Duration) bool
	Stop() bool
}

// most is how many more events are taken before it is looked whether it is time for a Tick, but for the last ones of a
// Several.
const most = 63

// Loop owns c until ctx ends: it takes events in order, and ticks when the core asks for it. It is the only goroutine
// that touches c.
func Loop(ctx context.Context, c *Core, in <-chan Event, do Executor, clock Clock) error {
	now, timer := clock.Now, clock.Timer(time.Hour)
	defer timer.Stop()
	var out []Effect
	var unread []Event
	step := func(at time.Time, ev Event) {
		out = c.Step(at, ev, out[:0])
		for i, e := range out {
			do.Do(e)
			out[i] = nil
		}
	}
	take := func(ev Event) (taken int) {
		switch x := ev.(type) {
		case Inspect:
			x.F(c)
			return 1
		case Several:
			at := now()
			for i, ev := range x {
				step(at, ev)
				x[i] = nil
			}
			do.Flush()
			return len(x)
		}
		step(now(), ev)
		do.Flush()
		return 1
	}
	do.Flush() // of what was restored before
	for {
		wait := time.Hour
		if d := c.Deadline(); !d.IsZero() {
			wait = max(d.Sub(now()), 0)
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case ev := <-in:
			left := most + 1 - take(ev)
			for left > 0 { // of those that have come meanwhile: none of them needs the timer
				select {
				case ev = <-in:
					left -= take(ev)
					continue
				default:
				}
				break
			}
		case <-timer.Chan():
			unread = do.Unread(unread[:0])
			for i, ev := range unread {
				step(now(), ev)
				unread[i] = nil
			}
			step(now(), Tick{})
			do.Flush()
		}
	}
}
