package crew

import (
	"time"

	"larder/internal/coordinator"
	"larder/internal/engine/ring"
	"larder/internal/engine/work"
	"larder/internal/heap"
	"larder/internal/ident"
)

// task is what a worker is to make: steps [first, last) of a sample. Where built-in ops lie among the steps that were
// asked for, which end at end, it is done stage by stage: at workers, and in the daemon (stages.go).
type task struct {
	job         *work.Job
	fit         fit
	turn        uint64
	first, last uint32
	begin, end  uint32 // of all its stages
	sample      ident.SampleID
	seed        uint64
	instance    uint32

	flight coordinator.FlightID // that it answers; 0 = it answers a Fill
	key    ident.Key            // what the flight makes
	keep   bool                 // in the tier of its form
	after  uint64               // mark of Config.Tiers that must be done before something is stored
	fill   *coordinator.Fill    // the row to write; nil = none
	from   coordinator.Source   // of the input, when first > 0
	blob   []byte               // what the stage before made; nil = from says where the input is
	runs   []work.Run           // the built-in ops of this stage; none = a worker does it
	took   time.Duration        // of the stages before, at workers
	read   int64                // bytes that were read for it
	held   bool                 // they came from a block in memory
	wanted int                  // jobs whose subset has the sample, if it is read; 0 = not known
	probe  bool                 // its item is read at once, and coordinator.ItemRead says so
	ring   *ring.Ring           // held for a Fill that is not in place; nil = its client is gone, or it is not held

	followed bool // its job had ended when it came: others wait for it

	failures int    // that count for the sample
	tries    int    // at workers
	avoid    uint32 // the worker that failed it last; 0 = none
	alone    bool   // a worker ended when it was at this one and others: which one is to blame shows when it comes alone
}

// queue is tasks of one fit by turn.
type queue struct{ heap heap.Heap[entry, *entry] }

type entry struct{ t *task }

// Before is the order of work.
func (e *entry) Before(o *entry) bool { return e.t.turn < o.t.turn }

func (q *queue) len() int     { return len(q.heap) }
func (q *queue) push(t *task) { q.heap.Push(entry{t}) }

// looked is how many tasks of a queue are looked at for one that a worker may do: those that it may not are few.
const looked = 64

// first is the earliest task that may; nil = none of the first few.
func (q *queue) first(may func(*task) bool) *task {
	i := q.find(may)
	if i < 0 {
		return nil
	}
	return q.heap[i].t
}

func (q *queue) find(may func(*task) bool) int {
	best := -1
	for i := range q.heap[:min(len(q.heap), looked)] {
		if may(q.heap[i].t) && (best < 0 || q.heap[i].t.turn < q.heap[best].t.turn) {
			best = i
			if i == 0 {
				break
			}
		}
	}
	return best
}

// pop removes what first finds.
func (q *queue) pop(may func(*task) bool) *task {
	i := q.find(may)
	if i < 0 {
		return nil
	}
	if i == 0 {
		return q.heap.Pop().t
	}
	t := q.heap[i].t
	q.remove(func(o *task) bool { return o == t })
	return t
}

// remove takes out what is asked for, and returns it.
func (q *queue) remove(is func(*task) bool) (out []*task) {
	rest := q.heap
	q.heap = nil
	for _, e := range rest {
		if is(e.t) {
			out = append(out, e.t)
		} else {
			q.heap.Push(e)
		}
	}
	return out
}

func (q *queue) all() []*task { return q.remove(func(*task) bool { return true }) }

// newTask says what an effect asks for.
func newTask(what coordinator.Effect, j *work.Job, r *ring.Ring, after uint64) *task {
	t := &task{job: j, after: after, ring: r}
	m, whole := j.Made, fit{j.Recipe.ID(), true, j.ID}
	switch x := what.(type) {
	case coordinator.Prepare:
		t.flight, t.key, t.keep, t.turn = x.Flight, x.Key, x.Keep, x.Turn
		t.probe, t.wanted = x.Probe, x.Readers
		t.fit, t.last = fit{j.Recipe.Prefix(), false, j.ID}, m.Cut
		if x.Into != nil {
			t.fill, t.last = x.Into, m.Steps
			if m.Cut < m.Steps {
				t.fit, t.seed, t.instance = whole, x.Into.Seed, x.Into.Instance
			}
		}
	case coordinator.Augment:
		t.flight, t.key, t.keep, t.turn, t.from = x.Flight, x.Key, x.Keep, x.Turn, x.From
		t.fit, t.first, t.last, t.seed, t.instance = whole, m.Cut, m.Steps, x.Seed, x.Instance
	case *coordinator.Fill:
		t.fill, t.turn, t.from, t.key = x, x.Turn, x.From, ident.Key{Object: x.Object}
		t.fit, t.first, t.last, t.seed, t.instance = whole, m.Cut, m.Steps, x.Seed, x.Instance
	}
	t.sample, _ = j.Data.Sample(t.key.Object)
	t.begin, t.end = t.first, t.last
	t.last, t.runs = m.Next(t.first, t.end)
	return t
}

// copies reports whether the result becomes a working copy.
func (t *task) copies() bool { return t.fill == nil && !t.keep }

// answered reports whether there is nothing to do for a task: the decoded form is the sample's number, or the client
// that waited for a row is gone.
func (t *task) answered() bool {
	return t.begin == t.end || t.flight == 0 && t.ring == nil
}

// numberBytes is what the decoded form takes that is a sample's number alone.
const numberBytes = 8

func (t *task) trivial() coordinator.Event {
	if t.flight == 0 {
		return coordinator.Filled{Delivery: t.fill.Delivery, Row: t.fill.Row}
	}
	return coordinator.Prepared{Flight: t.flight, Bytes: numberBytes}
}

// lost answers a task whose source is gone, or that nobody waits for.
func (t *task) lost() coordinator.Event {
	if t.flight == 0 {
		return coordinator.Filled{Delivery: t.fill.Delivery, Row: t.fill.Row, Lost: true}
	}
	return coordinator.Prepared{Flight: t.flight, Lost: true, Read: t.read}
}

// failed answers a task that could not be done.
func (t *task) failed(why string) coordinator.Event {
	if t.flight == 0 {
		return coordinator.Filled{Delivery: t.fill.Delivery, Row: t.fill.Row, Err: why}
	}
	return coordinator.Prepared{Flight: t.flight, Err: why, Tried: true, Read: t.read}
}

// done answers a task whose record was taken over.
func (t *task) done(kept bool, bytes int64) coordinator.Event {
	augments := 0
	if t.fill != nil && t.job.Recipe.Random() {
		augments = 1
	}
	if t.flight == 0 {
		return coordinator.Filled{Delivery: t.fill.Delivery, Row: t.fill.Row, Augments: augments}
	}
	return coordinator.Prepared{Flight: t.flight, Kept: kept, Bytes: bytes, Augments: augments, Read: t.read,
		Held: t.held}
}

// release ends the hold on the ring.
func (t *task) release() {
	if t.ring != nil {
		t.ring.Release()
		t.ring = nil
	}
}

// step is what a task counts as in the model of the tiers.
func (t *task) step() work.Step {
	switch {
	case t.begin > 0:
		return work.Augment
	case t.end > t.job.Made.Cut:
		return work.InPlace
	}
	return work.Decode
}

// ringKey names the ring of the row.
func (t *task) ringKey() ring.Key {
	return ring.Key{Job: t.fill.Job, Rank: t.fill.Rank, Inc: t.fill.Inc}
}
