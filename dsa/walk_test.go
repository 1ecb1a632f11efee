package dsa

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"larder/internal/ident"
	"larder/internal/testenv/lane"
	"larder/internal/xrand"
)

// blocksOf cuts ids into blocks of so many.
func blocksOf(each int) func(ident.ObjectID) uint32 {
	return func(x ident.ObjectID) uint32 { return uint32(int(x) / each) }
}

func walkSpec(window, each int, seed uint64, subset []ident.ObjectID) JobSpec {
	return JobSpec{Mode: Blocks, Window: window, Block: blocksOf(each), Seed: seed, Subset: subset}
}

// holder counts which blocks are in memory, and how often one comes there.
type holder struct {
	t     *testing.T
	s     *Sampler
	jobs  map[ident.JobID]map[uint32]bool
	reads int
	most  map[ident.JobID]int
}

func hold(t *testing.T, s *Sampler) *holder {
	return &holder{t: t, s: s, jobs: map[ident.JobID]map[uint32]bool{}, most: map[ident.JobID]int{}}
}

func (h *holder) moves() {
	h.t.Helper()
	for _, m := range h.s.BlockMoves() {
		mine := h.jobs[m.Job]
		if mine == nil {
			mine = map[uint32]bool{}
			h.jobs[m.Job] = mine
		}
		if mine[m.Block] == m.In {
			h.t.Fatalf("job %d block %d: held %v already", m.Job, m.Block, m.In)
		}
		if !m.In {
			delete(mine, m.Block)
			continue
		}
		there := false
		for _, other := range h.jobs { // order-free
			there = there || other[m.Block]
		}
		if !there {
			h.reads++
		}
		mine[m.Block] = true
		h.most[m.Job] = max(h.most[m.Job], len(mine))
	}
}

// next picks one sample, which must lie in a block that its job holds.
func (h *holder) next(id ident.JobID, each int) (ident.ObjectID, bool) {
	h.t.Helper()
	x, ok := h.s.Next(id)
	if !ok {
		h.moves()
		return 0, false
	}
	before := h.jobs[id][uint32(int(x)/each)]
	h.moves() // the last pick of an epoch leaves at once
	if !before && !h.jobs[id][uint32(int(x)/each)] && h.s.Remaining(id) > 0 {
		h.t.Fatalf("job %d got object %d of a block that it does not hold", id, x)
	}
	return x, true
}

func (h *holder) epoch(id ident.JobID, epoch uint32, each int) []ident.ObjectID {
	h.t.Helper()
	must(h.t, h.s.StartEpoch(id, epoch))
	var out []ident.ObjectID
	for x, ok := h.next(id, each); ok; x, ok = h.next(id, each) {
		out = append(out, x)
	}
	return out
}

// Every epoch has every sample once; a lone job holds at most W+1 blocks, and each comes once.
func TestWalkIsExact(t *testing.T) {
	for _, c := range []struct{ n, each, window int }{
		{1, 1, 1}, {7, 3, 1}, {100, 10, 1}, {100, 10, 2}, {100, 10, 4}, {101, 10, 10}, {101, 10, 11}, {101, 10, 12},
		{64, 1, 5}, {500, 7, 16}, {30, 100, 4},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			s := New(1)
			must(t, s.Join(1, walkSpec(c.window, c.each, 9, span(0, c.n))))
			h := hold(t, s)
			var before []ident.ObjectID
			for epoch := range uint32(3) {
				got := h.epoch(1, epoch, c.each)
				must(t, s.Check())
				if c.n > 20 && slices.Equal(got, before) {
					t.Errorf("epoch %d is as the one before", epoch)
				}
				before = slices.Clone(got)
				slices.Sort(got)
				if !slices.Equal(got, span(0, c.n)) {
					t.Fatalf("epoch %d: %v", epoch, got)
				}
			}
			blocks := (c.n + c.each - 1) / c.each
			if h.reads != 3*blocks || h.most[1] > min(c.window+1, blocks) || len(h.jobs[1]) != 0 {
				t.Errorf("%d reads of %d blocks, %d at once of %d, %d left", h.reads, 3*blocks, h.most[1], c.window+1,
					len(h.jobs[1]))
			}
		})
	}
}

// Alone, an order is a function of seed and epoch.
func TestWalkIsAFunctionOfSeedAndEpoch(t *testing.T) {
	run := func(sampler, seed uint64, epoch uint32) []ident.ObjectID {
		s := New(sampler)
		must(t, s.Join(1, walkSpec(4, 10, seed, span(0, 200))))
		return hold(t, s).epoch(1, epoch, 10)
	}
	same := run(1, 5, 3)
	if !slices.Equal(same, run(2, 5, 3)) {
		t.Error("another daemon, another order")
	}
	if slices.Equal(same, run(1, 6, 3)) || slices.Equal(same, run(1, 5, 4)) {
		t.Error("seed or epoch counts for nothing")
	}
}

// What is withdrawn does not come, what is returned comes again, whatever was picked meanwhile.
func TestWalkReturnsAndWithdraws(t *testing.T) {
	for seed := range uint64(40) {
		const n, each = 230, 10
		rng := xrand.New(seed, 77)
		s := New(seed)
		must(t, s.Join(1, walkSpec(1+rng.IntN(6), each, seed, span(0, n))))
		must(t, s.StartEpoch(1, 0))
		h := hold(t, s)
		owed := map[ident.ObjectID]bool{}
		for _, x := range span(0, n) {
			owed[x] = true
		}
		earlier := span(20, 20+rng.IntN(100))
		s.Withdraw(1, earlier)
		for _, x := range earlier {
			delete(owed, x)
		}
		var had []ident.ObjectID
		for len(owed) > 0 {
			switch rng.IntN(30) {
			case 0:
				k := max(0, len(had)-rng.IntN(20))
				s.Return(1, had[k:])
				for _, x := range had[k:] {
					owed[x] = true
				}
				had = had[:k]
			case 1:
				x := ident.ObjectID(rng.IntN(n))
				if s.Withdraw(1, []ident.ObjectID{x}) == 1 != owed[x] {
					t.Fatalf("seed %d: withdraw %d, owed %v", seed, x, owed[x])
				}
				delete(owed, x)
			default:
				x, ok := h.next(1, each)
				if !ok || !owed[x] {
					t.Fatalf("seed %d: got %d %v, owed %v of %d", seed, x, ok, owed[x], len(owed))
				}
				delete(owed, x)
				had = append(had, x)
			}
			if s.Remaining(1) != len(owed) {
				t.Fatalf("seed %d: %d remain of %d", seed, s.Remaining(1), len(owed))
			}
			if rng.IntN(10) == 0 {
				must(t, s.Check())
			}
		}
	}
}

// The calls of a job without a walk to go.
func TestWalkRefuses(t *testing.T) {
	s := New(1)
	for _, c := range []struct {
		spec JobSpec
		want error
	}{
		{walkSpec(0, 1, 0, span(0, 3)), ErrWindow},
		{JobSpec{Mode: Blocks, Window: 2, Subset: span(0, 3)}, ErrWindow},
		{walkSpec(1, 1, 0, nil), ErrEmptySubset},
		{walkSpec(1, 1, 0, []ident.ObjectID{1, 2, 1}), ErrDuplicateObject},
		{walkSpec(1, 1, 0, []ident.ObjectID{MaxObjects}), ErrObjectID},
	} {
		if err := s.Join(1, c.spec); !errors.Is(err, c.want) {
			t.Errorf("%v, want %v", err, c.want)
		}
	}
	must(t, s.Join(1, walkSpec(1, 1, 0, span(0, 3))))
	if err := s.Join(1, walkSpec(1, 1, 0, span(0, 3))); !errors.Is(err, ErrJobExists) {
		t.Error(err)
	}
	if x, ok := s.Next(1); ok {
		t.Errorf("an idle job got %d", x)
	}
	must(t, s.Change(1, span(5, 9)))
	if got := hold(t, s).epoch(1, 0, 1); len(got) != 4 || slices.Min(got) != 5 {
		t.Errorf("after the change: %v", got)
	}
	s.Leave(1)
	if s.Ready(1) || s.Len(1) != 0 || len(s.BlockMoves()) != 0 {
		t.Error("it has left")
	}
}

// In slices, a job draws when its blocks are known, and no call takes long.
func TestWalkInSlices(t *testing.T) {
	s := New(1)
	s.InSlices()
	must(t, s.Join(1, walkSpec(2, 10, 0, span(0, 100))))
	must(t, s.StartEpoch(1, 0))
	steps := 0
	for ; !s.Ready(1); steps++ {
		if _, ok := s.Next(1); ok || s.Remaining(1) != 100 {
			t.Fatal("it draws before it is ready")
		}
		s.Work(30)
	}
	if steps != 4 || s.Work(0) {
		t.Errorf("%d slices", steps)
	}
	if _, ok := s.Next(1); !ok {
		t.Error("it does not draw")
	}
	must(t, s.Join(2, walkSpec(2, 10, 0, append(span(0, 100), 5))))
	for s.Work(64) {
	}
	if s.Ready(2) || !errors.Is(s.Err(2), ErrDuplicateObject) {
		t.Error(s.Err(2))
	}
}

// Two jobs meet on the same blocks: in an epoch of both each block comes into memory 1.1 times at the most, whenever
// the second begins, and whichever is faster. In a window of one block it comes a little more often.
func TestWalksMeet(t *testing.T) {
	for _, c := range []struct {
		window int
		most   float64 // reads of each block an epoch
	}{{8, 1.1}, {4, 1.1}, {2, 1.1}, {1, 1.14}} {
		highest := 0.0
		begins := []float64{0, .5, .9} // of the second job, in epochs of the first
		if lane.Nightly() {
			begins = []float64{0, .1, .25, .5, .75, .9}
		}
		for _, late := range begins {
			for _, speed := range []float64{1, .5} {
				t.Run(fmt.Sprintf("window %d late %.2f speed %.1f", c.window, late, speed), func(t *testing.T) {
					reads := meeting(t, c.window, late, speed)
					if highest = max(highest, reads); reads > c.most {
						t.Errorf("%.3f reads of each block an epoch", reads)
					}
				})
			}
		}
		t.Logf("window %d: at most %.3f reads of each block an epoch", c.window, highest)
	}
}

// meeting is how often each block is read in an epoch of the first of two jobs. The second begins so late in the first
// one's epoch, and takes so many samples for each one of the first.
func meeting(t *testing.T, window int, late, speed float64) float64 {
	const n, each, epochs = 6400, 16, 12
	s := New(4)
	h := hold(t, s)
	must(t, s.Join(1, walkSpec(window, each, 1, span(0, n))))
	must(t, s.StartEpoch(1, 0))
	for range int(late * n) {
		h.next(1, each)
	}
	from := h.reads
	must(t, s.Join(2, walkSpec(window, each, 2, span(0, n))))
	must(t, s.StartEpoch(2, 0))
	epoch := [3]uint32{}
	taken := [3]int{}
	behind := 0.0
	for taken[1] < epochs*n {
		for id := ident.JobID(1); id <= 2; id++ {
			if behind += speed; id == 2 && behind < 1 {
				continue
			} else if id == 2 {
				behind--
			} else {
				behind -= speed
			}
			if s.Remaining(id) == 0 {
				epoch[id]++
				must(t, s.StartEpoch(id, epoch[id]))
			}
			h.next(id, each)
			taken[id]++
		}
	}
	return float64(h.reads-from) / epochs / (n / each)
}

func positions(order []ident.ObjectID) []float64 {
	out := make([]float64, len(order))
	for i, x := range order {
		out[x] = float64(i) / float64(len(order))
	}
	return out
}

func correlation(a, b []float64) float64 {
	var sab, saa, sbb float64
	for i := range a {
		sab += (a[i] - .5) * (b[i] - .5)
		saa += (a[i] - .5) * (a[i] - .5)
		sbb += (b[i] - .5) * (b[i] - .5)
	}
	return sab / math.Sqrt(saa*sbb)
}

// Samples of a file that changed in mid-epoch come once more where they are returned, though Block knows it no more.
func TestWalkTakesBackWhatLiesInAChangedFile(t *testing.T) {
	s := New(1)
	changed := false
	of := func(x ident.ObjectID) uint32 {
		if changed && x < 20 {
			return NoBlock
		}
		return uint32(x) / 10
	}
	var subset []ident.ObjectID
	for i := range 40 {
		subset = append(subset, ident.ObjectID(i))
	}
	if err := s.Join(1, JobSpec{Mode: Blocks, Window: 2, Block: of, Subset: subset, Seed: 1}); err != nil {
		t.Fatal(err)
	}
	if err := s.StartEpoch(1, 0); err != nil {
		t.Fatal(err)
	}
	times := make([]int, len(subset))
	draw := func() bool {
		x, ok := s.Next(1)
		if ok {
			times[x]++
		}
		return ok
	}
	for range 30 {
		if !draw() {
			t.Fatal("the epoch ended early")
		}
	}
	changed = true
	var back []ident.ObjectID
	for x := range 20 {
		if times[x] == 1 && len(back) < 4 {
			back = append(back, ident.ObjectID(x))
			times[x] = 0
		}
	}
	s.Return(1, back)
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
	for draw() {
	}
	for x, n := range times {
		if n != 1 {
			t.Errorf("sample %d came %d times", x, n)
		}
	}
}
