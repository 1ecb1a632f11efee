package residency

import (
	"math"
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
// out again, which a policy that orders by time takes for new entries.
type restorer interface {
	Restore(h uint32, need int)
}

// returner is an Evictor to which an entry that was taken out for a moment comes back as what it was, whatever was
// removed meanwhile. To others it comes as a new one.
type returner interface {
	PutBack(h uint32, need int)
}

// sighted is an Evictor that sees the keys of newcomers: Admit for each key that was requested and is not
// in (false: it stays out), Newcomer when an entry is taken out to be inserted again. Victim and Insert are about that
// key.
type sighted interface {
	Admit(k ident.Key, need int) bool
	Newcomer(k ident.Key)
}

// apportioned is an Evictor that divides its tier among groups of entries and bounds what a group may take. It is
// sighted, and gets what every entry weighs: before each Insert, and when that changes. What is restored is what it
// was, in the group it was of, even if its key would belong to another one now.
type apportioned interface {
	sighted
	restorer
	Weigh(h uint32, k ident.Key, bytes int64)
	// Fits reports whether the group of the last key of Admit or Newcomer may take so many bytes more. When it does
	// not, the next Victim is of that group.
	Fits(bytes int64) bool
}

// Handle names an entry from Admit until it dies; after that it names another one, from the next Admit on.
type Handle uint32

// tier is what only the index knows of a tier; the rest is in sums.
type tier struct {
	ev      Evictor
	sighted sighted     // ev, if it is one
	shares  apportioned // ev, if it is one
	limit   int64       // of leaving; negative: none
}

// Index is what is in which tier. Owned by one goroutine.
type Index struct {
	tables
	tiers     [ident.NumForms]tier
	seen      [numSeen]*plane // asked for of late
	free      uint32          // dead entry to use next, + 1; 0: none
	freePages []uint32        // dead pages, the last one is used next
	numPages  uint32
	lastGen   uint32
	victims   []uint32 // entries: scratch of makeRoom
	found     []Handle // scratch of onPage
	calling   bool     // an evicted callback runs
	asked     uint64   // calls of Evictors
}

// New returns an empty index. Budgets are in bytes; that of Stored is ignored. Every other form needs an Evictor, which
// belongs to the index from now on.
func New(budgets [ident.NumForms]int64, ev [ident.NumForms]Evictor) *Index {
	x := &Index{}
	for i := range x.seen {
		x.seen[i] = nothing
	}
	x.addPage() // the page of nothing
	for f := ident.Encoded; f < ident.NumForms; f++ {
		if ev[f] == nil || budgets[f] < 0 {
			invariant.Violated("residency: tier %s needs an evictor and a budget of at least 0, got %d", f, budgets[f])
		}
		x.tiers[f] = tier{ev: ev[f], limit: -1}
		x.tiers[f].sighted, _ = ev[f].(sighted)
		x.tiers[f].shares, _ = ev[f].(apportioned)
		x.sums[f].budget = budgets[f]
	}
	return x
}

// Lookup finds a resident entry.
func (x *Index) Lookup(k ident.Key) (Handle, bool) {
	if x.sums[k.Form].entries == 0 {
		return 0, false
	}
	// All in one function: a Key that is passed on is copied, which costs as much as the rest.
	p := x.seen[(uint32(k.Recipe)+k.Instance+k.Group*5+uint32(k.Form)*3)%numSeen]
	if p.recipe != k.Recipe || p.instance != k.Instance || p.group != k.Group || p.form != k.Form {
		p = x.find(k)
	}
	at := p.place(k.Object)
	return Handle(at), x.slot(at).state() == resident
}

// Admit reserves bytes for k, evicting through the policy until they fit. All or nothing: if the policy refuses
// before enough room is free, nothing is evicted and the answer is false. The entry comes back unpinned and, unless it
// was leaving, not Ready.
//
// A key that is leaving is taken back with the bytes and the readiness it has; so a caller that gets an entry that is
// not Ready must know whether it is still being filled. A key that was dropped while pinned is refused until its
// last pin is gone. A key that is resident stays what it is, with the new need.
//
// evicted is called once for every entry that leaves. If Pins is 0 there, the caller frees the bytes at once and the
// handle dies when the callback returns. A callback may only read the index.
func (x *Index) Admit(k ident.Key, bytes int64, need int, evicted func(Handle, ident.Key)) (Handle, bool) {
	x.enter(k.Form)
	if bytes < 0 {
		invariant.Violated("residency: %d bytes for %s", bytes, k)
	}
	at, known := x.plane(k).place(k.Object), false
	switch s := *x.slot(at); s.state() {
	case resident:
		x.SetNeed(Handle(at), need)
		return Handle(at), true
	case dropped:
		return 0, false
	case leaving:
		bytes, known = x.entry(s.entry).bytes, true
	case dead:
	}
	t, sum := &x.tiers[k.Form], &x.sums[k.Form]
	if t.sighted != nil {
		x.asked++
		if !t.sighted.Admit(k, need) {
			return 0, false
		}
	}
	if !x.makeRoom(k.Form, bytes, bytes, need) {
		return 0, false
	}
	// The victims leave before the newcomer is in, so the policy sees the order in which it was asked, and the budget
	// holds inside the callbacks too. Its place is taken before, so that its handle is not one that the caller has just
	// been given.
	var n uint32
	if known {
		n = x.slot(at).entry
	} else {
		n, at = x.alloc(), x.put(k)
		*x.own(at) = slot{n, uint32(k.Form)<<formShift | uint32(dropped)}
	}
	x.evictAll(k.Form, evicted)
	x.own(at).become(resident)
	e := x.ownEntry(n)
	if known {
		sum.leaving -= bytes
		e.need = int32(need)
	} else {
		if x.lastGen++; x.lastGen == 0 {
			x.lastGen = 1 // 0 is dead
		}
		*e = entry{bytes: bytes, at: at, need: int32(need), gen: x.lastGen}
	}
	sum.used += bytes
	sum.entries++
	x.insert(t, n)
	return Handle(at), true
}

// Resize sets the real size of an entry, now that it is known, evicting others as Admit does. False: it does not fit,
// or it was dropped before; the bytes are not to be kept. Then the entry is out of the index: when it is not pinned its
// handle is dead and the caller frees what it stored (evicted is not called for it), else it dies with its last pin.
// An entry that is leaving is resized without evicting anything.
func (x *Index) Resize(h Handle, bytes int64, evicted func(Handle, ident.Key)) bool {
	s := *x.live(h)
	f := s.form()
	x.enter(f)
	if bytes < 0 {
		invariant.Violated("residency: %d bytes for %s", bytes, x.Key(h))
	}
	t, sum := &x.tiers[f], &x.sums[f]
	e := x.ownEntry(s.entry)
	more := bytes - e.bytes
	switch s.state() {
	case resident:
		if sum.used+more > sum.budget || t.shares != nil && more > 0 {
			// It must not be chosen to make room for itself.
			x.asked++
			t.ev.Remove(s.entry)
			if t.sighted != nil {
				t.sighted.Newcomer(x.Key(h))
			}
			if bytes > sum.budget || !x.makeRoom(f, more, bytes, int(e.need)) {
				x.out(h, dropped)
				return false
			}
			x.evictAll(f, evicted)
			e = x.ownEntry(s.entry) // a callback may have taken a snapshot
			x.putBack(t, s.entry)
		}
		sum.used += more
		if t.shares != nil {
			t.shares.Weigh(s.entry, x.Key(h), bytes)
		}
	case leaving:
		if more > 0 && t.limit >= 0 && sum.leaving+more > t.limit {
			x.own(uint32(h)).become(dropped)
			return false
		}
		sum.leaving += more
	default:
		return false
	}
	e.bytes = bytes
	return true
}

// Pin keeps the bytes of an entry until the matching Unpin, whatever happens to the entry.
func (x *Index) Pin(h Handle) {
	s := x.own(uint32(h))
	if s.state() == dead {
		x.live(h)
	}
	s.bits += onePin
}

// Unpin gives one pin back. free: the entry was leaving and this was its last pin, so the caller frees the bytes; the
// handle is dead. Key still works until the next Admit.
func (x *Index) Unpin(h Handle) (free bool) {
	s := x.alive(h)
	if s.bits < onePin || x.calling {
		x.enter(s.form())
		invariant.Violated("residency: %s is unpinned more often than pinned", x.Key(h))
	}
	s.bits -= onePin
	if s.bits >= onePin || s.state() == resident {
		return false
	}
	x.sums[s.form()].leaving -= x.entry(s.entry).bytes
	x.kill(h)
	return true
}

// Drop removes an entry now: its bytes are lost, wrong or no longer wanted. free: it was not pinned, so the caller
// frees the bytes and the handle is dead; otherwise it dies with its last pin.
func (x *Index) Drop(h Handle) (free bool) {
	s := *x.live(h)
	x.enter(s.form())
	if s.state() != resident {
		x.own(uint32(h)).become(dropped) // never to be taken back
		return false
	}
	x.asked++
	x.tiers[s.form()].ev.Remove(s.entry)
	return x.out(h, dropped)
}

// SetNeed sets how many active jobs still need the entry.
func (x *Index) SetNeed(h Handle, need int) {
	s := *x.live(h)
	x.enter(s.form())
	if x.entry(s.entry).need == int32(need) {
		return
	}
	x.ownEntry(s.entry).need = int32(need)
	if s.state() == resident {
		x.asked++
		x.tiers[s.form()].ev.Update(s.entry, need)
	}
}

// Hit counts one use of the entry and passes it to the policy.
func (x *Index) Hit(h Handle) {
	s := *x.live(h)
	x.enter(s.form())
	x.ownEntry(s.entry).usedBy++
	if s.state() == resident {
		x.asked++
		x.tiers[s.form()].ev.Hit(s.entry)
	}
}

// SetBudget changes a tier's budget, evicting the coldest entries until the rest fits.
func (x *Index) SetBudget(f ident.Form, bytes int64, evicted func(Handle, ident.Key)) {
	x.Shrink(f, bytes, math.MaxInt, evicted)
}

// Shrink is SetBudget in short steps: it evicts at most entries of them. While that is not enough, the budget is what
// is used. It returns done when the budget is bytes; until then, call it again, and report Budget after each step.
func (x *Index) Shrink(f ident.Form, bytes int64, entries int, evicted func(Handle, ident.Key)) (done bool) {
	x.enter(f)
	if bytes < 0 {
		invariant.Violated("residency: budget %d of tier %s", bytes, f)
	}
	t, sum := &x.tiers[f], &x.sums[f]
	x.victims = x.victims[:0]
	used := sum.used
	for ; used > bytes && len(x.victims) < entries; used -= x.entry(x.victims[len(x.victims)-1]).bytes {
		x.asked++
		v, ok := t.ev.Coldest()
		if !ok {
			invariant.Violated("residency: tier %s holds %d bytes and its policy knows no entry", f, used)
		}
		x.asked++
		t.ev.Remove(v)
		x.victims = append(x.victims, v)
	}
	sum.budget = max(bytes, used)
	x.evictAll(f, evicted)
	return used <= bytes
}

// SetLeavingLimit bounds the bytes that may be leaving because of an Admit or a Resize: one that would need more of
// them is refused. Negative, as at the start: no bound. What Drop and SetBudget do is not refused, and can exceed it.
func (x *Index) SetLeavingLimit(f ident.Form, bytes int64) {
	x.enter(f)
	x.tiers[f].limit = bytes
}

// insert puts a resident entry into the Evictor.
func (x *Index) insert(t *tier, n uint32) {
	e := x.entry(n)
	if t.shares != nil {
		t.shares.Weigh(n, x.key(e.at), e.bytes)
	}
	x.asked++
	t.ev.Insert(n, int(e.need))
}

// putBack puts an entry that was taken out for a moment into the Evictor again. That it had to be taken out may be due
// to entries of a need below 0, of which nothing else must show.
func (x *Index) putBack(t *tier, n uint32) {
	if r, ok := t.ev.(returner); ok {
		x.asked++
		r.PutBack(n, int(x.entry(n).need))
		return
	}
	x.insert(t, n)
}

// makeRoom takes victims out of the Evictor into x.victims until want more bytes fit, and whole ones into the share of
// the newcomer's group, or refuses and leaves everything as it was.
func (x *Index) makeRoom(f ident.Form, want, whole int64, need int) bool {
	t, sum := &x.tiers[f], &x.sums[f]
	x.victims = x.victims[:0]
	if want > sum.budget {
		return false
	}
	room, pinned := sum.budget-sum.used, int64(0)
	for room < want || t.shares != nil && !t.shares.Fits(whole) {
		x.asked++
		v, ok := t.ev.Victim(need)
		if ok {
			e := x.entry(v)
			x.asked++
			t.ev.Remove(v)
			x.victims = append(x.victims, v)
			room += e.bytes
			if x.slot(e.at).pins() > 0 {
				pinned += e.bytes
				ok = t.limit < 0 || sum.leaving+pinned <= t.limit
			}
		}
		if !ok {
			r, exact := t.ev.(restorer)
			for _, v := range slices.Backward(x.victims) {
				x.asked++
				if exact {
					r.Restore(v, int(x.entry(v).need))
				} else {
					t.ev.Insert(v, int(x.entry(v).need))
				}
			}
			x.victims = x.victims[:0]
			return false
		}
	}
	return true
}

// evictAll makes the entries of x.victims leave; they are out of the Evictor already.
func (x *Index) evictAll(f ident.Form, evicted func(Handle, ident.Key)) {
	for _, v := range x.victims {
		h := Handle(x.entry(v).at)
		if evicted != nil {
			x.calling = true
			evicted(h, x.key(uint32(h)))
			x.calling = false
		}
		x.sums[f].evictions++
		x.out(h, leaving)
	}
	x.victims = x.victims[:0]
}

// out ends the residency of h, which is out of the Evictor already: it dies, or is in state as until its last pin is
// gone.
func (x *Index) out(h Handle, as state) (free bool) {
	s := x.own(uint32(h))
	bytes, sum := x.entry(s.entry).bytes, &x.sums[s.form()]
	sum.used -= bytes
	sum.entries--
	if s.pins() > 0 {
		sum.leaving += bytes
		s.become(as)
		return false
	}
	x.kill(h)
	return true
}

// kill ends an entry. Its key stays readable until the next Admit.
func (x *Index) kill(h Handle) {
	n := x.slot(uint32(h)).entry
	*x.ownEntry(n) = entry{at: x.free}
	x.free = n + 1
	x.del(uint32(h))
}

func (x *Index) alloc() uint32 {
	if x.free != 0 {
		n := x.free - 1
		x.free = x.entry(n).at
		return n
	}
	if x.entries&(1<<chunkBits-1) == 0 {
		x.chunks = append(x.chunks, chunkRef{chunk: new(chunk)})
	}
	x.entries++
	return x.entries - 1
}

// live is the slot of a handle, to be read.
func (t *tables) live(h Handle) *slot {
	s := t.slot(uint32(h))
	if s.state() == dead {
		invariant.Violated("residency: handle %d is dead", h)
	}
	return s
}

// alive is the slot of a handle, to be written.
func (x *Index) alive(h Handle) *slot {
	x.live(h)
	return x.own(uint32(h))
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
