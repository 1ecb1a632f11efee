package coordinator

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"larder/cachepolicy/partition"
	"larder/dsa"
	"larder/internal/ident"
)

// keepRates are of images whose decoding in place costs 1, whole and augmented 1.5, and augmented alone 0.2.
var keepRates = Rates{Storage: 1e12, Fresh: 1e12, Recipes: []RecipeRates{{Decode: 1 / 1.3, Augment: 5, InPlace: 1}}}

// keepRig is a job over 200 samples that all fit into the decoded tier, and its rates.
func keepRig(t *testing.T, change func(*Register)) (*rig, *peer) {
	r := newRig(t, [ident.NumForms]int64{ident.Encoded: 1000 * sampleBytes, ident.Decoded: 1000 * sampleBytes})
	p := r.attach(r.register("a", 0, 200, 10, func(e *Register) {
		e.Sample.Mode, e.AugmentedBytes = dsa.Stratified, 150
		if change != nil {
			change(e)
		}
	}), 0)
	rates := keepRates
	rates.Recipes = []RecipeRates{keepRates.Recipes[0]}
	s := r.c.roster.order[0]
	rates.Recipes[0].Dataset, rates.Recipes[0].Suffix = r.c.roster.datasets[s.dataset].id, s.suffix
	rates.Recipes[0].Prefix = r.c.roster.prefixes[s.prefix].id
	r.step(Measured{Rates: rates})
	return r, p
}

// epochOf runs an epoch whose client waits so long for each batch, and returns how many samples the tier holds after
// it, with the first ones of the next epoch, which are prepared ahead.
func (r *rig) epochOf(p *peer, n uint32, waited time.Duration) (held int) {
	p.epoch(n)
	for range 20 {
		r.run()
		d := p.next()
		if d == nil {
			break
		}
		p.releaseAfter(d, waited)
	}
	r.run()
	r.check()
	return r.c.needs.index.Entries(ident.Decoded)
}

// TestFillIsPaced: a job of unknown length whose client waits keeps as many samples of its first epoch as lengthen it
// by 8 %, more of the second, which is shorter for that, and all in the end.
func TestFillIsPaced(t *testing.T) {
	r, p := keepRig(t, nil)
	var held []int
	for e := range uint32(4) {
		held = append(held, r.epochOf(p, e, time.Second))
		if why := r.c.Stats().Why; e == 0 && !strings.Contains(why, "lengthens an epoch by at most 10 %") {
			t.Errorf("epoch %d: the split is explained by %q", e, why)
		}
	}
	// Extra is 0.5 and Saved 0.8. 8 % of 200 pay for 32. Of the 30 samples of the next epoch that are prepared ahead, 5
	// are hits that pay for 1.76 others each, and 25 for 0.16. The second epoch pays for 32 and 50 and more.
	if held[0] < 28 || held[0] > 50 || held[1] < held[0]+50 || held[3] != 200 {
		t.Errorf("kept after each epoch: %v", held)
	}
}

// TestFillTakesIdleCores: a client that does not wait for its batches leaves time to keep everything.
func TestFillTakesIdleCores(t *testing.T) {
	r, p := keepRig(t, nil)
	if held := r.epochOf(p, 0, 0); held < 170 { // all but the first batches, of which nothing is known
		t.Errorf("%d of 200 are kept though the client never waited", held)
	}
}

// TestKnownEpochs: a job that says it has one epoch keeps nothing; one that says it has more keeps all at once.
func TestKnownEpochs(t *testing.T) {
	for epochs, want := range map[uint32]int{1: 0, 2: 200, 90: 200} {
		r, p := keepRig(t, func(e *Register) { e.Spec.Epochs = epochs })
		if held := r.epochOf(p, 0, time.Second); held != want {
			t.Errorf("of %d epochs the first keeps %d, want %d", epochs, held, want)
		}
		why := r.c.Stats().Why
		if got := strings.Contains(why, "not kept, because no job uses them later"); got != (epochs == 1) {
			t.Errorf("of %d epochs: the split is explained by %q", epochs, why)
		}
	}
}

// TestDearMemoryIsExplained: where memory costs more than the known later epochs save, nothing more is kept from then
// on that this is measured, and the view of the tiers says why.
func TestDearMemoryIsExplained(t *testing.T) {
	r, p := keepRig(t, func(e *Register) { e.Spec.Epochs = 9 })
	r.step(Measured{Rates: Rates{Storage: 1e12, Fresh: 1, Recipes: r.c.tiering.model.rates.Recipes}})
	held := r.epochOf(p, 0, time.Second)
	if held > 2*costsHold {
		t.Errorf("%d samples are kept, though memory is dear", held)
	}
	if more := r.epochOf(p, 1, time.Second); more != held {
		t.Errorf("%d samples are kept after the second epoch, %d before it", more, held)
	}
	why := r.c.Stats().Why
	if !strings.Contains(why, "not kept, because to keep one costs more than its known later uses save") {
		t.Errorf("the split is explained by %q", why)
	}
}

// TestSharedSamplesAreKeptAtOnce: two jobs that begin together pay for one decode.
func TestSharedSamplesAreKeptAtOnce(t *testing.T) {
	r, p := keepRig(t, nil)
	q := r.attach(r.register("b", 0, 200, 10, func(e *Register) {
		e.Sample.Mode, e.AugmentedBytes = dsa.Stratified, 150
	}), 0)
	p.epoch(0)
	q.epoch(0)
	for range 20 {
		r.run()
		for _, o := range []*peer{p, q} {
			if d := o.next(); d != nil {
				o.releaseAfter(d, time.Second)
			}
		}
	}
	r.run()
	r.check()
	if held := r.c.needs.index.Entries(ident.Decoded); held < 170 {
		t.Errorf("%d of 200 are kept though two jobs share each decode", held)
	}
}

// TestOnlyWhatIsReadPaysForReading: a sample whose original bytes are in memory costs no read and no memory for them.
// So slow storage lets the first epoch keep everything, and a later one only what it can pay for; and the price of the
// encoded tier stops no later epoch.
func TestOnlyWhatIsReadPaysForReading(t *testing.T) {
	r, _ := keepRig(t, nil)
	s, fl := r.c.roster.order[0], r.c.flights
	for name, rates := range map[string]Rates{
		"slow storage": {Storage: 1, Fresh: 1e12, Recipes: r.c.tiering.model.rates.Recipes},
		"dear memory":  {Storage: 1e12, Fresh: 1, Recipes: r.c.tiering.model.rates.Recipes},
	} {
		r.step(Measured{Rates: rates})
		s.stored.add(100)
		s.keeping = keeping{}
		k := fl.keepingOf(s)
		x := ident.ObjectID(3)
		fl.storedStays(s, x)
		fl.needs.relevel(x)
		k.allowance.Pay(0.04 - k.costs.Extra()) // one sample in place more affords the next one
		fl.mayKeep(s, x)
		if !k.allowance.Affords(k.costs) {
			t.Errorf("%s: a sample in memory does not add the whole of what an epoch may be slower", name)
		}
		k.allowance.Pay(0.08)
		if k.allowance.Affords(k.costs) {
			t.Errorf("%s: a sample in memory adds what only one that is read saves", name)
		}
	}
}

// TestBadSamplesAreKeptAtThePaceOfGoodOnes: no sample is more often in a tier because it is bad.
func TestBadSamplesAreKeptAtThePaceOfGoodOnes(t *testing.T) {
	r, p := keepRig(t, func(e *Register) { e.Spec.Epochs = 1 })
	for x := range ident.ObjectID(40) {
		r.bad[x*5] = true
	}
	r.epochOf(p, 0, time.Second)
	if held := r.c.needs.index.Entries(ident.Decoded); held != 0 {
		t.Errorf("%d entries are kept decoded for a job that has one epoch", held)
	}
	if held := r.c.needs.index.Entries(ident.Encoded); held != 200 {
		t.Errorf("%d of 200 samples have a place in the encoded tier", held)
	}
	r, _ = keepRig(t, nil)
	s, fl := r.c.roster.order[0], r.c.flights
	fl.keepingOf(s)
	s.keeping.allowance.Pay(1e6) // nothing can be paid for
	key := ident.Key{Object: 3, Form: ident.Decoded, Recipe: r.c.roster.prefixes[s.prefix].id}
	fl.reservePlace(s, key)
	if n := r.c.needs.index.Entries(ident.Decoded); n != 0 {
		t.Error("a bad sample is kept decoded where a good one is not")
	}
	if h, ok := fl.index.Lookup(ident.Key{Object: 3, Form: ident.Encoded}); !ok || !fl.index.Ready(h) {
		t.Error("a bad sample has no ready place in the encoded tier")
	}
}

// TestAnotherJobYetToBeginCounts: the epoch that a job will begin with is a use.
func TestAnotherJobYetToBeginCounts(t *testing.T) {
	r, _ := keepRig(t, func(e *Register) { e.Spec.Epochs = 1 })
	s, fl := r.c.roster.order[0], r.c.flights
	if uses, sure := fl.laterUses(s, 3); uses != 1 || !sure { // it has not begun its only epoch
		t.Errorf("%d uses are ahead, %v", uses, sure)
	}
}

// TestCostsOfVisibleJobsAreTheirOwn: what a job that is not visible has decoded, or has in memory, is no part of what a
// sample of a shuffled job costs, so the same samples are kept.
func TestCostsOfVisibleJobsAreTheirOwn(t *testing.T) {
	type epoch struct {
		held map[ident.ObjectID]bool // by the decoded tier, for the shuffled job
		kept uint64
		left [unkepts]uint64
		cost partition.Keeping
	}
	run := func(beside bool) (all []epoch) {
		r, p := keepRig(t, nil)
		r.bytes = func(x ident.ObjectID) int64 { return sampleBytes + 12*int64(x) }
		bytes := func(x ident.ObjectID) int64 { return 100 + int64(x) }
		r.c.flights.cfg.Bytes = bytes
		r.step(Measured{Rates: Rates{Storage: 500, Fresh: 2000, Recipes: r.c.tiering.model.rates.Recipes}})
		s := r.c.roster.order[0]
		for e := range uint32(3) {
			if beside { // it has the samples in memory, or is having them prepared
				b := r.attach(r.register(fmt.Sprint("b", e), 50, 250, 10), 0)
				if e == 0 {
					r.hold = func(e Effect) bool { _, ok := e.(Prepare); return ok }
					b.epoch(0)
					r.run()
				} else {
					r.epochOf(b, 0, time.Second)
				}
			}
			p.epoch(e)
			r.run()
			r.hold = nil
			for range 20 {
				r.run()
				p.releaseAfter(p.next(), time.Second)
			}
			r.run()
			r.check()
			now := epoch{map[ident.ObjectID]bool{}, s.keeping.kept, s.keeping.left, r.c.tiering.keepCosts(s)}
			prefix := r.c.roster.prefixes[s.prefix].id
			for x := range ident.ObjectID(200) {
				if _, ok := r.c.needs.find(s, ident.Key{Object: x, Form: ident.Decoded, Recipe: prefix}); ok {
					now.held[x] = true
				}
			}
			all = append(all, now)
		}
		return all
	}
	alone, beside := run(false), run(true)
	for e := range alone {
		a, b := alone[e], beside[e]
		if a.cost != b.cost || a.kept != b.kept || a.left != b.left || !maps.Equal(a.held, b.held) {
			t.Errorf("epoch %d: alone it costs %v; %d samples are held, %d were kept, %v not;\n"+
				"beside a job that is not visible %v, %d, %d, %v", e, a.cost, len(a.held), a.kept, a.left, b.cost,
				len(b.held), b.kept, b.left)
		}
		if a.kept == 0 || e == 0 && a.left[paced] == 0 {
			t.Errorf("epoch %d: nothing was decided by costs: %+v", e, a)
		}
	}
}
