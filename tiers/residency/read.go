package residency

import (
	"fmt"
	"slices"

	"larder/internal/ident"
	"larder/internal/invariant"
)

// Pins returns the number of pins.
func (t *tables) Pins(h Handle) int { return int(t.live(h).pins()) }

// Key returns the entry's key. It also works on a handle that just died, until the next Admit.
func (t *tables) Key(h Handle) ident.Key {
	if int(h>>blockBits) >= len(t.blocks) || len(t.planes) == 0 {
		invariant.Violated("residency: handle %d never was", h)
	}
	return t.key(uint32(h))
}

// Bytes returns what the entry counts for.
func (t *tables) Bytes(h Handle) int64 { return t.entry(t.live(h).entry).bytes }

// Need returns the last need that SetNeed set.
func (t *tables) Need(h Handle) int { return int(t.entry(t.live(h).entry).need) }

// UsedBy returns how many uses of the entry Hit has counted since it was admitted. Need returns what still needs it.
func (t *tables) UsedBy(h Handle) int { return int(t.entry(t.live(h).entry).usedBy) }

// Generation distinguishes this stay of the key from every other: a handle that is kept beside its generation is still
// the same entry while Is says so. It is never 0, and is used again after 4 billion admissions.
func (t *tables) Generation(h Handle) uint32 { return t.entry(t.live(h).entry).gen }

// Is reports whether the handle is alive and its entry of that generation. Any value may be asked about.
func (t *tables) Is(h Handle, generation uint32) bool {
	if int(h>>blockBits) >= len(t.blocks) {
		return false
	}
	s := t.slot(uint32(h))
	return s.state() != dead && t.entry(s.entry).gen == generation
}

// Resident reports whether the entry is in, rather than leaving.
func (t *tables) Resident(h Handle) bool { return t.live(h).state() == resident }

// Ready reports whether the bytes are there.
func (t *tables) Ready(h Handle) bool { return t.live(h).ready() }

// SetReady records that the bytes are there.
func (x *Index) SetReady(h Handle) { x.alive(h).bits |= readyBit }

// Budget returns the bytes that resident entries of the form may have.
func (t *tables) Budget(f ident.Form) int64 { return t.sums[f].budget }

// Used returns the bytes of resident entries, at most Budget.
func (t *tables) Used(f ident.Form) int64 { return t.sums[f].used }

// Entries returns the number of resident entries.
func (t *tables) Entries(f ident.Form) int { return t.sums[f].entries }

// Evictions returns how many entries left for another or for a smaller budget since the start.
func (t *tables) Evictions(f ident.Form) uint64 { return t.sums[f].evictions }

// Leaving returns the bytes of entries that are out but pinned.
func (t *tables) Leaving(f ident.Form) int64 { return t.sums[f].leaving }

// Each calls fn for every resident entry of the form, in an order that depends only on the calls so far, not on the
// keys. On an Index, fn may Drop the entry it is called for, and change nothing else.
func (t *tables) Each(f ident.Form, fn func(Handle, ident.Key)) {
	for n := range t.entries {
		e := t.entry(n)
		if e.gen == 0 {
			continue
		}
		if s := t.slot(e.at); s.state() == resident && s.form() == f {
			fn(Handle(e.at), t.key(e.at))
		}
	}
}

// EachPinned calls fn for every pinned entry, those that are out among them, with its pins, in no useful order. For
// checks: it looks at all entries.
func (t *tables) EachPinned(fn func(h Handle, k ident.Key, pins int)) {
	for n := range t.entries {
		if e := t.entry(n); e.gen != 0 {
			if pins := t.slot(e.at).pins(); pins > 0 {
				fn(Handle(e.at), t.key(e.at), int(pins))
			}
		}
	}
}

// walkPages is how many pages of objects one Walk looks at, those without an entry included.
const walkPages = 1 << 14

// Walk calls fn for resident entries whose need is not below 0, in the order of objects: of those from from up to, not
// including, to, both at the beginning of a page (AlignObject). It stops before a page with which it would have called
// fn more than n times, but for the first one, and after walkPages pages. It returns where to continue, to if nothing
// is left, and how often it has called fn. Where it stops does not depend on entries whose need is below 0. fn may do
// what it may in Each.
func (x *Index) Walk(from, to ident.ObjectID, n int, fn func(Handle, ident.Key)) (next ident.ObjectID, calls int) {
	top := 0
	for _, p := range x.planes {
		top = max(top, len(p.dir))
	}
	for i, pages := int(from>>pageBits), 0; ident.ObjectID(i)<<pageBits < to && i < top; i++ {
		more := x.onPage(i)
		if calls > 0 && calls+len(more) > n || pages == walkPages {
			return ident.ObjectID(i) << pageBits, calls
		}
		for _, h := range more {
			fn(h, x.key(uint32(h)))
		}
		calls += len(more)
		pages++
	}
	return to, calls
}

// AlignObject returns the first object of the page that x is on.
func AlignObject(x ident.ObjectID) ident.ObjectID { return x &^ (1<<pageBits - 1) }

// onPage returns the resident entries of page i of all planes whose need is not below 0, by object. The result is good
// until the next call.
func (x *Index) onPage(i int) []Handle {
	x.found = x.found[:0]
	for _, p := range x.planes {
		if i >= len(p.dir) || p.dir[i] == 0 {
			continue
		}
		first := p.dir[i] << pageBits
		for at := first; at < first+1<<pageBits; at++ {
			if s := x.slot(at); s.state() == resident && x.entry(s.entry).need >= 0 {
				x.found = append(x.found, Handle(at))
			}
		}
	}
	if len(x.planes) > 1 {
		slices.SortStableFunc(x.found, func(a, b Handle) int {
			return int(a&(1<<pageBits-1)) - int(b&(1<<pageBits-1))
		})
	}
	return x.found
}

// Slots returns how many places there are to look at with Some, empty ones included.
func (x *Index) Slots() int { return int(x.entries) }

// Some calls fn for the resident entries among n places from at on, starting over behind the last, and returns where
// to continue: for a walk over everything in slices, while entries come and go. fn may do what it may in Each.
func (x *Index) Some(at, n int, fn func(Handle, ident.Key)) int {
	all := int(x.entries)
	for n = min(n, all); n > 0; n-- {
		if at >= all {
			at = 0
		}
		if e := x.entry(uint32(at)); e.gen != 0 {
			if s := x.slot(e.at); s.state() == resident {
				fn(Handle(e.at), x.key(e.at))
			}
		}
		at++
	}
	return at
}

// Snapshot is an Index as it was. Safe for concurrent use, and for use beside the Index.
type Snapshot struct{ tables }

// Lookup finds an entry that was resident.
func (s *Snapshot) Lookup(k ident.Key) (Handle, bool) {
	at := s.scan(k).place(k.Object)
	return Handle(at), s.slot(at).state() == resident
}

// Snapshot returns the state of this moment, for what looks at all entries (statistics, a what-if planner) outside the
// owner's turn. Like the Clone of a btree it copies references, 16 bytes for 1024 entries and 24 for 4096 places, and
// from then on whatever is written for the first time costs a copy of its 32 KiB. A btree would pay at each admission
// instead: an insertion costs what eight lookups do, and 12 to 15 bytes of an entry's 24.
func (x *Index) Snapshot() *Snapshot {
	s := &Snapshot{x.tables}
	s.planes = make([]*plane, len(x.planes))
	for i, p := range x.planes {
		p.shared = true
		c := *p
		s.planes[i] = &c
	}
	for i := range x.blocks {
		x.blocks[i].shared = true
	}
	for i := range x.chunks {
		x.chunks[i].shared = true
	}
	s.blocks, s.chunks = slices.Clone(x.blocks), slices.Clone(x.chunks)
	return s
}

// Check verifies every invariant in O(entries + pages): the first that does not hold is the error.
func (x *Index) Check() error {
	if err := x.check(); err != nil {
		return err
	}
	free := 0
	for n := x.free; n != 0 && free <= int(x.entries); n = x.entry(n - 1).at {
		if x.entry(n-1).gen != 0 {
			return fmt.Errorf("residency: entry %d is free and alive", n-1)
		}
		free++
	}
	live := 0
	for n := range x.entries {
		if x.entry(n).gen != 0 {
			live++
		}
	}
	if free+live != int(x.entries) {
		return fmt.Errorf("residency: %d entries are not %d free and %d live ones", x.entries, free, live)
	}
	pages := 1 + len(x.freePages) // and the page of nothing
	for i := range x.planes {
		pages += x.planes[i].pages
	}
	if pages != int(x.numPages) {
		return fmt.Errorf("residency: %d of %d pages are free or in a plane", pages, x.numPages)
	}
	for f := ident.Encoded; f < ident.NumForms; f++ {
		if c, ok := x.tiers[f].ev.(interface{ Len() int }); ok && c.Len() != x.sums[f].entries {
			return fmt.Errorf("residency: the policy of tier %s orders %d entries of %d", f, c.Len(), x.sums[f].entries)
		}
	}
	return nil
}

// Check verifies every invariant in O(entries + pages): the first that does not hold is the error.
func (s *Snapshot) Check() error { return s.check() }

// check verifies what tables can know.
func (t *tables) check() error {
	var want [ident.NumForms]sums
	live, gens := 0, make(map[uint32]bool)
	for n := range t.entries {
		e := t.entry(n)
		if e.gen == 0 {
			continue
		}
		live++
		s, k := t.slot(e.at), t.key(e.at)
		if s.entry != n || s.form() != k.Form {
			return fmt.Errorf("residency: the place of %s is of %s entry %d, not %d", k, s.form(), s.entry, n)
		}
		if gens[e.gen] {
			return fmt.Errorf("residency: two entries are of generation %d", e.gen)
		}
		gens[e.gen] = true
		if at := t.scan(k).place(k.Object); at != e.at {
			return fmt.Errorf("residency: the tables do not lead from %s to place %d", k, e.at)
		}
		sum := &want[k.Form]
		switch st := s.state(); {
		case st == dead:
			return fmt.Errorf("residency: the place of %s is dead", k)
		case st == resident:
			sum.used += e.bytes
			sum.entries++
		case s.pins() == 0:
			return fmt.Errorf("residency: %s is out and not pinned, and not dead", k)
		default:
			sum.leaving += e.bytes
		}
	}
	places, err := t.checkPlanes()
	if err != nil {
		return err
	}
	if places != live {
		return fmt.Errorf("residency: %d places for %d entries", places, live)
	}
	for f := ident.Encoded; f < ident.NumForms; f++ {
		t, s := &t.sums[f], &want[f]
		if t.used != s.used || t.leaving != s.leaving || t.entries != s.entries {
			return fmt.Errorf("residency: tier %s counts %d used, %d leaving, %d entries; they are %d, %d, %d",
				f, t.used, t.leaving, t.entries, s.used, s.leaving, s.entries)
		}
		if t.used > t.budget {
			return fmt.Errorf("residency: tier %s uses %d of %d bytes", f, t.used, t.budget)
		}
	}
	return nil
}

// checkPlanes verifies the pages of all planes, and returns how many places are in use.
func (t *tables) checkPlanes() (places int, err error) {
	for i := range t.planes {
		pages := 0
		for base, pg := range t.planes[i].dir {
			if pg == 0 {
				continue
			}
			pages++
			first, used := pg<<pageBits, 0
			if at := t.pageOf(first); int(at.plane) != i || int(at.base) != base {
				return 0, fmt.Errorf("residency: page %d is of plane %d, not %d", pg, at.plane, i)
			}
			for at := first; at < first+1<<pageBits; at++ {
				if t.slot(at).state() != dead {
					used++
				}
			}
			if used == 0 {
				return 0, fmt.Errorf("residency: page %d is empty and not free", pg)
			}
			places += used
		}
		if pages != t.planes[i].pages {
			return 0, fmt.Errorf("residency: a plane counts %d pages and has %d", t.planes[i].pages, pages)
		}
	}
	return places, nil
}

// Asked returns how many calls of Evictors were made: what came, was used, was needed by more or fewer, left, or was to
// leave.
func (x *Index) Asked() uint64 { return x.asked }
