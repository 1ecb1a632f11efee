package parquet

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	pq "github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/encoding"
	"github.com/parquet-go/parquet-go/format"
)

// The library decodes pages of booleans wrongly (v0.32.0, encoding/rle): a run of true becomes bytes of 0x01, one true
// of eight, and a run begins at a byte wherever the one before it ended. A page that ends early gets what its buffer
// held before. So their encodings are replaced, in the bytes that the library reads of page headers, by two of our own,
// with codes that Parquet does not use, and that take one byte like those that they replace.
const (
	plainBooleans format.Encoding = 62
	runBooleans   format.Encoding = 63
)

func init() {
	pq.RegisterEncoding(booleans{code: plainBooleans})
	pq.RegisterEncoding(booleans{code: runBooleans})
}

// booleans decodes values of one bit, the first in the lowest. Nothing encodes with it.
type booleans struct {
	encoding.NotSupported
	code format.Encoding
}

func (e booleans) String() string            { return fmt.Sprintf("larder's booleans %d", e.code) }
func (e booleans) Encoding() format.Encoding { return e.code }

var errFewBooleans = errors.New("its booleans end before its values")

// DecodeBoolean gives at least len(dst) bytes of bits, or an error.
func (e booleans) DecodeBoolean(dst, src []byte) ([]byte, error) {
	want := len(dst)
	if e.code == plainBooleans {
		if len(src) < want {
			return dst[:0], errFewBooleans
		}
		return append(dst[:0], src[:want]...), nil
	}
	if want == 0 {
		return dst, nil
	}
	if len(src) < 4 || uint64(binary.LittleEndian.Uint32(src)) > uint64(len(src)-4) {
		return dst[:0], io.ErrUnexpectedEOF
	}
	return decodeRuns(dst, src[4:][:binary.LittleEndian.Uint32(src)])
}

// decodeRuns fills dst with bits of the RLE/bit-packing hybrid (Parquet's Encodings.md, RLE = 3): runs of a repeated
// value, and groups of eight values. More than dst holds is left. How many values the last byte holds is not known
// here: the bits of a page that ends inside of it are false.
func decodeRuns(dst, src []byte) ([]byte, error) {
	clear(dst)
	room := uint64(len(dst)) * 8
	for at := uint64(0); at < room && (len(src) > 0 || at <= room-8); {
		head, n := binary.Uvarint(src)
		if n <= 0 {
			return dst[:0], errFewBooleans
		}
		src = src[n:]
		count := head >> 1
		if head&1 == 0 { // a run, and its value in a byte
			if len(src) == 0 {
				return dst[:0], errFewBooleans
			}
			if src[0] > 1 {
				return dst[:0], fmt.Errorf("a boolean of value %d", src[0])
			}
			if src[0] == 1 {
				setBits(dst, at, min(count, room-at))
			}
			src = src[1:]
			at += min(count, room-at)
			continue
		}
		if count > uint64(len(src)) {
			return dst[:0], errFewBooleans
		}
		for _, b := range src[:count] {
			if at >= room {
				break
			}
			dst[at/8] |= b << (at % 8)
			if at%8 > 0 && at/8+1 < uint64(len(dst)) {
				dst[at/8+1] |= b >> (8 - at%8)
			}
			at += 8
		}
		src = src[count:]
	}
	return dst, nil
}

// setBits sets n bits from bit at on.
func setBits(b []byte, at, n uint64) {
	for ; n > 0 && at%8 > 0; at, n = at+1, n-1 {
		b[at/8] |= 1 << (at % 8)
	}
	for ; n >= 8; at, n = at+8, n-8 {
		b[at/8] = 0xff
	}
	for ; n > 0; at, n = at+1, n-1 {
		b[at/8] |= 1 << (at % 8)
	}
}

// encodingAt is where the header of a data page says how its values are encoded.
func encodingAt(h *format.PageHeader, head []byte) (int, error) {
	page, field := 5, 2 // PageHeader.data_page_header, DataPageHeader.encoding
	if h.Type == format.DataPageV2 {
		page, field = 8, 4
	}
	if in, ok := fieldAt(head, page); ok {
		if at, ok := fieldAt(head[in:], field); ok && head[in+at] < 0x80 {
			return in + at, nil
		}
	}
	return 0, errors.New("its header does not say how it is encoded")
}

// fieldAt is where the value of a field of a struct begins.
func fieldAt(b []byte, field int) (int, bool) {
	w := walker{b: b}
	for number := 0; ; {
		var head byte
		var ok bool
		if head, number, ok = w.field(number); !ok || head == 0 {
			return 0, false
		}
		if number == field {
			return len(b) - len(w.b), true
		}
		if typ := head & 15; typ > 2 && !w.value(typ, 0) {
			return 0, false
		}
	}
}

// recoding is a byte to read in place of that of the file.
type recoding struct {
	at   int64
	code byte
}

// recoded reads a file with other bytes at some places, which are in order.
type recoded struct {
	io.ReaderAt
	codes []recoding
}

func (r recoded) ReadAt(p []byte, off int64) (int, error) {
	n, err := r.ReaderAt.ReadAt(p, off)
	i, _ := slices.BinarySearchFunc(r.codes, off, func(c recoding, off int64) int { return cmp.Compare(c.at, off) })
	for ; i < len(r.codes) && r.codes[i].at-off < int64(n); i++ {
		p[r.codes[i].at-off] = r.codes[i].code
	}
	return n, err
}

// recode says which byte to read in place of the encoding of a data page of booleans whose header begins at start. ok
// is false for encodings that the library refuses for booleans, and for dictionaries.
func recode(h *format.PageHeader, head []byte, start int64) (c recoding, ok bool, err error) {
	e := h.DataPageHeader.V.Encoding
	if h.Type == format.DataPageV2 {
		e = h.DataPageHeaderV2.V.Encoding
	}
	switch e {
	case format.Plain:
		c.code = byte(plainBooleans) << 1 // zigzag
	case format.RLE:
		c.code = byte(runBooleans) << 1
	default:
		return c, false, nil
	}
	at, err := encodingAt(h, head)
	c.at = start + int64(at)
	return c, true, err
}
