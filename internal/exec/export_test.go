package exec

import (
	"context"

	"larder/internal/coordinator"
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

// Readers is how many there are.
const Readers = readers

// InPlace tells how many samples were decoded straight into their batch, of how many decodes.
func (e *Engine) InPlace(ctx context.Context) (in, of uint64, err error) {
	s, err := inspect(ctx, e, func(c *coordinator.Core) coordinator.Stats { return c.Stats() })
	return s.InPlace, s.Decodes, err
}
