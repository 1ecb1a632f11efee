package dsa

import (
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

// mayForget tells whether the job that joins may begin anew with no cells: when no other is joined and nothing is left in the
// caches that could tell the old cells apart. With too many cells, what is left is made neutral instead, so that nothing can.
func (s *Sampler) mayForget() bool {
	return len(s.byID) == 1 && s.live.Len() == 1 && len(s.cells) > 1+len(s.strata) && (s.nVis == 0 || len(s.cells) > maxIdleCells)
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
