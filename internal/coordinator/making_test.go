package coordinator

import (
	"testing"

	"larder/dsa"
	"larder/internal/ident"
)

func made(m Making, bytes int64) func(*Register) {
	return func(e *Register) {
		e.Making, e.AugmentedBytes, e.Prefix, e.Suffix, e.Dataset = m, bytes, 7, 8, 7
	}
}

// What no worker makes bounds nothing: all of it is handed out, and images go on as if it were not there. When a
// worker comes its batches come.
func TestForeignWorkBoundsNothing(t *testing.T) {
	r := decodedTier(t, 500)
	images := r.join("images", 0, 40, 10, order(dsa.Stratified), slots(2))
	r.hold = func(e Effect) bool {
		switch x := e.(type) {
		case Prepare:
			return x.Key.Recipe == 7
		case *Fill:
			return x.From.Key.Recipe == 7
		}
		return false
	}
	python := r.join("python", 100, 300, 50, order(dsa.Stratified), slots(4), made(Making{Workers: true}, 100))
	r.run()
	if n := len(r.todo); n != 200 {
		t.Errorf("%d tasks are handed out of 4 batches of 50", n)
	}
	r.check()
	r.run()
	for range 4 {
		images.release(images.must())
		r.run()
	}
	r.check()
	r.hold = nil
	r.run()
	for range 4 {
		python.release(python.must())
		r.run()
	}
	r.check()
}

// The turns of foreign work are their own: however much of it waits, or was done, a job of images that comes later is
// not behind it, and not before another one.
func TestForeignWorkHasTurnsOfItsOwn(t *testing.T) {
	r := decodedTier(t, 500)
	r.join("python", 100, 300, 50, order(dsa.Stratified), slots(4), made(Making{Workers: true}, 100))
	r.run()
	if r.c.flights.turn != 0 || r.c.flights.foreignTurn == 0 {
		t.Errorf("the clocks are at %d and %d", r.c.flights.turn, r.c.flights.foreignTurn)
	}
	r.check()
}

// The number of a sample is kept in no tier, and nothing that workers make in the encoded one.
func TestBareSamplesAreNotKept(t *testing.T) {
	r := newRig(t, [ident.NumForms]int64{ident.Encoded: 1 << 20, ident.Decoded: 1 << 20})
	p := r.join("a", 0, 100, 10, order(dsa.Stratified), slots(2), made(Making{Workers: true, Bare: true}, 100))
	r.run()
	for range 5 {
		p.release(p.must())
		r.run()
	}
	for _, v := range r.c.Tiers() {
		if v.Entries != 0 {
			t.Errorf("%s holds %d entries", v.Form, v.Entries)
		}
	}
	for _, x := range r.prepares {
		if x.Keep || x.KeepEncoded {
			t.Errorf("%+v", x)
		}
	}
	r.check()
}

// Items are kept, and random steps are done apart from them where not every worker can do both.
func TestItemsAreKept(t *testing.T) {
	for _, steps := range []bool{false, true} {
		r := newRig(t, [ident.NumForms]int64{ident.Encoded: 1 << 20, ident.Decoded: 1 << 20})
		p := r.join("a", 0, 60, 10, order(dsa.Stratified), slots(2), made(Making{Workers: true, InSteps: steps}, 100))
		for epoch := range uint32(2) {
			if epoch > 0 {
				p.epoch(epoch)
			}
			r.run()
			p.drain()
		}
		if n := len(r.prepares); n != 60 {
			t.Errorf("in steps %v: %d items were made of 60", steps, n)
		}
		for _, x := range r.prepares {
			if steps && x.Into != nil || x.KeepEncoded {
				t.Errorf("in steps %v: %+v", steps, x)
			}
		}
		r.check()
	}
}

// A sample that was tried again already is not tried a third time.
func TestTriedSamplesAreBadAtOnce(t *testing.T) {
	r := newRig(t, [ident.NumForms]int64{})
	tries := 0
	r.hold = func(e Effect) bool { _, prepare := e.(Prepare); return prepare }
	p := r.join("a", 0, 10, 10, order(dsa.Stratified), slots(2), made(Making{Workers: true, InSteps: true}, 100))
	r.run()
	for i := 0; i < len(r.todo); i++ {
		if x, ok := r.todo[i].(Prepare); ok {
			r.todo = append(r.todo[:i], r.todo[i+1:]...)
			i--
			if tries++; x.Key.Object == 3 {
				r.step(Prepared{Flight: x.Flight, Err: "two workers died", Tried: true})
			} else {
				r.step(Prepared{Flight: x.Flight, Bytes: 10})
			}
			r.run()
		}
	}
	d := p.must()
	if len(d.Bad) != 1 || d.Bad[0].Object != 3 || d.Bad[0].Reason != "two workers died" || tries < 10 {
		t.Errorf("%d tries, %+v", tries, d)
	}
	r.check()
}

// The model knows what a record costs: it is in the demand with its size and its workers' rate, and the encoded tier
// gets nothing for it.
func TestTheModelKnowsRecords(t *testing.T) {
	r := newRig(t, [ident.NumForms]int64{}, auto(100_000))
	r.join("images", 0, 100, 10, order(dsa.Stratified), slots(2))
	r.join("python", 200, 300, 10, order(dsa.Stratified), slots(2), made(Making{Workers: true}, 1000))
	rt := slowCPU
	rt.Recipes = append(rt.Recipes[:1:1], RecipeRates{Dataset: 7, Prefix: 7, Suffix: 8, Decode: 100})
	r.step(Measured{rt})
	r.run()
	if len(r.solves) == 0 {
		t.Fatalf("nothing was solved: %+v", r.c.Stats())
	}
	d := r.solves[len(r.solves)-1].Demand
	if len(d.Datasets) != 2 {
		t.Fatalf("%+v", d)
	}
	q := d.Datasets[1].Recipes[0]
	if d.Datasets[1].Stored != 1 || q.Decoded != sampleBytes || q.Augment != 1e10/sampleBytes ||
		q.DecodeAugment < 99 || q.DecodeAugment > 100 {
		t.Errorf("%+v", d.Datasets[1])
	}
	if b := budgets(r); b[ident.Decoded] < 90_000 {
		t.Errorf("%v, %+v", b, r.c.Stats())
	}
	r.check()
}
