package dsa

import (
	"slices"

	"larder/internal/bits"
	"larder/internal/invariant"
	"larder/internal/xrand"
)

// order is a uniformly random order of objects, with a uniform number at each position, that jobs share to name cells: the object
// names the static cell, the number the tile. It never says which sample is served.
//
// The tile must not be that of the object itself. Neighbours have followed the order while this job was in its previous epoch and
// took what they made available, so where the object stands in the order would tell something about its tile; in cells of one or
// two objects it tells everything (all pairs of orders of consecutive epochs counted, four samples, two staggered jobs: z = 84).
// Which cells follow each other, and the numbers, tell nothing about objects of the same cell.
type order struct {
	name   uint64
	born   uint64      // Sampler.joins at its birth
	comp   bits.JobSet // slots of the jobs it covers
	salt   uint64      // of the numbers that name tiles
	n      int         // positions; 0 until it is listed
	scan   int         // how far the listing has come
	shared bool        // several jobs may walk through it
	only   *job        // whose subset is listed; nil = all that belongs to the jobs of comp
	plain  bool        // its jobs have one static cell, the same: there is nothing to name but tiles, and ids is nil
	ids    []uint32    // a permutation whose prefix of length fixed is settled
	fixed  int
	rng    xrand.Rand
}

// tape is a job's walk through an order, cyclic from its origin. Every pick passes exactly one object of the remaining set as it
// was when the tape began and takes its static cell; a pick removes an object of that very cell, so what the tape still holds of
// a cell is always what remains of it. A fresh order restricted to the remaining set is uniform, hence so is the sequence of cells.
type tape struct {
	order   *order
	origin  int
	cursor  int
	r0      int      // length of the tape
	passed  int      // entries used
	from    []uint64 // by place: what remained when the tape began; nil = all
	started bool     // false: order and origin are chosen, nothing else
}

// newOrder makes an order for all tape jobs that share objects, directly or through others, with those of comp.
func (s *Sampler) newOrder(comp bits.JobSet) *order {
	for todo := comp; todo != 0; {
		k := s.slot[first(todo)]
		todo = todo.Without(k.slot) | k.near&s.tapeful&^comp
		comp |= k.near & s.tapeful
	}
	s.orders++
	o := &order{name: s.orders, born: s.joins, comp: comp, shared: comp.Len() > 1}
	o.rng.Seed(s.rng.Uint64())
	o.salt = s.rng.Uint64()
	return o
}

// covers reports whether every object of the job is in the order. A later job in the same slot does not count.
func (o *order) covers(j *job) bool { return o.comp.Has(j.slot) && j.joinedAt <= o.born }

// list lists the objects, at most budget at a time; n is set when it is done. Nothing is shuffled yet.
func (o *order) list(s *Sampler, budget int) (took int) {
	comp := o.comp & s.live
	for m := comp; m != 0; m &= m - 1 {
		if k := s.slot[first(m)]; k.joinedAt > o.born {
			comp = comp.Without(k.slot)
		}
	}
	if o.scan == 0 {
		n, cells := 0, 0
		for _, c := range s.cells {
			if c.live&comp != 0 {
				n += int(c.size)
				cells++
			}
		}
		if cells == 1 {
			o.plain, o.n = true, n
			return 1
		}
		o.ids = make([]uint32, 0, n)
		if comp.Len() == 1 {
			o.only = s.slot[first(comp)]
		}
	}
	if o.only != nil {
		to := min(o.scan+budget, len(o.only.subset))
		for _, x := range o.only.subset[o.scan:to] {
			o.ids = append(o.ids, uint32(x))
		}
		took, o.scan = to-o.scan, to
		if to == len(o.only.subset) {
			o.n, o.only = to, nil
		}
		return took
	}
	to := min(o.scan+budget, s.obj.n)
	for x := o.scan; x < to; x++ {
		if s.cells[s.obj.at(uint32(x)).cell].live&comp != 0 {
			o.ids = append(o.ids, uint32(x))
		}
	}
	took, o.scan = to-o.scan, to
	if to == s.obj.n {
		o.n = len(o.ids)
	}
	return took
}

// get returns the object at position i. The permutation is settled no further than it was looked at (Fisher-Yates from the
// front), so that a fresh order costs a copy at a join, and the shuffle is paid by the picks.
func (o *order) get(i int) uint32 {
	for o.fixed <= i {
		f := o.fixed
		r := f + o.rng.IntN(len(o.ids)-f)
		o.ids[f], o.ids[r] = o.ids[r], o.ids[f]
		o.fixed++
	}
	return o.ids[i]
}

// freshAfterJoin gives a new order to all running tape jobs that share objects, directly or through others, with the one
// that joined: their cells were split, and a tape read under other cells than it was drawn for is biased (rule i).
func (s *Sampler) freshAfterJoin(j *job) {
	comp := j.near & s.tapeful
	if !j.class {
		comp |= bits.JobSet(0).With(j.slot) & s.tapeful
	}
	if comp == 0 {
		return
	}
	o := s.newOrder(comp)
	for m := o.comp; m != 0; m &= m - 1 {
		if k := s.slot[first(m)]; k != j && k.running {
			s.restart(k, o, 0)
		}
	}
}

// restart puts the job on an order and marks its layout as out of date.
func (s *Sampler) restart(j *job, o *order, origin int) {
	s.unlay(j)
	if s.hook.keepTape && j.tape.started {
		return
	}
	j.tape.order, j.tape.origin, j.tape.started = o, origin, false
	if !slices.Contains(j.used[0], o.name) {
		j.used[0] = append(j.used[0], o.name)
	}
}

// freshAfterReturn gives the job an order of its own (rule iii): the returned picks put back into the old one would come
// again where they stood.
func (s *Sampler) freshAfterReturn(j *job) {
	if t := &j.tape; t.order != nil && !t.started && t.order.n == 0 && t.order.scan == 0 && t.order.comp.Has(j.slot) && j.stale {
		return // nothing was drawn from it yet
	}
	s.restart(j, s.newOrder(bits.JobSet(0).With(j.slot)), 0)
}

// adopt chooses the order of a job that starts an epoch (rule ii): that of the neighbour with the largest overlap, from where
// the neighbour has got to, so that both visit cells together. Where it has got to is computed from counts only; the position
// of its last object would tell something about which objects are left. An order of the job's own previous epoch is never
// taken: the two epochs would visit their cells alike.
func (s *Sampler) adopt(j *job) {
	j.used[0], j.used[1] = j.used[1][:0], j.used[0]
	var best *job
	for m := j.near & s.tapeful & s.active; m != 0; m &= m - 1 {
		k := s.slot[first(m)]
		if k.rem == 0 || k.tape.order == nil || k.has(passMark) || !k.tape.order.covers(j) || slices.Contains(j.used[1], k.tape.order.name) && !s.hook.ownOrder {
			continue
		}
		if best == nil || j.overlap[k.slot] > j.overlap[best.slot] ||
			j.overlap[k.slot] == j.overlap[best.slot] && k.id < best.id {
			best = k
		}
	}
	j.tape.started = false
	if best == nil {
		s.restart(j, s.newOrder(bits.JobSet(0).With(j.slot)), 0)
		return
	}
	t := &best.tape
	origin := t.origin
	if t.started {
		n := t.order.n
		if t.order.plain {
			origin = (origin + t.passed) % n
		} else {
			origin = (origin + n*t.passed/t.r0) % n
		}
	}
	s.restart(j, t.order, origin)
}

// next passes one entry and returns its static cell, and its number.
func (s *Sampler) next(j *job) (cell uint32, number uint64) {
	t := &j.tape
	o := t.order
	was := t.from
	if was == nil {
		was = j.at.in
	}
	for range o.n {
		at := t.cursor
		if t.cursor++; t.cursor == o.n {
			t.cursor = 0
		}
		if o.plain { // every position is as good as the next
			t.passed++
			return 0, o.number(at)
		}
		x := o.get(at)
		if l, ok := j.at.find(x); ok && has(was, l) {
			t.passed++
			return s.obj.at(x).cell, o.number(at)
		}
	}
	invariant.Violated("dsa: tape of job %d ended after %d of %d entries", j.id, t.passed, t.r0)
	return 0, 0
}

// number is the uniform number at a position.
func (o *order) number(at int) uint64 { return xrand.Mix(o.salt ^ xrand.Mix(uint64(at))) }
