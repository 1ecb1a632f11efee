package disk

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"larder/internal/xrand"
)

// BenchmarkReads compares reads of the tier with plain random preads of that size from one file, in turns, each after
// its files were put out of the page cache, and with them in it: bytes a second by wall clock, and processor time.
func BenchmarkReads(b *testing.B) {
	const size, n = 110 << 10, 1500
	dir := b.TempDir()
	s := openAt(b, Config{Dir: filepath.Join(dir, "tier"), Size: 1 << 30, Queue: 1 << 30})
	payload := make([]byte, size)
	r := xrand.New(1)
	plain, err := os.Create(filepath.Join(dir, "plain"))
	if err != nil {
		b.Fatal(err)
	}
	defer plain.Close()
	if err := unix.Fadvise(int(plain.Fd()), 0, 0, unix.FADV_RANDOM); err != nil { // as fio does
		b.Fatal(err)
	}
	key := func(i int) Key { return Key{Place: "s3://bucket", Object: fmt.Sprintf("train/%d.jpg", i), Size: size} }
	for i := range n {
		for j := 0; j < size; j += 8 {
			le.PutUint64(payload[j:], r.Uint64())
		}
		s.Put(Whom{Group: "a"}, key(i), payload)
		if _, err := plain.Write(payload); err != nil {
			b.Fatal(err)
		}
	}
	s.Flush()
	if got := s.Stats().Entries; got != n {
		b.Fatalf("%d of %d entries", got, n)
	}
	drop := func() {
		list, err := filepath.Glob(dir + "/*/larder-*")
		if err != nil {
			b.Fatal(err)
		}
		for _, p := range append(list, plain.Name()) {
			f, err := os.OpenFile(p, os.O_RDWR, 0)
			if err != nil {
				b.Fatal(err)
			}
			_ = f.Sync()
			_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
			_ = f.Close()
		}
	}
	tier := func(i int, buf []byte) bool { return s.Get(Whom{Group: "a"}, key(i), buf) }
	pread := func(i int, buf []byte) bool {
		k, err := plain.ReadAt(buf, int64(i)*size)
		return err == nil && k == size
	}
	for _, cold := range []bool{true, false} {
		for _, readers := range []int{1, 16} {
			b.Run(fmt.Sprintf("cold=%v/readers=%d", cold, readers), func(b *testing.B) {
				var wall, cpu [2][]float64
				for round := range 2 * b.N {
					which, read := round%4/2^round%2, tier // tier, pread, pread, tier
					if which == 1 {
						read = pread
					}
					if cold {
						drop()
					}
					w, c := pass(b, n, size, readers, read)
					wall[which], cpu[which] = append(wall[which], w), append(cpu[which], c)
				}
				t, p := median(wall[0]), median(wall[1])
				b.ReportMetric(n*size/t/1e6, "tier-MB/s")
				b.ReportMetric(n*size/p/1e6, "pread-MB/s")
				b.ReportMetric(p/t, "ratio")
				b.ReportMetric(1e6*median(cpu[0])/n, "tier-cpu-us")
				b.ReportMetric(1e6*median(cpu[1])/n, "pread-cpu-us")
			})
		}
	}
}

// pass reads all entries once, in a random order, and returns the seconds that it took, and those of processors.
func pass(b *testing.B, n, size, readers int, read func(i int, buf []byte) bool) (wall, cpu float64) {
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	xrand.New(uint64(time.Now().UnixNano())).Shuffle(n, func(i, j int) { order[i], order[j] = order[j], order[i] })
	used, begun := processorTime(b), time.Now()
	var wg sync.WaitGroup
	for k := range readers {
		wg.Go(func() {
			buf := make([]byte, size)
			for i := k; i < n; i += readers {
				if !read(order[i], buf) {
					b.Error("a read failed")
					return
				}
			}
		})
	}
	wg.Wait()
	return time.Since(begun).Seconds(), processorTime(b) - used
}

func processorTime(b *testing.B) float64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

func median(x []float64) float64 {
	x = slices.Sorted(slices.Values(x))
	return x[len(x)/2]
}
