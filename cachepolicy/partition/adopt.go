package partition

import (
	"fmt"

	"larder/internal/units"
)

// What a new split must gain to replace the current one. A change costs evictions, so noise in the measured rates must
// not move memory back and forth.
const (
	minGain = 0.02 // less is within the error of any measurement
	bigGain = 0.10 // more is adopted at once; less at most once an epoch

	// minMove is the part of the budget that must move, unless a tier doubles or halves by it.
	minMove = 0.05
)

// Change is a new split beside the current one, for Adopt.
type Change struct {
	Now, Next        Split
	NowRate          float64 // of the current split under the current demand, by the same model as NextRate
	NextRate         float64
	Budget           int64 // bytes of all tiers; Now may exceed it
	EpochsSinceMoved float64
	First            bool // no split was decided for these jobs yet, so it need not wait for an epoch's end
	Unfair           bool // Now leaves some job below its fair share
}

// Adopt reports whether to change the split, with the reason as a sentence for people.
//
//   - A split that exceeds the budget, or leaves 5 % of it to no tier, is always replaced.
//   - A split that is unfair to some job is replaced when the jobs are new. Not for the same jobs: tiers are not
//     divided among datasets, so even the plan itself can come out slightly unfair.
//   - A gain above 10 % is adopted at once, one below 2 % never.
//   - Anything between is adopted at most once an epoch, or at once for new jobs, if enough memory moves.
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
	case c.Next.Total()-c.Now.Total() >= int64(minMove*float64(c.Budget)):
		return true, units.Size(c.Next.Total()-c.Now.Total()) + " belong to no tier"
	case c.First && c.Unfair:
		return true, "the split in force leaves a job less than its fair share"
	case gain > bigGain:
		return true, fmt.Sprintf("it gains %.0f %%", 100*gain)
	case gain < minGain:
		return false, fmt.Sprintf("the best split gains only %.1f %%", 100*max(gain, 0))
	case moved(c.Now, c.Next) < int64(minMove*float64(c.Budget)) && !doubled(c.Now, c.Next):
		return false, fmt.Sprintf("only %s would move", units.Size(moved(c.Now, c.Next)))
	case c.EpochsSinceMoved < 1 && !c.First:
		return false, fmt.Sprintf("it gains %.1f %%, which waits for the epoch's end", 100*gain)
	}
	return true, fmt.Sprintf("it gains %.1f %%", 100*gain)
}

// moved returns how many bytes change their form.
func moved(a, b Split) int64 {
	return max(a.Encoded-b.Encoded, 0) + max(a.Decoded-b.Decoded, 0) + max(a.Augmented-b.Augmented, 0)
}

// doubled reports whether a tier becomes twice as large, or half. In a large budget a whole form of a small dataset is
// a small part: all augmented samples of 700 photographs at 64 pixels are 8.6 MB.
func doubled(a, b Split) bool {
	for _, x := range [...][2]int64{{a.Encoded, b.Encoded}, {a.Decoded, b.Decoded}, {a.Augmented, b.Augmented}} {
		if max(x[0], x[1])/2 >= min(x[0], x[1]) && x[0] != x[1] {
			return true
		}
	}
	return false
}
