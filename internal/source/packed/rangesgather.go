package packed

import (
	"context"
	"errors"
	"io"
)

// A record may be made of several ranges of a file, such as a value of each column. Where each is a request, they are
// asked for together.

// Range is a part of a file and where its bytes go: all of Buf is filled.
type Range struct {
	Off int64
	Buf []byte
}

// RangesReader is a file of which several ranges are better read together than one after the other, as in a store.
type RangesReader interface {
	ContextReader
	Len() int64 // bytes
	// ReadRanges fills all ranges, which lie in the file.
	ReadRanges(ctx context.Context, ranges []Range) error
}

// rangesReader is a file as a RangesReader, where it is one.
func rangesReader(r io.ReaderAt) (RangesReader, bool) {
	if f, ok := r.(File); ok {
		r = f.ReaderAt
	}
	out, ok := r.(RangesReader)
	return out, ok
}

// gather is a file as it is read for one record: what is not there yet is noted, and fetched together. Who makes the
// record tries again then, until all is there.
type gather struct {
	ctx  context.Context //nolint:containedctx // it lives as long as one read of a record
	in   RangesReader
	have []Range
	want []Range
}

// errNotYet says that bytes are noted.
var errNotYet = errors.New("the bytes are not there yet")

// ReadAt implements io.ReaderAt.
func (g *gather) ReadAt(p []byte, off int64) (int, error) {
	n := int64(len(p))
	if off < 0 || n > g.in.Len() || off > g.in.Len()-n {
		return g.in.ReadAtContext(g.ctx, p, off) // says what is wrong
	}
	for _, r := range g.have {
		if off >= r.Off && off+n <= r.Off+int64(len(r.Buf)) {
			return copy(p, r.Buf[off-r.Off:]), nil
		}
	}
	g.want = append(g.want, Range{off, make([]byte, n)})
	return 0, errNotYet
}

// fetch reads what was noted.
func (g *gather) fetch() error {
	if len(g.want) == 0 {
		return errNotYet
	}
	err := g.in.ReadRanges(g.ctx, g.want)
	g.have, g.want = append(g.have, g.want...), nil
	return err
}

// gathered calls value for 0 to n-1, in rounds: those whose bytes are not there yet are called again once they are.
func gathered(g *gather, n int, value func(i int) error) error {
	left := make([]int, n)
	for i := range left {
		left[i] = i
	}
	for len(left) > 0 {
		next := left[:0]
		for _, i := range left {
			err := value(i)
			if errors.Is(err, errNotYet) {
				next = append(next, i)
				continue
			}
			if err != nil {
				return err
			}
		}
		if left = next; len(left) == 0 {
			break
		}
		if err := g.fetch(); err != nil {
			return err
		}
	}
	return nil
}

// readTogether fills the room of each array with row i, where their file is a RangesReader; false = it is not, or an
// array is compressed.
func (r *arrayRows) readTogether(ctx context.Context, rooms [][]byte, i int64) (bool, error) {
	if len(rooms) < 2 {
		return false, nil
	}
	var in RangesReader
	ranges := make([]Range, 0, len(rooms))
	for k, room := range rooms {
		x := &r.arrays[k]
		s, ok := x.ReaderAt.(section)
		if !ok || x.rows != nil || i >= x.shape[0] {
			return false, nil
		}
		if in, ok = rangesReader(s.r); !ok {
			return false, nil
		}
		if len(room) > 0 {
			ranges = append(ranges, Range{s.off + x.at + i*x.row, room})
		}
	}
	return true, in.ReadRanges(ctx, ranges)
}
