package dsa

import (
	"fmt"
	"slices"

	"larder/internal/invariant"
	"larder/internal/xrand"
)

// follows draws cell, tile and sample for jobs without a tape: those that are laid out while nothing stays available
// (SetRoom(0)).
//
// A shared order brings jobs together because meeting somewhat later is soon enough while something stays available.
// Where nothing does, a job finds only what others load at the same moment, and jobs whose subsets differ are at
// different positions of the order at the same moment. So without room, the cell and tile of a pick are drawn for it,
// and that draw follows one that a neighbour made in the same turn. A turn has at most one pick of each job; a job that
// has picked in it begins the next.
//
// A job of one static cell couples its tile maximally to that of the neighbour's sample x: it names the tile of x as
// often as the two laws allow, and then x is there for it. For each such job, follower.common counts how much of what
// the neighbour may have drawn is in which of the job's tiles. For jobs of several cells that would be too much to
// count. They draw a sample that names its cell and tile, coupled maximally to x itself: with a and b samples of which
// i are common, both draw the same with probability i/max(a, b).
//
// Why it keeps the promises: x was uniform over what the neighbour needed, and nothing of this job depends on it yet.
// So given everything before that draw, this one has the law remaining-in-cell / remaining that a tape has.
type follows struct {
	rng     *xrand.Rand
	objects *objectTable
	jobs    *roster
	draws   *draws
	layout  *layout // the layout under way

	turn uint64
}

// follower is the state of a job that draws without a tape.
//
// Invariant: common counts, for each other such neighbour, exactly what both need, by the tiles of this job (Check).
type follower struct {
	last   drawn
	common []uint32 // by slot*tiles+tile: objects of the tile that another such job needs too
}

// drawn is the last draw of a job that draws without a tape.
type drawn struct {
	drew uint32 // what it drew uniformly from all it needed; absent if it drew a tile
	took uint32 // what it took
	from int    // how many it needed
	turn uint64 // in which it last picked
}

// pick picks for a job without a tape: a preferred sample of the cell and tile that are named, else any, or the sample
// that named them.
func (f *follows) pick(j *job) uint32 {
	if j.follower.last.turn == f.turn {
		f.turn++
	}
	p := f.leader(j)
	if p != nil && j.groups.whole && j.tiles > 1 {
		x := f.draws.takeRow(j, 0, f.drawTile(j, p), absent)
		j.follower.last = drawn{drew: absent, turn: f.turn}
		return x
	}
	var l uint32
	if p == nil {
		l = f.draws.draw(j, anyRow, -1)
	} else {
		l = f.drawSample(j, p)
	}
	x := j.index.object(l)
	t, y := j.tiled.prev.get(l), x
	if r := j.groups.rowOf(f.objects.at(x).cell); r >= 0 {
		y = f.draws.takeRow(j, r, int(t), l)
	} else if z, class := f.draws.bestSmall(j, f.objects.at(x).cell, t); class != unavailable {
		y = z
	}
	j.follower.last = drawn{drew: x, took: y, from: j.owed.remaining, turn: f.turn}
	return y
}

// leader returns the neighbour to follow, if any has drawn in this turn: the one with the largest overlap. What it took
// instead of what it drew must not matter: whether it did depends on what it drew, which would not be uniform given
// that it did not.
func (f *follows) leader(j *job) (p *job) {
	for m := j.peers.neighbours & f.jobs.following & f.jobs.active; m != 0; m &= m - 1 {
		k := f.jobs.slot[first(m)]
		if k.follower.last.turn == f.turn && k.follower.last.drew != absent &&
			(p == nil || j.peers.overlap[k.slot] > j.peers.overlap[p.slot]) {
			p = k
		}
	}
	return p
}

// drawTile draws a tile in proportion to what remains of each, as often as possible that of what p drew.
func (f *follows) drawTile(j, p *job) int {
	// In tile t, p drew from common of the a samples; j draws it with probability left/b. Both as multiples of 1/(a*b).
	a, b := uint64(p.follower.last.from), uint64(j.owed.remaining)
	common := j.follower.common[int(p.slot)*j.tiles : (int(p.slot)+1)*j.tiles]
	drew, both := j.tileOf(p.follower.last.drew)
	took, gone := j.tileOf(p.follower.last.took)
	laws := func(t int) (theirs, own uint64) {
		n := uint64(common[t])
		if gone && t == took { // since p drew
			n++
		}
		return n * b, uint64(j.groups.group[t].left) * a
	}
	if both {
		if theirs, own := laws(drew); own >= theirs || f.rng.Uint64n(theirs) < own {
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
	u := f.rng.Uint64n(rest)
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
	l, ok := j.index.find(x)
	if !ok || !has(j.owed.left, l) {
		return 0, false
	}
	return int(j.tiled.prev.get(l)), true
}

// countsCommon reports whether the job counts in follower.common what it has in common with others.
func (j *job) countsCommon() bool { return j.tiles > 1 && j.groups.whole }

// clearCommon forgets what j, which is about to be laid out, has in common with others.
func (f *follows) clearCommon(j *job) {
	if j.countsCommon() {
		j.follower.common = resize(j.follower.common, MaxJobs*j.tiles)
		clear(j.follower.common)
	}
	for m := f.jobs.following & j.peers.neighbours; m != 0; m &= m - 1 {
		if k := f.jobs.slot[first(m)]; k.countsCommon() {
			clear(k.follower.common[int(j.slot)*k.tiles : (int(j.slot)+1)*k.tiles])
		}
	}
}

// addCommon counts the object at place l of j, which is being laid out, into what j and each other such job have in
// common.
func (f *follows) addCommon(j *job, l uint32) {
	x := j.index.object(l)
	for m := f.jobs.following & j.peers.neighbours; m != 0; m &= m - 1 {
		k := f.jobs.slot[first(m)]
		if at, ok := k.index.find(x); ok && has(k.owed.left, at) {
			if j.countsCommon() {
				j.follower.common[int(k.slot)*j.tiles+int(j.tiled.prev.get(l))]++
			}
			if k.countsCommon() {
				k.follower.common[int(j.slot)*k.tiles+int(k.tiled.prev.get(at))]++
			}
		}
	}
}

// removeCommon takes x, at place l, which j is about to take, out of what j and each other such job have in common.
func (f *follows) removeCommon(j *job, x, l uint32) {
	m := f.jobs.following & j.peers.neighbours
	if y := f.layout; y.alone && y.job != j {
		m = m.With(y.job.slot)
	}
	for ; m != 0; m &= m - 1 {
		k := f.jobs.slot[first(m)]
		at, ok := k.index.find(x)
		if !ok || !has(k.owed.left, at) || !f.layout.counted(k, at) {
			continue
		}
		if j.countsCommon() {
			j.follower.common[int(k.slot)*j.tiles+int(j.tiled.prev.get(l))]--
		}
		if k.countsCommon() {
			k.follower.common[int(j.slot)*k.tiles+int(k.tiled.prev.get(at))]--
		}
	}
}

// Check verifies the last draw of a job that draws without a tape, and what it counts in common with each neighbour
// that does so, too.
func (f *follows) Check(j *job) error {
	if last := &j.follower.last; last.turn > f.turn || last.drew != absent && last.from <= j.owed.remaining {
		return fmt.Errorf("last drew in turn %d from %d samples; the turn is %d, %d samples are left",
			last.turn, last.from, f.turn, j.owed.remaining)
	}
	if !j.countsCommon() {
		return nil
	}
	n := j.index.places()
	for m := (f.jobs.following & j.peers.neighbours).Without(j.slot); m != 0; m &= m - 1 {
		k := f.jobs.slot[first(m)]
		want := make([]uint32, j.tiles)
		for p := next1(j.owed.left, 0, n); p < n; p = next1(j.owed.left, p+1, n) {
			if at, ok := k.index.find(j.index.object(uint32(p))); ok && has(k.owed.left, at) {
				want[j.tiled.prev.get(uint32(p))]++
			}
		}
		if got := j.follower.common[int(k.slot)*j.tiles : (int(k.slot)+1)*j.tiles]; !slices.Equal(got, want) {
			return fmt.Errorf("shares %v samples by tile with job %d, counted %v", want, k.id, got)
		}
	}
	return nil
}

// drawSample draws uniformly from what j needs, as often as possible what p has just drawn, and returns its place.
func (f *follows) drawSample(j, p *job) uint32 {
	x, a, b := p.follower.last.drew, uint64(p.follower.last.from), uint64(j.owed.remaining)
	had := func(y uint32) bool { // could p have drawn it
		l, ok := p.index.find(y)
		return y == p.follower.last.took || ok && has(p.owed.left, l)
	}
	if l, ok := j.index.find(x); ok && has(j.owed.left, l) && (b <= a || f.rng.Uint64n(b) < a) {
		return l
	}
	// What remains of the law of j: 1/b where p could not draw, 1/b - 1/max(a, b) where it could. Both sets may be so
	// alike that hardly anything remains of it, but then it is hardly ever needed.
	for range patience {
		l := f.draws.draw(j, anyRow, -1)
		if !had(j.index.object(l)) || b < a && f.rng.Uint64n(a) >= b {
			return l
		}
	}
	return f.drawByWeight(j, had, a, b)
}

// drawByWeight draws what drawSample looks for by weighing everything that j needs.
func (f *follows) drawByWeight(j *job, had func(uint32) bool, a, b uint64) uint32 {
	weight := func(l uint32) uint64 {
		switch {
		case !had(j.index.object(l)):
			return max(a, b)
		case b < a:
			return a - b
		default:
			return 0
		}
	}
	sum := uint64(0)
	f.draws.eachLeft(j, anyRow, -1, func(l uint32) bool { sum += weight(l); return true })
	if sum == 0 {
		invariant.Violated("dsa: job %d could have drawn nothing but what its neighbour drew", j.id)
	}
	k, at := f.rng.Uint64n(sum), uint32(0)
	f.draws.eachLeft(j, anyRow, -1, func(l uint32) bool {
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
