package client

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"larder/internal/errs"
	"larder/internal/session/wire"
	"larder/internal/shm"
	larderv1 "larder/proto/larder/v1"
)

// Stream is the attachment of a session to one rank of a job. One goroutine at a time calls StartEpoch, Continue, Next
// and Detach; the methods of a Batch may be called from any goroutine.
type Stream struct {
	base   string // of the audit log: see Loaded
	c      *Conn
	info   *larderv1.AttachResponse
	layout layout
	ready  chan struct{} // holds a token when queue has grown
	rank   uint32
	log    *runLog // of the epoch that is read; nil without LARDER_AUDIT_LOG
	back   releases

	mu struct {
		sync.Mutex
		queue   []event
		err     error                   // ended, and why; queue is served first, unless the rank was taken over
		segs    map[uint32]*shm.Segment // one reference each; nil after unmap
		own     map[uint32]uint32       // slot → the segment it got for itself
		epoch   int64                   // being read, -1: none yet
		end     *larderv1.EpochEnd      // of that epoch
		aborted bool                    // Detach was called
	}
}

// event is what the daemon pushed: a batch, the end of an epoch, or the end of the stream.
type event struct {
	batch *Batch
	end   *larderv1.EpochEnd
	err   error
}

func (e event) epoch() int64 {
	if e.batch != nil {
		return int64(e.batch.Epoch)
	}
	return int64(e.end.GetEpoch())
}

// Attach binds the session to a rank of a registered job and maps its ring. Where the job's recipe ends in MixUp or
// CutMix, batches come as they are before that op, and the caller mixes. A session has one attachment in its life;
// open another session for another rank. When ctx ends first, close the session: the daemon may have attached it.
func (c *Conn) Attach(ctx context.Context, req *larderv1.AttachRequest) (*Stream, error) {
	p, err := wire.Marshal(req)
	if err != nil {
		return nil, errs.New(errs.Invalid, "attach", "text must be UTF-8", "write the request").Because(err)
	}
	var st *Stream
	err = c.do(ctx, wire.Attach, p, func(h wire.Header, p []byte, at int64) error {
		if h.Type != wire.Ring {
			return wire.Violation("ATTACH was answered by %s", h.Type)
		}
		fd, ok := c.fds.Take(at)
		if !ok {
			return wire.Violation("RING came without a descriptor")
		}
		var err error
		if st, err = newStream(c, p, fd); err != nil {
			return err
		}
		st.rank = req.GetRank()
		c.mu.Lock()
		c.mu.stream = st // before the next frame is read: it may be a batch
		c.mu.Unlock()
		return nil
	})
	if err != nil {
		return nil, err
	}
	return st, nil
}

// newStream takes ownership of fd.
func newStream(c *Conn, p []byte, fd int) (*Stream, error) {
	info := new(larderv1.AttachResponse)
	perr := wire.Unmarshal(p, info)
	seg, err := shm.Map(fd, int64(info.GetSegmentBytes())) // closes fd on an error
	if perr != nil || err != nil {
		if seg != nil {
			seg.Release()
		}
		if perr != nil {
			err = perr
		}
		return nil, err
	}
	lay, err := newLayout(info)
	if err != nil {
		seg.Release()
		return nil, err
	}
	s := &Stream{c: c, info: info, layout: lay, ready: make(chan struct{}, 1)}
	if err := s.back.open(info, seg.Bytes()); err != nil {
		seg.Release()
		return nil, err
	}
	s.mu.segs = map[uint32]*shm.Segment{0: seg}
	s.mu.own = make(map[uint32]uint32)
	s.mu.epoch = -1
	return s, nil
}

// Info returns what the daemon said about the job and its ring when the session was attached.
func (s *Stream) Info() *larderv1.AttachResponse { return s.info }

// StartEpoch starts an epoch and abandons an unfinished earlier one. Epochs only increase; Info().GetNextEpoch() is the
// first that may be started. It returns when the daemon has accepted the epoch; batches follow by Next.
func (s *Stream) StartEpoch(ctx context.Context, epoch uint32) error {
	return s.start(ctx, epoch, 0)
}

// Continue continues an epoch after a cut or a restart of the daemon, from the first step that this client has not
// received; see EPOCH in docs/protocol.md. The attachment must name the incarnation that was held before.
func (s *Stream) Continue(ctx context.Context, epoch, step uint32) error {
	return s.start(ctx, epoch, step+1)
}

func (s *Stream) start(ctx context.Context, epoch, from uint32) error {
	log, err := auditLog()
	if err != nil {
		return err
	}
	size := new(larderv1.EpochResponse)
	err = s.c.do(ctx, wire.Epoch, wire.AppendEpochFrom(nil, epoch, from), func(h wire.Header, p []byte, _ int64) error {
		if h.Type != wire.Result {
			return wire.Violation("EPOCH was answered by %s", h.Type)
		}
		s.begin(int64(epoch))
		if log != nil {
			return wire.Unmarshal(p, size)
		}
		return nil
	})
	if err != nil || log == nil {
		return err
	}
	s.log.left("another epoch was begun")
	return checkLog(s.beginLog(ctx, log, epoch, from, size))
}

// begin turns to an epoch and releases, unseen, the batches that were pushed for earlier ones.
func (s *Stream) begin(epoch int64) {
	s.mu.Lock()
	s.mu.epoch, s.mu.end = epoch, nil
	var stale []*Batch
	keep := s.mu.queue[:0]
	for _, e := range s.mu.queue {
		switch {
		case e.epoch() >= epoch:
			keep = append(keep, e)
		case e.batch != nil:
			stale = append(stale, e.batch)
		}
	}
	clear(s.mu.queue[len(keep):])
	s.mu.queue = keep
	s.mu.Unlock()
	for _, b := range stale {
		s.back.took()
		b.Release()
	}
}

// Next waits for the next batch of the epoch; a batch may have no rows. The error is io.EOF when the epoch is complete
// (End then describes it), that of ctx when it ends first (nothing is lost: call Next again), else an *Error: what the
// daemon said when it ended the attachment, or UNAVAILABLE when the daemon itself has ended.
func (s *Stream) Next(ctx context.Context) (*Batch, error) {
	start := time.Now()
	for {
		b, err := s.pop()
		if b != nil {
			s.back.took()
			b.waited = time.Since(start)
			if err := s.log.received(b); err != nil {
				return nil, checkLog(err)
			}
			return b, nil
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				if err := s.log.ended(s.End()); err != nil {
					return nil, checkLog(err)
				}
			}
			return nil, err
		}
		if s.back.sleep() { // else it might wait for a slot that the daemon does not know of
			_ = s.c.write(wire.Wake, 0, nil) // an error means that the daemon is gone, which the reader notices
		}
		select {
		case <-s.ready:
		case <-ctx.Done():
			err = ctx.Err()
		}
		s.back.wake()
		if err != nil {
			return nil, err
		}
	}
}

// pop returns what Next should; nothing at all when it must wait.
func (s *Stream) pop() (*Batch, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.mu.aborted:
		return nil, errs.New(errs.Stale, "stream", "attach again with a new session", "the stream was left (Detach)")
	case errs.Is(s.mu.err, errs.Stale): // fenced: the queued batches belong to another client now
		return nil, s.mu.err
	case s.mu.end != nil:
		return nil, io.EOF
	}
	if len(s.mu.queue) > 0 && s.mu.queue[0].epoch() == s.mu.epoch {
		e := s.mu.queue[0]
		s.mu.queue = s.mu.queue[1:]
		if e.batch != nil {
			return e.batch, nil
		}
		s.mu.end = e.end
		return nil, io.EOF
	}
	if s.mu.err != nil {
		return nil, s.mu.err
	}
	if s.mu.epoch < 0 {
		return nil, errs.New(errs.Invalid, "stream", "call StartEpoch first", "no epoch was started")
	}
	return nil, nil
}

// End describes the epoch that Next ended with io.EOF; nil before that.
func (s *Stream) End() *larderv1.EpochEnd {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.end
}

// push queues an event. The reader calls it.
func (s *Stream) push(e event) {
	s.mu.Lock()
	old := e.err == nil && e.epoch() < s.mu.epoch
	over := s.mu.err != nil || s.mu.aborted // nothing follows the end, and after Detach no caller reads
	switch {
	case over:
	case e.err != nil:
		s.mu.err = e.err
	case !old:
		s.mu.queue = append(s.mu.queue, e)
	}
	s.mu.Unlock()
	switch {
	case e.batch == nil:
	case over:
		e.batch.drop()
	case old:
		s.back.took()
		e.batch.Release()
	}
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

// handle takes a frame that concerns the attachment. The reader calls it.
func (s *Stream) handle(h wire.Header, p []byte, at int64) error {
	switch h.Type {
	case wire.Segment:
		return s.newSegment(p, at)
	case wire.EpochEnd:
		e := new(larderv1.EpochEnd)
		if err := wire.Unmarshal(p, e); err != nil {
			return err
		}
		s.push(event{end: e})
	case wire.Gone:
		s.push(event{err: wire.ParseError(p)})
	default:
		b, err := s.newBatch(p)
		if err != nil {
			return err
		}
		if b != nil {
			s.push(event{batch: b})
		}
	}
	return nil
}

// newSegment gives a slot its own memory.
func (s *Stream) newSegment(p []byte, at int64) error {
	f, err := wire.ParseSegment(p)
	if err != nil {
		return err
	}
	fd, ok := s.c.fds.Take(at)
	if !ok {
		return wire.Violation("SEGMENT came without a descriptor")
	}
	if f.Bytes > 1<<62 {
		f.Bytes = 0 // Map refuses it
	}
	seg, err := shm.Map(fd, int64(f.Bytes))
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.segs == nil { // left already
		seg.Release()
		return nil
	}
	if _, used := s.mu.segs[f.Segment]; used || f.Slot >= s.info.GetSlots() {
		seg.Release()
		return wire.Violation("SEGMENT %d for slot %d cannot be", f.Segment, f.Slot)
	}
	if old, ok := s.mu.own[f.Slot]; ok {
		s.mu.segs[old].Release() // a batch that still lies there holds its own reference
		delete(s.mu.segs, old)
	}
	s.mu.segs[f.Segment], s.mu.own[f.Slot] = seg, f.Segment
	return nil
}

// Detach gives the rank up, so that another client may attach to it at once. Batches that were taken stay readable
// until they are released.
func (s *Stream) Detach(ctx context.Context) error {
	s.log.left("the stream was left")
	err := s.c.do(ctx, wire.Detach, nil, func(h wire.Header, _ []byte, _ int64) error {
		if h.Type != wire.Result {
			return wire.Violation("DETACH was answered by %s", h.Type)
		}
		return nil
	})
	s.unmap()
	return err
}

// unmap releases the stream's references to the memory.
func (s *Stream) unmap() {
	s.mu.Lock()
	segs, queue := s.mu.segs, s.mu.queue
	s.mu.segs, s.mu.queue, s.mu.aborted = nil, nil, true
	s.mu.Unlock()
	for _, e := range queue {
		if e.batch != nil {
			e.batch.drop()
		}
	}
	for _, seg := range segs { // the order does not matter
		seg.Release()
	}
}
