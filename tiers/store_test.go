package tiers

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/xrand"
	"larder/tiers/arena"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type tester interface {
	Fatal(...any)
	Fatalf(string, ...any)
	Helper()
	Cleanup(func())
}

func open(t tester, cfg Config) *Store {
	t.Helper()
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	})
	return s
}

func budgets(n int64) (b [ident.NumForms]int64) {
	for f := ident.Encoded; f < ident.NumForms; f++ {
		b[f] = n
	}
	return b
}

func key(f ident.Form, o int) ident.Key {
	k := ident.Key{Form: f, Object: ident.ObjectID(o)}
	if f != ident.Encoded {
		k.Recipe = 7
	}
	if f == ident.Augmented {
		k.Group, k.Instance = 1, uint32(o%3)
	}
	return k
}

// write fills b with bytes that tell which key and version they belong to.
func write(b []byte, k ident.Key, version uint64) {
	r := xrand.New(uint64(k.Object), uint64(k.Form), version)
	for i := range b {
		b[i] = byte(r.Uint64())
	}
}

func put(t tester, s *Store, k ident.Key, n int64, version uint64) {
	t.Helper()
	b, err := s.Alloc(k, n)
	if err != nil {
		t.Fatal(err)
	}
	write(b.Bytes, k, version)
	if err := b.Commit(Meta{Width: uint32(n), Height: uint32(version), Channels: 3}); err != nil {
		t.Fatal(err)
	}
}

// good reports whether a view shows what put wrote.
func good(v View, k ident.Key) bool {
	want := make([]byte, v.Meta.Width)
	write(want, k, uint64(v.Meta.Height))
	return bytes.Equal(v.Bytes, want) && v.Meta.Channels == 3
}

func forms(t *testing.T, test func(*testing.T, ident.Form)) {
	for f := ident.Encoded; f < ident.NumForms; f++ {
		t.Run(f.String(), func(t *testing.T) { test(t, f) })
	}
}

// A history of one store against a map.
func TestStoreAgainstMap(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		type pub struct {
			size    int64
			version uint64
		}
		type lent struct {
			v    View
			k    ident.Key
			size int64
		}
		g := arena.Granule
		s := open(rt, Config{Budgets: budgets(32 * g), VerifyEvery: 1, ChunkBytes: 16 * g})
		budget := budgets(32 * g)
		in := map[ident.Key]pub{}
		filling := map[*Buf]int64{}
		freed := map[*Buf]bool{}
		var bufs []*Buf
		var views []lent
		gone := map[*byte]int64{} // freed and still viewed, by first byte
		version := uint64(0)

		used := func(f ident.Form) (n int64) {
			seen := map[*byte]bool{}
			for k, p := range in {
				if k.Form == f {
					n += arena.Round(p.size)
				}
			}
			for _, l := range views {
				if at := &l.v.Bytes[0]; l.k.Form == f && gone[at] > 0 && !seen[at] {
					seen[at] = true
					n += gone[at]
				}
			}
			for b, size := range filling {
				if b.key.Form == f {
					n += arena.Round(size)
				}
			}
			return n
		}
		// detach notes the views of what is published under k as views of something gone.
		detach := func(k ident.Key) {
			p, ok := in[k]
			if !ok {
				return
			}
			delete(in, k)
			for _, l := range views {
				if l.k == k && gone[&l.v.Bytes[0]] == 0 && uint64(l.v.Meta.Height) == p.version {
					gone[&l.v.Bytes[0]] = arena.Round(p.size)
				}
			}
		}
		form := rapid.IntRange(int(ident.Encoded), int(ident.Augmented))
		draw := func(rt *rapid.T) ident.Key {
			return key(ident.Form(form.Draw(rt, "form")), rapid.IntRange(0, 5).Draw(rt, "object"))
		}
		rt.Repeat(map[string]func(*rapid.T){
			"alloc": func(rt *rapid.T) {
				k, n := draw(rt), rapid.Int64Range(1, 8*g).Draw(rt, "n")
				fits := used(k.Form)+arena.Round(n) <= budget[k.Form]
				b, err := s.Alloc(k, n)
				if fits != (err == nil) || !fits && !errors.Is(err, ErrFull) {
					rt.Fatalf("%s, %d bytes, %d used: %v", k, n, used(k.Form), err)
				}
				if err == nil {
					bufs, filling[b] = append(bufs, b), n
				}
			},
			"commit": func(rt *rapid.T) {
				if len(bufs) == 0 {
					rt.Skip("none")
				}
				b, n := bufs[0], filling[bufs[0]]
				bufs = bufs[1:]
				delete(filling, b)
				version++
				write(b.Bytes, b.key, version)
				err := b.Commit(Meta{Width: uint32(n), Height: uint32(version), Channels: 3})
				switch {
				case freed[b]:
					if !errors.Is(err, ErrGone) {
						rt.Fatalf("the key was freed, Commit says %v", err)
					}
				case err != nil:
					rt.Fatal(err)
				default:
					detach(b.key)
					in[b.key] = pub{n, version}
				}
			},
			"abort": func(rt *rapid.T) {
				if len(bufs) == 0 {
					rt.Skip("none")
				}
				b := bufs[0]
				bufs = bufs[1:]
				delete(filling, b)
				b.Abort()
			},
			"open": func(rt *rapid.T) {
				k := draw(rt)
				p, ok := in[k]
				v, err := s.Open(k)
				if ok != (err == nil) || !ok && !errors.Is(err, ErrGone) {
					rt.Fatalf("%s is in: %v; Open says %v", k, ok, err)
				}
				if err == nil {
					if !good(v, k) || uint64(v.Meta.Height) != p.version {
						rt.Fatalf("%s shows other bytes", k)
					}
					views = append(views, lent{v, k, p.size})
				}
			},
			"close": func(rt *rapid.T) {
				if len(views) == 0 {
					rt.Skip("none")
				}
				if !good(views[0].v, views[0].k) {
					rt.Fatalf("%s was overwritten under a view", views[0].k)
				}
				at := &views[0].v.Bytes[0]
				v := views[0].v
				v.Close()
				v.Close()
				views = views[1:]
				still := false
				for _, l := range views {
					still = still || &l.v.Bytes[0] == at
				}
				if !still {
					delete(gone, at)
				}
			},
			"free": func(rt *rapid.T) {
				k := draw(rt)
				s.Free(k)
				detach(k)
				for _, b := range bufs {
					freed[b] = freed[b] || b.key == k
				}
			},
			"budget": func(rt *rapid.T) {
				f := ident.Form(form.Draw(rt, "form"))
				budget[f] = rapid.Int64Range(0, 48).Draw(rt, "granules") * g
				if err := s.SetBudget(f, budget[f]); err != nil {
					rt.Fatal(err)
				}
			},
			"": func(rt *rapid.T) {
				for f := ident.Encoded; f < ident.NumForms; f++ {
					n := 0
					for k := range in {
						if k.Form == f {
							n++
						}
					}
					st := s.Stats(f)
					if want := used(f); s.Used(f) != want || st.Entries != n || st.Committed > max(want, budget[f]) {
						rt.Fatalf("%s: %d bytes used in %+v; want %d in %d entries", f, s.Used(f), st, want, n)
					}
				}
			},
		})
		for _, b := range bufs {
			b.Abort()
		}
		for i := range views {
			if !good(views[i].v, views[i].k) {
				rt.Fatalf("%s was overwritten under a view", views[i].k)
			}
			views[i].v.Close()
		}
		for k := range in {
			s.Free(k)
		}
		for f := ident.Encoded; f < ident.NumForms; f++ {
			if s.Used(f) != 0 {
				rt.Fatalf("%s: %d bytes are lost", f, s.Used(f))
			}
		}
	})
}

// Changed bytes are found, counted and never lent again. One read in VerifyEvery is verified, and in the end every
// sample's, also of a job that reads the same order each epoch and whose epochs are multiples of VerifyEvery: every
// 64th read of it would be of the same ten samples always. Bytes that come from elsewhere are published with the
// checksum they had there, or not at all. Somebody flips bits in the slabs of a store that is in use, behind its back,
// and notes which entry got the one and only flip. With every read verified no reader ever sees one; each flip is found
// once, and counted. A view outlives Free, a new entry of the same key, and Close.
func TestViewsOutliveEverything(t *testing.T) {
	forms(t, func(t *testing.T, f ident.Form) {
		s, err := Open(Config{Budgets: budgets(1 << 20)})
		if err != nil {
			t.Fatal(err)
		}
		k := key(f, 1)
		put(t, s, k, 5000, 1)
		old, err := s.Open(k)
		if err != nil {
			t.Fatal(err)
		}
		s.Free(k)
		put(t, s, k, 5000, 2)
		young, err := s.Open(k)
		if err != nil || &young.Bytes[0] == &old.Bytes[0] {
			t.Fatal("the memory was used again under a view", err)
		}
		filling, err := s.Alloc(key(f, 2), 100)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if !good(old, k) || !good(young, k) {
			t.Fatal("overwritten under a view")
		}
		write(filling.Bytes, filling.key, 1)
		if err := filling.Commit(Meta{}); !errors.Is(err, ErrFull) {
			t.Errorf("Commit after Close: %v", err)
		}
		if _, err := s.Alloc(k, 1); !errors.Is(err, ErrFull) {
			t.Errorf("Alloc after Close: %v", err)
		}
		if _, err := s.Open(k); !errors.Is(err, ErrGone) {
			t.Errorf("Open after Close: %v", err)
		}
		s.Free(k)
		old.Close()
		if s.Stats(f).Mapped == 0 {
			t.Error("unmapped under a view")
		}
		young.Close()
		if st := s.Stats(f); st.Mapped != 0 || st.Used != 0 {
			t.Errorf("%+v after the last view", st)
		}
	})
}

// OpenAll lends what Open would, for more keys than it looks up at once: those that are not here, or are corrupt, have
// no bytes, and the others are counted and hold their entries.
func TestOpenAllIsOpenOfEach(t *testing.T) {
	forms(t, func(t *testing.T, f ident.Form) {
		s := open(t, Config{Budgets: budgets(1 << 20), VerifyEvery: 1})
		const n = 150
		var keys []ident.Key
		for o := range n {
			if keys = append(keys, key(f, o)); o%3 != 1 {
				put(t, s, keys[o], 100+int64(o), 1)
			}
		}
		v, err := s.Open(keys[5])
		if err != nil {
			t.Fatal(err)
		}
		v.Bytes[0]++
		v.Close()
		before := s.Stats(f)
		views := s.OpenAll(f, keys, []View{{}})
		if len(views) != 1+n {
			t.Fatalf("%d views of %d keys behind one", len(views), n)
		}
		for o, v := range views[1:] {
			switch here := o%3 != 1 && o != 5; {
			case here && !good(v, keys[o]):
				t.Errorf("%s has other bytes", keys[o])
			case !here && v.Bytes != nil:
				t.Errorf("%s is lent, and is not here", keys[o])
			}
		}
		after := s.Stats(f)
		if lent := after.Reads - before.Reads; lent != 100 || after.Corrupt != 1 {
			t.Errorf("%d reads and %d corrupt entries, want 100 and 1", lent, after.Corrupt)
		}
		for _, k := range keys {
			s.Free(k)
		}
		if s.Stats(f).Used == 0 {
			t.Error("the views hold nothing")
		}
		for i := range views {
			views[i].Close()
		}
		if used := s.Stats(f).Used; used != 0 {
			t.Errorf("%d bytes are used when all is closed", used)
		}
		if v := s.OpenAll(ident.Stored, keys[:2], nil); len(v) != 2 || v[0].Bytes != nil {
			t.Errorf("%+v of a form without a tier", v)
		}
	})
}

// Grow and shrink while in use: nothing is flushed, nothing exceeds the larger of budget and use.
func TestLiveResize(t *testing.T) {
	forms(t, func(t *testing.T, f ident.Form) {
		g := arena.Granule
		s := open(t, Config{Budgets: budgets(16 * g), ChunkBytes: 4 * g})
		for o := range 16 {
			put(t, s, key(f, o), g, 1)
		}
		if _, err := s.Alloc(key(f, 16), 1); !errors.Is(err, ErrFull) {
			t.Fatal("over budget:", err)
		}
		if err := s.SetBudget(f, 20*g); err != nil {
			t.Fatal(err)
		}
		for o := 16; o < 20; o++ {
			put(t, s, key(f, o), g, 1)
		}
		if err := s.SetBudget(f, 8*g); err != nil {
			t.Fatal(err)
		}
		for o := range 20 {
			v, err := s.Open(key(f, o))
			if err != nil || !good(v, key(f, o)) {
				t.Fatalf("entry %d after the shrink: %v", o, err)
			}
			v.Close()
		}
		for o := range 12 {
			if _, err := s.Alloc(key(f, 99), 1); !errors.Is(err, ErrFull) {
				t.Fatalf("with %d entries: %v", 20-o, err)
			}
			s.Free(key(f, o))
		}
		if st := s.Stats(f); st.Used != 8*g || st.Committed != 8*g {
			t.Fatalf("%+v", st)
		}
		s.Free(key(f, 12))
		put(t, s, key(f, 12), g, 3)
	})
}

func TestBadInput(t *testing.T) {
	for _, cfg := range []Config{
		{Budgets: [ident.NumForms]int64{ident.Decoded: -1}},
		{Budgets: [ident.NumForms]int64{ident.Stored: 1}},
		{VerifyEvery: -1},
		{ChunkBytes: -1},
	} {
		if _, err := Open(cfg); !errs.Is(err, errs.ConfigInvalid) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
	s := open(t, Config{Budgets: budgets(1 << 20)})
	for _, err := range []error{s.SetBudget(ident.Decoded, -1), s.SetBudget(ident.Stored, 1), s.SetBudget(99, 1)} {
		if !errs.Is(err, errs.Invalid) {
			t.Error("SetBudget:", err)
		}
	}
	for _, f := range []ident.Form{ident.Stored, ident.NumForms, 200} {
		k := ident.Key{Form: f}
		if _, err := s.Alloc(k, 1); !errors.Is(err, ErrFull) {
			t.Errorf("Alloc in form %d: %v", f, err)
		}
		if _, err := s.Open(k); !errors.Is(err, ErrGone) {
			t.Errorf("Open in form %d: %v", f, err)
		}
		s.Free(k)
		if s.Used(f) != 0 || s.Stats(f) != (Stats{}) {
			t.Errorf("form %d holds something", f)
		}
	}
	for _, n := range []int64{0, -1, 1<<20 + 1, 1 << 62} {
		if _, err := s.Alloc(key(ident.Decoded, 1), n); !errors.Is(err, ErrFull) {
			t.Errorf("Alloc of %d bytes: %v", n, err)
		}
	}
	if s.Granule(ident.Decoded) != arena.Granule || Usable(1600) != 1500 || Usable(0) != 0 {
		t.Error("granule or usable bytes are off")
	}
}

// Workers fill, read, free and resize all forms at once.
func TestConcurrent(t *testing.T) {
	g := arena.Granule
	s := open(t, Config{Budgets: budgets(64 * g), VerifyEvery: 3, ChunkBytes: 16 * g})
	var wg sync.WaitGroup
	var mu sync.Mutex
	seen := map[string]int{}
	for w := range 6 {
		wg.Go(func() {
			count := map[string]int{}
			r := xrand.New(uint64(w))
			for i := range 800 {
				f := ident.Form(1 + r.IntN(3))
				k := key(f, r.IntN(24))
				switch r.IntN(8) {
				case 0:
					s.Free(k)
				case 1, 2, 3:
					b, err := s.Alloc(k, 1+int64(r.IntN(int(6*g))))
					if err != nil {
						count["full"]++
						continue
					}
					n := len(b.Bytes)
					write(b.Bytes, k, uint64(i))
					switch err = b.Commit(Meta{Width: uint32(n), Height: uint32(i), Channels: 3}); {
					case err == nil:
						count["kept"]++
					case errors.Is(err, ErrGone), errors.Is(err, ErrFull):
						count["not kept"]++
					default:
						t.Error(err)
					}
				case 4:
					if w == 0 {
						if err := s.SetBudget(f, int64(32+r.IntN(64))*g); err != nil {
							t.Error(err)
						}
					}
				default:
					v, err := s.Open(k)
					switch {
					case err == nil:
						count["read"]++
						if !good(v, k) {
							t.Errorf("%s shows other bytes", k)
						}
						v.Close()
					case !errors.Is(err, ErrGone):
						t.Error(err)
					}
				}
			}
			mu.Lock()
			defer mu.Unlock()
			for what, n := range count {
				seen[what] += n
			}
		})
	}
	wg.Wait()
	if seen["kept"] == 0 || seen["read"] == 0 {
		t.Fatalf("nothing happened: %v", seen)
	}
	for f := ident.Encoded; f < ident.NumForms; f++ {
		for o := range 24 {
			s.Free(key(f, o))
		}
		if err := s.forms[f].arena.Check(); err != nil {
			t.Error(err)
		}
		if st := s.Stats(f); st.Used != 0 || st.Entries != 0 || st.Corrupt != 0 {
			t.Errorf("%s: %+v after everything was freed", f, st)
		}
	}
}

func BenchmarkOpenClose(b *testing.B) {
	for _, f := range []ident.Form{ident.Encoded, ident.Decoded} {
		b.Run(f.String(), func(b *testing.B) {
			s := open(b, Config{Budgets: budgets(1 << 26)})
			for o := range 1000 {
				put(b, s, key(f, o), 100, 1)
			}
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				v, err := s.Open(key(f, i%1000))
				if err != nil {
					b.Fatal(err)
				}
				v.Close()
			}
		})
	}
}

// The Go heap holds a handle for an entry, and none of its bytes.
func BenchmarkCommitFree(b *testing.B) {
	for _, f := range []ident.Form{ident.Encoded, ident.Decoded} {
		for _, n := range []int64{110_000, 600_000} {
			b.Run(fmt.Sprintf("%s/%d", f, n), func(b *testing.B) {
				s := open(b, Config{Budgets: budgets(1 << 28)})
				src := make([]byte, n)
				b.SetBytes(n)
				b.ReportAllocs()
				for i := range b.N {
					buf, err := s.Alloc(key(f, i), n)
					if err != nil {
						b.Fatal(err)
					}
					copy(buf.Bytes, src)
					if err := buf.Commit(Meta{}); err != nil {
						b.Fatal(err)
					}
					s.Free(key(f, i))
				}
			})
		}
	}
}
