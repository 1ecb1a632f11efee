package coordinator

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"larder/dsa"
	"larder/internal/clock"
	"larder/internal/ident"
	"larder/jobs"
)

// bubble is the clock of synctest: all tests of this file run in bubbles, where its time is virtual.
var bubble = Clock{Now: clock.Real().Now, Timer: func(d time.Duration) Timer { return clock.Real().NewTimer(d) }}

// worker is an Executor whose work takes time and is answered by events, as the real one's.
type worker struct {
	events chan Event
	prep   time.Duration

	mu      sync.Mutex
	replies map[Token]chan Reply
	got     chan Deliver
	ended   []ident.JobID
	closed  []time.Time // when ranks were closed
	unread  func() []Event
	flush   func()
}

func (w *worker) later(d time.Duration, ev Event) {
	go func() {
		<-bubble.Timer(d).Chan()
		w.events <- ev
	}()
}

// rest waits until nothing is under way. No sync.WaitGroup: the loop adds work while a test waits, which it forbids.
func (w *worker) rest() {
	time.Sleep(time.Second)
	synctest.Wait()
}

func (w *worker) Unread(dst []Event) []Event {
	if w.unread == nil {
		return dst
	}
	return append(dst, w.unread()...)
}

func (w *worker) Flush() {
	if w.flush != nil {
		w.flush()
	}
}

func (w *worker) Do(e Effect) {
	switch x := e.(type) {
	case Prepare:
		w.later(w.prep, Prepared{Flight: x.Flight, Kept: x.Keep, Bytes: sampleBytes, Read: 100})
	case *Fill:
		w.later(time.Millisecond, Filled{Delivery: x.Delivery, Row: x.Row})
	case Persist:
		w.later(time.Microsecond, Persisted{Seq: x.Seq})
	case Reply:
		w.mu.Lock()
		defer w.mu.Unlock()
		w.replies[x.Token] <- x
	case Deliver:
		w.got <- x
	case CloseRank:
		w.mu.Lock()
		defer w.mu.Unlock()
		w.closed = append(w.closed, bubble.Now())
	case JobEnded:
		w.mu.Lock()
		defer w.mu.Unlock()
		w.ended = append(w.ended, x.Job)
	}
}

func (w *worker) ask(t *testing.T, token Token, ev Event) Reply {
	t.Helper()
	ch := make(chan Reply, 1)
	w.mu.Lock()
	w.replies[token] = ch
	w.mu.Unlock()
	w.events <- ev
	r := <-ch
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	return r
}

func TestLoopServesAnEpochTicksAndEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := New(Config{
			Seed: 1, Lease: 30 * time.Second, Bytes: func(ident.ObjectID) int64 { return 100 },
			Tiers: TierConfig{Total: 1 << 20, Sizes: [ident.NumForms]int64{ident.Decoded: 1 << 20}},
		})
		if err != nil {
			t.Fatal(err)
		}
		w := &worker{events: make(chan Event), prep: 10 * time.Millisecond, replies: map[Token]chan Reply{},
			got: make(chan Deliver, 99)}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- Loop(ctx, c, w.events, w, bubble) }()

		e := registration(1, "a", 0, 12, 4, func(e *Register) { e.Sample.Mode = dsa.Stratified })
		id := w.ask(t, 1, e).Job
		inc := w.ask(t, 2, Attach{Token: 2, Job: id}).Inc
		w.ask(t, 3, StartEpoch{Token: 3, Job: id, Inc: inc})
		rows := 0
		for range 3 {
			d := <-w.got
			rows += len(d.Rows)
			w.events <- Released{Job: id, Inc: inc, Slot: d.Slot, Gen: d.Gen}
		}
		if rows != 12 {
			t.Errorf("%d rows", rows)
		}
		// A vanished client: no event arrives, the loop ticks by itself when the lease runs out.
		gone := bubble.Now()
		w.events <- Detached{Job: id, Inc: inc}
		synctest.Wait()
		time.Sleep(31 * time.Second)
		synctest.Wait()
		w.mu.Lock()
		if len(w.ended) != 1 || bubble.Now().Sub(gone) < 30*time.Second {
			t.Errorf("ended: %v", w.ended)
		}
		w.mu.Unlock()
		seen := make(chan jobs.Job, 1)
		w.events <- Inspect{F: func(c *Core) { v, _ := c.JobByID(id); seen <- v }}
		if v := <-seen; v.State != jobs.Dead || v.Stats.Samples != 12 {
			t.Errorf("%s, %d samples", v.State, v.Stats.Samples)
		}
		w.rest()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("the loop ended with %v", err)
		}
		if err := c.Check(); err != nil {
			t.Error(err)
		}
	})
}

// A client that gives slots back in memory, and says nothing, is not silent: what it gave back is read before a
// decision by time, and counts from when it gave it back.
func TestWhatIsUnreadCountsBeforeATick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := New(Config{
			Seed: 1, Lease: time.Hour, IdleTimeout: time.Minute, Bytes: func(ident.ObjectID) int64 { return 100 },
			Tiers: TierConfig{Total: 1 << 20, Sizes: [ident.NumForms]int64{ident.Decoded: 1 << 20}},
		})
		if err != nil {
			t.Fatal(err)
		}
		w := &worker{events: make(chan Event), replies: map[Token]chan Reply{}, got: make(chan Deliver, 99)}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var given atomic.Pointer[Released] // the client's word
		var at time.Time
		w.unread = func() []Event {
			ev := given.Swap(nil)
			if ev == nil {
				return nil
			}
			ev.Ago = bubble.Now().Sub(at)
			return []Event{*ev}
		}
		done := make(chan error, 1)
		go func() { done <- Loop(ctx, c, w.events, w, bubble) }()
		e := registration(1, "a", 0, 12, 4, func(e *Register) { e.Sample.Mode = dsa.Stratified })
		id := w.ask(t, 1, e).Job
		inc := w.ask(t, 2, Attach{Token: 2, Job: id}).Inc
		w.ask(t, 3, StartEpoch{Token: 3, Job: id, Inc: inc})
		d := <-w.got
		w.rest()
		time.Sleep(49 * time.Second)
		at = bubble.Now()
		given.Store(&Released{Job: id, Inc: inc, Slot: d.Slot, Gen: d.Gen})
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		w.mu.Lock()
		if len(w.closed) != 1 || w.closed[0].Sub(at) != time.Minute {
			t.Errorf("the rank was given up at %v, a minute after %v would be right", w.closed, at)
		}
		w.mu.Unlock()
		cancel()
		<-done
	})
}

// The needs of what is resident are recomputed in slices between events: the loop must finish that by itself, and then
// rest.
func TestLoopRestsWhenNothingIsToDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := New(Config{
			Seed: 1, Bytes: func(ident.ObjectID) int64 { return 1 },
			Tiers: TierConfig{Total: 1 << 30, Sizes: [ident.NumForms]int64{ident.Decoded: 1 << 30}},
		})
		if err != nil {
			t.Fatal(err)
		}
		w := &worker{events: make(chan Event), replies: map[Token]chan Reply{}, got: make(chan Deliver, 99)}
		ctx, cancel := context.WithCancel(t.Context())
		var ticks atomic.Int64
		done := make(chan error, 1)
		go func() {
			looked := bubble
			looked.Now = func() time.Time { ticks.Add(1); return bubble.Now() }
			done <- Loop(ctx, c, w.events, w, looked)
		}()
		id := w.ask(t, 1, registration(1, "a", 0, 3*refreshPerStep, 512, func(e *Register) { e.Spec.Slots = 4 })).Job
		inc := w.ask(t, 2, Attach{Token: 2, Job: id}).Inc
		w.ask(t, 3, StartEpoch{Token: 3, Job: id, Inc: inc})
		for range 3 {
			<-w.got
		}
		w.rest()
		w.events <- Detached{Job: id, Inc: inc} // starts a refresh of three slices
		time.Sleep(time.Millisecond)
		synctest.Wait()
		before := ticks.Load()
		time.Sleep(time.Second)
		synctest.Wait()
		if n := ticks.Load() - before; n != 0 {
			t.Errorf("the loop looked at the clock %d times in an idle second", n)
		}
		if c.needs.refresh.phase != refreshNone {
			t.Error("the refresh was not finished")
		}
		cancel()
		<-done
	})
}

// Events that come at once are steps of their own, in order; Flush follows what they all asked for.
func TestLoopTakesSeveralEventsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := New(Config{Seed: 1, Bytes: func(ident.ObjectID) int64 { return 100 }})
		if err != nil {
			t.Fatal(err)
		}
		flushed := 0
		w := &worker{events: make(chan Event), replies: map[Token]chan Reply{}, got: make(chan Deliver, 99)}
		w.flush = func() { flushed++ }
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- Loop(ctx, c, w.events, w, bubble) }()
		synctest.Wait()
		before := flushed
		var all Several
		var answers []chan Reply
		w.mu.Lock()
		for i := range 3 {
			ch := make(chan Reply, 1)
			w.replies[Token(1+i)] = ch
			answers = append(answers, ch)
			all = append(all, registration(Token(1+i), string(rune('a'+i)), 0, 12, 4, func(e *Register) {}))
		}
		w.mu.Unlock()
		w.events <- all
		for i, ch := range answers {
			if r := <-ch; r.Err != nil || r.Job != ident.JobID(1+i) {
				t.Errorf("event %d was answered by %+v", i, r)
			}
		}
		synctest.Wait()
		n := 0
		for _, ev := range all {
			if ev != nil {
				n++
			}
		}
		records := flushed - before // each job's record becomes durable by an event of its own
		if n != 0 || records != 1+3 {
			t.Errorf("%d events are kept, %d flushes for one event of several and 3 others", n, records)
		}
		cancel()
		<-done
	})
}
