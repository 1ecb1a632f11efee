package testenv

import (
	"fmt"
	"testing"

	"larder/internal/invariant"
)

func TestBugFindsABrokenInvariantInALog(t *testing.T) {
	var said string
	func() {
		defer func() { said = fmt.Sprint(recover()) }()
		invariant.Violated("%d of %d", 3, 2)
	}()
	for _, line := range []string{"panic: " + said, said, "fatal error: all goroutines are asleep - deadlock!",
		`time=2026-01-01T00:00:00Z level=ERROR msg="a handler panicked; this is a bug of larder" method=Attach`} {
		if got := Bug("level=INFO msg=\"larder is ready\"\n" + line + "\ngoroutine 1 [running]:\n"); got != line {
			t.Errorf("%q was found, want %q", got, line)
		}
	}
	if got := Bug("level=INFO msg=\"0 epochs are violated\"\nlevel=INFO msg=stopped\n"); got != "" {
		t.Errorf("%q was found", got)
	}
}
