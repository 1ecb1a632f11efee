package exec

import (
	"encoding/binary"
	"fmt"
	"sync"

	"larder/internal/coordinator"
	"larder/internal/ident"
	"larder/internal/prep"
	"larder/internal/session"
	"larder/internal/shm"
	larderv1 "larder/proto/larder/v1"
)

type ringKey struct {
	job  ident.JobID
	rank int
	inc  ident.Incarnation
}

// layout is where the fields of a slot lie.
type layout struct {
	slots      int
	rows       int
	slotBytes  int64
	imageBytes int64 // of one sample; 0 = ragged
	image      int64 // offsets in a slot
	label      int64
	index      int64
	values     int64 // ragged only: where pixel values begin
	fields     []*larderv1.Field
}

const (
	raggedEntry = 24 // bytes of one row in a ragged field's table (docs/protocol.md)
	pageSize    = 4096
)

func align(n, to int64) int64 { return (n + to - 1) / to * to }

// newLayout lays out a slot for a batch of a recipe's output. guess is the mean decoded size, for ragged slots only.
func newLayout(r *prep.Recipe, batch, slots int, guess int64) layout {
	l := layout{slots: slots, rows: batch}
	out := r.Output()
	image := &larderv1.Field{Name: "image", Dtype: out.DType, Layout: out.Layout, Ragged: out.Ragged}
	if out.Ragged {
		l.label = align(int64(batch)*raggedEntry, 64)
	} else {
		l.imageBytes = int64(out.SampleBytes)
		for _, d := range out.Shape {
			image.Shape = append(image.Shape, uint32(d))
		}
		image.SampleBytes = uint64(out.SampleBytes)
		l.label = align(int64(batch)*l.imageBytes, 64)
	}
	l.index = align(l.label+8*int64(batch), 64)
	l.values = align(l.index+8*int64(batch), 64)
	l.slotBytes = l.values
	if out.Ragged {
		l.slotBytes += int64(batch) * guess
	}
	l.slotBytes = align(l.slotBytes, pageSize)
	l.fields = []*larderv1.Field{
		image,
		{Name: "label", Dtype: "int64", Offset: uint64(l.label), SampleBytes: 8},
		{Name: "index", Dtype: "int64", Offset: uint64(l.index), SampleBytes: 8},
	}
	return l
}

// ring is the shared memory of one incarnation of one rank. Workers write into slots that the coordinator marked as
// filling; the ring's own goroutine hands finished slots to the session, in order.
type ring struct {
	layout
	key    ringKey
	job    *job
	ragged bool
	seg    *shm.Segment
	sink   session.Sink
	peer   shm.Peer

	mu struct {
		sync.Mutex
		queue   []any // Deliver and EndEpoch, in order; bounded by the slots
		closed  bool
		reason  error
		stashed [][]prep.Image // ragged: rows of each slot, own copies
	}
	wake *sync.Cond
	// Owned by the ring's goroutine:
	extra    []*shm.Segment // ragged: a larger memory of its own for each slot that needed it
	extraID  []uint32
	segments uint32
	done     chan struct{}
}

func newRing(k ringKey, j *job, l layout, sink session.Sink, peer shm.Peer) (*ring, error) {
	seg, err := shm.Create(fmt.Sprintf("larder-ring-%d-%d", k.job, k.rank), l.slotBytes*int64(l.slots))
	if err != nil {
		return nil, err
	}
	r := &ring{layout: l, key: k, job: j, ragged: l.imageBytes == 0, seg: seg, sink: sink, peer: peer, done: make(chan struct{})}
	r.wake = sync.NewCond(&r.mu.Mutex)
	if r.ragged {
		r.mu.stashed = make([][]prep.Image, l.slots)
		for i := range r.mu.stashed {
			r.mu.stashed[i] = make([]prep.Image, l.rows)
		}
		r.extra = make([]*shm.Segment, l.slots)
		r.extraID = make([]uint32, l.slots)
	}
	return r, nil
}

func (r *ring) slot(i int) []byte {
	return r.seg.Bytes()[int64(i)*r.slotBytes : int64(i+1)*r.slotBytes]
}

// image is where the pixels of a row go.
func (r *ring) image(slot, row int) []byte {
	at := r.layout.image + int64(row)*r.imageBytes
	return r.slot(slot)[at : at+r.imageBytes]
}

// put writes what stands beside the pixels.
func (r *ring) put(slot, row int, label, index int64) {
	b := r.slot(slot)
	binary.LittleEndian.PutUint64(b[r.label+8*int64(row):], uint64(label))
	binary.LittleEndian.PutUint64(b[r.index+8*int64(row):], uint64(index))
}

// stash copies a ragged row aside until its whole batch is there and its place is known.
func (r *ring) stash(slot, row int, img prep.Image) error {
	r.mu.Lock()
	old := r.mu.stashed[slot][row].Pix
	r.mu.Unlock()
	old = append(old[:0], img.Pix...) // this row of this slot is ours until it is reported as filled
	r.mu.Lock()
	r.mu.stashed[slot][row] = prep.Image{Pix: old, W: img.W, H: img.H, C: img.C}
	r.mu.Unlock()
	return nil
}

func (r *ring) push(x any) {
	r.mu.Lock()
	r.mu.queue = append(r.mu.queue, x)
	r.mu.Unlock()
	r.wake.Signal()
}

// close ends the ring after what is queued. The memory goes when the last writer and the session have let go.
func (r *ring) close(reason error) {
	r.mu.Lock()
	r.mu.closed, r.mu.reason = true, reason
	r.mu.Unlock()
	r.wake.Signal()
}

// run hands over batches until the ring is closed.
func (r *ring) run(e *Engine) {
	defer close(r.done)
	for {
		r.mu.Lock()
		for len(r.mu.queue) == 0 && !r.mu.closed {
			r.wake.Wait()
		}
		if len(r.mu.queue) == 0 {
			reason := r.mu.reason
			r.mu.Unlock()
			if reason != nil {
				r.sink.Gone(reason)
			}
			for _, s := range r.extra {
				if s != nil {
					s.Release()
				}
			}
			e.ringBytes.Add(-r.seg.Size())
			r.seg.Release()
			return
		}
		x := r.mu.queue[0]
		r.mu.queue = append(r.mu.queue[:0], r.mu.queue[1:]...)
		r.mu.Unlock()
		switch x := x.(type) {
		case coordinator.Deliver:
			r.deliver(e, x)
		case coordinator.EndEpoch:
			r.sink.EpochEnd(&larderv1.EpochEnd{
				Epoch: x.Epoch, Batches: uint64(x.Batches), Samples: uint64(x.Samples), Final: x.Final, Account: account(x.Account),
			})
		}
	}
}

func (r *ring) deliver(e *Engine, x coordinator.Deliver) {
	b := session.Batch{
		Slot: uint32(x.Slot), Gen: x.Gen, Offset: uint64(int64(x.Slot) * r.slotBytes), Epoch: x.Epoch, Step: uint32(x.Step),
		Rank: uint32(x.Rank), Rows: uint32(len(x.Rows)),
	}
	if len(x.Bad) > 0 {
		b.Report = &larderv1.BatchReport{Quarantined: e.quarantined(r.job, x.Bad)}
	}
	if r.ragged {
		if err := r.gather(x, &b); err != nil {
			e.cfg.Log.Error("no memory for a batch", "job", r.job.spec.Name, "err", err)
			r.sink.Gone(err)
			return
		}
	} else {
		r.compact(x)
	}
	r.sink.Batch(b)
}

// compact closes the holes that failed samples left, so that a batch is its first rows.
func (r *ring) compact(x coordinator.Deliver) {
	s := r.slot(x.Slot)
	for to, from := range x.Rows {
		if to == from {
			continue
		}
		copy(r.image(x.Slot, to), r.image(x.Slot, from))
		copy(s[r.label+8*int64(to):][:8], s[r.label+8*int64(from):][:8])
		copy(s[r.index+8*int64(to):][:8], s[r.index+8*int64(from):][:8])
	}
}

// gather lays a ragged batch out, in a larger memory when it does not fit its slot.
func (r *ring) gather(x coordinator.Deliver, b *session.Batch) error {
	r.mu.Lock()
	rows := r.mu.stashed[x.Slot]
	r.mu.Unlock()
	need := r.values
	for _, i := range x.Rows {
		need += align(int64(len(rows[i].Pix)), 64)
	}
	home := r.slot(x.Slot)
	dst := home
	if own := r.extra[x.Slot]; own != nil {
		dst = own.Bytes()
		b.Segment, b.Offset = r.extraID[x.Slot], 0
	}
	if need > int64(len(dst)) {
		seg, err := shm.Create(fmt.Sprintf("larder-ring-%d-%d-slot%d", r.key.job, r.key.rank, x.Slot), align(need+need/4, pageSize))
		if err != nil {
			return err
		}
		if old := r.extra[x.Slot]; old != nil {
			old.Release()
		}
		r.segments++
		r.extra[x.Slot], r.extraID[x.Slot] = seg, r.segments
		b.Segment, b.Offset, b.NewSegment = r.segments, 0, seg
		dst = seg.Bytes()
	}
	at := r.values
	for to, i := range x.Rows {
		img := &rows[i]
		e := dst[int64(to)*raggedEntry:]
		binary.LittleEndian.PutUint64(e, uint64(at))
		binary.LittleEndian.PutUint32(e[8:], uint32(img.H))
		binary.LittleEndian.PutUint32(e[12:], uint32(img.W))
		binary.LittleEndian.PutUint32(e[16:], uint32(img.C))
		binary.LittleEndian.PutUint32(e[20:], 0)
		copy(dst[at:], img.Pix)
		at += align(int64(len(img.Pix)), 64)
		copy(dst[r.label+8*int64(to):][:8], home[r.label+8*int64(i):][:8])
		copy(dst[r.index+8*int64(to):][:8], home[r.index+8*int64(i):][:8])
	}
	return nil
}
