package dsa

import "larder/internal/invariant"

// laying is a layout under way: the sorting of a job's subset into groups and classes, and the beginning of its tape. It runs
// before the first pick after an epoch start, a join of a neighbour, or a return. While it runs, other jobs may pick: the
// groups are counted without classes, and an object follows every change of its class from when it is placed.
type laying struct {
	job    *job
	counts bool // first walk: how much there is of each group; second walk: placing
	done   int
	keep   bool // hook keepTape
	lo, hi int  // strict: where the next undrawn one goes, and where the last taken one is
}

// layout lays out a job at once.
func (s *Sampler) layout(j *job) {
	for j.stale {
		s.layoutSlice(j, 1<<20)
	}
}

// layoutSlice takes the layout of a job on by at most budget objects, and returns how many it took.
func (s *Sampler) layoutSlice(j *job, budget int) int {
	y := &s.lay
	if y.job != j {
		if j.usesTape() && j.tape.order.n == 0 {
			return j.tape.order.list(s, budget)
		}
		if y.job != nil {
			s.unlay(y.job)
		}
		s.unlay(j)
		*y = laying{job: j, counts: j.mode != Strict, hi: len(j.subset)}
		j.groups.items = resize(j.groups.items, len(j.subset))
		if j.usesTape() {
			s.beginLayout(j)
		}
	}
	from, to := y.done, min(y.done+budget, len(j.subset))
	y.done = to
	switch {
	case j.mode == Strict:
		s.placeStrict(j, from, to)
	case y.counts:
		s.count(j, from, to)
	default:
		s.place(j, from, to)
	}
	if to == len(j.subset) {
		if y.counts {
			y.counts, y.done = false, 0
			s.makeGroups(j)
			s.grouped = s.grouped.With(j.slot)
		} else {
			s.endLayout(j)
		}
	}
	return to - from + 1
}

// beginLayout numbers the rows and begins the tape.
func (s *Sampler) beginLayout(j *job) {
	g := &j.groups
	g.local = resize(g.local, len(s.cells))
	rows := 0
	for c := range s.cells {
		g.local[c] = -1
		if s.cells[c].live.Has(j.slot) {
			g.local[c] = int32(rows)
			rows++
		}
	}
	if s.single(j) {
		rows = 1
	}
	g.row = resize(g.row, rows)
	s.tally = resize(s.tally, 2*rows*j.tiles)
	clear(s.tally)
	t := &j.tape
	s.lay.keep = s.hook.keepTape && t.left != nil && t.started
	if s.lay.keep {
		return
	}
	t.left = resize(t.left, (j.at.n+63)/64)
	clear(t.left)
	t.r0, t.passed, t.cursor, t.started = j.rem, 0, t.origin, true
}

// rowTile returns the place of a group in key.
func (s *Sampler) rowTile(j *job, x, l uint32) int {
	if s.single(j) {
		return 0
	}
	r := int(j.groups.local[s.obj[x].cell])
	if j.tiles > 1 {
		r = r*j.tiles + int(j.prev[l])
	}
	return r
}

// count counts members and remaining members by row and tile.
func (s *Sampler) count(j *job, from, to int) {
	for _, id := range j.subset[from:to] {
		x := uint32(id)
		k := s.rowTile(j, x, j.at.of(x))
		s.tally[2*k]++
		if s.obj[x].need.Has(j.slot) {
			s.tally[2*k+1]++
		}
	}
}

// makeGroups numbers the groups that have members. Nothing is placed: every class is empty and begins where its group does; what
// is taken goes behind the room for what remains.
func (s *Sampler) makeGroups(j *job) {
	g := &j.groups
	g.key = resize(g.key, len(g.row)*j.tiles)
	g.n = 0
	for k := range g.key {
		g.key[k] = -1
		if s.tally[2*k] > 0 {
			g.key[k] = int32(g.n)
			g.n++
		}
	}
	g.edge = resize(g.edge, g.n*stride)
	s.fill = resize(s.fill, g.n)
	at, rem, n := uint32(0), 0, uint32(0)
	for i := range g.row {
		r := &g.row[i]
		*r = row{group: n}
		for k := i * j.tiles; k < (i+1)*j.tiles; k++ {
			all, left := s.tally[2*k], s.tally[2*k+1]
			if all == 0 {
				continue
			}
			e := g.edge[n*stride : n*stride+stride]
			for c := range e {
				e[c] = at
			}
			s.fill[n] = at + left
			at += all
			e[stride-1] = at
			r.left += left
			rem += int(left)
			n++
		}
		r.n = n - r.group
	}
	if rem != j.rem {
		invariant.Violated("dsa: job %d has %d samples left, counted %d", j.id, j.rem, rem)
	}
}

// place puts members into their groups.
func (s *Sampler) place(j *job, from, to int) {
	g := &j.groups
	for _, id := range j.subset[from:to] {
		x := uint32(id)
		l := j.at.of(x)
		k := g.key[s.rowTile(j, x, l)]
		o := &s.obj[x]
		if !o.need.Has(j.slot) {
			g.items[s.fill[k]], j.pos[l] = x, s.fill[k]
			s.fill[k]++
			continue
		}
		if !s.lay.keep {
			j.tape.left[l>>6] |= 1 << (l & 63)
		}
		e := g.edge[int(k)*stride : int(k)*stride+stride]
		hole := e[classTaken]
		e[classTaken]++
		for c := classNone; c > int(o.class()); c-- { // the first of each later class becomes its last
			if e[c] != hole {
				y := g.items[e[c]]
				g.items[hole], j.pos[j.at.of(y)] = y, hole
				hole = e[c]
			}
			e[c]++
		}
		g.items[hole], j.pos[l] = x, hole
	}
}

// placeStrict lists what the job needs from the front and what it has had from the back.
func (s *Sampler) placeStrict(j *job, from, to int) {
	y := &s.lay
	for _, id := range j.subset[from:to] {
		x := uint32(id)
		at := y.lo
		if s.obj[x].need.Has(j.slot) {
			y.lo++
		} else {
			y.hi--
			at = y.hi
		}
		j.groups.items[at] = x
		j.pos[j.at.of(x)] = uint32(at)
	}
}

func (s *Sampler) endLayout(j *job) {
	if j.mode == Strict {
		if s.lay.lo != j.rem {
			invariant.Violated("dsa: job %d has %d samples left, counted %d", j.id, j.rem, s.lay.lo)
		}
		j.strict = strictJob{undrawn: s.lay.lo}
	}
	j.stale = false
	s.lay = laying{}
}

// holds tells whether the entry of place l is not passed.
func (t *tape) holds(l uint32) bool { return t.left[l>>6]&(1<<(l&63)) != 0 }
