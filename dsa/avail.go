package dsa

import (
	mathbits "math/bits"

	"larder/internal/bits"
	"larder/internal/ident"
)

// What is known about the availability of an object, one byte each.
const (
	levelMask  = 0x03 // what SetLevel said
	visShift   = 2    // the same as the visible jobs may see it
	visMask    = 0x03 << visShift
	neutralBit = 0x10 // a sequential job has touched it since a visible job did: vis must not rise
)

// object is what is known of every object; the zero value is one nobody spoke of.
type object struct {
	cell uint32 // its static cell; 0 = in no subset yet
	held uint32 // its entry in avail; 0 = none
}

// available is what is known besides of an object that is available, or neutral: a small part of all.
type available struct {
	need  bits.JobSet // visible jobs that still need it in their running epoch, inactive ones included
	x     uint32      // of a free entry: the next free one
	mark  uint16      // compact: seen in this round
	state uint8       // level, vis, neutral; 0 = the entry is free
}

// holding is the table of what is available.
type holding struct {
	avail []available // avail[0] is nobody's
	free  uint32      // first of a chain
	held  []uint64    // by object: has an entry. Asked first, because it is small
	nVis  int         // objects whose vis is above 0
	tidy  uint16      // the last run of compact
}

// entry returns the entry of x, or nil.
func (s *Sampler) entry(x uint32) *available {
	if !has(s.held, x) {
		return nil
	}
	return &s.avail[s.obj.at(x).held]
}

// hold makes an entry for x.
func (s *Sampler) hold(x uint32) *available {
	i := s.free
	if i == 0 {
		i = uint32(len(s.avail))
		s.avail = append(s.avail, available{})
	} else {
		s.free = s.avail[i].x
	}
	set(s.held, x)
	s.obj.at(x).held = i
	e := &s.avail[i]
	*e = available{x: x, need: s.needers(x)}
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

// setState stores the availability of an object, takes it out of the table when there is none, and lists it for who needs it when
// there is more of it.
func (s *Sampler) setState(e *available, b uint8) {
	a, key := e.state, keyOf(e)
	e.state = b
	switch was, is := a&visMask != 0, b&visMask != 0; {
	case is && !was:
		s.nVis++
		s.listAgain(e, -1)
	case was && !is:
		s.nVis--
	default:
		s.listAgain(e, key)
	}
	if b == 0 {
		x := e.x
		i := s.obj.at(x).held
		s.obj.at(x).held = 0
		unset(s.held, x)
		*e = available{x: s.free}
		s.free = i
	}
}

// SetLevel says how much of the work on x is done, as decided at the commit of a pick or an eviction: 0 = in storage, 1 =
// encoded in memory, 2 = decoded or better, in memory or in flight. Anything above 2 counts as 2.
func (s *Sampler) SetLevel(x ident.ObjectID, level uint8) {
	if x >= MaxObjects {
		return
	}
	if int(x) >= s.obj.n {
		if level == 0 {
			return
		}
		s.grow(int(x) + 1)
	}
	level = min(level, 2)
	e := s.entry(uint32(x))
	if e == nil {
		if level == 0 {
			return
		}
		e = s.hold(uint32(x))
	}
	a := e.state
	vis := level
	if a&neutralBit != 0 {
		vis = min(level, a>>visShift&levelMask)
	}
	b := level | vis<<visShift | a&neutralBit
	if level == 0 && a&levelMask != 0 { // evicted: the next load speaks for itself
		b = 0
	}
	s.setState(e, b)
}

// Level returns what SetLevel said last, 0 for an object nobody spoke of.
func (s *Sampler) Level(x ident.ObjectID) uint8 {
	if int(x) >= s.obj.n {
		return 0
	}
	if e := s.entry(uint32(x)); e != nil {
		return e.state & levelMask
	}
	return 0
}

// Neutral tells whether x owes its place in memory to a sequential job alone. Whoever evicts must take such objects first and
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
func (s *Sampler) Need(x ident.ObjectID) int {
	if int(x) >= s.obj.n {
		return 0
	}
	m := s.need(uint32(x)) & s.active & s.shown
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

// classOf is how little a job is to be preferred that takes x: decoded objects by needers, then encoded ones by needers. It is the
// same for every job.
func (s *Sampler) classOf(e *available) int {
	n := max((e.need & s.active).Len(), 1)
	if e.state&visMask == 1<<visShift {
		n += MaxJobs
	}
	return n
}

// wanted returns the entry of x if it is available and the job still needs it, or nil.
func (s *Sampler) wanted(j *job, x uint32) *available {
	e := &s.avail[s.obj.at(x).held] // of nobody, if it is not held: not visible
	if e.state&visMask == 0 || !e.need.Has(j.slot) {
		return nil
	}
	return e
}

// offered is the class of x for a job that may need it no more.
func (s *Sampler) offered(j *job, x uint32) int {
	if e := s.wanted(j, x); e != nil {
		return s.classOf(e)
	}
	return unlisted
}

func first(m bits.JobSet) int { return mathbits.TrailingZeros64(uint64(m)) }
