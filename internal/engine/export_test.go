package engine

import (
	"context"

	"larder/internal/coordinator"
	"larder/internal/engine/work"
	"larder/internal/ident"
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

// Held returns what work under way holds: bytes of working copies and between stages, and bytes of rings.
func (e *Engine) Held() (copies, rings int64) {
	return e.pool.Held() + e.crew.Held(), e.memory.rings.Used()
}

// Entries returns the entries of a tier, as the coordinator knows them.
func (e *Engine) Entries(ctx context.Context, f ident.Form) (int, error) {
	return inspect(ctx, e.loop, func(c *coordinator.Core) int {
		for _, v := range c.Tiers() {
			if v.Form == f {
				return v.Entries
			}
		}
		return -1
	})
}

// RingsUsed is the memory of rings and windows.
func (e *Engine) RingsUsed() int64 { return e.memory.rings.Used() }

// ListBytes counts the bytes of the lists of samples of all jobs that are remembered.
func ListBytes(e *Engine) (n int) {
	e.jobs.mu.Lock()
	defer e.jobs.mu.Unlock()
	for _, j := range e.jobs.mu.jobs {
		j.subsets.Lock()
		for _, a := range append([]asked{j.subsets.next}, j.subsets.asked...) {
			n += 4 * cap(a.objects)
		}
		j.subsets.Unlock()
	}
	return n
}
