package packed

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/sync/errgroup"

	"larder/internal/record"
)

// valueKind is what the values of a field are, as JSON says it.
type valueKind uint8

// The kinds. kindAny fits all others.
const (
	kindAny  valueKind = iota // an empty list of numbers, or no value yet
	kindBool                  // true, false
	kindInt
	kindFloat
	kindText
	kindJSON // an object, a list that is no rectangle of numbers: text in JSON
)

var valueKinds = []string{"nothing", "true or false", "whole numbers", "numbers", "text", "JSON"}

// shape is what is known of the values of a field.
type shape struct {
	kind  valueKind
	whole wholes
	list  bool
	dims  []int64 // of lists: Ragged where values differ
}

func (s shape) String() string {
	if s.list && s.kind != kindJSON {
		return "lists of " + valueKinds[s.kind]
	}
	return valueKinds[s.kind]
}

// join is what fits the values of both; false = nothing does.
func (s shape) join(t shape) (shape, bool) {
	numbers := func(k valueKind) bool { return k == kindInt || k == kindFloat }
	out := s
	out.whole |= t.whole
	switch {
	case s.list && t.kind == kindJSON && !t.list: // a list of text after an empty one
		return t, s.kind == kindAny
	case t.list && s.kind == kindJSON && !s.list:
		return s, t.kind == kindAny
	case s.list != t.list:
		return s, false
	case s.kind == t.kind:
	case s.kind == kindAny:
		out.kind = t.kind
	case t.kind == kindAny:
	case numbers(s.kind) && numbers(t.kind):
		out.kind = kindFloat
	default:
		return s, false
	}
	if !s.list {
		return out, true
	}
	if len(s.dims) != len(t.dims) {
		switch { // [] is an empty list of anything
		case s.kind == kindAny && len(s.dims) == 1 && s.dims[0] == 0:
			out.dims = slices.Clone(t.dims)
			out.dims[0] = record.Ragged
			return out, true
		case t.kind == kindAny && len(t.dims) == 1 && t.dims[0] == 0:
			out.dims = slices.Clone(s.dims)
			out.dims[0] = record.Ragged
			return out, true
		}
		return s, false
	}
	out.dims = slices.Clone(s.dims)
	for i, d := range t.dims {
		if d != out.dims[i] {
			out.dims[i] = record.Ragged
		}
	}
	return out, true
}

// field describes values of a shape.
func (s shape) field(name string) record.Field {
	dtype := map[valueKind]record.DType{kindAny: record.Int64, kindBool: record.Bool, kindInt: s.whole.integer(),
		kindFloat: s.whole.float()}[s.kind]
	switch {
	case dtype == 0: // text, JSON, and numbers that no dtype holds
		return textField(name)
	case s.list:
		return arrayField(name, dtype, slices.Clone(s.dims)...)
	}
	return scalarField(name, dtype)
}

// shapes are those of the fields of a table, in order.
type shapes struct {
	names []string
	all   []string // with those that are not asked for, of the first line
	of    map[string]shape
	begun bool // a line was taken
}

// merge joins what two files say of the same fields.
func (s *shapes) merge(t *shapes, path string) error {
	for _, name := range s.names {
		u, ok := t.of[name]
		if !ok {
			return fmt.Errorf("%s: its lines have no %q, and those of the files before do", path, name)
		}
		joined, fits := s.of[name].join(u)
		if !fits {
			return fmt.Errorf("%s: %q is %s there, and %s in the files before", path, name, u, s.of[name])
		}
		s.of[name] = joined
	}
	for _, name := range t.names {
		if _, ok := s.of[name]; !ok {
			return fmt.Errorf("%s: its lines have a %q, and those of the files before have none", path, name)
		}
	}
	return nil
}

func (s *shapes) schema() record.Schema {
	var out record.Schema
	for _, name := range s.names {
		out.Fields = append(out.Fields, s.of[name].field(name))
	}
	return out
}

// inferAll looks at all files, some beside each other, and joins what they say. Files without samples count for
// nothing, and those that cannot be read are named together.
func inferAll(
	ctx context.Context, files []string, open func(string) (Other, error),
	infer func(ctx context.Context, path string, f Other, goroutines int) (*shapes, error),
) (*shapes, error) {
	found, errs := make([]*shapes, len(files)), make([]error, len(files))
	each := max(1, runtime.GOMAXPROCS(0)/max(1, len(files)))
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, path := range files {
		if ctx.Err() != nil {
			break
		}
		g.Go(func() error {
			f, err := open(path)
			if err == nil {
				defer f.Close()
				found[i], err = noted(f, func() (*shapes, error) { return infer(ctx, path, f, each) })
			}
			if err != nil {
				errs[i] = fmt.Errorf("%s: %w", path, err)
			}
			return nil
		})
	}
	_ = g.Wait() // errs has what went wrong
	if err := damagedFiles(ctx, errs); err != nil {
		return nil, err
	}
	var all *shapes
	errs = make([]error, len(files))
	for i, s := range found {
		switch {
		case s == nil:
		case all == nil:
			all = s
		default:
			errs[i] = all.merge(s, files[i])
		}
	}
	if err := damagedFiles(ctx, errs); err != nil {
		return nil, err
	}
	if all == nil {
		return nil, errors.New("its files hold no sample")
	}
	return all, nil
}

// chosen keeps the fields that ?fields= names, in that order; all of them without it.
func (s *shapes) chosen(a Address) error {
	names := a.Fields()
	if names == nil {
		return nil
	}
	for _, name := range names {
		if _, ok := s.of[name]; !ok {
			return fmt.Errorf("it has no field %q, only %s", name, strings.Join(s.all, ", "))
		}
	}
	s.names = names
	return nil
}

// maxNesting bounds lists within lists.
const maxNesting = record.MaxDims

// splitObject calls f for the members of a JSON object. raw is valid JSON.
func splitObject(b []byte, f func(key string, raw []byte) error) error {
	b = bytes.TrimSpace(b)
	if !json.Valid(b) {
		var x any
		return fmt.Errorf("it is no JSON: %w", json.Unmarshal(b, &x))
	}
	if b[0] != '{' {
		return errors.New("it is no JSON object, {…}")
	}
	for b = skipSpace(b[1:]); b[0] != '}'; {
		n := valueEnd(b)
		key, err := stringOf(b[:n])
		if err != nil {
			return err
		}
		b = skipSpace(skipSpace(b[n:])[1:]) // over the colon
		n = valueEnd(b)
		if err := f(key, b[:n]); err != nil {
			return err
		}
		if b = skipSpace(b[n:]); b[0] == ',' {
			b = skipSpace(b[1:])
		}
	}
	return nil
}

func skipSpace(b []byte) []byte { return bytes.TrimLeft(b, " \t\r\n") }

// valueEnd is the length of the JSON value that valid JSON begins with.
func valueEnd(b []byte) int {
	depth := 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			for i++; b[i] != '"'; i++ {
				if b[i] == '\\' {
					i++
				}
			}
		case '{', '[':
			depth++
			continue
		case '}', ']':
			if depth == 0 {
				return i
			}
			depth--
		case ',', ':', ' ', '\t', '\r', '\n':
			if depth == 0 {
				return i
			}
			continue
		default:
			continue
		}
		if depth == 0 {
			return i + 1
		}
	}
	return len(b)
}

// stringOf decodes a JSON string.
func stringOf(raw []byte) (string, error) {
	inner := raw[1 : len(raw)-1]
	if bytes.IndexByte(inner, '\\') < 0 {
		return string(inner), nil
	}
	if err := halves(raw); err != nil {
		return "", fmt.Errorf("%.80s %w", raw, err)
	}
	var s string
	err := json.Unmarshal(raw, &s)
	return s, err
}

// shapeOf says what a JSON value is.
func shapeOf(raw []byte) (shape, error) {
	switch raw[0] {
	case 'n':
		return shape{}, errors.New("is null, and records have no missing values; write one, or leave the field out with " +
			"?fields=")
	case '"':
		return shape{kind: kindText}, halves(raw)
	case '{':
		return shape{kind: kindJSON}, nil
	case '[':
		s := shape{list: true}
		if !s.look(raw, 0) {
			return shape{kind: kindJSON}, nil
		}
		return s, nil
	}
	return scalarShape(raw), nil
}

func scalarShape(raw []byte) shape {
	if raw[0] == 't' || raw[0] == 'f' {
		return shape{kind: kindBool}
	}
	if w, ok := wholeOf(raw); ok {
		return shape{kind: kindInt, whole: w}
	}
	return shape{kind: kindFloat}
}

// look looks at a list of that depth; false = it is no rectangle of numbers of one kind.
func (s *shape) look(raw []byte, depth int) bool {
	if depth == maxNesting {
		return false
	}
	first := len(s.dims) == depth
	if first {
		s.dims = append(s.dims, 0)
	}
	n, ok := int64(0), true
	eachOf(raw, func(x []byte) bool {
		n++
		switch x[0] {
		case '[':
			ok = (len(s.dims) > depth+1 || first && n == 1) && s.look(x, depth+1)
		case '"', '{', 'n':
			ok = false
		default:
			if ok = len(s.dims) == depth+1; ok {
				joined, fits := shape{kind: s.kind, whole: s.whole}.join(scalarShape(x))
				s.kind, s.whole, ok = joined.kind, joined.whole, fits
			}
		}
		return ok
	})
	if first {
		s.dims[depth] = n
	}
	return ok && s.dims[depth] == n
}

// eachOf calls f for the elements of a list of valid JSON, until f says false.
func eachOf(raw []byte, f func([]byte) bool) {
	for b := skipSpace(raw[1:]); b[0] != ']'; {
		n := valueEnd(b)
		if !f(b[:n]) {
			return
		}
		if b = skipSpace(b[n:]); b[0] == ',' {
			b = skipSpace(b[1:])
		}
	}
}

// contentOf encodes a JSON value as a field of the schema.
func contentOf(raw []byte, f *record.Field) (record.Content, error) {
	switch f.Kind {
	case record.Text:
		if raw[0] != '"' {
			switch {
			case bytes.IndexByte([]byte("tfn"), raw[0]) >= 0:
				return record.Content{}, fmt.Errorf("field %s: %.40s is no text", f.Name, raw)
			case raw[0] != '{' && raw[0] != '[': // a number, of those that no dtype holds
				return record.Content{Data: bytes.Clone(raw)}, nil
			}
			var b bytes.Buffer
			err := json.Compact(&b, raw)
			return record.Content{Data: b.Bytes()}, err
		}
		s, err := stringOf(raw)
		return record.Content{Data: []byte(s)}, err
	case record.Array, record.Bytes:
	case record.Scalar:
		b, err := appendNumber(nil, raw, f.DType)
		return record.Content{Data: b}, inValue(f, err)
	}
	s := shape{list: true}
	if raw[0] != '[' || !s.look(raw, 0) {
		return record.Content{}, fmt.Errorf("field %s: %.40s is no list of numbers", f.Name, raw)
	}
	for len(s.dims) < len(f.Shape) && s.kind == kindAny { // [] of a matrix
		s.dims = append(s.dims, max(f.Shape[len(s.dims)], 0))
	}
	b, err := appendList(nil, raw, f.DType)
	return record.Content{Dims: s.dims, Data: b}, inValue(f, err)
}

func inValue(f *record.Field, err error) error {
	if err != nil {
		return fmt.Errorf("field %s: %w", f.Name, err)
	}
	return nil
}

func appendList(dst, raw []byte, d record.DType) (_ []byte, err error) {
	eachOf(raw, func(x []byte) bool {
		if x[0] == '[' {
			dst, err = appendList(dst, x, d)
		} else {
			dst, err = appendNumber(dst, x, d)
		}
		return err == nil
	})
	return dst, err
}

// appendNumber encodes a bool, an int64, a uint64 or a float64.
func appendNumber(dst, raw []byte, d record.DType) ([]byte, error) {
	switch s := string(raw); d {
	case record.Bool:
		switch s {
		case "true":
			return append(dst, 1), nil
		case "false":
			return append(dst, 0), nil
		}
		return dst, fmt.Errorf("%.40q is neither true nor false", s)
	case record.Int64:
		n, err := strconv.ParseInt(s, 10, 64)
		return binary.LittleEndian.AppendUint64(dst, uint64(n)), err
	case record.Uint64:
		n, err := strconv.ParseUint(strings.TrimPrefix(s, "-"), 10, 64) // only 0 has a sign there
		return binary.LittleEndian.AppendUint64(dst, n), err
	default:
		x, err := strconv.ParseFloat(s, 64)
		return binary.LittleEndian.AppendUint64(dst, math.Float64bits(x)), err
	}
}

// validText refuses what is not UTF-8.
func validText(b []byte) error {
	if !utf8.Valid(b) {
		return errNoUTF8
	}
	return nil
}
