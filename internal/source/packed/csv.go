package packed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"larder/internal/record"
)

// csv is tables of text (RFC 4180) with a header: each row is a sample. A column is true or false, whole numbers,
// numbers (an empty cell is not a number), or text, whatever fits all its cells and keeps what they say.
type csv struct {
	identity
	unpacking
}

func (csv) Scheme() string { return "csv" }

func (csv) Files(a Address) (files, beside []string, err error) {
	files, err = filesOf(a, suffixesOf("csv")...)
	return files, nil, err
}

// delimiters by the name that ?delimiter= gives them.
var delimiters = map[string]byte{"comma": ',', "semicolon": ';', "tab": '\t', "pipe": '|'}

// delimiter is what separates the cells of a file.
func delimiter(a Address, path string) byte {
	if d, ok := delimiters[a.Args["delimiter"]]; ok {
		return d
	}
	if strings.HasSuffix(unpacked(path), ".tsv") {
		return '\t'
	}
	return ','
}

// cells splits a row. They point into b or scratch.
func cells(dst [][]byte, b []byte, comma byte) ([][]byte, error) {
	for {
		if len(b) == 0 || b[0] != '"' {
			end := bytes.IndexByte(b, comma)
			cell := b
			if end >= 0 {
				cell = b[:end]
			}
			if bytes.IndexByte(cell, '"') >= 0 {
				return dst, fmt.Errorf("cell %d has a double quote inside; quote the cell, and double its quotes", len(dst)+1)
			}
			dst = append(dst, cell)
			if end < 0 {
				return dst, nil
			}
			b = b[end+1:]
			continue
		}
		cell, rest, err := quotedCell(b[1:])
		if err != nil {
			return dst, fmt.Errorf("cell %d %w", len(dst)+1, err)
		}
		dst = append(dst, cell)
		switch {
		case len(rest) == 0:
			return dst, nil
		case rest[0] != comma:
			return dst, fmt.Errorf("cell %d goes on after its double quote", len(dst))
		}
		b = rest[1:]
	}
}

// quotedCell reads a cell behind its opening quote.
func quotedCell(b []byte) (cell, rest []byte, err error) {
	from := 0
	for {
		i := bytes.IndexByte(b[from:], '"')
		if i < 0 {
			return nil, nil, errors.New("has no closing double quote")
		}
		i += from
		if i+1 == len(b) || b[i+1] != '"' {
			return append(cell, b[:i]...), b[i+1:], nil
		}
		cell = append(cell, b[:i+1]...)
		b, from = b[i+2:], 0
	}
}

// table is what is known of a CSV file while it is read.
type table struct {
	names []string
	comma byte
	row   [][]byte
}

// take splits a row, the first of which has the names; data = it is a sample.
func (t *table) take(x line) (data bool, err error) {
	if len(x.text) == 0 && len(t.names) != 1 {
		return false, nil
	}
	if err := validText(x.text); err != nil {
		return false, err
	}
	if t.row, err = cells(t.row[:0], x.text, t.comma); err != nil {
		return false, err
	}
	if t.names == nil {
		seen := map[string]bool{}
		for i, c := range t.row {
			name := string(bytes.TrimSpace(c))
			if name == "" || seen[name] {
				return false, fmt.Errorf("the header has %q as the name of column %d, and each needs one of its own", name, i+1)
			}
			seen[name] = true
			t.names = append(t.names, name)
		}
		return false, nil
	}
	if len(t.row) != len(t.names) {
		return false, fmt.Errorf("it has %d cells, and the header %d", len(t.row), len(t.names))
	}
	return true, nil
}

// forRows calls f for every row of a file but the header.
func (t *table) forRows(ctx context.Context, f lineFile, row func(line) error) error {
	return f.each(ctx, func(x line) error {
		data, err := t.take(x)
		if err == nil && data {
			err = row(x)
		}
		if err != nil {
			return rowError(x.n, x.off, err)
		}
		return nil
	})
}

func rowError(n, off int64, err error) error {
	return fmt.Errorf("row %d, at byte %d: %w", n+1, off, err)
}

func (c csv) Schema(
	ctx context.Context, a Address, files []string, open func(string) (Other, error),
) (record.Schema, error) {
	all, err := inferAll(ctx, files, open, func(ctx context.Context, path string, f Other, each int) (*shapes, error) {
		return inferCSV(ctx, a, c.file(path, f, f.Len(), true), each, pieceBytes)
	})
	if err != nil {
		return record.Schema{}, err
	}
	if err := all.chosen(a); err != nil {
		return record.Schema{}, err
	}
	return all.schema(), nil
}

func inferCSV(ctx context.Context, a Address, f lineFile, goroutines int, piece int64) (*shapes, error) {
	if s, ok, err := inferRows(ctx, a, f, goroutines, piece); ok && (err == nil || ctx.Err() != nil) {
		return s, err
	}
	// Reading from the front finds the words for what is wrong.
	t := &table{comma: delimiter(a, f.path)}
	var columns []column
	rows := 0
	err := t.forRows(ctx, f, func(line) error {
		if rows++; rows == 1 {
			columns = make([]column, len(t.names))
		}
		for i := range t.row {
			columns[i].take(t.row[i])
		}
		return nil
	})
	if err != nil || rows == 0 {
		return nil, err
	}
	return columnShapes(t.names, columns), nil
}

func columnShapes(names []string, columns []column) *shapes {
	s := &shapes{names: names, all: names, of: map[string]shape{}}
	for i, name := range names {
		s.of[name] = columns[i].shape()
	}
	return s
}

func (c csv) Scan(ctx context.Context, a Address, f File, emit func(Sample) error) (Found, error) {
	return c.scan(ctx, a, f, pieceBytes, emit)
}

func (c csv) scan(ctx context.Context, a Address, f File, piece int64, emit func(Sample) error) (Found, error) {
	l := &lines{f, true, c.unpacking}
	var texts mixtures
	if ok, err := l.scanRows(ctx, a, piece, &texts, emit); ok {
		return texts.found(f), err
	}
	t := &table{comma: delimiter(a, f.Path)}
	label, at := labelOf(f.Schema), -1
	err := t.forRows(ctx, l.file(ctx), func(x line) error {
		if at < 0 {
			at = t.column(label)
			texts = newMixtures(f.Schema, t.names)
		}
		texts.take(t.row, x.n)
		s, err := l.sample(x)
		if err != nil {
			return err
		}
		if at < len(t.row) {
			s.Label = labelFrom(t.row[at])
		}
		return emit(s)
	})
	return texts.found(f), err
}

// column is the place of a column; len(t.names) = there is none of the name.
func (t *table) column(name string) int {
	if i := slices.Index(t.names, name); i >= 0 {
		return i
	}
	return len(t.names)
}

type csvRows struct {
	lines
	schema *record.Schema
	comma  byte
	column []int // of each field
	cells  int   // of a row
}

func (c csv) Open(ctx context.Context, a Address, f File) (Rows, error) {
	r := &csvRows{lines: lines{f, true, c.unpacking}, schema: f.Schema, comma: delimiter(a, f.Path)}
	t := &table{comma: r.comma}
	if _, err := t.header(ctx, r.file(ctx)); err != nil {
		return nil, fmt.Errorf("its header: %w", err)
	}
	r.cells = len(t.names)
	for i := range f.Schema.Fields {
		at := -1
		for k, name := range t.names {
			if name == f.Schema.Fields[i].Name {
				at = k
			}
		}
		if at < 0 {
			return nil, fmt.Errorf("it has no column %q", f.Schema.Fields[i].Name)
		}
		r.column = append(r.column, at)
	}
	return r, nil
}

var errEnough = errors.New("enough was read")

func (r *csvRows) Record(ctx context.Context, dst []byte, s Sample) ([]byte, error) {
	b, err := r.read(ctx, nil, s)
	if err != nil {
		return dst, err
	}
	row, err := cells(make([][]byte, 0, r.cells), b, r.comma)
	if err == nil && len(row) != r.cells {
		err = fmt.Errorf("it has %d cells, and the header %d", len(row), r.cells)
	}
	values := make([]record.Content, len(r.column))
	for i := range r.column {
		if err == nil {
			values[i], err = cellContent(row[r.column[i]], &r.schema.Fields[i])
		}
	}
	if err != nil {
		return dst, fmt.Errorf("%s: %w", r.where(s), err)
	}
	return record.Append(dst, r.schema, values)
}

func (*csvRows) Close() error { return nil }
