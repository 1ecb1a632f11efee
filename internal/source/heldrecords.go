package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"larder/internal/source/packed"
	"larder/internal/spool"
)

// heldRecords are what formats keep of the pieces of a held block: of each row group, record batch or compressed file
// what they would keep in a spool, in memory and not on a disk. It is a spool.Spool.
type heldRecords struct {
	room   Room
	single spool.Single

	mu     sync.Mutex // guards what follows
	pieces map[string]*piece
	full   error // why no piece may be made any more
}

// The memory of a piece is mapped in chunks that double, so that a small piece takes little.
const (
	leastChunk = 16 << 10
	mostChunk  = 1 << 20
	perRecord  = 24 // what a record takes beside its bytes
	recordStep = 512
)

// piece is the records of one piece. It does not change once it is made.
type piece struct {
	room    Room
	chunks  [][]byte
	left    []byte // of the last chunk
	records [][]byte
	bytes   int64
}

// add takes memory for a record of n bytes. spool.ErrFull: there is no room for it.
func (p *piece) add(n int) ([]byte, error) {
	if len(p.records)%recordStep == 0 {
		if err := p.room.Take(recordStep * perRecord); err != nil {
			return nil, fmt.Errorf("%w: %w", spool.ErrFull, err)
		}
		p.bytes += recordStep * perRecord
	}
	if n > len(p.left) {
		size := min(leastChunk<<min(len(p.chunks), 10), mostChunk)
		page := os.Getpagesize()
		size = max(size, (n+page-1)/page*page)
		c, err := mapFor(int64(size), p.room)
		if err != nil {
			return nil, err
		}
		p.bytes += int64(size)
		p.chunks, p.left = append(p.chunks, c), c
	}
	b := p.left[:n:n]
	p.left = p.left[n:]
	p.records = append(p.records, b)
	return b, nil
}

// Add implements spool.Writer.
func (p *piece) Add(record []byte) error {
	b, err := p.add(len(record))
	copy(b, record)
	return err
}

// Fill implements spool.Filler.
func (p *piece) Fill(n int) ([]byte, error) { return p.add(n) }

// free gives the memory back.
func (p *piece) free() {
	for _, c := range p.chunks {
		_ = unix.Munmap(c) // it was mapped, so nothing can be wrong with it
	}
	p.room.Give(p.bytes)
	*p = piece{}
}

// Len implements spool.Reader.
func (p *piece) Len() int { return len(p.records) }

// Record implements spool.Reader.
func (p *piece) Record(dst []byte, i int) ([]byte, error) {
	b, err := p.View(i)
	return append(dst, b...), err
}

// View implements spool.Viewer. The holder of the block keeps the bytes.
func (p *piece) View(i int) ([]byte, error) {
	if err := spool.CheckIndex(i, len(p.records)); err != nil {
		return nil, err
	}
	return p.records[i], nil
}

// Close implements spool.Reader.
func (p *piece) Close() error { return nil }

var (
	_ spool.Filler = (*piece)(nil)
	_ spool.Viewer = (*piece)(nil)
)

// Block implements spool.Spool.
func (r *heldRecords) Block(ctx context.Context, key string, make spool.Make) (spool.Reader, error) {
	if p, err := r.find(key); p != nil || err != nil {
		return p, err
	}
	got, err := r.single.Do(ctx, key, func() (any, error) {
		if p, err := r.find(key); p != nil || err != nil {
			return p, err
		}
		p := &piece{room: r.room}
		err := make(ctx, p)
		r.mu.Lock()
		defer r.mu.Unlock()
		if err != nil {
			p.free()
			if errors.Is(err, spool.ErrFull) {
				r.full = err
			}
			return nil, err
		}
		r.pieces[key] = p
		return p, nil
	})
	if err != nil {
		return nil, err
	}
	return got.(*piece), nil
}

func (r *heldRecords) find(key string) (*piece, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pieces[key], r.full
}

// noRoom is why there is no room for the block; nil = there is.
func (r *heldRecords) noRoom() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.full
}

// used is how many bytes of memory all pieces take.
func (r *heldRecords) used() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := int64(0)
	for _, p := range r.pieces { // order-free
		n += p.bytes
	}
	return n
}

// free gives all memory back.
func (r *heldRecords) free() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.pieces { // order-free
		p.free()
	}
	clear(r.pieces)
}

// decodeBlock reads and decodes the pieces of a block, and returns the bytes that were read from storage. A piece that
// cannot be decoded is not there: its samples say what is wrong. spool.ErrFull: there is no room.
func (c *Catalog) decodeBlock(ctx context.Context, b *heldBlock) (int64, error) {
	count := &readCount{}
	if !isStored(c.rootAt(b.file.root).root) { // what is read from stores waits by itself
		count.wait = c.limit.wait
	}
	ctx = context.WithValue(spool.WithHeld(ctx, b.records), readCountKey{}, count)
	for _, x := range b.pieces {
		if row, ok := c.objects.get(x); ok {
			_, _ = c.recordOf(ctx, c.rootAt(row.root), x, row.sample, nil) // the sample's own read has the error
		}
		if err := cmp.Or(ctx.Err(), b.records.noRoom()); err != nil {
			return count.bytes.Load(), err
		}
	}
	if used := b.records.used(); used > 0 {
		c.layouts.learn(b.id, used)
	}
	return count.bytes.Load(), nil
}

// withHeld returns a context for a read of a sample of a file, in which its records come from the block that holds it,
// when that is there. The caller calls end when it has read.
func (c *Catalog) withHeld(ctx context.Context, file fileKey, off int64) (within context.Context, end func()) {
	h, none := &c.held, func() {}
	if h.any.Load() == 0 || spool.HeldIn(ctx) != nil {
		return ctx, none
	}
	h.mu.Lock()
	b := h.find(file, off, 1)
	if b == nil || !b.decoded {
		h.mu.Unlock()
		return ctx, none
	}
	b.users++
	h.mu.Unlock()
	select {
	case <-b.ready:
	case <-ctx.Done():
		c.leave(b)
		return ctx, none
	}
	h.mu.Lock()
	there := b.phase == heldThere
	h.mu.Unlock()
	if !there {
		c.leave(b)
		return ctx, none
	}
	return spool.WithHeld(ctx, b.records), func() { c.leave(b) }
}

// readCount is what is read from storage for a block, in the context of its reads.
type readCount struct {
	bytes atomic.Int64
	wait  func(ctx context.Context, n int64) error // for the storage limit; nil = it is waited for elsewhere
}

// countRead counts bytes that were read from storage, and waits for the storage limit.
func countRead(ctx context.Context, n int) error {
	c, _ := ctx.Value(readCountKey{}).(*readCount)
	if c == nil || n <= 0 {
		return nil
	}
	c.bytes.Add(int64(n))
	if c.wait == nil {
		return nil
	}
	return c.wait(ctx, int64(n))
}

type readCountKey struct{}

// countedFile is a file of the file system whose reads are counted where they are for a block.
type countedFile struct{ io.ReaderAt }

var _ packed.ContextReader = countedFile{}

// ReadAtContext implements packed.ContextReader.
func (f countedFile) ReadAtContext(ctx context.Context, p []byte, off int64) (int, error) {
	n, err := f.ReadAt(p, off)
	return n, cmp.Or(countRead(ctx, n), err)
}

// countedOther is countedFile beside another file.
type countedOther struct {
	packed.Other
	countedFile
}

// ReadAt implements io.ReaderAt.
func (o countedOther) ReadAt(p []byte, off int64) (int, error) { return o.Other.ReadAt(p, off) }
