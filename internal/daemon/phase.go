package daemon

import "sync/atomic"

// phase is how far a daemon is in its life. It moves forward only, and may skip a phase:
//
//	opening ──► serving ──► stopping ──► closed
//	   │           └───────────────────────▲
//	   └───────────────────────────────────┘
type phase uint32

const (
	opening  phase = iota // Open has not returned yet
	serving               // clients are served
	stopping              // no new jobs and clients; running epochs may end, or jobs were left to the next daemon
	closed                // Close was called
)

// life holds the phase of a daemon. It is safe for concurrent use.
type life struct{ phase atomic.Uint32 }

// become moves to a later phase and reports whether it did. A move to the same or an earlier phase changes nothing:
// a drain that begins after Close has nothing left to do.
func (l *life) become(next phase) bool {
	for {
		now := l.phase.Load()
		if now >= uint32(next) {
			return false
		}
		if l.phase.CompareAndSwap(now, uint32(next)) {
			return true
		}
	}
}

// stopping reports whether the daemon takes no more work.
func (l *life) stopping() bool { return phase(l.phase.Load()) >= stopping }
