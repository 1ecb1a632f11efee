package cachepolicy

import "larder/internal/invariant"

// queue is FIFO and LRU: a doubly linked list through dense tables, oldest first. It admits every newcomer.
type queue struct {
	name      string
	moveOnHit bool
	links     []link // by handle + 1; links[0] is the head of the ring: its next is the oldest
	len       int
}

type link struct {
	next, prev uint32 // handle + 1
	in         bool
}

func newQueue(name string, moveOnHit bool) *queue {
	return &queue{name: name, moveOnHit: moveOnHit, links: make([]link, 1)}
}

func (q *queue) Name() string { return q.name }
func (q *queue) Len() int     { return q.len }

func (q *queue) Insert(h uint32, _ int)  { q.put(h+1, q.links[0].prev) }
func (q *queue) Restore(h uint32, _ int) { q.put(h+1, 0) }
func (q *queue) Update(h uint32, _ int)  { q.at(h) }

func (q *queue) Hit(h uint32) {
	q.at(h)
	if q.moveOnHit {
		q.Remove(h)
		q.Insert(h, 0)
	}
}

func (q *queue) Remove(h uint32) {
	l := q.at(h)
	q.links[l.prev].next = l.next
	q.links[l.next].prev = l.prev
	q.links[h+1] = link{}
	q.len--
}

func (q *queue) Victim(int) (uint32, bool) { return q.Coldest() }

func (q *queue) Coldest() (uint32, bool) {
	if q.len == 0 {
		return 0, false
	}
	return q.links[0].next - 1, true
}

// put links n behind after.
func (q *queue) put(n, after uint32) {
	for int(n) >= len(q.links) {
		q.links = append(q.links, link{})
	}
	if q.links[n].in {
		invariant.Violated("%s: entry %d is in already", q.name, n-1)
	}
	next := q.links[after].next
	q.links[n] = link{next: next, prev: after, in: true}
	q.links[after].next = n
	q.links[next].prev = n
	q.len++
}

func (q *queue) at(h uint32) link {
	if int(h)+1 >= len(q.links) || !q.links[h+1].in {
		invariant.Violated("%s: entry %d is not in", q.name, h)
	}
	return q.links[h+1]
}
