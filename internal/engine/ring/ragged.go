package ring

import (
	"encoding/binary"
	"fmt"

	"larder/internal/coordinator"
	"larder/internal/session"
	"larder/internal/shm"
)

// raggedSlot is where the rows of a batch lie whose samples differ in size: one behind the other in the slot, in the
// order in which they are made, and beside the slot what does not fit. Its rows belong to the workers while the slot
// is being filled, then to the ring's goroutine.
type raggedSlot struct {
	own   *shm.Segment // a larger memory of its own, once a batch did not fit; else it lies in segment 0
	ownID uint32

	delivery coordinator.DeliveryID // whose rows these are
	next     int64                  // where the next row goes
	beside   int64                  // bytes of rows that did not fit
	rows     []raggedRow
}

type raggedRow struct {
	at      int64  // in the slot's memory
	n       int64  // bytes
	pix     []byte // what did not fit, else nil
	h, w, c int    // of an image
}

// memory is the bytes that the slot may use.
func (r *Ring) memory(i int, s *raggedSlot) []byte {
	if s.own != nil {
		return s.own.Bytes()
	}
	return r.slot(i)
}

// Room returns n bytes for the values of a row of a ragged ring. A row that is filled again gets new room. The error
// is that of a budget which is used up.
func (r *Ring) Room(x *coordinator.Fill, n int) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &r.mu.slots[x.Slot]
	if s.delivery != x.Delivery {
		r.unreserve(s.beside) // of a batch that was returned
		s.delivery, s.next, s.beside, s.rows = x.Delivery, r.values, 0, make([]raggedRow, r.Rows)
	}
	mem := r.memory(x.Slot, s)
	if size := align(int64(n), 64); s.next+size <= int64(len(mem)) {
		at := s.next
		s.next += size
		s.rows[x.Row] = raggedRow{at: at, n: int64(n)}
		return mem[at : at+int64(n) : at+int64(n)], nil
	}
	if err := r.reserve(int64(n)); err != nil {
		return nil, err
	}
	s.beside += int64(n)
	pix := make([]byte, n)
	s.rows[x.Row] = raggedRow{n: int64(n), pix: pix}
	return pix, nil
}

// Shape sets the size of a row's image, whose pixels are in its Room.
func (r *Ring) Shape(x *coordinator.Fill, h, w, c int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	row := &r.mu.slots[x.Slot].rows[x.Row]
	row.h, row.w, row.c = h, w, c
}

// gather writes the table of a ragged batch; a batch that did not fit moves to a larger memory, which the slot keeps.
func (r *Ring) gather(x coordinator.Deliver, b *session.Batch) error {
	r.mu.Lock()
	s := r.mu.slots[x.Slot]
	r.mu.Unlock()
	if s.delivery != x.Delivery { // not one row was filled
		s.rows, s.beside = nil, 0
	}
	home := r.slot(x.Slot)
	dst := r.memory(x.Slot, &s)
	if s.beside > 0 {
		src := dst
		need := r.values
		for _, i := range x.Rows {
			need += align(s.rows[i].n, 64)
		}
		seg, err := r.grow(x.Slot, need)
		if err != nil {
			return err
		}
		dst = seg.Bytes()
		at := r.values
		for _, i := range x.Rows {
			row := &s.rows[i]
			if row.pix != nil {
				copy(dst[at:], row.pix)
			} else {
				copy(dst[at:], src[row.at:row.at+row.n])
			}
			row.at, row.pix = at, nil
			at += align(row.n, 64)
		}
		if s.own != nil {
			r.unreserve(s.own.Size())
			s.own.Release()
		}
		s.own, s.ownID = seg, r.segments
		b.NewSegment = seg
	}
	if s.own != nil {
		b.Segment, b.Offset = s.ownID, 0
	}
	for to, i := range x.Rows {
		row := &s.rows[i]
		if r.places != nil {
			r.putEntries(dst, home, to, i, row.at)
		} else {
			e := dst[int64(to)*RaggedEntry:]
			binary.LittleEndian.PutUint64(e, uint64(row.at))
			binary.LittleEndian.PutUint32(e[8:], uint32(row.h))
			binary.LittleEndian.PutUint32(e[12:], uint32(row.w))
			binary.LittleEndian.PutUint32(e[16:], uint32(row.c))
			binary.LittleEndian.PutUint32(e[20:], 0)
		}
		r.moveRow(dst, home, to, i)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unreserve(r.mu.slots[x.Slot].beside)
	r.mu.slots[x.Slot] = raggedSlot{own: s.own, ownID: s.ownID}
	return nil
}

// grow makes a larger memory for a slot, with a quarter to spare, so that few batches need another one.
func (r *Ring) grow(slot int, need int64) (*shm.Segment, error) {
	size := align(need+need/4, pageSize)
	if err := r.reserve(size); err != nil {
		return nil, err
	}
	seg, err := shm.Create(fmt.Sprintf("larder-ring-%d-%d-slot%d", r.cfg.Key.Job, r.cfg.Key.Rank, slot), size)
	if err != nil {
		r.unreserve(size)
		return nil, err
	}
	r.segments++
	return seg, nil
}
