package engine_test

import (
	"fmt"
	"testing"

	"larder/internal/engine"
	larderv1 "larder/proto/larder/v1"
)

// A job that has ended keeps no list of its samples, and its state can be saved as before.
func TestAnEndedJobKeepsNoSamples(t *testing.T) {
	const n = 40
	dir := folder(t, n)
	w := serve(t)
	state := func(name string, portable bool) string {
		t.Helper()
		r, err := w.engine.GetState(t.Context(), &larderv1.GetStateRequest{Name: name, Step: 2, Portable: portable})
		if err != nil {
			t.Fatal(err)
		}
		return r.GetToken()
	}
	for i := range 12 {
		name := fmt.Sprint("trial", i)
		s := spec(name, dir, 8, recipe(crops...))
		if i%2 == 1 {
			s.Subset = fmt.Sprintf("id >= %d", i)
		}
		tr := w.train(s, 0)
		tr.must(0)
		if got := engine.ListBytes(w.engine); got < 4*(n-12) {
			t.Fatalf("%d bytes are counted with a job that lives", got)
		}
		was := []string{state(name, false), state(name, true)}
		tr.detach()
		w.is(name, larderv1.JobState_JOB_STATE_DONE)
		if got := engine.ListBytes(w.engine); got != 0 {
			t.Errorf("%d bytes are kept after trial %d", got, i)
		}
		for k, portable := range []bool{false, true} {
			if got := state(name, portable); got != was[k] {
				t.Errorf("the state of an ended job is another one, portable %v", portable)
			}
		}
	}
}
