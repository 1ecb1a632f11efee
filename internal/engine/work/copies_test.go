package work

import (
	"testing"

	"pgregory.net/rapid"

	"larder/internal/coordinator"
	"larder/internal/prep"
)

// TestWorkingCopiesAreBounded: another working copy is begun only while those that wait to be read are few, and small
// together; one there may always be. What is kept of old ones is bounded alike.
func TestWorkingCopiesAreBounded(t *testing.T) {
	const own, workers = 64 << 10, 2
	rapid.Check(t, func(t *rapid.T) {
		p := New(Config{Workers: workers, Own: own})
		w := &worker{p: p}
		copies := map[coordinator.FlightID]int64{}
		var next coordinator.FlightID
		sum := func() (n int64) {
			for _, b := range copies {
				n += b
			}
			return n
		}
		t.Repeat(map[string]func(*rapid.T){
			"hold": func(t *rapid.T) {
				next++
				b := p.scratch(rapid.SampledFrom([]int{1, 100, 1000, 9000, 16000, 70000}).Draw(t, "bytes"))
				w.hold(next, prep.Image{Pix: b})
				copies[next] = int64(cap(b))
			},
			"discard": func(t *rapid.T) {
				id := coordinator.FlightID(rapid.Uint64Range(0, uint64(next)).Draw(t, "flight"))
				p.Discard(id)
				delete(copies, id)
			},
			"": func(t *rapid.T) {
				want := len(copies) == 0 || len(copies) < maxCopies*workers && sum() < own/4
				if got := p.roomForCopy(); got != want {
					t.Fatalf("room for another beside %d copies of %d bytes: %v", len(copies), sum(), got)
				}
				var kept int64
				for _, b := range p.mu.spare {
					kept += int64(cap(b))
				}
				if kept != p.mu.spared || kept > own/4 || len(p.mu.spare) > 2*workers {
					t.Fatalf("%d buffers of %d bytes are kept, said to be %d", len(p.mu.spare), kept, p.mu.spared)
				}
			},
		})
	})
}
