package encoded

import (
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"larder/internal/ident"
	"larder/internal/xrand"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ref is a handle that counts.
type ref struct {
	refs atomic.Int64
	obj  ident.ObjectID
	cost int64
	used *atomic.Int64 // bytes of all handles that have references
}

func newRef(o ident.ObjectID, cost int64, used *atomic.Int64) *ref {
	r := &ref{obj: o, cost: cost, used: used}
	r.refs.Store(1)
	used.Add(cost)
	return r
}

func (r *ref) Retain() bool {
	for {
		n := r.refs.Load()
		if n <= 0 {
			return false
		}
		if r.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (r *ref) Release() {
	switch n := r.refs.Add(-1); {
	case n == 0:
		r.used.Add(-r.cost)
	case n < 0:
		panic("released too often")
	}
}

func mustIndex(t interface{ Fatal(...any) }, maxCost int64) *Index[*ref] {
	x, err := New[*ref](maxCost)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// Our index decides, ristretto holds: over any history within the budget they agree, and every handle has exactly the
// references it should.
func TestIndexAgainstMap(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		const budget = 100
		var used atomic.Int64
		x := mustIndex(rt, budget)
		defer x.Close()
		in := map[ident.ObjectID]*ref{}
		lent := []*ref{}
		object := rapid.Uint32Range(0, 9)
		rt.Repeat(map[string]func(*rapid.T){
			"offer": func(rt *rapid.T) {
				o, cost := ident.ObjectID(object.Draw(rt, "object")), rapid.Int64Range(1, 40).Draw(rt, "cost")
				if used.Load()+cost > budget {
					rt.Skip("the arena would refuse")
				}
				r := newRef(o, cost, &used)
				ok := x.Offer(o, r, cost)
				if ok == (in[o] != nil) {
					rt.Fatalf("Offer(%d) = %v with %v in", o, ok, in[o])
				}
				if ok {
					in[o] = r
				} else {
					r.Release()
				}
			},
			"remove": func(rt *rapid.T) {
				o := ident.ObjectID(object.Draw(rt, "object"))
				if ok := x.Remove(o); ok != (in[o] != nil) {
					rt.Fatalf("Remove(%d) = %v", o, ok)
				}
				delete(in, o)
			},
			"remove if": func(rt *rapid.T) {
				o := ident.ObjectID(object.Draw(rt, "object"))
				if x.RemoveIf(o, &ref{}) {
					rt.Fatal("a stranger was removed")
				}
				if r := in[o]; r != nil && !x.RemoveIf(o, r) {
					rt.Fatalf("RemoveIf(%d) = false", o)
				}
				delete(in, o)
			},
			"open": func(rt *rapid.T) {
				o := ident.ObjectID(object.Draw(rt, "object"))
				r, ok := x.Open(o)
				if ok != (in[o] != nil) || r != in[o] {
					rt.Fatalf("Open(%d) = %v, %v; want %v", o, r, ok, in[o])
				}
				if ok {
					lent = append(lent, r)
				}
			},
			"return": func(rt *rapid.T) {
				if len(lent) == 0 {
					rt.Skip("nothing is lent")
				}
				lent[0].Release()
				lent = lent[1:]
			},
			"": func(rt *rapid.T) {
				if err := x.Check(); err != nil {
					rt.Fatal(err)
				}
				if x.Len() != len(in) || x.Surprises() != 0 {
					rt.Fatalf("%d handles, %d surprises; want %d", x.Len(), x.Surprises(), len(in))
				}
			},
		})
		for _, r := range lent {
			r.Release()
		}
		x.Close()
		if used.Load() != 0 {
			rt.Fatalf("%d bytes are still referenced after Close", used.Load())
		}
	})
}

// Many goroutines offer, remove and read the same few objects under a budget that is enforced before the offer, as the
// arena does. Ristretto must never choose, nothing may be lost or released twice, and what was removed last is gone.
func TestConcurrent(t *testing.T) {
	const budget, workers, rounds = 1000, 6, 2000
	var used, kept, lost atomic.Int64
	x := mustIndex(t, budget)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			r := xrand.New(uint64(w))
			for range rounds {
				o := ident.ObjectID(r.IntN(40))
				switch r.IntN(4) {
				case 0:
					x.Remove(o)
				case 1:
					if h, ok := x.Open(o); ok {
						if h.obj != o || h.refs.Load() < 1 {
							t.Errorf("object %d gives the handle of %d", o, h.obj)
						}
						h.Release()
					}
				default:
					cost := int64(1 + r.IntN(60))
					for u := used.Load(); u+cost <= budget; u = used.Load() {
						if used.CompareAndSwap(u, u+cost) {
							h := newRef(o, cost, &used)
							used.Add(-cost) // counted by newRef
							if x.Offer(o, h, cost) {
								kept.Add(1)
							} else {
								lost.Add(1)
								h.Release()
							}
							break
						}
					}
				}
			}
		})
	}
	wg.Wait()
	if err := x.Check(); err != nil {
		t.Error(err)
	}
	if x.Surprises() != 0 || kept.Load() == 0 {
		t.Errorf("%d surprises, %d kept, %d not kept", x.Surprises(), kept.Load(), lost.Load())
	}
	x.Close()
	x.Close()
	if used.Load() != 0 {
		t.Errorf("%d bytes are still referenced after Close", used.Load())
	}
}

// A Set that meets a Close panics in ristretto; here it says false.
func TestOffersMeetClose(t *testing.T) {
	for range 20 {
		var used atomic.Int64
		x := mustIndex(t, 1<<30)
		var wg sync.WaitGroup
		for w := range 4 {
			wg.Go(func() {
				for i := range 200 {
					h := newRef(ident.ObjectID(w*1000+i), 1, &used)
					if !x.Offer(h.obj, h, 1) {
						h.Release()
					}
					x.Remove(ident.ObjectID(w*1000 + i/2))
					x.SetMaxCost(1 << 31)
				}
			})
		}
		x.Close()
		wg.Wait()
		if _, ok := x.Open(1); ok || used.Load() != 0 || x.Len() != 0 {
			t.Fatalf("after Close: open %v, %d bytes, %d handles", ok, used.Load(), x.Len())
		}
	}
}

// If ristretto does choose, because offers exceed the bound, the handles it gives up are released once and counted.
func TestSurprisesAreReleased(t *testing.T) {
	var used atomic.Int64
	x := mustIndex(t, 100)
	for o := range ident.ObjectID(50) {
		h := newRef(o, 7, &used)
		if !x.Offer(o, h, 7) {
			h.Release()
		}
	}
	if err := x.Check(); err != nil {
		t.Error(err)
	}
	if want := int64(x.Len()) * 7; used.Load() != want || want > 100 || x.Surprises() == 0 {
		t.Errorf("%d bytes referenced by %d handles after %d surprises", used.Load(), x.Len(), x.Surprises())
	}
	x.SetMaxCost(50) // never lowers
	x.SetMaxCost(200)
	if x.cache.MaxCost() != 200 {
		t.Errorf("MaxCost is %d", x.cache.MaxCost())
	}
	x.Close()
	if used.Load() != 0 {
		t.Errorf("%d bytes are still referenced", used.Load())
	}
}

func BenchmarkOpen(b *testing.B) {
	var used atomic.Int64
	x := mustIndex(b, 1<<30)
	defer x.Close()
	for o := range ident.ObjectID(10_000) {
		x.Offer(o, newRef(o, 1, &used), 1)
	}
	b.ResetTimer()
	for i := range b.N {
		h, _ := x.Open(ident.ObjectID(i % 10_000))
		h.Release()
	}
}

func BenchmarkOfferRemove(b *testing.B) {
	var used atomic.Int64
	x := mustIndex(b, 1<<30)
	defer x.Close()
	for i := range b.N {
		o := ident.ObjectID(i)
		x.Offer(o, newRef(o, 1, &used), 1)
		x.Remove(o)
	}
}
