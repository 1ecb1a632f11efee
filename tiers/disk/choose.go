package disk

import (
	"math"
	"slices"
)

// What leaves is decided here, without I/O. The unit is a segment or a block. Entries of a segment belong to one
// dataset and were needed alike when they were written. Jobs come and go, so that a segment's need follows from the
// reads: each says how many jobs have the sample in their subset. A segment that was not read since a start is needed
// by all jobs on its dataset.
//
// A newcomer takes the place of what is needed less, and of nothing that is needed as much: in shuffled epochs, no
// policy that sees no future does better than to keep what is there, and a disk wears out by writing. So that bytes
// which nobody asks for any more (of an older version of an object) do not stay for ever, a segment that no read has
// found for a long time counts as needed by nobody.

// candidate is what may leave.
type candidate struct {
	need   int    // live jobs that read it in every epoch
	used   uint64 // when it was used last, by the store's clock of uses
	room   int64  // bytes of disk that become free
	pinned bool   // it is being read or written
}

// choose returns which candidates leave, so that at least want bytes become free: the least needed, then the least
// recently used. They are needed by fewer than need jobs, or, if equal, by no more than that. nil, false = not enough
// may leave, so nothing should.
func choose(all []candidate, want int64, need int, equal bool) ([]int, bool) {
	if want <= 0 {
		return nil, true
	}
	var may []int
	for i := range all {
		c := &all[i]
		if !c.pinned && (c.need < need || equal && c.need == need) {
			may = append(may, i)
		}
	}
	slices.SortStableFunc(may, func(i, k int) int {
		a, b := &all[i], &all[k]
		switch {
		case a.need != b.need:
			return a.need - b.need
		case a.used < b.used:
			return -1
		case a.used > b.used:
			return 1
		}
		return 0
	})
	for i, x := range may {
		if want -= all[x].room; want <= 0 {
			return may[:i+1], true
		}
	}
	return nil, false
}

// lately is over how many reads of a segment its need is a mean.
const lately = 16

// readFor notes that an entry was read that so many jobs read in every epoch; 0 = not known.
func (g *segment) readFor(jobs int) {
	switch {
	case jobs <= 0 || g.jobs == Spare:
	case g.seen == 0:
		g.seen = float64(jobs)
	default:
		g.seen += (float64(jobs) - g.seen) / min(lately, float64(max(1, len(g.hashes))))
	}
}

// needed is the need of a segment, when so many jobs need its group. It is whole, so that segments that are needed
// almost alike do not take the place of each other.
func (g *segment) needed(group int) int {
	switch {
	case g.jobs == Spare:
		return 0
	case g.seen == 0:
		return group
	}
	return min(group, int(math.Round(g.seen)))
}

// stale reports whether a segment is one that no read finds any more: so many reads of its dataset went by since one
// did. entries is how many the tier holds. One pass over a dataset twice as large as the tier finds every segment in
// a quarter of that; of a dataset a hundred times as large, a segment of a hundred entries eight times.
func stale(readsSince uint64, entries int) bool { return readsSince > 8*uint64(entries)+1000 }
