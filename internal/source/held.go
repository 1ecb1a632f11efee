package source

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"larder/internal/ident"
	"larder/internal/source/packed"
)

// heldBlocks are the blocks that jobs hold in memory. A block is read once, in one piece; the reads of its samples copy
// from it. It is no cache: what is not there is read from storage, as if there were no blocks.
type heldBlocks struct {
	any  atomic.Int32 // blocks that are held: a look that costs nothing
	mu   sync.Mutex   // guards what follows
	byID map[uint32]*heldBlock
	file map[fileKey][]*heldBlock
	used int64 // bytes

	reads  sync.WaitGroup
	ctx    context.Context //nolint:containedctx // of all reads; ends with the catalogue
	cancel context.CancelFunc
	closed bool
}

// heldPhase is the life of a held block:
//
//	waiting -> reading -> there | failed
type heldPhase uint8

const (
	heldWaiting heldPhase = iota // nobody has asked for it yet
	heldReading
	heldThere
	heldFailed // its samples are read one by one, and say what is wrong
)

// heldBlock is a block in memory. refs and users and phase are guarded by heldBlocks.mu; data is written before ready
// is closed, and unmapped when nobody can come to it any more.
type heldBlock struct {
	blockRow
	id    uint32
	refs  int // jobs that hold it
	users int // reads that copy from it, or wait for it
	phase heldPhase
	ready chan struct{}
	data  []byte
	done  func(bytes int64)
}

// HoldBlock has a block read and kept in memory, until as many calls of DropBlock. It does not wait. done is called
// when the bytes were read from storage; it may be called by another goroutine, at most once for each time the block
// comes into memory. Where a disk tier may have the samples, the block is read when one is asked for that it has not.
func (c *Catalog) HoldBlock(id uint32, done func(bytes int64)) {
	row, ok := c.layouts.row(id)
	if !ok {
		return
	}
	h := &c.held
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	b := h.byID[id]
	if b == nil {
		if h.byID == nil {
			h.byID, h.file = map[uint32]*heldBlock{}, map[fileKey][]*heldBlock{}
			h.ctx, h.cancel = context.WithCancel(context.Background())
		}
		b = &heldBlock{blockRow: row, id: id, ready: make(chan struct{}), done: done}
		h.byID[id] = b
		h.file[row.file] = append(h.file[row.file], b)
		h.any.Add(1)
	}
	b.refs++
	if b.phase == heldWaiting && !c.keepsSamples(row) {
		c.fetch(b)
	}
}

// keepsSamples reports whether a disk tier may have samples of a block.
func (c *Catalog) keepsSamples(row blockRow) bool {
	return c.cfg.Kept != nil && isStored(c.rootAt(row.file.root).root)
}

// DropBlock ends what one HoldBlock began.
func (c *Catalog) DropBlock(id uint32) {
	h := &c.held
	h.mu.Lock()
	defer h.mu.Unlock()
	b := h.byID[id]
	if b == nil {
		return
	}
	if b.refs--; b.refs > 0 {
		return
	}
	delete(h.byID, id)
	h.file[b.file] = slices.DeleteFunc(h.file[b.file], func(o *heldBlock) bool { return o == b })
	if len(h.file[b.file]) == 0 {
		delete(h.file, b.file)
	}
	h.any.Add(-1)
	h.free(b)
}

// free gives the memory back when nobody can come to it; h.mu is held.
func (h *heldBlocks) free(b *heldBlock) {
	if b.refs > 0 || b.users > 0 || b.phase == heldReading || b.data == nil {
		return
	}
	h.used -= int64(len(b.data))
	_ = unix.Munmap(b.data) // it was mapped, so nothing can be wrong with it
	b.data = nil
}

// fetch begins to read a block; h.mu is held.
func (c *Catalog) fetch(b *heldBlock) {
	h := &c.held
	b.phase = heldReading
	h.reads.Go(func() {
		data, err := c.readBlock(h.ctx, b.blockRow)
		h.mu.Lock()
		b.data, b.phase = data, heldThere
		h.used += int64(len(data))
		if err != nil {
			b.phase = heldFailed
		}
		h.free(b)
		h.mu.Unlock()
		close(b.ready)
		if err == nil && b.done != nil {
			b.done(b.to - b.from)
		}
	})
}

// readBlock reads a block into memory of its own.
func (c *Catalog) readBlock(ctx context.Context, b blockRow) ([]byte, error) {
	n := b.to - b.from
	row, ok := c.objects.get(b.first)
	if !ok || n <= 0 || n > c.cfg.MaxObject {
		return nil, noObject(b.first)
	}
	if err := c.limit.wait(ctx, n); err != nil {
		return nil, err
	}
	data, err := unix.Mmap(-1, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("memory for a block of %d bytes: %w", n, err)
	}
	if isStored(c.rootAt(row.root).root) {
		err = c.readStored(ctx, b.first, row, b.from-row.off, data)
	} else {
		err = c.withFile(b.first, row, func(fd int, state fileState) error {
			if err := c.preadFull(ctx, fd, data, b.from); err != nil {
				return err
			}
			return c.unchanged(fd, state)
		})
	}
	if err != nil {
		_ = unix.Munmap(data) // as above
		return nil, err
	}
	return data, nil
}

// take finds the held block with bytes off to off+n of a file, and has it stay until give; nil = none has them.
func (c *Catalog) take(file fileKey, off, n int64) *heldBlock {
	h := &c.held
	if h.any.Load() == 0 {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	b := h.find(file, off, n)
	if b == nil || b.phase == heldWaiting && h.closed {
		return nil
	}
	b.users++
	if b.phase == heldWaiting {
		c.fetch(b)
	}
	return b
}

// copyHeld fills buf with the bytes of a file from off on, from the block that holds them. It waits while that is being
// read. False = they are to be read from storage.
func (c *Catalog) copyHeld(ctx context.Context, file fileKey, off int64, buf []byte) bool {
	b := c.take(file, off, int64(len(buf)))
	if b == nil {
		return false
	}
	filled := false
	select {
	case <-b.ready:
		if b.data != nil { // users keeps it
			copy(buf, b.data[off-b.from:])
			filled = true
		}
	case <-ctx.Done():
	}
	h := &c.held
	h.mu.Lock()
	defer h.mu.Unlock()
	b.users--
	h.free(b)
	return filled
}

// InBlock reports whether a block that is held has the object, so that it is not read by itself, and whether its bytes
// are there: else Read waits for them.
func (c *Catalog) InBlock(x ident.ObjectID) (held, there bool) {
	h := &c.held
	if h.any.Load() == 0 {
		return false, false
	}
	file, row, ok := c.fileOf(x)
	if !ok {
		return false, false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if b := h.find(file, row.off, row.size); b != nil {
		return true, b.phase == heldThere
	}
	return false, false
}

// find is the block with bytes off to off+n of a file; h.mu is held.
func (h *heldBlocks) find(file fileKey, off, n int64) *heldBlock {
	for _, b := range h.file[file] {
		if b.from <= off && off+n <= b.to && b.phase != heldFailed {
			return b
		}
	}
	return nil
}

// close ends reads; what is held stays until it is dropped.
func (h *heldBlocks) close() {
	h.mu.Lock()
	h.closed = true
	cancel := h.cancel
	h.mu.Unlock()
	if cancel != nil {
		cancel()
	}
	h.reads.Wait()
}

// blockReader reads a packed file of records: what a held block has, from there. Where the file lies in a store, the
// disk tier is asked before, so that a block is read when something of it is not there, and has what came from a block.
type blockReader struct {
	io.ReaderAt
	reads   *openReads
	catalog *Catalog
	file    fileKey
}

var _ packed.ContextReader = (*blockReader)(nil)

// ReadAt implements io.ReaderAt.
func (r *blockReader) ReadAt(p []byte, off int64) (int, error) {
	return r.ReadAtContext(r.reads.ctx, p, off)
}

// ReadAtContext implements packed.ContextReader.
func (r *blockReader) ReadAtContext(ctx context.Context, p []byte, off int64) (int, error) {
	stored, _ := r.ReaderAt.(*storedFile)
	if len(p) > 0 && r.catalog.held.any.Load() > 0 && (stored == nil || off+int64(len(p)) <= stored.in.Size) {
		if stored != nil && stored.get(ctx, p, off) {
			return len(p), nil
		}
		if r.catalog.copyHeld(ctx, r.file, off, p) {
			if stored != nil {
				stored.put(ctx, p, off)
			}
			return len(p), nil
		}
	}
	if in, ok := r.ReaderAt.(packed.ContextReader); ok {
		return in.ReadAtContext(ctx, p, off)
	}
	return r.ReaderAt.ReadAt(p, off)
}
