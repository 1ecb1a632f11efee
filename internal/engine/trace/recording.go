package trace

import (
	"slices"
	"sync"
	"time"

	"larder/internal/coordinator"
	"larder/internal/engine/ring"
	"larder/internal/engine/work"
	"larder/internal/ident"
	"larder/internal/invariant"
	"larder/jobs"
	larderv1 "larder/proto/larder/v1"
)

// recording is what was noted since a client began to record, as much of it as is not fetched yet.
type recording struct {
	id    uint64
	began time.Time
	base  coordinator.Stats // when it began

	sync.Mutex
	asked   time.Time // for the last time
	effects int       // since the last look at the clock
	phase   phase
	ended   time.Duration // after it began; only once it is stopped

	planned map[batchKey][]ident.ObjectID // batches that are not delivered yet
	flights map[coordinator.FlightID]flying
	batches []*larderv1.RecordedBatch
	moves   []uint64
	after   []uint32 // batches before a move
	queued  int      // picks and moves that wait to be fetched, and planned picks
	lost    uint64

	costs []objectCost
	inOne total // decoding and augmenting in one
	apart [2]total
	done  total // finish
	jobs  map[ident.JobID]*followed
	steps map[ring.Key]time.Time // when a rank gave its last batch back

	turn    sync.Mutex                    // of a call: one that is made again waits for the one before
	answers uint64                        // that were given
	last    *larderv1.RecordTraceResponse // the last of them: it may not have arrived

	rest []*larderv1.RecordTraceResponse // pages of a description, or of the end, that are not fetched yet
}

// phase is how far a recording is. It moves forward by one step at a time:
//
//	running ──stop──► stopped ──its end is described──► described
//
// A running recording that no client fetches is forgotten in that phase.
type phase uint8

const (
	running   phase = iota // effects, events and work are noted
	stopped                // nothing is noted any more; what was noted is still to be described
	described              // only pages are left to be fetched
)

// become moves to the next phase; the lock is held.
func (r *recording) become(next phase) {
	if next != r.phase+1 {
		invariant.Violated("a recording goes from phase %d to %d", r.phase, next)
	}
	r.phase = next
}

func newRecording(base coordinator.Stats) *recording {
	now := time.Now()
	return &recording{
		id: uint64(now.UnixNano()), began: now, asked: now, base: base,
		planned: map[batchKey][]ident.ObjectID{}, flights: map[coordinator.FlightID]flying{},
		jobs: map[ident.JobID]*followed{}, steps: map[ring.Key]time.Time{},
	}
}

type batchKey struct {
	job   ident.JobID
	rank  int
	epoch uint32
	step  int
}

// flying is a preparation under way.
type flying struct {
	key     ident.Key
	encoded bool // its stored bytes are to be kept
}

// objectCost is what is known of one object; seconds of a core.
type objectCost struct {
	decoded           uint32
	decode, augment   float32
	decodes, augments uint16
	inOne             float32 // decoded and augmented in one; only where it was never done in two steps
}

type followed struct {
	ended time.Duration // 0 = it lives
	step  total
}

type total struct {
	n       int
	seconds float64
}

func (t *total) add(s float64) { t.n++; t.seconds += s }

func (t *total) mean() float64 {
	if t.n == 0 {
		return 0
	}
	return t.seconds / float64(t.n)
}

// Bounds of a recording.
const (
	maxRecorded  = 1 << 20          // picks and moves that may wait to be fetched
	recordFor    = 30 * time.Second // without a call, then it ends
	recordPicks  = 1 << 16          // in an answer, about
	recordRanges = 1 << 16          // of a subset in an answer
	recordColumn = 1 << 15          // objects in an answer
)

// room makes room for n more picks or moves; false when they are lost.
func (r *recording) room(n int) bool {
	if r.queued+n > maxRecorded {
		r.lost += uint64(n)
		return false
	}
	r.queued += n
	return true
}

// effect notes what the coordinator asked for. It runs in the loop. It returns false when no client has fetched the
// recording for so long that it should end.
func (r *recording) effect(eff coordinator.Effect) bool {
	r.Lock()
	defer r.Unlock()
	if r.effects++; r.effects&1023 == 0 && time.Since(r.asked) > recordFor {
		return false
	}
	switch x := eff.(type) {
	case coordinator.Persist:
		r.persisted(x.Record)
	case coordinator.Deliver:
		r.delivered(&x)
	case coordinator.Prepare:
		if x.Keep || x.KeepEncoded || x.Into == nil {
			r.flights[x.Flight] = flying{x.Key, x.KeepEncoded}
		}
	case coordinator.Augment:
		if x.Keep {
			r.flights[x.Flight] = flying{x.Key, false}
		}
	case coordinator.FreeKey:
		r.move(x.Key.Object, x.Key.Form, 0)
	case coordinator.JobEnded:
		r.job(x.Job).ended = max(time.Since(r.began), 1)
	}
	return true
}

// delivered notes a batch, without the samples that are bad.
func (r *recording) delivered(x *coordinator.Deliver) {
	if x.Again { // it is recorded
		return
	}
	k := batchKey{x.Job, x.Rank, x.Epoch, x.Step}
	objects, known := r.planned[k]
	delete(r.planned, k)
	if !known { // it was planned before the recording began
		r.lost += uint64(len(x.Rows))
	}
	if len(objects) == 0 {
		return
	}
	if len(x.Bad) > 0 {
		r.queued -= len(objects)
		objects = slices.DeleteFunc(slices.Clone(objects), func(o ident.ObjectID) bool {
			return slices.ContainsFunc(x.Bad, func(b jobs.Bad) bool { return b.Object == o })
		})
		r.queued += len(objects)
	}
	b := &larderv1.RecordedBatch{Job: uint32(x.Job), Epoch: x.Epoch, Objects: make([]uint32, len(objects))}
	for i, o := range objects {
		b.Objects[i] = uint32(o)
	}
	r.batches = append(r.batches, b)
}

// persisted follows what is in the batches that are planned.
func (r *recording) persisted(rec coordinator.Record) {
	switch x := rec.(type) {
	case coordinator.RecordAssigned:
		k := batchKey{x.Job, x.Rank, x.Epoch, x.Step}
		objects := r.planned[k]
		if r.room(len(x.Objects)) {
			objects = append(objects, x.Objects...)
		}
		r.planned[k] = objects // also where all of it is lost: it was not planned before the recording
	case coordinator.RecordReturned:
		k := batchKey{x.Job, x.Rank, x.Epoch, x.Step}
		if len(x.Objects) == 0 {
			r.queued -= len(r.planned[k])
			delete(r.planned, k)
		} else if _, ok := r.planned[k]; ok {
			r.takeOut(k, x.Objects)
		}
	case coordinator.RecordDealt:
		if len(x.Objects) == 0 {
			return
		}
		for k := range r.planned { // order-free: each by itself
			if k.job == x.Job && k.epoch == x.Epoch && k.step == x.Step {
				r.takeOut(k, x.Objects)
			}
		}
	}
}

// takeOut takes out of a planned batch what is in it no more.
func (r *recording) takeOut(k batchKey, gone []ident.ObjectID) {
	objects := r.planned[k]
	kept := slices.DeleteFunc(slices.Clone(objects), func(o ident.ObjectID) bool { return slices.Contains(gone, o) })
	r.queued -= len(objects) - len(kept)
	r.planned[k] = kept
}

func (r *recording) move(o ident.ObjectID, f ident.Form, in uint64) {
	if r.room(1) {
		r.moves = append(r.moves, uint64(o)<<3|uint64(f)<<1|in)
		r.after = append(r.after, uint32(len(r.batches)))
	}
}

func (r *recording) job(id ident.JobID) *followed {
	j := r.jobs[id]
	if j == nil {
		j = &followed{}
		r.jobs[id] = j
	}
	return j
}

// event notes what came back. It runs wherever events come from.
func (r *recording) event(ev coordinator.Event) {
	switch x := ev.(type) {
	case coordinator.Prepared:
		r.Lock()
		defer r.Unlock()
		f, ok := r.flights[x.Flight]
		if !ok {
			return
		}
		delete(r.flights, x.Flight)
		if x.Encoded {
			r.move(f.key.Object, ident.Encoded, 1)
		}
		if x.Err != "" || x.Lost {
			return
		}
		if f.key.Form == ident.Decoded {
			r.cost(f.key.Object).decoded = uint32(min(x.Bytes, 1<<32-1))
		}
		if x.Kept {
			r.move(f.key.Object, f.key.Form, 1)
		}
	case coordinator.Released:
		r.Lock()
		defer r.Unlock()
		k, now := ring.Key{Job: x.Job, Rank: x.Rank, Inc: x.Inc}, time.Now().Add(-x.Ago)
		if last, ok := r.steps[k]; ok {
			r.job(x.Job).step.add(max(0, now.Sub(last)-x.Waited).Seconds())
		}
		r.steps[k] = now
	case coordinator.Detached:
		r.Lock()
		defer r.Unlock()
		delete(r.steps, ring.Key{Job: x.Job, Rank: x.Rank, Inc: x.Inc})
	}
}

func (r *recording) cost(o ident.ObjectID) *objectCost {
	for int(o) >= len(r.costs) {
		r.costs = append(r.costs, make([]objectCost, max(1024, int(o)+1-len(r.costs)))...)
	}
	return &r.costs[o]
}

// worked notes what a piece of work took of a core.
func (r *recording) worked(s work.Step, o ident.ObjectID, took time.Duration) {
	r.Lock()
	defer r.Unlock()
	c, t := r.cost(o), took.Seconds()
	mean := func(to *float32, n *uint16) {
		if *n < 1<<16-1 {
			*n++
		}
		*to += (float32(t) - *to) / float32(*n)
	}
	switch s {
	case work.Decode:
		mean(&c.decode, &c.decodes)
		r.apart[0].add(t)
	case work.Augment:
		mean(&c.augment, &c.augments)
		r.apart[1].add(t)
	case work.Finish:
		r.done.add(t)
	case work.InPlace:
		c.inOne = float32(t)
		r.inOne.add(t)
	}
}

func (r *recording) over() bool {
	r.Lock()
	defer r.Unlock()
	return r.phase != running
}

func (r *recording) stale() bool {
	r.Lock()
	defer r.Unlock()
	return time.Since(r.asked) > recordFor
}

// take is what waits to be fetched, as much of it as an answer holds; the lock is held.
func (r *recording) take() *larderv1.RecordTraceResponse {
	out := &larderv1.RecordTraceResponse{Recording: r.id, Lost: r.lost}
	n, picks := 0, 0
	for n < len(r.batches) && picks < recordPicks {
		picks += len(r.batches[n].Objects)
		n++
	}
	m := len(r.moves) // those before the first batch that stays
	if n < len(r.batches) {
		m, _ = slices.BinarySearch(r.after, uint32(n)+1)
	}
	m = min(m, recordPicks)
	if m < len(r.after) { // what stays must not come before a move that stays
		n = min(n, int(r.after[m]))
		picks = 0
		for _, b := range r.batches[:n] {
			picks += len(b.Objects)
		}
	}
	out.Batches, out.Moves, out.MoveAfter = r.batches[:n:n], r.moves[:m:m], r.after[:m:m]
	r.batches, r.moves = slices.Clone(r.batches[n:]), slices.Clone(r.moves[m:])
	left := make([]uint32, 0, len(r.after)-m)
	for _, a := range r.after[m:] {
		left = append(left, a-uint32(n))
	}
	r.after = left
	r.queued -= picks + m
	out.More = len(r.batches) > 0 || len(r.moves) > 0
	return out
}
