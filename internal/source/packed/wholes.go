package packed

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"

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

// wholeOf describes a JSON number, if it is a whole one.
func wholeOf(raw []byte) (w wholes, ok bool) {
	if digits := bytes.TrimPrefix(raw, []byte{'-'}); len(digits) == 0 || len(bytes.Trim(digits, "0123456789")) > 0 {
		return 0, false // before it is parsed: most cells are no whole numbers, and an error of strconv is memory
	}
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

// WereOthers reports whether an earlier larder may have found other fields in files of a scheme, or none that can be
// read: float64 for whole numbers that it does not hold, and columns of Parquet of any codec.
func WereOthers(scheme string, s *record.Schema) bool {
	return scheme == "parquet" || scheme == "jsonl" &&
		slices.ContainsFunc(s.Fields, func(f record.Field) bool { return f.DType == record.Float64 })
}

// KeptHalves reports whether the disk tier may have records of a file, of an earlier larder, with U+FFFD for half of a
// character: it keeps those of compressed lines.
func KeptHalves(scheme string, s *record.Schema, path string) bool {
	return scheme == "jsonl" && compressedName(path) &&
		slices.ContainsFunc(s.Fields, func(f record.Field) bool { return f.Kind == record.Text })
}

// halves refuses a JSON string that has half of a character: a surrogate without its other half, which UTF-8 cannot
// hold. Python writes them for the bytes of surrogateescape.
func halves(raw []byte) error {
	for i := 0; i+6 <= len(raw); i++ {
		if raw[i] != '\\' {
			continue
		}
		if i++; raw[i] != 'u' {
			continue // also a backslash
		}
		switch n := unitAt(raw[i-1:]); {
		case n >= 0xd800 && n < 0xdc00: // its other half follows
			if low := unitAt(raw[i+5:]); low < 0xdc00 || low >= 0xe000 {
				return errHalf
			}
			i += 6
		case n >= 0xdc00 && n < 0xe000:
			return errHalf
		}
		i += 4
	}
	return nil
}

// validJSON refuses JSON that Go's decoder would read with U+FFFD in the place of a character.
func validJSON(b []byte) error {
	if err := validText(b); err != nil {
		return err
	}
	if err := halves(b); err != nil {
		return fmt.Errorf("it %w", err)
	}
	return nil
}

// onceEach refuses objects in which a key comes twice, also in other letters: Go's decoder joins both, and Python's
// takes the last one. What is no JSON is for the decoder to say.
func onceEach(b []byte) error {
	in := json.NewDecoder(bytes.NewReader(b))
	var open []map[string]bool // keys of the objects around a token; nil = a list
	for key := false; ; {
		t, err := in.Token()
		if err != nil {
			return nil //nolint:nilerr // its end, or no JSON
		}
		switch t := t.(type) {
		case json.Delim:
			switch t {
			case '{':
				open = append(open, map[string]bool{})
			case '[':
				open = append(open, nil)
			default:
				open = open[:len(open)-1]
			}
		case string:
			if key {
				k := strings.ToLower(t)
				if open[len(open)-1][k] {
					return fmt.Errorf("it has the key %.80q twice", t)
				}
				open[len(open)-1][k], key = true, false
				continue
			}
		}
		key = len(open) > 0 && open[len(open)-1] != nil
	}
}

var errHalf = errors.New(`has half of a character, a surrogate such as \ud83d without its other half, which UTF-8 ` +
	"cannot hold: write the text again without it (in Python: text.encode(errors=\"replace\"))")

// unitAt is the number of the escape \uXXXX that bytes begin with; -1 = they begin with none.
func unitAt(b []byte) int {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return -1
	}
	n, err := strconv.ParseUint(string(b[2:6]), 16, 16)
	if err != nil {
		return -1
	}
	return int(n)
}
