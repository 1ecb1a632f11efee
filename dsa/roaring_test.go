package dsa

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/RoaringBitmap/roaring/v2"

	"larder/internal/ident"
	"larder/internal/xrand"
)

var soloSizes = []int{1 << 10, 1 << 17, 1_280_000, 14_000_000}

// BenchmarkSolo is a pick of one job of n samples and nothing else, beside the same draw by a roaring bitmap of what
// remains (Select and Remove), which knows neither cells nor what is available.
func BenchmarkSolo(b *testing.B) {
	for _, n := range soloSizes {
		for _, mode := range []Mode{Strict, Stratified, Epoch} {
			b.Run(fmt.Sprintf("%s/n=%d", mode, n), func(b *testing.B) {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				s := New(1)
				must(b, s.Join(1, JobSpec{Mode: mode, Subset: span(0, n)}))
				must(b, s.StartEpoch(1, 0))
				s.Next(1)
				b.ResetTimer()
				began := threadTime(b)
				for i, e := 0, uint32(1); i < b.N; i++ {
					if s.Remaining(1) == 0 {
						b.StopTimer()
						paused := threadTime(b)
						must(b, s.StartEpoch(1, e))
						s.Next(1)
						e++
						began += threadTime(b) - paused
						b.StartTimer()
					}
					s.Next(1)
				}
				reportCPU(b, began)
			})
		}
		b.Run(fmt.Sprintf("roaring/n=%d", n), func(b *testing.B) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			r := xrand.New(1)
			left := roaring.New()
			began := threadTime(b)
			for i := 0; i < b.N; i++ {
				m := left.GetCardinality()
				if m == 0 {
					b.StopTimer()
					paused := threadTime(b)
					left.AddRange(0, uint64(n))
					m = uint64(n)
					began += threadTime(b) - paused
					b.StartTimer()
				}
				x, err := left.Select(uint32(r.Uint64n(m)))
				if err != nil {
					b.Fatal(err)
				}
				left.Remove(x)
			}
			reportCPU(b, began)
		})
	}
}

// bytesOf is what a sampler of so many jobs on overlapping halves of n objects keeps when one of so many is available,
// none if that is
// 0. Subsets excluded.
func bytesOf(t testing.TB, n, jobs, oneOf int, mode Mode) float64 {
	subsets := make([][]ident.ObjectID, jobs)
	for i := range subsets {
		lo := i * n / 2 / max(jobs-1, 1)
		subsets[i] = span(lo, lo+n/2)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	s := New(1)
	for i, sub := range subsets {
		must(t, s.Join(ident.JobID(i), JobSpec{Mode: mode, Subset: sub}))
	}
	for i := range subsets {
		must(t, s.StartEpoch(ident.JobID(i), 0))
		s.Next(ident.JobID(i))
	}
	for x := 0; oneOf > 0 && x < n; x += oneOf {
		s.SetLevel(ident.ObjectID(x), 2)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(s)
	runtime.KeepAlive(subsets)
	return float64(after.HeapAlloc-before.HeapAlloc) / float64(n)
}

// BenchmarkMemory reports bytes per object of the universe, with nothing available and with a fifth.
func BenchmarkMemory(b *testing.B) {
	for _, jobs := range []int{1, 8} {
		for _, mode := range []Mode{Strict, Stratified, Epoch} {
			for _, oneOf := range []int{0, 5} {
				b.Run(fmt.Sprintf("%s/jobs=%d/oneof=%d", mode, jobs, oneOf), func(b *testing.B) {
					for b.Loop() {
						b.ReportMetric(bytesOf(b, 1_280_000, jobs, oneOf, mode), "bytes/object")
					}
				})
			}
		}
	}
}

// TestMemory holds the sampler to 24 bytes a sample and 4 bits for each sample and job, with a fifth of the samples
// available.
func TestMemory(t *testing.T) {
	const n = 200_000
	for _, jobs := range []int{1, 8} {
		for _, mode := range []Mode{Strict, Stratified, Epoch} {
			if got, limit := bytesOf(t, n, jobs, 5, mode), 24+float64(jobs)/2; got > limit {
				t.Errorf("%s, %d jobs: %.1f bytes a sample, the limit is %.1f", mode, jobs, got, limit)
			}
		}
	}
}
