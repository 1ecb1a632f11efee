package ring

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"larder/internal/session/wire"
)

// Given is a slot that a client gave back in its release words, checked: the client held exactly this batch.
type Given struct {
	Key    Key
	Slot   int
	Gen    uint64
	Waited time.Duration // for the batch, in next()
	Ago    time.Duration // since then, by the client's word; at most the age of the ring
}

// releases reads the release words of a ring. A client can write whatever it likes into them. What counts is only the
// generation of the batch that it holds in that slot, once.
type releases struct {
	mu    sync.Mutex
	words wire.Releases
	board []byte
	made  int64    // nanoseconds of CLOCK_MONOTONIC
	held  []uint64 // by slot: the generation of the batch that was handed over; 0 = it was given back
	sent  uint64   // batches handed over
	read  uint64   // words that gave a slot back
	pace  pace
	known []Given // reused
}

// newReleases returns nil for a ring without a board.
func newReleases(r *Ring) *releases {
	if r.Board == 0 {
		return nil
	}
	mem := r.seg.Bytes()
	return &releases{
		words: wire.NewReleases(mem[r.Releases():], r.Slots), board: mem[r.Board:], made: monotonic(),
		held: make([]uint64, r.Slots), pace: newPace(r.Slots),
	}
}

// monotonic is the clock that client and daemon share; 0 = it cannot be read.
func monotonic() int64 {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) != nil {
		return 0
	}
	return ts.Nano()
}

// lease notes that a batch is about to be handed over: from now on its client may give the slot back.
func (s *releases) lease(slot int, gen uint64, step int, waits bool) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held[slot] = gen
	s.sent++
	s.pace.sent(time.Now(), slot, step, waits)
	wire.SetTellAt(s.board, s.sent-min(s.sent, uint64(s.pace.margin())))
}

// collect appends the slots that the client gave back since the last time.
func (s *releases) collect(k Key, dst []Given) []Given {
	if s == nil {
		return dst
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := int64(0)
	s.known = s.known[:0]
	for i, gen := range s.held {
		if gen == 0 || s.words.Gen(i) != gen {
			continue
		}
		s.held[i] = 0
		if now == 0 {
			now = monotonic()
		}
		waited, at := s.words.Read(i)
		g := Given{Key: k, Slot: i, Gen: gen, Waited: time.Duration(waited) * time.Microsecond}
		if s.made <= at && at <= now { // else the client has another clock, or writes what it likes
			g.Ago = time.Duration(now - at)
		}
		s.known = append(s.known, g)
	}
	slices.SortStableFunc(s.known, func(a, b Given) int { return cmp.Compare(b.Ago, a.Ago) }) // the oldest first
	s.pace.told(time.Now(), s.known)
	if n := len(s.known); n > 0 {
		s.read += uint64(n)
		wire.SetRead(s.board, s.read)
	}
	return append(dst, s.known...)
}

// collect is Set.Collect of one ring; it must be one of the set, or held.
func (r *Ring) collect(k Key, dst []Given) []Given {
	n := len(dst)
	dst = r.given.collect(k, dst)
	for _, g := range dst[n:] {
		r.Reported(g.Slot)
	}
	return dst
}

// Collect returns the slots that the client gave back in release words since the last time. The caller holds the ring.
func (r *Ring) Collect() []Given { return r.collect(r.cfg.Key, nil) }
