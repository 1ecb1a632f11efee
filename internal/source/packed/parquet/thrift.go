package parquet

import (
	"encoding/binary"
	"errors"
)

var errFooter = errors.New("its footer is damaged")

// walker reads the compact protocol of Thrift without making anything of it.
type walker struct {
	b        []byte
	elements int // of lists so far
}

const (
	maxElements = 1 << 20
	maxNesting  = 32
)

// checkFooter reports an error if a message is no struct, or its lists are longer than what is there: the decoder makes
// room for them at once.
func checkFooter(b []byte) error {
	w := walker{b: b}
	if !w.structure(0) {
		return errFooter
	}
	return nil
}

func (w *walker) uvarint() (uint64, bool) {
	v, n := binary.Uvarint(w.b)
	if n <= 0 {
		return 0, false
	}
	w.b = w.b[n:]
	return v, true
}

func (w *walker) skip(n uint64) bool {
	if n > uint64(len(w.b)) {
		return false
	}
	w.b = w.b[n:]
	return true
}

func (w *walker) octet() (byte, bool) {
	if len(w.b) == 0 {
		return 0, false
	}
	c := w.b[0]
	w.b = w.b[1:]
	return c, true
}

// field reads the head of the field after that of number last: a byte of type and step of the number (0 = the number
// follows), which is 0 at the end of a struct.
func (w *walker) field(last int) (head byte, number int, ok bool) {
	head, ok = w.octet()
	if !ok || head == 0 || head>>4 > 0 {
		return head, last + int(head>>4), ok
	}
	n, ok := w.uvarint()
	return head, int(int16(n>>1) ^ -int16(n&1)), ok //nolint:gosec // the format's numbers have 16 bits
}

// structure walks fields, to the end of the struct.
func (w *walker) structure(depth int) bool {
	if depth > maxNesting {
		return false
	}
	for {
		head, _, ok := w.field(0)
		if !ok {
			return false
		}
		if head == 0 {
			return true
		}
		if typ := head & 15; typ > 2 && !w.value(typ, depth) { // 1 and 2 are true and false
			return false
		}
	}
}

func (w *walker) value(typ byte, depth int) bool {
	switch typ {
	case 1, 2, 3: // bools in lists, bytes
		return w.skip(1)
	case 4, 5, 6:
		_, ok := w.uvarint()
		return ok
	case 7:
		return w.skip(8)
	case 8:
		n, ok := w.uvarint()
		return ok && w.skip(n)
	case 9, 10:
		return w.list(depth)
	case 12:
		return w.structure(depth + 1)
	}
	return false // Parquet's messages have no maps
}

func (w *walker) list(depth int) bool {
	c, ok := w.octet()
	if !ok {
		return false
	}
	n := uint64(c >> 4)
	if n == 15 {
		if n, ok = w.uvarint(); !ok {
			return false
		}
	}
	if n > uint64(len(w.b)) || n > maxElements {
		return false
	}
	if w.elements += int(n); w.elements > maxElements {
		return false
	}
	for range n {
		if !w.value(c&15, depth+1) {
			return false
		}
	}
	return true
}
