package fair

import (
	"math"
	"testing"

	"larder/internal/ident"
	"larder/internal/xrand"
)

func span(n int) []ident.ObjectID {
	out := make([]ident.ObjectID, n)
	for i := range out {
		out[i] = ident.ObjectID(3 * i) // ids are sparse
	}
	return out
}

// train makes epochs: fresh random orders, in which the first biased samples come a little early.
func train(r *xrand.Rand, t *Training, epochs, biased int) {
	n := len(t.sum)
	for range epochs {
		order := span(n)
		r.Shuffle(n, func(a, b int) { order[a], order[b] = order[b], order[a] })
		if biased > 0 { // each of them changes places with a random one that is before it
			for k := range order {
				if q := r.IntN(n); int(order[k]) < 3*biased && q < k {
					order[k], order[q] = order[q], order[k]
				}
			}
		}
		if !t.Add(order) {
			panic("no epoch")
		}
	}
}

// TestFairTraining: the statistics of uniformly random orders are what they are said to be, over 300 trainings.
func TestFairTraining(t *testing.T) {
	t.Parallel()
	const trainings, n, epochs = 300, 150, 60
	var z, far, between, lag []float64
	r := xrand.New(4)
	for range trainings {
		a, b := New(span(n), 8), New(span(n), 0)
		train(r, a, epochs, 0)
		train(r, b, epochs, 0)
		z, far, between = append(z, a.Z(1)), append(far, a.Far(5, 8)), append(between, Between(a, b))
		c, sd := a.Lag(3)
		lag = append(lag, c/sd)
		// four correlations, doubled, of 5 sd each
		if a.Epochs() != epochs || math.Abs(a.Factor(4)-1) > 8*5/math.Sqrt(n*epochs) {
			t.Errorf("%d epochs, factor %.3f", a.Epochs(), a.Factor(4))
		}
	}
	for name, v := range map[string][]float64{"Z": z, "Far": far, "Between": between, "Lag": lag} {
		sum, sq := 0.0, 0.0
		for _, x := range v {
			sum += x
			sq += x * x
		}
		mean, sd := sum/trainings, math.Sqrt(sq/trainings)
		// The mean of 300 standard normal variables has sd 0.058, their rms 0.041: 5 of each.
		if math.Abs(mean) > .29 || math.Abs(sd-1) > .21 {
			t.Errorf("%s: mean %.2f, rms %.2f of 0 and 1", name, mean, sd)
		}
	}
}

// TestUnfairTraining: samples that are a little early in every epoch are found by each statistic.
func TestUnfairTraining(t *testing.T) {
	t.Parallel()
	a, b := New(span(200), 8), New(span(200), 8)
	r := xrand.New(5)
	train(r, a, 300, 60)
	train(r, b, 300, 60)
	sd, chance := a.SD()
	if a.Z(1) < 8 || a.Far(5, 8) < 8 || Between(a, b) < 8 || sd < 2*chance {
		t.Errorf("Z %.1f, far %.1f, between %.1f, sd %.4f (chance %.4f): blind", a.Z(1), a.Far(5, 8), Between(a, b), sd,
			chance)
	}
	if f := a.Factor(8); f < 1.5 { // eight correlations, doubled, each above 0.03
		t.Errorf("factor %.2f", f)
	}
}

// TestAlternatingTraining: what is early in one epoch is late in the next: the mean positions are better than chance,
// and lag 1 says why.
func TestAlternatingTraining(t *testing.T) {
	a := New(span(100), 3)
	r := xrand.New(6)
	order := span(100)
	for e := range 200 {
		if e%2 == 0 {
			r.Shuffle(100, func(i, k int) { order[i], order[k] = order[k], order[i] })
		} else {
			for i, k := 0, 99; i < k; i, k = i+1, k-1 {
				order[i], order[k] = order[k], order[i]
			}
		}
		a.Add(order)
	}
	sd, chance := a.SD()
	c1, _ := a.Lag(1)
	if sd > chance*1e-3 || math.Abs(c1+.5) > .05 { // of two neighbours one pair in two is mirrored
		t.Errorf("sd %.5f of %.5f, lag 1 %.3f", sd, chance, c1)
	}
}

// TestNoEpochs: what is no epoch of the job is left out.
func TestNoEpochs(t *testing.T) {
	a := New(span(3), 2)
	for _, order := range [][]ident.ObjectID{{}, {0, 3}, {0, 3, 3}, {0, 3, 7}, {0, 3, 900}, {0, 3, 6, 9}} {
		if a.Add(order) {
			t.Errorf("%v is an epoch", order)
		}
	}
	if sd, chance := a.SD(); a.Epochs() != 0 || sd != 0 || chance != 0 || a.Z(1) != 0 || Between(a, a) != 0 ||
		a.Far(1, 2) != 0 {
		t.Error("nothing was taken in, and something came out")
	}
	if !a.Add([]ident.ObjectID{6, 0, 3}) || a.Epochs() != 1 {
		t.Error("an epoch was left out")
	}
	if c, sd := a.Lag(1); c != 0 || sd != 0 {
		t.Error("one epoch has no lag")
	}
}
