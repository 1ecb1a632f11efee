package wire

import (
	"encoding/binary"
	"runtime"
	"sync/atomic"
	"testing"
	"unsafe"
)

func aligned(n int64) []byte {
	words := make([]uint64, n/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), n)
}

// TestPostBytes pins the layout of docs/protocol.md: Python reads the same bytes.
func TestPostBytes(t *testing.T) {
	mem := aligned(BoardBytes(2))
	b := NewBoard(mem, 2)
	if _, open := WaitsSince(mem); b.Open() || open {
		t.Error("a board is open before its client opened it")
	}
	mem[0] = 1
	if !b.Open() {
		t.Error("the client opened it")
	}
	if b.Post(BatchFrame{Slot: 4, Gen: 3, Epoch: 6, Step: 7, Rank: 8, Rows: 5}, 2) {
		t.Error("no reader waits")
	}
	want := "\x01\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x00" +
		"\x04\x00\x00\x00\x05\x00\x00\x00\x06\x00\x00\x00\x07\x00\x00\x00\x08\x00\x00\x00"
	if got := string(mem[128 : 128+44]); got != want {
		t.Errorf("%x, want %x", got, want)
	}
	if since, open := WaitsSince(mem); since != 0 || !open {
		t.Errorf("it waits since %d, open %v", since, open)
	}
	copy(mem[72:], "\x01\x02\x00\x00\x00\x00\x00\x00")
	if since, open := WaitsSince(mem); since != 0x201 || !open {
		t.Errorf("it waits since %d, open %v", since, open)
	}
	mem[64] = 1
	if !b.Post(BatchFrame{}, 2) || mem[64] != 0 {
		t.Error("a client that waits is woken once")
	}
	if b.Post(BatchFrame{}, 2); binary.LittleEndian.Uint64(mem[128:]) != 3 {
		t.Error("the third post of two goes where the first one was")
	}
	b.Last()
	for at := 128; at < len(mem); at += postSize {
		if frames := binary.LittleEndian.Uint64(mem[at+8:]); frames != 2|LastPosts {
			t.Errorf("%x frames after Last", frames)
		}
	}
}

// TestPostsHoldAllThatIsUnread: a post that was not read keeps its slot, so there are never as many as the board has.
func TestPostsHoldAllThatIsUnread(t *testing.T) {
	for slots := 1; slots < 5000; slots++ {
		if n := Posts(slots); n&(n-1) != 0 || n <= slots || n > 2*slots {
			t.Fatalf("%d posts for %d slots", n, slots)
		}
	}
}

// TestPostsAreWhole: a reader that sees a number sees what belongs to it, while the poster continues.
func TestPostsAreWhole(t *testing.T) {
	const slots, rounds = 3, 3_000
	n := Posts(slots)
	mem := aligned(BoardBytes(n))
	b := NewBoard(mem, n)
	var taken atomic.Uint64
	go func() {
		for i := uint64(1); i <= rounds; i++ {
			for i > taken.Load()+slots {
				runtime.Gosched()
			}
			b.Post(BatchFrame{Gen: i * 3, Slot: uint32(i % slots), Step: uint32(i)}, i/7)
		}
	}()
	for i := uint64(1); i <= rounds; i++ {
		at := 128 + (i-1)%uint64(n)*postSize
		for atomic.LoadUint64((*uint64)(unsafe.Pointer(&mem[at]))) != i {
			runtime.Gosched()
		}
		p := mem[at : at+postSize]
		le := binary.LittleEndian
		if le.Uint64(p[8:]) != i/7 || le.Uint64(p[16:]) != i*3 || le.Uint32(p[24:]) != uint32(i%slots) ||
			le.Uint32(p[36:]) != uint32(i) {
			t.Fatalf("post %d: %x", i, p)
		}
		taken.Store(i)
	}
}
