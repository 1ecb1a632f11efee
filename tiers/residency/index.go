package residency

import (
	"slices"

	"larder/internal/ident"
	"larder/internal/invariant"
)

// Evictor orders the entries of one tier; cachepolicy.Evictor satisfies it, and says more. All handles are the
// index's.
type Evictor interface {
	Insert(h uint32, need int)
	Update(h uint32, need int)
	Hit(h uint32)
	Remove(h uint32)
	Victim(need int) (h uint32, ok bool) // false: do not admit a newcomer of that need
	Coldest() (h uint32, ok bool)
}

// restorer is an Evictor that can undo a Remove exactly. Without it a refused Admit inserts the entries it had taken
// out anew, which a policy that orders by time takes for new entries.
type restorer interface {
	Restore(h uint32, need int)
}

// sighted is an Evictor that is told the keys of what asks to come in: Admit for each key that was asked for and is not in
// (false: it stays out), Newcomer when an entry is taken out to be inserted anew. Victim and Insert are about that key.
type sighted interface {
	Admit(k ident.Key, need int) bool
	Newcomer(k ident.Key)
}

// Handle names an entry from Admit until it dies; after that it names another one, from the next Admit on.
type Handle uint32

type state uint8

const (
	dead     state = iota // in the free list
	resident              // admitted
	leaving               // evicted while pinned; Admit can take it back
	dropped               // removed while pinned, or never kept: its bytes are not to be used again
)

type entry struct {
	key   ident.Key
	bytes int64
	need  int32
	pins  uint32
	state state
	ready bool
}

type tier struct {
	ev        Evictor
	sighted   sighted // ev, if it is one
	budget    int64
	used      int64  // bytes of resident entries
	leaving   int64  // bytes of leaving and dropped entries
	limit     int64  // of leaving; negative: none
	entries   int    // resident
	evictions uint64 // entries that left for another or for a smaller budget
}

// Index is what is in which tier. Owned by one goroutine.
type Index struct {
	tiers   [ident.NumForms]tier
	entries []entry
	free    []Handle // dead entries, the last one is used next
	table   table
	victims []Handle // scratch of makeRoom
	calling bool     // an evicted callback runs
}

// New returns an empty index. Budgets are in bytes; that of Stored is ignored. Every other form needs an Evictor, which
// belongs to the index from now on.
func New(budgets [ident.NumForms]int64, ev [ident.NumForms]Evictor) *Index {
	x := &Index{}
	for f := ident.Encoded; f < ident.NumForms; f++ {
		if ev[f] == nil || budgets[f] < 0 {
			invariant.Violated("residency: tier %s needs an evictor and a budget of at least 0, got %d", f, budgets[f])
		}
		x.tiers[f] = tier{ev: ev[f], budget: budgets[f], limit: -1}
		x.tiers[f].sighted, _ = ev[f].(sighted)
	}
	return x
}

// Lookup finds a resident entry.
func (x *Index) Lookup(k ident.Key) (Handle, bool) {
	h, ok := x.table.get(k)
	if !ok || x.entries[h].state != resident {
		return 0, false
	}
	return h, true
}

// Admit reserves bytes for k, evicting through the policy until they fit. All or nothing: if the policy refuses
// before enough room is free, nothing is evicted and the answer is false. The entry comes back unpinned and, unless it
// was leaving, not Ready.
//
// A key that is leaving is taken back with the bytes and the readiness it has; so a caller that gets an entry that is
// not Ready must know whether somebody is still filling it. A key that was dropped while pinned is refused until its
// last pin is gone. A key that is resident stays what it is, with the new need.
//
// evicted is called once for every entry that leaves. If Pins is 0 there, the caller frees the bytes at once and the
// handle dies when the callback returns. A callback may only read the index.
func (x *Index) Admit(k ident.Key, bytes int64, need int, evicted func(Handle, ident.Key)) (Handle, bool) {
	x.enter(k.Form)
	if bytes < 0 {
		invariant.Violated("residency: %d bytes for %s", bytes, k)
	}
	t := &x.tiers[k.Form]
	h, known := x.table.get(k)
	if known {
		switch x.entries[h].state {
		case resident:
			x.SetNeed(h, need)
			return h, true
		case dropped:
			return 0, false
		case leaving:
			bytes = x.entries[h].bytes
		case dead:
			invariant.Violated("residency: the table holds dead entry %d for %s", h, k)
		}
	}
	if t.sighted != nil && !t.sighted.Admit(k, need) || !x.makeRoom(t, bytes, need) {
		return 0, false
	}
	// The victims leave before the newcomer is in, so the policy sees the order in which it was asked, the budget holds
	// inside the callbacks too, and the newcomer's handle is not one that the caller has just been told of.
	if !known {
		h = x.alloc()
	}
	x.evictAll(t, evicted)
	if known {
		t.leaving -= bytes
		x.entries[h].state, x.entries[h].need = resident, int32(need)
	} else {
		x.entries[h] = entry{key: k, bytes: bytes, need: int32(need), state: resident}
		x.table.put(k, h)
	}
	t.used += bytes
	t.entries++
	t.ev.Insert(uint32(h), need)
	return h, true
}

// Resize sets the real size of an entry, now that it is known, evicting others as Admit does. False: it does not fit,
// or it was dropped before; the bytes are not to be kept. Then the entry is out of the index: when it is not pinned its
// handle is dead and the caller frees what it stored (evicted is not called for it), else it dies with its last pin.
// An entry that is leaving is resized without evicting anything.
func (x *Index) Resize(h Handle, bytes int64, evicted func(Handle, ident.Key)) bool {
	e := x.live(h)
	x.enter(e.key.Form)
	if bytes < 0 {
		invariant.Violated("residency: %d bytes for %s", bytes, e.key)
	}
	t := &x.tiers[e.key.Form]
	more := bytes - e.bytes
	switch e.state {
	case resident:
		if t.used+more > t.budget {
			// It must not be chosen to make room for itself.
			t.ev.Remove(uint32(h))
			if t.sighted != nil {
				t.sighted.Newcomer(e.key)
			}
			if bytes > t.budget || !x.makeRoom(t, more, int(e.need)) {
				x.out(h, dropped)
				return false
			}
			x.evictAll(t, evicted)
			t.ev.Insert(uint32(h), int(e.need))
		}
		t.used += more
	case leaving:
		if more > 0 && t.limit >= 0 && t.leaving+more > t.limit {
			e.state = dropped
			return false
		}
		t.leaving += more
	default:
		return false
	}
	e.bytes = bytes
	return true
}

// Pin keeps the bytes of an entry until the matching Unpin, whatever happens to the entry.
func (x *Index) Pin(h Handle) { x.live(h).pins++ }

// Unpin gives one pin back. free: the entry was leaving and this was its last pin, so the caller frees the bytes; the
// handle is dead. Key still works until the next Admit.
func (x *Index) Unpin(h Handle) (free bool) {
	e := x.live(h)
	x.enter(e.key.Form)
	if e.pins == 0 {
		invariant.Violated("residency: %s is unpinned more often than pinned", e.key)
	}
	e.pins--
	if e.pins > 0 || e.state == resident {
		return false
	}
	x.tiers[e.key.Form].leaving -= e.bytes
	x.kill(h)
	return true
}

// Drop removes an entry now: its bytes are lost, wrong or no longer wanted. free: it was not pinned, so the caller frees
// the bytes and the handle is dead; otherwise it dies with its last pin.
func (x *Index) Drop(h Handle) (free bool) {
	e := x.live(h)
	x.enter(e.key.Form)
	if e.state != resident {
		e.state = dropped // never to be taken back
		return false
	}
	x.tiers[e.key.Form].ev.Remove(uint32(h))
	return x.out(h, dropped)
}

// SetNeed tells how many active jobs still need the entry.
func (x *Index) SetNeed(h Handle, need int) {
	e := x.live(h)
	x.enter(e.key.Form)
	if e.need == int32(need) {
		return
	}
	e.need = int32(need)
	if e.state == resident {
		x.tiers[e.key.Form].ev.Update(uint32(h), need)
	}
}

// Hit tells the policy that the entry was used once.
func (x *Index) Hit(h Handle) {
	e := x.live(h)
	x.enter(e.key.Form)
	if e.state == resident {
		x.tiers[e.key.Form].ev.Hit(uint32(h))
	}
}

// SetBudget changes a tier's budget, evicting the coldest entries until the rest fits.
func (x *Index) SetBudget(f ident.Form, bytes int64, evicted func(Handle, ident.Key)) {
	x.enter(f)
	if bytes < 0 {
		invariant.Violated("residency: budget %d of tier %s", bytes, f)
	}
	t := &x.tiers[f]
	t.budget = bytes
	x.victims = x.victims[:0]
	for used := t.used; used > t.budget; {
		v, ok := t.ev.Coldest()
		if !ok {
			invariant.Violated("residency: tier %s holds %d bytes and its policy knows no entry", f, used)
		}
		t.ev.Remove(v)
		x.victims = append(x.victims, Handle(v))
		used -= x.entries[v].bytes
	}
	x.evictAll(t, evicted)
}

// SetLeavingLimit bounds the bytes that may be leaving because of an Admit or a Resize: one that would need more of
// them is refused. Negative, as at the start: no bound. What Drop and SetBudget do is not refused, and can exceed it.
func (x *Index) SetLeavingLimit(f ident.Form, bytes int64) {
	x.enter(f)
	x.tiers[f].limit = bytes
}

// makeRoom takes victims out of the Evictor into x.victims until want more bytes fit, or refuses and leaves everything
// as it was.
func (x *Index) makeRoom(t *tier, want int64, need int) bool {
	x.victims = x.victims[:0]
	if want > t.budget {
		return false
	}
	room, pinned := t.budget-t.used, int64(0)
	for room < want {
		v, ok := t.ev.Victim(need)
		if ok {
			e := &x.entries[v]
			t.ev.Remove(v)
			x.victims = append(x.victims, Handle(v))
			room += e.bytes
			if e.pins > 0 {
				pinned += e.bytes
				ok = t.limit < 0 || t.leaving+pinned <= t.limit
			}
		}
		if !ok {
			r, exact := t.ev.(restorer)
			for _, h := range slices.Backward(x.victims) {
				if exact {
					r.Restore(uint32(h), int(x.entries[h].need))
				} else {
					t.ev.Insert(uint32(h), int(x.entries[h].need))
				}
			}
			x.victims = x.victims[:0]
			return false
		}
	}
	return true
}

// evictAll makes the entries of x.victims leave; they are out of the Evictor already.
func (x *Index) evictAll(t *tier, evicted func(Handle, ident.Key)) {
	for _, h := range x.victims {
		e := &x.entries[h]
		if evicted != nil {
			x.calling = true
			evicted(h, e.key)
			x.calling = false
		}
		t.evictions++
		x.out(h, leaving)
	}
	x.victims = x.victims[:0]
}

// out ends the residency of h, which is out of the Evictor already: it dies, or is in state as until its last pin is
// gone.
func (x *Index) out(h Handle, as state) (free bool) {
	e := &x.entries[h]
	t := &x.tiers[e.key.Form]
	t.used -= e.bytes
	t.entries--
	if e.pins > 0 {
		t.leaving += e.bytes
		e.state = as
		return false
	}
	x.kill(h)
	return true
}

// kill ends an entry. Its key stays readable until the handle is used again.
func (x *Index) kill(h Handle) {
	e := &x.entries[h]
	x.table.del(e.key)
	e.state, e.ready = dead, false
	x.free = append(x.free, h)
}

func (x *Index) alloc() Handle {
	if n := len(x.free); n > 0 {
		h := x.free[n-1]
		x.free = x.free[:n-1]
		return h
	}
	x.entries = append(x.entries, entry{})
	return Handle(len(x.entries) - 1)
}

func (x *Index) live(h Handle) *entry {
	if int(h) >= len(x.entries) || x.entries[h].state == dead {
		invariant.Violated("residency: handle %d is dead", h)
	}
	return &x.entries[h]
}

// enter guards what changes the index.
func (x *Index) enter(f ident.Form) {
	if f == ident.Stored || f >= ident.NumForms {
		invariant.Violated("residency: there is no tier for form %s", f)
	}
	if x.calling {
		invariant.Violated("residency: an evicted callback changes the index")
	}
}
