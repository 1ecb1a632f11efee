package policytest

import (
	"math/bits"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"larder/cachepolicy"
	"larder/internal/ident"
	"larder/internal/xrand"
)

// best is the most hits that any policy can have, found by trying everything: by what is in the cache, a bit a sample.
func best(t *Trace, capacity int) int {
	hits := map[uint]int{0: 0}
	for _, q := range t.Requests {
		x := uint(1) << q.Object
		next := map[uint]int{}
		keep := func(in uint, n int) {
			if old, ok := next[in]; !ok || n > old {
				next[in] = n
			}
		}
		for in, n := range hits {
			if in&x != 0 {
				keep(in, n+1)
				continue
			}
			keep(in, n)
			if bits.OnesCount(in) < capacity {
				keep(in|x, n)
				continue
			}
			for rest := in; rest != 0; rest &= rest - 1 {
				keep(in&^(rest&-rest)|x, n)
			}
		}
		hits = next
	}
	most := 0
	for _, n := range hits {
		most = max(most, n)
	}
	return most
}

func sum(hits []int) (n int) {
	for _, h := range hits {
		n += h
	}
	return n
}

// On tiny traces of any kind belady has as many hits as there can be, and no policy has more.
func TestNobodyBeatsBruteForce(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		tr := &Trace{Samples: 6}
		for _, x := range rapid.SliceOfN(rapid.IntRange(0, 5), 1, 24).Draw(rt, "trace") {
			tr.Requests = append(tr.Requests, Request{Object: ident.ObjectID(x), Need: uint16(x % 3)})
		}
		capacity := rapid.IntRange(0, 4).Draw(rt, "capacity")
		most := best(tr, capacity)
		for _, name := range append(cachepolicy.Names(), "clairvoyant-3") {
			var f Future = tr.Epochs()
			if name == "belady" {
				f = tr.Whole()
			}
			var given cachepolicy.Future = f
			if name == "clairvoyant-k" || name == "clairvoyant-3" {
				w := tr.Whole() // all of it, so that the horizon is what limits it
				f, given = w, w
			}
			e, err := cachepolicy.NewGiven(name, xrand.New(1), cachepolicy.Given{Future: given})
			if err != nil {
				rt.Fatal(err)
			}
			got := sum(Run(tr, capacity, e, f, false))
			if got > most || name == "belady" && got != most {
				rt.Errorf("%s has %d hits, the most there can be are %d", name, got, most)
			}
		}
	})
}

// Epoch orders of a job are known only while the epoch runs.
func TestEpochsKnowTheRunningEpoch(t *testing.T) {
	tr := Shuffled(50, 3, 3, xrand.New(3))
	e, w := tr.Epochs(), tr.Whole()
	for i, q := range tr.Requests {
		e.Advance(i, q)
		w.Advance(i, q)
		for x := range ident.ObjectID(50) {
			k := Request{Object: x}.Key()
			whole, want := uint64(0), uint64(0)
			for n := i + 1; n < len(tr.Requests) && (want == 0 || whole == 0); n++ {
				p := tr.Requests[n]
				if p.Object != x {
					continue
				}
				if whole == 0 {
					whole = uint64(n + 1)
				}
				if want == 0 && int(p.Epoch) == e.epoch[p.Job] {
					want = uint64(n + 1)
				}
			}
			if got, ok := e.Next(k); got != want || ok != (want > 0) {
				t.Fatalf("request %d: sample %d is next at %d, want %d", i, x, got, want)
			}
			if got, ok := w.Next(k); got != whole || ok != (whole > 0) {
				t.Fatalf("request %d: sample %d is next at %d of all, want %d", i, x, got, whole)
			}
		}
	}
}

// Other names for the samples lead to the same hits, request by request, under every policy that says it breaks no
// promise; and to other ones under those that compute with ids, so the test can tell.
func TestNamesDoNotMatter(t *testing.T) {
	const n, capacity = 600, 150
	tr := Shuffled(n, 3, 4, xrand.New(4))
	// Skewed requests too, or frequencies would hardly differ.
	r := xrand.New(5)
	for range 20_000 {
		x := r.IntN(1 + r.IntN(n))
		tr.Requests = append(tr.Requests, Request{Object: ident.ObjectID(x), Epoch: 4, Need: uint16(r.IntN(3))})
	}
	names := make([]ident.ObjectID, n)
	for i := range names {
		names[i] = ident.ObjectID(i)
	}
	r.Shuffle(n, func(i, j int) { names[i], names[j] = names[j], names[i] })
	renamed := &Trace{Samples: n, Requests: slices.Clone(tr.Requests)}
	for i := range renamed.Requests {
		renamed.Requests[i].Object = names[renamed.Requests[i].Object]
	}
	for _, name := range cachepolicy.Names() {
		hits := func(tr *Trace) []bool {
			var f Future
			if cachepolicy.NeedsFuture(name) {
				f = tr.Whole()
			}
			e, err := cachepolicy.NewGiven(name, xrand.New(6), cachepolicy.Given{Future: f, Nodes: 3})
			if err != nil {
				t.Fatal(err)
			}
			var each []bool
			Play{Capacity: capacity, Policy: e, Future: f, Each: func(hit bool) { each = append(each, hit) }}.Run(tr)
			return each
		}
		same := slices.Equal(hits(tr), hits(renamed))
		// A future reveals no name; it breaks something only because an order may be one.
		// What minio breaks is the long run: it keeps the same samples, whatever their names.
		if blind := cachepolicy.Breaks(name) == "" || name == "minio" || cachepolicy.NeedsFuture(name); same != blind {
			t.Errorf("%s: the same hits under other names: %v; it breaks %q", name, same, cachepolicy.Breaks(name))
		}
	}
}
