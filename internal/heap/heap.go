// Package heap is a binary heap of values. It is no container/heap because that boxes every value that comes and goes,
// which allocates.
package heap

// Item is what a heap holds: a pointer to T that knows which of two comes first. Equal ones leave in any order.
type Item[T any] interface {
	*T
	Before(*T) bool
}

// Heap has the first of its values at index 0; the others stand in no order. The zero value is empty.
type Heap[T any, P Item[T]] []T

// Values are compared where they lie, because a variable whose address is handed to Before would be allocated, and each
// is moved once.

// Push puts a value in.
func (q *Heap[T, P]) Push(x T) {
	h := append(*q, x)
	*q = h
	last := len(h) - 1
	to := last
	for to > 0 && P(&h[last]).Before(&h[(to-1)/2]) {
		to = (to - 1) / 2
	}
	for i := last; i > to; i = (i - 1) / 2 {
		h[i] = h[(i-1)/2]
	}
	h[to] = x
}

// Pop takes the first value out; the heap has one. Nothing of it is kept.
func (q *Heap[T, P]) Pop() T {
	h := *q
	var none T
	first, last, i := h[0], len(h)-1, 0
	for {
		down := 2*i + 1
		if down >= last {
			break
		}
		if r := down + 1; r < last && P(&h[r]).Before(&h[down]) {
			down = r
		}
		if !P(&h[down]).Before(&h[last]) {
			break
		}
		h[i] = h[down]
		i = down
	}
	h[i], h[last] = h[last], none
	*q = h[:last]
	return first
}
