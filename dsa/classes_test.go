package dsa

import (
	"math"
	"slices"
	"testing"

	"larder/internal/bits"
	"larder/internal/ident"
	"larder/internal/xrand"
)

// Jobs of unlike classes (recipes with unlike prefixes; members of a share group at unlike instances) find unlike
// objects available. These tests play a cache that holds an object for one class, or encoded for all.

// made is an object as a class of jobs can use it.
type made struct {
	x     ident.ObjectID
	class int
}

// forms is a cache of what was made for classes, and one of what is encoded. Both evict at the commit of a pick.
type forms struct {
	s       *Sampler
	rng     *xrand.Rand
	limit   int
	classes []int // by job, its id less 1
	held    []made
	encoded []ident.ObjectID
	labels  bool // planted bug: even objects that class 1 has made are not reported
}

// of returns the joined jobs of a class.
func (c *forms) of(class int) bits.JobSet {
	var set bits.JobSet
	for i, k := range c.classes {
		if k == class {
			set |= c.s.JobSet(ident.JobID(i + 1))
		}
	}
	return set
}

// serves is of, and all jobs where there is only one class.
func (c *forms) serves(class int) bits.JobSet {
	if slices.Max(c.classes) == 0 {
		return ^bits.JobSet(0)
	}
	return c.of(class)
}

// report sets in what form x is available, and for which jobs.
func (c *forms) report(x ident.ObjectID) {
	level, rest, jobs := uint8(0), uint8(0), bits.JobSet(0)
	if slices.Contains(c.encoded, x) {
		level, rest = 1, 1
	}
	for _, h := range c.held {
		if h.x == x && (!c.labels || x%2 == 1 || h.class != 1) {
			level = max(level, uint8(2+h.class%2))
			jobs |= c.of(h.class)
		}
	}
	c.s.SetLevelFor(x, level, jobs, rest)
}

// take notes that a job of that class has taken x.
func (c *forms) take(class int, x ident.ObjectID) (miss bool) {
	if slices.Contains(c.held, made{x, class}) {
		return false
	}
	n := c.s.NeedOf(x, c.of(class))
	if n > 0 && c.limit > 0 {
		least, at, ties := math.MaxInt, 0, 0
		for i, y := range c.held {
			switch m := c.s.NeedOf(y.x, c.of(y.class)); {
			case m < least:
				least, at, ties = m, i, 1
			case m == least:
				if ties++; c.rng.IntN(ties) == 0 {
					at = i
				}
			}
		}
		if len(c.held) < c.limit || least <= n {
			if len(c.held) == c.limit {
				y := c.held[at].x
				c.held = slices.Delete(c.held, at, at+1)
				c.report(y)
			}
			c.held = append(c.held, made{x, class})
		}
	}
	if !slices.Contains(c.encoded, x) && c.limit > 0 {
		if len(c.encoded) == c.limit {
			i := c.rng.IntN(c.limit)
			y := c.encoded[i]
			c.encoded = slices.Delete(c.encoded, i, i+1)
			c.report(y)
		}
		c.encoded = append(c.encoded, x)
	}
	c.report(x)
	return true
}

var classCases = []tinyCase{
	{name: "two classes, identical, staggered", cache: 2, dual: []int{0, 1}, jobs: []simJob{
		{spec: strat(4, span(0, 4)), epochs: 3},
		{spec: strat(4, span(0, 4)), epochs: 3, start: 2, class: 1},
		{spec: strat(2, span(0, 4)), epochs: 2, start: 1, speed: 0.7, class: 1},
	}},
	{name: "two classes, crossed, speeds", cache: 3, dual: []int{0}, jobs: []simJob{
		{spec: strat(4, span(0, 4)), epochs: 3},
		{spec: byEpoch(span(2, 6)), epochs: 3, speed: 0.6, start: 0.5, class: 1},
		{spec: byEpoch(span(1, 5)), epochs: 3, speed: 1.4},
		{spec: strat(2, objects(0, 2, 3, 5)), epochs: 2, start: 3, class: 1},
	}},
	{name: "three classes, one comes and goes, returns", cache: 3, dual: []int{0}, jobs: []simJob{
		{spec: strat(4, span(0, 4)), epochs: 3, batch: 2, back: 0.2, class: 1},
		{spec: strat(4, span(0, 4)), epochs: 9, leave: 5, class: 2},
		{spec: JobSpec{Mode: Strict, Subset: span(0, 4)}, epochs: 3, class: 2},
		{spec: byEpoch(span(1, 5)), epochs: 2, start: 6, class: 3}, // in the slot of the one that left
	}},
}

// TestEveryOrderIsEquallyLikelyWithClasses counts all orders, and pairs of orders, where levels differ by job. Objects
// of a cell still differ only in what was done to them: for which classes they are available follows from which jobs
// took them.
func TestEveryOrderIsEquallyLikelyWithClasses(t *testing.T) {
	t.Parallel()
	for _, tc := range classCases {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			for slice, runs := range []int{20_000, 4_000} {
				worst, where, err := orderDeviates(tc, effort(runs), func(sc *scenario) { sc.slice = 2 * slice })
				must(t, err)
				t.Logf("worst z %.2f (%s)", worst, where)
				if worst >= 4 {
					t.Errorf("slices %v, %s: z = %.1f, orders are not equally likely", slice > 0, where, worst)
				}
			}
		})
	}
	worst, where, err := orderDeviates(classCases[0], 20_000, func(sc *scenario) { sc.labels = true })
	must(t, err)
	t.Logf("planted: z = %.1f (%s)", worst, where)
	if worst < 8 {
		t.Errorf("even objects that a class does not hear of go unnoticed: z = %.1f", worst)
	}
}

// TestClassesLoadForThemselves: two classes of two jobs each, staggered, with room for a fifth. What is cached
// for the other class must not be preferred, or each would load more than without the other.
func TestClassesLoadForThemselves(t *testing.T) {
	t.Parallel()
	const n = 2000
	play := func(classes ...int) int {
		sc := scenario{cache: n / 10 * len(classes) / 2, seed: 5}
		for i, k := range classes {
			sc.jobs = append(sc.jobs, simJob{spec: strat(4, span(0, n)), epochs: 4, start: float64(i%2) * n / 2, class: k})
		}
		res, err := sc.run()
		must(t, err)
		return res.loads
	}
	alone, both := play(1, 1), play(1, 1, 3, 3)
	t.Logf("%d loads of two jobs, %d of two classes of two", alone, both)
	if both > alone*2*102/100 {
		t.Errorf("two classes load %d, one alone %d", both, alone)
	}
}

// TestLevelsByJob: each job prefers what is further along for itself.
func TestLevelsByJob(t *testing.T) {
	for seed := range uint64(20) {
		s := New(seed)
		for id := range ident.JobID(3) {
			must(t, s.Join(id, byEpoch(span(0, 200))))
			must(t, s.StartEpoch(id, 0))
		}
		if s.JobSet(1).Len() != 1 || s.JobSet(1) == s.JobSet(2) || s.JobSet(9) != 0 {
			t.Fatal("job sets")
		}
		s.SetLevelFor(7, 3, s.JobSet(0), 2)
		s.SetLevelFor(8, 2, s.JobSet(0)|s.JobSet(1), 1)
		s.SetLevelFor(9, 2, s.JobSet(2), 0)
		s.SetLevelFor(10, 9, s.JobSet(2), 9)
		if s.LevelOf(7, 0) != 3 || s.LevelOf(7, 1) != 2 || s.LevelOf(8, 2) != 1 || s.LevelOf(9, 0) != 0 ||
			s.LevelOf(9, 2) != 2 || s.LevelOf(10, 1) != 3 ||
			s.LevelOf(9, 77) != 0 || s.LevelOf(99, 1) != 0 || s.Level(9) != 2 || s.NeedOf(9, s.JobSet(1)) != 1 ||
			s.NeedOf(9, 0) != 0 {
			t.Fatal("levels")
		}
		must(t, s.Check())
		s.SetLevel(10, 0)
		for _, tc := range []struct {
			id   ident.JobID
			want []ident.ObjectID
		}{{0, objects(7, 8)}, {1, objects(7, 8)}, {2, objects(7, 9, 8)}} {
			var got []ident.ObjectID
			for range tc.want {
				x, _ := s.Next(tc.id)
				got = append(got, x)
			}
			if tc.id == 1 { // both are decoded for it and needed by two
				slices.Sort(got)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("seed %d, job %d picked %v, not %v", seed, tc.id, got, tc.want)
			}
			must(t, s.Check())
		}
	}
}

// TestNeutralClasses: what a sequential job has brought to some jobs is not shown to them, and what was shown before
// stays.
func TestNeutralClasses(t *testing.T) {
	s := New(1)
	for id := range ident.JobID(2) {
		must(t, s.Join(id, byEpoch(span(0, 200))))
		must(t, s.StartEpoch(id, 0))
	}
	must(t, s.Join(9, JobSpec{Mode: Sequential, Subset: span(0, 200)}))
	must(t, s.StartEpoch(9, 0))
	s.SetLevelFor(1, 2, s.JobSet(0), 0)
	x, _ := s.At(9, 1)
	s.SetLevelFor(x, 2, s.JobSet(0)|s.JobSet(1), 0)
	for id, want := range map[ident.JobID]bool{0: true, 1: false} {
		if got := s.pool.wanted(s.jobs.byID[id], 1) != nil; got != want {
			t.Errorf("job %d may see what a sequential job brought to the others: %v", id, got)
		}
	}
	must(t, s.Check())
}

// TestOwnersAreFew: any number of job sets may be reported; beyond the limit objects are available only as far as
// they are for all jobs.
func TestOwnersAreFew(t *testing.T) {
	s := New(1)
	for id := range ident.JobID(14) { // the sets below are of their slots
		must(t, s.Join(id, byEpoch(span(0, 1000))))
		must(t, s.StartEpoch(id, 0))
	}
	for round := range 3 {
		for x := range 1000 {
			s.SetLevelFor(ident.ObjectID(x), 2, bits.JobSet(x*8+8+round), 1)
		}
		must(t, s.Check())
		if len(s.pool.owners) > maxOwners {
			t.Fatalf("%d sets", len(s.pool.owners))
		}
		if s.Level(999) != 1 {
			t.Error("the limit was not reached")
		}
		for x := range 1000 {
			s.SetLevel(ident.ObjectID(x), 0)
		}
	}
	s.SetLevelFor(5, 2, s.JobSet(1), 1)
	if s.Level(5) != 2 {
		t.Error("numbers are not used again")
	}
	must(t, s.Check())
}

// TestSlotOfTheClassThatLeft: what was available to a job that has left is not available to the next job in its slot.
func TestSlotOfTheClassThatLeft(t *testing.T) {
	s := New(1)
	for id := ident.JobID(1); id <= 2; id++ {
		must(t, s.Join(id, byEpoch(span(0, 100))))
		must(t, s.StartEpoch(id, 0))
	}
	gone := s.JobSet(2)
	for x := range ident.ObjectID(50) {
		s.SetLevelFor(x, 2, gone, 1)
	}
	s.Leave(2)
	must(t, s.Join(3, byEpoch(span(0, 100))))
	must(t, s.StartEpoch(3, 0))
	if s.JobSet(3) != gone {
		t.Fatal("the slot is another one: the test shows nothing")
	}
	must(t, s.Check())
	for x := range uint32(50) {
		if got := s.pool.levelFor(s.pool.entry(x), s.jobs.byID[3].slot); got != 1 {
			t.Fatalf("object %d is shown at level %d to a job that it is not decoded for", x, got)
		}
	}
}
