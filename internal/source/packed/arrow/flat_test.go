package arrow

import (
	"strings"
	"testing"
)

// Fields may share one name, and the names that are copied of a message are bounded by it.
func TestSharedTextsAreBounded(t *testing.T) {
	const long = 4 << 20
	f := &flat{}
	word := func(n uint32) { f.b = le.AppendUint32(f.b, n) }
	f.b = le.AppendUint16(f.b, 6) // the vtable: its size, that of the table, the place of field 0
	f.b = append(le.AppendUint16(f.b, 8), 4, 0, 0, 0)
	word(8) // the table, at 8, and the offset of its text
	word(4)
	word(long)
	f.b = append(f.b, strings.Repeat("x", long)...)
	one := table{f, 8}
	if got := one.text(0); len(got) != long || f.bad {
		t.Fatalf("%d bytes, %v", len(got), f.bad)
	}
	for range 100 {
		one.text(0)
	}
	if !f.bad || f.copied > 3*long {
		t.Errorf("%d bytes were copied of a message of %d", f.copied, len(f.b))
	}
}
