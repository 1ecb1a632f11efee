// Package invariant states what must hold. With the build tag "invariants" (or -race) a violation panics where it
// happens and expensive checks run; without, Violated still panics, because to continue would deliver wrong data, but
// Check costs nothing.
//
// User input never reaches this package: bad input is an error, a violated invariant is our bug.
package invariant

import "fmt"

// Broken stands in every report of a violation, a panic or a line of the log. Tests look for it.
const Broken = "invariant violated"

// Violated reports a bug of larder.
func Violated(format string, args ...any) {
	panic("larder: " + Broken + ": " + fmt.Sprintf(format, args...))
}

// Check runs an expensive check in builds with invariants and panics on its error.
func Check(check func() error) {
	if !Enabled {
		return
	}
	if err := check(); err != nil {
		Violated("%v", err)
	}
}
