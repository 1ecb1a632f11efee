package engine_test

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"larder/internal/ident"
	"larder/internal/prep"
	"larder/internal/shm"
	"larder/internal/xrand"
	"larder/tiers"
)

// processorTime of this thread's process, so that a busy machine matters little.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts); err != nil {
		b.Fatal(err)
	}
	return time.Duration(ts.Nano())
}

// BenchmarkGather fills a slot of 256 images of 3x224x224 from random entries of the augmented tier, as a worker does
// for a shared sample, and copies as many bytes in one piece beside it, from memory as large as the tier. The metrics
// are GB for a second of processor time, and their ratio.
func BenchmarkGather(b *testing.B) {
	const side, rows, entries = 224, 256, 1500
	const size = 3 * side * side
	store, err := tiers.Open(tiers.Config{})
	if err != nil {
		b.Fatal(err)
	}
	defer store.Close()
	if err := store.SetBudget(ident.Augmented, entries*(size+4096)*5/4); err != nil {
		b.Fatal(err)
	}
	for i := range entries {
		buf, err := store.Alloc(ident.Key{Object: ident.ObjectID(i), Form: ident.Augmented}, size)
		if err != nil {
			b.Fatal(err)
		}
		for j := range buf.Bytes {
			buf.Bytes[j] = byte(i + j)
		}
		if err := buf.Commit(tiers.Meta{Width: side, Height: side, Channels: 3}); err != nil {
			b.Fatal(err)
		}
	}
	ring, err := shm.Create("gather", (2*rows+entries)*size)
	if err != nil {
		b.Fatal(err)
	}
	defer ring.Release()
	for _, layout := range []string{prep.HWC, prep.CHW} {
		b.Run(layout, func(b *testing.B) {
			recipe, err := prep.ParseRecipe([]prep.OpSpec{
				{Name: "RandomResizedCrop", Args: map[string]any{"size": 224.0}},
				{Name: "ToDtype", Args: map[string]any{"dtype": "uint8", "layout": layout}},
			})
			if err != nil {
				b.Fatal(err)
			}
			w := prep.NewWorker(prep.Limits{})
			defer w.Close()
			slot, plain, other := ring.Bytes()[:rows*size], ring.Bytes()[rows*size:2*rows*size], ring.Bytes()[2*rows*size:]
			at := 0
			r := xrand.New(1)
			var gather, copied time.Duration
			b.ReportAllocs()
			for b.Loop() {
				t := processorTime(b)
				for row := range rows {
					v, err := store.Open(ident.Key{Object: ident.ObjectID(r.IntN(entries)), Form: ident.Augmented})
					if err != nil {
						b.Fatal(err)
					}
					img := prep.Image{Pix: v.Bytes[:size], W: side, H: side, C: 3}
					err = w.Finish(recipe, img, prep.RandKey{}, slot[row*size:(row+1)*size])
					v.Close()
					if err != nil {
						b.Fatal(err)
					}
				}
				u := processorTime(b)
				copy(plain, other[at*size:])
				at = (at + rows) % (entries - rows)
				gather += u - t
				copied += processorTime(b) - u
			}
			b.ReportMetric(float64(b.N)*rows*size/float64(gather), "GB/cpu-s")
			b.ReportMetric(float64(b.N)*rows*size/float64(copied), "memcpy-GB/cpu-s")
			b.ReportMetric(float64(copied)/float64(gather), "of-memcpy")
		})
	}
}
