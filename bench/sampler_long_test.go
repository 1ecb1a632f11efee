package bench

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"larder/bench/fair"
	"larder/internal/ident"
)

// deviations are positions in an epoch less 1/2, by sample.
func deviations(order []ident.ObjectID) map[ident.ObjectID]float64 {
	out := map[ident.ObjectID]float64{}
	for k, x := range order {
		out[x] = (float64(k)+.5)/float64(len(order)) - .5
	}
	return out
}

// meanSquare is that of the sums of positions over epochs, by epochs.
func meanSquare(epochs []map[ident.ObjectID]float64) float64 {
	sq := 0.0
	for x := range epochs[0] {
		sum := 0.0
		for _, e := range epochs {
			sum += e[x]
		}
		sq += sum / float64(len(epochs)) * sum / float64(len(epochs))
	}
	return sq / float64(len(epochs[0]))
}

// correlated is the mean correlation of positions so many epochs apart.
func correlated(epochs []map[ident.ObjectID]float64, lag int) float64 {
	sum, squares := 0.0, 0.0
	for i := lag; i < len(epochs); i++ {
		for x, p := range epochs[i] {
			sum += p * epochs[i-lag][x]
			squares += p * p
		}
	}
	return sum / squares
}

// TestSamplerOverATraining: what is reported of a training is what its picks say, computed from them again: variances
// and correlations are averaged over the repeats.
func TestSamplerOverATraining(t *testing.T) {
	sc := scenarioOf(t, `
samples: 120
seed: 5
repeats: 3
cache: {samples: 30}
jobs:
  - {name: a, epochs: 24, batch: 5}
  - {name: b, subset: "range(30, 90)", order: epoch, epochs: 6, batch: 4, start: 40}
  - {name: once, order: strict}
  - {name: gone, epochs: 9, leave: 300}
`)
	st := newSamplerStats(sc)
	type sums struct {
		square float64
		corr   map[int]float64
	}
	want := make([]sums, len(sc.Jobs))
	for rep := range sc.Repeats {
		w, err := newSamplerRun(sc, rep, st, nil)
		if err != nil {
			t.Fatal(err)
		}
		picks := make([][]ident.ObjectID, len(sc.Jobs))
		w.note = func(j *samplerJob, x ident.ObjectID) { picks[j.index] = append(picks[j.index], x) }
		if err := w.run(nil); err != nil {
			t.Fatal(err)
		}
		w.cache.close()
		st.ranOnce(w)
		for i := range sc.Jobs {
			n := len(sc.Jobs[i].samples)
			var epochs []map[ident.ObjectID]float64
			for k := n; k <= len(picks[i]); k += n {
				epochs = append(epochs, deviations(picks[i][k-n:k]))
			}
			want[i].square += meanSquare(epochs) / float64(sc.Repeats)
			if want[i].corr == nil {
				want[i].corr = map[int]float64{}
			}
			for _, lag := range []int{1, 2, 5, 20} {
				if lag < len(epochs) {
					want[i].corr[lag] += correlated(epochs, lag) / float64(sc.Repeats)
				}
			}
		}
	}
	r := st.report(0)
	const rounded = 1e-5                            // positions are kept in 4 bytes
	for i, epochs := range []float64{24, 6, 1, 2} { // by step 300 gone has had 2 of its epochs of 120, and a part
		j, n := &r.Jobs[i], float64(len(sc.Jobs[i].samples))
		if j.Epochs != epochs {
			t.Fatalf("%s: %v epochs", j.Name, j.Epochs)
		}
		if epochs < 2 {
			text := jsonOf(t, j)
			if j.SDOfMeans != nil || j.SDByChance != nil || j.Lags != nil || strings.Contains(text, "lag_correlations") {
				t.Errorf("one epoch has figures of several: %s", text)
			}
			continue
		}
		if chance := math.Sqrt((n*n - 1) / (12 * n * n) / epochs); math.Abs(*j.SDByChance-chance) > rounded ||
			math.Abs(*j.SDOfMeans-math.Sqrt(want[i].square)) > rounded {
			t.Errorf("%s: %v by chance %v, want %v by %v", j.Name, *j.SDOfMeans, *j.SDByChance,
				math.Sqrt(want[i].square), chance)
		}
		if len(j.Lags) != len(want[i].corr) {
			t.Errorf("%s: lags %+v, want %v", j.Name, j.Lags, want[i].corr)
		}
		for _, l := range j.Lags {
			pairs := (epochs - float64(l.Lag)) * float64(sc.Repeats)
			if c, ok := want[i].corr[l.Lag]; !ok || math.Abs(l.Correlation-c) > rounded ||
				math.Abs(l.SD-1/math.Sqrt((n-1)*pairs)) > rounded {
				t.Errorf("%s: %+v, want %v", j.Name, l, c)
			}
		}
	}
}

// TestSamplerTellsChance: independent orders are those of chance, and a job whose order never changes has an sd of as
// many times that as the root of its epochs.
func TestSamplerTellsChance(t *testing.T) {
	const n, epochs, repeats = 300, 30, 3
	text := "samples: %d\nrepeats: %d\njobs:\n  - {name: a, epochs: %d, order: %s}\n"
	chance := simulate(t, scenarioOf(t, fmt.Sprintf(text, n, repeats, epochs, "independent"))).Jobs[0]
	// The variance of the n means has a sd of √(2/(n-1)) of itself in a run; that of the ratio is half of it.
	limit := 5 * math.Sqrt(.5/(n-1)/repeats)
	if v := *chance.SDOfMeans / *chance.SDByChance; math.Abs(v-1) > limit || len(chance.Lags) != 4 {
		t.Errorf("independent orders: %.3f of chance, %+v", v, chance.Lags)
	}
	for _, l := range chance.Lags {
		if math.Abs(l.Correlation) > 5*l.SD {
			t.Errorf("independent orders: %+v", l)
		}
	}
	for _, order := range []string{"shared-order", "stratified, shuffle: false"} {
		j := simulate(t, scenarioOf(t, fmt.Sprintf(text, n, repeats, epochs, order))).Jobs[0]
		if v := *j.SDOfMeans / *j.SDByChance; math.Abs(v-math.Sqrt(epochs)) > 1e-4 || len(j.Lags) != 4 ||
			math.Abs(j.Lags[3].Correlation-1) > 1e-4 {
			t.Errorf("%s: %.4f of chance, %+v", order, v, j.Lags)
		}
	}
}

// TestSamplerOfALargeWorld: where samples times jobs are more than the limit, lag 1 is all that is counted.
func TestSamplerOfALargeWorld(t *testing.T) {
	for samples, lags := range map[int]int{fair.MostPlaces: 2, fair.MostPlaces + 1: 1} {
		sc := scenarioOf(t, fmt.Sprintf("samples: %d\njobs: [{name: a, subset: 'range(0, 50)', epochs: 4}]\n", samples))
		if j := simulate(t, sc).Jobs[0]; j.SDOfMeans == nil || len(j.Lags) != lags || j.Lags[0].Lag != 1 {
			t.Errorf("%d samples: %+v, want %d lags", samples, j, lags)
		}
	}
}
