package arrow

import (
	"encoding/binary"
	"errors"
)

var le = binary.LittleEndian

var errFlat = errors.New("its metadata is damaged")

// flat is a FlatBuffers message. A read outside of it gives zeros and sets bad.
type flat struct {
	b      []byte
	bad    bool
	copied int // bytes of texts
}

// spare is how many bytes of texts may be copied beyond those of a message: several fields may share one.
const spare = 1 << 20

func (f *flat) u(at, n int) uint64 {
	if at < 0 || n < 0 || at > len(f.b)-n {
		f.bad = true
		return 0
	}
	var word [8]byte
	copy(word[:], f.b[at:at+n])
	return le.Uint64(word[:])
}

// table is a table of the message, by the place of its first byte.
type table struct {
	f  *flat
	at int
}

// root is the table that a message begins with.
func (f *flat) root() table { return table{f, f.jump(0)} }

// jump follows the offset at a place.
func (f *flat) jump(at int) int {
	n := f.u(at, 4)
	if n == 0 || n > uint64(len(f.b)) {
		f.bad = true
		return -1
	}
	return at + int(n)
}

// slot is the place of a table's field; 0 = the field is absent.
func (t table) slot(i int) int {
	if t.f.bad {
		return 0
	}
	vtable := t.at - int(int32(t.f.u(t.at, 4)))
	if 4+2*i+2 > int(t.f.u(vtable, 2)) {
		return 0
	}
	if off := int(t.f.u(vtable+4+2*i, 2)); off != 0 {
		return t.at + off
	}
	return 0
}

// num is a number of n bytes, without its sign.
func (t table) num(i, n int, absent uint64) uint64 {
	at := t.slot(i)
	if at == 0 {
		return absent
	}
	return t.f.u(at, n)
}

// child is a table in a field.
func (t table) child(i int) (table, bool) {
	at := t.slot(i)
	if at == 0 {
		return table{}, false
	}
	at = t.f.jump(at)
	return table{t.f, at}, !t.f.bad
}

// list is a vector in a field: the place of its first element, and their number. Elements have size bytes.
func (t table) list(i, size int) (at, n int) {
	at = t.slot(i)
	if at == 0 {
		return 0, 0
	}
	at = t.f.jump(at)
	count := t.f.u(at, 4)
	if t.f.bad || count > uint64(len(t.f.b)-at-4)/uint64(size) {
		t.f.bad = true
		return 0, 0
	}
	return at + 4, int(count)
}

// text is a string in a field.
func (t table) text(i int) string {
	at, n := t.list(i, 1)
	if t.f.copied += n; t.f.copied > len(t.f.b)+spare {
		t.f.bad = true
		return ""
	}
	return string(t.f.b[at : at+n])
}

// pairs are the keys and values in a field.
func (t table) pairs(i int) map[string]string {
	at, n := t.list(i, 4)
	out := map[string]string{}
	for k := range n {
		pair := table{t.f, t.f.jump(at + 4*k)}
		if t.f.bad {
			return out
		}
		out[pair.text(0)] = pair.text(1)
	}
	return out
}
