package baseline

import (
	"errors"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"larder/dsa"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/xrand/xrandtest"
)

func span(lo, hi int) []ident.ObjectID {
	var out []ident.ObjectID
	for x := lo; x < hi; x++ {
		out = append(out, ident.ObjectID(x))
	}
	return out
}

func objects(ids ...ident.ObjectID) []ident.ObjectID { return ids }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// begin makes a baseline whose jobs 1.. have started.
func begin(t testing.TB, name string, seed uint64, subsets ...[]ident.ObjectID) *Sampler {
	t.Helper()
	s, err := New(name, seed)
	must(t, err)
	for i, d := range subsets {
		must(t, s.Join(ident.JobID(i+1), dsa.JobSpec{Subset: d}))
	}
	for i := range subsets {
		must(t, s.StartEpoch(ident.JobID(i+1), 0))
	}
	return s
}

// lockstep runs an epoch of all jobs in rounds, without a cache: what a round draws twice is loaded once. starts delays
// jobs by rounds.
func lockstep(s *Sampler, jobs int, starts ...int) (loads int, orders [][]ident.ObjectID) {
	orders = make([][]ident.ObjectID, jobs)
	for t := 0; ; t++ {
		var ids []ident.JobID
		waits := false
		for i := range jobs {
			if i < len(starts) && t < starts[i] {
				waits = true
				continue
			}
			ids = append(ids, ident.JobID(i+1))
		}
		picks := s.Round(ids, nil)
		if len(picks) == 0 && !waits {
			return loads, orders
		}
		for k, p := range picks {
			orders[p.Job-1] = append(orders[p.Job-1], p.Object)
			if !slices.ContainsFunc(picks[:k], func(q Pick) bool { return q.Object == p.Object }) {
				loads++
			}
		}
	}
}

func TestNames(t *testing.T) {
	for _, n := range Names() {
		s, err := New(n, 1)
		if err != nil || s.Name() != n {
			t.Errorf("New(%q) = %v, %v", n, s, err)
		}
	}
	if _, err := New("joader-released", 1); !errs.Is(err, errs.Invalid) {
		t.Errorf("an unknown name: %v", err)
	}
}

func TestJoinRefuses(t *testing.T) {
	for _, n := range Names() {
		s := begin(t, n, 1, span(0, 4))
		for want, err := range map[error]error{
			dsa.ErrJobExists:       s.Join(1, dsa.JobSpec{Subset: span(0, 1)}),
			dsa.ErrEmptySubset:     s.Join(2, dsa.JobSpec{}),
			dsa.ErrDuplicateObject: s.Join(2, dsa.JobSpec{Subset: objects(1, 2, 1)}),
			dsa.ErrObjectID:        s.Join(2, dsa.JobSpec{Subset: objects(dsa.MaxObjects)}),
			dsa.ErrNoJob:           s.StartEpoch(2, 0),
		} {
			if !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", n, err, want)
			}
		}
		for i := 2; i <= dsa.MaxJobs; i++ {
			must(t, s.Join(ident.JobID(i), dsa.JobSpec{Subset: span(i, i+1)}))
		}
		if err := s.Join(99, dsa.JobSpec{Subset: span(0, 1)}); !errors.Is(err, dsa.ErrTooManyJobs) {
			t.Errorf("%s: job %d: %v", n, dsa.MaxJobs+1, err)
		}
		s.Leave(2)
		must(t, s.Join(99, dsa.JobSpec{Subset: span(0, 1)}))
	}
}

// What every baseline must keep, against sets kept by hand: no sample twice, none lost, through joins, leaves, returns,
// levels and rounds. (Joader as released loses samples when a job is deleted; this one must not.)
func TestAgainstSets(t *testing.T) {
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				s, err := New(name, rapid.Uint64().Draw(rt, "seed"))
				must(t, err)
				left := map[ident.JobID]map[ident.ObjectID]bool{}
				subset := map[ident.JobID][]ident.ObjectID{}
				id := rapid.Custom(func(t *rapid.T) ident.JobID { return ident.JobID(rapid.IntRange(1, 5).Draw(t, "job")) })
				took := func(j ident.JobID, x ident.ObjectID) {
					if !left[j][x] {
						rt.Fatalf("job %d got %d, of %v", j, x, left[j])
					}
					delete(left[j], x)
					for range 100 {
						out, in, ok, more := s.Turnover()
						if !more {
							return
						}
						s.SetLevel(out, 0)
						if ok {
							s.SetLevel(in, 2)
						}
					}
					rt.Fatal("there is no end to the turnover")
				}
				rt.Repeat(map[string]func(*rapid.T){
					"join": func(rt *rapid.T) {
						j := id.Draw(rt, "id")
						if subset[j] != nil {
							rt.Skip("has joined")
						}
						ids := rapid.SliceOfNDistinct(rapid.IntRange(0, 300), 1, 12, rapid.ID[int]).Draw(rt, "subset")
						var d []ident.ObjectID
						for _, x := range ids {
							d = append(d, ident.ObjectID(x))
						}
						must(t, s.Join(j, dsa.JobSpec{Subset: d}))
						subset[j] = d
					},
					"epoch": func(rt *rapid.T) {
						j := id.Draw(rt, "id")
						if subset[j] == nil {
							rt.Skip("no such job")
						}
						must(t, s.StartEpoch(j, 0))
						left[j] = map[ident.ObjectID]bool{}
						for _, x := range subset[j] {
							left[j][x] = true
						}
					},
					"leave":   func(rt *rapid.T) { j := id.Draw(rt, "id"); s.Leave(j); delete(left, j); delete(subset, j) },
					"abandon": func(rt *rapid.T) { j := id.Draw(rt, "id"); s.Abandon(j); delete(left, j) },
					"level": func(rt *rapid.T) {
						s.SetLevel(ident.ObjectID(rapid.IntRange(0, 300).Draw(rt, "x")), uint8(rapid.IntRange(0, 2).Draw(rt, "level")))
					},
					"next": func(rt *rapid.T) {
						j := id.Draw(rt, "id")
						x, ok := s.Next(j)
						if ok != (len(left[j]) > 0) {
							rt.Fatalf("job %d: %v with %d left", j, ok, len(left[j]))
						}
						if ok {
							took(j, x)
						}
					},
					"round": func(rt *rapid.T) {
						ids := rapid.SliceOfDistinct(id, rapid.ID[ident.JobID]).Draw(rt, "ids")
						want := 0
						for _, j := range ids {
							if len(left[j]) > 0 {
								want++
							}
						}
						picks := s.Round(ids, nil)
						if len(picks) != want {
							rt.Fatalf("%d picks for %d jobs", len(picks), want)
						}
						for _, p := range picks {
							took(p.Job, p.Object)
						}
					},
					"return": func(rt *rapid.T) {
						j := id.Draw(rt, "id")
						if left[j] == nil {
							rt.Skip("idle")
						}
						x := ident.ObjectID(rapid.IntRange(0, 300).Draw(rt, "x"))
						s.Return(j, []ident.ObjectID{x})
						if slices.Contains(subset[j], x) {
							left[j][x] = true
						}
					},
					"": func(rt *rapid.T) {
						for j, d := range subset {
							if s.Remaining(j) != len(left[j]) || s.Len(j) != len(d) {
								rt.Fatalf("job %d owes %d of %d, want %d of %d", j, s.Remaining(j), s.Len(j), len(left[j]), len(d))
							}
						}
						x := ident.ObjectID(rapid.IntRange(0, 300).Draw(rt, "looked at"))
						need := 0
						for j := range left {
							if left[j][x] {
								need++
							}
							if s.Needs(j, x) != left[j][x] {
								rt.Fatalf("job %d needs %d: %v", j, x, !left[j][x])
							}
						}
						if s.WriteOnly() {
							need = 0
						}
						if s.Need(x) != need {
							rt.Fatalf("need of %d is %d, want %d", x, s.Need(x), need)
						}
					},
				})
			})
		})
	}
}

// rankOrder numbers the permutations of distinct objects (Lehmer code).
func rankOrder(order []ident.ObjectID) int {
	rank := 0
	for i, x := range order {
		smaller := 0
		for _, y := range order[i+1:] {
			if y < x {
				smaller++
			}
		}
		rank = rank*(len(order)-i) + smaller
	}
	return rank
}

// Every order of every job is equally likely where the rule says so: unlike sizes, a late start, rounds.
func TestOrdersAreUniform(t *testing.T) {
	const runs = 24_000
	for _, name := range []string{"independent", "joader"} {
		counts := [3][]int{make([]int, 24), make([]int, 6), make([]int, 24)}
		for seed := range uint64(runs) {
			s := begin(t, name, seed, span(0, 4), span(2, 5), objects(0, 3, 4, 6))
			_, orders := lockstep(s, 3, 0, 0, 2)
			for i, o := range orders {
				counts[i][rankOrder(o)]++
			}
		}
		for i, c := range counts {
			if z := xrandtest.Deviate(c); z > 4.5 {
				t.Errorf("%s, job %d: z = %.1f over all orders %v", name, i, z, c)
			}
		}
	}
}

// Rotation: the orders of jobs on the same data are one cyclic sequence, and a late job meets the early one.
func TestSharedOrderIsOneCycle(t *testing.T) {
	const n = 50
	s := begin(t, "shared-order", 3, span(0, n), span(0, n))
	s.Leave(2)
	var one []ident.ObjectID
	for range 20 {
		x, _ := s.Next(1)
		one = append(one, x)
	}
	must(t, s.Join(2, dsa.JobSpec{Subset: span(0, n)}))
	must(t, s.StartEpoch(2, 0))
	var two []ident.ObjectID
	for range 2 * n {
		if s.Remaining(1) == 0 {
			must(t, s.StartEpoch(1, 1))
		}
		if s.Remaining(2) == 0 {
			must(t, s.StartEpoch(2, 1))
		}
		p := s.Round([]ident.JobID{1, 2}, nil)
		if p[0].Object != p[1].Object {
			t.Fatalf("after %d steps the two jobs are at %d and %d", len(two), p[0].Object, p[1].Object)
		}
		one, two = append(one, p[0].Object), append(two, p[1].Object)
	}
	for i := n; i < len(one); i++ {
		if one[i] != one[i-n] {
			t.Fatal("the order is not a cycle")
		}
	}
}

// The released sampler's first pick among 129 ids is 128 half of the time, and 0 else.
func TestReleasedFirstPick(t *testing.T) {
	const runs = 4000
	got := map[ident.ObjectID]int{}
	for seed := range uint64(runs) {
		x, _ := begin(t, "joader-as-released", seed, span(0, 129)).Next(1)
		got[x]++
	}
	if len(got) != 2 || math.Abs(float64(got[128])-runs/2) > 4*math.Sqrt(runs)/2 {
		t.Errorf("first picks %v, want 0 and 128 equally often", got)
	}
}

// The last 1 % of an epoch of 128,000 lies in about 183 of 1,000 blocks; in a uniform order it would be in 722.
func TestTailOfBlocks(t *testing.T) {
	const n = 128_000
	blocksOf := func(name string) int {
		s := begin(t, name, 9, span(0, n))
		seen := map[ident.ObjectID]bool{}
		for s.Remaining(1) > 0 {
			x, _ := s.Next(1)
			if s.Remaining(1) < n/100 {
				seen[x/128] = true
			}
		}
		return len(seen)
	}
	if got := blocksOf("joader-as-released"); math.Abs(float64(got)-183) > 25 {
		t.Errorf("the released tail touches %d blocks, measured on its code were 183", got)
	}
	if got := blocksOf("independent"); math.Abs(float64(got)-722) > 57 {
		t.Errorf("a uniform tail touches %d blocks, not about 722", got)
	}
}
