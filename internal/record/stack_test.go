package record

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"larder/internal/xrand"
)

// stackable is a random schema without bytes and text, and n records of one form that fit it.
func stackable(t testing.TB, r *xrand.Rand, n int) (*Schema, []View) {
	for {
		s, values := draw(r)
		if slices.ContainsFunc(s.Fields, func(f Field) bool { return f.Kind == Bytes || f.Kind == Text }) {
			continue
		}
		views := make([]View, n)
		for i := range views {
			for k := range values {
				values[k].Data = bytes.Clone(values[k].Data)
				for b := range values[k].Data {
					values[k].Data[b] = byte(r.IntN(256))
					if s.Fields[k].DType == Bool {
						values[k].Data[b] &= 1
					}
				}
			}
			blob, err := Encode(s, values)
			if err == nil {
				views[i], err = Open(blob)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		return s, views
	}
}

// Every sample of a stack is the record that it was made of, byte for byte.
func TestStackKeepsRecords(t *testing.T) {
	r := xrand.New(1)
	for range 2000 {
		n := 1 + r.IntN(5)
		s, views := stackable(t, r, n)
		blob, err := AppendStack([]byte("before"), views)
		if err != nil {
			t.Fatal(err)
		}
		st, err := OpenStack(blob[6:], n)
		if err == nil {
			err = st.Fits(s)
		}
		if err != nil {
			t.Fatalf("%v: %v", s, err)
		}
		for i, v := range views {
			got := bytes.Repeat([]byte{0xff}, int(st.Size()))
			st.Record(got, i)
			if !bytes.Equal(got, v.Bytes()) {
				t.Fatalf("%v: sample %d of %d differs", s, i, n)
			}
			for k, x := range st.All(i) {
				for m, y := range v.All {
					if k == m && !bytes.Equal(x.Data, y.Data) {
						t.Fatalf("field %d of sample %d differs", k, i)
					}
				}
			}
		}
	}
}

// A stack of another number of samples, a record, and what does not fit the schema are refused.
func TestStackIsChecked(t *testing.T) {
	s := &Schema{Fields: []Field{{Name: "x", Kind: Array, DType: Int64, Shape: []int64{2}}}}
	blob, err := Encode(s, []Content{{Dims: []int64{2}, Data: make([]byte, 16)}})
	if err != nil {
		t.Fatal(err)
	}
	v, _ := Open(blob)
	stack, err := AppendStack(nil, []View{v, v, v})
	if err != nil {
		t.Fatal(err)
	}
	text := &Schema{Fields: []Field{{Name: "t", Kind: Text, DType: Uint8, Shape: []int64{Ragged}}}}
	tb, _ := Encode(text, []Content{{Data: []byte("abc")}})
	tv, _ := Open(tb)
	ts, _ := AppendStack(nil, []View{tv, tv})
	for _, c := range []struct {
		blob []byte
		n    int
		want string
	}{
		{blob, 1, "version 1"}, {stack, 2, "values of 3 samples, and there are 2"}, {stack[:100], 3, "there are 100"},
		{stack[:10], 3, "no record"}, {ts, 2, "text of uint8"}, {nil, 1, "0 bytes"},
	} {
		if _, err := OpenStack(c.blob, c.n); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
	st, err := OpenStack(stack, 3)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []Field{
		{Name: "x", Kind: Array, DType: Int64, Shape: []int64{3}}, {Name: "x", Kind: Array, DType: Int32, Shape: []int64{2}},
		{Name: "x", Kind: Scalar, DType: Int64},
	} {
		if st.Fits(&Schema{Fields: []Field{f}}) == nil {
			t.Errorf("%v fits", f)
		}
	}
	if st.Fits(&Schema{}) == nil {
		t.Error("a schema without fields fits")
	}
}

// Whatever a worker writes, what is opened gives records that can be opened, and nothing outside is read.
func FuzzOpenStack(f *testing.F) {
	r := xrand.New(2)
	for range 20 {
		n := 1 + r.IntN(4)
		_, views := stackable(f, r, n)
		blob, err := AppendStack(nil, views)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(blob, uint16(n))
	}
	f.Fuzz(func(t *testing.T, blob []byte, n uint16) {
		st, err := OpenStack(blob, max(int(n), 1))
		if err != nil || st.Size() > 1<<20 {
			return
		}
		dst := make([]byte, st.Size())
		for i := range min(max(int(n), 1), 8) {
			st.Record(dst, i)
			v, err := Open(dst)
			if err != nil || v.Len() != st.Len() {
				t.Fatalf("sample %d: %v", i, err)
			}
		}
	})
}
