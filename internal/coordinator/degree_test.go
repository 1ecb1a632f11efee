package coordinator

import (
	"fmt"
	"math"
	"testing"

	"larder/cachepolicy"
	"larder/dsa"
	"larder/internal/ident"
)

// sharing is a rig with jobs that share what they augment of 1,000 samples of 150 bytes; the augmented tier has room for a part of them.
func sharing(t *testing.T, members int, part float64) *rig {
	t.Helper()
	r := newRig(t, [ident.NumForms]int64{ident.Encoded: 1000, ident.Augmented: int64(part * 150_000)})
	for i := range members {
		r.join(fmt.Sprint("job", i), 0, 1000, 10, order(dsa.Stratified), slots(2),
			func(e *Register) { e.Share, e.Key, e.AugmentedBytes = true, 7, 150 })
	}
	return r
}

// work has all jobs done with n samples each, of which the daemon decoded and augmented so many.
func (r *rig) work(n, decodes, augments float64) {
	for i, s := range r.c.order {
		s.job.Stats.Samples += uint64(n)
		if i == 0 { // whoever is first is credited with what all of them use
			s.job.Stats.Decodes += uint64(math.Round(decodes))
			s.job.Stats.Augments += uint64(math.Round(augments))
		}
	}
}

// degrees are what the Core makes of it.
func (r *rig) degrees() (read, augment float64) {
	set := &cachepolicy.Dataset{Name: fmt.Sprint(r.c.datasets[0].id), Samples: 1000, Recipes: []cachepolicy.Recipe{{Prefix: ident.RecipeID(1).String(), Decoded: 600}}}
	return r.c.degree(set.Recipes[0].Prefix, set), r.c.augmentDegree(r.c.groups[0])
}

// TestDegreesAreOfWhatNoTierServes: counts made up from degrees, a part that the augmented tier serves and the members of the group give those
// degrees back.
func TestDegreesAreOfWhatNoTierServes(t *testing.T) {
	for _, members := range []int{2, 3, 6} {
		for _, part := range []float64{0, .3, .7} {
			r := sharing(t, members, part)
			all := float64(members)
			g, h := 1+.7*(all-1), 1+.4*(all-1)
			n := 1e6 * all // samples of all jobs together
			r.work(1e6, n*((1-part)/g+part/all), n*((1-part)/h+part/all))
			if read, augment := r.degrees(); math.Abs(read/g-1) > 1e-3 || math.Abs(augment/h-1) > 1e-3 {
				t.Errorf("%d members, %v of the samples in the tier: %.3f and %.3f, want %.3f and %.3f", members, part, read, augment, g, h)
			}
		}
	}
}

// TestDegreesOutliveATierThatServesAll: what a tier serves says nothing of how many jobs work together without it, so that the model compares
// with what was measured before the tier came, and memory does not go to and fro.
func TestDegreesOutliveATierThatServesAll(t *testing.T) {
	r := sharing(t, 3, 0)
	if read, augment := r.degrees(); read != 3/cachepolicy.StratifiedDegree || augment != read {
		t.Errorf("before anything was measured: %v and %v", read, augment)
	}
	r.work(1e5, 3e5/2.1, 3e5/1.8)
	for range 2 {
		if read, augment := r.degrees(); math.Abs(read-2.1) > .01 || math.Abs(augment-1.8) > .01 {
			t.Errorf("%v and %v, want 2.1 and 1.8", read, augment)
		}
		// The tier grows to hold everything; from now on one decode and one augmentation serve all three.
		r.c.index.Shrink(ident.Augmented, 150_000, 0, r.c.evicted)
		r.work(1e7, 1e7, 1e7)
	}
	r.c.recountDegree() // other jobs: nothing is known of them
	if read, augment := r.degrees(); read != 3/cachepolicy.StratifiedDegree || augment != read {
		t.Errorf("of other jobs: %v and %v", read, augment)
	}
}

// TestSourcesThatAreDecodedAreNoDecodes: where the decoded tier holds samples beyond what it serves, what is augmented anew takes no decode.
func TestSourcesThatAreDecodedAreNoDecodes(t *testing.T) {
	r := newRig(t, [ident.NumForms]int64{ident.Decoded: 600_000, ident.Augmented: 75_000})
	first := r.join("a", 0, 1000, 10, order(dsa.Stratified), slots(2), func(e *Register) { e.Share, e.Key, e.AugmentedBytes = true, 7, 150 })
	if n := len(first.drain()); n != 1000 || r.c.index.Used(ident.Decoded) < 590_000 {
		t.Fatalf("%d samples came, %d bytes are decoded", n, r.c.index.Used(ident.Decoded))
	}
	r.join("b", 0, 1000, 10, order(dsa.Stratified), slots(2), func(e *Register) { e.Share, e.Key, e.AugmentedBytes = true, 7, 150 })
	r.c.recountDegree()
	r.work(10_000, 0, 20_000*(.5/1.5+.5/2))
	if read, augment := r.degrees(); read != 2/cachepolicy.StratifiedDegree || math.Abs(augment-1.5) > .01 {
		t.Errorf("%v and %v, want what is not measured, and 1.5", read, augment)
	}
}
