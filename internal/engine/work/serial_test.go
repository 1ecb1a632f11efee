package work

import (
	"slices"
	"sync"
	"testing"
)

func TestSerialKeepsOrderAndIsWaitedFor(t *testing.T) {
	k := NewSerial()
	var done []int
	gate := make(chan struct{})
	k.Add(func() { <-gate; done = append(done, 0) })
	first := k.Mark()
	for i := range 50 {
		k.Add(func() { done = append(done, i+1) })
	}
	last := k.Mark()
	k.Wait(0) // nothing to wait for
	var wg sync.WaitGroup
	wg.Go(k.Run)
	var early int
	wg.Go(func() {
		k.Wait(first)
		early = 1
	})
	close(gate)
	k.Wait(last)
	if len(done) != 51 || !slices.IsSorted(done) {
		t.Errorf("done: %v", done)
	}
	k.Add(func() { done = append(done, 51) })
	k.Stop() // what is queued is done first
	wg.Wait()
	if len(done) != 52 || early != 1 || k.Waiting() != 0 {
		t.Errorf("done: %v", done)
	}
	k.Wait(k.Mark() + 1) // after the end no caller waits
}
