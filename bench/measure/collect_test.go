package measure

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"larder/internal/xrand"
)

func ids(n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(i)
	}
	return out
}

// play runs one job over orders, in batches of b that take a second each and are waited for a tenth.
func play(c *Collector, d Demand, b int, orders ...[]uint32) *Run {
	j := c.Register(0, d)
	at := time.Duration(0)
	for e, order := range orders {
		c.Begin(j, at, uint32(e))
		for part := range slices.Chunk(order, b) {
			at += 100 * time.Millisecond
			c.Batch(j, at, uint32(e), 100*time.Millisecond, part)
			at += time.Second
			c.Step(j, time.Second)
		}
		c.End(j, at, uint32(e), 0, 0)
	}
	c.Leave(j, at)
	r := &Run{}
	c.Finish(r, Capacity{})
	return r
}

// samples are n of them with ten classes in a row, and sizes that differ.
func samples(n int) Samples {
	return Samples{Count: n, Label: func(x uint32) int { return int(x) * 10 / n },
		Size: func(x uint32) int64 { return int64(xrand.Mix(uint64(x)) % 1000) }}
}

func uniform(r *xrand.Rand, n int) []uint32 {
	o := ids(n)
	r.Shuffle(n, func(a, b int) { o[a], o[b] = o[b], o[a] })
	return o
}

// Uniform orders stay within their limits as often as these say, and every kind of bias is beyond them.
func TestQualityTellsRandomFromBiased(t *testing.T) {
	const n, epochs, runs = 400, 5, 400
	r := xrand.New(7)
	over := [3]int{}
	sums := [2]float64{}
	for range runs {
		var orders [][]uint32
		for range epochs {
			orders = append(orders, uniform(r, n))
		}
		q := play(New(samples(n)), Demand{Name: "a", Subset: ids(n), Batch: 16}, 16, orders...).Jobs[0].Quality
		for i, beyond := range []bool{*q.PositionKS > q.PositionKSLimit,
			math.Abs(*q.EpochCorrelation) > q.EpochCorrelationLimit, *q.LabelChi2 > q.LabelChi2Limit} {
			if beyond {
				over[i]++
			}
		}
		sums[0] += *q.LabelChi2
		sums[1] += *q.EpochCorrelation
	}
	for i, k := range over { // 400 runs at one in a thousand: 4 or more in 1 of 1,000 tests
		if k > 4 {
			t.Errorf("figure %d is beyond its limit in %d of %d runs of uniform orders", i, k, runs)
		}
	}
	if mean := sums[0] / runs; math.Abs(mean-1) > 5*math.Sqrt(2./9/25/epochs/runs) {
		t.Errorf("chi-square of labels is %.4f of its expectation", mean)
	}
	if mean := sums[1] / runs; math.Abs(mean) > 5/math.Sqrt((n-1)*(epochs-1)*runs) {
		t.Errorf("the correlation of uniform orders is %.5f", mean)
	}
	bias := func(change func(e int, o []uint32, before []uint32) []uint32) Quality {
		var orders [][]uint32
		var before []uint32
		for e := range epochs {
			before = change(e, uniform(r, n), before)
			orders = append(orders, before)
		}
		return play(New(samples(n)), Demand{Name: "a", Subset: ids(n), Batch: 16}, 16, orders...).Jobs[0].Quality
	}
	if q := bias(func(_ int, o, before []uint32) []uint32 {
		if before != nil {
			o = slices.Clone(before)
			for i := 0; i+1 < n; i += 2 {
				o[i], o[i+1] = o[i+1], o[i]
			}
		}
		return o
	}); *q.EpochCorrelation < q.EpochCorrelationLimit {
		t.Errorf("epochs that resemble each other: %+v", q)
	}
	if q := bias(front(func(x uint32) bool { return x < n/4 })); *q.PositionKS < q.PositionKSLimit ||
		q.PositionGroup != "first quarter by id" {
		t.Errorf("the first ids come early: %+v, %v", q, *q.PositionKS)
	}
	size := samples(n).Size
	if q := bias(front(func(x uint32) bool { return size(x) > 760 })); *q.PositionKS < q.PositionKSLimit ||
		q.PositionGroup != "largest quarter by size" {
		t.Errorf("large ones come early: %+v, %v", q, *q.PositionKS)
	}
	if q := bias(func(_ int, o, _ []uint32) []uint32 { // classes come in runs
		slices.SortStableFunc(o, func(a, b uint32) int { return int(a)*10/n/2 - int(b)*10/n/2 })
		return o
	}); *q.LabelChi2 < q.LabelChi2Limit {
		t.Errorf("batches of two classes: %+v", q)
	}
	sharedHalfFirst(t, r, n)
}

// front is orders in which a third of what is early comes first.
func front(early func(x uint32) bool) func(int, []uint32, []uint32) []uint32 {
	return func(_ int, o, _ []uint32) []uint32 {
		slices.SortStableFunc(o, func(a, b uint32) int {
			rank := func(x uint32) int {
				if early(x) && xrand.Hash(uint64(x), 0)%3 == 0 {
					return 0
				}
				return 1
			}
			return rank(a) - rank(b)
		})
		return o
	}
}

// sharedHalfFirst looks at a job to which comes first what another one wants too, and at one of a prescribed order.
func sharedHalfFirst(t *testing.T, r *xrand.Rand, n int) {
	t.Helper()
	// What another job wants too comes first.
	c := New(samples(n))
	c.Register(0, Demand{Name: "other", Subset: ids(n / 2), Batch: 16})
	o := uniform(r, n)
	slices.SortStableFunc(o, func(a, b uint32) int { return int(a)/(n/2) - int(b)/(n/2) })
	if q := play(c, Demand{Name: "a", Subset: ids(n), Batch: 16}, 16,
		o).Jobs[1].Quality; *q.PositionKS < q.PositionKSLimit || q.EpochCorrelation != nil {
		t.Errorf("the shared half comes first: %+v", q)
	}
	if q := play(New(samples(n)), Demand{Name: "a", Subset: ids(n), Batch: 16, InOrder: true}, 16, ids(n),
		ids(n)).Jobs[0].Quality; q.PositionKS != nil || q.EpochCorrelation != nil || q.LabelChi2 != nil {
		t.Errorf("an order that is not random is judged: %+v", q)
	}
}

// Exactly once is judged from what came: any repetition, gap or foreign sample is seen.
func TestExactlyOnceIsSeen(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(2, 60).Draw(rt, "n")
		subset := ids(n)[:rapid.IntRange(1, n).Draw(rt, "subset")]
		order := rapid.Permutation(subset).Draw(rt, "order")
		b := rapid.IntRange(1, 20).Draw(rt, "batch")
		if r := play(New(samples(n)), Demand{Name: "a", Subset: subset, Batch: b}, b, order, subset); !r.ExactlyOnce ||
			r.Unique != len(subset) || r.Jobs[0].Epochs != 2 {
			rt.Fatalf("%+v", r)
		}
		wrong := slices.Clone(order)
		var lost, repeated, foreign int
		switch rapid.IntRange(0, 2).Draw(rt, "mistake") {
		case 0:
			wrong = wrong[1:]
			lost = 1
		case 1:
			wrong = append(wrong, wrong[rapid.IntRange(0, len(wrong)-1).Draw(rt, "again")])
			repeated = 1
		case 2:
			wrong[rapid.IntRange(0, len(wrong)-1).Draw(rt, "place")] = uint32(n) + 3
			lost, foreign = 1, 1
		}
		if r := play(New(samples(n)), Demand{Name: "a", Subset: subset, Batch: b}, b, order, wrong); r.ExactlyOnce ||
			r.Jobs[0].Exact ||
			r.Jobs[0].Lost != lost || r.Jobs[0].Repeated != repeated || r.Jobs[0].Foreign != foreign {
			rt.Fatalf("%v for an epoch of %v: %+v", wrong, subset, r.Jobs[0])
		}
	})
}

func TestTimesAndBounds(t *testing.T) {
	const n = 64
	c := New(samples(n))
	a := c.Register(0, Demand{Name: "slow", Subset: ids(n), Batch: 8, Buffered: 16, Group: "g"})
	b := c.Register(time.Second, Demand{Name: "b", Subset: ids(n), Batch: 8, Buffered: 16, Group: "g"})
	for _, x := range []struct {
		job  int
		wait time.Duration
	}{{a, 3 * time.Second}, {b, 0}} {
		at := time.Duration(x.job) * time.Second
		for part := range slices.Chunk(ids(n), 8) {
			at += x.wait
			c.Batch(x.job, at, 0, x.wait, part)
			at += time.Second
			c.Step(x.job, time.Second)
		}
		c.End(x.job, at, 0, 0, 0)
		c.Leave(x.job, at)
	}
	r := &Run{Counts: Counts{SourceReads: 2 * n, Decodes: n, Augments: 3 * n}}
	c.Finish(r, Capacity{Reads: 10, Decodes: 5})
	j := r.Jobs[0]
	if r.Makespan != 32 || j.Ended != 32 || j.Throughput != 2 || j.Stepping != 8 || j.Wait.Total != 24 ||
		j.Wait.P50 != 3 || j.Wait.Max != 3 || j.Speed != .25 || j.FirstBatch != 3 || j.FirstEpoch != 29 ||
		r.Jobs[1].Speed != 1 {
		t.Errorf("%v %+v", r.Makespan, j)
	}
	if want := 1.25 * 1.25 / (2 * (1 + .0625)); math.Abs(r.Jain-want) > 1e-12 {
		t.Errorf("Jain %v, want %v", r.Jain, want)
	}
	at := 0
	for i, k := range j.Wait.Histogram {
		if k > 0 {
			at = i
		}
	}
	if math.Exp2(float64(at))*1e-6 < 3 || math.Exp2(float64(at-1))*1e-6 >= 3 || j.Wait.Histogram[at] != 8 {
		t.Errorf("waits of 3 s lie at %d: %v", at, j.Wait.Histogram)
	}
	// When b is done the slow one has had two of its eight batches: 48 samples are to come that all were taken before, of
	// which 32 in rings and 10, or 5 decoded, in memory can be left. A share group augments for its largest member.
	if q := r.LowerBound; q.Reads != n+48-42 || q.Decodes != n+48-37 || q.CacheOnly.Reads != n+48-10 ||
		q.CacheOnly.Decodes != n+48-5 || q.Augments != n || q.Buffers != 32 ||
		r.PerUnique != (Ratios{2, 1, 3}) || r.OverBound != (Ratios{128. / 70, 64. / 75, 3}) {
		t.Errorf("%+v %+v %+v", r.LowerBound, r.PerUnique, r.OverBound)
	}
	if len(j.Over) != 8 || math.Abs(j.Over[0].Throughput-8./3) > 1e-9 || math.Abs(j.Over[7].Throughput-2) > 1e-9 {
		t.Errorf("%+v", j.Over)
	}
	// b came at one second and got its first batch then; times are those of the run, rates begin where the job did.
	if o := r.Jobs[1].Over; len(o) != 7 || o[0].At != 2 || o[0].Throughput != 16 || o[6].At != 8 || o[6].Throughput != 8 ||
		r.Jobs[1].Began != 1 || r.Jobs[1].FirstBatch != 0 {
		t.Errorf("%+v", o)
	}
}

// However long a run, its course is reported in a bounded number of points that add up to what was delivered.
func TestCourseIsBounded(t *testing.T) {
	const n = 5000
	r := play(New(samples(n)), Demand{Name: "a", Subset: ids(n), Batch: 1}, 1, ids(n))
	over := r.Jobs[0].Over
	if len(over) < 60 || len(over) > 120 {
		t.Fatalf("%d points", len(over))
	}
	sum, was := 0.0, 0.0
	for _, p := range over {
		if p.At <= was {
			t.Fatalf("time goes back at %v", p.At)
		}
		sum += p.Throughput * (p.At - was)
		was = p.At
	}
	if sum < .97*n || sum > n+.5 {
		t.Errorf("the points add up to %v samples of %d", sum, n)
	}
}
