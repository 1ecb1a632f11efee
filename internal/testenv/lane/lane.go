// Package lane tells tests in which lane of the Makefile they run. The lanes differ in how often a test repeats; each
// promise is tested in both.
package lane

import (
	"os"
	"testing"
)

// Nightly says that tests run in their long forms: make nightly sets LARDER_LANE=nightly.
func Nightly() bool { return os.Getenv("LARDER_LANE") == "nightly" }

// Times returns how often a test repeats: day in make test, night in make nightly. Thresholds follow from the number.
func Times(day, night int) int {
	if Nightly() {
		return night
	}
	return day
}

// OnlyNightly skips a test outside of make nightly. beside says which tests of make test prove the same on smaller
// cases.
func OnlyNightly(t testing.TB, beside string) {
	t.Helper()
	if !Nightly() {
		t.Skip("only in make nightly; make test has " + beside)
	}
}
