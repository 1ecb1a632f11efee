package crew

import (
	"larder/internal/coordinator"
	"larder/internal/ident"
)

// simCount is what workers of the simulation did to one task of the coordinator: by that alone it is judged whether the
// Crew may give up on it, and whether it may give it to one more worker.
type simCount struct {
	object ident.ObjectID
	blame  int            // failures that may count for it
	sure   int            // those of them that count in any case
	lone   bool           // one of them came from the only worker that could do it
	alone  bool           // a worker ended at several tasks, this one among them
	begun  map[uint32]int // by first step: how often a worker began it, or ended when nobody knew what it was at
}

// expect notes a task of the coordinator.
func (y *yard) expect(what any, x ident.ObjectID) {
	y.counts[what] = &simCount{object: x, begun: map[uint32]int{}}
}

// whatOf names what a task answers.
func whatOf(t *task) any {
	if t.flight != 0 {
		return t.flight
	}
	return simRow{t.fill.Delivery, t.fill.Row}
}

// countOf is the count of a task of an agent; nil = it was answered.
func (a *agent) countOf(id uint64) *simCount {
	if t := a.mine[id]; t != nil {
		return a.y.counts[whatOf(t)]
	}
	return nil
}

// fails notes that the worker has not done a task that it answers now. counts says that it counts for the sample.
func (a *agent) fails(id uint64, counts bool) {
	k := a.countOf(id)
	if k == nil {
		return
	}
	held := a.holds(id)
	if held {
		a.y.failed[a.mine[id]] = a.w.id
	}
	if counts {
		k.blame++
		if held {
			k.sure++
		}
		c := a.y.crew
		c.mu.Lock()
		k.lone = k.lone || !c.manned(a.mine[id].fit, a.w)
		c.mu.Unlock()
	}
}

// holds reports whether the daemon has the worker down for a task.
func (a *agent) holds(id uint64) bool {
	for _, h := range a.w.held {
		if h.id == id {
			return true
		}
	}
	return false
}

// begins notes that the worker is at a task.
func (a *agent) begins(t *simTask) {
	if k := a.countOf(t.Task); k != nil {
		k.begun[t.First]++
	}
}

// stops notes that the worker ends: blame says that this counts for the task that it is at. It counts for none if the
// worker is at several, or at none, and then nobody knows which ones it began.
func (a *agent) stops(blame, sure bool) {
	open := append(append([]simTask(nil), a.ready...), a.todo...)
	at := -1
	for i := range open {
		if !a.marks && i == 0 || a.marks && open[i].Task == a.marked {
			at = i
		}
	}
	for i := range open {
		k := a.countOf(open[i].Task)
		if k != nil && a.marks && a.marked == 0 && !a.y.plan.inline {
			k.alone = true
		}
		if k != nil && (at < 0 || i == at) {
			k.begun[open[i].First]++
			if at >= 0 && blame {
				k.blame++
				if sure {
					k.sure++
				}
			}
		}
	}
}

// given looks at a task that a worker gets.
func (a *agent) given(t *task) {
	k := a.y.counts[whatOf(t)]
	switch {
	case k == nil:
		a.y.Fail("worker %d got a task that was answered", a.w.id)
	case k.sure >= mostFailures || k.sure > 0 && k.lone:
		a.y.Fail("worker %d got sample %d, which failed %d times for good", a.w.id, k.object, k.sure)
	case k.alone && !t.alone:
		a.y.Fail("worker %d got sample %d with others, at which one ended before", a.w.id, k.object)
	case t.tries > k.begun[t.first]+1:
		a.y.Fail("sample %d counts %d tries, and was begun %d times", k.object, t.tries, k.begun[t.first])
	}
}

// settled looks at what became of a task: one is given up on only for what workers did to that very one.
func (y *yard) settled(what any, why string) {
	k := y.counts[what]
	delete(y.counts, what)
	if why == "" || k.blame >= mostFailures || k.blame > 0 && k.lone || y.plan.poison[uint64(k.object)] == fateOp {
		return
	}
	for _, n := range k.begun { // order-free: whether there is one
		if n >= maxTries {
			return
		}
	}
	y.Fail("sample %d is given up on, and workers did this to it: %+v; %s", k.object, *k, why)
}

// objectOf is the sample that an effect asks for.
func objectOf(eff coordinator.Effect) ident.ObjectID {
	switch x := eff.(type) {
	case coordinator.Prepare:
		return x.Key.Object
	case coordinator.Augment:
		return x.Key.Object
	case *coordinator.Fill:
		return x.Object
	}
	panic("no work")
}
