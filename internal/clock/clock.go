package clock

import (
	"context"
	"sync"
	"time"
)

// Clock tells the time and waits for it. Its methods are safe for concurrent use.
type Clock interface {
	Now() time.Time
	// NewTimer returns a timer that sends the time on its channel after d.
	NewTimer(d time.Duration) Timer
	// AfterFunc calls f after d, not in the goroutine that calls AfterFunc. The timer has no channel.
	AfterFunc(d time.Duration, f func()) Timer
}

// Timer is a time.Timer of a Clock. After Stop or Reset no earlier value is received.
type Timer interface {
	Chan() <-chan time.Time
	Stop() bool
	Reset(d time.Duration) bool
}

// Real returns the clock of package time.
func Real() Clock { return real{} }

// Or returns c, or the real clock where c is nil.
func Or(c Clock) Clock {
	if c == nil {
		return real{}
	}
	return c
}

type real struct{}

func (real) Now() time.Time { return time.Now() }

func (real) NewTimer(d time.Duration) Timer { return realTimer{time.NewTimer(d)} }

func (real) AfterFunc(d time.Duration, f func()) Timer { return realTimer{time.AfterFunc(d, f)} }

type realTimer struct{ *time.Timer }

func (t realTimer) Chan() <-chan time.Time { return t.C }

// Sleep waits for d. When ctx ends first, it returns ctx's cause.
func Sleep(ctx context.Context, c Clock, d time.Duration) error {
	t := c.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.Chan():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// WithTimeout is context.WithTimeout on a clock.
func WithTimeout(ctx context.Context, c Clock, d time.Duration) (context.Context, context.CancelFunc) {
	if _, ok := c.(real); ok {
		return context.WithTimeout(ctx, d)
	}
	out := &timed{Context: ctx, done: make(chan struct{})}
	unlink := context.AfterFunc(ctx, func() { out.end(ctx.Err()) })
	timer := c.AfterFunc(d, func() { out.end(context.DeadlineExceeded) })
	return out, func() {
		unlink()
		timer.Stop()
		out.end(context.Canceled)
	}
}

// timed ends with the time of a clock. It has a Done of its own, so that contexts made of it ask its Err. It reports no
// Deadline: others would compare that with the real time.
type timed struct {
	context.Context
	mu   sync.Mutex
	done chan struct{}
	err  error
}

func (c *timed) Deadline() (time.Time, bool) { return time.Time{}, false }

func (c *timed) Done() <-chan struct{} { return c.done }

func (c *timed) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

func (c *timed) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
		close(c.done)
	}
}

// Deadline ends reads, or writes, of a connection at a time of a clock.
type Deadline struct {
	clock Clock
	set   func(time.Time) error

	mu    sync.Mutex // guards what follows, which the real clock does not need
	timer Timer
	turn  int // counts In and Off, so that a timer that fires late ends nothing
}

// NewDeadline returns a Deadline that is off. set is SetReadDeadline or SetWriteDeadline of the connection.
func NewDeadline(c Clock, set func(time.Time) error) *Deadline { return &Deadline{clock: c, set: set} }

// past is a deadline that is over.
var past = time.Unix(1, 0)

// In ends what reads or writes after d. It replaces the deadline before.
func (d *Deadline) In(after time.Duration) error {
	if _, ok := d.clock.(real); ok {
		return d.set(time.Now().Add(after))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.off(); err != nil {
		return err
	}
	turn := d.turn
	d.timer = d.clock.AfterFunc(after, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.turn == turn {
			_ = d.set(past) // it fails on a closed connection only
		}
	})
	return nil
}

// Off removes the deadline.
func (d *Deadline) Off() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.off()
}

func (d *Deadline) off() error {
	d.turn++
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	return d.set(time.Time{})
}
