package arena

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/btree"

	"larder/internal/bits"
	"larder/internal/invariant"
)

// Granule is what sizes are rounded up to, in bytes: a page, so that any free extent can be returned to the kernel.
var Granule = max(4096, int64(os.Getpagesize()))

// DefaultChunk is the least address space taken from the kernel at once, in bytes.
const DefaultChunk = 64 << 20

var (
	// ErrFull is returned by Alloc when the budget has no room, or the kernel no memory.
	ErrFull = errors.New("arena: no room")
	// ErrClosed is returned by Alloc after Close.
	ErrClosed = errors.New("arena: closed")
)

// Config says how an arena is made.
type Config struct {
	Name       string // of the mappings, for people who look at /proc/PID/maps
	Budget     int64  // physical bytes, at most
	ChunkBytes int64  // least size of a chunk; 0: DefaultChunk
	Prefault   bool   // get pages in the background, ahead of the allocations, as far as the budget goes
	Ahead      int64  // bytes of pages that Prefault keeps free; 0: DefaultAhead
	// HugeBelow is what 2 MiB in small pages take: huge pages are used as long as one takes less. 0: never.
	HugeBelow time.Duration
}

// Arena is safe for concurrent use. Filling an extent happens outside its lock.
type Arena struct {
	cfg  Config
	wake chan struct{} // buffered 1: there is something to prefault
	stop chan struct{}
	done sync.WaitGroup
	idle atomic.Pointer[func() bool] // see WhenIdle

	// If taking both, take warming before mu.
	warming sync.Mutex // held while prefault fills a step

	mu struct {
		sync.Mutex
		budget    int64
		used      int64         // bytes in extents that are out
		committed int64         // bytes of physical pages: used + the warm part of what is free
		mapped    int64         // bytes of address space
		cooling   int64         // of committed, bytes on their way back to the kernel
		warming   int64         // of committed, bytes that prefault is filling; their granules are out meanwhile
		taken     int64         // bytes of pages got from the kernel since the start
		ahead     int64         // of taken, bytes that came before they were asked for
		waited    time.Duration // for those pages, in all threads together
		chunks    []*chunk
		nextSeq   uint32
		bySize    *btree.BTreeG[span] // free spans by (length, address)
		byAddr    *btree.BTreeG[span] // the same by address
		closed    bool
		huge      hugePages
	}
}

// chunk is one mapping. All counts are in granules.
type chunk struct {
	mem   *memory
	seq   uint32
	size  uint32
	out   uint32   // granules in extents that are out, or cooling; they all have pages
	warm  bits.Set // granules that have pages
	cold  uint32   // where prefaulting continues
	huge  bool     // its memory comes in huge pages
	small bits.Set // blocks of it that do not
}

// span is a run of free granules of one chunk.
type span struct {
	c      *chunk
	off, n uint32
}

// Extent is a run of bytes that belongs to its allocator.
type Extent struct {
	c      *chunk
	off, n uint32
	len    int64
}

// Bytes returns the memory, exactly as long as asked for. It is valid until Free.
func (e Extent) Bytes() []byte {
	from := int64(e.off) * Granule
	return e.c.mem.data[from : from+e.len : from+int64(e.n)*Granule]
}

// Size returns what the extent counts for, in bytes.
func (e Extent) Size() int64 { return int64(e.n) * Granule }

// New returns an arena that holds no memory yet. Close it.
func New(cfg Config) (*Arena, error) {
	if cfg.Budget < 0 || cfg.ChunkBytes < 0 || cfg.Ahead < 0 {
		return nil, fmt.Errorf("arena %s: budget %d, chunk %d and ahead %d must not be negative", cfg.Name, cfg.Budget,
			cfg.ChunkBytes, cfg.Ahead)
	}
	if cfg.ChunkBytes == 0 {
		cfg.ChunkBytes = DefaultChunk
	}
	if cfg.Ahead == 0 {
		cfg.Ahead = DefaultAhead
	}
	a := &Arena{cfg: cfg, wake: make(chan struct{}, 1), stop: make(chan struct{})}
	a.mu.budget = cfg.Budget
	a.mu.huge.on = cfg.HugeBelow > 0 && hugeBytes%Granule == 0 && hugeBytes > Granule
	a.mu.byAddr = btree.NewG(32, before)
	a.mu.bySize = btree.NewG(32, func(x, y span) bool {
		if x.n != y.n {
			return x.n < y.n
		}
		return before(x, y)
	})
	if cfg.Prefault {
		a.done.Go(a.prefault)
	}
	return a, nil
}

func before(x, y span) bool {
	if x.c.seq != y.c.seq {
		return x.c.seq < y.c.seq
	}
	return x.off < y.off
}

// Round returns what an extent of n bytes counts for.
func Round(n int64) int64 { return (n + Granule - 1) / Granule * Granule }

// Alloc returns an extent of n bytes with undefined content, or ErrFull: of the tightest free ones the one that
// has most pages.
func (a *Arena) Alloc(n int64) (Extent, error) {
	if n <= 0 || n > math.MaxInt64-Granule || Round(n)/Granule > math.MaxUint32 {
		return Extent{}, fmt.Errorf("%w for %d bytes in an extent", ErrFull, n)
	}
	want := uint32(Round(n) / Granule)
	a.mu.Lock()
	if a.mu.closed {
		a.mu.Unlock()
		return Extent{}, ErrClosed
	}
	if a.mu.used+Round(n) > a.mu.budget {
		a.mu.Unlock()
		return Extent{}, ErrFull
	}
	s, ok := a.bestFitLocked(want)
	if !ok {
		if err := a.addChunkLocked(want); err != nil {
			a.mu.Unlock()
			return Extent{}, fmt.Errorf("%w: %w", ErrFull, err)
		}
		s, _ = a.bestFitLocked(want)
	}
	a.takeLocked(s)
	if s.n > want {
		a.putLocked(span{s.c, s.off + want, s.n - want})
		s.n = want
	}
	s.c.out += want
	a.mu.used += Round(n)
	around, pages := a.hugeLocked(s, s.c.lacks(s.off, want))
	cold := a.warmLocked(s)
	over := a.overLocked()
	runs := a.coolLocked(min(over, coolStep+Round(n)))
	short := a.shortLocked()
	a.mu.Unlock()
	if short > 0 {
		a.rouse()
	}

	// From here on the span is ours alone: pages come outside the lock, and only after as many as they are too many went,
	// so whatever others do meanwhile the budget holds.
	if over > 0 {
		a.uncommit(runs, coolStep)
	}
	e := Extent{c: s.c, off: s.off, n: want, len: n}
	err := a.commit(slices.Concat(cold, around), pages)
	a.settle(around, err != nil)
	if err != nil {
		a.lost(e, cold)
		return Extent{}, fmt.Errorf("%w: %w", ErrFull, err)
	}
	return e, nil
}

// lost takes back an extent that the kernel had no memory for.
func (a *Arena) lost(e Extent, cold []span) {
	a.mu.Lock()
	for _, r := range cold { // some of the pages may be there
		a.punchLocked(r.c, r.off, r.n)
	}
	unused, runs := a.freeLocked(e)
	a.mu.Unlock()
	unmap(unused)
	a.cool(runs)
}

// Free takes an extent back. Its bytes must not be touched any more.
func (a *Arena) Free(e Extent) {
	if invariant.Enabled {
		from := int64(e.off) * Granule
		poison(e.c.mem.data[from : from+e.Size()])
	}
	a.mu.Lock()
	unused, runs := a.freeLocked(e)
	a.mu.Unlock()
	unmap(unused)
	a.cool(runs)
}

// freeLocked takes an extent back and returns the memories that are no longer needed, to unmap, and pages to cool.
func (a *Arena) freeLocked(e Extent) ([]*memory, []span) {
	a.joinLocked(span{e.c, e.off, e.n})
	e.c.out -= e.n
	a.mu.used -= e.Size()
	unused := a.trimLocked()
	return unused, a.coolLocked(min(a.overLocked(), coolStep))
}

// unmap gives memories back, outside the lock: a large one takes milliseconds.
func unmap(unused []*memory) {
	for _, m := range unused {
		if err := m.unmap(); err != nil {
			// Linux refuses only what was never mapped.
			invariant.Violated("arena: %v", err)
		}
	}
}

// poison makes a use after Free show.
func poison(b []byte) {
	for i := range b {
		b[i] = 0xCC
	}
}

// SetBudget changes the budget. After a shrink, Used is over it until enough extents were freed; pages follow as they
// are freed.
func (a *Arena) SetBudget(n int64) error {
	if n < 0 {
		return fmt.Errorf("arena %s: budget %d must not be negative", a.cfg.Name, n)
	}
	a.mu.Lock()
	a.mu.budget = n
	unused := a.trimLocked()
	runs := a.coolLocked(min(a.overLocked(), coolStep))
	a.mu.Unlock()
	unmap(unused)
	a.uncommit(runs, coolStep)
	a.rouse()
	return nil
}

// Close gives the memory back: now, or when the last extent is freed. A second Close does nothing.
func (a *Arena) Close() error {
	a.mu.Lock()
	if a.mu.closed {
		a.mu.Unlock()
		return nil
	}
	a.mu.closed = true
	a.mu.Unlock()
	close(a.stop)
	a.done.Wait()
	a.mu.Lock()
	unused := a.trimLocked()
	a.mu.Unlock()
	unmap(unused)
	return nil
}

// Usage is what an arena holds, in bytes.
type Usage struct {
	Budget    int64
	Used      int64         // in extents that are out
	Committed int64         // physical pages
	Mapped    int64         // address space
	Taken     int64         // pages got from the kernel since the start: each costs far more than filling it
	Ahead     int64         // of them, those that came before they were asked for
	Waited    time.Duration // for the kernel to provide them, in all threads together
}

// Usage returns the figures of this moment.
func (a *Arena) Usage() Usage {
	a.mu.Lock()
	defer a.mu.Unlock()
	return Usage{Budget: a.mu.budget, Used: a.mu.used, Committed: a.mu.committed, Mapped: a.mu.mapped, Taken: a.mu.taken,
		Ahead: a.mu.ahead, Waited: a.mu.waited}
}

func (a *Arena) rouse() {
	select {
	case a.wake <- struct{}{}:
	default: // it is awake
	}
}
