package testenv

import (
	"strings"

	"larder/internal/invariant"
)

// Bug returns the first line of a daemon's log that tells of a bug of larder: a broken invariant, as a ledger that is
// not exactly once, or a panic. It is "" where there is none.
func Bug(log string) string {
	for line := range strings.Lines(log) {
		for _, words := range []string{invariant.Broken, "panic:", "fatal error:", "this is a bug of larder"} {
			if strings.Contains(line, words) {
				return strings.TrimSuffix(line, "\n")
			}
		}
	}
	return ""
}
