package session

import (
	"net"
	"sync"
	"time"

	"larder/internal/clock"
	"larder/internal/errs"
	"larder/internal/session/wire"
	"larder/internal/shm"
	larderv1 "larder/proto/larder/v1"
)

const (
	// maxControl is how many answers may wait to be sent before the reader of that session waits too: a peer that
	// asks and does not read stops only itself.
	maxControl = 256
	// maxPushed is how many frames of the engine may wait. The engine is bounded by the ring's slots, so this is
	// reached only by its bug.
	maxPushed = 1 << 16
	// coalesce is how many bytes are gathered for one write.
	coalesce = 32 << 10
)

// out is one frame to send.
type out struct {
	t       wire.Type
	id      uint64
	payload []byte       // or:
	frames  []byte       // whole ones, of a type that t need not be; or:
	batch   *Batch       // BATCH, written late because of its report
	seg     *shm.Segment // rides on the first byte; the queue holds a reference
	sent    func()       // called once the frame left or was dropped
	pushed  bool         // by the engine, not an answer
}

// queue orders what goes to one peer. Any goroutine appends, one writer sends.
type queue struct {
	mu      sync.Mutex
	changed sync.Cond
	items   []out
	control int  // answers among items, and those being written
	pushed  int  // frames of the engine among items
	ending  bool // the writer stops when items are sent
	dead    bool // nothing goes out any more
}

func newQueue() *queue {
	q := new(queue)
	q.changed.L = &q.mu
	return q
}

// add appends frames in one piece; they are dropped when the peer is gone. It reports false when the engine's frames
// exceed any sensible number.
func (q *queue) add(frames ...out) bool {
	q.mu.Lock()
	if q.dead || q.ending {
		q.mu.Unlock()
		drop(frames)
		return true
	}
	for _, f := range frames {
		if f.pushed {
			q.pushed++
		} else {
			q.control++
		}
	}
	q.items = append(q.items, frames...)
	ok := q.pushed <= maxPushed
	q.changed.Broadcast()
	q.mu.Unlock()
	return ok
}

// waitRoom blocks while too many answers wait, or until the session is dead.
func (q *queue) waitRoom() {
	q.mu.Lock()
	for q.control >= maxControl && !q.dead && !q.ending {
		q.changed.Wait()
	}
	q.mu.Unlock()
}

// take waits for frames. false: the queue ends.
func (q *queue) take(buf []out) ([]out, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.items) == 0 && !q.ending && !q.dead {
		q.changed.Wait()
	}
	if q.dead || len(q.items) == 0 {
		return nil, false
	}
	got := q.items
	q.items = buf[:0]
	q.pushed = 0
	return got, true
}

// wrote records that n answers have left.
func (q *queue) wrote(n int) {
	if n == 0 {
		return
	}
	q.mu.Lock()
	q.control -= n
	q.changed.Broadcast()
	q.mu.Unlock()
}

// end lets the writer stop when everything is sent.
func (q *queue) end() {
	q.mu.Lock()
	q.ending = true
	q.changed.Broadcast()
	q.mu.Unlock()
}

// kill drops everything, now and later.
func (q *queue) kill() {
	q.mu.Lock()
	q.dead = true
	items := q.items
	q.items = nil
	q.changed.Broadcast()
	q.mu.Unlock()
	drop(items)
}

func drop(frames []out) {
	for _, f := range frames {
		if f.seg != nil {
			f.seg.Release()
		}
		if f.sent != nil {
			f.sent()
		}
	}
}

// write sends until the queue ends or the peer does not take a write within timeout.
func (q *queue) write(c *net.UnixConn, clk clock.Clock, timeout time.Duration) error {
	deadline := clock.NewDeadline(clk, c.SetWriteDeadline)
	var spare []out
	var buf []byte
	for {
		frames, ok := q.take(spare)
		if !ok {
			return nil
		}
		var err error
		if buf, err = send(c, func() error { return deadline.In(timeout) }, frames, buf, q.wrote); err != nil {
			q.kill()
			return err
		}
		clear(frames)
		spare = frames
		if cap(buf) > 2*coalesce {
			buf = nil // one large answer must not pin its size
		}
	}
}

// send writes the frames, as few writes as descriptors allow, and releases all they hold, also on an error.
func send(c *net.UnixConn, limit func() error, frames []out, buf []byte, wrote func(control int)) ([]byte, error) {
	buf = buf[:0]
	first := 0 // the frames [first, i) are in buf
	flush := func(to int) error {
		if len(buf) == 0 {
			return nil
		}
		if err := limit(); err != nil {
			return err
		}
		var err error
		if seg := frames[first].seg; seg != nil {
			err = shm.WriteWithFD(c, buf, seg.FD())
		} else {
			_, err = c.Write(buf)
		}
		if err != nil {
			return err
		}
		control := 0
		for _, f := range frames[first:to] {
			if !f.pushed {
				control++
			}
		}
		drop(frames[first:to])
		wrote(control)
		buf, first = buf[:0], to
		return nil
	}
	for i, f := range frames {
		if f.seg != nil || len(buf) >= coalesce { // a descriptor rides on the first byte of a write
			if err := flush(i); err != nil {
				drop(frames[first:])
				return buf, err
			}
		}
		if f.batch != nil {
			f.payload = batchPayload(f.batch)
		}
		if f.frames != nil {
			buf = append(buf, f.frames...)
			continue
		}
		buf = wire.AppendFrame(buf, f.t, f.id, f.payload)
	}
	if err := flush(len(frames)); err != nil {
		drop(frames[first:])
		return buf, err
	}
	return buf, nil
}

func batchPayload(b *Batch) []byte {
	f := wire.BatchFrame{
		Segment: b.Segment, Slot: b.Slot, Gen: b.Gen, Offset: b.Offset,
		Epoch: b.Epoch, Step: b.Step, Rank: b.Rank, Rows: b.Rows,
	}
	if b.Report != nil {
		f.Report = reportJSON(b.Report)
	}
	return f.Append(make([]byte, 0, wire.BatchSize+len(f.Report)))
}

// reportJSON writes a report. A report never stops a batch: invalid UTF-8 is repaired, and a report that is too
// large for a frame keeps the ids and loses the words.
func reportJSON(r *larderv1.BatchReport) []byte {
	const limit = wire.MaxPayload - wire.BatchSize
	if b, err := wire.Marshal(r); err == nil && len(b) <= limit {
		return b
	}
	short := &larderv1.BatchReport{Quarantined: make([]*larderv1.QuarantinedSample, len(r.GetQuarantined()))}
	for i, s := range r.GetQuarantined() {
		short.Quarantined[i] = &larderv1.QuarantinedSample{
			Id: s.GetId(), Offset: s.GetOffset(), Key: valid(s.GetKey()), Path: valid(s.GetPath()), Reason: valid(s.GetReason()),
			DamagedAt: s.DamagedAt,
		}
	}
	if b, err := wire.Marshal(short); err == nil && len(b) <= limit {
		return b
	}
	for i, s := range short.Quarantined {
		short.Quarantined[i] = &larderv1.QuarantinedSample{Id: s.GetId()}
	}
	if b, err := wire.Marshal(short); err == nil && len(b) <= limit {
		return b
	}
	return nil // more ids than a batch of the largest size has rows
}

// result makes the RESULT of a request, or an ERROR when the answer cannot be sent.
func result(id uint64, payload []byte, err error) out {
	if err == nil && len(payload) > wire.MaxPayload {
		err = errs.New(errs.ResourceExceeded, "", "ask for less at once, or over gRPC",
			"the answer has %d bytes, a session carries at most %d", len(payload), wire.MaxPayload)
	}
	if err != nil {
		return out{t: wire.Error, id: id, payload: wire.MarshalError(err)}
	}
	return out{t: wire.Result, id: id, payload: payload}
}
