package dsa

import (
	"fmt"
	mathbits "math/bits"

	"larder/internal/bits"
	"larder/internal/ident"
)

// pool is what is available, for whom, and who prefers it (prefer.go). It has an entry for each object that is
// available or neutral, a small part of all, so the memory follows the caches and not the datasets.
//
// Invariant: an entry names the visible jobs that still need its object; no level for the rest is above that for the
// owners, and none that a job may see is above the one that SetLevel gave.
type pool struct {
	objects *objectTable
	jobs    *roster
	cells   *cells
	lists   lister
	scans   *scans

	entries table[available]   // entry 0 belongs to no object
	free    uint32             // first of a chain of free entries, linked by available.x
	visible int                // entries of which a visible job may see a level above 0
	marks   table[bits.JobSet] // by entry: slots from inlineSlots on that prefer it; empty until there is such a slot
	owners  []owners           // by number; 0 is all jobs

	latest   uint32 // object of the last pick of a visible job, or noObject: its next SetLevel is that job's doing
	taker    uint8  // the slot of that job
	decoding bool   // of SetDecoding
	apart    bool   // of KeepApart
}

// lister lists what becomes available, for the jobs that draw from it.
type lister interface {
	// relist is called after an entry that a laid-out job needs has changed, with what it was and the jobs that have come
	// to prefer it.
	relist(e *available, was available, gained bits.JobSet)
}

// available is an entry of the pool.
type available struct {
	need   bits.JobSet // visible jobs that still need the object in their running epoch, inactive ones included
	x      uint32      // the object; of a free entry: the next free one
	prefer uint16      // slots below inlineSlots that prefer it (prefer.go)
	state  uint16      // levels and owners, see below; 0 = the entry is free
}

// The state of an entry. An object has one level for its owners and one, not above it, for the rest. What a job may see
// is not above either.
const (
	levelMask    = 0x03 // level for its owners
	visShift     = 2    // level that visible owners may see
	visMask      = levelMask << visShift
	neutralBit   = 0x10 // a sequential job has touched it since a visible job did: what may be seen must not rise
	restShift    = 5    // level for the rest
	restMask     = levelMask << restShift
	visRestShift = 7 // level that the rest may see
	visRestMask  = levelMask << visRestShift
	ownersShift  = 9 // number of its owners in pool.owners

	bothLevels = levelMask | restMask
)

// Levels are forms (ident.Form).
const (
	decoded   = uint16(ident.Decoded)
	augmented = uint16(ident.Augmented)
)

// owners are the jobs that the higher level of some objects is for. Few sets occur at a time, so they are numbered.
type owners struct {
	jobs bits.JobSet // sets may become equal as jobs leave
	of   int         // objects that have these owners
}

// maxOwners is how many sets there may be. Beyond it objects have the lower level for all jobs.
const maxOwners = 1 << (16 - ownersShift)

const (
	allJobs  = ^bits.JobSet(0)
	noObject = ^uint32(0)
)

// entry returns the entry of x, or nil.
func (p *pool) entry(x uint32) *available {
	if !has(p.objects.pooled, x) {
		return nil
	}
	return p.entries.at(p.objects.at(x).entry)
}

// add makes an entry for x.
func (p *pool) add(x uint32) *available {
	i := p.free
	if i == 0 {
		i = uint32(p.entries.n)
		p.entries.extend(p.entries.n + 1)
		if p.marks.n > 0 {
			p.marks.extend(p.entries.n)
		}
	} else {
		p.free = p.entries.at(i).x
	}
	set(p.objects.pooled, x)
	p.objects.at(x).entry = i
	e := p.entries.at(i)
	*e = available{x: x, need: p.needers(x)}
	if x == p.latest {
		p.setPreferring(e, 0)
		p.markTaken(e, p.jobs.slot[p.taker])
	} else {
		p.setPreferring(e, allJobs) // it is not known who took it last
	}
	p.owners[0].of++
	return e
}

// remove frees an entry.
func (p *pool) remove(e *available) {
	p.owners[0].of--
	x := e.x
	i := p.objects.at(x).entry
	p.objects.at(x).entry = 0
	unset(p.objects.pooled, x)
	*e = available{x: p.free}
	p.free = i
}

// needers asks every job that holds x whether it needs it.
func (p *pool) needers(x uint32) bits.JobSet {
	var need bits.JobSet
	for m := p.cells.of(x).live; m != 0; m &= m - 1 {
		j := p.jobs.slot[first(m)]
		if l, ok := j.index.find(x); ok && j.visible() && j.owed.left != nil && has(j.owed.left, l) {
			need = need.With(j.slot)
		}
	}
	return need
}

// need returns the visible jobs that still need x.
func (p *pool) need(x uint32) bits.JobSet {
	if e := p.entry(x); e != nil {
		return e.need
	}
	return p.needers(x)
}

// ownersOf returns the jobs that the higher level of an object is for.
func (p *pool) ownersOf(e *available) bits.JobSet { return p.owners[e.state>>ownersShift].jobs }

// owner returns the number of a set of jobs; false when there are too many sets.
func (p *pool) owner(jobs bits.JobSet) (n int, ok bool) {
	free := 0
	for i := range p.owners {
		switch o := &p.owners[i]; {
		case o.jobs == jobs:
			return i, true
		case o.of == 0 && i > 0:
			free = i
		}
	}
	switch {
	case free > 0:
		p.owners[free].jobs = jobs
	case len(p.owners) < maxOwners:
		free = len(p.owners)
		p.owners = append(p.owners, owners{jobs: jobs})
	default:
		return 0, false
	}
	return free, true
}

// forgetOwner removes the job in that slot from all owners: what was available to it is not for the next job in its
// slot.
func (p *pool) forgetOwner(slot uint8) {
	for i := range p.owners[1:] {
		o := &p.owners[i+1]
		o.jobs = o.jobs.Without(slot)
	}
}

// levelFor returns the level of an entry for the job in that slot, preferred or not.
func (p *pool) levelFor(e *available, slot uint8) uint16 {
	if p.ownersOf(e).Has(slot) {
		return e.state >> visShift & levelMask
	}
	return e.state >> visRestShift & levelMask
}

// visibleTo returns the level of an entry as the job in that slot may see it: 0 unless the job prefers it. What is
// augmented for a job is always preferred, because it leaves when its owners have had it.
func (p *pool) visibleTo(e *available, slot uint8) uint16 {
	l := p.levelFor(e, slot)
	if e.prefer>>slot&1 != 0 || l == augmented || slot >= inlineSlots && p.preferring(e).Has(slot) {
		return l
	}
	return 0
}

// changed passes a change of an entry on, if some job may draw from it.
func (p *pool) changed(e *available, was available, gained bits.JobSet) {
	if e.state&visMask != 0 && e.need&p.jobs.laidOut != 0 {
		p.lists.relist(e, was, gained)
	}
}

// setState stores the availability of an object, frees its entry when there is none, and reports the change.
func (p *pool) setState(e *available, b uint16, gained bits.JobSet) {
	old := *e
	e.state = b
	p.owners[b>>ownersShift].of++
	switch was, is := old.state&visMask != 0, b&visMask != 0; {
	case is && !was:
		p.visible++
	case was && !is:
		p.visible--
	default:
	}
	p.changed(e, old, gained)
	p.owners[old.state>>ownersShift].of--
	if b == 0 {
		p.remove(e)
	}
}

// setLevel is Sampler.SetLevelFor for an object that the table holds.
func (p *pool) setLevel(x uint32, level, rest uint16, jobs bits.JobSet) {
	e := p.entry(x)
	if e == nil {
		if level == 0 {
			return
		}
		e = p.add(x)
	}
	a := e.state
	if level == 0 && a&levelMask != 0 { // evicted: the next load decides again which jobs prefer it
		p.setState(e, 0, 0)
		return
	}
	vis, visRest := level, rest
	if a&neutralBit != 0 {
		vis, visRest = min(vis, a>>visShift&levelMask), min(visRest, a>>visRestShift&levelMask)
		if vis > visRest {
			jobs &= p.ownersOf(e) // jobs that own it only through a sequential job may not see it
		}
	}
	own := 0
	if level > rest {
		var ok bool
		if own, ok = p.owner(jobs); !ok {
			level, vis = rest, visRest
		}
	}
	b := level | vis<<visShift | a&neutralBit | rest<<restShift | visRest<<visRestShift | uint16(own)<<ownersShift
	if b == a && a != 0 { // nothing has changed
		return
	}
	gained := p.updateMarks(e, b)
	p.setState(e, b, gained)
}

// makeNeutral notes that a sequential job has touched x: from here on it counts as no more available than it is now,
// until a visible job picks it, because the order of the dataset distinguishes objects.
func (p *pool) makeNeutral(x uint32) {
	e := p.entry(x)
	if e == nil {
		e = p.add(x)
	}
	e.state |= neutralBit
}

// hide makes an object neutral and takes it from the sight of all jobs.
func (p *pool) hide(x uint32) {
	if e := p.entry(x); e != nil && e.state&visMask != 0 {
		p.setState(e, e.state&^(visMask|visRestMask)|neutralBit, 0)
	}
}

// take notes that a visible job has taken the object of an entry. What the object owes to sequential jobs ends here:
// this take would have made it available as well.
func (p *pool) take(e *available, j *job) {
	was := *e
	had := p.preferring(e)
	e.need = e.need.Without(j.slot)
	p.markTaken(e, j)
	p.changed(e, was, p.preferring(e)&^had)
	if a := e.state; a&neutralBit != 0 {
		b := a&^(visMask|visRestMask|neutralBit) | a&bothLevels<<visShift
		gained := p.updateMarks(e, b)
		p.setState(e, b, gained)
	}
}

// needNoMore notes that the job needs x no more, without having taken it.
func (p *pool) needNoMore(x uint32, j *job) {
	if e := p.entry(x); e != nil {
		was := *e
		e.need = e.need.Without(j.slot)
		p.changed(e, was, 0)
	}
}

// needAgain notes that a visible job needs x again.
func (p *pool) needAgain(x uint32, j *job) {
	if e := p.entry(x); e != nil {
		e.need = e.need.With(j.slot)
	}
}

// counted leaves out of a set of jobs those that are slow beside two or more active jobs that hold x too. Of these only
// jobs in serves are considered: those that the form in question serves.
func (p *pool) counted(m bits.JobSet, x uint32, serves bits.JobSet) bits.JobSet {
	r := p.jobs
	if m&r.slow == 0 {
		return m
	}
	holders := p.cells.of(x).live & r.marked & r.active & serves
	for t := m & r.slow; t != 0; t &= t - 1 {
		if j := r.slot[first(t)]; (j.pace.faster & holders).Len() >= 2 {
			m = m.Without(j.slot)
		}
	}
	return m
}

// needing returns how many active jobs need the object of an entry, without those that do not count.
func (p *pool) needing(e *available) int { return p.counted(e.need&p.jobs.active, e.x, allJobs).Len() }

// needOf is Sampler.NeedOf.
func (p *pool) needOf(x uint32, jobs bits.JobSet) int {
	r := p.jobs
	m := p.counted(p.need(x)&r.active&r.marked&jobs, x, jobs)
	n := m.Len()
	for t := m & r.scanning; t != 0; t &= t - 1 {
		n += p.scans.weight(r.slot[first(t)], x) - 1
	}
	for m &= r.strict; m != 0; m &= m - 1 {
		if j := r.slot[first(m)]; j.queue.queued() > 0 && !j.mayDraw(x) {
			n += soon - 1
		}
	}
	return n
}

// soon is what a queued sample weighs in Need: more than all jobs together that need it at some time.
const soon = MaxJobs + 1

// unavailable is the class of what is not available; every other class is lower.
const unavailable = 255

// encodedClass is what classes of encoded objects are above.
const encodedClass = int(augmented-decoded)*MaxJobs + MaxJobs

// classOf returns the class of an entry that the job in that slot may see; the lowest is picked first: augmented
// objects by needers, then decoded ones, then encoded ones.
func (p *pool) classOf(e *available, slot uint8) int {
	return max(p.needing(e), 1) + int(augmented-p.visibleTo(e, slot))*MaxJobs
}

// wants reports whether the object of an entry is available to the job, and the job still needs it.
func (p *pool) wants(j *job, e *available) bool {
	return e.need.Has(j.slot) && p.visibleTo(e, j.slot) != 0
}

// wanted returns the entry of x if it is available to the job and the job still needs it, or nil.
func (p *pool) wanted(j *job, x uint32) *available {
	e := p.entries.at(p.objects.at(x).entry) // of no object, if x has none: not visible
	if !p.wants(j, e) {
		return nil
	}
	return e
}

// classFor returns the class of x for the job; unavailable if the job needs it no more.
func (p *pool) classFor(j *job, x uint32) int {
	if e := p.wanted(j, x); e != nil {
		return p.classOf(e, j.slot)
	}
	return unavailable
}

// level returns the level that SetLevel gave x for the job in that slot.
func (p *pool) level(x uint32, slot uint8) uint16 {
	e := p.entry(x)
	switch {
	case e == nil:
		return 0
	case p.ownersOf(e).Has(slot):
		return e.state & levelMask
	default:
		return e.state >> restShift & levelMask
	}
}

// Check verifies the entries, and what is counted of them. settled says that no pass is under way.
func (p *pool) Check(settled bool) error {
	visible, entries := 0, 0
	own := make([]int, maxOwners)
	for i := p.free; i != 0; i = p.entries.at(i).x {
		if entries++; entries >= p.entries.n || p.entries.at(i).state != 0 {
			return fmt.Errorf("entry %d is free and in use", i)
		}
	}
	for x := range uint32(p.objects.n) {
		i := p.objects.at(x).entry
		if has(p.objects.pooled, x) != (i != 0) || int(i) >= p.entries.n {
			return fmt.Errorf("object %d: pooled %v, entry %d of %d", x, has(p.objects.pooled, x), i, p.entries.n)
		}
		if i == 0 {
			continue
		}
		entries++
		e := p.entries.at(i)
		if err := p.checkEntry(e, x, settled); err != nil {
			return err
		}
		if e.state&visMask != 0 {
			visible++
		}
		own[e.state>>ownersShift]++
	}
	for i, o := range p.owners {
		if n := own[i]; o.of != n {
			return fmt.Errorf("%d objects belong to jobs %x, counted %d", n, o.jobs, o.of)
		}
		if i > 0 && o.of > 0 && ^o.jobs != 0 && o.jobs&^p.jobs.live != 0 {
			return fmt.Errorf("objects belong to slots %x, in use are %x", o.jobs, p.jobs.live)
		}
	}
	if visible != p.visible {
		return fmt.Errorf("%d objects are visible, counted %d", visible, p.visible)
	}
	if entries != p.entries.n-1 {
		return fmt.Errorf("%d of %d entries are free or in use", entries, p.entries.n-1)
	}
	return nil
}

// checkEntry verifies the entry of object x.
func (p *pool) checkEntry(e *available, x uint32, settled bool) error {
	a := e.state
	if e.x != x || a == 0 {
		return fmt.Errorf("the entry of object %d names %d, state %#x", x, e.x, a)
	}
	own, vis, rest, visRest := a&levelMask, a>>visShift&levelMask, a>>restShift&levelMask, a>>visRestShift&levelMask
	if vis > own || visRest > rest || rest > own || visRest > vis {
		return fmt.Errorf("object %d is at level %d and visible at %d, for the rest at %d and %d", x, own, vis, rest, visRest)
	}
	if need := p.needers(x); settled && need != e.need {
		return fmt.Errorf("object %d is needed by %x, its entry has %x", x, need, e.need)
	}
	return nil
}

// first returns the lowest slot of a set that is not empty.
func first(m bits.JobSet) int { return mathbits.TrailingZeros64(uint64(m)) }
