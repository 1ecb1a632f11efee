package dsa

import (
	mathbits "math/bits"

	"larder/internal/bits"
	"larder/internal/invariant"
)

// Sizes that decide how a cell is drawn from. None of them touches the law of an order: which one is served only ever depends on
// what is available and on chance.
const (
	smallCell = 128  // members; a cell up to it is looked through at each draw, and nothing is kept of it
	trials    = 16   // candidates drawn from the list of what more than exactly jobs need; the one with fewest needers is served
	exactly   = 3    // up to so many needers are told apart by lists of their own
	patience  = 4096 // draws that miss before what remains is counted out
	dense     = 16   // once fewer than one place in so many is left, what is left is listed
)

// groups are the objects a job still needs, by its own cells (static cell, tile). Of a large cell it is kept how many remain, and
// which of them are available; what is not available is drawn from all members until one remains. So the memory follows what is
// available, not the subset, and no change of need moves anything. (Pools keyed by needer masks would have to be keyed by the tiles
// of every job as well, B^jobs of them.)
type groups struct {
	local []int32 // static cell -> row, or isSmall, or isNone
	row   []row
	group []group // of row r and tile t: group[r*tiles+t]
	whole bool    // one row for everything: it is drawn from the places of the subset, not from a cell

	tail  []uint32 // places that were left when it was made, by row
	any   row      // its one row, where it is whole
	stage uint8    // of the tail
	scan  int      // places it has looked at

	recounted bool // since the layout, needs have changed without a take (recount)
}

const (
	isNone  = -1
	isSmall = -2
)

// Stages of the tail.
const (
	tailNone    = iota // too much is left
	tailMaking         // it is being made, a little at every draw
	tailListed         // what is left of any row is in it
	tailWords   = 8    // words looked at a draw
	tailAtOnce  = 4096 // with less left it is made at once
	bitsPerWord = 64
)

// row is a large static cell of one job.
type row struct {
	cell uint32
	left uint32 // objects that remain
	at   uint32 // its part of the tail
	n    uint32
}

// group is one tile of a row. Its lists hold what is available of it and preferred: each object is in the list of its key, or in a lower one if it
// has come to be needed by more since. Some that is no longer there, or is in a lower list by now, is in them too; it is dropped when
// a draw meets it.
type group struct {
	left  uint32
	lists [numLists][]uint32
}

// Lists of a group: what is augmented for the job; what is decoded, by needers; what is decoded and needed by more; what is encoded.
const (
	listAugmented = 0
	listDecoded   = 1 // of one needer; the next ones of more
	listRest      = listDecoded + exactly
	listEncoded   = listRest + 1
	numLists      = listEncoded + 1
)

// keyOf is the list that an object belongs in for the job in that slot, which may see it.
func (s *Sampler) keyOf(e *available, slot uint8) int {
	l := s.visibleTo(e, slot)
	if l != decoded {
		return keyAt(l, 0)
	}
	return keyAt(l, s.needing(e))
}

// keyAt is the list of what is at a level and needed by so many.
func keyAt(level uint16, needing int) int {
	switch level {
	case augmented:
		return listAugmented
	case decoded:
		return min(listDecoded+max(needing, 1)-1, listRest)
	default:
		return listEncoded
	}
}

// needing is how many active jobs need the object of an entry, without those that do not count (prefer.go).
func (s *Sampler) needing(e *available) int { return s.counted(e.need&s.active, e.x, everybody).Len() }

// list enters what the job needs and is available, or has come to be needed by fewer.
func (s *Sampler) list(j *job, e *available) {
	r := j.groups.rowOf(s.obj.at(e.x).cell)
	if r < 0 {
		return
	}
	g := &j.groups.group[r*j.tiles+int(j.prev.get(j.at.of(e.x)))]
	k := s.keyOf(e, j.slot)
	l := &g.lists[k]
	if len(*l) == cap(*l) {
		s.compact(j, g, k)
		if n := len(*l); n > cap(*l)*3/4 {
			*l = append(make([]uint32, 0, max(8, n+n/4)), *l...)
		}
	}
	*l = append(*l, e.x)
}

// listAgain enters what is needed by fewer, or is further than it was, for all that need it and for whom its key is not what it was.
// gained are the jobs that did not prefer it.
func (s *Sampler) listAgain(e, was *available, gained bits.JobSet) {
	m := e.need & s.grouped
	if e.state&visMask == 0 || m == 0 {
		return
	}
	now, before := s.needing(e), s.needing(was)
	if e.state == was.state && min(now, exactly+1) == min(before, exactly+1) && gained&m == 0 {
		return
	}
	for ; m != 0; m &= m - 1 {
		k := uint8(first(m))
		l, old := s.visibleTo(e, k), s.visibleTo(was, k)
		if l != 0 && (gained.Has(k) || old == 0 || keyAt(l, now) != keyAt(old, before)) {
			s.list(s.slot[k], e)
		}
	}
}

// compact drops what is no longer available, is there twice, or is in a lower list.
func (s *Sampler) compact(j *job, g *group, k int) {
	var held [lookedAt]uint32
	var is [lookedAt]available
	l := g.lists[k]
	keep := l[:0]
	for len(l) > 0 {
		// Entries lie anywhere. They are looked up some at a time, and decided on afterwards, so that the processor waits for all of them at once.
		part := l[:min(lookedAt, len(l))]
		l = l[len(part):]
		for i, x := range part {
			held[i] = s.obj.at(x).held
		}
		for i := range part {
			is[i] = *s.avail.at(held[i])
		}
		for i, x := range part {
			if e := &is[i]; !s.wants(j, e) || !j.groups.recounted && s.keyOf(e, j.slot) < k || has(s.seen, held[i]) {
				continue
			}
			set(s.seen, held[i])
			keep = append(keep, x)
		}
	}
	for _, x := range keep {
		unset(s.seen, s.obj.at(x).held)
	}
	g.lists[k] = keep
}

const lookedAt = 32

// rowOf returns the row of a cell, isSmall or isNone. A cell that was split off since the layout has none: the job is laid out anew
// before it draws.
func (g *groups) rowOf(c uint32) int {
	switch {
	case g.whole:
		return 0
	case int(c) >= len(g.local):
		return isNone
	default:
		return int(g.local[c])
	}
}

// tileAt returns the tile of the row that holds its u-th remaining object, for u in [0, 1) as a fraction of 2^64: a tile drawn in
// proportion to what remains. Two jobs with the same u and like remainders get the same tile.
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

// best returns a preferred object of the group with fewest needers. Encoded ones are among them only where nothing stays decoded.
// Those that more than exactly jobs need are told apart only as far
// as a few of them are looked at.
func (s *Sampler) best(j *job, g *group) (x uint32, ok bool) {
	if s.hook.tiesByID || s.hook.firstBit {
		return s.plantedBest(j, g)
	}
	if x, ok = s.tried(j, g, listAugmented); ok {
		return x, true
	}
	for k := listDecoded; k < listRest; k++ {
		for len(g.lists[k]) > 0 {
			i := int(s.rng.Uint64n(uint64(len(g.lists[k]))))
			y := g.lists[k][i]
			if s.stays(j, g, k, i) {
				return y, true
			}
		}
	}
	if x, ok = s.tried(j, g, listRest); ok || !s.encodedToo.Has(j.slot) {
		return x, ok
	}
	return s.tried(j, g, listEncoded)
}

// tried returns the best of a few of a list whose objects differ in class.
func (s *Sampler) tried(j *job, g *group, k int) (x uint32, ok bool) {
	if len(g.lists[k]) <= trials {
		return s.scanned(j, g, k)
	}
	n, x, class := s.glance(j, g.lists[k], k)
	for n < trials && len(g.lists[k]) > 0 {
		i := int(s.rng.Uint64n(uint64(len(g.lists[k]))))
		y := g.lists[k][i]
		if !s.stays(j, g, k, i) {
			continue
		}
		n++
		if c := s.offered(j, y); c < class {
			x, class = y, c
		}
	}
	return x, n > 0
}

// scanned returns the best of a short list, ties at random, and takes out what does not belong there.
func (s *Sampler) scanned(j *job, g *group, k int) (x uint32, ok bool) {
	class, ties := unlisted, uint64(0)
	for i := 0; i < len(g.lists[k]); {
		y := g.lists[k][i]
		e := s.wanted(j, y)
		if e == nil || s.keyOf(e, j.slot) != k {
			s.stays(j, g, k, i) // no: another one is in its place now, or the list is shorter
			continue
		}
		i++
		switch c := s.classOf(e, j.slot); {
		case c < class:
			x, class, ties = y, c, 1
		case c == class:
			if ties++; s.rng.Uint64n(ties) == 0 {
				x = y
			}
		}
	}
	return x, class < unlisted
}

// glance is what tried does as long as all that is drawn belongs in the list: as with compact, it draws first, then looks everything up, then decides. What
// comes after the first that does not belong there is as if it had not been drawn.
func (s *Sampler) glance(j *job, list []uint32, k int) (n int, x uint32, class int) {
	var drawn, held [trials]uint32
	var is [trials]available
	if class = unlisted; len(list) < trials {
		return 0, 0, class
	}
	before := *s.rng
	for i := range drawn {
		drawn[i] = list[s.rng.Uint64n(uint64(len(list)))]
	}
	for i, y := range drawn {
		held[i] = s.obj.at(y).held
	}
	for i := range held {
		is[i] = *s.avail.at(held[i])
	}
	for n = range is {
		e := &is[n]
		if !s.wants(j, e) || s.keyOf(e, j.slot) != k {
			*s.rng = before
			for range n {
				s.rng.Uint64n(uint64(len(list)))
			}
			return n, x, class
		}
		if c := s.classOf(e, j.slot); c < class {
			x, class = drawn[n], c
		}
	}
	return trials, x, class
}

// stays reports whether object i of a list belongs there, and takes it out if it does not.
func (s *Sampler) stays(j *job, g *group, k, i int) bool {
	e := s.wanted(j, g.lists[k][i])
	at := -1
	if e != nil {
		at = s.keyOf(e, j.slot)
	}
	if at == k {
		return true
	}
	g.remove(k, i)
	if at > k || at >= 0 && j.groups.recounted {
		s.list(j, e)
	}
	return false
}

func (g *group) remove(k, i int) {
	l := g.lists[k]
	l[i] = l[len(l)-1]
	g.lists[k] = l[:len(l)-1]
}

// plantedBest is what the hooks tiesByID and firstBit take.
func (s *Sampler) plantedBest(j *job, g *group) (x uint32, ok bool) {
	class := unlisted
	for _, l := range g.lists {
		for _, y := range l {
			if c := s.offered(j, y); c < class || c == class && y < x {
				x, class, ok = y, c, c < unlisted
			}
		}
	}
	return x, ok
}

// pickRow picks from a large cell; u names the tile.
func (s *Sampler) pickRow(j *job, r int, u uint64) uint32 {
	g := &j.groups
	if g.row[r].left == 0 {
		invariant.Violated("dsa: job %d draws from cell %d, of which nothing remains", j.id, g.row[r].cell)
	}
	t, drawn := 0, absent
	switch {
	case j.tiles == 1:
	case j.tape.order.shared:
		t = g.tileAt(r, j.tiles, u)
	default: // nobody else follows the number: a sample drawn first names its tile, and is there if nothing is available
		drawn = s.draw(j, r, -1)
		t = int(j.prev.get(drawn))
	}
	return s.takeRow(j, r, t, drawn)
}

// takeRow takes a preferred object of a tile of a large cell; if there is none, that of the place drawn, or else any. If that one is not in memory, an
// encoded object that is preferred takes its place (prefer.go).
func (s *Sampler) takeRow(j *job, r, t int, drawn uint32) uint32 {
	g := &j.groups
	gr := &g.group[r*j.tiles+t]
	x, ok := s.best(j, gr)
	if !ok {
		if drawn == absent {
			drawn = s.draw(j, r, t)
		}
		x = j.at.object(drawn)
		if len(gr.lists[listEncoded]) > 0 && !s.resides(j, x) {
			if y, ok := s.tried(j, gr, listEncoded); ok {
				x = y
			}
		}
	}
	gr.left--
	g.row[r].left--
	return x
}

// anyRow stands for everything a job may draw.
const anyRow = -1

// draw returns the place of an object drawn uniformly from what the job may draw of a row, of a tile if tile is not below 0.
func (s *Sampler) draw(j *job, r, tile int) uint32 {
	g := &j.groups
	bits, row := j.left, &g.any
	if s.following.Has(j.slot) && g.whole {
		r = anyRow
	}
	switch {
	case j.mode == Strict:
		bits = j.names.open
	case r != anyRow:
		row = &g.row[r]
	default:
	}
	if g.stage != tailListed {
		s.listTail(j, r == anyRow)
	}
	if s.hook.tiesByID || s.hook.firstBit {
		return s.plantedDraw(j, r, tile)
	}
	for range patience {
		var l uint32
		switch {
		case g.stage == tailListed:
			i := row.at + uint32(s.rng.Uint64n(uint64(row.n)))
			l = g.tail[i]
			if !has(bits, l) {
				row.n--
				g.tail[i] = g.tail[row.at+row.n]
				continue
			}
		case r == anyRow || g.whole:
			l = uint32(s.rng.Uint64n(uint64(j.at.places())))
		default:
			c := &s.cells[row.cell]
			l = j.at.of(s.at(c, uint32(s.rng.Uint64n(uint64(c.size)))))
		}
		if has(bits, l) && (tile < 0 || int(j.prev.get(l)) == tile) {
			return l
		}
	}
	return s.countOut(j, r, tile)
}

// countOut draws by counting what remains, for when chance does not find it.
func (s *Sampler) countOut(j *job, r, tile int) uint32 {
	n := 0
	s.eachLeft(j, r, tile, func(uint32) bool { n++; return true })
	if n == 0 {
		invariant.Violated("dsa: job %d draws tile %d of row %d, of which nothing remains", j.id, tile, r)
	}
	k := s.rng.IntN(n)
	var at uint32
	s.eachLeft(j, r, tile, func(l uint32) bool {
		at = l
		k--
		return k >= 0
	})
	return at
}

// eachLeft calls f with the places that the job may draw of a row, of a tile if tile is not below 0, until it returns false.
func (s *Sampler) eachLeft(j *job, r, tile int, f func(l uint32) bool) {
	bits, n := j.left, j.at.places()
	if j.mode == Strict {
		bits = j.names.open
	}
	for p := next1(bits, 0, n); p < n; p = next1(bits, p+1, n) {
		l := uint32(p)
		if (r == anyRow || j.groups.rowOf(s.obj.at(j.at.object(l)).cell) == r) && (tile < 0 || int(j.prev.get(l)) == tile) && !f(l) {
			return
		}
	}
}

// listTail lists what is left when it is little, some words at every draw: from then on drawing blindly would mostly miss. Bits that
// are cleared meanwhile are found out by who draws them; for bits that are set the tail is made anew. It is by row, or whole for jobs
// that draw from everything: a job never does both.
func (s *Sampler) listTail(j *job, whole bool) {
	g := &j.groups
	n := j.at.places()
	bits, left := j.left, j.rem
	if j.mode == Strict {
		bits, left = j.names.open, j.names.undrawn
	}
	if g.stage == tailNone {
		if left*dense > n {
			return
		}
		at := uint32(0)
		if whole {
			g.any = row{}
			at = uint32(left)
		} else {
			for i := range g.row {
				g.row[i].at, g.row[i].n = at, 0
				at += g.row[i].left
			}
		}
		g.tail = resize(g.tail, int(at))
		g.stage, g.scan = tailMaking, 0
	}
	to := min(g.scan+tailWords*bitsPerWord, n)
	if left <= tailAtOnce {
		to = n
	}
	for p := next1(bits, g.scan, to); p < to; p = next1(bits, p+1, to) {
		w := &g.any
		if !whole {
			r := g.rowOf(s.obj.at(j.at.object(uint32(p))).cell)
			if r < 0 {
				continue
			}
			w = &g.row[r]
		}
		g.tail[w.at+w.n] = uint32(p)
		w.n++
	}
	if g.scan = to; to == n {
		g.stage = tailListed
	}
}

// plantedDraw is what the hooks tiesByID and firstBit draw.
func (s *Sampler) plantedDraw(j *job, r, tile int) uint32 {
	least := absent
	s.eachLeft(j, r, tile, func(l uint32) bool { least = min(least, j.at.object(l)); return true })
	if s.hook.firstBit {
		block := j.at.object(s.countOut(j, r, tile)) >> 6
		least = absent
		s.eachLeft(j, r, tile, func(l uint32) bool {
			if x := j.at.object(l); x>>6 == block {
				least = min(least, x)
			}
			return true
		})
	}
	return j.at.of(least)
}
