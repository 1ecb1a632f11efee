package wire

import (
	"encoding/binary"
	"math/bits"
	"sync/atomic"
	"unsafe"

	"larder/internal/invariant"
)

// The layout of a board, in bytes (docs/protocol.md).
const (
	boardOpen  = 0   // u32, by the client: it reads the board
	boardWaits = 64  // u32, by the client: it is about to sleep on its socket
	boardSince = 72  // u64, by the client: since when its next() waits, nanoseconds of CLOCK_MONOTONIC; 0 = it does not
	boardPosts = 128 // the posts
	postSize   = 64
)

// LastPosts is the bit of a post's frames that says that a GONE is on its way: nothing may be taken unseen any more.
const LastPosts = 1 << 63

// Posts is how many posts the board of a ring of that many slots has: a power of two, and more than can be unread,
// because an unread post keeps its slot.
func Posts(slots int) int { return 1 << bits.Len(uint(slots)) }

// BoardBytes is the size of a board of posts.
func BoardBytes(posts int) int64 { return boardPosts + postSize*int64(posts) }

// Board is the daemon's end of the shared memory in which it posts batches, so that a client finds them without a
// system call. Not safe for concurrent use; the client reads and writes its part at any time, and can harm only itself
// with it.
type Board struct {
	mem   []byte
	posts uint64
	next  uint64 // sequence number of the next post, from 1
}

// NewBoard uses mem, which is 8-byte aligned, zero, and BoardBytes(posts) long; posts is a power of two.
func NewBoard(mem []byte, posts int) *Board {
	if posts < 1 || posts&(posts-1) != 0 || int64(len(mem)) < BoardBytes(posts) ||
		uintptr(unsafe.Pointer(&mem[0]))%8 != 0 {
		invariant.Violated("wire: a board of %d posts in %d bytes", posts, len(mem))
	}
	return &Board{mem: mem, posts: uint64(posts), next: 1}
}

func (b *Board) u32(at int) *uint32    { return (*uint32)(unsafe.Pointer(&b.mem[at])) }
func (b *Board) u64(at uint64) *uint64 { return (*uint64)(unsafe.Pointer(&b.mem[at])) }

func (b *Board) place(seq uint64) uint64 { return boardPosts + (seq-1)%b.posts*postSize }

// WaitsSince is since when the client waits for a batch, by its own word: nanoseconds of CLOCK_MONOTONIC, 0 = it does
// not. It may be called beside Board's methods, with the same memory; false = the client does not read the board.
func WaitsSince(mem []byte) (ns int64, open bool) {
	b := Board{mem: mem}
	return int64(atomic.LoadUint64(b.u64(boardSince))), b.Open()
}

// Open reports whether the client reads the board. Until then batches must be sent as frames.
func (b *Board) Open() bool { return atomic.LoadUint32(b.u32(boardOpen)) != 0 }

// Post shows a batch that lies in segment 0 and has no report. frames is how many of SEGMENT, BATCH, EPOCH_END and GONE
// were sent before it: the client takes it when it has taken those. It reports whether the client has to be woken.
func (b *Board) Post(f BatchFrame, frames uint64) (wake bool) {
	at := b.place(b.next)
	p := b.mem[at : at+postSize]
	le := binary.LittleEndian
	le.PutUint64(p[8:], frames)
	le.PutUint64(p[16:], f.Gen)
	le.PutUint32(p[24:], f.Slot)
	le.PutUint32(p[28:], f.Rows)
	le.PutUint32(p[32:], f.Epoch)
	le.PutUint32(p[36:], f.Step)
	le.PutUint32(p[40:], f.Rank)
	atomic.StoreUint64(b.u64(at), b.next) // the last, so that who sees it sees the rest
	b.next++
	return atomic.SwapUint32(b.u32(boardWaits), 0) != 0
}

// Last marks what is posted: a GONE follows, which may forbid its use.
func (b *Board) Last() {
	for at := uint64(boardPosts); at < boardPosts+b.posts*postSize; at += postSize {
		atomic.OrUint64(b.u64(at+8), LastPosts)
	}
}
