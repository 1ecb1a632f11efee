package coordinator

import (
	"fmt"
	"slices"
	"testing"

	"larder/dsa"
	"larder/internal/ident"
	"larder/internal/testenv/lane"
	"larder/internal/xrand"
	"larder/jobs"
)

// other is a job whose order is its own: given, that of the dataset, or through blocks.
type other struct {
	name  string
	spec  func(*Register)
	given bool
}

var others = []other{
	{"given", asGiven, true},
	{"sequential", order(dsa.Sequential), false},
	{"blocks", order(dsa.Blocks), false},
}

// begin registers the job for objects from..to-1, and returns what has it draw one batch.
// With hold, what is prepared for it, and what it reads, is under way afterwards.
func (o other) begin(r *rig, from, to int, hold bool, change func(*Register)) func() {
	p := r.attach(r.register(o.name, from, to, 4, change, o.spec), 0)
	rng, epoch := xrand.New(5, 6), uint32(0)
	p.epoch(0)
	return func() {
		if hold {
			r.hold = func(e Effect) bool {
				w, preparing := e.(Prepare)
				x, filling := e.(*Fill)
				return preparing && w.Job == p.job || filling && x.Job == p.job
			}
		}
		if o.given {
			var ids []ident.ObjectID
			for range 4 {
				ids = append(ids, ident.ObjectID(from+rng.IntN(to-from)))
			}
			r.ok(p.give(epoch, r.job(p.job).Ranks[0].Step, false, ids))
		}
		if d := p.next(); d != nil {
			p.release(d)
			r.run()
		} else if !o.given {
			epoch++
			p.epoch(epoch)
		}
	}
}

// moment is when another job begins, and what is done with it.
type moment uint8

const (
	never   moment = iota
	before         // it has filled what is free when the shuffled jobs register
	between        // in the middle of their second epoch; it leaves in the third
	within         // it registers after the first of them, and before the second
)

// world is a simulation: shuffled jobs in a mode, and perhaps another job.
type world struct {
	mode    dsa.Mode
	samples int
	tiers   [ident.NumForms]int64
	change  []func(*Register) // for each of two shuffled jobs
	epochs  int
	config  func(*Config) // nil = none
	other   func(*Register)
	bytes   func(ident.ObjectID) int64
	hold    bool // what the other job has made or reads is under way when a shuffled job's next batch is planned
}

// run runs two shuffled jobs for some epochs, beside the other job from some moment on, and returns what they got and
// what was done for them.
func (w *world) run(t *testing.T, at moment, o other) (orders [2][]ident.ObjectID, done [2]jobs.Stats) {
	r := newRig(t, w.tiers, w.config)
	r.bytes = w.bytes
	draw, leave := func() {}, func() {}
	begin := func(now moment) {
		if at == now {
			draw = o.begin(r, w.samples/8, w.samples, w.hold, w.other)
			id := r.c.roster.order[len(r.c.roster.order)-1].job.ID
			leave = func() { r.ok(r.ask(func(t Token) Event { return Kill{Token: t, Job: id} })) }
		}
	}
	begin(before)
	for range w.samples / 6 {
		draw()
		r.hold = nil
		r.run()
	}
	inMode := func(e *Register) { e.Sample.Mode, e.Sample.Seed = w.mode, 3 }
	var peers [2]*peer
	for i, from := range []int{0, w.samples / 4} {
		peers[i] = r.attach(r.register(string(rune('a'+i)), from, from+w.samples*3/4, 5, inMode, w.change[i]), 0)
		if i == 0 {
			begin(within)
		}
	}
	for epoch := range uint32(w.epochs) {
		for _, p := range peers {
			p.epoch(epoch)
		}
		r.hold = nil
		r.run()
		step := 0
		for more := true; more; step++ {
			more = false
			for i, p := range peers {
				if d := p.next(); d != nil {
					more = true
					orders[i] = append(orders[i], r.objects(d)...)
					p.release(d)
					r.hold = nil
					r.run()
				}
			}
			r.hold = nil
			r.run()
			draw()
			switch {
			case epoch == 1 && step == 3:
				begin(between)
			case epoch == 2 && step == 3 && at == between:
				leave()
				draw = func() {}
			}
		}
	}
	r.check()
	for i, p := range peers {
		done[i] = r.job(p.job).Stats
	}
	return orders, done
}

// same runs a world without and with the other job.
func (w *world) same(t *testing.T, at moment, o other, alone [2][]ident.ObjectID, did [2]jobs.Stats) {
	with, does := w.run(t, at, o)
	for i := range alone {
		k := 0
		for k < min(len(alone[i]), len(with[i])) && alone[i][k] == with[i][k] {
			k++
		}
		if len(alone[i]) != w.epochs*w.samples*3/4 || !slices.Equal(alone[i], with[i]) {
			t.Errorf("job %d got other samples, or in another order, from place %d of %d on", i, k, len(alone[i]))
		}
	}
	decodes := func(s [2]jobs.Stats) uint64 { return s[0].Decodes + s[1].Decodes }
	if decodes(does) > decodes(did) {
		t.Errorf("%d decodes instead of %d", decodes(does), decodes(did))
	}
}

// A job whose order is given, that of the dataset, or through blocks, reaches no order of a shuffled job: whether it
// begins before them, between, or in the middle of an epoch, and ends, however much of the samples the tiers hold.
func TestOrdersOfTheirOwnReachNoOtherOrder(t *testing.T) {
	none := func(*Register) {}
	decoded := func(n int) [ident.NumForms]int64 { return [ident.NumForms]int64{ident.Decoded: int64(n) * sampleBytes} }
	sizes := [][2]int{{80, 20}, {400, 100}, {400, 300}} // samples, and how many of them the tier holds
	if lane.Nightly() {
		sizes = append(sizes, [][2]int{{80, 0}, {80, 80}, {400, 20}, {400, 150}}...)
	}
	for _, at := range sizes {
		for _, mode := range []dsa.Mode{dsa.Stratified, dsa.Epoch, dsa.Strict, dsa.Fixed} {
			w := &world{mode: mode, samples: at[0], tiers: decoded(at[1]), change: []func(*Register){none, none}, other: none,
				epochs: 3, config: func(*Config) {}}
			alone, did := w.run(t, never, other{})
			for _, o := range others {
				for when, name := range map[moment]string{before: "before", between: "between", within: "within"} {
					t.Run(fmt.Sprintf("%s, %s %s, %d in %d", mode, o.name, name, at[0], at[1]), func(t *testing.T) {
						w.same(t, when, o, alone, did)
					})
				}
			}
		}
	}
}

// The same where there is more to be decided: two tiers, recipes that begin otherwise, samples that are prepared in
// place, samples of many sizes, policies, and more entries than one Step looks at.
func TestOrdersOfTheirOwnReachNoOtherOrderInManyWorlds(t *testing.T) {
	none := func(*Register) {}
	prefix := func(p ident.RecipeID) func(*Register) { return func(e *Register) { e.Prefix = p } }
	tiers := func(encoded, decoded int) [ident.NumForms]int64 {
		return [ident.NumForms]int64{ident.Encoded: int64(encoded) * 100, ident.Decoded: int64(decoded) * sampleBytes}
	}
	two := func(change func(*Register)) []func(*Register) { return []func(*Register){change, change} }
	plain, place, apart := two(none), two(fixedShape), []func(*Register){none, prefix(7)}
	sizes := func(c *Config) {
		c.Bytes = func(x ident.ObjectID) int64 { return 50 + int64(xrand.Hash(uint64(x))%200) }
	}
	refcount := func(c *Config) { c.Tiers.Policy[ident.Decoded] = "refcount" }
	share := func(e *Register) { e.Share, e.Key, e.AugmentedBytes = true, 5, 150 }
	shared := tiers(0, 30)
	shared[ident.Augmented] = 20 * 150
	worlds := map[string]world{
		"encoded alone":        {samples: 120, tiers: tiers(40, 0), change: plain},
		"two tiers":            {samples: 120, tiers: tiers(40, 30), change: plain},
		"large tiers":          {samples: 120, tiers: tiers(90, 60), change: plain},
		"two prefixes":         {samples: 120, tiers: tiers(40, 30), change: apart},
		"two, large tiers":     {samples: 120, tiers: tiers(60, 150), change: apart},
		"third prefix":         {samples: 120, tiers: tiers(40, 30), change: apart, other: prefix(8)},
		"in place":             {samples: 120, tiers: tiers(40, 30), change: place, other: fixedShape},
		"in place, no tier":    {samples: 120, change: place, other: fixedShape},
		"in place, decoded":    {samples: 120, tiers: tiers(0, 40), change: place, other: fixedShape},
		"stored sizes":         {samples: 120, tiers: tiers(80, 0), change: plain, config: sizes},
		"refcount":             {samples: 120, tiers: tiers(0, 40), change: plain, config: refcount},
		"many entries":         {samples: 1600, tiers: tiers(0, 700), change: plain},
		"share group":          {samples: 120, tiers: shared, change: two(share), other: share},
		"under way":            {samples: 60, tiers: tiers(0, 20), change: plain, hold: true},
		"under way, in place":  {samples: 60, tiers: tiers(0, 20), change: place, other: fixedShape, hold: true},
		"under way, two tiers": {samples: 60, tiers: tiers(30, 20), change: plain, hold: true},
		"under way, prefixes":  {samples: 120, tiers: tiers(40, 30), change: apart, hold: true},
	}
	for name, w := range worlds {
		for _, mode := range []dsa.Mode{dsa.Stratified, dsa.Epoch} {
			w.mode, w.epochs = mode, 3
			if w.config == nil {
				w.config = func(*Config) {}
			}
			if w.other == nil {
				w.other = none
			}
			alone, did := w.run(t, never, other{})
			for _, o := range others {
				for when, at := range map[moment]string{before: "before", between: "between", within: "within"} {
					t.Run(fmt.Sprintf("%s, %s, %s %s", name, mode, o.name, at), func(t *testing.T) {
						w.same(t, when, o, alone, did)
					})
				}
			}
		}
	}
}
