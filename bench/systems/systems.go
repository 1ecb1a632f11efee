// Package systems re-implements whole data loading systems from their descriptions, behind one interface, and runs them
// in virtual time on one demand: jobs with their subsets, speeds, batches and arrivals, a storage, a pool of workers, a
// cache that counts samples.
//
// They are here for honest comparison and are no product of their authors: each says in About where it was taken from
// and what had to be assumed. Nothing here chooses anything in a daemon; larder's own rows run its sampler (dsa) and
// its cache policies.
package systems

import (
	"container/heap"
	"math"
	"slices"

	"larder/bench/report"
	"larder/bench/trace"
	"larder/internal/errs"
	"larder/internal/nearest"
	"larder/internal/xrand"
)

// Job is one job's demand. Times are seconds.
type Job struct {
	Name   string
	Subset []uint32 // distinct
	Start  float64
	Kill   float64 // it stops asking without a word; 0 = never
	Leave  float64 // it leaves and says so; 0 = when its epochs are over
	Step   float64 // of a batch
	Batch  int
	Epochs int
}

// World is what a system runs in.
type World struct {
	Samples int // ids are below it
	Cache   int // samples
	Jobs    []Job
	Seed    uint64
	Read    float64 // seconds of storage for a sample; all jobs share it
	Prep    float64 // seconds of the worker pool for a sample
	Limit   float64 // virtual seconds after which jobs that never finish are cut off; 0 = a day

	rng             *xrand.Rand
	storage, worker float64 // busy until
	reads, preps    int
}

// Status is what a system answers a job that asks for its next batch.
type Status uint8

// The answers.
const (
	Got  Status = iota
	Wait        // ask again when something has happened, at Batch.Ready at the latest if that is set
	EpochOver
)

// Batch is what a job gets.
type Batch struct {
	IDs   []uint32
	Ready float64 // when it can be delivered
	Hits  int     // samples of it that cost no read
}

// System is one loading system. The driver calls it in order of virtual time.
type System interface {
	// Join announces that a job has started.
	Join(job int, now float64)
	// Next asks for a job's next batch.
	Next(job int, now float64) (Batch, Status)
	// Done announces that a job has taken a batch that it got; it works on it now, and asks for the one after.
	Done(job int, now float64)
	// Gone announces that a job has left, or died. A system that would not notice does nothing.
	Gone(job int, now float64, died bool)
}

// entry is one line of the registry.
type entry struct {
	name, about string
	make        func(*World) (System, string) // the text is why it cannot run this world
}

// Names lists the systems.
func Names() []string {
	var out []string
	for i := range registry {
		out = append(out, registry[i].name)
	}
	return out
}

// About says what a system was built from, and what was assumed; "" when it is unknown.
func About(name string) string {
	for i := range registry {
		if registry[i].name == name {
			return registry[i].about
		}
	}
	return ""
}

// JobResult is what one job got.
type JobResult struct {
	Delivered int
	Hits      int
	Epochs    int     // that ended
	Coverage  float64 // least share of its subset in a complete epoch; 1 when there is none
	Repeated  int     // deliveries of a sample that it had in that epoch already
	Missing   int     // samples of its subset that complete epochs left out
	Foreign   int     // samples outside its subset
	First     float64 // seconds from its start to its first batch; -1 = none
	End       float64 // when it had worked on its last batch
	Waited    float64 // seconds in which it had nothing to work on
	Finished  bool
}

// Result is the outcome of a run.
type Result struct {
	System   string
	Reads    int // of samples from storage
	Preps    int // decoded and augmented samples
	Jobs     []JobResult
	Makespan float64
	Stuck    bool // jobs waited for something that never came
	Cut      bool // virtual time ran out
}

// Run runs a system in a world. An unknown name is an INVALID_ARGUMENT, a system that cannot run this world UNSUPPORTED
// with the reason.
func Run(name string, world World) (*Result, error) {
	for i := range registry {
		if registry[i].name != name {
			continue
		}
		w := world
		w.rng = xrand.New(w.Seed, uint64(i), 0x73797374656d73)
		if w.Limit == 0 {
			w.Limit = 86400
		}
		s, why := registry[i].make(&w)
		if why != "" {
			return nil, errs.New(errs.Unsupported, name, "leave it out, or choose a scenario that it can run",
				"%s cannot run this: %s", name, why)
		}
		d := &driver{w: &w, s: s}
		return d.run(name), nil
	}
	return nil, errs.New(errs.Invalid, "systems", nearest.DidYouMean(name, Names()), "unknown system %.40q", name)
}

// work queues reads and preparations, and returns when they will be done.
func (w *World) work(now float64, reads, preps int) (ready float64) {
	w.reads += reads
	w.preps += preps
	ready = now
	if reads > 0 {
		w.storage = max(w.storage, now) + float64(reads)*w.Read
		ready = w.storage
	}
	if preps > 0 {
		w.worker = max(w.worker, now) + float64(preps)*w.Prep
		ready = max(ready, w.worker)
	}
	return ready
}

// shuffled is a fresh uniform order.
func (w *World) shuffled(ids []uint32) []uint32 {
	out := slices.Clone(ids)
	w.rng.Shuffle(len(out), func(a, b int) { out[a], out[b] = out[b], out[a] })
	return out
}

// alike returns why jobs are not all the same in what lock step needs; "" when they are.
func (w *World) alike(batches, starts bool) string {
	for i := range w.Jobs {
		j, k := &w.Jobs[i], &w.Jobs[0]
		switch {
		case !slices.Equal(j.Subset, k.Subset):
			return "its jobs share one dataset, these have unlike subsets"
		case batches && j.Batch != k.Batch:
			return "its jobs share one batch size"
		case starts && (j.Start != k.Start || j.Epochs != k.Epochs):
			return "its jobs start and end together"
		}
	}
	return ""
}

type event struct {
	at  float64
	seq int
	do  func(now float64)
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	if e[i].at != e[j].at {
		return e[i].at < e[j].at
	}
	return e[i].seq < e[j].seq
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	old := *e
	x := old[len(old)-1]
	*e = old[:len(old)-1]
	return x
}

// driver runs the jobs: each has one batch in work and one on the way.
type driver struct {
	w     *World
	s     System
	queue events
	seq   int
	jobs  []runJob
}

type runJob struct {
	*Job
	res    JobResult
	count  []uint16 // by sample: deliveries in this epoch; 0 outside the subset stays 0
	member []bool
	parked bool
	gone   bool
	over   bool // has all its epochs
	busy   float64
}

func (d *driver) at(t float64, do func(float64)) {
	d.seq++
	heap.Push(&d.queue, event{t, d.seq, do})
}

func (d *driver) run(name string) *Result {
	for i := range d.w.Jobs {
		j := runJob{Job: &d.w.Jobs[i], count: make([]uint16, d.w.Samples), member: make([]bool, d.w.Samples)}
		for _, x := range j.Subset {
			j.member[x] = true
		}
		j.res.Coverage, j.res.First, j.busy = 1, -1, j.Start
		d.jobs = append(d.jobs, j)
		d.at(j.Start, func(now float64) {
			d.s.Join(i, now)
			d.ask(i, now)
		})
		if j.Kill > 0 {
			d.at(j.Kill, func(now float64) { d.gone(i, now, true) })
		}
		if j.Leave > 0 {
			d.at(j.Leave, func(now float64) { d.gone(i, now, false) })
		}
	}
	r := &Result{System: name}
	for len(d.queue) > 0 {
		e := heap.Pop(&d.queue).(event)
		if e.at > d.w.Limit {
			r.Cut = true
			break
		}
		e.do(e.at)
		d.wake(e.at)
	}
	for i := range d.jobs {
		j := &d.jobs[i]
		j.res.Finished = j.over
		j.res.End = j.busy
		if !j.over && !j.gone && !r.Cut {
			r.Stuck = true
		}
		r.Makespan = max(r.Makespan, j.busy)
		r.Jobs = append(r.Jobs, j.res)
	}
	r.Reads, r.Preps = d.w.reads, d.w.preps
	return r
}

// wake lets waiting jobs ask again until no job gets anything.
func (d *driver) wake(now float64) {
	for again := true; again; {
		again = false
		for i := range d.jobs {
			if d.jobs[i].parked && !d.jobs[i].gone {
				d.jobs[i].parked = false
				d.ask(i, now)
				again = again || !d.jobs[i].parked
			}
		}
	}
}

func (d *driver) ask(i int, now float64) {
	j := &d.jobs[i]
	for !j.gone && !j.over {
		b, s := d.s.Next(i, now)
		switch s {
		case Wait:
			j.parked = true
			if b.Ready > now {
				d.at(b.Ready, func(float64) {})
			}
			return
		case EpochOver:
			d.epochOver(j)
			if j.res.Epochs == j.Epochs {
				j.over = true
				d.at(j.busy, func(now float64) { d.s.Gone(i, now, false) })
				return
			}
		default:
			d.at(max(b.Ready, j.busy, now), func(now float64) { d.take(i, b, now) })
			return
		}
	}
}

// take: the job begins to work on a batch, and asks for the next one.
func (d *driver) take(i int, b Batch, now float64) {
	j := &d.jobs[i]
	if j.gone {
		return
	}
	if j.res.First < 0 {
		j.res.First = now - j.Start
	}
	j.res.Waited += now - j.busy
	j.busy = now + j.Step
	j.res.Hits += b.Hits
	j.res.Delivered += len(b.IDs)
	for _, x := range b.IDs {
		switch {
		case !j.member[x]:
			j.res.Foreign++
		case j.count[x] > 0:
			j.res.Repeated++
		}
		j.count[x]++
	}
	d.s.Done(i, now)
	d.ask(i, now)
}

func (d *driver) epochOver(j *runJob) {
	had := 0
	for _, x := range j.Subset {
		if j.count[x] > 0 {
			had++
		}
	}
	clear(j.count)
	j.res.Epochs++
	j.res.Missing += len(j.Subset) - had
	j.res.Coverage = min(j.res.Coverage, float64(had)/float64(len(j.Subset)))
}

func (d *driver) gone(i int, now float64, died bool) {
	j := &d.jobs[i]
	if j.gone || j.over {
		return
	}
	j.gone, j.busy = true, min(j.busy, now)
	d.s.Gone(i, now, died)
}

// FromTrace is the world of a trace's demand: its jobs, a cache of so many samples, a storage that reads a sample in
// read seconds and workers that prepare one in prep. Demand whose epochs are no sets (zipf, curriculum) is UNSUPPORTED.
func FromTrace(t *trace.Trace, cache int, read, prep float64, seed uint64) (World, error) {
	w := World{Samples: t.Objects, Cache: cache, Seed: seed, Read: read, Prep: prep}
	shapes := t.Shapes()
	for i := range t.Jobs {
		j := &t.Jobs[i]
		ids := t.Members(i)
		shape := shapes[i]
		if shape.Repeats {
			return w, errs.New(errs.Unsupported, j.Name, "choose a scenario whose jobs take each sample once an epoch",
				"systems need jobs that take their subset once an epoch; job %.40q takes samples twice in an epoch", j.Name)
		}
		if n := max(1, shape.Epochs); shape.Picks != n*len(ids) || t.Name == "" && shape.Epochs == 0 {
			if j.Leave == 0 {
				return w, errs.New(errs.Unsupported, j.Name, "choose a scenario whose jobs take their whole subsets",
					"systems need jobs that take their subset once an epoch; job %.40q takes %d samples of %d in %d epochs", j.Name,
					shape.Picks, len(ids), shape.Epochs)
			}
		}
		batch := j.Batch
		if batch == 0 {
			batch = 32
		}
		w.Jobs = append(w.Jobs, Job{Name: j.Name, Subset: ids, Start: j.Arrive.Seconds(), Leave: j.Leave.Seconds(),
			Step: j.Step.Seconds() * float64(batch), Batch: batch, Epochs: max(1, shape.Epochs)})
	}
	return w, nil
}

// Row is the result as a report shows it.
func (r *Result) Row(w *World) report.SystemRow {
	out := report.SystemRow{System: r.System, Cache: int64(w.Cache), Loads: r.Reads, Preps: r.Preps, Coverage: 1,
		ExactlyOnce: !r.Stuck && !r.Cut, Makespan: r.Makespan, Jain: 1}
	hits, sum, sq := 0, 0.0, 0.0
	for i := range r.Jobs {
		j, d := &r.Jobs[i], &w.Jobs[i]
		out.Delivered += j.Delivered
		out.Repeated += j.Repeated
		out.Coverage = min(out.Coverage, j.Coverage)
		hits += j.Hits
		if j.Missing+j.Repeated+j.Foreign > 0 || !j.Finished && d.Leave == 0 && d.Kill == 0 {
			out.ExactlyOnce = false
		}
		ideal := float64((len(d.Subset)+d.Batch-1)/d.Batch*d.Epochs) * d.Step
		slow := math.Inf(1)
		if ideal > 0 && j.Finished {
			slow = (j.End - d.Start) / ideal
		}
		if math.IsInf(slow, 0) {
			slow = 0 // it has none
		} else {
			sum, sq = sum+1/slow, sq+1/(slow*slow)
		}
		out.SlowDown = append(out.SlowDown, slow)
	}
	if out.Delivered > 0 {
		out.HitRatio = float64(hits) / float64(out.Delivered)
	}
	if sq > 0 {
		out.Jain = sum * sum / (float64(len(r.Jobs)) * sq)
	}
	if r.Stuck {
		out.Unsupported = "its jobs wait for one that will never come"
	}
	return out
}
