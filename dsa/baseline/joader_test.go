package baseline

import (
	"math"
	"testing"

	"larder/dsa"
	"larder/internal/ident"
	"larder/internal/testenv/lane"
	"larder/internal/xrand/xrandtest"
)

// mean runs f with seeds 0..runs-1 and fails when its mean is further than 4.5 standard errors from want.
func mean(t *testing.T, what string, want float64, runs int, f func(seed uint64) float64) {
	t.Helper()
	sum, sq := 0.0, 0.0
	for seed := range uint64(runs) {
		v := f(seed)
		sum += v
		sq += v * v
	}
	m := sum / float64(runs)
	se := math.Sqrt(max(sq/float64(runs)-m*m, 0) / float64(runs))
	t.Logf("%s: %.4f ± %.4f, want %.4f", what, m, se, want)
	if math.Abs(m-want) > 4.5*se+1e-9 {
		t.Errorf("%s: mean %.4f ± %.4f, want %.4f", what, m, se, want)
	}
}

func harmonic(n int) float64 {
	h := 0.0
	for i := 1; i <= n; i++ {
		h += 1 / float64(i)
	}
	return h
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// The first round of two jobs: A = {1,2,3,4}, B = {3..7}.
func TestJoaderPair(t *testing.T) {
	first := func(seed uint64) []Pick {
		return begin(t, "joader", seed, span(1, 5), span(3, 8)).Round([]ident.JobID{1, 2}, nil)
	}
	mean(t, "P(equal)", .4, 20_000,
		func(seed uint64) float64 { p := first(seed); return truth(p[0].Object == p[1].Object) })
	mean(t, "P(A in I, B not)", .1, 20_000, func(seed uint64) float64 {
		p := first(seed)
		return truth(p[0].Object >= 3 && p[1].Object >= 5)
	})
	a, b := make([]int, 4), make([]int, 5)
	for seed := range uint64(20_000) {
		p := first(seed)
		a[p[0].Object-1]++
		b[p[1].Object-3]++
	}
	if z := max(xrandtest.Deviate(a), xrandtest.Deviate(b)); z > 4 {
		t.Errorf("first picks are not uniform: z = %.1f, %v %v", z, a, b)
	}
}

// Three jobs whose best coupling needs 2 loads; the chain needs 79/36 draws, a little less by accident.
func TestJoaderChain(t *testing.T) {
	subsets := [][]ident.ObjectID{objects(0, 1, 2, 3), objects(0, 1, 2, 4, 5, 6), objects(0, 1, 4, 5, 7, 8, 9, 10)}
	all := []ident.JobID{1, 2, 3}
	runs := lane.Times(20_000, 60_000)
	first := func(seed uint64) ([]Pick, int) {
		s := begin(t, "joader", seed, subsets...)
		p := s.Round(all, nil)
		return p, s.rule.(*joader).draws
	}
	mean(t, "P(all three)", .25, runs, func(seed uint64) float64 {
		p, _ := first(seed)
		return truth(p[0].Object == p[1].Object && p[1].Object == p[2].Object)
	})
	// Who shares with whom, accidents included, and what a round loads with them.
	mean(t, "P(1 and 2 only)", 1./12+1./16, runs, func(seed uint64) float64 {
		p, _ := first(seed)
		return truth(p[0].Object == p[1].Object && p[1].Object != p[2].Object)
	})
	mean(t, "P(2 and 3 only)", 2./9, runs, func(seed uint64) float64 {
		p, _ := first(seed)
		return truth(p[1].Object == p[2].Object && p[0].Object != p[1].Object)
	})
	mean(t, "loads", 2.132, runs, func(seed uint64) float64 {
		p, _ := first(seed)
		n := 1 + truth(p[1].Object != p[0].Object)
		return n + truth(p[2].Object != p[0].Object && p[2].Object != p[1].Object)
	})
	mean(t, "draws", 79./36, runs, func(seed uint64) float64 { _, n := first(seed); return float64(n) })
	mean(t, "loads of an epoch", 14.50, 8000, func(seed uint64) float64 {
		loads, _ := lockstep(begin(t, "joader", seed, subsets...), 3)
		return float64(loads)
	})
}

func TestJoaderLoads(t *testing.T) {
	epoch := func(name string, jobs int, subsets ...[]ident.ObjectID) func(uint64) float64 {
		return func(seed uint64) float64 {
			loads, orders := lockstep(begin(t, name, seed, subsets...), jobs)
			for i, o := range orders {
				if len(o) != len(subsets[i]) {
					t.Fatalf("job %d got %d of %d", i, len(o), len(subsets[i]))
				}
			}
			return float64(loads)
		}
	}
	// Twins beside a larger disjoint job share nothing but accidents; 30 would do.
	mean(t, "twins", 39.0, 4000, epoch("joader", 3, span(0, 10), span(0, 10), span(10, 30)))
	// Equal sizes in lock-step need exactly the union.
	for seed := range uint64(200) {
		if got := epoch("joader", 2, span(0, 5), span(3, 8))(seed); got != 8 {
			t.Fatalf("equal sizes: %v loads, not 8", got)
		}
	}
	mean(t, "unlike sizes", 8.425, 20_000, epoch("joader", 2, span(0, 4), span(1, 7)))
	mean(t, "unlike sizes, 1000 and 1500", 2274.5, 40, epoch("joader", 2, span(0, 1000), span(500, 2000)))
	mean(t, "late join", 14+4*(harmonic(10)-harmonic(4)), 20_000, func(seed uint64) float64 {
		loads, _ := lockstep(begin(t, "joader", seed, span(0, 10), span(0, 10)), 2, 0, 4)
		return float64(loads)
	})
	mean(t, "independent twins of 10, one 4 late", 20-6./10, 20_000, func(seed uint64) float64 {
		loads, _ := lockstep(begin(t, "independent", seed, span(0, 10), span(0, 10)), 2, 0, 4)
		return float64(loads)
	})
	mean(t, "six pairs", 11./3, 20_000, func(seed uint64) float64 {
		s := begin(t, "joader", seed, objects(0, 1, 2), objects(0, 3, 4), objects(1, 3, 5), objects(2, 4, 5))
		s.Round([]ident.JobID{1, 2, 3, 4}, nil)
		return float64(s.rule.(*joader).draws)
	})
}

// A survivor of a leave in the middle gets all its samples; the released tree delivered 638 of 1000.
func TestJoaderSurvivesLeave(t *testing.T) {
	s := begin(t, "joader", 5, span(0, 1000), span(500, 2000), span(200, 1200))
	got := map[ident.ObjectID]bool{}
	for i := 0; s.Remaining(1) > 0; i++ {
		if i == 400 {
			s.Leave(2)
		}
		for _, p := range s.Round([]ident.JobID{1, 2, 3}, nil) {
			if p.Job == 1 {
				got[p.Object] = true
			}
		}
	}
	if len(got) != 1000 {
		t.Errorf("%d of 1000", len(got))
	}
}

// ods in the closed form of its fluid model, and its reads of storage: the cache never evicts, but for the turnover.
func TestODS(t *testing.T) {
	const n = 8000
	run := func(jobs, epochs, cache int) (hit float64, reads int) {
		s, err := New("ods", uint64(jobs))
		must(t, err)
		for i := range jobs {
			must(t, s.Join(ident.JobID(i+1), dsa.JobSpec{Subset: span(0, n)}))
		}
		held, hits := 0, 0
		for e := range epochs {
			for i := range jobs {
				must(t, s.StartEpoch(ident.JobID(i+1), uint32(e)))
			}
			hits = 0
			for range n {
				for i := range jobs {
					x, _ := s.Next(ident.JobID(i + 1))
					if s.level[x] {
						hits++
					} else if reads++; held < cache {
						held++
						s.SetLevel(x, 2)
					}
					for {
						out, in, ok, more := s.Turnover()
						if !more {
							break
						}
						s.SetLevel(out, 0)
						if held--; ok {
							s.SetLevel(in, 2)
							reads++
							held++
						}
					}
				}
			}
		}
		return float64(hits) / float64(n*jobs), reads
	}
	for c, want := range map[float64]float64{.05: .326, .1: .460, .2: .641, .4: .856} {
		if h := want; math.Abs(1-h-(1-c)*math.Exp(-h/(1-c))) > .001 {
			t.Fatalf("h = %v does not solve the closed form for c = %v", h, c)
		}
		for _, jobs := range []int{1, 3} {
			got, _ := run(jobs, 8, int(c*n)) // by then the mix of samples with no, one and more hits has settled
			if math.Abs(got-want) > .02 {
				t.Errorf("%d jobs, cache %.2f: %.3f of a warm epoch are hits, want %.3f", jobs, c, got, want)
			}
		}
	}
	for jobs, want := range map[int]float64{1: 8.0, 2: 11.5, 3: 15.1, 4: 18.6} {
		if _, reads := run(jobs, 8, n/5); math.Abs(float64(reads)/n/want-1) > .02 {
			t.Errorf("%d jobs: %.2f N reads in 8 epochs, want %.1f N", jobs, float64(reads)/n, want)
		}
	}
}
