package partition

import (
	"math"
	"strings"
	"testing"

	"larder/internal/xrand"
)

// photographs is what larder profile measured of 700 photographs on two processors, storage held to 10 MB/s, 112 MiB of
// memory, for some jobs that read everything together. Of the sweep in docs/measurements/tiers.md.
func photographs(jobs int) Demand {
	r := Recipe{Name: "r", Samples: 700, Decoded: 652e3 * 16 / 15, Augmented: 150528 * 16. / 15, DecodeAugment: 1349,
		Augment: 10607, Finish: 2e5,
		Sharers: jobs, Degree: float64(jobs)}
	for range jobs {
		r.Jobs = append(r.Jobs, Job{Ingest: math.Inf(1)})
	}
	return Demand{Budget: 112 << 20, Machine: Machine{Nodes: 1, Cache: 3e10, NIC: math.Inf(1), PCIe: math.Inf(1),
		Storage: 1e7, Waiting: MeasuredWaiting},
		Datasets: []Dataset{{Name: "d", Samples: 700, Stored: 111305, Encoded: 111305 * 16. / 15, Recipes: []Recipe{r}}}}
}

// TestWaitingKeepsStorageIdle: the law balances storage and cores, which measured 1,117 samples a second where all
// encoded gave 1,500 (one job), and 2,526 beside 3,719 (four). What is waited for makes it hold every photograph, of
// four jobs also what they augment.
func TestWaitingKeepsStorageIdle(t *testing.T) {
	for _, jobs := range []int{1, 4} {
		d := photographs(jobs)
		p, err := bottleneck{}.Solve(d)
		if err != nil {
			t.Fatal(err)
		}
		if p.Load[Storage] > .02 || p.Binding != CPU || (p.Split.Augmented > 0) != (jobs > 1) {
			t.Errorf("%d jobs: %+v", jobs, p)
		}
		want := encodedRoom * 700 * d.Datasets[0].Encoded * (1 - p.Datasets[0].Recipes[0].Mix.Decoded)
		if float64(p.Split.Encoded) < want*.99 {
			t.Errorf("%d jobs: encoded has no room for sizes that are not the mean: %+v", jobs, p.Split)
		}
		d.Machine.Waiting = 0
		law, err := bottleneck{}.Solve(d)
		if err != nil {
			t.Fatal(err)
		}
		if law.Load[Storage] < .9 || law.Rate < p.Rate {
			t.Errorf("%d jobs: the law itself chose %+v", jobs, law)
		}
	}
}

// TestWaitingSlowsByTheRest: rates are never above the law's, the part of the other resources' work is made room for to
// the last, a job whose training is slower than that keeps its speed, and what limits is named although no resource is
// used up.
func TestWaitingSlowsByTheRest(t *testing.T) {
	r := xrand.New(4, 9)
	slowed := 0
	for range 500 {
		d := randomDemand(r, 1+r.IntN(3), 2)
		s := Split{int64(r.Uint64n(uint64(d.Budget) + 1)), int64(r.Uint64n(uint64(d.Budget) + 1)),
			int64(r.Uint64n(uint64(d.Budget) + 1))}
		pr := newProblem(&d)
		law := pr.evaluate(pr.spread(s, true))
		d.Machine.Waiting = r.Float64()
		got := pr.evaluate(pr.spread(s, true))
		sum, most := sumMost((*vector)(law.load[:Training]))
		slower := max(1, most+d.Machine.Waiting*(sum-most))
		if got.total > law.total*(1+1e-9) || len(pr.items) == 1 && math.Abs(got.total*slower/law.total-1) > 1e-9 &&
			d.untrained() {
			t.Fatalf("%g, the law %g, at most %g slower", got.total, law.total, slower)
		}
		for i, x := range got.rates {
			rate := 0.0
			for _, ingest := range pr.items[i].ingest {
				rate += min(ingest, got.levels[i])
			}
			if x > law.rates[i]*(1+1e-9) || math.Abs(rate/x-1) > 1e-9 {
				t.Fatalf("item %d: %g samples a second, the law %g, at its level %g", i, x, law.rates[i], rate)
			}
		}
		if slower > 1+1e-9 {
			if sum, most = sumMost((*vector)(got.load[:Training])); math.Abs(most+d.Machine.Waiting*(sum-most)-1) > 1e-9 ||
				got.binding == Training {
				t.Fatalf("limited by %s at loads %v", got.binding, got.load)
			}
			slowed++
		}
	}
	if slowed < 100 {
		t.Errorf("%d of 500 were slowed: the draw tests too little", slowed)
	}
}

// TestSourcesInMemory: what is augmented anew is read from storage only where its encoded bytes are not in memory too.
func TestSourcesInMemory(t *testing.T) {
	d := photographs(4)
	d.Machine.Waiting = 0
	b := float64(d.Budget)
	for _, c := range []struct {
		e, a    float64
		storage float64 // milliseconds a sample
	}{
		{.8, .2, 0},       // every source is there
		{.6, .4, .43},     // .85 of the samples, .42 of them not needed to serve: .27 sources
		{.4, .6, 1.2},     // .57 and .63
		{0, 1, 11.13 / 4}, // none
	} {
		got, err := bottleneck{}.Predict(d, Split{Encoded: int64(c.e * b), Augmented: int64(c.a * b)})
		if err != nil {
			t.Fatal(err)
		}
		if x := 1e3 * got.Load[Storage] / got.Rate; math.Abs(x-c.storage) > .02*max(c.storage, 1) {
			t.Errorf("%v: %.3f ms of storage a sample, want %.3f", c, x, c.storage)
		}
	}
}

// untrained reports whether no job has a training that could limit it.
func (d *Demand) untrained() bool {
	for _, s := range d.Datasets {
		for _, r := range s.Recipes {
			for _, j := range r.Jobs {
				if !math.IsInf(j.Ingest, 1) {
					return false
				}
			}
		}
	}
	return true
}

// TestWaitingLeavesSlowTrainingAlone: a job that takes 50 samples a second of cores and storage that give others 1,000
// waits for nothing, and what larder tune shows of it is not below its fair share.
func TestWaitingLeavesSlowTrainingAlone(t *testing.T) {
	d := photographs(2)
	d.Budget, d.Machine.Storage = 0, 1.4e8
	r := &d.Datasets[0].Recipes[0]
	r.Sharers, r.Degree, r.Jobs[0].Ingest = 1, 1, 50
	p, err := bottleneck{}.Solve(d)
	if err != nil {
		t.Fatal(err)
	}
	got := p.Datasets[0].Recipes[0]
	if got.Rate < got.FairShare*(1-1e-9) || math.Abs(p.Load[Training]-.5) > 1e-9 {
		t.Errorf("%g samples a second of a fair share of %g, load %v", got.Rate, got.FairShare, p.Load)
	}
}

// TestWaitingIsNoTraining: where jobs get less than their training takes although no resource is used up, training is
// not what limits them.
func TestWaitingIsNoTraining(t *testing.T) {
	d := photographs(1)
	d.Budget, d.Machine.Storage, d.Machine.Waiting = 0, 1.4e8, .25
	d.Datasets[0].Recipes[0].Jobs[0].Ingest = 1200
	p, err := bottleneck{}.Solve(d)
	if err != nil {
		t.Fatal(err)
	}
	if p.Rate > 1100 || p.Binding != Storage || !strings.Contains(p.Why,
		"limited by storage (81 % of the time: jobs also wait for other work)") {
		t.Errorf("%g samples a second, load %v: %s", p.Rate, p.Load, p.Why)
	}
}

// TestRoomOnlyWhereItKeepsStorageIdle: no split pays for room that spares no dataset its last read, and no job loses
// more than room is worth.
func TestRoomOnlyWhereItKeepsStorageIdle(t *testing.T) {
	r := xrand.New(4, 12)
	roomy := 0
	for range 600 {
		d := randomDemand(r, 1+r.IntN(2), 1+r.IntN(2))
		d.Machine.Waiting = MeasuredWaiting
		pr := newProblem(&d)
		all := make([]int, len(pr.items))
		for i := range all {
			all[i] = i
		}
		best := pr.solve(all, nil, 1, fromStorage)
		got := pr.evaluate(best)
		l, o := pr.withRoom(all, best, got)
		if pr.room != 1 || !o.fits(got.levels, 1-roomWorth) {
			t.Fatalf("room %g left, levels %v instead of %v", pr.room, o.levels, got.levels)
		}
		spared, more := false, false
		for i, it := range pr.items {
			if o.mixes[i][fStored] > got.mixes[i][fStored]+1e-6 {
				t.Fatalf("item %d is read more: %v instead of %v", i, o.mixes[i], got.mixes[i])
			}
			spared = spared || o.mixes[i][fStored] < 1e-6 && l.enc[it.data] > best.enc[it.data]
			more = more || l.enc[it.data] != best.enc[it.data] || l.aug[i] != best.aug[i] ||
				l.dec[it.group] != best.dec[it.group]
		}
		if more && !spared {
			t.Fatalf("%+v became %+v, and still everything is read", best, l)
		}
		if more {
			roomy++
		}
	}
	if roomy < 50 {
		t.Errorf("%d of 600 got room: the draw tests too little", roomy)
	}
}

// TestFairShareHasSources: what a job would get of its own part of the memory is split best too, with sources for what
// is augmented anew.
func TestFairShareHasSources(t *testing.T) {
	d := photographs(4)
	p, err := bottleneck{}.Solve(d)
	if err != nil {
		t.Fatal(err)
	}
	if r := p.Datasets[0].Recipes[0]; r.FairShare < p.Rate*(1-1e-9) {
		t.Errorf("one recipe has all the memory, and its fair share is %g of %g", r.FairShare, p.Rate)
	}
}
