package engine_test

import (
	"fmt"
	"os"
	"testing"

	"larder/internal/coordinator"
	"larder/internal/engine"
)

// TestReadAhead: while storage is slow many reads are under way beside the workers, within their budget; every sample
// is read once and comes as it is; what is too large for the budget is read by the workers themselves, as everything
// is while storage is fast.
func TestReadAhead(t *testing.T) {
	const n = 120
	dir := folder(t, n)
	var largest, all int64
	for i := range n {
		st, err := os.Stat(file(dir, n, i))
		if err != nil {
			t.Fatal(err)
		}
		largest, all = max(largest, st.Size()), all+st.Size()
	}
	for _, c := range []struct {
		name         string
		reads        int64 // a second that storage serves; 0 = as many as it can
		budget       int64
		ahead, least int // readers at once: that there are any, and how many must have been
		readers      int
	}{
		{"fast", 0, 1 << 20, 0, 0, 0},
		{"slow", 300, 1 << 20, 1, 3, 0},
		{"slow, two readers", 300, 1 << 20, 1, 2, 2},
		{"slow, little budget", 300, 3 * largest, 1, 2, 0},
		{"slow, no budget", 800, 1, 0, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := serve(t, func(cfg *engine.Config) {
				cfg.Memory.Tiers = coordinator.TierConfig{}
				cfg.Work.ReadAhead, cfg.Work.Readers = c.budget, c.readers
			})
			w.catalog.SetStorageLimit(0, c.reads)
			tr := w.train(spec("ahead", dir, 8), 0)
			for epoch := range uint32(2) {
				s := tr.must(epoch)
				exactly(t, fmt.Sprintf("epoch %d", epoch), s.ids, where(n, func(int) bool { return true }))
				for _, i := range []int{0, 7, 44, n - 1} {
					want, size := decode(t, file(dir, n, i))
					if s.sizes[int64(i)] != size || string(s.pixels[int64(i)]) != string(want) {
						t.Errorf("sample %d is another image", i)
					}
				}
			}
			tr.detach()
			peak, most := w.engine.Ahead()
			if c.readers == 0 {
				c.readers = engine.Readers
			}
			if peak > c.budget || most > c.readers || most < c.least || (most > 0) != (c.ahead > 0) && c.reads > 0 {
				t.Errorf("%d readers read %d bytes ahead, of %d", most, peak, c.budget)
			}
			// What the end of an epoch and the beginning of the next want at once is read once, and the third epoch has
			// begun in the ring's 4 batches.
			got, limit := w.stats().GetTotals(), 2*n+4*8
			if reads := int(got.GetSourceReads()); reads < 2*n-4*8 || reads > limit || int64(got.GetSourceBytes()) < all ||
				got.GetDecodes() != got.GetSourceReads() {
				t.Errorf("%d reads and %d decodes for %d samples", reads, got.GetDecodes(), 2*n)
			}
			eventually(t, "what was read ahead is used up", func() bool { return w.engine.AheadNow() == 0 })
			t.Logf("%d bytes ahead of %d, %d readers", peak, c.budget, most)
		})
	}
}
