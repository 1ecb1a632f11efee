package source

import (
	"context"
	"sync"
	"time"

	"larder/internal/clock"
)

// burst is what a full bucket holds: the reads of a tenth of a second.
const burst = 100 * time.Millisecond

// bucket is a token bucket in the form of the time at which all that was taken from it will have been paid for. What is
// taken may exceed what it holds (an object larger than a tenth of a second's bytes), which buckets that count tokens
// refuse.
type bucket struct {
	rate float64   // units a second, 0 = no limit
	next time.Time // when the units granted so far have been paid for
}

// take takes n units and returns when they are paid for, and what they cost.
func (b *bucket) take(now time.Time, n float64) (at time.Time, cost time.Duration) {
	if b.rate == 0 || n == 0 {
		return now, 0
	}
	cost = time.Duration(min(n/b.rate*float64(time.Second), 1e17)) // three years are forever enough
	if full := now.Add(-burst); b.next.Before(full) {
		b.next = full
	}
	b.next = b.next.Add(cost)
	return b.next, cost
}

// limiter holds reads to a storage's bytes and operations a second. Waiters are served in order of arrival.
type limiter struct {
	clock      clock.Clock
	mu         sync.Mutex
	bytes, ops bucket
	changed    chan struct{} // closed when the limits change
	waits      uint64        // reads that had to wait
	waited     time.Duration
}

func newLimiter(bytes, ops int64, c clock.Clock) *limiter {
	return &limiter{clock: clock.Or(c), bytes: bucket{rate: float64(bytes)}, ops: bucket{rate: float64(ops)}, changed: make(chan struct{})}
}

// set changes the limits, 0 = none. Debts are forgotten: who waits now takes again, under the new limits.
func (l *limiter) set(bytes, ops int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.bytes.rate == float64(bytes) && l.ops.rate == float64(ops) {
		return
	}
	now := l.clock.Now()
	l.bytes, l.ops = bucket{float64(bytes), now}, bucket{float64(ops), now}
	close(l.changed)
	l.changed = make(chan struct{})
}

// wait takes a read of n bytes and returns when it may be done. A canceled wait returns its units.
func (l *limiter) wait(ctx context.Context, n int64) error {
	begun, slept := l.clock.Now(), false
	defer func() {
		if slept {
			l.mu.Lock()
			l.waits++
			l.waited += l.clock.Now().Sub(begun)
			l.mu.Unlock()
		}
	}()
	for {
		l.mu.Lock()
		now := l.clock.Now()
		at, bytes := l.bytes.take(now, float64(n))
		other, ops := l.ops.take(now, 1)
		changed := l.changed
		l.mu.Unlock()
		if other.After(at) {
			at = other
		}
		if !at.After(now) {
			return ctx.Err()
		}
		slept = true
		t := l.clock.NewTimer(at.Sub(now))
		select {
		case <-t.Chan():
			return nil
		case <-changed:
			t.Stop()
		case <-ctx.Done():
			t.Stop()
			l.mu.Lock()
			if l.changed == changed {
				l.bytes.next, l.ops.next = l.bytes.next.Add(-bytes), l.ops.next.Add(-ops)
			}
			l.mu.Unlock()
			return ctx.Err()
		}
	}
}

// SetStorageLimit changes how many bytes and how many reads a second the catalogue takes from storage, 0 = as many as
// there are. Waiting reads continue under the new limits.
func (c *Catalog) SetStorageLimit(bytes, iops int64) { c.limit.set(max(bytes, 0), max(iops, 0)) }

// StorageLimit is what SetStorageLimit, or the configuration, set last.
func (c *Catalog) StorageLimit() (bytes, iops int64) {
	c.limit.mu.Lock()
	defer c.limit.mu.Unlock()
	return int64(c.limit.bytes.rate), int64(c.limit.ops.rate)
}

// Throttled returns how many reads had to wait for the storage limit, and their total waiting time.
func (c *Catalog) Throttled() (reads uint64, waited time.Duration) {
	c.limit.mu.Lock()
	defer c.limit.mu.Unlock()
	return c.limit.waits, c.limit.waited
}
