package dsa

import "larder/internal/bits"

// This file decides which available objects a job prefers.
//
// To serve an available object first saves a load only if the object would leave memory before the job comes to it. For
// a job alone nothing leaves early. What is in memory stays, and a job that served it first would have the same objects
// early in every epoch and save nothing. So a job prefers an available object only if another job has taken it since
// the job took it last:
//
//   - during the job's running epoch, or
//   - before that epoch began, if at its beginning some other job had taken the object in its own epoch and needed it
//     no more.
//
// Every other available object is drawn like one that is not available: uniformly.
//
// Which take counts for whom:
//
//   - A decoded object serves jobs of equal recipe prefix (JobSpec.Recipe), so takes by those count. When its decoded
//     form leaves, an object is preferred no more, even if it stays encoded.
//   - An encoded object serves all jobs. Where decoded objects stay in memory (SetDecoding), encoded ones may stay for
//     many epochs, because what is read goes to the decoded tier. There an encoded object is preferred only if another
//     job has read it from storage, and it is served only instead of an object that was drawn uniformly and is not in
//     memory, or is preferred itself. So what is in memory, in any form, comes in proportion to what remains. Where nothing stays decoded,
//     takes count as they do for decoded objects.
//   - A job that goes less than a quarter as fast as this one (pace) does not count. What it still needs changes so
//     slowly that it would tell objects apart for many epochs of the fast job. Where two or more jobs that want an
//     object go that much faster, the slow job's need counts neither in classes nor in Need. Else it would decide what
//     stays in memory, and with it what the fast jobs prefer of each other.
//
// Why epochs of a job do not remember: besides chance, a choice depends on who took an object after the job did. That
// is renewed at every take of the job itself. It reaches back one epoch of a neighbour, which is at most four epochs of
// the job. What has been in memory for many epochs does not reach a choice. docs/design/orders.md has the
// argument.

// unknown is no object, for Sampler.latest.
const unknown = ^uint32(0)

// inlineSlots is how many slots have their mark in the entry; the marks of others are in a table of their own, which
// few need.
const inlineSlots = 16

// preferring returns the jobs whose mark an entry has. A job without a need for the object may have it, too.
func (s *Sampler) preferring(e *available) bits.JobSet {
	m := bits.JobSet(e.prefer)
	if s.marks.n > 0 {
		m |= *s.marks.at(s.obj.at(e.x).held)
	}
	return m
}

// setPreferring stores the marks of an entry.
func (s *Sampler) setPreferring(e *available, m bits.JobSet) {
	e.prefer = uint16(m)
	if s.marks.n > 0 {
		*s.marks.at(s.obj.at(e.x).held) = m &^ (1<<inlineSlots - 1)
	}
}

// taken marks an entry whose object a job takes: the jobs that the take counts for prefer it from here on, the taker
// does not.
func (s *Sampler) taken(e *available, by *job) {
	formed := s.formed(e)
	more := formed&by.kin | s.encodedToo&^formed
	s.setPreferring(e, (s.preferring(e) | more&^by.faster).Without(by.slot))
}

// remark changes marks with the forms of an object, whose state is to become b, and returns who has come to prefer it.
// What has been said of an object (restMask) reports whether it was read; what jobs may see (formed) tells whom it serves.
func (s *Sampler) remark(e *available, b uint16) (gained bits.JobSet) {
	had := s.preferring(e)
	was, is := s.formed(e), s.formed(&available{state: b})
	m := had &^ (was &^ is &^ s.encodedToo) // the form that they preferred has left
	more := is &^ was
	if e.x == s.latest { // else who made it is not known
		by := s.slot[s.latestTaker]
		more &= by.kin
		if b&restMask != 0 && e.state&restMask == 0 {
			more |= ^is // it was read: whoever finds it encoded
		}
		more = (more &^ by.faster).Without(by.slot)
	}
	m |= more
	s.setPreferring(e, m)
	return m &^ had
}

// resides reports whether x is in memory in any form, for anybody, and the job does not prefer it.
func (s *Sampler) resides(j *job, x uint32) bool {
	e := s.entry(x)
	return e != nil && e.state&visMask != 0 && !s.preferring(e).Has(j.slot)
}

// formed returns the jobs that find an object decoded, or further.
func (s *Sampler) formed(e *available) bits.JobSet {
	own, rest := e.state>>visShift&levelMask, e.state>>visRestShift&levelMask
	var formed bits.JobSet
	if own >= decoded {
		formed |= s.ownersOf(e)
	}
	if rest >= decoded {
		formed |= ^s.ownersOf(e)
	}
	return formed
}

// lapse takes the mark of a job whose epoch begins off an entry, unless some other job has taken the object and needs
// it no more. A job in its first epoch has taken nothing, so whatever others took counts for it.
func (s *Sampler) lapse(e *available, j *job) {
	m := s.preferring(e)
	if !m.Has(j.slot) && !j.fresh {
		return
	}
	serves := everybody
	if s.levelFor(e, j.slot) >= decoded {
		serves = j.kin
	}
	others := (s.cells[s.obj.at(e.x).cell].live & s.shown & s.active & serves &^ e.need).Without(j.slot)
	for t := others & s.slow; t != 0; t &= t - 1 {
		if k := s.slot[first(t)]; k.faster.Has(j.slot) && !s.hook.countSlow {
			others = others.Without(k.slot)
		}
	}
	if others == 0 {
		s.setPreferring(e, m.Without(j.slot))
	} else {
		s.setPreferring(e, m.With(j.slot))
	}
}

// counted leaves out of a set of jobs those that are slow beside two or more active jobs that want x too. Of these only
// those in serves are considered: the jobs that the form in question serves.
func (s *Sampler) counted(m bits.JobSet, x uint32, serves bits.JobSet) bits.JobSet {
	if m&s.slow == 0 || s.hook.countSlow {
		return m
	}
	want := s.cells[s.obj.at(x).cell].live & s.shown & s.active & serves
	for t := m & s.slow; t != 0; t &= t - 1 {
		if j := s.slot[first(t)]; (j.faster & want).Len() >= 2 {
			m = m.Without(j.slot)
		}
	}
	return m
}

// The bounds of pace: a job becomes slow when it takes less than a quarter of its epoch during one of the fast job, and
// ceases to be slow when it takes a third.
const (
	slowBelow = 4 // a quarter
	slowAbove = 3 // a third
)

// pace compares how far other jobs have come while j took as many samples as it has: an epoch, or parts of several that
// it gave up. A job that resumes an epoch has not taken what was withdrawn, so it says nothing of others too early.
func (s *Sampler) pace(j *job) {
	if j.took-j.since < uint64(len(j.subset)) && j.met != 0 {
		return
	}
	changed := false
	for m := j.near & j.met & s.live; m != 0; m &= m - 1 {
		k := s.slot[first(m)]
		took, n := k.took-j.began[k.slot], uint64(len(k.subset))
		was := k.faster.Has(j.slot)
		if is := took*slowBelow < n || was && took*slowAbove < n; is != was {
			changed = true
			if is {
				k.faster = k.faster.With(j.slot)
			} else {
				k.faster = k.faster.Without(j.slot)
			}
			s.setSlow(k)
		}
	}
	j.since, j.met = j.took, 0
	for m := j.near & s.live & s.shown & s.active; m != 0; m &= m - 1 {
		if k := s.slot[first(m)]; k != j {
			j.began[k.slot] = k.took
			j.met = j.met.With(k.slot)
		}
	}
	if changed {
		s.recount(j)
	}
}

func (s *Sampler) setSlow(k *job) {
	if k.faster != 0 {
		s.slow = s.slow.With(k.slot)
	} else {
		s.slow = s.slow.Without(k.slot)
	}
}

// recount says that classes of objects near j may have changed without a take: in the running epochs of its neighbours
// lists may hold objects that belong in lower ones (groups.go).
func (s *Sampler) recount(j *job) {
	for m := (j.near | 1<<j.slot) & s.grouped; m != 0; m &= m - 1 {
		s.slot[first(m)].groups.recounted = true
	}
}

// forgetPace makes what was found out about the job in that slot void: it has left, stopped, come back or another subset.
func (s *Sampler) forgetPace(slot uint8) {
	for _, k := range s.slot {
		if k == nil {
			continue
		}
		k.met, k.faster = k.met.Without(slot), k.faster.Without(slot)
		if k.slot == slot {
			k.met, k.faster = 0, 0
		}
		s.setSlow(k)
	}
}

// kindred tells the jobs of equal recipe prefix of each other when one joins or leaves.
func (s *Sampler) kindred() {
	for _, j := range s.slot {
		if j == nil {
			continue
		}
		j.kin = 0
		for _, k := range s.slot {
			if k != nil && k.recipe == j.recipe {
				j.kin = j.kin.With(k.slot)
			}
		}
	}
}
