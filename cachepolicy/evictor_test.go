package cachepolicy

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"larder/internal/fault"
	"larder/internal/xrand"
	"larder/internal/xrand/xrandtest"
)

func mustNew(t interface{ Fatal(...any) }, name string, seed uint64) Evictor {
	e, err := New(name, xrand.New(seed))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestRegistry(t *testing.T) {
	if got := Names(); !slices.Equal(got, []string{"need", "minio", "lru", "fifo", "random"}) {
		t.Fatalf("Names() = %v", got)
	}
	for _, n := range Names() {
		if e := mustNew(t, n, 1); e.Name() != n || e.Len() != 0 {
			t.Errorf("New(%q) gives %q with %d entries", n, e.Name(), e.Len())
		}
		if b := Breaks(n); b != "" {
			t.Errorf("%s sees no size, cost or id, and says it breaks %q", n, b)
		}
	}
	if e := mustNew(t, "", 1); e.Name() != "need" {
		t.Errorf("the default is %q", e.Name())
	}
	for typed, meant := range map[string]string{
		"ned": "need", "NEED": "need", "lur": "lru", "mino": "minio", "rand": "random", "fif0": "fifo",
	} {
		_, err := New(typed, xrand.New(1))
		if !fault.Is(err, fault.ConfigInvalid) || !strings.Contains(err.Error(), "did you mean "+meant+"?") {
			t.Errorf("New(%.10q) = %.200v, want a ConfigInvalid that names %s", typed, err, meant)
		}
	}
	if _, err := New(strings.Repeat("x", 1<<20), xrand.New(1)); !fault.Is(err, fault.ConfigInvalid) || len(err.Error()) > 200 ||
		!strings.Contains(err.Error(), "need, minio, lru, fifo, random") {
		t.Errorf("a name that is like none: %.300v", err)
	}
}

// model is what every policy must agree with: a list of what is in, oldest first.
type model struct{ items []modelItem }

type modelItem struct {
	h    uint32
	need int
}

func (m *model) index(h uint32) int {
	return slices.IndexFunc(m.items, func(i modelItem) bool { return i.h == h })
}

// victimOK tells whether the answer of a policy is one that its rule allows.
func (m *model) victimOK(name string, need int, h uint32, ok bool) bool {
	if len(m.items) == 0 || name == "minio" {
		return !ok
	}
	least := slices.MinFunc(m.items, func(a, b modelItem) int { return a.need - b.need }).need
	switch name {
	case "need":
		if need < 1 || least > need {
			return !ok
		}
		return ok && m.index(h) >= 0 && m.items[m.index(h)].need == least
	case "lru", "fifo":
		return ok && h == m.items[0].h
	default:
		return ok && m.index(h) >= 0
	}
}

func (m *model) coldestOK(name string, h uint32, ok bool) bool {
	switch name {
	case "need":
		return m.victimOK(name, 1<<30, h, ok)
	case "minio":
		return m.victimOK("random", 0, h, ok)
	default:
		return m.victimOK(name, 0, h, ok)
	}
}

func TestPoliciesAgainstList(t *testing.T) {
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				e, m := mustNew(rt, name, rapid.Uint64().Draw(rt, "seed")), &model{}
				handles := rapid.Uint32Range(0, 20)
				rt.Repeat(map[string]func(*rapid.T){
					"insert": func(rt *rapid.T) {
						h, need := handles.Draw(rt, "h"), rapid.IntRange(0, 4).Draw(rt, "need")
						if m.index(h) >= 0 {
							rt.Skip("is in")
						}
						e.Insert(h, need)
						m.items = append(m.items, modelItem{h, need})
					},
					"update": func(rt *rapid.T) {
						if len(m.items) == 0 {
							rt.Skip("empty")
						}
						i := rapid.IntRange(0, len(m.items)-1).Draw(rt, "i")
						m.items[i].need = rapid.IntRange(0, 4).Draw(rt, "need")
						e.Update(m.items[i].h, m.items[i].need)
					},
					"hit": func(rt *rapid.T) {
						if len(m.items) == 0 {
							rt.Skip("empty")
						}
						i := rapid.IntRange(0, len(m.items)-1).Draw(rt, "i")
						it := m.items[i]
						e.Hit(it.h)
						if name == "lru" {
							m.items = append(slices.Delete(m.items, i, i+1), it)
						}
					},
					"remove": func(rt *rapid.T) {
						if len(m.items) == 0 {
							rt.Skip("empty")
						}
						i := rapid.IntRange(0, len(m.items)-1).Draw(rt, "i")
						e.Remove(m.items[i].h)
						m.items = slices.Delete(m.items, i, i+1)
					},
					"refused": func(rt *rapid.T) {
						// Victims taken out and put back leave everything as it was: the same victims come again.
						var took, again []uint32
						for _, list := range []*[]uint32{&took, &again} {
							for range 3 {
								if h, ok := e.Victim(2); ok {
									e.Remove(h)
									*list = append(*list, h)
								}
							}
							for _, h := range slices.Backward(*list) {
								e.Restore(h, m.items[m.index(h)].need)
							}
						}
						if name != "random" && !slices.Equal(took, again) {
							rt.Fatalf("took %v, put them back, took %v", took, again)
						}
					},
					"": func(rt *rapid.T) {
						if e.Len() != len(m.items) {
							rt.Fatalf("%d entries, want %d", e.Len(), len(m.items))
						}
						need := rapid.IntRange(0, 5).Draw(rt, "newcomer")
						h, ok := e.Victim(need)
						if !m.victimOK(name, need, h, ok) {
							rt.Fatalf("Victim(%d) = %d, %v of %v", need, h, ok, m.items)
						}
						if h2, ok2 := e.Victim(need); h2 != h || ok2 != ok {
							rt.Fatalf("Victim(%d) = %d, then %d", need, h, h2)
						}
						if h, ok := e.Coldest(); !m.coldestOK(name, h, ok) {
							rt.Fatalf("Coldest() = %d, %v of %v", h, ok, m.items)
						}
					},
				})
			})
		})
	}
}

// Which of several equals leaves must depend on nothing: not on the handle, the order of arrival, or what the need was
// before.
func TestTiesAreUniform(t *testing.T) {
	const n, rounds = 32, 6400
	for _, name := range []string{"need", "random"} {
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
			"insert twice":  func(e Evictor) { e.Insert(1, 1) },
			"remove absent": func(e Evictor) { e.Remove(2) },
			"remove beyond": func(e Evictor) { e.Remove(1000) },
			"update absent": func(e Evictor) { e.Update(2, 1) },
			"hit absent":    func(e Evictor) { e.Hit(2) },
		} {
			e := mustNew(t, name, 1)
			e.Insert(1, 1)
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

func BenchmarkNeed(b *testing.B) {
	r := xrand.New(1)
	e := mustNew(b, "need", 1)
	const n = 1 << 17
	for h := range uint32(n) {
		e.Insert(h, 4)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		h := uint32(r.IntN(n))
		e.Update(h, r.IntN(5))
		if v, ok := e.Victim(4); ok {
			e.Remove(v)
			e.Insert(v, 4)
		}
	}
}
