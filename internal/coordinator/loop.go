package coordinator

import (
	"context"
	"time"
)

// Executor carries effects out. Its methods must not block and must not call back into the loop.
type Executor interface {
	// Do carries out one effect; results come as events.
	Do(Effect)
	// Unread appends events that have happened and that nobody has sent yet. They are taken before a Tick, because a
	// decision by time must not miss what a client did before that time.
	Unread(dst []Event) []Event
}

// Inspect runs F in the loop's goroutine between two steps: for status, never to change anything.
type Inspect struct{ F func(*Core) }

func (Inspect) isEvent() {}

// most is how many more events are taken before it is looked whether it is time for a Tick.
const most = 63

// Loop owns c until ctx ends: it takes events in order, and ticks when the core asks for it. It is the only goroutine
// that touches c. now is the clock; tests pass their own.
func Loop(ctx context.Context, c *Core, in <-chan Event, do Executor, now func() time.Time) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var out []Effect
	var unread []Event
	step := func(ev Event) {
		out = c.Step(now(), ev, out[:0])
		for i, e := range out {
			do.Do(e)
			out[i] = nil
		}
	}
	take := func(ev Event) {
		if i, ok := ev.(Inspect); ok {
			i.F(c)
		} else {
			step(ev)
		}
	}
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
			take(ev)
			for range most { // of those that have come meanwhile: none of them needs the timer
				select {
				case ev = <-in:
					take(ev)
					continue
				default:
				}
				break
			}
		case <-timer.C:
			unread = do.Unread(unread[:0])
			for i, ev := range unread {
				step(ev)
				unread[i] = nil
			}
			step(Tick{})
		}
	}
}
