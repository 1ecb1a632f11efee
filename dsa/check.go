package dsa

import (
	"fmt"
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
	if out := (s.active | s.grouped | s.tapeful | s.strictly | s.shown) &^ live; out != 0 {
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

// checkObjects verifies what is kept per object.
func (s *Sampler) checkObjects() error {
	vis := 0
	for x := range s.obj {
		a := s.obj[x].avail
		if a&visMask != 0 {
			vis++
		}
		if a>>visShift&levelMask > a&levelMask {
			return fmt.Errorf("dsa: object %d is at level %d and visible at %d", x, a&levelMask, a>>visShift&levelMask)
		}
		if c := s.classOf(uint32(x)); len(s.line) == 0 && c != s.obj[x].class() {
			return fmt.Errorf("dsa: object %d is in class %d and belongs in %d", x, s.obj[x].class(), c)
		}
		for m := s.obj[x].need; m != 0; m &= m - 1 {
			j := s.slot[first(m)]
			if j == nil || !j.visible() || !j.running && !j.has(passClear) {
				return fmt.Errorf("dsa: object %d is needed by slot %d, which needs nothing", x, first(m))
			}
		}
	}
	if vis != s.nVis {
		return fmt.Errorf("dsa: %d objects are visible, counted %d", vis, s.nVis)
	}
	return nil
}

// checkCells verifies that the cells partition the objects that were ever in a subset, and say who holds them.
func (s *Sampler) checkCells() error {
	if len(s.line) > 0 { // cells may be half split
		return nil
	}
	size := make([]uint32, len(s.cells))
	for x := range s.obj {
		c := s.obj[x].cell
		if int(c) >= len(s.cells) {
			return fmt.Errorf("dsa: object %d is in cell %d of %d", x, c, len(s.cells))
		}
		size[c]++
	}
	if s.cells[0].live != 0 {
		return fmt.Errorf("dsa: cell 0 is in the subset of %x", s.cells[0].live)
	}
	members := make([]int, MaxJobs)
	for c := 1; c < len(s.cells); c++ {
		if size[c] != s.cells[c].size || size[c] == 0 {
			return fmt.Errorf("dsa: cell %d holds %d objects, counted %d", c, size[c], s.cells[c].size)
		}
		for m := s.cells[c].live; m != 0; m &= m - 1 {
			members[first(m)] += int(size[c])
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
				if !s.cells[s.obj[x].cell].live.Has(j.slot) {
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
	rem := 0
	for _, x := range j.subset {
		if s.Needs(j.id, x) {
			rem++
		}
	}
	if rem != j.rem {
		return fmt.Errorf("%d samples are left, counted %d", rem, j.rem)
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
		return fmt.Errorf("follows changes of class: %v, should: %v", follows, want)
	}
	if j.mode == Strict && !j.stale {
		return s.checkStrict(j)
	}
	if !j.running || j.stale || !j.usesTape() {
		return nil
	}
	if err := s.checkGroups(j); err != nil {
		return err
	}
	return s.checkTape(j)
}

// checkStrict verifies that the items are split into undrawn, queued and taken ones.
func (s *Sampler) checkStrict(j *job) error {
	q := j.strict
	if len(j.groups.items) != len(j.subset) || j.running && q.undrawn+q.queued != j.rem || q.queued > maxAhead+1 || q.queued < 0 {
		return fmt.Errorf("%d items, %d undrawn, %d queued, %d left", len(j.groups.items), q.undrawn, q.queued, j.rem)
	}
	for p, x := range j.groups.items {
		if int(j.pos[j.at.of(x)]) != p {
			return fmt.Errorf("object %d is at item %d, pos says %d", x, p, j.pos[j.at.of(x)])
		}
		if j.running && s.obj[x].need.Has(j.slot) != (p < j.rem) {
			return fmt.Errorf("object %d at item %d of %d left: needed %v", x, p, j.rem, s.obj[x].need.Has(j.slot))
		}
	}
	return nil
}

// checkGroups verifies that each object lies in its group, among its class, where pos says.
func (s *Sampler) checkGroups(j *job) error {
	g := &j.groups
	if len(g.items) != len(j.subset) || int(g.edge[g.n*stride-1]) != len(g.items) || g.edge[0] != 0 {
		return fmt.Errorf("%d items in groups up to %d, the subset has %d", len(g.items), g.edge[g.n*stride-1], len(j.subset))
	}
	for k := range g.n {
		e := g.edge[k*stride : k*stride+stride]
		if k > 0 && e[0] != g.edge[k*stride-1] {
			return fmt.Errorf("group %d begins at %d, the one before ends at %d", k, e[0], g.edge[k*stride-1])
		}
		for c := range numClasses {
			if e[c] > e[c+1] {
				return fmt.Errorf("class %d of group %d runs from %d to %d", c, k, e[c], e[c+1])
			}
			for p := e[c]; p < e[c+1]; p++ {
				x := g.items[p]
				l := j.at.of(x)
				if j.pos[l] != p {
					return fmt.Errorf("object %d is at item %d, pos says %d", x, p, j.pos[l])
				}
				if kk := s.keyOf(j, x, l); kk != k {
					return fmt.Errorf("object %d lies in group %d and belongs in %d", x, k, kk)
				}
				if cc := s.classIn(j, x); cc != c {
					return fmt.Errorf("object %d lies in class %d of its group and belongs in %d", x, c, cc)
				}
			}
		}
	}
	return nil
}

// checkTape verifies that the tape still holds, of every static cell, exactly as many entries as remain in it.
func (s *Sampler) checkTape(j *job) error {
	t, g := &j.tape, &j.groups
	named := make([]uint32, len(s.cells))
	for _, x := range j.subset {
		if t.order.plain {
			named[s.obj[j.subset[0]].cell] = uint32(t.r0 - t.passed)
			break
		}
		if l := j.at.of(uint32(x)); t.left[l>>6]&(1<<(l&63)) != 0 {
			named[s.obj[x].cell]++
		}
	}
	if s.hook.oneCell {
		return nil
	}
	rows := make([]uint32, len(g.row)) // cells split since the layout count for those they come from
	for c, n := range named {
		if n > 0 && (c >= len(g.local) || g.local[c] < 0) {
			return fmt.Errorf("the tape names cell %d, which the job did not have when it was laid out", c)
		} else if n > 0 {
			rows[g.local[c]] += n
		}
	}
	for i, n := range rows {
		r, left := g.row[i], uint32(0)
		for k := r.group; k < r.group+r.n; k++ {
			left += g.edge[int(k)*stride+classTaken] - g.edge[int(k)*stride]
		}
		if left != n || left != r.left {
			return fmt.Errorf("row %d has %d samples left, counted %d, the tape names it %d times", i, left, r.left, n)
		}
	}
	if t.r0-t.passed != j.rem {
		return fmt.Errorf("tape of %d entries passed %d, %d samples are left", t.r0, t.passed, j.rem)
	}
	if !t.order.covers(j) {
		return fmt.Errorf("the order %d does not cover the job", t.order.name)
	}
	return nil
}
