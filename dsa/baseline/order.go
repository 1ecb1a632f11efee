package baseline

import (
	"cmp"
	mathbits "math/bits"
	"slices"

	"larder/internal/bits"
	"larder/internal/xrand"
)

// sharedOrder is one random order for all jobs and all epochs, as coordinated loaders use it (CoorDL, VLDB 2021): each
// job walks its own samples along it, cyclically. A job that starts while another is on its way starts where that one
// is, so that equal speeds always meet; unlike speeds part and do not meet again.
//
// Every epoch of a job is a rotation of the same order: there is nothing random in it but the first one.
type sharedOrder struct {
	s    *Sampler
	salt uint64
}

// walk is the way of a job.
type walk struct {
	ranks []uint64 // of the subset's objects, ascending
	objs  []uint32 // in that order
	next  int      // place of the next candidate
}

func (r *sharedOrder) rank(x uint32) uint64 { return xrand.Hash(r.salt, uint64(x)) }

func (r *sharedOrder) started(j *job) {
	if j.own != nil {
		return // it walks on from where it is, and stays with whom it walks
	}
	w := &walk{}
	for _, x := range j.subset {
		w.objs = append(w.objs, uint32(x))
	}
	slices.SortFunc(w.objs, func(a, b uint32) int { return cmp.Or(cmp.Compare(r.rank(a), r.rank(b)), cmp.Compare(a, b)) })
	for _, x := range w.objs {
		w.ranks = append(w.ranks, r.rank(x))
	}
	j.own = w
	var lead *job // the one that will be on its way for longest
	for m := r.s.live.Without(j.slot); m != 0; m &= m - 1 {
		k := r.s.slot[first(m)]
		if k.rem.len() > 0 && (lead == nil || k.rem.len() > lead.rem.len()) {
			lead = k
		}
	}
	if lead != nil {
		l := lead.own.(*walk)
		w.next, _ = slices.BinarySearch(w.ranks, l.ranks[l.next%len(l.ranks)])
	}
}

func (r *sharedOrder) choose(j *job) uint32 {
	w := j.own.(*walk)
	for {
		if w.next >= len(w.objs) {
			w.next = 0
		}
		if x := w.objs[w.next]; j.rem.has(x) {
			return x
		}
		w.next++
	}
}

func (r *sharedOrder) round(jobs []*job, emit func(*job, uint32)) { alone(r, jobs, emit) }

func (r *sharedOrder) taken(j *job, x uint32) {
	if w := j.own.(*walk); w.next < len(w.objs) && w.objs[w.next] == x {
		w.next++
	}
}

func (*sharedOrder) back(*job, uint32) {}
func (*sharedOrder) stopped(*job)      {}
func (*sharedOrder) leveled(uint32)    {}

// first returns the lowest slot of a set that is not empty.
func first(m bits.JobSet) uint8 { return uint8(mathbits.TrailingZeros64(uint64(m))) }
