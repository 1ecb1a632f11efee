package client

import (
	"math"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"larder/internal/session/wire"
	larderv1 "larder/proto/larder/v1"
)

// releases gives slots back in the release words of a ring (docs/protocol.md), and knows when the daemon must be told.
// It is safe for concurrent use. The words lie in segment 0: who writes one holds a reference to that.
type releases struct {
	words wire.Releases
	board []byte

	mu      sync.Mutex
	taken   uint64 // batches
	given   uint64 // words that were written
	told    uint64 // of them, those that the daemon was told of
	sleeps  bool   // Next waits
	present bool   // the ring has words
}

// open uses the words that RING announces, in segment 0; without any it does nothing.
func (r *releases) open(info *larderv1.AttachResponse, mem []byte) error {
	at, board, size := info.GetReleases(), info.GetBoard(), uint64(len(mem))
	if at == 0 {
		return nil
	}
	need := uint64(wire.ReleaseBytes(int(info.GetSlots())))
	if at%8 != 0 || at > size || size-at < need || board == 0 || board%8 != 0 || board >= at || at-board < 64 {
		return wire.Violation("RING has the release words of %d slots at byte %d of %d", info.GetSlots(), at, size)
	}
	r.words, r.board, r.present = wire.NewReleases(mem[at:], int(info.GetSlots())), mem[board:at], true
	return nil
}

// took notes that a batch has left the queue.
func (r *releases) took() {
	r.mu.Lock()
	r.taken++
	r.mu.Unlock()
}

// give writes the word of a slot. It reports whether the daemon must be told.
func (r *releases) give(slot uint32, gen uint64, waited time.Duration) (tell bool) {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // zero = not said
	r.mu.Lock()
	defer r.mu.Unlock()
	r.words.Write(slot, gen, uint32(min(max(waited.Microseconds(), 0), math.MaxUint32)), now.Nano())
	r.given++
	if !r.sleeps && r.taken < wire.TellAt(r.board) {
		return false
	}
	r.told = r.given
	return true
}

// sleep notes that Next is about to wait. It reports whether the daemon must be told.
func (r *releases) sleep() (tell bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sleeps = true
	tell = r.told != r.given
	r.told = r.given
	return tell
}

// wake notes that Next waits no more.
func (r *releases) wake() {
	r.mu.Lock()
	r.sleeps = false
	r.mu.Unlock()
}
