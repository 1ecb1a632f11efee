package engine_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"larder/cachepolicy/partition"
	"larder/internal/coordinator"
	"larder/internal/engine"
	"larder/internal/errs"
	"larder/internal/ident"
	larderv1 "larder/proto/larder/v1"
)

// TestTheDaemonMeasuresAndDecides: while a job runs its rates are measured, and the model takes over from the rule of
// thumb.
func TestTheDaemonMeasuresAndDecides(t *testing.T) {
	const n = 60
	dir := folder(t, n)
	w := serve(t, func(c *engine.Config) {
		c.Work.Measure = 10 * time.Millisecond
		c.Memory.Tiers = coordinator.TierConfig{Total: 300_000, Sizes: [ident.NumForms]int64{0, -1, -1, -1}}
		c.Memory.TierSetting = nil
	})
	tr := w.train(spec("a", dir, 7, recipe(crops...)), 0)
	var last *larderv1.GetTiersResponse
	epoch := uint32(0)
	eventually(t, "the model decides", func() bool {
		exactly(t, "epoch", tr.must(epoch).ids, all(n))
		epoch++
		var err error
		if last, err = w.engine.GetTiers(t.Context(), &larderv1.GetTiersRequest{}); err != nil {
			t.Fatal(err)
		}
		return last.GetSplit().GetModel() == partition.Bottleneck
	})
	s, sum := last.GetSplit(), uint64(0)
	for _, x := range last.GetTiers() {
		sum += x.GetBudget()
	}
	if s.GetPredicted() <= 0 || s.GetBinding() == "" || s.GetWhy() == "" || sum > 300_000 {
		t.Errorf("%v, %d bytes", s, sum)
	}
	if st := w.stats().GetSplit(); st.GetModel() != s.GetModel() || st.GetWhy() == "" {
		t.Errorf("%v", st)
	}
	tr.detach()
}

// TestSettingsAreOneWhole: tiers, rings and the daemon's own part share the limit; what does not fit changes nothing.
func TestSettingsAreOneWhole(t *testing.T) {
	const mib = 1 << 20
	dir := folder(t, 12)
	w := serve(t, func(c *engine.Config) {
		c.Memory.Limit, c.Memory.Own, c.Memory.MaxRing = 100*mib, 30*mib, 4*mib
		c.Memory.Tiers = coordinator.TierConfig{Total: 40 * mib, Sizes: [ident.NumForms]int64{0, -1, -1, -1}}
	})
	if _, err := w.engine.SetTiers(t.Context(), &larderv1.SetTiersRequest{Total: "78643200"}); reasonOf(
		err) != errs.ResourceExceeded ||
		!strings.Contains(err.Error(), "tiers.total 75MiB and 30MiB for the daemon itself exceed memory.limit 100MiB") {
		t.Errorf("%v", err)
	}
	large := spec("large", dir, 64, recipe(op("RandomResizedCrop", map[string]any{"size": 448.0})),
		func(s *larderv1.JobSpec) { s.Prefetch = 60; s.BatchSize = 4096 })
	if _, err := register(w.dial(), large); reasonOf(err) != errs.RingMemory || !strings.Contains(err.Error(),
		"of the 4MiB for rings are free") {
		t.Errorf("%v", err)
	}
	next := w.engine.Settings()
	next.MaxRing, next.Tiers.Total = 1<<40, 5*mib
	if err := w.engine.Apply(t.Context(), next); err != nil {
		t.Fatal(err)
	}
	if _, err := register(w.dial(), large); reasonOf(err) != errs.RingMemory || !strings.Contains(err.Error(),
		"of the 65MiB for rings are free") {
		t.Errorf("rings may have what the tiers leave: %v", err)
	}
	before := w.engine.Settings()
	bad := before
	bad.Tiers.Sizes[ident.Decoded] = 6 * mib
	if err := w.engine.Apply(t.Context(), bad); reasonOf(err) != errs.ResourceExceeded {
		t.Errorf("%v", err)
	}
	bad = before
	bad.Tiers.Quotas = []coordinator.Quota{{Dataset: "a", Cap: 1}}
	if err := w.engine.Apply(t.Context(), bad); reasonOf(err) != errs.Unsupported {
		t.Errorf("%v", err)
	}
	if now := w.engine.Settings(); now.Tiers.Total != 5*mib || now.Tiers.Sizes != before.Tiers.Sizes {
		t.Errorf("%+v", now)
	}
	if _, err := w.engine.ApplyConfig(t.Context(), &larderv1.ApplyConfigRequest{}); reasonOf(err) != errs.Unsupported {
		t.Errorf("%v", err)
	}
}

// TestStrataComeWithTheFirstJob: jobs of a dataset with strata get whole epochs, and strata come once.
func TestStrataComeWithTheFirstJob(t *testing.T) {
	const n = 60 // in three classes of 20, by the position of the file
	dir := folder(t, n)
	for _, kind := range []string{"size", "label"} {
		asked := []string{}
		w := serve(t, func(c *engine.Config) {
			c.Memory.Strata = func(names ...string) string {
				asked = append(asked, names...)
				return kind
			}
		})
		for _, name := range []string{"a", "b"} { // the second job finds them there
			tr := w.train(spec(name, dir, 6, func(s *larderv1.JobSpec) { s.Order = "epoch" }), 0)
			exactly(t, kind, tr.must(0).ids, all(n))
			exactly(t, kind, tr.must(1).ids, all(n))
			tr.detach()
		}
		if !slices.Contains(asked, "imagefolder:"+dir) {
			t.Errorf("asked for %v", asked)
		}
	}
}
