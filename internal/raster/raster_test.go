package raster

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
)

type entry struct {
	tag    uint16
	values []uint16
}

// tiff writes the header of a TIFF of 4 x 3 pixels of 8-bit RGB, with other entries in place of or beside its own.
func tiff(order binary.ByteOrder, others ...entry) []byte {
	all := []entry{{256, []uint16{4}}, {257, []uint16{3}}, {258, []uint16{8, 8, 8}}, {259, []uint16{1}},
		{262, []uint16{2}}, {277, []uint16{3}}}
	for _, o := range others {
		found := false
		for i := range all {
			if all[i].tag == o.tag {
				all[i], found = o, true
			}
		}
		if !found {
			all = append(all, o)
		}
	}
	var b, more bytes.Buffer
	start := "II*\x00"
	if order == binary.BigEndian {
		start = "MM\x00*"
	}
	b.WriteString(start)
	put := func(w *bytes.Buffer, v any) { _ = binary.Write(w, order, v) }
	put(&b, uint32(8))
	put(&b, uint16(len(all)))
	end := 8 + 2 + 12*len(all) + 4
	for _, e := range all {
		put(&b, []uint16{e.tag, 3})
		put(&b, uint32(len(e.values)))
		if len(e.values) > 2 {
			put(&b, uint32(end+more.Len()))
			put(&more, e.values)
			continue
		}
		put(&b, append(e.values, 0)[:2])
	}
	put(&b, uint32(0))
	return append(b.Bytes(), more.Bytes()...)
}

// long gives a header of tiff other sides, of 32 bits.
func long(b []byte, w, h uint32) []byte {
	for i, side := range []uint32{w, h} {
		e := b[10+12*i:]
		binary.LittleEndian.PutUint16(e[2:], 4)
		binary.LittleEndian.PutUint32(e[8:], side)
	}
	return b
}

// TestTIFFSides: a side that PNG could not hold either is refused in words, and none is taken for another.
func TestTIFFSides(t *testing.T) {
	for _, c := range []struct {
		w, h uint32
		says string
	}{
		{1<<31 - 1, 1<<31 - 1, ""}, {1 << 31, 1, "2147483648 x 1 pixels, and a side of more than 2^31-1"}, {1, 1<<32 - 1,
			"1 x 4294967295 pixels, and a side"},
		{0, 1 << 31, "0 x 2147483648 pixels"},
	} {
		h, err := TIFFHeader(bytes.NewReader(long(tiff(binary.LittleEndian), c.w, c.h)))
		switch {
		case c.says == "" && (err != nil || h.Width != int(c.w) || h.Height != int(c.h) ||
			h.BlockPixels != int64(c.w)*int64(c.h)):
			t.Errorf("%d x %d: %+v, error %v", c.w, c.h, h, err)
		case c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%d x %d: error %v does not say %q", c.w, c.h, err, c.says)
		}
	}
}

// TestTIFFKinds: what would not come out as Pillow gives it is refused, and the words say what it is.
func TestTIFFKinds(t *testing.T) {
	same := func(n int, v uint16) (out []uint16) {
		for range n {
			out = append(out, v)
		}
		return out
	}
	grey := []entry{{258, []uint16{8}}, {262, []uint16{1}}, {277, []uint16{1}}}
	for _, c := range []struct {
		name   string
		others []entry
		want   string // "" = taken
	}{
		{"rgb", nil, ""},
		{"grey", grey, ""},
		{"rgba", []entry{{258, same(4, 8)}, {277, []uint16{4}}, {338, []uint16{2}}}, ""},
		{"lzw with predictor", []entry{{259, []uint16{5}}, {317, []uint16{2}}}, ""},
		{"jpeg", []entry{{259, []uint16{7}}}, "compressed by JPEG,"},
		{"old jpeg", []entry{{259, []uint16{6}}}, "compressed by JPEG (old style)"},
		{"zstd", []entry{{259, []uint16{50000}}}, "Zstandard"},
		{"unheard of", []entry{{259, []uint16{4711}}}, "method 4711"},
		{"ycbcr", []entry{{262, []uint16{6}}}, "YCbCr"},
		{"cmyk", []entry{{258, same(4, 8)}, {262, []uint16{5}}, {277, []uint16{4}}}, "CMYK"},
		{"lab", []entry{{262, []uint16{8}}}, "CIELab"},
		{"colours unheard of", []entry{{262, []uint16{99}}}, "of kind 99"},
		{"float", append(grey, entry{258, []uint16{32}}, entry{339, []uint16{3}}), "values have 32 bits"},
		{"half float", append(grey, entry{258, []uint16{16}}, entry{339, []uint16{3}}), "floating point"},
		{"signed", append(grey, entry{258, []uint16{16}}, entry{339, []uint16{2}}), "signed"},
		{"12 bits", append(grey, entry{258, []uint16{12}}), "values have 12 bits"},
		{"unlike bits", []entry{{258, []uint16{5, 6, 5}}}, "values have [5 6 5] bits"},
		{"no bits given", []entry{{258, []uint16{8}}}, "3 values a pixel and gives the bits of 1"},
		{"grey with alpha", []entry{{258, same(2, 8)}, {262, []uint16{1}}, {277, []uint16{2}}}, "1 channels beside a grey"},
		{"palette with alpha", []entry{{258, same(2, 8)}, {262, []uint16{3}}, {277, []uint16{2}}, {338, []uint16{2}}},
			"1 channels beside a grey or palette"},
		{"rgb and something", []entry{{258, same(4, 8)}, {277, []uint16{4}}, {338, []uint16{0}}},
			"4 channels, and only RGB with or without alpha"},
		{"rgb and something untold", []entry{{258, same(4, 8)}, {277, []uint16{4}}},
			"4 channels, and only RGB with or without alpha"},
		{"ccitt rle", []entry{{259, []uint16{2}}}, "CCITT RLE"},
		{"16 bits, white is zero", []entry{{258, []uint16{16}}, {262, []uint16{0}}, {277, []uint16{1}}}, "white as zero"},
		{"multispectral", []entry{{258, same(8, 8)}, {277, []uint16{8}}}, "8 channels"},
		{"planes", []entry{{284, []uint16{2}}}, "stored apart"},
		{"reverse", []entry{{266, []uint16{2}}}, "in reverse"},
		{"float predictor", []entry{{317, []uint16{3}}}, "predictor is 3"},
		{"fax of 8 bits", append(grey, entry{259, []uint16{4}}), "fax of more than 1 bit"},
		{"no pixels", []entry{{256, []uint16{0}}}, "0 x 3 pixels"},
	} {
		for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
			h, err := TIFFHeader(bytes.NewReader(tiff(order, c.others...)))
			if c.want == "" {
				if err != nil || h.Width != 4 || h.Height != 3 {
					t.Errorf("%s, %v: %+v, error %v", c.name, order, h, err)
				}
				continue
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s, %v: error %v does not say %q", c.name, order, err, c.want)
			}
		}
	}
	if _, err := TIFFHeader(strings.NewReader("II\x2b\x00\x08\x00\x00\x00\x10\x00\x00\x00")); err == nil ||
		!strings.Contains(err.Error(), "BigTIFF") {
		t.Errorf("BigTIFF: %v", err)
	}
	whole := tiff(binary.LittleEndian)
	for n := range whole {
		if _, err := TIFFHeader(bytes.NewReader(whole[:n])); err == nil || n > 8 && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("cut to %d of %d bytes: %v", n, len(whole), err)
		}
	}
}

func TestNetpbmHeader(t *testing.T) {
	for _, c := range []struct {
		head string
		want Netpbm
		says string
	}{
		{"P6\n3 2\n255\nxx", Netpbm{'6', 3, 2, 255, 11}, ""},
		{"P5 # a\n 3#b\r2 # c\n2 65535 ", Netpbm{'5', 32, 2, 65535, 26}, ""}, // a comment ends no number, as in Pillow
		{"P4 9 1 x", Netpbm{'4', 9, 1, 1, 7}, ""},
		{"P6 3 2 0 ", Netpbm{}, "largest value is 0"},
		{"P6 3 2 65536 ", Netpbm{}, "largest value is 65536"},
		{"P6 0 2 255 ", Netpbm{}, "0 x 2 pixels"},
		{"P6 -1 2 255 ", Netpbm{}, `byte 3 of its header is '-'`},
		{"P6 99999999999 2 255 ", Netpbm{}, "where a number is due"},
		{"P6 2147483648 1 255 ", Netpbm{}, "2147483648 x 1 pixels, and a side of more than 2^31-1"},
		{"P4 1 2147483648 ", Netpbm{}, "more than 2^31-1"},
		{"P5 2147483647 2147483647 255 ", Netpbm{'5', MaxSide, MaxSide, 255, 29}, ""},
		{"P6 4294967296 4294967296 255 ", Netpbm{}, "more than 2^31-1"}, // the product is 0 mod 2^64
		{"P6 4294967297 4294967295 255 ", Netpbm{}, "more than 2^31-1"}, // -1
		{"P6 2147418113 8590196740 255 ", Netpbm{}, "more than 2^31-1"}, // 4
		{"P6 9999999999 9999999999 255 ", Netpbm{}, "9999999999 x 9999999999 pixels, and a side"},
		{"P6 3 2 255", Netpbm{}, "unexpected EOF"},
		{"P6 3 # no end", Netpbm{}, "unexpected EOF"},
		{"P7\nWIDTH 3\n", Netpbm{}, "does not begin"},
		{"P6", Netpbm{}, "does not begin"},
	} {
		p, err := NetpbmHeader([]byte(c.head))
		switch {
		case c.says == "" && (err != nil || *p != c.want):
			t.Errorf("%q: %+v, error %v", c.head, p, err)
		case c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%q: error %v does not say %q", c.head, err, c.says)
		}
	}
}

// TestNetpbmPixelsMissing: an image that ends early is truncated, wherever it ends; text that is no number is reported
// with its place.
func TestNetpbmPixelsMissing(t *testing.T) {
	for _, enc := range []string{"P6 2 2 255 abcdefghijkl", "P5 2 2 999 abcdefgh", "P4 9 2 abcd", "P3 2 1 9 1 2 3 4 5 6 ",
		"P2 3 1 5 1 2 3 ", "P1 3 2 010 011 "} {
		p, err := NetpbmHeader([]byte(enc))
		if err != nil {
			t.Fatal(err)
		}
		dst := make([]byte, 3*p.Width*p.Height)
		if _, err := p.Decode([]byte(enc), dst); err != nil {
			t.Errorf("%q: %v", enc, err)
		}
		short := strings.TrimRight(enc, " ")
		if at, err := p.Decode([]byte(short[:len(short)-1]), dst); !errors.Is(err, io.ErrUnexpectedEOF) ||
			at != int64(len(short)-1) {
			t.Errorf("%q cut: %v at byte %d", enc, err, at)
		}
	}
	for enc, says := range map[string]string{"P3 2 1 9 1 2 x 4 5 6": `byte 13 is 'x'`,
		"P2 2 1 9 1 10": "10 is beyond its largest, 9", "P1 2 1 0 2": `is '2'`} {
		p, err := NetpbmHeader([]byte(enc))
		if err == nil {
			_, err = p.Decode([]byte(enc), make([]byte, 3*p.Width*p.Height))
		}
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: error %v does not say %q", enc, err, says)
		}
	}
}

// FuzzHeaders: nothing that a file holds makes a header panic, or netpbm write beyond its image.
func FuzzHeaders(f *testing.F) {
	f.Add(tiff(binary.LittleEndian))
	f.Add(tiff(binary.BigEndian, entry{322, []uint16{16}}, entry{323, []uint16{16}}))
	f.Add([]byte("P3 2 1 9 1 2 3 4 5 6"))
	f.Add([]byte("P5 # x\n 3 2 999 abcdefghijkl"))
	for _, sides := range []string{"4294967296 4294967296", "4294967297 4294967295", "2147418113 8590196740",
		"2147483647 2147483647"} {
		for kind := range 6 {
			f.Add(fmt.Appendf(nil, "P%d %s 255 abcdefghijkl", kind+1, sides))
		}
	}
	f.Add(long(tiff(binary.LittleEndian), 1<<32-1, 1<<32-1))
	f.Fuzz(func(t *testing.T, b []byte) {
		within := func(w, h int) bool { return w >= 1 && h >= 1 && w <= MaxSide && h <= MaxSide }
		if h, err := TIFFHeader(bytes.NewReader(b)); err == nil && (!within(h.Width, h.Height) || h.BlockPixels < 1) {
			t.Errorf("%+v", h)
		}
		p, err := NetpbmHeader(b)
		if err != nil {
			return
		}
		if !within(p.Width, p.Height) {
			t.Errorf("%+v", p)
		}
		room := 0 // too little must not be written beyond
		if p.Width < 1000 && p.Height < 1000 {
			room = 3 * p.Width * p.Height
		}
		if _, err := p.Decode(b, make([]byte, room)); room == 0 && err == nil {
			t.Errorf("%+v was decoded to nothing", p)
		}
	})
}
