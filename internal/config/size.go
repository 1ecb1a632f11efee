package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"larder/internal/errs"
)

type sizeKind uint8

const (
	sizeAuto sizeKind = iota // the zero value: larder decides
	sizeBytes
	sizePercent
)

// Size is an amount of memory as a person writes it: bytes, a percentage (of tiers.total for a tier, else of the
// machine), or auto. The zero value is auto. Sizes are comparable with ==.
type Size struct {
	kind    sizeKind
	bytes   int64
	percent float64
}

// Auto is the size that larder decides itself.
var Auto = Size{}

// Bytes returns a fixed size; negative numbers become 0.
func Bytes(n int64) Size { return Size{kind: sizeBytes, bytes: max(n, 0)} }

// IsAuto reports whether larder decides the size.
func (s Size) IsAuto() bool { return s.kind == sizeAuto }

// IsPercent reports whether the size is a percentage.
func (s Size) IsPercent() bool { return s.kind == sizePercent }

// Of returns the size in bytes where percentages are of whole: of the machine's memory (the cgroup limit where there is
// one), or, for a tier, of tiers.total. auto gives 0.
func (s Size) Of(whole int64) int64 {
	switch s.kind {
	case sizeBytes:
		return s.bytes
	case sizePercent:
		return int64(float64(whole) * s.percent / 100)
	default:
		return 0
	}
}

// units in falling order, powers of 2 first.
var suffixes = []struct {
	name  string
	bytes int64
}{
	{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3},
}

// String writes the size so that ParseSize reads the same one: 8GiB, 512MB, 30%, auto.
func (s Size) String() string {
	switch s.kind {
	case sizeBytes:
		return FormatBytes(s.bytes)
	case sizePercent:
		return strconv.FormatFloat(s.percent, 'f', -1, 64) + "%"
	default:
		return "auto"
	}
}

// FormatBytes writes a number of bytes exactly, in the unit that takes the smallest whole number of it: 16MB, not
// 15625KiB.
func FormatBytes(n int64) string {
	text, least := strconv.FormatInt(n, 10), n
	for _, u := range suffixes {
		if n%u.bytes == 0 && n/u.bytes < least {
			least = n / u.bytes
			text = strconv.FormatInt(least, 10) + u.name
		}
	}
	return text
}

const sizeHint = "write bytes like 8GiB or 512MB, a percentage like 30%, or auto"

// maxBytes bounds sizes far below overflow, so that sums of a few of them are safe.
const maxBytes = 1 << 56

// ParseSize reads 8GiB, 512MB, 1.5GiB, 1048576, 30% or auto. A percentage is of the cgroup limit (or of RAM) and must
// be in (0, 100]. The error is a *errs.Error of reason CONFIG_INVALID whose subject is the text.
func ParseSize(text string) (Size, error) {
	s := strings.TrimSpace(text)
	bad := func(format string, args ...any) (Size, error) {
		return Size{}, errs.New(errs.ConfigInvalid, text, sizeHint, "size %q: %s", text, fmt.Sprintf(format, args...))
	}
	switch {
	case s == "":
		return bad("it is empty")
	case strings.EqualFold(s, "auto"):
		return Auto, nil
	case strings.HasPrefix(s, "-"):
		return bad("it is negative")
	}
	num, unit := s, ""
	if i := strings.IndexFunc(s, func(r rune) bool { return (r < '0' || r > '9') && r != '.' && r != '_' }); i >= 0 {
		num, unit = s[:i], strings.TrimSpace(s[i:])
	}
	if strings.HasPrefix(num, "_") || strings.HasSuffix(num, "_") || strings.Contains(num, "__") {
		return bad("%q is not a number", num)
	}
	num = strings.ReplaceAll(num, "_", "")
	if num == "" || num == "." {
		return bad("it does not begin with a number")
	}
	x, err := strconv.ParseFloat(num, 64)
	if err != nil || math.IsNaN(x) || math.IsInf(x, 0) {
		return bad("%q is not a number", num)
	}
	if unit == "%" {
		if x <= 0 || x > 100 {
			return bad("a percentage must be above 0%% and at most 100%%")
		}
		return Size{kind: sizePercent, percent: x}, nil
	}
	mult, ok := unitBytes(unit)
	if !ok {
		return bad("unknown unit %q", unit)
	}
	if !strings.Contains(num, ".") { // exact for every int64
		n, err := strconv.ParseInt(num, 10, 64)
		if err != nil || n > maxBytes/mult {
			return bad("it is larger than %s", FormatBytes(maxBytes))
		}
		return Bytes(n * mult), nil
	}
	if mult == 1 {
		return bad("a byte has no parts; give the unit, as in %sGiB or %g%%", num, min(100, 100*x))
	}
	x *= float64(mult)
	if x > maxBytes {
		return bad("it is larger than %s", FormatBytes(maxBytes))
	}
	return Bytes(int64(math.Round(x))), nil
}

func unitBytes(unit string) (int64, bool) {
	switch strings.ToLower(unit) {
	case "", "b":
		return 1, true
	case "k", "kb":
		return 1e3, true
	case "m", "mb":
		return 1e6, true
	case "g", "gb":
		return 1e9, true
	case "t", "tb":
		return 1e12, true
	case "ki", "kib":
		return 1 << 10, true
	case "mi", "mib":
		return 1 << 20, true
	case "gi", "gib":
		return 1 << 30, true
	case "ti", "tib":
		return 1 << 40, true
	}
	return 0, false
}
