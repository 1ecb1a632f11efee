package client

import (
	"encoding/binary"
	"math"
	"math/bits"
	"sync/atomic"
	"time"
	"unsafe"

	"larder/internal/session/wire"
	"larder/internal/shm"
	larderv1 "larder/proto/larder/v1"
)

// entryBytes is the size of a row's entry in a ragged field: that of an image, or of a field of records.
func entryBytes(f *larderv1.Field) uint64 {
	if f.GetKind() == "" {
		return 24
	}
	return 16 + 8*uint64(f.GetDims())
}

// layout is the field table of a ring, checked once: every row of every fixed field, and every entry table of a ragged
// one, lies inside a slot.
type layout struct {
	fields []*larderv1.Field
	rows   uint32 // most rows of a batch
	need   uint64 // least bytes of a slot
	image  *larderv1.Field
	h      [3]int // height, width, channels of a fixed image
}

func newLayout(info *larderv1.AttachResponse) (layout, error) {
	l := layout{fields: info.GetFields(), rows: info.GetJob().GetSpec().GetBatchSize()}
	if n := info.GetRows(); n > 0 {
		l.rows = n
	}
	if info.GetSlots() == 0 || l.rows == 0 {
		return l, wire.Violation("RING has %d slots for batches of %d", info.GetSlots(), l.rows)
	}
	for _, f := range l.fields {
		each := f.GetSampleBytes()
		if f.GetRagged() {
			if each = entryBytes(f); f.GetDims() > maxDims || sizes[f.GetDtype()] == 0 {
				return l, wire.Violation("field %q has %d dimensions of %q", f.GetName(), f.GetDims(), f.GetDtype())
			}
		}
		over, size := bits.Mul64(each, uint64(l.rows))
		end, carry := bits.Add64(f.GetOffset(), size, 0)
		if over != 0 || carry != 0 || end > info.GetSlotBytes() {
			return l, wire.Violation("field %q does not fit a slot of %d bytes", f.GetName(), info.GetSlotBytes())
		}
		l.need = max(l.need, end)
		switch {
		case f.GetName() != "image" || f.GetKind() != "":
			continue
		case f.GetRagged():
			l.image = f
			continue
		}
		d := f.GetShape()
		if len(d) != 3 {
			return l, wire.Violation("an image has three dimensions, not %d", len(d))
		}
		l.image, l.h = f, [3]int{int(d[0]), int(d[1]), int(d[2])}
		if f.GetLayout() == "CHW" {
			l.h = [3]int{int(d[1]), int(d[2]), int(d[0])}
		}
	}
	over, size := bits.Mul64(info.GetSlotBytes(), uint64(info.GetSlots()))
	if over != 0 || size > info.GetSegmentBytes() {
		return l, wire.Violation("%d slots of %d bytes do not fit a segment of %d", info.GetSlots(), info.GetSlotBytes(),
			info.GetSegmentBytes())
	}
	return l, nil
}

// Batch is a slot of the ring that is leased to the caller. Its slices are the shared memory itself: valid until
// Release, and writable.
type Batch struct {
	Epoch, Step, Rank uint32 // Step numbers the batches of the epoch from 0
	Rows              int    // samples in the batch; 0 is possible

	s        *Stream
	seg      *shm.Segment
	mem      []byte // the slot
	slot     uint32
	gen      uint64
	words    bool // its slot goes back in a release word
	report   []*larderv1.QuarantinedSample
	waited   time.Duration
	log      *runLog // noted the batch; nil without an audit
	released atomic.Bool
}

// newBatch reads a BATCH frame. It returns nil without an error when the stream was detached.
func (s *Stream) newBatch(p []byte) (*Batch, error) {
	f, err := wire.ParseBatch(p)
	if err != nil {
		return nil, err
	}
	b := &Batch{Epoch: f.Epoch, Step: f.Step, Rank: f.Rank, Rows: int(f.Rows), s: s, slot: f.Slot, gen: f.Gen,
		words: s.back.present && f.Segment == 0}
	if len(f.Report) > 0 {
		r := new(larderv1.BatchReport)
		if err := wire.Unmarshal(f.Report, r); err != nil {
			return nil, err
		}
		b.report = r.GetQuarantined()
	}
	s.mu.Lock()
	if s.mu.segs == nil {
		s.mu.Unlock()
		return nil, nil
	}
	b.seg = s.mu.segs[f.Segment]
	if b.seg != nil {
		b.seg.Retain()
	}
	s.mu.Unlock()
	if b.seg == nil || f.Slot >= s.info.GetSlots() || f.Rows > s.layout.rows {
		b.drop()
		return nil, wire.Violation("BATCH names segment %d, slot %d, %d rows, which cannot be", f.Segment, f.Slot, f.Rows)
	}
	size := uint64(b.seg.Size())
	if f.Offset > size || size-f.Offset < s.layout.need {
		b.drop()
		return nil, wire.Violation("BATCH names offset %d in a segment of %d bytes", f.Offset, size)
	}
	b.mem = b.seg.Bytes()[f.Offset:]
	if f.Segment == 0 { // in a segment of its own the slot reaches to the end
		b.mem = b.mem[:min(uint64(len(b.mem)), s.info.GetSlotBytes())]
	}
	if err := b.check(); err != nil {
		b.drop()
		return nil, err
	}
	return b, nil
}

// check looks at the entries of ragged fields, so that nothing read later can lie outside the slot.
func (b *Batch) check() error {
	for _, f := range b.s.layout.fields {
		if !f.GetRagged() {
			continue
		}
		for row := range b.Rows {
			if f.GetKind() != "" {
				if _, _, ok := b.value(f, row); !ok {
					return wire.Violation("row %d of field %q lies outside its slot of %d bytes, or has other dimensions", row,
						f.GetName(), len(b.mem))
				}
				continue
			}
			off, h, w, c := b.entry(f, row)
			over, n := bits.Mul64(uint64(h)*uint64(w), uint64(c))
			if over != 0 || off > uint64(len(b.mem)) || n > uint64(len(b.mem))-off {
				return wire.Violation("row %d of field %q (%dx%dx%d at %d) lies outside its slot of %d bytes", row, f.GetName(), h,
					w, c, off, len(b.mem))
			}
		}
	}
	return nil
}

func (b *Batch) entry(f *larderv1.Field, row int) (off uint64, h, w, c uint32) {
	e := b.mem[f.GetOffset()+uint64(row)*entryBytes(f):]
	le := binary.LittleEndian
	return le.Uint64(e), le.Uint32(e[8:]), le.Uint32(e[12:]), le.Uint32(e[16:])
}

// Field returns the memory of a field by its name: Rows times sample_bytes, or the entries of a ragged field.
// Stream.Info lists the fields with type, shape and layout. The result is nil when there is no such field or the batch
// was released.
func (b *Batch) Field(name string) []byte {
	if b.released.Load() {
		return nil
	}
	for _, f := range b.s.layout.fields {
		if f.GetName() != name {
			continue
		}
		each := f.GetSampleBytes()
		if f.GetRagged() {
			each = entryBytes(f)
		}
		end := f.GetOffset() + uint64(b.Rows)*each
		return b.mem[f.GetOffset():end:end]
	}
	return nil
}

// Index returns the ids of the samples, in the dataset's numbering.
func (b *Batch) Index() []int64 { return b.int64s("index") }

// Label returns the labels of the samples.
func (b *Batch) Label() []int64 { return b.int64s("label") }

func (b *Batch) int64s(name string) []int64 {
	p := b.Field(name)
	if len(p) < 8 || uintptr(unsafe.Pointer(&p[0]))%8 != 0 {
		return nil
	}
	return unsafe.Slice((*int64)(unsafe.Pointer(&p[0])), len(p)/8)
}

// Image returns the pixels of a row, in the field's layout (CHW or HWC; ragged images are HWC) and type, with height,
// width and channels. pix is nil when there is no such row, no image, or the batch was released.
func (b *Batch) Image(row int) (pix []byte, h, w, c int) {
	f := b.s.layout.image
	if f == nil || b.released.Load() || row < 0 || row >= b.Rows {
		return nil, 0, 0, 0
	}
	if !f.GetRagged() {
		at := f.GetOffset() + uint64(row)*f.GetSampleBytes()
		end := at + f.GetSampleBytes()
		return b.mem[at:end:end], b.s.layout.h[0], b.s.layout.h[1], b.s.layout.h[2]
	}
	off, eh, ew, ec := b.entry(f, row)
	n := uint64(eh) * uint64(ew) * uint64(ec)
	if off > uint64(len(b.mem)) || n > uint64(len(b.mem))-off || n > math.MaxInt64 {
		return nil, 0, 0, 0 // the caller wrote over the entries, as it may
	}
	return b.mem[off : off+n : off+n], int(eh), int(ew), int(ec)
}

// maxDims is the most dimensions of a field of records.
const maxDims = 8

// Value returns the values of one row of a field of records, and the sizes of its dimensions. data is nil when there is
// no such field or row, or the batch was released.
func (b *Batch) Value(name string, row int) (data []byte, dims []int64) {
	if b.released.Load() || row < 0 || row >= b.Rows {
		return nil, nil
	}
	for _, f := range b.s.layout.fields {
		if f.GetName() == name && f.GetKind() != "" {
			data, dims, _ = b.value(f, row)
			return data, dims
		}
	}
	return nil, nil
}

// value is one row of a field of records; not ok: it lies outside the slot, or its bytes are not those of its dims.
func (b *Batch) value(f *larderv1.Field, row int) (data []byte, dims []int64, ok bool) {
	if !f.GetRagged() {
		for _, d := range f.GetShape() {
			dims = append(dims, int64(d))
		}
		at := f.GetOffset() + uint64(row)*f.GetSampleBytes()
		return b.mem[at : at+f.GetSampleBytes() : at+f.GetSampleBytes()], dims, true
	}
	e := b.mem[f.GetOffset()+uint64(row)*entryBytes(f):]
	off, n := binary.LittleEndian.Uint64(e), binary.LittleEndian.Uint64(e[8:])
	want, empty := sizes[f.GetDtype()], false
	for i := range f.GetDims() {
		d := binary.LittleEndian.Uint64(e[16+8*i:])
		dims = append(dims, int64(d))
		switch {
		case d == 0:
			empty = true
		case want > math.MaxInt64/d:
			return nil, nil, false
		default:
			want *= d
		}
	}
	if empty {
		want = 0
	}
	if n != want || off > uint64(len(b.mem)) || n > uint64(len(b.mem))-off {
		return nil, nil, false
	}
	return b.mem[off : off+n : off+n], dims, true
}

// Report returns the samples that would have been in this batch and could not be prepared.
func (b *Batch) Report() []*larderv1.QuarantinedSample { return b.report }

// Waited returns how long Next waited for this batch.
func (b *Batch) Waited() time.Duration { return b.waited }

// Release returns the slot to the daemon; the batch's slices must not be used afterwards. It is idempotent and may be
// called from any goroutine.
func (b *Batch) Release() {
	if b.released.Swap(true) {
		return
	}
	if b.log != nil { // an error shows at the next batch
		_ = b.log.log.Done(b.log.number, b.Step, b.checksum())
	}
	// An error means that the daemon is gone, which Next will say; the slot has no owner then.
	switch {
	case !b.words:
		_ = b.s.c.write(wire.Release, 0, wire.ReleaseFrame{Slot: b.slot, Gen: b.gen, Waited: b.waited}.Append(nil))
	case b.s.back.give(b.slot, b.gen, b.waited):
		_ = b.s.c.write(wire.Wake, 0, nil)
	}
	if b.seg != nil {
		b.seg.Release()
	}
}

// drop forgets a batch that no caller saw, without a frame to the daemon.
func (b *Batch) drop() {
	if !b.released.Swap(true) && b.seg != nil {
		b.seg.Release()
	}
}
