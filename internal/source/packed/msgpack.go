package packed

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// pair is an image and its label in one value.
type pair struct {
	image []byte
	label int64
}

// parsePair reads the msgpack that scripts write for ImageNet: an array or map that holds one byte string, the image
// file, and one whole number, its label, at any depth, such as [[DATA], LABEL].
func parsePair(b []byte) (pair, error) {
	m := msgpack{b: b}
	if err := m.value(0); err != nil {
		return pair{}, fmt.Errorf("its value is no msgpack: %w", err)
	}
	switch {
	case len(m.b) > 0:
		return pair{}, fmt.Errorf("its value has %d bytes behind the msgpack", len(m.b))
	case len(m.binary) != 1 || len(m.numbers) != 1:
		return pair{}, fmt.Errorf("its msgpack has %d byte strings and %d whole numbers, not one image and one label",
			len(m.binary), len(m.numbers))
	}
	return pair{m.binary[0], m.numbers[0]}, nil
}

// msgpack collects what a message holds (https://github.com/msgpack/msgpack/blob/master/spec.md).
type msgpack struct {
	b       []byte
	binary  [][]byte
	numbers []int64
	left    int // values that were read
}

var errShort = errors.New("it is cut")

const maxMsgpack = 64 // values in a message

func (m *msgpack) take(n uint64) ([]byte, error) {
	if n > uint64(len(m.b)) {
		return nil, errShort
	}
	out := m.b[:n:n]
	m.b = m.b[n:]
	return out, nil
}

// number takes a big-endian number of n bytes.
func (m *msgpack) number(n uint64) (uint64, error) {
	b, err := m.take(n)
	if err != nil {
		return 0, err
	}
	var word [8]byte
	copy(word[8-n:], b)
	return binary.BigEndian.Uint64(word[:]), nil
}

func (m *msgpack) value(depth int) error {
	if m.left++; m.left > maxMsgpack || depth > 4 {
		return errors.New("it has more than an image and a label")
	}
	c, err := m.number(1)
	if err != nil {
		return err
	}
	switch {
	case c < 0x80 || c >= 0xe0:
		m.numbers = append(m.numbers, int64(int8(c)))
		return nil
	case c < 0x90:
		return m.several(2*(c&15), depth)
	case c < 0xa0:
		return m.several(c&15, depth)
	case c < 0xc0:
		return m.bytes(c&31, false)
	case c >= 0xc4 && c <= 0xc6: // bin 8, 16, 32
		return m.sized(1<<(c-0xc4), func(n uint64) error { return m.bytes(n, true) })
	case c >= 0xcc && c <= 0xcf: // uint 8 to 64
		return m.sized(1<<(c-0xcc), func(n uint64) error {
			if n > math.MaxInt64 {
				return fmt.Errorf("%d is larger than a label can be", n)
			}
			return m.whole(int64(n))
		})
	case c >= 0xd0 && c <= 0xd3: // int 8 to 64
		size := uint64(1) << (c - 0xd0)
		return m.sized(size, func(n uint64) error {
			shift := 64 - 8*size
			return m.whole(int64(n<<shift) >> shift)
		})
	case c >= 0xd9 && c <= 0xdb: // str 8, 16, 32
		return m.sized(1<<(c-0xd9), func(n uint64) error { return m.bytes(n, false) })
	case c == 0xdc || c == 0xdd: // array 16, 32
		return m.sized(2<<(c-0xdc), func(n uint64) error { return m.several(n, depth) })
	case c == 0xde || c == 0xdf: // map 16, 32
		return m.sized(2<<(c-0xde), func(n uint64) error { return m.several(2*n, depth) })
	}
	return fmt.Errorf("it holds a value of type %#x", c)
}

func (m *msgpack) sized(n uint64, then func(uint64) error) error {
	x, err := m.number(n)
	if err != nil {
		return err
	}
	return then(x)
}

func (m *msgpack) whole(n int64) error {
	m.numbers = append(m.numbers, n)
	return nil
}

// bytes takes a byte string. Old writers know strings only: one that begins as an image file is one.
func (m *msgpack) bytes(n uint64, isBinary bool) error {
	b, err := m.take(n)
	if err == nil && (isBinary || isImageFile(b)) {
		m.binary = append(m.binary, b)
	}
	return err
}

func (m *msgpack) several(n uint64, depth int) error {
	for range min(n, maxMsgpack+1) {
		if err := m.value(depth + 1); err != nil {
			return err
		}
	}
	return nil
}
