package dsa

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"larder/internal/ident"
)

// TestChangeOfSubset: samples come and go at an epoch border, withdrawn ones at once, in every mode and in slices too.
func TestChangeOfSubset(t *testing.T) {
	t.Parallel()
	for mode := range numModes {
		for _, sliced := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, sliced %v", mode, sliced), func(t *testing.T) {
				s := New(2)
				if sliced {
					s.InSlices()
				}
				start := func(id ident.JobID, epoch uint32) {
					t.Helper()
					must(t, s.StartEpoch(id, epoch))
					for s.Work(7) {
						must(t, s.Check())
					}
				}
				must(t, s.Join(1, JobSpec{Mode: mode, Subset: span(0, 300)}))
				must(t, s.Join(2, strat(4, span(200, 400))))
				start(1, 0)
				start(2, 0)
				for range 100 {
					x, _ := s.Next(1)
					s.SetLevel(x, 2)
					s.Next(2)
				}
				grown := span(100, 900) // 0..99 are gone, 300..899 are new
				must(t, s.Change(1, grown))
				gone := s.Withdraw(1, span(0, 100))
				if left := s.Remaining(1); left != 200-gone {
					t.Fatalf("%d remain after %d were withdrawn", left, gone)
				}
				for s.Work(7) {
				}
				for s.Remaining(1) > 0 {
					if x, ok := s.Next(1); !ok || x < 100 || x >= 300 {
						t.Fatalf("picked %d, %v", x, ok)
					}
				}
				start(1, 1)
				must(t, s.Check())
				if s.Len(1) != 800 || s.Remaining(1) != 800 {
					t.Fatalf("%d samples, %d remain", s.Len(1), s.Remaining(1))
				}
				seen := map[ident.ObjectID]bool{}
				for s.Remaining(1) > 0 {
					x, ok := s.Next(1)
					if !ok || x < 100 || x >= 900 || seen[x] {
						t.Fatalf("picked %d, %v", x, ok)
					}
					seen[x] = true
					s.Next(2)
				}
				must(t, s.Check())
				must(t, s.Change(1, span(5, 9)))
				must(t, s.Change(1, span(5, 7))) // the last word counts
				start(1, 2)
				if s.Remaining(1) != 2 || !s.Needs(1, 6) || s.Needs(1, 100) {
					t.Error("the subset was not changed again")
				}
				must(t, s.Check())
			})
		}
	}
}

func TestChangeErrors(t *testing.T) {
	s := New(1)
	if err := s.Change(1, span(0, 3)); !errors.Is(err, ErrNoJob) {
		t.Error(err)
	}
	must(t, s.Join(1, byEpoch(span(0, 3))))
	if err := s.Change(1, nil); !errors.Is(err, ErrEmptySubset) {
		t.Error(err)
	}
	must(t, s.Change(1, objects(4, 5, 4)))
	if err := s.StartEpoch(1, 0); !errors.Is(err, ErrDuplicateObject) || !strings.Contains(err.Error(), "job 1") {
		t.Error(err)
	}
	if _, ok := s.Next(1); ok || s.Remaining(1) != 0 || !errors.Is(s.Err(1), ErrDuplicateObject) {
		t.Error("the job draws")
	}
	must(t, s.Check())
	s.Leave(1)
	must(t, s.Check())
	for what, err := range map[string]error{ // order-free
		"empty": s.Stratum(nil), "twice": s.Stratum(objects(3, 3)), "large": s.Stratum(objects(MaxObjects)),
	} {
		if err == nil {
			t.Errorf("%s: no error", what)
		}
	}
	must(t, s.Check())
	if len(s.cells.strata) != 0 || s.jobs.live != 0 {
		t.Error("a refused stratum left something behind")
	}
}

// TestStrataAreCells: a stratum splits cells, of jobs that join before and after it, and outlives forgetting.
func TestStrataAreCells(t *testing.T) {
	s := New(1)
	must(t, s.Join(1, byEpoch(span(0, 40))))
	must(t, s.Stratum(span(20, 60)))
	must(t, s.Check())
	if s.objects.at(10).cell == s.objects.at(30).cell || s.objects.at(50).cell == 0 {
		t.Error("the stratum is in no cell of its own")
	}
	must(t, s.StartEpoch(1, 0))
	for i := range 40 { // of any stretch of the epoch, each stratum has its share, up to chance
		if x, ok := s.Next(1); !ok {
			t.Fatal(i, x)
		}
		must(t, s.Check())
	}
	s.Leave(1)
	must(t, s.Join(2, byEpoch(span(0, 70))))
	must(t, s.Check())
	if s.objects.at(10).cell == s.objects.at(30).cell || s.objects.at(30).cell != s.objects.at(59).cell ||
		s.objects.at(60).cell != s.objects.at(10).cell {
		t.Error("the stratum is forgotten")
	}
}

// TestStrataCureEvictionBySize: what a label does to a choice is harmless when the label is part of the cell.
func TestStrataCureEvictionBySize(t *testing.T) {
	t.Parallel()
	for _, plant := range []func(*scenario){
		func(sc *scenario) { sc.perByte = true },
		func(sc *scenario) { sc.slow = 80 },
	} {
		sc := halvesBySize(400, 80)
		plant(&sc)
		if d := driftOf(t, "without strata", sc); d.max < d.limit() {
			t.Errorf("largest z %.1f: the scenario is too mild", d.max)
		}
		sc.stratum = true
		if d := driftOf(t, "with strata", sc); d.max >= d.limit() {
			t.Errorf("%s: z = %.1f", d.where, d.max)
		}
	}
}

// TestAStratumInMidEpoch: a stratum that comes while jobs run is split off in slices, and nothing is lost.
func TestAStratumInMidEpoch(t *testing.T) {
	s := New(1)
	s.InSlices()
	drain := func() {
		for s.Work(64) {
			must(t, s.Check())
		}
	}
	const n = 1000
	for id := range ident.JobID(3) {
		must(t, s.Join(id, JobSpec{Mode: []Mode{Stratified, Epoch, Strict}[id], Subset: span(int(id)*100, n)}))
		must(t, s.StartEpoch(id, 0))
	}
	drain()
	seen := [3]map[ident.ObjectID]bool{{}, {}, {}}
	pick := func(times int) {
		for range times {
			for id := range ident.JobID(3) {
				if x, ok := s.Next(id); ok {
					if seen[id][x] {
						t.Fatalf("job %d was given %d twice", id, x)
					}
					seen[id][x] = true
					s.SetLevel(x, 2)
				}
			}
		}
	}
	pick(200)
	must(t, s.Stratum(span(500, 1100)))
	if len(s.work.line) == 0 || s.objects.at(900).cell != s.objects.at(400).cell {
		t.Error("it was not left to Work")
	}
	s.Work(64)
	drain()
	if s.objects.at(900).cell == s.objects.at(400).cell {
		t.Error("the stratum is no cell of its own")
	}
	pick(n)
	for id := range ident.JobID(3) {
		if len(seen[id]) != n-int(id)*100 || s.Remaining(id) != 0 {
			t.Errorf("job %d got %d", id, len(seen[id]))
		}
	}
}

// TestAChangeAfterAnUnfinishedEpochIsLeftToWork: an epoch that is given up for one on another subset is cleared in
// slices like any other, and the samples that stay keep their tiles, those that were not reached the ones of the
// positions that were not.
func TestAChangeAfterAnUnfinishedEpochIsLeftToWork(t *testing.T) {
	const n, tiles = 1000, 4
	for _, again := range []bool{false, true} {
		s := New(7)
		s.InSlices()
		must(t, s.Join(1, strat(tiles, span(0, n))))
		must(t, s.Join(2, byEpoch(span(n/2, n))))
		for id := range ident.JobID(2) {
			must(t, s.StartEpoch(id+1, 0))
		}
		finishWork(s)
		tile := map[ident.ObjectID]uint8{}
		for p := range n / 2 {
			x, _ := s.Next(1)
			s.SetLevel(x, 2)
			tile[x] = uint8(p * tiles / n)
		}
		must(t, s.Change(1, span(0, 2*n)))
		must(t, s.StartEpoch(1, 1))
		if j := s.jobs.byID[1]; len(j.passes.todo) == 0 || j.passes.todo[0] != passClear || s.Len(1) != 2*n ||
			s.Remaining(1) != 2*n {
			t.Fatalf("passes %v are left, %d of %d remain", j.passes.todo, s.Remaining(1), s.Len(1))
		}
		for k := 0; s.Work(7); k++ {
			must(t, s.Check())
			if again && k == 200 {
				s.Abandon(1)
				must(t, s.Check())
				must(t, s.StartEpoch(1, 1))
			}
			if j := s.jobs.byID[1]; s.Ready(1) != (len(j.passes.todo) == 0 && !j.stale) {
				t.Fatalf("ready %v with passes %v to do", s.Ready(1), j.passes.todo)
			}
		}
		must(t, s.Check())
		j := s.jobs.byID[1]
		var later [tiles]int
		for x := range ident.ObjectID(n) {
			got := j.tiled.prev.get(j.index.of(uint32(x)))
			want, seen := tile[x]
			if !seen {
				later[got]++
			} else if got != want {
				t.Fatalf("sample %d has tile %d, want %d", x, got, want)
			}
		}
		if later != [tiles]int{0, 0, n / 4, n / 4} {
			t.Errorf("those that were not reached have tiles %v", later)
		}
	}
}
