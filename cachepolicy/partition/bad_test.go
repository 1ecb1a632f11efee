package partition

import (
	"math"
	"strings"
	"testing"

	"larder/internal/errs"
	"larder/internal/xrand"
)

func TestBadDemand(t *testing.T) {
	good := func() Demand { d := azure().footprint(1e9).demand(); return d }
	half, two := .5, 2.0
	for name, change := range map[string]func(*Demand){
		"budget": func(d *Demand) { d.Budget = -1 }, "machine.nodes": func(d *Demand) { d.Machine.Nodes = 0 },
		"machine.storage is zero":           func(d *Demand) { d.Machine.Storage = 0 },
		"machine.storage is negative":       func(d *Demand) { d.Machine.Storage = -3 },
		"machine.cache is not a number":     func(d *Demand) { d.Machine.Cache = math.NaN() },
		"machine.nic":                       func(d *Demand) { d.Machine.NIC = math.Inf(-1) },
		"machine.gradient_nic is no usable": func(d *Demand) { d.Machine.GradientNIC = math.Inf(1) },
		"machine.pcie is no usable":         func(d *Demand) { d.Machine.PCIe = 1e300 },
		"no dataset":                        func(d *Demand) { d.Datasets = nil },
		"there twice":                       func(d *Demand) { d.Datasets = append(d.Datasets, d.Datasets[0]) },
		"no recipe":                         func(d *Demand) { d.Datasets[0].Recipes = nil },
		"0 samples":                         func(d *Demand) { d.Datasets[0].Samples = 0 },
		"d.stored is zero":                  func(d *Demand) { d.Datasets[0].Stored = 0 },
		"d.encoded is no usable":            func(d *Demand) { d.Datasets[0].Encoded = math.Inf(1) },
		"d/r.augment is zero":               func(d *Demand) { d.Datasets[0].Recipes[0].Augment = 0 },
		"d/r.decode_augment":                func(d *Demand) { d.Datasets[0].Recipes[0].DecodeAugment = math.NaN() },
		"d/r.decoded is no usable":          func(d *Demand) { d.Datasets[0].Recipes[0].Decoded = 1e-300 },
		"no job":                            func(d *Demand) { d.Datasets[0].Recipes[0].Jobs = nil },
		"2 of 1 jobs share":                 func(d *Demand) { d.Datasets[0].Recipes[0].Sharers = 2 },
		"sharing degree of 0.5":             func(d *Demand) { d.Datasets[0].Recipes[0].Degree = half },
		"d/r.jobs.ingest is zero":           func(d *Demand) { d.Datasets[0].Recipes[0].Jobs[0].Ingest = 0 },
		"samples of a dataset that has":     func(d *Demand) { d.Datasets[0].Recipes[0].Samples = 1 << 50 },
		"fairness 2":                        func(d *Demand) { d.Fairness = &two },
		"fixed tiers of":                    func(d *Demand) { d.Fixed = &Sizes{d.Budget, 1, -1} },
		"a tier of":                         func(d *Demand) { d.Fixed = &Sizes{math.MaxInt64, math.MaxInt64, -1} },
		"more than":                         func(d *Demand) { d.Datasets[0].Recipes = make([]Recipe, maxRecipes+1) },
	} {
		d := good()
		change(&d)
		for _, model := range Models() {
			m, _ := New(model)
			_, err := m.Solve(d)
			if f := errs.From(err); err == nil || f.Reason != errs.Invalid && f.Reason != errs.ResourceExceeded ||
				f.Hint == "" || !strings.Contains(f.Subject+": "+err.Error(), name) {
				t.Errorf("%s, %s: %v", model, name, err)
			}
			if _, err := m.Predict(d, Split{}); err == nil {
				t.Errorf("%s, %s: Predict takes it", model, name)
			}
		}
	}
	_, err := New("senca")
	if f := errs.From(err); f == nil || f.Reason != errs.Invalid || f.Hint != "did you mean seneca?" {
		t.Errorf("unknown model: %v", err)
	}
	for _, name := range append(Models(), "") {
		if m, err := New(name); err != nil || name != "" && m.Name() != name {
			t.Errorf("%q: %v, %v", name, m, err)
		}
	}
}

func TestNothingToDivide(t *testing.T) {
	for _, budget := range []int64{0, 1, 1000} {
		d := azure().footprint(1e9).demand()
		d.Budget = budget
		for _, model := range Models() {
			m, _ := New(model)
			p, err := m.Solve(d)
			if err != nil || p.Split.Total() != budget || math.Abs(p.Rate-2193) > 2 || p.Binding != Storage {
				t.Errorf("%s, %d bytes: %+v, %v", model, budget, p.Split, err)
			}
		}
	}
}

func TestExtremeDemands(t *testing.T) {
	r := xrand.New(4, 6)
	wild := func() float64 { return r.LogUniform(1e-15, 1e15) }
	for i := range 400 {
		d := randomDemand(r, 1+r.IntN(3), 1+r.IntN(3))
		d.Machine.Cache, d.Machine.Storage = wild(), wild()
		d.Budget = int64(r.LogUniform(1, 1e18))
		for k := range d.Datasets {
			s := &d.Datasets[k]
			s.Stored, s.Encoded = wild(), wild()
			for j := range s.Recipes {
				x := &s.Recipes[j]
				x.Decoded, x.Augmented, x.DecodeAugment, x.Augment, x.Finish = wild(), wild(), wild(), wild(), wild()
			}
		}
		for _, model := range Models() {
			m, _ := New(model)
			p, err := m.Solve(d)
			if err != nil {
				t.Fatal(err)
			}
			if s := p.Split; s.Encoded < 0 || s.Decoded < 0 || s.Augmented < 0 || s.Total() > d.Budget || !(p.Rate >= 0) ||
				math.IsInf(p.Rate, 0) {
				t.Fatalf("%d, %s: %+v of %d, rate %v", i, model, s, d.Budget, p.Rate)
			}
		}
	}
}
