package dsa

import "larder/internal/bits"

// The lists of a group: what is augmented for the job; what is decoded, by needers up to exactNeeders; what is decoded
// and needed by more; what is encoded.
const (
	listAugmented = 0
	listDecoded   = 1 // of one needer; the next ones of more
	listRest      = listDecoded + exactNeeders
	listEncoded   = listRest + 1
	numLists      = listEncoded + 1
)

// Sizes that decide how lists are looked through. None of them touches the law of an order: which object is picked only
// depends on what is available and on chance.
const (
	exactNeeders = 3  // up to so many needers have a list of their own
	trials       = 16 // candidates drawn from a list of unequal objects; the one with fewest needers is picked
	lookedAt     = 32 // entries that compact looks up at a time
)

// listOf returns the list that an object belongs in for the job in that slot, which may see it.
func (p *pool) listOf(e *available, slot uint8) int {
	l := p.visibleTo(e, slot)
	if l != decoded {
		return listAt(l, 0)
	}
	return listAt(l, p.needing(e))
}

// listAt returns the list of what is at a level and needed by so many jobs.
func listAt(level uint16, needing int) int {
	switch level {
	case augmented:
		return listAugmented
	case decoded:
		return min(listDecoded+max(needing, 1)-1, listRest)
	default:
		return listEncoded
	}
}

// enlist lists an object that the job needs and that became available to it, or came to be needed by fewer jobs.
func (d *draws) enlist(j *job, e *available) {
	r := j.groups.rowOf(d.objects.at(e.x).cell)
	if r < 0 {
		return
	}
	g := &j.groups.group[r*j.tiles+int(j.tiled.prev.get(j.index.of(e.x)))]
	k := d.pool.listOf(e, j.slot)
	l := &g.lists[k]
	if len(*l) == cap(*l) {
		d.compact(j, g, k)
		if n := len(*l); n > cap(*l)*3/4 {
			*l = append(make([]uint32, 0, max(8, n+n/4)), *l...)
		}
	}
	*l = append(*l, e.x)
}

// relist lists an entry that has changed, for each job that needs it and for which its list is no longer the same.
// gained are the jobs that did not prefer it.
func (d *draws) relist(e *available, was available, gained bits.JobSet) {
	pool := d.pool
	m := e.need & d.jobs.laidOut
	now, before := pool.needing(e), pool.needing(&was)
	if e.state == was.state && min(now, exactNeeders+1) == min(before, exactNeeders+1) && gained&m == 0 {
		return
	}
	for ; m != 0; m &= m - 1 {
		k := uint8(first(m))
		l, old := pool.visibleTo(e, k), pool.visibleTo(&was, k)
		if l != 0 && (gained.Has(k) || old == 0 || listAt(l, now) != listAt(old, before)) {
			d.enlist(d.jobs.slot[k], e)
		}
	}
}

// compact drops what is no longer available, is there twice, or is in a lower list.
func (d *draws) compact(j *job, g *group, k int) {
	pool := d.pool
	if words := pool.entries.n/bitsPerWord + 1; words > len(d.seen) {
		d.seen = append(d.seen, make([]uint64, words-len(d.seen))...)
	}
	var at [lookedAt]uint32
	var is [lookedAt]available
	l := g.lists[k]
	keep := l[:0]
	for len(l) > 0 {
		// Entries lie anywhere in memory. Some are looked up together and decided on afterwards, so that the processor
		// waits for all of them at once.
		part := l[:min(lookedAt, len(l))]
		l = l[len(part):]
		for i, x := range part {
			at[i] = d.objects.at(x).entry
		}
		for i := range part {
			is[i] = *pool.entries.at(at[i])
		}
		for i, x := range part {
			e := &is[i]
			if !pool.wants(j, e) || !j.groups.reclassified && pool.listOf(e, j.slot) < k || has(d.seen, at[i]) {
				continue
			}
			set(d.seen, at[i])
			keep = append(keep, x)
		}
	}
	for _, x := range keep {
		unset(d.seen, d.objects.at(x).entry)
	}
	g.lists[k] = keep
}

// best returns a preferred object of the group with fewest needers. Encoded objects are among them only where no object
// stays decoded. Objects that more than exactNeeders jobs need are compared only as far as a few of them are looked at.
func (d *draws) best(j *job, g *group) (x uint32, ok bool) {
	if len(g.lists[listAugmented]) > 0 {
		if x, ok = d.bestOfFew(j, g, listAugmented); ok {
			return x, true
		}
	}
	for k := listDecoded; k < listRest; k++ {
		for len(g.lists[k]) > 0 {
			i := int(d.rng.Uint64n(uint64(len(g.lists[k]))))
			y := g.lists[k][i]
			if d.belongs(j, g, k, i) {
				return y, true
			}
		}
	}
	if len(g.lists[listRest]) > 0 {
		if x, ok = d.bestOfFew(j, g, listRest); ok {
			return x, true
		}
	}
	if len(g.lists[listEncoded]) > 0 && d.jobs.anyForm.Has(j.slot) {
		return d.bestOfFew(j, g, listEncoded)
	}
	return 0, false
}

// bestOfFew returns the best of a few objects of a list whose objects differ in class.
func (d *draws) bestOfFew(j *job, g *group, k int) (x uint32, ok bool) {
	pool := d.pool
	if len(g.lists[k]) <= trials {
		return d.bestOfAll(j, g, k)
	}
	n, x, class := d.glance(j, g.lists[k], k)
	for n < trials && len(g.lists[k]) > 0 {
		i := int(d.rng.Uint64n(uint64(len(g.lists[k]))))
		y := g.lists[k][i]
		if !d.belongs(j, g, k, i) {
			continue
		}
		n++
		if c := pool.classFor(j, y); c < class {
			x, class = y, c
		}
	}
	return x, n > 0
}

// bestOfAll returns the best of a short list, ties at random, and removes what does not belong there.
func (d *draws) bestOfAll(j *job, g *group, k int) (x uint32, ok bool) {
	pool := d.pool
	class, ties := unavailable, uint64(0)
	for i := 0; i < len(g.lists[k]); {
		y := g.lists[k][i]
		e := pool.wanted(j, y)
		if e == nil || pool.listOf(e, j.slot) != k {
			d.belongs(j, g, k, i) // it does not: another object takes its place, or the list gets shorter
			continue
		}
		i++
		switch c := pool.classOf(e, j.slot); {
		case c < class:
			x, class, ties = y, c, 1
		case c == class:
			if ties++; d.rng.Uint64n(ties) == 0 {
				x = y
			}
		}
	}
	return x, class < unavailable
}

// glance does what bestOfFew does as long as every drawn object belongs in the list. Like compact it draws first, then
// looks everything up, then decides. What comes after the first object that does not belong there is as if it had not
// been drawn.
func (d *draws) glance(j *job, list []uint32, k int) (n int, x uint32, class int) {
	pool := d.pool
	var drawn, at [trials]uint32
	var is [trials]available
	if class = unavailable; len(list) < trials {
		return 0, 0, class
	}
	before := *d.rng
	for i := range drawn {
		drawn[i] = list[d.rng.Uint64n(uint64(len(list)))]
	}
	for i, y := range drawn {
		at[i] = d.objects.at(y).entry
	}
	for i := range at {
		is[i] = *pool.entries.at(at[i])
	}
	for n = range is {
		e := &is[n]
		if !pool.wants(j, e) || pool.listOf(e, j.slot) != k {
			*d.rng = before
			for range n {
				d.rng.Uint64n(uint64(len(list)))
			}
			return n, x, class
		}
		if c := pool.classOf(e, j.slot); c < class {
			x, class = drawn[n], c
		}
	}
	return trials, x, class
}

// belongs reports whether object i of a list belongs there, and removes it if it does not.
func (d *draws) belongs(j *job, g *group, k, i int) bool {
	e := d.pool.wanted(j, g.lists[k][i])
	at := -1
	if e != nil {
		at = d.pool.listOf(e, j.slot)
	}
	if at == k {
		return true
	}
	g.remove(k, i)
	if at > k || at >= 0 && j.groups.reclassified {
		d.enlist(j, e)
	}
	return false
}

// remove removes object i of a list.
func (g *group) remove(k, i int) {
	l := g.lists[k]
	l[i] = l[len(l)-1]
	g.lists[k] = l[:len(l)-1]
}
