// Package testenv is what tests read of the environment.
package testenv

import (
	"os"
	"runtime/debug"
	"strconv"
	"testing"
)

// Count is how often a test does something: what the environment says, for longer runs, or def.
func Count(t testing.TB, name string, def int) int {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return def
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		t.Fatalf("%s=%q is no count", name, s)
	}
	return n
}

// Tags are the build tags of this test, between commas. What it builds with them was compiled already, and has the same
// decoder.
func Tags() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "-tags" {
				return s.Value
			}
		}
	}
	return ""
}
