package work

import (
	"context"
	"slices"

	"larder/internal/coordinator"
	"larder/internal/ident"
	"larder/internal/source"
)

const (
	// Readers is the reads at once from storage that is slow, where nothing else is configured.
	Readers = 16
	// DefaultReadAhead is what a fast disk delivers in a tenth of a second, in bytes.
	DefaultReadAhead = 64 << 20
	// slowRead is how long reads take on average, seconds, from which on they are worth a goroutine of their own: ten
	// times what passing a sample between two costs, and what a photograph takes out of the page cache.
	slowRead = 300e-6
)

// ahead is reading ahead of the workers. The coordinator hands out preparations in the order of its plan, more of
// them than there are workers; while storage is slow, their bytes are read beside the workers, the earliest turn
// first, so that many reads are under way and no worker waits for one. It belongs to the pool and is guarded by its
// lock.
type ahead struct {
	budget int64
	unread taskQueue // Prepare tasks that a reader will take
	bytes  int64     // of objects that are being read or wait for a worker
	busy   int       // readers

	peak int64 // of bytes
	most int   // of busy
}

// readsAhead reports whether a reader takes the task; p.mu is held. What is larger than the whole budget is left to its
// worker.
func (p *Pool) readsAhead(t *task) bool {
	x, ok := t.what.(coordinator.Prepare)
	if !ok || x.From != ident.Stored || !p.cfg.Meters.slow() && !p.waitsForBlock(x.Key.Object) {
		return false
	}
	t.size = p.cfg.Bytes(x.Key.Object)
	return 0 < t.size && t.size <= p.mu.ahead.budget
}

// readQueued has the readers read for what waits for a worker. A worker calls it when it has read for itself: storage
// may have turned out slow since that was queued. Without it the workers alone, one read each, would read the first
// samples of a daemon and all that were handed out with them.
func (p *Pool) readQueued() {
	if !p.cfg.Meters.slow() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, q := range []*taskQueue{&p.mu.fresh, &p.mu.tasks} {
		if !slices.ContainsFunc(*q, func(t task) bool { return t.size == 0 && p.readsAhead(&t) }) {
			continue
		}
		waiting := *q
		*q = nil
		for _, t := range waiting {
			size := t.size
			if size == 0 && p.readsAhead(&t) {
				p.mu.ahead.unread.Push(t)
				continue
			}
			t.size = size
			q.Push(t)
		}
	}
	p.unread.Broadcast()
}

// waitsForBlock reports whether a read would wait for a block: no worker is to.
func (p *Pool) waitsForBlock(o ident.ObjectID) bool {
	if p.cfg.InBlock == nil {
		return false
	}
	held, there := p.cfg.InBlock(o)
	return held && !there
}

// readAhead is one reader.
func (p *Pool) readAhead(ctx context.Context) {
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
		t.read, t.held, t.err = p.readFor(ctx, &t, p.scratch(int(t.size))[:0])
		p.mu.Lock()
		a.busy--
		p.enqueue(t)
		p.workable.Signal()
	}
}

// consumed ends the hold of a task that was read ahead on its bytes.
func (p *Pool) consumed(t *task) {
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

// readFor reads the object of a Prepare task, for the jobs that want it, and measures that, unless the object lies in a
// block that is in memory: that was one read.
func (p *Pool) readFor(ctx context.Context, t *task, buf []byte) (b []byte, held bool, err error) {
	x := t.what.(coordinator.Prepare)
	o := x.Key.Object
	ctx = source.ForReaders(ctx, x.Readers)
	if p.cfg.InBlock != nil {
		if held, _ := p.cfg.InBlock(o); held {
			b, err = p.cfg.Read(ctx, o, buf)
			return b, true, err
		}
	}
	r := p.cfg.Meters.reading()
	b, err = p.cfg.Read(ctx, o, buf)
	r.end(len(b))
	return b, false, err
}

// Ahead is how many bytes are read ahead now, how many were at most, and by how many readers at once.
func (p *Pool) Ahead() (now, peak int64, readers int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.ahead.bytes, p.mu.ahead.peak, p.mu.ahead.most
}
