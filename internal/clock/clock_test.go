package clock_test

import (
	"context"
	"errors"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"larder/internal/clock"
	"larder/internal/clock/stepped"
)

var begin = time.Unix(1e9, 0)

// each runs a test on the stepped clock, and on the real one in a bubble where its time is fake.
func each(t *testing.T, f func(t *testing.T, c clock.Clock, pass func(time.Duration))) {
	t.Run("stepped", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := stepped.New(begin)
			f(t, c, func(d time.Duration) { c.Advance(d); synctest.Wait() })
		})
	})
	t.Run("real", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f(t, clock.Real(), func(d time.Duration) { time.Sleep(d); synctest.Wait() })
		})
	})
}

func TestTimersFireWhenTheirTimeHasCome(t *testing.T) {
	each(t, func(t *testing.T, c clock.Clock, pass func(time.Duration)) {
		from := c.Now()
		timer, called := c.NewTimer(time.Minute), 0
		f := c.AfterFunc(time.Minute, func() { called++ })
		received := func() bool {
			select {
			case <-timer.Chan():
				return true
			default:
				return false
			}
		}
		pass(time.Minute - 1)
		if received() || called != 0 {
			t.Error("a timer fired early")
		}
		pass(1)
		if !received() || called != 1 || c.Now().Sub(from) != time.Minute {
			t.Errorf("after its time: called %d times at %v", called, c.Now().Sub(from))
		}
		if timer.Stop() || f.Stop() {
			t.Error("what has fired was stopped")
		}
		timer.Reset(time.Second)
		f.Reset(time.Second)
		pass(2 * time.Second) // the value is not received
		timer.Reset(time.Second)
		if called != 2 || received() {
			t.Errorf("after Reset: called %d times, or an old value is received", called)
		}
		if !timer.Stop() {
			t.Error("a timer that waits was not stopped")
		}
		pass(time.Hour)
		if received() {
			t.Error("a stopped timer fired")
		}
		timer.Reset(0)
		f.Reset(-1)
		synctest.Wait()
		pass(0)
		if !received() || called != 3 {
			t.Error("what is due at once did not fire")
		}
	})
}

func TestSleepAndWithTimeout(t *testing.T) {
	each(t, func(t *testing.T, c clock.Clock, pass func(time.Duration)) {
		ctx, cancel := clock.WithTimeout(t.Context(), c, time.Minute)
		defer cancel()
		below, end := context.WithCancel(ctx)
		defer end()
		slept := make(chan error, 1)
		go func() { slept <- clock.Sleep(below, c, time.Hour) }()
		synctest.Wait()
		pass(time.Minute - 1)
		if ctx.Err() != nil || below.Err() != nil || len(slept) != 0 {
			t.Fatal("it ended early")
		}
		pass(1)
		if ctx.Err() != context.DeadlineExceeded || below.Err() != context.DeadlineExceeded || //nolint:errorlint // as is
			!errors.Is(<-slept, context.DeadlineExceeded) {
			t.Errorf("after the timeout: %v, %v", ctx.Err(), below.Err())
		}
		cancel()
		if ctx.Err() != context.DeadlineExceeded { //nolint:errorlint // as is
			t.Errorf("then canceled: %v", ctx.Err())
		}
		ctx, cancel = clock.WithTimeout(t.Context(), c, time.Minute)
		cancel()
		if <-ctx.Done(); !errors.Is(ctx.Err(), context.Canceled) {
			t.Error(ctx.Err())
		}
		above, stop := context.WithCancel(t.Context())
		ctx, cancel = clock.WithTimeout(above, c, time.Minute)
		defer cancel()
		stop()
		if <-ctx.Done(); !errors.Is(ctx.Err(), context.Canceled) {
			t.Error(ctx.Err())
		}
		go func() { slept <- clock.Sleep(t.Context(), c, time.Second) }()
		synctest.Wait()
		pass(time.Second)
		if err := <-slept; err != nil {
			t.Error(err)
		}
	})
}

// A read ends when the clock is stepped past its deadline, and not when the deadline was removed or replaced.
func TestDeadlineOfAConnection(t *testing.T) {
	c := stepped.New(begin)
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	d := clock.NewDeadline(c, a.SetReadDeadline)
	got := make(chan error)
	read := func() {
		_, err := a.Read(make([]byte, 1))
		got <- err
	}
	for range 3 {
		if err := d.In(time.Minute); err != nil {
			t.Fatal(err)
		}
		c.Advance(time.Minute - 1)
	}
	go read()
	c.Advance(1)
	if err := <-got; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after its time: %v", err)
	}
	if err := errors.Join(d.In(time.Minute), d.Off()); err != nil {
		t.Fatal(err)
	}
	c.Advance(time.Hour)
	go read()
	if _, err := b.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Errorf("without a deadline: %v", err)
	}
}

// A step returns when everything that is due has happened, in the order of its times.
func TestAStepDoesWhatIsDue(t *testing.T) {
	c := stepped.New(begin)
	var got []int
	note := func(n int) func() { return func() { got = append(got, n) } }
	c.AfterFunc(3*time.Second, note(3))
	c.AfterFunc(time.Second, note(1))
	c.AfterFunc(3*time.Second, note(4))
	c.AfterFunc(2*time.Second, func() { note(2)(); c.AfterFunc(time.Second, note(6)) })
	c.AfterFunc(5*time.Second, note(5)).Stop()
	c.Advance(4 * time.Second)
	if len(got) != 4 || got[0] != 1 || got[1] != 2 || got[2] != 3 || got[3] != 4 {
		t.Errorf("%v", got)
	}
	c.Set(begin) // it does not go back
	if c.Now() != begin.Add(4*time.Second) {
		t.Error(c.Now())
	}
	came := make(chan error, 1)
	go func() { came <- c.Await(t.Context(), 2) }()
	c.NewTimer(time.Hour)
	if err := <-came; err != nil {
		t.Error(err)
	}
	c.Advance(time.Second)
	if len(got) != 5 || got[4] != 6 {
		t.Errorf("%v", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Await(ctx, 2); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
