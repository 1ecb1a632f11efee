package coresim

import (
	"math"
	"slices"
	"testing"
	"time"

	"larder/dsa"
	"larder/internal/coordinator"
	"larder/internal/ident"
	"larder/internal/xrand"
)

// spearman is the rank correlation of two orders of the same things: rank[i] is the place of thing i by value.
func spearman(a, b []float64) float64 {
	ranks := func(v []float64) []float64 {
		order := make([]int, len(v))
		for i := range order {
			order[i] = i
		}
		slices.SortFunc(order, func(i, j int) int {
			switch {
			case v[i] < v[j]:
				return -1
			case v[i] > v[j]:
				return 1
			}
			return i - j
		})
		out := make([]float64, len(v))
		for r, i := range order {
			out[i] = float64(r)
		}
		return out
	}
	x, y := ranks(a), ranks(b)
	n := float64(len(a))
	var d2 float64
	for i := range x {
		d2 += (x[i] - y[i]) * (x[i] - y[i])
	}
	return 1 - 6*d2/(n*(n*n-1))
}

// costs are log-normal with an outlier now and then, by object, and the stored bytes go with them.
func costs(n int) (decode func(ident.ObjectID) time.Duration, bytes func(ident.ObjectID) int64) {
	r := xrand.New(3)
	us := make([]float64, n)
	for i := range us {
		var z float64
		for range 12 { // a normal deviate
			z += r.Float64()
		}
		us[i] = math.Exp(5.6 + 0.9*(z-6))
		if r.IntN(100) == 0 {
			us[i] *= 20
		}
	}
	return func(x ident.ObjectID) time.Duration { return time.Duration(us[x] * float64(time.Microsecond)) },
		func(x ident.ObjectID) int64 { return int64(us[x]) }
}

// TestCostsMoveNoSample: what a sample costs decides when work on it begins, never where in an epoch it comes. Over all
// orders the rank correlation of cost and position stays below 0.05, and of one epoch within what a random order of so
// many shows once in 10^6. An order that puts the slow quarter off, as loaders do that deliver what is ready first,
// shows above 0.3.
func TestCostsMoveNoSample(t *testing.T) {
	const n = 2000
	decode, bytes := costs(n)
	for _, mode := range []dsa.Mode{dsa.Fixed, dsa.Strict, dsa.Stratified, dsa.Epoch} {
		m := model(7, 0)
		m.Decode, m.Bytes, m.Decoded, m.Check = decode, bytes, func(x ident.ObjectID) int64 { return 6 * bytes(x) }, 0
		room := int64(0)
		for x := range n {
			room += m.Decoded(ident.ObjectID(x)) / 5
		}
		m.Tiers = coordinator.TierConfig{Total: room, Sizes: [ident.NumForms]int64{ident.Decoded: room}}
		clients := []Client{client("a", span(0, n), 32, 3), client("b", span(0, n), 20, 3), client("c", span(n/2, n), 16, 3)}
		for i := range clients {
			clients[i].Sample.Mode, clients[i].Sample.Seed = mode, uint64(i)
			clients[i].Start = time.Duration(i) * 50 * time.Millisecond
		}
		res, err := Run(m, clients, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		wholeEpochs(t, res, clients)
		var sum, weight float64
		for _, e := range res.Epochs {
			var cost, place, fast []float64
			for i, x := range e.IDs {
				cost, place, fast = append(cost, float64(decode(x))), append(place, float64(i)), append(fast, float64(i))
			}
			slow := slices.Sorted(slices.Values(cost))[len(cost)*3/4]
			for i := range fast {
				if cost[i] > slow {
					fast[i] += float64(len(cost))
				}
			}
			k := float64(len(cost))
			rho := spearman(cost, place)
			if limit := 4.9 / math.Sqrt(k-1); math.Abs(rho) > limit {
				t.Errorf("%s, %s epoch %d: rho %.3f, beyond %.3f", mode, e.Job, e.Epoch, rho, limit)
			}
			if by := spearman(cost, fast); by < 0.3 {
				t.Errorf("an order with the slowest quarter put off shows only %.3f: this test would not see a bias", by)
			}
			sum, weight = sum+rho*k, weight+k
		}
		if rho := sum / weight; math.Abs(rho) > 0.05 {
			t.Errorf("%s: rho %.3f over all epochs", mode, rho)
		} else {
			t.Logf("%s: rho %+.4f over %d epochs", mode, rho, len(res.Epochs))
		}
	}
}
