package jobs

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"larder/internal/errs"
)

// deal walks an epoch step by step, as the coordinator does, and returns what every position of the order was given to.
func deal(t testing.TB, s Spec) []int {
	t.Helper()
	owner := make([]int, s.Dealt())
	for i := range owner {
		owner[i] = -1
	}
	for r := range s.World {
		total := 0
		for step := range s.Batches(r) {
			rows, pos := s.Rows(r, step), s.Position(r, step)
			if rows < 1 || rows > s.Batch {
				t.Fatalf("%+v: batch %d of rank %d has %d rows", s, step, r, rows)
			}
			if s.DropLast && rows != s.Batch {
				t.Fatalf("%+v: batch %d of rank %d has %d rows though short ones are dropped", s, step, r, rows)
			}
			for p := pos; p < pos+rows; p++ {
				if p < 0 || p >= len(owner) {
					t.Fatalf("%+v: batch %d of rank %d takes position %d of %d", s, step, r, p, len(owner))
				}
				if owner[p] >= 0 {
					t.Fatalf("%+v: position %d goes to ranks %d and %d", s, p, owner[p], r)
				}
				owner[p] = r
			}
			total += rows
		}
		if total != s.RankSamples(r) {
			t.Fatalf("%+v: rank %d gets %d samples, not %d", s, r, total, s.RankSamples(r))
		}
	}
	return owner
}

func checkDeal(t testing.TB, s Spec) {
	t.Helper()
	for p, r := range deal(t, s) {
		if r < 0 {
			t.Fatalf("%+v: no rank gets position %d", s, p)
		}
	}
	if s.Dealt()+s.Dropped() != s.Subset || s.Dropped() < 0 {
		t.Fatalf("%+v: %d dealt and %d dropped", s, s.Dealt(), s.Dropped())
	}
	most := 0 // what the two rules may cost
	if s.Even {
		most += s.World - 1
	}
	if s.DropLast {
		most += s.World * (s.Batch - 1)
	}
	if s.Dropped() > most {
		t.Fatalf("%+v: %d samples are dropped, at most %d may be", s, s.Dropped(), most)
	}
	for r := range s.World {
		if s.Even && s.RankSamples(r) != s.RankSamples(0) {
			t.Fatalf("%+v: ranks 0 and %d get %d and %d samples", s, r, s.RankSamples(0), s.RankSamples(r))
		}
		if equal := s.Even || !s.DropLast && s.Batch > 1; equal && s.Batches(r) != s.Batches(0) {
			t.Fatalf("%+v: ranks 0 and %d get %d and %d batches", s, r, s.Batches(0), s.Batches(r))
		}
	}
}

// Every combination of small numbers: all the edges of the arithmetic are among them.
func TestEveryPositionIsDealtOnce(t *testing.T) {
	for n := 1; n <= 24; n++ {
		for world := 1; world <= min(n, 6); world++ {
			for batch := 1; batch <= 9; batch++ {
				for _, flags := range []struct{ even, drop bool }{{false, false}, {true, false}, {false, true}, {true, true}} {
					s := Spec{Name: "j", Subset: n, Batch: batch, World: world, Even: flags.even, DropLast: flags.drop, Slots: 4}
					if s.Validate() == nil {
						checkDeal(t, s)
					}
				}
			}
		}
	}
}

func TestLargeEpochsAreDealtOnce(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := Spec{
			Name: "j", Subset: rapid.IntRange(1, 3000).Draw(rt, "n"), Batch: rapid.IntRange(1, 300).Draw(rt, "batch"),
			World: rapid.IntRange(1, 9).Draw(rt, "world"), Even: rapid.Bool().Draw(rt, "even"), DropLast: rapid.Bool().Draw(rt,
				"drop"), Slots: 4,
		}
		if s.Validate() != nil {
			rt.Skip("cannot be dealt")
		}
		checkDeal(t, s)
	})
}

// The batches of one step lie side by side, in order of rank: a prefix of the order is a whole number of steps.
func TestStepsLieSideBySide(t *testing.T) {
	s := Spec{Name: "j", Subset: 23, Batch: 3, World: 3, Slots: 4}
	next := 0
	for step := range s.Batches(0) {
		for r := range s.World {
			if got := s.Position(r, step); got != next {
				t.Fatalf("batch %d of rank %d starts at %d, not %d", step, r, got, next)
			}
			next += s.Rows(r, step)
		}
	}
	if next != 23 {
		t.Fatalf("%d positions are dealt", next)
	}
}

func TestARankThatWouldLackABatchMakesOneOfItsLastSample(t *testing.T) {
	s := Spec{Name: "j", Subset: 9, Batch: 4, World: 2, Slots: 4} // 5 and 4 samples: 4+1, and 4 would be one batch less
	var got []string
	for r := range 2 {
		for step := range s.Batches(r) {
			got = append(got, fmt.Sprintf("r%d:%d", r, s.Rows(r, step)))
		}
	}
	if fmt.Sprint(got) != "[r0:4 r0:1 r1:3 r1:1]" {
		t.Errorf("batches %v", got)
	}
}

func TestValidateNamesTheNumbers(t *testing.T) {
	good := Spec{Name: "j", Subset: 10, Batch: 2, World: 2, Slots: 4}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*Spec)
		reason errs.Reason
	}{
		"no sample":                        {func(s *Spec) { s.Subset = 0 }, errs.SubsetEmpty},
		"batch 0":                          {func(s *Spec) { s.Batch = 0 }, errs.Invalid},
		"batch too large":                  {func(s *Spec) { s.Batch = 1<<16 + 1 }, errs.Invalid},
		"world 0":                          {func(s *Spec) { s.World = 0 }, errs.Invalid},
		"world too large":                  {func(s *Spec) { s.World = 1025 }, errs.Invalid},
		"one slot":                         {func(s *Spec) { s.Slots = 1 }, errs.Invalid},
		"too many slots":                   {func(s *Spec) { s.Slots = 67 }, errs.Invalid},
		"more ranks than samples":          {func(s *Spec) { s.World = 11 }, errs.SubsetEmpty},
		"a batch larger than a rank":       {func(s *Spec) { s.Batch, s.DropLast = 6, true }, errs.SubsetEmpty},
		"one rank too short for its batch": {func(s *Spec) { s.Subset, s.Batch, s.DropLast = 9, 5, true }, errs.SubsetEmpty},
	} {
		s := good
		c.change(&s)
		var f *errs.Error
		if err := s.Validate(); !errors.As(err, &f) || f.Reason != c.reason || f.Hint == "" || f.Subject != "j" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestABatchLargerThanWhatARankGetsNamesBothNumbers(t *testing.T) {
	for world, want := range map[int]string{
		1: "job a: batch_size 11 is larger than the 10 samples of its subset, and drop_last drops such a batch",
		3: "job a: batch_size 11 is larger than the 3 samples that each of its 3 ranks gets, " +
			"and drop_last drops such a batch",
	} {
		err := Spec{Name: "a", Subset: 10, Batch: 11, World: world, Slots: 4, DropLast: true}.Validate()
		if !errs.Is(err, errs.SubsetEmpty) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v\nwant %s", err, want)
		}
	}
}
