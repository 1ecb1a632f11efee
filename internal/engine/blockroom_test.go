package engine

import (
	"fmt"
	"testing"

	"larder/dsa"
	"larder/internal/engine/ring"
	"larder/internal/ident"
	"larder/internal/source"
	"larder/internal/xrand"
)

// What blocks take is counted once, is never more than the limit of rings and blocks, and promises are kept.
func TestBlockRoom(t *testing.T) {
	const limit = 1000
	for seed := range uint64(40) {
		rng := xrand.New(seed, 17)
		rings := ring.NewBudget(func() int64 { return limit })
		r := &blockRoom{rings: rings}
		var promises, taken []int64
		promised, used := int64(0), int64(0)
		pop := func(list *[]int64) int64 {
			i := rng.IntN(len(*list))
			n := (*list)[i]
			*list = append((*list)[:i], (*list)[i+1:]...)
			return n
		}
		for range 2000 {
			n := int64(1 + rng.IntN(300))
			switch k := rng.IntN(4); {
			case k == 0:
				if fits := max(promised+n, used) <= limit; (r.promise("a", n) == nil) != fits {
					t.Fatalf("a promise of %d beside %d and %d: %v", n, promised, used, fits)
				} else if fits {
					promises, promised = append(promises, n), promised+n
				}
			case k == 1:
				if fits := max(promised, used+n) <= limit; (r.Take(n) == nil) != fits {
					t.Fatalf("%d bytes beside %d and %d: %v", n, promised, used, fits)
				} else if fits {
					taken, used = append(taken, n), used+n
				}
			case k == 2 && len(promises) > 0:
				n := pop(&promises)
				promised -= n
				r.release(n)
			case k == 3 && len(taken) > 0:
				n := pop(&taken)
				used -= n
				r.Give(n)
			}
			if got := rings.Used(); got != max(promised, used) {
				t.Fatalf("%d bytes are taken for promises of %d and blocks of %d", got, promised, used)
			}
		}
	}
}

// unevenBlocks are n blocks: many of one sample, some of a thousand, with more or fewer bytes for a sample.
func unevenBlocks(rng *xrand.Rand, n int) (blocks []source.BlockSize, of []uint32) {
	kind := rng.IntN(3)
	for i := range n {
		b := source.BlockSize{Samples: 1 + rng.IntN(20)}
		if rng.IntN(4) == 0 {
			b.Samples = 1 + rng.IntN(400)
		}
		switch b.Bytes = int64(1000 + rng.IntN(9000)); kind {
		case 0:
			b.Bytes = int64(b.Samples) * 100
		case 1:
			b.Bytes = 8000 // cut by size
		}
		blocks = append(blocks, b)
		for range b.Samples {
			of = append(of, uint32(i))
		}
	}
	return blocks, of
}

// A walk never has more bytes of blocks in memory than its need says, by the real sizes of its blocks: those that it
// draws from, the next one, and those that it has left while their samples are among the last that were planned.
func TestBlocksAreNeverMoreThanNeeded(t *testing.T) {
	tight := 0
	for seed := range uint64(120) {
		rng := xrand.New(seed, 5)
		blocks, of := unevenBlocks(rng, 20+rng.IntN(100))
		window, ahead := 1+rng.IntN(12), 1+rng.IntN(300)
		s := dsa.New(seed)
		subset := make([]ident.ObjectID, len(of))
		for i := range subset {
			subset[i] = ident.ObjectID(i)
		}
		err := s.Join(1, dsa.JobSpec{Mode: dsa.Blocks, Window: window, Seed: seed, Subset: subset,
			Block: func(x ident.ObjectID) uint32 { return of[x] }})
		if err != nil {
			t.Fatal(err)
		}
		need := needOf(append([]source.BlockSize(nil), blocks...), ahead)
		limit, held, most := need.of(window), int64(0), int64(0)
		left := map[int][]uint32{} // by how many samples were planned
		for epoch := range uint32(2) {
			if err := s.StartEpoch(1, epoch); err != nil {
				t.Fatal(err)
			}
			for n := 0; s.Remaining(1) > 0; n++ {
				if _, ok := s.Next(1); !ok {
					s.Work(1 << 20)
					n--
					continue
				}
				for _, m := range s.BlockMoves() {
					if m.In {
						held += blocks[m.Block].Bytes
					} else {
						left[n] = append(left[n], m.Block)
					}
				}
				most = max(most, held)
				for _, b := range left[n-ahead+1] {
					held -= blocks[b].Bytes
				}
				delete(left, n-ahead+1)
			}
			for _, all := range left { // order-free: the batches of an epoch are prepared before the next one begins
				for _, b := range all {
					held -= blocks[b].Bytes
				}
			}
			clear(left)
			if held != 0 {
				t.Fatalf("%d bytes are held between epochs", held)
			}
		}
		if most > limit {
			t.Errorf("seed %d: %d bytes of blocks, and %d were to be the most: window %d, %d ahead", seed, most, limit, window,
				ahead)
		}
		if most > limit/2 {
			tight++
		}
	}
	if tight < 30 {
		t.Errorf("%d of 120 walks came to half of what they were to need", tight)
	}
}

// With equal blocks the need is what it takes: the window, the samples ahead, and three blocks.
func TestNeedOfEqualBlocks(t *testing.T) {
	blocks := make([]source.BlockSize, 100)
	for i := range blocks {
		blocks[i] = source.BlockSize{Bytes: 8 << 20, Samples: 80}
	}
	for window, want := range map[int]int64{1: 1 + 3 + 13, 16: 16 + 3 + 13, 200: 100} { // order-free
		n := needOf(append([]source.BlockSize(nil), blocks...), 13*80)
		if got := n.of(window); got != want*8<<20 || n.one() != 8<<20 {
			t.Errorf("%s for a window of %d, not %d blocks", fmt.Sprint(got), window, want)
		}
	}
	if n := needOf(nil, 10); n.of(4) != 0 || n.one() != 0 {
		t.Error("no blocks need memory")
	}
}
