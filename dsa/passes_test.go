package dsa

import (
	"errors"
	"testing"

	"larder/internal/ident"
)

// What is said and asked while old cells are being forgotten.
func TestForgettingInSlices(t *testing.T) {
	s := New(1)
	s.InSlices()
	all := span(0, 1000)
	work := func() {
		finishWork(s)
	}
	for id, sub := range [][]ident.ObjectID{all[:600], all[300:]} {
		must(t, s.Join(ident.JobID(id+1), JobSpec{Mode: Stratified, Subset: sub}))
		work()
	}
	s.Leave(1)
	s.Leave(2)
	work()
	must(t, s.Join(3, strat(4, all)))
	for s.Work(50) {
		for x := range ident.ObjectID(1000) {
			if n := s.Need(x); n != 0 {
				t.Fatalf("need of %d is %d", x, n)
			}
		}
		s.SetLevel(999, 2)
		s.SetLevel(999, 0)
		must(t, s.Check())
	}
}

func TestManyStrata(t *testing.T) {
	s := New(1)
	all := span(0, 1000)
	for k := range 70 {
		must(t, s.Stratum(all[k*10:k*10+10]))
	}
	for id := range ident.JobID(3) {
		must(t, s.Join(id, JobSpec{Mode: Stratified, Subset: all[id*105 : 500+id*105]}))
	}
	for id := range ident.JobID(3) {
		s.Leave(id)
	}
	must(t, s.Join(9, strat(4, all)))
	must(t, s.Check())
	if n := len(s.cells.list); n != 72 {
		t.Fatalf("%d cells, want 70 strata and the rest", n-1)
	}
}

func TestStrataWithAllSlotsTaken(t *testing.T) {
	s := New(1)
	s.InSlices()
	all := span(0, 1000)
	must(t, s.Stratum(all[:100]))
	must(t, s.Join(1000, JobSpec{Mode: Stratified, Subset: all[:500]}))
	finishWork(s)
	s.Leave(1000)
	finishWork(s)
	for id := range ident.JobID(MaxJobs) {
		must(t, s.Join(id, strat(4, all)))
		for id == 0 && !s.work.begun(s.jobs.byID[0], passForget) {
			s.Work(10)
		}
	}
	finishWork(s)
	must(t, s.Check())
	if n := len(s.cells.list); n != 3 {
		t.Fatalf("%d cells, want the stratum and the rest", n-1)
	}
}

// A subset that turns out to be no set, in slices.
func TestNoSetInSlices(t *testing.T) {
	s := New(1)
	s.InSlices()
	all := span(0, 1000)
	bad := append(span(0, 500), 3)
	must(t, s.Join(1, strat(4, all)))
	must(t, s.StartEpoch(1, 0))
	finishWork(s)
	for x := range ident.ObjectID(400) {
		s.SetLevel(x, 2)
	}
	must(t, s.Join(2, strat(4, bad)))
	if err := s.StartEpoch(2, 0); err != nil {
		t.Fatal(err)
	}
	finishWork(s)
	if err := s.Err(2); !errors.Is(err, ErrDuplicateObject) {
		t.Fatal(err)
	}
	if s.Needs(2, 5) {
		t.Error("a job without a set needs something")
	}
	if n := s.Withdraw(2, all[:10]); n != 0 {
		t.Errorf("%d withdrawn", n)
	}
	s.Return(2, all[:10])
	if err := s.StartEpoch(2, 1); !errors.Is(err, ErrDuplicateObject) {
		t.Fatal(err)
	}
	finishWork(s)
	for x := range ident.ObjectID(400) {
		if n := s.Need(x); n != 1 {
			t.Fatalf("need of %d is %d, want 1", x, n)
		}
	}
	if s.Ready(2) || !s.Ready(1) {
		t.Error("ready is wrong")
	}
	must(t, s.Check())
	s.Leave(2)
	finishWork(s)
	must(t, s.Check())
}

// Two changes with an epoch between that delivers nothing keep the tiles of the epoch before both.
func TestTilesOutliveTwoChanges(t *testing.T) {
	s := New(1)
	all := span(0, 1000)
	must(t, s.Join(1, strat(4, all)))
	must(t, s.StartEpoch(1, 0))
	tile := map[ident.ObjectID]uint8{}
	for k := range 1000 {
		x, _ := s.Next(1)
		tile[x] = uint8(k * 4 / 1000)
	}
	s.InSlices()
	must(t, s.Change(1, all[:900]))
	must(t, s.StartEpoch(1, 1))
	s.Work(100)
	must(t, s.Change(1, all[:800]))
	must(t, s.StartEpoch(1, 1))
	finishWork(s)
	j := s.jobs.byID[1]
	for _, x := range all[:800] {
		if got := j.tiled.prev.get(j.index.of(uint32(x))); got != tile[x] {
			t.Fatalf("sample %d has tile %d, want %d", x, got, tile[x])
		}
	}
}

// A running job whose next subset is no set, and one that begins twice before that shows.
func TestNoSetAndARunningJob(t *testing.T) {
	all := span(0, 1000)
	bad := append(span(0, 500), 3)
	s := New(1)
	s.InSlices()
	must(t, s.Join(1, strat(4, all)))
	must(t, s.StartEpoch(1, 0))
	finishWork(s)
	must(t, s.Change(1, bad))
	must(t, s.StartEpoch(1, 1))
	must(t, s.Join(2, strat(4, bad)))
	must(t, s.StartEpoch(2, 0))
	must(t, s.StartEpoch(2, 1))
	finishWork(s)
	for id := ident.JobID(1); id <= 2; id++ {
		if err := s.Err(id); !errors.Is(err, ErrDuplicateObject) {
			t.Fatal(err)
		}
		if _, ok := s.Next(id); ok {
			t.Fatal("a job without a set draws")
		}
		s.Leave(id)
	}
	finishWork(s)
	must(t, s.Check())
}

// finishWork does all that calls have left to do.
func finishWork(s *Sampler) {
	for s.Work(1 << 20) {
	}
}
