package engine

import (
	"context"

	"larder/internal/coordinator"
	"larder/internal/engine/work"
)

// Ahead returns how many bytes were read ahead at most at any time, and by how many readers at once.
func (e *Engine) Ahead() (bytes int64, readers int) {
	_, bytes, readers = e.pool.Ahead()
	return bytes, readers
}

// AheadNow is what is read ahead now.
func (e *Engine) AheadNow() int64 {
	now, _, _ := e.pool.Ahead()
	return now
}

// Restored counts the jobs that an engine holds which does not run yet.
func (e *Engine) Restored(context.Context) (int, error) {
	e.jobs.mu.Lock()
	defer e.jobs.mu.Unlock()
	return len(e.jobs.mu.jobs), nil
}

// Readers is how many there are.
const Readers = work.Readers

// InPlace returns how many samples were decoded straight into their batch, of how many decodes.
func (e *Engine) InPlace(ctx context.Context) (in, of uint64, err error) {
	s, err := inspect(ctx, e.loop, func(c *coordinator.Core) coordinator.Stats { return c.Stats() })
	return s.InPlace, s.Decodes, err
}
