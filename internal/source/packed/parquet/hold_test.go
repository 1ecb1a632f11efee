package parquet

import (
	"bytes"
	"errors"
	"io"
	"testing"

	pq "github.com/parquet-go/parquet-go"

	"larder/internal/source/packed/arrow"
)

// failingReader fails where fails is set.
type failingReader struct {
	io.ReaderAt

	reads int
	fails error
}

func (r *failingReader) ReadAt(p []byte, off int64) (int, error) {
	if r.reads++; r.fails != nil {
		return 0, r.fails
	}
	return r.ReaderAt.ReadAt(p, off)
}

// TestHeldIsBounded: what all readers hold is bounded; beyond that files are read as they are, and what is done or
// failed makes room.
func TestHeldIsBounded(t *testing.T) {
	var content bytes.Buffer
	if err := pq.Write(&content, []struct{ A, B int64 }{{1, 2}, {3, 4}}); err != nil {
		t.Fatal(err)
	}
	r := &failingReader{ReaderAt: bytes.NewReader(content.Bytes())}
	f, err := Open(r, int64(content.Len()))
	if err != nil {
		t.Fatal(err)
	}
	columns := []*arrow.Field{&f.Fields[0], &f.Fields[1]}
	hold := func() (*File, func()) {
		t.Helper()
		in, done, err := f.Held(0, columns)
		if err != nil {
			t.Fatal(err)
		}
		return in, done
	}
	r.reads = 0
	in, done := hold()
	if in == f || r.reads != 1 || room.TryAcquire(maxAllHeld) {
		t.Errorf("held by %d reads; all the room is left", r.reads)
	}
	done()
	if !room.TryAcquire(maxAllHeld) {
		t.Fatal("what was held is not given back")
	}
	if in, done = hold(); in != f || r.reads != 1 {
		t.Errorf("%d reads where there is no room", r.reads)
	}
	done()
	room.Release(maxAllHeld)
	r.fails = errors.New("no answer")
	if _, _, err := f.Held(0, columns); !errors.Is(err, r.fails) || !room.TryAcquire(maxAllHeld) {
		t.Fatalf("%v; or the room is not given back", err)
	}
	room.Release(maxAllHeld)
}
