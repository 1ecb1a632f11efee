package disk

import (
	"errors"
	"io/fs"
)

// roomOf is how many bytes of disk a file of that length takes: whole pages, and its entry in the directory.
func roomOf(length int64) int64 { return (length+page-1)/page*page + 128 }

// limit is how much may be used now; mu is held.
func (s *Store) limit() int64 { return s.held.fault.limit(s.held.size, s.cfg.now()) }

// leaver is a file that leaves.
type leaver struct {
	name string
	file file
	room int64
}

// reserve takes n bytes for entries of a class, and evicts for them what is needed less, or, if equal, as much. It does
// I/O.
func (s *Store) reserve(n int64, c class, equal bool) bool {
	s.evict.Lock()
	defer s.evict.Unlock()
	s.mu.Lock()
	h := &s.held
	leave, ok := s.victims(h.used+n-s.limit(), s.needOf(c), equal)
	s.mu.Unlock()
	if !ok {
		return false
	}
	s.removeAll(leave)
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.phase != owner || h.used+n > s.limit() { // a file could not be removed, or the size has changed
		return false
	}
	h.used += n
	return true
}

// release gives back what reserve took.
func (s *Store) release(n int64) {
	s.mu.Lock()
	s.held.used -= n
	s.mu.Unlock()
}

// shrink evicts what is beyond the limit, however much it is needed.
func (s *Store) shrink() {
	s.evict.Lock()
	defer s.evict.Unlock()
	s.mu.Lock()
	if s.held.phase != owner {
		s.mu.Unlock()
		return
	}
	short := s.held.used - s.limit()
	leave, ok := s.victims(short, 1<<30, true)
	if !ok {
		leave, _ = s.victims(s.evictable(), 1<<30, true)
	}
	s.mu.Unlock()
	s.removeAll(leave)
}

// evictable is the room of all that may leave; mu is held.
func (s *Store) evictable() (n int64) {
	for _, g := range s.held.segments { // order-free: a sum
		if g.refs == 0 {
			n += g.room
		}
	}
	for _, b := range s.held.blocks {
		if b.refs == 0 && b.stage == finished {
			n += b.room
		}
	}
	return n
}

// victims takes files out of the index, so that want bytes become free when they are removed; mu is held.
func (s *Store) victims(want int64, need int, equal bool) ([]leaver, bool) {
	h := &s.held
	if want <= 0 {
		return nil, h.phase == owner
	}
	if h.phase != owner {
		return nil, false
	}
	needs := map[string]int{}
	for name := range h.groups { // order-free
		needs[name] = s.cfg.Need(name)
	}
	var all []candidate
	var take []func() leaver
	for _, g := range h.segments { // order-free: used differs
		c := candidate{need: g.needed(needs[g.group.name]), used: g.used, room: g.room, pinned: g.refs > 0}
		if g.stage == finished && stale(g.group.reads-g.found, len(h.index)) {
			c.need = 0
		}
		all = append(all, c)
		take = append(take, func() leaver { return h.dropSegment(g) })
	}
	for _, b := range h.blocks {
		all = append(all, candidate{need: needs[b.group.name], used: b.used, room: b.room,
			pinned: b.refs > 0 || b.stage != finished})
		take = append(take, func() leaver { return h.dropBlock(b) })
	}
	chosen, ok := choose(all, want, need, equal)
	var out []leaver
	for _, i := range chosen {
		out = append(out, take[i]())
	}
	return out, ok
}

// dropSegment takes a segment out of the index; mu is held.
func (h *state) dropSegment(g *segment) leaver {
	for _, hash := range g.hashes {
		if h.index[hash].segment == g.id {
			delete(h.index, hash)
			h.counts.Evictions++
		}
	}
	delete(h.segments, g.id)
	h.unfill(g)
	g.stage, g.hashes = leaving, nil
	return leaver{g.name, g.file, g.room}
}

// unfill ends that a segment is appended to; mu is held.
func (h *state) unfill(g *segment) {
	if c := (class{g.group.name, g.jobs}); h.filling[c] == g {
		delete(h.filling, c)
	}
}

// removeAll removes files, and counts their room as free when they are gone.
func (s *Store) removeAll(all []leaver) {
	for _, l := range all {
		if l.file != nil {
			_ = l.file.close() // nothing is lost that is not removed anyway
		}
		if err := s.files.remove(l.name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.failed(removing, l.name, err) // it still takes its room
			continue
		}
		s.release(l.room)
	}
}
