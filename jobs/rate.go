package jobs

import "time"

// RateOver is the time over which a Rate is taken.
const RateOver = 30 * time.Second

const rateSlots = 32 // of a second each: RateOver, the running one, and one to spare

// Rate counts what happened lately, in a fixed amount of memory.
type Rate struct {
	began time.Time // the first thing
	last  int64     // second of the newest slot, since began
	n     [rateSlots]uint32
}

// Add counts n at now.
func (r *Rate) Add(now time.Time, n int) {
	if r.began.IsZero() {
		r.began = now
	}
	r.forward(now)
	r.n[r.last%rateSlots] += uint32(n)
}

// forward empties the slots of seconds in which nothing came.
func (r *Rate) forward(now time.Time) {
	at := max(int64(now.Sub(r.began)/time.Second), r.last)
	if at-r.last >= rateSlots {
		r.n = [rateSlots]uint32{}
	} else {
		for s := r.last + 1; s <= at; s++ {
			r.n[s%rateSlots] = 0
		}
	}
	r.last = at
}

// At is how many a second there were over the last RateOver, or since the first when that is less, but not less than a
// second.
func (r Rate) At(now time.Time) float64 {
	if r.began.IsZero() {
		return 0
	}
	r.forward(now)
	whole, sum := int64(RateOver/time.Second), uint64(0)
	for s := max(0, r.last-whole); s <= r.last; s++ {
		sum += uint64(r.n[s%rateSlots])
	}
	over := now.Sub(r.began)
	if r.last > whole { // whole seconds, and what has passed of the running one
		over = RateOver + over - time.Duration(r.last)*time.Second
	}
	return float64(sum) / max(over.Seconds(), 1)
}
