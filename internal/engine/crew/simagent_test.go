package crew

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"larder/internal/engine/work"
	"larder/internal/prep"
	"larder/internal/session/wire"
	"larder/internal/session/workertest"
	"larder/internal/shm"
	"larder/internal/xrand"
)

// fate is what a worker of the simulation makes of a task.
type fate int

const (
	fateDone  fate = iota
	fateDie        // its process ends without a word
	fateHang       // it never answers, until the daemon has given it up
	fateLie        // a record that is none, or of another schema, or not in its memory
	fateRaise      // the dataset raises
	fateRetry      // it asks for another worker
	fateLeave      // it gives all back, and leaves in order
	fateTwice      // it answers, and answers again
	fateGrow       // it takes other memory first
	numFates
	fateOp // a built-in op fails: of poison samples only
)

const (
	agentSlots = 160 // records that the memory of an agent has room for
	agentBytes = agentSlots * simRecord
)

// agent is a process of a worker: it does one task after the other, in its time, and its faults.
type agent struct {
	y      *yard
	w      *Worker
	r      *xrand.Rand
	job    *simJob // whose client started it; nil = nobody's, who is always there
	mem    []byte
	input  *shm.Segment
	marks  bool
	inline bool

	todo     []wire.TaskFrame
	used     [agentSlots]bool
	next     int // slot
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
	a := &agent{y: y, job: j, r: xrand.New(y.plan.seed, uint64(len(y.agents)), 57)}
	req := wire.WorkRequest{PID: 1, Client: "rescue"}
	if j != nil {
		req.PID, req.Client = j.pid(), j.client.Spec.Name
		a.inline = y.plan.inline && number == 0
		req.Inline = a.inline
	}
	a.marks = a.r.IntN(2) == 0
	if a.marks {
		req.Mark, req.Window = new(uint64), uint32(1+a.r.IntN(64))
		*req.Mark = agentBytes - 8
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
		a.used[at/simRecord] = false
	}
	a.todo = append(a.todo, tasks...)
	if len(tasks) > 0 {
		a.inTurn(tasks)
	}
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
	a.givenUp = true
	a.y.After(a.y.some(3*time.Millisecond), func() {
		if a.gone {
			return
		}
		if len(a.todo) > 0 && a.r.IntN(2) == 0 { // late
			if err := a.answer(a.todo[0], 0); err != nil {
				a.y.Fail("a late answer: %v", err)
			}
		}
		a.close(false)
	})
}

// step begins the next task.
func (a *agent) step() {
	if a.gone || a.busy || len(a.todo) == 0 {
		return
	}
	a.busy = true
	t := a.todo[0]
	if a.marks {
		binary.LittleEndian.PutUint64(a.mem[agentBytes-8:], t.Task)
	}
	f, took := a.fate(t), time.Duration(20+a.r.IntN(a.y.plan.work))*time.Microsecond
	if a.inline { // its script does not always wait for a batch
		took += time.Duration(a.r.IntN(3)*a.r.IntN(600)) * time.Millisecond
	}
	if f == fateHang {
		return
	}
	a.y.After(took, func() {
		if a.gone {
			return
		}
		a.busy = false
		a.todo = a.todo[1:]
		a.do(t, f)
		a.y.kick()
		a.step()
	})
}

func (a *agent) fate(t wire.TaskFrame) fate {
	if f := a.y.plan.poison[t.Sample]; f != fateDone && f != fateOp && t.First == 0 {
		return f
	}
	p := &a.y.plan.faults
	switch {
	case a.job == nil && a.r.IntN(40) == 0:
		return fateRetry
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
func (a *agent) do(t wire.TaskFrame, f fate) {
	var err error
	switch f {
	case fateDie:
		a.close(false)
	case fateLie:
		a.fails(t)
		err = a.lie(t)
	case fateRaise:
		a.fails(t)
		err = a.w.Failed(t.Task, wire.Failure{Type: "ValueError", Message: "no", Traceback: "here"})
		a.settle()
	case fateRetry:
		a.fails(t)
		err = a.w.Failed(t.Task, wire.Failure{Retry: true})
		a.settle()
	case fateLeave:
		for _, o := range append([]wire.TaskFrame{t}, a.todo...) {
			if err == nil {
				err = a.w.Failed(o.Task, wire.Failure{Retry: true})
			}
		}
		a.close(true)
	case fateTwice:
		if err = a.answer(t, 0); err == nil && !a.givenUp {
			if a.w.Done(wire.DoneFrame{Task: t.Task, Bytes: simRecord}) == nil {
				a.y.Fail("a second answer is taken")
			}
			a.close(false)
		}
	case fateGrow:
		a.grow()
		err = a.answer(t, 0)
		a.settle()
	default:
		err = a.answer(t, 0)
		a.settle()
	}
	if err != nil {
		a.y.Fail("worker %d, task %+v: %v", a.w.id, t, err)
	}
}

// fails notes that the worker has not done a task.
func (a *agent) fails(t wire.TaskFrame) {
	for _, h := range a.w.held {
		if h.id == t.Task {
			a.y.failed[h.t] = a.w.id
		}
	}
}

// answer makes the record of a task, off bytes from where it says that it is.
func (a *agent) answer(t wire.TaskFrame, off uint64) error {
	k, x := a.kindOf(t), [4]uint64{}
	if t.First > 0 {
		in := a.input.Bytes()[t.Offset : t.Offset+t.Bytes]
		if x = simOpen(in); x[0] != t.Sample {
			a.y.Fail("the input of sample %d is of sample %d", t.Sample, x[0])
		}
	}
	for a.used[a.next] {
		a.next = (a.next + 1) % (agentSlots - 1)
	}
	at := a.next * simRecord
	a.used[a.next] = true
	b := simBlob(k.run(x, t.First, t.Last, prep.RandKey{Sample: t.Sample, Seed: t.Seed, Instance: t.Instance}))
	copy(a.mem[at:], b)
	return a.w.Done(wire.DoneFrame{Task: t.Task, Offset: uint64(at) + off, Bytes: uint64(len(b))})
}

// kindOf is the recipe of a task, by its place among those that the worker knows.
func (a *agent) kindOf(t wire.TaskFrame) simKind {
	if a.job != nil {
		return a.job.kind
	}
	return a.y.plan.kinds[a.y.plan.names[t.Recipe]]
}

func (a *agent) lie(t wire.TaskFrame) error {
	d := wire.DoneFrame{Task: t.Task}
	switch a.r.IntN(4) {
	case 0:
		d.Offset, d.Bytes = agentBytes-8, 100
	case 1:
		d.Bytes = 1 << 40
	case 2:
		d.Bytes = 3
	case 3:
		if err := a.answer(t, 64); err != nil {
			return err
		}
		a.settle()
		return nil
	}
	err := a.w.Done(d)
	a.settle()
	return err
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
			a.y.kick()
		}
	})
}

// close ends the session, once. Its client starts another worker, if it is there.
func (a *agent) close(clean bool) {
	if a.gone {
		return
	}
	a.gone = true
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
