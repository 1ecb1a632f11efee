package parquet

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/parquet-go/parquet-go/format"

	"larder/internal/xrand"
)

// drawRuns draws what a writer of the hybrid may write for n values and more, and the values.
func drawRuns(r *xrand.Rand, n int) (src []byte, values []bool) {
	for len(values) < n {
		if r.IntN(2) == 0 {
			count, value := 1+r.IntN(30), r.IntN(2)
			src = append(binary.AppendUvarint(src, uint64(count)<<1), byte(value))
			for range count {
				values = append(values, value == 1)
			}
			continue
		}
		groups := 1 + r.IntN(3)
		src = binary.AppendUvarint(src, uint64(groups)<<1|1)
		for range groups {
			b := byte(r.IntN(256))
			src = append(src, b)
			for k := range 8 {
				values = append(values, b>>k&1 == 1)
			}
		}
	}
	return src, values
}

// TestRunsOfBooleans compares runs and groups, at every place in a byte, with the values one by one.
func TestRunsOfBooleans(t *testing.T) {
	r := xrand.New(1)
	for range 2000 {
		n := 1 + r.IntN(200)
		src, values := drawRuns(r, n)
		page := append(binary.LittleEndian.AppendUint32(nil, uint32(len(src))), src...)
		dst := bytes.Repeat([]byte{0xa5}, (n+7)/8) // what the buffer held before
		got, err := booleans{code: runBooleans}.DecodeBoolean(dst, page)
		if err != nil || len(got) != (n+7)/8 {
			t.Fatalf("%d values: %d bytes, %v", n, len(got), err)
		}
		for i := range n {
			if got[i/8]>>(i%8)&1 == 1 != values[i] {
				t.Fatalf("value %d of %d is %v in %x", i, n, !values[i], src)
			}
		}
	}
}

// TestBooleansThatEndEarly: the rest of the buffer, which is of another page, is never given.
func TestBooleansThatEndEarly(t *testing.T) {
	for name, c := range map[string]struct {
		code format.Encoding
		src  []byte
	}{
		"plain":       {plainBooleans, []byte{1, 2}},
		"no length":   {runBooleans, []byte{2, 0, 0}},
		"length":      {runBooleans, []byte{9, 0, 0, 0, 2, 1}},
		"a short run": {runBooleans, []byte{2, 0, 0, 0, 16 << 1, 1}},
		"no value":    {runBooleans, []byte{1, 0, 0, 0, 30 << 1}},
		"few groups":  {runBooleans, []byte{3, 0, 0, 0, 3<<1 | 1, 1, 1}},
		"a value":     {runBooleans, []byte{2, 0, 0, 0, 30 << 1, 2}},
		"a number":    {runBooleans, []byte{2, 0, 0, 0, 0x80, 0x80}},
	} {
		if got, err := (booleans{code: c.code}).DecodeBoolean(make([]byte, 3), c.src); err == nil {
			t.Errorf("%s: %x", name, got)
		}
	}
	huge := append([]byte{11, 0, 0, 0}, binary.AppendUvarint(nil, 1<<63)...)
	if got, err := (booleans{code: runBooleans}).DecodeBoolean(make([]byte, 3), append(huge, 1)); err != nil ||
		!bytes.Equal(got, []byte{0xff, 0xff, 0xff}) {
		t.Errorf("a run of 2^62 values gives %x, %v", got, err)
	}
	_, err := booleans{code: plainBooleans}.DecodeBoolean(make([]byte, 2), []byte{1})
	if !errors.Is(err, errFewBooleans) {
		t.Error(err)
	}
}

// TestFieldsOfHeadersAreFound: with other fields before them, and numbers that are written whole.
func TestFieldsOfHeadersAreFound(t *testing.T) {
	// type 0, sizes 5 and 5, a checksum; data_page_header: 7 values, encoding 3 (zigzag 6).
	v1 := []byte{0x15, 0, 0x15, 10, 0x15, 10, 0x15, 2, 0x1c, 0x15, 14, 0x15, 6, 0x15, 6, 0x15, 6, 0, 0}
	v2 := []byte{0x15, 6, 0x15, 10, 0x15, 10, 0x0c, 16, 0x15, 14, 0x15, 0, 0x15, 14, 0x15, 6, 0x15, 0, 0, 0}
	for name, c := range map[string]struct {
		kind format.PageType
		head []byte
		want int
	}{"v1": {format.DataPage, v1, 12}, "v2": {format.DataPageV2, v2, 15}} {
		at, err := encodingAt(&format.PageHeader{Type: c.kind}, c.head)
		if err != nil || at != c.want {
			t.Errorf("%s: %d, %v; want %d", name, at, err, c.want)
		}
		for n := range c.want {
			if at, err := encodingAt(&format.PageHeader{Type: c.kind}, c.head[:n]); err == nil {
				t.Errorf("%s cut to %d bytes: %d", name, n, at)
			}
		}
	}
}
