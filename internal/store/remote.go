package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"larder/internal/clock"
	"larder/internal/errs"
	"larder/internal/xrand"
)

const (
	// partSize is the longest read that is one request.
	partSize = 8 << 20
	// firstContact bounds the tries at a place that has never answered: its address is wrong more often than it is down.
	firstContact = 5 * time.Second
	// The wait before the n-th try again is drawn from the upper half of what doubles from leastWait to mostWait.
	leastWait = 100 * time.Millisecond
	mostWait  = 10 * time.Second
	// Retries are free while they are few: a tenth of all requests, and two a second.
	retryEach, retryRate, retryMost = 0.1, 2, 50
	// hedgeMost is how many second requests a calm may save up.
	hedgeMost = 10
	// quiet is the least time between two log lines about failures of a place.
	quiet = 10 * time.Second
)

// remote is a Store over a network: it gives a backend's single requests the manners that doc.go names.
type remote struct {
	name  string
	b     backend
	set   Settings
	count *counters
	log   *slog.Logger
	clock clock.Clock // of tries; what measures latency keeps the real one

	piece   int64         // bytes that are written in one request
	slots   chan struct{} // requests under way
	retries *budget
	hedges  *budget
	latency latency
	reached atomic.Bool // it has answered once

	mu     sync.Mutex // guards what follows
	rand   *xrand.Rand
	logged time.Time
}

func newRemote(name string, b backend, s Settings, c *counters, log *slog.Logger,
	clk clock.Clock) *remote {
	now := clk.Now()
	return &remote{
		name: name, b: b, set: s, count: c, log: log, clock: clk, piece: pieceSize,
		slots:   make(chan struct{}, s.Parallel),
		retries: newBudget(retryEach, retryRate, retryMost, now), hedges: newBudget(s.Hedge, 0, hedgeMost, now),
		rand: xrand.New(uint64(now.UnixNano())), // jitter alone depends on it
	}
}

// Name implements Store.
func (r *remote) Name() string { return r.name }

// Counters returns what the store has cost.
func (r *remote) Counters() Counters { return r.count.read(r.name, r.set) }

// Stat implements Store.
func (r *remote) Stat(ctx context.Context, key string) (in Info, err error) {
	if err := checkKey(r.name, key); err != nil {
		return Info{}, err
	}
	err = r.again(ctx, "look at", key, func(w *watcher) error {
		in, err = r.b.stat(w.ctx, key)
		return err
	})
	return in, err
}

// List implements Store. Each page is tried again by itself, from the last key on.
func (r *remote) List(ctx context.Context, prefix string, f func(Info) error) error {
	after, shown := "", prefix
	for {
		var page []Info
		more := false
		err := r.again(ctx, "list", shown, func(w *watcher) (err error) {
			page, more, err = r.b.list(w.ctx, prefix, after)
			return err
		})
		if err != nil {
			return err
		}
		for _, in := range page {
			if in.Key <= after {
				return errs.New(errs.Unsupported, r.name, "use a bucket of another kind (S3 directory buckets list so)",
					"list %s: it lists %q after %q, and larder needs lists in the order of keys", r.name, printable(in.Key),
					printable(after))
			}
			after = in.Key
			if err := f(in); err != nil {
				return err
			}
		}
		if !more {
			return nil
		}
	}
}

// Folder implements Store. It is tried again as a whole.
func (r *remote) Folder(ctx context.Context, prefix string, f func(Info) error) (folders []string, err error) {
	var objects []Info
	err = r.again(ctx, "list", prefix, func(w *watcher) (err error) {
		objects, folders, err = r.b.folder(w.ctx, prefix, w.alive)
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, in := range objects {
		if err := f(in); err != nil {
			return nil, err
		}
	}
	return folders, nil
}

// ReadRange implements Store.
func (r *remote) ReadRange(ctx context.Context, in Info, off int64, buf []byte) (int, error) {
	if off < 0 {
		return 0, negative(in.Key, off)
	}
	if err := checkKey(r.name, in.Key); err != nil {
		return 0, err
	}
	buf, eof := clip(in.Size, off, buf)
	if len(buf) <= partSize {
		if err := r.read(ctx, in, off, buf); err != nil {
			return 0, err
		}
		return len(buf), eof
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(r.set.Parallel)
	for from := 0; from < len(buf); from += partSize {
		g.Go(func() error { return r.read(ctx, in, off+int64(from), buf[from:min(len(buf), from+partSize)]) })
	}
	if err := g.Wait(); err != nil {
		return 0, err
	}
	return len(buf), eof
}

// read fills buf. A try goes on where the one before it was cut, unless the version is not known.
func (r *remote) read(ctx context.Context, in Info, off int64, buf []byte) error {
	if len(buf) == 0 {
		return ctx.Err()
	}
	done := 0
	return r.again(ctx, "read", in.Key, func(w *watcher) error {
		if in.Version == 0 {
			done = 0
		}
		n, err := r.request(w, in, off+int64(done), buf[done:])
		done += n
		return err
	})
}

// again calls f until it succeeds, its failure is final, or the time for it is over. It holds a slot while f runs.
func (r *remote) again(ctx context.Context, verb, key string, f func(*watcher) error) error {
	var failing time.Time // since when
	renewed := false
	for tries := 1; ; tries++ {
		err := r.once(ctx, f)
		if err == nil {
			r.reached.Store(true)
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%s %s: %w", verb, shownKey(r.name, key), context.Cause(ctx))
		}
		now := r.clock.Now()
		if failing.IsZero() {
			failing = now
		}
		if e, ok := errors.AsType[*errs.Error](err); ok {
			return e
		}
		fail := failureOf(err)
		wait := time.Duration(0)
		switch fail.kind {
		case passing, slowing:
			wait = max(r.backoff(tries), min(fail.after, mostWait), r.retries.borrow(now))
			limit := r.set.RetryFor
			if !r.reached.Load() {
				limit = min(limit, firstContact)
			}
			if now.Add(wait).Sub(failing) > limit {
				return r.report(verb, key, fail, tries, now.Sub(failing))
			}
		case expired:
			if renewed || !r.b.renew() {
				return r.report(verb, key, fail, tries, 0)
			}
			renewed = true
		case missing, altered, final:
			return r.report(verb, key, fail, tries, 0)
		}
		r.count.retries.Add(1)
		r.note(verb, key, fail, wait)
		if err := clock.Sleep(ctx, r.clock, wait); err != nil {
			return fmt.Errorf("%s %s: %w", verb, shownKey(r.name, key), err)
		}
	}
}

func (r *remote) once(ctx context.Context, f func(*watcher) error) error {
	select {
	case r.slots <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-r.slots }()
	r.retries.earn()
	w := watch(ctx, r.clock, r.set.Timeout)
	defer w.stop()
	return w.cause(f(w))
}

// backoff is how long to wait after so many tries.
func (r *remote) backoff(tries int) time.Duration {
	top := min(mostWait, leastWait<<min(tries-1, 20))
	r.mu.Lock()
	defer r.mu.Unlock()
	return top/2 + time.Duration(r.rand.Float64()*float64(top/2))
}

// note logs that a place fails, and not more often than is useful.
func (r *remote) note(verb, key string, f *failure, wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := time.Now(); r.logged.IsZero() || now.Sub(r.logged) >= quiet {
		r.logged = now
		r.log.Warn("a store fails, and is tried again", "store", r.name, "what", verb+" "+printable(key),
			"error", f.Error(), "again_in", wait, "retries", r.count.retries.Load())
	}
}

// report makes the error that a user sees.
func (r *remote) report(verb, key string, f *failure, tries int, during time.Duration) error {
	r.count.errors.Add(1)
	shown := shownKey(r.name, key)
	if f.kind == altered {
		return changed(r.name, key, f.Error())
	}
	hint := f.hint
	if hint == "" {
		hint = "check " + r.name + " and the network; docs/stores.md lists what can be wrong"
	}
	what := fmt.Sprintf("%s %s", verb, shown)
	if tries > 1 && during > 0 {
		what += fmt.Sprintf(": %d tries in %v", tries, during.Round(time.Millisecond))
	}
	return errs.New(errs.DatasetUnread, shown, hint, "%s", what).Because(f)
}

// request is one request for a range, with a second one beside it where it is slow. n bytes of buf are right, also with
// an error.
func (r *remote) request(w *watcher, in Info, off int64, buf []byte) (n int, err error) {
	a := r.open(w.ctx, in, off, int64(len(buf)))
	if a.err != nil {
		return 0, a.err
	}
	defer a.cancel()
	defer a.body.Close()
	if err := sameVersion(in, a.got); err != nil {
		return 0, err
	}
	for n < len(buf) {
		m, err := a.body.Read(buf[n:])
		n += m
		if m > 0 {
			w.alive()
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF) && n < len(buf):
			return n, &failure{kind: passing, what: fmt.Sprintf("the answer ended after %d of %d bytes", n, len(buf))}
		case !errors.Is(err, io.EOF):
			return n, &failure{kind: passing, what: fmt.Sprintf("the answer was cut after %d of %d bytes", n, len(buf)),
				cause: plain(err)}
		}
	}
	if a.got.Size < 0 { // it does not say how long it is, so it may be longer than what was asked for
		if m, _ := io.ReadFull(a.body, make([]byte, 1)); m > 0 {
			return 0, &failure{kind: altered, what: "it is longer now"}
		}
	}
	return n, nil
}

// sameVersion compares an answer with what was listed.
func sameVersion(in, got Info) error {
	switch {
	case got.Size >= 0 && got.Size != in.Size:
		return &failure{kind: altered, what: fmt.Sprintf("it had %d bytes, now %d", in.Size, got.Size)}
	case in.Version != 0 && got.Version != in.Version:
		return &failure{kind: altered, what: "it was written again"}
	}
	return nil
}

// answer is a request that was answered, or failed.
type answer struct {
	got    Info
	body   io.ReadCloser
	err    error
	cancel context.CancelFunc // ends its body too
	nth    int                // of those that were sent
}

// open sends a request, and another one when it is slow and there is budget and a slot for that. The first answer that
// is no failure counts.
func (r *remote) open(ctx context.Context, in Info, off, n int64) answer {
	answers := make(chan answer, 2) // nobody waits to send
	var cancels []context.CancelFunc
	send := func(done func()) {
		c, cancel := context.WithCancel(ctx)
		nth := len(cancels)
		cancels = append(cancels, cancel)
		go func() {
			defer done()
			got, body, err := r.b.get(c, in, off, n)
			answers <- answer{got, body, err, cancel, nth}
		}()
	}
	begun := time.Now()
	second := begun // when the second one was sent
	r.hedges.earn()
	send(func() {})
	var late <-chan time.Time
	if d := r.latency.late(); d > 0 && r.set.Hedge > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		late = t.C
	}
	var failed answer
	for pending := 1; ; {
		select {
		case a := <-answers:
			pending--
			switch {
			case a.err == nil:
				now := time.Now()
				r.latency.add(now.Sub(begun)) // of the first: it took this long, or longer
				if a.nth > 0 {
					r.latency.add(now.Sub(second))
				}
				if pending > 0 {
					cancels[1-a.nth]()
					go discard(answers)
				}
				return a
			case failed.err == nil || failureOf(failed.err).kind == passing:
				failed = a
			}
			a.cancel()
			if pending == 0 {
				return failed
			}
		case <-late:
			if done, ok := r.second(); ok {
				second = time.Now()
				send(done)
				pending++
			}
		}
	}
}

// second takes what a second request needs, if it is there: budget and a slot, which done gives back.
func (r *remote) second() (done func(), ok bool) {
	select {
	case r.slots <- struct{}{}:
	default:
		return nil, false
	}
	if !r.hedges.spend(r.clock.Now()) {
		<-r.slots
		return nil, false
	}
	r.count.hedges.Add(1)
	return func() { <-r.slots }, true
}

// discard takes the answer that came too late.
func discard(answers <-chan answer) {
	if a := <-answers; a.err == nil {
		a.body.Close()
	}
}
