package dsa

import (
	"fmt"
	"slices"

	"larder/internal/bits"
	"larder/internal/ident"
)

// roster is who has joined, and which of the joined jobs count for what. A job has a slot, the bit that stands for it
// in every JobSet, until it has left and its passes are done.
//
// Invariant: every set holds live slots only.
type roster struct {
	byID map[ident.JobID]*job // lookups only, never ranged over
	last *job                 // found last: a job is usually asked for many times in a row
	slot [MaxJobs]*job
	live bits.JobSet // slots in use

	unseen bits.JobSet // of them, those of invisible jobs

	active    bits.JobSet // jobs that take batches, so count as needing something
	marked    bits.JobSet // visible jobs whose running epoch is entered in the pool
	taped     bits.JobSet // joined jobs of mode Stratified or Epoch
	strict    bits.JobSet // joined jobs of mode Strict
	slow      bits.JobSet // jobs that are slow beside some other (pace.go)
	laidOut   bits.JobSet // jobs whose groups are laid out, or being so: the pool lists for them what becomes available
	following bits.JobSet // laid-out jobs that draw without a tape (follow.go)
	scanning  bits.JobSet // jobs that walk through a scanOrder (scan.go)
	anyForm   bits.JobSet // laid-out jobs that prefer encoded objects like decoded ones: nothing stays decoded
}

// find returns the job of that id; nil = there is none.
func (r *roster) find(id ident.JobID) *job {
	if j := r.last; j != nil && j.id == id {
		return j
	}
	j := r.byID[id]
	if j != nil {
		r.last = j
	}
	return j
}

// admit refuses what Join can refuse without a look at the subset.
func (r *roster) admit(id ident.JobID, spec JobSpec) error {
	switch {
	case r.byID[id] != nil:
		return ErrJobExists
	case spec.Mode >= numModes:
		return fmt.Errorf("%w: %s", ErrMode, spec.Mode)
	case spec.Tiles < 0 || spec.Tiles > MaxTiles:
		return fmt.Errorf("%w: %d is not in 1..%d", ErrTiles, spec.Tiles, MaxTiles)
	case len(spec.Subset) == 0:
		return ErrEmptySubset
	case len(r.byID) >= MaxJobs:
		return fmt.Errorf("%w: %d are joined, the limit is %d", ErrTooManyJobs, len(r.byID), MaxJobs)
	}
	return nil
}

// join gives the job the lowest free slot; an invisible one the highest, so that the slots of the others, which come in
// that order where they are equal in all else, do not tell of it.
// REQUIRES: one is free.
func (r *roster) join(j *job) {
	if j.visible() {
		for r.live.Has(j.slot) {
			j.slot++
		}
	} else {
		for j.slot = MaxJobs - 1; r.live.Has(j.slot); {
			j.slot--
		}
		r.unseen = r.unseen.With(j.slot)
	}
	r.byID[j.id], r.slot[j.slot] = j, j
	r.live, r.active = r.live.With(j.slot), r.active.With(j.slot)
	if j.usesTape() {
		r.taped = r.taped.With(j.slot)
	}
	if j.mode == Strict {
		r.strict = r.strict.With(j.slot)
	}
	r.groupRecipes()
}

// leave removes the job from what is asked for by id. Its slot stays in use until release.
func (r *roster) leave(j *job) {
	delete(r.byID, j.id)
	r.last = nil
	j.become(jobLeft)
	r.active, r.taped, r.strict = r.active.Without(j.slot), r.taped.Without(j.slot), r.strict.Without(j.slot)
}

// release frees the slot of a job that has left.
func (r *roster) release(j *job) {
	r.slot[j.slot] = nil
	r.live, r.unseen = r.live.Without(j.slot), r.unseen.Without(j.slot)
	r.forgetPace(j.slot)
	r.anyForm = r.anyForm.Without(j.slot)
	r.groupRecipes()
	r.forgetOverlap(j.slot)
}

// forgetOverlap removes the job in that slot from the neighbours of all others.
func (r *roster) forgetOverlap(slot uint8) {
	for _, k := range r.slot {
		if k != nil {
			k.peers.forget(slot)
		}
	}
}

// groupRecipes recomputes peers.sameRecipe when a job joins or leaves.
func (r *roster) groupRecipes() {
	for _, j := range r.slot {
		if j == nil {
			continue
		}
		j.peers.sameRecipe = 0
		for _, k := range r.slot {
			if k != nil && k.recipe == j.recipe {
				j.peers.sameRecipe = j.peers.sameRecipe.With(k.slot)
			}
		}
	}
}

// ids returns the joined jobs, ascending.
func (r *roster) ids() []ident.JobID {
	ids := make([]ident.JobID, 0, r.live.Len())
	for _, j := range r.slot {
		if j != nil && j.phase != jobLeft {
			ids = append(ids, j.id)
		}
	}
	slices.Sort(ids)
	return ids
}

// Check verifies that slots, ids and sets agree.
func (r *roster) Check() error {
	var used, gone bits.JobSet
	for n, j := range r.slot {
		if j == nil {
			continue
		}
		used = used.With(uint8(n))
		if int(j.slot) != n || j.phase != jobLeft && r.byID[j.id] != j {
			return fmt.Errorf("slot %d holds job %d, which has slot %d", n, j.id, j.slot)
		}
		if j.phase == jobLeft {
			gone = gone.With(uint8(n))
			if len(j.passes.todo) == 0 {
				return fmt.Errorf("slot %d is in use by job %d, which has left and has no pass to do", n, j.id)
			}
		}
	}
	joined := used &^ gone
	if used != r.live || len(r.byID) != joined.Len() {
		return fmt.Errorf("live slots %x, used %x by %d joined jobs (%d by id)", r.live, used, joined.Len(), len(r.byID))
	}
	sets := r.active | r.laidOut | r.taped | r.strict | r.following | r.marked | r.scanning
	if out := sets &^ joined; out != 0 {
		return fmt.Errorf("slots %x are in a set, but no joined job has them", out)
	}
	return nil
}
