package dsa

import (
	"fmt"
	"slices"

	"larder/internal/bits"
	"larder/internal/ident"
)

// cell is a set of objects with the same membership in every subset registered since the last forget.
type cell struct {
	size uint32
	live bits.JobSet // joined jobs whose subset holds it
}

// maxIdleCells is how many cells an idle sampler may keep for the sake of what is still in the caches. Beyond it the memory of
// who loaded what is given up, and with it the preference for what is loaded.
const maxIdleCells = 4096

// refine splits every cell by the subset of a job that joins: O(subset). Cells are never merged while a job draws.
func (s *Sampler) refine(j *job) {
	s.touch = resize(s.touch, len(s.cells))
	s.child = resize(s.child, len(s.cells))
	clear(s.touch)
	s.touched = s.touched[:0]
	for _, x := range j.subset {
		c := s.obj[x].cell
		if s.touch[c] == 0 {
			s.touched = append(s.touched, c)
		}
		s.touch[c]++
	}
	for _, c := range s.touched {
		n := s.touch[c]
		d := c
		if c == 0 || n < s.cells[c].size {
			d = uint32(len(s.cells))
			s.cells = append(s.cells, cell{size: n, live: s.cells[c].live})
			if c != 0 {
				s.cells[c].size -= n
			}
		}
		s.child[c] = d
		for m := s.cells[d].live; m != 0; m &= m - 1 {
			k := s.slot[first(m)]
			j.overlap[k.slot] += n
			k.overlap[j.slot] += n
			j.near, k.near = j.near.With(k.slot), k.near.With(j.slot)
		}
		s.cells[d].live = s.cells[d].live.With(j.slot)
	}
	for _, x := range j.subset {
		s.obj[x].cell = s.child[s.obj[x].cell]
	}
}

// forget begins anew with no cells, when no other job is joined and nothing is left in the caches that could tell the old
// cells apart. With too many cells it makes what is left neutral instead, so that nothing can.
func (s *Sampler) forget() {
	if s.nVis > 0 && len(s.cells) <= maxIdleCells {
		return
	}
	for x := range s.obj {
		a := s.obj[x].avail
		if a&visMask != 0 {
			s.setAvail(uint32(x), a&levelMask|neutralBit)
		}
	}
	for x := range s.obj {
		s.obj[x].cell = 0
	}
	s.cells = s.cells[:1]
}

// Pages of an index. Small ones suit sparse subsets; larger ones would shorten the table.
const (
	pageBits = 8
	pageSize = 1 << pageBits
	absent   = ^uint32(0)
)

// index maps the objects of a subset to places in dense arrays. A subset may be any sparse part of the universe, so only pages
// that hold a member exist: memory follows the subset, not the universe.
type index struct {
	page []uint32 // object >> pageBits -> first place of the page, or absent
	n    int      // places
}

// of returns the place of x, which must lie on a page of the index.
func (t *index) of(x uint32) uint32 { return t.page[x>>pageBits] + x&(pageSize-1) }

// indexSubset builds j.at and j.pos (ordinals) and refuses what is not a set.
func (j *job) indexSubset() error {
	top := slices.Max(j.subset)
	if top >= MaxObjects {
		return fmt.Errorf("%w: %d, the limit is %d", ErrObjectID, top, MaxObjects-1)
	}
	j.at.page = make([]uint32, top>>pageBits+1)
	for p := range j.at.page {
		j.at.page[p] = absent
	}
	for _, x := range j.subset {
		if p := &j.at.page[x>>pageBits]; *p == absent {
			*p = uint32(j.at.n)
			j.at.n += pageSize
		}
	}
	j.pos = make([]uint32, j.at.n)
	for l := range j.pos {
		j.pos[l] = absent
	}
	for o, x := range j.subset {
		l := j.at.of(uint32(x))
		if j.pos[l] != absent {
			return fmt.Errorf("%w: %d", ErrDuplicateObject, x)
		}
		j.pos[l] = uint32(o)
	}
	if j.tiles > 1 {
		j.prev, j.cur = make([]uint8, j.at.n), make([]uint8, j.at.n)
	}
	return nil
}

// member returns the place of x if the subset holds it.
func (j *job) member(x ident.ObjectID) (uint32, bool) {
	p := int(x >> pageBits)
	if p >= len(j.at.page) || j.at.page[p] == absent {
		return 0, false
	}
	l := j.at.of(uint32(x))
	return l, j.pos[l] != absent
}

// resize returns a slice of length n, with the memory of v if it suffices. The contents are undefined.
func resize[T any](v []T, n int) []T {
	if cap(v) < n {
		return make([]T, n, n+n/8)
	}
	return v[:n]
}
