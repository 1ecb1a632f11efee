package coordinator

import (
	"fmt"
	"testing"

	"larder/internal/ident"
	"larder/jobs"
)

// A job that has ended keeps its numbers, and no set of samples: many trials on a large dataset cost no more than those
// that live.
func TestAnEndedJobKeepsNoSets(t *testing.T) {
	g := decodedTier(t, 10)
	const n, trials = 1000, 200
	most := 0
	for i := range trials {
		p := g.join(fmt.Sprint("trial", i), 0, n, 500, func(e *Register) { e.Spec.Epochs = 2 })
		if i%3 == 0 {
			p.drain() // else it ends in its epoch
		}
		held := jobs.SetBytes(g.c.life.jobs.All())
		if held < n/8 {
			t.Fatalf("%d bytes are counted of a job that lives", held)
		}
		most = max(most, held)
		p.detach(true)
		g.run()
		if got := jobs.SetBytes(g.c.life.jobs.All()); got != 0 {
			t.Fatalf("%d bytes are kept after trial %d", got, i)
		}
	}
	if most > 16*n {
		t.Errorf("one job of %d samples takes %d bytes", n, most)
	}
	v, ok := g.c.JobByID(ident.JobID(trials))
	if !ok || v.Spec.Subset != n || len(v.Ledgers) == 0 || v.Ledgers[0].Subset != n {
		t.Errorf("%+v", v)
	}
	g.check()
}
