package work

import "sync"

// lightImage is the bytes that one image may take while it is decoded without being counted: the daemon's own part of
// memory has room for that much a worker (docs/configuration.md), and a photograph takes a tenth of it.
const lightImage = 8 << 20

// gate bounds the memory of large images that are decoded at once: a folder of them is decoded one after the other
// rather than by all workers together. One that is larger than the whole capacity goes alone; prep.Limits says how
// large an image may be.
type gate struct {
	capacity int64
	mu       struct {
		sync.Mutex
		taken int64
		peak  int64
	}
	left *sync.Cond
}

func newGate(capacity int64) *gate {
	g := &gate{capacity: capacity}
	g.left = sync.NewCond(&g.mu.Mutex)
	return g
}

// enter waits until n bytes may be taken and returns what ends that. A holder must not enter again.
func (g *gate) enter(n int64) (leave func()) {
	if n <= lightImage {
		return func() {}
	}
	n = min(n, g.capacity)
	g.mu.Lock()
	for g.mu.taken > 0 && g.mu.taken+n > g.capacity {
		g.left.Wait()
	}
	g.mu.taken += n
	g.mu.peak = max(g.mu.peak, g.mu.taken)
	g.mu.Unlock()
	return func() {
		g.mu.Lock()
		g.mu.taken -= n
		g.mu.Unlock()
		g.left.Broadcast()
	}
}
