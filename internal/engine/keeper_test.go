package engine

import (
	"slices"
	"sync"
	"testing"
)

func TestTheKeeperKeepsOrderAndIsWaitedFor(t *testing.T) {
	k := newKeeper()
	var done []int
	gate := make(chan struct{})
	k.add(func() { <-gate; done = append(done, 0) })
	first := k.mark()
	for i := range 50 {
		k.add(func() { done = append(done, i+1) })
	}
	last := k.mark()
	k.wait(0) // nothing to wait for
	var wg sync.WaitGroup
	wg.Go(k.run)
	var early int
	wg.Go(func() {
		k.wait(first)
		early = 1
	})
	close(gate)
	k.wait(last)
	if len(done) != 51 || !slices.IsSorted(done) {
		t.Errorf("done: %v", done)
	}
	k.add(func() { done = append(done, 51) })
	k.stop() // what is queued is done first
	wg.Wait()
	if len(done) != 52 || early != 1 || k.waiting() != 0 {
		t.Errorf("done: %v", done)
	}
	k.wait(k.mark() + 1) // after the end nobody is kept waiting
}
