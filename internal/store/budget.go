package store

import (
	"slices"
	"sync"
	"time"
)

// budget is what a place may spend on requests that repeat others. Every first request earns a part of one; what is
// saved is bounded, so that a long calm does not pay for a storm.
type budget struct {
	mu    sync.Mutex
	have  float64
	most  float64
	each  float64 // earned by a request
	rate  float64 // earned a second
	since time.Time
}

func newBudget(each, rate, most float64, now time.Time) *budget {
	return &budget{have: most, most: most, each: each, rate: rate, since: now}
}

// earn counts a first request.
func (b *budget) earn() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.have = min(b.most, b.have+b.each)
}

// spend takes one if there is one.
func (b *budget) spend(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pass(now)
	if b.have < 1 {
		return false
	}
	b.have--
	return true
}

// borrow takes one in any case, and returns how long to wait until it is earned. rate must be above 0.
func (b *budget) borrow(now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pass(now)
	b.have--
	if b.have >= 0 {
		return 0
	}
	return time.Duration(-b.have / b.rate * float64(time.Second))
}

func (b *budget) pass(now time.Time) {
	if d := now.Sub(b.since); d > 0 {
		b.have, b.since = min(b.most, b.have+b.rate*d.Seconds()), now
	}
}

const (
	// latencies is how many of the last first-byte times the quantile is of.
	latencies = 256
	// enough is how many are needed before there is one.
	enough = 32
	// hedgeAt is the quantile after which a second request is sent.
	hedgeAt = 0.95
)

// latency measures the time from a request to the first byte of its answer.
type latency struct {
	mu   sync.Mutex
	ring []time.Duration
	next int
	p95  time.Duration // of the ring and a tenth, some requests ago; 0 = not known
}

func (l *latency) add(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.ring) < latencies {
		l.ring = append(l.ring, d)
	} else {
		l.ring[l.next%latencies] = d
	}
	l.next++
	if l.next%enough == 0 {
		sorted := slices.Sorted(slices.Values(l.ring))
		l.p95 = sorted[int(hedgeAt*float64(len(sorted)))]
		l.p95 += l.p95 / 10 // where all take alike, none is late
	}
}

// late is how long a first byte may take before its request is a slow one; 0 = not known.
func (l *latency) late() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.p95
}
