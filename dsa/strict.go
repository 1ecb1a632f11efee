package dsa

import (
	"fmt"
	mathbits "math/bits"

	"larder/internal/bits"
	"larder/internal/xrand"
)

// strictDraws draws for Strict jobs. A job whose queue is empty and that picks starts a round: it, and every strict job
// that shares samples with it, directly or through others, and has room draw one sample each. The others keep theirs in
// a queue until they pick. So strict jobs that run side by side draw equally often, whatever their batches, and can be
// coupled at each draw. (Drawn one by one, when each happens to need one, four aligned jobs load 2.5 times the data;
// together, once.)
//
// The promise: given everything that ever happened, all earlier draws of all jobs included, each draw of a round is
// uniform over what its job has not drawn yet. The draws of one round depend on each other as much as that allows. Jobs
// follow each other from the most to the fewest open samples, each coupled maximally to the one before with which it
// shares most. With a and b <= a open samples of which i are common, both draw the same with probability i/a, the
// maximum. It is done by rejection (Thorisson 2000), one membership test on average, without cells and for any number
// of jobs.
type strictDraws struct {
	rng   *xrand.Rand
	jobs  *roster
	draws *draws

	ahead int // how many samples may wait in the queue of a job
}

// Limits of a strict job's queue, in samples.
const (
	minAhead = 256     // with less, jobs of unlike batches do not meet
	maxAhead = 1 << 14 // draws further ahead would reflect little of what has happened since
)

// maxCoupled bounds the expected number of rejections of one draw: on average one of so many draws is not coupled
// although it could be. With that many samples or fewer every draw is.
const maxCoupled = 1 << 14

// strictQueue is the state of a Strict job. What it needs is either open (not drawn yet) or in the queue.
type strictQueue struct {
	open  []uint64 // by place: not drawn yet
	nOpen int      // how many
	drawn []uint32 // drawn objects, the oldest at head
	head  int
}

// queued returns how many drawn objects wait.
func (q *strictQueue) queued() int { return len(q.drawn) - q.head }

// openAll opens everything that the job needs.
func (j *job) openAll() {
	q := &j.queue
	q.open = append(q.open[:0], j.owed.left...)
	q.nOpen, q.drawn, q.head = j.owed.remaining, q.drawn[:0], 0
	j.groups.tail.stage = tailNone
}

// discardQueue opens what is in the job's queue, because what the job may draw from changes: the queue would not be
// uniform over it.
func (j *job) discardQueue() {
	q := &j.queue
	for _, x := range q.drawn[q.head:] {
		j.openPlace(j.index.of(x))
	}
	q.drawn, q.head = q.drawn[:0], 0
}

// mayDraw reports whether the job may still draw x.
func (j *job) mayDraw(x uint32) bool {
	l, ok := j.index.find(x)
	return ok && has(j.queue.open, l)
}

// enqueue puts x, which is open, at the end of the queue.
func (j *job) enqueue(x uint32) {
	q := &j.queue
	j.closePlace(j.index.of(x))
	if len(q.drawn) == cap(q.drawn) && q.head > 0 {
		q.drawn = q.drawn[:copy(q.drawn, q.drawn[q.head:])]
		q.head = 0
	}
	q.drawn = append(q.drawn, x)
}

// closePlace closes a place.
func (j *job) closePlace(l uint32) {
	unset(j.queue.open, l)
	j.queue.nOpen--
}

// openPlace opens a place.
func (j *job) openPlace(l uint32) {
	set(j.queue.open, l)
	j.queue.nOpen++
	j.groups.tail.stage = tailNone
}

// setAhead sets how far jobs are drawn ahead: as far as the one that takes most at once.
func (t *strictDraws) setAhead() {
	t.ahead = minAhead
	for m := t.jobs.strict; m != 0; m &= m - 1 {
		t.ahead = min(max(t.ahead, t.jobs.slot[first(m)].ahead), maxAhead)
	}
}

// pick takes the oldest draw of the queue, after a round if it is empty.
func (t *strictDraws) pick(j *job) uint32 {
	q := &j.queue
	if q.queued() == 0 {
		if j.peers.neighbours&t.jobs.strict&^(1<<j.slot) == 0 { // a round for itself alone
			x := t.drawOpen(j)
			j.closePlace(j.index.of(x))
			return x
		}
		t.round(j)
	}
	x := q.drawn[q.head]
	if q.head++; q.head == len(q.drawn) {
		q.drawn, q.head = q.drawn[:0], 0
	}
	return x
}

// round draws once for the job and for every strict job that takes part.
func (t *strictDraws) round(starts *job) {
	var in [MaxJobs]*job
	n := t.together(starts, &in)
	var drew [MaxJobs]uint32
	var size [MaxJobs]int // of what it drew from
	for k, j := range in[:n] {
		size[k] = j.queue.nOpen
		p := -1
		for i, o := range in[:k] {
			if c := j.peers.overlap[o.slot]; c > 0 && (p < 0 || c >= j.peers.overlap[in[p].slot]) {
				p = i
			}
		}
		if p < 0 {
			drew[k] = t.drawOpen(j)
		} else {
			drew[k] = t.drawCoupled(j, in[p], drew[p], size[p])
		}
		j.enqueue(drew[k])
	}
}

// together lists who takes part in a round of a job, by falling number of open samples.
func (t *strictDraws) together(starts *job, in *[MaxJobs]*job) int {
	in[0] = starts
	n := 1
	met := bits.JobSet(0).With(starts.slot)
	for todo := starts.peers.neighbours & t.jobs.strict &^ met; todo != 0; {
		j := t.jobs.slot[first(todo)]
		met = met.With(j.slot)
		todo = (todo | j.peers.neighbours&t.jobs.strict) &^ met
		if !j.running() || j.passes.has(passMark) || !t.jobs.active.Has(j.slot) || j.queue.queued() >= t.ahead {
			continue
		}
		if j.queue.nOpen == 0 {
			continue
		}
		k := n
		for ; k > 0 && (in[k-1].queue.nOpen < j.queue.nOpen ||
			in[k-1].queue.nOpen == j.queue.nOpen && in[k-1].slot > j.slot); k-- {
			in[k] = in[k-1]
		}
		in[k] = j
		n++
	}
	return n
}

// drawOpen draws uniformly from what the job has not drawn.
func (t *strictDraws) drawOpen(j *job) uint32 {
	return j.index.object(t.draws.draw(j, anyRow, -1))
}

// drawCoupled draws uniformly from what j has not drawn, as often as possible the x that p has just drawn uniformly
// from a samples; a is at least what j draws from. One time in maxCoupled the coupling is left out (Gerber, Lee 2020):
// where both sets are nearly equal, it would otherwise rarely take a very long search for what only j has.
func (t *strictDraws) drawCoupled(j, p *job, x uint32, a int) uint32 {
	couple := a <= maxCoupled || t.rng.Uint64n(maxCoupled) != 0
	if couple && j.mayDraw(x) {
		return x
	}
	// What remains of j's law: 1/b where p cannot draw, 1/b - eta/a where it can; eta = 1, or 1 - 1/maxCoupled.
	b := j.queue.nOpen
	for {
		y := t.drawOpen(j)
		if y != x && !p.mayDraw(y) {
			return y
		}
		if u := int(t.rng.Uint64n(uint64(a))); u >= b || a > maxCoupled && t.rng.Uint64n(maxCoupled) == 0 {
			return y
		}
	}
}

// Check verifies that what a running Strict job needs is either open or in its queue, and that no queue is longer than
// a round may make it.
func (t *strictDraws) Check(j *job) error {
	q := &j.queue
	if t.ahead < max(minAhead, min(j.ahead, maxAhead)) || t.ahead > maxAhead {
		return fmt.Errorf("%d samples may be queued, the job's window is %d", t.ahead, j.ahead)
	}
	open := 0
	for i, w := range q.open {
		open += mathbits.OnesCount64(w)
		if w&^j.owed.left[i] != 0 {
			return fmt.Errorf("places %x of word %d are open and not needed", w&^j.owed.left[i], i)
		}
	}
	if open != q.nOpen || q.nOpen+q.queued() != j.owed.remaining || q.queued() > maxAhead+1 {
		return fmt.Errorf("%d are open, counted %d, %d queued, %d left", open, q.nOpen, q.queued(), j.owed.remaining)
	}
	for _, x := range q.drawn[q.head:] {
		if l := j.index.of(x); has(q.open, l) || !has(j.owed.left, l) {
			return fmt.Errorf("object %d is queued: open %v, needed %v", x, has(q.open, l), has(j.owed.left, l))
		}
	}
	return nil
}
