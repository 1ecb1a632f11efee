package dsa

import (
	"slices"

	"larder/internal/bits"
	"larder/internal/ident"
	"larder/internal/xrand"
)

// job is one stream of picks. Its fields are grouped by the component that writes them, with those that every pick
// reads first: the large tables at the end would otherwise spread them over the processor's cache.
type job struct {
	jobSpec
	slot  uint8 // its place in roster.slot, the bit that stands for it in a JobSet
	stale bool  // groups and tape must be laid out before the next pick

	// The epoch.
	running   bool // an epoch was started and not abandoned
	fresh     bool // no epoch has begun yet
	epoch     uint32
	remaining int    // samples that the running epoch still owes
	took      uint64 // picks of all epochs, without what was withdrawn

	// The index of the subset.
	left  []uint64 // by place: still needed; nil until the first epoch
	index index
	prev  packed // by place: tile of the object's position in the previous epoch
	cur   packed // by place: the same of this epoch, written at each pick

	// How it draws.
	cursor     int         // Fixed, Sequential: no position below is free
	order      []uint32    // Fixed: ordinals in the order of the epoch
	queue      strictQueue // Strict
	tape       tape        // Stratified, Epoch
	groups     groups      // what is left, by row and tile, and what of it is available
	lastDraw   drawn       // of a job that draws without a tape
	common     []uint32    // of such a job, by slot*tiles+tile: objects of the tile that another such job needs too
	used       [2][]uint64 // names of the orders used in this epoch and in the previous one
	shuffle    fixedOrder  // makes order
	neighbours bits.JobSet // live jobs whose subsets share an object with this one
	sameRecipe bits.JobSet // live jobs of an equal recipe prefix, itself included

	// Passes (work.go).
	todo []pass         // passes to do; the first may be under way
	done int            // how far the first has come
	top  ident.ObjectID // largest id of the subset, from passScan
	err  error          // why it can never draw; nil for a sound job

	// Life.
	joinedAt uint64 // tapes.joins when its cells were split; dates orders
	class    bool   // it is a stratum and no job: it has no slot
	gone     bool   // it has left, but passes must end before its slot is free

	pace      pace
	overlap   [MaxJobs]uint32 // by slot: how many objects it shares with a neighbour
	abandoned int             // samples of an abandoned epoch that have no tile yet
	tilesLeft [MaxTiles]int   // how many of them each tile gets
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
	if !j.running || j.err != nil || j.has(passIndex) {
		return false
	}
	l, ok := j.index.find(x)
	if !ok {
		return false
	}
	if j.has(passMark) {
		return has(j.index.in, l)
	}
	return has(j.left, l)
}

// needAll makes the job need its whole subset, and turns the tiles of the epoch that ended into those of the previous
// one.
func (j *job) needAll() {
	j.prev, j.cur = j.cur, j.prev
	j.left = append(j.left[:0], j.index.in...)
}

// withdraw takes objects out of what the job needs, and returns how many. It is Withdraw while only the job's own state
// changes, in a third of the time. Jobs come back with millions of samples.
func (j *job) withdraw(ids []ident.ObjectID, known *objectTable) int {
	total := len(j.subset)
	before := total - j.remaining
	taken, tile, edge := before, 0, 0 // edge: the samples before the end of the tile
	for _, x := range ids {
		if !known.known(uint32(x)) {
			continue
		}
		l, ok := j.index.find(uint32(x))
		if !ok {
			continue
		}
		w, bit := &j.left[l>>6], uint64(1)<<(l&63)
		if *w&bit == 0 {
			continue
		}
		*w ^= bit
		if j.tiles > 1 {
			if taken >= edge {
				tile = taken * j.tiles / total
				edge = ((tile+1)*total + j.tiles - 1) / j.tiles
			}
			j.cur.set(l, uint8(tile))
		}
		taken++
	}
	j.remaining = total - taken
	return taken - before
}

// setTile records the tile of the pick at place l, before the pick is counted.
func (j *job) setTile(l uint32) {
	n := len(j.subset)
	j.cur.set(l, uint8((n-j.remaining)*j.tiles/n))
}

// planTiles counts how many samples that an abandoned epoch leaves each tile gets, as if the rest of the order had been
// drawn.
func (j *job) planTiles() {
	j.abandoned = j.remaining
	clear(j.tilesLeft[:])
	if j.tiles == 1 {
		return
	}
	n := len(j.subset)
	for t := range j.tiles { // positions p with p*tiles/n = t that were not reached
		from, to := (t*n+j.tiles-1)/j.tiles, ((t+1)*n+j.tiles-1)/j.tiles
		j.tilesLeft[t] = max(0, to-max(from, n-j.abandoned))
	}
}

// drawTile draws the tile of one sample of an abandoned epoch.
func (j *job) drawTile(rng *xrand.Rand) uint8 {
	u, t := rng.IntN(j.abandoned), 0
	for u >= j.tilesLeft[t] {
		u -= j.tilesLeft[t]
		t++
	}
	j.tilesLeft[t]--
	j.abandoned--
	return uint8(t)
}

// has reports whether a pass of the job waits or is under way.
func (j *job) has(p pass) bool { return slices.Contains(j.todo, p) }
