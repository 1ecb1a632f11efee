package dsa

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"larder/internal/ident"
	"larder/internal/xrand"
	"larder/internal/xrand/xrandtest"
)

func strict(subset []ident.ObjectID) JobSpec { return JobSpec{Mode: Strict, Subset: subset} }

// rounds joins strict jobs on the given sets and draws one round, asked for by the first; draws[i] is what job i drew.
func rounds(seed uint64, sets ...[]ident.ObjectID) (draws []ident.ObjectID, err error) {
	s := New(seed)
	for i, d := range sets {
		if err := s.Join(ident.JobID(i), strict(d)); err != nil {
			return nil, err
		}
		if err := s.StartEpoch(ident.JobID(i), 0); err != nil {
			return nil, err
		}
	}
	for i := range sets {
		x, _ := s.Next(ident.JobID(i))
		draws = append(draws, x)
	}
	return draws, s.Check()
}

// TestStrictCoupling are exact probabilities, computed by hand: marginals uniform, pairs maximally
// coupled.
func TestStrictCoupling(t *testing.T) {
	const runs = 20_000
	for _, tc := range []struct {
		name  string
		sets  [][]ident.ObjectID
		equal map[[2]int]float64 // probability that two jobs draw the same
		all   float64            // that all do
		loads float64            // mean number of distinct draws; at most
	}{
		{"pair", [][]ident.ObjectID{span(1, 5), span(3, 8)}, map[[2]int]float64{{0, 1}: .4}, .4, 1.6},
		{"nested", [][]ident.ObjectID{span(0, 3), span(0, 7)}, map[[2]int]float64{{0, 1}: 3. / 7}, 3. / 7, 2 - 3./7},
		{"three", [][]ident.ObjectID{span(0, 4), objects(0, 1, 2, 4, 5, 6), objects(0, 1, 4, 5, 7, 8, 9, 10)},
			map[[2]int]float64{{1, 2}: .5, {0, 1}: .5}, .25, 2},
		{"triangle", [][]ident.ObjectID{objects(0, 1), objects(1, 2), objects(0, 2)}, nil, 0, 2},
		{"identical", [][]ident.ObjectID{span(0, 9), span(0, 9), span(0, 9), span(0, 9)},
			map[[2]int]float64{{0, 3}: 1, {1, 2}: 1}, 1, 1},
		// cells peeled one by one would need 2
		{"six pairs", [][]ident.ObjectID{objects(0, 1, 2), objects(0, 3, 4), objects(1, 3, 5), objects(2, 4, 5)}, nil, 0,
			2.72},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			n := effort(runs)
			counts := make([][]int, len(tc.sets))
			for i := range counts {
				counts[i] = make([]int, len(tc.sets[i]))
			}
			equal, all, loads := map[[2]int]int{}, 0, 0
			for seed := range n {
				d, err := rounds(uint64(seed), tc.sets...)
				must(t, err)
				for i, x := range d {
					counts[i][slices.Index(tc.sets[i], x)]++
					for k := range i {
						if d[k] == x {
							equal[[2]int{k, i}]++
						}
					}
				}
				distinct := len(slices.Compact(slices.Sorted(slices.Values(d))))
				loads += distinct
				if distinct == 1 {
					all++
				}
			}
			near := func(what string, got int, p float64) {
				if sd := math.Sqrt(p*(1-p)*float64(n)) + 1e-9; math.Abs(float64(got)-p*float64(n)) > 4.5*sd {
					t.Errorf("%s: %d of %d, probability %.4f", what, got, n, p)
				}
			}
			for i := range counts {
				if z := xrandtest.Deviate(counts[i]); z >= 4 {
					t.Errorf("job %d draws %v: z = %.1f", i, counts[i], z)
				}
			}
			for pair, p := range tc.equal { // order-free
				near(fmt.Sprintf("jobs %v draw the same", pair), equal[pair], p)
			}
			near("all draw the same", all, tc.all)
			if mean := float64(loads) / float64(n); mean > tc.loads+4.5/math.Sqrt(float64(n)) {
				t.Errorf("%.3f distinct draws a round, at most %.3f expected", mean, tc.loads)
			}
		})
	}
}

// conditional plays tiny strict jobs and counts every draw of every job under the whole joint history of draws before
// its round. It returns the largest deviate of all (history, job) that occurred often enough, and how many there were.
func conditional(runs int, biased bool) (worst float64, tested int, err error) {
	sets := [][]ident.ObjectID{span(0, 4), span(1, 4), span(2, 5)}
	type key struct {
		history string
		job     int
	}
	counts := map[key]map[ident.ObjectID]int{}
	left := map[key]int{}
	for run := range runs {
		s := New(uint64(run))
		plant(s, planted{biased: biased})
		for i, d := range sets {
			if err := s.Join(ident.JobID(i), strict(d)); err != nil {
				return 0, 0, err
			}
			if err := s.StartEpoch(ident.JobID(i), 0); err != nil {
				return 0, 0, err
			}
		}
		history := ""
		for _, asks := range []int{0, 0, 1, 2, 0, 2, 1, 1, 2, 0} { // unlike progress: queues of unlike length
			before := make([]strictQueue, len(sets))
			for i := range sets {
				before[i] = s.jobs.byID[ident.JobID(i)].queue
			}
			drawn, ok := s.Next(ident.JobID(asks))
			if !ok {
				return 0, 0, fmt.Errorf("job %d has nothing left", asks)
			}
			now := history
			for i := range sets {
				j := s.jobs.byID[ident.JobID(i)]
				if j.queue.nOpen == before[i].nOpen {
					continue
				}
				x := drawn
				if i != asks {
					x = ident.ObjectID(j.queue.drawn[len(j.queue.drawn)-1])
				}
				k := key{history, i}
				if counts[k] == nil {
					counts[k] = map[ident.ObjectID]int{}
					left[k] = before[i].nOpen
				}
				counts[k][x]++
				now += fmt.Sprintf(" %d:%d", i, x)
			}
			history = now + "|"
		}
	}
	for k, c := range counts { // order-free: a maximum
		n, flat := 0, make([]int, 0, left[k])
		for _, m := range c {
			n += m
			flat = append(flat, m)
		}
		if left[k] < 2 || n < 40*left[k] {
			continue
		}
		for len(flat) < left[k] {
			flat = append(flat, 0)
		}
		if len(flat) > left[k] {
			return 0, 0, fmt.Errorf("history %q: job %d draws from %d samples, %v came", k.history, k.job, left[k], c)
		}
		tested++
		worst = max(worst, xrandtest.Deviate(flat))
	}
	return worst, tested, nil
}

// TestStrictIsUniformGivenAllDraws is the promise of Strict: under any joint history of draws, the next draw is
// uniform.
func TestStrictIsUniformGivenAllDraws(t *testing.T) {
	t.Parallel()
	if patched {
		worst, _, err := conditional(effort(20_000), true)
		must(t, err)
		if worst < 4.8 {
			t.Errorf("with a biased coupling the largest z is %.1f: the check is blind to it", worst)
		}
		return
	}
	worst, tested, err := conditional(effort(60_000), false)
	must(t, err)
	t.Logf("%d histories, worst z %.2f", tested, worst)
	if limit := 4.8; worst >= limit || tested < 40 && effort(10) == 10 {
		t.Errorf("%d histories, worst z %.2f, limit %.1f", tested, worst, limit)
	}
}

// TestLargeSetsAreCoupled covers the branch of drawCoupled for sets above maxCoupled: nearly equal sets, and marginals
// by twentieths.
func TestLargeSetsAreCoupled(t *testing.T) {
	const n = maxCoupled + 2000
	counts := make([]int, 20)
	apart := 0
	s := New(4)
	must(t, s.Join(1, strict(span(0, n))))
	must(t, s.Join(2, strict(span(1, n+1))))
	for e := range uint32(effort(100)/10) + 1 {
		must(t, s.StartEpoch(1, e))
		must(t, s.StartEpoch(2, e))
		for range 1500 {
			x, _ := s.Next(1)
			y, _ := s.Next(2)
			counts[int(y-1)*20/n]++
			if x != y {
				apart++
			}
		}
		must(t, s.Check())
	}
	if z := xrandtest.Deviate(counts); z >= 4 {
		t.Errorf("twentieths %v: z = %.1f", counts, z)
	}
	if apart > 200 {
		t.Errorf("%d draws apart", apart)
	}
}

// TestStrictExactLoads are exact numbers, computed by hand, for strict jobs in lock-step without a cache.
func TestStrictExactLoads(t *testing.T) {
	t.Parallel()
	harmonic := func(n int) (h float64) {
		for k := 1; k <= n; k++ {
			h += 1 / float64(k)
		}
		return h
	}
	for _, tc := range []struct {
		name  string
		sets  [][]ident.ObjectID
		late  int // picks the first job has had when the second joins
		loads float64
		exact bool
	}{
		{"twins beside a larger disjoint job", [][]ident.ObjectID{span(0, 10), span(0, 10), span(10, 30)}, 0, 30, true},
		{"equal sizes with two in common", [][]ident.ObjectID{span(0, 5), span(3, 8)}, 0, 8, true},
		{"4 and 6 with 3 in common", [][]ident.ObjectID{span(0, 4), span(1, 7)}, 0, 8.425, false},
		{"late join", [][]ident.ObjectID{span(0, 10), span(0, 10)}, 4, 14 + 4*(harmonic(10)-harmonic(4)), false},
	} {
		runs := effort(10_000)
		if tc.exact {
			runs = 50
		}
		sum, sq := 0.0, 0.0
		for seed := range runs {
			loads, err := lockStep(uint64(seed), tc.late, tc.sets)
			must(t, err)
			if tc.exact && float64(loads) != tc.loads {
				t.Fatalf("%s, seed %d: %d loads, not %.0f", tc.name, seed, loads, tc.loads)
			}
			sum += float64(loads)
			sq += float64(loads * loads)
		}
		mean := sum / float64(runs)
		sd := math.Sqrt((sq/float64(runs) - mean*mean) / float64(runs))
		if math.Abs(mean-tc.loads) > 4.5*sd+1e-9 {
			t.Errorf("%s: %.3f loads, sd %.3f, not %.3f", tc.name, mean, sd, tc.loads)
		}
	}
}

// lockStep has every job take one sample in turn; samples that several take in the same turn are loaded once.
func lockStep(seed uint64, late int, sets [][]ident.ObjectID) (loads int, err error) {
	s := New(seed)
	start := func(i int) {
		if err == nil {
			err = s.Join(ident.JobID(i), strict(sets[i]))
		}
		if err == nil {
			err = s.StartEpoch(ident.JobID(i), 0)
		}
	}
	start(0)
	for turn := 0; ; turn++ {
		if turn == late {
			for i := 1; i < len(sets); i++ {
				start(i)
			}
		}
		var got []ident.ObjectID
		for i := range sets {
			if x, ok := s.Next(ident.JobID(i)); ok {
				got = append(got, x)
			}
		}
		if len(got) == 0 || err != nil {
			return loads, err
		}
		slices.Sort(got)
		loads += len(slices.Compact(got))
	}
}

// TestStrictQueues: queues are bounded, follow the widest window, and are forgotten when what they were drawn from
// changes.
func TestStrictQueues(t *testing.T) {
	s := New(1)
	const n = 3000
	must(t, s.Join(1, strict(span(0, n))))
	must(t, s.Join(2, strict(span(0, n))))
	must(t, s.StartEpoch(1, 0))
	must(t, s.StartEpoch(2, 0))
	queued := func(id ident.JobID) int { return s.jobs.byID[id].queue.queued() }
	for range 2 * minAhead {
		s.Next(1)
	}
	if queued(2) != minAhead || queued(1) != 0 {
		t.Errorf("queues of %d and %d", queued(1), queued(2))
	}
	must(t, s.Join(3, JobSpec{Mode: Strict, Ahead: 700, Subset: span(n/2, n)}))
	for range 700 {
		s.Next(1)
	}
	if queued(2) != 700 {
		t.Errorf("a window of 700, and %d are queued", queued(2))
	}
	must(t, s.Check())
	s.Leave(3)
	must(t, s.Check())
	x, _ := s.Next(2)
	if queued(2) != 699 {
		t.Errorf("%d are queued after a pick", queued(2))
	}
	s.Return(2, []ident.ObjectID{x})
	if queued(2) != 0 || s.Remaining(2) != n || !s.Needs(2, x) {
		t.Errorf("after a return %d are queued, %d remain", queued(2), s.Remaining(2))
	}
	must(t, s.Check())
	s.SetActive(2, false)
	s.Next(1)
	if queued(2) != 0 {
		t.Error("a stalled job was drawn for")
	}
	s.SetActive(2, true)
	s.Next(1)
	y := ident.ObjectID(s.jobs.byID[2].queue.drawn[0])
	if s.Withdraw(2, []ident.ObjectID{y, x}) != 2 || queued(2) != 0 || s.Remaining(2) != n-2 {
		t.Error("withdrawn samples")
	}
	must(t, s.Check())
	for id := range ident.JobID(3) {
		for left := s.Remaining(id); left > 0; left-- {
			z, ok := s.Next(id)
			if !ok || id == 2 && (z == x || z == y) {
				t.Fatalf("job %d picked %d, %v with %d left", id, z, ok, left)
			}
		}
	}
	must(t, s.StartEpoch(2, 1))
	must(t, s.Check())
}

// TestStrictManyJobs: rounds of many jobs on random subsets, exactly once each.
func TestStrictManyJobs(t *testing.T) {
	s := New(5)
	r := xrand.New(6)
	const n = 400
	for id := range ident.JobID(MaxJobs) {
		must(t, s.Join(id, strict(sample(r, n, n/2))))
		must(t, s.StartEpoch(id, 0))
	}
	for left := MaxJobs * n / 2; left > 0; {
		id := ident.JobID(r.IntN(MaxJobs))
		for range 1 + r.IntN(20) {
			if _, ok := s.Next(id); ok {
				left--
			}
		}
		if r.IntN(200) == 0 {
			must(t, s.Check())
		}
	}
	must(t, s.Check())
}
