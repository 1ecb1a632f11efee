package dsa

import "larder/internal/bits"

// This file decides which available objects a job prefers. Step 2 of a pick takes a preferred object first; any other
// available object has the same chance as one that is not available: the draw is uniform.
//
// To take an available object first saves a load only if the object would leave memory before the job comes to it. For
// a job alone no object leaves early. A job that took what is in memory first would have the same objects early in
// every epoch, and save nothing. So a job prefers an available object only if another job has taken it since the job
// took it last:
//
//   - during the job's running epoch, or
//   - before that epoch began, if at its beginning some other job had taken the object in its own epoch and needed it
//     no more.
//
// Which take counts for whom:
//
//   - A decoded object serves jobs of equal recipe prefix (JobSpec.Recipe), so takes by those count. When its decoded
//     form leaves, the preference ends, even if the object stays encoded.
//   - An encoded object serves all jobs. Where decoded objects stay in memory (SetDecoding), encoded ones may stay for
//     many epochs, because what is read goes to the decoded tier. There a job prefers an encoded object only if another
//     job has read it from storage, and picks it only in place of an object that was drawn uniformly and is not in
//     memory, or is preferred itself. So what is in memory, in any form, comes in proportion to what remains. Where no
//     object stays decoded, takes count as they do for decoded objects.
//   - A job that goes less than a quarter as fast as this one (pace.go) does not count. What it still needs changes so
//     slowly that it would tell objects apart for many epochs of the fast job. Where two or more jobs that hold an
//     object go that much faster, the slow job's need counts neither in classes nor in Need. Otherwise it would decide
//     what stays in memory, and with it what the fast jobs prefer of each other.
//
// Why epochs do not remember: besides chance, a choice depends on who took an object after the job did. Every take of
// the job itself renews that. It reaches back one epoch of a neighbour, at most four epochs of the job. What has been
// in memory for many epochs does not reach a choice. docs/design/orders.md has the argument.

// inlineSlots is how many slots have their mark in the entry. The marks of others are in a table of their own, because
// few samplers have so many jobs.
const inlineSlots = 16

// preferring returns the jobs whose mark an entry has. A job that does not need the object may have it, too.
func (p *pool) preferring(e *available) bits.JobSet {
	m := bits.JobSet(e.prefer)
	if p.marks.n > 0 {
		m |= *p.marks.at(p.objects.at(e.x).entry)
	}
	return m
}

// setPreferring stores the marks of an entry.
func (p *pool) setPreferring(e *available, m bits.JobSet) {
	e.prefer = uint16(m)
	if p.marks.n > 0 {
		*p.marks.at(p.objects.at(e.x).entry) = m &^ (1<<inlineSlots - 1)
	}
}

// markTaken marks an entry whose object a job takes: the jobs that the take counts for prefer it from here on, the
// taker does not.
func (p *pool) markTaken(e *available, by *job) {
	formed := p.formed(e)
	more := formed&by.peers.sameRecipe | p.jobs.anyForm&^formed
	p.setPreferring(e, (p.preferring(e) | more&^by.pace.faster).Without(by.slot))
}

// updateMarks changes marks with the forms of an object, whose state is about to become b, and returns who has come to
// prefer it. The level that SetLevel gave the rest says whether the object was read; what jobs may see says whom it
// serves.
func (p *pool) updateMarks(e *available, b uint16) (gained bits.JobSet) {
	had := p.preferring(e)
	was, is := p.formed(e), p.formed(&available{state: b})
	m := had &^ (was &^ is &^ p.jobs.anyForm) // the form that they preferred has left
	more := is &^ was
	if e.x == p.latest { // otherwise it is not known whose pick made it available
		by := p.jobs.slot[p.taker]
		more &= by.peers.sameRecipe
		if b&restMask != 0 && e.state&restMask == 0 {
			more |= ^is // it was read from storage, which counts for all who find it encoded
		}
		more = (more &^ by.pace.faster).Without(by.slot)
	}
	m |= more
	p.setPreferring(e, m)
	return m &^ had
}

// resides reports whether x is in memory in any form, for any job, and the job does not prefer it.
func (p *pool) resides(j *job, x uint32) bool {
	e := p.entry(x)
	return e != nil && e.state&visMask != 0 && !p.preferring(e).Has(j.slot)
}

// formed returns the jobs that find an object decoded or augmented.
func (p *pool) formed(e *available) bits.JobSet {
	own, rest := e.state>>visShift&levelMask, e.state>>visRestShift&levelMask
	var formed bits.JobSet
	if own >= decoded {
		formed |= p.ownersOf(e)
	}
	if rest >= decoded {
		formed |= ^p.ownersOf(e)
	}
	return formed
}

// needAll enters the epoch of a job that begins into the entries from..to-1: the job needs what its subset holds, and
// its marks of past epochs expire.
func (p *pool) needAll(j *job, from, to int) {
	for i := from; i < to; i++ {
		e := p.entries.at(uint32(i))
		if e.state == 0 {
			continue
		}
		if _, ok := j.index.member(e.x); ok {
			p.expireMark(e, j)
			e.need = e.need.With(j.slot)
		}
	}
}

// expireMark removes the mark of a job whose epoch begins from an entry, unless some other job has taken the object and
// needs it no more. A job in its first epoch has taken nothing, so every take of the others counts for it.
func (p *pool) expireMark(e *available, j *job) {
	m := p.preferring(e)
	if !m.Has(j.slot) && !j.owed.fresh {
		return
	}
	r := p.jobs
	serves := allJobs
	if p.levelFor(e, j.slot) >= decoded {
		serves = j.peers.sameRecipe
	}
	others := (p.cells.of(e.x).live & r.marked & r.active & serves &^ e.need).Without(j.slot)
	for t := others & r.slow; t != 0; t &= t - 1 {
		if k := r.slot[first(t)]; k.pace.faster.Has(j.slot) {
			others = others.Without(k.slot)
		}
	}
	if others == 0 {
		p.setPreferring(e, m.Without(j.slot))
	} else {
		p.setPreferring(e, m.With(j.slot))
	}
}
