package work

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"larder/internal/ident"
)

// TestMetersMeasure: what a minute of virtual time with known costs comes to.
func TestMetersMeasure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMeters(3, 2)
		key := RecipeKey{1, 2, 3}
		near := func(what string, got, want float64) {
			t.Helper()
			if math.Abs(got-want) > want/1000 {
				t.Errorf("%s: %g, want %g", what, got, want)
			}
		}
		one := func(s Step, d, wait time.Duration, good int) {
			p := m.work(key, s)
			time.Sleep(d)
			p.end(wait, good)
		}
		for range minSeen - 1 {
			one(Decode, 10*time.Millisecond, 0, 1)
		}
		if r := m.Rates(); r.Recipes[0].Decode != 0 || r.Storage != 0 {
			t.Errorf("%+v is measured from too few samples", r)
		}
		for range 40 {
			one(Decode, 12*time.Millisecond, 2*time.Millisecond, 1)
			one(Decode, time.Second, 0, 0) // what fails is no measure
			one(Augment, 5*time.Millisecond, 0, 1)
		}
		r := m.Rates()
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
		near("storage", m.Rates().Storage, 3000/0.030)
		// Three workers on two cores have two thirds of one each.
		var pieces []piece
		for range 3 {
			pieces = append(pieces, m.work(RecipeKey{9, 9, 9}, Decode))
		}
		time.Sleep(30 * time.Millisecond)
		for _, p := range pieces {
			p.end(0, 1)
		}
		if m.computing.Load() != 0 {
			t.Error("a worker still computes")
		}
		if c := m.mu.recipes[RecipeKey{9, 9, 9}].decode; c.seconds < 0.060 || c.seconds > 0.090 {
			t.Errorf("30 ms of two cores count for %g s", c.seconds)
		}
		pastFades(t, m, key, one)
		m.Forget(func(k RecipeKey) bool { return k.Dataset == ident.DatasetID(9) })
		if n := len(m.Rates().Recipes); n != 1 {
			t.Errorf("%d recipes are left", n)
		}
	})
}

// pastFades works for long, and then twice as fast: that is seen before as much again has been done.
func pastFades(t *testing.T, m *Meters, key RecipeKey, one func(s Step, d, wait time.Duration, good int)) {
	t.Helper()
	for range 10_000 {
		one(Augment, 5*time.Millisecond, 0, 1)
		if len(m.mu.recipes) > 0 && m.mu.recipes[key].augment.seconds > enough {
			m.Rates()
		}
	}
	for range 2000 {
		one(Augment, 2500*time.Microsecond, 0, 1)
		if m.mu.recipes[key].augment.seconds > enough {
			m.Rates()
		}
	}
	if v := m.Rates().Recipes[0].Augment; v < 600 {
		t.Errorf("%g a second, at 800 for as long as there was to forget", v)
	}
}

// TestGapsOfTheClockAreNoWork: a worker that the system stops for 400 ms while it works on a sample of 0.4 ms moves the
// mean by little, wherever that sample comes; costs that really grow are followed.
func TestGapsOfTheClockAreNoWork(t *testing.T) {
	for at := range 2 * minSeen {
		var e effort
		for i := range 4 * minSeen {
			took := 0.4e-3
			if i == at {
				took = 400e-3
			}
			e.add(1, took)
		}
		// The gap counts for outlier times the usual cost at most: 15 samples more among 64.
		if mean := e.seconds / e.n; mean < 0.4e-3 || mean > 0.4e-3*(1+float64(outlier)/(4*minSeen)) {
			t.Errorf("a gap at sample %d: %.3f ms a sample", at, 1e3*mean)
		}
		for range 40 * minSeen {
			e.add(1, 400e-3)
		}
		if mean := e.seconds / e.n; mean < 0.3 {
			t.Errorf("samples of 400 ms are measured as %.3f ms", 1e3*mean)
		}
	}
	var e effort // one of ten is a hundred times as large: all of them count
	for i := range 100 * minSeen {
		if i%10 == 9 {
			e.add(1, 40e-3)
		} else {
			e.add(1, 0.4e-3)
		}
	}
	if mean := e.seconds / e.n; mean < 4e-3 {
		t.Errorf("a mean of 4.36 ms is measured as %.3f ms", 1e3*mean)
	}
	e = effort{} // of groups of samples one is late
	for i := range 4 * minSeen {
		took := 32 * 1e-6
		if i == minSeen/2 || i == 2*minSeen {
			took += 10e-3
		}
		e.add(32, took)
	}
	if mean := e.seconds / e.n; mean > 1.03e-6 || e.seen != 4*minSeen {
		t.Errorf("1 us a sample is measured as %.3f us, in %d looks", 1e6*mean, e.seen)
	}
	e = effort{} // groups, and a clock that stands still
	for range 2 * minSeen {
		e.add(8, 0)
	}
	if e.add(8, 8e-3); e.seconds != 8e-3 || e.n != 8*(2*minSeen+1) {
		t.Errorf("%g s for %g samples", e.seconds, e.n)
	}
}

// TestWhatIsDoneInPlaceIsMeasuredNowAndThen: one in so many, and the first ones until their costs are known.
func TestWhatIsDoneInPlaceIsMeasuredNowAndThen(t *testing.T) {
	m, key := NewMeters(2, 2), RecipeKey{1, 2, 3}
	n := 0
	for range 10 * measureEvery {
		if m.due(key) {
			for _, s := range [...]Step{Decode, Augment} {
				p := m.work(key, s)
				p.end(0, 1)
			}
			n++
		} else {
			p := m.work(key, InPlace)
			p.end(0, 1)
		}
	}
	c := m.mu.recipes[key]
	if n != minSeen+10 || c.decode.seen != n || c.augment.seen != n || c.finish.seen != 0 || m.computing.Load() != 0 {
		t.Errorf("%d of %d were measured: %+v", n, 10*measureEvery, c)
	}
}

func TestMemoryIsMeasured(t *testing.T) {
	m := NewMeters(2, 2)
	m.MeasureMemory()
	if r := m.Rates().Cache; r < 1e8 || r > 1e13 {
		t.Errorf("%g bytes a second", r)
	}
}

// TestIdleIsACoreWithoutWork: also with more workers than cores. A gap in a busy second is not idle.
func TestIdleIsACoreWithoutWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, key := NewMeters(4, 2), RecipeKey{1, 2, 3}
		var under []piece
		for n := range 4 {
			if idle := m.Idle(); idle != (n < 2) {
				t.Errorf("%d workers of 2 cores compute: idle %v", n, idle)
			}
			under = append(under, m.work(key, Decode))
		}
		time.Sleep(10 * time.Second)
		for i := range under {
			under[i].end(0, 1)
		}
		if m.Idle() {
			t.Error("idle in a gap between two pieces of work")
		}
		time.Sleep(time.Second)
		if !m.Idle() {
			t.Error("busy when nothing computes for a second")
		}
	})
}
