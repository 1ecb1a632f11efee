package live

import (
	"testing"

	"larder/bench/coresim"
	"larder/bench/measure"
)

// Reads may differ by 15 %, what depends on no timing by nothing in any run, and what does is reported but not judged.
func TestCompare(t *testing.T) {
	run := func(reads, samples, augments uint64) *measure.Run {
		return &measure.Run{Counts: measure.Counts{SourceReads: reads, Decodes: reads, Samples: samples, Batches: samples / 8,
			Augments: augments}, Makespan: float64(reads)}
	}
	killed := func(r *measure.Run) *measure.Run { r.Recovery = &measure.Recovery{}; return r }
	plain := &coresim.World{Jobs: []coresim.Job{{Name: "a"}}}
	shares := &coresim.World{Jobs: []coresim.Job{{Name: "a", Share: true}}}
	leaves := &coresim.World{Jobs: []coresim.Job{{Name: "a", Leave: 1}}}
	for _, c := range []struct {
		name   string
		w      *coresim.World
		sim    *measure.Run
		runs   []*measure.Run
		failed string // the count that is judged wrong
	}{
		{"equal", plain, run(100, 80, 80), []*measure.Run{run(100, 80, 80)}, ""},
		{"reads within", plain, run(114, 80, 80), []*measure.Run{run(100, 80, 80), run(300, 80, 80), run(90, 80, 80)}, ""},
		{"reads beyond", plain, run(116, 80, 80), []*measure.Run{run(100, 80, 80)}, "source_reads"},
		{"reads below", plain, run(84, 80, 80), []*measure.Run{run(100, 80, 80)}, "source_reads"},
		{"a sample more", plain, run(100, 81, 80), []*measure.Run{run(100, 80, 80)}, "samples_delivered"},
		{"one run differs", plain, run(100, 80, 80), []*measure.Run{run(100, 80, 80), run(100, 80, 80), run(100, 80, 81)},
			"augments"},
		{"augments that are shared", shares, run(100, 80, 80), []*measure.Run{run(100, 80, 99)}, ""},
		{"a job that leaves", leaves, run(100, 80, 80), []*measure.Run{run(100, 88, 88)}, ""},
		{"memory that a death took", plain, run(100, 80, 80), []*measure.Run{killed(run(150, 80, 90))}, ""},
		{"a sample that a death took", plain, run(100, 80, 80), []*measure.Run{killed(run(150, 81, 90))},
			"samples_delivered"},
		{"reads that were none", plain, run(5, 80, 80), []*measure.Run{run(0, 80, 80)}, "source_reads"},
	} {
		failed := ""
		for _, d := range Compare(c.w, c.sim, c.runs) {
			if !d.OK {
				failed = d.What
			}
			if d.Allowed == nil && !d.OK {
				t.Errorf("%s: %s is reported, and judged", c.name, d.What)
			}
		}
		if failed != c.failed {
			t.Errorf("%s: %q is wrong, want %q", c.name, failed, c.failed)
		}
	}
}
