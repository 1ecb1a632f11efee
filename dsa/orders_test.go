package dsa

import (
	"fmt"
	"math"
	"testing"

	"larder/internal/ident"
	"larder/internal/xrand/xrandtest"
)

// tinyCase is a scenario small enough to count every order of every job.
type tinyCase struct {
	name  string
	cache int
	flash bool
	late  []ident.ObjectID // a stratum that comes at step 3.5
	jobs  []simJob
	dual  []int // jobs whose consecutive epochs must be independent (all orders against all orders)
}

var tinyCases = []tinyCase{
	{name: "nested, speeds", cache: 1, dual: []int{0}, jobs: []simJob{
		{spec: strat(4, span(0, 4)), epochs: 2},
		{spec: strat(4, span(0, 5)), epochs: 2, speed: 0.7},
	}},
	{name: "crossed, starts", cache: 2, dual: []int{0, 1}, jobs: []simJob{
		{spec: strat(4, span(0, 4)), epochs: 3},
		{spec: strat(4, span(2, 6)), epochs: 3, start: 2.5},
	}},
	{name: "identical, staggered", cache: 2, dual: []int{0, 1}, jobs: []simJob{
		{spec: strat(4, span(0, 4)), epochs: 3},
		{spec: strat(4, span(0, 4)), epochs: 3, start: 2},
	}},
	{name: "identical, aligned, unlike batches", cache: 2, dual: []int{0}, jobs: []simJob{
		{spec: strat(4, span(0, 4)), epochs: 2, batch: 2, window: 2},
		{spec: strat(4, span(0, 4)), epochs: 2, batch: 1},
		{spec: strat(2, span(0, 4)), epochs: 2, batch: 3, speed: 1.3},
	}},
	{name: "epoch mode, crossed, speeds", cache: 2, jobs: []simJob{
		{spec: byEpoch(span(0, 4)), epochs: 3},
		{spec: byEpoch(span(1, 6)), epochs: 2, speed: 0.6, start: 0.5},
		{spec: byEpoch(objects(0, 3, 5, 7)), epochs: 3, speed: 1.4},
	}},
	{name: "epoch mode, cache holds all", cache: 8, jobs: []simJob{
		{spec: byEpoch(span(0, 4)), epochs: 3},
		{spec: byEpoch(span(2, 6)), epochs: 3, start: 3},
	}},
	{name: "a job leaves, another comes", cache: 3, jobs: []simJob{
		{spec: strat(4, span(0, 5)), epochs: 3, speed: 0.5},
		{spec: strat(4, span(0, 3)), epochs: 9, leave: 5},
		{spec: byEpoch(span(2, 6)), epochs: 2, start: 6},
	}},
	{name: "joins in mid-epoch split cells", cache: 3, jobs: []simJob{
		{spec: byEpoch(span(0, 5)), epochs: 2, speed: 0.5},
		{spec: byEpoch(objects(1, 3)), epochs: 4, start: 3},
		{spec: strat(2, objects(3, 4, 6, 7)), epochs: 2, start: 5},
	}},
	{name: "returned picks", cache: 2, dual: []int{0, 1}, jobs: []simJob{
		{spec: strat(4, span(0, 4)), epochs: 2, batch: 2, back: 0.3},
		{spec: strat(4, span(1, 5)), epochs: 2, batch: 1, back: 0.2, start: 1},
	}},
	{name: "strict, fixed and sequential neighbours", cache: 2, dual: []int{1}, jobs: []simJob{
		{spec: strat(4, span(0, 5)), epochs: 2},
		{spec: JobSpec{Mode: Strict, Subset: span(0, 4)}, epochs: 2, speed: 0.8},
		{spec: JobSpec{Mode: Sequential, Subset: span(0, 6)}, epochs: 4, speed: 1.5},
	}},
	{name: "a job stalls", cache: 2, dual: []int{0}, jobs: []simJob{
		{spec: strat(4, span(0, 4)), epochs: 4},
		{spec: byEpoch(span(1, 6)), epochs: 2, pause: [2]float64{3, 9}},
		{spec: strat(2, objects(0, 2, 5, 6)), epochs: 2, start: 4},
	}},
	{name: "subsets change", cache: 2, dual: []int{0}, jobs: []simJob{
		{spec: strat(4, span(0, 4)), epochs: 3, change: objects(1, 2, 3, 8)},
		{spec: byEpoch(span(2, 6)), epochs: 3, change: span(1, 6), start: 1.5},
		{spec: JobSpec{Mode: Strict, Subset: span(0, 4)}, epochs: 3, change: span(2, 5), speed: 0.8},
	}},
	{name: "no cache", cache: 0, jobs: []simJob{
		{spec: strat(4, span(0, 4)), epochs: 2},
		{spec: byEpoch(span(2, 6)), epochs: 2, speed: 0.9},
	}},
	{name: "no room, staggered", flash: true, dual: []int{0, 1}, jobs: []simJob{
		{spec: strat(4, span(0, 4)), epochs: 3},
		{spec: strat(4, span(0, 4)), epochs: 3, start: 2},
		{spec: strat(2, span(0, 5)), epochs: 2, start: 1},
	}},
	{name: "a stratum comes in mid-epoch", cache: 2, late: objects(1, 3, 4), dual: []int{0}, jobs: []simJob{
		{spec: strat(4, span(0, 4)), epochs: 3},
		{spec: strat(2, span(0, 5)), epochs: 3, start: 2},
		{spec: byEpoch(span(1, 5)), epochs: 3, speed: 0.7},
	}},
	{name: "no room, a stratum comes in mid-epoch", flash: true, late: objects(1, 3, 4), dual: []int{0, 1}, jobs: []simJob{
		{spec: strat(2, span(0, 4)), epochs: 3},
		{spec: strat(4, span(0, 4)), epochs: 3, start: 1},
		{spec: byEpoch(span(1, 5)), epochs: 3, start: 2},
	}},
	{name: "no room, two classes", flash: true, dual: []int{0, 1}, jobs: []simJob{
		{spec: strat(4, span(0, 4)), epochs: 3},
		{spec: strat(4, span(0, 4)), epochs: 3, class: 1},
		{spec: strat(2, span(0, 4)), epochs: 3, start: 1, class: 1},
		{spec: byEpoch(span(0, 5)), epochs: 3, start: 2},
	}},
	{name: "no room, crossed", flash: true, dual: []int{0}, jobs: []simJob{
		{spec: strat(2, span(0, 4)), epochs: 3},
		{spec: byEpoch(span(1, 6)), epochs: 2},
		{spec: strat(4, span(2, 5)), epochs: 3, batch: 2, start: 1},
	}},
	{name: "no room, returns and speeds", flash: true, dual: []int{0, 1}, jobs: []simJob{
		{spec: strat(4, span(0, 4)), epochs: 3, back: 0.2},
		{spec: strat(2, span(0, 4)), epochs: 3, speed: 0.5},
		{spec: JobSpec{Mode: Strict, Subset: span(0, 4)}, epochs: 3},
	}},
}

// orderDeviates plays a tiny case many times and returns the largest deviate of all job-epochs, and where it was.
func orderDeviates(tc tinyCase, runs int, change func(*scenario)) (worst float64, where string, err error) {
	counts := make(map[string][]int)
	var keys []string
	tally := func(key string, cells, cell int) {
		if counts[key] == nil {
			counts[key] = make([]int, cells)
			keys = append(keys, key)
		}
		counts[key][cell]++
	}
	for run := range effort(runs) {
		sc := scenario{jobs: tc.jobs, cache: tc.cache, flash: tc.flash, late: tc.late, lateAt: 3.5, rows: run%2 == 0,
			seed: uint64(run)}
		if change != nil {
			change(&sc)
		}
		res, err := sc.run()
		if err != nil {
			return 0, "", fmt.Errorf("run %d: %w", run, err)
		}
		for i, epochs := range res.orders {
			if tc.jobs[i].spec.Mode <= Fixed || tc.jobs[i].leave > 0 { // a leaver is seen only when it was quick enough
				continue
			}
			for e, o := range epochs {
				tally(fmt.Sprintf("job %d epoch %d", i, e), factorial(len(o)), rankOrder(o))
			}
		}
		for _, i := range tc.dual {
			for e := 1; e < len(res.orders[i]); e++ {
				a, b := res.orders[i][e-1], res.orders[i][e]
				f := factorial(len(a))
				tally(fmt.Sprintf("job %d epochs %d and %d", i, e-1, e), f*f, rankOrder(a)*f+rankOrder(b))
			}
		}
	}
	worst = math.Inf(-1)
	for _, k := range keys {
		if z := xrandtest.Deviate(counts[k]); z > worst {
			worst, where = z, k
		}
	}
	return worst, where, nil
}

// TestEveryOrderIsEquallyLikely is the promise itself, counted: all |D|! orders of every job-epoch, and where it is
// promised all pairs of orders of consecutive epochs, have the same frequency, whatever the neighbours do.
func TestEveryOrderIsEquallyLikely(t *testing.T) {
	for _, tc := range tinyCases {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			worst, where, err := orderDeviates(tc, 20_000, nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("worst z %.2f (%s)", worst, where)
			if worst >= 4 {
				t.Errorf("%s: z = %.1f, orders are not equally likely", where, worst)
			}
			worst, where, err = orderDeviates(tc, 4_000, func(sc *scenario) { sc.slice = 2 })
			if err != nil {
				t.Fatal(err)
			}
			if worst >= 4 {
				t.Errorf("in slices, %s: z = %.1f, orders are not equally likely", where, worst)
			}
		})
	}
}

// TestFirstPickIsUniform catches what Joader's samplers did: a first pick that favours the ends of 64-object blocks.
func TestFirstPickIsUniform(t *testing.T) {
	t.Parallel()
	for _, n := range []int{128, 129, 200, 256, 1000} {
		if n == 1000 && effort(10) < 10 {
			continue
		}
		for _, mode := range []Mode{Fixed, Strict, Stratified, Epoch} {
			counts := make([]int, n)
			subset := span(0, n)
			for run := range 8 * n {
				s := New(uint64(run))
				if err := s.Join(1, JobSpec{Mode: mode, Seed: uint64(run), Subset: subset}); err != nil {
					t.Fatal(err)
				}
				if err := s.StartEpoch(1, 0); err != nil {
					t.Fatal(err)
				}
				x, _ := s.Next(1)
				counts[x]++
			}
			if z := xrandtest.Deviate(counts); z >= 4 {
				t.Errorf("%s, %d samples: z = %.1f", mode, n, z)
			}
		}
	}
}

// TestStrictIsUniformGivenEverything fixes a joint state and counts the next pick: 1/remaining each, whatever is
// available.
func TestStrictIsUniformGivenEverything(t *testing.T) {
	t.Parallel()
	for mask := range 1 << 5 {
		counts := map[ident.ObjectID]int{}
		for run := range effort(2000) {
			s := New(uint64(run)<<8 | uint64(mask))
			must(t, s.Join(1, JobSpec{Mode: Strict, Subset: span(0, 6)}))
			must(t, s.Join(2, byEpoch(span(2, 8))))
			must(t, s.StartEpoch(1, 0))
			must(t, s.StartEpoch(2, 0))
			s.Withdraw(1, objects(0, 5))
			s.Next(2)
			for x := range 5 {
				if mask>>x&1 != 0 {
					s.SetLevel(ident.ObjectID(x+1), uint8(1+x%2))
				}
			}
			x, _ := s.Next(1)
			counts[x]++
		}
		var flat []int
		for _, x := range span(1, 5) {
			flat = append(flat, counts[x])
		}
		if len(counts) != 4 {
			t.Fatalf("picked %v of 1..4", counts)
		}
		if z := xrandtest.Deviate(flat); z >= 4 {
			t.Errorf("available %05b: %v, z = %.1f", mask, flat, z)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
