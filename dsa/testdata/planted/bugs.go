// Package dsa with planted bugs: planted_test.go builds the sampler together with this file, after patching it.
package dsa

import "math"

// bugs switches planted bugs on. Tests prove with them that checks can fail.
type bugs struct {
	oneCell        bool // hits first over the whole subset, no cells
	tiesByID       bool // the lowest id of a class instead of a uniform one
	keepTape       bool // a join leaves the tapes of the others as they are
	preferAll      bool // all that is available is preferred: what is cached is early in every epoch
	countSlow      bool // a slow job decides what stays in memory and which takes count, like any other
	seqVisible     bool // what sequential jobs load is preferred like any other
	ownOrder       bool // an epoch may use the order of the job's previous epoch
	firstBit       bool // the first object of a block of 64 ids, at a random block (Joader as released)
	biased         bool // a draw that does not follow its neighbour's is not corrected for it; one that may follow always does
	followPrevious bool // what a neighbour drew in an earlier turn is followed too
}

// lowest is what best takes with tiesByID or firstBit.
func (d *draws) lowest(j *job, g *group) (x uint32, ok bool) {
	class := unavailable
	for _, l := range g.lists {
		for _, y := range l {
			if c := d.pool.classFor(j, y); c < class || c == class && y < x {
				x, class, ok = y, c, c < unavailable
			}
		}
	}
	return x, ok
}

// drawLowest is what draw draws with tiesByID or firstBit.
func (d *draws) drawLowest(j *job, r, tile int) uint32 {
	least := uint32(math.MaxUint32)
	d.eachLeft(j, r, tile, func(l uint32) bool { least = min(least, j.index.object(l)); return true })
	if d.bugs.firstBit {
		block := j.index.object(d.drawByCounting(j, r, tile)) >> 6
		least = math.MaxUint32
		d.eachLeft(j, r, tile, func(l uint32) bool {
			if x := j.index.object(l); x>>6 == block {
				least = min(least, x)
			}
			return true
		})
	}
	return j.index.of(least)
}

// anyCell is for keepTape, whose tapes name cells of which nothing is left: it returns one of which something is.
func (s *Sampler) anyCell(j *job, c uint32) uint32 {
	d := uint32(0)
	for _, x := range j.subset {
		if has(j.owed.left, j.index.of(uint32(x))) {
			if d = s.objects.at(uint32(x)).cell; d == c {
				return c
			}
		}
	}
	return d
}
