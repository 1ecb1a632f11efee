package residency

import (
	"fmt"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"larder/internal/ident"
	"larder/internal/testenv"
	"larder/internal/xrand"
)

// bag is an evictor that costs next to nothing and never evicts, for figures about the index alone.
type bag struct{ n int }

func (*bag) Update(uint32, int)          {}
func (*bag) Hit(uint32)                  {}
func (*bag) Victim(int) (uint32, bool)   { return 0, false }
func (*bag) Coldest() (h uint32, b bool) { return 0, false }
func (b *bag) Insert(uint32, int)        { b.n++ }
func (b *bag) Remove(uint32)             { b.n-- }
func (b *bag) Len() int                  { return b.n }

func large() *Index {
	var b [ident.NumForms]int64
	var ev [ident.NumForms]Evictor
	for f := ident.Encoded; f < ident.NumForms; f++ {
		b[f], ev[f] = 1<<60, &bag{}
	}
	return New(b, ev)
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// What the index costs is at most 16 B a sample and 48 B an entry, however dense residency is: with everything in two
// forms, a drawn percent of them, and drawn augmented samples of two instances.
func TestMemory(t *testing.T) {
	const samples = 300_000
	for _, c := range []struct {
		what     string
		permille int
		keys     []ident.Key
	}{
		{"encoded and decoded, all", 1000, []ident.Key{{Form: ident.Encoded}, {Form: ident.Decoded, Recipe: 7}}},
		{"encoded and decoded, a fifth", 200, []ident.Key{{Form: ident.Encoded}, {Form: ident.Decoded, Recipe: 7}}},
		{"encoded and decoded, 1 %", 10, []ident.Key{{Form: ident.Encoded}, {Form: ident.Decoded, Recipe: 7}}},
		{"augmented, two instances, 5 %", 50, []ident.Key{{Form: ident.Augmented, Recipe: 9, Group: 1, Instance: 3},
			{Form: ident.Augmented, Recipe: 9, Group: 1, Instance: 4}}},
	} {
		before := heap()
		x, r, entries := large(), xrand.New(3), int64(0)
		for o := range samples {
			for _, k := range c.keys {
				if r.IntN(1000) < c.permille {
					k.Object = ident.ObjectID(o)
					x.Admit(k, 1000, 1, nil)
					entries++
				}
			}
		}
		cost, allowed := heap()-before, samples*16+entries*48
		t.Logf("%s: %d KB for %d samples and %d entries, %d KB allowed", c.what, cost>>10, samples, entries, allowed>>10)
		if cost > allowed {
			t.Errorf("%s: %d bytes for %d samples and %d entries, %d allowed", c.what, cost, samples, entries, allowed)
		}
		// What left gives its places back for what comes, in other planes and at other objects.
		pages := x.numPages
		for _, k := range c.keys {
			x.Each(k.Form, func(h Handle, _ ident.Key) { x.Drop(h) })
		}
		for o := range samples {
			for _, k := range c.keys {
				if r.IntN(1000) < c.permille {
					if k.Object = ident.ObjectID(o); k.Form != ident.Encoded {
						k.Recipe += 100
					}
					x.Admit(k, 1000, 1, nil)
				}
			}
		}
		if x.numPages > pages+pages/50 {
			t.Errorf("%s: %d pages, then %d for as much", c.what, pages, x.numPages)
		}
		runtime.KeepAlive(x)
	}
}

// Others read a snapshot while the owner continues to change the index.
func TestSnapshotConcurrently(t *testing.T) {
	x := newIndex(50_000)
	samples := 2000
	if testenv.Race { // it needs few, and takes six times as long
		samples = 300
	}
	var wg sync.WaitGroup
	for i := range 20 {
		for o := range samples {
			h, ok := x.Admit(dec(o*7+i), 10, 1+(o+i)%3, nil)
			if ok {
				x.Hit(h)
			}
		}
		s := x.Snapshot()
		wg.Go(func() {
			n, bytes := 0, int64(0)
			s.Each(ident.Decoded, func(h Handle, k ident.Key) {
				if g, ok := s.Lookup(k); !ok || g != h {
					t.Errorf("Lookup(%s) = %d, %v", k, g, ok)
				}
				n, bytes = n+1, bytes+s.Bytes(h)
			})
			if n != s.Entries(ident.Decoded) || bytes != s.Used(ident.Decoded) || bytes == 0 {
				t.Errorf("%d entries of %d bytes; the sums say %d, %d", n, bytes, s.Entries(ident.Decoded), s.Used(ident.Decoded))
			}
		})
	}
	wg.Wait()
}

// Taking a snapshot copies references, not entries.
func TestSnapshotIsCheap(t *testing.T) {
	x := large()
	for o := range 1 << 17 {
		x.Admit(dec(o), 10, 1, nil)
	}
	var s *Snapshot
	if n := testing.AllocsPerRun(10, func() { s = x.Snapshot() }); n > 5 {
		t.Errorf("%v allocations", n)
	}
	if got := len(s.blocks)*24 + len(s.chunks)*16; got > 1<<13 {
		t.Errorf("%d bytes of references for %d entries", got, 1<<17)
	}
	h, _ := x.Lookup(dec(9))
	x.Pin(h)
	x.Hit(h)
	copied := 0
	for i := range x.blocks {
		if x.blocks[i].slots != s.blocks[i].slots {
			copied++
		}
	}
	for i := range x.chunks {
		if x.chunks[i].chunk != s.chunks[i].chunk {
			copied++
		}
	}
	if copied != 2 {
		t.Errorf("%d blocks and chunks were copied for one pin and one hit", copied)
	}
}

// lcg draws quickly enough to measure memory and not itself.
type lcg uint64

func (l *lcg) next() uint32 {
	*l = *l*6364136223846793005 + 1442695040888963407
	return uint32(*l >> 44) // 20 bits
}

// cpu runs a measurement and reports the processor time of its thread beside the time of the clock, which other work on
// the machine adds to.
func cpu(b *testing.B, name string, loop func(*testing.B)) {
	b.Run(name, func(b *testing.B) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		began := threadTime(b)
		loop(b)
		b.ReportMetric(float64(threadTime(b)-began)/float64(b.N), "cpu-ns/op")
	})
}

func threadTime(b *testing.B) int64 {
	b.Helper()
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		b.Fatal(err)
	}
	return t.Nano()
}

// Looking up and pinning a decoded sample, over 1 M samples that were admitted in random order. floor is what the
// machine takes for one random read of an 8-byte array of as many, behind the read before it and independent of it.
func BenchmarkLookupPin(b *testing.B) {
	const n = 1 << 20
	x, r := large(), xrand.New(1)
	order := make([]int, n)
	for i := range order {
		j := r.IntN(i + 1)
		order[i], order[j] = order[j], i
	}
	for _, o := range order {
		x.Admit(dec(o), 100, 1, nil)
	}
	l := lcg(1)
	cpu(b, "sequential", func(b *testing.B) {
		for i := range b.N {
			h, _ := x.Lookup(dec(i & (n - 1)))
			x.Pin(h)
		}
	})
	cpu(b, "random", func(b *testing.B) {
		for range b.N {
			h, _ := x.Lookup(dec(int(l.next())))
			x.Pin(h)
		}
	})
	cpu(b, "random/dependent", func(b *testing.B) { // the next key is known only when the last handle is
		h := Handle(0)
		for range b.N {
			h, _ = x.Lookup(dec(int((l.next() ^ uint32(h)) & (n - 1))))
			x.Pin(h)
		}
	})
	cpu(b, "random+unpin", func(b *testing.B) {
		for range b.N {
			h, _ := x.Lookup(dec(int(l.next())))
			x.Pin(h)
			x.Unpin(h)
		}
	})
	flat := make([]uint64, n)
	for i := range flat { // or all reads are of one page of zeros
		flat[i] = uint64(i)
	}
	cpu(b, "floor", func(b *testing.B) {
		s := uint64(0)
		for range b.N {
			s += flat[l.next()]
		}
		flat[0] = s & 1 >> 1
	})
	cpu(b, "floor/dependent", func(b *testing.B) {
		s := uint64(0)
		for range b.N {
			s = flat[(uint64(l.next())^s)&(n-1)]
		}
		flat[0] = s
	})
}

func BenchmarkAdmitEvict(b *testing.B) {
	for _, f := range []ident.Form{ident.Encoded, ident.Augmented} {
		b.Run(fmt.Sprint(f), func(b *testing.B) {
			x, l := large(), lcg(1)
			key := func() ident.Key {
				k := ident.Key{Form: f, Object: ident.ObjectID(l.next())}
				if f == ident.Augmented {
					k.Recipe, k.Group, k.Instance = 9, 1, uint32(k.Object%2)
				}
				return k
			}
			type stay struct {
				h   Handle
				gen uint32
			}
			in := make([]stay, 1<<16)
			b.ReportAllocs()
			for i := range b.N {
				h, _ := x.Admit(key(), 100, 1, nil)
				old := in[i%len(in)]
				if in[i%len(in)] = (stay{h, x.Generation(h)}); old.gen != 0 && x.Is(old.h, old.gen) && old.h != h {
					x.Drop(old.h)
				}
			}
		})
	}
}

func BenchmarkSnapshot(b *testing.B) {
	x := large()
	for o := range 1 << 20 {
		x.Admit(dec(o), 100, 1, nil)
	}
	b.ReportAllocs()
	for range b.N {
		x.Snapshot()
	}
}
