package bound

import (
	"math/bits"
	"testing"

	"larder/internal/xrand"
)

// world is a tiny schedule: at each instant some jobs take one sample each.
type world struct {
	subsets []uint32 // by job, as bit sets
	turns   [][]int  // by instant: jobs
	cache   int
}

func (w world) trace() Trace {
	t := Trace{Cache: w.cache}
	left := make([]int, len(w.subsets))
	open := make([]int, len(w.subsets))
	for _, s := range w.subsets {
		var ids []uint32
		for x := range uint32(32) {
			if s>>x&1 == 1 {
				ids = append(ids, x)
			}
		}
		t.Subsets = append(t.Subsets, ids)
	}
	for at, jobs := range w.turns {
		for _, j := range jobs {
			if left[j] == 0 {
				left[j] = len(t.Subsets[j])
				open[j] = len(t.Epochs)
				t.Epochs = append(t.Epochs, Epoch{Job: j})
			}
			left[j]--
			e := &t.Epochs[open[j]]
			if n := len(e.Steps); n > 0 && e.Steps[n-1].At == int64(at) {
				e.Steps[n-1].N++
			} else {
				e.Steps = append(e.Steps, Step{int64(at), 1})
			}
		}
	}
	return t
}

// optimum is the least number of loads over all orders of all epochs and everything a cache can do, by exhaustive
// search.
func (w world) optimum() int {
	type state struct {
		turn, pick    int
		left          [4]uint32
		cache, flying uint32
	}
	memo := map[state]int{}
	var best func(s state) int
	best = func(s state) int {
		if s.turn == len(w.turns) {
			return 0
		}
		if v, ok := memo[s]; ok {
			return v
		}
		key, v := s, 1<<30
		if s.pick == len(w.turns[s.turn]) {
			held := s.cache | s.flying
			for keep := held; ; keep = (keep - 1) & held {
				if bits.OnesCount32(keep) <= w.cache {
					v = min(v, best(state{turn: s.turn + 1, left: s.left, cache: keep}))
				}
				if keep == 0 {
					break
				}
			}
			memo[key] = v
			return v
		}
		j := w.turns[s.turn][s.pick]
		if s.left[j] == 0 {
			s.left[j] = w.subsets[j]
		}
		for m := s.left[j]; m != 0; m &= m - 1 {
			x := m & -m
			n, cost := s, 0
			n.pick++
			n.left[j] &^= x
			if (s.cache|s.flying)&x == 0 {
				cost = 1
				n.flying |= x
			}
			v = min(v, cost+best(n))
		}
		memo[key] = v
		return v
	}
	return best(state{})
}

// The bounds against the true optimum of every tiny world: never above it, and the tighter one often equal to it.
func TestBoundsAgainstExhaustiveSearch(t *testing.T) {
	r := xrand.New(17)
	const worlds = 1500
	equal, windows, better := 0, 0, 0
	for i := range worlds {
		w := world{cache: r.IntN(3)}
		jobs := 1 + r.IntN(3)
		for len(w.subsets) < jobs {
			s := uint32(r.IntN(15) + 1)
			if r.IntN(3) == 0 {
				s = 15
			}
			w.subsets = append(w.subsets, s)
		}
		for picks := 6 + r.IntN(7); picks > 0; {
			var turn []int
			for j := range jobs {
				if r.IntN(2) == 0 {
					turn = append(turn, j)
				}
			}
			if len(turn) > 0 {
				w.turns = append(w.turns, turn)
			}
			picks -= len(turn)
		}
		tr := w.trace()
		opt, tight, loose := w.optimum(), Loads(tr), Windows(tr)
		if tight > opt || loose > tight {
			t.Fatalf("world %d: optimum %d, bound %d, of windows %d: %+v", i, opt, tight, loose, w)
		}
		if g := loads(tr, 0 /* as with very many unlike subsets */, maxWork); g > opt {
			t.Fatalf("world %d: optimum %d, greedy bound %d: %+v", i, opt, g, w)
		}
		if g := loads(tr, maxGroups, 1 /* as with very many epochs */); g > opt {
			t.Fatalf("world %d: optimum %d, bound of short intervals %d: %+v", i, opt, g, w)
		}
		if tight == opt {
			equal++
		}
		if loose == opt {
			windows++
		}
		if tight > loose {
			better++
		}
	}
	t.Logf("of %d worlds: bound = optimum in %d, windows = optimum in %d, bound above windows in %d", worlds, equal,
		windows, better)
	if equal < worlds/2 || better < worlds/10 {
		t.Errorf("the bound is the optimum in %d of %d worlds, above that of windows in %d: it lost its teeth", equal, worlds,
			better)
	}
}

// evenly is an epoch of n samples from begin on, speed of them at each instant.
func evenly(job, n int, begin int64, speed int) Epoch {
	e := Epoch{Job: job}
	for n > 0 {
		k := min(n, speed)
		e.Steps = append(e.Steps, Step{begin, int32(k)})
		begin++
		n -= k
	}
	return e
}

func all(n int) []uint32 {
	var out []uint32
	for x := range uint32(n) {
		out = append(out, x)
	}
	return out
}

// The closed forms of Seneca's section on lower bounds.
func TestClosedForms(t *testing.T) {
	const n, epochs = 1000, 6
	for _, c := range []int{0, 10, 200, 1500} {
		for jobs := 1; jobs <= 4; jobs++ {
			for _, stagger := range []int64{0, n / 4} {
				tr := Trace{Cache: c}
				for j := range jobs {
					tr.Subsets = append(tr.Subsets, all(n))
					for e := range epochs {
						tr.Epochs = append(tr.Epochs, evenly(j, n, int64(j)*stagger+int64(e)*n, 1))
					}
				}
				want := n + (epochs-1)*max(0, n-c) // of one job; the others can ride along
				if got := Windows(tr); got != want {
					t.Errorf("%d jobs, stagger %d, cache %d: %d in windows, want %d", jobs, stagger, c, got, want)
				}
				got := Loads(tr)
				if stagger == 0 && got != want || got < want {
					t.Errorf("%d jobs, stagger %d, cache %d: %d, want %d", jobs, stagger, c, got, want)
				}
				// Staggered by a quarter and no cache: all of the 6.75 epochs that any job runs.
				if late := want + (jobs-1)*n/4; stagger > 0 && c == 0 && got != late {
					t.Errorf("%d jobs, no cache: %d, want %d", jobs, got, late)
				}
			}
		}
	}
	// Speeds 1 and 1/4, 8 epochs, cache 20 %: 14 disjoint windows, 11.4 N.
	tr := Trace{Cache: 200, Subsets: [][]uint32{all(n), all(n)}}
	for e := range int64(8) {
		tr.Epochs = append(tr.Epochs, evenly(0, n, e*250, 4), evenly(1, n, e*1000, 1))
	}
	if got := Windows(tr); got != 11400 {
		t.Errorf("speeds 1 and 1/4: %d, want 11400", got)
	}
	// One epoch of overlapping subsets: the union, which windows do not see.
	tr = Trace{Subsets: [][]uint32{all(600), all(1000)[400:]}}
	tr.Epochs = []Epoch{evenly(0, 600, 0, 1), evenly(1, 600, 0, 1)}
	if l, w := Loads(tr), Windows(tr); l != 1000 || w != 600 {
		t.Errorf("two overlapping subsets: %d and %d, want 1000 and 600", l, w)
	}
	if Loads(Trace{}) != 0 || Windows(Trace{Subsets: [][]uint32{all(3)}}) != 0 {
		t.Error("nothing happened, and it needed loads")
	}
	if got := Augments([][]int{{5, 3}, {}, {2}}); got != 7 {
		t.Errorf("augments: %d, want 7", got)
	}
}

// Many unlike subsets: the greedy choice of jobs still sees the union, and the work stays bounded.
func TestManySubsets(t *testing.T) {
	r := xrand.New(3)
	tr := Trace{}
	union := map[uint32]bool{}
	for j := range 40 {
		var s []uint32
		for x := range uint32(500) {
			if r.IntN(4) == 0 {
				s = append(s, x)
				union[x] = true
			}
		}
		tr.Subsets = append(tr.Subsets, s)
		for e := range int64(4) {
			tr.Epochs = append(tr.Epochs, evenly(j, len(s), e*int64(len(s)), 1))
		}
	}
	if got := Loads(tr); got < len(union) || got > 160*500 {
		t.Errorf("%d, the union alone is %d", got, len(union))
	}
}

// Tens of thousands of epochs: the bound takes a moment, not the square or the cube of them, and is still exact where a
// row of short intervals is. One of the jobs ends at once, so that no interval ever holds what all want.
func TestVeryManyEpochs(t *testing.T) {
	const n, epochs = 5, 50_000
	tr := Trace{Subsets: [][]uint32{{0, 1, 2, 3, 4}, {5, 6, 7, 8, 9}}, Cache: 2}
	tr.Epochs = append(tr.Epochs, evenly(0, n, 0, 5))
	for e := range epochs {
		tr.Epochs = append(tr.Epochs, evenly(1, n, int64(e), 5))
	}
	if got, want := Loads(tr), 2*n+(epochs-1)*(n-2); got != want {
		t.Errorf("%d loads at least, want %d", got, want)
	}
}
