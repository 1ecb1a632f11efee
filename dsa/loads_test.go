package dsa

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"larder/internal/ident"
	"larder/internal/xrand"
)

// union counts the distinct objects of the jobs of a scenario.
func (sc scenario) union() int {
	seen := map[ident.ObjectID]bool{}
	for _, j := range sc.jobs {
		for _, x := range j.spec.Subset {
			seen[x] = true
		}
	}
	return len(seen)
}

// windows is the lower bound of loads for jobs on one set of n objects that run back to back: k disjoint epochs need n
// and then n less what is resident each.
func windows(n, k, cache int) float64 { return float64(n + (k-1)*(n-cache)) }

// staggered is four jobs on the same n objects, a quarter of an epoch apart.
func staggered(mode Mode, tiles, n, epochs, cachePercent int) scenario {
	sc := scenario{seed: 11, cache: n * cachePercent / 100}
	for i := range 4 {
		sc.jobs = append(sc.jobs, simJob{
			spec:  JobSpec{Mode: mode, Tiles: tiles, Subset: span(0, n)},
			start: float64(i*n) / 4, epochs: epochs, batch: 8 * (i + 1), window: 2,
		})
	}
	return sc
}

func TestLoads(t *testing.T) {
	t.Parallel()
	aligned := func(mode Mode, n int) scenario {
		sc := scenario{seed: 5, cache: n / 10}
		for i := range 4 {
			sc.jobs = append(sc.jobs, simJob{spec: JobSpec{Mode: mode, Subset: span(0, n)}, epochs: 3, batch: 4 * (i + 1),
				window: 2})
		}
		return sc
	}
	random := func(mode Mode, cache int) scenario {
		r := xrand.New(6)
		sc := scenario{seed: 6, cache: cache}
		for range 4 {
			sc.jobs = append(sc.jobs, simJob{spec: JobSpec{Mode: mode, Subset: sample(r, 13334, 10000)}, epochs: 1})
		}
		return sc
	}
	twoJobs := func(mode Mode) scenario {
		return scenario{seed: 7, cache: 100, jobs: []simJob{
			{spec: JobSpec{Mode: mode, Subset: span(0, 2000)}, epochs: 1, batch: 8, window: 2},
			{spec: JobSpec{Mode: mode, Subset: span(1000, 3000)}, epochs: 1, batch: 8, window: 2},
		}}
	}
	a := random(Epoch, 133)
	n := 2400 + effort(10)/10*3600 // at 20 % the ratios do not depend on it, but the looking for victims does
	for _, tc := range []struct {
		name  string
		sc    scenario
		bound float64
		ratio float64
	}{
		{"aligned, cache 10 %, stratified", aligned(Stratified, 2400), windows(2400, 3, 240), 1.02},
		{"aligned, cache 10 %, epoch", aligned(Epoch, 2400), windows(2400, 3, 240), 1.02},
		{"aligned, cache 10 %, strict", aligned(Strict, 2400), windows(2400, 3, 240), 1.02},
		{"staggered, cache 20 %, strict", staggered(Strict, 0, n, 6, 20), windows(n, 6, n/5), 2.1},
		{"two jobs that overlap by half, stratified", twoJobs(Stratified), 3000, 1.0},
		{"two jobs that overlap by half, epoch", twoJobs(Epoch), 3000, 1.0},
		{"four random 75 % subsets, cache 1 %", a, float64(a.union()), 1.005},
		{"staggered, cache 20 %, epoch", staggered(Epoch, 0, n, 6, 20), windows(n, 6, n/5), 1.13},
		{"staggered, cache 10 %, epoch", staggered(Epoch, 0, 6000, 6, 10), windows(6000, 6, 600), 1.14},
		{"staggered, cache 20 %, stratified", staggered(Stratified, 4, n, 6, 20), windows(n, 6, n/5), 1.28},
		{"staggered, cache 10 %, stratified", staggered(Stratified, 4, 6000, 6, 10), windows(6000, 6, 600), 1.36},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			res, err := tc.sc.run()
			must(t, err)
			got := float64(res.loads) / tc.bound
			t.Logf("%d requests, %d loads, %.3f of the bound %.0f", res.requests, res.loads, got, tc.bound)
			if got > tc.ratio || got < 0.999 {
				t.Errorf("%d loads are %.3f of the bound %.0f, wanted 1..%.3f", res.loads, got, tc.bound, tc.ratio)
			}
		})
	}
}

// TestAlignedLoadsEachEpoch: every epoch of four aligned jobs loads what a single job would.
func TestAlignedLoadsEachEpoch(t *testing.T) {
	const n = 2400
	sc := scenario{seed: 8, cache: n / 10}
	for range 4 {
		sc.jobs = append(sc.jobs, simJob{spec: strat(4, span(0, n)), epochs: 4, batch: 8, window: 2})
	}
	res, err := sc.run()
	must(t, err)
	for e, loads := range res.loadsEpoch {
		if float64(loads) > 1.02*n {
			t.Errorf("epoch %d: %d loads of %d samples", e, loads, n)
		}
	}
	t.Log(res.loadsEpoch)
}

// TestSmallLoads are exact numbers, computed by hand, that this rule reaches with next to no cache, whatever the seed.
func TestSmallLoads(t *testing.T) {
	for _, tc := range []struct {
		name  string
		sc    scenario
		loads int
	}{
		{"twins beside a larger disjoint job", scenario{cache: 2, jobs: []simJob{
			{spec: byEpoch(span(0, 10)), epochs: 1}, {spec: byEpoch(span(0, 10)), epochs: 1}, {spec: byEpoch(span(10, 30)),
				epochs: 1},
		}}, 30},
		{"equal sizes with two in common", scenario{cache: 2, jobs: []simJob{
			{spec: byEpoch(span(0, 5)), epochs: 1}, {spec: byEpoch(span(3, 8)), epochs: 1},
		}}, 8},
		{"late join", scenario{cache: 1, jobs: []simJob{
			{spec: byEpoch(span(0, 10)), epochs: 1}, {spec: byEpoch(span(0, 10)), epochs: 1, start: 4},
		}}, 14},
		{"triangle", scenario{cache: 3, jobs: []simJob{
			{spec: byEpoch(objects(0, 1)), epochs: 1}, {spec: byEpoch(objects(1, 2)), epochs: 1}, {spec: byEpoch(objects(0, 2)),
				epochs: 1},
		}}, 3},
	} {
		for seed := range uint64(50) {
			tc.sc.seed = seed
			res, err := tc.sc.run()
			must(t, err)
			if res.loads != tc.loads {
				t.Errorf("%s, seed %d: %d loads, not %d", tc.name, seed, res.loads, tc.loads)
				break
			}
		}
	}
}

// quarterOverlap is the share of the first quarter of an epoch that was in the first quarter of an earlier one.
func quarterOverlap(a, b []ident.ObjectID) float64 {
	q := len(a) / 4
	early := slices.Clone(a[:q])
	slices.Sort(early)
	n := 0
	for _, x := range b[:q] {
		if _, ok := slices.BinarySearch(early, x); ok {
			n++
		}
	}
	return float64(n) / float64(q)
}

// TestConsecutiveEpochsOverlapByAQuarter: in stratified and strict, staggered, the first quarters of consecutive epochs
// share a quarter, as independent orders do. The same figure of mode epoch shows that the scenario tests something.
func TestConsecutiveEpochsOverlapByAQuarter(t *testing.T) {
	const n = 1200
	q := float64(n) / 4
	sd := math.Sqrt(0.25 * 0.75 / q * (n - q) / (n - 1))
	far := 0.0
	for _, mode := range []Mode{Stratified, Strict, Epoch} {
		res, err := staggered(mode, 4, n, 5, 5).run()
		must(t, err)
		for j, epochs := range res.orders {
			for e := 1; e < len(epochs); e++ {
				o := quarterOverlap(epochs[e-1], epochs[e])
				if mode == Epoch {
					far = max(far, math.Abs(o-0.25))
				} else if math.Abs(o-0.25) > 4*sd {
					t.Errorf("%s, job %d, epochs %d and %d: %.3f, sd %.3f", mode, j, e-1, e, o, sd)
				}
			}
		}
	}
	if far < 10*sd {
		t.Errorf("mode epoch differs from .25 by %.3f at most: the scenario is too mild to test anything", far)
	}
}

// TestTailIsSpread: Joader's released sampler ends an epoch in clumps of 128 ids. The last 1 % of an epoch touches as
// many blocks of 128 ids as a uniform order does (mean 722 of 1000 for 1280 of 128 000).
func TestTailIsSpread(t *testing.T) {
	const n = 128_000
	s := New(9)
	must(t, s.Join(1, byEpoch(span(0, n))))
	must(t, s.StartEpoch(1, 0))
	blocks := map[ident.ObjectID]bool{}
	for {
		x, ok := s.Next(1)
		if !ok {
			break
		}
		if s.Remaining(1) < n/100 {
			blocks[x/128] = true
		}
	}
	// Each block is missed with probability (1-1/1000)^1280, nearly independently; sd = sqrt(1000 p (1-p)) at most.
	if want, sd := 722.0, 14.2; math.Abs(float64(len(blocks))-want) > 4*sd {
		t.Errorf("the last 1 %% touches %d blocks, a uniform order %.0f", len(blocks), want)
	}
}

// TestSameCallsSamePicks: a run is a function of its seed and calls.
func TestSameCallsSamePicks(t *testing.T) {
	r := xrand.New(12)
	for i := range 5 {
		sc := randomScenario(r)
		one, err := sc.run()
		must(t, err)
		two, err := sc.run()
		must(t, err)
		if fmt.Sprint(one) != fmt.Sprint(two) {
			t.Fatalf("scenario %d: two runs differ", i)
		}
		sc.seed++
		three, err := sc.run()
		must(t, err)
		if fmt.Sprint(one) == fmt.Sprint(three) {
			t.Fatalf("scenario %d: the seed does not matter", i)
		}
	}
}
