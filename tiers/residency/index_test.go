package residency

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"larder/internal/ident"
	"larder/internal/xrand"
)

// byNeed is a small evictor for these tests, which must not import cachepolicy: least need, the lowest handle first.
// Siblings of the pure side do not know each other; the coordinator's tests join the real ones.
type byNeed struct {
	needs map[uint32]int
	never bool // never evict
}

func newByNeed() *byNeed { return &byNeed{needs: map[uint32]int{}} }

func (e *byNeed) Len() int { return len(e.needs) }
func (e *byNeed) Insert(h uint32, need int) {
	if _, in := e.needs[h]; in {
		panic("inserted twice")
	}
	e.needs[h] = need
}
func (e *byNeed) Update(h uint32, need int) { e.must(h); e.needs[h] = need }
func (e *byNeed) Hit(h uint32)              { e.must(h) }
func (e *byNeed) Remove(h uint32)           { e.must(h); delete(e.needs, h) }
func (e *byNeed) must(h uint32) {
	if _, in := e.needs[h]; !in {
		panic("not in")
	}
}

func (e *byNeed) Coldest() (uint32, bool) {
	best, need, ok := uint32(0), 0, false
	for h, n := range e.needs { // the minimum of a total order: no map order shows
		if !ok || n < need || n == need && h < best {
			best, need, ok = h, n, true
		}
	}
	return best, ok
}

func (e *byNeed) Victim(need int) (uint32, bool) {
	h, ok := e.Coldest()
	return h, ok && !e.never && need >= 1 && e.needs[h] <= need
}

func newIndex(budget int64) *Index {
	var b [ident.NumForms]int64
	var ev [ident.NumForms]Evictor
	for f := ident.Encoded; f < ident.NumForms; f++ {
		b[f], ev[f] = budget, newByNeed()
	}
	return New(b, ev)
}

func dec(o int) ident.Key {
	return ident.Key{Object: ident.ObjectID(o), Form: ident.Decoded, Recipe: 7}
}

// modelEntry is the naive twin of an entry.
type modelEntry struct {
	h     Handle
	bytes int64
	need  int
	pins  int
	state state
	ready bool
	used  int
	gen   uint32
}

// still is a snapshot and what it should always show.
type still struct {
	s    *Snapshot
	live map[ident.Key]modelEntry
	sums string
}

// twin keeps what the index should hold in a map and looks at everything for each answer.
type twin struct {
	x       *Index
	rt      *rapid.T
	live    map[ident.Key]*modelEntry
	budget  [ident.NumForms]int64
	limit   [ident.NumForms]int64
	evicted [ident.NumForms]uint64
	gens    map[uint32]Handle // all that ever were
	stills  []still
}

func (m *twin) used(f ident.Form, st ...state) (n int64) {
	for k, e := range m.live {
		if k.Form == f && slices.Contains(st, e.state) {
			n += e.bytes
		}
	}
	return n
}

// onEvicted is the callback of a call that may evict; keep is the key the call is about, which must not leave.
func (m *twin) onEvicted(keep ident.Key) func(Handle, ident.Key) {
	return func(h Handle, k ident.Key) {
		e := m.live[k]
		if e == nil || e.state != resident || e.h != h || k == keep || k.Form != keep.Form {
			m.rt.Fatalf("%s was evicted for %s, entry %+v", k, keep, e)
		}
		if m.x.Pins(h) != e.pins || m.x.Key(h) != k || m.x.Bytes(h) != e.bytes {
			m.rt.Fatalf("%s shows %d pins, %d bytes in the callback; want %+v", k, m.x.Pins(h), m.x.Bytes(h), e)
		}
		m.evicted[k.Form]++
		if e.state = leaving; e.pins == 0 {
			delete(m.live, k)
		}
	}
}

// worth are the bytes that a newcomer of the need may displace.
func (m *twin) worth(f ident.Form, need int, but ident.Key) (n int64) {
	for k, e := range m.live {
		if k.Form == f && k != but && e.state == resident && need >= 1 && e.need <= need {
			n += e.bytes
		}
	}
	return n
}

func genKey(rt *rapid.T) ident.Key {
	f := ident.Form(rapid.IntRange(int(ident.Encoded), int(ident.Augmented)).Draw(rt, "form"))
	k := ident.Key{Form: f, Object: ident.ObjectID(rapid.SampledFrom([]uint32{0, 1, 15, 16, 4095, 4096, 70000}).Draw(rt,
		"object"))}
	switch f {
	case ident.Decoded:
		k.Recipe = ident.RecipeID(rapid.IntRange(1, 2).Draw(rt, "recipe"))
	case ident.Augmented:
		k.Recipe, k.Group = 9, 1
		k.Instance = uint32(rapid.IntRange(0, 1).Draw(rt, "instance"))
	default:
	}
	return k
}

func TestIndexAgainstMap(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		const budget = 100
		m := &twin{x: newIndex(budget), rt: rt, live: map[ident.Key]*modelEntry{}, gens: map[uint32]Handle{}}
		for f := range m.budget {
			m.budget[f], m.limit[f] = budget, -1
		}
		bytes := rapid.Int64Range(0, 60)
		need := rapid.IntRange(0, 3)
		pick := func(rt *rapid.T) (ident.Key, *modelEntry) {
			if len(m.live) == 0 {
				rt.Skip("empty")
			}
			keys := make([]ident.Key, 0, len(m.live))
			for k := range m.live {
				keys = append(keys, k)
			}
			slices.SortFunc(keys, func(a, b ident.Key) int { return int(m.live[a].h) - int(m.live[b].h) })
			k := rapid.SampledFrom(keys).Draw(rt, "key")
			return k, m.live[k]
		}
		rt.Repeat(map[string]func(*rapid.T){
			"admit": func(rt *rapid.T) {
				k, n, need := genKey(rt), bytes.Draw(rt, "bytes"), need.Draw(rt, "need")
				f, old, before := k.Form, m.live[k], m.evicted
				if old != nil && old.state == leaving {
					n = old.bytes
				}
				room := m.budget[f] - m.used(f, resident)
				away := m.used(f, leaving, dropped)
				possible := n <= room || n <= m.budget[f] && n <= room+m.worth(f, need, k)
				h, ok := m.x.Admit(k, n, need, m.onEvicted(k))
				switch {
				case old != nil && old.state == resident:
					if !ok || h != old.h {
						rt.Fatalf("a resident key gives %d, %v", h, ok)
					}
					old.need = need
				case old != nil && old.state == dropped:
					if ok {
						rt.Fatal("a dropped key came back while it was pinned")
					}
				case !ok:
					// With a limit on what leaves, pins can refuse too.
					if possible && m.limit[f] < 0 {
						rt.Fatalf("%s, %d bytes, need %d refused with %d free", k, n, need, room)
					}
					if m.evicted != before {
						rt.Fatal("a refused admission evicted something")
					}
				case !possible:
					rt.Fatalf("%s, %d bytes, need %d admitted with %d free", k, n, need, room)
				case old != nil:
					if h != old.h {
						rt.Fatal("taken back under another handle")
					}
					old.state, old.need = resident, need
				default:
					g := m.x.Generation(h)
					if old, seen := m.gens[g]; seen || g == 0 {
						rt.Fatalf("generation %d of %d was that of %d", g, h, old)
					}
					m.gens[g] = h
					m.live[k] = &modelEntry{h: h, bytes: n, need: need, state: resident, gen: g}
				}
				if now := m.used(f, leaving, dropped); now > away && m.limit[f] >= 0 && now > m.limit[f] {
					rt.Fatalf("%d bytes are leaving, limit %d", now, m.limit[f])
				}
			},
			"resize": func(rt *rapid.T) {
				k, e := pick(rt)
				n := bytes.Draw(rt, "bytes")
				f, before := k.Form, m.evicted
				room := m.budget[f] - m.used(f, resident) + e.bytes
				possible := n <= room || n <= m.budget[f] && n <= room+m.worth(f, e.need, k)
				ok := m.x.Resize(e.h, n, m.onEvicted(k))
				switch {
				case e.state == dropped && ok:
					rt.Fatal("a dropped entry was resized")
				case e.state == resident && ok != possible && m.limit[f] < 0:
					rt.Fatalf("%s to %d bytes: %v with %d free", k, n, ok, room)
				}
				switch {
				case ok:
					e.bytes = n
				case m.evicted != before:
					rt.Fatal("a refused resize evicted something")
				case e.state == resident && e.pins == 0:
					delete(m.live, k)
				default:
					e.state = dropped
				}
			},
			"pin": func(rt *rapid.T) {
				_, e := pick(rt)
				m.x.Pin(e.h)
				e.pins++
			},
			"unpin": func(rt *rapid.T) {
				k, e := pick(rt)
				if e.pins == 0 {
					rt.Skip("not pinned")
				}
				e.pins--
				want := e.pins == 0 && e.state != resident
				if got := m.x.Unpin(e.h); got != want {
					rt.Fatalf("Unpin of %s: free %v, want %v", k, got, want)
				}
				if want {
					if m.x.Key(e.h) != k {
						rt.Fatal("the key is not readable after death")
					}
					delete(m.live, k)
				}
			},
			"drop": func(rt *rapid.T) {
				k, e := pick(rt)
				if got := m.x.Drop(e.h); got != (e.pins == 0) {
					rt.Fatalf("Drop of %s with %d pins: free %v", k, e.pins, got)
				}
				if e.state = dropped; e.pins == 0 {
					delete(m.live, k)
				}
			},
			"need": func(rt *rapid.T) {
				_, e := pick(rt)
				e.need = need.Draw(rt, "need")
				m.x.SetNeed(e.h, e.need)
				m.x.Hit(e.h)
				e.used++
			},
			"ready": func(rt *rapid.T) {
				_, e := pick(rt)
				m.x.SetReady(e.h)
				e.ready = true
			},
			"budget": func(rt *rapid.T) {
				f := ident.Form(rapid.IntRange(int(ident.Encoded), int(ident.Augmented)).Draw(rt, "form"))
				m.budget[f] = rapid.Int64Range(0, 150).Draw(rt, "budget")
				m.x.SetBudget(f, m.budget[f], m.onEvicted(ident.Key{Form: f, Object: 1 << 30}))
			},
			"shrink": func(rt *rapid.T) {
				f := ident.Form(rapid.IntRange(int(ident.Encoded), int(ident.Augmented)).Draw(rt, "form"))
				to, n := rapid.Int64Range(0, 150).Draw(rt, "budget"), rapid.IntRange(0, 3).Draw(rt, "at most")
				before := m.evicted[f]
				done := m.x.Shrink(f, to, n, m.onEvicted(ident.Key{Form: f, Object: 1 << 30}))
				left := m.used(f, resident)
				if gone := m.evicted[f] - before; gone > uint64(n) || done != (left <= to) || !done && gone < uint64(n) {
					rt.Fatalf("%d of at most %d entries were evicted, %d bytes left for %d: done %v", gone, n, left, to, done)
				}
				m.budget[f] = max(to, left)
			},
			"limit": func(rt *rapid.T) {
				f := ident.Form(rapid.IntRange(int(ident.Encoded), int(ident.Augmented)).Draw(rt, "form"))
				m.limit[f] = rapid.SampledFrom([]int64{-1, 0, 80}).Draw(rt, "limit")
				m.x.SetLeavingLimit(f, m.limit[f])
			},
			"snapshot": func(*rapid.T) {
				if len(m.stills) == 3 {
					m.stills = m.stills[1:]
				}
				st := still{m.x.Snapshot(), map[ident.Key]modelEntry{}, m.sums(&m.x.tables)}
				for k, e := range m.live {
					st.live[k] = *e
				}
				m.stills = append(m.stills, st)
			},
			"": func(*rapid.T) { m.compare() },
		})
	})
}

func (m *twin) sums(t *tables) string {
	var s []any
	for f := ident.Encoded; f < ident.NumForms; f++ {
		s = append(s, t.Budget(f), t.Used(f), t.Leaving(f), t.Entries(f), t.Evictions(f))
	}
	return fmt.Sprint(s...)
}

// shows compares tables with what they should hold.
func (m *twin) shows(t *tables, lookup func(ident.Key) (Handle, bool), live map[ident.Key]modelEntry) {
	for f := ident.Encoded; f < ident.NumForms; f++ {
		seen := map[Handle]bool{}
		t.Each(f, func(h Handle, k ident.Key) {
			if e, ok := live[k]; !ok || e.state != resident || e.h != h || seen[h] || k.Form != f {
				m.rt.Fatalf("Each gives %s as %d", k, h)
			}
			seen[h] = true
		})
		if t.Entries(f) != len(seen) {
			m.rt.Fatalf("%d entries, Each gives %d", t.Entries(f), len(seen))
		}
	}
	for k, e := range live {
		h, ok := lookup(k)
		if ok != (e.state == resident) || ok && h != e.h {
			m.rt.Fatalf("Lookup(%s) = %d, %v; want %+v", k, h, ok, e)
		}
		got := modelEntry{e.h, t.Bytes(e.h), t.Need(e.h), t.Pins(e.h), e.state, t.Ready(e.h), t.UsedBy(e.h),
			t.Generation(e.h)}
		if got != e || t.Resident(e.h) != (e.state == resident) || t.Key(e.h) != k {
			m.rt.Fatalf("%s is %+v, resident %v, key %s; want %+v", k, got, t.Resident(e.h), t.Key(e.h), e)
		}
	}
}

func (m *twin) compare() {
	if err := m.x.Check(); err != nil {
		m.rt.Fatal(err)
	}
	for f := ident.Encoded; f < ident.NumForms; f++ {
		got := fmt.Sprint(m.x.Budget(f), m.x.Used(f), m.x.Leaving(f), m.x.Evictions(f))
		want := fmt.Sprint(m.budget[f], m.used(f, resident), m.used(f, leaving, dropped), m.evicted[f])
		if got != want {
			m.rt.Fatalf("%s: budget, used, leaving, evictions are %s, want %s", f, got, want)
		}
	}
	now, alive := map[ident.Key]modelEntry{}, map[uint32]Handle{}
	for k, e := range m.live {
		now[k] = *e
		alive[e.gen] = e.h
	}
	m.shows(&m.x.tables, m.x.Lookup, now)
	for g, h := range m.gens {
		if _, want := alive[g]; m.x.Is(h, g) != want {
			m.rt.Fatalf("%d is of generation %d: %v, want %v", h, g, m.x.Is(h, g), want)
		}
	}
	for _, st := range m.stills {
		if err := st.s.Check(); err != nil {
			m.rt.Fatal("a snapshot: ", err)
		}
		if got := m.sums(&st.s.tables); got != st.sums {
			m.rt.Fatalf("a snapshot shows %s, was %s", got, st.sums)
		}
		m.shows(&st.s.tables, st.s.Lookup, st.live)
	}
}

func TestAdmitIsAllOrNothing(t *testing.T) {
	x := newIndex(100)
	for i, need := range []int{1, 1, 3} {
		if _, ok := x.Admit(dec(i), 30, need, nil); !ok {
			t.Fatal("no room for", i)
		}
	}
	// Two would have to leave for 80 bytes of need 2 to fit, and then a third, which is needed more.
	if _, ok := x.Admit(dec(9), 80, 2, func(Handle, ident.Key) { t.Error("evicted") }); ok {
		t.Fatal("admitted")
	}
	var left []ident.Key
	if _, ok := x.Admit(dec(9), 70, 2, func(_ Handle, k ident.Key) { left = append(left, k) }); !ok {
		t.Fatal("refused")
	}
	if !slices.Equal(left, []ident.Key{dec(0), dec(1)}) || x.Used(ident.Decoded) != 100 {
		t.Fatalf("%v left, %d used", left, x.Used(ident.Decoded))
	}
}

func TestTakenBack(t *testing.T) {
	x := newIndex(100)
	h, _ := x.Admit(dec(1), 60, 1, nil)
	x.SetReady(h)
	x.Pin(h)
	if _, ok := x.Admit(dec(2), 60, 2, nil); !ok {
		t.Fatal("2 was refused")
	}
	if _, ok := x.Lookup(dec(1)); ok || x.Leaving(ident.Decoded) != 60 {
		t.Fatalf("1 is resident %v, %d bytes leave", ok, x.Leaving(ident.Decoded))
	}
	// It comes back with its bytes, its readiness and its handle, at the cost of 2.
	var left []ident.Key
	g, ok := x.Admit(dec(1), 5, 2, func(_ Handle, k ident.Key) { left = append(left, k) })
	if !ok || g != h || !x.Ready(g) || x.Bytes(g) != 60 || !slices.Equal(left, []ident.Key{dec(2)}) {
		t.Fatalf("handle %d of %d, %v, left %v", g, h, ok, left)
	}
	if x.Unpin(h) {
		t.Fatal("a resident entry was free")
	}
	// What was dropped does not come back: its bytes are not to be trusted.
	x.Pin(h)
	if x.Drop(h) {
		t.Fatal("free under a pin")
	}
	if _, ok := x.Admit(dec(1), 5, 2, nil); ok {
		t.Fatal("a dropped entry came back")
	}
	if !x.Unpin(h) {
		t.Fatal("not free after the last pin")
	}
	if g, ok := x.Admit(dec(1), 5, 2, nil); !ok || x.Ready(g) {
		t.Fatal("the key is not new again")
	}
}

func TestLeavingLimit(t *testing.T) {
	x := newIndex(100)
	a, _ := x.Admit(dec(1), 50, 1, nil)
	x.Admit(dec(2), 50, 1, nil)
	x.Pin(a)
	x.SetLeavingLimit(ident.Decoded, 49)
	if _, ok := x.Admit(dec(3), 50, 1, func(Handle, ident.Key) { t.Error("evicted") }); ok {
		t.Fatal("1 left under its pin, over the limit")
	}
	x.SetLeavingLimit(ident.Decoded, 50)
	if _, ok := x.Admit(dec(3), 50, 1, nil); !ok || x.Leaving(ident.Decoded) != 50 {
		t.Fatalf("admitted %v, leaving %d", ok, x.Leaving(ident.Decoded))
	}
}

// The same calls give the same evictions, whatever the table's maps do.
func TestDeterministic(t *testing.T) {
	run := func() (log []string) {
		x, r := newIndex(1000), xrand.New(5)
		for range 3000 {
			k := ident.Key{Form: ident.Augmented, Object: ident.ObjectID(r.IntN(200)), Recipe: 3, Instance: uint32(r.IntN(3))}
			x.Admit(k, int64(r.IntN(90)), r.IntN(4), func(h Handle, k ident.Key) { log = append(log, fmt.Sprint(h, k)) })
		}
		x.Each(ident.Augmented, func(h Handle, k ident.Key) { log = append(log, fmt.Sprint(h, k)) })
		return log
	}
	a, b := run(), run()
	if len(a) < 1000 || !slices.Equal(a, b) {
		t.Fatalf("%d and %d lines differ", len(a), len(b))
	}
}

func TestMisusePanics(t *testing.T) {
	for what, misuse := range map[string]func(*Index, Handle){
		"dead handle":     func(x *Index, h Handle) { x.Drop(h); x.Pin(h) },
		"unknown handle":  func(x *Index, h Handle) { x.Pin(h + 1000) },
		"unpin too often": func(x *Index, h Handle) { x.Unpin(h) },
		"stored":          func(x *Index, _ Handle) { x.Admit(ident.Key{}, 1, 1, nil) },
		"no such form":    func(x *Index, _ Handle) { x.SetBudget(ident.NumForms, 1, nil) },
		"negative bytes":  func(x *Index, _ Handle) { x.Admit(dec(5), -1, 1, nil) },
		"negative budget": func(x *Index, _ Handle) { x.SetBudget(ident.Decoded, -1, nil) },
		"recipe of encoded": func(x *Index, _ Handle) {
			x.Admit(ident.Key{Form: ident.Encoded, Recipe: 1}, 1, 1, nil)
		},
		"callback that changes": func(x *Index, _ Handle) {
			x.SetBudget(ident.Decoded, 0, func(h Handle, _ ident.Key) { x.Drop(h) })
		},
	} {
		x := newIndex(10)
		h, _ := x.Admit(dec(1), 5, 1, nil)
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s went unnoticed", what)
				}
			}()
			misuse(x, h)
		}()
	}
}

// Looking up and pinning a decoded sample is on the path of every pick: no allocation.
func TestHotPathDoesNotAllocate(t *testing.T) {
	x := newIndex(1 << 40)
	for i := range 5000 {
		x.Admit(dec(i), 100, 1, nil)
	}
	i := 0
	if n := testing.AllocsPerRun(1000, func() {
		h, _ := x.Lookup(dec(i % 5000))
		x.Pin(h)
		x.Unpin(h)
		i++
	}); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}
