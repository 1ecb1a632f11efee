package record

import (
	"bytes"
	"fmt"
	"math"
	"math/big"
	"strings"
	"testing"
	"unicode/utf8"

	"larder/internal/errs"
	"larder/internal/xrand"
	larderv1 "larder/proto/larder/v1"
)

// twin judges a record by reading the page of the form from top to bottom, with big integers. It shares nothing with
// Open and Validate.
func twin(s *Schema, b []byte) bool {
	number := func(at, n int) *big.Int {
		v := new(big.Int)
		for i := n - 1; i >= 0; i-- {
			v.Lsh(v, 8).Add(v, big.NewInt(int64(b[at+i])))
		}
		return v
	}
	if len(b) < 24 || string(b[:4]) != "LREC" || b[4] != 1 || b[5] != 0 {
		return false
	}
	total := number(8, 8)
	if total.Cmp(big.NewInt(24)) < 0 || total.Cmp(big.NewInt(int64(len(b)))) > 0 {
		return false
	}
	n := int(number(6, 2).Int64())
	if n != len(s.Fields) {
		return false
	}
	size := int(total.Int64())
	at := 24
	type span struct{ from, to *big.Int }
	var spans []span
	for _, f := range s.Fields {
		if at+24 > size || int(b[at]) != int(f.Kind) || int(b[at+1]) != int(f.DType) || int(b[at+2]) != len(f.Shape) ||
			!bytes.Equal(b[at+3:at+8], make([]byte, 5)) || at+24+8*int(b[at+2]) > size {
			return false
		}
		want := big.NewInt(map[DType]int64{Bool: 1, Uint8: 1, Int8: 1, Uint16: 2, Int16: 2, Uint32: 4, Int32: 4, Uint64: 8,
			Int64: 8, Float16: 2, BFloat16: 2, Float32: 4, Float64: 8}[f.DType])
		for i, d := range f.Shape {
			got := number(at+24+8*i, 8)
			if d >= 0 && got.Cmp(big.NewInt(d)) != 0 || got.Cmp(new(big.Int).Lsh(big.NewInt(1), 40)) > 0 {
				return false
			}
			want.Mul(want, got)
		}
		off, length := number(at+8, 8), number(at+16, 8)
		end := new(big.Int).Add(off, length)
		if new(big.Int).Mod(off, big.NewInt(64)).Sign() != 0 || end.Cmp(total) > 0 || length.Cmp(want) != 0 {
			return false
		}
		spans = append(spans, span{off, end})
		at += 24 + 8*len(f.Shape)
	}
	before := big.NewInt(int64(at))
	for i, x := range spans {
		if x.from.Cmp(before) < 0 {
			return false
		}
		before = x.to
		data := b[x.from.Int64():x.to.Int64()]
		if s.Fields[i].Kind == Text && strings.ToValidUTF8(string(data), "") != string(data) {
			return false
		}
		if s.Fields[i].DType == Bool && len(bytes.Trim(data, "\x00\x01")) > 0 {
			return false
		}
	}
	return true
}

// draw makes a schema and values that fit it.
func draw(r *xrand.Rand) (*Schema, []Content) {
	s, values := &Schema{}, []Content(nil)
	for i := range r.IntN(6) {
		f := Field{Name: fmt.Sprintf("f%d", i), Kind: Kind(1 + r.IntN(4)), DType: DType(1 + r.IntN(13))}
		c := Content{}
		n := int64(1)
		switch f.Kind {
		case Scalar:
		case Bytes, Text:
			f.DType, f.Shape, n = Uint8, []int64{Ragged}, int64(r.IntN(100))
			c.Dims = []int64{n}
		case Array:
			f.Shape, c.Dims = []int64{}, []int64{}
			for range r.IntN(4) {
				d := int64(r.IntN(5))
				n *= d
				c.Dims = append(c.Dims, d)
				if r.IntN(2) == 0 {
					d = Ragged
				}
				f.Shape = append(f.Shape, d)
			}
		}
		c.Data = make([]byte, n*f.DType.Size())
		for k := range c.Data {
			c.Data[k] = byte(r.IntN(256))
			if f.DType == Bool {
				c.Data[k] &= 1
			}
			if f.Kind == Text {
				c.Data[k] &= 127
			}
		}
		s.Fields, values = append(s.Fields, f), append(values, c)
	}
	return s, values
}

// What was encoded is what a View gives, whatever the schema; the schema survives its message.
func TestRecordKeepsValues(t *testing.T) {
	r := xrand.New(1)
	for range 2000 {
		s, values := draw(r)
		if err := s.Check(); err != nil {
			t.Fatal(err)
		}
		blob, err := Encode(s, values)
		if err != nil || !twin(s, blob) {
			t.Fatalf("%v %v: %v", s, values, err)
		}
		v, err := Open(append(bytes.Clone(blob), make([]byte, r.IntN(100))...))
		if err != nil || v.Len() != len(values) || len(v.Bytes()) != len(blob) {
			t.Fatal(err, v.Len())
		}
		for i, x := range v.All {
			if x.Kind != s.Fields[i].Kind || x.DType != s.Fields[i].DType || !bytes.Equal(x.Data, values[i].Data) ||
				shapeText(x.Dims()) != shapeText(values[i].Dims) {
				t.Fatalf("field %d of %v: %v", i, s, x)
			}
		}
		if Seal(v); !Intact(v) {
			t.Fatal("a sealed record is not intact")
		}
		if n := len(v.Bytes()); n > headBytes {
			v.Bytes()[headBytes+r.IntN(n-headBytes)] ^= 1 << r.IntN(8)
			if Intact(v) {
				t.Fatal("a changed record is intact")
			}
		}
		back, err := FromProto(s.Proto())
		if err != nil || !back.Equal(s) || !s.Equal(&back) {
			t.Fatalf("%v became %v, %v", s, back, err)
		}
	}
}

// Validate and its twin agree about damaged records.
func TestValidateAgreesWithTwin(t *testing.T) {
	r := xrand.New(2)
	fits := 0
	for range 40_000 {
		s, values := draw(r)
		blob, err := Encode(s, values)
		if err != nil {
			t.Fatal(err)
		}
		damage(r, s, blob)
		if r.IntN(8) == 0 {
			blob = blob[:r.IntN(len(blob)+1)]
		}
		err = s.Validate(blob, 0)
		if want := twin(s, blob); want != (err == nil) {
			t.Fatalf("the twin says %v of %v %x: %v", want, s, blob, err)
		}
		if err == nil {
			fits++
		}
	}
	if fits < 1000 || fits > 39_000 {
		t.Errorf("%d of 40,000 fit: the test says little", fits)
	}
}

// damage changes a few numbers of a record, mostly in its header.
func damage(r *xrand.Rand, s *Schema, blob []byte) {
	headers := headBytes
	for _, f := range s.Fields {
		headers += fieldBytes + 8*len(f.Shape)
	}
	numbers := []uint64{0, 1, 63, 64, 128, uint64(len(blob)), uint64(len(blob) - 1), 1 << 40, 1<<40 + 1, 1 << 62,
		math.MaxUint64, math.MaxUint64 - 63, 1 << 63}
	for range r.IntN(3) {
		switch at := r.IntN(headers); r.IntN(4) {
		case 0:
			le.PutUint64(blob[at/8*8:], numbers[r.IntN(len(numbers))])
		case 1:
			blob[at] = byte(r.IntN(256))
		case 2:
			blob[at] ^= 1 << r.IntN(8)
		case 3:
			blob[r.IntN(len(blob))] ^= 1 << r.IntN(8)
		}
	}
}

// An error names the field and both sides.
func TestErrorsNameBothSides(t *testing.T) {
	s := &Schema{Fields: []Field{{Name: "image", Kind: Array, DType: Uint8, Shape: []int64{Ragged, 2}},
		{Name: "caption", Kind: Text, DType: Uint8, Shape: []int64{Ragged}},
		{Name: "ok", Kind: Scalar, DType: Bool}}}
	good := []Content{{Dims: []int64{1, 2}, Data: []byte{1, 2}}, {Data: []byte("é")}, {Data: []byte{1}}}
	other := func(i int, change func(*Field)) *Schema {
		c := &Schema{Fields: append([]Field(nil), s.Fields...)}
		change(&c.Fields[i])
		return c
	}
	encode := func(s *Schema, values ...Content) []byte {
		blob, _ := Encode(s, values)
		return blob
	}
	for _, c := range []struct{ name, got, want string }{
		{"dtype", verdict(s, encode(other(0, func(f *Field) { f.DType = Float32 }),
			Content{Dims: []int64{1, 2}, Data: make([]byte, 8)}, good[1], good[2]), 0),
			"field image: dtype float32, the schema says uint8"},
		{"shape", verdict(s, encode(other(0, func(f *Field) { f.Shape = []int64{Ragged, 3} }),
			Content{Dims: []int64{1, 3}, Data: []byte{1, 2, 3}}, good[1], good[2]), 0),
			"field image: shape [1, 3], the schema says [-1, 2]"},
		{"kind", verdict(s, encode(other(1, func(f *Field) { f.Kind = Bytes }), good...), 0),
			"field caption: bytes, the schema says text"},
		{"text", verdict(s, encode(s, good[0], Content{Data: []byte{0xff}}, good[2]), 0),
			"field caption: text that is not UTF-8"},
		{"bool", verdict(s, encode(s, good[0], good[1], Content{Data: []byte{2}}), 0),
			"field ok: a bool that is neither 0 nor 1"},
		{"fields", verdict(s, encode(&Schema{}), 0), "0 fields, the schema says 3"},
		{"limit", verdict(s, encode(s, good...), 100), "a record of 320B, and 100B are the most"},
		{"short", verdict(s, nil, 0), "0 bytes are no record: a header has 24"},
		{"fits", verdict(s, encode(s, good...), 1000), ""},
	} {
		if c.got != c.want {
			t.Errorf("%s: %q, want %q", c.name, c.got, c.want)
		}
	}
}

func verdict(s *Schema, blob []byte, limit int64) string {
	if err := s.Validate(blob, limit); err != nil {
		return err.Error()
	}
	return ""
}

// Schemas that cannot be are refused with words.
func TestSchemaIsChecked(t *testing.T) {
	field := func(f Field) Schema { return Schema{Fields: []Field{f}} }
	many := Schema{Fields: make([]Field, 257)}
	for name, s := range map[string]Schema{
		"no name":      field(Field{Kind: Scalar, DType: Bool}),
		"long name":    field(Field{Name: strings.Repeat("x", 257), Kind: Scalar, DType: Bool}),
		"no UTF-8":     field(Field{Name: "\xff", Kind: Scalar, DType: Bool}),
		"kind":         field(Field{Name: "a", Kind: 5, DType: Bool}),
		"dtype":        field(Field{Name: "a", Kind: Scalar, DType: 14}),
		"scalar shape": field(Field{Name: "a", Kind: Scalar, DType: Bool, Shape: []int64{1}}),
		"bytes dtype":  field(Field{Name: "a", Kind: Bytes, DType: Int8, Shape: []int64{Ragged}}),
		"text shape":   field(Field{Name: "a", Kind: Text, DType: Uint8, Shape: []int64{3}}),
		"dimension":    field(Field{Name: "a", Kind: Array, DType: Int8, Shape: []int64{-2}}),
		"dimensions":   field(Field{Name: "a", Kind: Array, DType: Int8, Shape: make([]int64, 9)}),
		"large":        field(Field{Name: "a", Kind: Array, DType: Int8, Shape: []int64{1 << 31}}),
		"sum": {Fields: []Field{{Name: "a", Kind: Array, DType: Int64, Shape: []int64{1 << 18, 1 << 19}},
			{Name: "b", Kind: Scalar, DType: Bool}}},
		"overflow": field(Field{Name: "a", Kind: Array, DType: Int64, Shape: []int64{1 << 30, 1 << 30, 1 << 30}}),
		"twice": {Fields: []Field{{Name: "a", Kind: Scalar, DType: Bool},
			{Name: "a", Kind: Scalar, DType: Bool}}},
		"fields": many,
	} {
		if err := s.Check(); !errs.Is(err, errs.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, f := range map[string]*larderv1.SchemaField{
		"kind": {Name: "a", Kind: "image", Dtype: "uint8"}, "dtype": {Name: "a", Kind: "array", Dtype: "complex64"},
		"empty": {},
	} {
		if _, err := FromProto(&larderv1.Schema{Fields: []*larderv1.SchemaField{f}}); !errs.Is(err, errs.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if s, err := FromProto(nil); err != nil || len(s.Fields) != 0 {
		t.Errorf("%v, %v", s, err)
	}
}

// FuzzValidate: whatever a worker writes, the verdict is the twin's, and what is accepted can be read.
func FuzzValidate(f *testing.F) {
	r := xrand.New(3)
	for range 50 {
		seed := r.Uint64()
		s, values := draw(xrand.New(seed))
		blob, err := Encode(s, values)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(seed, blob)
	}
	f.Fuzz(func(t *testing.T, seed uint64, blob []byte) {
		s, _ := draw(xrand.New(seed))
		err := s.Validate(blob, 0)
		if want := twin(s, blob); want != (err == nil) {
			t.Fatalf("the twin says %v: %v", want, err)
		}
		v, err := Open(blob)
		if err != nil {
			return
		}
		own := &Schema{}
		var values []Content
		for i, x := range v.All {
			own.Fields = append(own.Fields, Field{Name: fmt.Sprint(i), Kind: x.Kind, DType: x.DType, Shape: x.Dims()})
			if x.Kind == Bytes || x.Kind == Text {
				own.Fields[i].Shape = []int64{Ragged}
			}
			values = append(values, Content{Dims: x.Dims(), Data: x.Data})
			if x.Kind == Text && !utf8.Valid(x.Data) || x.DType == Bool && !AllBool(x.Data) {
				return
			}
		}
		if again, err := Encode(own, values); err != nil || !twin(own, again) {
			t.Fatalf("what was read cannot be written: %v", err)
		}
	})
}

func BenchmarkValidate150KB(b *testing.B) {
	s := &Schema{Fields: []Field{{Name: "image", Kind: Array, DType: Uint8, Shape: []int64{224, 224, 3}},
		{Name: "label", Kind: Scalar, DType: Int64}}}
	blob, err := Encode(s, []Content{{Dims: []int64{224, 224, 3}, Data: make([]byte, 224*224*3)},
		{Data: make([]byte, 8)}})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := s.Validate(blob, 1<<20); err != nil {
			b.Fatal(err)
		}
	}
}
