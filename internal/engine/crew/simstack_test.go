package crew

import (
	"encoding/binary"
	"slices"

	"larder/internal/prep"
	"larder/internal/record"
	"larder/internal/session/wire"
)

const (
	agentUnits = 2047 // of 64 bytes, that the memory of an agent has room for; the mark is behind them
	agentBytes = (agentUnits + 1) * record.Align
)

// simTask is a task of an agent.
type simTask struct {
	wire.TaskFrame
	many bool      // it came in TASKS: it may be made together with others
	x    [4]uint64 // what was made of it
}

// read takes tasks as they come over the wire.
func (a *agent) read(tasks []wire.TaskFrame) (out []simTask) {
	if !a.batch {
		for _, t := range tasks {
			out = append(out, simTask{TaskFrame: t})
		}
		return out
	}
	for b := wire.AppendTasks(nil, tasks); len(b) > 0; {
		h, err := wire.ParseHeader(b)
		if err != nil {
			a.y.t.Fatal(err)
		}
		p := b[wire.HeaderSize:][:h.Length]
		b = b[wire.HeaderSize+len(p):]
		frames := make([]wire.TaskFrame, 1)
		if h.Type == wire.Tasks {
			frames, err = wire.ParseTasks(p)
		} else {
			frames[0], err = wire.ParseTask(p)
		}
		if err != nil {
			a.y.t.Fatal(err)
		}
		for _, t := range frames {
			if h.Type == wire.Tasks && tasks[len(out)].Alone {
				a.y.Fail("task %d is to be alone, and comes with others", t.Task)
			}
			out = append(out, simTask{TaskFrame: t, many: h.Type == wire.Tasks})
		}
	}
	return out
}

// together is how many tasks the agent begins at once.
func (a *agent) together() int {
	n := 0
	for n < min(len(a.todo), a.most) && a.todo[n].many {
		n++
	}
	if n < 2 || a.r.IntN(2) == 0 {
		return 1
	}
	return 1 + a.r.IntN(n)
}

// make does the steps of a task.
func (a *agent) make(t *simTask) {
	if t.First > 0 {
		in := a.input.Bytes()[t.Offset : t.Offset+t.Bytes]
		if t.x = simOpen(in); t.x[0] != t.Sample {
			a.y.Fail("the input of sample %d is of sample %d", t.Sample, t.x[0])
		}
	}
	key := prep.RandKey{Sample: t.Sample, Seed: t.Seed, Instance: t.Instance}
	t.x = a.kindOf(t).run(t.x, t.First, t.Last, key)
}

// kindOf is the recipe of a task, by its place among those that the worker knows.
func (a *agent) kindOf(t *simTask) simKind {
	if a.job != nil {
		return a.job.kind
	}
	return a.y.plan.kinds[a.y.plan.names[t.Recipe]]
}

// formOf is the form that a task's record is to have.
func (a *agent) formOf(t *simTask) simForm { return a.kindOf(t).formAt(t.Last) }

// run is how many of the tasks that are ready, from one on, can be answered together: numbers that follow each other,
// and, but in a lie, records of one form.
func (a *agent) run(from int, lie bool) int {
	n := 1
	for from+n < len(a.ready) && a.ready[from+n].Task == a.ready[from].Task+uint64(n) &&
		(lie || a.formOf(&a.ready[from+n]) == a.formOf(&a.ready[from])) {
		n++
	}
	return n
}

// last takes the last of the tasks that are ready, with those before it that can be answered with it, at most so many.
func (a *agent) last(most int, lie bool) []simTask {
	i := len(a.ready) - 1
	for i > 0 && len(a.ready)-i < most && a.run(i-1, lie) == len(a.ready)-i+1 {
		i--
	}
	tasks := a.ready[i:]
	a.ready = a.ready[:i:i]
	return tasks
}

// flush answers what is ready, in whatever parts and order.
func (a *agent) flush() {
	var parts [][]simTask
	for i := 0; i < len(a.ready); {
		n := a.run(i, false)
		if a.r.IntN(3) == 0 {
			n = 1 + a.r.IntN(n)
		}
		parts = append(parts, a.ready[i:i+n])
		i += n
	}
	a.ready = nil
	if a.r.IntN(4) == 0 {
		slices.Reverse(parts)
	}
	if len(parts) > 1 {
		a.y.parts++
	}
	for _, p := range parts {
		if _, err := a.answer(p); err != nil {
			a.y.Fail("worker %d, %d tasks from %+v on: %v", a.w.id, len(p), p[0].TaskFrame, err)
		}
	}
	if len(parts) > 0 {
		a.settle()
	}
}

// answer answers tasks that were made: with one record, or with a stack. It returns how it can be done again.
func (a *agent) answer(tasks []simTask) (again func() error, err error) {
	form := a.formOf(&tasks[0])
	if len(tasks) == 1 && (!a.batch || a.r.IntN(2) == 0) {
		b := simBlob(tasks[0].x, form)
		return a.sendOne(tasks[0].Task, a.place(b), len(b))
	}
	b := stackOf(tasks, form)
	return a.sendStack(tasks, a.place(b), len(b))
}

func (a *agent) sendOne(id, at uint64, n int) (again func() error, err error) {
	d := wire.DoneFrame{Task: id, Offset: at, Bytes: uint64(n)}
	again = func() error { return a.w.Done(d) }
	return again, again()
}

func (a *agent) sendStack(tasks []simTask, at uint64, n int) (again func() error, err error) {
	a.y.stacks++
	if a.y.stacked += len(tasks); len(tasks) >= 8 {
		a.y.large++
	}
	d := wire.DonesFrame{First: tasks[0].Task, Count: uint32(len(tasks)), Offset: at, Bytes: uint64(n)}
	again = func() error { return a.w.Dones(d) }
	return again, again()
}

// stackOf is the stack of what was made of tasks.
func stackOf(tasks []simTask, form simForm) []byte {
	views := make([]record.View, len(tasks))
	for i := range tasks {
		views[i] = simView(simBlob(tasks[i].x, form))
	}
	b, err := record.AppendStack(nil, views)
	if err != nil {
		panic(err)
	}
	return b
}

// place copies a block to where nothing lies that the daemon may read. What was answered is freed if it must be.
func (a *agent) place(b []byte) uint64 {
	n := (len(b) + record.Align - 1) / record.Align
	for free, tried := 0, 0; free < n; tried++ {
		if tried > 2*agentUnits {
			a.w.Settle()
			tried = 0
			if len(a.out) > 0 {
				a.y.t.Fatal("the memory of a worker is full, and nothing is freed")
			}
		}
		if a.next == agentUnits {
			a.next, free = 0, 0
		}
		if free++; a.used[a.next] {
			free = 0
		}
		a.next++
		if free == n {
			break
		}
	}
	from := a.next - n
	for i := range n {
		a.used[from+i] = true
	}
	at := uint64(from * record.Align)
	copy(a.mem[at:], b)
	a.out[at] = n
	return at
}

// takeBack frees what was not answered.
func (a *agent) takeBack(at uint64) {
	for i := range a.out[at] {
		a.used[int(at)/record.Align+i] = false
	}
	delete(a.out, at)
}

// freed takes memory back, and writes to it at once: nobody may read there any more.
func (a *agent) freed(at uint64) {
	if a.lies[at] > 0 {
		if a.lies[at]--; a.lies[at] == 0 {
			delete(a.lies, at)
		}
		return
	}
	n, ok := a.out[at]
	if !ok {
		a.y.Fail("worker %d: what lies at %d is freed, and was not answered", a.w.id, at)
	}
	a.takeBack(at)
	if !a.gone {
		for i := range a.mem[at : int(at)+n*record.Align] {
			a.mem[int(at)+i] = 0xee
		}
	}
}

// twice answers a task, together with what is ready before it, and answers again.
func (a *agent) twice(t *simTask) {
	a.ready = append(a.ready, *t)
	tasks := a.last(mostBatch, false)
	again, err := a.answer(tasks)
	if err != nil {
		a.y.Fail("worker %d: %v", a.w.id, err)
	}
	if a.givenUp {
		return
	}
	if a.r.IntN(2) == 0 {
		a.w.Settle()
	}
	if again() == nil {
		a.y.Fail("a second answer is taken")
	}
	a.close(false)
}

// beyond answers a task that the agent has together with one that it has not: that it was never given, or that it has
// answered. None of them may be taken.
func (a *agent) beyond(t *simTask) {
	last := uint64(0)
	for id := range a.mine { // order-free: the largest
		last = max(last, id)
	}
	not := t.Task + 1
	for not <= last && (a.holds(not) || slices.ContainsFunc(a.w.lent, func(h held) bool { return h.id == not })) {
		not++
	}
	a.make(t)
	var tasks []simTask
	from, to := t.Task, min(not+1, last+1)
	if a.r.IntN(2) == 0 {
		from, to = not, not
	}
	for id := from; id <= to; id++ {
		o := *t
		o.Task = id
		tasks = append(tasks, o)
	}
	b := stackOf(tasks, a.formOf(t))
	if _, err := a.sendStack(tasks, a.place(b), len(b)); err == nil && !a.givenUp {
		a.y.Fail("worker %d answers task %d, which it does not have", a.w.id, not)
	}
	a.close(false)
}

// lie answers a task with what does not fit, alone or together with what is ready before it.
func (a *agent) lie(t *simTask) error {
	a.make(t)
	defer a.settle()
	if !a.batch || a.r.IntN(3) == 0 {
		return a.lieOne(t)
	}
	a.ready = append(a.ready, *t)
	most := mostBatch
	if a.y.plan.poison[t.Sample] == fateLie {
		most = 1
	}
	tasks, form := a.last(most, true), a.formOf(t)
	b := stackOf(tasks, form)
	at := a.place(b)
	switch a.r.IntN(4) {
	case 0: // not in its memory, or nothing
		a.failAll(tasks)
		a.takeBack(at)
		x := [][2]uint64{{agentBytes - 8, 100}, {3, 1 << 40}, {5, 3}, {1 << 63, 1 << 63}}[a.r.IntN(4)]
		a.lies[x[0]]++
		_, err := a.sendStack(tasks, x[0], int(x[1]))
		return err
	case 1:
		flagged := !slices.ContainsFunc(tasks, func(t simTask) bool { return a.formOf(&t) != formFlagged })
		if flagged { // one bool is none, which only its own sample has to pay for
			bad := a.r.IntN(len(tasks))
			a.fails(tasks[bad].Task, true)
			fields := int(binary.LittleEndian.Uint64(b[24+24+16+8:]))
			a.mem[int(at)+fields+bad] = 7
			_, err := a.sendStack(tasks, at, len(b))
			return err
		}
		fallthrough
	case 2: // another form; where the daemon knows of none, it is taken
		a.takeBack(at)
		form = []simForm{formSigned, formMore, formLarge, simForm(a.r.IntN(int(numForms)))}[a.r.IntN(4)]
		for k := range tasks {
			if a.refused(&tasks[k], form) {
				a.fails(tasks[k].Task, true)
			}
		}
		b = stackOf(tasks, form)
		_, err := a.sendStack(tasks, a.place(b), len(b))
		return err
	}
	a.failAll(tasks)
	if a.r.IntN(4) == 0 { // more samples than tasks
		a.takeBack(at)
		b = stackOf(append(slices.Clone(tasks), tasks...), form)
		at = a.place(b)
	} else {
		a.mangle(a.mem[at:], len(b))
	}
	_, err := a.sendStack(tasks, at, len(b))
	return err
}

// lieOne answers a task with a record that is none.
func (a *agent) lieOne(t *simTask) error {
	a.fails(t.Task, true)
	at, n := uint64(agentBytes-8), 100
	switch a.r.IntN(4) {
	case 0:
	case 1:
		at, n = 3, 1<<40
	case 2:
		at, n = 5, 3
	case 3: // not where it says
		b := simBlob(t.x, a.formOf(t))
		at = a.place(b)
		a.takeBack(at)
		at, n = at+8, len(b)-8
	}
	a.lies[at]++
	_, err := a.sendOne(t.Task, at, n)
	return err
}

func (a *agent) failAll(tasks []simTask) {
	for i := range tasks {
		a.fails(tasks[i].Task, true)
	}
}

// refused reports whether a record of a form does not fit a task, by what its own job says.
func (a *agent) refused(t *simTask, form simForm) bool {
	k := a.y.jobs[a.mine[t.Task].job.ID].kind
	return form == formLarge && a.y.plan.maxRecord < 1<<20 || k.checked(t.Last) && form != k.formAt(t.Last)
}

// mangle spoils the header of a stack of n bytes.
func (a *agent) mangle(b []byte, n int) {
	le := binary.LittleEndian
	const total, entry = 8, 24 // where the bytes of the block are, and the first field
	switch a.r.IntN(8) {
	case 0: // as many samples
		le.PutUint64(b[entry+24:], le.Uint64(b[entry+24:])+1)
	case 1:
		le.PutUint64(b[entry+24:], 0)
	case 2: // the values have more bytes, or fewer
		le.PutUint64(b[entry+16:], le.Uint64(b[entry+16:])+8)
	case 3:
		le.PutUint64(b[entry+16:], 0)
	case 4: // they lie elsewhere
		le.PutUint64(b[entry+8:], []uint64{0, uint64(n), 1 << 62}[a.r.IntN(3)])
	case 5:
		le.PutUint64(b[total:], []uint64{0, uint64(n) + 64, 1 << 63}[a.r.IntN(3)])
	case 6: // a record
		le.PutUint16(b[4:], 1)
	case 7:
		b[entry+1] = 0xff // dtype
	}
}
