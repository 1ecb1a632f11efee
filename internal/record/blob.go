package record

import (
	"encoding/binary"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"

	"larder/internal/units"
)

const (
	magic   = 0x4345524c // "LREC"
	version = 1

	headBytes  = 24 // before the fields
	fieldBytes = 24 // of a field without its dims
	sumAt      = 16
)

// Align is what offsets of values are multiples of.
const Align = 64

func align(n int64) int64 { return (n + Align - 1) &^ (Align - 1) }

var le = binary.LittleEndian

// Value is the content of one field. It points into the record.
type Value struct {
	Kind  Kind
	DType DType
	Data  []byte
	dims  []byte
}

// NDim counts the dimensions.
func (v *Value) NDim() int { return len(v.dims) / 8 }

// Dim is the size of one dimension, in elements.
func (v *Value) Dim(i int) int64 { return int64(le.Uint64(v.dims[8*i:])) } // Open bounded it

// Dims are the sizes of all dimensions, in new memory.
func (v *Value) Dims() []int64 {
	d := make([]int64, v.NDim())
	for i := range d {
		d[i] = v.Dim(i)
	}
	return d
}

// RawDims are the dimensions as they lie in the record: u64 each, little-endian.
func (v *Value) RawDims() []byte { return v.dims }

// View is a record whose header, offsets and sizes were checked.
type View struct{ blob []byte }

// Bytes is the record itself.
func (v View) Bytes() []byte { return v.blob }

// Len counts its fields.
func (v View) Len() int {
	if v.blob == nil {
		return 0
	}
	return int(le.Uint16(v.blob[6:]))
}

// All iterates over the fields in order.
func (v View) All(yield func(int, Value) bool) {
	at := headBytes
	for i := range v.Len() {
		e := v.blob[at:]
		n := 8 * int(e[2])
		off, size := le.Uint64(e[8:]), le.Uint64(e[16:])
		x := Value{Kind: Kind(e[0]), DType: DType(e[1]), Data: v.blob[off : off+size : off+size],
			dims: e[fieldBytes : fieldBytes+n : fieldBytes+n]}
		if !yield(i, x) {
			return
		}
		at += fieldBytes + n
	}
}

// Open checks the structure of a record: every size and offset lies inside it, in order, aligned, and each field has
// the bytes that its dims say. It does not look at values, names or the checksum. Bytes behind the record's own length
// are left out of the View. The record must not change while it is used.
func Open(blob []byte) (View, error) {
	total, err := openHead(blob, uint64(len(blob)), version)
	if err != nil {
		return View{}, err
	}
	return View{blob[:total:total]}, nil
}

// openHead checks the header of a record, or of a stack, that has so many bytes of room. head has at least its entries,
// as far as they lie within the room. It returns the bytes of the whole.
func openHead(head []byte, room uint64, form uint16) (total uint64, err error) {
	if len(head) < headBytes {
		return 0, fmt.Errorf("%d bytes are no record: a header has %d", len(head), headBytes)
	}
	if m := le.Uint32(head); m != magic {
		return 0, fmt.Errorf("it begins with %#08x, a record with %#08x", m, uint32(magic))
	}
	if v := le.Uint16(head[4:]); v != form {
		return 0, fmt.Errorf("version %d of the form of records, and %d is expected", v, form)
	}
	total = le.Uint64(head[8:])
	if total < headBytes || total > room || total > maxElement {
		return 0, fmt.Errorf("the header says %d bytes, and there are %d", total, room)
	}
	n := int(le.Uint16(head[6:]))
	if n > MaxFields {
		return 0, fmt.Errorf("%d fields, and %d are the most", n, MaxFields)
	}
	head = head[:min(uint64(len(head)), total)]
	more := int(form - version) // dimensions of a stack
	first, err := headerEnd(head, n, more)
	if err != nil {
		return 0, err
	}
	end := uint64(first)
	for i, at := 0, headBytes; i < n; i++ {
		e := head[at:]
		if end, err = openField(e, end, total, more); err != nil {
			return 0, fmt.Errorf("field %d: %w", i, err)
		}
		at += fieldBytes + 8*int(e[2])
	}
	return total, nil
}

// headerEnd walks the entries of n fields and returns where they end.
func headerEnd(blob []byte, n, more int) (int, error) {
	at := headBytes
	for i := range n {
		if len(blob)-at < fieldBytes {
			return 0, fmt.Errorf("field %d: its entry lies beyond the record", i)
		}
		dims := int(blob[at+2])
		if dims > MaxDims+more {
			return 0, fmt.Errorf("field %d: %d dimensions, and %d are the most", i, dims, MaxDims+more)
		}
		if at += fieldBytes + 8*dims; at > len(blob) {
			return 0, fmt.Errorf("field %d: its dimensions lie beyond the record", i)
		}
	}
	return at, nil
}

// openField checks the entry of a field whose values begin at end or later, and returns where they end. Fields of a
// stack have more dimensions.
func openField(e []byte, end, total uint64, more int) (uint64, error) {
	kind, dtype, dims := Kind(e[0]), DType(e[1]), int(e[2])
	if kind < Array || kind > Scalar {
		return 0, fmt.Errorf("%s", kind)
	}
	item := uint64(dtype.Size())
	if item == 0 {
		return 0, fmt.Errorf("%s", dtype)
	}
	if e[3] != 0 || le.Uint32(e[4:]) != 0 {
		return 0, fmt.Errorf("bytes of its entry that must be zero are not")
	}
	flat := kind == Bytes || kind == Text
	if flat && (dtype != Uint8 || dims != 1 || more > 0) || kind == Scalar && dims != more || dims < more {
		return 0, fmt.Errorf("%s of %s with %d dimensions", kind, dtype, dims)
	}
	off, size := le.Uint64(e[8:]), le.Uint64(e[16:])
	switch {
	case off%Align != 0:
		return 0, fmt.Errorf("offset %d is no multiple of %d", off, Align)
	case off < end:
		return 0, fmt.Errorf("offset %d lies in the header or in the field before, which ends at %d", off, end)
	case off > total || size > total-off:
		return 0, fmt.Errorf("%d bytes at %d lie beyond the record's %d", size, off, total)
	}
	want, zero := item, false
	for i := range dims {
		d := le.Uint64(e[fieldBytes+8*i:])
		if d > maxElement {
			return 0, fmt.Errorf("dimension %d is %d", i, d)
		}
		switch {
		case d == 0:
			zero = true
		case want > maxElement/d:
			want = maxElement + 1
		default:
			want *= d
		}
	}
	if zero {
		want = 0
	}
	if want != size {
		return 0, fmt.Errorf("%d bytes, its dims and dtype %s need %s", size, dtype, needText(want))
	}
	return off + size, nil
}

func needText(n uint64) string {
	if n > maxElement {
		return "more than a record may have"
	}
	return fmt.Sprint(n)
}

// Validate checks that a record fits the schema and is at most limit bytes long; limit 0 = any length. Nothing in it is
// trusted. The error names the field and both sides.
func (s *Schema) Validate(blob []byte, limit int64) error {
	if limit > 0 && int64(len(blob)) > limit {
		return fmt.Errorf("a record of %s, and %s are the most", units.Size(int64(len(blob))), units.Size(limit))
	}
	v, err := Open(blob)
	if err != nil {
		return err
	}
	if v.Len() != len(s.Fields) {
		return fmt.Errorf("%d fields, the schema says %d", v.Len(), len(s.Fields))
	}
	for i, x := range v.All {
		if err := s.Fields[i].Check(&x); err != nil {
			return err
		}
	}
	return nil
}

// Check checks a value of an opened record: kind, dtype, shape, and that text is UTF-8 and a bool 0 or 1.
func (f *Field) Check(x *Value) error {
	if err := f.Fits(x); err != nil {
		return err
	}
	if x.Kind == Text && !utf8.Valid(x.Data) {
		return fmt.Errorf("field %s: text that is not UTF-8", f.Name)
	}
	if x.DType == Bool && !AllBool(x.Data) {
		return fmt.Errorf("field %s: a bool that is neither 0 nor 1", f.Name)
	}
	return nil
}

// Fits checks kind, dtype and shape of a value, and does not look at its content.
func (f *Field) Fits(x *Value) error {
	if err := f.fits(x); err != nil {
		return fmt.Errorf("field %s: %w", f.Name, err)
	}
	return nil
}

func (f *Field) fits(x *Value) error {
	if x.Kind != f.Kind {
		return fmt.Errorf("%s, the schema says %s", x.Kind, f.Kind)
	}
	if x.DType != f.DType {
		return fmt.Errorf("dtype %s, the schema says %s", x.DType, f.DType)
	}
	if x.NDim() != len(f.Shape) {
		return fmt.Errorf("shape %s, the schema says %s", shapeText(x.Dims()), shapeText(f.Shape))
	}
	for i, d := range f.Shape {
		if d != Ragged && x.Dim(i) != d {
			return fmt.Errorf("shape %s, the schema says %s", shapeText(x.Dims()), shapeText(f.Shape))
		}
	}
	return nil
}

// AllBool reports whether every byte is 0 or 1.
func AllBool(b []byte) bool {
	const ones = 0x0101010101010101
	for ; len(b) >= 8; b = b[8:] {
		if le.Uint64(b)&^ones != 0 {
			return false
		}
	}
	for _, x := range b {
		if x > 1 {
			return false
		}
	}
	return true
}

// Content is a value to encode. Dims may be nil for scalars, bytes and text.
type Content struct {
	Dims []int64
	Data []byte
}

// dims of the value, which bytes and text need not give.
func (x *Content) dims(f *Field) []int64 {
	if x.Dims == nil && (f.Kind == Bytes || f.Kind == Text) {
		return []int64{int64(len(x.Data))}
	}
	return x.Dims
}

// Size is the bytes of a record whose values have these dims, one for each field of the schema. It is an error if no
// record may have them.
func (s *Schema) Size(dims [][]int64) (int64, error) {
	if len(dims) != len(s.Fields) {
		return 0, fmt.Errorf("%d values, the schema says %d", len(dims), len(s.Fields))
	}
	total := int64(headBytes)
	for i := range dims {
		if len(dims[i]) > MaxDims {
			return 0, fmt.Errorf("field %s: %d dimensions, and %d are the most", s.Fields[i].Name, len(dims[i]), MaxDims)
		}
		total += fieldBytes + 8*int64(len(dims[i]))
	}
	for i := range dims {
		n := s.Fields[i].DType.Size()
		for _, d := range dims[i] {
			if d < 0 || d > maxElement || d > 0 && n > maxElement/d {
				return 0, fmt.Errorf("field %s: shape %s has more bytes than a record may have", s.Fields[i].Name,
					shapeText(dims[i]))
			}
			n *= d
		}
		if total = align(total) + n; total > maxElement {
			return 0, fmt.Errorf("a record of more than %d bytes", int64(maxElement))
		}
	}
	return align(total), nil
}

// Frame writes the header of a record into blob, whose length Size gave, and zeros between the values. It returns where
// the values of each field go. The record has no checksum.
func (s *Schema) Frame(blob []byte, dims [][]int64) [][]byte {
	le.PutUint32(blob, magic)
	le.PutUint16(blob[4:], version)
	le.PutUint16(blob[6:], uint16(len(dims)))
	le.PutUint64(blob[8:], uint64(len(blob)))
	le.PutUint64(blob[sumAt:], 0)
	at := int64(headBytes)
	for i := range dims {
		at += fieldBytes + 8*int64(len(dims[i]))
	}
	e := blob[headBytes:]
	values := make([][]byte, len(dims))
	for i := range dims {
		f, n := &s.Fields[i], s.Fields[i].DType.Size()
		clear(blob[at:align(at)])
		at = align(at)
		clear(e[:fieldBytes])
		e[0], e[1], e[2] = byte(f.Kind), byte(f.DType), byte(len(dims[i]))
		for k, d := range dims[i] {
			le.PutUint64(e[fieldBytes+8*k:], uint64(d))
			n *= d
		}
		le.PutUint64(e[8:], uint64(at))
		le.PutUint64(e[16:], uint64(n))
		e = e[fieldBytes+8*len(dims[i]):]
		values[i] = blob[at : at+n : at+n]
		at += n
	}
	clear(blob[at:])
	return values
}

// Append appends a record of the values of all fields to dst, without a checksum. It is an error if they do not fit the
// schema; what was appended is not to be used then.
func Append(dst []byte, s *Schema, values []Content) ([]byte, error) {
	dims := make([][]int64, len(values))
	for i := range min(len(values), len(s.Fields)) {
		dims[i] = values[i].dims(&s.Fields[i])
	}
	size, err := s.Size(dims)
	if err != nil {
		return dst, err
	}
	from := len(dst)
	dst = slices.Grow(dst, int(size))[:from+int(size)]
	for i, room := range s.Frame(dst[from:], dims) {
		if len(room) != len(values[i].Data) {
			return dst[:from], fmt.Errorf("field %s: %d bytes, its dims and dtype %s need %d", s.Fields[i].Name,
				len(values[i].Data), s.Fields[i].DType, len(room))
		}
		copy(room, values[i].Data)
	}
	return dst, s.Validate(dst[from:], 0)
}

// Encode is Append to new memory.
func Encode(s *Schema, values []Content) ([]byte, error) { return Append(nil, s, values) }

// sum is the checksum of a record, never 0: that means that it has none.
func sum(blob []byte) uint64 { return max(xxhash.Sum64(blob[headBytes:]), 1) }

// Seal writes the checksum of a checked record into it.
func Seal(v View) { le.PutUint64(v.blob[sumAt:], sum(v.blob)) }

// Intact reports whether a record is what was sealed.
func Intact(v View) bool { return le.Uint64(v.blob[sumAt:]) == sum(v.blob) }
