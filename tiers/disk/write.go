package disk

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

const (
	batchBytes = 4 << 20
	batchItems = 200 // three parts each; the kernel takes 1,024 in one call
	// segmentsMost is about how many segments a full tier has: one takes so much of it away when it leaves.
	segmentsMost = 256
	segmentLeast = 64 << 10
	segmentMost  = 1 << 30
	// refuseFor is how long entries of a group are refused without a look, after one was.
	refuseFor = time.Second
)

// segmentSize is from which length on a segment is finished.
func segmentSize(size int64) int64 { return min(max(size/segmentsMost, segmentLeast), segmentMost) }

// write is the goroutine that writes entries.
func (s *Store) write() {
	for {
		batch := s.take()
		if batch == nil {
			return
		}
		s.writeAll(batch)
		s.mu.Lock()
		for _, it := range batch {
			delete(s.held.pending, it.hash)
			s.held.queued -= int64(len(it.data))
		}
		s.wake.Broadcast()
		s.mu.Unlock()
	}
}

// take waits for entries, and takes some of one class; nil = the store closes.
func (s *Store) take() (batch []*item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := &s.held
	for len(h.queue) == 0 {
		if h.closed {
			return nil
		}
		s.wake.Wait()
	}
	var n int64
	left, of := h.queue[:0], h.queue[0].class
	for i, it := range h.queue {
		if len(batch) == batchItems || n >= batchBytes {
			left = append(left, h.queue[i:]...)
			break
		}
		if it.class != of {
			left = append(left, it)
			continue
		}
		n += int64(len(it.data))
		batch = append(batch, it)
	}
	clear(h.queue[len(left):])
	h.queue = left
	return batch
}

func (s *Store) writeAll(items []*item) {
	for len(items) > 0 {
		first := items[0]
		g := s.segmentFor(first.class, entryLen(int64(len(first.key)), int64(len(first.data))))
		if g == nil {
			s.refused(items)
			return
		}
		s.mu.Lock()
		most := segmentSize(s.held.size)
		s.mu.Unlock()
		n, length := 0, g.len
		for n < len(items) {
			add := entryLen(int64(len(items[n].key)), int64(len(items[n].data)))
			if n > 0 && length+add > most {
				break
			}
			length += add
			n++
		}
		ok := s.appendTo(g, items[:n], length)
		s.unpin(g)
		if !ok {
			s.refused(items)
			return
		}
		items = items[n:]
	}
}

func (s *Store) refused(items []*item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held.counts.Refused += uint64(len(items))
	g, now, need := s.held.groupOf(items[0].class.group), s.cfg.now(), s.needOf(items[0].class)
	if now.Before(g.refusedUntil) {
		need = max(need, g.refused)
	}
	g.refused, g.refusedUntil = need, now.Add(refuseFor)
}

// unpin ends a use of a segment.
func (s *Store) unpin(g *segment) {
	s.mu.Lock()
	g.refs--
	s.closeLeft(g)
	s.mu.Unlock()
}

// closeLeft closes the file of a segment that left while it was in use; mu is held.
func (s *Store) closeLeft(g *segment) {
	if g.stage == leaving && g.refs == 0 && g.file != nil {
		_ = g.file.close()
		g.file = nil
	}
}

// segmentFor returns the segment that entries of a class are appended to, pinned, and makes a new one where that is
// full; nil = there is no room, or the disk failed.
func (s *Store) segmentFor(c class, first int64) *segment {
	s.mu.Lock()
	h := &s.held
	g := h.filling[c]
	if g != nil {
		g.refs++
		full := len(g.hashes) > 0 && g.len+first > segmentSize(h.size)
		s.mu.Unlock()
		if !full {
			return g
		}
		s.finish(g)
		s.unpin(g)
		s.mu.Lock()
	}
	h.next++
	id := h.next
	s.mu.Unlock()
	length := fileHeadLen(c.group, c.mark())
	room := roomOf(length + trailer)
	if !s.reserve(room, c, false) {
		return nil
	}
	g = &segment{id: id, name: segmentName(id), len: length, room: room, refs: 1, jobs: c.jobs,
		seen: float64(max(c.jobs, 0))}
	var err error
	if g.file, err = s.files.open(g.name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL); err == nil {
		err = g.file.writev([][]byte{appendFileHead(nil, segmentMagic, c.group, c.mark())}, 0)
	}
	if err != nil {
		s.failed(writing, g.name, err)
		s.unmake(g.name, g.file, room)
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h.clock++
	g.group = h.groupOf(c.group)
	g.used, g.found = h.clock, g.group.reads
	h.segments[id], h.filling[c] = g, g
	return g
}

// unmake removes a file that could not be written.
func (s *Store) unmake(name string, f file, room int64) {
	if f == nil { // it was not made
		s.release(room)
		return
	}
	s.removeAll([]leaver{{name, f, room}})
}

var padding [8]byte

// appendTo writes entries to the end of a segment, which gets that length; false = no room, or the disk failed.
func (s *Store) appendTo(g *segment, items []*item, length int64) bool {
	room := roomOf(length + indexEntry*int64(len(g.hashes)+len(items)) + trailer)
	if room > g.room && !s.reserve(room-g.room, class{g.group.name, g.jobs}, false) {
		return false
	}
	heads := make([]byte, 0, len(items)*(entryHead+256))
	parts := make([][]byte, 0, 3*len(items))
	places := make([]place, len(items))
	at := g.len
	for i, it := range items {
		from := len(heads)
		heads = appendEntry(heads, it.key, it.data)
		head := heads[from:len(heads):len(heads)]
		places[i] = place{g.id, uint32(at), uint32(len(it.data))}
		n := entryLen(int64(len(it.key)), int64(len(it.data)))
		parts = append(parts, head, it.data, padding[:n-int64(len(head)+len(it.data))])
		at += n
	}
	if err := g.file.writev(parts, g.len); err != nil {
		_ = g.file.truncate(g.len) // what is left of it is torn, and a miss
		s.release(room - g.room)
		s.failed(writing, g.name, err)
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h := &s.held
	g.len, g.room = length, room
	for i, it := range items {
		h.index[it.hash] = places[i]
		g.hashes = append(g.hashes, it.hash)
		h.counts.Written++
		h.counts.WrittenBytes += uint64(len(it.data))
	}
	h.fault.writeWorked()
	return true
}

// finish writes the index to the end of a segment, whose room for it is taken. Without it, the next start scans it.
func (s *Store) finish(g *segment) {
	s.mu.Lock()
	h := &s.held
	if g.stage != filling {
		s.mu.Unlock()
		return
	}
	table := make([]byte, 0, indexEntry*len(g.hashes))
	for _, hash := range g.hashes {
		if p := h.index[hash]; p.segment == g.id {
			table = le.AppendUint64(table, hash)
			table = le.AppendUint32(table, p.off)
			table = le.AppendUint32(table, p.size)
		}
	}
	g.stage = finished
	h.unfill(g)
	s.mu.Unlock()
	end := appendTrailer(nil, table, g.len, int64(len(table)/indexEntry))
	if err := g.file.writev([][]byte{table, end}, g.len); err != nil {
		_ = g.file.truncate(g.len)
		s.failed(writing, g.name, fmt.Errorf("write the index: %w", err))
	}
}
