package engine

import (
	"context"

	"larder/internal/coordinator"
	"larder/internal/ident"
)

const (
	readers = 16 // reads at once from storage that is slow
	// aheadBytes is the default of Config.ReadAhead: what a fast disk delivers in a tenth of a second.
	aheadBytes = 64 << 20
	// slowRead is how long reads take on average, seconds, from which on they are worth a goroutine of their own: ten times what passing a
	// sample between two costs, and what a photograph takes out of the page cache.
	slowRead = 300e-6
)

// ahead is reading ahead of the workers. The coordinator hands out preparations in the order of its plan, more of them than there are workers;
// while storage is slow, their bytes are read beside the workers, the earliest turn first, so that many reads are under way and no
// worker waits for one. It belongs to the pool and is guarded by its lock.
type ahead struct {
	budget int64
	unread taskQueue // Prepare tasks that a reader will take
	bytes  int64     // of objects that are being read or wait for a worker
	busy   int       // readers

	peak int64 // of bytes
	most int   // of busy
}

// readsAhead tells whether a reader takes the task; p.mu is held. What is larger than all that may be read ahead is left to its worker.
func (p *pool) readsAhead(t *task) bool {
	x, ok := t.what.(coordinator.Prepare)
	if !ok || x.From != ident.Stored || !p.e.meters.slow() {
		return false
	}
	t.size = p.e.cfg.Catalog.ObjectBytes(x.Key.Object)
	return 0 < t.size && t.size <= p.mu.ahead.budget
}

// read is one reader.
func (p *pool) read(ctx context.Context) {
	a := &p.mu.ahead
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		for !p.mu.stopped && (len(a.unread) == 0 || a.bytes+a.unread[0].size > a.budget) {
			p.unread.Wait()
		}
		if p.mu.stopped {
			return
		}
		t := a.unread.Pop()
		a.bytes += t.size
		a.busy++
		a.peak, a.most = max(a.peak, a.bytes), max(a.most, a.busy)
		p.mu.Unlock()
		t.read, t.err = p.e.readObject(ctx, t.what.(coordinator.Prepare).Key.Object, p.scratch(int(t.size))[:0])
		p.mu.Lock()
		a.busy--
		p.ready(t)
		p.wake.Signal()
	}
}

// consumed ends the hold of a task that was read ahead on its bytes.
func (p *pool) consumed(t *task) {
	if t.size == 0 {
		return
	}
	p.mu.Lock()
	p.mu.ahead.bytes -= t.size
	if t.read != nil {
		p.recycle(t.read)
	}
	p.mu.Unlock()
	p.unread.Broadcast()
}

// readObject reads and measures it.
func (e *Engine) readObject(ctx context.Context, o ident.ObjectID, buf []byte) ([]byte, error) {
	r := e.meters.reading()
	b, err := e.cfg.Catalog.Read(ctx, o, buf)
	r.end(len(b))
	return b, err
}
