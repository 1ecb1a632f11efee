package partition

import (
	"math"
	"testing"
)

// unlike is three jobs with batches of 25, 50 and 75 that share augmented samples of 64 x 64 pixels, of 700 photographs
// in 6 GiB, as measured on two processors: 2.1 of them read and decode together, and where no tier keeps the augmented
// sample 1.8 augment together.
func unlike() Demand {
	d := photographs(3)
	d.Budget, d.Machine.Storage = 6<<30, 1e9
	r := &d.Datasets[0].Recipes[0]
	r.Augmented, r.DecodeAugment, r.Augment, r.Finish, r.Degree, r.AugmentDegree = 64*64*3*16./15, 701, 7784, 1e5, 2.1, 1.8
	return d
}

// TestDecodedSources: what is augmented anew is decoded anew only where the decoded tier does not hold it, and is
// augmented once for all.
func TestDecodedSources(t *testing.T) {
	d := unlike()
	d.Machine.Waiting = 0
	r := &d.Datasets[0].Recipes[0]
	decode, augment, finish := 1/r.DecodeAugment-1/r.Augment, 1/r.Augment, 1/r.Finish
	once := finish + (augment-finish)/3
	for _, c := range []struct {
		decoded, augmented float64 // parts of the samples that the tiers have room for
		cpu                float64 // seconds a sample
	}{
		{1, 0, finish + (augment-finish)/1.8}, // what falls together is augmented once
		{1, 1, once},                          // every source is there
		{0, 1, once + decode/3},               // none
		{.25, 1, once + .75*decode/3},         // a quarter
		{.5, .5, .5*(finish+(augment-finish)/1.8) + .5*once + decode/6}, // decoded serves before it holds sources
		{.75, .5, .5*(finish+(augment-finish)/1.8) + .5*once + decode/12},
	} {
		s := Split{Decoded: int64(c.decoded * 700 * r.Decoded), Augmented: int64(c.augmented * 700 * r.Augmented)}
		got, err := bottleneck{}.Predict(d, s)
		if err != nil {
			t.Fatal(err)
		}
		if cpu := got.Load[CPU] / got.Rate; math.Abs(cpu/c.cpu-1) > 1e-3 {
			t.Errorf("decoded %v, augmented %v: %.3f us of the processors a sample, want %.3f", c.decoded, c.augmented, 1e6*cpu,
				1e6*c.cpu)
		}
	}
}

// TestSmallFormInALargeBudget: a budget that holds all decoded samples twelve times over has room for the augmented
// ones, which are smaller and save augmentations. The model gave them nothing while it charged each with a decode.
func TestSmallFormInALargeBudget(t *testing.T) {
	d := unlike()
	p, err := bottleneck{}.Solve(d)
	if err != nil {
		t.Fatal(err)
	}
	r := &d.Datasets[0].Recipes[0]
	if p.Split.Augmented < int64(700*r.Augmented)-1 || p.Split.Decoded < int64(700*r.Decoded)-1 {
		t.Errorf("%+v holds not all of both forms", p.Split)
	}
	rates := map[string]float64{}
	for _, c := range p.Candidates {
		rates[c.Name] = c.Rate
	}
	if both, alone := rates["half decoded, half augmented"],
		rates["all decoded"]; both < 1.4*alone || p.Rate < both*(1-1e-6) {
		t.Errorf("chosen %.0f, half decoded and half augmented %.0f, all decoded %.0f samples/s", p.Rate, both, alone)
	}
	// The daemon, which has given all to decoded, takes it at once: 9 MB of 6 GiB are a tier that comes.
	now := Split{Encoded: p.Split.Encoded, Decoded: p.Split.Decoded + p.Split.Augmented}
	if ok, why := Adopt(Change{Now: now, Next: p.Split, NowRate: 100, NextRate: 103, Budget: d.Budget,
		EpochsSinceMoved: 1}); !ok {
		t.Error(why)
	}
}

// TestAllAugmentTogether: jobs in step that augment everything together need no tier for it, where memory is fast
// enough for decoded samples.
func TestAllAugmentTogether(t *testing.T) {
	d := unlike()
	d.Machine.Cache = math.Inf(1)
	r := &d.Datasets[0].Recipes[0]
	r.AugmentDegree = 3
	p, err := bottleneck{}.Solve(d)
	if err != nil {
		t.Fatal(err)
	}
	if p.Split.Augmented != 0 || p.Split.Decoded < int64(700*r.Decoded)-1 {
		t.Errorf("%+v", p)
	}
	r.AugmentDegree = 3.5
	if _, err := (bottleneck{}).Solve(d); err == nil {
		t.Error("3.5 of 3 jobs augment together")
	}
}
