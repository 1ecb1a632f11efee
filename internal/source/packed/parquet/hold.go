package parquet

import (
	"io"

	"github.com/parquet-go/parquet-go/format"
	"golang.org/x/sync/semaphore"

	"larder/internal/source/packed/arrow"
)

const (
	// maxHeld bounds what Held reads of a row group, bytes.
	maxHeld = 32 << 20
	// maxAllHeld bounds what all readers hold at once, which are as many as source.readers says.
	maxAllHeld = 256 << 20
)

// room is what is left of maxAllHeld.
var room = semaphore.NewWeighted(maxAllHeld)

// span is a part of the file that is in memory.
type span struct {
	from int64
	b    []byte
}

// held reads what is in memory from there.
type held struct {
	io.ReaderAt
	spans []span
}

func (h *held) ReadAt(p []byte, off int64) (int, error) {
	for _, s := range h.spans {
		if at := off - s.from; at >= 0 && at < int64(len(s.b)) && int64(len(p)) <= int64(len(s.b))-at {
			return copy(p, s.b[at:]), nil
		}
	}
	return h.ReaderAt.ReadAt(p, off)
}

// Held is the file with the pages of some columns of a row group in memory, read by one request for those that follow
// each other: pages are checked before they are decoded, so that each is read twice. It is f itself where the pages are
// large, or others hold much: to wait for them would have a store that answers wait for one that does not. Call done
// after the last read.
func (f *File) Held(group int, columns []*arrow.Field) (in *File, done func(), err error) {
	chunks := f.meta.RowGroups[group].Columns
	wanted := make([]bool, len(chunks))
	sum := int64(0)
	for _, c := range columns {
		if c.Column >= len(chunks) || wanted[c.Column] {
			continue // Each says so; a column may give several fields
		}
		_, n := chunkAt(&chunks[c.Column].MetaData)
		wanted[c.Column] = true
		if sum += n; sum > maxHeld {
			return f, func() {}, nil
		}
	}
	if !room.TryAcquire(sum) {
		return f, func() {}, nil
	}
	done = func() { room.Release(sum) }
	h, err := f.hold(chunks, wanted)
	if err != nil {
		done()
		return nil, nil, err
	}
	return f.From(h), done, nil
}

// hold reads the wanted columns of a row group.
func (f *File) hold(chunks []format.ColumnChunk, wanted []bool) (*held, error) {
	h := &held{ReaderAt: f.r}
	var from, n int64
	read := func() error {
		if n == 0 {
			return nil
		}
		s := span{from, make([]byte, n)}
		h.spans = append(h.spans, s)
		return readAt(f.r, s.b, from)
	}
	for i := range chunks {
		if !wanted[i] {
			continue
		}
		at, k := chunkAt(&chunks[i].MetaData)
		if at == from+n {
			n += k
			continue
		}
		if err := read(); err != nil {
			return nil, err
		}
		from, n = at, k
	}
	if err := read(); err != nil {
		return nil, err
	}
	return h, nil
}
