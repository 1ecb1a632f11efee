package dsa

import (
	"larder/internal/invariant"
	"larder/internal/xrand"
)

// draws is step 2 of a pick: which object of the cell and tile. It takes a preferred one if there is any (lists.go),
// else draws uniformly from what remains.
type draws struct {
	rng     *xrand.Rand
	objects *objectTable
	jobs    *roster
	cells   *cells
	pool    *pool

	seen []uint64 // by entry: met by compact; all zero between its runs
}

// Sizes that decide how the sampler draws from what remains. None of them touches the law of an order.
const (
	patience    = 4096 // draws that miss before what remains is counted
	tailDense   = 16   // once fewer than one place in so many is left, what is left is listed
	tailWords   = 8    // words that a draw looks at to list it
	tailAtOnce  = 4096 // with less left it is listed at once
	bitsPerWord = 64
)

// pickRow picks from a large cell; u names the tile.
func (d *draws) pickRow(j *job, r int, u uint64) uint32 {
	g := &j.groups
	if g.row[r].left == 0 {
		invariant.Violated("dsa: job %d draws from cell %d, of which nothing remains", j.id, g.row[r].cell)
	}
	t, drawn := 0, absent
	switch {
	case j.tiles == 1:
	case j.tape.order.shared:
		t = g.tileAt(r, j.tiles, u)
	default: // no other job follows the number: a sample drawn first names its tile, and is picked if none is preferred
		drawn = d.draw(j, r, -1)
		t = int(j.tiled.prev.get(drawn))
	}
	return d.takeRow(j, r, t, drawn)
}

// takeRow takes a preferred object of a tile of a large cell. If there is none it takes that of the place drawn, or
// draws one. If that one is not in memory, an encoded object that is preferred takes its place (prefer.go).
func (d *draws) takeRow(j *job, r, t int, drawn uint32) uint32 {
	g := &j.groups
	gr := &g.group[r*j.tiles+t]
	x, ok := d.best(j, gr)
	if !ok {
		if drawn == absent {
			drawn = d.draw(j, r, t)
		}
		x = j.index.object(drawn)
		if len(gr.lists[listEncoded]) > 0 && !d.pool.resides(j, x) {
			if y, ok := d.bestOfFew(j, gr, listEncoded); ok {
				x = y
			}
		}
	}
	gr.left--
	g.row[r].left--
	return x
}

// anyRow stands for everything that a job may draw.
const anyRow = -1

// open returns the places that a job may draw, as bits, and how many they are.
func (j *job) open() (bits []uint64, n int) {
	if j.mode == Strict {
		return j.queue.open, j.queue.nOpen
	}
	return j.owed.left, j.owed.remaining
}

// draw returns the place of an object drawn uniformly from what the job may draw of a row, or of a tile of it if tile
// is not negative.
func (d *draws) draw(j *job, r, tile int) uint32 {
	g := &j.groups
	bits, row := j.owed.left, &g.tail.any
	if d.jobs.following.Has(j.slot) && g.whole {
		r = anyRow
	}
	switch {
	case j.mode == Strict:
		bits = j.queue.open
	case r != anyRow:
		row = &g.row[r]
	default:
	}
	if g.tail.stage != tailListed {
		d.listTail(j, r == anyRow)
	}
	for range patience {
		var l uint32
		switch {
		case g.tail.stage == tailListed:
			i := row.at + uint32(d.rng.Uint64n(uint64(row.n)))
			l = g.tail.places[i]
			if !has(bits, l) {
				row.n--
				g.tail.places[i] = g.tail.places[row.at+row.n]
				continue
			}
		case r == anyRow || g.whole:
			l = uint32(d.rng.Uint64n(uint64(j.index.places())))
		default:
			c := &d.cells.list[row.cell]
			l = j.index.of(d.cells.member(c, uint32(d.rng.Uint64n(uint64(c.size)))))
		}
		if has(bits, l) && (tile < 0 || int(j.tiled.prev.get(l)) == tile) {
			return l
		}
	}
	return d.drawByCounting(j, r, tile)
}

// drawByCounting draws by counting what remains, for when chance does not find it.
func (d *draws) drawByCounting(j *job, r, tile int) uint32 {
	n := 0
	d.eachLeft(j, r, tile, func(uint32) bool { n++; return true })
	if n == 0 {
		invariant.Violated("dsa: job %d draws tile %d of row %d, of which nothing remains", j.id, tile, r)
	}
	k := d.rng.IntN(n)
	var at uint32
	d.eachLeft(j, r, tile, func(l uint32) bool {
		at = l
		k--
		return k >= 0
	})
	return at
}

// eachLeft calls f with the places that the job may draw of a row, or of a tile of it if tile is not negative, until f
// returns false.
func (d *draws) eachLeft(j *job, r, tile int, f func(l uint32) bool) {
	bits, _ := j.open()
	n := j.index.places()
	for p := next1(bits, 0, n); p < n; p = next1(bits, p+1, n) {
		l := uint32(p)
		if (r == anyRow || j.groups.rowOf(d.objects.at(j.index.object(l)).cell) == r) &&
			(tile < 0 || int(j.tiled.prev.get(l)) == tile) && !f(l) {
			return
		}
	}
}

// clearNeeds does a part of passClear: the places from..to-1 of an abandoned epoch. Each object gets a tile, as if the
// rest of the order had been drawn uniformly.
func (d *draws) clearNeeds(j *job, from, to int) {
	for p := next1(j.owed.left, from, to); p < to; p = next1(j.owed.left, p+1, to) {
		l := uint32(p)
		unset(j.owed.left, l)
		if j.tiles > 1 {
			j.tiled.cur.set(l, j.quota.draw(d.rng))
		}
		d.pool.needNoMore(j.index.object(l), j)
	}
}

// tail is a list of what is left of a job, made when it is little: from then on drawing blindly would mostly miss. It
// is by row, or whole for jobs that draw from everything; a job never does both.
type tail struct {
	places []uint32 // places that were left when it was made, by row
	any    row      // the one row of a tail that is whole
	stage  tailStage
	scan   int // places it has looked at
}

// tailStage is the state of a tail: none -> making -> listed, and back to none when a place is opened or the job is
// laid out again.
type tailStage uint8

const (
	tailNone   tailStage = iota // too much is left
	tailMaking                  // each draw lists some words
	tailListed                  // it holds what is left of every row
)

// listTail takes the making of the tail on by some words. A place that is taken meanwhile is dropped by the draw that
// meets it.
func (d *draws) listTail(j *job, whole bool) {
	g := &j.groups
	n := j.index.places()
	bits, left := j.open()
	if g.tail.stage == tailNone {
		if left*tailDense > n {
			return
		}
		g.beginTail(left, whole)
	}
	to := min(g.tail.scan+tailWords*bitsPerWord, n)
	if left <= tailAtOnce {
		to = n
	}
	for p := next1(bits, g.tail.scan, to); p < to; p = next1(bits, p+1, to) {
		w := &g.tail.any
		if !whole {
			r := g.rowOf(d.objects.at(j.index.object(uint32(p))).cell)
			if r < 0 {
				continue
			}
			w = &g.row[r]
		}
		g.tail.places[w.at+w.n] = uint32(p)
		w.n++
	}
	if g.tail.scan = to; to == n {
		g.tail.stage = tailListed
	}
}

// beginTail makes room for left places.
func (g *groups) beginTail(left int, whole bool) {
	at := uint32(0)
	if whole {
		g.tail.any = row{}
		at = uint32(left)
	} else {
		for i := range g.row {
			g.row[i].at, g.row[i].n = at, 0
			at += g.row[i].left
		}
	}
	g.tail.places = resize(g.tail.places, int(at))
	g.tail.stage, g.tail.scan = tailMaking, 0
}
