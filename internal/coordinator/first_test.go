package coordinator

import (
	"fmt"
	"slices"
	"testing"

	"larder/dsa"
	"larder/internal/ident"
	"larder/internal/xrand"
)

// early is a job without an exchangeable order that draws before the others do, and goes on beside them.
type early struct {
	name  string
	spec  func(*Register)
	given bool
}

var earlyJobs = []early{
	{"given", asGiven, true},
	{"sequential", order(dsa.Sequential), false},
	{"blocks", order(dsa.Blocks), false},
}

// begin registers the job and returns what has it draw one batch.
func (e early) begin(r *rig, samples int) func() {
	p := r.attach(r.register(e.name, 0, samples, 4, e.spec), 0)
	rng, epoch := xrand.New(5, 6), uint32(0)
	p.epoch(0)
	return func() {
		if e.given {
			var ids []ident.ObjectID
			for range 4 {
				ids = append(ids, ident.ObjectID(rng.IntN(samples)))
			}
			r.ok(p.give(epoch, r.job(p.job).Ranks[0].Step, false, ids))
		}
		if d := p.next(); d != nil {
			p.release(d)
			r.run()
		} else if !e.given {
			epoch++
			p.epoch(epoch)
		}
	}
}

// after runs two jobs with orders of their own for two epochs, perhaps after and beside an early one, and returns what
// they got.
func after(t *testing.T, mode dsa.Mode, tier int, e *early) (orders [2][]ident.ObjectID) {
	const samples = 80
	r := decodedTier(t, tier)
	draw := func() {}
	if e != nil {
		draw = e.begin(r, samples)
	}
	for range 30 {
		draw()
	}
	inMode := func(e *Register) { e.Sample.Mode, e.Sample.Seed = mode, 3 }
	a := r.attach(r.register("a", 0, samples*3/4, 5, inMode), 0)
	b := r.attach(r.register("b", samples/4, samples, 5, inMode), 0)
	for epoch := range uint32(2) {
		a.epoch(epoch)
		b.epoch(epoch)
		for more := true; more; {
			more = false
			for i, p := range []*peer{a, b} {
				if d := p.next(); d != nil {
					more = true
					orders[i] = append(orders[i], r.objects(d)...)
					p.release(d)
					r.run()
				}
			}
			draw()
		}
	}
	r.check()
	return orders
}

// A job without an exchangeable order that begins first fills the tiers before anyone else: no order of another job
// depends on that either.
func TestWhatBeganFirstReachesNoOrder(t *testing.T) {
	for _, mode := range []dsa.Mode{dsa.Stratified, dsa.Epoch, dsa.Strict, dsa.Fixed, dsa.Sequential} {
		for _, tier := range []int{0, 10, 20, 60, 80} {
			for _, e := range earlyJobs {
				t.Run(fmt.Sprintf("%s after %s in %d", mode, e.name, tier), func(t *testing.T) {
					alone, with := after(t, mode, tier, nil), after(t, mode, tier, &e)
					for i := range alone {
						if len(alone[i]) != 120 || !slices.Equal(alone[i], with[i]) {
							t.Errorf("job %d got other samples, or in another order:\n%v\n%v", i, alone[i], with[i])
						}
					}
				})
			}
		}
	}
}
