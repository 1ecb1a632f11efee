package fair

import "math"

// reported are the lags, in epochs, that reports show: the epoch before, and some that are further back than an order
// is remembered.
var reported = [...]int{1, 2, 5, 20}

// MostPlaces is for how many places, samples times jobs, lags beyond 1 are counted: at 4 bytes for each place and lag
// their positions in past epochs take up to 320 MiB.
const MostPlaces = 1 << 22

// LagsOf returns for how many lags to count correlations in a world of so many places, samples times jobs.
func LagsOf(places int) int {
	if places > MostPlaces {
		return 1
	}
	return reported[len(reported)-1]
}

// Bytes is about how much memory a training takes whose ids are below its number of samples.
func Bytes(samples, lags, epochs int) int64 {
	return int64(samples) * (16 + 4*int64(min(lags, epochs)+1))
}

// Correlation is the mean correlation of the samples' positions in epochs that lie Lag epochs apart.
type Correlation struct {
	Lag         int     `json:"lag"` // epochs
	Correlation float64 `json:"correlation"`
	SD          float64 `json:"sd"` // of Correlation, were the epochs independent
}

// Figures are what reports say of a training, or of several alike. Positions are parts of an epoch, 0 to 1.
type Figures struct {
	SD     float64       `json:"sd"`     // of the samples' mean positions
	Chance float64       `json:"chance"` // what it would be, were the epochs independent
	Epochs int           `json:"epochs"` // that were taken in, of all trainings together
	Lags   []Correlation `json:"lags"`   // 1, 2, 5 and 20, as far as they were counted
}

// Ratio is SD by Chance.
func (f *Figures) Ratio() float64 { return f.SD / f.Chance }

// Account adds up trainings that are independent of each other: variances and correlations are averaged. The zero
// Account is empty.
type Account struct {
	trainings, epochs int
	squares, chances  float64
	corr, vars        [len(reported)]float64 // by place in reported
	counted           [len(reported)]int
}

// Add takes in a training; nil and one of fewer than two epochs are left out.
func (a *Account) Add(t *Training) {
	if t == nil || t.epochs < 2 {
		return
	}
	sd, chance := t.SD()
	a.trainings++
	a.epochs += t.epochs
	a.squares += sd * sd
	a.chances += chance * chance
	for i, lag := range reported {
		if c, sd := t.Lag(lag); sd > 0 {
			a.corr[i] += c
			a.vars[i] += sd * sd
			a.counted[i]++
		}
	}
}

// Figures returns what is known of all trainings; nil when none was taken in.
func (a *Account) Figures() *Figures {
	if a.trainings == 0 {
		return nil
	}
	n := float64(a.trainings)
	f := &Figures{SD: math.Sqrt(a.squares / n), Chance: math.Sqrt(a.chances / n), Epochs: a.epochs, Lags: []Correlation{}}
	for i, lag := range reported {
		if k := float64(a.counted[i]); k > 0 {
			f.Lags = append(f.Lags, Correlation{Lag: lag, Correlation: a.corr[i] / k, SD: math.Sqrt(a.vars[i]) / k})
		}
	}
	return f
}
