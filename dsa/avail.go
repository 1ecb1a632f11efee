package dsa

import (
	mathbits "math/bits"

	"larder/internal/bits"
	"larder/internal/ident"
)

// What is known about the availability of an object, two bytes each. It has one level for some jobs and one, not above it, for the rest.
const (
	levelMask    = 0x03 // what SetLevel said, for the jobs of its owners
	visShift     = 2    // the same as the visible jobs may see it
	visMask      = levelMask << visShift
	neutralBit   = 0x10 // a sequential job has touched it since a visible job did: vis must not rise
	restShift    = 5    // what SetLevel said for the rest
	restMask     = levelMask << restShift
	visRestShift = 7 // the same as the visible jobs may see it
	visRestMask  = levelMask << visRestShift
	toldMask     = levelMask | restMask
	ownersShift  = 9 // number of its owners in holding.owners
)

// The highest levels.
const (
	decoded   = 2
	augmented = 3
)

// object is what is known of every object; the zero value is one nobody spoke of.
type object struct {
	cell uint32 // its static cell; 0 = in no subset yet
	held uint32 // its entry in avail; 0 = none
}

// available is what is known besides of an object that is available, or neutral: a small part of all.
type available struct {
	need   bits.JobSet // visible jobs that still need it in their running epoch, inactive ones included
	x      uint32      // of a free entry: the next free one
	prefer uint16      // slots below inlineSlots that prefer it (prefer.go)
	state  uint16      // levels, vis, neutral, owners; 0 = the entry is free
}

// owners are the jobs that the higher level of some objects is for. Few sets occur at a time, so they are numbered, and an object
// takes no more memory for it.
type owners struct {
	jobs bits.JobSet // sets may become equal as jobs leave
	of   int         // objects
}

// everybody is all jobs.
const everybody = ^bits.JobSet(0)

// maxOwners is how many sets there may be. Beyond it objects have the lower level for everybody.
const maxOwners = 1 << (16 - ownersShift)

// holding is the table of what is available.
type holding struct {
	avail table[available]   // entry 0 is nobody's
	free  uint32             // first of a chain
	held  []uint64           // by object: has an entry. Asked first, because it is small
	nVis  int                // objects whose vis is above 0
	seen  []uint64           // by entry: met by compact; all zero between its runs
	marks table[bits.JobSet] // by entry: slots from inlineSlots on that prefer it; empty until there is one

	owners []owners // by number; 0 is everybody
}

// entry returns the entry of x, or nil.
func (s *Sampler) entry(x uint32) *available {
	if !has(s.held, x) {
		return nil
	}
	return s.avail.at(s.obj.at(x).held)
}

// hold makes an entry for x.
func (s *Sampler) hold(x uint32) *available {
	i := s.free
	if i == 0 {
		i = uint32(s.avail.n)
		s.avail.extend(s.avail.n + 1)
		if words := s.avail.n/bitsPerWord + 1; words > len(s.seen) {
			s.seen = append(s.seen, 0)
		}
		if s.marks.n > 0 {
			s.marks.extend(s.avail.n)
		}
	} else {
		s.free = s.avail.at(i).x
	}
	set(s.held, x)
	s.obj.at(x).held = i
	e := s.avail.at(i)
	*e = available{x: x, need: s.needers(x)}
	if x == s.latest {
		s.setPreferring(e, 0)
		s.taken(e, s.slot[s.latestTaker])
	} else {
		s.setPreferring(e, everybody) // who took it last is not known
	}
	s.owners[0].of++
	return e
}

// needers asks every job whether it needs x.
func (s *Sampler) needers(x uint32) bits.JobSet {
	var need bits.JobSet
	for m := s.cells[s.obj.at(x).cell].live; m != 0; m &= m - 1 {
		j := s.slot[first(m)]
		if l, ok := j.at.find(x); ok && j.visible() && j.left != nil && has(j.left, l) {
			need = need.With(j.slot)
		}
	}
	return need
}

// need returns the visible jobs that still need x.
func (s *Sampler) need(x uint32) bits.JobSet {
	if e := s.entry(x); e != nil {
		return e.need
	}
	return s.needers(x)
}

// ownersOf returns the jobs that the higher level of an object is for.
func (s *Sampler) ownersOf(e *available) bits.JobSet { return s.owners[e.state>>ownersShift].jobs }

// owner returns the number of a set of jobs.
func (s *Sampler) owner(jobs bits.JobSet) (n int, ok bool) {
	free := 0
	for i := range s.owners {
		switch o := &s.owners[i]; {
		case o.jobs == jobs:
			return i, true
		case o.of == 0 && i > 0:
			free = i
		}
	}
	switch {
	case free > 0:
		s.owners[free].jobs = jobs
	case len(s.owners) < maxOwners:
		free = len(s.owners)
		s.owners = append(s.owners, owners{jobs: jobs})
	default:
		return 0, false
	}
	return free, true
}

// visibleTo returns the level of an entry as the job in that slot may see it: 0 unless the job prefers it. What is augmented for a job is always
// preferred: it leaves when those that it is for have had it.
func (s *Sampler) visibleTo(e *available, slot uint8) uint16 {
	l := s.levelFor(e, slot)
	if e.prefer>>slot&1 != 0 || l == augmented || slot >= inlineSlots && s.preferring(e).Has(slot) || s.hook.preferAll {
		return l
	}
	return 0
}

// levelFor returns the level of an entry for the job in that slot, preferred or not.
func (s *Sampler) levelFor(e *available, slot uint8) uint16 {
	if s.ownersOf(e).Has(slot) {
		return e.state >> visShift & levelMask
	}
	return e.state >> visRestShift & levelMask
}

// setState stores the availability of an object, takes it out of the table when there is none, and lists it for who needs it when
// there is more of it, or when they have come to prefer it.
func (s *Sampler) setState(e *available, b uint16, gained bits.JobSet) {
	old := *e
	e.state = b
	s.owners[b>>ownersShift].of++
	switch was, is := old.state&visMask != 0, b&visMask != 0; {
	case is && !was:
		s.nVis++
	case was && !is:
		s.nVis--
	default:
	}
	s.listAgain(e, &old, gained)
	s.owners[old.state>>ownersShift].of--
	if b == 0 {
		s.owners[0].of--
		x := e.x
		i := s.obj.at(x).held
		s.obj.at(x).held = 0
		unset(s.held, x)
		*e = available{x: s.free}
		s.free = i
	}
}

// SetLevel says how much of the work on x is done, as decided at the commit of a pick or an eviction: 0 = in storage, 1 =
// encoded in memory, 2 = decoded, in memory or in flight. Anything above 2 counts as 2.
func (s *Sampler) SetLevel(x ident.ObjectID, level uint8) {
	level = min(level, decoded)
	s.SetLevelFor(x, level, ^bits.JobSet(0), level)
}

// SetLevelFor is SetLevel where what is done serves some jobs only: for those of jobs (see JobSet) x is at level, for the rest at the level
// rest, which counts as no more than the other. Level 3 is for a sample that is augmented as those jobs will take it; anything above counts as 3. Which jobs
// those are must not depend on what x is, only on what happened to it.
func (s *Sampler) SetLevelFor(x ident.ObjectID, level uint8, jobs bits.JobSet, rest uint8) {
	if x >= MaxObjects {
		return
	}
	if int(x) >= s.obj.n {
		if level == 0 {
			return
		}
		s.grow(int(x) + 1)
	}
	level = min(level, augmented)
	rest = min(level, rest)
	if ^jobs != 0 {
		jobs &= s.live // a slot is somebody else's when it is used again
	}
	e := s.entry(uint32(x))
	if e == nil {
		if level == 0 {
			return
		}
		e = s.hold(uint32(x))
	}
	a := e.state
	if level == 0 && a&levelMask != 0 { // evicted: the next load speaks for itself
		s.setState(e, 0, 0)
		return
	}
	vis, visRest := uint16(level), uint16(rest)
	if a&neutralBit != 0 {
		vis, visRest = min(vis, a>>visShift&levelMask), min(visRest, a>>visRestShift&levelMask)
		if vis > visRest {
			jobs &= s.ownersOf(e) // whom a sequential job brought it is shown nothing of it
		}
	}
	own := 0
	if level > rest {
		var ok bool
		if own, ok = s.owner(jobs); !ok {
			level, vis = rest, visRest
		}
	}
	b := uint16(level) | vis<<visShift | a&neutralBit | uint16(rest)<<restShift | visRest<<visRestShift | uint16(own)<<ownersShift
	if b == a && a != 0 { // nothing of it is news
		return
	}
	gained := s.remark(e, b)
	s.setState(e, b, gained)
}

// JobSet returns the set of the job alone, for SetLevelFor and NeedOf; of nobody, if it has not joined. It is the same until the job leaves.
func (s *Sampler) JobSet(id ident.JobID) bits.JobSet {
	if j := s.byID[id]; j != nil {
		return bits.JobSet(0).With(j.slot)
	}
	return 0
}

// Level returns what SetLevel said last, the higher one of SetLevelFor, 0 for an object nobody spoke of.
func (s *Sampler) Level(x ident.ObjectID) uint8 {
	if int(x) >= s.obj.n {
		return 0
	}
	if e := s.entry(uint32(x)); e != nil {
		return uint8(e.state & levelMask)
	}
	return 0
}

// LevelOf returns the level that x has for a job, of what was said last; 0 for an unknown job.
func (s *Sampler) LevelOf(x ident.ObjectID, id ident.JobID) uint8 {
	j := s.byID[id]
	if j == nil || int(x) >= s.obj.n {
		return 0
	}
	e := s.entry(uint32(x))
	switch {
	case e == nil:
		return 0
	case s.ownersOf(e).Has(j.slot):
		return uint8(e.state & levelMask)
	default:
		return uint8(e.state >> restShift & levelMask)
	}
}

// Neutral reports whether x owes its place in memory to a sequential job alone. Whoever evicts must take such objects first and
// must not let one displace another object: then what visible jobs find is what it would be without the sequential job.
func (s *Sampler) Neutral(x ident.ObjectID) bool {
	if int(x) >= s.obj.n {
		return false
	}
	e := s.entry(uint32(x))
	return e != nil && e.state&neutralBit != 0 && e.state&visMask == 0
}

// makeNeutral says that a sequential job has touched x: from here on it counts as no more available than it is now, until a visible
// job picks it, because the order of the dataset tells objects apart.
func (s *Sampler) makeNeutral(x uint32) {
	e := s.entry(x)
	if e == nil {
		e = s.hold(x)
	}
	e.state |= neutralBit
}

// Need returns how many active visible jobs still need x in their running epoch. It is what eviction goes by. A Strict job that
// has x in its queue, and so takes it within its window, counts for soon others: else what epochs that have just begun need some
// time would push out what somebody is about to take.
func (s *Sampler) Need(x ident.ObjectID) int { return s.NeedOf(x, ^bits.JobSet(0)) }

// NeedOf is Need among some jobs (see JobSet): those that a form of x serves.
func (s *Sampler) NeedOf(x ident.ObjectID, jobs bits.JobSet) int {
	if int(x) >= s.obj.n {
		return 0
	}
	m := s.counted(s.need(uint32(x))&s.active&s.shown&jobs, uint32(x), jobs)
	n := m.Len()
	for m &= s.strictly; m != 0; m &= m - 1 {
		if j := s.slot[first(m)]; j.names.queued() > 0 && !j.mayDraw(uint32(x)) {
			n += soon - 1
		}
	}
	return n
}

// soon is what a queued sample weighs in Need: more than all jobs that need it some time.
const soon = MaxJobs + 1

// unlisted is the class of what is not available; every other is lower.
const unlisted = 255

// encodedClass is what classes of encoded objects are above.
const encodedClass = (augmented-decoded)*MaxJobs + MaxJobs

// classOf is how little the job in that slot is to prefer x, which it may see: augmented objects by needers, then decoded ones, then
// encoded ones.
func (s *Sampler) classOf(e *available, slot uint8) int {
	return max(s.needing(e), 1) + int(augmented-s.visibleTo(e, slot))*MaxJobs
}

// wants reports whether what an entry is of is available to the job, and the job still needs it.
func (s *Sampler) wants(j *job, e *available) bool {
	return e.need.Has(j.slot) && s.visibleTo(e, j.slot) != 0
}

// wanted returns the entry of x if it is available to the job and the job still needs it, or nil.
func (s *Sampler) wanted(j *job, x uint32) *available {
	e := s.avail.at(s.obj.at(x).held) // of nobody, if it is not held: not visible
	if !s.wants(j, e) {
		return nil
	}
	return e
}

// offered is the class of x for a job that may need it no more.
func (s *Sampler) offered(j *job, x uint32) int {
	if e := s.wanted(j, x); e != nil {
		return s.classOf(e, j.slot)
	}
	return unlisted
}

func first(m bits.JobSet) int { return mathbits.TrailingZeros64(uint64(m)) }
