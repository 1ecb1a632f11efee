package arrow

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
)

const (
	maxDigits = 76
	// floatDigits is how many decimal digits a float64 has for certain.
	floatDigits = 15
)

// Exact reports whether a column of decimals is text: their digits are more than a float64 has.
func (f *Field) Exact() bool { return f.Digits > floatDigits }

// SetDecimal makes a column one of decimals of so many digits, scale of them behind the point.
func (f *Field) SetDecimal(digits, scale int) {
	f.Kind, f.Digits, f.Scale = Decimal, digits, scale
	if digits < 1 || digits > maxDigits || scale < -maxDigits || scale > maxDigits {
		f.Kind, f.Word = Other, fmt.Sprintf("decimal of %d digits, %d of them behind the point", digits, scale)
	}
}

// Meaning says more of a column's values than its kind: the unit of a time; "" = nothing. Of lists it is that of what
// is in them. Decimals mean what they say, whatever their digits.
func (f *Field) Meaning() string {
	switch {
	case (f.Kind == List || f.Kind == FixedList) && len(f.Inner) == 1:
		return f.Inner[0].Meaning()
	case f.Kind == Int:
		return f.Word
	}
	return ""
}

// AppendDecimal appends a decimal, which is a whole number of two's complement, big-endian: as a float64, or as text
// where it is Exact.
func (f *Field) AppendDecimal(dst, b []byte) ([]byte, error) {
	if len(b) > maxDigits {
		return dst, fmt.Errorf("a decimal of %d bytes", len(b))
	}
	n := new(big.Int).SetBytes(b)
	if len(b) > 0 && b[0] >= 0x80 {
		n.Sub(n, new(big.Int).Lsh(big.NewInt(1), uint(8*len(b))))
	}
	s := new(big.Int).Abs(n).String()
	switch {
	case f.Scale < 0 && n.Sign() != 0:
		s += strings.Repeat("0", -f.Scale)
	case f.Scale > 0:
		s = strings.Repeat("0", max(0, f.Scale+1-len(s))) + s
		s = s[:len(s)-f.Scale] + "." + s[len(s)-f.Scale:]
	}
	if n.Sign() < 0 {
		s = "-" + s
	}
	if f.Exact() {
		return append(dst, s...), nil
	}
	x, err := strconv.ParseFloat(s, 64)
	return binary.LittleEndian.AppendUint64(dst, math.Float64bits(x)), err
}

// decimal reads a row of decimals.
func (r *reader) decimal(c *Field, row int64) (Value, error) {
	size := int64(c.Bits / 8)
	if row > maxRows {
		return Value{}, fmt.Errorf("column %q: value %d", c.Name, row)
	}
	b, err := r.part(c, 1, row*size, size)
	if err != nil {
		return Value{}, err
	}
	slices.Reverse(b)
	b, err = c.AppendDecimal(nil, b)
	return Value{Data: b}, err
}
