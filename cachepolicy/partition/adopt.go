package partition

import (
	"fmt"

	"larder/internal/units"
)

// What a new split must gain to replace the one in force. Changing a split costs evictions, so that noise in the measured
// rates must not move memory to and fro.
const (
	minGain  = 0.02 // less is within the error of any measurement
	bigGain  = 0.10 // more is taken at once; else at most one change an epoch
	maxShift = 0.05 // of the budget: a smaller move is no change for anybody who watches sizes, unless a tier doubles by it or comes down to half
)

// Change is a split that could replace another.
type Change struct {
	Now, Next        Split
	NowRate          float64 // what the present split gives under the present demand, by the same model as NextRate
	NextRate         float64
	Budget           int64 // of both together; Now may be beyond it
	EpochsSinceMoved float64
	First            bool // nothing was decided for these jobs before: it need not wait for an epoch's end
	Unfair           bool // Now leaves some job below its fair share
}

// Adopt tells whether to change the split, and why, in a sentence for people: at most one change in an epoch unless the gain is above
// 10 % or the jobs are others now, none below 2 %. A split that exceeds the budget is always replaced; so is one that leaves memory to
// nobody, and for other jobs than before one that is unfair to some of them. (Not for the same jobs: tiers are not divided among datasets, so
// that even the plan itself can come out a little unfair.)
func Adopt(c Change) (bool, string) {
	gain := 0.0
	if c.NowRate > 0 {
		gain = c.NextRate/c.NowRate - 1
	}
	switch {
	case c.Now == c.Next:
		return false, "the split in force is the best"
	case c.Now.Total() > c.Budget:
		return true, "the split in force exceeds " + units.Size(c.Budget)
	case !(c.NowRate > 0):
		return true, "nothing was decided yet for these jobs"
	case c.Next.Total()-c.Now.Total() >= int64(maxShift*float64(c.Budget)):
		return true, units.Size(c.Next.Total()-c.Now.Total()) + " belong to no tier"
	case c.First && c.Unfair:
		return true, "the split in force leaves a job less than its fair share"
	case gain > bigGain:
		return true, fmt.Sprintf("it gains %.0f %%", 100*gain)
	case gain < minGain:
		return false, fmt.Sprintf("the best split gains only %.1f %%", 100*max(gain, 0))
	case moved(c.Now, c.Next) < int64(maxShift*float64(c.Budget)) && !doubled(c.Now, c.Next):
		return false, fmt.Sprintf("only %s would move", units.Size(moved(c.Now, c.Next)))
	case c.EpochsSinceMoved < 1 && !c.First:
		return false, fmt.Sprintf("it gains %.1f %%, which waits for the epoch's end", 100*gain)
	}
	return true, fmt.Sprintf("it gains %.1f %%", 100*gain)
}

// moved is how many bytes change their form.
func moved(a, b Split) int64 {
	return max(a.Encoded-b.Encoded, 0) + max(a.Decoded-b.Decoded, 0) + max(a.Augmented-b.Augmented, 0)
}

// doubled tells whether a tier becomes twice as large, or half. In a large budget the whole form of a small dataset is a small part: all
// augmented samples of 700 photographs at 64 pixels are 8.6 MB.
func doubled(a, b Split) bool {
	for _, x := range [...][2]int64{{a.Encoded, b.Encoded}, {a.Decoded, b.Decoded}, {a.Augmented, b.Augmented}} {
		if max(x[0], x[1])/2 >= min(x[0], x[1]) && x[0] != x[1] {
			return true
		}
	}
	return false
}
