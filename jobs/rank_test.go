package jobs

import (
	"fmt"
	"testing"
)

// panics reports whether f does.
func panics(f func()) (did bool) {
	defer func() { did = recover() != nil }()
	f()
	return false
}

// Only the transitions of the diagram are possible.
func TestPhases(t *testing.T) {
	possible := map[Phase]string{
		Unclaimed: "", Idle: "AEVL", Waiting: "AEVL", InEpoch: "AESVL", Vanished: "", Left: "",
	}
	steps := []struct {
		letter rune
		do     func(*Rank)
		to     Phase
	}{
		{'A', func(r *Rank) { r.Await(3) }, Waiting},
		{'E', func(r *Rank) { r.Enter(3) }, InEpoch},
		{'S', (*Rank).StepOut, Idle},
		{'V', (*Rank).Vanish, Vanished},
		{'L', (*Rank).Leave, Left},
	}
	for p := range numPhases {
		for _, s := range steps {
			r := Rank{Phase: p}
			failed := panics(func() { s.do(&r) })
			want := false
			for _, l := range possible[p] {
				want = want || l == s.letter
			}
			if failed == want || want && r.Phase != s.to {
				t.Errorf("%s, step %c: failed %v, is %s", p, s.letter, failed, r.Phase)
			}
		}
		if (Rank{Phase: p}).Phase.String() == "" {
			t.Errorf("phase %d has no name", p)
		}
	}
}

// A job that has ended stays as it is.
func TestStates(t *testing.T) {
	for from := Joining; from <= Done; from++ {
		for to := Live; to <= Done; to++ {
			j := Job{State: from}
			if failed := panics(func() { j.become(to) }); failed != from.Ended() {
				t.Errorf("%s to %s: failed %v", from, to, failed)
			}
		}
		if fmt.Sprint(from) == "" {
			t.Errorf("state %d has no name", from)
		}
	}
}
