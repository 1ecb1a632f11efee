package engine_test

import (
	"context"
	"errors"
	"io"
	"math"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"larder/internal/audit/audittest"
	"larder/internal/coordinator"
	"larder/internal/engine"
	"larder/internal/ident"
	"larder/internal/prep"
	larderv1 "larder/proto/larder/v1"
)

// drain takes an epoch without looking at it.
func drain(t testing.TB, tr *trainer, epoch uint32) (samples int) {
	t.Helper()
	if err := tr.st.StartEpoch(context.Background(), epoch); err != nil {
		t.Fatal(err)
	}
	for {
		b, err := tr.st.Next(context.Background())
		if errors.Is(err, io.EOF) {
			return samples
		}
		if err != nil {
			t.Fatal(err)
		}
		samples += b.Rows
		b.Release()
	}
}

// TestSteadyAllocations bounds the allocations a sample of the whole process: coordinator, pool, rings, session,
// journal, and the test's own client with them. The bar is two out of the decoded tier; a sample that is read and
// decoded every time has more. The bounds keep what was reached: 0.6 and 8, with the batches' own.
func TestSteadyAllocations(t *testing.T) {
	audittest.Off(t)
	const n, size = 960, 64
	dir := t.TempDir()
	for i := range n {
		draw(t, filepath.Join(dir, strconv.Itoa(i%3), strconv.Itoa(i)+".jpg"), 20, 20, uint64(i))
	}
	missed := 10.0
	if !prep.Parity() { // the decoder in Go allocates everything for each image
		missed += 14
	}
	for _, c := range []struct {
		name, share string
		tiers       int64
		most        float64
	}{
		{"from the decoded tier", "", 16 * mib, 1},
		{"from the decoded tier, shared", "augmented", 16 * mib, 1},
		{"read and decoded", "", 0, missed},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := serve(t, func(cfg *engine.Config) {
				cfg.Work.Measure = time.Hour // reports of rates are no part of a sample
				cfg.Memory.Tiers = coordinator.TierConfig{Total: c.tiers, Sizes: [ident.NumForms]int64{ident.Decoded: c.tiers}}
			})
			tr := w.train(spec("steady", dir, size, recipe(crops...), func(s *larderv1.JobSpec) { s.Share = c.share }), 0)
			epoch := uint32(0)
			for ; epoch < 2; epoch++ {
				drain(t, tr, epoch)
			}
			reads, got, bytes := w.stats().GetTotals().GetSourceReads(), math.Inf(1), 0.0
			for try := 0; try < 5 && got > c.most; try++ { // other work of the process only adds: the least counts
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				samples := 0
				for range 4 {
					samples += drain(t, tr, epoch)
					epoch++
				}
				runtime.ReadMemStats(&after)
				got = min(got, float64(after.Mallocs-before.Mallocs)/float64(samples))
				bytes = float64(after.TotalAlloc-before.TotalAlloc) / float64(samples)
			}
			if c.tiers == 0 == (w.stats().GetTotals().GetSourceReads() == reads) {
				t.Errorf("%d reads before, %d after", reads, w.stats().GetTotals().GetSourceReads())
			}
			t.Logf("%.2f allocations and %.0f bytes a sample", got, bytes)
			if got > c.most {
				t.Errorf("%.2f allocations a sample, want at most %g", got, c.most)
			}
			tr.detach()
		})
	}
}
