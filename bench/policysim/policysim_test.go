package policysim

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"larder/bench/trace"
	"larder/cachepolicy"
	"larder/cachepolicy/policytest"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/testenv"
	"larder/internal/xrand"
)

func generate(t testing.TB, g trace.Spec) *trace.Trace {
	t.Helper()
	a, err := trace.Generate(g, 0)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func replay(t testing.TB, a *trace.Trace, c Config) *Report {
	t.Helper()
	r, err := Run(a, c, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// asTest is the same trace for cachepolicy's own driver, which keeps its entries in another way.
func asTest(a *trace.Trace) *policytest.Trace {
	out := &policytest.Trace{Samples: a.Objects}
	need := make([]uint16, a.Objects)
	epoch, left := -1, 0
	for i, x := range a.Pick.Object {
		j := a.Pick.Job[i]
		if left == 0 {
			epoch++
			left = a.Objects * len(a.Jobs)
			for y := range need {
				need[y] = uint16(len(a.Jobs))
			}
		}
		left--
		need[x]--
		out.Requests = append(out.Requests, policytest.Request{Object: ident.ObjectID(x), Job: j & trace.JobMask,
			Epoch: uint16(epoch), Need: need[x]})
	}
	return out
}

// Policies that do not draw hit exactly what the other driver says.
func TestAgainstTheOtherDriver(t *testing.T) {
	a := generate(t, trace.Spec{Family: "aligned", Samples: 700, Jobs: 3, Epochs: 4, Seed: 2})
	pt := asTest(a)
	names := []string{"minio", "minio-partitioned", "lru", "fifo", "w-tinylfu", "s3-fifo", "sieve", "belady"}
	caches := []int64{0, 1, 70, 245, 455, 700, 900}
	r := replay(t, a, Config{Policies: names, Caches: caches, Warm: 1, Workers: 3})
	for _, cap := range caches {
		for _, p := range names {
			given := cachepolicy.Given{}
			var future policytest.Future
			if p == "belady" {
				future = pt.Whole()
				given.Future = future
			}
			e, err := cachepolicy.NewGiven(p, xrand.New(1), given)
			if err != nil {
				t.Fatal(err)
			}
			hits := policytest.Run(pt, int(cap), e, future, false)
			sum := hits[1] + hits[2] + hits[3]
			if got := r.Find(p, cap); got.Hits != sum {
				t.Errorf("%s, %d entries: %d hits, the other driver has %d", p, cap, got.Hits, sum)
			}
		}
	}
}

// naive is a cache written to be read: a list, oldest first, and a rule. It knows no handles, no Evictor, no blocks.
func naive(a *trace.Trace, policy string, capacity int64) (misses int) {
	var list []uint32
	used := int64(0)
	for i, x := range a.Pick.Object {
		if k := slices.Index(list, x); k >= 0 {
			if policy == "lru" {
				list = append(slices.Delete(list, k, k+1), x)
			}
			continue
		}
		misses++
		size := a.Size(x)
		if size > capacity {
			continue
		}
		next := func(y uint32) int {
			if k := slices.Index(a.Pick.Object[i+1:], y); k >= 0 {
				return k
			}
			return math.MaxInt
		}
		kept, room := slices.Clone(list), capacity-used
		refused := false
		for room < size && !refused {
			switch policy {
			case "minio":
				refused = true
			case "belady":
				far := 0
				for k := range kept {
					if next(kept[k]) > next(kept[far]) {
						far = k
					}
				}
				// The policy prefers the newcomer when the furthest is never asked for again.
				if next(kept[far]) != math.MaxInt && next(x) >= next(kept[far]) {
					refused = true
					break
				}
				room += a.Size(kept[far])
				kept = slices.Delete(kept, far, far+1)
			default:
				room += a.Size(kept[0])
				kept = kept[1:]
			}
		}
		if !refused {
			list = append(kept, x)
			used = capacity - room + size
		}
	}
	return misses
}

// On any small trace, with sizes, epochs left half way and repeats, LRU, FIFO, MinIO and Belady load what an
// independent cache loads.
func TestAgainstBruteForce(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		a := &trace.Trace{Objects: rapid.IntRange(1, 12).Draw(rt, "objects"),
			Jobs: make([]trace.Job, rapid.IntRange(1, 3).Draw(rt, "jobs"))}
		if rapid.Bool().Draw(rt, "sized") {
			a.Sizes = rapid.SliceOfN(rapid.Uint32Range(1, 5), a.Objects, a.Objects).Draw(rt, "sizes")
		}
		begun := make([]bool, len(a.Jobs))
		for range rapid.IntRange(1, 80).Draw(rt, "n") {
			j := rapid.IntRange(0, len(a.Jobs)-1).Draw(rt, "job")
			a.Pick.Add(j, rapid.Uint32Range(0, uint32(a.Objects-1)).Draw(rt, "x"), !begun[j] ||
				rapid.IntRange(0, 15).Draw(rt, "begins") == 0)
			begun[j] = true
		}
		cap := rapid.Int64Range(0, 20).Draw(rt, "capacity")
		r, err := Run(a, Config{Policies: cachepolicy.Names(), Caches: []int64{cap}, Workers: rapid.IntRange(1, 4).Draw(rt,
			"workers")}, nil)
		if err != nil {
			rt.Fatal(err)
		}
		for _, p := range []string{"lru", "fifo", "minio", "belady"} {
			if p == "belady" && a.Sizes != nil {
				continue // with sizes it is no optimum, and ties among the furthest decide
			}
			if got, want := r.Find(p, cap).Loads, naive(a, p, cap); got != want {
				rt.Fatalf("%s: %d loads, brute force has %d", p, got, want)
			}
		}
		unbounded, low := r.Find(Unbounded, cap), r.Find(LowerBound, cap)
		if a.Sizes == nil && math.Abs(low.ByteMiss-low.MissRatio) > 1e-12 {
			rt.Fatalf("of samples of one byte %v of the bytes and %v of the requests are missed at least", low.ByteMiss,
				low.MissRatio)
		}
		for _, row := range r.Rows {
			if row.Policy == LowerBound {
				continue
			}
			if row.Loads < unbounded.Loads || row.Loads > r.Requests || row.Loads < row.Bound ||
				row.Hits != r.Counted-row.Loads || row.Policy != Unbounded && row.ByteMiss < low.ByteMiss-1e-12 {
				rt.Fatalf("%s: %+v of %d requests", row.Policy, row, r.Requests)
			}
			if a.Sizes == nil && row.Policy != Unbounded && row.Loads < r.Find("belady", cap).Loads {
				rt.Fatalf("%s loads %d, less than Belady's %d", row.Policy, row.Loads, r.Find("belady", cap).Loads)
			}
		}
	})
}

// One seed, one result, whatever the number of workers, the policies beside it and the length of blocks.
func TestWorkersDoNotMatter(t *testing.T) {
	a := generate(t, trace.Spec{Family: "staggered", Samples: 3000, Jobs: 4, Epochs: 3, Seed: 2, Bytes: 1000})
	one := replay(t, a, Config{Caches: []int64{300_000, 900_000}, Workers: 1, Seed: 4})
	four := replay(t, a, Config{Caches: []int64{300_000, 900_000}, Workers: 4, Seed: 4})
	if fmt.Sprintf("%+v", one) != fmt.Sprintf("%+v", four) {
		t.Error("one worker and four disagree")
	}
	alone := replay(t, a, Config{Policies: []string{"random"}, Caches: []int64{300_000}, Seed: 4})
	if got, want := alone.Find("random", 300_000).Hits, one.Find("random", 300_000).Hits; got != want {
		t.Errorf("random alone hits %d times, beside others %d times", got, want)
	}
}

// What is spared to policies that ask for no needs changes nothing.
func TestNeedBlind(t *testing.T) {
	for _, f := range []string{"crossed", "zipf"} {
		a := generate(t, trace.Spec{Family: f, Samples: 900, Jobs: 4, Epochs: 3, Seed: 2, Bytes: 50})
		c := Config{Policies: needBlind, Caches: []int64{4000, 15_000}, Seed: 3}
		spared := replay(t, a, c)
		c.tellNeeds = true
		if full := replay(t, a, c); fmt.Sprintf("%+v", spared) != fmt.Sprintf("%+v", full) {
			t.Errorf("%s: updated\n%+v\nspared\n%+v", f, full.Rows, spared.Rows)
		}
	}
}

// The table of hit ratios: never evict and Belady as published measurements have them, LRU by its closed form.
func TestHitTable(t *testing.T) {
	n := 20_000
	shares := []float64{.10, .35, .65}
	for _, c := range []struct {
		jobs   int
		policy string
		want   []float64
	}{
		{1, "lru", []float64{.0052, .0700, .2826}}, {1, "minio", []float64{.100, .350, .650}}, {1, "belady",
			[]float64{.100, .350, .650}}, {1, "need", []float64{.100, .350, .650}},
		{4, "lru", []float64{.076, .280, .558}}, {4, "minio", []float64{.100, .350, .650}}, {4, "belady",
			[]float64{.369, .660, .856}},
	} {
		a := generate(t, trace.Spec{Family: "aligned", Samples: n, Jobs: c.jobs, Epochs: 6, Seed: 11})
		var caches []int64
		for _, s := range shares {
			caches = append(caches, int64(s*float64(n)))
		}
		r := replay(t, a, Config{Policies: []string{c.policy}, Caches: caches, Warm: 2})
		for i, cap := range caches {
			// The hits of an epoch vary less than binomially; the published figures are rounded to three digits.
			tol := .0005 + 4.5*math.Sqrt(c.want[i]*(1-c.want[i])/float64(r.Counted))
			if got := r.Find(c.policy, cap).HitRatio; math.Abs(got-c.want[i]) > tol {
				t.Errorf("%d jobs, %s, %.0f %%: %.4f, want %.4f ± %.4f", c.jobs, c.policy, 100*shares[i], got, c.want[i], tol)
			}
		}
	}
}

// LRU hits c + (1-c)ln(1-c) of one job's shuffled epochs, MinIO c, and no cache none: within 2 %.
func TestClosedForms(t *testing.T) {
	n := 30_000
	a := generate(t, trace.Spec{Family: "aligned", Samples: n, Jobs: 1, Epochs: 6, Seed: 3})
	var caches []int64
	for c := 10; c <= 90; c += 10 {
		caches = append(caches, int64(n*c/100))
	}
	r := replay(t, a, Config{Policies: []string{"lru", "minio"}, Caches: caches, Warm: 2})
	for _, cap := range caches {
		c := float64(cap) / float64(n)
		lru := c + (1-c)*math.Log(1-c)
		if got := r.Find("lru", cap).HitRatio; math.Abs(got-lru) > .02*lru+4.5*math.Sqrt(lru/float64(r.Counted)) {
			t.Errorf("lru at %.1f: %.4f, want %.4f", c, got, lru)
		}
		if got := r.Find("minio", cap).HitRatio; math.Abs(got-c) > 1e-9 {
			t.Errorf("minio at %.1f: %.6f", c, got)
		}
		if x := r.Find(LowerBound, cap); x.Loads != 6*n-5*int(cap) {
			t.Errorf("bound at %.1f: %d", c, x.Loads)
		}
		if r.Find(Independent, cap).Loads != 6*n || r.Find(Unbounded, cap).Loads != n {
			t.Error("no cache or an unlimited one")
		}
	}
}

// Every family runs under every policy; none loads less than the bound.
func TestEveryFamily(t *testing.T) {
	for _, f := range trace.Families() {
		a := generate(t, trace.Spec{Family: f, Samples: 400, Jobs: 3, Epochs: 3, Seed: 5})
		r := replay(t, a, Config{Caches: []int64{40, 200}})
		if len(r.Rows) != 2*(len(cachepolicy.Names())+3) || r.Repeats != (f == "zipf") {
			t.Errorf("%s: %d rows, repeats: %v", f, len(r.Rows), r.Repeats)
		}
		for _, row := range r.Rows {
			if row.Loads < row.Bound && row.Policy != Unbounded {
				t.Errorf("%s: %s at %d loads %d, the bound is %d", f, row.Policy, row.Cache, row.Loads, row.Bound)
			}
			if row.Jain < 0 || row.Jain > 1+1e-9 || row.OverBound != row.OverBound {
				t.Errorf("%s: %+v", f, row)
			}
		}
		if f == "zipf" && r.Find("w-tinylfu", 40).HitRatio <= r.Find("fifo", 40).HitRatio {
			t.Error("zipf: w-tinylfu should beat fifo where requests repeat")
		}
	}
}

func TestWhatCannotRun(t *testing.T) {
	a := generate(t, trace.Spec{Family: "aligned", Samples: 100, Jobs: 1, Epochs: 1})
	empty := *a
	empty.Pick = trace.Picks{}
	for _, c := range []struct {
		t      *trace.Trace
		c      Config
		reason errs.Reason
		want   string
	}{
		{a, Config{Policies: []string{"lur"}, Caches: []int64{1}}, errs.Invalid, "did you mean lru?"},
		{a, Config{Policies: []string{"clairvoyant-x"}, Caches: []int64{1}}, errs.Invalid, "unknown cache policy"},
		{a, Config{Policies: []string{"lru"}}, errs.Invalid, "0 capacities"},
		{a, Config{Caches: []int64{-1}}, errs.Invalid, "a cache of -1"},
		{a, Config{Caches: []int64{1}, Warm: -1}, errs.Invalid, "-1 epochs"},
		{&empty, Config{Caches: []int64{1}}, errs.Invalid, "has no requests"},
		{a, Config{Caches: []int64{50}, MaxMemory: 1000}, errs.ResourceExceeded, "the limit is 1000B"},
	} {
		if _, err := Run(c.t, c.c, nil); !errs.Is(err, c.reason) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c.c, err)
		}
	}
	stop := errors.New("enough")
	if _, err := Run(a, Config{Caches: []int64{1}}, func() error { return stop }); !errors.Is(err, stop) {
		t.Errorf("stopped: %v", err)
	}
}

// What larder bench policy costs: requests of one policy in a second of processor time, on a trace in memory.
func BenchmarkReplay(b *testing.B) {
	processor := func() float64 {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
	}
	for _, n := range []int{100_000, 1_281_167} {
		a := generate(b, trace.Spec{Family: "aligned", Samples: n, Jobs: 8, Epochs: 2, Seed: 1})
		for _, p := range []string{"lru", "fifo", "minio", "s3-fifo", "sieve", "w-tinylfu", "need", "belady"} {
			b.Run(fmt.Sprintf("%s/%d", p, n), func(b *testing.B) {
				began := processor()
				for b.Loop() {
					r := &run{t: a, c: &Config{Policies: []string{p}, Caches: []int64{int64(n / 5)}, Workers: 1}}
					r.bytes, r.unique, r.perJob = int64(n), n, make([]int, 8)
					if err := r.lanes(); err != nil {
						b.Fatal(err)
					}
					if err := r.replay(nil); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(b.N)*float64(a.Pick.Len())/(processor()-began)/1e6, "Mreq/cpu-s")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// tinylfu is ristretto itself: its figures differ from run to run, so they are held to what no policy exceeds and what
// its own table says; it ends its goroutines, and does not stand among those that are run when none is named.
func TestTinyLFU(t *testing.T) {
	before := runtime.NumGoroutine()
	for _, bytes := range []int{0, 50} {
		a := generate(t, trace.Spec{Family: "crossed", Samples: 2000, Jobs: 1, Epochs: 6, Seed: 2, Bytes: bytes})
		_, unique := a.Bytes()
		caches := []int64{int64(unique) * 35 / 100}
		if bytes > 0 {
			all, _ := a.Bytes()
			caches = []int64{all * 35 / 100}
		}
		r := replay(t, a, Config{Policies: []string{"tinylfu", "minio", "belady"}, Caches: caches, Warm: 2, Seed: 3})
		x := r.Find("tinylfu", caches[0])
		if x == nil || x.Breaks == "" || x.Bounding {
			t.Fatalf("%+v", x)
		}
		if x.HitRatio < .05 || x.HitRatio > r.Find("belady", caches[0]).HitRatio+.02 || x.Loads < r.Unique ||
			x.Loads+x.Hits > r.Requests || x.Admitted-x.Evicted > r.Unique {
			t.Errorf("bytes %d: %+v", bytes, x)
		}
	}
	testenv.Eventually(t, fmt.Sprintf("its goroutines end: %d are left", before),
		func() bool { return runtime.NumGoroutine() <= before })
	if r := replay(t, generate(t, trace.Spec{Family: "crossed", Samples: 100, Jobs: 1, Epochs: 2, Seed: 2}),
		Config{Caches: []int64{10}}); r.Find("tinylfu", 10) != nil {
		t.Error("the same input would not give the same figures")
	}
}
