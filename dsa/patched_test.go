//go:build planted

package dsa

// patched says that this is the copy of the package into which bugs were planted (planted_test.go).
const patched = true

// plant switches bugs on.
func plant(s *Sampler, b planted) { *s.bugs = bugs(b) }
