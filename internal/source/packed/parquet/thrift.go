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

// structure walks fields: a byte of type and step of the number (0 = the number follows), the value; 0 ends it.
func (w *walker) structure(depth int) bool {
	if depth > maxNesting {
		return false
	}
	for {
		c, ok := w.octet()
		if !ok {
			return false
		}
		if c == 0 {
			return true
		}
		if c>>4 == 0 {
			if _, ok := w.uvarint(); !ok {
				return false
			}
		}
		if typ := c & 15; typ > 2 && !w.value(typ, depth) { // 1 and 2 are true and false
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
