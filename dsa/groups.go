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

// layout sorts the whole subset into groups and classes (O(subset), a counting sort) and starts the tape. It runs before the
// first pick after an epoch start, a join of a neighbour, or a return; until then the job follows no change of class.
func (s *Sampler) layout(j *job) {
	if j.mode == Strict {
		s.layoutStrict(j)
		return
	}
	g := &j.groups
	n := len(j.subset)
	g.items = resize(g.items, n)
	s.assignKeys(j)
	g.edge = resize(g.edge, g.n*stride)
	clear(g.edge)
	keepTape := s.hook.keepTape && j.tape.left != nil && j.tape.started
	if !keepTape {
		j.tape.begin(s, j)
	}
	// Count into edge[c+1] ...
	rem := 0
	for _, id := range j.subset {
		x := uint32(id)
		l := j.at.of(x)
		c := s.classIn(j, x)
		g.edge[s.keyOf(j, x, l)*stride+c+1]++
		if c != classTaken {
			rem++
			if !keepTape && !j.tape.order.plain {
				j.tape.left[l>>6] |= 1 << (l & 63)
			}
		}
	}
	if rem != j.rem {
		invariant.Violated("dsa: job %d has %d samples left, counted %d", j.id, rem, j.rem)
	}
	// ... sum up, so that edge[c] is where class c begins ...
	at := uint32(0)
	for k := range g.n {
		e := g.edge[k*stride : k*stride+stride]
		e[0] = at
		for c := 1; c < stride; c++ {
			at += e[c]
			e[c] = at
		}
	}
	// ... and place.
	for i := range g.row {
		r := &g.row[i]
		r.left = 0
		for k := r.group; k < r.group+r.n; k++ {
			r.left += g.edge[k*stride+classTaken] - g.edge[k*stride]
		}
	}
	s.fill = append(s.fill[:0], g.edge...)
	for _, id := range j.subset {
		x := uint32(id)
		l := j.at.of(x)
		f := &s.fill[s.keyOf(j, x, l)*stride+s.classIn(j, x)]
		g.items[*f], j.pos[l] = x, *f
		*f++
	}
	j.stale = false
	s.grouped = s.grouped.With(j.slot)
}

// classIn is the class of a member of the job's subset in the job's own groups.
func (s *Sampler) classIn(j *job, x uint32) int {
	if !s.obj[x].need.Has(j.slot) {
		return classTaken
	}
	return int(s.obj[x].class())
}

// assignKeys numbers the job's rows and its non-empty groups.
func (s *Sampler) assignKeys(j *job) {
	g := &j.groups
	if s.single(j) {
		g.n = 1
		g.row = append(g.row[:0], row{n: 1})
		return
	}
	g.local = resize(g.local, len(s.cells))
	rows := 0
	for c := range s.cells {
		g.local[c] = -1
		if s.cells[c].live.Has(j.slot) {
			g.local[c] = int32(rows)
			rows++
		}
	}
	g.key = resize(g.key, rows*j.tiles)
	if j.tiles == 1 {
		for r := range g.key {
			g.key[r] = 1
		}
	} else {
		clear(g.key)
		for _, x := range j.subset {
			g.key[int(g.local[s.obj[x].cell])*j.tiles+int(j.prev[j.at.of(uint32(x))])] = 1
		}
	}
	g.n = 0
	g.row = resize(g.row, rows)
	for i := range g.row {
		g.row[i].group = uint32(g.n)
		for t := i * j.tiles; t < (i+1)*j.tiles; t++ {
			if g.key[t] == 0 {
				g.key[t] = -1
				continue
			}
			g.key[t] = int32(g.n)
			g.n++
		}
		g.row[i].n = uint32(g.n) - g.row[i].group
	}
}
