package cachepolicy

import (
	"larder/internal/invariant"
	"larder/internal/xrand"
)

// needEvictor evicts the entry that the fewest active jobs still need. Among equals chance decides: a tie number is
// drawn when an entry is inserted, and whenever its need changes another one follows from it. So the ties of entries
// whose needs change do not depend on which of them changes first. A newcomer also replaces an entry of equal need
// (measured slightly better than requiring more: 1.247 against 1.252 of the bound), but only if some job needs the
// newcomer: entries without need stay until their place is needed.
//
// A need below 0 is of a neutral entry, which must leave no trace: it takes free room and displaces nothing, gives way
// to every newcomer that is not neutral, and draws its ties from a generator of its own. So what the other entries do
// is what they would do without it.
//
// A tie number lives as long as the need does, so entries that have stayed have higher ties than the average newcomer.
// With needs that never change, the policy tends towards never evicting, which is optimal for shuffled epochs.
//
// refcount is Joader's RefCnt (Xie et al., NeurIPS 2022). Its counts follow the jobs; those of the released code are
// frozen when an entry is inserted. The order of victims is the same as of need, but any newcomer that some job needs
// replaces the least needed entry, even one that is needed more.
type needEvictor struct {
	name  string
	least int  // newcomers of a lower need displace nothing
	equal bool // a newcomer displaces only what is needed as little as itself
	r     *xrand.Rand
	apart *xrand.Rand // for ties of neutral entries: they must not move those of the others
	heap  []needItem  // from the place root on: the first one leaves first, and none before the one above it
	slots []needSlot  // by handle
}

// The heap has four children a node, in one cache line: the children of place i are 4(i-2) to 4(i-2)+3, its parent is
// i/4+2. Needs change at nearly every pick, so the cost of a change decides: an entry knows its place, and few entries
// move, because ties are drawn. (In a simulation of eight jobs on 1.28 M samples a B-tree took 17 % of the time, with a
// removal and an insertion for each change; this heap takes 4 %.)
const root = 3

type needItem struct {
	tie  uint64
	need int32
	h    uint32
}

// before is the order in which entries leave.
func (a *needItem) before(b *needItem) bool {
	if a.need != b.need {
		return a.need < b.need
	}
	if a.tie != b.tie {
		return a.tie < b.tie
	}
	return a.h < b.h // once in 2^64; only makes the order total
}

// needSlot keeps its tie after a Remove, for Restore.
type needSlot struct {
	tie  uint64
	need int32
	at   uint32 // its place in the heap; 0 = it is out
}

func newNeed(r *xrand.Rand) *needEvictor { return newByNeed("need", 1, true, r) }

func newRefcount(r *xrand.Rand) *needEvictor { return newByNeed("refcount", 0, false, r) }

func newByNeed(name string, least int, equal bool, r *xrand.Rand) *needEvictor {
	return &needEvictor{name: name, least: least, equal: equal, r: r, apart: newApart(), heap: make([]needItem, root)}
}

// newApart has one seed for all: which of the neutral entries leaves first concerns no other entry, and a seed drawn
// from the policy's generator would move what that draws next.
func newApart() *xrand.Rand { return xrand.New(0x6e65757472616c) }

func (e *needEvictor) Name() string { return e.name }
func (e *needEvictor) Len() int     { return len(e.heap) - root }

func (e *needEvictor) Insert(h uint32, need int) { e.put(h, int32(need), e.tie(need)) }

func (e *needEvictor) Restore(h uint32, need int) {
	if int(h) >= len(e.slots) {
		invariant.Violated("%s: Restore(%d) of an entry that never was in", e.name, h)
	}
	e.put(h, int32(need), e.slots[h].tie)
}

// PutBack is Restore at any time, for an entry that grows: it keeps its tie.
func (e *needEvictor) PutBack(h uint32, need int) { e.Restore(h, need) }

func (e *needEvictor) put(h uint32, need int32, tie uint64) {
	for int(h) >= len(e.slots) {
		e.slots = append(e.slots, needSlot{})
	}
	if e.slots[h].at != 0 {
		invariant.Violated("%s: entry %d is in already", e.name, h)
	}
	e.slots[h] = needSlot{tie: tie, need: need}
	e.heap = append(e.heap, needItem{})
	e.rise(len(e.heap)-1, needItem{tie: tie, need: need, h: h})
}

func (e *needEvictor) Update(h uint32, need int) {
	if s := e.slot(h); s.need != int32(need) {
		if s.need < 0 || need < 0 {
			s.tie = e.tie(need) // it ceases to be neutral, as if it were inserted now; or becomes so
		} else {
			s.tie = nextTie(s.tie)
		}
		s.need = int32(need)
		e.fit(int(s.at), needItem{tie: s.tie, need: s.need, h: h})
	}
}

// nextTie follows a tie when the need of its entry changes.
func nextTie(tie uint64) uint64 { return xrand.Mix(tie + 0x9e3779b97f4a7c15) }

// tie draws the tie of an entry that comes.
func (e *needEvictor) tie(need int) uint64 {
	if need < 0 {
		return e.apart.Uint64()
	}
	return e.r.Uint64()
}

func (e *needEvictor) Hit(h uint32) { e.slot(h) }

func (e *needEvictor) Remove(h uint32) {
	s := e.slot(h)
	at, last := int(s.at), len(e.heap)-1
	if e.heap[at].h != h {
		invariant.Violated("%s: entry %d is not where its need %d puts it", e.name, h, s.need)
	}
	s.at = 0
	it := e.heap[last]
	e.heap = e.heap[:last]
	if at < last {
		e.fit(at, it)
	}
}

// fit puts an item in a place whose own has left, or where it belongs instead.
func (e *needEvictor) fit(i int, it needItem) {
	if i > root && it.before(&e.heap[i/4+2]) {
		e.rise(i, it)
	} else {
		e.sink(i, it)
	}
}

// rise puts an item in a place, or in one above it.
func (e *needEvictor) rise(i int, it needItem) {
	for i > root {
		up := i/4 + 2
		if !it.before(&e.heap[up]) {
			break
		}
		e.set(i, e.heap[up])
		i = up
	}
	e.set(i, it)
}

// sink puts an item in a place, or in one below it.
func (e *needEvictor) sink(i int, it needItem) {
	for {
		first := 4 * (i - 2)
		if first >= len(e.heap) {
			break
		}
		down := first
		for k := first + 1; k < min(first+4, len(e.heap)); k++ {
			if e.heap[k].before(&e.heap[down]) {
				down = k
			}
		}
		if !e.heap[down].before(&it) {
			break
		}
		e.set(i, e.heap[down])
		i = down
	}
	e.set(i, it)
}

func (e *needEvictor) set(i int, it needItem) {
	e.heap[i] = it
	e.slots[it.h].at = uint32(i)
}

func (e *needEvictor) slot(h uint32) *needSlot {
	if int(h) >= len(e.slots) || e.slots[h].at == 0 {
		invariant.Violated("%s: entry %d is not in", e.name, h)
	}
	return &e.slots[h]
}

func (e *needEvictor) Victim(need int) (uint32, bool) {
	h, ok := e.Coldest()
	if !ok || need < 0 {
		return h, false
	}
	least := int(e.heap[root].need)
	return h, least < 0 || need >= e.least && (!e.equal || least <= need)
}

func (e *needEvictor) Coldest() (uint32, bool) {
	if e.Len() == 0 {
		return 0, false
	}
	return e.heap[root].h, true
}
