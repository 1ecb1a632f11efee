package dsa_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"larder/dsa"
	"larder/internal/ident"
	"larder/internal/xrand"
)

// overlap is the share of the first quarter of an epoch that was in the first quarter of another.
func overlap(a, b []ident.ObjectID) float64 {
	q := len(a) / 4
	early := slices.Sorted(slices.Values(a[:q]))
	n := 0
	for _, x := range b[:q] {
		if _, ok := slices.BinarySearch(early, x); ok {
			n++
		}
	}
	return float64(n) / float64(q)
}

// TestConsecutiveEpochs: beside neighbours of every kind and at caches of 0 to 40 %, the first quarters of consecutive
// epochs of jobs in strict and in stratified (B = 4) share a quarter: their mean in each of the settings is .25 ± 4 sd
// (of hypergeometric draws, as if the jobs of a world were one), and no job and no single pair is further than one in a
// million. Epochs that are two apart share .2 to .32 (documented for stratified: .22 to .30), and .25 for strict. The
// same of mode epoch and of stratified(1) is far from it, so that the worlds can tell. (It finds tiles that are not
// carried over to the next epoch, ties by id, and hits first without cells.)
func TestConsecutiveEpochs(t *testing.T) {
	t.Parallel()
	const n, epochs = 1200, 6
	q := float64(n) / 4
	sd := math.Sqrt(.25 * .75 / q * (n - q) / (n - 1))
	beside := map[string][]worldJob{
		"staggered alike": nil,
		"half the data":   {{spec: dsa.JobSpec{Mode: dsa.Epoch, Subset: span(0, n/2)}, speed: 1.3, epochs: 12}},
		"unlike modes": {
			{spec: dsa.JobSpec{Mode: dsa.Epoch, Subset: span(0, n)}, speed: .8, start: n / 3, epochs: 5},
			{spec: dsa.JobSpec{Mode: dsa.Strict, Subset: span(n/3, n)}, epochs: 6, start: n / 5, speed: 1},
			{spec: dsa.JobSpec{Mode: dsa.Fixed, Subset: span(0, n)}, epochs: 6, speed: 1},
		},
		"in order, coming and going": {
			{spec: dsa.JobSpec{Mode: dsa.Sequential, Subset: span(0, n)}, speed: 1.1, epochs: 6},
			{spec: dsa.JobSpec{Mode: dsa.Stratified, Subset: span(n/4, n)}, speed: 1, start: n, leave: 2.4 * n, epochs: 6},
			{spec: dsa.JobSpec{Mode: dsa.Epoch, Subset: span(0, 2*n/3)}, speed: 2, start: 1.7 * n, epochs: 3},
		},
	}
	const seeds = 2
	pairs, worst, where, far, alone := 0, 0.0, "", 0.0, 0.0
	jobs, worstJob, whose := 0, 0.0, ""
	lag := map[dsa.Mode]*meter{dsa.Stratified: {}, dsa.Strict: {}}
	for _, name := range []string{"staggered alike", "half the data", "unlike modes", "in order, coming and going"} {
		for ci, cache := range []int{0, 1, 5, 10, 20, 40} {
			for _, c := range []struct {
				mode  dsa.Mode
				tiles int
			}{{dsa.Stratified, 4}, {dsa.Strict, 0}, {dsa.Epoch, 0}, {dsa.Stratified, 1}} {
				if effort(10) < 10 && ci%3 != 0 {
					continue
				}
				promised := c.mode == dsa.Strict || c.tiles == 4
				w := world{n: n, cache: n * cache / 100, jobs: slices.Clone(beside[name])}
				for i := range w.jobs {
					w.jobs[i].batch, w.jobs[i].window = 8, 2
				}
				first := len(w.jobs)
				for i := range 3 {
					w.jobs = append(w.jobs, worldJob{
						spec: dsa.JobSpec{Mode: c.mode, Tiles: c.tiles, Subset: span(0,
							n)}, speed: 1, start: float64(i * n / 4), epochs: epochs, batch: 8 * (i + 1), window: 2,
					})
				}
				at := fmt.Sprintf("%s beside %s, cache %d %%", c.mode, name, cache)
				all := 0.0
				for seed := range uint64(seeds) {
					if seed > 0 && !promised {
						break
					}
					var seen [3][][]ident.ObjectID
					must(t, w.run(xrand.Hash(uint64(cache), 5, seed), func(job, _ int, o []ident.ObjectID) {
						if job >= first {
							seen[job-first] = append(seen[job-first], slices.Clone(o))
						}
					}))
					for i, orders := range seen {
						sum := 0.0
						for e := 1; e < len(orders); e++ {
							v := overlap(orders[e-1], orders[e])
							sum += v
							if !promised {
								continue
							}
							pairs++
							if z := math.Abs(v-.25) / sd; z > worst {
								worst, where = z, fmt.Sprintf("%s, job %d, epochs %d and %d: %.3f", at, i, e-1, e, v)
							}
							if e > 1 {
								lag[c.mode].add(overlap(orders[e-2], orders[e]))
							}
						}
						mean := sum / (epochs - 1)
						all += mean / seeds / float64(len(seen))
						switch {
						case c.mode == dsa.Epoch:
							far = max(far, math.Abs(mean-.25))
						case !promised:
							alone = max(alone, math.Abs(mean-.25))
						default:
							jobs++
							if z := math.Abs(mean-.25) / sd * math.Sqrt(epochs-1); z > worstJob {
								worstJob, whose = z, fmt.Sprintf("%s, job %d: %.3f", at, i, mean)
							}
						}
					}
				}
				if promised && math.Abs(all-.25) > 4*sd/math.Sqrt(seeds*(epochs-1)) {
					t.Errorf("%s: first quarters share %.3f on average", at, all)
				}
			}
		}
	}
	two, _ := lag[dsa.Stratified].mean()
	strict2, se2 := lag[dsa.Strict].mean()
	t.Logf("%d pairs, furthest %.2f sd (%s), limit %.2f; %d jobs, furthest %.2f sd (%s), limit %.2f; "+
		"epoch is up to %.3f away, one tile %.3f; two epochs apart: stratified %.3f, strict %.3f ± %.3f",
		pairs, worst, where, limit(pairs), jobs, worstJob, whose, limit(jobs), far, alone, two, strict2, se2)
	if worst >= limit(pairs) {
		t.Errorf("%s: %.1f sd", where, worst)
	}
	if worstJob >= limit(jobs) {
		t.Errorf("%s: %.1f sd", whose, worstJob)
	}
	if two < .2 || two > .32 || math.Abs(strict2-.25) > 4.75*sd { // jobs that share are as one: the sd of a single pair
		t.Errorf("two epochs apart: stratified %.3f, strict %.3f", two, strict2)
	}
	if far < 10*sd || alone < 10*sd {
		t.Errorf("mode epoch is %.3f away at most, one tile %.3f: the worlds are too mild to tell anything", far, alone)
	}
}

// TestStaggeredEpochsRepeat is the price of mode epoch, as documented: with next to no cache the first quarters of
// staggered jobs' consecutive epochs are nearly the same samples (1.0 in the limit of one sample at a
// time).
func TestStaggeredEpochsRepeat(t *testing.T) {
	const n = 1200
	w := world{n: n, cache: n / 100}
	for i := range 4 {
		w.jobs = append(w.jobs, worldJob{spec: dsa.JobSpec{Mode: dsa.Epoch, Subset: span(0, n)}, speed: 1,
			start: float64(i * n / 4), epochs: 5, batch: 1, window: 1})
	}
	var orders [][]ident.ObjectID
	must(t, w.run(4, func(job, _ int, o []ident.ObjectID) {
		if job == 0 {
			orders = append(orders, slices.Clone(o))
		}
	}))
	for e := 2; e < len(orders); e++ {
		if v := overlap(orders[e-1], orders[e]); v < .85 {
			t.Errorf("epochs %d and %d share %.3f of their first quarters", e-1, e, v)
		}
	}
}
