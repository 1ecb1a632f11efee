package dsa

import (
	"fmt"
	mathbits "math/bits"

	"larder/internal/invariant"
)

// layouts makes layouts: before the first pick after an epoch start, a join of a neighbour or a return, a job's groups
// are counted and listed, and its tape begins. One layout is under way at a time. While it runs, other jobs may pick;
// from its beginning, what becomes available is listed at once.
type layouts struct {
	objects *objectTable
	jobs    *roster
	cells   *cells
	pool    *pool
	draws   *draws
	follows *follows
	scans   *scans

	current layout // the layout under way
	pending bool   // some job may be stale
	room    int    // of SetRoom
}

// layout is one layout: first it counts, then it lists, over the places of the subset. Lists are in the order of
// places, so the order in which objects became available, for whomever, does not show in them.
type layout struct {
	job   *job // nil = none is under way
	phase layoutPhase
	alone bool // the job draws without a tape
	done  int  // places that the phase has passed
}

// layoutPhase is the state of a layout: counting -> listing -> over. A layout that is invalidated starts again.
type layoutPhase uint8

const (
	layoutCounting layoutPhase = iota // what remains, by row and tile
	layoutListing                     // what of it is available
)

// counted reports whether the layout has counted place l of the job, if it is that job's.
func (y *layout) counted(j *job, l uint32) bool {
	return j != y.job || y.phase == layoutListing || int(l) < y.done
}

// run lays out a job at once.
func (ly *layouts) run(j *job) {
	for j.stale {
		ly.slice(j, 1<<20)
	}
}

// slice takes the layout of a job on by at most budget objects, and returns how many it took.
func (ly *layouts) slice(j *job, budget int) int {
	y := &ly.current
	if j.scan.on {
		return ly.scans.slice(j, budget)
	}
	if y.job != j {
		if j.tape.order.n == 0 && ly.room > 0 {
			return j.tape.order.list(ly.jobs, ly.cells, budget)
		}
		if y.job != nil {
			ly.invalidate(y.job)
		}
		ly.invalidate(j)
		*y = layout{job: j, alone: ly.room == 0}
		ly.begin(j)
		ly.jobs.laidOut = ly.jobs.laidOut.With(j.slot)
	}
	n := j.index.places()
	if y.phase == layoutListing {
		took := 0
		if y.done, took = ly.listAvailable(j, y.done, budget); y.done == n {
			ly.end(j)
		}
		return took
	}
	from, to := y.done, min(y.done+budget, n)
	y.done = to
	ly.count(j, from, to)
	if to == n {
		y.phase, y.done = layoutListing, 0
	}
	return to - from + 1
}

// begin numbers the rows, empties the groups, and begins the tape or what stands for it.
func (ly *layouts) begin(j *job) {
	j.groups.clear(ly.numberRows(j), j.tiles)
	if ly.pool.decoding {
		ly.jobs.anyForm = ly.jobs.anyForm.Without(j.slot)
	} else {
		ly.jobs.anyForm = ly.jobs.anyForm.With(j.slot)
	}
	if ly.current.alone {
		ly.follows.clearCommon(j)
		return
	}
	j.tape.begin(j)
}

// numberRows gives a row to each cell of the job that is not small, and returns how many there are.
func (ly *layouts) numberRows(j *job) (rows int) {
	g := &j.groups
	list := ly.cells.list
	n := 0
	for c := range list {
		if list[c].live.Has(j.slot) {
			n++
		}
	}
	if g.whole = n == 1; g.whole {
		g.row = resize(g.row, 1)
		g.row[0] = row{}
		return 1
	}
	g.rowOfCell = resize(g.rowOfCell, len(list))
	g.row = g.row[:0]
	for c := range list {
		switch {
		case !list[c].live.Has(j.slot):
			g.rowOfCell[c] = isNone
		case int(list[c].size) <= ly.cells.scanSize:
			g.rowOfCell[c] = isSmall
		default:
			g.rowOfCell[c] = int32(rows)
			g.row = append(g.row, row{cell: uint32(c)})
			rows++
		}
	}
	return rows
}

// count counts what remains by row and tile.
func (ly *layouts) count(j *job, from, to int) {
	g := &j.groups
	for p := next1(j.owed.left, from, to); p < to; p = next1(j.owed.left, p+1, to) {
		l := uint32(p)
		if ly.current.alone {
			ly.follows.addCommon(j, l)
		}
		r := 0
		if !g.whole {
			if r = int(g.rowOfCell[ly.objects.at(j.index.object(l)).cell]); r < 0 {
				continue
			}
		}
		g.row[r].left++
		g.group[r*j.tiles+int(j.tiled.prev.get(l))].left++
	}
}

// wordsPerObject is how many words without an object that is available cost as much as one object.
const wordsPerObject = 8

// listAvailable lists what is available, preferred and needed, from a place on, as far as the budget goes. It returns
// how far it came, and how much of the budget that took.
func (ly *layouts) listAvailable(j *job, from, budget int) (to, took int) {
	w := from / bitsPerWord
	for ; w < len(j.owed.left) && took < budget*wordsPerObject; w++ {
		took++
		m := j.owed.left[w]
		if m == 0 {
			continue
		}
		x := j.index.object(uint32(w * bitsPerWord)) // the places of a word are of objects that follow each other
		if i := int(x / bitsPerWord); i < len(ly.pool.objects.pooled) {
			m &= ly.pool.objects.pooled[i]
		} else {
			m = 0
		}
		for ; m != 0; m &= m - 1 {
			took += wordsPerObject
			if e := ly.pool.entry(x + uint32(mathbits.TrailingZeros64(m))); ly.pool.wants(j, e) {
				ly.draws.enlist(j, e)
			}
		}
	}
	return w * bitsPerWord, took/wordsPerObject + 1
}

// end ends the layout under way: the job may draw.
func (ly *layouts) end(j *job) {
	if j.groups.whole && int(j.groups.row[0].left) != j.owed.remaining {
		invariant.Violated("dsa: job %d has %d samples left, counted %d", j.id, j.owed.remaining, j.groups.row[0].left)
	}
	if ly.current.alone {
		ly.jobs.following = ly.jobs.following.With(j.slot)
	}
	j.stale = false
	ly.current = layout{}
}

// invalidate drops the job's layout, because what it counted has changed. The job is laid out again before it draws.
func (ly *layouts) invalidate(j *job) {
	ly.jobs.laidOut = ly.jobs.laidOut.Without(j.slot)
	ly.jobs.following = ly.jobs.following.Without(j.slot)
	ly.scans.end(j)
	j.follower.last.drew = absent
	if ly.current.job == j {
		ly.current = layout{}
	}
	if j.usesTape() {
		j.stale, ly.pending = true, true
	}
}

// next returns a job that cannot draw before its layout is made, or nil.
func (ly *layouts) next() *job {
	if !ly.pending {
		return nil
	}
	ly.pending = false
	for m := ly.jobs.live & (ly.jobs.taped | ly.jobs.strict); m != 0; m &= m - 1 {
		j := ly.jobs.slot[first(m)]
		if !j.stale {
			continue
		}
		ly.pending = true
		if j.running() && len(j.passes.todo) == 0 && j.passes.err == nil {
			return j
		}
	}
	return nil
}

// Check verifies the layout under way, and that the next one will be found. settled says that no pass is under way.
func (ly *layouts) Check(settled bool) error {
	for m := ly.jobs.live & ly.jobs.taped; m != 0; m &= m - 1 {
		if j := ly.jobs.slot[first(m)]; j.stale && !ly.pending {
			return fmt.Errorf("job %d is stale, but no layout is pending", j.id)
		}
	}
	y := &ly.current
	j := y.job
	if j == nil {
		if *y != (layout{}) {
			return fmt.Errorf("no layout is under way, but %d objects are counted or listed", y.done)
		}
		return nil
	}
	if !j.stale || !j.running() || !j.usesTape() || !ly.jobs.laidOut.Has(j.slot) || ly.jobs.following.Has(j.slot) {
		return fmt.Errorf("job %d (%s) is being laid out: stale %v, running %v, laid out %v, following %v", j.id, j.mode,
			j.stale, j.running(), ly.jobs.laidOut.Has(j.slot), ly.jobs.following.Has(j.slot))
	}
	counted, n := y.done, j.index.places()
	if y.phase == layoutListing {
		counted = n
	}
	if y.done < 0 || y.done > n {
		return fmt.Errorf("the layout of job %d has passed %d of %d", j.id, y.done, n)
	}
	if !settled {
		return nil
	}
	if err := ly.draws.checkCounts(j, counted); err != nil {
		return fmt.Errorf("the layout of job %d: %w", j.id, err)
	}
	return nil
}
