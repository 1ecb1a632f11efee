package tiers

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"larder/internal/ident"
	"larder/internal/testenv"
	"larder/internal/xrand"
	"larder/tiers/arena"
)

// status reads one line of /proc/self/status, in bytes.
func status(t testing.TB, name string) int64 {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skip("no /proc/self/status: ", err)
	}
	for sc := bufio.NewScanner(strings.NewReader(string(b))); sc.Scan(); {
		if f := strings.Fields(sc.Text()); len(f) == 3 && f[0] == name+":" {
			n, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n << 10
		}
	}
	t.Skip("no ", name, " in /proc/self/status")
	return 0
}

// scale is how many bytes the tests of this file fill: 256 MiB, or LARDER_TIERS_GIB.
func scale(t testing.TB) int64 {
	if s := os.Getenv("LARDER_TIERS_GIB"); s != "" {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || n < 1 {
			t.Fatalf("LARDER_TIERS_GIB is %q, want a number of GiB", s)
		}
		return n << 30
	}
	return 256 << 20
}

// image is the size of an image of 224 x 224 pixels: what a decoded tier of small images holds most of.
const image = 224 * 224 * 3

// churn replaces entries in random order until n bytes were written, from as many goroutines as there are cores.
func churn(t testing.TB, s *Store, f ident.Form, n int64, objects int) {
	t.Helper()
	var wg sync.WaitGroup
	var left atomic.Int64
	left.Store(n)
	for w := range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			r := xrand.New(uint64(w))
			for left.Add(-image) > 0 {
				k := key(f, r.IntN(objects))
				s.Free(k)
				b, err := s.Alloc(k, image-int64(r.IntN(image/2)))
				if errors.Is(err, ErrFull) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				b.Bytes[0] = 1
				if err := b.Commit(Meta{}); err != nil && !errors.Is(err, ErrGone) && !errors.Is(err, ErrFull) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// A full store costs its budget and 5 %, in the kernel's count: pages of the tier, and all of the heap it takes to know
// them. LARDER_TIERS_GIB=4 fills 4 GiB.
func TestResidentMemory(t *testing.T) {
	budget := scale(t)
	forms(t, func(t *testing.T, f ident.Form) {
		runtime.GC()
		rss := status(t, "VmRSS")
		b := [ident.NumForms]int64{}
		b[f] = budget
		s := open(t, Config{Budgets: b, VerifyEvery: 1 << 30})
		objects := int(budget / image)
		for o := range objects {
			if buf, err := s.Alloc(key(f, o), image-int64(o%7)*9000); err == nil {
				if err := buf.Commit(Meta{}); err != nil {
					t.Fatal(err)
				}
			}
		}
		churn(t, s, f, budget, objects)
		runtime.GC()
		grown := status(t, "VmRSS") - rss
		st := s.Stats(f)
		pages := st.Committed // which the arena's tests compare with the kernel's count
		t.Logf("%s: %d MiB resident for a budget of %d MiB, %d MiB used by %d entries; %d MiB of it pages of the tier", f,
			grown>>20, budget>>20,
			st.Used>>20, st.Entries, pages>>20)
		if allowed := budget + budget/20; grown > allowed && !testenv.Race || pages > budget {
			t.Errorf("%s: resident memory grew by %d bytes, %d of them the tier's, for a budget of %d", f, grown, pages, budget)
		}
		if st.Used < budget/2 {
			t.Errorf("%s: only %d of %d bytes are used: the test shows nothing", f, st.Used, budget)
		}
	})
}

// read sums up runtime metrics.
func read(names ...string) []float64 {
	samples := make([]metrics.Sample, len(names))
	for i, n := range names {
		samples[i].Name = n
	}
	metrics.Read(samples)
	out := make([]float64, len(names))
	for i := range samples {
		out[i] = samples[i].Value.Float64()
	}
	return out
}

// What the garbage collector costs a full tier whose entries are replaced as fast as the cores can fill them: its part
// of the CPU time. Each replacement writes a whole image, as a decode would, in a tenth of a decode's time.
func BenchmarkCollector(b *testing.B) {
	for f := ident.Encoded; f <= ident.Decoded; f++ {
		b.Run(fmt.Sprintf("%s/%dMiB", f, scale(b)>>20), func(b *testing.B) {
			budgets := [ident.NumForms]int64{}
			budgets[f] = scale(b)
			s := open(b, Config{Budgets: budgets})
			src, objects := make([]byte, image), int(Usable(budgets[f])/arena.Round(image))
			r := xrand.New(1)
			set := func(o int) {
				s.Free(key(f, o))
				buf, err := s.Alloc(key(f, o), image)
				if err != nil {
					b.Fatal(err)
				}
				copy(buf.Bytes, src)
				if err := buf.Commit(Meta{}); err != nil {
					b.Fatal(err)
				}
			}
			for o := range objects {
				set(o)
			}
			runtime.GC()
			before := read("/cpu/classes/gc/total:cpu-seconds", "/cpu/classes/user:cpu-seconds")
			b.ResetTimer()
			for range b.N {
				set(r.IntN(objects))
			}
			b.StopTimer()
			runtime.GC() // the runtime counts at the end of a cycle
			after := read("/cpu/classes/gc/total:cpu-seconds", "/cpu/classes/user:cpu-seconds")
			gc, user := after[0]-before[0], after[1]-before[1]
			b.ReportMetric(100*gc/(gc+user), "gc-%")
			b.ReportMetric(float64(status(b, "VmRSS"))/float64(budgets[f]), "rss/budget")
		})
	}
}

// A tier shrinks to an eighth and grows again while readers and writers use it: how long the slowest Open, Alloc,
// Commit or Free of theirs took, in milliseconds, beside the same without a resize. A batch waits for some of these at
// most.
func BenchmarkResize(b *testing.B) {
	for _, resize := range []bool{false, true} {
		b.Run(fmt.Sprintf("%dMiB/resize=%v", scale(b)>>20, resize), func(b *testing.B) {
			const f = ident.Decoded
			budgets := [ident.NumForms]int64{}
			budgets[f] = scale(b)
			s := open(b, Config{Budgets: budgets})
			objects := int(Usable(budgets[f]) / arena.Round(image))
			src := make([]byte, image)
			set := func(o int) {
				buf, err := s.Alloc(key(f, o), image)
				if err == nil {
					copy(buf.Bytes, src)
					err = buf.Commit(Meta{})
				}
				if err != nil && !errors.Is(err, ErrFull) && !errors.Is(err, ErrGone) {
					b.Error(err)
				}
			}
			for o := range objects {
				set(o)
			}
			var all []time.Duration
			var shrinks time.Duration
			b.ResetTimer()
			for range b.N {
				var wg sync.WaitGroup
				var stop atomic.Bool
				var mu sync.Mutex
				wg.Go(func() {
					r := xrand.New(5)
					var took []time.Duration
					for !stop.Load() {
						o := r.IntN(objects)
						t0 := time.Now()
						if v, err := s.Open(key(f, o)); err == nil {
							v.Close()
						} else {
							set(o)
						}
						if r.IntN(8) == 0 {
							s.Free(key(f, o))
							set(o)
						}
						took = append(took, time.Since(t0))
						time.Sleep(50 * time.Microsecond) // a worker that decodes between two
					}
					mu.Lock()
					all = append(all, took...)
					mu.Unlock()
				})
				t0 := time.Now()
				if resize {
					// As the daemon does: the budget first, entries by and by.
					if err := s.SetBudget(f, budgets[f]/8); err != nil {
						b.Fatal(err)
					}
					for o := range objects * 7 / 8 {
						s.Free(key(f, o))
					}
					shrinks += time.Since(t0)
					if err := s.SetBudget(f, budgets[f]); err != nil {
						b.Fatal(err)
					}
					for o := range objects * 7 / 8 {
						set(o)
					}
				} else {
					time.Sleep(2 * time.Second)
				}
				stop.Store(true)
				wg.Wait()
			}
			slices.Sort(all)
			b.ReportMetric(float64(all[len(all)-1].Microseconds())/1000, "max-ms")
			b.ReportMetric(float64(all[len(all)*999/1000].Microseconds())/1000, "p99.9-ms")
			b.ReportMetric(float64(shrinks.Milliseconds())/float64(b.N), "shrink-ms")
		})
	}
}
