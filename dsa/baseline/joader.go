package baseline

import (
	"cmp"
	"slices"

	"larder/internal/bits"
	"larder/internal/invariant"
)

// joader is the dependent sampling algorithm of Joader (Xie et al., NeurIPS 2022, sections 3 and 4) for any number of
// jobs, done right: on cells, that is sets of samples still needed by exactly the same jobs, instead of on the paper's
// tree, whose chain of intersections they contain. The law of a round is that of the paper: jobs ordered by what
// remains to them; a prefix of them shares one draw from what all have in common, the rest continues without it, and
// a job that starts the rest alone draws alone.
//
// What the released code does otherwise is left out: picks inside a set are uniform, a leave loses no samples, the
// order of the jobs is by sizes that are up to date, probabilities are float64. A job that does not take part in a
// round is simply not in it, where the paper draws for it and puts the sample back.
//
// One round costs cells x jobs: up to 2^jobs cells on random subsets.
type joader struct {
	s     *Sampler
	pools []pool              // one for each set of needers that occurs, and unused ones
	spare []int               // unused ones
	full  []int               // those with samples
	at    map[bits.JobSet]int // lookups only, never ranged over
	in    []uint32            // by object: pool + 1; 0 = no job needs it
	pos   []uint32            // by object: place in the pool
	draws int                 // counts draws, which groups of jobs share
}

// pool is one cell.
type pool struct {
	mask  bits.JobSet
	items []uint32
	place int  // in full
	used  bool // in this round
}

func newJoader(s *Sampler) *joader { return &joader{s: s, at: make(map[bits.JobSet]int)} }

// place moves x to the pool of who needs it now.
func (r *joader) place(x uint32) {
	if n := int(x) + 1; n > len(r.in) {
		old := len(r.in)
		r.in = slices.Grow(r.in, n-old)[:n]
		r.pos = slices.Grow(r.pos, n-old)[:n]
	}
	if r.in[x] != 0 {
		i := int(r.in[x] - 1)
		p := &r.pools[i]
		last := p.items[len(p.items)-1]
		p.items[r.pos[x]], r.pos[last] = last, r.pos[x]
		p.items = p.items[:len(p.items)-1]
		r.in[x] = 0
		if len(p.items) == 0 { // rounds look at nothing empty
			moved := r.full[len(r.full)-1]
			r.full[p.place], r.pools[moved].place = moved, p.place
			r.full = r.full[:len(r.full)-1]
			delete(r.at, p.mask)
			r.spare = append(r.spare, i)
		}
	}
	m := r.s.need[x]
	if m == 0 {
		return
	}
	i, ok := r.at[m]
	if !ok {
		if n := len(r.spare); n > 0 {
			i, r.spare = r.spare[n-1], r.spare[:n-1]
		} else {
			i = len(r.pools)
			r.pools = append(r.pools, pool{})
		}
		r.pools[i] = pool{mask: m, items: r.pools[i].items[:0], place: len(r.full)}
		r.full = append(r.full, i)
		r.at[m] = i
	}
	p := &r.pools[i]
	p.items = append(p.items, x)
	r.in[x], r.pos[x] = uint32(i+1), uint32(len(p.items)-1)
}

func (r *joader) started(j *job) {
	for _, x := range j.subset {
		r.place(uint32(x))
	}
}

func (r *joader) stopped(j *job) {
	for _, x := range j.rem.items {
		r.s.need[x] = r.s.need[x].Without(j.slot)
		r.place(x)
	}
}

func (r *joader) taken(_ *job, x uint32) { r.place(x) }
func (r *joader) back(_ *job, x uint32)  { r.place(x) }
func (*joader) leveled(uint32)           {}

// choose is a round of one job.
func (r *joader) choose(j *job) uint32 { return j.rem.draw(r.s.rng) }

// round is the paper's algorithm; its marginals are right: P(job i in the common part) telescopes to common /
// remaining.
func (r *joader) round(jobs []*job, emit func(*job, uint32)) {
	g := slices.Clone(jobs)
	slices.SortFunc(g, func(a, b *job) int {
		return cmp.Or(cmp.Compare(a.rem.len(), b.rem.len()), cmp.Compare(a.slot, b.slot))
	})
	for _, i := range r.full {
		r.pools[i].used = false
	}
	removed := 0 // what was taken out of the sets of all jobs that are left
	for len(g) > 0 {
		full := bits.JobSet(0)
		for _, j := range g {
			full = full.With(j.slot)
		}
		common := func(p *pool) bool { return !p.used && p.mask&full == full }
		c := r.count(common)
		last, k := c, 0
		for _, j := range g {
			size := j.rem.len() - removed
			if r.s.rng.Float64()*float64(size) >= float64(last) {
				break
			}
			last = size
			k++
		}
		if k > 0 {
			x := r.draw(c, common)
			for _, j := range g[:k] {
				emit(j, x)
			}
		} else {
			k = 1
			own := func(p *pool) bool { return !p.used && p.mask&full != full && p.mask.Has(g[0].slot) }
			emit(g[0], r.draw(r.count(own), own))
		}
		g = g[k:]
		for _, i := range r.full {
			if common(&r.pools[i]) {
				r.pools[i].used = true
			}
		}
		removed += c
	}
}

func (r *joader) count(which func(*pool) bool) int {
	n := 0
	for _, i := range r.full {
		if which(&r.pools[i]) {
			n += len(r.pools[i].items)
		}
	}
	return n
}

// draw returns a uniform one of the n samples of some pools.
func (r *joader) draw(n int, which func(*pool) bool) uint32 {
	r.draws++
	u := r.s.rng.IntN(n)
	for _, i := range r.full {
		if p := &r.pools[i]; which(p) {
			if u < len(p.items) {
				return p.items[u]
			}
			u -= len(p.items)
		}
	}
	invariant.Violated("joader: %d samples were counted, %d more than there are", n, u)
	return 0
}
