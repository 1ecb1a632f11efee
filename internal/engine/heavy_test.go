package engine_test

import (
	"path/filepath"
	"strconv"
	"testing"

	"larder/internal/coordinator"
	"larder/internal/engine"
	larderv1 "larder/proto/larder/v1"
)

// TestCopiesThatFillTheirRoom: where there is room for one working copy only, jobs continue, one copy after the other,
// each alone and together.
func TestCopiesThatFillTheirRoom(t *testing.T) {
	const n = 24
	dir := t.TempDir()
	for i := range n {
		draw(t, filepath.Join(dir, strconv.Itoa(i%2), strconv.Itoa(i)+".jpg"), 200, 150, uint64(i))
	}
	w := serve(t, func(cfg *engine.Config) {
		cfg.Memory.Tiers = coordinator.TierConfig{}
		cfg.Memory.Own = 64 << 10 // a copy has 90 KB, more than the room of a quarter of this
	})
	crop := recipe(op("RandomResizedCrop", map[string]any{"size": 16.0}))
	share := func(s *larderv1.JobSpec) { s.Share = "augmented" }
	for _, s := range []*larderv1.JobSpec{spec("whole", dir, 7), spec("crop", dir, 5, crop), spec("shared", dir, 6, crop,
		share), spec("shared too", dir, 7, crop, share)} {
		tr := w.train(s, 0)
		t.Run(s.GetName(), func(t *testing.T) {
			t.Parallel()
			for epoch := range uint32(3) {
				if got := drain(t, tr, epoch); got != n {
					t.Errorf("epoch %d: %d samples", epoch, got)
				}
			}
		})
	}
}
