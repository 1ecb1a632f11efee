package coresim

import (
	"fmt"
	"maps"
	"math"
	"testing"
	"time"

	"larder/cachepolicy"
	"larder/cachepolicy/partition"
	"larder/dsa"
	"larder/internal/coordinator"
	"larder/internal/ident"
	"larder/internal/invariant"
	"larder/internal/testenv/lane"
	"larder/internal/xrand"
)

// tiersWorld draws a world in which memory is never left alone: sizes, models, floors and caps change, and so do the
// rates that are measured, some of them to no rates at all.
func tiersWorld(seed uint64) (Model, []Client) {
	r := xrand.New(seed, 0x71e5)
	m := model(seed, 0)
	m.Check, m.Resize, m.Rates = 23, map[time.Duration]coordinator.TierConfig{}, map[time.Duration]coordinator.Rates{}
	if r.IntN(2) == 0 {
		m.Usable = func(n int64) int64 { return n - n/16 }
	}
	policies := cachepolicy.Unforeseeing()
	var policy [ident.NumForms]string
	for f := ident.Encoded; f < ident.NumForms; f++ {
		policy[f] = policies[r.IntN(len(policies))]
	}
	quotas := r.IntN(3) > 0
	draw := func() coordinator.TierConfig {
		t := coordinator.TierConfig{Total: int64(r.IntN(200_000)), Policy: policy,
			Model: []string{"", partition.Seneca, coordinator.SimpleModel}[r.IntN(3)]}
		fair := float64(r.IntN(3)) / 2
		t.Fairness = &fair
		left := t.Total
		for f := ident.Encoded; f < ident.NumForms; f++ {
			t.Sizes[f] = -1
			if r.IntN(3) == 0 {
				t.Sizes[f] = int64(r.IntN(int(left) + 1))
				left -= t.Sizes[f]
			}
		}
		floors := t.Total
		for i := range 3 {
			if quotas {
				q := coordinator.Quota{Dataset: fmt.Sprint("set", i), Floor: int64(r.IntN(int(floors) + 1)), Cap: -1}
				floors -= q.Floor
				if r.IntN(2) == 0 {
					q.Cap = q.Floor + int64(r.IntN(50_000))
				}
				t.Quotas = append(t.Quotas, q)
			}
		}
		return t
	}
	m.Tiers = draw()
	clients := tiersClients(r)
	odd := []float64{0, math.NaN(), math.Inf(1), -3}
	for range 3 + r.IntN(20) {
		at := time.Duration(r.IntN(2000)) * time.Millisecond
		if r.IntN(2) == 0 {
			m.Resize[at] = draw()
			continue
		}
		rate := func() float64 {
			if r.IntN(20) == 0 {
				return odd[r.IntN(len(odd))]
			}
			return math.Pow(10, 1+5*float64(r.IntN(1000))/1000)
		}
		x := coordinator.Rates{Storage: rate() * 100, Cache: rate() * 1e4}
		for set := range 3 {
			for recipe := range 4 {
				if r.IntN(4) > 0 {
					x.Recipes = append(x.Recipes, coordinator.RecipeRates{Dataset: ident.DatasetID(set),
						Prefix: ident.RecipeID(1 + recipe/2),
						Suffix: ident.RecipeID(2 + recipe%2), Decode: rate(), Augment: rate(), Finish: rate()})
				}
			}
		}
		m.Rates[at] = x
	}
	return m, clients
}

// tiersClients draws jobs on three datasets that overlap.
func tiersClients(r *xrand.Rand) []Client {
	var clients []Client
	for i := range 2 + r.IntN(3) {
		set := r.IntN(3)
		from := 200*set + r.IntN(100) // datasets overlap
		c := client(fmt.Sprint("j", i), span(from, from+100+r.IntN(200)), 1+r.IntN(20), 2+r.IntN(2))
		c.Data, c.Names = ident.DatasetID(set), []string{fmt.Sprint("set", set), fmt.Sprint("uri", set)}
		c.Prefix, c.Suffix = ident.RecipeID(1+r.IntN(2)), ident.RecipeID(2+r.IntN(2))
		c.Sample.Mode = []dsa.Mode{dsa.Stratified, dsa.Epoch, dsa.Strict, dsa.Fixed, dsa.Sequential}[r.IntN(5)]
		c.Start, c.Step = time.Duration(r.IntN(300))*time.Millisecond, time.Duration(1+r.IntN(10))*time.Millisecond
		if r.IntN(3) == 0 {
			c.Share, c.Key = true, ident.RecipeID(10+set*4)+c.Suffix
		}
		clients = append(clients, c)
	}
	return clients
}

// TestTheTiersChangeNothingButSpeed: in worlds whose memory changes all the time every job gets in every epoch exactly
// its subset, each sample in the same instance (so, its bytes) as in a world without any cache, no budget is exceeded
// at any step, and equal seeds give equal runs.
func TestTheTiersChangeNothingButSpeed(t *testing.T) {
	worlds := lane.Times(14, 40)
	if testing.Short() || invariant.Enabled {
		worlds = 10
	}
	solved, changed := 0, 0
	for seed := range uint64(worlds) {
		m, clients := tiersWorld(seed)
		res, err := Run(m, clients, time.Hour)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		wholeEpochs(t, res, clients)
		for _, c := range clients {
			if n := ended(res, c.Spec.Name); n != c.Epochs {
				t.Errorf("%s finished %d of %d epochs", c.Spec.Name, n, c.Epochs)
			}
		}
		plain, _ := tiersWorld(seed)
		plain.Tiers, plain.Resize, plain.Rates = coordinator.TierConfig{}, nil, nil
		bare, err := Run(plain, clients, time.Hour)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		instances := func(r *Result) map[string]map[ident.ObjectID]uint32 {
			out := map[string]map[ident.ObjectID]uint32{}
			for _, e := range r.Epochs {
				if e.Ended {
					out[fmt.Sprint(e.Job, " ", e.Epoch)] = e.Instance
				}
			}
			return out
		}
		with, without := instances(res), instances(bare)
		for _, c := range clients {
			for e := range c.Epochs {
				k := fmt.Sprint(c.Spec.Name, " ", e)
				if !c.Share && !maps.Equal(with[k], without[k]) { // instances of a group depend on who came when
					t.Errorf("seed %d: %s: the tiers change what a job gets", seed, k)
				}
			}
		}
		again, err := Run(m, clients, time.Hour)
		if err != nil || again.Hash != res.Hash {
			t.Errorf("seed %d: two runs differ: %v", seed, err)
		}
		if res.Solves > 0 {
			solved++
		}
		if len(m.Resize) > 0 {
			changed++
		}
		if t.Failed() {
			t.Fatalf("seed %d: tiers %+v", seed, m.Tiers)
		}
	}
	if solved < worlds/4 || changed < worlds/2 {
		t.Errorf("of %d worlds a model decided in %d, and %d were resized", worlds, solved, changed)
	}
}
