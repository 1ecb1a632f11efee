package arena

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"larder/internal/invariant"
	"larder/internal/testenv"
	"larder/internal/xrand"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t interface {
	Fatal(...any)
	Cleanup(func())
}, cfg Config) *Arena {
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
	})
	return a
}

// physical asks the kernel how many bytes of the arena are resident.
func physical(t interface{ Fatal(...any) }, a *Arena) (n int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range a.mu.chunks {
		for at := 0; at < len(c.mem.data); at += os.Getpagesize() {
			var page [1]byte
			_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&c.mem.data[at])), uintptr(os.Getpagesize()),
				uintptr(unsafe.Pointer(&page[0])))
			if errno != 0 && errno != unix.ENOMEM { // ENOMEM: a hole
				t.Fatal(errno)
			}
			n += int64(page[0]&1) * int64(os.Getpagesize())
		}
	}
	return n
}

// held is what the naive allocator knows of an extent: its bytes must be what was written there.
type held struct {
	e    Extent
	mark byte
}

func (h held) intact() bool {
	b := h.e.Bytes()
	return bytes.Count(b, []byte{h.mark}) == len(b)
}

func fill(b []byte, mark byte) {
	for i := range b {
		b[i] = mark
	}
}

// One history of allocations, frees and resizes against a list: every extent keeps its bytes (so none overlap), an
// allocation succeeds exactly when the budget has room, and the kernel holds no page beyond the budget.
func TestArenaAgainstList(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		a := open(rt, Config{Name: "test", Budget: 64 * Granule, ChunkBytes: 16 * Granule,
			Prefault: rapid.Bool().Draw(rt, "prefault")})
		var all []held
		budget, used := 64*Granule, int64(0)
		mark := byte(0)
		rt.Repeat(map[string]func(*rapid.T){
			"alloc": func(rt *rapid.T) {
				n := rapid.Int64Range(1, 24*Granule).Draw(rt, "n")
				e, err := a.Alloc(n)
				if fits := used+Round(n) <= budget; fits != (err == nil) || !fits && !errors.Is(err, ErrFull) {
					rt.Fatalf("%d bytes with %d of %d used: %v", n, used, budget, err)
				}
				if err != nil {
					return
				}
				if int64(len(e.Bytes())) != n || e.Size() != Round(n) || int64(cap(e.Bytes())) != e.Size() {
					rt.Fatalf("%d bytes give len %d, cap %d, size %d", n, len(e.Bytes()), cap(e.Bytes()), e.Size())
				}
				mark++
				fill(e.Bytes(), mark)
				all = append(all, held{e, mark})
				used += e.Size()
			},
			"free": func(rt *rapid.T) {
				if len(all) == 0 {
					rt.Skip("empty")
				}
				i := rapid.IntRange(0, len(all)-1).Draw(rt, "i")
				if !all[i].intact() {
					rt.Fatalf("extent %d was overwritten", i)
				}
				used -= all[i].e.Size()
				a.Free(all[i].e)
				all = append(all[:i], all[i+1:]...)
			},
			"budget": func(rt *rapid.T) {
				budget = rapid.Int64Range(0, 96).Draw(rt, "granules") * Granule
				if err := a.SetBudget(budget); err != nil {
					rt.Fatal(err)
				}
			},
			"": func(rt *rapid.T) {
				if err := a.Check(); err != nil {
					rt.Fatal(err)
				}
				if u := a.Usage(); u.Used != used || u.Budget != budget {
					rt.Fatalf("%+v, want %d of %d", u, used, budget)
				}
				if p := physical(rt, a); p > max(budget, used) {
					rt.Fatalf("the kernel holds %d bytes, budget %d, used %d", p, budget, used)
				}
				for i := range all {
					if !all[i].intact() {
						rt.Fatalf("extent %d was overwritten", i)
					}
				}
			},
		})
		for _, h := range all {
			a.Free(h.e)
		}
		if u := a.Usage(); u.Used != 0 {
			rt.Fatalf("%+v after everything was freed", u)
		}
	})
}

// Sizes and order come as bytes: two bytes allocate, or free when the top bit is set.
func FuzzArena(f *testing.F) {
	f.Add([]byte{0, 10, 0, 200, 128, 0, 1, 0})
	f.Add(bytes.Repeat([]byte{0, 255, 127, 255, 128, 1}, 20))
	f.Fuzz(func(t *testing.T, ops []byte) {
		a := open(t, Config{Name: "fuzz", Budget: 200 * Granule, ChunkBytes: 32 * Granule})
		var all []held
		for i := 0; i+1 < len(ops) && i < 2000; i += 2 {
			op := binary.BigEndian.Uint16(ops[i:])
			if op&0x8000 != 0 && len(all) > 0 {
				k := int(op&0x7fff) % len(all)
				if !all[k].intact() {
					t.Fatal("overwritten")
				}
				a.Free(all[k].e)
				all[k] = all[len(all)-1]
				all = all[:len(all)-1]
			} else if e, err := a.Alloc(int64(op&0x7fff) * 8); err == nil {
				fill(e.Bytes(), byte(i))
				all = append(all, held{e, byte(i)})
			} else if !errors.Is(err, ErrFull) {
				t.Fatal(err)
			}
		}
		if err := a.Check(); err != nil {
			t.Fatal(err)
		}
		for _, h := range all {
			if !h.intact() {
				t.Fatal("overwritten")
			}
			a.Free(h.e)
		}
	})
}

// Every other extent of a full arena is freed, and then one larger than any hole is wanted. Best fit over a fixed
// space fails here; this arena takes the pages of the holes.
func TestFragmentationDoesNotFailAnAlloc(t *testing.T) {
	a := open(t, Config{Name: "test", Budget: 64 * Granule, ChunkBytes: 64 * Granule})
	var all []Extent
	for range 64 {
		e, err := a.Alloc(Granule)
		if err != nil {
			t.Fatal(err)
		}
		fill(e.Bytes(), 9)
		all = append(all, e)
	}
	for i := 0; i < 64; i += 2 {
		a.Free(all[i])
	}
	e, err := a.Alloc(32 * Granule)
	if err != nil {
		t.Fatal(err)
	}
	fill(e.Bytes(), 8)
	if p := physical(t, a); p != 64*Granule {
		t.Fatalf("the kernel holds %d granules", p/Granule)
	}
	for i := 1; i < 64; i += 2 {
		if b := all[i].Bytes(); bytes.Count(b, []byte{9}) != len(b) {
			t.Fatalf("extent %d was overwritten", i)
		}
		a.Free(all[i])
	}
	a.Free(e)
}

func TestShrinkGivesMemoryBack(t *testing.T) {
	a := open(t, Config{Name: "test", Budget: 256 * Granule, ChunkBytes: 64 * Granule})
	var all []Extent
	for range 32 {
		e, err := a.Alloc(8 * Granule)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
	if err := a.SetBudget(64 * Granule); err != nil {
		t.Fatal(err)
	}
	if u := a.Usage(); u.Used != 256*Granule || u.Committed != 256*Granule {
		t.Fatalf("a shrink took what is in use: %+v", u)
	}
	if _, err := a.Alloc(1); !errors.Is(err, ErrFull) {
		t.Fatal("an extent came out of an overfull arena:", err)
	}
	for i := 31; i >= 4; i-- {
		a.Free(all[i])
		if u, want := a.Usage(), max(int64(i)*8, 64)*Granule; u.Committed > want || physical(t, a) > want {
			t.Fatalf("with %d extents out: %+v, want at most %d", i, u, want)
		}
	}
	if u := a.Usage(); u.Mapped != 64*Granule {
		t.Fatalf("chunks that are wholly free stayed mapped: %+v", u)
	}
	for i := range 4 {
		a.Free(all[i])
	}
	if err := a.SetBudget(0); err != nil {
		t.Fatal(err)
	}
	if u := a.Usage(); u.Mapped != 0 || u.Committed != 0 {
		t.Fatalf("%+v with a budget of 0", u)
	}
}

// An extent that is out outlives Close; the last Free unmaps.
func TestCloseWaitsForExtents(t *testing.T) {
	a, err := New(Config{Name: "test", Budget: 1 << 20, Prefault: true})
	if err != nil {
		t.Fatal(err)
	}
	e, err := a.Alloc(10_000)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
	}
	fill(e.Bytes(), 3)
	if u := a.Usage(); u.Mapped == 0 {
		t.Fatal("unmapped under an extent")
	}
	if _, err := a.Alloc(1); !errors.Is(err, ErrClosed) {
		t.Fatal("Alloc after Close:", err)
	}
	a.Free(e)
	if u := a.Usage(); u.Mapped != 0 || u.Committed != 0 {
		t.Fatalf("%+v after the last Free", u)
	}
}

func TestPrefaultStaysInBudget(t *testing.T) {
	a := open(t, Config{Name: "test", Budget: 300 * Granule, ChunkBytes: 1000 * Granule, Prefault: true})
	e, err := a.Alloc(1)
	if err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "the budget is committed", func() bool { return a.Usage().Committed >= 300*Granule })
	if err := a.Check(); err != nil {
		t.Fatal(err)
	}
	// Warm pages never stand in the way: the whole budget can be had.
	f, err := a.Alloc(299 * Granule)
	if err != nil {
		t.Fatal(err)
	}
	if p := physical(t, a); p != 300*Granule {
		t.Fatalf("the kernel holds %d granules", p/Granule)
	}
	a.Free(e)
	a.Free(f)
}

func TestImpossibleSizes(t *testing.T) {
	a := open(t, Config{Name: "test", Budget: math.MaxInt64})
	for _, n := range []int64{0, -1, math.MinInt64, math.MaxInt64, math.MaxInt64 - Granule} {
		if _, err := a.Alloc(n); !errors.Is(err, ErrFull) {
			t.Errorf("Alloc(%d): %v", n, err)
		}
	}
	if err := a.SetBudget(-1); err == nil {
		t.Error("a negative budget was taken")
	}
	if _, err := New(Config{Budget: -1}); err == nil {
		t.Error("a negative budget was taken by New")
	}
}

func TestDoubleFreePanics(t *testing.T) {
	a := open(t, Config{Name: "test", Budget: 1 << 20})
	e, err := a.Alloc(5)
	if err != nil {
		t.Fatal(err)
	}
	keep, err := a.Alloc(5) // so that the chunk stays mapped
	if err != nil {
		t.Fatal(err)
	}
	a.Free(e)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("a second Free went unnoticed")
			}
			a.mu.Unlock() // nothing was changed, but a real process ends here
		}()
		a.Free(e)
	}()
	a.Free(keep)
}

func TestPoison(t *testing.T) {
	if !invariant.Enabled {
		t.Skip("freed memory is poisoned in builds with invariants only: run with -race or -tags invariants")
	}
	a := open(t, Config{Name: "test", Budget: 1 << 20})
	keep, _ := a.Alloc(5)
	e, err := a.Alloc(5)
	if err != nil {
		t.Fatal(err)
	}
	b := e.Bytes()
	fill(b, 1)
	a.Free(e)
	if !bytes.Equal(b, bytes.Repeat([]byte{0xCC}, 5)) {
		t.Fatalf("freed memory holds %x", b)
	}
	a.Free(keep)
}

// The memory has a name, where the kernel knows names, and no huge pages unless they are asked for: they would hold
// more than the budget counts.
func TestMapping(t *testing.T) {
	a := open(t, Config{Name: "decoded", Budget: 8 << 20, ChunkBytes: 8 << 20})
	e, err := a.Alloc(5)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Free(e)
	maps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	_, mapping, found := strings.Cut(string(maps), fmt.Sprintf("%x-", uintptr(unsafe.Pointer(&e.c.mem.data[0]))))
	if !found {
		t.Fatal("the chunk is not mapped on its own")
	}
	mapping, _, _ = strings.Cut(mapping, "VmFlags:")
	if strings.Contains(mapping, "[anon") && !strings.Contains(mapping, "[anon:larder-decoded]") {
		t.Errorf("a mapping of another name:\n%s", mapping)
	}
	if !strings.Contains(mapping, "Rss:                   4 kB") {
		t.Errorf("one granule is out, but not one is resident:\n%s", mapping)
	}
}

func TestConcurrent(t *testing.T) {
	t.Run("small pages", func(t *testing.T) { concurrent(t, 1, 0) })
	t.Run("huge pages", func(t *testing.T) { concurrent(t, 16, always) })
}

// concurrent uses an arena from four goroutines; sizes are multiples of scale.
func concurrent(t *testing.T, scale int64, huge time.Duration) {
	a := open(t, Config{Name: "test", Budget: scale * 256 * Granule, ChunkBytes: scale * 64 * Granule, Prefault: true,
		HugeBelow: huge})
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			r := xrand.New(uint64(w))
			var all []held
			for i := range 2000 {
				if w == 0 && i%100 == 0 {
					if err := a.SetBudget(scale * int64(128+r.IntN(256)) * Granule); err != nil {
						t.Error(err)
					}
				}
				if len(all) > 20 || len(all) > 0 && r.IntN(2) == 0 {
					k := r.IntN(len(all))
					if !all[k].intact() {
						t.Error("overwritten")
						return
					}
					a.Free(all[k].e)
					all[k] = all[len(all)-1]
					all = all[:len(all)-1]
				} else if e, err := a.Alloc(1 + int64(r.IntN(int(scale*6*Granule)))); err == nil {
					fill(e.Bytes(), byte(w))
					all = append(all, held{e, byte(w)})
				}
			}
			for _, h := range all {
				a.Free(h.e)
			}
		})
	}
	wg.Wait()
	if err := a.Check(); err != nil {
		t.Fatal(err)
	}
}

// While many allocate and free sizes that never fit the holes of others, the kernel holds no page too many at any
// moment: each gives pages back before it takes its own. All is one chunk here, so that the kernel's count is of one
// moment.
func TestPagesNeverExceedTheBudget(t *testing.T) {
	const budget = 128
	a := open(t, Config{Name: "test", Budget: budget * Granule, ChunkBytes: 64 * budget * Granule})
	var wg sync.WaitGroup
	var running, looks atomic.Int32
	for w := range 4 {
		running.Add(1)
		wg.Go(func() {
			defer running.Add(-1)
			r := xrand.New(uint64(w))
			var all []Extent
			for i := 0; i < 3000 || looks.Load() < 10; i++ {
				if len(all) > 0 && r.IntN(2) == 0 {
					k := r.IntN(len(all))
					a.Free(all[k])
					all[k] = all[len(all)-1]
					all = all[:len(all)-1]
				} else if e, err := a.Alloc(1 + int64(r.IntN(int(40*Granule)))); err == nil {
					fill(e.Bytes(), byte(w))
					all = append(all, e)
				}
			}
			for _, e := range all {
				a.Free(e)
			}
		})
	}
	most := int64(0)
	for ; running.Load() > 0; looks.Add(1) {
		most = max(most, physical(t, a))
		runtime.Gosched()
	}
	wg.Wait()
	if n := looks.Load(); most > budget*Granule || n < 10 {
		t.Errorf("the kernel held %d granules of %d in one of %d looks", most/Granule, budget, n)
	}
	u := a.Usage()
	if u.Taken < 2*budget*Granule || u.Mapped > 64*budget*Granule {
		t.Errorf("%+v: pages hardly moved, the test shows nothing", u)
	}
	if err := a.Check(); err != nil {
		t.Error(err)
	}
}

// Replacing 150 to 600 KB values in a full arena; compare with the copy alone.
func BenchmarkChurn(b *testing.B) {
	src := make([]byte, 600<<10)
	r := xrand.New(1)
	size := func() int64 { return int64(150<<10 + r.IntN(450<<10)) }
	for _, full := range []int64{100, 97, 94} { // percent of the budget that the caller lets be used
		b.Run(fmt.Sprintf("full=%d", full), func(b *testing.B) {
			a := open(b, Config{Name: "bench", Budget: 512 << 20, Prefault: true})
			var all []Extent
			copied, cold := int64(0), int64(0)
			set := func() {
				n := size()
				for a.Usage().Used+Round(n) > a.Usage().Budget/100*full {
					k := r.IntN(len(all))
					a.Free(all[k])
					all[k] = all[len(all)-1]
					all = all[:len(all)-1]
				}
				e, err := a.Alloc(n)
				if err != nil {
					b.Fatal(err)
				}
				copied += int64(copy(e.Bytes(), src))
				all = append(all, e)
			}
			for range 8000 {
				set()
			}
			copied, cold = 0, a.Usage().Taken
			b.ResetTimer()
			for range b.N {
				set()
			}
			b.StopTimer()
			b.SetBytes(copied / int64(b.N))
			u := a.Usage()
			b.ReportMetric(float64(u.Taken-cold)/float64(copied), "cold/byte")
			b.ReportMetric(float64(u.Mapped)/float64(u.Budget), "mapped/budget")
			for _, e := range all {
				a.Free(e)
			}
		})
	}
	b.Run("memcpy", func(b *testing.B) {
		dst := make([]byte, 600<<10)
		b.SetBytes(375 << 10)
		for range b.N {
			copy(dst[:375<<10], src)
		}
	})
}

// When the kernel has no page to give, the arena says so and stays whole. A hole in the mapping stands for that:
// madvise answers ENOMEM for both.
func TestNoMemory(t *testing.T) {
	a := open(t, Config{Name: "test", Budget: 32 * Granule, ChunkBytes: 32 * Granule})
	keep, err := a.Alloc(4 * Granule)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Free(keep)
	hole := unsafe.Pointer(&keep.c.mem.data[10*Granule])
	if err := unix.MunmapPtr(hole, uintptr(Granule)); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := a.Alloc(16 * Granule); !errors.Is(err, ErrFull) || !errors.Is(err, unix.ENOMEM) {
			t.Fatal("over a hole:", err)
		}
		if err := a.Check(); err != nil {
			t.Fatal(err)
		}
		if p := physical(t, a); p != 4*Granule {
			t.Fatalf("%d granules are held after a failure", p/Granule)
		}
	}
	e, err := a.Alloc(6 * Granule) // ends before the hole
	if err != nil {
		t.Fatal(err)
	}
	a.Free(e)
}
