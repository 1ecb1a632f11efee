package dsa

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"larder/internal/ident"
)

// BenchmarkPick is one pick with what the coordinator says about it: jobs on overlapping halves of the objects, a cache
// of a fifth that is filled in turn.
func BenchmarkPick(b *testing.B) {
	for _, n := range []int{1 << 10, 1 << 17, 1_280_000} {
		for _, jobs := range []int{1, 8} {
			for _, mode := range []Mode{Fixed, Strict, Stratified, Epoch} {
				b.Run(fmt.Sprintf("%s/jobs=%d/n=%d", mode, jobs, n), func(b *testing.B) {
					runtime.LockOSThread()
					defer runtime.UnlockOSThread()
					s := New(1)
					for i := range jobs {
						lo := i * n / 2 / max(jobs-1, 1)
						must(b, s.Join(ident.JobID(i), JobSpec{Mode: mode, Subset: span(lo, lo+n/2)}))
						must(b, s.StartEpoch(ident.JobID(i), 0))
					}
					for i := range jobs { // lays it out
						s.Next(ident.JobID(i))
					}
					ring := make([]ident.ObjectID, n/5)
					for i := range ring {
						ring[i] = MaxObjects // says nothing to SetLevel
					}
					at := 0
					b.ResetTimer()
					began := threadTime(b)
					for i := 0; i < b.N; i++ {
						id := ident.JobID(i % jobs)
						x, ok := s.Next(id)
						if !ok {
							b.StopTimer()
							paused := threadTime(b)
							must(b, s.StartEpoch(id, 1))
							s.Next(id)
							began += threadTime(b) - paused
							b.StartTimer()
							continue
						}
						if s.Level(x) == 0 {
							s.SetLevel(ring[at], 0)
							ring[at] = x
							s.SetLevel(x, 2)
							if at++; at == len(ring) {
								at = 0
							}
						}
					}
					reportCPU(b, began)
				})
			}
		}
	}
}

// BenchmarkJoin is the join of one more job of n/2 objects to seven running ones, its epoch start, and the first pick
// of each job after it, which lays their groups out again.
func BenchmarkJoin(b *testing.B) {
	for _, n := range []int{1 << 17, 1_280_000} {
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) {
			s := New(1)
			for i := range 7 {
				lo := i * n / 14
				must(b, s.Join(ident.JobID(i), strat(4, span(lo, lo+n/2))))
				must(b, s.StartEpoch(ident.JobID(i), 0))
			}
			last := span(n/2, n)
			b.ResetTimer()
			for b.Loop() {
				must(b, s.Join(99, strat(4, last)))
				must(b, s.StartEpoch(99, 0))
				b.StopTimer()
				for i := range 7 {
					s.Next(ident.JobID(i))
				}
				s.Next(99)
				s.Leave(99)
				b.StartTimer()
			}
		})
	}
}

// BenchmarkFirstPick is an epoch start and its first pick, which lays the groups out: one job of n objects.
func BenchmarkFirstPick(b *testing.B) {
	for _, n := range []int{1 << 17, 1_280_000} {
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) {
			s := New(1)
			must(b, s.Join(1, strat(4, span(0, n))))
			for b.Loop() {
				must(b, s.StartEpoch(1, 0))
				s.Next(1)
			}
		})
	}
}

// threadTime is the time the calling thread has had on a processor: what a call costs whatever else the machine does.
func threadTime(b *testing.B) time.Duration {
	var ts unix.Timespec
	must(b, unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts))
	return time.Duration(ts.Nano())
}

// reportCPU reports the processor time of an operation since began: that of the wall clock counts what else the machine
// does.
func reportCPU(b *testing.B, began time.Duration) {
	b.ReportMetric(float64(threadTime(b)-began)/float64(b.N), "cpu-ns/op")
}

// BenchmarkSlices is the join of one more job of n objects to seven running ones on the same objects, in slices:
// everything until all jobs can draw again. It reports the longest slice and the longest call.
func BenchmarkSlices(b *testing.B) {
	const budget = 8192
	for _, n := range []int{1 << 17, 1_280_000} {
		for _, others := range []int{0, 7} {
			b.Run(fmt.Sprintf("n=%d/others=%d", n, others), func(b *testing.B) {
				s := New(1)
				s.InSlices()
				all := span(0, n)
				for i := range others {
					must(b, s.Join(ident.JobID(i), strat(4, all)))
					must(b, s.StartEpoch(ident.JobID(i), 0))
				}
				for s.Work(budget) {
				}
				var longest, slices time.Duration
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				timed := func(f func()) {
					t := threadTime(b)
					f()
					longest = max(longest, threadTime(b)-t)
				}
				for b.Loop() {
					timed(func() { must(b, s.Join(99, strat(4, all))) })
					timed(func() { must(b, s.StartEpoch(99, 0)) })
					for more := true; more; slices++ {
						timed(func() { more = s.Work(budget) })
					}
					for i := range 100 {
						timed(func() { s.Next(99) })
						timed(func() { s.Next(ident.JobID(i % max(others, 1))) })
					}
					timed(func() { s.Leave(99) })
					for s.Work(budget) {
					}
				}
				b.ReportMetric(float64(longest.Microseconds()), "µs/longest-call")
				b.ReportMetric(float64(slices)/float64(b.N), "slices/op")
			})
		}
	}
}
