package dsa

import "larder/internal/bits"

// cell is a set of objects with the same membership in every subset registered since the last forget. Its objects are
// members[lo:lo+size]; where they are consecutive ids, base is the first, so that a draw need not look there.
type cell struct {
	lo, size uint32
	base     uint32
	live     bits.JobSet // joined jobs whose subset holds it
}

// at returns object q of the cell, in no particular order.
func (s *Sampler) at(c *cell, q uint32) uint32 {
	if c.base != absent {
		return c.base + q
	}
	return *s.members.at(c.lo + q)
}

// maxIdleCells is how many cells an idle sampler may keep for the sake of what is still in the caches. Beyond it the memory of
// who loaded what is given up, and with it the preference for what is loaded.
const maxIdleCells = 4096

// mayForget reports whether the job that joins may begin anew with no cells: when no other is joined and nothing is left in the
// caches that could tell the old cells apart. With too many cells, what is left is made neutral instead, so that nothing can.
func (s *Sampler) mayForget() bool {
	return len(s.byID) == 1 && s.live.Len() == 1 && len(s.cells) > 1+len(s.strata) && (s.nVis == 0 || len(s.cells) > maxIdleCells)
}

// split makes the cells that a subset splits off: those it holds a part of. passSplit moves the objects to them, passMembers the
// members; what of the subset was in no cell becomes one.
func (s *Sampler) split(j *job) {
	s.child = resize(s.child, len(s.cells))
	s.parting = parting{}
	s.parted = s.parted[:0]
	for _, c := range s.touched {
		n := s.touch[c]
		d := c
		switch {
		case c == 0:
			d = uint32(len(s.cells))
			s.cells = append(s.cells, cell{lo: uint32(s.members.n), size: n, base: absent})
			s.parting.fresh, s.parting.next = d, uint32(s.members.n)
		case n < s.cells[c].size:
			d = uint32(len(s.cells))
			s.parted = append(s.parted, c)
			s.parting.n += int(s.cells[c].size)
			s.cells[c].size -= n
			s.cells = append(s.cells, cell{lo: s.cells[c].lo + s.cells[c].size, size: n, base: absent, live: s.cells[c].live})
		default:
		}
		s.child[c] = d
		for m := s.cells[d].live; m != 0; m &= m - 1 {
			k := s.slot[first(m)]
			j.near = j.near.With(k.slot)
			if j.class {
				continue
			}
			j.overlap[k.slot] += n
			k.overlap[j.slot] += n
			k.near = k.near.With(j.slot)
		}
		if !j.class {
			s.cells[d].live = s.cells[d].live.With(j.slot)
		}
	}
}

// parting is a walk through the members of cells that were split: in each, those of the new cell go to the end.
type parting struct {
	n     int    // members to walk through
	cell  int    // of parted
	at    uint32 // members of it that are done
	keep  uint32 // of them, those that stay
	old   span32
	split span32
	fresh uint32 // the cell of what was in none, if any
	next  uint32 // where its next member goes
	all   span32
}

// span32 is the range of some ids.
type span32 struct{ lo, hi, n uint32 }

func (r *span32) add(x uint32) {
	if r.n == 0 || x < r.lo {
		r.lo = x
	}
	r.hi = max(r.hi, x)
	r.n++
}

// base is the first of ids that are consecutive.
func (r *span32) base() uint32 {
	if r.n > 0 && r.hi-r.lo == r.n-1 {
		return r.lo
	}
	return absent
}

// enter lists a member of the cell made of what was in none.
func (p *parting) enter(s *Sampler, x uint32) {
	s.members.extend(int(p.next) + 1)
	*s.members.at(p.next) = x
	p.next++
	p.all.add(x)
	if p.all.n == s.cells[p.fresh].size {
		s.cells[p.fresh].base = p.all.base()
	}
}

// part takes the walk on by n members.
func (p *parting) part(s *Sampler, n int) {
	for n > 0 {
		c := s.parted[p.cell]
		d := s.child[c]
		lo, size := s.cells[c].lo, s.cells[c].size+s.cells[d].size
		for ; n > 0 && p.at < size; n-- {
			x := *s.members.at(lo + p.at)
			if s.obj.at(x).cell == d {
				p.split.add(x)
			} else {
				q := lo + p.keep
				y := s.members.at(q)
				*s.members.at(lo + p.at), *y = *y, x
				p.old.add(x)
				p.keep++
			}
			p.at++
		}
		if p.at == size {
			s.cells[c].base, s.cells[d].base = p.old.base(), p.split.base()
			p.cell, p.at, p.keep, p.old, p.split = p.cell+1, 0, 0, span32{}, span32{}
		}
	}
}

// resize returns a slice of length n, with the memory of v if it suffices. The contents are undefined.
func resize[T any](v []T, n int) []T {
	if cap(v) < n {
		return make([]T, n, n+n/8)
	}
	return v[:n]
}
