package ring

import (
	"time"

	"larder/internal/session/wire"
)

// WaitNow is how long the client has been waiting in next(), by what it wrote on the board; 0 = it does not wait. It
// is not known of a ring without a board, of one that is not read, and of a time that cannot be.
func (r *Ring) WaitNow() (d time.Duration, known bool) {
	if r.Board == 0 {
		return 0, false
	}
	since, open := wire.WaitsSince(r.seg.Bytes()[r.Board:])
	if !open || since == 0 {
		return 0, open
	}
	now := monotonic()
	if now == 0 {
		return 0, false
	}
	d = time.Duration(now - since)
	if d < 0 || d > time.Since(r.made) {
		return 0, false // the client has another clock, or writes what it likes
	}
	return d, true
}

// noteWait keeps how long the client has waited for a batch that is about to be handed over: the client itself
// reports it only when it releases the slot. It returns whether the client waits, as far as is known.
func (r *Ring) noteWait(slot int) bool {
	d, known := r.WaitNow()
	if known {
		r.waited[slot].Store(int64(d))
	}
	return d > 0
}

// Reported forgets the wait for the batch in a slot: the client has reported it. A slot that does not exist is ignored.
func (r *Ring) Reported(slot int) {
	if slot < len(r.waited) {
		r.waited[slot].Store(0)
	}
}

// Unreported is how long the client waited for the batches that it holds.
func (r *Ring) Unreported() time.Duration {
	sum := int64(0)
	for i := range r.waited {
		sum += r.waited[i].Load()
	}
	return time.Duration(sum)
}
