package engine

import (
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"larder/internal/session/wire"
	"larder/internal/shm"
)

// TestMachine: what workers and storage do now, and did over the last second.
func TestMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMeters(3, 2)
		near := func(what string, got, want float64) {
			t.Helper()
			if math.Abs(got-want) > 0.02 {
				t.Errorf("%s: %.3f, want %.3f", what, got, want)
			}
		}
		a := m.reading()
		time.Sleep(3 * time.Second)
		b := m.reading()
		time.Sleep(2 * time.Second)
		got := m.machine()
		if got.Reads != 2 || got.Busy != 0 || got.Oldest != 5*time.Second {
			t.Errorf("%+v", got)
		}
		near("storage", got.Storage, 1)
		near("cores", got.Cores, 0)
		a.end(10)
		if got = m.machine(); got.Reads != 1 || got.Oldest != 2*time.Second {
			t.Errorf("%+v", got)
		}
		b.end(10)
		var p [3]piece
		for i := range p {
			p[i] = m.workOn(recipeKey{1, 2, 3}, stepDecode)
		}
		time.Sleep(10 * time.Second)
		got = m.machine()
		if got.Reads != 0 || got.Oldest != 0 || got.Busy != 3 {
			t.Errorf("%+v", got)
		}
		near("storage", got.Storage, 0)
		near("cores", got.Cores, 1) // there are two, and three workers
		p[0].end(0, true)
		p[1].end(0, true)
		time.Sleep(10 * time.Second)
		near("one of two cores", m.machine().Cores, 0.5)
		p[2].end(0, true)
		time.Sleep(time.Second)
		near("a second later", m.machine().Cores, 0.5/math.E)
	})
}

// TestRingKnowsWhoWaits: what a client wrote on its board counts, unless it cannot be.
func TestRingKnowsWhoWaits(t *testing.T) {
	seg, err := shm.Create("larder-test", 8192)
	if err != nil {
		t.Fatal(err)
	}
	defer seg.Release()
	r := &ring{layout: layout{board: 4096}, seg: seg, made: time.Now().Add(-time.Minute), waited: make([]atomic.Int64, 2)}
	since := (*uint64)(unsafe.Pointer(&seg.Bytes()[4096+72]))
	write := func(ago time.Duration) {
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
			t.Fatal(err)
		}
		atomic.StoreUint64(since, uint64(ts.Nano()-int64(ago)))
	}
	if _, known := r.waiting(); known {
		t.Error("the board is not open")
	}
	wire.NewBoard(seg.Bytes()[4096:], 4)
	seg.Bytes()[4096] = 1
	if d, known := r.waiting(); !known || d != 0 {
		t.Errorf("it does not wait: %v, %v", d, known)
	}
	write(30 * time.Second)
	if d, known := r.waiting(); !known || d < 30*time.Second || d > 45*time.Second {
		t.Errorf("it waits: %v, %v", d, known)
	}
	r.owes(1)
	if d := r.owed(); d < 30*time.Second {
		t.Errorf("it has waited %v for the batch that it has", d)
	}
	for _, ago := range []time.Duration{-time.Hour, time.Hour} {
		write(ago)
		if d, known := r.waiting(); known {
			t.Errorf("a client with another clock waits for %v", d)
		}
	}
}
