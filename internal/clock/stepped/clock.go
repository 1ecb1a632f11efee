// Package stepped is a clock that stands still until it is told the time.
//
// A test in the process makes one with New and moves it with Advance. A daemon in a process of its own follows the
// clock of a test with Follow.
package stepped

import (
	"context"
	"slices"
	"sync"
	"time"

	"larder/internal/clock"
)

// Clock implements clock.Clock. It is safe for concurrent use.
type Clock struct {
	step sync.Mutex // held while the time moves, so that steps follow each other

	mu      sync.Mutex // guards what follows
	now     time.Time
	armed   []*timer      // in the order in which they fire
	changed chan struct{} // closed when a timer is armed or stopped
}

// New returns a clock at a time.
func New(now time.Time) *Clock { return &Clock{now: now, changed: make(chan struct{})} }

// Now implements clock.Clock.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// NewTimer implements clock.Clock.
func (c *Clock) NewTimer(d time.Duration) clock.Timer {
	t := &timer{c: c, out: make(chan time.Time, 1)}
	t.Reset(d)
	return t
}

// AfterFunc implements clock.Clock. Functions that are due run one after the other in the step that made them due.
func (c *Clock) AfterFunc(d time.Duration, f func()) clock.Timer {
	t := &timer{c: c, f: f}
	t.Reset(d)
	return t
}

// Advance moves the clock by d. See Set.
func (c *Clock) Advance(d time.Duration) { c.Set(c.Now().Add(d)) }

// Set moves the clock to a time and returns when every timer that was due has fired: its channel has the value, or its
// function has returned. A time before the clock's changes nothing.
func (c *Clock) Set(now time.Time) {
	c.step.Lock()
	defer c.step.Unlock()
	c.mu.Lock()
	if now.After(c.now) {
		c.now = now
	}
	for len(c.armed) > 0 && !c.armed[0].at.After(c.now) {
		t := c.armed[0]
		c.disarm(t)
		if t.f == nil {
			t.out <- c.now // Stop and Reset keep it empty
			continue
		}
		c.mu.Unlock()
		t.f()
		c.mu.Lock()
	}
	c.mu.Unlock()
}

// Await waits until so many timers at least wait for the time, or ctx ends: a step before that would miss them.
func (c *Clock) Await(ctx context.Context, timers int) error {
	for {
		c.mu.Lock()
		n, changed := len(c.armed), c.changed
		c.mu.Unlock()
		if n >= timers {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// arm lets t fire at its time; the lock is held.
func (c *Clock) arm(t *timer) {
	i, _ := slices.BinarySearchFunc(c.armed, t, func(x, t *timer) int {
		if x.at.After(t.at) {
			return 1
		}
		return -1 // behind those of the same time
	})
	c.armed = slices.Insert(c.armed, i, t)
	c.tell()
}

// disarm reports whether t was armed; the lock is held.
func (c *Clock) disarm(t *timer) bool {
	i := slices.Index(c.armed, t)
	if i < 0 {
		return false
	}
	c.armed = slices.Delete(c.armed, i, i+1)
	c.tell()
	return true
}

func (c *Clock) tell() {
	close(c.changed)
	c.changed = make(chan struct{})
}

type timer struct {
	c   *Clock
	at  time.Time
	f   func()         // or:
	out chan time.Time // has room for one
}

func (t *timer) Chan() <-chan time.Time { return t.out }

func (t *timer) Stop() bool {
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	return t.stop()
}

// stop reports whether the timer had not fired, or its value was not received; the lock is held.
func (t *timer) stop() bool {
	was := t.c.disarm(t)
	select {
	case <-t.out:
		was = true
	default:
	}
	return was
}

func (t *timer) Reset(d time.Duration) bool {
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	was := t.stop()
	t.at = t.c.now.Add(d)
	switch {
	case d > 0:
		t.c.arm(t)
	case t.f != nil:
		go t.f()
	default:
		t.out <- t.c.now
	}
	return was
}
