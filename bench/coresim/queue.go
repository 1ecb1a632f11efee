package coresim

import (
	"time"

	"larder/internal/coordinator"
	"larder/internal/heap"
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

// Before is by time; equal times in the order in which they were put in.
func (a *action) Before(o *action) bool {
	if a.at != o.at {
		return a.at < o.at
	}
	return a.seq < o.seq
}

type agenda = heap.Heap[action, *action]

// task is a piece of work for a worker.
type task struct {
	turn, seq uint64
	what      coordinator.Effect
	object    ident.ObjectID
	fresh     bool // makes a working copy, unless a tier keeps the result
	read      bool // must be read first
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
