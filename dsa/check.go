package dsa

import (
	"fmt"
	mathbits "math/bits"
	"slices"

	"larder/internal/bits"
)

// Check verifies every invariant and returns the first that does not hold. O(objects x jobs); for tests and builds with
// invariants.
func (s *Sampler) Check() error {
	if err := s.checkObjects(); err != nil {
		return err
	}
	if err := s.checkCells(); err != nil {
		return err
	}
	var live bits.JobSet
	for n, j := range s.slot {
		if j == nil {
			continue
		}
		live = live.With(uint8(n))
		if int(j.slot) != n || !j.gone && s.byID[j.id] != j {
			return fmt.Errorf("dsa: slot %d holds job %d, which thinks it is in slot %d", n, j.id, j.slot)
		}
		if len(j.todo) > 0 || j.err != nil {
			continue
		}
		if err := s.checkJob(j); err != nil {
			return fmt.Errorf("dsa: job %d (%s): %w", j.id, j.mode, err)
		}
	}
	for _, j := range s.slot {
		if j != nil && j.gone {
			live = live.Without(j.slot)
		}
	}
	gone := s.live &^ live
	if live&^s.live != 0 || len(s.byID) != live.Len() {
		return fmt.Errorf("dsa: live slots %x, joined jobs %x (%d by id)", s.live, live, len(s.byID))
	}
	if out := (s.active | s.grouped | s.tapeful | s.strictly | s.following | s.shown) &^ live; out != 0 {
		return fmt.Errorf("dsa: slots %x are in use by no job", out)
	}
	for m := gone; m != 0; m &= m - 1 {
		if j := s.slot[first(m)]; j == nil || len(j.todo) == 0 {
			return fmt.Errorf("dsa: slot %d is held for nothing", first(m))
		}
	}
	for i, j := range s.line {
		if len(j.todo) == 0 || i > 0 && slices.Contains(s.line[:i], j) {
			return fmt.Errorf("dsa: job %d is in line with %d passes to do, at %d", j.id, len(j.todo), i)
		}
	}
	return nil
}

// checkObjects verifies the table of what is available.
func (s *Sampler) checkObjects() error {
	vis, free := 0, 0
	own := make([]int, maxOwners)
	for i := s.free; i != 0; i = s.avail.at(i).x {
		if free++; free >= s.avail.n || s.avail.at(i).state != 0 {
			return fmt.Errorf("dsa: entry %d is free and in use", i)
		}
	}
	for x := range uint32(s.obj.n) {
		i := s.obj.at(x).held
		if has(s.held, x) != (i != 0) || int(i) >= s.avail.n {
			return fmt.Errorf("dsa: object %d: held %v, entry %d of %d", x, has(s.held, x), i, s.avail.n)
		}
		if i == 0 {
			continue
		}
		free++
		e := s.avail.at(i)
		if e.x != x || e.state == 0 {
			return fmt.Errorf("dsa: the entry of object %d speaks of %d, state %#x", x, e.x, e.state)
		}
		if e.state&visMask != 0 {
			vis++
		}
		own[e.state>>ownersShift]++
		if a := e.state; a>>visShift&levelMask > a&levelMask || a>>visRestShift&levelMask > a>>restShift&levelMask ||
			a>>restShift&levelMask > a&levelMask || a>>visRestShift&levelMask > a>>visShift&levelMask {
			return fmt.Errorf("dsa: object %d is at level %d and visible at %d, for the rest at %d and %d", x, a&levelMask, a>>visShift&levelMask,
				a>>restShift&levelMask, a>>visRestShift&levelMask)
		}
		if need := s.needers(x); len(s.line) == 0 && need != e.need {
			return fmt.Errorf("dsa: object %d is needed by %x, its entry says %x", x, need, e.need)
		}
	}
	for i, o := range s.owners {
		if n := own[i]; o.of != n {
			return fmt.Errorf("dsa: %d objects are further along for jobs %x, counted %d", n, o.jobs, o.of)
		}
		if i > 0 && o.of > 0 && ^o.jobs != 0 && o.jobs&^s.live != 0 {
			return fmt.Errorf("dsa: objects are further along for slots %x, in use are %x", o.jobs, s.live)
		}
	}
	if vis != s.nVis {
		return fmt.Errorf("dsa: %d objects are visible, counted %d", vis, s.nVis)
	}
	if free != s.avail.n-1 {
		return fmt.Errorf("dsa: %d of %d entries are free or in use", free, s.avail.n-1)
	}
	return nil
}

// checkCells verifies that the cells partition the objects that were ever in a subset, and say who holds them.
func (s *Sampler) checkCells() error {
	if len(s.line) > 0 { // cells may be half split
		return nil
	}
	size := make([]uint32, len(s.cells))
	for x := range uint32(s.obj.n) {
		c := s.obj.at(x).cell
		if int(c) >= len(s.cells) {
			return fmt.Errorf("dsa: object %d is in cell %d of %d", x, c, len(s.cells))
		}
		size[c]++
	}
	if s.cells[0].live != 0 {
		return fmt.Errorf("dsa: cell 0 is in the subset of %x", s.cells[0].live)
	}
	members := make([]int, MaxJobs)
	seen := make([]bool, s.obj.n)
	for i := 1; i < len(s.cells); i++ {
		c := &s.cells[i]
		if size[i] != c.size || size[i] == 0 {
			return fmt.Errorf("dsa: cell %d holds %d objects, counted %d", i, size[i], c.size)
		}
		for q := range c.size {
			x := *s.members.at(c.lo + q)
			if y := s.at(c, q); int(s.obj.at(x).cell) != i || int(s.obj.at(y).cell) != i || seen[x] {
				return fmt.Errorf("dsa: member %d of cell %d is object %d, or %d: they are in cells %d and %d, seen before %v", q, i, x, y, s.obj.at(x).cell, s.obj.at(y).cell, seen[x])
			}
			seen[x] = true
		}
		for m := c.live; m != 0; m &= m - 1 {
			members[first(m)] += int(size[i])
		}
	}
	for n, j := range s.slot {
		want := 0
		if j != nil {
			if j.err != nil {
				continue
			}
			want = len(j.subset)
			for _, x := range j.subset {
				if !s.cells[s.obj.at(uint32(x)).cell].live.Has(j.slot) {
					return fmt.Errorf("dsa: object %d of job %d lies in a cell without it", x, j.id)
				}
			}
		}
		if members[n] != want {
			return fmt.Errorf("dsa: the cells of slot %d hold %d objects, its subset %d", n, members[n], want)
		}
	}
	return nil
}

// checkJob verifies one job's counts, groups and tape.
func (s *Sampler) checkJob(j *job) error {
	rem, in := 0, 0
	for _, x := range j.subset {
		if s.Needs(j.id, x) {
			rem++
		}
		if l, ok := j.at.member(uint32(x)); !ok || j.at.object(l) != uint32(x) {
			return fmt.Errorf("object %d has no place", x)
		}
	}
	for _, w := range j.at.in {
		in += mathbits.OnesCount64(w)
	}
	if rem != j.rem || in != len(j.subset) {
		return fmt.Errorf("%d samples are left, counted %d; %d are in the index of %d", rem, j.rem, in, len(j.subset))
	}
	for n, k := range s.slot {
		if k == nil || k == j || len(s.line) > 0 {
			continue
		}
		if j.near.Has(k.slot) != (j.overlap[n] > 0) || k.overlap[j.slot] != j.overlap[n] {
			return fmt.Errorf("overlap with job %d is %d from here, %d from there", k.id, j.overlap[n], k.overlap[j.slot])
		}
	}
	follows := s.grouped.Has(j.slot)
	if want := j.usesTape() && j.running && !j.stale; follows != want && s.lay.job != j {
		return fmt.Errorf("lists what becomes available: %v, should: %v", follows, want)
	}
	if j.mode == Strict && j.running {
		return j.checkNames()
	}
	if !j.running || j.stale || !j.usesTape() || len(s.line) > 0 { // cells may be half split
		return nil
	}
	if err := s.checkGroups(j); err != nil {
		return err
	}
	if s.following.Has(j.slot) {
		return nil
	}
	return s.checkTape(j)
}

// checkNames verifies that what is needed is either open or in the queue.
func (j *job) checkNames() error {
	q := &j.names
	open := 0
	for i, w := range q.open {
		open += mathbits.OnesCount64(w)
		if w&^j.left[i] != 0 {
			return fmt.Errorf("places %x of word %d are open and not needed", w&^j.left[i], i)
		}
	}
	if open != q.undrawn || q.undrawn+q.queued() != j.rem || q.queued() > maxAhead+1 {
		return fmt.Errorf("%d are open, counted %d, %d queued, %d left", open, q.undrawn, q.queued(), j.rem)
	}
	for _, x := range q.queue[q.head:] {
		if l := j.at.of(x); has(q.open, l) || !has(j.left, l) {
			return fmt.Errorf("object %d is queued: open %v, needed %v", x, has(q.open, l), has(j.left, l))
		}
	}
	return nil
}

// checkGroups verifies what is counted and listed of rows and tiles.
func (s *Sampler) checkGroups(j *job) error {
	g := &j.groups
	left := make([]uint32, len(g.group))
	listed := make(map[uint32]int)
	for k := range g.group {
		for i, l := range g.group[k].lists {
			for _, x := range l {
				if e := s.wanted(j, x); e != nil && (g.recounted || s.keyOf(e, j.slot) >= i) {
					listed[x] = k
				}
			}
		}
	}
	for _, id := range j.subset {
		x := uint32(id)
		l := j.at.of(x)
		r := g.rowOf(s.obj.at(x).cell)
		if r < 0 || !has(j.left, l) {
			continue
		}
		k := r*j.tiles + int(j.prev.get(l))
		left[k]++
		if at, ok := listed[x]; ok != (s.offered(j, x) != unlisted) || ok && at != k {
			return fmt.Errorf("object %d belongs in group %d, listed %v in %d, class %d", x, k, ok, at, s.offered(j, x))
		}
	}
	for r := range g.row {
		n := uint32(0)
		for t := range j.tiles {
			k := r*j.tiles + t
			if left[k] != g.group[k].left {
				return fmt.Errorf("group %d has %d samples left, counted %d", k, left[k], g.group[k].left)
			}
			n += left[k]
		}
		if n != g.row[r].left {
			return fmt.Errorf("row %d has %d samples left, counted %d", r, n, g.row[r].left)
		}
	}
	if g.stage != tailListed || s.following.Has(j.slot) {
		return nil
	}
	tail := make(map[uint32]int)
	for r := range g.row {
		for _, l := range g.tail[g.row[r].at : g.row[r].at+g.row[r].n] {
			tail[l] = r
		}
	}
	for p := next1(j.left, 0, j.at.places()); p < j.at.places(); p = next1(j.left, p+1, j.at.places()) {
		x := j.at.object(uint32(p))
		if r := g.rowOf(s.obj.at(x).cell); r >= 0 {
			if at, ok := tail[uint32(p)]; !ok || at != r {
				return fmt.Errorf("object %d of row %d is left and not in the tail (%v, %d)", x, r, ok, at)
			}
		}
	}
	return nil
}

// checkTape verifies that the tape still names every static cell exactly as often as there is something left of it.
func (s *Sampler) checkTape(j *job) error {
	t := &j.tape
	if t.r0-t.passed != j.rem {
		return fmt.Errorf("tape of %d entries passed %d, %d samples are left", t.r0, t.passed, j.rem)
	}
	if !t.order.covers(j) {
		return fmt.Errorf("the order %d does not cover the job", t.order.name)
	}
	if s.hook.oneCell {
		return nil
	}
	named := make([]int, len(s.cells))
	if o := t.order; o.plain {
		named[s.obj.at(uint32(j.subset[0])).cell] = t.r0 - t.passed
	} else {
		was := t.from
		if was == nil {
			was = j.at.in
		}
		for i, x := range o.ids {
			if seen := t.passed > 0 && (i-t.origin+o.n)%o.n < (t.cursor-t.origin-1+o.n)%o.n+1; seen {
				continue
			}
			if l, ok := j.at.find(x); ok && has(was, l) {
				named[s.obj.at(x).cell]++
			}
		}
	}
	left := make([]int, len(s.cells))
	for _, x := range j.subset {
		if has(j.left, j.at.of(uint32(x))) {
			left[s.obj.at(uint32(x)).cell]++
		}
	}
	for c := range named {
		if named[c] != left[c] {
			return fmt.Errorf("cell %d has %d samples left, the tape names it %d times", c, left[c], named[c])
		}
	}
	return nil
}
