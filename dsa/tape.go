package dsa

import (
	"fmt"
	"slices"

	"larder/internal/bits"
	"larder/internal/invariant"
	"larder/internal/xrand"
)

// tapes is step 1 of a pick for jobs of mode Stratified and Epoch: which cell, and which tile. Jobs that share objects
// share one random order of them, and each reads cells from it through a tape of its own.
//
// The rules that keep the law exact:
//
//	(i)   A join splits cells, so the jobs concerned get a fresh order: a tape read under other cells than it was begun
//	      with is biased (freshAfterJoin).
//	(ii)  A job that starts an epoch adopts the order of a neighbour, from a position that is computed from counts only,
//	      and never an order of its own previous epoch (adopt).
//	(iii) A job whose picks are returned gets a fresh order: the returned picks would come again where they stood
//	      (freshAfterReturn).
type tapes struct {
	rng        *xrand.Rand
	jobs       *roster
	cells      *cells
	scans      *scans
	invalidate func(*job) // drops the job's layout

	joins uint64 // counts joins; dates orders
	named uint64 // counts shared orders; names them
}

// order is a uniformly random order of objects, with a uniform number at each position, that jobs share to name cells:
// the object names the static cell, the number the tile. It never says which sample is picked.
//
// The tile must not be that of the object itself. Neighbours have followed the order while this job was in its previous
// epoch and took what they made available, so the position of an object would say something about its tile; in cells of
// one or two objects it says everything (all pairs of orders of consecutive epochs counted, four samples, two staggered
// jobs: z = 84). Which cells follow each other, and the numbers, say nothing about objects of the same cell.
type order struct {
	name    uint64
	born    uint64      // tapes.joins at its birth
	covered bits.JobSet // slots of the jobs whose subsets it holds
	salt    uint64      // of the numbers that name tiles
	n       int         // positions; 0 until it is listed
	scan    int         // how far the listing has come
	shared  bool        // several jobs may walk through it
	only    *job        // whose subset is listed; nil = all that belongs to the covered jobs
	oneCell bool        // its jobs have one static cell, the same: there is nothing to name but tiles, and ids is nil
	ids     []uint32    // a permutation whose prefix of length fixed is settled
	fixed   int
	rng     xrand.Rand
}

// tape is a job's walk through an order, cyclic from its origin. Every pick passes exactly one object of the remaining
// set as it was when the tape began, and takes its static cell; a pick removes an object of that very cell. So what the
// tape still holds of a cell is always what remains of it. A fresh order restricted to the remaining set is uniform,
// hence so is the sequence of cells.
type tape struct {
	order   *order
	origin  int
	cursor  int
	length  int      // entries
	passed  int      // entries used
	initial []uint64 // by place: what remained when the tape began; nil = all
	started bool     // false: order and origin are chosen, nothing else
}

// orderHistory is which orders a job may walk through.
type orderHistory struct {
	joinedAt uint64      // tapes.joins when the job's cells were split: an order born earlier does not cover it
	used     [2][]uint64 // names of the orders used in this epoch and in the previous one
}

// note notes that the job uses an order in this epoch.
func (h *orderHistory) note(name uint64) {
	if !slices.Contains(h.used[0], name) {
		h.used[0] = append(h.used[0], name)
	}
}

// turn makes the orders of the epoch that ended those of the previous one.
func (h *orderHistory) turn() { h.used[0], h.used[1] = h.used[1][:0], h.used[0] }

// begin begins the tape of a job with what remains.
func (t *tape) begin(j *job) {
	t.initial = nil
	if j.owed.remaining < len(j.subset) {
		t.initial = append([]uint64(nil), j.owed.left...)
	}
	t.length, t.passed, t.cursor, t.started = j.owed.remaining, 0, t.origin, true
}

// newOrder makes an order for the given slots and all taped jobs that share objects with them, directly or through
// others.
func (ts *tapes) newOrder(slots bits.JobSet) *order {
	slots = ts.connected(slots)
	o := &order{name: ts.newName(), born: ts.joins, covered: slots, shared: slots.Len() > 1}
	o.rng.Seed(ts.rng.Uint64())
	o.salt = ts.rng.Uint64()
	return o
}

// connected adds to the given slots all taped jobs that share objects with them, directly or through others.
func (ts *tapes) connected(slots bits.JobSet) bits.JobSet {
	for todo := slots; todo != 0; {
		k := ts.jobs.slot[first(todo)]
		todo = todo.Without(k.slot) | k.peers.neighbours&ts.jobs.taped&^slots
		slots |= k.peers.neighbours & ts.jobs.taped
	}
	return slots
}

// newName returns a name for an order.
func (ts *tapes) newName() uint64 {
	ts.named++
	return ts.named
}

// covers reports whether every object of the job is in the order. A later job in the same slot does not count.
func (o *order) covers(j *job) bool { return o.covered.Has(j.slot) && j.orders.joinedAt <= o.born }

// list lists the objects, at most budget at a time; n is set when it is done. Nothing is shuffled yet.
func (o *order) list(r *roster, cs *cells, budget int) (took int) {
	slots := o.covered & r.live
	for m := slots; m != 0; m &= m - 1 {
		if k := r.slot[first(m)]; k.orders.joinedAt > o.born {
			slots = slots.Without(k.slot)
		}
	}
	if o.scan == 0 {
		n, held := 0, 0
		for _, c := range cs.list {
			if c.live&slots != 0 {
				n += int(c.size)
				held++
			}
		}
		if held == 1 {
			o.oneCell, o.n = true, n
			return 1
		}
		o.ids = make([]uint32, 0, n)
		if slots.Len() == 1 {
			o.only = r.slot[first(slots)]
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
	to := min(o.scan+budget, cs.objects.n)
	for x := o.scan; x < to; x++ {
		if cs.of(uint32(x)).live&slots != 0 {
			o.ids = append(o.ids, uint32(x))
		}
	}
	took, o.scan = to-o.scan, to
	if to == cs.objects.n {
		o.n = len(o.ids)
	}
	return took
}

// get returns the object at position i. The permutation is settled no further than it was looked at (Fisher-Yates from
// the front), so that a fresh order costs a copy at a join, and the picks pay for the shuffle.
func (o *order) get(i int) uint32 {
	for o.fixed <= i {
		f := o.fixed
		r := f + o.rng.IntN(len(o.ids)-f)
		o.ids[f], o.ids[r] = o.ids[r], o.ids[f]
		o.fixed++
	}
	return o.ids[i]
}

// number returns the uniform number at a position.
func (o *order) number(at int) uint64 { return xrand.Mix(o.salt ^ xrand.Mix(uint64(at))) }

// freshAfterJoin gives a new order to all running taped jobs that share objects, directly or through others, with the
// one that joined (rule i).
func (ts *tapes) freshAfterJoin(j *job) {
	ts.joins++
	j.orders.joinedAt = ts.joins
	slots := j.peers.neighbours & ts.jobs.taped
	if j.phase != jobStratum {
		slots |= bits.JobSet(0).With(j.slot) & ts.jobs.taped
	}
	if slots == 0 {
		return
	}
	o := ts.newOrder(slots)
	for m := o.covered; m != 0; m &= m - 1 {
		k := ts.jobs.slot[first(m)]
		if k == j || !k.running() || k.scan.on || ts.scans.choose(k) {
			continue // a job that scans does not read cells
		}
		ts.use(k, o, 0)
	}
}

// use puts the job on an order and drops its layout.
func (ts *tapes) use(j *job, o *order, origin int) {
	ts.invalidate(j)
	j.tape.order, j.tape.origin, j.tape.started = o, origin, false
	j.orders.note(o.name)
}

// freshAfterReturn gives the job an order of its own (rule iii).
func (ts *tapes) freshAfterReturn(j *job) {
	if j.scan.on {
		if !j.stale || ts.jobs.scanning.Has(j.slot) || j.scan.order.begun != 0 {
			ts.scans.adopt(j)
		}
		return
	}
	t := &j.tape
	unread := t.order != nil && !t.started && t.order.n == 0 && t.order.scan == 0
	if unread && t.order.covered.Has(j.slot) && j.stale {
		return // its order is fresh already
	}
	ts.use(j, ts.newOrder(bits.JobSet(0).With(j.slot)), 0)
}

// adopt chooses the order of a job that starts an epoch (rule ii): that of the neighbour with the largest overlap, from
// where the neighbour has got to, so that both visit cells together. The position of the neighbour's last object would
// say something about which objects are left, so where it has got to is computed from counts. An order of the job's own
// previous epoch is never taken: the two epochs would visit their cells alike.
func (ts *tapes) adopt(j *job) {
	j.orders.turn()
	if ts.scans.choose(j) {
		return
	}
	var best *job
	for m := j.peers.neighbours & ts.jobs.taped & ts.jobs.active; m != 0; m &= m - 1 {
		k := ts.jobs.slot[first(m)]
		if k.owed.remaining == 0 || k.scan.on || k.tape.order == nil || k.passes.has(passMark) || !k.tape.order.covers(j) ||
			slices.Contains(j.orders.used[1], k.tape.order.name) {
			continue
		}
		if best == nil || j.peers.overlap[k.slot] > j.peers.overlap[best.slot] ||
			j.peers.overlap[k.slot] == j.peers.overlap[best.slot] && k.id < best.id {
			best = k
		}
	}
	j.tape.started = false
	if best == nil {
		ts.use(j, ts.newOrder(bits.JobSet(0).With(j.slot)), 0)
		return
	}
	t := &best.tape
	origin := t.origin
	if t.started {
		n := t.order.n
		if t.order.oneCell {
			origin = (origin + t.passed) % n
		} else {
			origin = (origin + n*t.passed/t.length) % n
		}
	}
	ts.use(j, t.order, origin)
}

// next passes one entry of the job's tape, and returns its static cell and its number.
func (ts *tapes) next(j *job) (cell uint32, number uint64) {
	t := &j.tape
	o := t.order
	was := t.initial
	if was == nil {
		was = j.index.in
	}
	for range o.n {
		at := t.cursor
		if t.cursor++; t.cursor == o.n {
			t.cursor = 0
		}
		if o.oneCell { // every position is as good as the next
			t.passed++
			return 0, o.number(at)
		}
		x := o.get(at)
		if l, ok := j.index.find(x); ok && has(was, l) {
			t.passed++
			return ts.cells.objects.at(x).cell, o.number(at)
		}
	}
	invariant.Violated("dsa: tape of job %d ended after %d of %d entries", j.id, t.passed, t.length)
	return 0, 0
}

// Check verifies that the job's tape still names every static cell exactly as often as objects are left of it.
func (ts *tapes) Check(j *job) error {
	t := &j.tape
	if t.length-t.passed != j.owed.remaining {
		return fmt.Errorf("tape of %d entries passed %d, %d samples are left", t.length, t.passed, j.owed.remaining)
	}
	if !t.order.covers(j) {
		return fmt.Errorf("the order %d does not cover the job", t.order.name)
	}
	named, left := ts.count(j)
	for c := range named {
		if named[c] != left[c] {
			return fmt.Errorf("cell %d has %d samples left, the tape names it %d times", c, left[c], named[c])
		}
	}
	return nil
}

// count counts, by cell, how often the rest of the job's tape names it, and how many of its objects are left.
func (ts *tapes) count(j *job) (named, left []int) {
	t, o := &j.tape, j.tape.order
	objects := ts.cells.objects
	named, left = make([]int, len(ts.cells.list)), make([]int, len(ts.cells.list))
	for _, x := range j.subset {
		if has(j.owed.left, j.index.of(uint32(x))) {
			left[objects.at(uint32(x)).cell]++
		}
	}
	if o.oneCell {
		named[objects.at(uint32(j.subset[0])).cell] = t.length - t.passed
		return named, left
	}
	was := t.initial
	if was == nil {
		was = j.index.in
	}
	for i, x := range o.ids {
		if seen := t.passed > 0 && (i-t.origin+o.n)%o.n < (t.cursor-t.origin-1+o.n)%o.n+1; seen {
			continue
		}
		if l, ok := j.index.find(x); ok && has(was, l) {
			named[objects.at(x).cell]++
		}
	}
	return named, left
}
