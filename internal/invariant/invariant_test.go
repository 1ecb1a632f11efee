package invariant

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// said runs f and returns what it panicked with, "" when it did not.
func said(f func()) (msg string) {
	defer func() {
		if p := recover(); p != nil {
			msg = fmt.Sprint(p)
		}
	}()
	f()
	return ""
}

func TestViolatedPanicsInEveryBuild(t *testing.T) {
	got := said(func() { Violated("%d of %d", 3, 2) })
	if got != "larder: invariant violated: 3 of 2" {
		t.Errorf("%q", got)
	}
}

func TestCheckRunsOnlyWhenEnabled(t *testing.T) {
	ran := 0
	if got := said(func() { Check(func() error { ran++; return nil }) }); got != "" {
		t.Errorf("a check that holds panicked: %s", got)
	}
	got := said(func() { Check(func() error { ran++; return errors.New("sums differ") }) })
	if Enabled {
		if ran != 2 || !strings.Contains(got, "sums differ") {
			t.Errorf("with invariants: %d checks ran, said %q", ran, got)
		}
	} else if ran != 0 || got != "" {
		t.Errorf("without invariants: %d checks ran, said %q", ran, got)
	}
}
