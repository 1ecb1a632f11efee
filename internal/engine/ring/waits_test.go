package ring

import (
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"larder/internal/session/wire"
	"larder/internal/shm"
)

// TestRingKnowsWhoWaits: what a client wrote on its board counts, unless it cannot be.
func TestRingKnowsWhoWaits(t *testing.T) {
	seg, err := shm.Create("larder-test", 8192)
	if err != nil {
		t.Fatal(err)
	}
	defer seg.Release()
	r := &Ring{Layout: Layout{Board: 4096}, seg: seg, made: time.Now().Add(-time.Minute), waited: make([]atomic.Int64, 2)}
	since := (*uint64)(unsafe.Pointer(&seg.Bytes()[4096+72]))
	write := func(ago time.Duration) {
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
			t.Fatal(err)
		}
		atomic.StoreUint64(since, uint64(ts.Nano()-int64(ago)))
	}
	if _, known := r.WaitNow(); known {
		t.Error("the board is not open")
	}
	wire.NewBoard(seg.Bytes()[4096:], 4)
	seg.Bytes()[4096] = 1
	if d, known := r.WaitNow(); !known || d != 0 {
		t.Errorf("it does not wait: %v, %v", d, known)
	}
	write(30 * time.Second)
	if d, known := r.WaitNow(); !known || d < 30*time.Second || d > 45*time.Second {
		t.Errorf("it waits: %v, %v", d, known)
	}
	r.noteWait(1)
	if d := r.Unreported(); d < 30*time.Second {
		t.Errorf("it has waited %v for the batch that it has", d)
	}
	for _, ago := range []time.Duration{-time.Hour, time.Hour} {
		write(ago)
		if d, known := r.WaitNow(); known {
			t.Errorf("a client with another clock waits for %v", d)
		}
	}
}
