package arena

import (
	"fmt"
	"time"

	"larder/internal/bits"
)

// Huge pages come by the block: hugeBytes at once, on a boundary of as many, if the budget has room for all of it. A
// block is whole while either all of its granules have pages or none. When a part of it must come or go alone, it
// becomes a small one: the kernel then gives it pages of the usual size. Small blocks stay small.

// hugeBytes is a huge page.
const hugeBytes = 2 << 20

// maxSmall is how many blocks of a chunk may become small one by one: each is a mapping of its own to the kernel, which
// allows 65,530. One more, and the whole chunk is small.
const maxSmall = 32

// judged is how many huge pages the arena looks at before it gives them up, if they take longer than small ones.
const judged = 16

// hugePages is what an arena knows about its huge pages, under its lock.
type hugePages struct {
	on   bool
	seen int           // huge pages got since the last judgement
	took time.Duration // for them
}

// block is the granules of a huge page.
func block() uint32 { return uint32(hugeBytes / Granule) }

// bounds are the granules of the block that holds granule i: from first up to, not including, end.
func (c *chunk) bounds(i uint32) (first, end uint32) {
	first = i / block() * block()
	return first, first + block()
}

// whole reports whether granule i lies in a block that comes and goes as one huge page.
func (c *chunk) whole(i uint32) bool { return c.huge && !c.small.Has(i/block()) }

// hugeLocked claims what is missing around s for the blocks in which it needs pages, so that they come as huge pages.
// Blocks for which the budget has no room become small. cold is what s needs itself, in granules; pages is how many
// huge pages are to come, 0 if small ones come too.
func (a *Arena) hugeLocked(s span, cold uint32) (around []span, pages int) {
	if !s.c.huge || cold == 0 {
		return nil, 0
	}
	room := a.mu.budget - a.mu.committed - int64(cold)*Granule
	for i := s.off; i < s.off+s.n; {
		first, end := s.c.bounds(i)
		i = end
		if !s.c.whole(first) || s.c.warm.Has(first) {
			continue
		}
		var parts []span
		missing := uint32(0)
		from, to := max(s.off, first), min(s.off+s.n, end)
		for _, p := range [...]span{{s.c, first, from - first}, {s.c, to, end - to}} {
			if p.n > 0 {
				parts, missing = append(parts, p), missing+p.n
			}
		}
		if int64(missing)*Granule > room {
			a.breakLocked(s.c, first)
			continue
		}
		room -= int64(missing) * Granule
		around = append(around, parts...)
		pages++
		cold -= block() - missing
	}
	for _, p := range around {
		a.claimLocked(p)
		a.mu.warming += int64(p.n) * Granule
		a.mu.ahead += int64(p.n) * Granule
		a.warmLocked(p)
	}
	if cold > 0 {
		pages = 0
	}
	return around, pages
}

// settle gives back what hugeLocked claimed, once its pages are there, or not if bad.
func (a *Arena) settle(around []span, bad bool) {
	if len(around) == 0 {
		return
	}
	a.mu.Lock()
	for _, p := range around {
		a.mu.warming -= int64(p.n) * Granule
		p.c.out -= p.n
		if bad {
			a.punchLocked(p.c, p.off, p.n)
		}
		a.joinLocked(p)
	}
	unused := a.trimLocked()
	a.mu.Unlock()
	unmap(unused)
}

// breakLocked makes the block of granule i small.
func (a *Arena) breakLocked(c *chunk, i uint32) {
	if !c.whole(i) {
		return
	}
	if c.small.Len() == maxSmall {
		a.smallLocked(c)
		return
	}
	c.small.Add(i / block())
	first, _ := c.bounds(i)
	c.mem.usualPages(int64(first)*Granule, hugeBytes)
}

// breakPartLocked makes the blocks small of which a run holds only a part.
func (a *Arena) breakPartLocked(r span) {
	if !r.c.huge {
		return
	}
	if first, _ := r.c.bounds(r.off); first != r.off {
		a.breakLocked(r.c, r.off)
	}
	if last := r.off + r.n - 1; r.off+r.n != r.c.size {
		if _, end := r.c.bounds(last); end != r.off+r.n {
			a.breakLocked(r.c, last)
		}
	}
}

// smallLocked makes all blocks of a chunk small. What it has stays.
func (a *Arena) smallLocked(c *chunk) {
	c.huge, c.small = false, bits.Set{}
	c.mem.usualPages(0, int64(c.size)*Granule)
}

// judge counts what a commit of huge pages took, and gives huge pages up when they are slower than small ones would be.
func (a *Arena) judge(pages int, took time.Duration) {
	if pages == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	h := &a.mu.huge
	h.seen, h.took = h.seen+pages, h.took+took
	if h.seen < judged || !h.on {
		return
	}
	if h.took > time.Duration(h.seen)*a.cfg.HugeBelow {
		h.on = false
		for _, c := range a.mu.chunks {
			if c.huge {
				a.smallLocked(c)
			}
		}
	}
	h.seen, h.took = 0, 0
}

// Huge reports whether new memory comes in huge pages.
func (a *Arena) Huge() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mu.huge.on
}

// checkHuge verifies that blocks that are not small have all pages or none; a.mu is held, and nothing is under way.
func (c *chunk) checkHuge() error {
	for first := uint32(0); c.huge && first < c.size; first += block() {
		if n := c.warm.LenIn(first, first+block()); c.whole(first) && n != 0 && n != int(block()) {
			return fmt.Errorf("arena: %d of %d granules at %d of chunk %d have pages", n, block(), first, c.seq)
		}
	}
	return nil
}
