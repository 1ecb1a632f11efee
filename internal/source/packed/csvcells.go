package packed

import (
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"strings"

	"larder/internal/record"
)

// What cells of CSV are. Blanks and a byte order mark around a cell are no part of a number: files are joined with the
// marks of each.

// cellText reads a cell that is no text.
func cellText(b []byte) string {
	if n := len(b); n == 0 || plainByte(b[0]) && plainByte(b[n-1]) {
		return string(b)
	}
	return trimmed(string(b))
}

func plainByte(c byte) bool { return c > ' ' && c < 0x7f }

// column says what the cells of a column may be: a bit each.
type column struct {
	notBool, notInt, notFloat, empty, any bool

	whole wholes // of those that are whole numbers
}

func (c *column) take(b []byte) {
	if c.any && c.notBool && c.notFloat { // text
		return
	}
	s := cellText(b)
	if s == "" {
		c.empty = true
		return
	}
	c.any = true
	if !c.notBool {
		_, ok := boolOf(s)
		c.notBool = !ok
	}
	w, ok := wholeOf(unsigned(s))
	c.whole |= w
	c.notInt = c.notInt || !ok
	if !c.notFloat && !ok {
		_, err := floatOf(s)
		c.notFloat = err != nil
	}
}

// unsigned leaves out a plus in front of digits.
func unsigned(s string) []byte {
	if len(s) > 1 && s[0] == '+' && s[1] >= '0' && s[1] <= '9' {
		s = s[1:]
	}
	return []byte(s)
}

// join takes what another part of the column may be.
func (c *column) join(d column) {
	c.notBool = c.notBool || d.notBool
	c.notInt = c.notInt || d.notInt
	c.notFloat = c.notFloat || d.notFloat
	c.empty = c.empty || d.empty
	c.any = c.any || d.any
	c.whole |= d.whole
}

func (c *column) shape() shape {
	switch {
	case c.any && !c.notBool && !c.empty:
		return shape{kind: kindBool}
	case c.any && !c.notInt && !c.empty:
		return shape{kind: kindInt, whole: c.whole}
	case c.any && !c.notFloat:
		return shape{kind: kindFloat, whole: c.whole}
	}
	return shape{kind: kindText}
}

func boolOf(s string) (v, ok bool) {
	switch s {
	case "true", "True", "TRUE":
		return true, true
	case "false", "False", "FALSE":
		return false, true
	}
	return false, false
}

// notANumber has the bits that NumPy's nan has; Go's have another last one.
const notANumber = 0x7ff8000000000000

// floatOf reads a number as people write it: no hexadecimal ones, no underscores.
func floatOf(s string) (float64, error) {
	if strings.ContainsAny(s, "xXpP_") {
		return 0, strconv.ErrSyntax
	}
	return strconv.ParseFloat(s, 64)
}

// cellContent encodes a cell as a field of the schema.
func cellContent(b []byte, f *record.Field) (record.Content, error) {
	if f.Kind == record.Text {
		return record.Content{Data: b}, nil
	}
	s := cellText(b)
	switch f.DType {
	case record.Bool:
		v, ok := boolOf(s)
		if !ok {
			return record.Content{}, fmt.Errorf("field %s: %.40q is neither true nor false", f.Name, s)
		}
		data := []byte{0}
		if v {
			data[0] = 1
		}
		return record.Content{Data: data}, nil
	case record.Int64:
		n, err := strconv.ParseInt(s, 10, 64)
		return record.Content{Data: le64(n)}, inValue(f, err)
	case record.Uint64:
		n, err := strconv.ParseUint(strings.TrimLeft(s, "+-"), 10, 64) // only 0 has a minus there
		return record.Content{Data: le64(int64(n))}, inValue(f, err)
	default:
		bits, err := uint64(notANumber), error(nil)
		if s != "" {
			var x float64
			if x, err = floatOf(s); !math.IsNaN(x) {
				bits = math.Float64bits(x)
			}
		}
		return record.Content{Data: binary.LittleEndian.AppendUint64(nil, bits)}, inValue(f, err)
	}
}
