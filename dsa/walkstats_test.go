package dsa

import (
	"fmt"
	"math"
	"testing"

	"larder/internal/ident"
	"larder/internal/xrand"
)

// entropy is that of the classes of a batch, in bits, where each of so many samples of consecutive ids is a class.
func entropy(batch []ident.ObjectID, perClass int) float64 {
	count := map[ident.ObjectID]int{}
	for _, x := range batch {
		count[x/ident.ObjectID(perClass)]++
	}
	h := 0.0
	for c := range ident.ObjectID(1 << 12) { // in order, so that the sum is the same each time
		if n := count[c]; n > 0 {
			p := float64(n) / float64(len(batch))
			h -= p * math.Log2(p)
		}
	}
	return h
}

// modelEntropy is what batches have that draw each sample from one of w blocks, all equally likely, which lie anywhere.
func modelEntropy(rng *xrand.Rand, n, each, w, batch, perClass int) float64 {
	sum := 0.0
	const draws = 200
	for range draws {
		order := make([]int, n/each)
		for i := range order {
			order[i] = i
		}
		rng.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		b := make([]ident.ObjectID, batch)
		for i := range b {
			b[i] = ident.ObjectID(order[rng.IntN(w)]*each + rng.IntN(each))
		}
		sum += entropy(b, perClass)
	}
	return sum / draws
}

// How mixed batches are of a dataset that lies class by class: between the first and the last window of an epoch as
// mixed as draws from W blocks, and over all of it not much less. A full shuffle is beside it.
func TestWalkMixesClasses(t *testing.T) {
	const n, each, batch, perClass = 51200, 80, 256, 512 // 100 classes, 640 blocks
	rng := xrand.New(3, 4)
	for _, w := range []int{1, 4, 16, 64, 256} {
		t.Run(fmt.Sprint("blocks ", w), func(t *testing.T) {
			s := New(1)
			must(t, s.Join(1, walkSpec(w, each, 7, span(0, n))))
			order := hold(t, s).epoch(1, 0, each)
			all, inner, batches, inside := 0.0, 0.0, 0, 0
			least := math.Inf(1)
			for from := 0; from+batch <= n; from += batch {
				h := entropy(order[from:from+batch], perClass)
				all += h
				batches++
				least = min(least, h)
				if from > w*each && from+batch < n-w*each {
					inner += h
					inside++
				}
			}
			model := modelEntropy(rng, n, each, w, batch, perClass)
			all, inner = all/float64(batches), inner/float64(inside)
			t.Logf("%.2f bits in all, %.2f inside, %.2f the least, model %.2f, full shuffle %.2f", all, inner, least, model,
				modelEntropy(rng, n, each, n/each, batch, perClass))
			// 200 draws of the model have a standard error of 0.04 bits at the most
			if inner < model-.15 || all < model-.35 {
				t.Errorf("%.2f bits in all, %.2f inside, the model has %.2f", all, inner, model)
			}
		})
	}
}

// Of the samples that are drawn before the next block comes, one block gives 2/W at the most, on average over epochs.
func TestWalkSharesTheWindow(t *testing.T) {
	const n, each, w, epochs = 3200, 100, 8, 60
	s := New(1)
	must(t, s.Join(1, walkSpec(w, each, 7, span(0, n))))
	h := hold(t, s)
	worst := 0.0
	for e := range uint32(epochs) {
		must(t, s.StartEpoch(1, e))
		count, chunk := map[ident.ObjectID]int{}, 0
		for x, ok := s.Next(1); ok; x, ok = s.Next(1) {
			if moves := s.BlockMoves(); len(moves) > 0 && chunk > 0 { // a chunk begins
				most := 0
				for _, k := range count { // order-free
					most = max(most, k)
				}
				worst = max(worst, float64(most)/float64(chunk))
				clear(count)
				chunk = 0
			}
			count[x/each]++
			chunk++
		}
		h.moves()
	}
	if worst > 2./w*1.15 { // parts are rounded
		t.Errorf("one block gave %.3f of a chunk, with %d blocks", worst, w)
	}
	t.Logf("one block gave at most %.3f", worst)
}

// meanCorrelation is that of the positions in epochs lag apart, by block.
func meanCorrelation(epochs [][]ident.ObjectID, lag int) float64 {
	sum, k := 0.0, 0
	for e := lag; e < len(epochs); e++ {
		sum += correlation(positions(epochs[e-lag]), positions(epochs[e]))
		k++
	}
	return sum / float64(k)
}

// Epochs of a lone job are independent. Beside another that began at another time an epoch resembles the one before it,
// less with each; and no sample stays early or late.
func TestWalkEpochsDiffer(t *testing.T) {
	const n, each, w, epochs = 3200, 16, 8, 60
	run := func(late float64) [][]ident.ObjectID {
		s := New(9)
		jobs := []ident.JobID{1}
		got := make([][]ident.ObjectID, epochs)
		epoch := [3]uint32{}
		must(t, s.Join(1, walkSpec(w, each, 1, span(0, n))))
		must(t, s.StartEpoch(1, 0))
		for k := 0; ; k++ {
			if late >= 0 && k == int(late*n) {
				must(t, s.Join(2, walkSpec(w, each, 2, span(0, n))))
				must(t, s.StartEpoch(2, 0))
				jobs = append(jobs, 2)
			}
			for _, id := range jobs {
				if s.Remaining(id) == 0 {
					if epoch[id]++; epoch[1] == epochs {
						return got
					}
					must(t, s.StartEpoch(id, epoch[id]))
				}
				x, _ := s.Next(id)
				if id == 1 {
					got[epoch[1]] = append(got[epoch[1]], x)
				}
			}
			s.BlockMoves()
		}
	}
	// the blocks of one epoch say nothing of another: a mean of 59 correlations of 200 blocks has this deviation
	sd := 1 / math.Sqrt(n/each*(epochs-1))
	for _, late := range []float64{-1, 0, .25, .5} {
		got := run(late)
		one, five, twenty := meanCorrelation(got, 1), meanCorrelation(got, 5), meanCorrelation(got, 20)
		t.Logf("late %.2f: lag 1 %.3f, lag 5 %.3f, lag 20 %.3f (deviation %.3f)", late, one, five, twenty, sd)
		if late <= 0 && math.Abs(one) > 5*sd {
			t.Errorf("late %.2f: consecutive epochs have a correlation of %.3f", late, one)
		}
		if one > .65 || five > .3 || math.Abs(twenty) > 5*sd*math.Sqrt(epochs-1)/math.Sqrt(epochs-20) {
			t.Errorf("late %.2f: correlations of %.3f, %.3f and %.3f", late, one, five, twenty)
		}
		mean := make([]float64, n)
		for _, e := range got {
			for x, p := range positions(e) {
				mean[x] += p / epochs
			}
		}
		spread := 0.0
		for _, m := range mean {
			spread += (m - .5) * (m - .5) / n
		}
		chance := 1. / 12 / epochs
		far := math.Sqrt(spread / chance)
		t.Logf("late %.2f: the mean position deviates %.2f times as much as by chance", late, far)
		if far > 3 || late <= 0 && far > 1.25 {
			t.Errorf("late %.2f: mean positions deviate %.2f times as much as by chance", late, far)
		}
	}
}
