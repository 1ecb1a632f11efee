package coordinator

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"larder/cachepolicy"
	"larder/cachepolicy/partition"
	"larder/dsa"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/xrand"
	"larder/tiers/residency"
)

func auto(total int64) func(*Config) {
	return func(c *Config) {
		c.Tiers = TierConfig{Total: total, Sizes: [ident.NumForms]int64{0, -1, -1, -1}}
	}
}

func rates(storage, decode, augment float64) Rates {
	return Rates{Storage: storage, Cache: 1e10, Recipes: []RecipeRates{{Prefix: 1, Suffix: 2, Decode: decode,
		Augment: augment}}}
}

// slowStorage is a machine on which reading costs most, slowCPU one on which decoding does.
var (
	slowStorage = rates(1e4, 1e5, 1e5) // 100 samples a second from storage
	slowCPU     = rates(1e9, 50, 1e5)
)

func budgets(r *rig) (out [ident.NumForms]int64) {
	for _, t := range r.c.Tiers() {
		out[t.Form] = t.Budget
	}
	return out
}

// TestMeasuredRatesDecideTheSplit: the rule of thumb holds until rates are known; then what the machine lacks decides,
// and the plan says so.
func TestMeasuredRatesDecideTheSplit(t *testing.T) {
	r := newRig(t, [ident.NumForms]int64{}, auto(10_000))
	r.join("a", 0, 100, 10, order(dsa.Stratified), slots(2))
	if st := r.c.Stats(); st.Model != partition.RuleOfThumb || !strings.Contains(st.Why, "not measured yet") ||
		len(r.solves) != 0 {
		t.Fatalf("%+v, %d solves", st, len(r.solves))
	}
	// All 100 samples fit encoded (10,000 bytes), a sixth of them decoded.
	r.step(Measured{slowStorage})
	r.run()
	if b := budgets(r); b[ident.Encoded] < 9_000 || len(r.solves) != 1 {
		t.Errorf("storage is slow: %v after %d solves, %+v", b, len(r.solves), r.c.Stats())
	}
	r.step(Measured{slowCPU})
	r.run()
	if b := budgets(r); b[ident.Decoded] < 9_000 {
		t.Errorf("decoding is slow: %v, %+v", b, r.c.Stats())
	}
	st := r.c.Stats()
	if st.Model != partition.Bottleneck || st.Binding != "cpu" || st.Predicted < 50 || st.Predicted > 100 ||
		st.Why == "" {
		t.Errorf("%+v", st)
	}
	n := len(r.solves)
	near := rates(1.05e9, 52, 0.95e5)
	r.step(Measured{near}) // within what measuring is good for
	r.run()
	if len(r.solves) != n {
		t.Error("noise is solved for")
	}
	r.join("b", 50, 150, 10, order(dsa.Stratified), slots(2))
	if len(r.solves) == n || len(r.solves[len(r.solves)-1].Demand.Datasets[0].Recipes[0].Jobs) != 2 {
		t.Error("a job that comes does not count")
	}
	if d := r.solves[len(r.solves)-1].Demand; d.Datasets[0].Samples != 150 || d.Datasets[0].Stored != 100 {
		t.Errorf("%+v", d.Datasets[0])
	}
	r.check()
}

// TestTheSplitIsSteady: within an epoch a split of measured rates changes only for a gain of more than 10 %.
func TestTheSplitIsSteady(t *testing.T) {
	r := newRig(t, [ident.NumForms]int64{}, auto(10_000))
	r.join("a", 0, 100, 10, order(dsa.Stratified), slots(2))
	r.step(Measured{slowStorage})
	r.run()
	moved := 0
	for i := range 20 { // rates go to and fro by a fifth around where storage and cpu balance
		before := budgets(r)
		f := 1 + 0.2*float64(i%2)
		r.step(Measured{rates(2e4*f, 200/f, 1e5)})
		r.run()
		if budgets(r) != before {
			moved++
			s := r.solves[len(r.solves)-1].Do()
			if i > 0 && s.Plan.Rate < 1.1*s.Now.Rate {
				t.Errorf("it moved for %g instead of %g", s.Plan.Rate, s.Now.Rate)
			}
		}
	}
	if moved > 3 {
		t.Errorf("%d changes without an epoch", moved)
	}
}

// TestFixedSizesArePredicted: what fixed tiers give is predicted as soon as rates are known, and no tier
// changes its size.
func TestFixedSizesArePredicted(t *testing.T) {
	r := newRig(t, [ident.NumForms]int64{ident.Encoded: 1000, ident.Decoded: 6000})
	r.join("a", 0, 100, 10, order(dsa.Stratified), slots(2))
	before := budgets(r)
	for _, tc := range []struct {
		rates   Rates
		binding string
		least   float64
	}{{slowStorage, "storage", 100}, {slowCPU, "cpu", 50}} {
		r.step(Measured{tc.rates})
		r.run()
		st := r.c.Stats()
		if st.Binding != tc.binding || !(st.Predicted >= tc.least && st.Predicted < 2*tc.least) ||
			st.Why != "fixed by the configuration" || st.Model != partition.Bottleneck {
			t.Errorf("%s: %+v", tc.binding, st)
		}
	}
	if budgets(r) != before || r.c.tiering.resizing {
		t.Errorf("%v became %v", before, budgets(r))
	}
	fixed := r.c.cfg.Tiers
	fixed.Model = SimpleModel
	r.ok(r.ask(func(tok Token) Event { return Reconfigure{Token: tok, Tiers: fixed} }))
	if st := r.c.Stats(); st.Predicted != 0 || st.Model != "" {
		t.Errorf("the rule of thumb predicts %+v", st)
	}
}

// TestTheRuleOfThumbLeavesWhatIsFixed: what it would give to a fixed tier goes to the next one.
func TestTheRuleOfThumbLeavesWhatIsFixed(t *testing.T) {
	for _, tc := range []struct{ sizes, want [ident.NumForms]int64 }{
		{[ident.NumForms]int64{0, -1, -1, -1}, [ident.NumForms]int64{0, 200, 800, 0}},
		{[ident.NumForms]int64{0, 300, -1, -1}, [ident.NumForms]int64{0, 300, 700, 0}},
		{[ident.NumForms]int64{0, -1, 900, 50}, [ident.NumForms]int64{0, 50, 900, 50}},
		{[ident.NumForms]int64{0, 0, 0, -1}, [ident.NumForms]int64{0, 0, 0, 1000}},
	} {
		r := newRig(t, [ident.NumForms]int64{}, func(c *Config) {
			c.Tiers = TierConfig{Total: 1000, Sizes: tc.sizes,
				Model: SimpleModel}
		})
		r.join("a", 0, 100, 10, order(dsa.Stratified), slots(2))
		if got := budgets(r); got != tc.want {
			t.Errorf("%v: %v, want %v", tc.sizes, got, tc.want)
		}
	}
}

// TestATierThatHoldsNothingSaysSo.
func TestATierThatHoldsNothingSaysSo(t *testing.T) {
	for size, want := range map[int64]bool{0: false, sampleBytes - 1: true, sampleBytes: false} {
		r := newRig(t, [ident.NumForms]int64{ident.Decoded: size})
		r.join("a", 0, 20, 10, order(dsa.Stratified), slots(2)).drain()
		if why := r.c.Stats().Why; strings.Contains(why, "tier decoded is too small for one sample of 600B") != want {
			t.Errorf("a tier of %d bytes: %q", size, why)
		}
	}
}

// TestSizesAreOfADataset: two datasets of one prefix, whose decoded samples weigh unlike, are not taken for one
// another.
func TestSizesAreOfADataset(t *testing.T) {
	r := newRig(t, [ident.NumForms]int64{}, auto(100_000))
	r.bytes = func(x ident.ObjectID) int64 { return sampleBytes * int64(1+4*(x/1000)) }
	set := func(id ident.DatasetID) func(*Register) { return func(e *Register) { e.Dataset = id } }
	r.join("a", 0, 30, 10, set(1), order(dsa.Stratified), slots(2)).drain()
	r.join("b", 1000, 1030, 10, set(2), order(dsa.Stratified), slots(2)).drain()
	d := r.c.tiering.demand()
	if small, large := d.Datasets[0].Recipes[0].Decoded, d.Datasets[1].Recipes[0].Decoded; small != sampleBytes ||
		large != 5*sampleBytes {
		t.Errorf("%v and %v bytes", small, large)
	}
}

func TestRatesThatAreNoneChangeNothing(t *testing.T) {
	for _, bad := range []float64{0, -1, math.NaN(), math.Inf(1), math.Inf(-1), 1e300, 5e-324} {
		r := newRig(t, [ident.NumForms]int64{}, auto(10_000))
		r.join("a", 0, 100, 10, order(dsa.Stratified), slots(2))
		before := budgets(r)
		for _, m := range []Rates{rates(bad, 50, 50), rates(50, bad, 50), rates(50, 50, bad), {Storage: bad, Cache: bad},
			{Storage: 5, Cache: bad, Recipes: slowCPU.Recipes}} {
			r.step(Measured{m})
			r.run()
		}
		if budgets(r) != before || len(r.solves) > 0 {
			t.Errorf("%g: %v became %v, %d solves", bad, before, budgets(r), len(r.solves))
		}
	}
}

func TestTheModelIsTheOneOfTheConfiguration(t *testing.T) {
	r := newRig(t, [ident.NumForms]int64{}, auto(10_000), func(c *Config) { c.Tiers.Model = SimpleModel })
	r.join("a", 0, 100, 10, order(dsa.Stratified), slots(2))
	r.step(Measured{slowStorage})
	r.run()
	if len(r.solves) > 0 || r.c.Stats().Model != partition.RuleOfThumb {
		t.Errorf("%d solves, %+v", len(r.solves), r.c.Stats())
	}
	tiers := TierConfig{Total: 10_000, Sizes: [ident.NumForms]int64{0, -1, -1, -1}, Model: partition.Seneca}
	r.ok(r.ask(func(tok Token) Event { return Reconfigure{Token: tok, Tiers: tiers} }))
	if len(r.solves) != 1 || r.c.Stats().Model != partition.Seneca {
		t.Errorf("%d solves, %+v", len(r.solves), r.c.Stats())
	}
	if _, err := New(Config{Tiers: TierConfig{Model: "senecca"}}); err == nil || !strings.Contains(err.Error(), "seneca") {
		t.Errorf("%v", err)
	}
	// A fixed size wins: the model has the rest.
	tiers = TierConfig{Total: 10_000, Sizes: [ident.NumForms]int64{0, -1, 3000, -1}}
	r.ok(r.ask(func(tok Token) Event { return Reconfigure{Token: tok, Tiers: tiers} }))
	if b := budgets(r); b[ident.Decoded] != 3000 || b[ident.Encoded] != 7000 {
		t.Errorf("%v", b)
	}
}

// TestATierShrinksInSlices: a large tier gives its memory up a bounded number of entries at a time, the other grows
// after that, and jobs get batches meanwhile.
func TestATierShrinksInSlices(t *testing.T) {
	const n = 5 * shrinkPerStep
	r := decodedTier(t, n)
	a := r.join("a", 0, n, 64, slots(2))
	a.drain()
	if e := r.c.Tiers()[1].Entries; e != n {
		t.Fatalf("%d entries", e)
	}
	b := r.join("b", 0, n, 64, slots(2))
	r.hold = is[SetBudget]
	r.token++
	size := int64(n) * sampleBytes
	to := TierConfig{Total: size, Sizes: [ident.NumForms]int64{0, size - 100*sampleBytes, 100 * sampleBytes, 0}}
	words := r.step(Reconfigure{Token: r.token, Tiers: to})
	if hasPrefix(words, "reply") || hasPrefix(words, "budget") {
		t.Errorf("all at once: %d effects", len(words))
	}
	steps := 0
	for r.c.tiering.resizing {
		if !r.c.Deadline().Equal(r.now) {
			t.Fatal("work is left and no step is asked for")
		}
		if steps++; steps > 20 {
			t.Fatal("it never ends")
		}
		left := r.c.Tiers()[1].Entries
		if steps == 2 {
			if d := b.next(); d == nil {
				t.Error("a job waits for it")
			}
		}
		words = r.step(Tick{})
		if now := r.c.Tiers()[1].Entries; left-now > shrinkPerStep {
			t.Fatalf("%d entries left in one step", left-now)
		}
		r.check()
	}
	if steps < 3 || strings.Join(words[len(words)-3:], "; ") != fmt.Sprintf("budget decoded %d; budget encoded %d; reply",
		to.Sizes[2], to.Sizes[1]) {
		t.Errorf("%d steps, then %v", steps, words[max(0, len(words)-3):])
	}
	if got := r.c.Tiers()[1]; got.Entries != 100 || got.Used != got.Budget {
		t.Errorf("%+v: it was flushed, or not shrunk", got)
	}
}

// TestAResizeOvertakesAnother: what is asked for last holds, and both are answered.
func TestAResizeOvertakesAnother(t *testing.T) {
	const n = 3 * shrinkPerStep
	r := decodedTier(t, n)
	r.join("a", 0, n, 64, slots(2)).drain()
	decoded := func(k int64) Reconfigure {
		r.token++
		return Reconfigure{Token: r.token, Tiers: TierConfig{Total: n * sampleBytes,
			Sizes: [ident.NumForms]int64{0, 0, k * sampleBytes, 0}}}
	}
	r.step(decoded(10))
	r.step(decoded(n))
	r.run()
	if b := budgets(r); b[ident.Decoded] != n*sampleBytes || r.replies[r.token].Err != nil ||
		len(r.replies) < int(r.token) {
		t.Errorf("%v, %d replies", b, len(r.replies))
	}
	r.check()
}

// TestTheSamplerIsToldTheRoom: none for tiers that hold nothing, or not one sample.
func TestTheSamplerIsToldTheRoom(t *testing.T) {
	for size, want := range map[int64]bool{0: false, sampleBytes - 1: false, 40 * sampleBytes: true} {
		r := newRig(t, [ident.NumForms]int64{ident.Decoded: size})
		r.join("a", 0, 100, 10, order(dsa.Stratified))
		if got := r.c.needs.sampler.Room() > 0; got != want {
			t.Errorf("a tier of %d: room for %d samples", size, r.c.needs.sampler.Room())
		}
	}
}

func TestQuotasAreChecked(t *testing.T) {
	tiers := TierConfig{Total: 1000, Sizes: [ident.NumForms]int64{0, 0, 1000, 0}}
	for _, c := range []struct {
		q    []Quota
		want errs.Reason
	}{
		{[]Quota{{Dataset: "a", Floor: 600, Cap: -1}, {Dataset: "b", Floor: 600, Cap: -1}}, errs.ResourceExceeded},
		{[]Quota{{Dataset: "a", Floor: 600, Cap: 500}}, errs.ConfigInvalid},
		{[]Quota{{Dataset: "a", Floor: -1}}, errs.ConfigInvalid},
	} {
		tiers.Quotas = c.q
		if _, err := New(Config{Tiers: tiers}); !errs.Is(err, c.want) {
			t.Errorf("%v: %v", c.q, err)
		}
	}
	r := decodedTier(t, 10)
	tiers.Quotas = []Quota{{Dataset: "a", Cap: 100}}
	refused(t, r.ask(func(tok Token) Event { return Reconfigure{Token: tok, Tiers: tiers} }), errs.Unsupported,
		"without any")
}

// TestFloorsAndCapsHold: two datasets fill a tier of 100 samples.
func TestFloorsAndCapsHold(t *testing.T) {
	const n = 100
	quota := func(q ...Quota) func(*Config) { return func(c *Config) { c.Tiers.Quotas = q } }
	set := func(id ident.DatasetID, name string) func(*Register) {
		return func(e *Register) { e.Dataset, e.Names = id, []string{name, "uri of " + name, name} }
	}
	sizes := [ident.NumForms]int64{ident.Decoded: n * sampleBytes}
	r := newRig(t, sizes, quota(Quota{Dataset: "small", Floor: 30 * sampleBytes, Cap: -1},
		Quota{Dataset: "uri of large", Cap: 60 * sampleBytes}))
	used := func() (small, large int64) {
		v := r.c.Quotas()
		return v[0].Used / sampleBytes, v[1].Used / sampleBytes
	}
	large := r.join("l", 0, 500, 10, set(1, "large"), order(dsa.Epoch), slots(2))
	for range 3 {
		large.drain()
		if _, l := used(); l != 60 {
			t.Fatalf("large has %d, its cap is 60", l)
		}
		large.epoch(r.job(large.job).Epoch + 1)
	}
	small := r.join("s", 1000, 1030, 10, set(2, "small"), order(dsa.Epoch), slots(2))
	small.drain()
	if s, _ := used(); s != 30 {
		t.Errorf("small has %d of its 30", s)
	}
	// no quota: it has what is left, and what large can be made to give
	other := r.join("o", 2000, 2500, 10, set(3, "other"), order(dsa.Epoch), slots(2))
	other.drain()
	small.detach(true) // no job needs its samples any more
	for range 3 {
		large.drain()
		large.epoch(r.job(large.job).Epoch + 1)
		r.check()
	}
	if s, l := used(); s != 30 || l > 60 {
		t.Errorf("small has %d with a floor of 30, large %d with a cap of 60", s, l)
	}
	tiers := TierConfig{Total: n * sampleBytes, Sizes: sizes, Quotas: []Quota{{Dataset: "large", Cap: 0},
		{Dataset: "small", Cap: -1}}}
	r.ok(r.ask(func(tok Token) Event { return Reconfigure{Token: tok, Tiers: tiers} }))
	for range 2 {
		other.drain()
		other.epoch(r.job(other.job).Epoch + 1)
	}
	other.drain()
	if v := r.c.Quotas(); v[0].Used != 0 {
		t.Errorf("%d bytes above a cap of 0 are left, though others need the room", v[0].Used)
	}
	r.check()
}

// TestSharesAgainstARecount drives an index whose tier is divided: bytes of each dataset are what its entries sum up
// to, no dataset grows beyond its cap, and none is pushed below its floor by another.
func TestSharesAgainstARecount(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		const sets = 3
		policy := rapid.SampledFrom([]string{"need", "lru", "minio", "w-tinylfu", "random", "s3-fifo"}).Draw(rt, "policy")
		mk := func(g int) cachepolicy.Evictor {
			e, err := cachepolicy.New(policy, xrand.New(uint64(g), 7))
			if err != nil {
				rt.Fatal(err)
			}
			return e
		}
		s := newShares(policy, mk(0), func(x ident.ObjectID) int { return int(x)%(sets+1) - 1 }, mk)
		plain := func() residency.Evictor { return mk(99) }
		x := residency.New([ident.NumForms]int64{0, 0, 1000, 0}, [ident.NumForms]residency.Evictor{nil, plain(), s, plain()})
		for range rapid.IntRange(1, 150).Draw(rt, "ops") {
			id := ident.ObjectID(rapid.IntRange(0, 59).Draw(rt, "object"))
			k := ident.Key{Object: id, Form: ident.Decoded, Recipe: 1}
			own := s.group(int(id)%(sets+1) - 1)
			before := make([]int64, len(s.groups))
			for i := range s.groups {
				before[i] = s.groups[i].used
			}
			evicted := func(residency.Handle, ident.Key) {}
			h, in := x.Lookup(k)
			switch op := rapid.IntRange(0, 6).Draw(rt, "op"); {
			case op <= 2:
				x.Admit(k, int64(rapid.IntRange(0, 300).Draw(rt, "bytes")), rapid.IntRange(0, 3).Draw(rt, "need"), evicted)
			case op == 3 && in:
				x.Resize(h, int64(rapid.IntRange(0, 300).Draw(rt, "bytes")), evicted)
			case op == 4 && in:
				x.SetNeed(h, rapid.IntRange(0, 3).Draw(rt, "need"))
				x.Hit(h)
			case op == 5:
				x.Shrink(ident.Decoded, int64(rapid.IntRange(0, 1500).Draw(rt, "budget")), rapid.IntRange(0, 3).Draw(rt, "n"),
					evicted)
				before = nil
			case op == 6:
				g := s.group(rapid.IntRange(-1, sets-1).Draw(rt, "set"))
				g.floor = int64(rapid.IntRange(0, 300).Draw(rt, "floor"))
				g.limit = g.floor + int64(rapid.IntRange(0, 600).Draw(rt, "more"))
				before = nil
			}
			if err := x.Check(); err != nil {
				rt.Fatal(err)
			}
			sums := make([]int64, len(s.groups))
			x.Each(ident.Decoded, func(h residency.Handle, k ident.Key) { sums[int(k.Object)%(sets+1)] += x.Bytes(h) })
			for i := range s.groups {
				g := &s.groups[i]
				if g.used != sums[i] {
					rt.Fatalf("dataset %d counts %d bytes of %d", i, g.used, sums[i])
				}
				if i >= len(before) {
					continue
				}
				if g.used > before[i] && g.used > g.limit {
					rt.Fatalf("dataset %d grew to %d, beyond its cap %d", i, g.used, g.limit)
				}
				if g != own && g.used < before[i] && g.used < g.floor && before[i] <= g.limit {
					rt.Fatalf("dataset %d was pushed from %d to %d, below its floor %d", i, before[i], g.used, g.floor)
				}
			}
		}
	})
}

// TestAnEntryStaysWithItsDataset: a sample that two datasets name may come to count for the other one while it is in
// memory (its job left, one of the other came). What is in stays where it was counted, also when an admission that was
// refused half way takes it out and back.
func TestAnEntryStaysWithItsDataset(t *testing.T) {
	for _, policy := range cachepolicy.Unforeseeing() {
		mk := func(g int) cachepolicy.Evictor {
			e, err := cachepolicy.New(policy, xrand.New(uint64(g), 7))
			if err != nil {
				t.Fatal(err)
			}
			return e
		}
		owner := func(ident.ObjectID) int { return 0 }
		s := newShares(policy, mk(0), func(x ident.ObjectID) int { return owner(x) }, mk)
		plain := func() residency.Evictor { return mk(99) }
		x := residency.New([ident.NumForms]int64{0, 0, 100, 0}, [ident.NumForms]residency.Evictor{nil, plain(), s, plain()})
		key := func(id int) ident.Key {
			return ident.Key{Object: ident.ObjectID(id), Form: ident.Decoded, Recipe: 1}
		}
		x.SetLeavingLimit(ident.Decoded, 40)
		for id := range 10 {
			if h, ok := x.Admit(key(id), 10, 1, nil); ok {
				x.Pin(h) // more than 40 of them may not be leaving: an admission of 90 is refused after some victims
			}
		}
		owner = func(ident.ObjectID) int { return 1 }
		s.group(0).floor = 0
		for range 3 {
			if _, ok := x.Admit(key(50), 90, 3, nil); ok {
				t.Errorf("%s: it was admitted", policy)
			}
		}
		if err := x.Check(); err != nil {
			t.Errorf("%s: %v", policy, err)
		}
		if a, b := s.group(0).used, s.group(1).used; a != 100 || b != 0 {
			t.Errorf("%s: %d and %d bytes are counted", policy, a, b)
		}
	}
}

// TestStrataReachTheSampler: the sets that come with a registration split its cells (what that does to orders is tested
// in dsa).
func TestStrataReachTheSampler(t *testing.T) {
	run := func(strata ...[]ident.ObjectID) []ident.ObjectID {
		r := decodedTier(t, 20)
		p := r.join("a", 0, 40, 4, order(dsa.Epoch), func(e *Register) { e.Strata = strata })
		got := p.drain()
		r.check()
		return got[:40]
	}
	with, without := run(ids(0, 10), ids(10, 15)), run()
	if slices.Equal(with, without) {
		t.Error("strata change nothing")
	}
	for _, got := range [][]ident.ObjectID{with, without} {
		if slices.Sort(got); !slices.Equal(got, ids(0, 40)) {
			t.Errorf("an epoch of %v", got)
		}
	}
	r := decodedTier(t, 20)
	words := r.step(registration(1, "a", 0, 4, 2, func(e *Register) { e.Strata = [][]ident.ObjectID{{}} }))
	if !hasPrefix(words, "complain: ") {
		t.Errorf("an empty stratum: %v", words)
	}
	r.c.step.stats.Violations = 0 // it was asked for
}

// TestWhatIsInForceIsPredictedAsPlanned: a fixed tier that is better left alone is left alone in both figures, that of
// the split in force and that of the plan; else a gain would be seen where nothing changes.
func TestWhatIsInForceIsPredictedAsPlanned(t *testing.T) {
	r := newRig(t, [ident.NumForms]int64{}, func(c *Config) {
		c.Tiers = TierConfig{Total: 10_000, Sizes: [ident.NumForms]int64{0, -1, -1, 6_000}}
	})
	for _, name := range []string{"a", "b"} {
		r.join(name, 0, 100, 10, order(dsa.Stratified), slots(2), func(e *Register) {
			e.Share, e.Key, e.AugmentedBytes = true,
				7, sampleBytes
		})
	}
	r.step(Measured{slowCPU})
	r.run()
	m, err := partition.New(partition.Bottleneck)
	if err != nil {
		t.Fatal(err)
	}
	rnd, shown := xrand.New(3), 0
	for range 300 {
		s := r.solves[len(r.solves)-1]
		s.Demand.Datasets = slices.Clone(s.Demand.Datasets)
		d := &s.Demand.Datasets[0]
		d.Recipes = slices.Clone(d.Recipes)
		rate := func() float64 { return 10 * math.Pow(10, 3*rnd.Float64()) }
		for i := range d.Recipes {
			q := &d.Recipes[i]
			q.Augment, q.DecodeAugment = rate(), 0
			q.DecodeAugment = 1 / (1/q.Augment + 1/rate())
			q.Finish, q.Degree = rate(), 1+rnd.Float64()
		}
		s.Demand.Machine.Storage = 100 * rate()
		s.Now = s.Do().Plan.Split
		spread, err := m.Predict(s.Demand, s.Now)
		if err != nil {
			t.Fatal(err)
		}
		got := s.Do()
		if spread.Rate < 0.99*got.Plan.Rate {
			shown++
		}
		if got.Err != nil || got.Now.Rate != got.Plan.Rate || got.Now.Binding != got.Plan.Binding {
			t.Fatalf("%v: in force %g (%s), planned %g (%s)", got.Err, got.Now.Rate, got.Now.Binding, got.Plan.Rate,
				got.Plan.Binding)
		}
	}
	if shown < 10 {
		t.Errorf("only %d of the cases show anything", shown)
	}
}

// TestTheRuleOfThumbSaysWhatIsFixed: its words are of the split in force, not of one in which nothing is fixed.
func TestTheRuleOfThumbSaysWhatIsFixed(t *testing.T) {
	r := newRig(t, [ident.NumForms]int64{}, func(c *Config) {
		c.Tiers = TierConfig{Total: 1 << 30, Sizes: [ident.NumForms]int64{0, -1, 512 << 20, 0}}
	})
	r.join("a", 0, 100, 10, order(dsa.Stratified), slots(2))
	if why := r.c.Stats().Why; !strings.Contains(why,
		"tiers.decoded 512MiB, tiers.augmented 0 fixed; the rest by the rule of thumb: encoded 512MiB") {
		t.Error(why)
	}
}
