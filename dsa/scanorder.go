package dsa

import (
	mathbits "math/bits"

	"larder/internal/bits"
	"larder/internal/xrand"
)

// scanOrder deals objects into parts at random, for jobs that scan (scan.go). Each object has a number, which a salt
// and its id give: the part is its highest bits, and within a part objects come in the order of the numbers. So the
// order holds every object that there ever is, and jobs that join later can follow those that read it.
type scanOrder struct {
	name  uint64
	salt  uint64
	parts int
	size  int    // objects that it was made for
	begun uint64 // scans.picks when a job first picked by it; 0 = none has

	last    []uint64 // by part: 1 + scans.clock when a job last decided on it; 0 = none has
	wanting []uint16 // by part: jobs that read the order and have the part before them

	list   *scanList // what the jobs that read it hold, by part
	making *scanList // a list that holds more
}

// newScanOrder makes an order for a number of objects, so many of which stay available.
func newScanOrder(name, salt uint64, objects, room int) *scanOrder {
	o := &scanOrder{name: name, salt: salt, size: objects}
	o.parts = max(1, min(objects, partsPerRoom*objects/max(1, room), maxParts))
	o.last, o.wanting = make([]uint64, o.parts), make([]uint16, o.parts)
	return o
}

// number returns the number of an object.
func (o *scanOrder) number(x uint32) uint64 { return xrand.Mix(o.salt ^ xrand.Mix(uint64(x))) }

// part returns the part of an object of the list.
func (l *scanList) part(o *scanOrder, x uint32) uint32 {
	u := o.number(x)
	hi, _ := mathbits.Mul64(u, uint64(o.parts)) // about there, because parts hold equally many
	p := uint32(hi)
	for l.begins[p] > u {
		p--
	}
	for int(p)+1 < o.parts && l.begins[p+1] <= u {
		p++
	}
	return p
}

// begin returns where a part begins in ids.
func (l *scanList) begin(o *scanOrder, p uint32) uint32 { return uint32(int(p) * len(l.ids) / o.parts) }

// covers reports whether the list of the order holds all objects of the job.
func (o *scanOrder) covers(j *job) bool { return o.list != nil && o.list.joins >= j.orders.joinedAt }

// scanList is the objects of some jobs in the order of their numbers. It is made in slices: first it collects the
// objects, then it counts them by bucket, then it deals them out, then it sorts each bucket. A bucket is a piece of a
// part of a few objects.
type scanList struct {
	joins uint64 // tapes.joins when it was begun: it holds the objects of all connected jobs that had joined
	slots bits.JobSet
	stage scanStage
	done  int // objects that the stage has passed

	found  []uint32 // the objects as they were collected
	shift  uint8    // from a number to its bucket
	bucket []uint32 // by bucket: where its next object goes, in the end where it ends

	ids    []uint32
	begins []uint64 // by part: the lowest number that belongs to it
}

// scanStage is the state of a list: collecting -> counting -> dealing -> sorting -> listed.
type scanStage uint8

const (
	scanCollecting scanStage = iota
	scanCounting
	scanDealing
	scanSorting
	scanListed
)

// perBucket is how many objects a bucket holds, on average, at least.
const perBucket = 4

// makeList takes the list that the job waits for on by at most budget objects, and returns how many it took.
func (o *scanOrder) makeList(s *scans, j *job, budget int) int {
	if o.making == nil || o.making.joins < j.orders.joinedAt {
		o.making = &scanList{shift: bitsPerWord, joins: s.tapes.joins, slots: s.tapes.connected(bits.JobSet(0).With(j.slot))}
	}
	l := o.making
	n := len(l.found)
	if l.stage == scanCollecting {
		n = s.cells.objects.n
	}
	from, to := l.done, min(l.done+budget, n)
	switch l.done = to; l.stage {
	case scanCollecting:
		for x := uint32(from); x < uint32(to); x++ {
			if s.cells.of(x).live&l.slots != 0 {
				l.found = append(l.found, x)
			}
		}
	case scanCounting:
		for _, x := range l.found[from:to] {
			l.bucket[l.bucketOf(o, x)+1]++
		}
	case scanDealing:
		for _, x := range l.found[from:to] {
			at := &l.bucket[l.bucketOf(o, x)]
			l.ids[*at] = x
			*at++
		}
	case scanSorting:
		for i := max(from, 1); i < to; i++ {
			x := l.ids[i]
			k := i
			for ; k > 0 && o.number(l.ids[k-1]) > o.number(x); k-- {
				l.ids[k] = l.ids[k-1]
			}
			l.ids[k] = x
		}
	case scanListed:
	}
	if to == n {
		l.next(o)
	}
	return to - from + 1
}

// bucketOf returns the bucket of an object.
func (l *scanList) bucketOf(o *scanOrder, x uint32) uint64 {
	if l.shift == bitsPerWord {
		return 0
	}
	return o.number(x) >> l.shift
}

// next takes the list to its next stage.
func (l *scanList) next(o *scanOrder) {
	l.done = 0
	switch l.stage++; l.stage {
	case scanCounting:
		buckets := 1
		for ; buckets*perBucket*2 <= len(l.found) && l.shift > 1; buckets *= 2 {
			l.shift--
		}
		l.bucket = make([]uint32, buckets+1)
	case scanDealing:
		for b := 1; b < len(l.bucket); b++ {
			l.bucket[b] += l.bucket[b-1]
		}
		l.ids = make([]uint32, len(l.found))
	case scanSorting:
		l.bucket = nil
	case scanListed:
		l.found = nil
		l.begins = make([]uint64, o.parts)
		for p := 1; p < o.parts; p++ {
			if at := l.begin(o, uint32(p)); int(at) < len(l.ids) {
				l.begins[p] = o.number(l.ids[at])
			}
		}
		o.list, o.making = l, nil
	case scanCollecting:
	}
}
