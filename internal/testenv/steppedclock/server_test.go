package steppedclock_test

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"larder/internal/clock/stepped"
	"larder/internal/testenv/steppedclock"
)

// Those who follow a clock do what is due in each step; one that comes later begins with the time of the clock; one
// that goes is not waited for.
func TestFollowersStepTogether(t *testing.T) {
	s := steppedclock.Start(t)
	follow := func() *stepped.Clock {
		c, err := stepped.Follow(s.Address())
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	a, fired := follow(), 0
	s.Await(1)
	if !a.Now().Equal(s.Now()) {
		t.Errorf("it begins at %v, the test at %v", a.Now(), s.Now())
	}
	a.AfterFunc(time.Minute, func() { fired++ })
	s.Advance(time.Minute - 1)
	if fired != 0 {
		t.Error("it fired early")
	}
	s.Advance(1)
	if fired != 1 {
		t.Errorf("it fired %d times when the step was answered", fired)
	}
	b := follow()
	if !b.Now().Equal(s.Now()) {
		t.Errorf("one that comes later begins at %v, the test is at %v", b.Now(), s.Now())
	}
	raw, err := net.Dial("unix", strings.TrimPrefix(s.Address(), "unix:")) // it never answers, and goes
	if err != nil {
		t.Fatal(err)
	}
	b.AfterFunc(time.Second, func() { raw.Close() })
	s.Advance(time.Second)
	s.Await(2)
	if !a.Now().Equal(s.Now()) || !b.Now().Equal(s.Now()) {
		t.Error("they do not have the time of the test")
	}
}

func TestWhatIsNoClockIsRefused(t *testing.T) {
	other := filepath.Join(t.TempDir(), "other")
	l, err := net.Listen("unix", other)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for _, line := range []string{"now late\n", "ok 7\n", ""} {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte(line))
			c.Close()
		}
	}()
	for address, want := range map[string]string{
		"": "unix:PATH", "unix:": "unix:PATH", "tcp:1": "unix:PATH", "unix:/does/not/exist": "must listen",
	} {
		if _, err := stepped.Follow(address); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", address, err)
		}
	}
	for range 3 {
		if _, err := stepped.Follow("unix:" + other); err == nil {
			t.Error("another server is taken for a clock")
		}
	}
}
