package dsa

import (
	"fmt"
	"slices"

	"larder/internal/bits"
	"larder/internal/xrand"
)

// scans picks for jobs whose cells are too small to choose in: with many unlike subsets, or many tiles, a cell and tile
// holds less than one available object, so to draw the cell first leaves no choice. These jobs walk through an order
// that they share (scanorder.go), part by part, and each takes the objects of a part that it needs, in the order of
// their numbers. Jobs that read the same part at about the same time take the same objects. Which part comes next is
// free, and decided so that jobs meet: one that another job has decided on lately, the latest first, else one that most
// jobs still have before them.
//
// Why each epoch is uniform. The numbers are uniform and independent, and no order is used again in another epoch of
// the job, nor one that others had read while the job chose by what is available (scan.since). So, given all that the
// job has taken in earlier epochs, its objects lie in the order as if dealt at random. The rules that keep it so:
//
//   - Which part a job reads next is decided when it has taken so many samples (decide), and depends on nothing but
//     decisions of other jobs, counts of samples, and chance. It never depends on what lies in a part, on how far a job
//     has come in one, or on what is available: a part that holds much of a neighbour's subset keeps the neighbour
//     longer, so to follow it there would bring that subset early.
//   - A part may hold less of the job than expected. Then it comes to the end of what is decided, and draws uniformly
//     from all that it needs until the next decision is due by count. Decisions run a little ahead to make that rare.
//
// So the epoch's order is the order of the numbers, part by part in a sequence that knows nothing of them, with uniform
// draws in between: a uniformly random permutation. Consecutive epochs are independent altogether.
type scans struct {
	rng   *xrand.Rand // of its own: how often others draw depends on what lies in a part
	jobs  *roster
	cells *cells
	draws *draws
	tapes *tapes
	room  *int // of SetRoom

	manyCells, fewAvailable int // the constants, but in tests

	clock uint64 // what all jobs together are expected to have loaded, in 1/clockUnit samples
	picks uint64 // dates orders
}

// scan is a job's walk through a scanOrder.
//
// Invariant: what the job needs lies in parts that it has not passed, from pos on in the one that it reads.
type scan struct {
	on      bool // the job scans, or will do so once it is laid out
	order   *scanOrder
	list    *scanList // of the order, as it was when the walk began
	fresh   bool      // pos is not yet that of the part under way
	n       int       // samples that it needed when it began
	decided []uint32  // the parts, in the order in which it reads them
	seen    []uint64  // by part: decided
	at      int       // the part under way, in decided
	pos     uint32    // the next place in list
	used    []uint64  // names of orders that it may not take again
	since   uint64    // scans.picks when it last chose by what is available
}

// Sizes that decide how jobs meet. None of them touches the law of an order.
const (
	partsPerRoom = 16     // so many parts fill what stays available
	hotPercent   = 70     // of the room: a part that was decided on so lately is still there
	ages         = 8      // of hot parts, those of an age are as good as each other
	maxParts     = 1024   // a decision looks at all of them
	clockUnit    = 1 << 8 // of scans.clock
)

// A job scans that has so many cells, and on average fewer available objects than this in each cell and tile. With
// fewer cells the tapes keep jobs together.
const (
	manyCells    = 16
	fewAvailable = 4
)

// What an object that a scanning job needs weighs in Need: the job is about to read its part; another job has done so
// lately, so this one may follow; or neither.
const (
	scanSoon  = 16 * soon
	scanHot   = soon
	scanLater = 1
)

// wanted reports whether the job should scan: it shares with others, and its cells and tiles are so many that few
// objects are available in each.
func (s *scans) wanted(j *job) bool {
	room := *s.room
	others := (j.peers.neighbours & s.jobs.taped).Without(j.slot)
	if room == 0 || room >= len(j.subset) || others == 0 {
		return false
	}
	n := 0
	for c := range s.cells.list {
		if s.cells.list[c].live.Has(j.slot) {
			n++
		}
	}
	return n >= s.manyCells && room < s.fewAvailable*n*j.tiles
}

// choose decides whether the job scans from now on, and which order it takes then.
func (s *scans) choose(j *job) bool {
	was := j.scan.on
	if j.scan.on = s.wanted(j); !j.scan.on {
		return false
	}
	if !was && j.pace.took > 0 {
		j.scan.since = s.picks
	}
	s.adopt(j)
	return true
}

// adopt gives the job an order that it has not used: the one on which most of what it shares is still to come, else a
// new one.
func (s *scans) adopt(j *job) {
	o := s.popular(j)
	if o == nil {
		o = newScanOrder(s.tapes.newName(), s.rng.Uint64(), s.count(j), *s.room)
	}
	j.scan.used = append(j.scan.used, o.name)
	s.tapes.invalidate(j)
	j.scan.order, j.scan.list = o, nil
	j.tape = tape{}
}

// popular returns the order that adopt looks for, or nil.
func (s *scans) popular(j *job) (best *scanOrder) {
	all := s.onOrders().Without(j.slot)
	oldest, weight, size := ^uint64(0), uint64(0), s.count(j)
	for m := all; m != 0; m &= m - 1 {
		o := s.jobs.slot[first(m)].scan.order
		oldest = min(oldest, o.name)
		if o == best || !s.may(j, o) || size > 2*o.size {
			continue
		}
		w := uint64(0)
		for q := m; q != 0; q &= q - 1 {
			if k := s.jobs.slot[first(q)]; k.scan.order == o {
				w += uint64(j.peers.overlap[k.slot]) * uint64(k.owed.remaining) / uint64(len(k.subset))
			}
		}
		if w > weight {
			best, weight = o, w
		}
	}
	j.scan.used = slices.DeleteFunc(j.scan.used, func(name uint64) bool { return name < oldest })
	return best
}

// onOrders returns the running jobs that scan, or will do so once they are laid out.
func (s *scans) onOrders() (m bits.JobSet) {
	for t := s.jobs.live & s.jobs.taped; t != 0; t &= t - 1 {
		if k := s.jobs.slot[first(t)]; k.scan.on && k.running() && k.scan.order != nil {
			m = m.With(k.slot)
		}
	}
	return m
}

// may reports whether the order tells nothing of what the job took before.
func (s *scans) may(j *job, o *scanOrder) bool {
	return (o.begun == 0 || o.begun > j.scan.since) && !slices.Contains(j.scan.used, o.name)
}

// count returns how many objects the cells of the job and its neighbours hold.
func (s *scans) count(j *job) (n int) {
	slots := s.tapes.connected(bits.JobSet(0).With(j.slot))
	for c := range s.cells.list {
		if s.cells.list[c].live&slots != 0 {
			n += int(s.cells.list[c].size)
		}
	}
	return n
}

// slice takes the preparation of a job's scan on by some objects, and returns how many it took. At its end the job may
// draw.
func (s *scans) slice(j *job, budget int) int {
	if o := j.scan.order; !o.covers(j) {
		return o.makeList(s, j, budget)
	}
	s.begin(j)
	j.stale = false
	s.jobs.scanning = s.jobs.scanning.With(j.slot)
	return j.scan.order.parts
}

// begin begins the walk of a job with what it needs.
func (s *scans) begin(j *job) {
	sc := &j.scan
	sc.n, sc.decided, sc.at, sc.list = j.owed.remaining, sc.decided[:0], 0, sc.order.list
	sc.fresh = true
	sc.seen = resize(sc.seen, (sc.order.parts+bitsPerWord-1)/bitsPerWord)
	clear(sc.seen)
	for p := range sc.order.wanting {
		sc.order.wanting[p]++
	}
	j.groups.clear(0, j.tiles)
	j.groups.whole = false
}

// end ends the walk of a job.
func (s *scans) end(j *job) {
	if !s.jobs.scanning.Has(j.slot) {
		return
	}
	s.jobs.scanning = s.jobs.scanning.Without(j.slot)
	for p := range j.scan.order.wanting {
		if !has(j.scan.seen, uint32(p)) {
			j.scan.order.wanting[p]--
		}
	}
}

// decide decides which parts the job reads, as far as that is due by the count of its samples. What the first
// parts hold of the job varies, at most by half of parts*sqrt(1/n - 1/all) parts, so it runs about that far ahead.
func (s *scans) decide(j *job) {
	sc := &j.scan
	o := sc.order
	const unit = 10_000
	all := len(sc.list.ids)
	ahead := o.parts * isqrt((all-sc.n)*unit*unit/(all*sc.n)) * 3 / 5 / unit
	due := (sc.n-j.owed.remaining)*o.parts/sc.n + 1 + ahead
	for due = min(due, o.parts); len(sc.decided) < due; {
		p := s.part(j)
		if !s.hot(o, p) {
			s.clock += uint64(sc.n) * clockUnit / uint64(o.parts)
		}
		o.last[p] = s.clock + 1
		o.wanting[p]--
		set(sc.seen, p)
		sc.decided = append(sc.decided, p)
	}
}

// hot reports whether a job has decided on the part so lately that what it loads should still be available.
func (s *scans) hot(o *scanOrder, p uint32) bool {
	return o.last[p] > 0 && s.clock+1-o.last[p] < s.window()
}

// window is how much may be loaded after a part until it is not hot any more.
func (s *scans) window() uint64 { return max(1, uint64(*s.room)*clockUnit*hotPercent/100) }

// part chooses the next part for a job: of the hot ones one of the latest, and of these one that fewest jobs have
// before them, so that jobs that leave parts out leave out the same; else one that most jobs have before them.
func (s *scans) part(j *job) uint32 {
	o := j.scan.order
	best, value, ties := uint32(0), uint64(0), uint64(0)
	for i, w := range j.scan.seen {
		for w = ^w; w != 0; w &= w - 1 {
			p := uint32(i*bitsPerWord + first(bits.JobSet(w)))
			if int(p) >= o.parts {
				break
			}
			v := 1 + uint64(o.wanting[p])
			if s.hot(o, p) {
				age := (s.clock + 1 - o.last[p]) * ages / s.window()
				v = (ages-age)*(2*MaxJobs) + 2*MaxJobs - uint64(o.wanting[p])
			}
			switch {
			case v > value:
				best, value, ties = p, v, 1
			case v == value:
				if ties++; s.rng.Uint64n(ties) == 0 {
					best = p
				}
			default:
			}
		}
	}
	return best
}

// pick takes the next object of the job's walk.
func (s *scans) pick(j *job) uint32 {
	sc := &j.scan
	s.picks++
	if sc.order.begun == 0 {
		sc.order.begun = s.picks
	}
	s.decide(j)
	for sc.at < len(sc.decided) {
		p := sc.decided[sc.at]
		if sc.fresh {
			sc.fresh, sc.pos = false, sc.list.begin(sc.order, p)
		}
		for to := sc.list.begin(sc.order, p+1); sc.pos < to; {
			x := sc.list.ids[sc.pos]
			sc.pos++
			if l, ok := j.index.find(x); ok && has(j.owed.left, l) {
				return x
			}
		}
		sc.at, sc.fresh = sc.at+1, true
	}
	return j.index.object(s.draws.draw(j, anyRow, -1))
}

// weight is what it weighs in Need that a scanning job needs x.
func (s *scans) weight(j *job, x uint32) int {
	o := j.scan.order
	switch p := j.scan.list.part(o, x); {
	case has(j.scan.seen, p):
		return scanSoon
	case s.hot(o, p):
		return scanHot
	default:
		return scanLater
	}
}

// Check verifies that the walk of a job has passed nothing that it needs.
func (s *scans) Check(j *job) error {
	sc := &j.scan
	passed := make([]bool, sc.order.parts)
	for _, p := range sc.decided[:min(sc.at, len(sc.decided))] {
		passed[p] = true
	}
	listed, l := 0, sc.list
	for i, x := range l.ids {
		if at, ok := j.index.find(x); !ok || !has(j.owed.left, at) {
			continue
		}
		listed++
		p := l.part(sc.order, x)
		if from, to := l.begin(sc.order, p), l.begin(sc.order, p+1); uint32(i) < from || uint32(i) >= to {
			return fmt.Errorf("object %d lies in part %d, listed at %d", x, p, i)
		}
		if passed[p] || !sc.fresh && sc.at < len(sc.decided) && sc.decided[sc.at] == p && uint32(i) < sc.pos {
			return fmt.Errorf("object %d of part %d is left, and was passed", x, p)
		}
	}
	if listed != j.owed.remaining {
		return fmt.Errorf("the parts hold %d of %d samples that are left", listed, j.owed.remaining)
	}
	return nil
}

// isqrt returns the root of n, rounded down.
func isqrt(n int) int {
	r := 0
	for b := 1 << 15; b > 0; b >>= 1 {
		if (r+b)*(r+b) <= n {
			r += b
		}
	}
	return r
}
