package cachepolicy

import (
	"larder/internal/invariant"
	"larder/internal/xrand"
)

// queue is FIFO and LRU. It admits every newcomer.
type queue struct {
	lists
	moveOnHit bool
}

func newQueue(name string, moveOnHit bool) *queue { return &queue{newLists(name, 1), moveOnHit} }

func (q *queue) Insert(h uint32, _ int)    { q.push(0, h) }
func (q *queue) Restore(h uint32, _ int)   { q.restore(h) }
func (q *queue) Update(h uint32, _ int)    { q.at(h) }
func (q *queue) Remove(h uint32)           { q.remove(h) }
func (q *queue) Victim(int) (uint32, bool) { return q.Coldest() }
func (q *queue) Coldest() (uint32, bool)   { return q.oldest(0) }

func (q *queue) Hit(h uint32) {
	q.at(h)
	if q.moveOnHit {
		q.renew(0, h)
	}
}

// sieve is SIEVE (Zhang, Yang, Yue, Vigfusson, Rashmi: "SIEVE is Simpler than LRU", NSDI 2024, section 3, algorithm 1):
// a queue in the order of arrival, which hits do not change. A hand goes from old to new; what was used since it last
// came by is spared once, the first that was not used leaves. It admits every newcomer.
//
// The hand moves when a Victim is asked for, not when it is removed: a newcomer that is refused after all has moved it
// too.
type sieve struct {
	lists
	visited []bool
	hand    uint32 // where the search continues; valid if held, else at the oldest
	held    bool
}

func newSieve() *sieve { return &sieve{lists: newLists("sieve", 1)} }

func (s *sieve) Insert(h uint32, _ int) {
	s.push(0, h)
	for int(h) >= len(s.visited) {
		s.visited = append(s.visited, false)
	}
	s.visited[h] = false
}

// Restore lets the search continue at h, where the hand stood.
func (s *sieve) Restore(h uint32, _ int) {
	s.restore(h)
	s.hand, s.held = h, true
}

func (s *sieve) Update(h uint32, _ int) { s.at(h) }

func (s *sieve) Hit(h uint32) {
	s.at(h)
	s.visited[h] = true
}

func (s *sieve) Remove(h uint32) {
	if s.held && s.hand == h {
		s.hand, s.held = s.after(h)
	}
	s.remove(h)
}

func (s *sieve) Victim(int) (uint32, bool) { return s.Coldest() }

// Coldest goes round at most once more than all are visited: the second time no mark is left.
func (s *sieve) Coldest() (uint32, bool) {
	for s.all > 0 {
		if !s.held {
			s.hand, s.held = s.oldest(0)
		}
		if !s.visited[s.hand] {
			return s.hand, true
		}
		s.visited[s.hand] = false
		s.hand, s.held = s.after(s.hand)
	}
	return 0, false
}

// twoRandom draws two entries and evicts the one that was used longer ago (JuiceFS's default). It admits every
// newcomer.
type twoRandom struct {
	*bag
	clock uint64
	used  []uint64 // by handle: when it came or was used last
}

func newTwoRandom(r *xrand.Rand) *twoRandom { return &twoRandom{bag: newBag("2-random", r)} }

func (t *twoRandom) Insert(h uint32, need int) {
	t.bag.Insert(h, need)
	for int(h) >= len(t.used) {
		t.used = append(t.used, 0)
	}
	t.clock++
	t.used[h] = t.clock
}

func (t *twoRandom) Restore(h uint32, need int) {
	if int(h) >= len(t.used) {
		invariant.Violated("2-random: Restore(%d) of an entry that never was in", h)
	}
	t.bag.Insert(h, need)
}

func (t *twoRandom) Hit(h uint32) {
	t.bag.Hit(h)
	t.clock++
	t.used[h] = t.clock
	t.next = -1
}

func (t *twoRandom) Victim(int) (uint32, bool) { return t.Coldest() }

func (t *twoRandom) Coldest() (uint32, bool) {
	if n := len(t.items); t.next < 0 && n > 1 {
		i, j := t.r.IntN(n), t.r.IntN(n-1)
		if j >= i {
			j++ // two different ones, every pair equally likely
		}
		if t.used[t.items[j]] < t.used[t.items[i]] {
			i = j
		}
		t.next = i
	}
	return t.bag.Coldest()
}
