package partition

import (
	"fmt"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"larder/internal/xrand"
)

// BenchmarkPartition is the solve of a daemon with many datasets and recipes; 10 ms are allowed for 16.
func BenchmarkPartition(b *testing.B) {
	for _, size := range [][2]int{{1, 1}, {4, 1}, {16, 1}, {16, 4}, {64, 4}} {
		for _, model := range Models() {
			b.Run(fmt.Sprintf("%s/%dx%d", model, size[0], size[1]), func(b *testing.B) {
				r := xrand.New(4, 5)
				list := make([]Demand, 16)
				for i := range list {
					list[i] = randomDemand(r, size[0], size[1])
					list[i].Machine.Waiting = MeasuredWaiting // as a daemon has it
				}
				m, _ := New(model)
				b.ReportAllocs()
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				began, n := threadTime(b), 0
				for b.Loop() {
					if _, err := m.Solve(list[n%len(list)]); err != nil {
						b.Fatal(err)
					}
					n++
				}
				b.ReportMetric(float64(threadTime(b)-began)/float64(b.N)/1e6, "cpu-ms/op")
			})
		}
	}
}

// threadTime is the processor time of the calling thread in nanoseconds: what a solve costs whatever else the machine
// does.
func threadTime(b *testing.B) int64 {
	b.Helper()
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		b.Fatal(err)
	}
	return t.Nano()
}
