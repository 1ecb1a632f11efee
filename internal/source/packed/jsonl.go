package packed

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"larder/internal/record"
)

// jsonl is lines of JSON objects, each a sample. Numbers, text, true and false are values; lists of numbers are arrays;
// everything else stays JSON, as text. All lines have the same fields, of the same types.
type jsonl struct {
	identity
	unpacking
}

func (jsonl) Scheme() string { return "jsonl" }

func (jsonl) Files(a Address) (files, beside []string, err error) {
	files, err = filesOf(a, suffixesOf("jsonl")...)
	return files, nil, err
}

func (j jsonl) Schema(
	ctx context.Context, a Address, files []string, open func(string) (Other, error),
) (record.Schema, error) {
	all, err := inferAll(ctx, files, open, func(ctx context.Context, path string, f Other, each int) (*shapes, error) {
		return inferJSON(ctx, a, j.file(path, f, f.Len(), false), each, pieceBytes)
	})
	if err != nil {
		return record.Schema{}, err
	}
	if err := all.chosen(a); err != nil {
		return record.Schema{}, err
	}
	return all.schema(), nil
}

// inferJSON looks at every line of a file; nil = it has none.
func inferJSON(ctx context.Context, a Address, f lineFile, goroutines int, piece int64) (*shapes, error) {
	if goroutines > 1 && !isPacked(f.path) && f.size > piece {
		s, err := inferPieces(ctx, a, f, goroutines, piece)
		if err == nil || ctx.Err() != nil {
			return s, err
		}
		// What is wrong with a line depends on those before it: reading from the front finds the words.
	}
	s, wanted := newShapes(), a.Fields()
	err := f.each(ctx, func(x line) error {
		if err := s.line(x.text, wanted); err != nil {
			return lineError(x.n, x.off, err)
		}
		return nil
	})
	if err != nil || !s.begun {
		return nil, err
	}
	return s, nil
}

// inferPieces is inferJSON of a large file.
func inferPieces(ctx context.Context, a Address, f lineFile, goroutines int, piece int64) (*shapes, error) {
	var all *shapes
	wanted := a.Fields()
	p := pieces[*shapes]{r: f.r, size: f.size, piece: piece, most: min(goroutines, maxPieces), begin: newShapes,
		line: func(s *shapes, x line) error { return s.line(x.text, wanted) },
		take: func(s *shapes, _, _ int64) error {
			switch {
			case !s.begun:
			case all == nil:
				all = s
			default:
				return all.merge(s, f.path)
			}
			return nil
		}}
	err := p.run(ctx)
	return all, err
}

func newShapes() *shapes { return &shapes{of: map[string]shape{}} }

// line takes a line, which may be empty.
func (s *shapes) line(b []byte, wanted []string) error {
	if len(bytes.TrimSpace(b)) == 0 {
		return nil
	}
	err := s.object(b, wanted, !s.begun)
	s.begun = true
	return err
}

// object takes a line. wanted are the fields that are looked at; nil = all.
func (s *shapes) object(b []byte, wanted []string, first bool) error {
	if err := validText(b); err != nil {
		return err
	}
	seen := make(map[string]bool, len(s.names))
	err := splitObject(b, func(key string, raw []byte) error {
		if first {
			s.all = append(s.all, key)
		}
		if wanted != nil && !slices.Contains(wanted, key) {
			return nil
		}
		if seen[key] {
			return fmt.Errorf("it has %.80q twice", key)
		}
		seen[key] = true
		is, err := shapeOf(raw)
		if err != nil {
			return fmt.Errorf("%.80q %w", key, err)
		}
		was, ok := s.of[key]
		switch {
		case !ok && !first:
			return fmt.Errorf("it has a %.80q, and the lines before have none", key)
		case !ok:
			s.names = append(s.names, key)
			s.of[key] = is
			return nil
		}
		joined, fits := was.join(is)
		if !fits {
			return fmt.Errorf("%.80q is %s, and %s in the lines before", key, is, was)
		}
		s.of[key] = joined
		return nil
	})
	if err != nil {
		return err
	}
	for _, name := range s.names {
		if !seen[name] {
			return fmt.Errorf("it has no %.80q, as the lines before; records have no missing values", name)
		}
	}
	return nil
}

func (j jsonl) Scan(ctx context.Context, _ Address, f File, emit func(Sample) error) (Found, error) {
	l := &lines{f: f, unpacking: j.unpacking}
	label := labelOf(f.Schema)
	err := scanLines(ctx, l.file(ctx), f.Goroutines, pieceBytes, func(x line) (n int64, ok bool, err error) {
		n = -1
		switch {
		case len(bytes.TrimSpace(x.text)) == 0:
			return n, false, nil
		case label == "":
			return n, true, nil
		}
		err = splitObject(x.text, func(key string, raw []byte) error {
			if key == label {
				n = labelFrom(raw)
			}
			return nil
		})
		return n, true, err
	}, func(n int64, x line) error {
		s, err := l.sample(x)
		if err != nil {
			return err
		}
		s.Label = n
		return emit(s)
	})
	return Found{}, err
}

// labelOf is the name of the field that is the label of samples as well; "" = none.
func labelOf(s *record.Schema) string {
	if i := labelField(s, labelNames); i >= 0 {
		return s.Fields[i].Name
	}
	return ""
}

type jsonRows struct {
	lines
	schema *record.Schema
	index  map[string]int
}

func (j jsonl) Open(_ context.Context, _ Address, f File) (Rows, error) {
	r := &jsonRows{lines: lines{f: f, unpacking: j.unpacking}, schema: f.Schema, index: map[string]int{}}
	for i := range f.Schema.Fields {
		r.index[f.Schema.Fields[i].Name] = i
	}
	return r, nil
}

func (r *jsonRows) Record(ctx context.Context, dst []byte, s Sample) ([]byte, error) {
	b, err := r.read(ctx, nil, s)
	if err != nil {
		return dst, err
	}
	values := make([]record.Content, len(r.schema.Fields))
	seen := 0
	err = splitObject(b, func(key string, raw []byte) error {
		i, ok := r.index[key]
		if !ok {
			return nil
		}
		seen++
		v, err := contentOf(raw, &r.schema.Fields[i])
		values[i] = v
		return err
	})
	if err == nil && seen != len(values) {
		err = fmt.Errorf("it has %d of the %d fields", seen, len(values))
	}
	if err != nil {
		return dst, fmt.Errorf("%s: %w", r.where(s), err)
	}
	return record.Append(dst, r.schema, values)
}

func (*jsonRows) Close() error { return nil }
