package packed

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
)

// betonOf writes a file as FFCV lays it out: n samples of a raw image of 2 x 1, a number, bytes, JSON, a float and an
// array of two int16. python/tests/test_e2e_beton.py has files of FFCV's own writer.
func betonOf(n int) []byte {
	le := binary.LittleEndian
	var fields, meta, data, table []byte
	field := func(kind byte, name string, args []byte) {
		d := make([]byte, betonField)
		d[0] = kind
		copy(d[1:17], name)
		copy(d[17:], args)
		fields = append(fields, d...)
	}
	shape := make([]byte, 8*33)
	le.PutUint64(shape, 2)
	descr := `[["", "<i2"]]`
	le.PutUint64(shape[256:], uint64(len(descr)))
	field(2, "image", nil)
	field(1, "label", nil)
	field(3, "blob", nil)
	field(5, "meta", nil)
	field(0, "x", nil)
	field(4, "a", append(shape, descr...))
	const row = 16 + 8 + 16 + 16 + 8 + 8
	from := uint64(betonHead + len(fields) + n*row)
	alloc := func(i int, b []byte) uint64 {
		at := from + uint64(len(data))
		data = append(data, b...)
		table = le.AppendUint64(le.AppendUint64(le.AppendUint64(table, uint64(i)), at), uint64(len(b)))
		return at
	}
	for i := range n {
		m := make([]byte, row)
		m[0] = byte(i % 2)
		le.PutUint16(m[1:], 2)
		le.PutUint16(m[3:], 1)
		pixels := []byte("rgbRGB")
		if i%2 == 0 {
			pixels = append([]byte("\xff\xd8\xff"), make([]byte, 10+i)...)
		}
		le.PutUint64(m[5:], alloc(i, pixels))
		le.PutUint64(m[16:], uint64(i*2))
		blob := bytes.Repeat([]byte{byte(i)}, i)
		le.PutUint64(m[24:], alloc(i, blob))
		le.PutUint64(m[32:], uint64(len(blob)))
		text := fmt.Sprintf("{\"i\": %d}\x00", i)
		le.PutUint64(m[40:], alloc(i, []byte(text)))
		le.PutUint64(m[48:], uint64(len(text)))
		le.PutUint64(m[56:], 0x3ff0000000000000)
		le.PutUint64(m[64:], alloc(i, []byte{byte(i), 0, 0xff, 0xff}))
		meta = append(meta, m...)
	}
	head := make([]byte, betonHead)
	le.PutUint16(head, betonVersion)
	le.PutUint16(head[2:], 6)
	le.PutUint64(head[8:], uint64(n))
	le.PutUint64(head[16:], from+uint64(len(data)))
	return bytes.Join([][]byte{head, fields, meta, data, table}, nil)
}

// betonImages reads a file as images.
func betonImages(t testing.TB, b []byte) (got [][]byte, labels []int64, err error) {
	t.Helper()
	f := File{ReaderAt: bytes.NewReader(b), Path: "/d/a.beton", Size: int64(len(b))}
	var samples []Sample
	if _, err := (beton{}).Scan(t.Context(), Address{}, f, func(s Sample) error {
		samples = append(samples, s)
		labels = append(labels, s.Label)
		return nil
	}); err != nil {
		return nil, nil, err
	}
	rows, err := (beton{}).Open(t.Context(), Address{}, f)
	if err != nil {
		return nil, nil, err
	}
	for _, s := range samples {
		x, err := rows.Record(t.Context(), nil, s)
		if err != nil {
			return nil, nil, err
		}
		if int64(len(x)) != s.Size {
			t.Errorf("sample %s has %d bytes, and %d were read", s.Key, s.Size, len(x))
		}
		got = append(got, x)
	}
	return got, labels, nil
}

func TestBetonImages(t *testing.T) {
	got, labels, err := betonImages(t, betonOf(5))
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(labels) != "[0 2 4 6 8]" || len(got) != 5 || string(got[1]) != "P6\n2 1\n255\nrgbRGB" ||
		len(got[2]) != 15 || string(got[2][:3]) != "\xff\xd8\xff" {
		t.Errorf("%q %v", got, labels)
	}
}

// What is no file of FFCV's is refused with words.
func TestBadBetons(t *testing.T) {
	for name, c := range map[string]struct {
		change func(b []byte) []byte
		want   string
	}{
		"version":    {func(b []byte) []byte { b[0] = 1; return b }, "its version is 1"},
		"unfinished": {func(b []byte) []byte { clear(b[16:24]); return b }, "not written to its end"},
		"cut":        {func(b []byte) []byte { return b[:len(b)-5] }, "it is cut"},
		"samples":    {func(b []byte) []byte { b[14] = 9; return b }, "it says that it has"},
		"kind":       {func(b []byte) []byte { b[betonHead] = 255; return b }, "larder does not know"},
		"name":       {func(b []byte) []byte { copy(b[betonHead+1:], "label\x00"); return b }, `are called "label"`},
		"dtype": {func(b []byte) []byte { copy(b[betonHead+5*betonField+17+264:], `[["", "|V2"]]`); return b },
			"is not read"},
		"mode": {func(b []byte) []byte { b[betonHead+6*betonField] = 7; return b }, "an image of the mode 7"},
		"place": {func(b []byte) []byte { b[betonHead+6*betonField+12] = 1; return b },
			"nothing was allocated at byte"},
		"no fields": {func(b []byte) []byte { b[2] = 0; return b }, "it has 0 fields"},
	} {
		_, _, err := betonImages(t, c.change(betonOf(3)))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestDamagedBetonImages: cut or flipped at 200 places, a file is an error or gives images of their sizes.
func TestDamagedBetonImages(t *testing.T) {
	whole := betonOf(9)
	for i := range 200 {
		at := i * len(whole) / 200
		if _, _, err := betonImages(t, whole[:at]); err == nil {
			t.Errorf("a file cut at byte %d was read", at)
		}
		b := bytes.Clone(whole)
		b[at] ^= 1 << (i % 8)
		_, _, _ = betonImages(t, b) // it checks the sizes; pixels have no checksum
	}
}

func FuzzBeton(f *testing.F) {
	f.Add(betonOf(2))
	f.Fuzz(func(t *testing.T, b []byte) { _, _, _ = betonImages(t, b) })
}
