package dsa

import (
	"math"
	"testing"

	"larder/internal/ident"
	"larder/internal/xrand"
)

// An epoch that one sampler began and another, which knows what was taken, ends is a uniformly random order for
// each job, with a neighbour that shares half of it and whatever both have made available.
func TestRestoredOrderIsUniform(t *testing.T) {
	const n = 8
	trials := effort(20_000)
	for _, mode := range []Mode{Strict, Stratified, Epoch} {
		t.Run(mode.String(), func(t *testing.T) {
			var at [n][n]float64 // of job 1: position, sample
			for trial := range uint64(trials) {
				r := xrand.New(trial, 5)
				var took [2][]ident.ObjectID
				begin := func(seed uint64, epoch uint32) *Sampler {
					s := New(seed)
					for k, from := range []int{0, n / 2} {
						id := ident.JobID(k + 1)
						if err := s.Join(id, JobSpec{Mode: mode, Subset: span(from, from+n)}); err != nil {
							t.Fatal(err)
						}
					}
					for k := range took {
						if err := s.StartEpoch(ident.JobID(k+1), epoch); err != nil {
							t.Fatal(err)
						}
					}
					return s
				}
				draw := func(s *Sampler, k, picks int) {
					for range picks {
						x, ok := s.Next(ident.JobID(k + 1))
						if !ok {
							return
						}
						took[k] = append(took[k], x)
						s.SetLevel(x, 2) // it stays: all that was loaded is preferred
					}
				}
				s := begin(xrand.Hash(trial, 1), 0)
				draw(s, 1, r.IntN(n))
				draw(s, 0, r.IntN(n))
				draw(s, 1, r.IntN(n))
				s = begin(xrand.Hash(trial, 2), 0) // a new term; nothing is available any more
				for k := range took {
					if got := s.Withdraw(ident.JobID(k+1), took[k]); got != len(took[k]) {
						t.Fatalf("%d of %d were taken out", got, len(took[k]))
					}
				}
				draw(s, 1, r.IntN(n))
				draw(s, 0, n)
				if len(took[0]) != n || s.Remaining(1) != 0 {
					t.Fatalf("an epoch of %d samples", len(took[0]))
				}
				for i, x := range took[0] {
					at[i][x]++
				}
			}
			want := float64(trials) / n
			chi := 0.0
			for i := range n {
				for x := range n {
					chi += (at[i][x] - want) * (at[i][x] - want) / want
				}
			}
			// The quantile 1 - 1e-4 of chi-square with (n-1)^2 degrees of freedom (Wilson and Hilferty).
			df := float64((n - 1) * (n - 1))
			if limit := df * math.Pow(1-2/(9*df)+3.719*math.Sqrt(2/(9*df)), 3); chi > limit {
				t.Errorf("chi-square %.1f, limit %.1f: positions of samples %v", chi, limit, at)
			}
		})
	}
}
