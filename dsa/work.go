package dsa

import (
	"fmt"
	"slices"

	"larder/internal/ident"
)

// Whatever takes time in proportion to a subset is done in slices: a join, an epoch start, an abandoned epoch, a leave, and
// the layout of a job's groups. What a call leaves to do waits in two lines: passes, which change what all jobs see, one job at
// a time and in the order of the calls; and, when there are none, layouts. Without InSlices each call does its passes before it
// returns, and Next does the layout.
//
// Why slices do not show in a choice: while a pass is half through that changes cells, needs or classes, no job that looks at
// them draws; Need follows masks that change at once; and a job whose layout is not complete draws nothing.

// pass is one walk over the subset of a job; over all objects, the members of cells, the places of the subset, or what is
// available.
type pass uint8

const (
	passRenew   pass = iota // forget the subset before a change
	passScan                // the largest id
	passGrow                // room for them
	passIndex               // fill job.at; refuse what is no set
	passForget              // begin anew with no cells
	passCount               // how much of each cell is in the subset
	passSplit               // split the cells: what is in which
	passMembers             // the same, by cell
	passClear               // make the job need nothing
	passMark                // make it need its subset
	passCarry               // tiles from before a change of the subset
	passShuffle             // the order of a Fixed epoch
	numPasses
)

// InSlices leaves work to Work from now on: Join, StartEpoch, Abandon, Leave and Return take microseconds, and until
// Ready says so Next and At give nothing to the jobs concerned.
func (s *Sampler) InSlices() { s.sliced = true }

// Ready reports whether the job may be asked for picks: it is known and no work is left to do for it. An idle job is ready when
// its join is done.
func (s *Sampler) Ready(id ident.JobID) bool {
	j := s.joined(id)
	return j != nil && (!s.sliced || s.ready(j))
}

// Settled reports whether no pass of the job waits, so that Withdraw has nothing to do before its own work.
func (s *Sampler) Settled(id ident.JobID) bool {
	j := s.byID[id]
	return j != nil && len(j.todo) == 0
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

// unsettled reports whether a pass is half through, or about to be, that changes what choices look at.
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

// Work does what calls have left to do, budget objects of it (some 20 ns each), and reports whether there is more.
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
	if !s.unlaid {
		return nil
	}
	s.unlaid = false
	for m := s.live & (s.tapeful | s.strictly); m != 0; m &= m - 1 {
		j := s.slot[first(m)]
		if !j.stale {
			continue
		}
		s.unlaid = true
		if j.running && len(j.todo) == 0 && j.err == nil {
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

// has reports whether a pass of the job waits or is under way.
func (j *job) has(p pass) bool { return slices.Contains(j.todo, p) }

// underway reports whether a pass of the job has begun.
func (s *Sampler) underway(j *job, p pass) bool {
	return len(j.todo) > 0 && s.line[0] == j && j.todo[0] == p && j.done > 0
}

// drop takes passes of the job back, except what has begun and must come to its end.
func (s *Sampler) drop(j *job, passes ...pass) {
	if len(j.todo) == 0 {
		return
	}
	keep := j.todo[:0]
	split := j.has(passSplit) && !s.underway(j, passSplit) // it has not begun
	for i, p := range j.todo {
		underway := i == 0 && s.underway(j, p)
		half := underway && (p == passSplit || p == passForget) || p == passMembers && !split
		switch {
		case !slices.Contains(passes, p) || half:
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
	n := s.length(j, p)
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

// length is how much a pass walks over.
func (s *Sampler) length(j *job, p pass) int {
	switch p {
	case passRenew:
		return 0
	case passGrow:
		return int(j.top) + 1
	case passForget:
		return s.obj.n
	case passMembers:
		return s.parting.n
	case passClear:
		return j.at.places()
	case passMark:
		if !j.visible() {
			return 0
		}
		return s.avail.n
	default:
		return len(j.subset)
	}
}

// open prepares a pass.
func (s *Sampler) open(j *job, p pass) {
	switch p {
	case passIndex:
		j.at.begin(j.top)
	case passForget:
		if s.forgot = s.mayForget(); !s.forgot {
			j.done = s.obj.n
		}
	case passCount:
		s.touch = resize(s.touch, len(s.cells))
		clear(s.touch)
		s.touched = s.touched[:0]
	case passSplit:
		s.split(j)
	case passMark:
		s.needAll(j)
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
			if e := s.entry(uint32(x)); e != nil && e.state&visMask != 0 {
				s.setState(e, e.state&^(visMask|visRestMask)|neutralBit, 0)
			}
			s.obj.at(uint32(x)).cell = 0
		}
		return
	}
	switch p {
	case passGrow:
		s.grow(to)
		return
	case passMembers:
		s.parting.part(s, to-from)
		return
	case passClear:
		s.clearPart(j, from, to)
		return
	case passMark:
		for i := from; i < to; i++ {
			e := s.avail.at(uint32(i))
			if e.state == 0 {
				continue
			}
			if _, ok := j.at.member(e.x); ok {
				s.lapse(e, j)
				e.need = e.need.With(j.slot)
			}
		}
		return
	default:
	}
	part := j.subset[from:to]
	switch p {
	case passScan:
		j.top = max(j.top, slices.Max(part))
	case passIndex:
		j.err = j.at.add(part)
	case passCount:
		for _, x := range part {
			c := s.obj.at(uint32(x)).cell
			if s.touch[c] == 0 {
				s.touched = append(s.touched, c)
			}
			s.touch[c]++
		}
	case passSplit:
		for _, x := range part {
			c := &s.obj.at(uint32(x)).cell
			if *c == 0 {
				s.parting.enter(s, uint32(x))
			}
			*c = s.child[*c]
		}
	case passCarry:
		for _, x := range part {
			j.prev.set(j.at.of(uint32(x)), j.was.tile(uint32(x)))
		}
	case passShuffle:
		j.shuffle.slice(j.order, from, to)
	default:
	}
}

// clearPart takes the places from..to-1 out of what the job needs.
func (s *Sampler) clearPart(j *job, from, to int) {
	for p := next1(j.left, from, to); p < to; p = next1(j.left, p+1, to) {
		l := uint32(p)
		unset(j.left, l)
		if j.tiles > 1 {
			j.cur.set(l, s.tileRest(j))
		}
		if e := s.entry(j.at.object(l)); e != nil {
			was := *e
			e.need = e.need.Without(j.slot)
			s.listAgain(e, &was, 0)
		}
	}
}

// close ends a pass.
func (s *Sampler) close(j *job, p pass) {
	switch p {
	case passRenew:
		s.renew(j)
	case passScan:
		if j.top >= MaxObjects {
			j.err = fmt.Errorf("%w: %d, the limit is %d", ErrObjectID, j.top, MaxObjects-1)
			j.todo = j.todo[:0]
			return
		}
	case passIndex:
		j.prev, j.cur = pack(j.tiles, j.at.places()), pack(j.tiles, j.at.places())
	case passMembers:
		s.joins++
		j.joinedAt = s.joins
		s.freshAfterJoin(j)
	case passForget:
		if !s.forgot {
			return
		}
		s.cells = s.cells[:1] // not before: objects that the pass has not come to are asked for theirs
		s.members.empty()
		for _, ids := range s.strata {
			s.stratum(ids)
		}
	case passMark:
		j.fresh = false
		if j.visible() {
			s.shown = s.shown.With(j.slot)
			if s.slow != 0 { // beside it and another one, slow jobs may not count any more
				s.recount(j)
			}
		}
		switch {
		case j.usesTape():
			s.adopt(j)
		case j.mode == Strict:
			j.openAll()
		default:
		}
	case passCarry:
		j.was = nil
	default:
	}
}

// released frees the slot of a job that has left when nothing of it is left to do.
func (s *Sampler) released(j *job) {
	if !j.gone || s.slot[j.slot] != j { // a class has no slot to free
		return
	}
	s.slot[j.slot] = nil
	s.live = s.live.Without(j.slot)
	for i := range s.owners[1:] { // what was at hand for it is not for who comes next
		o := &s.owners[i+1]
		o.jobs = o.jobs.Without(j.slot)
	}
	s.forgetPace(j.slot)
	s.encodedToo = s.encodedToo.Without(j.slot)
	s.kindred()
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
