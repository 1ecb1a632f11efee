package coordinator

import (
	"slices"
	"testing"

	"larder/dsa"
)

// Batches that follow each other lie in the same memory, and no row is written in place of one that is not answered.
func TestArraysOfBatchesAreUsedAgain(t *testing.T) {
	r := decodedTier(t, 30) // of 64: some are filled from the tier, the others wait for a flight
	places, fills := map[*Fill]bool{}, 0
	r.see = func(e Effect) {
		x, ok := e.(*Fill)
		if !ok {
			return
		}
		if slices.Contains(r.todo, e) {
			t.Errorf("batch %d row %d is written in place of another that is not answered", x.Delivery, x.Row)
		}
		places[x] = true
		fills++
	}
	p := r.join("a", 0, 64, 8, func(e *Register) { e.Sample.Mode = dsa.Stratified })
	q := r.join("b", 0, 64, 8, func(e *Register) { e.Sample.Mode = dsa.Stratified })
	for e := range uint32(4) {
		if e > 0 {
			p.epoch(e)
			q.epoch(e)
		}
		for _, c := range []*peer{p, q} {
			got := c.drain()
			if slices.Sort(got); len(slices.Compact(got)) != 64 {
				t.Fatalf("epoch %d: %d samples", e, len(got))
			}
		}
	}
	if most := 2 * 3 * 8; fills < 2*4*64 || len(places) > most { // two jobs of three slots
		t.Errorf("%d rows were written in %d places, at most %d expected", fills, len(places), most)
	}
}
