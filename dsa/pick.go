package dsa

import (
	"larder/internal/ident"
	"larder/internal/invariant"
)

// Next commits one pick of the job and returns it; false when its epoch owes nothing more, the job is idle, unknown or not Ready. The
// caller says with SetLevel, before the next call, what the pick makes available. For Fixed and Sequential it is the first
// position that is not taken.
func (s *Sampler) Next(id ident.JobID) (ident.ObjectID, bool) {
	j := s.byID[id]
	if j == nil || j.rem == 0 {
		return 0, false
	}
	if s.sliced && !s.ready(j) {
		return 0, false
	}
	if !j.usesTape() && j.mode != Strict {
		return s.nextInOrder(j)
	}
	if j.stale {
		s.layout(j)
	}
	if j.mode == Strict {
		x := s.nextStrict(j)
		s.commit(j, x)
		return ident.ObjectID(x), true
	}
	r, u := s.next(j)
	for i := 0; s.hook.keepTape && r.left == 0; i++ {
		r = &j.groups.row[i]
	}
	k := j.groups.group(r, u)
	r.left--
	e := j.groups.edge[k*stride : k*stride+stride]
	c := 0
	for c < classTaken && e[c] == e[c+1] {
		c++
	}
	if c == classTaken {
		invariant.Violated("dsa: job %d draws from group %d, of which nothing remains", j.id, k)
	}
	x := j.groups.items[e[c]+uint32(s.rng.Uint64n(uint64(e[c+1]-e[c])))]
	if s.hook.tiesByID {
		for _, y := range j.groups.items[e[c]:e[c+1]] {
			x = min(x, y)
		}
	}
	if s.hook.firstBit {
		for _, y := range j.groups.items[e[c]:e[c+1]] {
			if y>>6 == x>>6 {
				x = min(x, y)
			}
		}
	}
	l := j.at.of(x)
	if j.tiles > 1 {
		n := len(j.subset)
		j.cur[l] = uint8((n - j.rem) * j.tiles / n)
	}
	j.move(l, k, c, classTaken)
	s.commit(j, x)
	return ident.ObjectID(x), true
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
	j := s.byID[id]
	if j == nil || j.rem == 0 || pos < 0 || pos >= len(j.subset) || j.mode > Fixed || s.sliced && !s.ready(j) {
		return 0, false
	}
	return s.take(j, pos)
}

// take commits position pos of a prescribed order if it is free.
func (s *Sampler) take(j *job, pos int) (ident.ObjectID, bool) {
	if j.mode == Fixed {
		x := j.subset[j.order[pos]]
		if !s.obj[x].need.Has(j.slot) {
			return 0, false
		}
		s.commit(j, uint32(x))
		return x, true
	}
	if !j.taken.Add(uint32(pos)) {
		return 0, false
	}
	j.rem--
	x := j.subset[pos]
	// The order of the dataset tells objects apart, so what it loads must not: from here on x counts as no more available
	// than it is now, until a visible job picks it.
	if !s.hook.seqVisible {
		s.obj[x].avail |= neutralBit
	}
	return x, true
}

// commit takes x out of what a visible job needs. Whatever x owes to sequential jobs is over: a visible job would have made
// it available now.
func (s *Sampler) commit(j *job, x uint32) {
	j.rem--
	s.obj[x].need = s.obj[x].need.Without(j.slot)
	if a := s.obj[x].avail; a&neutralBit != 0 {
		s.setAvail(x, a&levelMask|a&levelMask<<visShift)
	}
	s.reclass(x)
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
	back := 0
	for _, x := range ids {
		l, ok := j.member(x)
		if !ok {
			continue
		}
		if !j.visible() {
			if j.taken.Remove(j.pos[l]) {
				back++
			}
			continue
		}
		if s.obj[x].need.Has(j.slot) {
			continue
		}
		back++
		if j.mode == Strict && !j.stale {
			j.undraw()
			j.putBack(uint32(x))
		}
		// Not laid out while need changes: reclass must not touch groups that lack x.
		s.unlay(j)
		s.obj[x].need = s.obj[x].need.With(j.slot)
		s.reclass(uint32(x))
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
	n := 0
	for _, x := range ids {
		if !s.Needs(id, x) {
			continue
		}
		n++
		l, _ := j.member(x)
		if !j.visible() {
			j.taken.Add(j.pos[l])
			j.rem--
			continue
		}
		if j.tiles > 1 {
			j.cur[l] = uint8((len(j.subset) - j.rem) * j.tiles / len(j.subset))
		}
		if j.mode == Strict && !j.stale {
			j.undraw()
			j.draw(uint32(x))
			j.strict.queued = 0
		}
		s.unlay(j)
		s.commit(j, uint32(x))
	}
	if n > 0 && j.usesTape() {
		s.freshAfterReturn(j)
	}
	return n
}
