package dsa

import (
	"fmt"
	mathbits "math/bits"
	"slices"
)

// Check verifies every invariant and returns the first that does not hold. It takes O(objects x jobs); it is for tests
// and builds with invariants.
func (s *Sampler) Check() (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("dsa: %w", err)
		}
	}()
	settled := len(s.work.line) == 0
	if err := s.pool.Check(settled); err != nil {
		return err
	}
	if settled {
		if err := s.cells.Check(); err != nil {
			return err
		}
	}
	if err := s.jobs.Check(); err != nil {
		return err
	}
	if err := s.layouts.Check(settled); err != nil {
		return err
	}
	for _, j := range s.jobs.slot {
		if j == nil || len(j.passes.todo) > 0 || j.passes.err != nil {
			continue
		}
		if err := s.checkJob(j, settled); err != nil {
			return fmt.Errorf("job %d (%s): %w", j.id, j.mode, err)
		}
	}
	if err := s.walks.Check(); err != nil {
		return err
	}
	return s.work.Check()
}

// checkJob verifies one job without passes to do.
func (s *Sampler) checkJob(j *job, settled bool) error {
	if err := j.checkIndex(); err != nil {
		return err
	}
	if settled {
		if err := s.jobs.checkOverlap(j); err != nil {
			return err
		}
	}
	laidOut := s.jobs.laidOut.Has(j.slot)
	if want := j.usesTape() && j.running() && !j.stale && !j.scan.on; laidOut != want && s.layouts.current.job != j {
		return fmt.Errorf("lists what becomes available: %v, should: %v", laidOut, want)
	}
	if j.mode == Strict && j.running() {
		return s.strict.Check(j)
	}
	if !j.running() || j.stale || !j.usesTape() || !settled {
		return nil
	}
	if j.scan.on {
		return s.scans.Check(j)
	}
	if err := s.draws.Check(j); err != nil {
		return err
	}
	if s.jobs.following.Has(j.slot) {
		return s.follows.Check(j)
	}
	return s.tapes.Check(j)
}

// checkIndex verifies the index of the subset and the count of what is left.
func (j *job) checkIndex() error {
	left, in := 0, 0
	for _, x := range j.subset {
		if j.needs(uint32(x)) {
			left++
		}
		if l, ok := j.index.member(uint32(x)); !ok || j.index.object(l) != uint32(x) {
			return fmt.Errorf("object %d has no place", x)
		}
	}
	for _, w := range j.index.in {
		in += mathbits.OnesCount64(w)
	}
	if left != j.owed.remaining || in != len(j.subset) {
		return fmt.Errorf("%d samples are left, counted %d; %d are in the index of %d", left, j.owed.remaining, in,
			len(j.subset))
	}
	return nil
}

// checkOverlap verifies that the job and its neighbours agree on what they share.
func (r *roster) checkOverlap(j *job) error {
	for n, k := range r.slot {
		if k == nil || k == j {
			continue
		}
		here, there := j.peers.overlap[n], k.peers.overlap[j.slot]
		if j.peers.neighbours.Has(k.slot) != (here > 0) || here != there {
			return fmt.Errorf("overlap with job %d is %d from here, %d from there", k.id, here, there)
		}
	}
	return nil
}

// Check verifies the groups of a job that is laid out: what is counted and listed of rows and tiles.
func (d *draws) Check(j *job) error {
	if err := d.checkLists(j); err != nil {
		return err
	}
	if err := d.checkCounts(j, j.index.places()); err != nil {
		return err
	}
	if j.groups.tail.stage != tailListed || d.jobs.following.Has(j.slot) {
		return nil
	}
	return d.checkTail(j)
}

// checkCounts verifies that rows and groups count what is left of the places below n.
func (d *draws) checkCounts(j *job, n int) error {
	g := &j.groups
	left := make([]uint32, len(g.group))
	for p := next1(j.owed.left, 0, n); p < n; p = next1(j.owed.left, p+1, n) {
		l := uint32(p)
		if r := g.rowOf(d.objects.at(j.index.object(l)).cell); r >= 0 {
			left[r*j.tiles+int(j.tiled.prev.get(l))]++
		}
	}
	for r := range g.row {
		sum := uint32(0)
		for t := range j.tiles {
			k := r*j.tiles + t
			if left[k] != g.group[k].left {
				return fmt.Errorf("group %d has %d samples left, counted %d", k, left[k], g.group[k].left)
			}
			sum += left[k]
		}
		if sum != g.row[r].left {
			return fmt.Errorf("row %d has %d samples left, counted %d", r, sum, g.row[r].left)
		}
	}
	return nil
}

// checkLists verifies that each object is listed where it belongs.
func (d *draws) checkLists(j *job) error {
	g := &j.groups
	listed := make(map[uint32]int)
	for k := range g.group {
		for i, l := range g.group[k].lists {
			for _, x := range l {
				if e := d.pool.wanted(j, x); e != nil && (g.reclassified || d.pool.listOf(e, j.slot) >= i) {
					listed[x] = k
				}
			}
		}
	}
	for _, id := range j.subset {
		x := uint32(id)
		l := j.index.of(x)
		r := g.rowOf(d.objects.at(x).cell)
		if r < 0 || !has(j.owed.left, l) {
			continue
		}
		k := r*j.tiles + int(j.tiled.prev.get(l))
		if at, ok := listed[x]; ok != (d.pool.classFor(j, x) != unavailable) || ok && at != k {
			return fmt.Errorf("object %d belongs in group %d, listed %v in %d, class %d", x, k, ok, at,
				d.pool.classFor(j, x))
		}
	}
	return nil
}

// checkTail verifies that the tail holds what is left of every row.
func (d *draws) checkTail(j *job) error {
	g := &j.groups
	tail := make(map[uint32]int)
	for r := range g.row {
		for _, l := range g.tail.places[g.row[r].at : g.row[r].at+g.row[r].n] {
			tail[l] = r
		}
	}
	for p := next1(j.owed.left, 0, j.index.places()); p < j.index.places(); p = next1(j.owed.left, p+1, j.index.places()) {
		x := j.index.object(uint32(p))
		if r := g.rowOf(d.objects.at(x).cell); r >= 0 {
			if at, ok := tail[uint32(p)]; !ok || at != r {
				return fmt.Errorf("object %d of row %d is left and not in the tail (%v, %d)", x, r, ok, at)
			}
		}
	}
	return nil
}

// Check verifies that every job in line has passes to do, once.
func (w *work) Check() error {
	for i, j := range w.line {
		if len(j.passes.todo) == 0 || slices.Contains(w.line[:i], j) {
			return fmt.Errorf("job %d is in line with %d passes to do, at %d", j.id, len(j.passes.todo), i)
		}
	}
	return nil
}
