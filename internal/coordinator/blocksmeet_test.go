package coordinator

import (
	"fmt"
	"testing"

	"larder/dsa"
	"larder/internal/ident"
	"larder/internal/xrand"
	"larder/jobs"
)

// unevenBlocks puts n objects into blocks of 1 to 30, one behind the other, in which small ones are joined up to most.
func unevenBlocks(seed uint64, n, most int) (of []uint32, blocks int) {
	rng, sizes := xrand.New(seed, 23), []int{1, 2, 9, 14, 30}
	for at := 0; at < n; blocks++ {
		k := sizes[rng.IntN(len(sizes))]
		for more := sizes[rng.IntN(len(sizes))]; k+more <= most; more = sizes[rng.IntN(len(sizes))] {
			k += more
		}
		for k = min(k, n-at); k > 0; k-- {
			of = append(of, uint32(blocks))
			at++
		}
	}
	return of, blocks
}

// reader counts blocks that come into memory.
type reader struct {
	held  map[uint32]int
	reads int
}

func (m *reader) see(e Effect) {
	switch x := e.(type) {
	case HoldBlock:
		if m.held[x.Block] == 0 {
			m.reads++
		}
		m.held[x.Block]++
	case DropBlock:
		m.held[x.Block]--
	}
}

// In an epoch of the faster of two jobs, blocks come into memory 1.1 times at the most: when they begin together, when
// the second one begins later, and when one is slower. Blocks are very uneven, and the batches ahead hold a fifth of a
// window. What the first job had of its epoch by itself is left out.
func TestTwoJobsReadBlocksOnce(t *testing.T) {
	const n, window, batch, epochs = 2400, 8, 8, 4
	for _, c := range []struct {
		late  int // tenths of its epoch that the first job has had when the second begins
		steps int // of the second job for 4 of the first one
		join  int // samples of small blocks that are joined
	}{
		{0, 4, 0}, {0, 4, 30}, {4, 4, 0}, {4, 4, 30}, {8, 4, 0}, {1, 4, 30},
		{0, 2, 0}, {0, 3, 30}, {4, 2, 0}, {4, 3, 0}, {4, 1, 30},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			of, blocks := unevenBlocks(uint64(c.late+c.steps), n, c.join)
			r := decodedTier(t, 0)
			m := &reader{held: map[uint32]int{}}
			r.see = m.see
			walker := func(name string, seed uint64) *peer {
				return r.join(name, 0, n, batch, slots(3), order(dsa.Blocks), func(e *Register) {
					e.Sample.Window, e.Sample.Seed, e.Spec.Advance = window, seed, jobs.OnRequest
					e.Sample.Block = func(x ident.ObjectID) uint32 { return of[x] }
				})
			}
			had := map[*peer]int{}
			step := func(p *peer) {
				d := p.next()
				if d == nil {
					p.epoch(uint32(had[p] / n))
					d = p.must()
				}
				had[p] += len(d.Rows)
				p.release(d)
				r.run()
			}
			a := walker("a", 1)
			for had[a] < n*c.late/10 {
				step(a)
			}
			from, most := blocks*c.late/10, epochs*blocks*11/10
			b := walker("b", 2)
			for turn := 1; had[a] < n*c.late/10+epochs*n; turn++ {
				step(a)
				for k := turn * c.steps / 4; k > (turn-1)*c.steps/4; k-- {
					step(b)
				}
			}
			r.check()
			reads := m.reads - from
			t.Logf("%d reads of %d blocks in %d epochs: %.3f", reads, blocks, epochs, float64(reads)/float64(epochs*blocks))
			if reads > most || reads < epochs*blocks*8/10 {
				t.Errorf("%d reads of %d blocks in %d epochs, at most %d are allowed", reads, blocks, epochs, most)
			}
		})
	}
}
