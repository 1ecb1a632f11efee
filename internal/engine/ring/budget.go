package ring

import (
	"sync/atomic"

	"larder/internal/errs"
	"larder/internal/units"
)

// Budget is the memory that all rings may have together, with what ragged batches take beside them. It is safe for
// concurrent use.
type Budget struct {
	limit func() int64
	used  atomic.Int64
}

// NewBudget returns a Budget of limit() bytes. The limit may change; what is used stays.
func NewBudget(limit func() int64) *Budget { return &Budget{limit: limit} }

// Limit is the bytes that all rings may have.
func (b *Budget) Limit() int64 { return b.limit() }

// Used is the bytes that rings have.
func (b *Budget) Used() int64 { return b.used.Load() }

// reserve takes n bytes for a job; release returns them. The error has both numbers.
func (b *Budget) reserve(job string, n int64) error {
	limit := b.limit()
	for {
		used := b.used.Load()
		if free := limit - used; n > free {
			return errs.New(errs.RingMemory, job,
				"lower batch_size or prefetch, give all images one size in the recipe, lower tiers.total, or raise memory.limit",
				"job %s needs %s more for its batches, and %s of the %s for rings are free",
				job, units.Size(n), units.Size(max(free, 0)), units.Size(limit))
		}
		if b.used.CompareAndSwap(used, used+n) {
			return nil
		}
	}
}

func (b *Budget) release(n int64) { b.used.Add(-n) }

// Reserve takes n bytes for a job that are no ring of it; Release returns them.
func (b *Budget) Reserve(job string, n int64) error { return b.reserve(job, n) }

// Release returns what Reserve took.
func (b *Budget) Release(n int64) { b.release(n) }
