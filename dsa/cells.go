package dsa

import (
	"fmt"
	"slices"

	"larder/internal/bits"
	"larder/internal/ident"
)

// cells is the partition of all objects into static cells: sets of objects with the same membership in every subset of
// a visible job that was registered since the cells were last forgotten. A join splits cells; a leave never merges
// them, because what the job left in the caches would tell objects of a merged cell apart.
//
// Invariant: outside of a split every object with a cell is in the members of exactly that cell, and the subset of
// every job is a union of the cells that name it in live.
type cells struct {
	objects *objectTable
	jobs    *roster

	list    []cell             // list[0] is what is in no subset
	members table[uint32]      // objects by cell
	strata  [][]ident.ObjectID // of Stratum, in the order of the calls

	// The split under way, see split.
	size     []uint32 // by cell: how many of its objects the subset holds
	touched  []uint32 // the cells that hold any
	child    []uint32 // by cell: where its objects of the subset go
	divided  []uint32 // the cells that hold others too
	move     membersMove
	scanSize int // cells up to this size are looked through at each draw; smallCell but in tests
}

// cell is one static cell. Its objects are members[lo:lo+size]; where they are consecutive ids, base is the first, so
// that a draw need not read members.
type cell struct {
	lo, size uint32
	base     uint32
	live     bits.JobSet // joined jobs whose subset holds it
}

// maxIdleCells is how many cells an idle sampler may keep for the sake of what is still in the caches. Beyond that,
// what is left there is made neutral, and the preference for it is lost.
const maxIdleCells = 4096

// of returns the cell of x.
func (cs *cells) of(x uint32) *cell { return &cs.list[cs.objects.at(x).cell] }

// member returns object q of the cell, in no particular order.
func (cs *cells) member(c *cell, q uint32) uint32 {
	if c.base != absent {
		return c.base + q
	}
	return *cs.members.at(c.lo + q)
}

// mayForget reports whether the job that joins may drop all cells before it adds its own: no other visible job is
// joined, and no object is visible in the caches, which could tell the old cells apart. With too many cells, passForget
// hides what is visible.
func (cs *cells) mayForget(visible int) bool {
	alone := (cs.jobs.live &^ cs.jobs.unseen).Len() == 1
	return alone && len(cs.list) > 1+len(cs.strata) && (visible == 0 || len(cs.list) > maxIdleCells)
}

// forget empties all cells; the caller has reset the cell of every object.
func (cs *cells) forget() {
	cs.list = cs.list[:1]
	cs.members.empty()
}

// forgetJob removes the job in that slot from all cells. They stay as they are.
func (cs *cells) forgetJob(slot uint8) {
	for c := range cs.list {
		cs.list[c].live = cs.list[c].live.Without(slot)
	}
}

// beginCount prepares count.
func (cs *cells) beginCount() {
	cs.size = resize(cs.size, len(cs.list))
	clear(cs.size)
	cs.touched = cs.touched[:0]
}

// count counts how much of each cell a part of a subset holds.
func (cs *cells) count(part []ident.ObjectID) {
	for _, x := range part {
		c := cs.objects.at(uint32(x)).cell
		if cs.size[c] == 0 {
			cs.touched = append(cs.touched, c)
		}
		cs.size[c]++
	}
}

// split makes the cells that a subset splits off: one for each cell of which it holds a part. assign then gives the
// objects their new cell, and moveMembers sorts the members. What of the subset was in no cell becomes one.
func (cs *cells) split(j *job) {
	cs.child = resize(cs.child, len(cs.list))
	cs.move = membersMove{}
	cs.divided = cs.divided[:0]
	for _, c := range cs.touched {
		n := cs.size[c]
		d := c
		switch {
		case c == 0:
			d = uint32(len(cs.list))
			cs.list = append(cs.list, cell{lo: uint32(cs.members.n), size: n, base: absent})
			cs.move.fresh, cs.move.next = d, uint32(cs.members.n)
		case n < cs.list[c].size:
			d = uint32(len(cs.list))
			cs.divided = append(cs.divided, c)
			cs.move.n += int(cs.list[c].size)
			cs.list[c].size -= n
			cs.list = append(cs.list, cell{lo: cs.list[c].lo + cs.list[c].size, size: n, base: absent, live: cs.list[c].live})
		default:
		}
		cs.child[c] = d
		cs.addOverlap(j, &cs.list[d], n)
		if j.phase != jobStratum {
			cs.list[d].live = cs.list[d].live.With(j.slot)
		}
	}
}

// addOverlap counts n objects of a cell into what j shares with the jobs that hold the cell.
func (cs *cells) addOverlap(j *job, c *cell, n uint32) {
	for m := c.live; m != 0; m &= m - 1 {
		k := cs.jobs.slot[first(m)]
		j.peers.neighbours = j.peers.neighbours.With(k.slot)
		if j.phase == jobStratum {
			continue
		}
		j.peers.overlap[k.slot] += n
		k.peers.overlap[j.slot] += n
		k.peers.neighbours = k.peers.neighbours.With(j.slot)
	}
}

// assign moves a part of the subset into the cells that split made.
func (cs *cells) assign(part []ident.ObjectID) {
	for _, x := range part {
		c := &cs.objects.at(uint32(x)).cell
		if *c == 0 {
			cs.addMember(uint32(x))
		}
		*c = cs.child[*c]
	}
}

// membersMove is a walk through the members of divided cells: in each, those of the new cell go to the end.
type membersMove struct {
	n     int    // members to walk through
	cell  int    // index in divided
	at    uint32 // members of that cell that are done
	keep  uint32 // of them, those that stay
	stay  idRange
	leave idRange
	fresh uint32 // the cell of what was in none, if any
	next  uint32 // where its next member goes
	all   idRange
}

// idRange is the range of some ids.
type idRange struct{ lo, hi, n uint32 }

func (r *idRange) add(x uint32) {
	if r.n == 0 || x < r.lo {
		r.lo = x
	}
	r.hi = max(r.hi, x)
	r.n++
}

// base returns the first of ids that are consecutive, else absent.
func (r *idRange) base() uint32 {
	if r.n > 0 && r.hi-r.lo == r.n-1 {
		return r.lo
	}
	return absent
}

// addMember lists a member of the cell made of what was in none.
func (cs *cells) addMember(x uint32) {
	m := &cs.move
	cs.members.extend(int(m.next) + 1)
	*cs.members.at(m.next) = x
	m.next++
	m.all.add(x)
	if m.all.n == cs.list[m.fresh].size {
		cs.list[m.fresh].base = m.all.base()
	}
}

// moveMembers takes the walk on by n members.
func (cs *cells) moveMembers(n int) {
	m := &cs.move
	for n > 0 {
		c := cs.divided[m.cell]
		d := cs.child[c]
		lo, size := cs.list[c].lo, cs.list[c].size+cs.list[d].size
		for ; n > 0 && m.at < size; n-- {
			x := *cs.members.at(lo + m.at)
			if cs.objects.at(x).cell == d {
				m.leave.add(x)
			} else {
				y := cs.members.at(lo + m.keep)
				*cs.members.at(lo + m.at), *y = *y, x
				m.stay.add(x)
				m.keep++
			}
			m.at++
		}
		if m.at == size {
			cs.list[c].base, cs.list[d].base = m.stay.base(), m.leave.base()
			m.cell, m.at, m.keep, m.stay, m.leave = m.cell+1, 0, 0, idRange{}, idRange{}
		}
	}
}

// Check verifies that the cells partition the objects that were ever in a subset, and name the jobs that hold them.
// REQUIRES: no pass is under way, cells may be half split then.
func (cs *cells) Check() error {
	size := make([]uint32, len(cs.list))
	for x := range uint32(cs.objects.n) {
		c := cs.objects.at(x).cell
		if int(c) >= len(cs.list) {
			return fmt.Errorf("object %d is in cell %d of %d", x, c, len(cs.list))
		}
		size[c]++
	}
	if cs.list[0].live != 0 {
		return fmt.Errorf("cell 0 is in the subset of %x", cs.list[0].live)
	}
	held := make([]int, MaxJobs)
	seen := make([]bool, cs.objects.n)
	for i := 1; i < len(cs.list); i++ {
		c := &cs.list[i]
		if size[i] != c.size || size[i] == 0 {
			return fmt.Errorf("cell %d holds %d objects, counted %d", i, size[i], c.size)
		}
		for q := range c.size {
			x, y := *cs.members.at(c.lo + q), cs.member(c, q)
			if a, b := cs.objects.at(x).cell, cs.objects.at(y).cell; int(a) != i || int(b) != i || seen[x] {
				return fmt.Errorf("member %d of cell %d is object %d, or %d: they are in cells %d and %d, seen before %v",
					q, i, x, y, a, b, seen[x])
			}
			seen[x] = true
		}
		for m := c.live; m != 0; m &= m - 1 {
			held[first(m)] += int(size[i])
		}
	}
	return cs.checkSubsets(held)
}

// checkSubsets verifies that the subset of each job is the union of its cells, which hold so many objects by slot.
func (cs *cells) checkSubsets(held []int) error {
	for n, j := range cs.jobs.slot {
		want := 0
		if j != nil && j.visible() {
			if j.passes.err != nil {
				continue
			}
			want = len(j.subset)
			i := slices.IndexFunc(j.subset, func(x ident.ObjectID) bool { return !cs.of(uint32(x)).live.Has(j.slot) })
			if i >= 0 {
				return fmt.Errorf("object %d of job %d lies in a cell without it", j.subset[i], j.id)
			}
		}
		if held[n] != want {
			return fmt.Errorf("the cells of slot %d hold %d objects, its subset %d", n, held[n], want)
		}
	}
	return nil
}

// resize returns a slice of length n, with the memory of v if it suffices. The contents are undefined.
func resize[T any](v []T, n int) []T {
	if cap(v) < n {
		return make([]T, n, n+n/8)
	}
	return v[:n]
}
