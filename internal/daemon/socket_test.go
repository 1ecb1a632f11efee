package daemon_test

import (
	"os"
	"testing"
	"time"

	"larder/internal/clock"
	"larder/internal/daemon"
)

// looks is a clock whose looks at the socket a test makes.
type looks struct {
	clock.Clock
	now chan time.Time
}

type look struct{ now chan time.Time }

func (l looks) NewTimer(d time.Duration) clock.Timer {
	if d != daemon.LookAtSocket {
		return l.Clock.NewTimer(d)
	}
	return look{l.now}
}

func (l look) Chan() <-chan time.Time   { return l.now }
func (l look) Stop() bool               { return true }
func (l look) Reset(time.Duration) bool { return true }

// Somebody removes the folder of the socket: clients that are connected notice nothing, and new ones find the daemon.
func TestANewClientFindsADaemonWhoseSocketWasRemoved(t *testing.T) {
	h := newHome(t, "")
	c := looks{clock.Real(), make(chan time.Time)}
	h.clock = c
	d, ended := h.open(daemon.ServeOptions{})
	_, before := h.job("before")
	if err := os.Remove(d.Socket()); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(d.Socket() + ".lock"); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second one is taken when the first look is over
		c.now <- time.Now()
	}
	_, after := h.job("after")
	if a, b := h.take(before), h.take(after); a != b || a == 0 {
		t.Errorf("%d and %d samples", a, b)
	}
	h.signals <- os.Interrupt
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
