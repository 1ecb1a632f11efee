package dsa

import (
	"fmt"
	mathbits "math/bits"

	"larder/internal/ident"
)

// Pages of an index are small to suit sparse subsets; larger ones would shorten the table.
const (
	pageBits = 8
	pageSize = 1 << pageBits
	absent   = ^uint32(0)
)

// index gives each object of a subset a place in dense tables of one or a few bits per place. A subset may be any
// sparse part of the universe, so only pages that hold a member exist: memory follows the subset, not the universe.
type index struct {
	page []uint32 // object >> pageBits -> first place of the page, or absent
	back []uint32 // place >> pageBits -> object of its first place
	in   []uint64 // by place: is it a member
}

// places returns the number of places, a multiple of pageSize.
func (t *index) places() int { return len(t.back) << pageBits }

// of returns the place of x, which must lie on a page of the index.
func (t *index) of(x uint32) uint32 { return t.page[x>>pageBits] + x&(pageSize-1) }

// find returns the place of x, if its page is there.
func (t *index) find(x uint32) (uint32, bool) {
	p := int(x >> pageBits)
	if p >= len(t.page) || t.page[p] == absent {
		return 0, false
	}
	return t.of(x), true
}

// object returns the object of a place.
func (t *index) object(l uint32) uint32 { return t.back[l>>pageBits] + l&(pageSize-1) }

// member returns the place of x if the subset holds it.
func (t *index) member(x uint32) (uint32, bool) {
	l, ok := t.find(x)
	return l, ok && has(t.in, l)
}

// begin prepares the index of a subset whose largest object is top.
func (t *index) begin(top ident.ObjectID) {
	t.page = make([]uint32, top>>pageBits+1)
	for q := range t.page {
		t.page[q] = absent
	}
	t.back, t.in = nil, nil
}

// add adds a part of the subset.
func (t *index) add(part []ident.ObjectID) error {
	for _, x := range part {
		p := x >> pageBits
		if t.page[p] == absent {
			t.page[p] = uint32(len(t.back)) << pageBits
			t.back = append(t.back, uint32(p)<<pageBits)
			t.in = append(t.in, make([]uint64, pageSize/64)...)
		}
		l := t.of(uint32(x))
		if has(t.in, l) {
			return fmt.Errorf("%w: %d", ErrDuplicateObject, x)
		}
		set(t.in, l)
	}
	return nil
}

func has(w []uint64, l uint32) bool { return w[l>>6]&(1<<(l&63)) != 0 }
func set(w []uint64, l uint32)      { w[l>>6] |= 1 << (l & 63) }
func unset(w []uint64, l uint32)    { w[l>>6] &^= 1 << (l & 63) }

// next1 returns the first set bit in from..to-1, or to.
func next1(w []uint64, from, to int) int {
	for from < to {
		if v := w[from>>6] >> (from & 63); v != 0 {
			return min(from+mathbits.TrailingZeros64(v), to)
		}
		from = from&^63 + 64
	}
	return to
}

// packed is a table of small numbers of 1, 2, 4 or 8 bits.
type packed struct {
	shift uint8 // log2 of the bits of one
	v     []uint8
}

// pack returns a table of n zeros for numbers below limit; an empty one for limit 1.
func pack(limit, n int) packed {
	if limit <= 1 {
		return packed{}
	}
	var p packed
	for 1<<(1<<p.shift) < limit {
		p.shift++
	}
	p.v = make([]uint8, (n+(8>>p.shift)-1)/(8>>p.shift))
	return p
}

func (p *packed) get(l uint32) uint8 {
	if p.v == nil {
		return 0
	}
	k := 3 - p.shift
	return p.v[l>>k] >> ((l & (1<<k - 1)) << p.shift) & (1<<(1<<p.shift) - 1)
}

func (p *packed) set(l uint32, t uint8) {
	if p.v == nil {
		return
	}
	k := 3 - p.shift
	at := (l & (1<<k - 1)) << p.shift
	b := &p.v[l>>k]
	*b = *b&^((1<<(1<<p.shift)-1)<<at) | t<<at
}
