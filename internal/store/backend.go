package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"larder/internal/clock"
)

// backend is one place over a network, one request at a time. It neither waits nor tries again: remote does, for all of
// them. Every error is a *failure, or the context's.
type backend interface {
	// get begins a read of n > 0 bytes from off on. got is what the answer says of the object, whole; the body has n bytes
	// if the server does as it should.
	get(ctx context.Context, in Info, off, n int64) (got Info, body io.ReadCloser, err error)
	stat(ctx context.Context, key string) (Info, error)
	// list returns some of the objects whose key begins with prefix and is above after, in ascending order, and whether
	// there may be more.
	list(ctx context.Context, prefix, after string) (page []Info, more bool, err error)
	// folder returns what is directly below prefix; it calls alive for each piece that arrives.
	folder(ctx context.Context, prefix string, alive func()) (objects []Info, folders []string, err error)
	// renew forgets credentials that were found to be expired, and reports whether there may be others.
	renew() bool
	// close ends idle connections.
	close()
}

// kind says what a failure means for the next try.
type kind uint8

const (
	passing kind = iota // may be gone the next time: a server's error, a cut connection
	slowing             // the server asks for fewer requests
	expired             // credentials: others may help
	missing
	altered // another version than asked for
	final   // every other one: trying again is no use
)

// failure is the error of one request.
type failure struct {
	kind  kind
	what  string        // in words, without secrets; with a cause, what was attempted
	hint  string        // what to do; "" = the place's default
	after time.Duration // the server says when to come again; 0 = it does not
	cause error         // fit for messages
}

// Error implements error.
func (f *failure) Error() string {
	switch {
	case f.cause == nil:
		return f.what
	case f.what == "":
		return f.cause.Error()
	}
	return f.what + ": " + f.cause.Error()
}

// Unwrap returns the cause.
func (f *failure) Unwrap() error { return f.cause }

// Is lets errors.Is find ErrNotExist.
func (f *failure) Is(target error) bool { return f.kind == missing && target == ErrNotExist }

// failureOf finds the failure in an error; every other error is one that may pass.
func failureOf(err error) *failure {
	if f, ok := errors.AsType[*failure](err); ok {
		return f
	}
	return &failure{kind: passing, cause: err}
}

// errStalled ends a request that no byte came for.
type errStalled struct{ after time.Duration }

func (e errStalled) Error() string { return fmt.Sprintf("no byte came for %v", e.after) }

// Timeout makes it a net.Error of that kind.
func (e errStalled) Timeout() bool { return true }

// watcher ends what nothing happens in.
type watcher struct {
	ctx   context.Context //nolint:containedctx // it is the context of what is watched
	end   context.CancelCauseFunc
	timer clock.Timer
	after time.Duration
}

// watch returns a context that ends when alive was not called for so long.
func watch(ctx context.Context, c clock.Clock, after time.Duration) *watcher {
	w := &watcher{after: after}
	w.ctx, w.end = context.WithCancelCause(ctx)
	w.timer = c.AfterFunc(after, func() { w.end(errStalled{after}) })
	return w
}

func (w *watcher) alive() { w.timer.Reset(w.after) }

func (w *watcher) stop() {
	w.timer.Stop()
	w.end(nil)
}

// cause names the stall where err came of one.
func (w *watcher) cause(err error) error {
	if err == nil {
		return nil
	}
	if s, ok := errors.AsType[errStalled](context.Cause(w.ctx)); ok {
		return &failure{kind: passing, cause: s}
	}
	return err
}
