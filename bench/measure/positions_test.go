package measure

import (
	"encoding/json"
	"math"
	"slices"
	"testing"

	"larder/bench/fair"
	"larder/internal/ident"
	"larder/internal/xrand"
)

// account is the figures of orders of samples 0 to n-1.
func account(n int, orders [][]uint32) *fair.Figures {
	var whole []ident.ObjectID
	for i := range n {
		whole = append(whole, ident.ObjectID(i))
	}
	t := fair.New(whole, fair.LagsOf(n))
	for _, o := range orders {
		var order []ident.ObjectID
		for _, x := range o {
			order = append(order, ident.ObjectID(x))
		}
		if !t.Add(order) {
			panic("no epoch")
		}
	}
	var a fair.Account
	a.Add(t)
	return a.Figures()
}

func text(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestMeanPositions: the account is that of the orders in which clients got their samples, by their place in the
// subset; two ranks are taken together as they were served.
func TestMeanPositions(t *testing.T) {
	const n, epochs = 60, 24
	r := xrand.New(3)
	subset, orders, places := make([]uint32, n), [][]uint32{}, [][]uint32{}
	for i := range subset {
		subset[i] = uint32(5*i + 2)
	}
	for range epochs {
		p := uniform(r, n)
		o := make([]uint32, n)
		for k, i := range p {
			o[k] = subset[i]
		}
		orders, places = append(orders, o), append(places, p)
	}
	want := text(t, account(n, places))
	all := Samples{Count: 5*n + 2}
	got := play(New(all), Demand{Name: "a", Subset: subset, Batch: 7}, 7, orders...).Jobs[0]
	if text(t, got.MeanPositions) != want {
		t.Errorf("%s, want %s", text(t, got.MeanPositions), want)
	}
	c := New(all)
	j := c.Register(0, Demand{Name: "a", Subset: subset, Batch: 6, World: 2})
	for e, o := range orders {
		for part := range slices.Chunk(o, 6) { // of one rank and the other in turn
			c.Batch(j, 1, uint32(e), 0, part)
		}
		c.End(j, 1, uint32(e), 0, 0)
		c.End(j, 1, uint32(e), 0, 0)
	}
	var run Run
	if c.Finish(&run, Capacity{}); text(t, run.Jobs[0].MeanPositions) != want {
		t.Errorf("two ranks: %s, want %s", text(t, run.Jobs[0].MeanPositions), want)
	}
	var keys map[string]any
	if err := json.Unmarshal([]byte(text(t, run.Jobs[0])), &keys); err != nil {
		t.Fatal(err)
	}
	means, ok := keys["mean_positions"].(map[string]any)
	if !ok || len(means["lags"].([]any)) != 4 ||
		means["epochs"] != float64(epochs) || means["sd"] == nil || means["chance"] == nil {
		t.Errorf("mean_positions: %v", means)
	}
}

// TestMeanPositionsTellBias: uniform orders are those of chance, and samples that are always early are seen.
func TestMeanPositionsTellBias(t *testing.T) {
	const n, epochs = 300, 60
	r := xrand.New(5)
	var even, odd [][]uint32
	for range epochs {
		even = append(even, uniform(r, n))
		o := uniform(r, n) // the first ten come in the first half
		for k, x := range o {
			if q := r.IntN(n / 2); x < 10 && k >= n/2 && o[q] >= 10 {
				o[k], o[q] = o[q], x
			}
		}
		odd = append(odd, o)
	}
	limit := 5 * math.Sqrt(.5/(n-1)) // sd of the ratio, see bench/fair: TestFigures
	d := Demand{Name: "a", Subset: ids(n), Batch: 16}
	if f := play(New(samples(n)), d, 16, even...).Jobs[0].MeanPositions; math.Abs(f.Ratio()-1) > limit {
		t.Errorf("uniform orders: %+v, %.3f of chance", f, f.Ratio())
	} else {
		for _, l := range f.Lags {
			if math.Abs(l.Correlation) > 5*l.SD {
				t.Errorf("uniform orders: %+v", l)
			}
		}
	}
	if f := play(New(samples(n)), d, 16, odd...).Jobs[0].MeanPositions; f.Ratio() < 1+limit {
		t.Errorf("ten samples come early: %+v, %.3f of chance", f, f.Ratio())
	}
	still := slices.Repeat([][]uint32{even[0]}, 30) // the same order in every epoch
	f := play(New(samples(n)), d, 16, still...).Jobs[0].MeanPositions
	if math.Abs(f.Ratio()-math.Sqrt(30)) > 1e-5 || len(f.Lags) != 4 || math.Abs(f.Lags[3].Correlation-1) > 1e-5 {
		t.Errorf("one order in all epochs: %+v, %.4f of chance", f, f.Ratio())
	}
}

// TestMeanPositionsOfPartialEpochs: an epoch that is not the subset, each sample once, is left out of the account, and
// nothing is said where there are no two whole ones in a row, nor of an order that is not random.
func TestMeanPositionsOfPartialEpochs(t *testing.T) {
	const n = 40
	r := xrand.New(6)
	var o [][]uint32
	for range 6 {
		o = append(o, uniform(r, n))
	}
	twice := slices.Clone(uniform(r, n)) // one sample twice instead of another: as many as the subset has
	twice[n-1] = twice[0]
	foreign := slices.Clone(uniform(r, n))
	foreign[7] = n + 1
	short := uniform(r, n)[:n-2] // two are quarantined
	more := append(uniform(r, n), 3)
	holes := map[string][]uint32{"twice": twice, "foreign": foreign, "quarantined": short, "one more": more}
	for name, hole := range holes {
		for _, c := range []struct {
			played [][]uint32
			taken  [][]uint32 // nil: nothing is said
		}{
			{[][]uint32{o[0], o[1], hole, o[2], o[3]}, o[:4]},
			{[][]uint32{hole, o[0], o[1], hole, hole, o[2], hole}, o[:3]},
			{[][]uint32{o[0], hole, o[1], o[2], o[3]}, o[1:4]}, // it begins with two in a row
			{[][]uint32{o[0], hole, o[1], hole}, nil},
			{[][]uint32{o[0]}, nil},
			{[][]uint32{hole, hole, hole}, nil},
		} {
			want := "null"
			if c.taken != nil {
				want = text(t, account(n, c.taken))
			}
			run := play(New(Samples{Count: n + 2}), Demand{Name: "a", Subset: ids(n), Batch: 9}, 9, c.played...)
			if got := text(t, run.Jobs[0].MeanPositions); got != want {
				t.Errorf("%s, %d epochs: %s, want %s", name, len(c.played), got, want)
			}
		}
	}
	run := play(New(Samples{Count: n}), Demand{Name: "a", Subset: ids(n), Batch: 9, InOrder: true}, 9, ids(n), ids(n))
	if run.Jobs[0].MeanPositions != nil {
		t.Errorf("an order that is not random is judged: %+v", run.Jobs[0].MeanPositions)
	}
}

// TestMeanPositionsOfLargeWorlds: where samples times jobs are too many, lag 1 is all that is counted.
func TestMeanPositionsOfLargeWorlds(t *testing.T) {
	const n, epochs = 30, 8
	r := xrand.New(7)
	c := New(Samples{Count: fair.MostPlaces})
	for _, name := range []string{"a", "b"} { // the second is beyond the limit
		j := c.Register(0, Demand{Name: name, Subset: ids(n), Batch: n})
		for e := range epochs {
			c.Batch(j, 1, uint32(e), 0, uniform(r, n))
			c.End(j, 1, uint32(e), 0, 0)
		}
	}
	var run Run
	c.Finish(&run, Capacity{})
	for i, lags := range []int{3, 1} {
		f := run.Jobs[i].MeanPositions
		if f == nil || f.Epochs != epochs || len(f.Lags) != lags || f.Lags[0].Lag != 1 {
			t.Errorf("job %d: %+v, want %d lags", i, f, lags)
		}
	}
}
