package dsa_test

import (
	"larder/cachepolicy"
	"larder/dsa"
	"larder/internal/ident"
	"larder/internal/xrand"
	"larder/tiers/residency"
)

// resident is a cache made of the daemon's own index and policy. What the coordinator does with them it does too: what
// is needed no more takes free room and stays until its place is wanted.
type resident struct {
	w     *world
	s     drawer
	seed  uint64
	limit int
	index *residency.Index
}

func newResident(w *world, s drawer, seed uint64, limit int) *resident {
	c := &resident{w: w, seed: seed, limit: limit}
	c.serve(s)
	return c
}

func (c *resident) serve(s drawer) {
	c.s = s
	c.seed++
	var ev [ident.NumForms]residency.Evictor
	for f := ident.Encoded; f < ident.NumForms; f++ {
		e, err := cachepolicy.New("need", xrand.New(c.seed, uint64(f)))
		if err != nil {
			panic(err) // there is no such policy: the test is wrong
		}
		ev[f] = e
	}
	c.index = residency.New([ident.NumForms]int64{ident.Decoded: int64(c.limit)}, ev)
}

func decodedKey(x ident.ObjectID) ident.Key { return ident.Key{Object: x, Form: ident.Decoded} }

// neutralNeed ranks what only a sequential job has loaded.
const neutralNeed = -1

func (c *resident) need(x ident.ObjectID) int {
	if d, ok := c.s.(*dsa.Sampler); ok && d.Neutral(x) {
		return neutralNeed
	}
	return c.s.Need(x)
}

func (c *resident) take(x ident.ObjectID, sequential bool) {
	if h, ok := c.index.Lookup(decodedKey(x)); ok {
		c.index.Hit(h)
		c.index.SetNeed(h, c.need(x))
		return
	}
	c.w.loads++
	need := c.need(x)
	if sequential {
		need = neutralNeed
	}
	c.s.SetLevel(x, 2)
	gone := func(_ residency.Handle, k ident.Key) { c.s.SetLevel(k.Object, 0) }
	if _, kept := c.index.Admit(decodedKey(x), int64(c.w.bytes(x)), need, gone); !kept {
		c.s.SetLevel(x, 0)
	}
}

func (c *resident) refresh() {
	c.index.Each(ident.Decoded, func(h residency.Handle, k ident.Key) { c.index.SetNeed(h, c.need(k.Object)) })
}
