package engine

import (
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"larder/internal/ident"
)

// TestMetersMeasure: what a minute of virtual time with known costs comes to.
func TestMetersMeasure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMeters(3, 2)
		key := recipeKey{1, 2, 3}
		near := func(what string, got, want float64) {
			t.Helper()
			if math.Abs(got-want) > want/1000 {
				t.Errorf("%s: %g, want %g", what, got, want)
			}
		}
		one := func(s step, d, wait time.Duration, good bool) {
			p := m.workOn(key, s)
			time.Sleep(d)
			p.end(wait, good)
		}
		for range minSeen - 1 {
			one(stepDecode, 10*time.Millisecond, 0, true)
		}
		if r := m.rates(); r.Recipes[0].Decode != 0 || r.Storage != 0 {
			t.Errorf("%+v is measured from too few samples", r)
		}
		for range 40 {
			one(stepDecode, 12*time.Millisecond, 2*time.Millisecond, true)
			one(stepDecode, time.Second, 0, false) // what fails is no measure
			one(stepAugment, 5*time.Millisecond, 0, true)
		}
		r := m.rates()
		near("decode", r.Recipes[0].Decode, 2/0.010) // two cores
		near("augment", r.Recipes[0].Augment, 2/0.005)
		if r.Recipes[0].Finish != 0 {
			t.Error("nothing was finished")
		}
		if k := r.Recipes[0]; k.Dataset != 1 || k.Prefix != 2 || k.Suffix != 3 {
			t.Errorf("%+v", k)
		}
		// Storage counts the time in which anything is read: two reads at once share it.
		for range minSeen {
			a := m.reading()
			time.Sleep(10 * time.Millisecond)
			b := m.reading()
			time.Sleep(10 * time.Millisecond)
			a.end(1000)
			time.Sleep(10 * time.Millisecond)
			b.end(2000)
			time.Sleep(time.Second) // nothing is read
		}
		near("storage", m.rates().Storage, 3000/0.030)
		// Three workers on two cores have two thirds of one each.
		var pieces []piece
		for range 3 {
			pieces = append(pieces, m.workOn(recipeKey{9, 9, 9}, stepDecode))
		}
		time.Sleep(30 * time.Millisecond)
		for _, p := range pieces {
			p.end(0, true)
		}
		if m.computing.Load() != 0 {
			t.Error("somebody still computes")
		}
		if c := m.mu.recipes[recipeKey{9, 9, 9}].decode; c.seconds < 0.060 || c.seconds > 0.090 {
			t.Errorf("30 ms of two cores count for %g s", c.seconds)
		}
		// The past fades: twice as fast is seen before as much again has been done.
		for range 10_000 {
			one(stepAugment, 5*time.Millisecond, 0, true)
			if len(m.mu.recipes) > 0 && m.mu.recipes[key].augment.seconds > enough {
				m.rates()
			}
		}
		for range 2000 {
			one(stepAugment, 2500*time.Microsecond, 0, true)
			if m.mu.recipes[key].augment.seconds > enough {
				m.rates()
			}
		}
		if v := m.rates().Recipes[0].Augment; v < 600 {
			t.Errorf("%g a second, at 800 for as long as there was to forget", v)
		}
		m.forget(func(k recipeKey) bool { return k.dataset == ident.DatasetID(9) })
		if n := len(m.rates().Recipes); n != 1 {
			t.Errorf("%d recipes are left", n)
		}
	})
}

// TestWhatIsDoneInPlaceIsMeasuredNowAndThen: one in so many, and the first ones until their costs are known.
func TestWhatIsDoneInPlaceIsMeasuredNowAndThen(t *testing.T) {
	m, key := newMeters(2, 2), recipeKey{1, 2, 3}
	n := 0
	for range 10 * measureEvery {
		if m.dueOn(key) {
			for _, s := range [...]step{stepDecode, stepAugment} {
				p := m.workOn(key, s)
				p.end(0, true)
			}
			n++
		} else {
			p := m.workOn(key, stepInPlace)
			p.end(0, true)
		}
	}
	if c := m.mu.recipes[key]; n != minSeen+10 || c.decode.seen != n || c.augment.seen != n || c.finish.seen != 0 || m.computing.Load() != 0 {
		t.Errorf("%d of %d were measured: %+v", n, 10*measureEvery, c)
	}
}

func TestMemoryIsMeasured(t *testing.T) {
	m := newMeters(2, 2)
	m.measureMemory()
	if r := m.rates().Cache; r < 1e8 || r > 1e13 {
		t.Errorf("%g bytes a second", r)
	}
}

// TestStrataSets: quartiles of what differs, groups of classes; the last part is what is in none.
func TestStrataSets(t *testing.T) {
	var all []strataItem
	for i := range 103 {
		all = append(all, strataItem{ident.ObjectID(i), int64(i * 37 % 103)})
	}
	sets := quartiles(slices.Clone(all))
	if len(sets) != 3 || len(sets[0])+len(sets[1])+len(sets[2]) != 78 {
		t.Fatalf("%d sets", len(sets))
	}
	for q, set := range sets {
		for _, x := range set {
			if key := int(x) * 37 % 103; key*4/103 != q {
				t.Errorf("the object of rank %d is in quartile %d", key, q)
			}
		}
	}
	for classes, want := range map[int]int{0: 0, 1: 0, 2: 1, 16: 15, 40: 15, 1000: 15} {
		for i := range all {
			all[i].key = int64(i % max(1, classes))
		}
		sets := labelGroups(all, classes)
		if len(sets) != min(want, 102) && classes < 1000 {
			t.Errorf("%d classes make %d sets", classes, len(sets))
		}
		seen := map[ident.ObjectID]bool{}
		for _, set := range sets {
			for _, x := range set {
				if seen[x] {
					t.Fatalf("object %d is in two sets", x)
				}
				seen[x] = true
			}
		}
	}
	if quartiles(nil) != nil && len(quartiles(nil)) > 0 || len(labelGroups(nil, 5)) > 0 {
		t.Error("sets of nothing")
	}
}
