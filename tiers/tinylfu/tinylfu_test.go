package tinylfu

import (
	"math"
	"slices"
	"testing"

	"github.com/dgraph-io/ristretto/v2"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"larder/cachepolicy/policytest"
	"larder/internal/ident"
	"larder/internal/invariant"
	"larder/internal/xrand"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t interface{ Fatal(...any) }, entries int) *Evictor {
	e, err := New(entries)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// held is what ristretto holds.
func (e *Evictor) held() map[uint64]bool {
	e.cache.Wait()
	in := map[uint64]bool{}
	e.cache.IterValues(func(k uint64) bool { in[k] = true; return false })
	return in
}

// Whatever is done, ristretto holds the entries and nothing else, victims are entries, and everything can leave in the
// end.
func TestFollowsRistretto(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		e := open(rt, 16)
		defer e.Close()
		in, at := map[int]uint32{}, map[uint32]int{}
		var free []uint32
		for h := range uint32(64) {
			free = append(free, h)
		}
		room := rapid.IntRange(1, 12).Draw(rt, "room")
		key := func(x int) ident.Key { return ident.Key{Object: ident.ObjectID(x), Form: ident.Encoded} }
		remove := func(h uint32) {
			e.Remove(h)
			delete(in, at[h])
			delete(at, h)
			free = append(free, h)
		}
		check := func() {
			e.withdraw()
			held := e.held()
			if e.Len() != len(in) || len(held) != len(in) {
				rt.Fatalf("%d entries, ristretto holds %d, want %d", e.Len(), len(held), len(in))
			}
			for x := range in {
				if !held[keyOf(key(x))] {
					rt.Fatalf("ristretto does not hold %d", x)
				}
			}
		}
		for _, v := range rapid.SliceOfN(rapid.IntRange(0, 1<<16), 1, 80).Draw(rt, "ops") {
			x, dice := v%30, v/30
			h, ok := in[x]
			switch {
			case ok && dice%6 == 0:
				remove(h)
			case ok:
				e.Update(h, 1)
				e.Hit(h)
			default:
				if !e.Admit(key(x), 1) {
					rt.Fatal("refused unasked")
				}
				gone, fits := victims(rt, e, at, len(in)+1-room+dice%2)
				if dice%5 == 0 {
					fits = false
				}
				if !fits {
					for _, v := range slices.Backward(gone) {
						e.Restore(v, 1)
					}
					break
				}
				for _, v := range gone {
					delete(in, at[v])
					delete(at, v)
					free = append(free, v)
				}
				h := free[len(free)-1]
				free = free[:len(free)-1]
				e.Insert(h, 1)
				in[x], at[h] = h, x
			}
			if dice%4 == 0 {
				check()
			}
		}
		check()
		leaveOneByOne(rt, e, len(in), remove, check)
	})
}

// victims removes up to n entries, in the order in which they leave. fits says that all n did.
func victims(rt *rapid.T, e *Evictor, at map[uint32]int, n int) (gone []uint32, fits bool) {
	fits = true
	for n > 0 && fits && len(gone) < n && e.Len() > 0 {
		v, ok := e.Victim(1)
		if again, ok2 := e.Victim(1); again != v || ok2 != ok {
			rt.Fatalf("victim %d, then %d", v, again)
		}
		if fits = ok; !ok {
			break
		}
		if _, known := at[v]; !known {
			rt.Fatalf("victim %d is no entry", v)
		}
		e.Remove(v)
		gone = append(gone, v)
	}
	return gone, fits
}

// leaveOneByOne has all n entries leave.
func leaveOneByOne(rt *rapid.T, e *Evictor, n int, remove func(h uint32), check func()) {
	for range n {
		h, ok := e.Coldest()
		if !ok {
			rt.Fatal("nothing to give up")
		}
		remove(h)
	}
	check()
	if _, ok := e.Coldest(); ok {
		rt.Fatal("an empty tier gives something up")
	}
}

func TestMisusePanics(t *testing.T) {
	for what, misuse := range map[string]func(*Evictor){
		"insert twice":  func(e *Evictor) { e.Insert(1, 1) },
		"remove absent": func(e *Evictor) { e.Remove(2) },
		"hit beyond":    func(e *Evictor) { e.Hit(1000) },
		"update absent": func(e *Evictor) { e.Update(2, 1) },
		"restore":       func(e *Evictor) { e.Restore(1, 1) },
	} {
		e := open(t, 8)
		e.Admit(ident.Key{Object: 1}, 1)
		e.Insert(1, 1)
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s went unnoticed", what)
				}
			}()
			misuse(e)
		}()
		e.Close()
	}
}

// direct is what ristretto hits when it is used as a cache, without us; settle waits for its decision after each Set.
func direct(t *testing.T, tr *policytest.Trace, capacity int, settle bool) float64 {
	c, err := ristretto.NewCache(&ristretto.Config[uint64, uint64]{
		NumCounters: int64(10 * capacity), MaxCost: int64(capacity), BufferItems: 64, IgnoreInternalCost: true,
		KeyToHash: func(k uint64) (uint64, uint64) { return k, 0 },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	hits := make([]int, 6)
	for _, q := range tr.Requests {
		k := keyOf(q.Key())
		if _, ok := c.Get(k); ok {
			hits[q.Epoch]++
			continue
		}
		c.Set(k, k, 1)
		if settle {
			c.Wait()
		}
	}
	return tr.Ratio(hits, 2)
}

// The policy hits what ristretto itself does when no caller hurries it. Neither is deterministic: runs differ by .03
// (standard deviation, one job and 65 %), so the bounds are five standard deviations of the means. Never evicting would
// have .05 more.
func TestHitRatios(t *testing.T) {
	if invariant.Enabled {
		t.Skip("statistics: they run without the race detector, which makes them ten times as slow")
	}
	const n, runs = 4000, 3
	all := 0.0
	for _, c := range []struct {
		jobs  int
		share float64
	}{{1, .10}, {1, .35}, {1, .65}, {4, .10}, {4, .35}, {4, .65}} {
		tr := policytest.Shuffled(n, c.jobs, 6, xrand.New(1))
		capacity := int(c.share * n)
		got, want := 0.0, 0.0
		for range runs {
			e := open(t, capacity)
			got += tr.Ratio(policytest.Run(tr, capacity, e, nil, false), 2) / runs
			e.Close()
			want += direct(t, tr, capacity, true) / runs
		}
		t.Logf("%d jobs, %.0f %%: %.3f, ristretto itself %.3f, without waiting %.3f", c.jobs, 100*c.share, got, want,
			direct(t, tr, capacity, false))
		if math.Abs(got-want) > .12 {
			t.Errorf("%d jobs, %.0f %%: %.3f, ristretto itself has %.3f", c.jobs, 100*c.share, got, want)
		}
		all += (got - want) / 6
	}
	if math.Abs(all) > .03 {
		t.Errorf("the policy differs from ristretto by %.3f in the mean", all)
	}
}
