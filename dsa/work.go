package dsa

import (
	"fmt"
	"slices"

	"larder/internal/ident"
)

// Whatever takes time in proportion to a subset is done in slices: a join, an epoch start, an abandoned epoch, a leave, a stall, and
// the layout of a job's groups. What a call leaves to do waits in two lines: passes, which change what all jobs see, one job at
// a time and in the order of the calls; and, when there are none, layouts. Without InSlices each call does its passes before it
// returns, and Next does the layout.
//
// Why slices do not show in a choice: while a pass is half through that changes cells, needs or classes, no job that looks at
// them draws; Need follows masks that change at once; and a job whose layout is not complete draws nothing.

// pass is one walk over the subset of a job (passForget: over all objects).
type pass uint8

const (
	passScan    pass = iota // the largest id
	passIndex               // fill job.at and job.pos; refuse what is no set
	passForget              // begin anew with no cells
	passCount               // how much of each cell is in the subset
	passSplit               // split the cells
	passClear               // take the job out of need
	passMark                // put the job into need
	passShuffle             // the order of a Fixed epoch
	passClasses             // derive classes anew
	numPasses
)

// InSlices leaves work to Work from now on: Join, StartEpoch, Abandon, Leave, SetActive and Return take microseconds, and until
// Ready says so Next and At give nothing to the jobs concerned.
func (s *Sampler) InSlices() { s.sliced = true }

// Ready tells whether the job may be asked for picks: it is known and no work is left to do for it. An idle job is ready when
// its join is done.
func (s *Sampler) Ready(id ident.JobID) bool {
	j := s.byID[id]
	return j != nil && (!s.sliced || s.ready(j))
}

func (s *Sampler) ready(j *job) bool {
	if len(j.todo) > 0 || j.err != nil {
		return false
	}
	if j.mode <= Fixed {
		return true
	}
	return !s.unsettled() && (!j.stale || !j.running)
}

// unsettled tells whether a pass is half through, or about to be, that changes what choices look at.
func (s *Sampler) unsettled() bool {
	return len(s.line) > 0 && s.line[0].todo[0] >= passSplit && s.line[0].todo[0] != passShuffle
}

// Err returns why a job that was joined in slices cannot draw, nil for any other: its subset is no set, or holds an id out of
// range. It stays until it leaves.
func (s *Sampler) Err(id ident.JobID) error {
	if j := s.byID[id]; j != nil {
		return j.err
	}
	return nil
}

// Work does what calls have left to do, budget objects of it (some 20 ns each), and tells whether there is more.
func (s *Sampler) Work(budget int) (more bool) {
	for budget > 0 && len(s.line) > 0 {
		budget -= s.walk(budget)
	}
	for budget > 0 {
		j := s.lay.job
		if j == nil {
			if j = s.nextLayout(); j == nil {
				return false
			}
		}
		budget -= s.layoutSlice(j, budget)
	}
	return len(s.line) > 0 || s.lay.job != nil || s.nextLayout() != nil
}

// nextLayout returns a job that cannot draw before its layout is made.
func (s *Sampler) nextLayout() *job {
	for m := s.live & (s.tapeful | s.strictly); m != 0; m &= m - 1 {
		if j := s.slot[first(m)]; j.stale && j.running && len(j.todo) == 0 {
			return j
		}
	}
	return nil
}

// settle does all passes that wait.
func (s *Sampler) settle() {
	for len(s.line) > 0 {
		s.walk(1 << 20)
	}
}

// finish is the end of a call that has left passes to do.
func (s *Sampler) finish() {
	if !s.sliced {
		s.settle()
	}
}

// later adds passes for a job.
func (s *Sampler) later(j *job, passes ...pass) {
	if len(j.todo) == 0 {
		s.line = append(s.line, j)
	}
	j.todo = append(j.todo, passes...)
}

// has tells whether a pass of the job waits or is under way.
func (j *job) has(p pass) bool { return slices.Contains(j.todo, p) }

// underway tells whether a pass of the job has begun.
func (s *Sampler) underway(j *job, p pass) bool {
	return len(j.todo) > 0 && s.line[0] == j && j.todo[0] == p && j.done > 0
}

// drop takes passes of the job back, except one that is under way and must come to its end.
func (s *Sampler) drop(j *job, passes ...pass) {
	if len(j.todo) == 0 {
		return
	}
	keep := j.todo[:0]
	for i, p := range j.todo {
		underway := i == 0 && s.underway(j, p)
		switch {
		case !slices.Contains(passes, p) || underway && (p == passSplit || p == passForget):
			keep = append(keep, p)
		case underway:
			j.done = 0
		}
	}
	j.todo = keep
	if len(j.todo) == 0 {
		s.line = slices.DeleteFunc(s.line, func(k *job) bool { return k == j })
		s.released(j)
	}
}

// walk takes the first job of the line on by at most budget objects of its first pass, and returns how many it took.
func (s *Sampler) walk(budget int) int {
	j := s.line[0]
	p := j.todo[0]
	if j.done == 0 {
		s.open(j, p)
	}
	n := len(j.subset)
	if p == passForget {
		n = len(s.obj)
	}
	to := min(j.done+budget, n)
	s.slice(j, p, j.done, to)
	took := to - j.done
	j.done = to
	if j.done < n && j.err == nil {
		return took
	}
	j.done = 0
	j.todo = slices.Delete(j.todo, 0, 1)
	if j.err != nil {
		j.todo = j.todo[:0]
	} else {
		s.close(j, p)
	}
	if len(j.todo) == 0 && s.line[0] == j {
		s.line = slices.Delete(s.line, 0, 1)
		s.released(j)
	}
	return took + 1
}

// open prepares a pass.
func (s *Sampler) open(j *job, p pass) {
	switch p {
	case passIndex:
		j.at.page = make([]uint32, j.top>>pageBits+1)
		for q := range j.at.page {
			j.at.page[q] = absent
		}
		j.pos = make([]uint32, 0, len(j.subset)+2*pageSize)
	case passForget:
		if s.forgot = s.mayForget(); !s.forgot {
			j.done = len(s.obj)
			return
		}
		s.cells = s.cells[:1]
	case passCount:
		s.touch = resize(s.touch, len(s.cells))
		clear(s.touch)
		s.touched = s.touched[:0]
	case passSplit:
		s.split(j)
	case passClear:
		clear(j.room[:])
		if j.tiles > 1 {
			n := len(j.subset)
			for t := range j.tiles { // positions p with p*tiles/n = t that were not reached
				from, to := (t*n+j.tiles-1)/j.tiles, ((t+1)*n+j.tiles-1)/j.tiles
				j.room[t] = max(0, to-max(from, n-j.undone))
			}
		}
	case passMark:
		if j.usesTape() {
			j.prev, j.cur = j.cur, j.prev
		}
	case passShuffle:
		j.order = resize(j.order, len(j.subset))
		j.shuffle.begin(j.seed, j.epoch)
	default:
	}
}

// slice does a pass for the objects from..to-1 of the subset.
func (s *Sampler) slice(j *job, p pass, from, to int) {
	if p == passForget {
		for x := from; x < to; x++ {
			if a := s.obj[x].avail; a&visMask != 0 {
				s.setAvail(uint32(x), a&levelMask|neutralBit)
			}
			s.obj[x].cell = 0
		}
		return
	}
	part := j.subset[from:to]
	switch p {
	case passScan:
		j.top = max(j.top, slices.Max(part))
	case passIndex:
		j.err = j.indexPart(part, from)
	case passCount:
		for _, x := range part {
			c := s.obj[x].cell
			if s.touch[c] == 0 {
				s.touched = append(s.touched, c)
			}
			s.touch[c]++
		}
	case passSplit:
		for _, x := range part {
			s.obj[x].cell = s.child[s.obj[x].cell]
		}
	case passClear:
		for _, x := range part {
			o := &s.obj[x]
			if !o.need.Has(j.slot) {
				continue
			}
			if j.tiles > 1 {
				j.cur[j.at.of(uint32(x))] = s.tileRest(j)
			}
			o.need = o.need.Without(j.slot)
			s.reclassSeen(uint32(x))
		}
	case passMark:
		for _, x := range part {
			if j.was != nil {
				j.prev[j.at.of(uint32(x))] = j.was.tile(x)
			}
			s.obj[x].need = s.obj[x].need.With(j.slot)
			s.reclassSeen(uint32(x))
		}
	case passShuffle:
		j.shuffle.slice(j.order, from, to)
	case passClasses:
		for _, x := range part {
			s.reclassSeen(uint32(x))
		}
	default:
	}
}

// reclassSeen derives the class of x anew; what is not available has none.
func (s *Sampler) reclassSeen(x uint32) {
	if s.obj[x].avail&visMask != 0 {
		s.reclass(x)
	}
}

// close ends a pass.
func (s *Sampler) close(j *job, p pass) {
	switch p {
	case passScan:
		if j.top >= MaxObjects {
			j.err = fmt.Errorf("%w: %d, the limit is %d", ErrObjectID, j.top, MaxObjects-1)
			j.todo = j.todo[:0]
			return
		}
		s.grow(int(j.top) + 1)
	case passIndex:
		if j.tiles > 1 {
			j.prev, j.cur = make([]uint8, j.at.n), make([]uint8, j.at.n)
		}
	case passSplit:
		s.joins++
		j.joinedAt = s.joins
		if !j.gone {
			s.freshAfterJoin(j)
		}
	case passForget:
		for _, ids := range s.strata {
			if s.forgot {
				s.stratum(ids)
			}
		}
	case passMark:
		j.was = nil
		s.shown = s.shown.With(j.slot)
		switch {
		case j.usesTape():
			s.adopt(j)
		case j.mode == Strict && !j.stale:
			j.strict = strictJob{undrawn: len(j.subset)}
		default:
		}
	default:
	}
}

// released frees the slot of a job that has left when nothing of it is left to do.
func (s *Sampler) released(j *job) {
	if !j.gone || s.slot[j.slot] != j {
		return
	}
	s.slot[j.slot] = nil
	s.live = s.live.Without(j.slot)
	for c := range s.cells {
		s.cells[c].live = s.cells[c].live.Without(j.slot)
	}
	for _, k := range s.slot {
		if k != nil {
			k.near, k.overlap[j.slot] = k.near.Without(j.slot), 0
		}
	}
	if s.hook.left != nil {
		s.hook.left(s)
	}
}

// split makes the cells that a subset splits off: those it holds a part of. passSplit moves the objects. Laid-out jobs know the new
// cells by those they come from, until they are laid out again.
func (s *Sampler) split(j *job) {
	s.child = resize(s.child, len(s.cells))
	for _, c := range s.touched {
		n := s.touch[c]
		d := c
		if c == 0 || n < s.cells[c].size {
			d = uint32(len(s.cells))
			s.cells = append(s.cells, cell{size: n, live: s.cells[c].live})
			if c != 0 {
				s.cells[c].size -= n
			}
			for m := s.live & s.tapeful; m != 0; m &= m - 1 {
				if g := &s.slot[first(m)].groups; len(g.local) == int(d) {
					g.local = append(g.local, g.local[c])
				}
			}
		}
		s.child[c] = d
		for m := s.cells[d].live; m != 0; m &= m - 1 {
			k := s.slot[first(m)]
			j.overlap[k.slot] += n
			k.overlap[j.slot] += n
			j.near, k.near = j.near.With(k.slot), k.near.With(j.slot)
		}
		s.cells[d].live = s.cells[d].live.With(j.slot)
	}
}

// indexPart puts part, which begins at ordinal from, into j.at and j.pos.
func (j *job) indexPart(part []ident.ObjectID, from int) error {
	for o, x := range part {
		if p := &j.at.page[x>>pageBits]; *p == absent {
			*p = uint32(j.at.n)
			j.at.n += pageSize
			for range pageSize {
				j.pos = append(j.pos, absent)
			}
		}
		l := j.at.of(uint32(x))
		if j.pos[l] != absent {
			return fmt.Errorf("%w: %d", ErrDuplicateObject, x)
		}
		j.pos[l] = uint32(from + o)
	}
	return nil
}

// tileRest gives a remaining object of an abandoned epoch a tile, as if the rest of the order had been drawn uniformly.
func (s *Sampler) tileRest(j *job) uint8 {
	u, t := s.rng.IntN(j.undone), 0
	for u >= j.room[t] {
		u -= j.room[t]
		t++
	}
	j.room[t]--
	j.undone--
	return uint8(t)
}
