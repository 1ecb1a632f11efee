package engine_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"larder/client"
	"larder/internal/engine"
	"larder/internal/errs"
	"larder/internal/journal"
	"larder/internal/testenv"
	larderv1 "larder/proto/larder/v1"
)

func TestARankIsHeldByOneClient(t *testing.T) {
	dir := folder(t, 20)
	w := serve(t)
	tr := w.train(spec("a", dir, 4), 0)
	_, err := w.dial().Attach(t.Context(), &larderv1.AttachRequest{Job: "a"})
	if reasonOf(err) != errs.RankHeld || !strings.Contains(err.Error(), fmt.Sprintf("pid %d", os.Getpid())) {
		t.Errorf("%v", err)
	}
	if _, err = w.dial().Attach(t.Context(), &larderv1.AttachRequest{Job: "a", Rank: 1}); reasonOf(err) != errs.Invalid {
		t.Errorf("%v", err)
	}
	if w.engine.Attached() != 1 {
		t.Errorf("%d are attached", w.engine.Attached())
	}
	tr.detach()
}

// slowLog holds back what becomes durable while it is slow.
type slowLog struct {
	journal.Log
	mu      sync.Mutex
	slow    bool
	waiting []func()
}

func (l *slowLog) Append(rec journal.Record, done func(error)) uint64 {
	return l.Log.Append(rec, func(err error) {
		l.mu.Lock()
		slow := l.slow
		if slow {
			l.waiting = append(l.waiting, func() { done(err) })
		}
		l.mu.Unlock()
		if !slow && done != nil {
			done(err)
		}
	})
}

func (l *slowLog) held() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.waiting)
}

func (l *slowLog) set(slow bool) {
	l.mu.Lock()
	l.slow = slow
	for _, f := range l.waiting {
		f()
	}
	l.waiting = nil
	l.mu.Unlock()
}

// A connection ends after its client was given a rank and before that is durable. The client comes again by another one
// in that moment: it is not refused because of itself.
func TestAClientIsNeverRefusedBecauseOfItself(t *testing.T) {
	dir, log := folder(t, 20), &slowLog{}
	w := serve(t, func(c *engine.Config) { log.Log, c.Journal.Log = c.Journal.Log, log })
	first := w.dial()
	if _, err := register(first, spec("a", dir, 4)); err != nil {
		t.Fatal(err)
	}
	log.set(true)
	var asked sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	asked.Go(func() { _, _ = first.Attach(ctx, &larderv1.AttachRequest{Job: "a", Client: "me"}) })
	eventually(t, "the rank is given, and not yet durable", func() bool { return log.held() > 0 })
	cancel()
	_ = first.Close()
	var st *client.Stream
	var err error
	var returned atomic.Bool
	second := w.dial()
	asked.Go(func() {
		st, err = second.Attach(t.Context(), &larderv1.AttachRequest{Job: "a", Client: "me"})
		returned.Store(true)
	})
	eventually(t, "the client waits for itself, or is answered", func() bool {
		waiting, _ := testenv.Parked("ring.(*Set).Claim")
		return waiting == 1 || returned.Load()
	})
	log.set(false)
	asked.Wait()
	if err != nil {
		t.Fatal(err)
	}
	tr := &trainer{t: t, conn: second, st: st}
	exactly(t, "the epoch", tr.must(st.Info().GetNextEpoch()).ids, all(20))
	tr.detach()
}

// A client holds every batch of its ring, and Next waits: a slot that another goroutine gives back then, which nobody
// has told the daemon of before, brings the next batch. What it waited is counted.
func TestASlotGivenBackWhileNextWaits(t *testing.T) {
	const n = 80
	w := serve(t)
	tr := w.train(spec("a", folder(t, n), 4, recipe(crops...)), 0)
	if tr.st.Info().GetReleases() == 0 {
		t.Fatal("the ring has no release words")
	}
	waits, waited := 0, time.Duration(0) // of Next, at least
	for epoch := range uint32(2) {
		if err := tr.st.StartEpoch(t.Context(), epoch); err != nil {
			t.Fatal(err)
		}
		s, held := newSeen(), []*client.Batch(nil)
		for {
			var back sync.WaitGroup
			var returned atomic.Bool
			if len(held) == int(tr.st.Info().GetSlots()) {
				b := held[0]
				held = held[1:]
				back.Go(func() {
					waiting := 0
					eventually(t, "Next waits, or returns", func() bool {
						waiting, _ = testenv.Parked("client.(*Stream).Next")
						return waiting == 1 || returned.Load()
					})
					begun := time.Now()
					runtime.Gosched()
					if waiting == 1 {
						waits++
						waited += time.Since(begun)
					}
					b.Release()
				})
			}
			b, err := tr.st.Next(t.Context())
			returned.Store(true)
			back.Wait()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			tr.take(b, s)
			held = append(held, b)
		}
		exactly(t, "the epoch", s.ids, all(n))
		for _, b := range held {
			b.Release()
		}
	}
	tr.detach()
	if got := w.stats().GetTotals().GetWaitSeconds(); waits < 2*16 || got < waited.Seconds() {
		t.Errorf("Next waited %d times, for more than %v: %v s are counted", waits, waited, got)
	}
}

func TestKillTellsTheClient(t *testing.T) {
	dir := folder(t, 40)
	w := serve(t)
	tr := w.train(spec("a", dir, 4, recipe(crops...)), 0)
	if err := tr.st.StartEpoch(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := w.engine.KillJob(t.Context(), &larderv1.KillJobRequest{Name: "a"}); err != nil {
		t.Fatal(err)
	}
	var err error
	for range 100 {
		var b *client.Batch
		if b, err = tr.st.Next(t.Context()); err != nil {
			break
		}
		b.Release()
	}
	if reasonOf(err) != errs.JobEnded || !strings.Contains(err.Error(), "killed") {
		t.Errorf("%v", err)
	}
	if w.engine.Attached() != 0 {
		t.Error("its ring is still there")
	}
}

func TestDrainLetsRunningEpochsEnd(t *testing.T) {
	const n = 40
	dir := folder(t, n)
	w := serve(t)
	a, idle := w.train(spec("a", dir, 4, recipe(crops...)), 0), w.train(spec("idle", dir, 4), 0)
	if err := a.st.StartEpoch(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	b, err := a.st.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := slices.Clone(b.Index())
	drained := make(chan error, 1)
	go func() { drained <- w.engine.Drain(t.Context()) }()
	describe := func(name string) *larderv1.Job {
		j, err := w.engine.DescribeJob(t.Context(), &larderv1.DescribeJobRequest{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		return j.GetJob()
	}
	eventually(t, "both jobs are drained", func() bool {
		return describe("idle").GetState() == larderv1.JobState_JOB_STATE_DONE && len(describe("a").GetNotes()) > 0
	})
	if _, err := idle.st.Next(t.Context()); err == nil || idle.st.StartEpoch(t.Context(), 0) == nil {
		t.Error("a client without an epoch began one")
	}
	if _, err := register(w.dial(), spec("late", dir, 4)); reasonOf(err) != errs.Unavailable {
		t.Errorf("a new job: %v", err)
	}
	if _, err := w.dial().Attach(t.Context(), &larderv1.AttachRequest{Job: "idle"}); reasonOf(err) != errs.Unavailable {
		t.Errorf("a new attachment: %v", err)
	}
	select {
	case err := <-drained:
		t.Fatalf("drained in the middle of an epoch: %v", err)
	default:
	}
	b.Release()
	got = append(got, a.rest(t)...)
	exactly(t, "the running epoch", got, all(n))
	if !a.st.End().GetFinal() {
		t.Error("the client did not hear that it is the last one")
	}
	if err := <-drained; err != nil {
		t.Error(err)
	}
	if err := a.st.StartEpoch(t.Context(), 1); reasonOf(err) != errs.JobEnded {
		t.Errorf("another epoch: %v", err)
	}
}

func TestALongJobOutlivesManyShortOnes(t *testing.T) {
	const n = 12
	dir := folder(t, n)
	w := serve(t)
	long := w.train(spec("long", dir, 4, recipe(crops...)), 0)
	exactly(t, "before", long.must(0).ids, all(n))
	c := w.dial()
	for i := range 300 {
		name := fmt.Sprint("short", i)
		if _, err := register(c, spec(name, dir, 4)); err != nil {
			t.Fatal(err)
		}
		if _, err := w.engine.KillJob(t.Context(), &larderv1.KillJobRequest{Name: name}); err != nil {
			t.Fatal(err)
		}
	}
	s := long.must(1)
	exactly(t, "after", s.ids, all(n))
	if len(s.bad) != 0 {
		t.Errorf("%v", s.bad)
	}
	if _, err := w.engine.DescribeJob(t.Context(), &larderv1.DescribeJobRequest{Name: "long"}); err != nil {
		t.Error(err)
	}
	if _, err := w.engine.DescribeJob(t.Context(),
		&larderv1.DescribeJobRequest{Name: "short0"}); reasonOf(err) != errs.NotFound {
		t.Errorf("the oldest is still known: %v", err)
	}
	long.detach()
}

// looked is a context that ends when it was looked at so many times.
type looked struct {
	context.Context
	end    context.CancelFunc
	left   atomic.Int64
	beside bool // it ends in another goroutine, while the one that looked continues
}

// givenUp returns a context that ends at one of the moments at which a request may be given up: the i-th of them.
func givenUp(ctx context.Context, i int) (context.Context, context.CancelFunc) {
	out := &looked{beside: i%2 == 1}
	out.Context, out.end = context.WithCancel(ctx)
	if out.left.Store(int64(i / 2)); i < 2 {
		out.end()
	}
	return out, out.end
}

func (c *looked) look() {
	switch {
	case c.left.Add(-1) != 0:
	case c.beside:
		go c.end()
	default:
		c.end()
	}
}

func (c *looked) Done() <-chan struct{} { c.look(); return c.Context.Done() }

func (c *looked) Err() error { c.look(); return c.Context.Err() }

func TestRequestsThatAreGivenUpLeaveNothingHalf(t *testing.T) {
	dir := folder(t, 20)
	w := serve(t)
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error { // an old folder is not walked again
		return errors.Join(err, os.Chtimes(path, time.Unix(1e9, 0), time.Unix(1e9, 0)))
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := register(w.dial(), spec("first", dir, 4)); err != nil {
		t.Fatal(err)
	}
	for i := range 40 {
		ctx, cancel := givenUp(t.Context(), i)
		s := spec("a", dir, 4)
		_, _ = w.engine.RegisterJob(ctx, &larderv1.RegisterJobRequest{Spec: s})
		cancel()
	}
	tr := w.train(spec("a", dir, 4), 0) // the name can be used again
	tr.detach()
	if _, err := register(w.dial(), spec("b", dir, 4)); err != nil {
		t.Fatal(err)
	}
	for i := range 30 {
		c, err := client.Dial(t.Context(), w.socket)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := givenUp(t.Context(), i)
		_, _ = c.Attach(ctx, &larderv1.AttachRequest{Job: "b"})
		cancel()
		_ = c.Close()
	}
	c := w.dial()
	var st *client.Stream
	eventually(t, "the rank is free", func() (ok bool) {
		var err error
		if st, err = c.Attach(t.Context(), &larderv1.AttachRequest{Job: "b"}); err != nil && reasonOf(err) != errs.RankHeld {
			t.Fatal(err)
		}
		return err == nil
	})
	tr = &trainer{t: t, conn: c, st: st}
	exactly(t, "b", tr.must(tr.st.Info().GetNextEpoch()).ids, all(20))
	tr.detach()
}

func TestKillDuringAttachLeavesNoRing(t *testing.T) {
	dir := folder(t, 20)
	w := serve(t)
	for i := range 40 {
		s := spec(fmt.Sprint("j", i), dir, 4)
		c := w.dial()
		if _, err := register(c, s); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			if st, err := c.Attach(context.Background(), &larderv1.AttachRequest{Job: s.GetName()}); err == nil {
				if err := st.StartEpoch(context.Background(), 0); err == nil {
					var b *client.Batch
					for b, err = st.Next(context.Background()); err == nil; b, err = st.Next(context.Background()) {
						b.Release()
					}
				}
			}
		})
		_, _ = w.engine.KillJob(t.Context(), &larderv1.KillJobRequest{Name: s.GetName()})
		wg.Wait()
	}
	eventually(t, "no ring is left", func() bool { return w.engine.Attached() == 0 })
}
