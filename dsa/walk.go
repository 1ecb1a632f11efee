package dsa

import (
	"fmt"
	"slices"

	"larder/internal/bits"
	"larder/internal/ident"
	"larder/internal/invariant"
	"larder/internal/xrand"
)

// NoBlock is the block of an object that lies in none. Such objects are drawn together, and nothing is held for them.
const NoBlock = ^uint32(0)

// BlockMove says that a job of mode Blocks begins to hold a block in memory, or needs it no more for its next picks.
type BlockMove struct {
	Job   ident.JobID
	Block uint32
	In    bool
}

// walk is the epoch of a job of mode Blocks. Block t of the epoch stays for W chunks, t to t+W-1, and gives each of
// them an equal part of its samples, drawn at random. Chunks 0 to W-2 are one chunk, and so are those from that on in
// which the last block comes. So at most W blocks are drawn from, and one more is being read.
//
// Nothing of it is known to other jobs' orders: it neither joins cells nor enters the pool, and what it takes is
// neutral (Touch).
type walk struct {
	id     ident.JobID
	of     func(ident.ObjectID) uint32
	width  int // W
	seed   uint64
	subset []ident.ObjectID
	next   []ident.ObjectID // the subset from the next epoch on; nil = the same
	err    error            // why it can never draw

	// The blocks of the subset, by place. They are found in slices.
	built   int // objects of the subset that are entered
	all     *bits.Set
	place   map[uint32]int // lookups only
	blocks  []uint32
	members [][]ident.ObjectID
	took    []uint32 // which entry of the walk the block was last; 0 = none
	entries uint32
	beside  uint32 // blocks that it chose while there were other walks

	phase   walkPhase
	left    *bits.Set // what the epoch owes; nil while that is everything
	rng     *xrand.Rand
	order   []int32 // places of blocks, the last one comes next; some may have come already
	waiting []bool  // by place: it has not come
	waits   int     // how many have not
	holds   []bool  // by place: it is in the window, or ahead
	window  []resident
	ahead   int // the place of the block that comes next and is held already; -1 = none
	chunk   []ident.ObjectID
}

// walkPhase is the life of an epoch:
//
//	idle -> begun      StartEpoch
//	begun -> walking   the first pick
//	any -> idle        Abandon
type walkPhase uint8

const (
	walkIdle walkPhase = iota
	walkBegun
	walkWalking
)

// resident is a block in the window.
type resident struct {
	place  int
	items  []ident.ObjectID // that no chunk has, in random order
	slices int              // chunks that get a part of them
}

// walks are the jobs of mode Blocks, in the order in which they joined.
type walks struct {
	byID  map[ident.JobID]*walk // lookups only
	list  []*walk
	moves []BlockMove
	dice  *xrand.Rand // of what no order of a lone job may depend on
}

// admit refuses what can never be walked.
func (ws *walks) admit(id ident.JobID, spec JobSpec) error {
	switch {
	case ws.byID[id] != nil:
		return ErrJobExists
	case len(spec.Subset) == 0:
		return ErrEmptySubset
	case spec.Window < 1 || spec.Block == nil:
		return fmt.Errorf("%w: %d blocks", ErrWindow, spec.Window)
	case len(ws.list) >= MaxJobs:
		return fmt.Errorf("%w: %d walk through blocks, the limit is %d", ErrTooManyJobs, len(ws.list), MaxJobs)
	}
	return nil
}

// join adds a job; its blocks are to be found.
func (ws *walks) join(id ident.JobID, spec JobSpec) *walk {
	w := &walk{id: id, of: spec.Block, width: spec.Window, seed: spec.Seed, ahead: -1}
	w.renew(spec.Subset)
	ws.byID[id] = w
	ws.list = append(ws.list, w)
	return w
}

// renew gives an idle walk its subset.
func (w *walk) renew(subset []ident.ObjectID) {
	w.subset, w.next, w.err = subset, nil, nil
	w.built, w.all, w.place = 0, new(bits.Set), map[uint32]int{}
	w.blocks, w.members, w.took, w.entries = nil, nil, nil, 0
}

// build enters up to budget objects, and returns how many.
func (w *walk) build(budget int) int {
	from := w.built
	for w.built < len(w.subset) && w.built-from < budget && w.err == nil {
		x := w.subset[w.built]
		switch {
		case x >= MaxObjects:
			w.err = fmt.Errorf("%w: %d", ErrObjectID, x)
			continue
		case !w.all.Add(uint32(x)):
			w.err = fmt.Errorf("%w: %d", ErrDuplicateObject, x)
			continue
		}
		p := w.placeOf(w.of(x))
		w.members[p] = append(w.members[p], x)
		w.built++
	}
	return w.built - from
}

func (w *walk) placeOf(block uint32) int {
	p, ok := w.place[block]
	if !ok {
		p = len(w.blocks)
		w.place[block] = p
		w.blocks, w.members, w.took = append(w.blocks, block), append(w.members, nil), append(w.took, 0)
	}
	return p
}

// ready reports whether all blocks are known.
func (w *walk) ready() bool { return w.err == nil && w.built == len(w.subset) }

// settle finds what is left to find, and makes what is owed a set of its own.
func (w *walk) settle() bool {
	w.build(len(w.subset))
	if w.err == nil && w.left == nil && w.phase != walkIdle {
		w.left = w.all.Clone()
	}
	return w.err == nil
}

// remaining is how many samples the epoch owes.
func (w *walk) remaining() int {
	switch {
	case w.phase == walkIdle:
		return 0
	case w.left == nil:
		return len(w.subset)
	}
	return w.left.Len()
}

// start begins an epoch. Alone, its order is a pure function of seed and epoch.
func (ws *walks) start(w *walk, epoch uint32) {
	ws.abandon(w)
	if w.next != nil {
		w.renew(w.next)
	}
	w.rng = xrand.New(0x6473615f77616c6b, w.seed, uint64(epoch))
	w.phase = walkBegun
}

// abandon ends the epoch; nothing is held any more.
func (ws *walks) abandon(w *walk) {
	ws.release(w)
	w.left, w.order, w.waiting, w.holds, w.waits, w.phase = nil, nil, nil, nil, 0, walkIdle
}

// release drops everything that is held.
func (ws *walks) release(w *walk) {
	for i := range w.window {
		ws.move(w, w.window[i].place, false)
	}
	if w.ahead >= 0 {
		ws.move(w, w.ahead, false)
	}
	w.window, w.chunk, w.ahead = w.window[:0], w.chunk[:0], -1
}

func (ws *walks) move(w *walk, place int, in bool) {
	w.holds[place] = in
	if b := w.blocks[place]; b != NoBlock {
		ws.moves = append(ws.moves, BlockMove{w.id, b, in})
	}
}

// leave removes a job.
func (ws *walks) leave(w *walk) {
	ws.abandon(w)
	delete(ws.byID, w.id)
	ws.list = slices.DeleteFunc(ws.list, func(o *walk) bool { return o == w })
}

// pick commits the next sample. REQUIRES: ready.
func (ws *walks) pick(w *walk) (ident.ObjectID, bool) {
	if w.remaining() == 0 || !w.settle() {
		return 0, false
	}
	for len(w.chunk) == 0 {
		ws.refill(w)
	}
	x := w.chunk[len(w.chunk)-1]
	w.chunk = w.chunk[:len(w.chunk)-1]
	w.left.Remove(uint32(x))
	if w.left.Len() == 0 {
		ws.release(w)
	}
	return x, true
}

// refill makes the next chunk.
func (ws *walks) refill(w *walk) {
	keep := w.window[:0]
	for _, r := range w.window {
		if len(r.items) > 0 {
			keep = append(keep, r)
			continue
		}
		ws.move(w, r.place, false)
	}
	w.window = keep
	first := w.phase == walkBegun
	if first {
		w.layOut()
		for k := range max(w.width-1, 1) { // those that came before, had the epoch no beginning
			if p := ws.choose(w, first); p >= 0 {
				w.enter(p, k+1)
			}
		}
	} else if w.ahead >= 0 && len(w.window) < w.width { // it is full where samples came back to a block that was done
		w.enter(w.ahead, w.width)
		w.ahead = -1
	}
	if w.ahead < 0 {
		w.ahead = ws.choose(w, first)
	}
	if w.ahead < 0 && len(w.window) == 0 {
		invariant.Violated("dsa: job %d owes %d samples, and no block has any", w.id, w.remaining())
	}
	for i := range w.window {
		r := &w.window[i]
		switch {
		case w.ahead < 0:
			w.give(r, len(r.items))
		case first && w.width > 1: // r.slices of W parts stay
			w.give(r, w.part(len(r.items)*(w.width-r.slices), w.width))
		default:
			w.give(r, w.part(len(r.items), r.slices))
			r.slices = max(r.slices-1, 1)
		}
	}
	w.rng.Shuffle(len(w.chunk), func(i, j int) { w.chunk[i], w.chunk[j] = w.chunk[j], w.chunk[i] })
}

// layOut draws the order of the blocks. Those of which nothing is owed do not come.
func (w *walk) layOut() {
	w.phase = walkWalking
	w.order = make([]int32, len(w.blocks))
	w.waiting, w.holds = make([]bool, len(w.blocks)), make([]bool, len(w.blocks))
	for i := range w.order {
		w.order[i], w.waiting[i] = int32(i), true
	}
	w.waits = len(w.order)
	w.rng.Shuffle(len(w.order), func(i, j int) { w.order[i], w.order[j] = w.order[j], w.order[i] })
}

// enter takes a block into the window: what the epoch owes of it.
func (w *walk) enter(p, slices int) {
	r := resident{place: p, slices: slices}
	for _, x := range w.members[p] {
		if w.left.Has(uint32(x)) {
			r.items = append(r.items, x)
		}
	}
	w.rng.Shuffle(len(r.items), func(i, j int) { r.items[i], r.items[j] = r.items[j], r.items[i] })
	w.window = append(w.window, r)
}

// part is n/of, rounded at random.
func (w *walk) part(n, of int) int {
	k := n / of
	if rest := n % of; rest > 0 && w.rng.IntN(of) < rest {
		k++
	}
	return k
}

// give moves n samples of a block to the chunk.
func (w *walk) give(r *resident, n int) {
	at := len(r.items) - n
	w.chunk = append(w.chunk, r.items[at:]...)
	r.items = r.items[:at]
}

// owes reports whether the epoch owes a sample of a block.
func (w *walk) owes(p int) bool {
	for _, x := range w.members[p] {
		if w.left.Has(uint32(x)) {
			return true
		}
	}
	return false
}

// giveBack takes back picks of the running epoch. A block that has left comes once more, with them alone.
func (w *walk) giveBack(ids []ident.ObjectID) {
	if w.phase == walkIdle || !w.settle() {
		return
	}
	places := w.entered(ids)
	for _, x := range ids {
		if !w.all.Has(uint32(x)) || !w.left.Add(uint32(x)) || w.phase != walkWalking {
			continue
		}
		p := places[x]
		if w.held(p, x) || w.waiting[p] || p == w.ahead {
			continue
		}
		w.waiting[p] = true
		w.waits++
		w.order = append(w.order, int32(p))
	}
}

// entered finds the blocks that objects were entered with. Their file may be another one by now, so that Block says
// something else.
func (w *walk) entered(ids []ident.ObjectID) map[ident.ObjectID]int {
	places := make(map[ident.ObjectID]int, len(ids))
	changed := new(bits.Set)
	for _, x := range ids {
		if p, ok := w.place[w.of(x)]; ok && slices.Contains(w.members[p], x) {
			places[x] = p
		} else {
			changed.Add(uint32(x))
		}
	}
	if changed.Len() == 0 {
		return places
	}
	for p, members := range w.members {
		for _, x := range members {
			if changed.Has(uint32(x)) {
				places[x] = p
			}
		}
	}
	return places
}

// held gives x back to its block, if that is in the window.
func (w *walk) held(p int, x ident.ObjectID) bool {
	for i := range w.window {
		if r := &w.window[i]; r.place == p {
			at := w.rng.IntN(len(r.items) + 1)
			r.items = append(r.items, x)
			r.items[at], r.items[len(r.items)-1] = x, r.items[at]
			return true
		}
	}
	return false
}

// withdraw takes objects out of what is owed, and returns how many were.
func (ws *walks) withdraw(w *walk, ids []ident.ObjectID) int {
	if w.phase == walkIdle || !w.settle() {
		return 0
	}
	n := 0
	for _, x := range ids {
		if w.left.Remove(uint32(x)) {
			n++
		}
	}
	if n == 0 {
		return 0
	}
	gone := func(x ident.ObjectID) bool { return !w.left.Has(uint32(x)) }
	w.chunk = slices.DeleteFunc(w.chunk, gone)
	for i := range w.window {
		w.window[i].items = slices.DeleteFunc(w.window[i].items, gone)
	}
	if w.left.Len() == 0 {
		ws.release(w)
	}
	return n
}

// work finds blocks of up to budget objects, and returns how many it looked at.
func (ws *walks) work(budget int) int {
	spent := 0
	for _, w := range ws.list {
		if spent < budget && w.err == nil {
			spent += w.build(budget - spent)
		}
	}
	return spent
}

// hasWork reports whether some walk has blocks to find.
func (ws *walks) hasWork() bool {
	for _, w := range ws.list {
		if w.err == nil && w.built < len(w.subset) {
			return true
		}
	}
	return false
}

// Check verifies that every sample that is owed can still come, and once.
func (ws *walks) Check() error {
	if len(ws.list) != len(ws.byID) {
		return fmt.Errorf("%d walks are listed, %d by id", len(ws.list), len(ws.byID))
	}
	for _, w := range ws.list {
		if err := w.check(); err != nil {
			return fmt.Errorf("job %d (blocks): %w", w.id, err)
		}
	}
	return nil
}

func (w *walk) check() error {
	if w.phase != walkWalking {
		return nil
	}
	if len(w.window) > w.width {
		return fmt.Errorf("%d blocks are in a window of %d", len(w.window), w.width)
	}
	seen := new(bits.Set)
	count := func(ids []ident.ObjectID) error {
		for _, x := range ids {
			if w.left.Has(uint32(x)) && !seen.Add(uint32(x)) {
				return fmt.Errorf("object %d would come twice", x)
			}
		}
		return nil
	}
	if err := count(w.chunk); err != nil {
		return err
	}
	for i := range w.window {
		if err := count(w.window[i].items); err != nil {
			return err
		}
	}
	for p, wait := range w.waiting {
		if wait || p == w.ahead {
			if err := count(w.members[p]); err != nil {
				return err
			}
		}
	}
	if seen.Len() != w.left.Len() {
		return fmt.Errorf("%d samples will come, %d are owed", seen.Len(), w.left.Len())
	}
	return nil
}
