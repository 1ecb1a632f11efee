package work

import (
	"math"
	"testing"
	"testing/synctest"
	"time"
)

// TestMachine: what workers and storage do now, and did over the last second.
func TestMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMeters(3, 2)
		near := func(what string, got, want float64) {
			t.Helper()
			if math.Abs(got-want) > 0.02 {
				t.Errorf("%s: %.3f, want %.3f", what, got, want)
			}
		}
		a := m.reading()
		time.Sleep(3 * time.Second)
		b := m.reading()
		time.Sleep(2 * time.Second)
		got := m.Machine()
		if got.Reads != 2 || got.Busy != 0 || got.Oldest != 5*time.Second {
			t.Errorf("%+v", got)
		}
		near("storage", got.Storage, 1)
		near("cores", got.Cores, 0)
		a.end(10)
		if got = m.Machine(); got.Reads != 1 || got.Oldest != 2*time.Second {
			t.Errorf("%+v", got)
		}
		b.end(10)
		var p [3]piece
		for i := range p {
			p[i] = m.work(RecipeKey{1, 2, 3}, Decode)
		}
		time.Sleep(10 * time.Second)
		got = m.Machine()
		if got.Reads != 0 || got.Oldest != 0 || got.Busy != 3 {
			t.Errorf("%+v", got)
		}
		near("storage", got.Storage, 0)
		near("cores", got.Cores, 1) // there are two, and three workers
		p[0].end(0, 1)
		p[1].end(0, 1)
		time.Sleep(10 * time.Second)
		near("one of two cores", m.Machine().Cores, 0.5)
		p[2].end(0, 1)
		time.Sleep(time.Second)
		near("a second later", m.Machine().Cores, 0.5/math.E)
	})
}
