package coordinator

import (
	"fmt"
	"math"
	"testing"

	"larder/cachepolicy/partition"
	"larder/dsa"
	"larder/internal/ident"
)

// sharingRig is a rig with jobs that share what they augment of 1,000 samples of 150 bytes; the augmented tier has room
// for a part of them, and the encoded one, which has seen an epoch, for another.
func sharingRig(t *testing.T, members int, part, encoded float64) *rig {
	t.Helper()
	r := newRig(t, [ident.NumForms]int64{ident.Encoded: int64(encoded * 100_000), ident.Augmented: int64(part * 150_000)})
	if encoded > 0 {
		p := r.join("before", 0, 1000, 10, order(dsa.Stratified), slots(2))
		p.drain()
		p.detach(true)
	}
	for i := range members {
		r.join(fmt.Sprint("job", i), 0, 1000, 10, order(dsa.Stratified), slots(2),
			func(e *Register) { e.Share, e.Key, e.AugmentedBytes = true, 7, 150 })
	}
	return r
}

// work has all jobs done with n samples each, for which the daemon read, decoded and augmented so many.
func (r *rig) work(n, reads, decodes, augments float64) {
	for i, s := range r.c.roster.order {
		s.job.Stats.Samples += uint64(n)
		if i == 0 { // the first job is credited with what all of them use
			s.job.Stats.SourceReads += uint64(math.Round(reads))
			s.job.Stats.Decodes += uint64(math.Round(decodes))
			s.job.Stats.Augments += uint64(math.Round(augments))
		}
	}
}

// degrees are what the Core makes of it.
func (r *rig) degrees() (read, decode, augment float64) {
	set := &partition.Dataset{Name: fmt.Sprint(r.c.roster.datasets[0].id), Samples: 1000, Encoded: 100,
		Recipes: []partition.Recipe{{Prefix: ident.RecipeID(1).String(), Decoded: 600}}}
	r.c.tiering.restartShiftedCounts()
	read, decode = r.c.tiering.degrees(set.Recipes[0].Prefix, set)
	if len(r.c.roster.groups) > 0 {
		augment = r.c.tiering.augmentDegree(r.c.roster.groups[0])
	}
	return read, decode, augment
}

// held is what the tiers hold of the last job's samples.
func (r *rig) held() parts {
	entries, scale := r.c.tiering.sampledEntries()
	return r.c.tiering.heldOf(r.c.roster.order[len(r.c.roster.order)-1], entries, scale)
}

// TestDegreesAreOfWhatNoTierServes: counts made up from degrees, parts that the tiers serve and the members of the
// group give those degrees back.
func TestDegreesAreOfWhatNoTierServes(t *testing.T) {
	for _, members := range []int{2, 3, 6} {
		for _, part := range []float64{0, .3, .7} {
			for _, encoded := range []float64{0, .3, 1} {
				r := sharingRig(t, members, part, encoded)
				r.degrees()
				all := float64(members)
				g, decode, h := 1+.7*(all-1), 1+.5*(all-1), 1+.4*(all-1)
				n := 1e6 * all // samples of all jobs together
				e := r.held().encoded
				served := min(e, 1-part)
				stored, sources := 1-part-served, min(part, e-served)
				reads := stored/g + (part-sources)/all
				r.work(1e6, n*reads, n*(reads+served/decode+sources/all), n*((1-part)/h+part/all))
				if stored < minUnserved {
					g = all / partition.StratifiedDegree
				}
				if served < minUnserved {
					decode = all / partition.StratifiedDegree
				}
				if x, y, z := r.degrees(); math.Abs(x/g-1) > 2e-3 || math.Abs(y/decode-1) > 2e-3 || math.Abs(z/h-1) > 2e-3 {
					t.Errorf("%d members, %v augmented, %v encoded: %.3f, %.3f and %.3f, want %.3f, %.3f and %.3f", members, part, e,
						x, y, z, g, decode, h)
				}
			}
		}
	}
}

// TestDegreesOutliveATierThatServesAll: what a tier serves says nothing of how many jobs work together without it, so
// that the model compares with what was measured before the tier came, and memory does not go to and fro.
func TestDegreesOutliveATierThatServesAll(t *testing.T) {
	const unknown = 3 / partition.StratifiedDegree
	r := sharingRig(t, 3, 0, 0)
	if read, _, augment := r.degrees(); read != unknown || augment != unknown {
		t.Errorf("before anything was measured: %v and %v", read, augment)
	}
	r.work(1e5, 3e5/2.1, 3e5/2.1, 3e5/1.8)
	for range 3 {
		if read, _, augment := r.degrees(); math.Abs(read-2.1) > .01 || math.Abs(augment-1.8) > .01 {
			t.Errorf("%v and %v, want 2.1 and 1.8", read, augment)
		}
		// The tier grows to hold everything; from now on one read, decode and augmentation serve all three.
		r.c.needs.index.Shrink(ident.Augmented, 150_000, 0, r.c.needs.evicted)
		r.work(1e7, 1e7, 1e7, 1e7)
	}
	r.c.tiering.recountDegree() // other jobs: nothing is known of them
	if read, _, augment := r.degrees(); read != unknown || augment != unknown {
		t.Errorf("of other jobs: %v and %v", read, augment)
	}
}

// TestDegreesForgetHowATierFilled: two jobs that read everything together, while seven tenths come to lie in memory and
// after that.
func TestDegreesForgetHowATierFilled(t *testing.T) {
	r := newRig(t, [ident.NumForms]int64{ident.Encoded: 70_000})
	a := r.join("a", 0, 1000, 10, order(dsa.Stratified), slots(2))
	r.join("b", 0, 1000, 10, order(dsa.Stratified), slots(2))
	r.c.tiering.recountDegree()
	r.degrees()
	a.drain() // fills the tier
	if e := r.held().encoded; math.Abs(e-.7) > .01 {
		t.Fatalf("%v of the samples are held", e)
	}
	r.work(1000, 1000, 1000, 2000)
	for epoch := range 3 {
		read, _, _ := r.degrees() // as a new epoch has it asked
		if want := []float64{1.6, 2, 2}[epoch]; math.Abs(read-want) > .02 {
			t.Errorf("after epoch %d one read serves %.2f jobs, want %v", epoch+1, read, want)
		}
		r.work(1000, 300, 1000, 2000)
	}
}

// TestDegreesAreOfOwnSamples: what another dataset has in the same tier is not held of this one.
func TestDegreesAreOfOwnSamples(t *testing.T) {
	for _, other := range []bool{false, true} {
		r := newRig(t, [ident.NumForms]int64{ident.Encoded: 60_000})
		if other {
			p := r.join("other", 2000, 2500, 10, order(dsa.Stratified), slots(2), func(e *Register) { e.Dataset = 9 })
			p.drain()
			p.detach(true)
		}
		r.join("a", 0, 1000, 10, order(dsa.Stratified), slots(2))
		r.join("b", 0, 1000, 10, order(dsa.Stratified), slots(2))
		r.c.tiering.recountDegree()
		r.degrees()
		if h := r.held(); h.encoded > .1 {
			t.Errorf("with another dataset %v: %+v", other, h)
		}
		r.work(10_000, 10_000, 10_000, 20_000)
		d := r.c.roster.order[0].dataset
		set := &partition.Dataset{Name: fmt.Sprint(r.c.roster.datasets[d].id), Samples: 1000, Encoded: 100,
			Recipes: []partition.Recipe{{Prefix: ident.RecipeID(1).String(), Decoded: 600}}}
		r.c.tiering.restartShiftedCounts()
		if read, _ := r.c.tiering.degrees(set.Recipes[0].Prefix, set); math.Abs(read-2) > .1 {
			t.Errorf("with another dataset %v: one read serves %.2f jobs, want 2", other, read)
		}
	}
}
