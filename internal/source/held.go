package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"larder/internal/ident"
	"larder/internal/source/packed"
	"larder/internal/spool"
)

// heldBlocks are the blocks that jobs hold in memory. A block is read once, in one piece; the reads of its samples copy
// from it. It is no cache: what is not there is read from storage, as if there were no blocks.
type heldBlocks struct {
	any  atomic.Int32 // blocks that are held: a look that costs nothing
	mu   sync.Mutex   // guards what follows
	byID map[uint32]*heldBlock
	file map[fileKey][]*heldBlock
	used atomic.Int64 // bytes

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
	heldWaiting heldPhase = iota // not requested yet
	heldReading
	heldThere
	heldFailed // its samples are read one by one, and say what is wrong
)

// heldBlock is a block in memory. holders, users and phase are guarded by heldBlocks.mu; data and records are written
// before ready is closed, and unmapped when no read can reach them any more.
type heldBlock struct {
	block

	id      uint32
	room    Room
	holders []Holder // the first began to hold it first
	users   int      // reads that copy from it, or wait for it
	phase   heldPhase
	ready   chan struct{}
	data    []byte       // of a range of bytes
	records *heldRecords // of pieces that are decoded
}

// Room is the memory for blocks. It is safe for concurrent use.
type Room interface {
	// Take takes n bytes, which Give gives back. An error says that they are not there.
	Take(n int64) error
	Give(n int64)
}

// countedRoom counts what is taken of a Room.
type countedRoom struct {
	Room
	used *atomic.Int64
}

func (r countedRoom) Take(n int64) error {
	err := r.Room.Take(n)
	if err == nil {
		r.used.Add(n)
	}
	return err
}

func (r countedRoom) Give(n int64) {
	r.used.Add(-n)
	r.Room.Give(n)
}

// Holder is who holds a block.
type Holder struct {
	ID ident.JobID
	// Read is called when the block has come into memory for this holder, with the bytes that were read from storage,
	// or with the error of Room. It is called by another goroutine, at most once for each time a block comes, and also
	// when the holder has dropped the block meanwhile. nil = no call.
	Read func(bytes int64, err error)
}

// HoldBlock has a block read and kept in memory, until the holder calls DropBlock. It does not wait. The read is that
// of the holder for whom it begins. Where a disk tier may have the samples, a range of bytes is read when a sample is
// asked for that it has not. A block for which there is no room is not there: its samples are read one by one.
func (c *Catalog) HoldBlock(id uint32, room Room, by Holder) {
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
		b = &heldBlock{block: row, id: id, room: countedRoom{room, &h.used}, ready: make(chan struct{})}
		if row.decoded {
			b.records = &heldRecords{room: b.room, pieces: map[string]*piece{}}
		}
		h.byID[id] = b
		h.file[row.file] = append(h.file[row.file], b)
		h.any.Add(1)
	}
	b.holders = append(b.holders, by)
	if b.phase == heldWaiting && (row.decoded || !c.keepsSamples(row.blockRow)) {
		c.fetch(b)
	}
}

// keepsSamples reports whether a disk tier may have samples of a block.
func (c *Catalog) keepsSamples(row blockRow) bool {
	return c.cfg.Kept != nil && isStored(c.rootAt(row.file.root).root)
}

// DropBlock ends what HoldBlock began for a holder.
func (c *Catalog) DropBlock(id uint32, by ident.JobID) {
	h := &c.held
	h.mu.Lock()
	defer h.mu.Unlock()
	b := h.byID[id]
	if b == nil {
		return
	}
	i := slices.IndexFunc(b.holders, func(x Holder) bool { return x.ID == by })
	if i < 0 {
		return
	}
	if b.holders = slices.Delete(b.holders, i, i+1); len(b.holders) > 0 {
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

// free gives the memory back when no read can reach it; h.mu is held.
func (h *heldBlocks) free(b *heldBlock) {
	if len(b.holders) > 0 || b.users > 0 || b.phase == heldReading {
		return
	}
	if b.records != nil {
		b.records.free()
	}
	if b.data == nil {
		return
	}
	n := int64(len(b.data))
	_ = unix.Munmap(b.data) // it was mapped, so nothing can be wrong with it
	b.data = nil
	b.room.Give(n)
}

// fetch begins to read a block for its first holder; h.mu is held.
func (c *Catalog) fetch(b *heldBlock) {
	h := &c.held
	b.phase = heldReading
	by := b.holders[0]
	h.reads.Go(func() {
		var data []byte
		var bytes int64
		var err error
		if b.decoded {
			bytes, err = c.decodeBlock(h.ctx, b)
		} else {
			data, err = c.readBlock(h.ctx, b.blockRow, b.room)
			bytes = int64(len(data))
		}
		h.mu.Lock()
		b.data, b.phase = data, heldThere
		if err != nil {
			b.phase = heldFailed
		}
		h.free(b)
		h.mu.Unlock()
		close(b.ready)
		if by.Read != nil && (errors.Is(err, spool.ErrFull) || err == nil && bytes > 0) {
			by.Read(bytes, err)
		}
	})
}

// readBlock reads a block into memory of its own, for which there must be room.
func (c *Catalog) readBlock(ctx context.Context, b blockRow, room Room) ([]byte, error) {
	n := b.to - b.from
	row, ok := c.objects.get(b.first)
	if !ok || n <= 0 || n > c.cfg.MaxObject {
		return nil, noObject(b.first)
	}
	if err := c.limit.wait(ctx, n); err != nil {
		return nil, err
	}
	data, err := mapFor(n, room)
	if err != nil {
		return nil, err
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
		_ = unix.Munmap(data) // as in free
		room.Give(n)
		return nil, err
	}
	return data, nil
}

// mapFor maps n bytes of memory. spool.ErrFull: there is no room for them.
func mapFor(n int64, room Room) ([]byte, error) {
	if err := room.Take(n); err != nil {
		return nil, fmt.Errorf("%w: %w", spool.ErrFull, err)
	}
	data, err := unix.Mmap(-1, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		room.Give(n)
		return nil, fmt.Errorf("memory for a block of %d bytes: %w", n, err)
	}
	return data, nil
}

// take finds the held block with bytes off to off+n of a file, and has it stay until leave; nil = none has them.
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

// leave ends what take began.
func (c *Catalog) leave(b *heldBlock) {
	h := &c.held
	h.mu.Lock()
	defer h.mu.Unlock()
	b.users--
	h.free(b)
}

// copyHeld fills buf with the bytes of a file from off on, from the block that holds them. It waits while that is being
// read. False = they are to be read from storage.
func (c *Catalog) copyHeld(ctx context.Context, file fileKey, off int64, buf []byte) bool {
	b := c.take(file, off, int64(len(buf)))
	if b == nil {
		return false
	}
	defer c.leave(b)
	if b.decoded { // it holds no bytes of the file, and may be what this read is for
		return false
	}
	select {
	case <-b.ready:
		if b.data != nil { // users keeps it
			copy(buf, b.data[off-b.from:])
			return true
		}
	case <-ctx.Done():
	}
	return false
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

// find is the block with bytes off to off+n of a file, or with the sample at off of one that is decoded; h.mu is held.
func (h *heldBlocks) find(file fileKey, off, n int64) *heldBlock {
	for _, b := range h.file[file] {
		if b.from <= off && (b.decoded && off < b.to || !b.decoded && off+n <= b.to) && b.phase != heldFailed {
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
