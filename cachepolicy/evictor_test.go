package cachepolicy

import (
	"slices"
	"strings"
	"testing"

	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/xrand"
	"larder/internal/xrand/xrandtest"
)

// clock is a Future of a test: objects are asked for at fixed times, of which the next ones are known.
type clock struct {
	now   uint64
	times [][]uint64 // by object, ascending
	block uint64     // what is known ends with the running block of so much time; 0 = all is known
}

func (c *clock) Now() uint64 { return c.now }

func (c *clock) Next(k ident.Key) (uint64, bool) {
	if int(k.Object) >= len(c.times) {
		return 0, false
	}
	times := c.times[k.Object]
	i, _ := slices.BinarySearch(times, c.now+1)
	if i == len(times) || c.block > 0 && times[i]/c.block > c.now/c.block {
		return 0, false
	}
	return times[i], true
}

// newClock schedules n requests for objects that the seed draws.
func newClock(seed uint64, n, objects int, block uint64) *clock {
	c := &clock{times: make([][]uint64, objects), block: block}
	for t := range uint64(n) {
		x := xrand.Hash(seed, t) % uint64(objects)
		c.times[x] = append(c.times[x], t+1)
	}
	return c
}

func mustNew(t interface{ Fatal(...any) }, name string, seed uint64) Evictor {
	e, err := NewGiven(name, xrand.New(seed), Given{Future: &clock{}})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func keyOf(x int) ident.Key {
	return ident.Key{Object: ident.ObjectID(x), Form: ident.Decoded, Recipe: 9}
}

// admit announces a newcomer to a policy that sees keys.
func admit(e Evictor, x, need int) {
	if s, ok := e.(Sighted); ok && !s.Admit(keyOf(x), need) {
		panic("refused")
	}
}

func TestRegistry(t *testing.T) {
	all := []string{"need", "refcount", "minio", "minio-preselect", "minio-partitioned", "lru", "fifo", "random",
		"2-random", "w-tinylfu",
		"s3-fifo", "sieve", "belady", "clairvoyant-k"}
	if got := Names(); !slices.Equal(got, all) {
		t.Fatalf("Names() = %v", got)
	}
	if got := Unforeseeing(); !slices.Equal(got, all[:12]) {
		t.Errorf("Unforeseeing() = %v", got)
	}
	for i, n := range all {
		e := mustNew(t, n, 1)
		if e.Name() != n || e.Len() != 0 {
			t.Errorf("New(%q) gives %q with %d entries", n, e.Name(), e.Len())
		}
		// A policy that sees keys says why, and no other does; one that needs a future fails without it. Of the policies
		// that see no keys only minio breaks a promise: that of the long run, because it always keeps the same samples.
		if _, sighted := e.(Sighted); sighted != (Sees(n) != "") || !sighted && (Breaks(n) != "") != (n == "minio") {
			t.Errorf("%s: sighted %v, sees %q, breaks %q", n, sighted, Sees(n), Breaks(n))
		}
		_, err := New(n, xrand.New(1))
		if blind := i < 12; NeedsFuture(n) == blind || blind != (err == nil) ||
			!blind && (!errs.Is(err, errs.ConfigInvalid) || !strings.Contains(err.Error(), n)) {
			t.Errorf("%s without a future: %v", n, err)
		}
	}
	if e := mustNew(t, "", 1); e.Name() != "need" {
		t.Errorf("the default is %q", e.Name())
	}
	if e := mustNew(t, "clairvoyant-250", 1); e.Name() != "clairvoyant-250" || e.(*foresight).horizon != 250 ||
		!NeedsFuture("clairvoyant-250") {
		t.Errorf("%s sees %d ahead", e.Name(), e.(*foresight).horizon)
	}
	for typed, meant := range map[string]string{
		"ned": "need", "NEED": "need", "lur": "lru", "mino": "minio", "rand": "random", "fif0": "fifo",
		"3-random": "2-random", "s3fifo": "s3-fifo", "w-tinylfy": "w-tinylfu", "seive": "sieve", "refcnt": "refcount",
		"minio-presel": "minio-preselect", "beladi": "belady",
		"clairvoyant-0": "clairvoyant-k", "clairvoyant-99999999999999999999": "",
	} {
		_, err := New(typed, xrand.New(1))
		if !errs.Is(err, errs.ConfigInvalid) || meant != "" && !strings.Contains(err.Error(), "did you mean "+meant+"?") {
			t.Errorf("New(%.10q) = %.200v, want a ConfigInvalid that names %s", typed, err, meant)
		}
	}
	if _, err := New(strings.Repeat("x", 1<<20), xrand.New(1)); !errs.Is(err, errs.ConfigInvalid) ||
		len(err.Error()) > 300 ||
		!strings.Contains(err.Error(), strings.Join(all, ", ")) {
		t.Errorf("a name that is like none: %.300v", err)
	}
	if Breaks("nothing") != "" || Sees("nothing") != "" || NeedsFuture("nothing") {
		t.Error("an unknown policy breaks something")
	}
}

// Which of several equals leaves must depend on nothing: not on the handle, the order of arrival, or what the need was
// before.
func TestTiesAreUniform(t *testing.T) {
	const n, rounds = 32, 6400
	for _, name := range []string{"need", "refcount", "random"} {
		counts := make([]int, n)
		r := xrand.New(7)
		for range rounds {
			e, err := New(name, r.Split())
			if err != nil {
				t.Fatal(err)
			}
			for h := range uint32(n) {
				e.Insert(h, int(h%3))
			}
			for h := range uint32(n) {
				e.Update(h, 2)
			}
			h, ok := e.Victim(2)
			if !ok {
				t.Fatal("no victim")
			}
			counts[h]++
		}
		if x := xrandtest.Deviate(counts); x > 4 {
			t.Errorf("%s: chi-square %.1f over %d handles: %v", name, x, n, counts)
		}
	}
}

// Only an entry whose need changes draws again: telling the same need over and over must not change who leaves.
func TestNeedIgnoresRepetition(t *testing.T) {
	a, b := mustNew(t, "need", 3), mustNew(t, "need", 3)
	for h := range uint32(50) {
		a.Insert(h, 1)
		b.Insert(h, 1)
	}
	for h := range uint32(50) {
		for range h {
			b.Update(h, 1)
		}
	}
	for range 50 {
		va, _ := a.Victim(1)
		vb, _ := b.Victim(1)
		if va != vb {
			t.Fatalf("victim %d, with repetition %d", va, vb)
		}
		a.Remove(va)
		b.Remove(vb)
	}
}

func TestMisusePanics(t *testing.T) {
	for _, name := range Names() {
		for what, misuse := range map[string]func(Evictor){
			"insert twice":       func(e Evictor) { e.Insert(1, 1) },
			"restore what is in": func(e Evictor) { e.Restore(1, 1) },
			"restore beyond":     func(e Evictor) { e.Restore(1000, 1) },
			"remove absent":      func(e Evictor) { e.Remove(2) },
			"remove beyond":      func(e Evictor) { e.Remove(1000) },
			"update absent":      func(e Evictor) { e.Update(2, 1) },
			"hit absent":         func(e Evictor) { e.Hit(2) },
		} {
			e := mustNew(t, name, 1)
			admit(e, 1, 1)
			e.Insert(1, 1)
			admit(e, 2, 1)
			e.Insert(2, 1)
			e.Remove(2)
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("%s: %s went unnoticed", name, what)
					}
				}()
				misuse(e)
			}()
		}
	}
}

// tierOf drives a policy as a tier of n entries does.
type tierOf struct {
	e      Evictor
	in     []uint32 // by object: handle + 1
	object []int    // by handle
	n      int
}

func (t *tierOf) request(x, need int) {
	if h := t.in[x]; h > 0 {
		t.e.Hit(h - 1)
		t.e.Update(h-1, need)
		return
	}
	if s, ok := t.e.(Sighted); ok && !s.Admit(keyOf(x), need) {
		return
	}
	h := uint32(t.e.Len())
	if t.e.Len() == t.n {
		v, ok := t.e.Victim(need)
		if !ok {
			return
		}
		t.e.Remove(v)
		t.in[t.object[v]] = 0
		h = v
	}
	t.object[h], t.in[x] = x, h+1
	t.e.Insert(h, need)
}

func steady(t interface{ Fatal(...any) }, name string, n int) (*tierOf, *xrand.Rand) {
	tier, r := &tierOf{e: mustNew(t, name, 1), in: make([]uint32, 3*n), object: make([]int, n), n: n}, xrand.New(2)
	for range 20 * n {
		tier.request(r.IntN(3*n), r.IntN(5))
	}
	return tier, r
}

// Once the tables have grown nothing is allocated: neither at a hit, nor at a miss that evicts.
func TestNoAllocations(t *testing.T) {
	for _, name := range Names() {
		tier, r := steady(t, name, 4096)
		if got := testing.AllocsPerRun(20_000, func() { tier.request(r.IntN(3*4096), r.IntN(5)) }); got > 0 {
			t.Errorf("%s: %.3f allocations a request", name, got)
		}
	}
}

func BenchmarkPolicies(b *testing.B) {
	for _, name := range Names() {
		b.Run(name, func(b *testing.B) {
			const n = 1 << 16
			tier, r := steady(b, name, n)
			b.ReportAllocs()
			for b.Loop() {
				tier.request(r.IntN(3*n), r.IntN(5))
			}
		})
	}
}
