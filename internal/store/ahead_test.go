package store

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"testing"

	"larder/internal/xrand"
)

// counted is an object in memory that counts what is read of it.
type counted struct {
	Store
	mu       sync.Mutex
	b        []byte
	requests int
	bytes    int64
	fail     error // of the next read
}

func (c *counted) ReadRange(ctx context.Context, in Info, off int64, buf []byte) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests++
	if err := c.fail; err != nil {
		c.fail = nil
		return 0, err
	}
	buf, eof := clip(in.Size, off, buf)
	c.bytes += int64(len(buf))
	copy(buf, c.b[min(off, int64(len(c.b))):])
	return len(buf), eof
}

// Every read gives the bytes of the object, whatever came before it.
func TestReadsAheadAreRight(t *testing.T) {
	for _, over := range []bool{false, true} {
		readsAheadAreRight(t, over)
	}
}

func readsAheadAreRight(t *testing.T, over bool) {
	t.Helper()
	c := &counted{b: content(7<<20 + 13)}
	a := NewAhead(t.Context(), c, Info{Key: "x", Size: int64(len(c.b))})
	a.Over = over
	rng := xrand.New(1, 2)
	at := int64(0)
	for range 3000 {
		switch rng.IntN(10) {
		case 0:
			at = int64(rng.IntN(len(c.b) + 100))
		case 1:
			at += int64(rng.IntN(3 << 20))
		default:
			at += int64(rng.IntN(4000))
		}
		p := make([]byte, 1+rng.IntN(3000))
		if rng.IntN(200) == 0 {
			p = make([]byte, 1<<20+rng.IntN(1<<20))
		}
		n, err := a.ReadAt(p, at)
		left := max(0, int64(len(c.b))-at)
		if want := min(int64(len(p)), left); int64(n) != want || (err != nil) != (want < int64(len(p))) ||
			err != nil && !errors.Is(err, io.EOF) {
			t.Fatalf("%d bytes at %d of %d: %d, %v", len(p), at, len(c.b), n, err)
		}
		if n > 0 && !bytes.Equal(p[:n], c.b[at:at+int64(n)]) {
			t.Fatalf("wrong bytes at %d", at)
		}
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
}

// One who keeps what is read has every byte once, but for bodies that are left out.
func TestReadsAheadOver(t *testing.T) {
	for _, body := range []int64{700, 30 << 10, 100 << 10, 200 << 10} {
		const size = 3<<20 + 777
		c := &counted{b: make([]byte, size)}
		a := NewAhead(t.Context(), c, Info{Key: "x", Size: size})
		a.Over = true
		for at := int64(0); at < size; at += body {
			if _, err := a.ReadAt(make([]byte, 1), at); err != nil {
				t.Fatal(err)
			}
		}
		_ = a.Close() // it has no error
		if left := size % body; c.bytes > size || c.bytes < size-left {
			t.Errorf("bodies of %d bytes: %d of %d bytes were read", body, c.bytes, size)
		}
	}
}

// Bodies of at least skipOver are left out, at one small request each; smaller ones are read over, in large requests.
func TestReadsAheadSkipWhatIsLarge(t *testing.T) {
	for _, x := range []struct {
		body             int64
		requests, factor float64 // at most, of the samples and of the bytes
	}{{4 << 10, 0.03, 1.1}, {100 << 10, 0.2, 1.1}, {200 << 10, 0.35, 1.1}, {600 << 10, 1.05, 0.03}, {2 << 20, 1.1, 0.01}} {
		size := min(x.body*200, 128<<20)
		n := float64(size / x.body)
		c := &counted{b: make([]byte, size)}
		a := NewAhead(t.Context(), c, Info{Key: "x", Size: size})
		for at := int64(0); at < size; at += x.body {
			if _, err := a.ReadAt(make([]byte, 512), at); err != nil {
				t.Fatal(err)
			}
		}
		_ = a.Close() // it has no error
		requests, factor := float64(c.requests)/n, float64(c.bytes)/float64(size)
		t.Logf("bodies of %d KiB: %.3f requests a body, %.3f of the bytes", x.body>>10, requests, factor)
		if requests > x.requests+8/n || factor > x.factor {
			t.Errorf("bodies of %d KiB: %.3f requests a body, %.3f of the bytes", x.body>>10, requests, factor)
		}
	}
}

// A failure belongs to the read that meets it; what comes after may work.
func TestReadsAheadFail(t *testing.T) {
	c := &counted{b: content(1 << 20), fail: ErrChanged}
	ctx, cancel := context.WithCancel(t.Context())
	a := NewAhead(ctx, c, Info{Key: "x", Size: 1 << 20})
	p := make([]byte, 100)
	if n, err := a.ReadAt(p, 5); n != 0 || !errors.Is(err, ErrChanged) {
		t.Errorf("%d, %v", n, err)
	}
	if n, err := a.ReadAt(p, 5); n != 100 || err != nil || !bytes.Equal(p, c.b[5:105]) {
		t.Errorf("%d, %v", n, err)
	}
	cancel()
	if _, err := a.ReadAt(p, 900_000); !errors.Is(err, context.Canceled) {
		t.Errorf("after its context ended: %v", err)
	}
	_ = a.Close() // it has no error
}
