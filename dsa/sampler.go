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

// Sampler holds the demand of all jobs of a daemon. Owned by coordinator.Core; not safe for concurrent use.
type Sampler struct {
	rng  *xrand.Rand
	byID map[ident.JobID]*job // lookups only, never ranged over
	last *job                 // found last: who draws is asked for many times in a row
	slot [MaxJobs]*job
	live bits.JobSet // slots in use

	latest      uint32      // object of the last pick of a visible job, or unknown: what is said of it next is that job's doing
	latestTaker uint8       // its slot
	decoding    bool        // of SetDecoding
	encodedToo  bits.JobSet // laid-out jobs for which an encoded object is as good as a decoded one: nothing stays decoded
	slow        bits.JobSet // jobs that are slow beside some other

	obj table[object] // dense over the universe
	holding
	cells   []cell
	members table[uint32] // objects by cell
	active  bits.JobSet   // jobs that count as needing something
	grouped bits.JobSet   // tape jobs whose groups are laid out, or being so: what becomes available is listed for them
	tapeful bits.JobSet   // joined jobs that draw from a tape (Stratified, Epoch)

	strictly  bits.JobSet // joined Strict jobs
	following bits.JobSet // laid-out jobs that draw without a tape
	turn      uint64      // of theirs
	ahead     int         // how many samples may wait in the queue of a Strict job
	room      int         // of SetRoom

	joins  uint64 // counts joins; dates orders
	orders uint64 // counts shared orders; names them

	shown  bits.JobSet // running visible jobs whose whole subset is in need
	sliced bool        // Work does what takes long
	line   []*job      // with passes to do, in the order of the calls
	lay    laying      // the layout under way
	unlaid bool        // some job may be stale
	strata [][]ident.ObjectID
	forgot bool // the cells, by the pass that is under way

	touched, touch, child, parted []uint32 // of the split under way
	parting                       parting
	small                         int // members of a cell that is looked through at each draw; smallCell but in tests
	hook                          hooks
}

// hooks switch planted bugs on; tests prove with them that the checks can fail. The zero value is the sampler.
type hooks struct {
	oneCell        bool           // hits first over the whole subset, no cells
	tiesByID       bool           // the lowest id of a class instead of a uniform one
	keepTape       bool           // a join leaves the tapes of the others as they are
	preferAll      bool           // whatever is available is preferred: what is cached is early in every epoch
	countSlow      bool           // a slow job decides what stays in memory and which take counts, like any other
	seqVisible     bool           // what sequential jobs load is preferred like any other
	ownOrder       bool           // an epoch may go on with the order of the job's previous epoch
	firstBit       bool           // the first object of a block of 64 ids, at a random block (Joader as released)
	biased         bool           // a strict job that does not draw what its neighbour drew draws anything; one that follows always does
	followPrevious bool           // what a neighbour drew in an earlier turn is followed too
	left           func(*Sampler) // runs after a leave
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
	recipe   uint32
	kin      bits.JobSet     // live jobs of equal recipe prefix, itself included
	faster   bits.JobSet     // jobs beside which it is slow
	took     uint64          // picks, without what was withdrawn
	since    uint64          // of took, when others were last looked at
	fresh    bool            // it has begun no epoch yet
	met      bits.JobSet     // jobs that ran then
	began    [MaxJobs]uint64 // what they had taken
	near     bits.JobSet     // live jobs whose subsets share an object with this one
	overlap  [MaxJobs]uint32

	next   []ident.ObjectID // the subset from the next epoch on; nil = the same
	was    *formerly        // what Mark takes over from before a change of the subset
	todo   []pass           // passes to do; the first may be under way
	done   int              // how far the first has come
	err    error            // why it can never draw
	gone   bool             // it has left, and its slot is not free yet
	class  bool             // it is no job but a static class, and has no slot
	top    ident.ObjectID
	undone int           // of an abandoned epoch: samples that were left and have no tile yet
	room   [MaxTiles]int // tiles for them

	running bool // an epoch was started and not abandoned
	epoch   uint32
	rem     int

	at   index
	left []uint64 // by place: still needed; nil until the first epoch
	prev packed   // by place: tile of the object's position in the previous epoch
	cur  packed   // the same of this epoch, written at each pick

	groups groups
	tape   tape
	fellow fellow
	common []uint32 // of a job that draws without a tape, slot*tiles+tile: how much of the tile another such job needs too
	names  names
	stale  bool // groups and tape must be laid out anew before the next pick

	order   []uint32    // Fixed: ordinals in the order of the epoch
	shuffle fixedOrder  // makes it
	cursor  int         // Fixed, Sequential: no position below is free
	used    [2][]uint64 // names of the orders used in this epoch and in the previous one
}

// New returns a sampler without jobs. All its choices derive from seed.
func New(seed uint64) *Sampler {
	s := &Sampler{
		rng:     xrand.New(0x6473615f73616d70, seed),
		byID:    make(map[ident.JobID]*job),
		cells:   make([]cell, 1),
		latest:  unknown,
		holding: holding{owners: []owners{{jobs: ^bits.JobSet(0)}}},
		small:   smallCell,
		room:    MaxObjects,
	}
	s.avail.extend(1)
	s.seen = make([]uint64, 1)
	return s
}

// joined is the job of that id; nil = there is none.
func (s *Sampler) joined(id ident.JobID) *job {
	if j := s.last; j != nil && j.id == id {
		return j
	}
	j := s.byID[id]
	if j != nil {
		s.last = j
	}
	return j
}

// visible reports whether the job's demand reaches other jobs' choices: only orders that are blind to what an object is may.
func (j *job) visible() bool { return j.mode != Sequential }

// usesTape reports whether the job's picks may depend on what is available.
func (j *job) usesTape() bool { return j.mode == Stratified || j.mode == Epoch }

// Join registers a job; it is idle until StartEpoch and active. On an error nothing has changed. In slices, that the subset is no
// set shows later: see Err.
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
	if len(s.byID) >= MaxJobs {
		return fmt.Errorf("dsa: join job %d: %w: %d are joined, the limit is %d", id, ErrTooManyJobs, len(s.byID), MaxJobs)
	}
	if s.live.Len() >= MaxJobs {
		s.settle() // frees the slots of those that have left
	}
	j := &job{fresh: true, id: id, mode: spec.Mode, tiles: 1, seed: spec.Seed, ahead: spec.Ahead, recipe: spec.Recipe, subset: spec.Subset}
	if spec.Mode == Stratified {
		j.tiles = spec.Tiles
		if j.tiles == 0 {
			j.tiles = DefaultTiles
		}
	}
	for s.live.Has(j.slot) {
		j.slot++
	}
	s.byID[id], s.slot[j.slot] = j, j
	s.live, s.active = s.live.With(j.slot), s.active.With(j.slot)
	if j.usesTape() {
		s.tapeful = s.tapeful.With(j.slot)
	}
	if j.mode == Strict {
		s.strictly = s.strictly.With(j.slot)
	}
	if j.slot >= inlineSlots && s.marks.n == 0 {
		s.marks.extend(s.avail.n)
	}
	s.kindred()
	s.lookAhead()
	s.later(j, passScan, passGrow, passIndex, passForget, passCount, passSplit, passMembers)
	s.finish()
	if err := j.err; err != nil {
		s.Leave(id)
		return fmt.Errorf("dsa: join job %d: %w", id, err)
	}
	return nil
}

// lookAhead sets how far Strict jobs are drawn ahead: as far as the one that takes most at once.
func (s *Sampler) lookAhead() {
	s.ahead = minAhead
	for m := s.strictly; m != 0; m &= m - 1 {
		s.ahead = min(max(s.ahead, s.slot[first(m)].ahead), maxAhead)
	}
}

// SetRoom says how many samples stay available when those who loaded them have them; none, or some. With none, Stratified and Epoch
// jobs find only what others load at the same moment, and draw accordingly (follow.go) from their next epoch on. Without a word of
// it there is room.
func (s *Sampler) SetRoom(samples int) { s.room = max(samples, 0) }

// SetDecoding says whether decoded objects stay in memory. Where they do, an encoded object is preferred only instead of one that would be read
// (prefer.go). It is for Stratified and Epoch jobs, from their next epoch on at the latest. Without a word of it nothing stays decoded.
func (s *Sampler) SetDecoding(on bool) { s.decoding = on }

// Room is what SetRoom said.
func (s *Sampler) Room() int { return s.room }

// grow makes room for n objects.
func (s *Sampler) grow(n int) {
	s.obj.extend(n)
	if words := (s.obj.n + bitsPerWord - 1) / bitsPerWord; words > len(s.held) {
		s.held = append(s.held, make([]uint64, words-len(s.held))...)
	}
}

// StartEpoch makes the job need its whole subset again. An unfinished epoch is abandoned first. epoch is what a Fixed order
// is derived from; the other modes only keep it.
func (s *Sampler) StartEpoch(id ident.JobID, epoch uint32) error {
	j := s.byID[id]
	if j == nil {
		return fmt.Errorf("dsa: start epoch %d of job %d: %w", epoch, id, ErrNoJob)
	}
	s.abandon(j)
	if j.err != nil {
		return fmt.Errorf("dsa: start epoch %d of job %d: %w", epoch, id, j.err)
	}
	if j.next != nil {
		s.change(j)
	}
	j.running, j.epoch, j.rem, j.cursor = true, epoch, len(j.subset), 0
	if j.visible() {
		s.pace(j)
	}
	if j.visible() || len(j.todo) > 0 {
		s.later(j, passMark)
	} else {
		s.needAll(j)
	}
	if j.was != nil || j.tiles > 1 && j.has(passRenew) {
		s.later(j, passCarry)
	}
	if j.mode == Fixed {
		s.later(j, passShuffle)
	}
	s.finish()
	if j.err != nil {
		j.running, j.rem = false, 0
		return fmt.Errorf("dsa: start epoch %d of job %d: %w", epoch, id, j.err)
	}
	return nil
}

// needAll makes a job need its whole subset.
func (s *Sampler) needAll(j *job) {
	j.prev, j.cur = j.cur, j.prev
	j.left = append(j.left[:0], j.at.in...)
}

// FixedOrder returns the order of mode Fixed for n samples: position p of the epoch shows the sample of ordinal order[p]. It
// is the Fisher-Yates shuffle of 0..n-1 by xrand, seeded by (seed, epoch) alone. dst is reused when it is large enough.
func FixedOrder(dst []uint32, seed uint64, epoch uint32, n int) []uint32 {
	dst = resize(dst, n)
	var f fixedOrder
	f.begin(seed, epoch)
	f.slice(dst, 0, n)
	return dst
}

// fixedOrder makes an order of mode Fixed, in slices.
type fixedOrder struct{ rng xrand.Rand }

func (f *fixedOrder) begin(seed uint64, epoch uint32) {
	f.rng = *xrand.New(0x66697865645f6f72, seed, uint64(epoch))
}

// slice does steps from..to-1 of the shuffle, which goes down from the end; the first slice fills dst.
func (f *fixedOrder) slice(dst []uint32, from, to int) {
	if from == 0 {
		for i := range dst {
			dst[i] = uint32(i)
		}
	}
	n := len(dst)
	for i := n - 1 - from; i > n-1-to && i > 0; i-- {
		r := f.rng.IntN(i + 1)
		dst[i], dst[r] = dst[r], dst[i]
	}
}

// Abandon drops what remains of the job's epoch; the job is idle until StartEpoch. For the tiles of the next epoch the rest
// of the order counts as drawn uniformly and not delivered, which keeps the promise of Stratified.
func (s *Sampler) Abandon(id ident.JobID) {
	if j := s.byID[id]; j != nil {
		s.abandon(j)
		s.finish()
	}
}

func (s *Sampler) abandon(j *job) {
	if !j.running {
		return
	}
	if j.rem > 0 {
		marked := !j.has(passMark) || s.underway(j, passMark)
		s.drop(j, passMark, passCarry, passShuffle)
		if marked && j.visible() && j.err == nil {
			j.leaveUndone()
			s.later(j, passClear)
		}
	}
	j.names.queue, j.names.head = j.names.queue[:0], 0 // of a Strict job; openAll follows
	s.shown = s.shown.Without(j.slot)
	s.unlay(j)
	j.running, j.rem = false, 0
}

// leaveUndone makes tiles for what is left of the epoch.
func (j *job) leaveUndone() {
	j.undone = j.rem
	clear(j.room[:])
	if j.tiles == 1 {
		return
	}
	n := len(j.subset)
	for t := range j.tiles { // positions p with p*tiles/n = t that were not reached
		from, to := (t*n+j.tiles-1)/j.tiles, ((t+1)*n+j.tiles-1)/j.tiles
		j.room[t] = max(0, to-max(from, n-j.undone))
	}
}

// unlay says that the job's layout no longer holds.
func (s *Sampler) unlay(j *job) {
	s.grouped = s.grouped.Without(j.slot)
	s.following = s.following.Without(j.slot)
	j.fellow.drew = absent
	if s.lay.job == j {
		s.lay = laying{}
	}
	if j.usesTape() {
		j.stale, s.unlaid = true, true
	}
}

// Leave removes the job. Its subset stays in the cells: what it left in the cache must not tell objects apart.
func (s *Sampler) Leave(id ident.JobID) {
	j := s.byID[id]
	if j == nil {
		return
	}
	s.abandon(j)
	delete(s.byID, id)
	s.last, s.latest = nil, unknown
	j.gone = true
	s.active, s.tapeful, s.strictly = s.active.Without(j.slot), s.tapeful.Without(j.slot), s.strictly.Without(j.slot)
	s.recount(j)
	s.lookAhead()
	s.drop(j, passRenew, passScan, passGrow, passIndex, passForget, passCount, passSplit, passMembers)
	if len(j.todo) == 0 {
		s.released(j)
	}
	s.finish()
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
	s.forgetPace(j.slot)
	s.recount(j)
}

// Needs reports whether the job, active or not, still needs x in its running epoch.
func (s *Sampler) Needs(id ident.JobID, x ident.ObjectID) bool {
	j := s.byID[id]
	if j == nil || !j.running || j.err != nil || int(x) >= s.obj.n {
		return false
	}
	l, ok := j.at.find(uint32(x))
	if !ok || j.has(passIndex) {
		return false
	}
	if j.has(passMark) {
		return has(j.at.in, l)
	}
	return has(j.left, l)
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
		if j != nil && !j.gone {
			ids = append(ids, j.id)
		}
	}
	slices.Sort(ids)
	return ids
}
