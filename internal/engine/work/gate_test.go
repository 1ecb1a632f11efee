package work

import (
	"sync"
	"testing"
)

// Large images wait for each other, small ones never wait, and one that exceeds the whole gate runs alone.
func TestLargeImagesTakeTurns(t *testing.T) {
	const unit = 10 << 20
	gate := newGate(3 * unit)
	enter := gate.enter
	var wg sync.WaitGroup
	for i := range 60 {
		wg.Go(func() { enter(int64(i%6) * unit)() })
	}
	wg.Wait()
	if p := gate.mu.peak; p > 3*unit || p < unit {
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
