package dsa

import "testing"

// scanAlways makes jobs scan that share with others, however few their cells are.
func scanAlways(s *Sampler) { s.scans.manyCells, s.scans.fewAvailable = 0, 1<<20 }

// TestEveryOrderOfAScanIsEquallyLikely is TestEveryOrderIsEquallyLikely for jobs that scan: all orders of every
// job-epoch, and all pairs of orders of consecutive epochs, with joins, leaves, returns and changes in between.
func TestEveryOrderOfAScanIsEquallyLikely(t *testing.T) {
	for _, tc := range tinyCases {
		if tc.cache == 0 {
			continue
		}
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			for _, slice := range []int{0, 2} {
				worst, where, err := orderDeviates(tc, 10_000, func(sc *scenario) { sc.scan, sc.slice = true, slice })
				if err != nil {
					t.Fatal(err)
				}
				t.Logf("worst z %.2f (%s)", worst, where)
				if worst >= 4 {
					t.Errorf("slice %d, %s: z = %.1f, orders are not equally likely", slice, where, worst)
				}
			}
		})
	}
}
