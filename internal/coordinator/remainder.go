package coordinator

import (
	"fmt"

	"larder/dsa"
	"larder/internal/bits"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/jobs"
)

// Rest is what an earlier job left of an epoch, for Register. The job begins with it: that epoch has those samples,
// dealt to its own ranks in its own batches, in the instance that they would have had, and the next epoch has the whole
// subset again. A client that begins with another epoch gives it up.
type Rest struct {
	Epoch, Instance uint32
	Before          []ident.ObjectID // samples of the subset that were given out, in their order as far as it is known
	// the subset without them, never empty; nil = made here, which takes time in proportion
	Member   *bits.Set
	Places   []uint32         // Fixed and Sequential: the positions of the epoch's order that are left, ascending
	Previous []ident.ObjectID // the order of the epoch before, as far as it is known: stratified orders need it
}

// Scripted is an epoch of a job whose orders are given to it (Register.Script).
type Scripted struct {
	Epoch, Instance uint32
	Objects         []ident.ObjectID // in order, distinct
	Member          *bits.Set        // the same as a set
}

// takeRest makes a job begin with what is left of an epoch.
func (lc *lifecycle) takeRest(s *stream, rest *Rest) {
	if rest.Member == nil {
		rest.Member = Members(s.sample.Subset)
		for _, x := range rest.Before {
			rest.Member.Remove(uint32(x))
		}
	}
	s.rest = rest
	s.job.Rest(rest.Member)
	s.job.Offset = rest.Instance - rest.Epoch
}

// beginRest starts the sampler's epoch of which only the rest is to be drawn. What was given out is taken out of it in
// slices.
func (lc *lifecycle) beginRest(s *stream, rest *Rest) error {
	epoch := rest.Epoch
	s.catching = s.catching[:0]
	lc.planner.expectCatchUp()
	if len(rest.Previous) > 0 && epoch > 0 {
		if err := lc.sampler.StartEpoch(s.job.ID, epoch-1); err != nil {
			return err
		}
		s.catching = append(s.catching, catching{objects: rest.Previous},
			catching{epoch: epoch, start: true, objects: rest.Before, persist: true})
	} else {
		if err := lc.sampler.StartEpoch(s.job.ID, epoch); err != nil {
			return err
		}
		s.catching = append(s.catching, catching{objects: rest.Before, persist: true})
	}
	s.setPlaces(rest.Places)
	return nil
}

func (s *stream) setPlaces(places []uint32) {
	s.places = nil
	if s.positional() {
		s.places, s.tail = places, len(places)
	}
}

// place is the position of the epoch's order that a position of the rest stands for.
func (s *stream) place(pos int) int {
	if s.places == nil || pos >= len(s.places) {
		return pos
	}
	return int(s.places[pos])
}

// refuseMixedStart refuses a client that begins a job with another epoch than its other ranks: the remainder of an
// epoch is dealt to all of them.
func (s *stream) refuseMixedStart(r int, epoch uint32) error {
	if s.rest == nil {
		return nil
	}
	for i := range s.job.Ranks {
		k := &s.job.Ranks[i]
		if i == r || k.Phase != jobs.Waiting || (k.Next == s.rest.Epoch) == (epoch == s.rest.Epoch) {
			continue
		}
		return errs.New(errs.Stale, s.job.Spec.Name, "load the same state_dict in every rank",
			"rank %d of job %s begins with epoch %d and rank %d with epoch %d: "+
				"one of them has loaded a state and the other has not", r, s.job.Spec.Name, epoch, i, k.Next)
	}
	return nil
}

// wholeOf is how many samples the whole of an epoch has of which an earlier job had some, and how many batches a rank
// would get; else 0.
func (s *stream) wholeOf(epoch uint32, r int) (samples, batches int) {
	j := s.job
	of := j.Epoch
	if s.rest != nil {
		of = s.rest.Epoch
	}
	if w := j.Whole; w != nil && of == epoch && j.Spec.Subset < w.Subset {
		return w.Subset, withSubset(j.Spec, w.Subset).Batches(r)
	}
	return 0, 0
}

// scripted finds what a job with given orders has for an epoch; true for every other job.
func (s *stream) scripted(epoch uint32) (*Scripted, bool) {
	for i := range s.script {
		if s.script[i].Epoch == epoch {
			return &s.script[i], true
		}
	}
	return nil, s.script == nil
}

// scriptedEpochs names the first and the last epoch of a script.
func (s *stream) scriptedEpochs() string {
	lo, hi := s.script[0].Epoch, s.script[0].Epoch
	for i := range s.script {
		lo, hi = min(lo, s.script[i].Epoch), max(hi, s.script[i].Epoch)
	}
	return fmt.Sprintf("epochs %d to %d", lo, hi)
}

// takeScript makes the next epoch the one that the script has.
func (s *stream) takeScript(epoch uint32) {
	p, _ := s.scripted(epoch)
	if p == nil || len(p.Objects) > 0 && len(s.sample.Subset) > 0 && &p.Objects[0] == &s.sample.Subset[0] {
		return
	}
	s.job.Next, s.next = &jobs.Next{Mark: s.job.Mark, Subset: len(p.Objects), Member: p.Member}, p.Objects
}

// Places returns the positions of an epoch's order that are left when before was given out, for Rest; nil for orders
// that are not prescribed. It takes time in proportion to the subset, so it is for who asks, not for Step.
func Places(sample dsa.JobSpec, epoch uint32, before []ident.ObjectID) []uint32 {
	if sample.Mode != dsa.Fixed && sample.Mode != dsa.Sequential {
		return nil
	}
	had := Members(before)
	var order []uint32
	if sample.Mode == dsa.Fixed {
		order = dsa.FixedOrder(nil, sample.Seed, epoch, len(sample.Subset))
	}
	out := make([]uint32, 0, max(0, len(sample.Subset)-len(before)))
	for p := range sample.Subset {
		at := p
		if order != nil {
			at = int(order[p])
		}
		if !had.Has(uint32(sample.Subset[at])) {
			out = append(out, uint32(p))
		}
	}
	return out
}
