// Package units writes numbers with their units for people.
package units

import (
	"strconv"
	"strings"
)

// sizeUnits in falling order.
var sizeUnits = []struct {
	name  string
	bytes int64
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}

// Size writes a number of bytes for people, in the units of the configuration and rounded to three digits: 1.5GiB,
// 12.3MiB, 512B.
func Size[N int | int64 | uint64](n N) string {
	for _, u := range sizeUnits {
		if float64(n) >= float64(u.bytes) {
			x := float64(n) / float64(u.bytes)
			prec := 2
			for p := x; p >= 10 && prec > 0; p /= 10 {
				prec--
			}
			s := strconv.FormatFloat(x, 'f', prec, 64)
			if strings.Contains(s, ".") {
				s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
			}
			return s + u.name
		}
	}
	return strconv.FormatInt(int64(n), 10) + "B"
}
