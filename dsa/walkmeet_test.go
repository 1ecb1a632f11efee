package dsa

import (
	"fmt"
	"slices"
	"testing"

	"larder/internal/ident"
	"larder/internal/xrand"
)

// Beside jobs that walk through other blocks, or through none at the time, an order is what it is alone.
func TestWalkBesideOtherBlocks(t *testing.T) {
	const n, each, window, epochs = 3000, 4, 8, 2 // more blocks than a choice looks at
	run := func(others ...JobSpec) (out []ident.ObjectID) {
		s := New(3)
		must(t, s.Join(1, walkSpec(window, each, 5, span(0, n))))
		for i, spec := range others {
			must(t, s.Join(ident.JobID(i+2), spec))
			if spec.Subset[0] > 0 { // else it is idle
				must(t, s.StartEpoch(ident.JobID(i+2), 0))
			}
		}
		for epoch := range uint32(epochs) {
			must(t, s.StartEpoch(1, epoch))
			for x, ok := s.Next(1); ok; x, ok = s.Next(1) {
				out = append(out, x)
				for i := range others {
					s.Next(ident.JobID(i + 2))
				}
			}
		}
		return out
	}
	alone := run()
	if beside := run(walkSpec(window, each, 6, span(n, 3*n)), walkSpec(window, each, 7, span(0, n))); len(alone) !=
		epochs*n || !slices.Equal(alone, beside) {
		t.Error("others change the order of a job with which they share no block")
	}
}

// Jobs that share many small blocks, more than a choice looks at, read each 1.1 times if they are two, and a tenth more
// if they are three, whenever they begin and however fast they are; each gets each sample once.
func TestWalksMeetInManyBlocks(t *testing.T) {
	const n, each, window, epochs = 6000, 4, 16, 4
	const blocks = n / each
	for _, jobs := range []int{2, 3} {
		for seed := range uint64(4) {
			t.Run(fmt.Sprintf("%d jobs, seed %d", jobs, seed), func(t *testing.T) {
				rng := xrand.New(seed, 41)
				s := New(seed)
				h := hold(t, s)
				speed, begin := make([]int, jobs+1), make([]int, jobs+1) // of 4 samples; when the first has had so many
				for id := 1; id <= jobs; id++ {
					speed[id] = 2 + rng.IntN(3)
					if id > 1 {
						begin[id] = rng.IntN(n)
					}
				}
				speed[1] = 4
				had := make([]map[ident.ObjectID]bool, jobs+1)
				epoch := make([]uint32, jobs+1)
				for taken, from := 0, 0; ; {
					for id := 1; id <= jobs; id++ {
						if taken < begin[id] {
							continue
						}
						job := ident.JobID(id)
						if had[id] == nil {
							must(t, s.Join(job, walkSpec(window, each, uint64(id), span(0, n))))
							must(t, s.StartEpoch(job, 0))
							had[id] = map[ident.ObjectID]bool{}
						}
						for range speed[id] {
							if s.Remaining(job) == 0 {
								if len(had[id]) != n {
									t.Fatalf("job %d had %d of %d samples", id, len(had[id]), n)
								}
								epoch[id]++
								clear(had[id])
								must(t, s.StartEpoch(job, epoch[id]))
							}
							x, _ := h.next(job, each)
							had[id][x] = true
						}
					}
					if taken += speed[1]; taken == n { // all are there
						from = h.reads
					}
					if taken < (epochs+1)*n {
						continue
					}
					reads, most := h.reads-from, epochs*blocks*(10+jobs-1)/10
					t.Logf("%.3f reads of each block an epoch", float64(reads)/epochs/blocks)
					if reads > most {
						t.Errorf("%d reads of %d blocks in %d epochs, at most %d are allowed", reads, blocks, epochs, most)
					}
					must(t, s.Check())
					return
				}
			})
		}
	}
}
