package engine

import (
	"cmp"
	"math"
	"slices"
	"sync"

	"larder/internal/engine/ring"
	"larder/internal/source"
)

// blockRoom is the memory for blocks: a part of that for rings. Each job is promised what it needs at the most when it
// is registered. What blocks really take is counted once, whoever holds them, and is never more than what was taken of
// the rings' memory: where it would be more than the promises, more is taken, or the block is not there.
type blockRoom struct {
	rings *ring.Budget

	mu       sync.Mutex // guards what follows, bytes
	promised int64
	used     int64
	taken    int64 // of rings: max(promised, used)
}

var _ source.Room = (*blockRoom)(nil)

// promise takes n bytes for a job. Error: RESOURCE_EXCEEDED.
func (r *blockRoom) promise(job string, n int64) error { return r.add(&r.promised, job, n) }

// release ends a promise.
func (r *blockRoom) release(n int64) { r.sub(&r.promised, n) }

// Take implements source.Room.
func (r *blockRoom) Take(n int64) error { return r.add(&r.used, "blocks", n) }

// Give implements source.Room.
func (r *blockRoom) Give(n int64) { r.sub(&r.used, n) }

// add counts n bytes more, for which there must be memory.
func (r *blockRoom) add(count *int64, job string, n int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.grow(job, *count+n); err != nil {
		return err
	}
	*count += n
	return nil
}

// sub counts n bytes fewer.
func (r *blockRoom) sub(count *int64, n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	*count -= n
	r.shrink()
}

// grow takes from the rings what is missing to so many bytes; mu is held.
func (r *blockRoom) grow(job string, to int64) error {
	if to <= r.taken {
		return nil
	}
	if err := r.rings.Reserve(job, to-r.taken); err != nil {
		return err
	}
	r.taken = to
	return nil
}

// shrink gives back what is not needed any more; mu is held.
func (r *blockRoom) shrink() {
	if need := max(r.promised, r.used); need < r.taken {
		r.rings.Release(r.taken - need)
		r.taken = need
	}
}

// blockNeed says how many bytes an order of blocks holds at the most.
//
// Let S be the samples that are planned and not prepared yet. A block that the order has left is in memory only while
// some of its samples are among the last S. Each block stays for W chunks and gives 1/W of its samples to each. Let f
// be the part of a block that lies in the chunks of the last S samples. The parts of all blocks' samples that lie there
// are S together, so the bytes of these parts are at most ahead: those of S samples of the blocks with the most bytes
// for a sample. What is missing to whole blocks, the sum of 1-f, is W blocks, so at most the W largest. One more is
// being read, and since parts are rounded at random, two more may be there.
type blockNeed struct {
	largest []int64 // sums: of the n largest
	ahead   int64
}

const moreBlocks = 3 // the one that comes next, and what rounding may bring

// needOf is that of a dataset with such blocks, with so many samples ahead.
func needOf(blocks []source.BlockSize, ahead int) blockNeed {
	n := blockNeed{largest: make([]int64, 1, len(blocks)+1)}
	slices.SortFunc(blocks, func(a, b source.BlockSize) int { // the most bytes for a sample first
		return cmp.Compare(float64(b.Bytes)/float64(max(b.Samples, 1)), float64(a.Bytes)/float64(max(a.Samples, 1)))
	})
	for _, b := range blocks {
		if ahead <= 0 {
			break
		}
		part := min(float64(ahead)/float64(max(b.Samples, 1)), 1)
		n.ahead += int64(math.Ceil(part * float64(b.Bytes)))
		ahead -= b.Samples
	}
	slices.SortFunc(blocks, func(a, b source.BlockSize) int { return cmp.Compare(b.Bytes, a.Bytes) })
	for i, b := range blocks {
		n.largest = append(n.largest, n.largest[i]+b.Bytes)
	}
	return n
}

// one is the largest block.
func (n *blockNeed) one() int64 { return n.largest[min(1, len(n.largest)-1)] }

// of is the bytes for a window of so many blocks.
func (n *blockNeed) of(window int) int64 {
	all := len(n.largest) - 1
	return min(n.largest[min(window+moreBlocks, all)]+n.ahead, n.largest[all])
}
