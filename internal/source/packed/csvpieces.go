package packed

import (
	"bufio"
	"context"
	"errors"
	"io"
	"slices"
)

// A CSV file that is large is worked off in pieces, beside each other, behind its header.

// rowPieces prepares the pieces of a file; false = it is read from the front: it is small or compressed, one goroutine
// reads it, or its header is not in the first piece.
func rowPieces[W any](
	ctx context.Context, a Address, f lineFile, goroutines int, piece int64,
) (*pieces[W], *table, bool) {
	if goroutines < 2 || isPacked(f.path) || f.size <= piece {
		return nil, nil, false
	}
	t := &table{comma: delimiter(a, f.path)}
	p := &pieces[W]{r: f.r, size: f.size, piece: piece, most: min(goroutines, maxPieces), quoted: true, wrong: rowError}
	x, err := t.header(ctx, f)
	p.from, p.first = x.off+x.size, x.n+1
	return p, t, err == nil && t.names != nil && p.from < min(piece, f.size)
}

// headerBuffer is how much of a file is read for its header at once.
const headerBuffer = 16 << 10

// header reads the first row that is one, which has the names.
func (t *table) header(ctx context.Context, f lineFile) (head line, err error) {
	take := func(x line) error {
		if _, err := t.take(x); err != nil {
			return err
		}
		if t.names == nil {
			return nil
		}
		head = x
		return errEnough
	}
	if isPacked(f.path) {
		err = f.each(ctx, take)
	} else {
		in := bufio.NewReaderSize(io.NewSectionReader(f.r, 0, f.size), headerBuffer)
		err = eachLine(ctx, in, f.quoted, line{}, take)
	}
	if errors.Is(err, errEnough) {
		err = nil
	}
	return head, err
}

// csvPiece is what some rows are.
type csvPiece struct {
	t       table
	rows    []givenLine[int64] // with their labels
	columns []column
	texts   mixtures
}

func newPiece(t *table) func() *csvPiece {
	return func() *csvPiece {
		return &csvPiece{t: table{names: t.names, comma: t.comma}, columns: make([]column, len(t.names))}
	}
}

// scanRows scans a file in pieces; false = it is to be read from the front.
func (l *lines) scanRows(
	ctx context.Context, a Address, piece int64, texts *mixtures, emit func(Sample) error,
) (bool, error) {
	p, t, ok := rowPieces[*csvPiece](ctx, a, l.file(ctx), l.f.Goroutines, piece)
	if !ok {
		return false, nil
	}
	at := t.column(labelOf(l.f.Schema))
	*texts = newMixtures(l.f.Schema, t.names)
	p.begin = func() *csvPiece {
		w := newPiece(t)()
		w.texts = newMixtures(l.f.Schema, t.names)
		return w
	}
	p.line = func(w *csvPiece, x line) error {
		data, err := w.t.take(x)
		if err != nil || !data {
			return err
		}
		w.texts.take(w.t.row, x.n)
		label := int64(-1)
		if at < len(w.t.row) {
			label = labelFrom(w.t.row[at])
		}
		w.rows = append(w.rows, givenLine[int64]{label, x.n, x.off, x.size})
		return nil
	}
	p.take = func(w *csvPiece, n, off int64) error {
		texts.join(w.texts, n)
		for _, g := range w.rows {
			x := line{n: n + g.n, off: off + g.off, size: g.size}
			s, err := l.sample(x)
			if s.Label = g.x; err == nil {
				err = emit(s)
			}
			if err != nil {
				return rowError(x.n, x.off, err)
			}
		}
		return nil
	}
	return true, p.run(ctx)
}

// inferRows looks at all rows of a file in pieces; false = it is to be read from the front.
func inferRows(
	ctx context.Context, a Address, f lineFile, goroutines int, piece int64,
) (*shapes, bool, error) {
	p, t, ok := rowPieces[*csvPiece](ctx, a, f, goroutines, piece)
	if !ok {
		return nil, false, nil
	}
	all, rows := make([]column, len(t.names)), false
	p.begin = newPiece(t)
	p.line = func(w *csvPiece, x line) error {
		data, err := w.t.take(x)
		if err != nil || !data {
			return err
		}
		w.rows = append(w.rows[:0], givenLine[int64]{}) // there is one
		for i := range w.t.row {
			w.columns[i].take(w.t.row[i])
		}
		return nil
	}
	p.take = func(w *csvPiece, _, _ int64) error {
		rows = rows || len(w.rows) > 0
		for i := range all {
			all[i].join(w.columns[i])
		}
		return nil
	}
	if err := p.run(ctx); err != nil || !rows {
		return nil, true, err
	}
	return columnShapes(slices.Clone(t.names), all), true, nil
}
