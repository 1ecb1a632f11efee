package store

import (
	"context"
	"io"
	"sync"
)

const (
	// aheadFirst is how much of an object is read at first, and aheadLeast after a jump: a few headers of a tar file.
	aheadFirst = 64 << 10
	aheadLeast = 16 << 10
	// aheadMost is the size that blocks grow to while reads go on where the last ones ended, and the shortest read that is
	// a request of its own. It divides an object into requests that take longer than their latency.
	aheadMost = 1 << 20
	// aheadBlocks is how many blocks of that size are under way beyond the one that is read.
	aheadBlocks = 2
	// skipOver is the distance that is cheaper to leave out than to read: at 30 ms a request and 32 readers beside each
	// other a request takes the time of 256 KiB at 2 Gbit/s.
	skipOver = 256 << 10
)

// Ahead is an object as an io.ReaderAt for a reader that goes through it from the front and leaves parts out, as the
// index of a tar file does. Small reads are taken from blocks, which grow while the reader goes on, and are fetched
// ahead of it; parts of at least 256 KiB that it leaves out are not fetched. Safe for concurrent use, for which it is
// not made. Its context is that of every read; Close ends what is under way.
type Ahead struct {
	// Over has parts that are left out and are shorter than that fetched as well, for one who keeps what is read. It is
	// set before the first read.
	Over bool

	ctx  context.Context //nolint:containedctx // io.ReaderAt has no place for it
	end  context.CancelFunc
	s    Store
	in   Info
	work sync.WaitGroup

	mu   sync.Mutex // guards what follows
	size int
	have []*aheadBlock // neighbours: each begins where the one before it ends; the first one is complete
}

type aheadBlock struct {
	off    int64
	buf    []byte
	done   chan struct{}
	err    error // once done is closed
	cancel context.CancelFunc
}

func (b *aheadBlock) to() int64 { return b.off + int64(len(b.buf)) }

// NewAhead returns a reader of an object that was listed. Close it.
func NewAhead(ctx context.Context, s Store, in Info) *Ahead {
	ctx, end := context.WithCancel(ctx)
	return &Ahead{ctx: ctx, end: end, s: s, in: in}
}

// Close ends reads that are under way.
func (a *Ahead) Close() error {
	a.end()
	a.work.Wait()
	return nil
}

// ReadAt implements io.ReaderAt.
func (a *Ahead) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, negative(a.in.Key, off)
	}
	if len(p) >= aheadMost {
		return a.s.ReadRange(a.ctx, a.in, off, p)
	}
	p, eof := clip(a.in.Size, off, p)
	a.mu.Lock()
	defer a.mu.Unlock()
	for n := 0; n < len(p); {
		b, err := a.at(off + int64(n))
		if err != nil {
			return n, err
		}
		n += copy(p[n:], b.buf[off+int64(n)-b.off:])
	}
	return len(p), eof
}

// at returns the block that holds a byte, which may take a request. The caller holds mu.
func (a *Ahead) at(off int64) (*aheadBlock, error) {
	last := int64(0)
	if len(a.have) > 0 {
		last = a.have[len(a.have)-1].to()
	}
	switch {
	case len(a.have) > 0 && off >= a.have[0].off && off < last:
		for off >= a.have[0].to() {
			a.drop(1)
		}
	default:
		goesOn := len(a.have) > 0 && off >= last && off-last < skipOver
		a.drop(len(a.have))
		from := off
		switch {
		case goesOn:
			a.size = min(2*a.size, aheadMost)
			if a.Over {
				from = last
			}
		case off == 0:
			a.size = aheadFirst
		default:
			a.size = aheadLeast
		}
		a.fetch(from, max(int64(a.size), off-from+aheadLeast))
	}
	for a.size == aheadMost && len(a.have) <= aheadBlocks && a.have[len(a.have)-1].to() < a.in.Size {
		a.fetch(a.have[len(a.have)-1].to(), aheadMost)
	}
	b := a.have[0]
	<-b.done
	if b.err != nil {
		a.drop(len(a.have)) // another read may try again
		return nil, b.err
	}
	return b, nil
}

// drop forgets the first n blocks.
func (a *Ahead) drop(n int) {
	for _, b := range a.have[:n] {
		b.cancel()
	}
	a.have = a.have[n:]
}

// fetch begins to read a block of so many bytes at off.
func (a *Ahead) fetch(off, size int64) {
	b := &aheadBlock{off: off, buf: make([]byte, min(size, a.in.Size-off)), done: make(chan struct{})}
	var ctx context.Context
	ctx, b.cancel = context.WithCancel(a.ctx)
	a.have = append(a.have, b)
	a.work.Go(func() {
		defer close(b.done)
		defer b.cancel()
		_, b.err = a.s.ReadRange(ctx, a.in, off, b.buf)
		if b.err == io.EOF { //nolint:errorlint // ReadRange gives it bare; a block is never longer than the object
			b.err = nil
		}
	})
}
