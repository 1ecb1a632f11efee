// Package fair measures whether a training treats its samples alike: over many epochs no sample may
// always be early or always be late.
//
// The k-th of the n samples of an epoch is at position (k+1/2)/n. In a uniformly random order a position has mean 1/2
// and variance (n²-1)/(12n²). If the T epochs of a training are independent, the mean position of a sample has that
// variance divided by T, and the squared deviations of all n samples, in units of it, sum up to a chi-square variable
// of n-1 degrees of freedom.
//
// It knows ids and orders only, nothing of samplers or caches.
package fair

import (
	"math"

	"larder/internal/ident"
)

// Training is what is kept of the epochs of one job.
type Training struct {
	row     []int32 // by id: which sample it is, or -1
	n       int
	epochs  int
	sum     []float64   // by sample: of its positions less 1/2
	past    [][]float32 // positions in earlier epochs, the latest first; at most as many as there are lags
	scratch []float32
	corr    []float64 // by lag: sum of correlations
	pairs   []int     // by lag: how many
}

// New begins the account of a job with these samples, which are distinct. Correlations are counted for lags 1 to lags;
// that keeps 4 bytes for each sample and lag.
func New(samples []ident.ObjectID, lags int) *Training {
	t := &Training{n: len(samples), sum: make([]float64, len(samples)), corr: make([]float64, lags+1),
		pairs: make([]int, lags+1)}
	for i, x := range samples {
		for int(x) >= len(t.row) {
			t.row = append(t.row, -1)
		}
		t.row[x] = int32(i)
	}
	return t
}

// absent is no position less 1/2.
const absent = 2

// Add takes in the order of one epoch and reports whether it was all samples, each once. Any other is left out.
func (t *Training) Add(order []ident.ObjectID) bool {
	if len(order) != t.n || t.n < 2 {
		return false
	}
	if t.scratch == nil {
		t.scratch = make([]float32, t.n)
	}
	at := t.scratch
	for i := range at {
		at[i] = absent
	}
	for k, x := range order {
		if int(x) >= len(t.row) || t.row[x] < 0 || at[t.row[x]] != absent {
			return false
		}
		at[t.row[x]] = (float32(k)+.5)/float32(t.n) - .5
	}
	t.epochs++
	for i, p := range at {
		t.sum[i] += float64(p)
	}
	for i, was := range t.past {
		t.corr[i+1] += product(at, was) / (float64(t.n) * t.variance())
		t.pairs[i+1]++
	}
	lags := len(t.corr) - 1
	switch {
	case lags == 0:
		return true
	case len(t.past) < lags:
		t.past, t.scratch = append(t.past, nil), nil
	default:
		t.scratch = t.past[lags-1]
	}
	copy(t.past[1:], t.past)
	t.past[0] = at
	return true
}

func product(a, b []float32) float64 {
	sum := 0.0
	for i, x := range a {
		sum += float64(x) * float64(b[i])
	}
	return sum
}

// variance is that of one position in a uniformly random order.
func (t *Training) variance() float64 {
	n := float64(t.n)
	return (n*n - 1) / (12 * n * n)
}

// Epochs returns how many epochs were taken in.
func (t *Training) Epochs() int { return t.epochs }

// SD returns the standard deviation of the samples' mean positions, and what chance makes it in as many independent
// epochs.
func (t *Training) SD() (sd, chance float64) {
	if t.epochs == 0 || t.n < 2 {
		return 0, 0
	}
	sum := 0.0
	for _, s := range t.sum {
		sum += s * s
	}
	n, e := float64(t.n), float64(t.epochs)
	return math.Sqrt(sum/n) / e, math.Sqrt(t.variance() / e)
}

// Z returns the deviate of the chi-square of the mean positions (Wilson and Hilferty 1931) when their variance is
// factor times that of independent epochs: large where samples are always early or always late, about standard
// normal where none is.
func (t *Training) Z(factor float64) float64 {
	sd, chance := t.SD()
	if chance == 0 || t.n < 3 {
		return 0
	}
	df := float64(t.n - 1) // the mean positions sum up to n/2: one degree of freedom less
	x := sd * sd / (chance * chance * factor) * df
	return (math.Cbrt(x/df) - 1 + 2/(9*df)) / math.Sqrt(2/(9*df))
}

// Lag returns the mean correlation of the positions in epochs so far apart, and its standard deviation were they
// independent; 0 and 0 where no two epochs are.
func (t *Training) Lag(lag int) (corr, sd float64) {
	if lag < 1 || lag >= len(t.pairs) || t.pairs[lag] == 0 {
		return 0, 0
	}
	p := float64(t.pairs[lag])
	return t.corr[lag] / p, 1 / math.Sqrt(float64(t.n-1)*p)
}

// Factor returns by how much correlations at lags 1 to lag, as they were counted, enlarge the variance of the mean
// positions.
func (t *Training) Factor(lag int) float64 {
	f := 1.0
	for k := 1; k <= lag && k < t.epochs; k++ {
		c, _ := t.Lag(k)
		f += 2 * c * (1 - float64(k)/float64(t.epochs))
	}
	return f
}

// Far returns the deviate of the correlations at lags from to to together: about standard normal where epochs so far
// apart are independent.
func (t *Training) Far(from, to int) float64 {
	sum, n := 0.0, 0
	for k := from; k <= to; k++ {
		if c, sd := t.Lag(k); sd > 0 {
			sum += c / sd
			n++
		}
	}
	if n == 0 {
		return 0
	}
	return sum / math.Sqrt(float64(n))
}

// Limit is the deviate that the largest of so many fair ones, of either sign, exceeds with a probability of at most
// 1e-6 (Bonferroni).
func Limit(statistics int) float64 {
	return math.Sqrt2 * math.Erfinv(1-1e-6/float64(max(statistics, 1)))
}

// Between returns the deviate of the correlation of the mean positions in two parts of a training of one job: about
// standard normal if the parts are far enough apart to be independent, large where the same samples are early in both.
func Between(a, b *Training) float64 {
	if a.n != b.n || a.n < 2 {
		return 0
	}
	ab, aa, bb := 0.0, 0.0, 0.0
	for i := range a.sum {
		ab += a.sum[i] * b.sum[i]
		aa += a.sum[i] * a.sum[i]
		bb += b.sum[i] * b.sum[i]
	}
	if aa == 0 || bb == 0 {
		return 0
	}
	return ab / math.Sqrt(aa*bb) * math.Sqrt(float64(a.n-1))
}
