// Package heap is a binary heap of values. It is no container/heap because that boxes every value that comes and goes, which allocates.
package heap

// Item is what a heap holds: a pointer to T that knows which of two comes first. Equal ones leave in any order.
type Item[T any] interface {
	*T
	Before(*T) bool
}

// Heap has the first of its values at index 0; the others stand in no order. The zero value is empty.
type Heap[T any, P Item[T]] []T

// Push puts a value in.
func (q *Heap[T, P]) Push(x T) {
	h := append(*q, x)
	*q = h
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 2
		if !P(&h[i]).Before(&h[up]) {
			return
		}
		h[up], h[i] = h[i], h[up]
		i = up
	}
}

// Pop takes the first value out; the heap has one. Nothing of it is kept.
func (q *Heap[T, P]) Pop() T {
	h := *q
	var none T
	first, last := h[0], len(h)-1
	h[0], h[last] = h[last], none
	h = h[:last]
	*q = h
	for i := 0; ; {
		down := 2*i + 1
		if down >= last {
			return first
		}
		if r := down + 1; r < last && P(&h[r]).Before(&h[down]) {
			down = r
		}
		if !P(&h[down]).Before(&h[i]) {
			return first
		}
		h[i], h[down] = h[down], h[i]
		i = down
	}
}
