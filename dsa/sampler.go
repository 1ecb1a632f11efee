package dsa

import (
	"errors"
	"fmt"
	"slices"

	"larder/internal/bits"
	"larder/internal/ident"
	"larder/internal/xrand"
)

// Errors of Join and StartEpoch; they are wrapped with the details.
var (
	ErrJobExists       = errors.New("job has joined already")
	ErrNoJob           = errors.New("no such job")
	ErrEmptySubset     = errors.New("subset is empty")
	ErrDuplicateObject = errors.New("subset holds an object twice")
	ErrTooManyJobs     = errors.New("too many jobs")
	ErrTiles           = errors.New("tiles out of range")
	ErrMode            = errors.New("unknown mode")
	ErrObjectID        = errors.New("object id out of range")
)

// What is known about the availability of an object, one byte each.
const (
	levelMask  = 0x03 // what SetLevel said
	visShift   = 2    // the same as the visible jobs may see it
	visMask    = 0x03 << visShift
	neutralBit = 0x10 // a sequential job has touched it since a visible job did: vis must not rise
)

// object is what is known of one object; four to a cache line. The zero value is an object nobody spoke of.
type object struct {
	need  bits.JobSet // visible jobs that still need it in their running epoch, inactive ones included
	cell  uint32      // its static cell; 0 = in no subset yet
	avail uint8       // level, vis, neutral
	pref  uint8       // classNone less its class in every group it is a remaining member of
}

func (o *object) class() uint8 { return classNone - o.pref }

// Sampler holds the demand of all jobs of a daemon. Owned by coordinator.Core; not safe for concurrent use.
type Sampler struct {
	rng  *xrand.Rand
	byID map[ident.JobID]*job // lookups only, never ranged over
	slot [MaxJobs]*job
	live bits.JobSet // slots in use

	obj     []object // dense over the universe
	cells   []cell
	nVis    int         // objects whose vis is above 0
	active  bits.JobSet // jobs that count as needing something
	grouped bits.JobSet // tape jobs whose groups are laid out and follow every change of class
	tapeful bits.JobSet // joined jobs that draw from a tape (Stratified, Epoch)

	strictly bits.JobSet // joined Strict jobs
	ahead    int         // how many samples may wait in the queue of a Strict job

	joins  uint64 // counts joins; dates orders
	orders uint64 // counts shared orders; names them

	fill, touched, touch, child []uint32 // scratch
	moved                       []uint32
	hook                        hooks
}

// hooks switch planted bugs on; tests prove with them that the checks can fail. The zero value is the sampler.
type hooks struct {
	oneCell    bool           // hits first over the whole subset, no cells
	tiesByID   bool           // the lowest id of a class instead of a uniform one
	keepTape   bool           // a join leaves the tapes of the others as they are
	seqVisible bool           // what sequential jobs load is preferred like any other
	ownOrder   bool           // an epoch may go on with the order of the job's previous epoch
	biased     bool           // a strict job that does not draw what its neighbour drew draws anything
	left       func(*Sampler) // runs after a leave
}

// job is one stream of picks.
type job struct {
	id       ident.JobID
	slot     uint8
	mode     Mode
	tiles    int // 1 where nothing is refined
	seed     uint64
	ahead    int // of the spec
	subset   []ident.ObjectID
	joinedAt uint64
	near     bits.JobSet // live jobs whose subsets share an object with this one
	overlap  [MaxJobs]uint32

	running bool // an epoch was started and not abandoned
	epoch   uint32
	rem     int

	at   index    // object -> place in pos, prev, cur, tape
	pos  []uint32 // group order: place in groups.items; Sequential and Fixed: ordinal in subset
	prev []uint8  // tile of the object's position in the previous epoch
	cur  []uint8  // the same of this epoch, written at each pick

	groups groups
	tape   tape
	strict strictJob
	stale  bool // groups and tape must be laid out again before the next pick

	order  []uint32    // Fixed: ordinals in the order of the epoch
	taken  bits.Set    // Sequential: ordinals taken in this epoch
	cursor int         // Fixed, Sequential: no position below is free
	used   [2][]uint64 // names of the orders used in this epoch and in the previous one
}

// New returns a sampler without jobs. All its choices derive from seed.
func New(seed uint64) *Sampler {
	return &Sampler{
		rng:   xrand.New(0x6473615f73616d70, seed),
		byID:  make(map[ident.JobID]*job),
		cells: make([]cell, 1),
	}
}

// visible tells whether the job's demand reaches other jobs' choices: only orders that are blind to what an object is may.
func (j *job) visible() bool { return j.mode != Sequential }

// usesTape tells whether the job's picks may depend on what is available.
func (j *job) usesTape() bool { return j.mode == Stratified || j.mode == Epoch }

// Join registers a job; it is idle until StartEpoch and active. On an error nothing has changed.
func (s *Sampler) Join(id ident.JobID, spec JobSpec) error {
	if s.byID[id] != nil {
		return fmt.Errorf("dsa: join job %d: %w", id, ErrJobExists)
	}
	if spec.Mode >= numModes {
		return fmt.Errorf("dsa: join job %d: %w: %s", id, ErrMode, spec.Mode)
	}
	if spec.Tiles < 0 || spec.Tiles > MaxTiles {
		return fmt.Errorf("dsa: join job %d: %w: %d is not in 1..%d", id, ErrTiles, spec.Tiles, MaxTiles)
	}
	if len(spec.Subset) == 0 {
		return fmt.Errorf("dsa: join job %d: %w", id, ErrEmptySubset)
	}
	if s.live.Len() >= MaxJobs {
		return fmt.Errorf("dsa: join job %d: %w: %d are joined, the limit is %d", id, ErrTooManyJobs, s.live.Len(), MaxJobs)
	}
	j := &job{id: id, mode: spec.Mode, tiles: 1, seed: spec.Seed, subset: spec.Subset}
	if spec.Mode == Stratified {
		j.tiles = spec.Tiles
		if j.tiles == 0 {
			j.tiles = DefaultTiles
		}
	}
	if err := j.indexSubset(); err != nil {
		return fmt.Errorf("dsa: join job %d: %w", id, err)
	}
	for s.live.Has(j.slot) {
		j.slot++
	}
	s.joins++
	j.joinedAt = s.joins
	s.byID[id], s.slot[j.slot] = j, j
	s.live, s.active = s.live.With(j.slot), s.active.With(j.slot)
	if j.usesTape() {
		s.tapeful = s.tapeful.With(j.slot)
	}
	if j.mode == Strict {
		s.strictly = s.strictly.With(j.slot)
		j.stale = true
	}
	j.ahead = spec.Ahead
	s.lookAhead()
	s.grow(int(slices.Max(spec.Subset)) + 1)
	if s.live.Len() == 1 {
		s.forget()
	}
	s.refine(j)
	s.freshAfterJoin(j)
	return nil
}

// lookAhead sets how far Strict jobs are drawn ahead: as far as the one that takes most at once.
func (s *Sampler) lookAhead() {
	s.ahead = minAhead
	for m := s.strictly; m != 0; m &= m - 1 {
		s.ahead = min(max(s.ahead, s.slot[first(m)].ahead), maxAhead)
	}
}

// grow makes room for n objects.
func (s *Sampler) grow(n int) {
	old := len(s.obj)
	if n <= old {
		return
	}
	if old > 0 {
		n = max(n, min(old+old/4, MaxObjects))
	}
	obj := make([]object, n) // no append: it would touch every page at once
	copy(obj, s.obj)
	s.obj = obj
}

// StartEpoch makes the job need its whole subset again. An unfinished epoch is abandoned first. epoch is what a Fixed order
// is derived from; the other modes only keep it.
func (s *Sampler) StartEpoch(id ident.JobID, epoch uint32) error {
	j := s.byID[id]
	if j == nil {
		return fmt.Errorf("dsa: start epoch %d of job %d: %w", epoch, id, ErrNoJob)
	}
	s.Abandon(id)
	j.running, j.epoch, j.rem, j.cursor = true, epoch, len(j.subset), 0
	if !j.visible() {
		j.taken.Clear()
		return nil
	}
	for _, x := range j.subset {
		s.obj[x].need = s.obj[x].need.With(j.slot)
		if s.obj[x].avail&visMask != 0 {
			s.reclass(uint32(x))
		}
	}
	switch {
	case j.mode == Fixed:
		j.order = FixedOrder(j.order, j.seed, epoch, len(j.subset))
	case j.usesTape():
		j.prev, j.cur = j.cur, j.prev
		s.adopt(j)
		j.stale = true
	default:
		j.strict = strictJob{undrawn: len(j.subset)}
	}
	return nil
}

// FixedOrder returns the order of mode Fixed for n samples: position p of the epoch shows the sample of ordinal order[p]. It
// is the Fisher-Yates shuffle of 0..n-1 by xrand, seeded by (seed, epoch) alone. dst is reused when it is large enough.
func FixedOrder(dst []uint32, seed uint64, epoch uint32, n int) []uint32 {
	if cap(dst) < n {
		dst = make([]uint32, n)
	}
	dst = dst[:n]
	for i := range dst {
		dst[i] = uint32(i)
	}
	r := xrand.New(0x66697865645f6f72, seed, uint64(epoch))
	r.Shuffle(n, func(a, b int) { dst[a], dst[b] = dst[b], dst[a] })
	return dst
}

// Abandon drops what remains of the job's epoch; the job is idle until StartEpoch. For the tiles of the next epoch the rest
// of the order counts as drawn uniformly and not delivered, which keeps the promise of Stratified.
func (s *Sampler) Abandon(id ident.JobID) {
	j := s.byID[id]
	if j == nil || !j.running {
		return
	}
	if j.visible() && j.rem > 0 {
		if j.tiles > 1 {
			s.tileRest(j)
		}
		s.grouped = s.grouped.Without(j.slot)
		for _, x := range j.subset {
			if s.obj[x].need.Has(j.slot) {
				s.obj[x].need = s.obj[x].need.Without(j.slot)
				s.reclass(uint32(x))
			}
		}
	}
	s.grouped = s.grouped.Without(j.slot)
	j.running, j.rem = false, 0
}

// tileRest gives every remaining object a tile as if the rest of the epoch's order had been drawn uniformly.
func (s *Sampler) tileRest(j *job) {
	n := len(j.subset)
	var room [MaxTiles]int
	for p := n - j.rem; p < n; p++ {
		room[p*j.tiles/n]++
	}
	left := j.rem
	for _, x := range j.subset {
		if !s.obj[x].need.Has(j.slot) {
			continue
		}
		u, t := s.rng.IntN(left), 0
		for u >= room[t] {
			u -= room[t]
			t++
		}
		room[t]--
		left--
		j.cur[j.at.of(uint32(x))] = uint8(t)
	}
}

// Leave removes the job. Its subset stays in the cells: what it left in the cache must not tell objects apart.
func (s *Sampler) Leave(id ident.JobID) {
	j := s.byID[id]
	if j == nil {
		return
	}
	s.Abandon(id)
	delete(s.byID, id)
	s.slot[j.slot] = nil
	s.live, s.active, s.tapeful = s.live.Without(j.slot), s.active.Without(j.slot), s.tapeful.Without(j.slot)
	s.strictly = s.strictly.Without(j.slot)
	s.lookAhead()
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

// SetActive says whether the job takes batches. A stalled one keeps its remaining set but counts as needing nothing, so that
// nothing is kept in memory, and no sample is chosen, for its sake.
func (s *Sampler) SetActive(id ident.JobID, active bool) {
	j := s.byID[id]
	if j == nil || s.active.Has(j.slot) == active {
		return
	}
	if active {
		s.active = s.active.With(j.slot)
	} else {
		s.active = s.active.Without(j.slot)
	}
	if !j.visible() || j.rem == 0 {
		return
	}
	if s.grouped.Has(j.slot) { // only what is available has a class that depends on need
		s.moved = j.groups.available(s.moved[:0])
		for _, x := range s.moved {
			s.reclass(x)
		}
		return
	}
	for _, x := range j.subset {
		if s.obj[x].need.Has(j.slot) && s.obj[x].avail&visMask != 0 {
			s.reclass(uint32(x))
		}
	}
}

// SetLevel says how much of the work on x is done, as decided at the commit of a pick or an eviction: 0 = in storage, 1 =
// encoded in memory, 2 = decoded or better, in memory or in flight. Anything above 2 counts as 2.
func (s *Sampler) SetLevel(x ident.ObjectID, level uint8) {
	if x >= MaxObjects {
		return
	}
	if int(x) >= len(s.obj) {
		if level == 0 {
			return
		}
		s.grow(int(x) + 1)
	}
	level = min(level, 2)
	a := s.obj[x].avail
	vis := level
	if a&neutralBit != 0 {
		vis = min(level, a>>visShift&levelMask)
	}
	b := level | vis<<visShift | a&neutralBit
	if level == 0 && a&levelMask != 0 { // evicted: the next load speaks for itself
		b = 0
	}
	s.setAvail(uint32(x), b)
}

// setAvail stores the availability of x and moves it to its new class.
func (s *Sampler) setAvail(x uint32, b uint8) {
	a := s.obj[x].avail
	if a == b {
		return
	}
	s.obj[x].avail = b
	if was, is := a&visMask != 0, b&visMask != 0; was != is {
		if is {
			s.nVis++
		} else {
			s.nVis--
		}
	}
	s.reclass(x)
}

// Level returns what SetLevel said last, 0 for an object nobody spoke of.
func (s *Sampler) Level(x ident.ObjectID) uint8 {
	if int(x) >= len(s.obj) {
		return 0
	}
	return s.obj[x].avail & levelMask
}

// Neutral tells whether x owes its place in memory to a sequential job alone. Whoever evicts must take such objects first and
// must not let one displace another object: then what visible jobs find is what it would be without the sequential job.
func (s *Sampler) Neutral(x ident.ObjectID) bool {
	return int(x) < len(s.obj) && s.obj[x].avail&neutralBit != 0 && s.obj[x].avail&visMask == 0
}

// Need returns how many active visible jobs still need x in their running epoch. It is what eviction goes by. A Strict job that
// has x in its queue, and so takes it within its window, counts for soon others: else what epochs that have just begun need some
// time would push out what somebody is about to take.
func (s *Sampler) Need(x ident.ObjectID) int {
	if int(x) >= len(s.obj) {
		return 0
	}
	m := s.obj[x].need & s.active
	n := m.Len()
	for m &= s.strictly; m != 0; m &= m - 1 {
		if j := s.slot[first(m)]; j.strict.queued > 0 && !j.mayDraw(uint32(x)) {
			n += soon - 1
		}
	}
	return n
}

// soon is what a queued sample weighs in Need: more than all jobs that need it some time.
const soon = MaxJobs + 1

// Needs tells whether the job, active or not, still needs x in its running epoch.
func (s *Sampler) Needs(id ident.JobID, x ident.ObjectID) bool {
	j := s.byID[id]
	if j == nil || !j.running || int(x) >= len(s.obj) {
		return false
	}
	if j.visible() {
		return s.obj[x].need.Has(j.slot)
	}
	l, ok := j.member(x)
	return ok && !j.taken.Has(j.pos[l])
}

// Remaining returns how many samples the job's running epoch still owes; 0 when idle.
func (s *Sampler) Remaining(id ident.JobID) int {
	if j := s.byID[id]; j != nil {
		return j.rem
	}
	return 0
}

// Len returns the size of the job's subset; 0 for an unknown job.
func (s *Sampler) Len(id ident.JobID) int {
	if j := s.byID[id]; j != nil {
		return len(j.subset)
	}
	return 0
}

// Jobs returns the joined jobs, ascending.
func (s *Sampler) Jobs() []ident.JobID {
	ids := make([]ident.JobID, 0, s.live.Len())
	for _, j := range s.slot {
		if j != nil {
			ids = append(ids, j.id)
		}
	}
	slices.Sort(ids)
	return ids
}
