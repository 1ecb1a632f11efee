package packed

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"larder/internal/record"
)

// A label is the number of a class, or the name of one. Programs write numbers as floats where a column has missing
// values, and put marks and blanks around them: 7, "7\n", 7.0 and a byte order mark with a 7 are one label.

// LabelsByWord reports whether samples of a scheme may have words as labels, whose places among all are delivered.
func LabelsByWord(scheme string) bool {
	return slices.Contains([]string{"wds", "mds", "imagefiles"}, scheme)
}

// LabelKind tells names of classes apart.
type LabelKind int

// The kinds: a word, a whole number, another number.
const (
	LabelWord LabelKind = iota
	LabelWhole
	LabelNumber
	LabelKinds
)

// KindOfLabel says what the name of a class is.
func KindOfLabel(class string) LabelKind {
	text := trimmed(class)
	if _, err := wholeText(text); !errors.Is(err, strconv.ErrSyntax) {
		return LabelWhole
	}
	if _, err := floatOf(text); err == nil {
		return LabelNumber
	}
	return LabelWord
}

// OldLabel reports whether an earlier larder took a number for the name of a class, or left in it what is around it.
func OldLabel(class string) bool { return KindOfLabel(class) != LabelWord || trimmed(class) != class }

// labelFields are the fields of records that are taken for the label, the best first.
var labelFields = append(slices.Clone(labelNames), "image/class/label")

// labelField is the field that gives samples a label: the first of the names that is an integer scalar, or a float
// scalar, whose whole numbers are labels; -1 = none. A field "label" of other values has no other beside it.
func labelField(s *record.Schema, names []string) int {
	for _, name := range names {
		i := fieldNamed(s.Fields, name)
		if i < 0 {
			continue
		}
		if f := &s.Fields[i]; f.Kind == record.Scalar && (isWhole(f.DType) || isFloat(f.DType)) {
			return i
		}
		if name == labelNames[0] && IsProperty(&s.Fields[i]) {
			break
		}
	}
	return -1
}

func isWhole(d record.DType) bool { return d != record.Bool && d <= record.Int64 }
func isFloat(d record.DType) bool { return d == record.Float32 || d == record.Float64 }

// LabelField names the field that holds the labels of records: the one that gives samples a label, else one of the
// usual name that holds other values; "" = there is none.
func LabelField(s *record.Schema) string {
	if i := labelField(s, labelFields); i >= 0 {
		return s.Fields[i].Name
	}
	for _, name := range labelFields {
		if i := fieldNamed(s.Fields, name); i >= 0 && IsProperty(&s.Fields[i]) {
			return name
		}
	}
	return ""
}

// FloatLabels reports whether labels of records lie in a field of floats.
func FloatLabels(s *record.Schema) bool {
	i := labelField(s, labelFields)
	return i >= 0 && isFloat(s.Fields[i].DType)
}

// labelValue is the number in a scalar, for a label; -1 = it is none that a label can be.
func labelValue(d record.DType, b []byte) int64 {
	n := leUint(b)
	switch d { //nolint:exhaustive // the others are unsigned
	case record.Float32:
		return wholeLabel(float64(math.Float32frombits(uint32(n))))
	case record.Float64:
		return wholeLabel(math.Float64frombits(n))
	case record.Int8, record.Int16, record.Int32, record.Int64:
		shift := 64 - 8*d.Size()
		n = uint64(int64(n<<shift) >> shift)
	}
	if int64(n) < 0 || n > math.MaxInt32 {
		return -1
	}
	return int64(n)
}

// wholeLabel is a float as a label; -1 = it is none that a label can be.
func wholeLabel(x float64) int64 {
	if x != math.Trunc(x) || x < 0 || x > math.MaxInt32 { // not a number neither
		return -1
	}
	return int64(x)
}

// labelFrom is the label in a cell or a number of JSON; -1 = it is none that a class can have.
func labelFrom(raw []byte) int64 {
	s := trimmed(string(raw))
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return labelValue(record.Int64, binary.LittleEndian.AppendUint64(nil, uint64(n)))
	}
	x, err := floatOf(s)
	if err != nil {
		return -1
	}
	return wholeLabel(x)
}

// trimmed leaves out what is around a value and no part of it: blanks, ends of lines, byte order marks.
func trimmed(s string) string {
	return strings.TrimFunc(s, func(r rune) bool { return r == '\ufeff' || unicode.IsSpace(r) })
}

// wholeText reads a whole number that may be written as a float, such as 3.0.
func wholeText(s string) (int64, error) {
	digits, zeros, _ := strings.Cut(s, ".")
	if strings.Trim(zeros, "0") != "" {
		return 0, fmt.Errorf("%.40q: %w", s, strconv.ErrSyntax)
	}
	return strconv.ParseInt(digits, 10, 64)
}

// labelled takes a label out of text: a whole number, also as 3.0, or a word. Nothing is none.
func (s *Sample) labelled(b []byte) error {
	text := trimmed(string(b))
	n, err := wholeText(text)
	switch {
	case errors.Is(err, strconv.ErrSyntax):
		s.Class = text
	case err != nil || n < -1 || n > math.MaxInt32:
		return fmt.Errorf("the label %.40q; labels are 0 to %d", text, math.MaxInt32)
	default:
		s.Label = n
	}
	return nil
}

// labelledFloat takes a label that is a float.
func (s *Sample) labelledFloat(x float64) error {
	switch {
	case math.IsNaN(x):
	case x != math.Trunc(x) || x < -1 || x > math.MaxInt32:
		return fmt.Errorf("the label %v; labels are whole numbers, 0 to %d; records (?fields=) have any numbers", x,
			math.MaxInt32)
	default:
		s.Label = int64(x)
	}
	return nil
}
