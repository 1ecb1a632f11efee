package coresim

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"larder/dsa"
	"larder/internal/ident"
	"larder/internal/invariant"
	"larder/internal/testenv/lane"
	"larder/internal/xrand"
	"larder/jobs"
)

// TestQuarantineKeepsProportions: samples of one cell that cannot be prepared are drawn like good ones and left out at
// once. So the good ones of every cell stay in the middle of the epoch on average, whatever share of one cell is bad,
// and known or not yet.
func TestQuarantineKeepsProportions(t *testing.T) {
	countsOnly(t)
	seeds := lane.Times(8, 16)
	if invariant.Enabled {
		seeds = 6
	}
	for _, mode := range []dsa.Mode{dsa.Stratified, dsa.Epoch, dsa.Strict} {
		for _, share := range []int{20, 50} {
			bad := map[ident.ObjectID]string{}
			for x := range 200 {
				if x*7%100 < share {
					bad[ident.ObjectID(200+x)] = "broken"
				}
			}
			type sums struct{ dev, variance float64 }
			var cells [2][2]sums // by job and by whether the sample is in both subsets
			var first [2]sums    // the shared cell in the first epoch, when nothing is known to be bad
			for seed := range seeds {
				clients := []Client{client("a", span(0, 400), 8, 4), client("b", span(200, 600), 12, 4)}
				for i := range clients {
					clients[i].Sample.Mode, clients[i].Spec.OnError = mode, jobs.Skip
				}
				clients[1].Step, clients[1].Start = 2*time.Millisecond, time.Duration(seed)*5*time.Millisecond
				m := model(uint64(seed)+100, 120*600)
				m.Check, m.Workers, m.Bad = 0, 8, bad
				res, err := Run(m, clients, time.Hour)
				if err != nil {
					t.Fatal(err)
				}
				wholeEpochs(t, res, clients)
				for _, r := range res.Epochs {
					j, n := int(r.Job[0]-'a'), len(r.IDs)
					if len(r.Bad) != len(bad) {
						t.Fatalf("%s epoch %d: %d bad samples, want %d", r.Job, r.Epoch, len(r.Bad), len(bad))
					}
					var sum [2]float64
					var count [2]int
					for k, x := range r.IDs {
						c := 0
						if x >= 200 && x < 400 {
							c = 1
						}
						sum[c] += (float64(k)+.5)/float64(n) - .5
						count[c]++
					}
					for c := range sum { // of count of n drawn without replacement: the variance of their mean position
						m := float64(count[c])
						v := (1 - 1/float64(n*n)) / 12 / m * (float64(n) - m) / float64(n-1)
						cells[j][c].dev += sum[c] / m
						cells[j][c].variance += v
						if c == 1 && r.Epoch == 0 {
							first[j].dev += sum[c] / m
							first[j].variance += v
						}
					}
				}
			}
			for j := range cells {
				for c, s := range append(cells[j][:], first[j]) {
					if z := s.dev / math.Sqrt(s.variance); math.Abs(z) > 4.5 { // 18 of them: p < 1.3e-4 in all
						t.Errorf("%s, %d %% bad, job %c, cell %d: mean position off by %.4f, z %.1f", mode, share, 'a'+j, c,
							s.dev/float64(4*seeds), z)
					}
				}
			}
		}
	}
}

// disjoint checks that no sample is in two parts of an epoch and that all ids are below n. It returns their sum.
func disjoint(t *testing.T, parts []*Received, n int) (total int) {
	t.Helper()
	seen := map[ident.ObjectID]int{}
	for _, e := range parts {
		total += len(e.IDs)
		for _, x := range e.IDs {
			if other, twice := seen[x]; twice {
				t.Errorf("epoch %d: ranks %d and %d both got %d", e.Epoch, other, e.Rank, x)
			}
			seen[x] = e.Rank
			if int(x) >= n {
				t.Errorf("%d is foreign", x)
			}
		}
	}
	return total
}

// TestRanksDrawDisjointParts: whatever the number of ranks and their speeds, an epoch's ranks get disjoint parts that
// make up the subset; also when one dies in the midst of it. Its successor begins the epoch afresh, for itself, and
// from the next one on all is whole.
func TestRanksDrawDisjointParts(t *testing.T) {
	seeds := lane.Times(100, 300)
	if testing.Short() || invariant.Enabled {
		seeds = 60
	}
	died, afterwards := 0, 0
	for seed := range seeds {
		r := xrand.New(uint64(seed), 78)
		n, world := 40+r.IntN(200), 1+r.IntN(9)
		c := client("ranks", span(0, n), 1+r.IntN(9), 4)
		c.Sample.Mode = []dsa.Mode{dsa.Sequential, dsa.Fixed, dsa.Strict, dsa.Stratified, dsa.Epoch}[seed%5]
		c.Spec.OnError = jobs.OnError(seed % 3)
		c.Spec.World, c.Spec.Even, c.Spec.DropLast, c.Spec.Slots = world, r.IntN(2) == 0, r.IntN(3) == 0, 2+r.IntN(3)
		for range world {
			c.Steps = append(c.Steps, time.Duration(1+r.IntN(5000))*time.Microsecond)
		}
		dies := r.IntN(2) == 0
		if dies {
			c.Die, c.Back = 1+r.IntN(2*max(1, n/world/c.Spec.Batch)), time.Duration(1+r.IntN(30))*time.Millisecond
		}
		if c.Spec.Validate() != nil {
			continue
		}
		other := client("other", span(n/2, n/2+n), 1+r.IntN(20), 3)
		m := model(uint64(seed), int64(r.IntN(n))*600)
		m.Check = 0
		m.Lease = time.Minute
		res, err := Run(m, []Client{c, other}, 10*time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range res.Failures {
			t.Error(f)
		}
		deadIn, afresh := int64(-1), int64(-1) // the epochs that its client did not finish, and that its successor began
		for _, e := range res.Epochs {
			if e.Job == "ranks" && e.Rank == 0 && !e.Ended && !e.Again {
				deadIn, died = int64(e.Epoch), died+1
			}
			if e.Again && afresh < 0 {
				afresh = int64(e.Epoch)
			}
		}
		for epoch := range uint32(4) {
			var parts []*Received
			for _, e := range res.Epochs {
				if e.Job != "ranks" || e.Epoch != epoch || e.Again && int64(epoch) == afresh {
					continue
				}
				parts = append(parts, e)
				if want := c.Spec.RankSamples(e.Rank); int64(epoch) != deadIn && len(e.IDs) != want {
					t.Errorf("epoch %d: rank %d got %d samples of %d", epoch, e.Rank, len(e.IDs), want)
				}
			}
			total := disjoint(t, parts, n)
			whole := int64(epoch) != deadIn && int64(epoch) != afresh
			if whole && (len(parts) != world || total != c.Spec.Dealt()) {
				t.Errorf("epoch %d: %d ranks got %d samples of %d", epoch, len(parts), total, c.Spec.Dealt())
			}
			if deadIn >= 0 && whole && int64(epoch) > deadIn {
				afterwards++
			}
		}
		for _, e := range res.Epochs { // what a successor gets afresh is a part without repetition too
			ids := slices.Clone(e.IDs)
			slices.Sort(ids)
			if len(slices.Compact(ids)) != len(e.IDs) {
				t.Errorf("%s rank %d epoch %d: a sample came twice", e.Job, e.Rank, e.Epoch)
			}
		}
		if t.Failed() {
			t.Fatalf("seed %d: %s", seed, fmt.Sprintf("%+v mode %s die %d", c.Spec, c.Sample.Mode, c.Die))
		}
	}
	t.Logf("%d deaths, %d whole epochs after them", died, afterwards)
	if died < seeds/10 || afterwards < seeds/10 {
		t.Errorf("too few deaths: %d, and %d epochs after them", died, afterwards)
	}
}
