// Package bound computes lower bounds of loads from the trace of a run: what no order, cache policy or foresight could
// have gone below, given which samples each job wanted and when it took how many.
//
// It does not know who ran, what was loaded, or how the cache works; the simulator that makes the trace owns it. A load
// is a read, a decode, or whatever else a resident sample saves: the caller says how many samples can be resident in a
// form that saves it.
package bound

import (
	"cmp"
	"math/bits"
	"slices"
)

// Step is a number of samples that were taken at one instant.
type Step struct {
	At int64 // instants only have to be ordered; what is taken at one instant may be shared without a cache
	N  int32
}

// Epoch is one pass of a job over its subset, or a part of one: distinct samples, in order of time.
type Epoch struct {
	Job   int
	Steps []Step // ascending, each instant once
}

// Trace is what happened.
type Trace struct {
	Subsets [][]uint32 // by job: distinct samples
	Epochs  []Epoch
	Cache   int // samples that can be resident from one instant to a later one
}

// begin and end are the instants that an epoch lies between: [begin, end).
func (e *Epoch) begin() int64 { return e.Steps[0].At }
func (e *Epoch) end() int64   { return e.Steps[len(e.Steps)-1].At + 1 }

func (e *Epoch) size() int {
	n := 0
	for _, s := range e.Steps {
		n += int(s.N)
	}
	return n
}

// Windows is the bound of Seneca's analysis, over whole epochs: of disjoint epochs in a row the first needs its subset,
// each later one its subset less what is resident when it begins; the largest sum over all such rows. Epochs that are
// not complete count nothing.
func Windows(t Trace) int {
	var whole []*Epoch
	for i := range t.Epochs {
		e := &t.Epochs[i]
		if len(e.Steps) > 0 && e.size() == len(t.Subsets[e.Job]) {
			whole = append(whole, e)
		}
	}
	slices.SortStableFunc(whole, func(a, b *Epoch) int { return cmp.Compare(a.end(), b.end()) })
	best := make([]int, len(whole)+1) // best[i]: of rows among the first i
	for i, e := range whole {
		before, _ := slices.BinarySearchFunc(whole[:i], e.begin(), func(w *Epoch, at int64) int {
			if w.end() <= at {
				return -1
			}
			return 1
		})
		u := len(t.Subsets[e.Job])
		best[i+1] = max(best[i], u, best[before]+max(0, u-t.Cache))
	}
	return best[len(whole)]
}

// Loads is the tighter bound. Of disjoint intervals of time each must load at least
//
//	max over sets S of jobs ( |union of their subsets| -
//	    sum over S of the part of the job's best epoch outside the interval )
//
// less what can be resident when it begins (the first: nothing less), because inside one epoch a job takes distinct
// samples. The largest sum over all rows of intervals between instants at which some epoch begins or ends, by dynamic
// programming. It contains Windows, and adds parts of epochs and unions of concurrent jobs. Where more than maxGroups
// unlike subsets overlap, some sets S are tried instead of all, and of very many epochs only intervals over some
// hundreds of them; every choice gives a valid bound.
func Loads(t Trace) int { return max(loads(t, maxGroups, maxWork), Windows(t)) }

// About how many elementary steps a bound may take: a second or two. Walks over cells are quicker than steps over
// intervals.
const (
	maxWork     = 1 << 28
	maxCellWork = 1 << 31
)

func loads(t Trace, groups, work int) int {
	d := newDemand(t, groups)
	reach := d.reach(work)
	f := make([]int, len(d.cuts)) // f[i]: loads up to cuts[i] at least
	for s := range d.cuts {
		if s > 0 {
			f[s] = max(f[s], f[s-1])
		}
		d.from(s)
		for e := s + 1; e < min(len(d.cuts), s+1+reach); e++ {
			d.extend(e)
			u := d.union()
			f[e] = max(f[e], u, f[s]+max(0, u-t.Cache))
			if u == d.most {
				break // a longer interval holds no more; f carries it on
			}
		}
	}
	if len(f) == 0 {
		return 0
	}
	return f[len(f)-1]
}

// maxGroups is how many unlike subsets are tried in all combinations.
const maxGroups = 10

// demand is how many distinct samples an interval asks for at least.
type demand struct {
	t      Trace
	cuts   []int64
	total  [][]int // by epoch, from its first cut on: samples taken before the cut
	first  []int   // by epoch: the first cut at which it has begun
	order  []int   // epochs by their begin
	group  []int   // by job: jobs with equal subsets are one group
	sizes  []int   // by group
	cover  []int   // by set of groups: size of the union; nil when there are too many groups
	cells  []cell  // when there are too many
	most   int     // union of what anybody ever takes
	s      int     // first cut of the interval
	begun  int     // into order: epochs that begin before it
	under  []int   // of these, those that are not over by then
	next   int     // into order: epochs that begin later than the interval
	open   []int   // epochs that overlap the interval and continue after it
	inside []int   // by group: the most distinct samples of it that one job's epoch takes inside

	ranked []int   // with too many groups: the largest 64, as grow orders them
	bit    []uint8 // by group: its place in cells
}

// cell is a set of samples that lie in the same groups' subsets.
type cell struct {
	in uint64
	n  int
}

func newDemand(t Trace, groups int) *demand {
	d := &demand{t: t}
	d.gather(groups)
	for i := range t.Epochs {
		if e := &t.Epochs[i]; len(e.Steps) > 0 {
			d.order = append(d.order, i)
			d.cuts = append(d.cuts, e.begin(), e.end())
		}
	}
	slices.Sort(d.cuts)
	d.cuts = slices.Compact(d.cuts)
	d.thin()
	slices.SortStableFunc(d.order, func(a, b int) int { return cmp.Compare(t.Epochs[a].begin(), t.Epochs[b].begin()) })
	d.total, d.first = make([][]int, len(t.Epochs)), make([]int, len(t.Epochs))
	for _, i := range d.order {
		e := &t.Epochs[i]
		d.first[i], _ = slices.BinarySearch(d.cuts, e.begin())
		n, k := 0, 0
		for c := d.first[i]; ; c++ {
			for k < len(e.Steps) && e.Steps[k].At < d.cuts[c] {
				n += int(e.Steps[k].N)
				k++
			}
			d.total[i] = append(d.total[i], n)
			if k == len(e.Steps) {
				break
			}
		}
	}
	d.inside = make([]int, len(d.sizes))
	for i := range t.Epochs {
		e := &t.Epochs[i]
		g := d.group[e.Job]
		d.inside[g] = max(d.inside[g], e.size())
	}
	d.most = d.union()
	return d
}

// gather finds groups, and the unions of their subsets.
func (d *demand) gather(groups int) {
	top := uint32(0)
	sets := make([][]uint32, len(d.t.Subsets))
	for i, s := range d.t.Subsets {
		sets[i] = s
		if !slices.IsSorted(s) {
			sets[i] = slices.Sorted(slices.Values(s))
		}
		if len(s) > 0 {
			top = max(top, sets[i][len(s)-1]+1)
		}
	}
	d.group = make([]int, len(sets))
	var rep []int
	for i, s := range sets {
		g := slices.IndexFunc(rep, func(r int) bool { return slices.Equal(sets[r], s) })
		if g < 0 {
			g = len(rep)
			rep = append(rep, i)
			d.sizes = append(d.sizes, len(s))
		}
		d.group[i] = g
	}
	for g := range rep {
		d.ranked = append(d.ranked, g)
	}
	slices.SortStableFunc(d.ranked, func(a, b int) int { return cmp.Compare(d.sizes[b], d.sizes[a]) })
	d.ranked = d.ranked[:min(64, len(rep))]
	d.bit = make([]uint8, len(rep))
	in := make([]uint64, top)
	for b, g := range d.ranked {
		d.bit[g] = uint8(b)
		for _, x := range sets[rep[g]] {
			in[x] |= 1 << b
		}
	}
	if len(rep) <= groups {
		n := make([]int, 1<<len(rep)) // samples in exactly, then in none but, these groups
		for x := range int(top) {
			m := 0 // by group, not by place
			for w := in[x]; w != 0; w &= w - 1 {
				m |= 1 << d.ranked[bits.TrailingZeros64(w)]
			}
			if m != 0 {
				n[m]++
			}
		}
		all := 0
		for _, k := range n {
			all += k
		}
		for b := range len(rep) {
			for m := range n {
				if m>>b&1 == 1 {
					n[m] += n[m^1<<b]
				}
			}
		}
		d.cover = make([]int, len(n))
		for m := range n {
			d.cover[m] = all - n[len(n)-1-m]
		}
		return
	}
	at := map[uint64]int{} // lookups only
	for _, m := range in {
		if m == 0 {
			continue
		}
		i, ok := at[m]
		if !ok {
			i = len(d.cells)
			at[m] = i
			d.cells = append(d.cells, cell{in: m})
		}
		d.cells[i].n++
	}
}

// thin drops instants where more groups than can be tried meet in so many intervals that it would take long: any choice
// of instants gives a valid bound.
func (d *demand) thin() {
	const work = maxCellWork
	for d.cover == nil && len(d.cuts) > 16 &&
		float64(len(d.cuts))*float64(len(d.cuts))/2*float64(7*len(d.cells)+1) > work {
		keep := d.cuts[:0]
		for i, c := range d.cuts {
			if i%2 == 0 || i == len(d.cuts)-1 {
				keep = append(keep, c)
			}
		}
		d.cuts = keep
	}
}

// reach is over how many instants an interval may run, so that all of them together take no more than some work.
func (d *demand) reach(work int) int {
	each := len(d.cover)*(1+len(d.sizes)/2) + len(d.t.Subsets)
	if d.cover == nil {
		return len(d.cuts) // thin has seen to it
	}
	return max(8, work/each/max(1, len(d.cuts)))
}

// from begins intervals at cut s, which is one more than the last time.
func (d *demand) from(s int) {
	d.s = s
	clear(d.inside)
	for ; d.begun < len(d.order) && d.first[d.order[d.begun]] < s; d.begun++ {
		d.under = append(d.under, d.order[d.begun])
	}
	d.under = slices.DeleteFunc(d.under, func(i int) bool { return d.last(i) <= s })
	d.open = append(d.open[:0], d.under...)
	d.next = d.begun
}

// last is the cut at which an epoch is over.
func (d *demand) last(i int) int { return d.first[i] + len(d.total[i]) - 1 }

// extend moves the interval's end to cut e.
func (d *demand) extend(e int) {
	for d.next < len(d.order) && d.first[d.order[d.next]] < e {
		d.open = append(d.open, d.order[d.next])
		d.next++
	}
	open := d.open[:0]
	for _, i := range d.open {
		g := d.group[d.t.Epochs[i].Job]
		d.inside[g] = max(d.inside[g], d.taken(i, e)-d.taken(i, d.s))
		if d.last(i) > e { // else it takes no more in a longer one
			open = append(open, i)
		}
	}
	d.open = open
}

// taken is how many samples epoch i has taken before a cut.
func (d *demand) taken(i, cut int) int {
	k := cut - d.first[i]
	if k < 0 {
		return 0
	}
	return d.total[i][min(k, len(d.total[i])-1)]
}

// union is how many distinct samples an interval asks for at least in which each group takes what inside says.
func (d *demand) union() int {
	if d.cover == nil {
		return d.grow()
	}
	best := 0
	for m := 1; m < len(d.cover); m++ {
		v := d.cover[m]
		for w := m; w != 0; w &= w - 1 {
			g := bits.TrailingZeros(uint(w))
			v -= d.sizes[g] - d.inside[g]
		}
		best = max(best, v)
	}
	return best
}

// grow is union for many groups: of sets of those that lack least of their own, in sizes that double, the best.
func (d *demand) grow() int {
	slices.SortFunc(d.ranked, func(a, b int) int { return cmp.Or(cmp.Compare(d.lacks(a), d.lacks(b)), cmp.Compare(a, b)) })
	best, next, lack := 0, 1, 0
	set := uint64(0)
	for k, g := range d.ranked {
		set |= 1 << d.bit[g]
		lack += d.lacks(g)
		if k+1 != next && k+1 != len(d.ranked) {
			continue
		}
		next *= 2
		n := 0
		for _, c := range d.cells {
			if c.in&set != 0 {
				n += c.n
			}
		}
		best = max(best, n-lack)
	}
	return best
}

// lacks is what an interval lacks of a whole subset of the group.
func (d *demand) lacks(g int) int { return d.sizes[g] - d.inside[g] }

// Augments is the bound of augmentations, which no job may be given twice: of each group of jobs that share augmented
// samples, as many as its busiest job takes. takes is by group and job.
func Augments(takes [][]int) int {
	n := 0
	for _, group := range takes {
		if len(group) > 0 {
			n += slices.Max(group)
		}
	}
	return n
}
