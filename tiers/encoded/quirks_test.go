package encoded

import (
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/dgraph-io/ristretto/v2"

	"larder/internal/ident"
)

// These tests are about ristretto, not about us: each pins down a behaviour that the recipe in doc.go works around or
// relies on. One that fails after an upgrade says which sentence of the recipe to look at again.

type val struct{ n int }

type cache = ristretto.Cache[uint64, *val]

func raw(t *testing.T, maxCost int64, hook func(kind string, item *ristretto.Item[*val])) *cache {
	t.Helper()
	on := func(kind string) func(*ristretto.Item[*val]) {
		return func(i *ristretto.Item[*val]) {
			if hook != nil {
				hook(kind, i)
			}
		}
	}
	c, err := ristretto.NewCache(&ristretto.Config[uint64, *val]{
		NumCounters: 1 << 14, MaxCost: maxCost, IgnoreInternalCost: true,
		BufferItems: 1, // every Get is counted, or lost, at once
		KeyToHash:   func(k uint64) (uint64, uint64) { return k, 0 },
		OnEvict:     on("evict"), OnReject: on("reject"),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// gate is a cache whose goroutine stands in a hook, so that nothing queued is decided until open. It costs one key,
// 1<<40, which is too large and so rejected.
type gate struct {
	*cache
	in, out chan struct{}
}

func gated(t *testing.T, maxCost int64, hook func(kind string, item *ristretto.Item[*val])) *gate {
	g := &gate{in: make(chan struct{}), out: make(chan struct{})}
	g.cache = raw(t, maxCost, func(kind string, i *ristretto.Item[*val]) {
		if i.Key == 1<<40 {
			if kind == "reject" {
				g.in <- struct{}{}
				<-g.out
			}
			return
		}
		if hook != nil {
			hook(kind, i)
		}
	})
	return g
}

// hold queues a stop: what is queued after it is decided after release.
func (g *gate) hold(t *testing.T) {
	if !g.Set(1<<40, &val{}, g.MaxCost()+1) {
		t.Fatal("no room for the stop")
	}
}
func (g *gate) reached() { <-g.in }
func (g *gate) release() { g.out <- struct{}{} }

// Set only queues: the value is there after Wait, not before.
func TestQuirkSetIsAnOffer(t *testing.T) {
	g := gated(t, 100, nil)
	g.hold(t)
	g.reached()
	if !g.Set(1, &val{1}, 1) {
		t.Fatal("refused")
	}
	if _, ok := g.Get(1); ok {
		t.Error("a queued value is visible")
	}
	g.release()
	g.Wait()
	if v, ok := g.Get(1); !ok || v.n != 1 {
		t.Error("a value that fits is not there after Wait")
	}
}

// Everything that fits is kept, whatever the sketch thinks of it, up to the last byte of MaxCost.
func TestQuirkCertainWithinMaxCost(t *testing.T) {
	c := raw(t, 10_000, func(kind string, _ *ristretto.Item[*val]) { t.Errorf("%s within MaxCost", kind) })
	for k := range uint64(10_000) {
		if !c.Set(k, &val{int(k)}, 1) {
			t.Fatal("refused")
		}
	}
	c.Wait()
	for k := range uint64(10_000) {
		if v, ok := c.Get(k); !ok || v.n != int(k) {
			t.Fatalf("%d is missing", k)
		}
	}
	if c.RemainingCost() != 0 {
		t.Errorf("%d left of MaxCost", c.RemainingCost())
	}
	for k := range uint64(10_000) { // or the cleanup's Clear would look like evictions
		c.Del(k)
	}
	c.Wait()
}

// A full buffer refuses at once and calls no hook.
func TestQuirkFullBufferRefuses(t *testing.T) {
	var hooks atomic.Int64
	g := gated(t, 1<<20, func(string, *ristretto.Item[*val]) { hooks.Add(1) })
	g.hold(t)
	g.reached()
	n := uint64(0)
	for g.Set(n, &val{}, 1) {
		n++
	}
	if n != 32*1024 {
		t.Errorf("the buffer holds %d offers", n)
	}
	g.release()
	g.Wait()
	if _, ok := g.Get(n); ok || hooks.Load() != 0 {
		t.Errorf("the refused offer is there (%v), or a hook was called (%d)", ok, hooks.Load())
	}
}

// What is queued is outside MaxCost: bytes in flight must be bounded elsewhere.
func TestQuirkQueuedValuesAreOutsideMaxCost(t *testing.T) {
	g := gated(t, 10, nil)
	g.hold(t)
	g.reached()
	for k := range uint64(1000) {
		if !g.Set(k, &val{}, 10) {
			t.Fatalf("offer %d of 100 times MaxCost was refused", k)
		}
	}
	g.release()
	g.Wait()
	if r := g.RemainingCost(); r < 0 {
		t.Errorf("%d over MaxCost after Wait", -r)
	}
}

// Two quick Sets of a new key: the second is reported as rejected, and is what the key holds.
func TestQuirkRejectedAndResident(t *testing.T) {
	var rejected []*val
	g := gated(t, 100, func(kind string, i *ristretto.Item[*val]) {
		if kind == "reject" {
			rejected = append(rejected, i.Value)
		}
	})
	g.hold(t)
	g.reached()
	first, second := &val{1}, &val{2}
	g.Set(7, first, 1)
	g.Set(7, second, 1)
	g.release()
	g.Wait()
	v, ok := g.Get(7)
	if !ok || len(rejected) != 1 || rejected[0] != second || v != first {
		t.Errorf("resident %v (%v), rejected %v; the key is resident and was rejected in one", v, ok, rejected)
	}
}

// Set, Del, Set of a key: the Del that is still queued takes the second value with it, though its Set said true.
func TestQuirkQueuedDelTakesLaterSet(t *testing.T) {
	g := gated(t, 100, nil)
	g.hold(t)
	g.reached()
	g.Set(7, &val{1}, 1)
	g.hold(t)
	g.Del(7) // finds nothing yet, and queues
	g.release()
	g.reached() // the first Set is decided, the Del is not
	if !g.Set(7, &val{2}, 1) {
		t.Fatal("refused")
	}
	g.release()
	g.Wait()
	if v, ok := g.Get(7); ok {
		t.Errorf("%v survived; Offer need not wait for deletions any more", v)
	}
}

// UpdateMaxCost evicts nothing until the next Set, which then evicts by ristretto's choice.
func TestQuirkUpdateMaxCostIsLazy(t *testing.T) {
	var evicted atomic.Int64
	c := raw(t, 100, func(kind string, _ *ristretto.Item[*val]) { evicted.Add(1) })
	for k := range uint64(100) {
		c.Set(k, &val{}, 1)
	}
	c.Wait()
	c.UpdateMaxCost(10)
	c.Wait()
	if evicted.Load() != 0 {
		t.Errorf("%d evicted by UpdateMaxCost", evicted.Load())
	}
	c.Set(1000, &val{}, 1)
	c.Wait()
	if evicted.Load() < 90 {
		t.Errorf("%d evicted by the next Set", evicted.Load())
	}
}

// OnEvict comes twice for a key when the sample of victims held it twice, the second time without a value.
func TestQuirkOnEvictTwice(t *testing.T) {
	seen, empty := make(map[uint64]int), 0
	c := raw(t, 1000, func(kind string, i *ristretto.Item[*val]) {
		if kind == "evict" {
			seen[i.Key]++
			if i.Value == nil {
				empty++
			}
		}
	})
	for k := range uint64(20_000) {
		// Costs differ, so that one Set needs several victims.
		for !c.Set(k, &val{}, 1+int64(k%50)) {
			c.Wait()
		}
	}
	c.Wait()
	twice := 0
	for _, n := range seen {
		if n > 1 {
			twice++
		}
	}
	if twice == 0 || empty == 0 {
		t.Errorf("%d keys were evicted more than once, %d times without a value: drop need not look any more", twice, empty)
	}
}

// A Set that is rejected in the end may have evicted others before.
func TestQuirkRejectedSetEvicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var evicted, rejected atomic.Int64
		c := raw(t, 100, func(kind string, i *ristretto.Item[*val]) {
			switch {
			case kind == "evict":
				evicted.Add(1)
			case i.Key == key(1000):
				rejected.Add(1)
			}
		})
		for o := range ident.ObjectID(100) {
			c.Set(key(o), &val{}, 1)
		}
		c.Wait()
		for range 4 { // some are popular
			for o := range ident.ObjectID(10) {
				c.Get(key(o))
				synctest.Wait() // the sketch has counted it
			}
		}
		c.Set(key(1000), &val{}, 100)
		c.Wait()
		if evicted.Load() == 0 || rejected.Load() != 1 {
			t.Errorf("%d evicted for a newcomer that was rejected %d times", evicted.Load(), rejected.Load())
		}
		c.Close() // inside the bubble: its channels belong here
	})
}

// Wait cannot come back while a hook runs, so a hook that waits would never end.
func TestQuirkWaitInHookDeadlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hooked, waited := false, make(chan struct{})
		var c *cache
		c = raw(t, 10, func(string, *ristretto.Item[*val]) {
			if hooked {
				return
			}
			hooked = true
			go func() {
				c.Wait()
				close(waited)
			}()
			synctest.Wait()
			select {
			case <-waited:
				t.Error("Wait came back during a hook")
			default:
			}
		})
		c.Set(1, &val{}, 11)
		<-waited
		if !hooked {
			t.Error("no hook ran")
		}
		c.Close() // inside the bubble: its channels belong here
	})
}

// Del reports no eviction: the caller of Del releases.
func TestQuirkDelCallsNoEvictHook(t *testing.T) {
	var hooks atomic.Int64
	c := raw(t, 10, func(string, *ristretto.Item[*val]) { hooks.Add(1) })
	c.Set(1, &val{}, 1)
	c.Wait()
	c.Del(1)
	c.Wait()
	if hooks.Load() != 0 {
		t.Errorf("%d hooks for a Del", hooks.Load())
	}
}
