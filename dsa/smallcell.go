package dsa

import (
	mathbits "math/bits"

	"larder/internal/invariant"
)

// smallCell is the size in objects up to which a cell is looked through at each draw; nothing is kept of it between
// draws.
const smallCell = 128

// pickSmall picks from a small cell by looking at all of it; u names the tile.
func (d *draws) pickSmall(j *job, c uint32, u uint64) uint32 {
	var at [smallCell]uint32
	var tiles [smallCell]uint8
	n := d.leftOf(j, c, &at, &tiles)
	if n == 0 {
		invariant.Violated("dsa: job %d draws from cell %d, of which nothing remains", j.id, c)
	}
	if j.tiles > 1 {
		n = keepTile(&at, &tiles, n, tileOf(&tiles, n, u))
	}
	x, _ := d.bestOf(j, at[:n])
	return x
}

// bestSmall returns the available object of a tile of a small cell that the fewest jobs need, and its class; or any
// object and unavailable.
func (d *draws) bestSmall(j *job, c uint32, tile uint8) (x uint32, class int) {
	var at [smallCell]uint32
	var tiles [smallCell]uint8
	n := d.leftOf(j, c, &at, &tiles)
	return d.bestOf(j, at[:keepTile(&at, &tiles, n, tile)])
}

// leftOf finds what remains of a small cell, with the tiles, and returns how much it is.
func (d *draws) leftOf(j *job, c uint32, at *[smallCell]uint32, tiles *[smallCell]uint8) int {
	cl, n := &d.cells.list[c], 0
	for q := range cl.size {
		x := d.cells.member(cl, q)
		if l := j.index.of(x); has(j.owed.left, l) {
			at[n], tiles[n] = x, j.tiled.prev.get(l)
			n++
		}
	}
	return n
}

// bestOf returns one of the objects of the lowest class, drawn uniformly.
func (d *draws) bestOf(j *job, of []uint32) (x uint32, class int) {
	class = unavailable + 1
	ties := uint64(0)
	for _, y := range of {
		k := d.pool.classFor(j, y)
		switch {
		case k < class:
			x, class, ties = y, k, 1
		case k > class:
		default:
			if ties++; d.rng.Uint64n(ties) == 0 {
				x = y
			}
		}
	}
	if class > encodedClass && class < unavailable && !d.jobs.anyForm.Has(j.slot) { // as in takeRow
		if y := of[d.rng.Uint64n(uint64(len(of)))]; d.pool.resides(j, y) {
			return y, class
		}
	}
	return x, class
}

// tileOf returns the tile that holds the u-th of n objects, the tiles being in order.
func tileOf(tiles *[smallCell]uint8, n int, u uint64) uint8 {
	hi, _ := mathbits.Mul64(u, uint64(n))
	var count [MaxTiles]uint8
	for _, t := range tiles[:n] {
		count[t]++
	}
	tile, k := 0, int(hi)
	for ; k >= int(count[tile]); tile++ {
		k -= int(count[tile])
	}
	return uint8(tile)
}

// keepTile keeps, of the n objects in at, those of a tile, and returns how many they are.
func keepTile(at *[smallCell]uint32, tiles *[smallCell]uint8, n int, tile uint8) int {
	kept := 0
	for i, t := range tiles[:n] {
		if t == tile {
			at[kept] = at[i]
			kept++
		}
	}
	return kept
}
