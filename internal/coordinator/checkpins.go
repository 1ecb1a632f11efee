package coordinator

import (
	"errors"
	"fmt"

	"larder/internal/ident"
	"larder/tiers/residency"
)

// checkPins tests that each entry of the index has as many pins as flights and rows hold, and that nothing holds one
// that is not there. A pin too many keeps the bytes of an entry for ever; one too few frees them under a reader.
func (c *Core) checkPins() error {
	held := map[residency.Handle]int{}
	hold := func(p pin) {
		if p.held {
			held[p.h]++
		}
	}
	for _, f := range c.flights.flightByID { // order-free: sums
		hold(f.entry)
		hold(f.encoded)
		hold(f.source)
		hold(f.later.entry)
		hold(f.later.encoded)
	}
	for _, d := range c.planner.deliveries { // order-free: sums
		for i := range d.rows {
			hold(d.rows[i].pin)
		}
	}
	var err error
	c.needs.index.EachPinned(func(h residency.Handle, k ident.Key, pins int) {
		if held[h] != pins {
			err = errors.Join(err, fmt.Errorf("%s has %d pins, and flights and rows hold %d", k, pins, held[h]))
		}
		delete(held, h)
	})
	for h, n := range held { // order-free: only the order of messages depends on it
		err = errors.Join(err, fmt.Errorf("entry %d is held %d times, and is not pinned", h, n))
	}
	return err
}
