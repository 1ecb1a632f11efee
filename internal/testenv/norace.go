//go:build !race

package testenv

// Race says that the race detector watches: it has memory of its own for all memory that it sees.
const Race = false
