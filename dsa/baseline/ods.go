package baseline

import (
	"larder/internal/ident"
)

// ods is opportunistic data sampling as Seneca publishes it (FAST 2026, section 5): a job asks for a random sample of
// its epoch; if it is not in memory, a random one that is and that the job has not had takes its place, and the miss
// waits. Hits are counted for each sample in memory; at as many hits as there are jobs it leaves, and a random sample
// that is not in memory is read in its place.
//
// The paper does not say it, so: a sample that a job's own miss brought starts at no hits; who counts are the jobs that
// are joined; the replacement is uniform over all that any job may want and is not in memory. The cache beside it
// should never evict (policy minio), as theirs does not. It has no cells: on overlapping subsets a job's order is not
// uniform (the shared part comes first).
type ods struct {
	s     *Sampler
	known bag     // everything a joined job wanted at some time
	hits  []uint8 // by object, of what is in memory; jobs are at most 64
	full  []uint32
}

func (r *ods) started(j *job) {
	b, _ := j.own.(*bag)
	if b == nil {
		b = &bag{}
		j.own = b
		for _, x := range j.subset {
			r.known.add(uint32(x))
		}
		for len(r.hits) < len(r.known.pos) {
			r.hits = append(r.hits, 0)
		}
	}
	b.clear()
	for _, x := range j.subset {
		if r.s.level[x] {
			b.add(uint32(x))
		}
	}
}

func (r *ods) stopped(j *job) { j.own.(*bag).clear() }

func (r *ods) back(j *job, x uint32) {
	if r.s.level[x] {
		j.own.(*bag).add(x)
	}
}

func (r *ods) leveled(x uint32) {
	if int(x) < len(r.hits) {
		r.hits[x] = 0
	}
	for m := r.s.need[x]; m != 0; m &= m - 1 {
		b := r.s.slot[first(m)].own.(*bag)
		if r.s.level[x] {
			b.add(x)
		} else {
			b.remove(x)
		}
	}
}

func (r *ods) taken(j *job, x uint32) {
	j.own.(*bag).remove(x)
	if !r.s.level[x] {
		return
	}
	if r.hits[x]++; int(r.hits[x]) >= r.s.live.Len() {
		r.full = append(r.full, x)
	}
}

// choose: a uniform request that is a hit is a uniform hit, and a miss is replaced by a uniform hit; so it is one
// whenever there is one.
func (r *ods) choose(j *job) uint32 {
	if b := j.own.(*bag); b.len() > 0 {
		return b.draw(r.s.rng)
	}
	return j.rem.draw(r.s.rng)
}

func (r *ods) round(jobs []*job, emit func(*job, uint32)) { alone(r, jobs, emit) }

func (r *ods) turnover() (out, in ident.ObjectID, ok, more bool) {
	for len(r.full) > 0 {
		x := r.full[len(r.full)-1]
		r.full = r.full[:len(r.full)-1]
		if !r.s.level[x] {
			continue // it has left in the meantime
		}
		// Most of what is known is not in memory, or the search below finds what there is.
		for range 32 {
			if y := r.known.draw(r.s.rng); !r.s.level[y] {
				return ident.ObjectID(x), ident.ObjectID(y), true, true
			}
		}
		from := r.s.rng.IntN(r.known.len())
		for i := range r.known.len() {
			if y := r.known.items[(from+i)%r.known.len()]; !r.s.level[y] {
				return ident.ObjectID(x), ident.ObjectID(y), true, true
			}
		}
		return ident.ObjectID(x), 0, false, true
	}
	return 0, 0, false, false
}
