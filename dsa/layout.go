package dsa

import "larder/internal/invariant"

// laying is a layout under way: the counting of what remains of a job's subset by rows and tiles, and the listing of what of it is
// available. It runs before the first pick after an epoch start, a join of a neighbour, or a return. While it runs, other jobs
// may pick: from its beginning, what becomes available is listed at once.
type laying struct {
	job   *job
	alone bool // it draws without a tape
	lists bool // first walk, over the places: what remains; second walk, over what is available
	done  int
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
		if j.tape.order.n == 0 && s.room > 0 {
			return j.tape.order.list(s, budget)
		}
		if y.job != nil {
			s.unlay(y.job)
		}
		s.unlay(j)
		*y = laying{job: j, alone: s.room == 0}
		s.beginLayout(j)
		s.grouped = s.grouped.With(j.slot)
	}
	n := j.at.places()
	if y.lists {
		n = s.avail.n
	}
	from, to := y.done, min(y.done+budget, n)
	y.done = to
	if y.lists {
		s.listAvailable(j, from, to)
	} else {
		s.count(j, from, to)
	}
	if to == n {
		if y.lists {
			s.endLayout(j)
		} else {
			y.lists, y.done = true, 0
		}
	}
	return to - from + 1
}

// beginLayout numbers the rows, empties the groups and begins the tape.
func (s *Sampler) beginLayout(j *job) {
	g := &j.groups
	cells := 0
	for c := range s.cells {
		if s.cells[c].live.Has(j.slot) {
			cells++
		}
	}
	rows := 0
	if g.whole = cells == 1 || s.hook.oneCell; g.whole {
		g.row = resize(g.row, 1)
		g.row[0] = row{}
		rows = 1
	} else {
		g.local = resize(g.local, len(s.cells))
		g.row = g.row[:0]
		for c := range s.cells {
			switch {
			case !s.cells[c].live.Has(j.slot):
				g.local[c] = isNone
			case int(s.cells[c].size) <= s.small:
				g.local[c] = isSmall
			default:
				g.local[c] = int32(rows)
				g.row = append(g.row, row{cell: uint32(c)})
				rows++
			}
		}
	}
	if n := rows * j.tiles; cap(g.group) < n {
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
	g.stage, g.recounted = tailNone, false
	if s.decoding {
		s.encodedToo = s.encodedToo.Without(j.slot)
	} else {
		s.encodedToo = s.encodedToo.With(j.slot)
	}
	t := &j.tape
	if s.lay.alone {
		if j.counts() {
			j.common = resize(j.common, MaxJobs*j.tiles)
			clear(j.common)
		}
		for m := s.following & j.near; m != 0; m &= m - 1 {
			if k := s.slot[first(m)]; k.counts() {
				clear(k.common[int(j.slot)*k.tiles : (int(j.slot)+1)*k.tiles])
			}
		}
		return
	}
	if s.hook.keepTape && t.started {
		return
	}
	t.from = nil
	if j.rem < len(j.subset) {
		t.from = append([]uint64(nil), j.left...)
	}
	t.r0, t.passed, t.cursor, t.started = j.rem, 0, t.origin, true
}

// count counts what remains by row and tile.
func (s *Sampler) count(j *job, from, to int) {
	g := &j.groups
	for p := next1(j.left, from, to); p < to; p = next1(j.left, p+1, to) {
		l := uint32(p)
		if s.lay.alone {
			s.meet(j, l)
		}
		r := 0
		if !g.whole {
			if r = int(g.local[s.obj.at(j.at.object(l)).cell]); r < 0 {
				continue
			}
		}
		g.row[r].left++
		g.group[r*j.tiles+int(j.prev.get(l))].left++
	}
}

// listAvailable lists what is available and needed.
func (s *Sampler) listAvailable(j *job, from, to int) {
	for i := from; i < to; i++ {
		if e := s.avail.at(uint32(i)); e.need.Has(j.slot) && s.visibleTo(e, j.slot) != 0 {
			s.list(j, e)
		}
	}
}

func (s *Sampler) endLayout(j *job) {
	if j.groups.whole && int(j.groups.row[0].left) != j.rem {
		invariant.Violated("dsa: job %d has %d samples left, counted %d", j.id, j.rem, j.groups.row[0].left)
	}
	if s.lay.alone {
		s.following = s.following.With(j.slot)
	}
	j.stale = false
	s.lay = laying{}
}
