package resume

import (
	"bytes"
	"compress/flate"
	"encoding/base64"
	"errors"
	"io"
)

// How the bits of a set are packed: the first byte.
const (
	plainBits = iota
	flatBits  // deflate
)

// Pack makes text of a set of places below n: one bit each, deflated when that is shorter. A half of 1.28 million
// places, which nothing compresses, is 160,001 bytes before it is made text (base64, a third more).
func Pack(n int, places []uint32) string {
	b := make([]byte, 1+(n+7)/8)
	for _, p := range places {
		b[1+p/8] |= 1 << (p % 8)
	}
	var out bytes.Buffer
	out.WriteByte(flatBits)
	w, _ := flate.NewWriter(&out, flate.BestCompression) // the level is a valid one
	_, _ = w.Write(b[1:])                                // to memory
	_ = w.Close()
	if out.Len() < len(b) {
		b = out.Bytes()
	}
	return base64.StdEncoding.EncodeToString(b)
}

var errSet = errors.New("what it says was delivered cannot be read")

// Unpack is the reverse of Pack.
func Unpack(text string, n int) ([]uint32, error) {
	b, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil || len(b) == 0 {
		return nil, errSet
	}
	kind, b := b[0], b[1:]
	size := (n + 7) / 8
	switch kind {
	case plainBits:
	case flatBits:
		r := flate.NewReader(bytes.NewReader(b))
		b, err = io.ReadAll(io.LimitReader(r, int64(size)+1))
		if err != nil {
			return nil, errSet
		}
	default:
		return nil, errSet
	}
	if len(b) != size {
		return nil, errSet
	}
	var out []uint32
	for i, x := range b {
		for k := range 8 {
			if x&(1<<k) == 0 {
				continue
			}
			p := i*8 + k
			if p >= n {
				return nil, errSet
			}
			out = append(out, uint32(p))
		}
	}
	return out, nil
}
