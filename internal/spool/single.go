package spool

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Single makes each thing once: of several callers with one key, the first does the work and the others wait for its
// result. When its context ends before, the next of them does it. The zero value is ready.
type Single struct {
	mu    sync.Mutex
	calls map[string]*call
}

type call struct {
	done  chan struct{}
	value any
	err   error
}

// Do returns what do returned, here or for another caller. A panic in do is the first caller's; others get an error.
func (s *Single) Do(ctx context.Context, key string, do func() (any, error)) (any, error) {
	for {
		s.mu.Lock()
		c := s.calls[key]
		if c == nil {
			break
		}
		s.mu.Unlock()
		select {
		case <-c.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if !errors.Is(c.err, context.Canceled) && !errors.Is(c.err, context.DeadlineExceeded) {
			return c.value, c.err
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	c := &call{done: make(chan struct{}), err: errPanicked}
	if s.calls == nil {
		s.calls = map[string]*call{}
	}
	s.calls[key] = c
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.calls, key)
		s.mu.Unlock()
		close(c.done)
	}()
	c.value, c.err = do()
	return c.value, c.err
}

var errPanicked = fmt.Errorf("making the block panicked")
