package residency

import (
	"fmt"

	"larder/internal/ident"
	"larder/internal/invariant"
)

// Pins returns the number of pins.
func (x *Index) Pins(h Handle) int { return int(x.live(h).pins) }

// Key returns the entry's key. It also works on a handle that just died, until the next Admit.
func (x *Index) Key(h Handle) ident.Key {
	if int(h) >= len(x.entries) {
		invariant.Violated("residency: handle %d never was", h)
	}
	return x.entries[h].key
}

// Bytes returns what the entry counts for.
func (x *Index) Bytes(h Handle) int64 { return x.live(h).bytes }

// Need returns the last need told.
func (x *Index) Need(h Handle) int { return int(x.live(h).need) }

// Resident tells whether the entry is in, rather than leaving.
func (x *Index) Resident(h Handle) bool { return x.live(h).state == resident }

// Ready tells whether the bytes are there.
func (x *Index) Ready(h Handle) bool { return x.live(h).ready }

// SetReady tells that the bytes are there.
func (x *Index) SetReady(h Handle) { x.live(h).ready = true }

// Budget returns the bytes that resident entries of the form may have.
func (x *Index) Budget(f ident.Form) int64 { return x.tiers[f].budget }

// Used returns the bytes of resident entries, at most Budget.
func (x *Index) Used(f ident.Form) int64 { return x.tiers[f].used }

// Entries returns the number of resident entries.
func (x *Index) Entries(f ident.Form) int { return x.tiers[f].entries }

// Evictions returns how many entries left for another or for a smaller budget since the start.
func (x *Index) Evictions(f ident.Form) uint64 { return x.tiers[f].evictions }

// Leaving returns the bytes of entries that are out but pinned.
func (x *Index) Leaving(f ident.Form) int64 { return x.tiers[f].leaving }

// Each calls fn for every resident entry of the form, by ascending handle. fn may Drop the entry it is called for, and
// change nothing else.
func (x *Index) Each(f ident.Form, fn func(Handle, ident.Key)) {
	for h := range x.entries {
		if e := &x.entries[h]; e.state == resident && e.key.Form == f {
			fn(Handle(h), e.key)
		}
	}
}

// Slots returns how many entries there are to look at with Some, dead ones included.
func (x *Index) Slots() int { return len(x.entries) }

// Some calls fn for the resident ones among n entries from h on, beginning anew behind the last, and returns where to go on: for a
// walk over everything in slices, while entries come and go. fn may do what it may in Each.
func (x *Index) Some(h Handle, n int, fn func(Handle, ident.Key)) Handle {
	n = min(n, len(x.entries))
	for ; n > 0; n-- {
		if int(h) >= len(x.entries) {
			h = 0
		}
		if e := &x.entries[h]; e.state == resident {
			fn(h, e.key)
		}
		h++
	}
	return h
}

// Check verifies every invariant in O(entries): the first that does not hold is the error.
func (x *Index) Check() error {
	var sums [ident.NumForms]tier
	live := 0
	for i := range x.entries {
		e, h := &x.entries[i], Handle(i)
		if e.state == dead {
			continue
		}
		live++
		if got, ok := x.table.get(e.key); !ok || got != h {
			return fmt.Errorf("residency: the table does not lead from %s to entry %d", e.key, h)
		}
		s := &sums[e.key.Form]
		switch {
		case e.state == resident:
			s.used += e.bytes
			s.entries++
		case e.pins == 0:
			return fmt.Errorf("residency: %s is out and not pinned, and not dead", e.key)
		default:
			s.leaving += e.bytes
		}
	}
	if n := x.table.len; n != live {
		return fmt.Errorf("residency: the table holds %d keys for %d entries", n, live)
	}
	if len(x.free)+live != len(x.entries) {
		return fmt.Errorf("residency: %d entries are not %d free and %d live ones", len(x.entries), len(x.free), live)
	}
	for f := ident.Encoded; f < ident.NumForms; f++ {
		t, s := &x.tiers[f], &sums[f]
		if t.used != s.used || t.leaving != s.leaving || t.entries != s.entries {
			return fmt.Errorf("residency: tier %s counts %d used, %d leaving, %d entries; they are %d, %d, %d",
				f, t.used, t.leaving, t.entries, s.used, s.leaving, s.entries)
		}
		if t.used > t.budget {
			return fmt.Errorf("residency: tier %s uses %d of %d bytes", f, t.used, t.budget)
		}
		if c, ok := t.ev.(interface{ Len() int }); ok && c.Len() != t.entries {
			return fmt.Errorf("residency: the policy of tier %s orders %d entries of %d", f, c.Len(), t.entries)
		}
	}
	return nil
}
