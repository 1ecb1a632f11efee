package engine

import (
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"larder/internal/coordinator"
	"larder/internal/engine/ring"
	"larder/internal/engine/work"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/jobs"
	larderv1 "larder/proto/larder/v1"
)

// recorder notes what jobs ask for and what is decided, for larder trace record. The loop and the workers report what
// they do anyway; it keeps a bounded amount until a client fetches it (RecordTrace) and counts what it had to leave
// out, so the work never waits for it. Nothing of it exists while nothing is recorded.
type recorder struct {
	id    uint64
	began time.Time
	base  coordinator.Stats // when it began

	sync.Mutex
	asked   time.Time // for the last time
	effects int       // since the last look at the clock
	stopped bool
	ended   time.Duration

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

	turn      sync.Mutex                    // of a call: one that is made again waits for the one before
	described bool                          // at the end
	answers   uint64                        // that were given
	last      *larderv1.RecordTraceResponse // the last of them: it may not have arrived

	rest []*larderv1.RecordTraceResponse // pages of a description, or of the end, that are not fetched yet
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
func (r *recorder) room(n int) bool {
	if r.queued+n > maxRecorded {
		r.lost += uint64(n)
		return false
	}
	r.queued += n
	return true
}

// effect notes what the coordinator asked for. It runs in the loop.
func (r *recorder) effect(e *Engine, eff coordinator.Effect) {
	r.Lock()
	defer r.Unlock()
	if r.effects++; r.effects&1023 == 0 && time.Since(r.asked) > recordFor {
		e.recorder.CompareAndSwap(r, nil)
		return
	}
	switch x := eff.(type) {
	case coordinator.Persist:
		r.persisted(x.Record)
	case coordinator.Deliver:
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
}

// persisted follows what is in the batches that are planned.
func (r *recorder) persisted(rec coordinator.Record) {
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
func (r *recorder) takeOut(k batchKey, gone []ident.ObjectID) {
	objects := r.planned[k]
	kept := slices.DeleteFunc(slices.Clone(objects), func(o ident.ObjectID) bool { return slices.Contains(gone, o) })
	r.queued -= len(objects) - len(kept)
	r.planned[k] = kept
}

func (r *recorder) move(o ident.ObjectID, f ident.Form, in uint64) {
	if r.room(1) {
		r.moves = append(r.moves, uint64(o)<<3|uint64(f)<<1|in)
		r.after = append(r.after, uint32(len(r.batches)))
	}
}

func (r *recorder) job(id ident.JobID) *followed {
	j := r.jobs[id]
	if j == nil {
		j = &followed{}
		r.jobs[id] = j
	}
	return j
}

// event notes what came back. It runs wherever events come from.
func (r *recorder) event(ev coordinator.Event) {
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
		k, now := ring.Key{Job: x.Job, Rank: x.Rank, Inc: x.Inc}, time.Now()
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

func (r *recorder) cost(o ident.ObjectID) *objectCost {
	for int(o) >= len(r.costs) {
		r.costs = append(r.costs, make([]objectCost, max(1024, int(o)+1-len(r.costs)))...)
	}
	return &r.costs[o]
}

// worked notes what a piece of work took of a core.
func (r *recorder) worked(s work.Step, o ident.ObjectID, took time.Duration) {
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

// RecordTrace records what jobs ask for and what is decided about it.
func (e *Engine) RecordTrace(ctx context.Context, req *larderv1.RecordTraceRequest) (*larderv1.RecordTraceResponse,
	error) {
	if err := mayRun(ctx, "record a trace"); err != nil {
		return nil, err
	}
	r, err := e.recording(ctx, req)
	if err != nil {
		return nil, err
	}
	r.Lock()
	r.asked = time.Now()
	r.Unlock()
	r.turn.Lock()
	defer r.turn.Unlock()
	r.Lock()
	switch got := req.GetAnswers(); {
	case got == r.answers:
	case got+1 == r.answers: // the last one did not arrive
		defer r.Unlock()
		return r.last, nil
	default:
		defer r.Unlock()
		return nil, errs.New(errs.Invalid, "recording", "count the answers that arrive; only the last one is kept",
			"%d answers of the recording were given, and %d are said to have arrived", r.answers, got)
	}
	if req.GetStop() && !r.stopped {
		r.stopped, r.ended = true, time.Since(r.began)
		e.recorder.CompareAndSwap(r, nil)
	}
	end := r.stopped && !r.described
	describe := req.GetDescribe() && !r.stopped && len(r.rest) == 0
	r.Unlock()
	if end || describe {
		if err := e.describeTo(ctx, r); err != nil {
			return nil, err
		}
	}
	r.Lock()
	defer r.Unlock()
	r.described = r.described || end
	out := r.take()
	defer func() { r.answers, r.last = r.answers+1, out }()
	if !out.More && len(r.rest) > 0 {
		page := r.rest[0]
		r.rest = r.rest[1:]
		out.Jobs, out.Objects, out.Machine, out.More = page.Jobs, page.Objects, page.Machine, len(r.rest) > 0
	}
	if r.stopped && !out.More {
		// the last answer is kept, for who did not get it
		r.costs, r.planned, r.flights = nil, map[batchKey][]ident.ObjectID{}, map[coordinator.FlightID]flying{}
	}
	return out, nil
}

// recording finds the recording that is asked for, or begins one.
func (e *Engine) recording(ctx context.Context, req *larderv1.RecordTraceRequest) (*recorder, error) {
	if id := req.GetRecording(); id != 0 {
		r := e.recorded.Load()
		if r == nil || r.id != id || !r.over() && e.recorder.Load() != r {
			return nil, errs.New(errs.NotFound, "recording",
				"begin a new one; a recording ends when no client fetches it for 30 s", "there is no recording %d", id)
		}
		return r, nil
	}
	if req.GetStop() {
		return nil, errs.New(errs.Invalid, "recording", "name the recording to stop", "no recording was named")
	}
	base, err := inspect(ctx, e.loop, func(c *coordinator.Core) coordinator.Stats { return c.Stats() })
	if err != nil {
		return nil, err
	}
	r := &recorder{id: uint64(time.Now().UnixNano()), began: time.Now(), asked: time.Now(), base: base,
		planned: map[batchKey][]ident.ObjectID{},
		flights: map[coordinator.FlightID]flying{}, jobs: map[ident.JobID]*followed{}, steps: map[ring.Key]time.Time{}}
	if old := e.recorder.Load(); old != nil && old.stale() {
		e.recorder.CompareAndSwap(old, nil)
	}
	if !e.recorder.CompareAndSwap(nil, r) {
		return nil, errs.New(errs.AlreadyExists, "recording",
			"end the other larder trace record first, or wait half a minute", "a recording is under way")
	}
	e.recorded.Store(r)
	return r, nil
}

func (r *recorder) over() bool {
	r.Lock()
	defer r.Unlock()
	return r.stopped
}

func (r *recorder) stale() bool {
	r.Lock()
	defer r.Unlock()
	return time.Since(r.asked) > recordFor
}

// take is what waits to be fetched, as much of it as an answer holds; the lock is held.
func (r *recorder) take() *larderv1.RecordTraceResponse {
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

// describeTo prepares what is known of jobs, objects and the machine, as pages that follow what was recorded. A
// recording may be under way: its lock, which the loop takes, is held for no longer than a page of it takes to be
// copied.
func (e *Engine) describeTo(ctx context.Context, r *recorder) error {
	type view struct {
		jobs  []jobs.Job
		stats coordinator.Stats
		tiers []coordinator.TierView
	}
	v, err := inspect(ctx, e.loop, func(c *coordinator.Core) view { return view{c.Jobs(true), c.Stats(), c.Tiers()} })
	if err != nil {
		return err
	}
	settings := e.Settings()
	r.Lock()
	followed := make(map[ident.JobID]followed, len(r.jobs))
	for id, f := range r.jobs { // order-free: a map again
		followed[id] = *f
	}
	length, done, apart, inOne := r.ended, r.done, r.apart, r.inOne
	if !r.stopped {
		length = time.Since(r.began)
	}
	r.Unlock()
	var rest []*larderv1.RecordTraceResponse
	var used []bool
	for i := range v.jobs {
		j := e.jobs.byID(v.jobs[i].ID)
		known, seen := followed[v.jobs[i].ID]
		if j == nil || v.jobs[i].State.Ended() && !seen {
			continue // it ended before
		}
		for _, page := range recordJob(r, j, &v.jobs[i], known) {
			rest = append(rest, &larderv1.RecordTraceResponse{Jobs: []*larderv1.RecordedJob{page}})
		}
		for _, o := range j.subsets.last().objects {
			if n := int(o) + 1 - len(used); n > 0 {
				used = append(used, make([]bool, n)...)
			}
			used[o] = true
		}
	}
	for lo := 0; lo < len(used); lo += recordColumn {
		rest = append(rest, &larderv1.RecordTraceResponse{Objects: []*larderv1.RecordedObjects{e.recordObjects(r, used, lo)}})
	}
	rates := e.meters.Rates()
	m := &larderv1.RecordedMachine{
		Duration: durationpb.New(length), Workers: uint32(e.cfg.Workers), Cores: uint32(e.meters.Cores()),
		StorageBandwidth: rates.Storage, StorageLatency: durationpb.New(e.meters.ReadTime()), MemoryBandwidth: rates.Cache,
		FinishNs: uint64(done.mean() * 1e9), Total: uint64(max(0, settings.Tiers.Total)), Model: settings.Tiers.Model,
	}
	limit, iops := e.cfg.Catalog.StorageLimit()
	m.StorageLimit, m.StorageIops = uint64(limit), uint64(iops)
	if both := apart[0].mean() + apart[1].mean(); apart[0].n > 0 && apart[1].n > 0 && inOne.n > 0 {
		m.InPlace = inOne.mean() / both
	}
	for _, t := range v.tiers {
		x := &larderv1.RecordedTier{Form: t.Form.String(), Policy: t.Policy}
		if n := settings.Tiers.Sizes[t.Form]; n >= 0 {
			bytes := uint64(n)
			x.Bytes = &bytes
		}
		m.Tiers = append(m.Tiers, x)
	}
	s, b := v.stats, r.base
	m.Counted = &larderv1.Counters{SourceReads: s.SourceReads - b.SourceReads, SourceBytes: s.SourceBytes - b.SourceBytes,
		Decodes: s.Decodes - b.Decodes, Augments: s.Augments - b.Augments,
		SamplesDelivered: s.Samples - b.Samples, BatchesDelivered: s.Batches - b.Batches}
	rest = append(rest, &larderv1.RecordTraceResponse{Machine: m})
	r.Lock()
	defer r.Unlock()
	r.rest = rest
	return nil
}

// recordObjects is what is known of the objects from first on, as many as a page has; used says which ones jobs draw.
func (e *Engine) recordObjects(r *recorder, used []bool, first int) *larderv1.RecordedObjects {
	r.Lock()
	costs := slices.Clone(r.costs[min(first, len(r.costs)):min(first+recordColumn, len(r.costs))])
	r.Unlock()
	page := &larderv1.RecordedObjects{First: uint32(first)}
	for o := ident.ObjectID(first); int(o) < min(len(used), first+recordColumn); o++ {
		var c objectCost
		if k := int(o) - first; k < len(costs) {
			c = costs[k]
		}
		stored := int64(0)
		if used[o] {
			stored = e.cfg.Catalog.ObjectBytes(o)
		}
		page.Stored, page.Decoded = append(page.Stored, uint32(min(stored, 1<<32-1))), append(page.Decoded, c.decoded)
		page.DecodeNs = append(page.DecodeNs, uint64(float64(c.decode)*1e9))
		page.AugmentNs = append(page.AugmentNs, uint64(float64(c.augment)*1e9))
	}
	return page
}

// recordJob is a job in as many parts as its subset needs.
func recordJob(r *recorder, j *job, v *jobs.Job, known followed) []*larderv1.RecordedJob {
	first := &larderv1.RecordedJob{Job: uint32(v.ID), Spec: j.specWith(j.subsets.last().expr),
		Registered: durationpb.New(max(0, j.registered.Sub(r.began))), Dropped: uint64(v.Spec.Dropped()),
		Recipe: j.Recipe.ID().String()}
	if out := j.Recipe.Output(); !out.Ragged && len(out.Shape) == 3 {
		first.AugmentedBytes = uint64(out.Shape[0]) * uint64(out.Shape[1]) * uint64(out.Shape[2])
	}
	step := time.Duration(0)
	for i := range v.Ranks {
		step = max(step, v.Ranks[i].StepTime)
	}
	if known.ended > 0 {
		first.Ended = durationpb.New(known.ended)
	}
	if known.step.n > 0 {
		step = time.Duration(known.step.mean() * float64(time.Second))
	}
	first.Step = durationpb.New(step)
	var out []*larderv1.RecordedJob
	for _, part := range subsetParts(j.subsets.last().objects, recordRanges) {
		first.Subset = part
		out = append(out, first)
		first = &larderv1.RecordedJob{Job: first.Job}
	}
	return out
}

// subsetParts are gaps and lengths of the ranges of a subset, ascending, in lists of so many ranges; there is at least
// one list.
func subsetParts(subset []ident.ObjectID, ranges int) [][]uint32 {
	out := [][]uint32{nil}
	at := uint32(0)
	objects := slices.Sorted(slices.Values(subset))
	for i := 0; i < len(objects); {
		k := i + 1
		for k < len(objects) && objects[k] == objects[k-1]+1 {
			k++
		}
		if len(out[len(out)-1]) >= 2*ranges {
			out = append(out, nil)
		}
		last := &out[len(out)-1]
		*last = append(*last, uint32(objects[i])-at, uint32(k-i))
		at = uint32(objects[k-1]) + 1
		i = k
	}
	return out
}
