package coresim

import (
	"fmt"
	"time"

	"larder/internal/coordinator"
	"larder/internal/heap"
	"larder/internal/ident"
)

// clock is the virtual time and the agenda of what happens at a time. Time never goes back, and what happens at the
// same time happens in the order in which it was entered.
type clock struct {
	now    time.Duration
	seq    uint64 // numbers entries and tasks in the order in which they came
	agenda heap.Heap[action, *action]
}

// action is something that happens at a time: a call, or the end of a task's read or work.
type action struct {
	at   time.Duration
	seq  uint64
	do   func()
	task task
	read bool
}

// Before is by time; equal times in the order in which they were entered.
func (a *action) Before(o *action) bool {
	if a.at != o.at {
		return a.at < o.at
	}
	return a.seq < o.seq
}

// next returns a number that is larger than all before.
func (c *clock) next() uint64 {
	c.seq++
	return c.seq
}

// at calls do at a time, or now if that time is over.
func (c *clock) at(t time.Duration, do func()) {
	c.agenda.Push(action{at: max(t, c.now), seq: c.next(), do: do})
}

// after calls do when d has passed.
func (c *clock) after(d time.Duration, do func()) { c.at(c.now+d, do) }

// readAt ends a task's read ahead at a time.
func (c *clock) readAt(t time.Duration, x task) {
	c.agenda.Push(action{at: t, seq: c.next(), task: x, read: true})
}

// workedAt ends a worker's task at a time.
func (c *clock) workedAt(t time.Duration, x task) {
	c.agenda.Push(action{at: t, seq: c.next(), task: x})
}

// forgetTasks takes what workers and readers do off the agenda: their process has ended.
func (c *clock) forgetTasks() {
	kept := c.agenda[:0]
	for _, a := range c.agenda {
		if a.do != nil {
			kept.Push(a)
		}
	}
	clear(c.agenda[len(kept):])
	c.agenda = kept
}

// advance takes the next action and moves to its time; false when there is none.
func (c *clock) advance() (action, bool) {
	if len(c.agenda) == 0 {
		return action{}, false
	}
	a := c.agenda.Pop()
	c.now = a.at
	return a, true
}

// task is a piece of work for a worker.
type task struct {
	turn, seq uint64
	what      coordinator.Effect
	object    ident.ObjectID
	fresh     bool // makes a working copy, unless a tier keeps the result
	read      bool // must be read first
	held      bool // its bytes lie in a block in memory
	size      int64
}

// Before is by turn; equal turns in the order in which they came.
func (t *task) Before(o *task) bool {
	if t.turn != o.turn {
		return t.turn < o.turn
	}
	return t.seq < o.seq
}

type tasks = heap.Heap[task, *task]

// checks collects what the coordinator or a client did wrong. The first failure ends a run.
type checks struct {
	clock    *clock
	failures []string
}

func (c *checks) fail(format string, args ...any) {
	c.failures = append(c.failures, fmt.Sprintf("at %s: ", c.clock.now)+fmt.Sprintf(format, args...))
}
