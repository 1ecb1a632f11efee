package dsa

import (
	"larder/internal/ident"
	"larder/internal/invariant"
)

// Next commits one pick of the job and returns it; false when its epoch owes nothing more, the job is idle, unknown or not Ready. The
// caller says with SetLevel, before the next call, what the pick makes available. For Fixed and Sequential it is the first
// position that is not taken.
func (s *Sampler) Next(id ident.JobID) (ident.ObjectID, bool) {
	j := s.joined(id)
	if j == nil || j.rem == 0 {
		return 0, false
	}
	if s.sliced && !s.ready(j) {
		return 0, false
	}
	if !j.usesTape() && j.mode != Strict {
		return s.nextInOrder(j)
	}
	var x uint32
	if j.stale {
		s.layout(j)
	}
	switch {
	case j.mode == Strict:
		x = s.nextName(j)
	case s.following.Has(j.slot):
		x = s.pickFollowing(j)
	default:
		c, u := s.next(j)
		if s.hook.keepTape {
			c = s.anyCell(j, c)
		}
		if r := j.groups.rowOf(c); r >= 0 {
			x = s.pickRow(j, r, u)
		} else {
			x = s.pickSmall(j, c, u)
		}
	}
	l := j.at.of(x)
	if j.tiles > 1 {
		n := len(j.subset)
		j.cur.set(l, uint8((n-j.rem)*j.tiles/n))
	}
	j.took++
	s.commit(j, x, l)
	return ident.ObjectID(x), true
}

// anyCell is for the hook keepTape, whose tapes name cells of which nothing is left: it returns one of which something is.
func (s *Sampler) anyCell(j *job, c uint32) uint32 {
	d := uint32(0)
	for _, x := range j.subset {
		if has(j.left, j.at.of(uint32(x))) {
			if d = s.obj.at(uint32(x)).cell; d == c {
				return c
			}
		}
	}
	return d
}

// nextInOrder takes the first free position of a prescribed order.
func (s *Sampler) nextInOrder(j *job) (ident.ObjectID, bool) {
	for ; j.cursor < len(j.subset); j.cursor++ {
		if x, ok := s.take(j, j.cursor); ok {
			return x, true
		}
	}
	invariant.Violated("dsa: job %d owes %d samples, its order has none", j.id, j.rem)
	return 0, false
}

// At commits the pick at position pos of this epoch's order of a Fixed or Sequential job; false if it is taken or out of
// range, or the job has no such order.
func (s *Sampler) At(id ident.JobID, pos int) (ident.ObjectID, bool) {
	j := s.joined(id)
	if j == nil || j.rem == 0 || pos < 0 || pos >= len(j.subset) || j.mode > Fixed || s.sliced && !s.ready(j) {
		return 0, false
	}
	return s.take(j, pos)
}

// take commits position pos of a prescribed order if it is free.
func (s *Sampler) take(j *job, pos int) (ident.ObjectID, bool) {
	p := pos
	if j.mode == Fixed {
		p = int(j.order[pos])
	}
	x := uint32(j.subset[p])
	l := j.at.of(x)
	if !has(j.left, l) {
		return 0, false
	}
	j.took++
	s.commit(j, x, l)
	return ident.ObjectID(x), true
}

// commit takes x, whose place is l, out of what a job needs. Whatever x owes to sequential jobs is over when a visible job
// takes it: that job would have made it available now.
func (s *Sampler) commit(j *job, x, l uint32) {
	if s.following.Has(j.slot) {
		s.part(j, x, l)
	}
	j.rem--
	unset(j.left, l)
	s.latest, s.latestTaker = x, j.slot
	if !j.visible() {
		s.latest = unknown
		if !s.hook.seqVisible {
			s.makeNeutral(x)
		}
		return
	}
	if e := s.entry(x); e != nil {
		was := *e
		had := s.preferring(e)
		e.need = e.need.Without(j.slot)
		s.taken(e, j)
		s.listAgain(e, &was, s.preferring(e)&^had)
		if a := e.state; a&neutralBit != 0 {
			b := a&^(visMask|visRestMask|neutralBit) | a&toldMask<<visShift
			gained := s.remark(e, b)
			s.setState(e, b, gained)
		}
	}
}

// Return takes back picks that were committed in this epoch and never delivered: they are needed again. Objects that are not
// in the subset or not taken in the running epoch are ignored. A tape job draws from a fresh order afterwards.
func (s *Sampler) Return(id ident.JobID, ids []ident.ObjectID) {
	j := s.byID[id]
	if j == nil || !j.running {
		return
	}
	if len(j.todo) > 0 {
		s.settle()
	}
	if j.err != nil {
		return
	}
	back := 0
	for _, x := range ids {
		l, ok := j.at.member(uint32(x))
		if !ok || has(j.left, l) {
			continue
		}
		back++
		if j.mode == Strict {
			j.undraw()
			j.putBack(l)
		}
		s.unlay(j)
		set(j.left, l)
		if e := s.entry(uint32(x)); e != nil && j.visible() {
			e.need = e.need.With(j.slot)
		}
	}
	if back == 0 {
		return
	}
	j.rem += back
	j.cursor = 0
	if j.usesTape() {
		s.freshAfterReturn(j)
	}
}

// Withdraw takes objects out of what the running epoch still owes without choosing them, in the order given: quarantined ones,
// or those a resumed job has had already. Objects the epoch does not owe are ignored. It returns how many were taken out.
func (s *Sampler) Withdraw(id ident.JobID, ids []ident.ObjectID) int {
	j := s.byID[id]
	if j == nil || !j.running {
		return 0
	}
	if len(j.todo) > 0 {
		s.settle()
	}
	if j.err != nil {
		return 0
	}
	if j.visible() && j.mode != Strict && s.avail.n <= 1 && !s.following.Has(j.slot) {
		return s.withdrawPlain(j, ids)
	}
	n := 0
	for _, x := range ids {
		if int(x) >= s.obj.n {
			continue
		}
		l, ok := j.at.find(uint32(x))
		if !ok || !has(j.left, l) {
			continue
		}
		if n++; n == 1 {
			s.unlay(j)
		}
		if j.tiles > 1 {
			j.cur.set(l, uint8((len(j.subset)-j.rem)*j.tiles/len(j.subset)))
		}
		if j.mode == Strict {
			j.undraw()
			j.take(l)
		}
		s.withdrawn(j, uint32(x), l)
	}
	if n > 0 && j.usesTape() {
		s.freshAfterReturn(j)
	}
	return n
}

// withdrawPlain is Withdraw while nothing is at hand and nobody follows, as at the start of a daemon: then only what the job itself keeps changes,
// in a third of the time. Jobs come back with millions of samples.
func (s *Sampler) withdrawPlain(j *job, ids []ident.ObjectID) int {
	total := len(j.subset)
	before := total - j.rem
	taken, tile, edge := before, 0, 0 // of the tile, the samples before its end
	for _, x := range ids {
		if int(x) >= s.obj.n {
			continue
		}
		l, ok := j.at.find(uint32(x))
		if !ok {
			continue
		}
		w, bit := &j.left[l>>6], uint64(1)<<(l&63)
		if *w&bit == 0 {
			continue
		}
		*w ^= bit
		if j.tiles > 1 {
			if taken >= edge {
				tile = taken * j.tiles / total
				edge = ((tile+1)*total + j.tiles - 1) / j.tiles
			}
			j.cur.set(l, uint8(tile))
		}
		taken++
	}
	if taken == before {
		return 0
	}
	s.unlay(j)
	j.rem = total - taken
	if j.usesTape() {
		s.freshAfterReturn(j)
	}
	return taken - before
}

// withdrawn takes x out of what the job needs; nobody has looked at it.
func (s *Sampler) withdrawn(j *job, x, l uint32) {
	if j.visible() {
		s.commit(j, x, l)
		return
	}
	j.rem--
	unset(j.left, l)
}
