package tiers

import (
	"testing"

	"pgregory.net/rapid"

	"larder/internal/ident"
	"larder/tiers/arena"
	"larder/tiers/residency"
)

// oldest is a small evictor for these tests: the oldest entry leaves, for any newcomer.
type oldest struct{ order []uint32 }

func (e *oldest) Insert(h uint32, _ int) { e.order = append(e.order, h) }
func (*oldest) Update(uint32, int)       {}
func (*oldest) Hit(uint32)               {}
func (e *oldest) Len() int               { return len(e.order) }
func (e *oldest) Remove(h uint32) {
	for i, o := range e.order {
		if o == h {
			e.order = append(e.order[:i:i], e.order[i+1:]...)
		}
	}
}

func (e *oldest) Coldest() (uint32, bool) {
	if len(e.order) == 0 {
		return 0, false
	}
	return e.order[0], true
}
func (e *oldest) Victim(int) (uint32, bool) { return e.Coldest() }

// Index and store together, as the daemon drives them, over random histories of picks, reads, corruption, resizes in
// one go and in steps. At no step does a tier use more than its budget, in the index's count, in the store's and in the
// kernel's pages, but for what readers still hold after a shrink. What the index admits the store has room for; what is
// ready is there, intact.
func TestBudgetsHoldAtEveryStep(t *testing.T) {
	g := arena.Granule
	rapid.Check(t, func(rt *rapid.T) {
		s := open(rt, Config{VerifyEvery: 1, ChunkBytes: 32 * g})
		var budget, target [ident.NumForms]int64
		var ev [ident.NumForms]residency.Evictor
		for f := ident.Encoded; f < ident.NumForms; f++ {
			ev[f] = &oldest{}
		}
		x := residency.New([ident.NumForms]int64{}, ev)
		held := map[ident.Form]int64{} // what may be over: leaving under pins when the budget was cut
		evicted := func(h residency.Handle, k ident.Key) {
			if x.Pins(h) == 0 {
				s.Free(k)
			}
		}
		// The tier's budget is n; the index gets the usable part, and the rest is for what leaves under pins.
		resize := func(f ident.Form, n int64, atMost int) {
			done := x.Shrink(f, Usable(n), atMost, evicted)
			spare := n - Usable(n)
			if !done {
				n = max(n, x.Budget(f)+spare) // not smaller yet
			}
			x.SetLeavingLimit(f, spare)
			if err := s.SetBudget(f, n); err != nil {
				rt.Fatal(err)
			}
			budget[f] = n
			held[f] = x.Leaving(f)
		}
		type reader struct {
			h residency.Handle
			k ident.Key
			v View
		}
		var readers []reader
		form := func(rt *rapid.T) ident.Form {
			return ident.Form(rapid.IntRange(int(ident.Encoded), int(ident.Augmented)).Draw(rt, "form"))
		}
		for f := ident.Encoded; f < ident.NumForms; f++ {
			target[f] = 64 * g
			resize(f, target[f], 1<<30)
		}
		version, admitted := uint64(0), 0
		rt.Repeat(map[string]func(*rapid.T){
			"pick": func(rt *rapid.T) {
				f := form(rt)
				k, n := key(f, rapid.IntRange(0, 30).Draw(rt, "object")), rapid.Int64Range(1, 6*g).Draw(rt, "bytes")
				h, ok := x.Lookup(k)
				if !ok {
					if h, ok = x.Admit(k, arena.Round(n), 1, evicted); !ok {
						return
					}
					admitted++
				}
				x.Hit(h)
				x.Pin(h)
				if !x.Ready(h) {
					b, err := s.Alloc(k, n)
					if err != nil {
						if held[f] > 0 { // readers hold what a shrink cut away: the daemon continues without the entry
							x.Drop(h)
							x.Unpin(h)
							s.Free(k)
							return
						}
						rt.Fatalf("%s was admitted with %d of %d bytes used, %d leaving: %v", k, x.Used(f), budget[f], x.Leaving(f), err)
					}
					version++
					write(b.Bytes, k, version)
					if err := b.Commit(Meta{Width: uint32(n), Height: uint32(version), Channels: 3}); err != nil {
						rt.Fatal(err)
					}
					x.SetReady(h)
				}
				v, err := s.Open(k)
				if err != nil {
					rt.Fatalf("%s is ready: %v", k, err)
				}
				if !good(v, k) {
					rt.Fatalf("%s has other bytes", k)
				}
				readers = append(readers, reader{h, k, v})
			},
			"done": func(rt *rapid.T) {
				if len(readers) == 0 {
					rt.Skip("no reader")
				}
				i := rapid.IntRange(0, len(readers)-1).Draw(rt, "reader")
				r := readers[i]
				readers = append(readers[:i:i], readers[i+1:]...)
				if !good(r.v, r.k) {
					rt.Fatalf("%s was overwritten under its reader", r.k)
				}
				r.v.Close()
				if x.Unpin(r.h) {
					s.Free(r.k)
				}
				held[r.k.Form] = min(held[r.k.Form], x.Leaving(r.k.Form))
			},
			"resize": func(rt *rapid.T) {
				f := form(rt)
				target[f] = rapid.Int64Range(0, 96).Draw(rt, "granules") * g
				resize(f, target[f], 1<<30)
			},
			"step": func(rt *rapid.T) {
				f := form(rt)
				if rapid.Bool().Draw(rt, "anew") {
					target[f] = rapid.Int64Range(0, 96).Draw(rt, "granules") * g
				}
				resize(f, target[f], 2)
			},
			"": func(rt *rapid.T) {
				if err := x.Check(); err != nil {
					rt.Fatal(err)
				}
				for f := ident.Encoded; f < ident.NumForms; f++ {
					st := s.Stats(f)
					if x.Used(f) > x.Budget(f) || st.Used != x.Used(f)+x.Leaving(f) || st.Used > budget[f]+held[f] ||
						st.Committed > max(budget[f], st.Used) {
						rt.Fatalf("%s, budget %d, %d held: the index has %d of %d and %d leaving, the store %+v", f, budget[f], held[f],
							x.Used(f), x.Budget(f), x.Leaving(f), st)
					}
				}
			},
		})
		for i := range readers {
			readers[i].v.Close()
			if x.Unpin(readers[i].h) {
				s.Free(readers[i].k)
			}
		}
	})
}
