package engine

import (
	"context"

	"larder/internal/coordinator"
	"larder/internal/ident"
	"larder/internal/prep"
)

// Ahead tells how many bytes were read ahead at most at any time, and by how many readers at once.
func (e *Engine) Ahead() (bytes int64, readers int) {
	e.pool.mu.Lock()
	defer e.pool.mu.Unlock()
	return e.pool.mu.ahead.peak, e.pool.mu.ahead.most
}

// AheadNow is what is read ahead now.
func (e *Engine) AheadNow() int64 {
	e.pool.mu.Lock()
	defer e.pool.mu.Unlock()
	return e.pool.mu.ahead.bytes
}

// Panics has a worker make a decoded sample in its tier, and panic when it has the memory; it returns what the coordinator would hear.
func (e *Engine) Panics(k ident.Key, n int) coordinator.Prepared {
	w := &worker{p: e.pool, prep: prep.NewWorker(prep.Limits{})}
	defer w.prep.Close()
	return w.guard(1, func() coordinator.Prepared {
		_, _, err := w.make(task{}, k, true, func(alloc allocator) (prep.Image, error) {
			if _, err := alloc(n); err != nil {
				return prep.Image{}, err
			}
			panic("planned")
		})
		return coordinator.Prepared{Err: err.Error()}
	})
}

// Gate is one of large images: what it had taken at most.
func Gate(capacity int64) (enter func(int64) func(), peak func() int64) {
	g := newGate(capacity)
	return g.enter, func() int64 {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.mu.peak
	}
}

// Restored counts the jobs that an engine holds which does not run yet.
func (e *Engine) Restored(context.Context) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.mu.jobs), nil
}

// Readers is how many there are.
const Readers = readers

// InPlace tells how many samples were decoded straight into their batch, of how many decodes.
func (e *Engine) InPlace(ctx context.Context) (in, of uint64, err error) {
	s, err := inspect(ctx, e, func(c *coordinator.Core) coordinator.Stats { return c.Stats() })
	return s.InPlace, s.Decodes, err
}
