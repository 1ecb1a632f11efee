package dsa

import (
	"slices"

	"larder/internal/ident"
)

// work is what calls have left to do. What takes time in proportion to a subset is done in slices: a join, an epoch
// start, an abandoned epoch, a leave, and the layout of a job's groups. Two lines wait: passes, which change what all
// jobs see, one job at a time and in the order of the calls; and, when there are none, layouts (layout.go). Without
// InSlices each call does its passes before it returns, and Next does the layout.
//
// Why slices do not show in a choice: while a pass is half through that changes cells, needs or classes, no job that
// looks at them draws; Need follows sets of jobs that change at once; and a job whose layout is not complete draws
// nothing.
//
// Invariant: the jobs of line are distinct and have passes to do.
type work struct {
	steps  [numPasses]step
	ended  func(j *job) // called when the last pass of a job is done or cancelled
	sliced bool         // Work does what takes long
	line   []*job       // jobs with passes to do, in the order of the calls
}

// pass is one walk over the subset of a job; over all objects, the members of cells, the places of the subset, or the
// entries of the pool.
type pass uint8

// The passes, in the order in which a job does them. passes.go says what each does.
const (
	passRenew   pass = iota // forget the subset before a change
	passScan                // find the largest id
	passGrow                // make room for the ids
	passIndex               // fill the index; refuse a subset that is no set
	passForget              // drop all cells, if that is possible
	passCount               // count how much of each cell is in the subset
	passSplit               // split the cells: which object is in which
	passMembers             // the same, by cell
	passClear               // make the job need nothing
	passMark                // make it need its subset
	passCarry               // carry tiles over a change of the subset
	passShuffle             // make the order of a Fixed epoch
	numPasses
)

// step is how a pass is done. open, slice and close may be nil.
type step struct {
	length func(j *job) int           // how much the pass walks over, asked after open
	open   func(j *job)               // prepares the pass
	slice  func(j *job, from, to int) // does part from..to-1; may set the err of passes, which ends all passes of the job
	close  func(j *job)               // ends the pass
}

// add adds passes for a job.
func (w *work) add(j *job, passes ...pass) {
	if len(j.passes.todo) == 0 {
		w.line = append(w.line, j)
	}
	j.passes.todo = append(j.passes.todo, passes...)
}

// addStratum splits the cells as a job would that joins and leaves at once. It takes no slot: there may be more strata
// than jobs.
func (w *work) addStratum(ids []ident.ObjectID) *job {
	j := &job{jobSpec: jobSpec{mode: Sequential, tiles: 1, subset: ids}, phase: jobStratum}
	w.add(j, passScan, passGrow, passIndex, passCount, passSplit, passMembers)
	return j
}

// jobPasses are the passes that calls have left to do for a job.
//
// Invariant: while there are any, the job is in work.line, once.
type jobPasses struct {
	todo []pass         // the first may be under way
	done int            // how far the first has come
	top  ident.ObjectID // largest id of the subset, from passScan
	err  error          // why the job can never draw; nil for a sound job
}

// has reports whether a pass waits or is under way.
func (p *jobPasses) has(x pass) bool { return slices.Contains(p.todo, x) }

// begun reports whether a pass of the job is half through.
func (w *work) begun(j *job, p pass) bool {
	return len(j.passes.todo) > 0 && w.line[0] == j && j.passes.todo[0] == p && j.passes.done > 0
}

// unsettled reports whether a pass is half through, or next in line, that changes what choices look at.
func (w *work) unsettled() bool {
	return len(w.line) > 0 && w.line[0].passes.todo[0] >= passSplit && w.line[0].passes.todo[0] != passShuffle
}

// ready reports whether no work is left to do for the job.
func (w *work) ready(j *job) bool {
	if len(j.passes.todo) > 0 || j.passes.err != nil {
		return false
	}
	if j.mode <= Fixed {
		return true
	}
	return !w.unsettled() && (!j.stale || !j.running())
}

// cancel takes passes of the job back, except those that have begun and must come to their end.
func (w *work) cancel(j *job, passes ...pass) {
	if len(j.passes.todo) == 0 {
		return
	}
	keep := j.passes.todo[:0]
	willSplit := j.passes.has(passSplit) && !w.begun(j, passSplit)
	for i, p := range j.passes.todo {
		begun := i == 0 && w.begun(j, p)
		must := begun && (p == passSplit || p == passForget) || p == passMembers && !willSplit
		switch {
		case !slices.Contains(passes, p) || must:
			keep = append(keep, p)
		case begun:
			j.passes.done = 0
		}
	}
	j.passes.todo = keep
	if len(j.passes.todo) == 0 {
		w.line = slices.DeleteFunc(w.line, func(k *job) bool { return k == j })
		w.ended(j)
	}
}

// walk takes the first job of the line on by at most budget objects of its first pass, and returns how many it took.
// REQUIRES: the line is not empty.
func (w *work) walk(budget int) int {
	j := w.line[0]
	step := &w.steps[j.passes.todo[0]]
	if j.passes.done == 0 && step.open != nil {
		step.open(j)
	}
	n := step.length(j)
	to := min(j.passes.done+budget, n)
	if step.slice != nil {
		step.slice(j, j.passes.done, to)
	}
	took := to - j.passes.done
	j.passes.done = to
	if j.passes.done < n && j.passes.err == nil {
		return took
	}
	j.passes.done = 0
	j.passes.todo = slices.Delete(j.passes.todo, 0, 1)
	if j.passes.err != nil {
		j.passes.todo = j.passes.todo[:0]
	} else if step.close != nil {
		step.close(j)
	}
	if len(j.passes.todo) == 0 && w.line[0] == j {
		w.line = slices.Delete(w.line, 0, 1)
		w.ended(j)
	}
	return took + 1
}

// settle does all passes that wait.
func (w *work) settle() {
	for len(w.line) > 0 {
		w.walk(1 << 20)
	}
}

// finish ends a call that has added passes: without InSlices it does them now.
func (w *work) finish() {
	if !w.sliced {
		w.settle()
	}
}
