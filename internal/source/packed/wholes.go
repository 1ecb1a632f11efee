package packed

import (
	"bytes"
	"math/big"
	"strconv"

	"larder/internal/record"
)

// wholes says which whole numbers are among the values of a field: the dtype holds them all exactly, and where none
// does the field is text, as they are written.
type wholes uint8

const (
	isNegative wholes = 1 << iota
	isLarge           // it fits a uint64 and no int64
	isHuge            // it fits neither
	isBetween         // a float64 has no such value
)

// mostExact is up to where every whole number is a float64.
const mostExact = 1 << 53

// wholeOf says what a JSON number is, if it is a whole one.
func wholeOf(raw []byte) (w wholes, ok bool) {
	s := string(raw)
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		if n < 0 {
			w |= isNegative
		}
		if (n > mostExact || n < -mostExact) && !inFloat(s) {
			w |= isBetween
		}
		return w, true
	}
	if digits := bytes.TrimPrefix(raw, []byte{'-'}); len(digits) == 0 || len(bytes.Trim(digits, "0123456789")) > 0 {
		return 0, false
	}
	w = isHuge
	if _, err := strconv.ParseUint(s, 10, 64); err == nil {
		w = isLarge
	}
	if raw[0] == '-' {
		w |= isNegative
	}
	if !inFloat(s) {
		w |= isBetween
	}
	return w, true
}

// inFloat reports whether a float64 has the value of a whole number exactly.
func inFloat(s string) bool {
	x, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return false
	}
	f, _ := new(big.Float).SetFloat64(x).Int(nil)
	n, ok := new(big.Int).SetString(s, 10)
	return ok && n.Cmp(f) == 0
}

// integer is the dtype of whole numbers alone; 0 = none holds them.
func (w wholes) integer() record.DType {
	switch {
	case w&isHuge != 0, w&isLarge != 0 && w&isNegative != 0:
		return 0
	case w&isLarge != 0:
		return record.Uint64
	}
	return record.Int64
}

// float is the dtype of whole numbers among others; 0 = some would not be what they are.
func (w wholes) float() record.DType {
	if w&isBetween != 0 {
		return 0
	}
	return record.Float64
}
