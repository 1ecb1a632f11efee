package main

import (
	"math"
	"testing"

	"larder/cachepolicy/partition"
	"larder/internal/config"
	"larder/internal/errs"
	"larder/internal/xrand"
)

// TestConfigBlock: whatever the model says, the lines are a configuration whose tiers are the total or less, within
// one unit of the plan.
func TestConfigBlock(t *testing.T) {
	r := xrand.New(4, 9)
	m, err := partition.New("")
	if err != nil {
		t.Fatal(err)
	}
	for range 300 {
		budget := int64(r.LogUniform(1e3, 1e13))
		d := partition.Demand{Budget: budget, Machine: partition.Machine{Nodes: 1, Cache: r.LogUniform(1e8, 1e11),
			NIC: math.Inf(1), PCIe: math.Inf(1), Storage: r.LogUniform(1e6, 1e9)},
			Datasets: []partition.Dataset{{Name: "d", Samples: 1 + int64(r.LogUniform(1, 1e7)), Stored: 1e5, Encoded: 1e5,
				Recipes: []partition.Recipe{
					{Name: "r", Decoded: 5e5, Augmented: 1.5e5, DecodeAugment: r.Uniform(100, 400), Augment: r.Uniform(400, 2000),
						Finish: 9000, Sharers: 2, Degree: 1.5,
						Jobs: []partition.Job{{Ingest: math.Inf(1)}, {Ingest: 500}}}}}}}
		plan, err := m.Solve(d)
		if err != nil {
			t.Fatal(err)
		}
		text := configBlock(&plan, budget)
		c, err := config.Parse("block", []byte(text))
		if errs.Is(err, errs.ResourceExceeded) && budget > config.DetectMachine().Memory()/2 {
			continue // more than this machine has
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		sizes := [3]int64{c.Tiers.Encoded.Of(0), c.Tiers.Decoded.Of(0), c.Tiers.Augmented.Of(0)}
		if sizes[0]+sizes[1]+sizes[2] != plan.Split.Total() || c.Tiers.Total.Of(0) != budget {
			t.Fatalf("%v of %d for %+v", sizes, budget, plan.Split)
		}
		for k, want := range [3]int64{plan.Split.Encoded, plan.Split.Decoded, plan.Split.Augmented} {
			if diff := sizes[k] - want; diff > 2*budget/256+2 || diff < -budget/256-1 {
				t.Fatalf("tier %d has %d, the plan says %d of %d", k, sizes[k], want, budget)
			}
		}
	}
}

// FuzzRecipeFile: a recipe file gives a recipe or an error, never a panic.
func FuzzRecipeFile(f *testing.F) {
	for _, s := range []string{"- RandomResizedCrop: {size: 32}\n- RandomHorizontalFlip", "transform: [Resize: {size: 4}]",
		"[]", "", "- {name: Resize, args: {size: [1, 2]}}", "- [x]", "&a [*a]"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := parseRecipeFile("f", data)
		if (r == nil) == (err == nil) {
			t.Fatalf("%v, %v", r, err)
		}
	})
}
