package cachepolicy

import "larder/internal/ident"

// s3fifo is S3-FIFO (Yang, Zhang, Qiu, Yue, Rashmi: "FIFO queues are all you need for cache eviction", SOSP 2023,
// section 4.1, algorithm 1). Newcomers begin in a small queue of a tenth of the entries; what was used twice there goes
// on to the main queue, the rest leaves, and its id is remembered in a ghost queue as long as the main one may be, nine
// tenths: what comes back meanwhile begins in the main queue. There, what was used since its last turn gets another
// one. Sizes are counted in entries, of as many as the tier holds when it must make room. It admits every newcomer.
// What the paper leaves open is as in the code its figures were made with (libCacheSim, S3FIFOv0): a tenth is rounded
// down, and a ghost that comes back is recognised, and leaves its place to another, before room is made for it.
//
// An id serves to recognise a sample and for nothing else: other names for the same samples lead to the same choices.
type s3fifo struct {
	lists
	slots []s3slot // by handle
	ghost ghosts

	newcomer uint64
	back     bool     // the newcomer was a ghost
	left     []uint64 // ids that left the small queue, to become ghosts unless they are restored
	full     int      // entries when room began to be made
	making   bool     // room
	victim   uint32   // the answer until something changes, if chosen
	chosen   bool
}

type s3slot struct {
	id   uint64
	uses uint8 // at most 3
}

const (
	s3small uint8 = iota
	s3main
)

func newS3FIFO() *s3fifo { return &s3fifo{lists: newLists("s3-fifo", 2)} }

func (s *s3fifo) Newcomer(k ident.Key) {
	s.settle()
	s.newcomer = idOf(k)
	s.back = s.ghost.take(s.newcomer)
}

func (s *s3fifo) Admit(k ident.Key, _ int) bool {
	s.Newcomer(k)
	return true
}

// settle makes what has left for good a ghost, and forgets the choice.
func (s *s3fifo) settle() {
	s.chosen, s.making = false, false
	for _, id := range s.left {
		s.ghost.add(id, 9*s.full/10)
	}
	s.left = s.left[:0]
}

func (s *s3fifo) Insert(h uint32, _ int) {
	s.settle()
	to := s3small
	if s.back {
		to = s3main
	}
	s.back = false
	s.push(to, h)
	for int(h) >= len(s.slots) {
		s.slots = append(s.slots, s3slot{})
	}
	s.slots[h] = s3slot{id: s.newcomer}
}

func (s *s3fifo) Restore(h uint32, _ int) {
	s.restoreOldest(h) // the search for the victims after it may have moved its neighbours
	if n := len(s.left); n > 0 && s.left[n-1] == s.slots[h].id {
		s.left = s.left[:n-1]
	}
	s.victim, s.chosen = h, true // as it was when it was removed
}

func (s *s3fifo) Update(h uint32, _ int) { s.at(h) }

func (s *s3fifo) Hit(h uint32) {
	s.at(h)
	s.settle()
	s.slots[h].uses = min(s.slots[h].uses+1, 3)
}

func (s *s3fifo) Remove(h uint32) {
	if at := s.at(h); s.chosen && s.victim == h && at.list == s3small {
		s.left = append(s.left, s.slots[h].id)
	}
	s.chosen = false
	s.remove(h)
}

func (s *s3fifo) Victim(int) (uint32, bool) { return s.Coldest() }

// Coldest moves entries on until one is found that leaves. Each step takes a use away or moves an entry to the main
// queue, from where none goes back, so it ends.
func (s *s3fifo) Coldest() (uint32, bool) {
	if s.all == 0 {
		return 0, false
	}
	if s.chosen {
		return s.victim, true
	}
	s.chosen = true
	if !s.making {
		s.full, s.making = s.all, true
	}
	for small := s.size[s3small] >= max(1, s.all/10) || s.size[s3main] == 0; small; {
		h, ok := s.oldest(s3small)
		if !ok {
			break
		}
		if s.slots[h].uses <= 1 {
			s.victim = h
			return h, true
		}
		s.slots[h].uses = 0
		s.renew(s3main, h)
	}
	for {
		h, _ := s.oldest(s3main) // the small queue was left because this one has entries
		if s.slots[h].uses == 0 {
			s.victim = h
			return h, true
		}
		s.slots[h].uses--
		s.renew(s3main, h)
	}
}

// ghosts remembers the ids that were added last.
type ghosts struct {
	// by turn modulo its length, a power of two; the turns from first to next. Those that turns does not know are holes
	ring  []uint64
	turns idTable // by id, its turn; ids that were taken are not in
	first uint64
	next  uint64
}

// add remembers id and forgets the oldest ones beyond limit.
func (g *ghosts) add(id uint64, limit int) {
	if g.next-g.first == uint64(len(g.ring)) {
		g.room()
	}
	g.ring[g.next%uint64(len(g.ring))] = id
	g.turns.put(id, g.next)
	g.next++
	for ; g.turns.len > max(limit, 0); g.first++ {
		if g.known(g.first) {
			g.turns.del(g.ring[g.first%uint64(len(g.ring))])
		}
	}
}

// known reports whether a turn is no hole.
func (g *ghosts) known(turn uint64) bool {
	t, ok := g.turns.get(g.ring[turn%uint64(len(g.ring))])
	return ok && t == turn
}

// room closes the holes of a full ring, or doubles it when fewer than half of its places are holes.
func (g *ghosts) room() {
	n, old := uint64(len(g.ring)), *g
	if 2*g.turns.len >= int(n) {
		n = max(16, 2*n)
		g.ring = make([]uint64, n)
	}
	g.next = g.first
	for t := old.first; t != old.next; t++ { // g.next is never past t, so that nothing is overwritten before it was moved
		if old.known(t) {
			id := old.ring[t%uint64(len(old.ring))]
			g.ring[g.next%n] = id
			old.turns.put(id, g.next)
			g.next++
		}
	}
	g.turns = old.turns
}

// take reports whether id is remembered, and forgets it.
func (g *ghosts) take(id uint64) bool {
	_, ok := g.turns.get(id)
	if ok {
		g.turns.del(id)
	}
	return ok
}
