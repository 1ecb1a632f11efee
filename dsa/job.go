package dsa

import (
	"larder/internal/bits"
	"larder/internal/ident"
	"larder/internal/invariant"
	"larder/internal/xrand"
)

// job is one stream of picks. What every pick reads comes first: the large tables at the end would otherwise spread it
// over the processor's cache.
type job struct {
	jobSpec
	slot  uint8 // its place in roster.slot, the bit that stands for it in a JobSet
	phase jobPhase
	stale bool // groups and tape must be laid out before the next pick

	owed  owed       // what the running epoch owes
	index index      // a place for each object of the subset
	tiled epochTiles // by place: the tiles of two epochs

	// How it draws.
	prescribed prescribedOrder // Fixed, Sequential
	queue      strictQueue     // Strict
	tape       tape            // Stratified, Epoch
	scan       scan            // Stratified, Epoch, where cells are too small to choose in
	groups     groups          // what is left, by row and tile, and what of it is available
	follower   follower        // Stratified, Epoch, without a tape

	passes jobPasses    // what calls have left to do for it (work.go)
	orders orderHistory // which orders it has walked through
	peers  peers        // what it shares with which jobs; its end and the beginning of pace are read together
	pace   pace         // how fast it goes beside them
	quota  tileQuota    // tiles for what an abandoned epoch leaves
}

// jobPhase is the life of a job:
//
//	idle -> running      StartEpoch
//	running -> idle      Abandon, or a start that fails
//	idle -> left         Leave; the slot is free when its passes are done
//
// A stratum is no job and has no slot: it only splits cells, and stays what it is.
type jobPhase uint8

const (
	jobIdle    jobPhase = iota // it has joined, and no epoch runs
	jobRunning                 // an epoch was started and not abandoned, though it may owe nothing more
	jobLeft                    // it has left, but passes must end before its slot is free
	jobStratum                 // see Stratum
)

// become takes the job to another phase.
func (j *job) become(to jobPhase) {
	if idle := j.phase == jobIdle; idle == (to == jobIdle) || !idle && j.phase != jobRunning || to == jobStratum {
		invariant.Violated("dsa: job %d goes from phase %d to %d", j.id, j.phase, to)
	}
	j.phase = to
}

// running reports whether an epoch was started and not abandoned.
func (j *job) running() bool { return j.phase == jobRunning }

// owed is what the running epoch of a job owes.
//
// Invariant: without passes to do, remaining is the number of places in left; it is 0 unless the job runs.
type owed struct {
	left      []uint64 // by place: still needed; nil until the first epoch
	remaining int      // samples that are needed
	epoch     uint32
	fresh     bool // no epoch has begun yet
}

// epochTiles are the tiles of the objects' positions in two epochs of a job. Both are empty if it has one tile.
type epochTiles struct {
	prev packed // by place: of the previous epoch; cells are refined by it
	cur  packed // by place: of this epoch, written at each pick
}

// begin makes room for n places.
func (t *epochTiles) begin(tiles, n int) { t.prev, t.cur = pack(tiles, n), pack(tiles, n) }

// turn makes the tiles of the epoch that ended those of the previous one.
func (t *epochTiles) turn() { t.prev, t.cur = t.cur, t.prev }

// peers is what a job shares with others.
//
// Invariant: a job is in neighbours exactly if its overlap is above 0, and overlaps are mutual.
type peers struct {
	overlap    [MaxJobs]uint32 // by slot: how many objects it shares with a neighbour
	neighbours bits.JobSet     // live jobs whose subsets share an object with this one
	sameRecipe bits.JobSet     // live jobs of an equal recipe prefix, itself included
}

// forget removes the job in that slot from the neighbours.
func (p *peers) forget(slot uint8) {
	p.neighbours, p.overlap[slot] = p.neighbours.Without(slot), 0
}

// jobSpec is the part of a JobSpec that a job keeps.
type jobSpec struct {
	id     ident.JobID
	mode   Mode
	tiles  int // 1 where cells are not refined by tiles
	seed   uint64
	recipe uint32
	ahead  int
	subset []ident.ObjectID
	next   []ident.ObjectID // the subset from the next epoch on; nil = the same
	before *oldSubset       // what passCarry reads after a change of the subset
}

// visible reports whether the job's demand reaches other jobs' choices. Only orders that cannot tell objects apart may.
func (j *job) visible() bool { return j.mode != Sequential }

// usesTape reports whether the job's picks may depend on what is available.
func (j *job) usesTape() bool { return j.mode == Stratified || j.mode == Epoch }

// needs reports whether the job's running epoch still owes x. It holds between passes, too.
func (j *job) needs(x uint32) bool {
	if !j.running() || j.passes.err != nil || j.passes.has(passIndex) {
		return false
	}
	l, ok := j.index.find(x)
	if !ok {
		return false
	}
	if j.passes.has(passMark) {
		return has(j.index.in, l)
	}
	return has(j.owed.left, l)
}

// needAll makes the job need its whole subset, and turns the tiles of the epoch that ended into those of the previous
// one.
func (j *job) needAll() {
	j.tiled.turn()
	j.owed.left = append(j.owed.left[:0], j.index.in...)
}

// withdraw takes objects out of what the job needs, and returns how many. It is Withdraw while only the job's own state
// changes, in a third of the time. Jobs come back with millions of samples.
func (j *job) withdraw(ids []ident.ObjectID, known *objectTable) int {
	total := len(j.subset)
	before := total - j.owed.remaining
	taken, tile, edge := before, 0, 0 // edge: the samples before the end of the tile
	for _, x := range ids {
		if !known.known(uint32(x)) {
			continue
		}
		l, ok := j.index.find(uint32(x))
		if !ok {
			continue
		}
		w, bit := &j.owed.left[l>>6], uint64(1)<<(l&63)
		if *w&bit == 0 {
			continue
		}
		*w ^= bit
		if j.tiles > 1 {
			if taken >= edge {
				tile = taken * j.tiles / total
				edge = ((tile+1)*total + j.tiles - 1) / j.tiles
			}
			j.tiled.cur.set(l, uint8(tile))
		}
		taken++
	}
	j.owed.remaining = total - taken
	return taken - before
}

// setTile records the tile of the pick at place l, before the pick is counted.
func (j *job) setTile(l uint32) {
	n := len(j.subset)
	j.tiled.cur.set(l, uint8((n-j.owed.remaining)*j.tiles/n))
}

// tileQuota is how many of the samples that an abandoned epoch leaves each tile gets.
//
// Invariant: left adds up to samples if the job has more than one tile.
type tileQuota struct {
	samples int           // that have no tile yet
	left    [MaxTiles]int // how many of them each tile gets
}

// plan counts the tiles of the last samples of n, as if the rest of the order had been drawn.
func (q *tileQuota) plan(samples, n, tiles int) {
	q.samples = samples
	clear(q.left[:])
	if tiles == 1 {
		return
	}
	for t := range tiles { // positions p with p*tiles/n = t that were not reached
		from, to := (t*n+tiles-1)/tiles, ((t+1)*n+tiles-1)/tiles
		q.left[t] = max(0, to-max(from, n-samples))
	}
}

// draw draws the tile of one sample.
func (q *tileQuota) draw(rng *xrand.Rand) uint8 {
	u, t := rng.IntN(q.samples), 0
	for u >= q.left[t] {
		u -= q.left[t]
		t++
	}
	q.left[t]--
	q.samples--
	return uint8(t)
}
