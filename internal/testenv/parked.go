package testenv

import (
	"runtime"
	"strings"
)

// Parked counts the goroutines that have a function on their stack, such as "session.peek": those that wait for
// something, and all. A test waits with it until other goroutines have come as far as they can.
func Parked(function string) (waiting, all int) {
	buf := make([]byte, 1<<20)
	for {
		n := runtime.Stack(buf, true)
		if n < len(buf) {
			buf = buf[:n]
			break
		}
		buf = make([]byte, 2*len(buf))
	}
	for g := range strings.SplitSeq(string(buf), "\n\n") {
		head, stack, _ := strings.Cut(g, "\n")
		if !strings.Contains(stack, function+"(") {
			continue
		}
		all++
		_, state, _ := strings.Cut(head, "[")
		busy := false
		for _, s := range []string{"running", "runnable", "syscall", "copystack", "preempted", "waiting]"} {
			busy = busy || strings.HasPrefix(state, s)
		}
		if !busy {
			waiting++
		}
	}
	return waiting, all
}
