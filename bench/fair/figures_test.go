package fair

import (
	"math"
	"testing"

	"larder/internal/xrand"
)

// TestFigures: what is reported of one training is what the training says, and of several the root of the mean variance
// and the mean correlation.
func TestFigures(t *testing.T) {
	t.Parallel()
	const n, epochs, trainings = 120, 30, 9
	r := xrand.New(8)
	var all Account
	squares, corr, vars := 0.0, 0.0, 0.0
	for range trainings {
		a := New(span(n), LagsOf(n))
		train(r, a, epochs, 0)
		var one Account
		one.Add(a)
		all.Add(a)
		f := one.Figures()
		sd, chance := a.SD()
		if math.Abs(f.SD-sd) > 1e-12 || math.Abs(f.Chance-chance) > 1e-12 || f.Epochs != epochs ||
			len(f.Lags) != len(reported) {
			t.Fatalf("%+v, want %v and %v", f, sd, chance)
		}
		for i, l := range f.Lags {
			if c, sd := a.Lag(reported[i]); l.Lag != reported[i] || l.Correlation != c || math.Abs(l.SD-sd) > 1e-12 {
				t.Errorf("%+v, want %v and %v", l, c, sd)
			}
		}
		c, s := a.Lag(5)
		squares, corr, vars = squares+sd*sd, corr+c, vars+s*s
	}
	f := all.Figures()
	if math.Abs(f.SD-math.Sqrt(squares/trainings)) > 1e-12 || f.Epochs != trainings*epochs {
		t.Errorf("%+v, want a variance of %v", f, squares/trainings)
	}
	if l := f.Lags[2]; math.Abs(l.Correlation-corr/trainings) > 1e-12 || math.Abs(l.SD-math.Sqrt(vars)/trainings) > 1e-12 {
		t.Errorf("lag 5: %+v, want %v", l, corr/trainings)
	}
	// The variances of the n means have a sd of √(2/(n-1)) of themselves in a training; that of the ratio is half of it.
	if limit := 5 * math.Sqrt(.5/(n-1)/trainings); math.Abs(f.Ratio()-1) > limit {
		t.Errorf("uniform orders: %.4f of chance, at most %.4f from 1", f.Ratio(), limit)
	}
	var biased Account
	b := New(span(n), 1)
	train(r, b, epochs, n/4)
	biased.Add(b)
	if g := biased.Figures(); g.Ratio() < 1+5*math.Sqrt(.5/(n-1)) || len(g.Lags) != 1 || g.Lags[0].Lag != 1 {
		t.Errorf("a quarter of the samples comes early: %+v", g)
	}
}

// TestFewEpochs: lags that a training is too short for are not reported, and nothing is for fewer than two epochs.
func TestFewEpochs(t *testing.T) {
	t.Parallel()
	r := xrand.New(9)
	for epochs, lags := range map[int]int{0: 0, 1: 0, 2: 1, 3: 2, 5: 2, 6: 3, 20: 3, 21: 4, 40: 4} {
		a := New(span(20), LagsOf(20))
		train(r, a, epochs, 0)
		var one Account
		one.Add(nil)
		one.Add(a)
		f := one.Figures()
		if (f != nil) != (epochs >= 2) || f != nil && (f.Epochs != epochs || len(f.Lags) != lags) {
			t.Errorf("%d epochs: %+v, want %d lags", epochs, f, lags)
		}
	}
}

// TestLagsOf: a world that is too large for all lags has lag 1.
func TestLagsOf(t *testing.T) {
	t.Parallel()
	if LagsOf(MostPlaces) != reported[len(reported)-1] || LagsOf(MostPlaces+1) != 1 {
		t.Errorf("%d and %d lags at the limit", LagsOf(MostPlaces), LagsOf(MostPlaces+1))
	}
	if few, many := Bytes(1000, 20, 2), Bytes(1000, 20, 100); few != 1000*28 || many != 1000*100 {
		t.Errorf("%d and %d bytes", few, many)
	}
}
