package dsa

import (
	"testing"

	"larder/internal/ident"
)

// TestReadersAreTheJobsThatHaveASample, whatever they have taken of their epochs; jobs of order blocks and sequential
// count too.
func TestReadersAreTheJobsThatHaveASample(t *testing.T) {
	s := New(1)
	must(t, s.Join(1, strat(0, span(0, 10))))
	must(t, s.Join(2, byEpoch(span(5, 15))))
	must(t, s.Join(3, walkSpec(2, 2, 1, span(8, 12))))
	must(t, s.Join(4, JobSpec{Mode: Sequential, Subset: span(9, 14)}))
	must(t, s.StartEpoch(1, 0))
	for range 10 {
		if _, ok := s.Next(1); !ok {
			t.Fatal("no sample is left")
		}
	}
	want := func(after string, counts map[ident.ObjectID]int) {
		t.Helper()
		for x, n := range counts {
			if got := s.Readers(x); got != n {
				t.Errorf("%s: %d jobs read object %d, want %d", after, got, x, n)
			}
		}
	}
	want("joined", map[ident.ObjectID]int{0: 1, 5: 2, 8: 3, 9: 4, 10: 3, 12: 2, 14: 1, 15: 0, 4000: 0})
	s.Leave(2)
	want("one left", map[ident.ObjectID]int{0: 1, 5: 1, 8: 2, 10: 2, 12: 1})
	s.Leave(4)
	want("two left", map[ident.ObjectID]int{0: 1, 5: 1, 8: 2, 10: 1, 12: 0})
}
