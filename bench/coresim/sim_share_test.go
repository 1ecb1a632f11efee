package coresim

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"larder/dsa"
	"larder/internal/coordinator"
	"larder/internal/ident"
	"larder/internal/invariant"
	"larder/internal/testenv/lane"
	"larder/internal/xrand"
)

// instances counts the instances of samples that were received: what a share group has to augment at least.
func instances(res *Result) int {
	type one struct {
		x ident.ObjectID
		i uint32
	}
	seen := map[one]bool{}
	for _, r := range res.Epochs {
		for x, i := range r.Instance {
			seen[one{x, i}] = true
		}
	}
	return len(seen)
}

// group is n jobs of one recipe on the same samples that share what they augment; the steps are in units of 4 ms.
func group(samples, work int, steps ...int) []Client {
	var clients []Client
	for i, step := range steps {
		c := client(fmt.Sprint("j", i), span(0, samples), 16, max(work/step, 1))
		c.Step, c.Share, c.Key = time.Duration(step)*4*time.Millisecond, true, 9
		clients = append(clients, c)
	}
	return clients
}

// tiers splits bytes as a fourth of augmented, a fourth of encoded, the rest decoded.
func tiers(total int64) coordinator.TierConfig {
	return coordinator.TierConfig{Total: total, Sizes: [ident.NumForms]int64{ident.Encoded: total / 4,
		ident.Decoded: total / 2, ident.Augmented: total / 4}}
}

// TestShareGroupsNearTheirBound: what jobs of one recipe augment, beside the instances that they get. Four jobs, 600
// samples of which a tier holds as many as stated. Each job prepares a window of 64 of an epoch that it does not have.
// In brackets, what was augmented when a job's offset never changed, nothing was kept for those behind, and what is
// available to one job was not distinguished from what is available to another.
func TestShareGroupsNearTheirBound(t *testing.T) {
	countsOnly(t)
	for _, tc := range []struct {
		name  string
		work  int
		steps []int
		total int64
		most  int // augmentations
		bound int
	}{
		{"aligned, 100 in the tier", 3, []int{1, 1, 1, 1}, 60_000, 1840, 1800},                    // (2,028)
		{"aligned, all in the tier", 3, []int{1, 1, 1, 1}, 480_000, 1870, 1800},                   // (2,048)
		{"a little unlike, 100", 120, []int{10, 12, 14, 16}, 60_000, 11_100, 7200},                // (16,709)
		{"a little unlike, 400", 120, []int{10, 12, 14, 16}, 240_000, 7_900, 7200},                // (16,085)
		{"a little unlike, all", 120, []int{10, 12, 14, 16}, 480_000, 7_400, 7200},                // (16,088)
		{"speeds 1, 1/2, 1/4, 100 in the tier", 24, []int{2, 2, 4, 8}, 60_000, 9_200, 7200},       // (12,127)
		{"speeds 1, 1/2, 1/4, 400", 24, []int{2, 2, 4, 8}, 240_000, 7_500, 7200},                  // (11,673)
		{"speeds 1, 1/2, 1/4, all", 24, []int{2, 2, 4, 8}, 480_000, 7_400, 7200},                  // (11,649)
		{"one at a fourth, three epochs of it, 400", 24, []int{2, 2, 2, 8}, 240_000, 7_500, 7200}, // (8,762)
		{"alone in its group", 3, []int{1}, 240_000, 1800 + 64, 1800},
	} {
		clients := group(600, tc.work, tc.steps...)
		if tc.work == 3 {
			for i := range clients {
				clients[i].Epochs = 3
			}
		}
		m := model(1, 0)
		m.Workers, m.Check, m.Tiers = 4, 997, tiers(tc.total)
		res, err := Run(m, clients, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		wholeEpochs(t, res, clients)
		fresh(t, res)
		bound := instances(res)
		t.Logf("%s: %d augmentations for %d samples delivered, %d instances", tc.name, res.Stats.Augments, res.Stats.Samples,
			bound)
		if int(res.Stats.Augments) > tc.most || bound > tc.bound {
			t.Errorf("%s: %d augmentations, at most %d should be; %d instances, at most %d", tc.name, res.Stats.Augments,
				tc.most, bound, tc.bound)
		}
		if len(clients) == 1 && res.Peak[ident.Augmented] > 0 {
			t.Errorf("%s: %d bytes were kept augmented", tc.name, res.Peak[ident.Augmented])
		}
		if got := res.Jobs[0].Offset; len(clients) == 1 && got != 0 {
			t.Errorf("%s: instance offset %d", tc.name, got)
		}
	}
}

// shareClients draws jobs that share what is augmented, with ranks, deaths, breaks, changes of subsets and pauses.
func shareClients(r *xrand.Rand, n int) []Client {
	var clients []Client
	for i := range 2 + r.IntN(3) {
		lo := r.IntN(n / 3)
		c := client(fmt.Sprint("j", i), span(lo, n-r.IntN(n/3)), 1+r.IntN(16), 3+r.IntN(4))
		c.Step, c.Share, c.Key = []time.Duration{1, 4}[i%2]*time.Millisecond, true, 9
		c.Sample.Mode = []dsa.Mode{dsa.Stratified, dsa.Epoch, dsa.Strict, dsa.Fixed, dsa.Sequential}[r.IntN(5)]
		c.Spec.World = 1 + r.IntN(2)
		c.Start = time.Duration(r.IntN(60)) * time.Millisecond
		switch r.IntN(4) {
		case 0, 1:
			c.Die, c.Back = 1+r.IntN(c.Spec.Batches(0)*(1+2*(2-c.Spec.World))), time.Duration(1+r.IntN(40))*time.Millisecond
		case 2:
			if c.Spec.World == 1 {
				c.Break = 1 + r.IntN(2)
			}
		}
		if r.IntN(3) == 0 {
			c.Change = map[int][]ident.ObjectID{1 + r.IntN(9): span(r.IntN(n/2), n)}
		}
		if r.IntN(4) == 0 {
			c.Pause, c.PauseFor = 1+r.IntN(8), time.Duration(1+r.IntN(50))*time.Millisecond
		}
		if c.Spec.Validate() == nil {
			clients = append(clients, c)
		}
	}
	return clients
}

// TestNothingIsAugmentedTwiceForOneJob: the speeds of four jobs of a group differ by four; they die and come back,
// break off, change subset, pause. No (job, sample, instance) comes twice, to whichever rank or client of the job.
func TestNothingIsAugmentedTwiceForOneJob(t *testing.T) {
	seeds := lane.Times(50, 150)
	if testing.Short() || invariant.Enabled {
		seeds = 30
	}
	again, restarted, broken, further := 0, 0, 0, 0
	for seed := range seeds {
		r := xrand.New(uint64(seed), 79)
		n := 30 + r.IntN(150)
		clients := shareClients(r, n)
		m := model(uint64(seed), 0)
		m.Tiers, m.Lease = tiers(int64(r.IntN(n*800))), time.Minute
		if r.IntN(3) == 0 {
			m.Lose = 5 + r.IntN(40)
		}
		if r.IntN(2) == 0 {
			m.Workers, m.Refill = 4, func(n int) bool { return n > 1 }
		}
		res, err := Run(m, clients, 10*time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range res.Failures {
			t.Error(f)
		}
		fresh(t, res)
		epochs := map[string]map[uint32]bool{}
		for _, e := range res.Epochs {
			if e.Again {
				again++
			}
			if k := fmt.Sprint(e.Job, "/", e.Rank); epochs[k] == nil {
				epochs[k] = map[uint32]bool{e.Epoch: true}
			} else if epochs[k][e.Epoch] {
				restarted++
			} else {
				epochs[k][e.Epoch] = true
			}
			if !e.Ended && len(e.IDs) > 0 {
				broken++
			}
		}
		for i := range res.Jobs {
			if res.Jobs[i].Offset > 0 {
				further++
			}
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	t.Logf("%d epochs by a successor, %d begun again, %d left, %d jobs went further than their epochs", again, restarted,
		broken, further)
	if min(again, restarted, broken, further) < seeds/3 {
		t.Errorf("too little happens: %d epochs by a successor, %d begun again, %d left, %d jobs went further", again,
			restarted, broken, further)
	}
}

// TestSharingChangesNoEpoch: whether augmented samples are shared, and how large the tiers are, every job gets the same
// multiset in every epoch, and what is fixed stays the same order.
func TestSharingChangesNoEpoch(t *testing.T) {
	for seed := range uint64(lane.Times(20, 40)) {
		type key struct {
			job   string
			epoch uint32
		}
		var first map[key][]ident.ObjectID
		for variant := range 3 {
			m, clients := scenario(seed)
			m.Bad, m.Data, m.Lose = nil, nil, 0
			for i := range clients {
				c := &clients[i]
				c.Break, c.Die, c.Hang, c.Change = 0, 0, 0, nil
				c.Spec.DropLast, c.Spec.Even = false, false // which samples are dropped is chance
				c.Share, c.Key, c.Suffix, c.Prefix = variant > 0, 9, 9, 1
			}
			if variant == 2 {
				m.Tiers, m.Resize = tiers(int64(1000*(seed%7))), nil
			}
			res, err := Run(m, clients, 10*time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			wholeEpochs(t, res, clients)
			fresh(t, res)
			got := map[key][]ident.ObjectID{}
			for _, e := range res.Epochs {
				k := key{e.Job, e.Epoch}
				got[k] = append(got[k], e.IDs...)
			}
			for i := range clients {
				c := &clients[i]
				for e := range c.Epochs {
					ids := got[key{c.Spec.Name, uint32(e)}]
					if c.Spec.World > 1 || c.Sample.Mode > dsa.Fixed {
						slices.Sort(ids)
					}
					if len(ids) != len(c.Sample.Subset) {
						t.Errorf("%s epoch %d: %d samples of %d", c.Spec.Name, e, len(ids), len(c.Sample.Subset))
					}
				}
			}
			if first == nil {
				first = got
			}
			for k, ids := range first {
				if !slices.Equal(ids, got[k]) {
					t.Errorf("%s epoch %d: variant %d gives other samples", k.job, k.epoch, variant)
				}
			}
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// TestUnlikePrefixesShareTheEncoded: two and two jobs whose recipes begin unlike, with room for a part of what is
// decoded. They share what is read and nothing else: reads come near those of four jobs of one prefix, decodes near
// twice those of two. In brackets, what was read when what is decoded for one prefix kept the encoded sample out, and
// the sampler took what is decoded for any prefix for decoded. (Staggered, 11,579 and 7,546 were read while jobs
// preferred whatever is encoded. Then what stays encoded for long was early in every epoch:
// TestNoSampleIsEarlyForEver.)
func TestUnlikePrefixesShareTheEncoded(t *testing.T) {
	countsOnly(t)
	const n = 3000
	for _, tc := range []struct {
		name    string
		cache   int64 // percent of what is decoded
		encoded int64 // percent of the cache
		stagger time.Duration
		reads   int
		decodes int
	}{
		{"aligned, 10 %", 10, 50, 0, 14_700, 24_000},                                      // (23,602, 23,654)
		{"staggered, 10 %", 10, 50, 1500 * time.Millisecond, 13_600, 32_000},              // (23,460, 33,413)
		{"aligned, 20 %", 20, 50, 0, 10_700, 23_600},                                      // (23,154, 23,215)
		{"staggered, 20 %", 20, 50, 1500 * time.Millisecond, 8_800, 30_200},               // (15,335, 31,730)
		{"staggered, 20 %, none encoded", 20, 0, 1500 * time.Millisecond, 27_500, 27_500}, // (28,063)
	} {
		var clients []Client
		for i := range 4 {
			c := client(fmt.Sprint("j", i), span(0, n), 16, 4)
			c.Step, c.Prefix, c.Start = 32*time.Millisecond, ident.RecipeID(1+i%2), time.Duration(i)*tc.stagger
			clients = append(clients, c)
		}
		m := model(1, 0)
		m.Check, m.Workers = 9973, 8
		total := tc.cache * n * 600 / 100
		e := total * tc.encoded / 100
		m.Tiers = coordinator.TierConfig{Total: total, Sizes: [ident.NumForms]int64{ident.Encoded: e,
			ident.Decoded: total - e}}
		res, err := Run(m, clients, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		wholeEpochs(t, res, clients)
		t.Logf("%s: %d reads, %d decodes", tc.name, res.Stats.SourceReads, res.Stats.Decodes)
		if int(res.Stats.SourceReads) > tc.reads || int(res.Stats.Decodes) > tc.decodes {
			t.Errorf("%s: %d reads and %d decodes, at most %d and %d should be", tc.name, res.Stats.SourceReads,
				res.Stats.Decodes, tc.reads, tc.decodes)
		}
	}
}

// TestRefillWaitsForItsGate: idle workers augment ahead for a share group while a job waits, when the model lets
// them; nothing is augmented twice for it, nothing more is read, and what is prepared blindly keeps every epoch whole.
func TestRefillWaitsForItsGate(t *testing.T) {
	countsOnly(t)
	play := func(gate func(int) bool, steps ...int) *Result {
		clients := group(600, 24, steps...)
		for i := range clients {
			clients[i].Step /= 32 // they wait for single samples, and most workers are idle
			clients[i].Spec.Batch, clients[i].Spec.Slots = 4, 2
		}
		m := model(1, 0)
		m.Workers, m.Check, m.Tiers, m.Refill = 32, 997, tiers(480_000), gate
		m.Tiers.Sizes = [ident.NumForms]int64{ident.Decoded: 360_000, ident.Augmented: 120_000}
		res, err := Run(m, clients, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		wholeEpochs(t, res, clients)
		fresh(t, res)
		return res
	}
	asked := map[int]int{}
	without, with := play(nil, 2, 2, 4, 8), play(func(n int) bool { asked[n]++; return true }, 2, 2, 4, 8)
	shut := play(func(int) bool { return false }, 2, 2, 4, 8)
	t.Logf("%d augmentations, %d with refill (asked %v); %d and %d instances", without.Stats.Augments, with.Stats.Augments,
		asked, instances(without), instances(with))
	if shut.Hash != without.Hash {
		t.Error("a gate that is shut changes something")
	}
	if with.Hash == without.Hash || len(asked) == 0 || asked[1] > 0 {
		t.Errorf("nothing was refilled, or for a lone job: asked %v", asked)
	}
	if with.Stats.SourceReads != 600 || with.Stats.Augments > without.Stats.Augments*105/100 {
		t.Errorf("%d reads, %d augmentations; without refill %d", with.Stats.SourceReads, with.Stats.Augments,
			without.Stats.Augments)
	}
	alone := play(func(int) bool { t.Error("asked for a lone job"); return true }, 2)
	if alone.Peak[ident.Augmented] > 0 {
		t.Error("a lone job was refilled")
	}
}

// TestRefillFollowsTheModel: where measured rates say that the jobs wait for storage, idle workers augment ahead; where
// cores limit them, or handing an augmented sample over costs as much as making it, a run equals the one in which
// none does.
func TestRefillFollowsTheModel(t *testing.T) {
	countsOnly(t)
	play := func(storage, decode, augment, finish float64, gate func(int) bool) *Result {
		clients := group(600, 24, 2, 2, 4, 8)
		for i := range clients {
			clients[i].Step /= 32
			clients[i].Spec.Batch, clients[i].Spec.Slots = 4, 2
		}
		m := model(1, 0)
		m.Workers, m.Check, m.Tiers, m.Refill = 32, 997, tiers(480_000), gate
		m.Tiers.Sizes = [ident.NumForms]int64{ident.Decoded: 180_000, ident.Augmented: 120_000}
		c := clients[0]
		m.Rates = map[time.Duration]coordinator.Rates{50 * time.Millisecond: {Storage: storage, Cache: 1e12,
			Recipes: []coordinator.RecipeRates{
				{Dataset: c.Data, Prefix: c.Prefix, Suffix: c.Suffix, Decode: decode, Augment: augment, Finish: finish}}}}
		res, err := Run(m, clients, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		wholeEpochs(t, res, clients)
		fresh(t, res)
		if res.Solves == 0 {
			t.Error("nothing was solved for")
		}
		return res
	}
	never := func(int) bool { return false }
	for _, tc := range []struct {
		what                             string
		storage, decode, augment, finish float64
		want                             bool
	}{
		{"storage limits", 1e4, 1e5, 1e5, 1e6, true},
		{"cores limit", 1e9, 50, 100, 1e4, false},
		{"handing over is no cheaper", 1e4, 1e5, 1e5, 1e5, false},
	} {
		got := play(tc.storage, tc.decode, tc.augment, tc.finish, nil).Hash != play(tc.storage, tc.decode, tc.augment,
			tc.finish, never).Hash
		if got != tc.want {
			t.Errorf("%s: refilled %v, want %v", tc.what, got, tc.want)
		}
	}
}
