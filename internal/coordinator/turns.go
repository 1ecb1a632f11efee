package coordinator

import (
	"fmt"

	"larder/internal/invariant"
)

// turns are flights that wait to be handed out, the earliest turn first: a binary heap in which each flight stores its
// place, so that it can be taken out or moved forward wherever it is. The order is total, so what comes next does not
// depend on how it got there.
type turns struct{ heap []turnItem }

// turnItem has beside it what is compared, which would else be looked up in flights that lie anywhere.
type turnItem struct {
	turn uint64
	f    *flight
}

func (a *turnItem) before(b *turnItem) bool {
	if a.turn != b.turn {
		return a.turn < b.turn
	}
	return a.f.id < b.f.id
}

// Len is how many wait.
func (q *turns) Len() int { return len(q.heap) }

// first is the flight whose turn is next.
func (q *turns) first() (*flight, bool) {
	if len(q.heap) == 0 {
		return nil, false
	}
	return q.heap[0].f, true
}

// has reports whether a flight is in.
func (q *turns) has(f *flight) bool {
	return f.place > 0 && f.place <= len(q.heap) && q.heap[f.place-1].f == f
}

// put takes a flight in with its turn, or with an earlier one than it has been in with.
func (q *turns) put(f *flight) {
	if f.place == 0 {
		q.heap = append(q.heap, turnItem{})
		f.place = len(q.heap)
	} else if !q.has(f) {
		invariant.Violated("coordinator: flight %d waits in another queue", f.id)
	}
	q.rise(f.place-1, turnItem{f.turn, f})
}

// remove takes a flight out, if it is in.
func (q *turns) remove(f *flight) {
	if !q.has(f) {
		return
	}
	i, last := f.place-1, len(q.heap)-1
	it := q.heap[last]
	q.heap[last] = turnItem{}
	q.heap = q.heap[:last]
	f.place = 0
	switch {
	case i == last:
	case i > 0 && it.before(&q.heap[(i-1)/2]):
		q.rise(i, it)
	default:
		q.sink(i, it)
	}
}

// rise puts an item in a place, or in one above it.
func (q *turns) rise(i int, it turnItem) {
	for i > 0 {
		up := (i - 1) / 2
		if !it.before(&q.heap[up]) {
			break
		}
		q.set(i, q.heap[up])
		i = up
	}
	q.set(i, it)
}

// sink puts an item in a place, or in one below it.
func (q *turns) sink(i int, it turnItem) {
	for {
		down := 2*i + 1
		if down >= len(q.heap) {
			break
		}
		if r := down + 1; r < len(q.heap) && q.heap[r].before(&q.heap[down]) {
			down = r
		}
		if !q.heap[down].before(&it) {
			break
		}
		q.set(i, q.heap[down])
		i = down
	}
	q.set(i, it)
}

func (q *turns) set(i int, it turnItem) {
	q.heap[i] = it
	it.f.place = i + 1
}

// before reports whether the turn of a flight is earlier than that of another one.
func (f *flight) before(g *flight) bool {
	return (&turnItem{f.turn, f}).before(&turnItem{g.turn, g})
}

// check tests that each flight stores its place, and that none comes before the one above it.
func (q *turns) check() error {
	for i := range q.heap {
		it := &q.heap[i]
		if it.f.place != i+1 || it.f.turn != it.turn || i > 0 && it.before(&q.heap[(i-1)/2]) {
			return fmt.Errorf("flight %d of turn %d, in place %d, is in place %d of its queue with turn %d", it.f.id, it.f.turn,
				it.f.place, i+1, it.turn)
		}
	}
	return nil
}
