package packed

import (
	"context"
	"errors"
	"fmt"
	"io"

	"larder/internal/source/packed/arrow"
	"larder/internal/spool"
)

// Rows of arrays and windows of ids lie one behind the other, and Sample.Off is the number of a row. Each is one read
// of every array, so they need no spool. An order of blocks has some rows at a time held in memory as they are stored,
// each array of them one read.

// rowPiece is about how many bytes such rows have together.
const rowPiece = 1 << 20

// span is bytes of a file, or of a part of it.
type span struct {
	r      io.ReaderAt
	off, n int64
}

// plainRows are rows that lie one behind the other.
type plainRows interface {
	Rows
	// rows counts them.
	rows() int64
	// spans are the bytes of n rows, of each array.
	spans(first, n int64) []span
	// from are the rows as the spans of some of them have them, which are read from there.
	from(in []io.ReaderAt) Rows
}

// pieceRows are plainRows as InPieces.
type pieceRows struct {
	plainRows

	per int64 // rows of a piece
}

var _ InPieces = (*pieceRows)(nil)

// OpenRows is Records.Open, and makes InPieces of rows that lie one behind the other.
func OpenRows(ctx context.Context, format Records, a Address, f File) (Rows, error) {
	r, err := format.Open(ctx, a, f)
	if p, ok := r.(plainRows); ok && err == nil && p.spans(0, 0) != nil {
		return cutRows(p, rowPiece), nil
	}
	return r, err
}

// cutRows cuts rows into pieces of about so many bytes.
func cutRows(p plainRows, bytes int64) *pieceRows {
	r := &pieceRows{p, 1}
	if p.rows() > 1 {
		r.per = max(bytes/max(bytesOf(p.spans(0, 2))-bytesOf(p.spans(0, 1)), 1), 1)
	}
	return r
}

func bytesOf(spans []span) (n int64) {
	for i := range spans {
		n += spans[i].n
	}
	return n
}

// piece is the spans of a piece.
func (r *pieceRows) piece(i int64) []span { return r.spans(i*r.per, min(r.per, r.rows()-i*r.per)) }

// Blocks implements InPieces.
func (r *pieceRows) Blocks() []Block {
	var out []Block
	for i := range (r.rows() + r.per - 1) / r.per {
		out = append(out, Block{i * r.per, max(bytesOf(r.piece(i)), 1)})
	}
	return out
}

// Record implements Rows.
func (r *pieceRows) Record(ctx context.Context, dst []byte, s Sample) ([]byte, error) {
	h := spool.HeldIn(ctx)
	if h == nil || s.Off < 0 || s.Off >= r.rows() {
		return r.plainRows.Record(ctx, dst, s)
	}
	i := s.Off / r.per
	spans := r.piece(i)
	b, err := h.Block(ctx, fmt.Sprintf("rows 1\x00%d", i), func(ctx context.Context, w spool.Writer) error {
		return readSpans(ctx, spans, w)
	})
	if errors.Is(err, spool.ErrFull) {
		return r.plainRows.Record(ctx, dst, s)
	}
	if err != nil {
		return dst, fmt.Errorf("row %d: %w", s.Off, err)
	}
	defer b.Close()
	v, ok := b.(spool.Viewer)
	if !ok {
		return dst, errors.New("its rows are not in memory")
	}
	in := make([]io.ReaderAt, len(spans))
	for k := range spans {
		view, err := v.View(k)
		if err != nil {
			return dst, err
		}
		in[k] = &arrow.Held{From: spans[k].off, Bytes: view}
	}
	return r.from(in).Record(ctx, dst, s)
}

// readSpans adds the bytes of spans.
func readSpans(ctx context.Context, spans []span, w spool.Writer) error {
	f, ok := w.(spool.Filler)
	if !ok {
		return errors.New("rows can be held in memory only")
	}
	for _, s := range spans {
		b, err := f.Fill(int(s.n))
		if err != nil {
			return err
		}
		if err := readFull(within(ctx, s.r), b, s.off); err != nil {
			return fmt.Errorf("read %d bytes at %d: %w", s.n, s.off, err)
		}
	}
	return nil
}

func (r *arrayRows) rows() int64 {
	if len(r.arrays) == 0 {
		return 0
	}
	return r.arrays[0].shape[0]
}

// spans implements plainRows; nil = an array is compressed.
func (r *arrayRows) spans(first, n int64) []span {
	out := make([]span, len(r.arrays))
	for i := range r.arrays {
		x := &r.arrays[i]
		if x.rows != nil {
			return nil
		}
		out[i] = span{x.ReaderAt, x.at + first*x.row, n * x.row}
	}
	return out
}

func (r *arrayRows) from(in []io.ReaderAt) Rows {
	out := *r
	out.arrays = make([]openArray, len(r.arrays))
	for i, x := range r.arrays {
		x.ReaderAt = in[i]
		out.arrays[i] = x
	}
	return &out
}

func (r *tokenRows) rows() int64 { return r.windows() }

// spans implements plainRows; nil = windows mind the borders of documents, and lie at places of their own.
func (r *tokenRows) spans(first, n int64) []span {
	if r.borders != "" {
		return nil
	}
	size := r.dtype.Size()
	ids := int64(0)
	if n > 0 {
		ids = (n-1)*r.slice + r.each
	}
	return []span{{r.ReaderAt, r.at + first*r.slice*size, ids * size}}
}

func (r *tokenRows) from(in []io.ReaderAt) Rows {
	out := *r
	out.ReaderAt = in[0]
	return &out
}
