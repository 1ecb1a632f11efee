package exec_test

import (
	"strings"
	"sync"
	"testing"

	"larder/internal/exec"
	"larder/internal/ident"
	"larder/internal/prep"
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
	enter, peak := exec.Gate(3 * unit)
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
