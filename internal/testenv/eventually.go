package testenv

import (
	"testing"
	"time"
)

// How long Eventually waits: minutes, so that a machine under load decides no test.
const (
	eventuallyBound = 5 * time.Minute
	eventuallyEvery = time.Millisecond
)

// Eventually waits until cond is true. It fails the test after five minutes, naming what did not happen. It polls: use
// an event where there is one.
func Eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(eventuallyBound); !cond(); time.Sleep(eventuallyEvery) {
		if time.Now().After(end) {
			t.Fatalf("%s: it did not happen in %v", what, eventuallyBound)
		}
	}
}
