// Package xrandtest judges counts in tests of random draws. It draws nothing itself.
package xrandtest

import "math"

// Deviate says how far counts are from the shares they should have (they sum to 1; none: all equal): Pearson's
// chi-square as a standard normal deviate (Wilson and Hilferty, 1931). Above 4 comes by chance 3 times in 100,000,
// above 4.75 once in a million. Tests use fixed seeds, so that they cannot flicker.
func Deviate(counts []int, share ...float64) float64 {
	n := 0
	for _, c := range counts {
		n += c
	}
	x := 0.0
	for i, c := range counts {
		want := float64(n) / float64(len(counts))
		if len(share) > 0 {
			want = float64(n) * share[i]
		}
		x += (float64(c) - want) * (float64(c) - want) / want
	}
	k := float64(len(counts) - 1)
	return (math.Cbrt(x/k) - (1 - 2/(9*k))) / math.Sqrt(2/(9*k))
}
