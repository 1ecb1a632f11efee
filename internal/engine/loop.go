package engine

import (
	"context"
	"sync"
	"sync/atomic"

	"larder/internal/coordinator"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/jobs"
)

// loop is the way to the coordinator, which Run's goroutine owns: events go in, and replies to requests come back. It
// is safe for concurrent use.
type loop struct {
	events  chan coordinator.Event
	done    chan struct{}           // closed when the coordinator takes no events any more
	observe func(coordinator.Event) // sees each event before the coordinator
	leaving atomic.Bool             // see Engine.Leave

	mu struct {
		sync.Mutex
		tokens map[coordinator.Token]chan coordinator.Reply
		next   coordinator.Token
	}
}

func newLoop(observe func(coordinator.Event)) *loop {
	l := &loop{
		events: make(chan coordinator.Event, 4096), // a second of rows at 4,000 images/s; workers wait when it is full
		done:   make(chan struct{}), observe: observe,
	}
	l.mu.tokens = map[coordinator.Token]chan coordinator.Reply{}
	return l
}

// send hands an event to the coordinator; false when the engine has stopped.
func (l *loop) send(ev coordinator.Event) bool {
	l.observe(ev)
	switch ev.(type) {
	case coordinator.Detached, coordinator.Registrant:
		if l.leaving.Load() {
			return true
		}
	}
	select {
	case l.events <- ev:
		return true
	case <-l.done:
		return false
	}
}

// sendAll sends events at once, in order. It takes the slice over.
func (l *loop) sendAll(all []coordinator.Event) bool {
	for _, ev := range all {
		l.observe(ev)
	}
	select {
	case l.events <- coordinator.Several(all):
		return true
	case <-l.done:
		return false
	}
}

var errStopped = errs.New(errs.Unavailable, "", "start it again: larder serve", "the daemon is stopping")

// ask sends the event that build makes around a token, and waits for its reply.
func (l *loop) ask(ctx context.Context, build func(coordinator.Token) coordinator.Event) (coordinator.Reply, error) {
	ch := make(chan coordinator.Reply, 1)
	l.mu.Lock()
	l.mu.next++
	t := l.mu.next
	l.mu.tokens[t] = ch
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		delete(l.mu.tokens, t)
		l.mu.Unlock()
	}()
	if !l.send(build(t)) {
		return coordinator.Reply{}, errStopped
	}
	select {
	case r := <-ch:
		return r, r.Err
	case <-ctx.Done():
		return coordinator.Reply{}, errs.New(errs.Unavailable, "", "try again",
			"the daemon did not answer in time").Because(ctx.Err())
	case <-l.done:
		return coordinator.Reply{}, errStopped
	}
}

// answer passes a reply to the request that waits for it.
func (l *loop) answer(r coordinator.Reply) {
	l.mu.Lock()
	ch := l.mu.tokens[r.Token]
	delete(l.mu.tokens, r.Token) // a second reply would have nowhere to go
	l.mu.Unlock()
	if ch != nil {
		ch <- r
	}
}

// inspect runs f in the loop between two steps. f may still run after the caller has given up waiting: it must share
// nothing with the caller that the caller continues to use.
func inspect[T any](ctx context.Context, l *loop, f func(*coordinator.Core) T) (T, error) {
	var none T
	ran := make(chan T, 1)
	if !l.send(coordinator.Inspect{F: func(c *coordinator.Core) { ran <- f(c) }}) {
		return none, errStopped
	}
	select {
	case v := <-ran:
		return v, nil
	case <-ctx.Done():
		return none, errs.New(errs.Unavailable, "", "try again", "the daemon did not answer in time").Because(ctx.Err())
	case <-l.done:
		return none, errStopped
	}
}

// lookup finds a job of the coordinator; nil when it has forgotten it.
func (l *loop) lookup(ctx context.Context, id ident.JobID) (*jobs.Job, error) {
	return inspect(ctx, l, func(c *coordinator.Core) *jobs.Job {
		if v, ok := c.JobByID(id); ok {
			return &v
		}
		return nil
	})
}

// list returns the jobs of the coordinator.
func (l *loop) list(ctx context.Context, ended bool) ([]jobs.Job, error) {
	return inspect(ctx, l, func(c *coordinator.Core) []jobs.Job { return c.Jobs(ended) })
}
