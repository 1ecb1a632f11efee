package source

import (
	"sync/atomic"
	"testing"
	"time"

	"larder/internal/ident"
)

// Readers of the table go on while it grows. It shows how long one waited at most: without room of its own, growing
// to 2^22 rows stopped them for as long as the rehash took.
func BenchmarkReadersWhileObjectsAreMade(b *testing.B) {
	const n, slice = 1 << 22, 4096
	for b.Loop() {
		var t objectTable
		var over atomic.Bool
		longest := make(chan time.Duration)
		go func() {
			most := time.Duration(0)
			for !over.Load() {
				from := time.Now()
				t.get(5)
				most = max(most, time.Since(from))
				time.Sleep(50 * time.Microsecond)
			}
			longest <- most
		}()
		for from := 0; from < n; from += slice {
			t.making.Lock()
			t.room(slice)
			t.mu.Lock()
			for i := from; i < from+slice; i++ {
				t.internLocked(fileMeta{ino: uint64(i)}, 0, 0, ident.SampleID(i))
			}
			t.mu.Unlock()
			t.making.Unlock()
		}
		over.Store(true)
		b.ReportMetric(float64((<-longest).Microseconds()), "µs-longest")
	}
}

// What readers see while ids are made is always whole: a row that is there never changes.
func TestReadersWhileObjectsAreMade(t *testing.T) {
	var table objectTable
	const n, slice = 1 << 16, 512
	var over atomic.Bool
	wrong := make(chan string, 1)
	go func() {
		defer close(wrong)
		for !over.Load() {
			if k := table.len(); k > 0 {
				if m, ok := table.meta(ident.ObjectID(k - 1)); !ok || m.ino != uint64(k-1) || m.dev != 7 {
					wrong <- "a row is not what it was made as"
					return
				}
			}
		}
	}()
	for from := 0; from < n; from += slice {
		table.making.Lock()
		table.room(slice)
		table.mu.Lock()
		for i := from; i < from+slice; i++ {
			if o := table.internLocked(fileMeta{dev: 7, ino: uint64(i)}, 0, 0, 0); int(o) != i {
				t.Fatalf("the id of %d is %d", i, o)
			}
		}
		table.mu.Unlock()
		table.making.Unlock()
	}
	over.Store(true)
	if w, bad := <-wrong; bad {
		t.Error(w)
	}
}

// BenchmarkAssignObjects gives a million samples ids: files of their own, and samples of 16 files.
func BenchmarkAssignObjects(b *testing.B) {
	const n = 1 << 20
	for _, c := range []struct {
		name string
		meta func(i int) fileMeta
	}{
		{"files", func(i int) fileMeta { return fileMeta{ino: uint64(i), size: int64(i % 999), mtime: 5} }},
		{"packed", func(i int) fileMeta {
			return fileMeta{ino: uint64(i) / (n / 16), size: int64(i % 999), mtime: 5, off: int64(i) * 1000}
		}},
	} {
		meta := make([]fileMeta, n)
		for i := range meta {
			meta[i] = c.meta(i)
		}
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				var t objectTable
				s := &snapshot{dirOf: make([]uint32, n), dead: make([]uint64, n/64)}
				if c.name == "packed" {
					s.labels = make([]int32, n)
				}
				s.assignObjects(&t, 0, nil, meta)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/sample")
		})
	}
}
