package coordinator

import (
	"strings"
	"testing"

	"larder/cachepolicy/partition"
	"larder/dsa"
	"larder/internal/ident"
)

// resized asks for tiers of a total with encoded fixed.
func (r *rig) resized(total, encoded int64) Stats {
	r.t.Helper()
	r.ok(r.ask(func(tk Token) Event {
		return Reconfigure{Token: tk, Tiers: TierConfig{Total: total, Sizes: [ident.NumForms]int64{0, encoded, -1, -1}}}
	}))
	r.run()
	return r.c.Stats()
}

// TestAResizeAfterTheJobs: what was measured for the jobs that ran last decides, also when none is left.
func TestAResizeAfterTheJobs(t *testing.T) {
	r := newRig(t, [ident.NumForms]int64{}, auto(50_000))
	if st := r.resized(60_000, 1_000); !strings.HasPrefix(st.Why,
		"no job draws, and none was measured since the start: ") {
		t.Errorf("before any job: %+v", st)
	}
	p := r.join("a", 0, 100, 10, order(dsa.Stratified), slots(2))
	if st := r.c.Stats(); !strings.Contains(st.Why,
		"not measured yet (how fast storage is read, how fast memory is copied") ||
		!strings.Contains(st.Why, "how fast samples are decoded") {
		t.Errorf("at first: %+v", st)
	}
	r.step(Measured{Rates{Storage: slowCPU.Storage, Cache: slowCPU.Cache,
		Recipes: []RecipeRates{{Prefix: 1, Suffix: 2, Augment: 1e5}}}})
	if st := r.resized(60_000, 1_000); !strings.Contains(st.Why, "not measured yet (how fast samples are decoded): ") {
		t.Errorf("without the rate of decoding: %+v", st)
	}
	p.drain()
	r.step(Measured{slowCPU})
	r.run()
	p.detach(true)
	r.run()
	before := len(r.solves)
	st := r.resized(50_000, 2_000)
	if len(r.solves) != before+1 || st.Model == partition.RuleOfThumb || st.Predicted <= 0 ||
		strings.Contains(st.Why, "not measured") ||
		!strings.Contains(st.Why, "for the jobs that ran last, ") {
		t.Errorf("after the job: %+v, %d solves", st, len(r.solves)-before)
	}
	if b := budgets(r); b[ident.Encoded] != 2_000 || b[ident.Decoded]+b[ident.Augmented] > 48_000 ||
		b[ident.Decoded] < 40_000 {
		t.Errorf("%v", b)
	}
	small := r.solves[len(r.solves)-1].Demand
	if small.Budget != 50_000 || small.Fixed.Encoded != 2_000 || len(small.Datasets) != 1 ||
		small.Datasets[0].Samples != 100 {
		t.Errorf("%+v", small)
	}
	r.join("b", 0, 50, 10, order(dsa.Stratified), slots(2)) // and one that comes decides again
	r.run()
	if st := r.c.Stats(); strings.Contains(st.Why, "ran last") || st.Model == partition.RuleOfThumb {
		t.Errorf("for a job that has come: %+v", st)
	}
}
