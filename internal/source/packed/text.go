package packed

import (
	"context"
	"errors"
	"unicode/utf8"

	"larder/internal/record"
)

// text is lines of UTF-8: each is a sample with the field text.
type text struct {
	identity
	unpacking
}

const textName = "text"

func (text) Scheme() string { return "text" }

func (text) Files(a Address) (files, beside []string, err error) {
	files, err = filesOf(a, suffixesOf("text")...)
	return files, nil, err
}

func (text) Schema(
	context.Context, Address, []string, func(string) (Other, error),
) (record.Schema, error) {
	return record.Schema{Fields: []record.Field{textField(textName)}}, nil
}

func (t text) Scan(ctx context.Context, _ Address, f File, emit func(Sample) error) (Found, error) {
	l := &lines{f: f, unpacking: t.unpacking}
	err := scanLines(ctx, l.file(ctx), f.Goroutines, pieceBytes, func(x line) (none struct{}, ok bool, err error) {
		if !utf8.Valid(x.text) {
			return none, false, errNoUTF8
		}
		return none, true, nil
	}, func(_ struct{}, x line) error {
		s, err := l.sample(x)
		if err != nil {
			return err
		}
		return emit(s)
	})
	return Found{}, err
}

var errNoUTF8 = errors.New("it is not UTF-8; convert the file (iconv -t UTF-8)")

type textRows struct {
	lines
	schema *record.Schema
}

func (t text) Open(_ context.Context, _ Address, f File) (Rows, error) {
	return &textRows{lines{f: f, unpacking: t.unpacking}, f.Schema}, nil
}

func (r *textRows) Record(ctx context.Context, dst []byte, s Sample) ([]byte, error) {
	b, err := r.read(ctx, nil, s)
	if err != nil {
		return dst, err
	}
	return record.Append(dst, r.schema, []record.Content{{Data: b}})
}

func (*textRows) Close() error { return nil }
