package coresim

import (
	"time"

	"larder/internal/coordinator"
	"larder/internal/ident"
)

// action is something that happens at a time: a call, or the end of a task's read or work.
type action struct {
	at   time.Duration
	seq  uint64
	do   func()
	task task
	read bool
}

// agenda is a heap of actions by time, equal times in the order in which they were put in. It is no container/heap because that allocates for each.
type agenda []action

func (a agenda) before(i, j int) bool {
	if a[i].at != a[j].at {
		return a[i].at < a[j].at
	}
	return a[i].seq < a[j].seq
}

func (a *agenda) push(x action) {
	h := append(*a, x)
	*a = h
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 2
		if !h.before(i, up) {
			return
		}
		h[up], h[i] = h[i], h[up]
		i = up
	}
}

func (a *agenda) pop() action {
	h := *a
	first, last := h[0], len(h)-1
	h[0], h[last] = h[last], action{}
	h = h[:last]
	*a = h
	for i := 0; ; {
		down := 2*i + 1
		if down >= last {
			return first
		}
		if r := down + 1; r < last && h.before(r, down) {
			down = r
		}
		if !h.before(down, i) {
			return first
		}
		h[i], h[down] = h[down], h[i]
		i = down
	}
}

// task is a piece of work for a worker.
type task struct {
	turn, seq uint64
	what      coordinator.Effect
	object    ident.ObjectID
	fresh     bool // makes a working copy, unless a tier keeps the result
	read      bool // is to be read first
	size      int64
}

// tasks is a heap by turn, equal turns in the order in which they came.
type tasks []task

func (q tasks) before(i, j int) bool {
	if q[i].turn != q[j].turn {
		return q[i].turn < q[j].turn
	}
	return q[i].seq < q[j].seq
}

func (q *tasks) push(t task) {
	h := append(*q, t)
	*q = h
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 2
		if !h.before(i, up) {
			return
		}
		h[up], h[i] = h[i], h[up]
		i = up
	}
}

func (q *tasks) pop() task {
	h := *q
	first, last := h[0], len(h)-1
	h[0], h[last] = h[last], task{}
	h = h[:last]
	*q = h
	for i := 0; ; {
		down := 2*i + 1
		if down >= last {
			return first
		}
		if r := down + 1; r < last && h.before(r, down) {
			down = r
		}
		if !h.before(down, i) {
			return first
		}
		h[i], h[down] = h[down], h[i]
		i = down
	}
}
