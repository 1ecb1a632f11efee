package testenv

import (
	"context"
	"sync"
	"time"
)

// Deadline is a context whose deadline passes when the test says so. A test of what a call does at its deadline needs
// no short one, which passes before the call begins on a busy machine.
type Deadline struct {
	context.Context

	onWait bool
	once   sync.Once
	done   chan struct{}
}

// NewDeadline makes a context whose deadline passes with Pass. It does not end with its parent.
func NewDeadline(parent context.Context) *Deadline {
	return &Deadline{Context: parent, done: make(chan struct{})}
}

// DeadlineOnWait makes a context whose deadline passes as soon as somebody waits for it: asks for Done.
func DeadlineOnWait(parent context.Context) *Deadline {
	d := NewDeadline(parent)
	d.onWait = true
	return d
}

// Pass lets the deadline pass.
func (d *Deadline) Pass() { d.once.Do(func() { close(d.done) }) }

// Deadline returns an hour from now: nothing may end earlier than with Pass.
func (d *Deadline) Deadline() (time.Time, bool) { return time.Now().Add(time.Hour), true }

// Done implements context.Context.
func (d *Deadline) Done() <-chan struct{} {
	if d.onWait {
		d.Pass()
	}
	return d.done
}

// Err is nil until the deadline has passed, then context.DeadlineExceeded.
func (d *Deadline) Err() error {
	select {
	case <-d.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}
