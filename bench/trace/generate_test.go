package trace

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"larder/internal/errs"
	"larder/internal/xrand"
	"larder/internal/xrand/xrandtest"
)

func TestFamilies(t *testing.T) {
	for _, f := range Families() {
		g := Spec{Family: f, Samples: 120, Jobs: 4, Epochs: 3, Seed: 9}
		a := must[*Trace](t)(Generate(g, 0))
		b := must[*Trace](t)(Generate(g, 0))
		if !Equal(a, b) {
			t.Errorf("%s: two traces of one seed differ", f)
		}
		if err := a.Check(); err != nil {
			t.Errorf("%s: %v", f, err)
		}
		if uint64(a.Pick.Len()) != g.picks() {
			t.Errorf("%s: %d picks, %d were foretold", f, a.Pick.Len(), g.picks())
		}
		if About(f) == "" {
			t.Errorf("%s is not explained", f)
		}
		for k, es := range epochsOf(a) {
			if len(es) != 3 {
				t.Fatalf("%s: job %d has %d epochs", f, k, len(es))
			}
			for e, ids := range es {
				slices.Sort(ids)
				want := a.Members(k)
				switch f {
				case "zipf":
					continue
				case "curriculum":
					if len(ids) != 40*(e+1) || len(slices.Compact(ids)) != len(ids) {
						t.Errorf("curriculum: epoch %d takes %d", e, len(ids))
					}
					if other := slices.Sorted(slices.Values(epochsOf(a)[0][e])); !slices.Equal(ids, other) {
						t.Errorf("curriculum: jobs find other samples easy")
					}
					continue
				}
				if !slices.Equal(ids, want) {
					t.Errorf("%s: job %d takes %v in epoch %d, its subset is %v", f, k, ids, e, want)
				}
			}
		}
		sub := func(k int) []Range { return a.Jobs[k].Subset }
		switch f {
		case "staggered":
			if a.Jobs[2].Arrive != 60*time.Millisecond {
				t.Errorf("staggered by %v", a.Jobs[2].Arrive)
			}
		case "speeds":
			if a.Jobs[3].Step != 4*time.Millisecond {
				t.Errorf("job 3 takes %v", a.Jobs[3].Step)
			}
		case "nested":
			if fmt.Sprint(sub(1), sub(3)) != "[{0 90}] [{0 30}]" {
				t.Errorf("nested %v %v", sub(1), sub(3))
			}
		case "crossed":
			if fmt.Sprint(sub(0), sub(1)) != "[{0 48}] [{24 72}]" {
				t.Errorf("crossed %v %v", sub(0), sub(1))
			}
		case "disjoint":
			if fmt.Sprint(sub(0), sub(3)) != "[{0 30}] [{90 120}]" {
				t.Errorf("disjoint %v %v", sub(0), sub(3))
			}
		}
	}
}

// Orders are uniform, arrivals exponential, popularity Zipf's.
func TestFamiliesHaveTheirLaws(t *testing.T) {
	counts := make([]int, 24)
	for seed := range uint64(6000) {
		a := must[*Trace](t)(Generate(Spec{Family: "aligned", Samples: 4, Jobs: 2, Epochs: 2, Seed: seed}, 0))
		o := epochsOf(a)[1][1]
		rank := 0
		for i := range o {
			less := 0
			for _, y := range o[i+1:] {
				if y < o[i] {
					less++
				}
			}
			rank = rank*(len(o)-i) + less
		}
		counts[rank]++
	}
	if z := xrandtest.Deviate(counts); z > 4.5 {
		t.Errorf("orders of second epochs: z = %.1f, %v", z, counts)
	}
	sum, n, tail := 0.0, 0, 0
	for seed := range uint64(200) {
		a := must[*Trace](t)(Generate(Spec{Family: "poisson", Samples: 100, Jobs: 40, Epochs: 1, Seed: seed}, 0))
		for k := 1; k < 40; k++ {
			gap := float64(a.Jobs[k].Arrive-a.Jobs[k-1].Arrive) / float64(50*time.Millisecond)
			sum += gap
			n++
			if gap > 2 {
				tail++
			}
		}
	}
	if mean := sum / float64(n); math.Abs(mean-1) > 4.5/math.Sqrt(float64(n)) {
		t.Errorf("arrivals are %.4f apart on average, want 1", mean)
	}
	if p, want := float64(tail)/float64(n), math.Exp(-2); math.Abs(p-want) > 4.5*math.Sqrt(want*(1-want)/float64(n)) {
		t.Errorf("%.4f of the gaps exceed 2, want %.4f", p, want)
	}
	z, r, freq := newZipf(100, 1.2), xrand.New(4), make([]int, 100)
	for range 200_000 {
		freq[z.draw(r)]++
	}
	norm, chi := 0.0, 0.0
	for k := range freq {
		norm += math.Pow(float64(k+1), -1.2)
	}
	for k, n := range freq {
		want := 200_000 * math.Pow(float64(k+1), -1.2) / norm
		chi += (float64(n) - want) * (float64(n) - want) / want
	}
	if z := (chi - 99) / math.Sqrt(2*99); math.Abs(z) > 4.5 {
		t.Errorf("popularity: chi-square %.1f of 99 degrees", chi)
	}
	a := must[*Trace](t)(Generate(Spec{Family: "zipf", Samples: 100, Jobs: 2, Epochs: 50, Seed: 4, Skew: 1.2}, 0))
	one, two := make([]int, 100), make([]int, 100)
	for i, x := range a.Pick.Object {
		if a.Pick.Job[i]&JobMask == 0 {
			one[x]++
		} else {
			two[x]++
		}
	}
	if top := slices.Index(one, slices.Max(one)); top == 0 || two[top] != slices.Max(two) {
		t.Errorf("the most popular of job 1 is %d: the jobs must agree, and ids must say nothing", top)
	}
}

func TestSpecsThatCannotBe(t *testing.T) {
	ok := Spec{Family: "aligned", Samples: 10, Jobs: 2, Epochs: 1}
	for _, c := range []struct {
		change func(*Spec)
		reason errs.Reason
		want   string
	}{
		{func(g *Spec) { g.Family = "aligne" }, errs.Invalid, "did you mean aligned"},
		{func(g *Spec) { g.Samples = 0 }, errs.Invalid, "0 samples"},
		{func(g *Spec) { g.Jobs = 65 }, errs.Invalid, "65 jobs"},
		{func(g *Spec) { g.Epochs = -1 }, errs.Invalid, "-1 epochs"},
		{func(g *Spec) { g.Gap = math.NaN() }, errs.Invalid, "NaN epochs"},
		{func(g *Spec) { g.Skew = 11 }, errs.Invalid, "skew"},
		{func(g *Spec) { g.Step = -1 }, errs.Invalid, "step"},
		{func(g *Spec) { g.Bytes = -1 }, errs.Invalid, "bytes"},
		{func(g *Spec) { g.Batch = -1 }, errs.Invalid, "batch"},
		{func(g *Spec) { g.Family, g.Jobs, g.Samples = "disjoint", 20, 20 }, errs.Invalid, "cannot be parted"},
		{func(g *Spec) { g.Samples, g.Epochs, g.Jobs = 1<<26, 1000, 64 }, errs.ResourceExceeded, "picks are asked for"},
		{func(g *Spec) { g.Samples, g.Epochs, g.Jobs = 1<<20, 8, 8 }, errs.ResourceExceeded,
			"67108864 picks needs about 416MiB of memory, the limit is 256MiB"},
	} {
		g := ok
		c.change(&g)
		if _, err := Generate(g, 1<<28); !errs.Is(err, c.reason) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", g, err)
		}
	}
}
