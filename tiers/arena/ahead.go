package arena

import "time"

// Pages come in two ways. An allocation that finds no page gets its own, and its caller waits. And while the machine
// has time (Config.Prefault, WhenIdle) a goroutine gets pages ahead of the allocations.

const (
	// DefaultAhead is how many bytes of pages are kept free ahead of the allocations: what two cores fill in 50 ms.
	DefaultAhead = 16 << 20
	// aheadStep is how many bytes are got at once, outside the lock: about a millisecond.
	aheadStep = 2 << 20
)

// WhenIdle makes getting pages ahead wait until idle answers true; nil = it never waits. It is asked before every step.
func (a *Arena) WhenIdle(idle func() bool) {
	if idle == nil {
		a.idle.Store(nil)
	} else {
		a.idle.Store(&idle)
	}
	a.rouse()
}

// prefault gets pages until stop; Close waits for it.
func (a *Arena) prefault() {
	for {
		select {
		case <-a.stop:
			return
		case <-a.wake:
		}
		for a.prefaultSome() {
			select {
			case <-a.stop:
				return
			default:
			}
		}
	}
}

// prefaultSome gets one step of pages and reports whether there may be more to do.
func (a *Arena) prefaultSome() bool {
	if idle := a.idle.Load(); idle != nil && !(*idle)() {
		return false // the next allocation asks again
	}
	a.warming.Lock()
	defer a.warming.Unlock()
	a.mu.Lock()
	s, ok := a.coldLocked()
	if !ok {
		a.mu.Unlock()
		return false
	}
	bytes, huge := int64(s.n)*Granule, s.c.whole(s.off)
	a.claimLocked(s)
	a.warmLocked(s)
	a.mu.warming += bytes
	a.mu.ahead += bytes
	a.mu.Unlock()
	begun := time.Now()
	err := s.c.mem.commit(int64(s.off)*Granule, bytes)
	took := time.Since(begun)
	if huge {
		a.judge(int(bytes/hugeBytes), took)
	}
	a.mu.Lock()
	a.mu.waited += took
	a.mu.warming -= bytes
	s.c.out -= s.n
	if err != nil {
		a.punchLocked(s.c, s.off, s.n)
	}
	a.joinLocked(s)
	unused := a.trimLocked()
	a.mu.Unlock()
	unmap(unused)
	return err == nil // no memory: it is a favour only
}

// shortLocked is how many bytes of free pages are missing ahead of the allocations, within the budget. An arena that
// was never used needs none.
func (a *Arena) shortLocked() int64 {
	if !a.cfg.Prefault || len(a.mu.chunks) == 0 || a.mu.closed {
		return 0
	}
	free := a.mu.committed - a.mu.cooling - a.mu.used
	return max(0, min(a.cfg.Ahead-free, a.mu.budget-a.mu.committed))
}

// coldLocked finds a step of pages to get; it takes more address space when there is none left.
func (a *Arena) coldLocked() (s span, ok bool) {
	room := min(a.shortLocked(), aheadStep) / Granule
	if room == 0 {
		return s, false
	}
	for range 2 {
		for _, c := range a.mu.chunks {
			for c.cold < c.size && c.warm.Has(c.cold) {
				c.cold++
			}
			if c.cold == c.size {
				continue
			}
			// What is out has pages, so a run without pages is free: it has no writer.
			s = span{c: c, off: c.cold}
			if c.whole(s.off) { // it comes whole, or not ahead at all
				s.n = block()
				return s, int64(s.n)*Granule <= a.mu.budget-a.mu.committed
			}
			for s.off+s.n < c.size && int64(s.n) < room && !c.warm.Has(s.off+s.n) && !c.whole(s.off+s.n) {
				s.n++
			}
			return s, true
		}
		if a.mu.mapped >= a.mu.budget || a.addChunkLocked(1) != nil {
			break
		}
	}
	return s, false
}
