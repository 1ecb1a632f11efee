// Package sessiontest is an engine for tests of the local session: it fills real rings with bytes that any test can
// recompute, and checks that clients keep their side of the protocol.
//
// It prepares no samples and keeps no ledger. It is linked into tests only.
package sessiontest

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"time"

	"larder/internal/errs"
	"larder/internal/session"
	"larder/internal/session/wire"
	"larder/internal/shm"
	"larder/internal/xrand"
	larderv1 "larder/proto/larder/v1"
)

// Job is what the engine serves under a name. Every zero value has a default.
type Job struct {
	Rows, Batches, Slots int  // default 4, 6, 4
	Side                 int  // height and width of an image; default 8
	Ragged               bool // images of unlike size, some batches larger than a slot
	Report               bool // batches 1, 3, 5… carry a report
	Epochs               int  // 0: endless
	Next                 int  // the first epoch that is free
}

func (j Job) defaults() Job {
	set := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	set(&j.Rows, 4)
	set(&j.Batches, 6)
	set(&j.Slots, 4)
	set(&j.Side, 8)
	return j
}

// Engine serves jobs. Safe for concurrent use.
type Engine struct {
	mu struct {
		sync.Mutex
		jobs   map[string]Job
		held   map[string]*attachment // job/rank
		clean  int
		torn   int
		stale  int // releases with another generation
		waited time.Duration
		bad    []string // violations by clients
	}
}

// New makes an engine for the given jobs.
func New(jobs map[string]Job) *Engine {
	e := new(Engine)
	e.mu.jobs = jobs
	e.mu.held = make(map[string]*attachment)
	return e
}

// Counts is what has happened so far.
type Counts struct {
	Held, Clean, Torn, Stale int
	Waited                   time.Duration
	Violations               []string
}

// Counts returns them.
func (e *Engine) Counts() Counts {
	e.mu.Lock()
	defer e.mu.Unlock()
	return Counts{len(e.mu.held), e.mu.clean, e.mu.torn, e.mu.stale, e.mu.waited, append([]string(nil), e.mu.bad...)}
}

// Gone ends the attachment of a rank.
func (e *Engine) Gone(job string, rank uint32, err error) {
	e.mu.Lock()
	a := e.mu.held[key(job, rank)]
	e.mu.Unlock()
	if a != nil {
		a.out.Gone(err)
	}
}

func key(job string, rank uint32) string { return fmt.Sprintf("%s/%d", job, rank) }

// Hello implements session.Engine.
func (e *Engine) Hello(*larderv1.HelloRequest) *larderv1.HelloResponse {
	return &larderv1.HelloResponse{Version: "test", Decoder: "none"}
}

// Attach implements session.Engine.
func (e *Engine) Attach(ctx context.Context, req *larderv1.AttachRequest, peer shm.Peer,
	out session.Sink) (session.Attachment, error) {
	if req.GetJob() == "slow" {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	j, ok := e.mu.jobs[req.GetJob()]
	if !ok {
		return nil, errs.New(errs.NotFound, req.GetJob(), "register it first", "no job %q", req.GetJob())
	}
	j = j.defaults()
	k := key(req.GetJob(), req.GetRank())
	if h := e.mu.held[k]; h != nil {
		return nil, errs.New(errs.RankHeld, k, "stop it first", "process %d holds %s", h.peer.PID, k)
	}
	a := &attachment{e: e, job: j, name: req.GetJob(), rank: req.GetRank(), peer: peer, out: out,
		free: make(chan uint32, j.Slots), stop: make(chan struct{})}
	if err := a.layout(); err != nil {
		return nil, err
	}
	e.mu.held[k] = a
	return a, nil
}

// Value is what row of a batch holds: its index is the value, its label the value's low 7 bits, and every byte of its
// image the value's low byte.
func Value(job string, rank, epoch, step uint32, row int) int64 {
	h := uint64(len(job))
	for _, c := range job {
		h = xrand.Hash(h, uint64(c))
	}
	return int64(xrand.Hash(h, uint64(rank), uint64(epoch), uint64(step), uint64(row)) >> 1)
}

// Size is height and width of the image of a row.
func (j Job) Size(value int64) (h, w int) {
	j = j.defaults()
	if !j.Ragged {
		return j.Side, j.Side
	}
	return 1 + int(value>>8%int64(2*j.Side)), 1 + int(value>>16%int64(2*j.Side))
}

// attachment is one ring and the goroutine that fills it.
type attachment struct {
	e    *Engine
	job  Job
	name string
	rank uint32
	peer shm.Peer
	out  session.Sink
	ring *shm.Segment
	info *larderv1.AttachResponse

	index, label, values uint64 // offsets in a slot; values: of ragged images

	free chan uint32
	stop chan struct{}
	fill sync.WaitGroup

	mu struct {
		sync.Mutex
		gen    []uint64
		leased []bool
		own    []*shm.Segment // memory that a slot got for itself
		ids    []uint32       // and its number
		next   uint32         // segment number
		closed bool
		cancel context.CancelFunc
	}
}

func align(n uint64) uint64 { return (n + 63) &^ 63 }

func (a *attachment) layout() error {
	j := a.job
	each := uint64(3 * j.Side * j.Side)
	img := &larderv1.Field{Name: "image", Dtype: "uint8", Shape: []uint32{3, uint32(j.Side), uint32(j.Side)},
		SampleBytes: each, Layout: "CHW"}
	a.index = align(each * uint64(j.Rows))
	if j.Ragged {
		img = &larderv1.Field{Name: "image", Dtype: "uint8", Ragged: true, Layout: "HWC"}
		a.index = align(24 * uint64(j.Rows))
	}
	a.label = a.index + align(8*uint64(j.Rows))
	a.values = a.label + align(8*uint64(j.Rows))
	slot := a.values
	if j.Ragged {
		slot += align(each * uint64(j.Rows)) // about the mean: half the batches do not fit
	}
	slot = (slot + 4095) &^ 4095
	seg, err := shm.Create("test-ring", int64(slot)*int64(j.Slots))
	if err != nil {
		return err
	}
	a.ring = seg
	a.mu.gen = make([]uint64, j.Slots)
	a.mu.leased = make([]bool, j.Slots)
	a.mu.own = make([]*shm.Segment, j.Slots)
	a.mu.ids = make([]uint32, j.Slots)
	for i := range j.Slots {
		a.free <- uint32(i)
	}
	a.info = &larderv1.AttachResponse{
		Job:         &larderv1.Job{Spec: &larderv1.JobSpec{Name: a.name, BatchSize: uint32(j.Rows)}},
		Incarnation: 1, Slots: uint32(j.Slots), SlotBytes: slot, SegmentBytes: uint64(seg.Size()),
		BatchesPerEpoch: uint64(j.Batches), NumSamples: uint64(j.Batches * j.Rows), NextEpoch: uint32(j.Next),
		Fields: []*larderv1.Field{
			img,
			{Name: "index", Dtype: "int64", Offset: a.index, SampleBytes: 8},
			{Name: "label", Dtype: "int64", Offset: a.label, SampleBytes: 8},
		},
	}
	return nil
}

// Info implements session.Attachment.
func (a *attachment) Info() *larderv1.AttachResponse { return a.info }

// Segment implements session.Attachment.
func (a *attachment) Segment() *shm.Segment { return a.ring }

// StartEpoch implements session.Attachment.
func (a *attachment) StartEpoch(_ context.Context, epoch, _ uint32) (*larderv1.EpochResponse, error) {
	if a.job.Epochs > 0 && int(epoch) >= a.job.Epochs {
		return nil, errs.New(errs.JobEnded, a.name, "register another job", "job %s has %d epochs", a.name, a.job.Epochs)
	}
	a.mu.Lock()
	if a.mu.cancel != nil {
		a.mu.cancel()
	}
	ctx, cancel := context.WithCancel(context.Background())
	a.mu.cancel = cancel
	a.mu.Unlock()
	a.fill.Wait() // an abandoned epoch stops at its next batch
	a.fill.Go(func() { a.run(ctx, epoch) })
	return nil, nil
}

// run fills slots as they become free.
func (a *attachment) run(ctx context.Context, epoch uint32) {
	for step := range uint32(a.job.Batches) {
		var slot uint32
		select {
		case slot = <-a.free:
		case <-ctx.Done():
			return
		case <-a.stop:
			return
		}
		b := a.write(slot, epoch, step)
		a.out.Batch(b)
	}
	if ctx.Err() == nil {
		a.out.EpochEnd(&larderv1.EpochEnd{
			Epoch: epoch, Batches: uint64(a.job.Batches), Samples: uint64(a.job.Batches * a.job.Rows),
			Final: a.job.Epochs > 0 && int(epoch) == a.job.Epochs-1,
		})
	}
}

// write fills a slot and leases it.
func (a *attachment) write(slot, epoch, step uint32) session.Batch {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.leased[slot] {
		panic("sessiontest: a leased slot is written")
	}
	j := a.job
	b := session.Batch{Slot: slot, Epoch: epoch, Step: step, Rank: a.rank, Rows: uint32(j.Rows),
		Offset: uint64(slot) * a.info.GetSlotBytes()}
	need := a.values
	for row := range j.Rows {
		h, w := j.Size(Value(a.name, a.rank, epoch, step, row))
		need += uint64(3 * h * w)
	}
	mem := a.ring.Bytes()[b.Offset : b.Offset+a.info.GetSlotBytes()]
	if own := a.mu.own[slot]; own != nil {
		mem, b.Segment, b.Offset = own.Bytes(), a.mu.ids[slot], 0
	}
	if j.Ragged && need > uint64(len(mem)) {
		seg, err := shm.Create("test-slot", int64(need))
		if err != nil {
			panic(err)
		}
		if a.mu.own[slot] != nil {
			a.mu.own[slot].Release()
		}
		a.mu.next++
		a.mu.own[slot], a.mu.ids[slot] = seg, a.mu.next
		mem, b.Segment, b.Offset, b.NewSegment = seg.Bytes(), a.mu.next, 0, seg
	}
	at := a.values
	le := binary.LittleEndian
	for row := range j.Rows {
		v := Value(a.name, a.rank, epoch, step, row)
		h, w := j.Size(v)
		le.PutUint64(mem[a.index+8*uint64(row):], uint64(v))
		le.PutUint64(mem[a.label+8*uint64(row):], uint64(v&127))
		pix := mem[uint64(row*3*h*w):][:3*h*w]
		if j.Ragged {
			e := mem[24*row:]
			le.PutUint64(e, at)
			le.PutUint32(e[8:], uint32(h))
			le.PutUint32(e[12:], uint32(w))
			le.PutUint32(e[16:], 3)
			le.PutUint32(e[20:], 0)
			pix = mem[at:][:3*h*w]
			at += uint64(3 * h * w)
		}
		for i := range pix {
			pix[i] = byte(v)
		}
	}
	if j.Report && step%2 == 1 {
		b.Report = &larderv1.BatchReport{Quarantined: []*larderv1.QuarantinedSample{{Id: uint64(step), Path: "bad\xff.jpg",
			Reason: "truncated"}}}
	}
	a.mu.gen[slot]++
	a.mu.leased[slot] = true
	b.Gen = a.mu.gen[slot]
	return b
}

// Picks implements session.Attachment: this engine has no job of order given.
func (a *attachment) Picks(context.Context, wire.PicksFrame) error {
	return errs.New(errs.Protocol, "picks", "register a job of order given", "no job here has order given")
}

// Collect implements session.Attachment: these rings have no release words.
func (a *attachment) Collect() {}

// Release implements session.Attachment.
func (a *attachment) Release(slot uint32, gen uint64, waited time.Duration) {
	a.mu.Lock()
	ok := int(slot) < len(a.mu.gen) && a.mu.gen[slot] == gen && a.mu.leased[slot]
	if ok {
		a.mu.leased[slot] = false
		a.free <- slot // has room for all slots
	}
	closed := a.mu.closed
	a.mu.Unlock()
	a.e.mu.Lock()
	defer a.e.mu.Unlock()
	a.e.mu.waited += waited
	if !ok {
		a.e.mu.stale++
	}
	if closed {
		a.e.mu.bad = append(a.e.mu.bad, "Release after Close")
	}
}

// Close implements session.Attachment.
func (a *attachment) Close(clean bool) {
	a.mu.Lock()
	again := a.mu.closed
	a.mu.closed = true
	if a.mu.cancel != nil {
		a.mu.cancel()
	}
	a.mu.Unlock()
	a.e.mu.Lock()
	if again {
		a.e.mu.bad = append(a.e.mu.bad, "Close twice")
	}
	delete(a.e.mu.held, key(a.name, a.rank))
	if clean {
		a.e.mu.clean++
	} else {
		a.e.mu.torn++
	}
	a.e.mu.Unlock()
	if again {
		return
	}
	close(a.stop)
	a.fill.Wait()
	a.ring.Release()
	for _, s := range a.mu.own {
		if s != nil {
			s.Release()
		}
	}
}
