package record

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"larder/internal/errs"
	larderv1 "larder/proto/larder/v1"
)

// Bounds of a schema.
const (
	MaxFields = 256
	MaxDims   = 8
	MaxName   = 256 // bytes
)

// Ragged marks a dimension that may differ between samples.
const Ragged = -1

// Kind is what a field holds.
type Kind uint8

// The kinds.
const (
	Array Kind = iota + 1
	Bytes
	Text
	Scalar
)

var kindNames = []string{"", "array", "bytes", "text", "scalar"}

// String is the kind's name in a schema.
func (k Kind) String() string { return nameOf(kindNames, uint8(k), "kind") }

// DType is the type of one element.
type DType uint8

// The dtypes.
const (
	Bool DType = iota + 1
	Uint8
	Int8
	Uint16
	Int16
	Uint32
	Int32
	Uint64
	Int64
	Float16
	BFloat16
	Float32
	Float64
)

var (
	dtypeNames = []string{"", "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16",
		"bfloat16", "float32", "float64"}
	dtypeSizes = []int64{0, 1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8}
)

// String is NumPy's name of the dtype, and PyTorch's of bfloat16.
func (d DType) String() string { return nameOf(dtypeNames, uint8(d), "dtype") }

// Size is the bytes of an element; 0 = there is no such dtype.
func (d DType) Size() int64 {
	if int(d) >= len(dtypeSizes) {
		return 0
	}
	return dtypeSizes[d]
}

func nameOf(names []string, i uint8, what string) string {
	if i == 0 || int(i) >= len(names) {
		return fmt.Sprintf("unknown %s %d", what, i)
	}
	return names[i]
}

// Field is one field of a schema.
type Field struct {
	Name  string
	Kind  Kind
	DType DType
	Shape []int64 // of an array; Ragged = differs between samples. Bytes and text have one ragged dimension
}

// Dense reports whether every sample has the same bytes of this field.
func (f *Field) Dense() bool { return !slices.Contains(f.Shape, Ragged) }

// Size is the bytes of a dense field of one sample; 0 for others.
func (f *Field) Size() int64 {
	if !f.Dense() {
		return 0
	}
	n := f.DType.Size()
	for _, d := range f.Shape {
		n *= d
	}
	return n
}

// Schema is what all records of a dataset, or of a step of a recipe, agree in. The zero Schema has no fields.
type Schema struct{ Fields []Field }

// maxElement bounds dimensions and sizes of records, maxDim the dimensions that a schema may fix. All dense fields of a
// schema have maxElement bytes together at most, so that a batch of them can be counted in 63 bits.
const (
	maxElement = 1 << 40
	maxDim     = 1<<31 - 1
)

// Check says what is wrong with a schema: names that are empty, long or used twice, unknown kinds and dtypes, shapes
// that do not belong to the kind.
func (s *Schema) Check() error {
	if n := len(s.Fields); n > MaxFields {
		return errs.New(errs.Invalid, "", "put related values into one array",
			"a schema has %d fields, and %d are the most", n, MaxFields)
	}
	seen, dense := make(map[string]bool, len(s.Fields)), int64(0)
	for i := range s.Fields {
		f := &s.Fields[i]
		if err := f.check(); err != nil {
			return errs.New(errs.Invalid, f.Name, "docs/protocol.md#records has the kinds, dtypes and bounds",
				"field %d of a schema, %s: %v", i, quoted(f.Name), err)
		}
		if seen[f.Name] {
			return errs.New(errs.Invalid, f.Name, "give each field a name of its own",
				"a schema has two fields %s", quoted(f.Name))
		}
		seen[f.Name] = true
		dense += align(f.Size())
	}
	if dense > maxElement {
		return errs.New(errs.Invalid, "", "make samples smaller", "a schema has samples of %d bytes, and %d are the most",
			dense, int64(maxElement))
	}
	return nil
}

func (f *Field) check() error {
	switch {
	case f.Name == "" || len(f.Name) > MaxName || !utf8.ValidString(f.Name):
		return fmt.Errorf("a name has 1 to %d bytes of UTF-8", MaxName)
	case f.Kind < Array || f.Kind > Scalar:
		return fmt.Errorf("%s", f.Kind)
	case f.DType.Size() == 0:
		return fmt.Errorf("%s", f.DType)
	case len(f.Shape) > MaxDims:
		return fmt.Errorf("%d dimensions, and %d are the most", len(f.Shape), MaxDims)
	}
	switch f.Kind {
	case Bytes, Text:
		if f.DType != Uint8 || len(f.Shape) != 1 || f.Shape[0] != Ragged {
			return fmt.Errorf("%s has dtype uint8 and shape [-1], not %s and %s", f.Kind, f.DType, shapeText(f.Shape))
		}
	case Scalar:
		if len(f.Shape) != 0 {
			return fmt.Errorf("a scalar has no shape, not %s", shapeText(f.Shape))
		}
	case Array:
		n := f.DType.Size()
		for _, d := range f.Shape {
			if d < Ragged || d > maxDim {
				return fmt.Errorf("a dimension is -1 or 0 to %d, not %d", maxDim, d)
			}
			if d > 0 {
				if n > maxElement/d {
					return fmt.Errorf("shape %s of %s has more than %d bytes", shapeText(f.Shape), f.DType, int64(maxElement))
				}
				n *= d
			}
		}
	}
	return nil
}

// quoted is a name for a message, of bounded length.
func quoted(name string) string {
	if len(name) > 80 {
		name = name[:80] + "…"
	}
	return strconv.Quote(name)
}

func shapeText(dims []int64) string {
	var b strings.Builder
	b.WriteByte('[')
	for i, d := range dims {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(strconv.FormatInt(d, 10))
	}
	b.WriteByte(']')
	return b.String()
}

// FromProto reads a schema as a client sends it, and checks it. Absent = no fields.
func FromProto(p *larderv1.Schema) (Schema, error) {
	s := Schema{}
	if n := len(p.GetFields()); n > 0 {
		s.Fields = make([]Field, 0, min(n, MaxFields+1))
	}
	for _, f := range p.GetFields() {
		if len(s.Fields) > MaxFields {
			break // Check says so
		}
		kind, dtype := slices.Index(kindNames, f.GetKind()), slices.Index(dtypeNames, f.GetDtype())
		switch {
		case kind < 1:
			return Schema{}, errs.New(errs.Invalid, f.GetName(), "kinds: "+strings.Join(kindNames[1:], ", "),
				"field %s of a schema has the unknown kind %s", quoted(f.GetName()), quoted(f.GetKind()))
		case dtype < 1:
			return Schema{}, errs.New(errs.Invalid, f.GetName(), "dtypes: "+strings.Join(dtypeNames[1:], ", "),
				"field %s of a schema has the unknown dtype %s", quoted(f.GetName()), quoted(f.GetDtype()))
		}
		s.Fields = append(s.Fields, Field{Name: f.GetName(), Kind: Kind(kind), DType: DType(dtype),
			Shape: slices.Clone(f.GetShape())})
	}
	if err := s.Check(); err != nil {
		return Schema{}, err
	}
	return s, nil
}

// Proto is the schema as clients get it.
func (s *Schema) Proto() *larderv1.Schema {
	p := &larderv1.Schema{}
	for i := range s.Fields {
		f := &s.Fields[i]
		p.Fields = append(p.Fields, &larderv1.SchemaField{Name: f.Name, Kind: f.Kind.String(), Dtype: f.DType.String(),
			Shape: slices.Clone(f.Shape)})
	}
	return p
}

// Describe writes all that the fields are to a hash. It is a part of identities, so its form does not change.
func (s *Schema) Describe(h io.Writer) {
	for i := range s.Fields {
		_, _ = fmt.Fprintf(h, "%+v", s.Fields[i]) // a hash never fails
	}
}

// Equal reports whether two schemas have the same fields.
func (s *Schema) Equal(t *Schema) bool {
	return slices.EqualFunc(s.Fields, t.Fields, func(a, b Field) bool {
		return a.Name == b.Name && a.Kind == b.Kind && a.DType == b.DType && slices.Equal(a.Shape, b.Shape)
	})
}

// Has reports whether there is a field of a name.
func (s *Schema) Has(name string) bool {
	for i := range s.Fields {
		if s.Fields[i].Name == name {
			return true
		}
	}
	return false
}
