package dsa

import (
	"os"
	"runtime/debug"
	"testing"
)

// TestMain lets the heap grow further between collections: most of what these tests cost is very many samplers of very
// few samples.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	os.Exit(m.Run())
}
