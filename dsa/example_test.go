package dsa_test

import (
	"fmt"

	"larder/dsa"
	"larder/internal/ident"
)

// Two jobs read the same six objects, the second after the first has taken three of them. What the first job loaded
// stays in memory, so the second takes exactly those objects first.
func Example() {
	sampler := dsa.New(1)
	subset := []ident.ObjectID{0, 1, 2, 3, 4, 5}
	for id := ident.JobID(1); id <= 2; id++ {
		if err := sampler.Join(id, dsa.JobSpec{Mode: dsa.Epoch, Subset: subset}); err != nil {
			fmt.Println(err)
			return
		}
	}
	loads := 0
	pick := func(id ident.JobID) {
		x, ok := sampler.Next(id)
		if !ok {
			return // the epoch is over
		}
		if sampler.Level(x) == uint8(ident.Stored) { // not in memory: the caller loads it, and says so before the next pick
			loads++
			sampler.SetLevel(x, uint8(ident.Decoded))
		}
		if sampler.Need(x) == 0 { // no job needs it any more: the cache may evict it
			sampler.SetLevel(x, uint8(ident.Stored))
		}
	}
	for id := ident.JobID(1); id <= 2; id++ {
		if err := sampler.StartEpoch(id, 0); err != nil {
			fmt.Println(err)
			return
		}
	}
	for range 3 {
		pick(1)
	}
	for range 3 {
		pick(2)
	}
	fmt.Println("loads:", loads, "left:", sampler.Remaining(1), sampler.Remaining(2))
	for range 3 {
		pick(1)
		pick(2)
	}
	fmt.Println("loads:", loads, "left:", sampler.Remaining(1), sampler.Remaining(2))
	// Output:
	// loads: 3 left: 3 3
	// loads: 6 left: 0 0
}
