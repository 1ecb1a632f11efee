// Package policytest drives cache policies over traces of requests, for tests and for the table of
// docs/measurements/policies.md: entries of one size, one tier, no look-ahead. The tier is a plain map, apart from the
// daemon's index on purpose.
package policytest

import (
	"larder/cachepolicy"
	"larder/internal/ident"
	"larder/internal/xrand"
)

// Trace is requests in order, and whose epoch each belongs to.
type Trace struct {
	Samples  int
	Requests []Request
}

// Request is one job asking for one sample.
type Request struct {
	Object ident.ObjectID
	Job    uint16
	Epoch  uint16 // of the job
	Need   uint16 // other jobs that still need the sample in their running epochs, when this one has it
}

// Shuffled is a trace of jobs that take a sample each in turn from fresh uniform orders of the same dataset, so that
// the epochs of all begin and end together.
func Shuffled(samples, jobs, epochs int, r *xrand.Rand) *Trace {
	t := &Trace{Samples: samples, Requests: make([]Request, 0, samples*jobs*epochs)}
	orders := make([][]uint32, jobs)
	for j := range orders {
		orders[j] = make([]uint32, samples)
		for i := range orders[j] {
			orders[j][i] = uint32(i)
		}
	}
	need := make([]uint16, samples)
	for e := range epochs {
		for _, o := range orders {
			r.Shuffle(samples, func(a, b int) { o[a], o[b] = o[b], o[a] })
		}
		for x := range need {
			need[x] = uint16(jobs)
		}
		for i := range samples {
			for j, o := range orders {
				x := o[i]
				need[x]--
				t.Requests = append(t.Requests, Request{ident.ObjectID(x), uint16(j), uint16(e), need[x]})
			}
		}
	}
	return t
}

// Key is what a request asks the tier for.
func (q Request) Key() ident.Key { return ident.Key{Object: q.Object, Form: ident.Decoded} }

// Whole is the Future of a trace with all of it known.
type Whole struct {
	now  uint64 // number of the request + 1
	next []uint64
	at   []uint64 // by sample: number + 1 of its next request after now
}

// Whole returns the trace's future.
func (t *Trace) Whole() *Whole {
	w := &Whole{next: make([]uint64, len(t.Requests)), at: make([]uint64, t.Samples)}
	for i := len(t.Requests) - 1; i >= 0; i-- {
		x := t.Requests[i].Object
		w.next[i] = w.at[x]
		w.at[x] = uint64(i + 1)
	}
	return w
}

// Advance moves the future to a request.
func (w *Whole) Advance(i int, q Request) {
	w.now = uint64(i + 1)
	w.at[q.Object] = w.next[i]
}

// Now is the number of the request, from 1.
func (w *Whole) Now() uint64 { return w.now }

// Next is the number of the next request for k's object.
func (w *Whole) Next(k ident.Key) (uint64, bool) {
	at := w.at[k.Object]
	return at, at > 0
}

// Epochs is the Future of a trace of which each job's running epoch is known.
type Epochs struct {
	now    uint64
	trace  *Trace
	starts [][]int    // by job and epoch: its first request
	turn   [][]uint64 // by job and sample: number + 1 of the request in the running epoch
	epoch  []int      // by job: the epoch that turn is of
}

// Epochs returns the trace's future as far as running epochs go.
func (t *Trace) Epochs() *Epochs {
	e := &Epochs{trace: t}
	for i, q := range t.Requests {
		for len(e.starts) <= int(q.Job) {
			e.starts = append(e.starts, nil)
			e.turn = append(e.turn, make([]uint64, t.Samples))
			e.epoch = append(e.epoch, -1)
		}
		if len(e.starts[q.Job]) <= int(q.Epoch) {
			e.starts[q.Job] = append(e.starts[q.Job], i)
		}
	}
	return e
}

// Advance moves the future to a request. An epoch begins with its first one.
func (e *Epochs) Advance(i int, q Request) {
	e.now = uint64(i + 1)
	j := int(q.Job)
	if e.epoch[j] == int(q.Epoch) {
		return
	}
	e.epoch[j] = int(q.Epoch)
	clear(e.turn[j])
	for n := e.starts[j][q.Epoch]; n < len(e.trace.Requests); n++ {
		p := e.trace.Requests[n]
		if p.Job == q.Job && p.Epoch != q.Epoch {
			break
		}
		if p.Job == q.Job {
			e.turn[j][p.Object] = uint64(n + 1)
		}
	}
}

// Now is the number of the request, from 1.
func (e *Epochs) Now() uint64 { return e.now }

// Next is the number of the next request for k's object in the epochs that run.
func (e *Epochs) Next(k ident.Key) (at uint64, ok bool) {
	for _, t := range e.turn {
		if n := t[k.Object]; n > e.now && (!ok || n < at) {
			at, ok = n, true
		}
	}
	return at, ok
}

// Future is a cachepolicy.Future that Run moves along the trace.
type Future interface {
	cachepolicy.Future
	Advance(i int, q Request)
}

// Run drives a policy over the trace with room for capacity entries, and returns the hits of each epoch of all jobs
// together. future, which may be nil, is what the policy was given. At the beginning of each epoch all needs are passed
// again.
//
// dropSpent takes an entry out once no job needs it, and keeps out what no job needs: refcount as Joader's paper has
// it.
func Run(t *Trace, capacity int, e cachepolicy.Evictor, future Future, dropSpent bool) (hits []int) {
	return Play{Capacity: capacity, Policy: e, Future: future, DropSpent: dropSpent}.Run(t)
}

// Play is what Run is given, and more.
type Play struct {
	Capacity  int
	Policy    cachepolicy.Evictor
	Future    Future         // may be nil
	DropSpent bool           // see Run
	Each      func(hit bool) // called for each request, with whether it was a hit; may be nil
}

// Run drives the policy over the trace, and returns the hits of each epoch of all jobs together.
func (p Play) Run(t *Trace) (hits []int) {
	e, capacity, dropSpent := p.Policy, p.Capacity, p.DropSpent
	s, _ := e.(cachepolicy.Sighted)
	in := make([]uint32, t.Samples) // handle + 1
	object := make([]ident.ObjectID, capacity)
	jobs := 0
	for _, q := range t.Requests {
		jobs = max(jobs, int(q.Job)+1)
	}
	var free []uint32
	for h := capacity; h > 0; h-- {
		free = append(free, uint32(h-1))
	}
	drop := func(h uint32) {
		e.Remove(h)
		in[object[h]] = 0
		free = append(free, h)
	}
	for i, q := range t.Requests {
		if p.Future != nil {
			p.Future.Advance(i, q)
		}
		if int(q.Epoch) == len(hits) {
			hits = append(hits, 0)
			for h, x := range object { // by handle, so that names have no influence
				if in[x] == uint32(h+1) {
					e.Update(uint32(h), jobs)
				}
			}
		}
		if p.Each != nil {
			p.Each(in[q.Object] > 0)
		}
		if h := in[q.Object]; h > 0 {
			hits[q.Epoch]++
			e.Hit(h - 1)
			e.Update(h-1, int(q.Need))
			if dropSpent && q.Need == 0 {
				drop(h - 1)
			}
			continue
		}
		if capacity == 0 || dropSpent && q.Need == 0 || s != nil && !s.Admit(q.Key(), int(q.Need)) {
			continue
		}
		if len(free) == 0 {
			v, ok := e.Victim(int(q.Need))
			if !ok {
				continue
			}
			drop(v)
		}
		h := free[len(free)-1]
		free = free[:len(free)-1]
		object[h], in[q.Object] = q.Object, h+1
		e.Insert(h, int(q.Need))
	}
	return hits
}

// Ratio is the share of hits in the epochs from warm on.
func (t *Trace) Ratio(hits []int, warm int) float64 {
	sum := 0
	for _, h := range hits[warm:] {
		sum += h
	}
	n := 0
	for _, q := range t.Requests {
		if int(q.Epoch) >= warm {
			n++
		}
	}
	return float64(sum) / float64(n)
}
