package dsa

import (
	"larder/internal/invariant"
	"larder/internal/xrand"
)

// FixedOrder returns the order of mode Fixed for n samples: position p of the epoch shows the sample of ordinal
// order[p]. It is the Fisher-Yates shuffle of 0..n-1 by xrand, seeded by (seed, epoch) alone. dst is reused when it is
// large enough.
func FixedOrder(dst []uint32, seed uint64, epoch uint32, n int) []uint32 {
	dst = resize(dst, n)
	var f fixedOrder
	f.begin(seed, epoch)
	f.slice(dst, 0, n)
	return dst
}

// fixedOrder makes an order of mode Fixed, in slices.
type fixedOrder struct{ rng xrand.Rand }

func (f *fixedOrder) begin(seed uint64, epoch uint32) {
	f.rng = *xrand.New(0x66697865645f6f72, seed, uint64(epoch))
}

// slice does steps from..to-1 of the shuffle, which goes down from the end; the first slice fills dst.
func (f *fixedOrder) slice(dst []uint32, from, to int) {
	if from == 0 {
		for i := range dst {
			dst[i] = uint32(i)
		}
	}
	n := len(dst)
	for i := n - 1 - from; i > n-1-to && i > 0; i-- {
		r := f.rng.IntN(i + 1)
		dst[i], dst[r] = dst[r], dst[i]
	}
}

// prescribedOrder is the order of a Fixed or Sequential job, and how far it was taken.
type prescribedOrder struct {
	cursor  int        // no position below is free
	order   []uint32   // Fixed: ordinals in the order of the epoch
	shuffle fixedOrder // Fixed: makes order
}

// position returns the object at position pos of the epoch's order of a Fixed or Sequential job, and whether the job
// still needs it.
func (j *job) position(pos int) (x uint32, free bool) {
	if j.mode == Fixed {
		pos = int(j.prescribed.order[pos])
	}
	x = uint32(j.subset[pos])
	return x, has(j.owed.left, j.index.of(x))
}

// firstFree returns the object at the first position that is not taken.
// REQUIRES: the epoch owes a sample.
func (j *job) firstFree() uint32 {
	for ; j.prescribed.cursor < len(j.subset); j.prescribed.cursor++ {
		if x, free := j.position(j.prescribed.cursor); free {
			return x
		}
	}
	invariant.Violated("dsa: job %d owes %d samples, its order has none", j.id, j.owed.remaining)
	return 0
}
