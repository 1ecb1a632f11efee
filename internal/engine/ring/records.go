package ring

import (
	"encoding/binary"
	"fmt"

	"larder/internal/coordinator"
	"larder/internal/record"
)

// Records reports whether the rows of the ring are records.
func (r *Ring) Records() bool { return r.places != nil }

// PutRecord copies a record that fits the ring's schema into a row. The error is that of a record which does not. A
// budget that is used up ends the attachment, as [Ring.Fail] does, and is no error of the record.
func (r *Ring) PutRecord(x *coordinator.Fill, v record.View) error {
	room, err := r.roomFor(x, v)
	if err != nil {
		return err
	}
	if r.ragged {
		mem, full := r.Room(x, int(room))
		if full != nil {
			r.Fail(full)
			return nil
		}
		r.putRagged(x, v, mem)
	}
	slot := r.slot(x.Slot)
	for i, f := range v.All {
		if p := &r.places[i]; !p.ragged {
			copy(slot[p.at+p.size*int64(x.Row):][:p.size], f.Data)
		}
	}
	return nil
}

// PutStack copies a sample of a stack, which its schema fits, into a row of a ring that is not [Ring.Ragged]: there its
// record is put. The error is that of a sample that does not fit the ring's schema. Then no byte of the row changes.
func (r *Ring) PutStack(x *coordinator.Fill, st *record.Stack, sample int) error {
	if r.ragged {
		return fmt.Errorf("a sample of a stack in a ragged batch, which takes records only")
	}
	if st.Len() != len(r.places) {
		return fmt.Errorf("a record of %d fields in a batch of %d", st.Len(), len(r.places))
	}
	for i, f := range st.All(sample) {
		if err := r.places[i].field.Fits(&f); err != nil {
			return err
		}
	}
	slot := r.slot(x.Slot)
	for i, f := range st.All(sample) {
		p := &r.places[i]
		copy(slot[p.at+p.size*int64(x.Row):][:p.size], f.Data)
	}
	return nil
}

// roomFor checks a record against the layout and returns the bytes that the values of its ragged fields take.
func (r *Ring) roomFor(x *coordinator.Fill, v record.View) (int64, error) {
	if v.Len() != len(r.places) {
		return 0, fmt.Errorf("a record of %d fields in a batch of %d", v.Len(), len(r.places))
	}
	room := int64(0)
	for i, f := range v.All {
		p := &r.places[i]
		if err := p.field.Fits(&f); err != nil { // a record that another job had made may be of another schema
			return 0, err
		}
		if p.ragged {
			room += align(int64(len(f.Data)), 64)
		}
	}
	return room, nil
}

// putRagged writes the values of the ragged fields to mem, and their entries to the slot in segment 0, with offsets
// from the beginning of mem: putEntries knows where that will be.
func (r *Ring) putRagged(x *coordinator.Fill, v record.View, mem []byte) {
	slot, at := r.slot(x.Slot), int64(0)
	for i, f := range v.All {
		p := &r.places[i]
		if !p.ragged {
			continue
		}
		copy(mem[at:], f.Data)
		e := slot[p.at+p.size*int64(x.Row):][:p.size]
		binary.LittleEndian.PutUint64(e, uint64(at))
		binary.LittleEndian.PutUint64(e[8:], uint64(len(f.Data)))
		copy(e[16:], f.RawDims())
		at += align(int64(len(f.Data)), 64)
	}
}

// putEntries writes the entries of a row whose values begin at at. They are read from memory that the client can write
// to: a client that does harms its own batch only, because nothing here follows them.
func (r *Ring) putEntries(dst, src []byte, to, from int, at int64) {
	for i := range r.places {
		p := &r.places[i]
		if !p.ragged {
			continue
		}
		e := dst[p.at+p.size*int64(to):][:p.size]
		copy(e, src[p.at+p.size*int64(from):][:p.size])
		binary.LittleEndian.PutUint64(e, binary.LittleEndian.Uint64(e)+uint64(at))
	}
}
