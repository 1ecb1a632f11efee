package dsa

import "larder/internal/invariant"

// Following. A shared order brings jobs together because somewhat later is soon enough while something stays available. Where nothing
// does, a job finds only what others load at the same moment, and jobs whose subsets differ are at unlike positions of the order at
// the same moment. So with no room the cell and tile of a pick are not those of the next entry of a tape: they are drawn for it, and
// that draw follows one that a neighbour made in the same turn. A turn has at most one pick of each job; who has picked in it begins
// the next.
//
// A job of one static cell has its tile coupled maximally to that of the neighbour's sample x: it names the tile of x as often as the
// two laws allow, and then x is there for it. Of what the neighbour drew from it is counted how much is in which of the job's tiles.
// Jobs of several cells, for which that would be too much to count, draw a sample that names its cell and tile, coupled maximally
// to x itself: with a and b samples of which i are common, both draw the same with probability i/max(a, b).
//
// Why it keeps the promises: x was uniform over what the neighbour needed, and nothing of this job depends on it yet. So given
// everything before that draw, this one has the law remaining-in-cell / remaining that a tape has.

// fellow is the last draw of a job that draws without a tape.
type fellow struct {
	drew uint32 // what it drew uniformly from all it needed; absent if it drew a tile
	took uint32 // what it took
	from int    // how many it needed
	turn uint64 // in which it last picked
}

// pickFollowing picks for a job without a tape: an available sample of the cell and tile that are named, else any, or the one that
// named them.
func (s *Sampler) pickFollowing(j *job) uint32 {
	if j.fellow.turn == s.turn {
		s.turn++
	}
	p := s.leader(j)
	if p != nil && j.groups.whole && j.tiles > 1 {
		x := s.takeRow(j, 0, s.tileFollowing(j, p), absent)
		j.fellow = fellow{drew: absent, turn: s.turn}
		return x
	}
	var l uint32
	if p == nil {
		l = s.draw(j, anyRow, -1)
	} else {
		l = s.drawFollowing(j, p)
	}
	x := j.at.object(l)
	t, y := j.prev.get(l), x
	if r := j.groups.rowOf(s.obj.at(x).cell); r >= 0 {
		y = s.takeRow(j, r, int(t), l)
	} else if z, class := s.bestSmall(j, s.obj.at(x).cell, t); class != unlisted {
		y = z
	}
	j.fellow = fellow{drew: x, took: y, from: j.rem, turn: s.turn}
	return y
}

// leader returns the neighbour to follow, if any has drawn in this turn: that with the largest overlap. What it took instead of what
// it drew must not matter: whether it did depends on what it drew, which would not be uniform given that it did not.
func (s *Sampler) leader(j *job) (p *job) {
	for m := j.near & s.following & s.active; m != 0; m &= m - 1 {
		k := s.slot[first(m)]
		if (k.fellow.turn == s.turn || s.hook.followPrevious) && k.fellow.drew != absent && (p == nil || j.overlap[k.slot] > j.overlap[p.slot]) {
			p = k
		}
	}
	return p
}

// tileFollowing draws a tile in proportion to what remains of each, as often as possible that of what p drew.
func (s *Sampler) tileFollowing(j, p *job) int {
	// In tile t, p drew from common of the a samples; j draws it with probability left/b. Both as multiples of 1/(a*b).
	a, b := uint64(p.fellow.from), uint64(j.rem)
	common := j.common[int(p.slot)*j.tiles : (int(p.slot)+1)*j.tiles]
	drew, both := j.tileOf(p.fellow.drew)
	took, gone := j.tileOf(p.fellow.took)
	laws := func(t int) (theirs, own uint64) {
		n := uint64(common[t])
		if gone && t == took { // since p drew
			n++
		}
		return n * b, uint64(j.groups.group[t].left) * a
	}
	if both {
		if theirs, own := laws(drew); own >= theirs || s.hook.biased || s.rng.Uint64n(theirs) < own {
			return drew
		}
	}
	rest := uint64(0)
	for t := range j.tiles {
		if theirs, own := laws(t); own > theirs {
			rest += own - theirs
		}
	}
	if rest == 0 {
		invariant.Violated("dsa: job %d could have drawn nothing but the tile its neighbour drew", j.id)
	}
	u := s.rng.Uint64n(rest)
	for t := range j.tiles {
		if theirs, own := laws(t); own > theirs {
			if u < own-theirs {
				return t
			}
			u -= own - theirs
		}
	}
	invariant.Violated("dsa: job %d has drawn no tile", j.id)
	return 0
}

// tileOf returns the tile of x, if the job needs it.
func (j *job) tileOf(x uint32) (int, bool) {
	l, ok := j.at.find(x)
	if !ok || !has(j.left, l) {
		return 0, false
	}
	return int(j.prev.get(l)), true
}

// counts reports whether the job counts what it has in common with others.
func (j *job) counts() bool { return j.tiles > 1 && j.groups.whole }

// meet counts x, at place l, into what j, which is being laid out, has in common with the others, and they with it.
func (s *Sampler) meet(j *job, l uint32) {
	x := j.at.object(l)
	for m := s.following & j.near; m != 0; m &= m - 1 {
		k := s.slot[first(m)]
		if at, ok := k.at.find(x); ok && has(k.left, at) {
			if j.counts() {
				j.common[int(k.slot)*j.tiles+int(j.prev.get(l))]++
			}
			if k.counts() {
				k.common[int(j.slot)*k.tiles+int(k.prev.get(at))]++
			}
		}
	}
}

// part takes x, at place l, which j is about to take, out of what j has in common with the others, and they with it.
func (s *Sampler) part(j *job, x, l uint32) {
	m := s.following & j.near
	if y := &s.lay; y.alone && y.job != j {
		m = m.With(y.job.slot)
	}
	for ; m != 0; m &= m - 1 {
		k := s.slot[first(m)]
		at, ok := k.at.find(x)
		if !ok || !has(k.left, at) || k == s.lay.job && !s.lay.lists && int(at) >= s.lay.done {
			continue
		}
		if j.counts() {
			j.common[int(k.slot)*j.tiles+int(j.prev.get(l))]--
		}
		if k.counts() {
			k.common[int(j.slot)*k.tiles+int(k.prev.get(at))]--
		}
	}
}

// drawFollowing draws uniformly from what j needs, as often as possible what p has just drawn, and returns its place.
func (s *Sampler) drawFollowing(j, p *job) uint32 {
	x, a, b := p.fellow.drew, uint64(p.fellow.from), uint64(j.rem)
	had := func(y uint32) bool { // could p have drawn it
		l, ok := p.at.find(y)
		return y == p.fellow.took || ok && has(p.left, l)
	}
	if l, ok := j.at.find(x); ok && has(j.left, l) && (b <= a || s.hook.biased || s.rng.Uint64n(b) < a) {
		return l
	}
	// What remains of the law of j: 1/b where p could not draw, 1/b - 1/max(a, b) where it could. Both sets may be so alike that
	// hardly anything remains of it, but then it is hardly ever asked for.
	for range patience {
		l := s.draw(j, anyRow, -1)
		if !had(j.at.object(l)) || b < a && s.rng.Uint64n(a) >= b {
			return l
		}
	}
	return s.countOutOther(j, had, a, b)
}

// countOutOther draws what drawFollowing looks for by weighing everything j needs.
func (s *Sampler) countOutOther(j *job, had func(uint32) bool, a, b uint64) uint32 {
	weight := func(l uint32) uint64 {
		switch {
		case !had(j.at.object(l)):
			return max(a, b)
		case b < a:
			return a - b
		default:
			return 0
		}
	}
	sum := uint64(0)
	s.eachLeft(j, anyRow, -1, func(l uint32) bool { sum += weight(l); return true })
	if sum == 0 {
		invariant.Violated("dsa: job %d could have drawn nothing but what its neighbour drew", j.id)
	}
	k, at := s.rng.Uint64n(sum), uint32(0)
	s.eachLeft(j, anyRow, -1, func(l uint32) bool {
		w := weight(l)
		if k < w {
			at = l
			return false
		}
		k -= w
		return true
	})
	return at
}
