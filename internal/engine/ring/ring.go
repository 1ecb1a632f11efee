package ring

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"larder/internal/coordinator"
	"larder/internal/ident"
	"larder/internal/session"
	"larder/internal/shm"
	"larder/jobs"
	larderv1 "larder/proto/larder/v1"
)

// Key names a ring: one incarnation of one rank of a job.
type Key struct {
	Job  ident.JobID
	Rank int
	Inc  ident.Incarnation
}

// Config is what a Ring needs.
type Config struct {
	Key     Key
	Name    string // of the job
	Layout  Layout
	Sink    session.Sink
	Peer    shm.Peer
	Client  string // by which a client is known when it reconnects; empty = it is not
	Process string // of the client, see [ProcessOf]; empty = not known
	Budget  *Budget
	// Report returns the client's report of bad samples; nil when the batch has none that the client may see.
	Report func([]jobs.Bad) *larderv1.BatchReport
	// Failed is called, once, after the session heard that the ring cannot continue.
	Failed func(Key, error)
}

// Ring is the shared memory of one incarnation of one rank. Workers write into slots that the coordinator granted;
// finished slots go to the session in order, through the ring's own goroutine when there is work left in them.
//
// It has several users: that goroutine, the session, and the workers that write. When the last of them releases it, its
// memory is freed and stops counting.
type Ring struct {
	Layout
	cfg    Config
	seg    *shm.Segment
	made   time.Time
	waited []atomic.Int64 // by slot, see noteWait; nanoseconds
	given  *releases      // nil: the ring has no board

	users  atomic.Int32
	failed atomic.Bool
	bytes  atomic.Int64 // that count for it in the budget

	mu struct {
		sync.Mutex
		queue  []item // bounded by the slots
		busy   bool   // the ring's goroutine works on what was first
		closed bool
		reason error
		slots  []raggedSlot // of a ragged ring
	}
	changed  *sync.Cond // queue or closed
	segments uint32     // given to slots of their own so far; owned by the ring's goroutine
}

// item is what is handed over in order: a batch, or the end of an epoch.
type item struct {
	batch coordinator.Deliver
	end   *larderv1.EpochEnd // nil = it is a batch
}

// New makes a ring with one user.
func New(cfg Config) (*Ring, error) {
	r := &Ring{Layout: cfg.Layout, cfg: cfg, made: time.Now(), waited: make([]atomic.Int64, cfg.Layout.Slots)}
	r.changed = sync.NewCond(&r.mu.Mutex)
	size := r.Bytes()
	if err := r.reserve(size); err != nil {
		return nil, err
	}
	var err error
	if r.seg, err = shm.Create(fmt.Sprintf("larder-ring-%d-%d", cfg.Key.Job, cfg.Key.Rank), size); err != nil {
		r.unreserve(size)
		return nil, err
	}
	if r.Ragged() {
		r.mu.slots = make([]raggedSlot, r.Slots)
	}
	r.given = newReleases(r)
	r.users.Store(1)
	return r, nil
}

// Key is the ring's name.
func (r *Ring) Key() Key { return r.cfg.Key }

// Job is the name of the ring's job.
func (r *Ring) Job() string { return r.cfg.Name }

// Peer is the process that holds the ring.
func (r *Ring) Peer() shm.Peer { return r.cfg.Peer }

// Process is the process of the client, as the journal has it; empty = not known.
func (r *Ring) Process() string { return r.cfg.Process }

// Segment is segment 0. It is valid for users of the ring.
func (r *Ring) Segment() *shm.Segment { return r.seg }

// Ragged reports whether the samples of a batch may differ in size.
func (r *Ring) Ragged() bool { return r.ragged }

// Hold adds a user. The caller knows of one that has not released the ring.
func (r *Ring) Hold() { r.users.Add(1) }

// Release ends the hold of a user; the last one frees the memory.
func (r *Ring) Release() {
	if r.users.Add(-1) > 0 {
		return
	}
	for i := range r.mu.slots { // no user is left: no lock is needed
		if own := r.mu.slots[i].own; own != nil {
			own.Release()
		}
	}
	r.seg.Release()
	r.unreserve(r.bytes.Load())
}

func (r *Ring) reserve(n int64) error {
	if err := r.cfg.Budget.reserve(r.cfg.Name, n); err != nil {
		return err
	}
	r.bytes.Add(n)
	return nil
}

func (r *Ring) unreserve(n int64) {
	r.bytes.Add(-n)
	r.cfg.Budget.release(n)
}

func (r *Ring) slot(i int) []byte {
	return r.seg.Bytes()[int64(i)*r.SlotBytes : int64(i+1)*r.SlotBytes]
}

// Image is the memory for the pixels of a row, in a ring that is not ragged.
func (r *Ring) Image(slot, row int) []byte {
	at := r.image + int64(row)*r.imageBytes
	return r.slot(slot)[at : at+r.imageBytes]
}

// Put writes the label of a row, where there is one, and its index: the sample's id.
func (r *Ring) Put(slot, row int, label, index int64) {
	b := r.slot(slot)
	if r.label != noField {
		binary.LittleEndian.PutUint64(b[r.label+8*int64(row):], uint64(label))
	}
	binary.LittleEndian.PutUint64(b[r.index+8*int64(row):], uint64(index))
}

// Push hands a batch over, after what was pushed before, and does not wait. A batch that needs no work goes to the
// session at once, without waking a goroutine.
func (r *Ring) Push(d coordinator.Deliver) {
	r.mu.Lock()
	if r.isWhole(&d) && len(r.mu.queue) == 0 && !r.mu.busy && !r.mu.closed {
		r.hand(r.batch(&d))
		r.mu.Unlock()
		return
	}
	r.mu.queue = append(r.mu.queue, item{batch: d})
	r.mu.Unlock()
	r.changed.Signal()
}

// PushEnd hands over the end of an epoch, after what was pushed before, and does not wait.
func (r *Ring) PushEnd(end *larderv1.EpochEnd) {
	r.mu.Lock()
	r.mu.queue = append(r.mu.queue, item{end: end})
	r.mu.Unlock()
	r.changed.Signal()
}

// isWhole reports whether the slot is as the client is to see it.
func (r *Ring) isWhole(d *coordinator.Deliver) bool {
	n := len(d.Rows)
	return !r.Ragged() && len(d.Bad) == 0 && (n == 0 || d.Rows[n-1] == n-1)
}

// Close ends the ring after what was pushed; the client gets the reason, if there is one.
func (r *Ring) Close(reason error) {
	r.mu.Lock()
	r.mu.closed, r.mu.reason = true, reason
	r.mu.Unlock()
	r.changed.Signal()
}

// Fail ends the attachment because the ring cannot continue: the session hears it, then Config.Failed is called.
func (r *Ring) Fail(err error) {
	if r.failed.Swap(true) {
		return
	}
	r.cfg.Sink.Gone(err)
	r.cfg.Failed(r.cfg.Key, err)
}

// run hands over what is pushed until the ring is closed.
func (r *Ring) run() {
	defer r.Release()
	for {
		r.mu.Lock()
		r.mu.busy = false
		for len(r.mu.queue) == 0 && !r.mu.closed {
			r.changed.Wait()
		}
		if len(r.mu.queue) == 0 {
			reason := r.mu.reason
			r.mu.Unlock()
			if reason != nil {
				r.cfg.Sink.Gone(reason)
			}
			return
		}
		x := r.mu.queue[0]
		r.mu.queue = append(r.mu.queue[:0], r.mu.queue[1:]...)
		r.mu.busy = true
		r.mu.Unlock()
		if x.end != nil {
			r.cfg.Sink.EpochEnd(x.end)
		} else {
			r.deliver(x.batch)
		}
	}
}

func (r *Ring) batch(x *coordinator.Deliver) session.Batch {
	return session.Batch{
		Slot: uint32(x.Slot), Gen: x.Gen, Offset: uint64(int64(x.Slot) * r.SlotBytes), Epoch: x.Epoch, Step: uint32(x.Step),
		Rank: uint32(x.Rank), Rows: uint32(len(x.Rows)),
	}
}

func (r *Ring) deliver(x coordinator.Deliver) {
	b := r.batch(&x)
	b.Report = r.cfg.Report(x.Bad)
	if r.Ragged() {
		if err := r.gather(x, &b); err != nil {
			r.Fail(err)
			return
		}
	} else {
		r.compact(x)
	}
	r.hand(b)
}

// hand gives a batch to the session.
func (r *Ring) hand(b session.Batch) {
	waits := r.noteWait(int(b.Slot))
	r.given.lease(int(b.Slot), b.Gen, int(b.Step), waits)
	r.cfg.Sink.Batch(b)
}

// compact closes the holes that failed samples left, so that a batch is the first rows of its slot.
func (r *Ring) compact(x coordinator.Deliver) {
	s := r.slot(x.Slot)
	for to, from := range x.Rows {
		if to != from {
			r.moveRow(s, s, to, from)
		}
	}
}

// moveRow copies what a row has in the fixed fields from one memory of a slot to another, or to another row.
func (r *Ring) moveRow(dst, src []byte, to, from int) {
	for _, c := range r.columns {
		copy(dst[c.at+c.size*int64(to):][:c.size], src[c.at+c.size*int64(from):][:c.size])
	}
}
