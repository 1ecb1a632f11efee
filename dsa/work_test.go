package dsa

import (
	"testing"

	"larder/internal/ident"
)

// TestCallsInTheMiddleOfAPass: what a half-done pass has done already follows a call that comes meanwhile. Both were
// found by random histories.
func TestCallsInTheMiddleOfAPass(t *testing.T) {
	const n = 100
	drain := func(s *Sampler) {
		t.Helper()
		for s.Work(7) {
			must(t, s.Check())
		}
		must(t, s.Check())
	}
	t.Run("a job stalls and goes on, twice", func(t *testing.T) {
		for _, during := range []string{"classes", "mark"} {
			s := New(1)
			s.InSlices()
			for id := range ident.JobID(2) {
				must(t, s.Join(id, byEpoch(span(0, n))))
				must(t, s.StartEpoch(id, 0))
			}
			drain(s)
			for x := range ident.ObjectID(n) {
				s.SetLevel(x, 2)
			}
			if during == "mark" {
				must(t, s.StartEpoch(1, 1))
				for !s.work.begun(s.jobs.byID[1], passMark) {
					s.Work(10)
				}
			} else {
				s.SetActive(1, false)
				s.Work(30)
			}
			s.SetActive(1, during == "classes")
			drain(s)
			s.SetActive(1, during != "classes")
			drain(s)
		}
	})
	t.Run("the only job leaves while cells are forgotten", func(t *testing.T) {
		s := New(1)
		s.InSlices()
		must(t, s.Join(1, byEpoch(span(0, n))))
		drain(s)
		s.Leave(1)
		must(t, s.Join(2, byEpoch(span(n/2, 2*n))))
		for !s.work.begun(s.jobs.byID[2], passForget) {
			s.Work(10)
		}
		s.Leave(2)
		drain(s)
		must(t, s.Join(3, byEpoch(span(0, n))))
		drain(s)
	})
}
