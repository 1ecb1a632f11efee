package dsa

import (
	"fmt"
	"slices"
	"testing"

	"larder/internal/ident"
	"larder/internal/xrand"
)

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

// scanWorld is jobs on random halves that scan, one after the other, each so many picks a turn. salt changes what lies
// in the parts of every order. It returns the parts that each job decided on, by epoch, and the names of its orders.
func scanWorld(t *testing.T, salt uint64) (decided [][]string, orders [][]uint64) {
	t.Helper()
	const jobs, n, epochs = 7, 240, 3
	s := New(5)
	scanAlways(s)
	s.SetRoom(30)
	decided, orders = make([][]string, jobs), make([][]uint64, jobs)
	done, begun := make([]int, jobs), 0
	for turn := 0; slices.Min(done) < epochs; turn++ {
		if turn%25 == 0 && begun < jobs {
			half := slices.Clone(span(0, n))
			xrand.New(uint64(begun)).Shuffle(n, func(i, k int) { half[i], half[k] = half[k], half[i] })
			begun++
			id := ident.JobID(begun)
			must(t, s.Join(id, JobSpec{Mode: []Mode{Stratified, Epoch}[begun%2], Subset: half[:n/2]}))
			must(t, s.StartEpoch(id, 0))
		}
		for i := range begun {
			id, j := ident.JobID(i+1), s.jobs.byID[ident.JobID(i+1)]
			for range 1 + i%3 {
				if done[i] == epochs {
					break
				}
				if o := j.scan.order; o != nil && j.scan.on && o.begun == 0 {
					o.salt ^= salt
				}
				x, ok := s.Next(id)
				if !ok {
					t.Fatalf("job %d owes %d and gets none", id, s.Remaining(id))
				}
				s.SetLevel(x, 2)
				if s.Remaining(id) > 0 {
					continue
				}
				decided[i] = append(decided[i], fmt.Sprint(j.scan.decided))
				orders[i] = append(orders[i], j.scan.order.name)
				if done[i]++; done[i] < epochs {
					must(t, s.StartEpoch(id, uint32(done[i])))
				}
			}
		}
		if err := s.Check(); err != nil {
			t.Fatal(err)
		}
	}
	return decided, orders
}

// TestScanDecidesByCountsAlone is the premise of the proof: what lies in the parts of the orders changes no decision of
// any job. And no job takes an order twice, which makes its epochs independent.
func TestScanDecidesByCountsAlone(t *testing.T) {
	want, orders := scanWorld(t, 0)
	for i, names := range orders {
		slices.Sort(names)
		if len(slices.Compact(names)) != len(want[i]) {
			t.Errorf("job %d took the orders %v", i+1, names)
		}
	}
	for salt := range uint64(20) {
		got, _ := scanWorld(t, xrand.Mix(salt+1))
		for i := range want {
			if !slices.Equal(got[i], want[i]) {
				t.Fatalf("salt %d: job %d decided %v, with other contents %v", salt, i+1, got[i], want[i])
			}
		}
	}
}
