package daemon_test

import (
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"larder/internal/clock"
	"larder/internal/daemon"
	"larder/internal/errs"
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

// A default state folder that cannot be made costs a warning, one that was asked for the start.
func TestAStateFolderThatCannotBeMade(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", "/proc") // no user makes a folder there
	h := newHome(t, "")
	_, ended := h.open(daemon.ServeOptions{})
	_, s := h.job("a")
	if h.take(s) == 0 {
		t.Error("no batch")
	}
	h.signals <- os.Interrupt
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if !strings.Contains(h.log.String(), "nothing survives this daemon") { // the daemon does not write it any more
		t.Errorf("no warning in:\n%s", h.log.String())
	}
	h.configure("state: {dir: /proc/larder}\n")
	cfg, err := h.load("", nil)
	if err != nil {
		t.Fatal(err)
	}
	d, err := daemon.Open(daemon.Options{Config: cfg, Log: slog.New(slog.DiscardHandler), Level: new(slog.LevelVar)})
	if err == nil {
		_ = d.Close()
	}
	if f := errs.From(err); err == nil || !strings.Contains(f.Hint, "state.dir") {
		t.Errorf("%v", err)
	}
}
