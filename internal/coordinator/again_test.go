package coordinator

import (
	"slices"
	"testing"

	"larder/internal/ident"
	"larder/jobs"
)

// TestAnEpochThatBeginsAgainIsDealtOnce: an epoch is prepared ahead for two ranks, and a new client of one of them
// asks for it. It begins again when the other rank asks too, which has seen nothing of it: each sample comes once.
func TestAnEpochThatBeginsAgainIsDealtOnce(t *testing.T) {
	for _, m := range allModes {
		for _, changed := range []bool{false, true} {
			r := decodedTier(t, 100)
			job := r.register("a", 0, 8, 2, order(m), slots(4), func(e *Register) {
				e.Spec.World, e.Spec.Even, e.Spec.OnError = 2, true, jobs.Substitute
			})
			p, q := r.attach(job, 0), r.attach(job, 1)
			p.epoch(0)
			q.epoch(0)
			first := append(p.drain(), q.drain()...)
			if !slices.Equal(sorted(first), objectsFrom(0, 8)) {
				t.Fatalf("%s: the first epoch had %v", m, first)
			}
			if j := r.job(job); j.Epoch != 1 {
				t.Fatalf("%s: epoch %d is the newest", m, j.Epoch)
			}
			q.detach(true)
			q = r.attach(job, 1)
			q.epoch(1)
			r.run()
			want := objectsFrom(0, 8)
			if changed {
				r.ok(r.change(p, 7, objectsFrom(20, 40)))
				want = objectsFrom(20, 40)
			}
			p.epoch(1)
			r.run()
			var got []ident.ObjectID
			for range 3 { // each may wait for what the other one releases
				got = append(got, p.drain()...)
				got = append(got, q.drain()...)
			}
			if !slices.Equal(sorted(got), want) {
				t.Errorf("%s, changed %v: the epoch that began again had %v", m, changed, sorted(got))
			}
			r.check()
		}
	}
}
