package cachepolicy_test

import (
	"fmt"

	"larder/cachepolicy"
	"larder/internal/xrand"
)

// A tier with room for two entries. It inserts entries by handle, asks for a victim when it is full, and keeps the need
// of its entries up to date.
func Example() {
	evictor, err := cachepolicy.New("need", xrand.New(1))
	if err != nil {
		fmt.Println(err)
		return
	}
	evictor.Insert(0, 3) // three active jobs still need the sample of handle 0
	evictor.Insert(1, 2)

	// A sample that one job needs displaces no entry that two jobs need.
	_, admit := evictor.Victim(1)
	fmt.Println("admit:", admit)

	// One of the two jobs takes the sample of handle 1. Now the newcomer may replace it.
	evictor.Update(1, 1)
	victim, admit := evictor.Victim(1)
	fmt.Println("admit:", admit, "victim:", victim)
	evictor.Remove(victim)
	evictor.Insert(victim, 1) // the handle is free again
	fmt.Println("entries:", evictor.Len())
	// Output:
	// admit: false
	// admit: true victim: 1
	// entries: 2
}
