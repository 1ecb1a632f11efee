package crew

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"larder/internal/engine/work"
	"larder/internal/session/wire"
	"larder/internal/session/workertest"
	"larder/internal/shm"
	"larder/internal/xrand"
)

// fate is what a worker of the simulation makes of a task.
type fate int

const (
	fateDone   fate = iota
	fateDie         // its process ends without a word
	fateHang        // it never answers, until the daemon has given it up
	fateLie         // a record or a stack that is none, or of another schema, or not in its memory
	fateRaise       // the dataset raises
	fateRetry       // it asks for another worker
	fateLeave       // it gives all back, and leaves in order
	fateTwice       // it answers, and answers again
	fateBeyond      // it answers a task that it has together with one that it has not
	fateGrow        // it takes other memory first
	numFates
	fateOp // a built-in op fails: of poison samples only
)

// agent is a process of a worker: it does one task after the other, or several at once, in its time, and its faults.
// What it has made it answers at once, or as stacks of what it has by then.
type agent struct {
	y      *yard
	w      *Worker
	r      *xrand.Rand
	job    *simJob // whose client started it; nil = nobody's, who is always there
	mem    []byte
	input  *shm.Segment
	marks  bool
	inline bool
	batch  bool
	most   int // tasks of a stack

	mine     map[uint64]*task // what its tasks are to the Crew
	todo     []simTask
	ready    []simTask     // made, and not answered
	marked   uint64        // 0 = several
	oldest   uint64        // of todo and ready
	since    time.Duration // it has been that
	used     [agentUnits]bool
	out      map[uint64]int // units of records that are not freed, by offset
	lies     map[uint64]int // offsets of records that are none, and not freed
	next     int            // unit
	busy     bool
	settling bool // it has answered, and its session has not told the Crew
	gone     bool // its session has ended
	givenUp  bool
}

// staff starts the workers of a job's client.
func (y *yard) staff(j *simJob) {
	for i := range y.plan.staff[j.client.Spec.Name] {
		y.After(y.some(y.plan.delay), func() { y.attach(j, i) })
	}
}

// rescue starts workers that know every recipe and are always there, from some time on: then all there is can be done.
func (y *yard) rescue() {
	for range y.plan.rescuers {
		y.After(y.plan.rescue, func() { y.attach(nil, 0) })
	}
}

// leaves ends the workers of a client that is gone, a moment before or after it is seen.
func (y *yard) leaves(j *simJob) {
	j.present = false
	for _, a := range slices.Clone(y.agents) {
		if a.job == j {
			y.After(y.some(5*time.Millisecond), func() { a.close(a.r.IntN(2) == 0) })
		}
	}
}

// attach starts a worker.
func (y *yard) attach(j *simJob, number int) {
	if y.Jobs() == 0 || j != nil && !j.present {
		return
	}
	a := &agent{y: y, job: j, r: xrand.New(y.plan.seed, uint64(len(y.agents)), 57), mine: map[uint64]*task{},
		out: map[uint64]int{}, lies: map[uint64]int{}}
	req := wire.WorkRequest{PID: 1, Client: "rescue"}
	if j != nil {
		req.PID, req.Client = j.pid(), j.client.Spec.Name
		a.inline = y.plan.inline && number == 0
		req.Inline = a.inline
	}
	a.batch = y.plan.stacks > 0 && a.r.IntN(4) < 3
	a.marks = a.batch || a.r.IntN(2) == 0
	if a.marks {
		req.Mark, req.Window = new(uint64), uint32(1+a.r.IntN(64))
		*req.Mark = agentBytes - 8
	}
	if a.most = 1; a.batch {
		a.most, req.Batch, req.Window = 1+a.r.IntN(y.plan.stacks), true, uint32(1+a.r.IntN(256))
	}
	fd, mem, err := workertest.NewMemory(agentBytes, workertest.Seals)
	if err != nil {
		y.t.Fatal(err)
	}
	seg, err := shm.MapForeign(fd, agentBytes, 1<<20)
	if err != nil {
		y.t.Fatal(err)
	}
	a.mem = mem
	if a.w, err = y.crew.Attach(&req, y.known(j), shm.Peer{}, seg, a); err != nil {
		y.t.Fatal(err)
	}
	a.input = a.w.Input()
	a.input.Retain() // the worker's own mapping
	y.agents = append(y.agents, a)
	a.w.Start()
	y.kick()
}

// known is the jobs whose recipes a worker knows: those of its client, all for those of nobody. A client that uses the
// same dataset knows the same prefixes.
func (y *yard) known(j *simJob) (out []*work.Job) {
	if j != nil {
		return []*work.Job{&j.Job}
	}
	for _, name := range y.plan.names {
		k := y.plan.kinds[name]
		out = append(out, &work.Job{Data: y.data, Recipe: k.recipe(), Made: &work.Made{Steps: k.steps, Cut: k.cut}})
	}
	return out
}

// Give implements session.Hand. Tasks come in turn: none that the worker may have is left behind that is earlier.
func (a *agent) Give(freed []uint64, tasks []wire.TaskFrame) {
	for _, at := range freed {
		a.freed(at)
	}
	for _, h := range a.w.held {
		if a.mine[h.id] == nil && slices.ContainsFunc(tasks, func(t wire.TaskFrame) bool { return t.Task == h.id }) {
			a.mine[h.id] = h.t
			a.given(h.t)
		}
	}
	if len(tasks) > 0 {
		a.inTurn(tasks)
		a.todo = append(a.todo, a.read(tasks)...)
	}
	a.age()
	a.y.After(0, a.step)
}

func (a *agent) inTurn(tasks []wire.TaskFrame) {
	c, last := a.y.crew, uint64(0)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range a.w.held {
		if slices.ContainsFunc(tasks, func(t wire.TaskFrame) bool { return t.Task == h.id }) {
			last = max(last, h.t.turn)
			if a.y.failed[h.t] == a.w.id && c.manned(h.t.fit, a.w) {
				a.y.Fail("worker %d got what it has failed, and another one is there", a.w.id)
			}
			delete(a.y.failed, h.t)
		}
	}
	if a.inline || a.y.plan.maxRecord <= page { // it prefers its own jobs; some may have been given back
		return
	}
	for _, f := range c.mu.order {
		if q := c.mu.queues[f]; c.serves(a.w, f, false) && q.len() < looked {
			if t := q.first(func(t *task) bool { return c.mayDo(a.w, t) }); t != nil && t.turn < last {
				a.y.Fail("worker %d got turn %d, and %d waits", a.w.id, last, t.turn)
			}
		}
	}
}

// Gone implements session.Hand: the daemon gives the worker up. It may still say something.
func (a *agent) Gone(error) {
	if t := a.y.Now() - a.since; t < a.y.plan.timeout && !a.y.plan.inline {
		a.y.Fail("worker %d is given up after %v", a.w.id, t)
	}
	a.stops(true, !a.y.plan.inline)
	a.givenUp = true
	a.y.After(a.y.some(3*time.Millisecond), func() {
		if a.gone {
			return
		}
		if len(a.todo) > 0 && a.r.IntN(2) == 0 { // late
			a.make(&a.todo[0])
			a.ready, a.todo = append(a.ready, a.todo[0]), a.todo[1:]
			a.flush()
		}
		a.close(false)
	})
}

// step begins what is next.
func (a *agent) step() {
	if a.gone || a.busy || len(a.todo) == 0 {
		return
	}
	a.busy = true
	works := a.todo[:a.together()]
	if a.marked = works[0].Task; len(works) > 1 {
		a.marked = 0
	}
	if a.marks {
		binary.LittleEndian.PutUint64(a.mem[agentBytes-8:], a.marked)
	}
	took, fates := time.Duration(0), make([]fate, len(works))
	for i := range works {
		a.begins(&works[i])
		fates[i] = a.fate(&works[i])
		if a.batch {
			took += time.Duration(5+a.r.IntN(a.y.plan.work/8)) * time.Microsecond
		} else {
			took += time.Duration(20+a.r.IntN(a.y.plan.work)) * time.Microsecond
		}
	}
	if a.inline { // its script does not always wait for a batch
		took += time.Duration(a.r.IntN(3)*a.r.IntN(600)) * time.Millisecond
	}
	if slices.Contains(fates, fateHang) {
		return
	}
	a.y.After(took, func() {
		if a.gone {
			return
		}
		a.busy = false
		a.end(fates)
		a.y.kick()
		a.step()
	})
}

// age notes which task is the oldest one.
func (a *agent) age() {
	id := uint64(0)
	for _, t := range slices.Concat(a.ready, a.todo) {
		if id == 0 || t.Task < id {
			id = t.Task
		}
	}
	if id != a.oldest {
		a.oldest, a.since = id, a.y.Now()
	}
}

// end ends the tasks that the agent is at, and answers what it has by then: all, or what makes a stack.
func (a *agent) end(fates []fate) {
	for _, f := range fates {
		t := a.todo[0]
		a.todo = a.todo[1:]
		a.do(&t, f)
		if a.gone {
			return
		}
	}
	if len(a.todo) == 0 || len(a.ready) >= a.most || a.r.IntN(16) == 0 {
		a.flush()
	}
	a.age()
}

func (a *agent) fate(t *simTask) fate {
	if f := a.y.plan.poison[t.Sample]; f != fateDone && f != fateOp && t.First == 0 {
		return f
	}
	p := &a.y.plan.faults
	switch {
	case a.job == nil && a.r.IntN(40) == 0:
		return fateRetry
	case a.job == nil && a.batch && p[fateLie] > 0 && a.y.Now() < a.y.plan.calm && a.r.IntN(60) == 0:
		return fateLie // about tasks of several recipes at once
	case a.job == nil || a.y.Now() > a.y.plan.calm:
		return fateDone
	}
	x := a.r.Float64()
	for f := fateDie; f < numFates; f++ {
		if x -= p[f]; x < 0 {
			return f
		}
	}
	return fateDone
}

// do ends a task.
func (a *agent) do(t *simTask, f fate) {
	var err error
	switch f {
	case fateDie:
		if a.todo = slices.Insert(a.todo, 0, *t); a.r.IntN(2) == 0 {
			a.flush() // a part of it
		}
		a.close(false)
	case fateLie:
		err = a.lie(t)
	case fateRaise:
		a.fails(t.Task, true)
		err = a.w.Failed(t.Task, wire.Failure{Type: "ValueError", Message: "no", Traceback: "here"})
		a.settle()
	case fateRetry:
		a.fails(t.Task, false)
		err = a.w.Failed(t.Task, wire.Failure{Retry: true})
		a.settle()
	case fateLeave:
		for i, o := range append([]simTask{*t}, a.todo...) {
			if i > 0 {
				a.begins(&o)
			}
			if err == nil {
				err = a.w.Failed(o.Task, wire.Failure{Retry: true})
			}
		}
		a.todo = nil
		if a.r.IntN(2) == 0 {
			a.flush()
		}
		a.close(true)
	case fateTwice:
		a.make(t)
		a.twice(t)
	case fateBeyond:
		a.todo = slices.Insert(a.todo, 0, *t)
		a.beyond(t)
	case fateGrow:
		a.grow()
		fallthrough
	default:
		a.make(t)
		a.ready = append(a.ready, *t)
	}
	if err != nil {
		a.y.Fail("worker %d, task %+v: %v", a.w.id, t.TaskFrame, err)
	}
}

func (a *agent) grow() {
	fd, mem, err := workertest.NewMemory(agentBytes, workertest.Seals)
	if err != nil {
		a.y.t.Fatal(err)
	}
	seg, err := shm.MapForeign(fd, agentBytes, 1<<20)
	if err != nil {
		a.y.t.Fatal(err)
	}
	copy(mem, a.mem)
	_ = unix.Munmap(a.mem)
	a.mem = mem
	a.w.Grow(seg)
}

// settle has the session tell the Crew what was answered, now or together with what is answered next.
func (a *agent) settle() {
	if a.settling {
		return
	}
	a.settling = true
	a.y.After(a.y.some(200*time.Microsecond), func() {
		a.settling = false
		if !a.gone {
			a.w.Settle()
			if n := len(a.out) + len(a.lies); n > 0 {
				a.y.Fail("worker %d: %d records are not freed", a.w.id, n)
			}
			a.y.kick()
		}
	})
}

// close ends the session, once. Its client starts another worker, if it is there.
func (a *agent) close(clean bool) {
	if a.gone {
		return
	}
	if a.gone = true; !a.givenUp {
		a.stops(!clean && !a.inline, false)
	}
	a.w.Close(clean)
	_ = unix.Munmap(a.mem)
	a.input.Release()
	a.y.kick()
	if a.job == nil || a.r.IntN(4) > 0 {
		a.y.After(a.y.some(a.y.plan.delay), func() { a.y.attach(a.job, 1) })
	}
}

// idle returns a worker that has nothing to do while a task waits that it could do, and of which nothing is to come.
// The Crew is locked.
func (y *yard) idle() error {
	c := y.crew
	if y.rounding || len(c.mu.added)+len(c.mu.fresh)+len(c.mu.dropped) > 0 {
		return nil
	}
	for _, a := range y.agents {
		if w := a.w; !a.gone && !a.settling && len(w.held) == 0 && w.room() > 0 && c.peek(w) != nil {
			return fmt.Errorf("worker %d is idle, and a task waits for it", w.id)
		}
	}
	return nil
}

// lent returns a task that was taken back from a worker which has answered it: it would take its room for ever. The
// Crew is locked.
func (y *yard) lent() error {
	for _, a := range y.agents {
		if a.gone || a.givenUp {
			continue
		}
		for _, h := range a.w.lent {
			if !slices.ContainsFunc(slices.Concat(a.ready, a.todo), func(t simTask) bool { return t.Task == h.id }) {
				return fmt.Errorf("worker %d has answered task %d, and still has it", a.w.id, h.id)
			}
		}
	}
	return nil
}
