package partition

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"larder/internal/xrand"
)

// randomDemand draws a demand in which every resource can be the scarce one.
func randomDemand(r *xrand.Rand, datasets, recipes int) Demand {
	d := Demand{Machine: Machine{Nodes: 1 + r.IntN(3), Cache: r.LogUniform(1e7, 1e11), NIC: math.Inf(1), PCIe: math.Inf(1),
		Storage:    r.LogUniform(1e6, 1e9),
		MissesFill: r.IntN(4) == 0}}
	if r.IntN(3) == 0 {
		d.Machine.NIC, d.Machine.PCIe = r.LogUniform(1e7, 1e10), r.LogUniform(1e8, 1e11)
	}
	total := 0.0
	for i := range datasets {
		s := Dataset{Name: fmt.Sprint("d", i), Samples: int64(r.LogUniform(1000, 1e6)), Stored: r.LogUniform(1e3, 1e6)}
		s.Encoded = s.Stored * r.Uniform(.9, 1.2)
		for j := range recipes {
			c := Recipe{Name: fmt.Sprint("r", j), Decoded: s.Stored * r.Uniform(.5, 8), Augmented: s.Stored * r.Uniform(.3, 6),
				Sharers: 1, Degree: r.Uniform(1, 4)}
			if r.IntN(2) == 0 {
				c.Prefix = "p"
			}
			if x := math.Mod(c.Decoded, 1); x < .5 { // no draw of its own: recorded figures are of these demands
				c.DecodeDegree = 1 + 2*x*(c.Degree-1)
			}
			c.DecodeAugment = r.LogUniform(50, 2e4)
			c.Augment = c.DecodeAugment * r.Uniform(1.05, 10)
			c.Finish = c.Augment * r.LogUniform(1, 100)
			if r.IntN(3) == 0 {
				c.Finish = math.Inf(1)
			}
			if r.IntN(2) == 0 {
				c.Samples = s.Samples/4 + int64(r.Uint64n(uint64(s.Samples)/2))
			}
			for range 1 + r.IntN(4) {
				x := Job{Ingest: math.Inf(1)}
				if r.IntN(2) == 0 {
					x.Ingest = r.LogUniform(20, 2e4)
				}
				c.Jobs = append(c.Jobs, x)
			}
			if r.IntN(2) == 0 {
				c.Sharers = len(c.Jobs)
				c.AugmentDegree = 1 + math.Mod(c.Augmented, 1)*float64(c.Sharers-1)
			}
			s.Recipes = append(s.Recipes, c)
		}
		total += float64(s.Samples) * s.Stored
		d.Datasets = append(d.Datasets, s)
	}
	d.Budget = int64(total * r.LogUniform(.01, 20))
	return d
}

// corners enumerates every point where three of the five planes (memory, samples, n_f = 0) meet: brute force without
// the theory of vertex.
func corners(samples, memory float64, z, gain [3]float64) float64 {
	planes := [5][4]float64{{z[0], z[1], z[2], memory}, {1, 1, 1, samples}, {1, 0, 0, 0}, {0, 1, 0, 0}, {0, 0, 1, 0}}
	best := 0.0
	for a := range planes {
		for b := a + 1; b < 5; b++ {
			for c := b + 1; c < 5; c++ {
				m := [3][4]float64{planes[a], planes[b], planes[c]}
				det := func(cols [3]int) float64 {
					g := func(i, j int) float64 { return m[i][cols[j]] }
					return g(0, 0)*(g(1, 1)*g(2, 2)-g(1, 2)*g(2, 1)) - g(0, 1)*(g(1, 0)*g(2, 2)-g(1, 2)*g(2, 0)) + g(0,
						2)*(g(1, 0)*g(2, 1)-g(1, 1)*g(2, 0))
				}
				d := det([3]int{0, 1, 2})
				if math.Abs(d) < 1e-9 {
					continue
				}
				n := [3]float64{det([3]int{3, 1, 2}) / d, det([3]int{0, 3, 2}) / d, det([3]int{0, 1, 3}) / d}
				sum, bytes, v := 0.0, 0.0, 0.0
				ok := true
				for f := range n {
					ok = ok && n[f] >= -1e-6*samples
					sum += n[f]
					bytes += z[f] * n[f]
					v += gain[f] * n[f]
				}
				if ok && sum <= samples*(1+1e-9) && bytes <= memory*(1+1e-9) {
					best = max(best, v)
				}
			}
		}
	}
	return best
}

// TestVertexIsExact: the vertex solver against brute force over corners and over a grid of shares, and its structure,
// on 10,000 random inputs.
func TestVertexIsExact(t *testing.T) {
	r := xrand.New(4, 1)
	twoForms, partial := 0, 0
	for range 10_000 {
		samples := math.Ceil(r.LogUniform(1, 1e7))
		z := [3]float64{r.LogUniform(1e3, 1e6), 0, 0}
		memory := samples * z[0] * r.LogUniform(.05, 10)
		z[1] = z[0] * r.Uniform(.5, 8)
		z[2] = z[0] * r.Uniform(.5, 8)
		if r.IntN(3) == 0 {
			z[2] = z[1] // as published
		}
		gain := [3]float64{r.Uniform(0, 5000), r.Uniform(-2000, 9000), r.Uniform(-2000, 9000)}
		n := vertex(samples, memory, z, gain)
		value, sum, bytes, forms := 0.0, 0.0, 0.0, 0
		for f := range n {
			value += gain[f] * n[f]
			sum += n[f]
			bytes += z[f] * n[f]
			if n[f] < 0 {
				t.Fatalf("count %v", n)
			}
			if n[f] > 0 {
				forms++
			}
		}
		if sum > samples*(1+1e-9) || bytes > memory*(1+1e-9) {
			t.Fatalf("%v breaks a constraint: %g of %g samples, %g of %g bytes", n, sum, samples, bytes, memory)
		}
		if forms > 2 || forms == 2 && math.Abs(sum/samples-1) > 1e-9 {
			t.Fatalf("%d forms with %g of %g samples", forms, sum, samples)
		}
		if forms == 2 {
			twoForms++
		} else if sum < samples {
			partial++
		}
		if want := corners(samples, memory, z, gain); math.Abs(value-want) > 1e-6*max(want, 1) {
			t.Fatalf("value %g, brute force %g", value, want)
		}
		for e := 0; e <= 20; e++ { // the order of Eq. 2, 4, 6 fills what a grid point allows
			for d := 0; d <= 20-e; d++ {
				a := min(samples, float64(20-e-d)/20*memory/z[2])
				dd := min(samples-a, float64(d)/20*memory/z[1])
				ee := min(samples-a-dd, float64(e)/20*memory/z[0])
				if g := a*gain[2] + dd*gain[1] + ee*gain[0]; g > value+1e-6*max(value, 1) {
					t.Fatalf("grid point %d-%d-%d gives %g, more than the optimum %g", e, d, 20-e-d, g, value)
				}
			}
		}
	}
	if twoForms < 500 || partial < 500 {
		t.Errorf("%d mixed and %d partial optima of 10,000: the draw tests too little", twoForms, partial)
	}
}

// TestProgramEqualsVertex: the linear program and the vertices give Eq. 9 the same value.
func TestProgramEqualsVertex(t *testing.T) {
	r := xrand.New(4, 2)
	for i := range 2000 {
		d := randomDemand(r, 1, 1)
		pr := newProblem(&d)
		a, b := pr.averaged(pr.vertexLayout()).total, pr.averaged(pr.eq9Layout()).total
		if math.Abs(a/b-1) > 1e-9 {
			t.Fatalf("%d: vertices %g, program %g\n%+v", i, a, b, d)
		}
	}
}

// lawOnGrid is the best of the law over a grid of shares, one recipe.
func lawOnGrid(pr *problem, steps int) (best float64) {
	for e := 0; e <= steps; e++ {
		for d := 0; d <= steps-e; d++ {
			b := float64(pr.d.Budget) / float64(steps)
			s := Split{int64(float64(e) * b), int64(float64(d) * b), int64(float64(steps-e-d) * b)}
			best = max(best, pr.evaluate(pr.spread(s, true)).total)
		}
	}
	return best
}

// TestLawIsExact: for one recipe no point of a grid of 2 % beats the program, and the program's value is near the
// grid's.
func TestLawIsExact(t *testing.T) {
	r := xrand.New(4, 3)
	for i := range 400 {
		d := randomDemand(r, 1, 1)
		if i%2 == 1 {
			d.Machine.Waiting = r.Float64()
		}
		p, err := bottleneck{}.Solve(d)
		if err != nil {
			t.Fatal(err)
		}
		grid := lawOnGrid(newProblem(&d), 50)
		worth := 1e-6
		if d.Machine.Waiting > 0 {
			worth = roomWorth
		}
		if p.Rate < grid*(1-worth) {
			t.Fatalf("%d: chosen %g, grid %g\n%+v\n%+v", i, p.Rate, grid, p, d)
		}
		if c, err := (bottleneck{}).Predict(d, p.Split); err != nil || math.Abs(c.Rate/p.Rate-1) > 1e-3 {
			t.Fatalf("%d: planned %g, predicted for the same split %g, %v", i, p.Rate, c.Rate, err)
		}
	}
}

// TestLawOfTwoDatasets compares the search with a grid over everything that two datasets can be given, fair points
// only.
func TestLawOfTwoDatasets(t *testing.T) {
	const steps = 8
	r := xrand.New(4, 4)
	sum, worst, cases := 0.0, 1.0, 100
	for range cases {
		d := randomDemand(r, 2, 1)
		p, err := bottleneck{}.Solve(d)
		if err != nil {
			t.Fatal(err)
		}
		pr := newProblem(&d)
		fair := pr.evaluate(pr.even())
		best := 0.0
		var walk func(k, left int, l layout)
		walk = func(k, left int, l layout) {
			if k == 6 {
				if o := pr.evaluate(l); o.total > best && o.fits(fair.levels, 1) {
					best = o.total
				}
				return
			}
			for n := 0; n <= left; n++ {
				x := float64(n) / steps * float64(d.Budget)
				switch k {
				case 0, 1:
					l.enc[k] = x
				case 2, 3:
					l.dec[k-2] = x
				default:
					l.aug[k-4] = x
				}
				walk(k+1, left-n, l)
			}
		}
		walk(0, steps, pr.empty())
		ratio := min(p.Rate/best, 1)
		sum += ratio
		worst = min(worst, ratio)
	}
	t.Logf("rate against the grid's best: mean %.4f, worst %.4f", sum/float64(cases), worst)
	if sum/float64(cases) < .99 || worst < .75 {
		t.Errorf("the search misses too much: mean %.4f, worst %.4f", sum/float64(cases), worst)
	}
}

// TestPlanProperties: what holds for every plan of every model.
func TestPlanProperties(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := xrand.New(rapid.Uint64().Draw(rt, "seed"))
		d := randomDemand(r, 1+r.IntN(4), 1+r.IntN(3))
		if r.IntN(2) == 0 {
			f := Free
			f.Encoded = int64(r.Uint64n(uint64(d.Budget)/2 + 1))
			if r.IntN(2) == 0 {
				f.Augmented = int64(r.Uint64n(uint64(d.Budget)/2 + 1))
			}
			d.Fixed = &f
		}
		for _, model := range Models() {
			m, err := New(model)
			if err != nil {
				rt.Fatal(err)
			}
			p, err := m.Solve(d)
			if err != nil {
				rt.Fatal(err)
			}
			again, _ := m.Solve(d)
			if !reflect.DeepEqual(p, again) {
				rt.Fatal("equal demands, unequal plans")
			}
			if s := p.Split; s.Encoded < 0 || s.Decoded < 0 || s.Augmented < 0 || s.Total() > d.Budget {
				rt.Fatalf("%s: %+v of %d", model, s, d.Budget)
			}
			for _, n := range [...]int64{p.Split.Encoded, p.Split.Decoded, p.Split.Augmented} {
				if d.Fixed == nil && d.Budget > 1<<20 && n > 0 && n < 16 {
					rt.Fatalf("%s: what rounding left became a tier: %+v", model, p.Split)
				}
			}
			if left := d.Budget - p.Split.Total(); d.Fixed == nil && left > 0 && model == Seneca {
				rt.Fatalf("%s leaves %d unused", model, left)
			}
			if d.Fixed != nil && (p.Split.Encoded != d.Fixed.Encoded ||
				d.Fixed.Augmented >= 0 && p.Split.Augmented != d.Fixed.Augmented) {
				rt.Fatalf("%s: %+v moved fixed %+v", model, p.Split, *d.Fixed)
			}
			var sum Split
			for i, ds := range p.Datasets {
				s := ds.Split()
				sum.Encoded += s.Encoded
				sum.Decoded += s.Decoded
				sum.Augmented += s.Augmented
				for j, rc := range ds.Recipes {
					if all := rc.Mix.Stored + rc.Mix.Encoded + rc.Mix.Decoded + rc.Mix.Augmented; math.Abs(all-1) > 1e-9 {
						rt.Fatalf("the mix of %s/%s sums to %v", ds.Name, rc.Name, all)
					}
					if d.Datasets[i].Recipes[j].Sharers < 2 && rc.Augmented > 0 {
						rt.Fatalf("%s: a job that shares with no other got %d bytes of augmented", model, rc.Augmented)
					}
				}
			}
			if sum.Encoded > p.Split.Encoded || sum.Decoded > p.Split.Decoded || sum.Augmented > p.Split.Augmented {
				rt.Fatalf("%s: datasets have %+v, the tiers %+v", model, sum, p.Split)
			}
			if !(p.Rate > 0) || math.IsInf(p.Rate, 0) || p.Binding >= NumResources || !strings.Contains(p.Why, model) {
				rt.Fatalf("%s: rate %v, binding %v, why %q", model, p.Rate, p.Binding, p.Why)
			}
		}
		p, _ := bottleneck{}.Solve(d)
		for _, ds := range p.Datasets {
			for _, rc := range ds.Recipes {
				if rc.Rate < rc.FairShare*(1-1e-6) {
					rt.Fatalf("%s/%s gets %g, its fair share is %g", ds.Name, rc.Name, rc.Rate, rc.FairShare)
				}
			}
		}
		for k, u := range p.Load[:Training] {
			if u > 1+1e-6 {
				rt.Fatalf("%v is used %v times", Resource(k), u)
			}
		}
	})
}

// TestModelProperties: monotone in memory, invariant to scale, the harmonic bound, and what augmented is worth.
func TestModelProperties(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := xrand.New(rapid.Uint64().Draw(rt, "seed"))
		d := randomDemand(r, 1, 1)
		pr := newProblem(&d)
		plan := func(model string, d Demand) Plan {
			m, _ := New(model)
			p, err := m.Solve(d)
			if err != nil {
				rt.Fatal(err)
			}
			return p
		}
		for _, model := range Models() {
			p := plan(model, d)
			more := d
			more.Budget += int64(r.Uint64n(uint64(d.Budget) + 1))
			if q := plan(model, more); q.Rate < p.Rate*(1-1e-9) {
				rt.Fatalf("%s: more memory gives %g instead of %g", model, q.Rate, p.Rate)
			}
			scaled := d
			k := float64(int64(1) << (1 + r.IntN(8))) // bytes of everything times k
			scaled.Budget = int64(float64(d.Budget) * k)
			scaled.Machine.Cache *= k
			scaled.Machine.NIC *= k
			scaled.Machine.PCIe *= k
			scaled.Machine.Storage *= k
			s := d.Datasets[0]
			s.Stored *= k
			s.Encoded *= k
			s.Recipes = []Recipe{s.Recipes[0]}
			s.Recipes[0].Decoded *= k
			s.Recipes[0].Augmented *= k
			scaled.Datasets = []Dataset{s}
			q := plan(model, scaled)
			if math.Abs(q.Rate/p.Rate-1) > 1e-3 {
				rt.Fatalf("%s: bytes times %g give %g instead of %g", model, k, q.Rate, p.Rate)
			}
		}
		// The law is at least the harmonic mean of the rates of the single forms: the busiest resource of a mix is no
		// busier than the forms' own busiest ones together. Degree and the jobs' limits touch both sides alike.
		split := Split{int64(r.Uint64n(uint64(d.Budget) + 1)), int64(r.Uint64n(uint64(d.Budget) + 1)),
			int64(r.Uint64n(uint64(d.Budget) + 1))}
		o := pr.evaluate(pr.spread(split, true))
		sum, ingest := 0.0, 0.0
		for f, p := range o.mixes[0] {
			most := 0.0
			for _, x := range pr.items[0].need[f] {
				most = max(most, x)
			}
			sum += p * most
		}
		_, kept := pr.mix(0, pr.spread(split, true))
		for f, part := range kept { // forms of their own: augmented, its source in memory
			most, rest := 0.0, 0.0
			for k, x := range pr.items[0].need[fAugmented] {
				most, rest = max(most, x+pr.items[0].refill[f][k]), max(rest, x)
			}
			sum += part * (most - rest)
		}
		for _, x := range pr.items[0].ingest {
			ingest += x
		}
		if harmonic := min(1/sum, ingest); o.total < harmonic*(1-1e-9) {
			rt.Fatalf("the law gives %g, below the harmonic mean %g", o.total, harmonic)
		}
		// With one use per instance, augmented memory is worth nothing: the same as none.
		lone := d
		lone.Datasets = []Dataset{d.Datasets[0]}
		lone.Datasets[0].Recipes = []Recipe{d.Datasets[0].Recipes[0]}
		lone.Datasets[0].Recipes[0].Sharers = 1
		lone.Datasets[0].Recipes[0].Degree = 1
		lw := newProblem(&lone)
		without := lw.evaluate(lw.spread(Split{split.Encoded, split.Decoded, 0}, true)).total
		if with := lw.evaluate(lw.spread(Split{0, 0, split.Augmented},
			true)).total; with > lw.evaluate(lw.empty()).total*(1+1e-9) || without <= 0 {
			rt.Fatalf("augmented helps a lone job: %g, nothing cached %g", with, lw.evaluate(lw.empty()).total)
		}
	})
}

// TestSharedPrefix: two recipes of one prefix pay for decoded samples once, unlike prefixes share the encoded tier
// only.
func TestSharedPrefix(t *testing.T) {
	r := Recipe{Name: "a", Prefix: "resize", Decoded: 5e5, Augmented: 1.5e5, DecodeAugment: 300, Augment: 3000,
		Finish: math.Inf(1), Sharers: 1, Degree: 1,
		Jobs: []Job{{math.Inf(1)}}}
	b := r
	b.Name = "b"
	d := Demand{Budget: 5e9, Machine: Machine{Nodes: 1, Cache: 1e10, NIC: math.Inf(1), PCIe: math.Inf(1), Storage: 1e9},
		Datasets: []Dataset{{Name: "d", Samples: 10_000, Stored: 1e5, Encoded: 1e5, Recipes: []Recipe{r, b}}}}
	p, err := bottleneck{}.Solve(d)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range p.Datasets[0].Recipes {
		if x.Mix.Decoded < .999 {
			t.Errorf("%s: 5e9 bytes hold all 10,000 decoded samples of one prefix, but the mix is %+v", x.Name, x.Mix)
		}
	}
	if p.Split.Decoded != 5e9 || p.Datasets[0].Recipes[1].Decoded != 0 {
		t.Errorf("a shared prefix is counted twice or not at all: %+v", p)
	}
	d.Datasets[0].Recipes[1].Prefix = "none"
	q, err := bottleneck{}.Solve(d)
	if err != nil {
		t.Fatal(err)
	}
	if q.Rate > .75*p.Rate {
		t.Errorf("unlike prefixes: %g, equal ones %g", q.Rate, p.Rate)
	}
	d.Budget = 1e9 // holds all encoded samples, once for both
	d.Machine.Storage = 1e5
	e, err := bottleneck{}.Solve(d)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range e.Datasets[0].Recipes {
		if x.Mix.Encoded < .98 {
			t.Errorf("%s: %+v of a dataset whose encoded form fits", x.Name, x.Mix)
		}
	}
}

// TestFairness: a job whose memory would raise the total more elsewhere keeps its fair share, unless told otherwise.
func TestFairness(t *testing.T) {
	recipe := func(jobs int) Recipe {
		r := Recipe{Name: "r", Decoded: 5e5, Augmented: 1.5e5, DecodeAugment: 400, Augment: 4000, Finish: math.Inf(1),
			Sharers: 1, Degree: 1}
		for range jobs {
			r.Jobs = append(r.Jobs, Job{math.Inf(1)})
		}
		return r
	}
	small, large := Dataset{Name: "small", Samples: 2000, Stored: 1e5, Encoded: 1e5, Recipes: []Recipe{recipe(1)}},
		Dataset{Name: "large", Samples: 200_000, Stored: 1e5, Encoded: 1e5, Recipes: []Recipe{recipe(3)}}
	d := Demand{Budget: 4e9, Machine: Machine{Nodes: 1, Cache: 1e11, NIC: math.Inf(1), PCIe: math.Inf(1), Storage: 2e7},
		Datasets: []Dataset{small, large}}
	fair, err := bottleneck{}.Solve(d)
	if err != nil {
		t.Fatal(err)
	}
	zero := 0.0
	d.Fairness = &zero
	greedy, err := bottleneck{}.Solve(d)
	if err != nil {
		t.Fatal(err)
	}
	if greedy.Rate < fair.Rate*(1-1e-9) {
		t.Errorf("without the condition the total is %g, with it %g", greedy.Rate, fair.Rate)
	}
	for _, x := range fair.Datasets {
		if r := x.Recipes[0]; r.Rate < r.FairShare*(1-1e-9) {
			t.Errorf("%s gets %g of its fair share %g", x.Name, r.Rate, r.FairShare)
		}
	}
	if fair.Candidates[0].Name != "chosen" || fair.Candidates[0].Rate != fair.Rate || len(fair.Candidates) < 8 {
		t.Errorf("candidates: %+v", fair.Candidates)
	}
	for _, c := range fair.Candidates[1:] {
		if c.Rate > fair.Rate*(1+1e-9) && !c.Unfair {
			t.Errorf("%s is fair and gives %g, chosen was %g", c.Name, c.Rate, fair.Rate)
		}
	}
}
