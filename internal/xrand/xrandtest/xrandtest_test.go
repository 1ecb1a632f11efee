package xrandtest

import (
	"math"
	"testing"
)

// Quantiles of the chi-square distribution, from its tables.
func TestDeviate(t *testing.T) {
	for _, c := range []struct {
		df       int
		quantile float64
		z        float64
	}{{1, 10.828, 3.090}, {5, 20.515, 3.090}, {30, 59.703, 3.090}, {100, 124.342, 1.645}, {10, 9.342, 0}} {
		// One cell above its expectation and one as much below give exactly the wanted statistic.
		counts := make([]int, c.df+1)
		const e = 1_000_000
		for i := range counts {
			counts[i] = e
		}
		d := int(math.Round(math.Sqrt(c.quantile * e / 2)))
		counts[0] += d
		counts[1] -= d
		if z := Deviate(counts); math.Abs(z-c.z) > 0.06 {
			t.Errorf("%d degrees of freedom, chi-square %.3f: %.3f, want %.3f", c.df, c.quantile, z, c.z)
		}
	}
	if z := Deviate([]int{500, 250, 250}, .5, .25, .25); z > -1 {
		t.Errorf("counts that are as they should be: %.2f", z)
	}
	if z := Deviate([]int{500, 250, 250}); z < 8 {
		t.Errorf("counts that are not: %.2f", z)
	}
}
