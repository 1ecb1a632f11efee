package dsa

import (
	mathbits "math/bits"

	"larder/internal/invariant"
)

// groups is what a job still needs, by its own cells (static cell, tile). Of a large cell it keeps how many objects
// remain, and which of them are available and preferred; for an object that is not, all members are drawn from until
// one is hit that remains. So memory follows what is available, not the subset, and no change of need moves anything.
// (Pools keyed by the set of needers would have to be keyed by the tiles of every job as well, tiles^jobs of them.)
//
// Invariant: once laid out, row.left and group.left count exactly what the job needs, and each object that is available
// to the job, preferred and needed is in the list of its key or in a lower one.
type groups struct {
	rowOfCell []int32 // static cell -> row, or isSmall, or isNone
	row       []row
	group     []group // of row r and tile t: group[r*tiles+t]
	whole     bool    // there is one row for everything: draws are from the places of the subset, not from a cell

	tail tail

	reclassified bool // since the layout, needs have changed without a take (roster.reclassify)
}

// The values of groups.rowOfCell that are no row.
const (
	isNone  = -1 // the cell is not in the subset, or was made since the layout
	isSmall = -2 // the cell is looked through at each draw (smallcell.go)
)

// row is a large static cell of one job.
type row struct {
	cell uint32
	left uint32 // objects that remain
	at   uint32 // its part of the tail
	n    uint32
}

// group is one tile of a row. Its lists hold what is available of it and preferred. Each object is in the list of its
// key, or in a lower one if it has come to be needed by more jobs since. A list may also hold objects that are gone or
// that are in a lower list by now; a draw that meets one drops it.
type group struct {
	left  uint32
	lists [numLists][]uint32
}

// rowOf returns the row of a cell, isSmall or isNone. A cell that was split off since the layout has none: the job is
// laid out again before it draws.
func (g *groups) rowOf(c uint32) int {
	switch {
	case g.whole:
		return 0
	case int(c) >= len(g.rowOfCell):
		return isNone
	default:
		return int(g.rowOfCell[c])
	}
}

// tileAt returns the tile of the row that holds its u-th remaining object, for u in [0, 1) as a fraction of 2^64: a
// tile drawn in proportion to what remains. Two jobs with the same u and similar remainders get the same tile.
func (g *groups) tileAt(r, tiles int, u uint64) int {
	hi, _ := mathbits.Mul64(u, uint64(g.row[r].left))
	n := uint32(hi)
	for t := range tiles {
		have := g.group[r*tiles+t].left
		if n < have {
			return t
		}
		n -= have
	}
	invariant.Violated("dsa: a cell of %d remaining samples has fewer", g.row[r].left)
	return 0
}

// clear empties the groups and makes room for rows of so many tiles.
func (g *groups) clear(rows, tiles int) {
	if n := rows * tiles; cap(g.group) < n {
		g.group = make([]group, n)
	} else {
		g.group = g.group[:n]
	}
	for k := range g.group {
		g.group[k].left = 0
		for i, l := range g.group[k].lists {
			g.group[k].lists[i] = l[:0]
		}
	}
	g.tail.stage, g.reclassified = tailNone, false
}
