package engine

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"larder/internal/coordinator"
	"larder/internal/ident"
	"larder/internal/prep"
	"larder/internal/session"
	"larder/internal/session/wire"
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
	board      int64 // behind the slots: where batches are posted; 0 = nowhere
	posts      int
}

// bytes is what segment 0 has.
func (l *layout) bytes() int64 {
	n := l.slotBytes * int64(l.slots)
	if l.board != 0 {
		n += align(wire.BoardBytes(l.posts), pageSize)
	}
	return n
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
	if !out.Ragged { // their slots may move
		l.board, l.posts = l.slotBytes*int64(slots), wire.Posts(slots)
	}
	l.fields = []*larderv1.Field{
		image,
		{Name: "label", Dtype: "int64", Offset: uint64(l.label), SampleBytes: 8},
		{Name: "index", Dtype: "int64", Offset: uint64(l.index), SampleBytes: 8},
	}
	return l
}

// ring is the shared memory of one incarnation of one rank. Workers write into slots that the coordinator marked as
// filling; finished slots go to the session in order, through the ring's own goroutine when there is work left in them. Its memory goes, and stops counting,
// when the last of its users has let go: that goroutine, the session, and the workers that write.
type ring struct {
	layout
	e    *Engine
	key  ringKey
	job  *job
	seg  *shm.Segment
	sink session.Sink
	peer shm.Peer
	// client is the text by which the client that holds it is known when it comes back; empty = it is not.
	client string
	who    string // its process, as the journal has it; empty = not known

	made   time.Time
	waited []atomic.Int64 // by slot, see owes; nanoseconds

	users  atomic.Int32
	failed atomic.Bool
	bytes  atomic.Int64 // that count for it in Engine.ringBytes

	mu struct {
		sync.Mutex
		queue  []any // Deliver and EndEpoch, in order; bounded by the slots
		busy   bool  // the ring's goroutine works on what was first
		closed bool
		reason error
		slots  []raggedSlot // of a ragged ring
	}
	wake     *sync.Cond
	segments uint32 // given to slots of their own so far; owned by the ring's goroutine
}

// newRing makes a ring with one user.
func newRing(e *Engine, k ringKey, j *job, l layout, sink session.Sink, peer shm.Peer) (*ring, error) {
	r := &ring{layout: l, e: e, key: k, job: j, sink: sink, peer: peer, made: time.Now(), waited: make([]atomic.Int64, l.slots)}
	r.wake = sync.NewCond(&r.mu.Mutex)
	size := l.bytes()
	if err := r.reserve(size); err != nil {
		return nil, err
	}
	var err error
	if r.seg, err = shm.Create(fmt.Sprintf("larder-ring-%d-%d", k.job, k.rank), size); err != nil {
		r.unreserve(size)
		return nil, err
	}
	if r.ragged() {
		r.mu.slots = make([]raggedSlot, l.slots)
	}
	r.users.Store(1)
	return r, nil
}

func (r *ring) ragged() bool { return r.imageBytes == 0 }

// hold adds a user. The caller knows of one that has not let go.
func (r *ring) hold() { r.users.Add(1) }

// release ends the hold of a user; the last one frees the memory.
func (r *ring) release() {
	if r.users.Add(-1) > 0 {
		return
	}
	for i := range r.mu.slots { // nobody else is left
		if own := r.mu.slots[i].own; own != nil {
			own.Release()
		}
	}
	r.seg.Release()
	r.unreserve(r.bytes.Load())
}

func (r *ring) reserve(n int64) error {
	if err := r.e.reserve(r.job, n); err != nil {
		return err
	}
	r.bytes.Add(n)
	return nil
}

func (r *ring) unreserve(n int64) {
	r.bytes.Add(-n)
	r.e.unreserve(n)
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

// push hands something over in order, and does not wait: what is no work is done at once, without waking a goroutine for it.
func (r *ring) push(x any) {
	r.mu.Lock()
	if d, ok := x.(coordinator.Deliver); ok && r.isWhole(&d) && len(r.mu.queue) == 0 && !r.mu.busy && !r.mu.closed {
		r.owes(d.Slot)
		r.sink.Batch(r.batch(&d))
		r.mu.Unlock()
		return
	}
	r.mu.queue = append(r.mu.queue, x)
	r.mu.Unlock()
	r.wake.Signal()
}

// isWhole tells whether the slot is as the client is to see it.
func (r *ring) isWhole(d *coordinator.Deliver) bool {
	n := len(d.Rows)
	return !r.ragged() && len(d.Bad) == 0 && (n == 0 || d.Rows[n-1] == n-1)
}

// close ends the ring after what is queued; reason, if there is one, is told to the client.
func (r *ring) close(reason error) {
	r.mu.Lock()
	r.mu.closed, r.mu.reason = true, reason
	r.mu.Unlock()
	r.wake.Signal()
}

// fail ends the attachment because the ring cannot go on; the coordinator hears of it as of a vanished client.
func (r *ring) fail(err error) {
	if r.failed.Swap(true) {
		return
	}
	r.e.note(slog.LevelError, "an attachment was ended", "job", r.job.spec.GetName(), "rank", r.key.rank, "err", err)
	r.sink.Gone(err)
	r.e.send(coordinator.Detached{Job: r.key.job, Rank: r.key.rank, Inc: r.key.inc})
}

// run hands over batches until the ring is closed.
func (r *ring) run() {
	defer r.release()
	for {
		r.mu.Lock()
		r.mu.busy = false
		for len(r.mu.queue) == 0 && !r.mu.closed {
			r.wake.Wait()
		}
		if len(r.mu.queue) == 0 {
			reason := r.mu.reason
			r.mu.Unlock()
			if reason != nil {
				r.sink.Gone(reason)
			}
			return
		}
		x := r.mu.queue[0]
		r.mu.queue = append(r.mu.queue[:0], r.mu.queue[1:]...)
		r.mu.busy = true
		r.mu.Unlock()
		switch x := x.(type) {
		case coordinator.Deliver:
			r.deliver(x)
		case coordinator.EndEpoch:
			r.sink.EpochEnd(&larderv1.EpochEnd{
				Epoch: x.Epoch, Batches: uint64(x.Batches), Samples: uint64(x.Samples), Final: x.Final, Account: account(x.Account),
			})
		}
	}
}

func (r *ring) batch(x *coordinator.Deliver) session.Batch {
	return session.Batch{
		Slot: uint32(x.Slot), Gen: x.Gen, Offset: uint64(int64(x.Slot) * r.slotBytes), Epoch: x.Epoch, Step: uint32(x.Step),
		Rank: uint32(x.Rank), Rows: uint32(len(x.Rows)),
	}
}

func (r *ring) deliver(x coordinator.Deliver) {
	b := r.batch(&x)
	if bad := r.e.faulty(x.Bad); len(bad) > 0 {
		b.Report = &larderv1.BatchReport{Quarantined: r.e.quarantined(r.job, bad)}
	}
	if r.ragged() {
		if err := r.gather(x, &b); err != nil {
			r.fail(err)
			return
		}
	} else {
		r.compact(x)
	}
	r.owes(x.Slot)
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
