package wire

import (
	"sync/atomic"
	"unsafe"

	"larder/internal/invariant"
)

// The layout of the release words, in bytes (docs/protocol.md). They lie behind a board, one record for each slot.
const (
	releaseAt     = 0  // u64, by the client: when it gave the slot back, nanoseconds of CLOCK_MONOTONIC; 0 = not said
	releaseWaited = 8  // u32, by the client: microseconds that it waited for the batch (saturating)
	releaseGen    = 16 // u64, by the client, written last: the generation that it gives back
	releaseSize   = 32

	boardTellAt = 8  // u64 of the board, by the daemon: see TellAt
	boardRead   = 16 // u64 of the board, by the daemon: see SetRead
)

// ReleaseBytes is the size of the release words of a ring.
func ReleaseBytes(slots int) int64 { return releaseSize * int64(slots) }

// Releases is one end of the shared memory in which a client gives slots back without a system call. Both ends may use
// it at the same time. The client writes what it likes: what is read here is a claim, to be compared with what the
// daemon knows.
type Releases struct{ mem []byte }

// NewReleases uses mem, which is 8-byte aligned and at least ReleaseBytes(slots) long.
func NewReleases(mem []byte, slots int) Releases {
	if n := ReleaseBytes(slots); slots < 1 || int64(len(mem)) < n || uintptr(unsafe.Pointer(&mem[0]))%8 != 0 {
		invariant.Violated("wire: %d bytes for the release words of %d slots", len(mem), slots)
	}
	return Releases{mem[:ReleaseBytes(slots)]}
}

func (r Releases) u64(at int) *uint64 { return (*uint64)(unsafe.Pointer(&r.mem[at])) }
func (r Releases) u32(at int) *uint32 { return (*uint32)(unsafe.Pointer(&r.mem[at])) }

// Write gives a slot back. at is the time, nanoseconds of CLOCK_MONOTONIC; waited is microseconds.
func (r Releases) Write(slot uint32, gen uint64, waited uint32, at int64) {
	p := int(slot) * releaseSize
	atomic.StoreUint64(r.u64(p+releaseAt), uint64(at))
	atomic.StoreUint32(r.u32(p+releaseWaited), waited)
	atomic.StoreUint64(r.u64(p+releaseGen), gen) // the last, so that who sees it sees the rest
}

// Gen is the generation of a slot that was given back last, by the word of the client.
func (r Releases) Gen(slot int) uint64 {
	return atomic.LoadUint64(r.u64(slot*releaseSize + releaseGen))
}

// Read is the rest of a slot's record; see Write.
func (r Releases) Read(slot int) (waited uint32, at int64) {
	p := slot * releaseSize
	return atomic.LoadUint32(r.u32(p + releaseWaited)), int64(atomic.LoadUint64(r.u64(p + releaseAt)))
}

// TellAt is when a client tells the daemon of the slots that it gave back: once it has taken so many batches of the
// attachment, posts and BATCH frames alike. It is the daemon's, a hint. mem is the board.
func TellAt(mem []byte) uint64 {
	return atomic.LoadUint64((*uint64)(unsafe.Pointer(&mem[boardTellAt])))
}

// SetRead writes how many words the daemon has read, of those that gave a slot back: what it has read it need not be
// told of. mem is the board.
func SetRead(mem []byte, n uint64) {
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&mem[boardRead])), n)
}

// SetTellAt writes it.
func SetTellAt(mem []byte, taken uint64) {
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&mem[boardTellAt])), taken)
}
