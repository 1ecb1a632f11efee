package dsa

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/xrand"
	"larder/internal/xrand/xrandtest"
)

func TestParseMode(t *testing.T) {
	for m := Fixed; m < numModes; m++ {
		got, err := ParseMode(m.String())
		if err != nil || got != m {
			t.Errorf("%s: %v, %v", m, got, err)
		}
	}
	for in, says := range map[string]string{
		"stratifed": "did you mean stratified?", "Strict": "did you mean strict?", "epochs": "did you mean epoch?",
		"fix": "did you mean fixed?", " fixed": "did you mean fixed?", "sequential": "shuffle=False",
		"":                         "the orders are fixed",
		strings.Repeat("x", 1<<20): "the orders are fixed", "\xff\x00": "the orders are fixed",
	} {
		_, err := ParseMode(in)
		if !errs.Is(err, errs.Invalid) || !strings.Contains(err.Error(), says) || len(err.Error()) > 400 {
			t.Errorf("%.20q: %v", in, err)
		}
	}
	if got := Mode(77).String(); got != "mode(77)" {
		t.Error(got)
	}
}

func TestJoinErrors(t *testing.T) {
	s := New(1)
	must(t, s.Join(1, strat(0, span(0, 10))))
	for name, tc := range map[string]struct {
		id   ident.JobID
		spec JobSpec
		want error
		says string
	}{
		"twice":     {1, byEpoch(span(0, 3)), ErrJobExists, "job 1"},
		"empty":     {2, byEpoch(nil), ErrEmptySubset, "job 2"},
		"duplicate": {2, byEpoch(objects(4, 700, 4)), ErrDuplicateObject, "4"},
		"tiles":     {2, strat(257, span(0, 3)), ErrTiles, "1..256"},
		"negative":  {2, strat(-1, span(0, 3)), ErrTiles, "-1"},
		"mode":      {2, JobSpec{Mode: 9, Subset: span(0, 3)}, ErrMode, "mode(9)"},
		"id":        {2, byEpoch(objects(MaxObjects)), ErrObjectID, fmt.Sprint(MaxObjects)},
	} {
		if err := s.Join(tc.id, tc.spec); !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v", name, err)
		}
		must(t, s.Check())
		if got := s.Jobs(); !slices.Equal(got, []ident.JobID{1}) {
			t.Fatalf("%s: jobs %v", name, got)
		}
	}
	if err := s.StartEpoch(5, 0); !errors.Is(err, ErrNoJob) {
		t.Error(err)
	}
}

// TestManyJobs: 64 jobs draw from one set, the 65th is refused, and a slot that is freed serves again.
func TestManyJobs(t *testing.T) {
	s := New(2)
	const n = 500
	r := xrand.New(3)
	left := map[ident.JobID]int{}
	for i := range MaxJobs {
		id := ident.JobID(1000 - i)
		must(t, s.Join(id, JobSpec{Mode: Mode(i % int(numModes)), Subset: sample(r, n, n/2)}))
		must(t, s.StartEpoch(id, 0))
		left[id] = n / 2
	}
	if err := s.Join(1, byEpoch(span(0, 3))); !errors.Is(err, ErrTooManyJobs) || !strings.Contains(err.Error(), "64") {
		t.Error(err)
	}
	ids := s.Jobs()
	if !slices.IsSorted(ids) || len(ids) != MaxJobs {
		t.Fatal(ids)
	}
	must(t, s.Check())
	for step := 0; len(ids) > 0; step++ {
		k := r.IntN(len(ids))
		x, ok := s.Next(ids[k])
		if !ok {
			if left[ids[k]] != 0 {
				t.Fatalf("job %d has %d left and gets none", ids[k], left[ids[k]])
			}
			ids = slices.Delete(ids, k, k+1)
			continue
		}
		left[ids[k]]--
		s.SetLevel(x, uint8(step%3))
		if step%2000 == 0 {
			must(t, s.Check())
		}
	}
	s.Leave(970)
	must(t, s.Join(1, byEpoch(span(n, 2*n))))
	must(t, s.StartEpoch(1, 0))
	if _, ok := s.Next(1); !ok || s.Remaining(1) != n-1 {
		t.Error("the freed slot does not serve")
	}
	must(t, s.Check())
}

// TestUnknownAndIdle: nothing that is asked of a job that does not draw does anything.
func TestUnknownAndIdle(t *testing.T) {
	s := New(1)
	must(t, s.Join(3, byEpoch(span(0, 10))))
	must(t, s.Join(4, JobSpec{Mode: Fixed, Subset: span(5, 15)}))
	for _, id := range []ident.JobID{3, 4, 9} {
		s.Return(id, span(0, 5))
		s.Abandon(id)
		s.SetActive(id, false)
		if s.Withdraw(id, span(0, 5)) != 0 {
			t.Error("withdrew")
		}
		if x, ok := s.Next(id); ok {
			t.Errorf("job %d picks %d", id, x)
		}
		if x, ok := s.At(id, 0); ok {
			t.Errorf("job %d picks %d", id, x)
		}
		if s.Remaining(id) != 0 || s.Needs(id, 5) {
			t.Errorf("job %d owes something", id)
		}
	}
	s.Leave(9)
	if s.Promise(9) != "" || s.Len(9) != 0 || s.Level(1<<31) != 0 || s.Need(1<<31) != 0 || s.Neutral(1<<31) ||
		s.Needs(3, 1<<31) {
		t.Error("unknown things answer")
	}
	s.SetLevel(1<<31, 2)
	s.SetLevel(1000, 0)
	s.SetLevel(2000, 200)
	if s.Level(2000) != 2 || s.Level(1<<31) != 0 {
		t.Error("levels")
	}
	must(t, s.Check())
}

func TestPromise(t *testing.T) {
	s := New(1)
	for m := range numModes {
		id := ident.JobID(m)
		must(t, s.Join(id, JobSpec{Mode: m, Subset: span(0, 9)}))
		if p := s.Promise(id); !strings.HasPrefix(p, m.String()+":") || !strings.Contains(p, "exactly once") {
			t.Errorf("%s: %s", m, p)
		}
	}
	if !strings.Contains(s.Promise(ident.JobID(Stratified)), "4 tiles") {
		t.Error("the default number of tiles is not 4")
	}
	must(t, s.Join(50, strat(1, span(0, 9))))
	if !strings.HasPrefix(s.Promise(50), "epoch:") {
		t.Error("one tile promises no more than epoch")
	}
}

// TestFixedOrder pins the order: clients replay it, so it must never change.
func TestFixedOrder(t *testing.T) {
	if got := fmt.Sprint(FixedOrder(nil, 7, 3, 12)); got != goldenOrder {
		t.Errorf("order %s, not %s", got, goldenOrder)
	}
	s := New(1)
	sub := objects(40, 7, 300, 22, 5)
	must(t, s.Join(1, JobSpec{Mode: Fixed, Seed: 7, Subset: sub}))
	must(t, s.Join(2, byEpoch(span(0, 301))))
	must(t, s.StartEpoch(2, 0))
	must(t, s.StartEpoch(1, 3))
	o := FixedOrder(make([]uint32, 99), 7, 3, len(sub))
	for _, pos := range []int{3, 0, 4, 1, 2} {
		s.Next(2)
		x, ok := s.At(1, pos)
		if !ok || x != sub[o[pos]] {
			t.Errorf("position %d: %d, %v", pos, x, ok)
		}
		if _, ok := s.At(1, pos); ok {
			t.Errorf("position %d came twice", pos)
		}
	}
	counts := make([]int, 120)
	for seed := range uint64(24_000) {
		var ids []ident.ObjectID
		for _, p := range FixedOrder(o, seed, uint32(seed%5), 5) {
			ids = append(ids, ident.ObjectID(p))
		}
		counts[rankOrder(ids)]++
	}
	if z := xrandtest.Deviate(counts); z >= 4 {
		t.Errorf("orders over seeds: z = %.1f", z)
	}
}

const goldenOrder = "[5 3 9 10 8 6 4 0 11 1 2 7]"

// TestInCellPreference: decoded before encoded, fewest needers first, and what a sequential job loaded is not
// preferred.
func TestInCellPreference(t *testing.T) {
	for seed := range uint64(20) {
		s := New(seed)
		all := span(0, 40)
		for id := range ident.JobID(3) {
			must(t, s.Join(id, byEpoch(all)))
			must(t, s.StartEpoch(id, 0))
		}
		must(t, s.Join(9, JobSpec{Mode: Sequential, Subset: all}))
		must(t, s.StartEpoch(9, 0))
		for pos := 30; pos < 40; pos++ {
			x, _ := s.At(9, pos)
			s.SetLevel(x, 2)
		}
		s.Withdraw(1, objects(3, 4))
		s.Withdraw(2, objects(3))
		s.SetLevel(3, 1) // needed by 0 alone
		s.SetLevel(4, 2) // needed by 0 and 2
		s.SetLevel(5, 2) // needed by all
		for _, want := range objects(4, 5, 3) {
			if x, _ := s.Next(0); x != want {
				t.Fatalf("seed %d: picked %d, not %d", seed, x, want)
			}
		}
		must(t, s.Check())
	}
	// An object that only the sequential job loaded has the same chance as any other.
	early := 0
	for seed := range uint64(400) {
		s := New(seed)
		must(t, s.Join(1, byEpoch(span(0, 40))))
		must(t, s.Join(9, JobSpec{Mode: Sequential, Subset: span(0, 40)}))
		must(t, s.StartEpoch(1, 0))
		must(t, s.StartEpoch(9, 0))
		for range 10 {
			x, _ := s.Next(9)
			s.SetLevel(x, 2)
			if !s.Neutral(x) || s.Need(x) != 1 {
				t.Fatal("not neutral, or needed by the sequential job")
			}
		}
		x, _ := s.Next(1)
		if x < 10 {
			early++
			if s.Neutral(x) || s.pool.classOf(s.pool.entry(uint32(x)), 0) == 0 || s.pool.entry(uint32(x)).state&visMask == 0 {
				t.Fatal("still neutral after a visible pick")
			}
		}
		must(t, s.Check())
	}
	if early < 60 || early > 140 { // 100, sd 8.7
		t.Errorf("%d of 400 first picks fell on the quarter a sequential job had loaded", early)
	}
}

// TestStalledJobNeedsNothing: a stalled job counts for no need, and keeps what it is owed.
func TestStalledJobNeedsNothing(t *testing.T) {
	s := New(1)
	for id := range ident.JobID(3) {
		must(t, s.Join(id, strat(4, span(0, 30))))
		must(t, s.StartEpoch(id, 0))
	}
	for range 9 {
		x, _ := s.Next(0)
		s.SetLevel(x, 2)
		s.Next(1)
	}
	s.Next(2)
	for _, stalled := range []ident.JobID{2, 1, 0} {
		before := make([]int, 30)
		for x := range before {
			before[x] = s.Need(ident.ObjectID(x))
		}
		s.SetActive(stalled, false)
		s.SetActive(stalled, false)
		must(t, s.Check())
		for x, n := range before {
			if s.Needs(stalled, ident.ObjectID(x)) {
				n--
			}
			if got := s.Need(ident.ObjectID(x)); got != n {
				t.Errorf("job %d stalled: need of %d is %d, not %d", stalled, x, got, n)
			}
		}
	}
	for _, id := range s.Jobs() {
		s.SetActive(id, true)
	}
	must(t, s.Check())
	if s.Remaining(2) != 29 {
		t.Error("a stalled job lost samples")
	}
}

// TestCellsAreKeptAndForgotten: a left job's subset stays in the cells while anyone draws or anything it loaded is
// still there.
func TestCellsAreKeptAndForgotten(t *testing.T) {
	s := New(1)
	must(t, s.Join(1, byEpoch(span(0, 20))))
	must(t, s.Join(2, byEpoch(span(10, 30))))
	s.Leave(2)
	if s.objects.at(5).cell == s.objects.at(15).cell {
		t.Error("the subset of the job that left is forgotten while another draws")
	}
	s.SetLevel(15, 2)
	s.Leave(1)
	must(t, s.Join(3, byEpoch(span(0, 30))))
	if s.objects.at(5).cell == s.objects.at(15).cell || s.objects.at(15).cell == s.objects.at(25).cell {
		t.Error("cells are forgotten while something loaded is left")
	}
	s.Leave(3)
	s.SetLevel(15, 0)
	must(t, s.Join(4, byEpoch(span(0, 30))))
	if s.objects.at(5).cell != s.objects.at(15).cell || s.objects.at(15).cell != s.objects.at(25).cell ||
		len(s.cells.list) != 2 {
		t.Error("cells are kept with nothing to keep them for")
	}
	must(t, s.Check())
	// Many subsets over time: beyond maxIdleCells what is left in memory turns neutral instead.
	r := xrand.New(4)
	for id := ident.JobID(10); len(s.cells.list) <= maxIdleCells; id++ {
		must(t, s.Join(id, byEpoch(sample(r, 6000, 3000))))
		s.Leave(id)
	}
	s.Leave(4)
	s.SetLevel(77, 2)
	must(t, s.Join(5, byEpoch(span(0, 6000))))
	if len(s.cells.list) != 2 || !s.Neutral(77) || s.Level(77) != 2 {
		t.Errorf("%d cells, neutral %v", len(s.cells.list), s.Neutral(77))
	}
	must(t, s.Check())
}

// TestJobsFarApart: jobs on disjoint sets share no order and do not disturb each other.
func TestJobsFarApart(t *testing.T) {
	s := New(1)
	must(t, s.Join(1, byEpoch(span(0, 100))))
	must(t, s.StartEpoch(1, 0))
	s.Next(1)
	o := s.jobs.byID[1].tape.order
	must(t, s.Join(2, byEpoch(span(5000, 5100))))
	must(t, s.StartEpoch(2, 0))
	s.Next(2)
	if s.jobs.byID[1].tape.order != o || s.jobs.byID[1].stale || o.n != 100 || !o.oneCell ||
		s.jobs.byID[2].tape.order.n != 100 {
		t.Error("a disjoint job disturbs")
	}
	must(t, s.Join(3, byEpoch(span(50, 5050)))) // joins the two
	must(t, s.StartEpoch(3, 0))
	s.Next(1)
	s.Next(2)
	s.Next(3)
	if a, b, c := s.jobs.byID[1].tape.order, s.jobs.byID[2].tape.order,
		s.jobs.byID[3].tape.order; a != b || b != c || a.n != 5100 || a.oneCell {
		t.Error("overlapping jobs have different orders")
	}
	must(t, s.Check())
}

// TestPickAllocatesNothing: in the middle of epochs a pick, and what is said about it, allocates nothing.
func TestPickAllocatesNothing(t *testing.T) {
	for _, mode := range []Mode{Sequential, Fixed, Strict, Stratified, Epoch} {
		s := New(1)
		const n = 20_000
		for id := range ident.JobID(8) {
			must(t, s.Join(id, JobSpec{Mode: mode, Subset: span(int(id)*1000, int(id)*1000+n)}))
			must(t, s.StartEpoch(id, 0))
		}
		step := func() {
			for id := range ident.JobID(8) {
				if x, ok := s.Next(id); ok {
					s.SetLevel(x, 2)
					s.SetLevel((x+n/2)%n, 0)
				}
			}
		}
		step()
		if a := testing.AllocsPerRun(1000, step); a != 0 {
			t.Errorf("%s: %.2f allocations per round of 8 picks", mode, a)
		}
	}
}
