package engine_test

import (
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"larder/internal/coordinator"
	"larder/internal/engine"
	"larder/internal/ident"
	"larder/internal/prep"
	larderv1 "larder/proto/larder/v1"
)

// A decoder that panics when its sample already has a place in the tier leaves that place empty.
func TestAPanicLeavesNothingInATier(t *testing.T) {
	w := serve(t)
	w.dial() // it runs
	r, err := prep.ParseRecipe(nil)
	if err != nil {
		t.Fatal(err)
	}
	key := ident.Key{Form: ident.Decoded, Recipe: r.Prefix()}
	for range 3 {
		if ev := w.engine.Panics(key, 1<<20); !strings.Contains(ev.Err, "panicked") || ev.Flight != 1 {
			t.Errorf("%+v", ev)
		}
	}
	if used := w.store.Used(ident.Decoded); used != 0 {
		t.Errorf("%d bytes are still taken", used)
	}
}

// Large images wait for each other, small ones for nobody, and one that is larger than all there is goes alone.
func TestLargeImagesTakeTurns(t *testing.T) {
	const unit = 10 << 20
	enter, peak := engine.Gate(3 * unit)
	var wg sync.WaitGroup
	for i := range 60 {
		wg.Go(func() { enter(int64(i%6) * unit)() })
	}
	wg.Wait()
	if p := peak(); p > 3*unit || p < unit {
		t.Errorf("at most %d at once", p)
	}
	hold := enter(3 * unit)
	enter(1000)() // does not wait
	entered := make(chan struct{})
	go func() { enter(100 * unit)(); close(entered) }()
	select {
	case <-entered:
		t.Error("two at once")
	default:
	}
	hold()
	<-entered
}

// TestCopiesThatFillTheirRoom: where one working copy is all there is room for, jobs go on, one copy after the other, each alone and together.
func TestCopiesThatFillTheirRoom(t *testing.T) {
	const n = 24
	dir := t.TempDir()
	for i := range n {
		draw(t, filepath.Join(dir, strconv.Itoa(i%2), strconv.Itoa(i)+".jpg"), 200, 150, uint64(i))
	}
	w := serve(t, func(cfg *engine.Config) {
		cfg.Tiers = coordinator.TierConfig{}
		cfg.Own = 64 << 10 // a copy has 90 KB, more than the room of a quarter of this
	})
	crop := recipe(op("RandomResizedCrop", map[string]any{"size": 16.0}))
	share := func(s *larderv1.JobSpec) { s.Share = "augmented" }
	for _, s := range []*larderv1.JobSpec{spec("whole", dir, 7), spec("crop", dir, 5, crop), spec("shared", dir, 6, crop, share), spec("shared too", dir, 7, crop, share)} {
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
