package arena

import (
	"fmt"
	"slices"
	"time"

	"larder/internal/bits"
	"larder/internal/invariant"
)

// fits is how many free spans an allocation looks at.
const fits = 16

// bestFitLocked finds a free span of at least n granules, among the smallest: the one that lacks fewest pages, because
// a fresh page costs ten times a filled one; of those the smallest, and of equals the one with the lowest address, so
// that later chunks run empty.
func (a *Arena) bestFitLocked(n uint32) (best span, ok bool) {
	first := &chunk{} // before every chunk: sequence numbers start at 1
	lacks, seen := n+1, 0
	a.mu.bySize.AscendGreaterOrEqual(span{first, 0, n}, func(s span) bool {
		if l := s.c.lacks(s.off, n); l < lacks {
			best, ok, lacks = s, true, l
		}
		seen++
		return lacks > 0 && seen < fits
	})
	return best, ok
}

// lacks counts the granules of a run without pages.
func (c *chunk) lacks(off, n uint32) uint32 {
	if c.warm.Len() == int(c.size) {
		return 0
	}
	return n - uint32(c.warm.LenIn(off, off+n))
}

func (a *Arena) takeLocked(s span) {
	_, sized := a.mu.bySize.Delete(s)
	_, placed := a.mu.byAddr.Delete(s)
	if !sized || !placed {
		invariant.Violated("arena %s: free span %d+%d is in one tree only", a.cfg.Name, s.off, s.n)
	}
}

func (a *Arena) putLocked(s span) {
	a.mu.bySize.ReplaceOrInsert(s)
	a.mu.byAddr.ReplaceOrInsert(s)
}

// joinLocked puts a span back and joins it with its free neighbours. It finds what was freed twice.
func (a *Arena) joinLocked(s span) {
	var prev, next span
	a.mu.byAddr.DescendLessOrEqual(s, func(p span) bool { prev = p; return false })
	a.mu.byAddr.AscendGreaterOrEqual(s, func(n span) bool { next = n; return false })
	if prev.c == s.c && prev.off+prev.n > s.off || next.c == s.c && s.off+s.n > next.off {
		invariant.Violated("arena %s: span %d+%d is freed twice", a.cfg.Name, s.off, s.n)
	}
	if prev.c == s.c && prev.off+prev.n == s.off {
		a.takeLocked(prev)
		s.off, s.n = prev.off, prev.n+s.n
	}
	if next.c == s.c && s.off+s.n == next.off {
		a.takeLocked(next)
		s.n += next.n
	}
	a.putLocked(s)
}

// addChunkLocked maps a chunk that can hold n granules. Chunks grow with the budget, so that there are never more than
// about a hundred mappings.
func (a *Arena) addChunkLocked(n uint32) error {
	size := max(a.cfg.ChunkBytes, min(a.mu.budget/64, 4<<30), int64(n)*Granule)
	size = Round(size)
	if a.mu.huge.on {
		size = (size + hugeBytes - 1) / hugeBytes * hugeBytes
	}
	mem, err := mapMemory("larder-"+a.cfg.Name, size, a.mu.huge.on)
	if err != nil {
		return err
	}
	a.mu.nextSeq++
	c := &chunk{mem: mem, seq: a.mu.nextSeq, size: uint32(size / Granule), huge: a.mu.huge.on}
	c.warm = *bits.NewSet(int(c.size))
	a.mu.chunks = append(a.mu.chunks, c)
	a.mu.mapped += size
	a.putLocked(span{c, 0, c.size})
	return nil
}

// warmLocked counts every granule of s as having a page, and returns the runs that have none yet: the caller owns s and
// commits them.
func (a *Arena) warmLocked(s span) (cold []span) {
	if s.c.warm.Len() == int(s.c.size) {
		return nil
	}
	for i := s.off; i < s.off+s.n; i++ {
		if !s.c.warm.Add(i) {
			continue
		}
		if last := len(cold) - 1; last >= 0 && cold[last].off+cold[last].n == i {
			cold[last].n++
		} else {
			cold = append(cold, span{s.c, i, 1})
		}
		a.mu.committed += Granule
		a.mu.taken += Granule
	}
	return cold
}

// commit gets the pages of runs that an allocation owns, and counts the time that takes. pages: how many huge ones.
func (a *Arena) commit(runs []span, pages int) (err error) {
	if len(runs) == 0 {
		return nil
	}
	begun := time.Now()
	for _, r := range runs {
		if err = r.c.mem.commit(int64(r.off)*Granule, int64(r.n)*Granule); err != nil {
			break
		}
	}
	took := time.Since(begun)
	a.judge(pages, took)
	a.mu.Lock()
	a.mu.waited += took
	a.mu.Unlock()
	return err
}

// coolStep is how many bytes are returned at once beside what an allocation needs.
const coolStep = 16 << 20

// coolLocked takes at least n bytes of warm free pages, or all there are, out of what is free: from the newest chunk
// and the highest address, where an allocation looks last. The caller gives them to cool once it holds no lock: pages
// go back slowly, and an allocation meanwhile need not wait. Until then they count as out of their chunk, and
// as committed.
func (a *Arena) coolLocked(n int64) (runs []span) {
	if n <= 0 {
		return nil
	}
	for _, c := range slices.Backward(a.mu.chunks) {
		if n <= 0 {
			break
		}
		if c.warm.Len() == int(c.out) {
			continue // nothing that is free has pages
		}
		a.mu.byAddr.DescendLessOrEqual(span{c, c.size, 0}, func(s span) bool {
			if s.c != c {
				return false
			}
			for i := s.off + s.n; i > s.off && n > 0; {
				to := i
				for i > s.off && c.warm.Has(i-1) && n > int64(to-i)*Granule {
					i--
				}
				if first, end := c.bounds(i); c.whole(i) && first >= s.off && end <= to {
					i = first // a huge page goes as a whole
				}
				if i < to {
					runs = append(runs, span{c, i, to - i})
					n -= int64(to-i) * Granule
				}
				for i > s.off && !c.warm.Has(i-1) {
					i--
				}
			}
			return n > 0
		})
	}
	for _, r := range runs {
		a.breakPartLocked(r)
		a.claimLocked(r)
		a.mu.cooling += int64(r.n) * Granule
	}
	return runs
}

// claimLocked takes a part of a free span.
func (a *Arena) claimLocked(r span) {
	var s span // the free one that r is in
	a.mu.byAddr.DescendLessOrEqual(r, func(f span) bool { s = f; return false })
	a.takeLocked(s)
	if s.off < r.off {
		a.putLocked(span{s.c, s.off, r.off - s.off})
	}
	if to := r.off + r.n; to < s.off+s.n {
		a.putLocked(span{s.c, to, s.off + s.n - to})
	}
	r.c.out += r.n
}

// uncommit returns to the system the pages of runs and of what else is over the budget, most bytes at a time, so that
// no allocation waits long. What prefault is just filling can be the reason; then it waits for that.
func (a *Arena) uncommit(runs []span, most int64) {
	for {
		a.cool(runs)
		a.mu.Lock()
		runs = a.coolLocked(min(a.overLocked(), most))
		warming := a.overLocked() > 0 && a.mu.warming > 0
		a.mu.Unlock()
		switch {
		case len(runs) > 0:
		case warming:
			a.awaitWarming()
		default:
			return
		}
	}
}

// awaitWarming waits until prefault is through with its step.
func (a *Arena) awaitWarming() {
	a.warming.Lock()
	defer a.warming.Unlock() //nolint:gocritic // to have had it is all there is to do
}

// cool gives the pages of what coolLocked took back to the kernel, and then the space back to the arena.
func (a *Arena) cool(runs []span) {
	if len(runs) == 0 {
		return
	}
	for _, r := range runs {
		if err := r.c.mem.decommit(int64(r.off)*Granule, int64(r.n)*Granule); err != nil {
			// Linux fails here only for arguments that can never work.
			invariant.Violated("arena %s: %v", a.cfg.Name, err)
		}
	}
	a.mu.Lock()
	for _, r := range runs {
		for i := r.off; i < r.off+r.n; i++ {
			r.c.warm.Remove(i)
		}
		r.c.out -= r.n
		a.mu.cooling -= int64(r.n) * Granule
		a.mu.committed -= int64(r.n) * Granule
		a.joinLocked(r)
	}
	unused := a.trimLocked()
	a.mu.Unlock()
	unmap(unused)
}

// overLocked is how many bytes of pages are over the budget and not on their way back.
func (a *Arena) overLocked() int64 { return a.mu.committed - a.mu.cooling - a.mu.budget }

func (a *Arena) punchLocked(c *chunk, off, n uint32) int64 {
	bytes := int64(n) * Granule
	a.breakPartLocked(span{c, off, n})
	if err := c.mem.decommit(int64(off)*Granule, bytes); err != nil {
		// Linux fails here only for arguments that can never work.
		invariant.Violated("arena %s: %v", a.cfg.Name, err)
	}
	for i := off; i < off+n; i++ {
		c.warm.Remove(i)
	}
	a.mu.committed -= bytes
	return bytes
}

// trimLocked takes out the chunks that are wholly free and not needed to hold the budget, or any when the arena is
// closed. The caller unmaps them.
func (a *Arena) trimLocked() (unused []*memory) {
	keep := a.mu.budget
	if a.mu.closed {
		keep = 0
	}
	for k, c := range slices.Backward(a.mu.chunks) { // Delete moves only what was visited
		size := int64(c.size) * Granule
		if c.out > 0 || a.mu.mapped-size < keep {
			continue
		}
		a.takeLocked(span{c, 0, c.size})
		a.mu.chunks = slices.Delete(a.mu.chunks, k, k+1)
		a.mu.mapped -= size
		a.mu.committed -= int64(c.warm.Len()) * Granule
		unused = append(unused, c.mem)
	}
	return unused
}

// Check verifies every invariant in O(pages).
func (a *Arena) Check() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	free := make(map[*chunk]uint32)
	var prev span
	var err error
	a.mu.byAddr.Ascend(func(s span) bool {
		switch {
		case !a.mu.bySize.Has(s):
			err = fmt.Errorf("arena: span %d+%d is not in both trees", s.off, s.n)
		case s.n == 0 || s.off+s.n > s.c.size:
			err = fmt.Errorf("arena: span %d+%d of a chunk of %d", s.off, s.n, s.c.size)
		case prev.c == s.c && prev.off+prev.n >= s.off:
			err = fmt.Errorf("arena: spans %d+%d and %d+%d should be one", prev.off, prev.n, s.off, s.n)
		}
		free[s.c] += s.n
		prev = s
		return err == nil
	})
	var used, committed, mapped int64
	for _, c := range a.mu.chunks {
		if free[c]+c.out != c.size {
			err = fmt.Errorf("arena: chunk %d: %d free and %d out of %d", c.seq, free[c], c.out, c.size)
		}
		if a.mu.warming == 0 && err == nil {
			err = c.checkHuge()
		}
		used += int64(c.out) * Granule
		committed += int64(c.warm.Len()) * Granule
		mapped += int64(c.size) * Granule
	}
	switch {
	case err != nil:
	case a.mu.bySize.Len() != a.mu.byAddr.Len():
		err = fmt.Errorf("arena: %d spans by size, %d by address", a.mu.bySize.Len(), a.mu.byAddr.Len())
	case used != a.mu.used+a.mu.cooling+a.mu.warming || committed != a.mu.committed || mapped != a.mu.mapped:
		err = fmt.Errorf("arena: %d used, %d committed, %d mapped are counted as %d, %d, %d", used, committed, mapped,
			a.mu.used, a.mu.committed, a.mu.mapped)
	case committed-a.mu.cooling-a.mu.warming > max(a.mu.budget, a.mu.used):
		err = fmt.Errorf("arena: %d bytes of pages over a budget of %d with %d used", committed, a.mu.budget, used)
	}
	return err
}
