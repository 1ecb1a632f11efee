package store

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"

	"golang.org/x/sync/errgroup"
)

// Range is a part of an object and where its bytes go: all of Buf is filled.
type Range struct {
	Off int64
	Buf []byte
}

const (
	// DefaultGap is a distance that is cheaper to read over than to ask for again: what a request costs in time is what
	// about this many bytes cost, on object stores and on disks alike.
	DefaultGap = 128 << 10
	// maxJoined bounds the memory of a joined read.
	maxJoined = 8 << 20
)

// ReadRanges fills every range of an object. Ranges that lie at most gap bytes apart are read together, up to 8 MiB at
// once. They may be in any order and may overlap; several reads are under way beside each other. The first error ends
// it, io.ErrUnexpectedEOF for a range beyond the end of the object.
func ReadRanges(ctx context.Context, s Store, in Info, ranges []Range, gap int64) error {
	sorted := slices.Clone(ranges)
	slices.SortStableFunc(sorted, func(a, b Range) int { return cmp.Compare(a.Off, b.Off) })
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(joinedAtOnce)
	for len(sorted) > 0 {
		n, end := join(sorted, gap)
		part := sorted[:n]
		sorted = sorted[n:]
		g.Go(func() error { return readJoined(ctx, s, in, part, end) })
	}
	return g.Wait()
}

// joinedAtOnce bounds the memory of one ReadRanges: so many times maxJoined. The store bounds the requests of all.
const joinedAtOnce = 8

// join returns how many of the first ranges to read at once, and where their last byte ends.
func join(sorted []Range, gap int64) (n int, end int64) {
	from := sorted[0].Off
	end = from + int64(len(sorted[0].Buf))
	for n = 1; n < len(sorted); n++ {
		r := sorted[n]
		last := max(end, r.Off+int64(len(r.Buf)))
		if r.Off-end > gap || last-from > maxJoined {
			break
		}
		end = last
	}
	return n, end
}

func readJoined(ctx context.Context, s Store, in Info, part []Range, end int64) error {
	if len(part) == 1 {
		return full(s.ReadRange(ctx, in, part[0].Off, part[0].Buf))
	}
	from := part[0].Off
	buf := make([]byte, end-from)
	if err := full(s.ReadRange(ctx, in, from, buf)); err != nil {
		return err
	}
	for _, r := range part {
		copy(r.Buf, buf[r.Off-from:])
	}
	return nil
}

// full makes fewer bytes than asked for an error.
func full(_ int, err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
