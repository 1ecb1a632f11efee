//go:build invariants || race

package invariant

// Enabled reports whether expensive checks run and freed memory is poisoned.
const Enabled = true
