package bench

import (
	"fmt"
	"math"
	"time"

	"larder/bench/bound"
	"larder/cachepolicy"
	"larder/dsa"
	"larder/dsa/baseline"
	"larder/internal/ident"
	"larder/internal/xrand"
	"larder/tiers/residency"
	"larder/tiers/tinylfu"
)

// picker is what a mode of dsa and a baseline have in common.
type picker interface {
	Join(ident.JobID, dsa.JobSpec) error
	StartEpoch(ident.JobID, uint32) error
	Leave(ident.JobID)
	Next(ident.JobID) (ident.ObjectID, bool)
	SetLevel(ident.ObjectID, uint8)
	Need(ident.ObjectID) int
	Remaining(ident.JobID) int
}

// RunSampler runs a scenario Repeats times and reports over all runs. clock, which may be nil, measures what
// picks_per_second needs; nothing else depends on it. stop, which may be nil, ends the run early with its error.
//
// Time goes in steps of a job of speed 1. A job commits its next batch as soon as its client has at most window-1
// batches left, the client takes samples evenly, storage is instant: what remains is order, cache and look-ahead.
// Whether a sample is kept is decided when its pick is committed; what is loaded in a step serves all jobs that commit
// it in that step. Jobs whose draws are coupled (strict, joader) are topped up together, when one of them is due, to
// equal depth in samples. The next epoch of a job begins in the step in which the last sample of the epoch was
// committed, and draws from the next step on.
func RunSampler(sc *Scenario, clock func() time.Duration, stop func() error) (*SamplerReport, error) {
	st := newSamplerStats(sc)
	var spent time.Duration
	for rep := range sc.Repeats {
		future, err := foresee(sc, rep, stop)
		if err != nil {
			return nil, err
		}
		w, err := newSamplerRun(sc, rep, st, future)
		if err != nil {
			return nil, err
		}
		var begun time.Duration
		if clock != nil {
			begun = clock()
		}
		err = w.run(stop)
		w.cache.close()
		if err != nil {
			return nil, err
		}
		if clock != nil {
			spent += clock() - begun
		}
		st.ranOnce(w)
		st.progress()
	}
	return st.report(spent), nil
}

// samplerRun is one run of a scenario.
type samplerRun struct {
	sc      *Scenario
	seed    uint64
	stats   *samplerStats
	dsa     *dsa.Sampler // nil when no job needs it
	rivals  map[string]*baseline.Sampler
	pickers []picker // those that there are
	jobs    []*samplerJob
	cache   *samplerCache
	future  *foreseen                         // nil unless the policy needs it
	note    func(*samplerJob, ident.ObjectID) // called for each pick; may be nil
	trace   bound.Trace
	picks   []baseline.Pick
	ids     []ident.JobID
}

// samplerJob is one job of a run.
type samplerJob struct {
	*ScenarioJob
	index     int
	id        ident.JobID
	pick      picker
	rival     *baseline.Sampler // nil for a mode of dsa
	joint     bool              // drawn together with the others of its kind
	joined    bool
	done      bool
	committed int
	epoch     int
	rest      int64 // step before which it commits nothing
	at        int   // samples committed in this epoch
	open      int   // its epoch in the trace, -1 = nothing drawn yet
}

func newSamplerRun(sc *Scenario, rep int, st *samplerStats, future *foreseen) (*samplerRun, error) {
	w := &samplerRun{sc: sc, future: future, seed: xrand.Hash(0x73616d706c657273, sc.Seed, uint64(rep)), stats: st,
		rivals: map[string]*baseline.Sampler{}}
	for i := range sc.Jobs {
		j := &samplerJob{ScenarioJob: &sc.Jobs[i], index: i, id: ident.JobID(i + 1), open: -1}
		if name := sc.Jobs[i].rival; name != "" {
			s := w.rivals[name]
			if s == nil {
				var err error
				if s, err = baseline.New(name, xrand.Hash(w.seed, uint64(len(w.pickers)))); err != nil {
					return nil, err
				}
				w.rivals[name] = s
				w.pickers = append(w.pickers, s)
			}
			j.pick, j.rival, j.joint = s, s, s.Joint()
		} else {
			if w.dsa == nil {
				w.dsa = dsa.New(xrand.Hash(w.seed, 1000))
				w.dsa.SetRoom(w.sc.Cache)
				w.pickers = append(w.pickers, w.dsa)
			}
			j.pick, j.joint = w.dsa, j.mode == dsa.Strict
		}
		w.jobs = append(w.jobs, j)
		w.trace.Subsets = append(w.trace.Subsets, st.subsets[i])
	}
	var err error
	w.cache, err = newSamplerCache(w)
	w.trace.Cache = st.capacity
	return w, err
}

// due is the first step at which the job's client has at most window-1 batches left.
func (j *samplerJob) due() int64 {
	k := j.committed - (j.Window-1)*j.Batch
	t := j.Start
	if k > 0 {
		t += float64(k) / j.Speed
	}
	return max(j.rest, int64(math.Ceil(t-1e-9*max(1, t))))
}

// ahead is how many samples are committed and not taken at step t.
func (j *samplerJob) ahead(t int64) int {
	return j.committed - min(j.committed, int((float64(t)-j.Start)*j.Speed*(1+1e-12)+1e-9))
}

// wants reports whether the job commits a batch at step t.
func (j *samplerJob) wants(t int64) bool { return j.joined && !j.done && j.due() <= t }

func (w *samplerRun) run(stop func() error) error {
	for n := 0; ; n++ {
		if n%4096 == 0 {
			if stop != nil {
				if err := stop(); err != nil {
					return err
				}
			}
			w.stats.progress()
		}
		t, more := w.next()
		if !more {
			return nil
		}
		if err := w.comeAndGo(t); err != nil {
			return err
		}
		if err := w.draw(t); err != nil {
			return err
		}
		w.cache.land()
	}
}

// next is the step at which something happens.
func (w *samplerRun) next() (at int64, more bool) {
	at = math.MaxInt64
	for _, j := range w.jobs {
		if j.done {
			continue
		}
		more = true
		if !j.joined {
			at = min(at, int64(math.Ceil(j.Start)))
		} else {
			at = min(at, j.due())
		}
		if j.Leave > 0 {
			at = min(at, int64(math.Ceil(j.Leave)))
		}
	}
	return at, more
}

// comeAndGo lets jobs leave and join: a job that starts now is there before any draws.
func (w *samplerRun) comeAndGo(t int64) error {
	for _, j := range w.jobs {
		if !j.done && j.Leave > 0 && j.Leave <= float64(t) {
			w.leave(j)
		}
	}
	for _, j := range w.jobs {
		if j.joined || j.done || j.Start > float64(t) {
			continue
		}
		j.joined = true
		if err := j.pick.Join(j.id, dsa.JobSpec{Mode: j.mode, Tiles: j.tiles, Seed: xrand.Hash(w.seed, j.Seed),
			Subset: j.samples}); err != nil {
			return fmt.Errorf("job %s: %w", j.Name, err)
		}
		if w.casts(j) {
			// What this job leaves in the cache lies in its subset: dsa must tell those samples apart by it. Without an epoch it
			// needs nothing.
			if err := w.dsa.Join(j.id, dsa.JobSpec{Mode: dsa.Epoch, Subset: j.samples}); err != nil {
				return fmt.Errorf("job %s: %w", j.Name, err)
			}
		}
		if err := w.begin(j, t); err != nil {
			return err
		}
	}
	return nil
}

// casts reports whether a baseline's job shares the cache with jobs of dsa.
func (w *samplerRun) casts(j *samplerJob) bool {
	return w.dsa != nil && j.rival != nil && !j.rival.WriteOnly()
}

func (w *samplerRun) leave(j *samplerJob) {
	if j.joined {
		j.pick.Leave(j.id)
		if w.casts(j) {
			w.dsa.Leave(j.id)
		}
		w.cache.refresh()
	}
	j.done = true
}

// begin starts the job's next epoch.
func (w *samplerRun) begin(j *samplerJob, t int64) error {
	if err := j.pick.StartEpoch(j.id, uint32(j.epoch)); err != nil {
		return fmt.Errorf("job %s: %w", j.Name, err)
	}
	j.at, j.open = 0, -1
	w.stats.begin(j)
	w.future.begin(j)
	w.cache.refresh()
	return nil
}

// draw commits what is due at step t: in turn a batch of each job, and samples of coupled jobs in rounds.
func (w *samplerRun) draw(t int64) error {
	for again := true; again; {
		again = false
		for _, j := range w.jobs {
			if j.joint || !j.wants(t) {
				continue
			}
			again = true
			for range j.Batch {
				x, ok := j.pick.Next(j.id)
				if !ok {
					return fmt.Errorf("job %s owes %d samples and gets none", j.Name, j.pick.Remaining(j.id))
				}
				if over, err := w.commit(j, x, t); err != nil {
					return err
				} else if over {
					break
				}
			}
		}
		for _, j := range w.jobs {
			if j.joint && j.wants(t) {
				again = true
				if err := w.topUp(j.pick, t); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// topUp draws for all coupled jobs of a sampler, in rounds, until they are equally far ahead: by the largest look-ahead
// of any.
func (w *samplerRun) topUp(p picker, t int64) error {
	depth := 0
	for _, j := range w.jobs {
		if j.joint && j.pick == p && j.joined && !j.done {
			depth = max(depth, j.Window*j.Batch)
		}
	}
	for {
		w.ids = w.ids[:0]
		for _, j := range w.jobs {
			if j.joint && j.pick == p && j.joined && !j.done && j.rest <= t && j.ahead(t) < depth {
				w.ids = append(w.ids, j.id)
			}
		}
		if len(w.ids) == 0 {
			return nil
		}
		if s, ok := p.(*baseline.Sampler); ok {
			w.picks = s.Round(w.ids, w.picks[:0])
			for _, k := range w.picks {
				if _, err := w.commit(w.jobs[k.Job-1], k.Object, t); err != nil {
					return err
				}
			}
			continue
		}
		for _, id := range w.ids {
			x, ok := p.Next(id)
			if !ok {
				return fmt.Errorf("job %s owes %d samples and gets none", w.jobs[id-1].Name, p.Remaining(id))
			}
			if _, err := w.commit(w.jobs[id-1], x, t); err != nil {
				return err
			}
		}
	}
}

// commit books a pick: in the cache, the trace and the statistics. over: it was the last of its epoch.
func (w *samplerRun) commit(j *samplerJob, x ident.ObjectID, t int64) (over bool, err error) {
	if err := w.future.advance(j, x); err != nil {
		return false, err
	}
	if w.note != nil {
		w.note(j, x)
	}
	hit := w.cache.take(j, x)
	w.stats.pick(j, x, hit)
	if j.open < 0 {
		j.open = len(w.trace.Epochs)
		w.trace.Epochs = append(w.trace.Epochs, bound.Epoch{Job: j.index})
	}
	e := &w.trace.Epochs[j.open]
	if n := len(e.Steps); n > 0 && e.Steps[n-1].At == t {
		e.Steps[n-1].N++
	} else {
		e.Steps = append(e.Steps, bound.Step{At: t, N: 1})
	}
	j.at++
	j.committed++
	if j.rival != nil && j.rival.Opportunist() {
		w.turnover(j)
	}
	if j.pick.Remaining(j.id) > 0 {
		return false, nil
	}
	w.stats.end(j)
	j.epoch++
	if j.epoch == j.Epochs {
		w.leave(j)
		return true, nil
	}
	j.rest = t + 1
	return true, w.begin(j, t)
}

// turnover carries out what ods wants evicted and read.
func (w *samplerRun) turnover(j *samplerJob) {
	for {
		out, in, ok, more := j.rival.Turnover()
		if !more {
			return
		}
		w.cache.evict(out)
		if ok {
			w.cache.load(in, max(1, w.cache.need(in)))
			w.stats.refill(j)
		}
	}
}

// samplerCache is the cache of a run: the daemon's own index and policy, on samples of unit size or of four sizes.
type samplerCache struct {
	w      *samplerRun
	index  *residency.Index
	policy cachepolicy.Evictor
	flying []ident.ObjectID // loaded in this step
	stamp  []uint32         // by sample: step in which it was loaded last, numbered by now
	own    []uint32         // the same for jobs that never look into the cache
	now    uint32
}

func newSamplerCache(w *samplerRun) (*samplerCache, error) {
	c := &samplerCache{w: w, stamp: make([]uint32, w.sc.Samples), now: 1}
	var ev [ident.NumForms]residency.Evictor
	for f := ident.Encoded; f < ident.NumForms; f++ {
		policy, given := "need", cachepolicy.Given{} // of the tiers without a budget
		if f == ident.Decoded {
			policy = w.sc.Policy
			if w.future != nil {
				given.Future = w.future
			}
		}
		e, err := tinylfu.Make(policy, xrand.New(w.seed, uint64(f)), given, w.stats.capacity)
		if err != nil {
			return nil, err
		}
		ev[f] = e
		if f == ident.Decoded {
			c.policy = e
		}
	}
	c.index = residency.New([ident.NumForms]int64{ident.Decoded: w.stats.budget}, ev)
	return c, nil
}

// close ends what a policy runs in the background.
func (c *samplerCache) close() {
	if p, ok := c.policy.(interface{ Close() }); ok {
		p.Close()
	}
}

func keyOf(x ident.ObjectID) ident.Key { return ident.Key{Object: x, Form: ident.Decoded} }

// neutral ranks what only a job with a prescribed order has loaded: it takes free room, and leaves first, in favour of
// any other newcomer (the policies need and refcount do that). A shuffled job that comes upon it keeps it, as in the
// daemon: its own load would have found the room.
const neutral = -1

// need is how many jobs still need x.
func (c *samplerCache) need(x ident.ObjectID) int {
	n := 0
	for _, p := range c.w.pickers {
		n += p.Need(x)
	}
	if c.w.dsa != nil && c.w.dsa.Neutral(x) && n == c.w.dsa.Need(x) {
		return neutral
	}
	return n
}

func (c *samplerCache) level(x ident.ObjectID, level uint8) {
	for _, p := range c.w.pickers {
		p.SetLevel(x, level)
	}
}

// take books that a job has committed x, and reports whether that cost no load.
func (c *samplerCache) take(j *samplerJob, x ident.ObjectID) (hit bool) {
	if j.rival != nil && j.rival.WriteOnly() {
		if c.own == nil {
			c.own = make([]uint32, c.w.sc.Samples)
		}
		hit = c.own[x] == c.now
		c.own[x] = c.now
		return hit
	}
	if h, ok := c.index.Lookup(keyOf(x)); ok {
		c.index.Hit(h)
		c.index.SetNeed(h, c.need(x))
		return true
	}
	if c.stamp[x] == c.now {
		return true
	}
	need := c.need(x)
	if j.rival == nil && j.mode == dsa.Sequential {
		need = neutral
	}
	c.load(x, need)
	return false
}

// load brings x to memory for this step, and keeps it if the policy wants it.
func (c *samplerCache) load(x ident.ObjectID, need int) {
	c.stamp[x] = c.now
	c.flying = append(c.flying, x)
	c.level(x, 2)
	c.index.Admit(keyOf(x), c.w.stats.size(x), need, func(_ residency.Handle, k ident.Key) { c.gone(k.Object) })
}

// evict takes x out of the cache.
func (c *samplerCache) evict(x ident.ObjectID) {
	if h, ok := c.index.Lookup(keyOf(x)); ok {
		c.index.Drop(h)
		c.gone(x)
	}
}

// gone: x has left the cache; what was loaded in this step stays in reach until the step is over.
func (c *samplerCache) gone(x ident.ObjectID) {
	if c.stamp[x] != c.now {
		c.level(x, 0)
	}
}

// land ends a step.
func (c *samplerCache) land() {
	for _, x := range c.flying {
		if _, ok := c.index.Lookup(keyOf(x)); !ok {
			c.level(x, 0)
		}
	}
	c.flying = c.flying[:0]
	c.now++
}

// refresh asks again who needs what is in the cache, after an epoch began or a job left.
func (c *samplerCache) refresh() {
	c.index.Each(ident.Decoded, func(h residency.Handle, k ident.Key) { c.index.SetNeed(h, c.need(k.Object)) })
}
