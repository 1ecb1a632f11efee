package dsa

import (
	mathbits "math/bits"

	"larder/internal/bits"
	"larder/internal/invariant"
)

// The classes of an object within a group, in the order in which a pick prefers them: decoded objects by needers, encoded
// objects by needers, what is not available, what this epoch has delivered. Needers above needCap are not told apart; so
// however many jobs there are, a pick moves the object in at most needCap groups besides its own.
const (
	needCap    = 8
	classNone  = 2 * needCap
	classTaken = classNone + 1
	numClasses = classTaken + 1
	stride     = numClasses + 1
)

// groups are the objects of one job by its own cells (static cell, tile). A group is a contiguous run of items in which the
// classes follow each other; a change to the next class is one swap across the border between the two. That gives O(1) uniform
// draws from the best class of any cell, for any number of jobs and tiles, at 8 bytes per object and job: pools keyed by
// needer masks would have to be keyed by the tiles of every job as well, B^jobs of them.
type groups struct {
	items []uint32 // objects; the place of each is in job.pos
	edge  []uint32 // of group k: edge[k*stride+c] .. edge[k*stride+c+1] is class c
	local []int32  // static cell -> row, -1 where the subset has none of it
	key   []int32  // row*tiles+tile -> group, -1 where empty; the groups of a row follow each other
	row   []row
	n     int // groups
}

// row is a static cell of one job: its groups, one for each tile that occurs.
type row struct {
	group uint32 // the first
	n     uint32 // how many
	left  uint32 // objects that remain in all of them
}

// group returns the group of the row that holds its u-th remaining object, for u in [0, 1) as a fraction of 2^64: a tile drawn
// in proportion to what remains. Two jobs with the same u and like remainders get the same tile.
func (g *groups) group(r *row, u uint64) int {
	hi, _ := mathbits.Mul64(u, uint64(r.left))
	n := uint32(hi)
	for k := r.group; k < r.group+r.n; k++ {
		e := g.edge[k*stride : k*stride+stride]
		have := e[classTaken] - e[0]
		if n < have {
			return int(k)
		}
		n -= have
	}
	invariant.Violated("dsa: a cell of %d remaining samples has fewer", r.left)
	return 0
}

func first(m bits.JobSet) int { return mathbits.TrailingZeros64(uint64(m)) }

// classOf derives the class of x from what is visible of its availability and from how many need it. It is the same for
// every job.
func (s *Sampler) classOf(x uint32) uint8 {
	vis := s.obj[x].avail >> visShift & levelMask
	if vis == 0 {
		return classNone
	}
	n := uint8(min(max((s.obj[x].need&s.active).Len(), 1), needCap)) - 1
	if vis == 1 {
		n += needCap
	}
	return n
}

// reclass moves x, in the groups of every job that still needs it, to the class it has now.
func (s *Sampler) reclass(x uint32) {
	from, to := s.obj[x].class(), s.classOf(x)
	if from == to {
		return
	}
	s.obj[x].pref = classNone - to
	for m := s.obj[x].need & s.grouped; m != 0; m &= m - 1 {
		j := s.slot[first(m)]
		l := j.at.of(x)
		if s.lay.job == j && !j.tape.holds(l) {
			continue // not placed yet
		}
		j.move(l, s.keyOf(j, x, l), int(from), int(to))
	}
}

// keyOf returns the group of x, whose place is l, as of the last layout.
func (s *Sampler) keyOf(j *job, x, l uint32) int {
	if s.single(j) {
		return 0
	}
	r := int(j.groups.local[s.obj[x].cell])
	if j.tiles > 1 {
		r = r*j.tiles + int(j.prev[l])
	}
	return int(j.groups.key[r])
}

// rowOf returns the row of x as of the last layout.
func (s *Sampler) rowOf(j *job, x uint32) *row {
	if s.single(j) {
		return &j.groups.row[0]
	}
	return &j.groups.row[j.groups.local[s.obj[x].cell]]
}

// single tells whether the job has one group for everything.
func (s *Sampler) single(*job) bool { return s.hook.oneCell }

// move takes the object at place l of group k from one class to another: one swap for each class that is crossed.
func (j *job) move(l uint32, k, from, to int) {
	e := j.groups.edge[k*stride : k*stride+stride]
	items, p := j.groups.items, j.pos[l]
	for c := from; c < to; c++ {
		e[c+1]--
		if q := e[c+1]; q != p {
			j.swap(items, p, q)
			p = q
		}
	}
	for c := from; c > to; c-- {
		if q := e[c]; q != p {
			j.swap(items, p, q)
			p = q
		}
		e[c]++
	}
}

func (j *job) swap(items []uint32, p, q uint32) {
	x, y := items[p], items[q]
	items[p], items[q] = y, x
	j.pos[j.at.of(y)], j.pos[j.at.of(x)] = p, q
}

// available appends the remaining objects that have a class above classNone, in group order.
func (g *groups) available(dst []uint32) []uint32 {
	for k := range g.n {
		dst = append(dst, g.items[g.edge[k*stride]:g.edge[k*stride+classNone]]...)
	}
	return dst
}

// classIn is the class of a member of the job's subset in the job's own groups.
func (s *Sampler) classIn(j *job, x uint32) int {
	if !s.obj[x].need.Has(j.slot) {
		return classTaken
	}
	return int(s.obj[x].class())
}
