package dsa

import (
	"larder/internal/bits"
)

// Strict draws. A job whose queue is empty and who is asked for a pick starts a round: it and every strict job that shares
// samples with it, directly or through others, and has room draw one sample each; the others keep theirs in a queue until they are
// asked. So strict jobs that run side by side draw equally often, whatever their batches, and can be coupled at each draw.
// (Drawn one by one, when each happens to need one, four aligned jobs load 2.5 times the data; together, once.)
//
// The promise: given everything that ever happened, all earlier draws of all jobs included, each draw of a round is uniform over
// what its job has not drawn yet. The draws of one round depend on each other as much as that allows: jobs follow each other
// from the most to the fewest undrawn samples, each coupled maximally to the one before with which it shares most. With a and
// b <= a undrawn samples of which i are common, both draw the same with probability i/a, the most there is. It is done by
// rejection (Thorisson 2000), one membership test on average, without cells and for any number of jobs.

// Limits of a strict job's queue, in samples.
const (
	minAhead = 256     // with less, jobs of unlike batches do not meet
	maxAhead = 1 << 14 // draws further ahead would say little about what has happened since
)

// tryOut bounds the expected number of rejections of one draw: of that many draws one, on average, is not coupled though it could
// be. Below that many samples it never happens.
const tryOut = 1 << 14

// names is the state of a Strict job. What it needs is either open or in the queue.
type names struct {
	open    []uint64 // by place: not drawn yet
	undrawn int      // how many
	queue   []uint32 // drawn objects, the oldest at head
	head    int
}

func (q *names) queued() int { return len(q.queue) - q.head }

// openAll makes everything the job needs open.
func (j *job) openAll() {
	q := &j.names
	q.open = append(q.open[:0], j.left...)
	q.undrawn, q.queue, q.head = j.rem, q.queue[:0], 0
	j.groups.stage = tailNone
}

// nextName takes the oldest draw of the queue, after a round if it is empty.
func (s *Sampler) nextName(j *job) uint32 {
	q := &j.names
	if q.queued() == 0 {
		if j.near&s.strictly&^(1<<j.slot) == 0 { // a round for itself alone
			x := s.anyUndrawn(j)
			j.take(j.at.of(x))
			return x
		}
		s.round(j)
	}
	x := q.queue[q.head]
	if q.head++; q.head == len(q.queue) {
		q.queue, q.head = q.queue[:0], 0
	}
	return x
}

// undraw forgets the job's queue, because what it may draw from changes: it would not be uniform over it.
func (j *job) undraw() {
	q := &j.names
	for _, x := range q.queue[q.head:] {
		j.putBack(j.at.of(x))
	}
	q.queue, q.head = q.queue[:0], 0
}

// mayDraw reports whether the job may still draw x.
func (j *job) mayDraw(x uint32) bool {
	l, ok := j.at.find(x)
	return ok && has(j.names.open, l)
}

// enqueue puts x, which is open, at the end of the queue.
func (j *job) enqueue(x uint32) {
	q := &j.names
	j.take(j.at.of(x))
	if len(q.queue) == cap(q.queue) && q.head > 0 {
		q.queue = q.queue[:copy(q.queue, q.queue[q.head:])]
		q.head = 0
	}
	q.queue = append(q.queue, x)
}

// take closes a place.
func (j *job) take(l uint32) {
	unset(j.names.open, l)
	j.names.undrawn--
}

// putBack opens a place.
func (j *job) putBack(l uint32) {
	set(j.names.open, l)
	j.names.undrawn++
	j.groups.stage = tailNone
}

// round draws once for the job and for every strict job that takes part.
func (s *Sampler) round(t *job) {
	var in [MaxJobs]*job
	n := s.together(t, &in)
	var drawn [MaxJobs]uint32
	var size [MaxJobs]int // of what it drew from
	for k, j := range in[:n] {
		size[k] = j.names.undrawn
		p := -1
		for i, o := range in[:k] {
			if c := j.overlap[o.slot]; c > 0 && (p < 0 || c >= j.overlap[in[p].slot]) {
				p = i
			}
		}
		if p < 0 {
			drawn[k] = s.anyUndrawn(j)
		} else {
			drawn[k] = s.follow(j, in[p], drawn[p], size[p])
		}
		j.enqueue(drawn[k])
	}
}

// together lists who takes part in a round of t, by falling number of undrawn samples.
func (s *Sampler) together(t *job, in *[MaxJobs]*job) int {
	in[0] = t
	n := 1
	near := bits.JobSet(0).With(t.slot)
	for todo := t.near & s.strictly &^ near; todo != 0; {
		j := s.slot[first(todo)]
		near = near.With(j.slot)
		todo = (todo | j.near&s.strictly) &^ near
		if !j.running || j.has(passMark) || !s.active.Has(j.slot) || j.names.queued() >= s.ahead {
			continue
		}
		if j.names.undrawn == 0 {
			continue
		}
		k := n
		for ; k > 0 && (in[k-1].names.undrawn < j.names.undrawn ||
			in[k-1].names.undrawn == j.names.undrawn && in[k-1].slot > j.slot); k-- {
			in[k] = in[k-1]
		}
		in[k] = j
		n++
	}
	return n
}

// anyUndrawn returns a uniform one of what the job has not drawn.
func (s *Sampler) anyUndrawn(j *job) uint32 {
	return j.at.object(s.draw(j, anyRow, -1))
}

// follow draws uniformly from what j has not drawn, as often as possible the x that p has just drawn uniformly from a samples; a
// is at least what j draws from. One time in tryOut the coupling is left out (Gerber, Lee 2020): where both sets are nearly equal
// it would otherwise take, once in a long time, a very long search for what only j has.
func (s *Sampler) follow(j, p *job, x uint32, a int) uint32 {
	couple := a <= tryOut || s.rng.Uint64n(tryOut) != 0
	if couple && j.mayDraw(x) {
		return x
	}
	// What remains of j's law: 1/b where p cannot draw, 1/b - eta/a where it can; eta = 1, or 1 - 1/tryOut.
	b := j.names.undrawn
	for {
		y := s.anyUndrawn(j)
		if y != x && !p.mayDraw(y) || s.hook.biased {
			return y
		}
		if u := int(s.rng.Uint64n(uint64(a))); u >= b || a > tryOut && s.rng.Uint64n(tryOut) == 0 {
			return y
		}
	}
}
