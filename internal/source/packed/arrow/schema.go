package arrow

import (
	"errors"
	"fmt"
)

// Kind is what a column holds.
type Kind int

// The kinds that can be read, and Other.
const (
	Other Kind = iota
	Bool
	Int
	Float
	Text
	Binary
	List
	FixedList
	Struct
	Decimal
)

// Field is a column, or a part of one.
type Field struct {
	Name   string
	Kind   Kind
	Bits   int    // of Int and Float, and of Decimal in Arrow files
	Signed bool   // of Int
	Width  int    // of FixedList: its elements; of Binary of a fixed width: its bytes; else 0
	Digits int    // of Decimal
	Scale  int    // of Decimal: how many of the digits are behind the point
	Word   string // of Other; of Int, the unit of a time, and whether it is of UTC
	Inner  []Field
	Meta   map[string]string
	Column int // of a Parquet file: the number of the column that holds its values

	large   bool // offsets of 64 bits
	node    int  // the number of its node in a batch, and of its first buffer
	buffer  int
	buffers int
	dict    *encoding // nil = it is not dictionary-encoded
}

// Schema is what all batches of a file have.
type Schema struct {
	Fields []Field
	Meta   map[string]string

	nodes, buffers int
	dicts          map[int64]*encoding // by number; nil = of columns that are not read
	inside         map[int64]bool      // numbers of dictionaries inside of dictionaries, which are not read
	walked         int                 // fields inside of dictionaries
	strange        error               // about the first column whose batches cannot be walked
}

const (
	maxColumns = 1 << 14
	maxDepth   = 16
)

// parseSchema reads the schema's table.
func parseSchema(t table) (*Schema, error) {
	s := &Schema{Meta: t.pairs(2)}
	if t.num(0, 2, 0) != 0 {
		return nil, fmt.Errorf("its values are big-endian")
	}
	at, n := t.list(1, 4)
	for k := range n {
		f, err := s.field(table{t.f, t.f.jump(at + 4*k)}, 0)
		if err != nil {
			return nil, err
		}
		s.Fields = append(s.Fields, f)
	}
	if t.f.bad {
		return nil, errFlat
	}
	return s, nil
}

// field reads a field and numbers its nodes and buffers as batches have them.
func (s *Schema) field(t table, depth int) (Field, error) {
	if t.f.bad {
		return Field{}, errFlat
	}
	if depth > maxDepth || s.nodes >= maxColumns {
		return Field{}, fmt.Errorf("its schema is deeper than %d levels or has more than %d columns", maxDepth, maxColumns)
	}
	f := Field{Name: t.text(0), Meta: t.pairs(6), node: s.nodes, buffer: s.buffers, buffers: 2}
	if err := f.kind(t); errors.Is(err, errStrange) && s.strange == nil {
		s.strange = err
	} else if err != nil && !errors.Is(err, errStrange) {
		return f, err
	}
	s.nodes++
	if d, ok := t.child(4); ok {
		if err := f.encode(d); err != nil {
			return f, err
		}
		if err := s.encoded(int64(d.num(0, 8, 0)), &f); err != nil {
			return f, err
		}
		s.buffers += f.buffers
		return f, s.within(t, depth) // what is inside of it lies in the dictionary
	}
	s.buffers += f.buffers
	at, n := t.list(5, 4)
	for k := range n {
		inner, err := s.field(table{t.f, t.f.jump(at + 4*k)}, depth+1)
		if err != nil {
			return f, err
		}
		f.Inner = append(f.Inner, inner)
	}
	if (f.Kind == List || f.Kind == FixedList) && len(f.Inner) != 1 {
		return f, fmt.Errorf("column %q is a list of %d parts", f.Name, len(f.Inner))
	}
	return f, nil
}

// kind reads the type of a field.
func (f *Field) kind(t table) error {
	typ, _ := t.child(3)
	if typ.f == nil {
		typ = table{t.f, 0}
	}
	code := t.num(2, 1, 0)
	switch code {
	case 1:
		f.Kind, f.Word, f.buffers = Other, "null", 0
	case 2:
		f.Kind, f.Bits, f.Signed = Int, int(typ.num(0, 4, 0)), typ.num(1, 1, 0) != 0
	case 3:
		f.Kind, f.Bits = Float, 16<<typ.num(0, 2, 0)
	case 4, 5, 19, 20:
		f.Kind, f.large, f.buffers = Binary, code >= 19, 3
		if code == 5 || code == 20 {
			f.Kind = Text
		}
	case 6:
		f.Kind = Bool
	case 7:
		f.SetDecimal(int(int32(typ.num(0, 4, 0))), int(int32(typ.num(1, 4, 0))))
		f.Bits = int(typ.num(2, 4, 128))
	case 11, 14, 17, 22, 25, 26:
		f.other(code, typ)
	case 8: // dates: days, or milliseconds
		f.Kind, f.Signed, f.Bits, f.Word = Int, true, 32, "date(days)"
		if typ.num(0, 2, 1) == 1 {
			f.Bits, f.Word = 64, "date(ms)"
		}
	case 9:
		f.Kind, f.Signed, f.Bits, f.Word = Int, true, int(typ.num(1, 4, 32)), "time("+unitName(typ.num(0, 2, 1))+")"
	case 10:
		f.Kind, f.Signed, f.Bits, f.Word = Int, true, 64, "timestamp("+unitName(typ.num(0, 2, 0))+")"
		if typ.text(1) != "" { // numbers of a zone are those of UTC
			f.Word = "timestamp(" + unitName(typ.num(0, 2, 0)) + ", UTC)"
		}
	case 18:
		f.Kind, f.Signed, f.Bits, f.Word = Int, true, 64, "duration("+unitName(typ.num(0, 2, 1))+")"
	case 12, 21:
		f.Kind, f.large = List, code == 21
	case 13:
		f.Kind, f.buffers = Struct, 1
	case 15:
		f.Kind, f.Width = Binary, int(int32(typ.num(0, 4, 0)))
	case 16:
		f.Kind, f.Width, f.buffers = FixedList, int(int32(typ.num(0, 4, 0))), 1
	case 23, 24:
		f.Kind, f.Word = Other, "view"
		return fmt.Errorf("column %q is a view, as of text of polars, %w, or cast to text or binary", f.Name, errStrange)
	default:
		f.Kind, f.Word = Other, fmt.Sprintf("%d of Arrow", code)
		return fmt.Errorf("column %q has the type %d of Arrow, %w", f.Name, code, errStrange)
	}
	number := f.Kind == Int && f.Bits != 8 || f.Kind == Float
	if f.Kind == Decimal && f.Bits != 32 && f.Bits != 64 && f.Bits != 128 && f.Bits != 256 {
		return fmt.Errorf("column %q has decimals of %d bits", f.Name, f.Bits)
	}
	if number && f.Bits != 16 && f.Bits != 32 && f.Bits != 64 || f.Width < 0 || code == 15 && f.Width == 0 {
		return fmt.Errorf("column %q has values of %d bits or %d bytes", f.Name, f.Bits, f.Width)
	}
	return nil
}

// unitName is a unit of time.
func unitName(n uint64) string { return [...]string{"s", "ms", "us", "ns"}[min(n, 3)] }

// other is a type that no field of a record can hold; its batches can be walked.
func (f *Field) other(code uint64, typ table) {
	f.Kind = Other
	switch code {
	case 11:
		f.Word = "interval"
	case 14:
		f.Word, f.buffers = "union", 1
		if typ.num(0, 2, 0) == 1 { // dense
			f.buffers = 2
		}
	case 17:
		f.Word = "map"
	case 22:
		f.Word, f.buffers = "run-end encoded", 0
	default:
		f.Word, f.buffers = "list view", 3
	}
}

// ParseSchema reads the message of a schema by itself, as Parquet files of Arrow keep it.
func ParseSchema(message []byte) (*Schema, error) {
	if len(message) >= 8 && le.Uint32(message) == 0xffffffff {
		message = message[8:]
	}
	f := &flat{b: message}
	root := f.root()
	inner, ok := root.child(2)
	if !ok || root.num(1, 1, 0) != 1 {
		return nil, errFlat
	}
	return parseSchema(inner)
}
