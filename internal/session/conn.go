package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"larder/internal/clock"
	"larder/internal/errs"
	"larder/internal/session/wire"
	"larder/internal/shm"
	larderv1 "larder/proto/larder/v1"
)

// flushTime is how long a session that ends may still take to say why.
const flushTime = time.Second

// maxOrdered is how many of ATTACH, EPOCH and DETACH may wait for their answer.
const maxOrdered = 8

// conn is one session. Its goroutines: run reads frames; a writer sends the queue; a worker runs ATTACH, EPOCH and
// DETACH in their order; each CALL has one; one watches the peer's process. Only RELEASE is handled by the reader
// itself, so that nothing slow stands between a client and its next batch.
type conn struct {
	srv      *Server
	c        *net.UnixConn
	log      *slog.Logger
	peer     shm.Peer
	out      *queue
	ctx      context.Context // ends with the session
	cancel   context.CancelFunc
	work     sync.WaitGroup // calls
	notified atomic.Bool    // DRAIN is in the queue

	rcv      *shm.Receiver   // of descriptors; of the reader
	greeting *clock.Deadline // of HELLO; of the reader
	worker   Worker          // of the reader; nil: the session is no worker's
	works    atomic.Bool     // worker is there

	// Release is called under rel, so that Close cannot overtake it. Never taken together with mu.
	rel struct {
		sync.Mutex
		att Attachment
	}
	mu struct {
		sync.Mutex
		att     Attachment
		sink    *sink
		log     *slog.Logger // of the attachment
		claimed bool         // ATTACH or WORK runs, or has succeeded: a session has one
		epoch   int64        // the last one that may not be asked for (again)
		calls   int          // in flight, their answers included
		ordered int          // waiting or running
	}
}

// run serves the session until it ends.
func (s *conn) run() {
	defer s.c.Close()
	written := make(chan struct{})
	log := s.log // hello makes another one
	go func() {
		defer close(written)
		if err := s.out.write(s.c, s.srv.cfg.Clock, s.srv.cfg.WriteTimeout); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				log.Warn("session ended: the client does not read", "after", s.srv.cfg.WriteTimeout)
			}
			s.c.Close() // wakes the reader
		}
	}()
	err := s.admit()
	if err == nil {
		ordered := make(chan func(), maxOrdered)
		worked := make(chan struct{})
		go func() {
			defer close(worked)
			for f := range ordered {
				f()
			}
		}()
		stop := s.watchPeer()
		err = s.read(ordered)
		s.cancel()
		close(ordered)
		<-worked
		stop()
		s.detach(false)
		s.closeWorker(false)
	}
	s.cancel()
	if f, ok := errors.AsType[*errs.Error](err); ok { // the peer is there and learns why
		s.log.Info("session refused", "reason", f.Reason, "error", f)
		s.out.add(out{t: wire.Error, payload: wire.MarshalError(f)})
	}
	s.out.end()
	hurry := s.srv.cfg.Clock.AfterFunc(flushTime, func() { s.c.Close() })
	<-written
	hurry.Stop()
	s.c.Close()
	s.out.kill()
	s.work.Wait()
}

// admit checks who speaks.
func (s *conn) admit() error {
	if !s.srv.cfg.Allow(s.peer) {
		hint, group := "run the training process as the user of the daemon, or start a daemon of its own", ""
		if g := s.srv.cfg.Group; g > 0 {
			hint, group = fmt.Sprintf("join the group: a process has the groups of its login; %s", hint),
				fmt.Sprintf(" that serves group %d", g)
		}
		return errs.New(errs.Denied, "session", hint, "uid %d may not speak to a daemon of uid %d%s", s.peer.UID, os.Getuid(),
			group)
	}
	if s.srv.draining() {
		return s.draining()
	}
	return nil
}

func (s *conn) draining() *errs.Error {
	if why := s.srv.why.Load(); why != nil {
		return why
	}
	return errs.New(errs.Unavailable, "daemon", "start another daemon, or wait until this one has been restarted",
		"the daemon is stopping")
}

// watchPeer ends the session with the process that opened it, even when a forked child holds a copy of the socket.
func (s *conn) watchPeer() (stop func()) {
	exit, err := shm.ExitOf(s.c)
	if err != nil {
		s.log.Debug("the client's process cannot be watched, only its socket will report its end", "error", err)
		return func() {}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if exit.Wait() == nil {
			_ = s.c.CloseRead() // what it has sent is still read: a DETACH may be among it
		}
	}()
	return func() {
		_ = exit.Close()
		<-done
	}
}

// read handles frames until the peer or the daemon ends the session. A *errs.Error is for the peer to know.
func (s *conn) read(ordered chan<- func()) error {
	s.greeting = clock.NewDeadline(s.srv.cfg.Clock, s.c.SetReadDeadline)
	_ = s.greeting.In(s.srv.cfg.HelloTimeout)
	s.rcv = shm.NewReceiver(s.c)
	defer s.rcv.Close()
	r := wire.NewReader(&input{s})
	greeted := false
	for {
		h, p, at, err := r.Next()
		if err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return wire.Violation("no HELLO came within %s", s.srv.cfg.HelloTimeout)
			}
			if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) && s.ctx.Err() == nil {
				s.log.Debug("session broke", "error", err)
			}
			return err
		}
		if greeted == (h.Type == wire.Hello) {
			return wire.Violation("the first frame of a session is its only HELLO, not %s", h.Type)
		}
		if h.Type >= wire.Work && h.Type != wire.Picks {
			err = s.handleWork(h, p, at)
		} else {
			err = s.handle(h, p, ordered)
		}
		if err == nil && s.worker != nil && !r.Buffered() {
			err = s.guard("a worker", func() error { s.worker.Settle(); return nil })
		}
		if err != nil {
			return err
		}
		s.rcv.Forget(at + wire.HeaderSize + int64(h.Length)) // of frames that announce none
		greeted = true
	}
}

// handle runs on the reader: it must not block on anything but a peer that does not read its answers. p is valid only
// until it returns.
func (s *conn) handle(h wire.Header, p []byte, ordered chan<- func()) error {
	if h.Type != wire.Release {
		s.collect()
		if h.Type != wire.Wake {
			s.out.waitRoom()
		}
	}
	switch h.Type {
	case wire.Wake: // it only says that there is something to collect
	case wire.Release:
		r, err := wire.ParseRelease(p)
		if err != nil {
			return err
		}
		s.release(r)
	case wire.Picks:
		return s.picks(p)
	case wire.Hello:
		return s.hello(h.ID, p)
	case wire.Call:
		s.startCall(h.ID, bytes.Clone(p))
	case wire.Attach:
		p = bytes.Clone(p)
		s.inOrder(h, ordered, func() error { return s.attach(h.ID, p) })
	case wire.Epoch:
		epoch, from, err := wire.ParseEpoch(p)
		if err != nil {
			return err
		}
		s.inOrder(h, ordered, func() error { return s.startEpoch(h.ID, epoch, from) })
	case wire.Detach:
		s.closeWorker(true)
		s.inOrder(h, ordered, func() error {
			s.detach(true)
			s.reply(h.ID, []byte("{}"), nil)
			return nil
		})
	case wire.Ping:
		s.out.add(out{t: wire.Pong, id: h.ID})
	case wire.Pong: // an answer to no request
	default:
		return wire.Violation("a client does not send %s", h.Type)
	}
	return nil
}

func (s *conn) reply(id uint64, payload []byte, err error) { s.out.add(result(id, payload, err)) }

func (s *conn) hello(id uint64, p []byte) error {
	_ = s.greeting.Off()
	req := new(larderv1.HelloRequest)
	if err := wire.UnmarshalStrict(p, req); err != nil {
		return err
	}
	if req.GetAbiMin() > ABI || req.GetAbiMax() < ABI {
		return wire.Violation("the client %q speaks abi %d to %d, this daemon speaks %d", req.GetClient(), req.GetAbiMin(),
			req.GetAbiMax(), ABI)
	}
	res := s.srv.cfg.Engine.Hello(req)
	if res == nil {
		res = new(larderv1.HelloResponse)
	}
	if res.Abi == 0 {
		res.Abi = ABI
	}
	if res.Pid == 0 {
		res.Pid = int32(os.Getpid())
	}
	b, err := wire.Marshal(res)
	if err != nil {
		return err
	}
	s.log = s.log.With("client", req.GetClient())
	s.out.add(out{t: wire.Welcome, id: id, payload: b})
	return nil
}

// startCall runs a CALL beside the reader; its place is free again when its answer has left.
func (s *conn) startCall(id uint64, p []byte) {
	s.mu.Lock()
	if s.mu.calls >= s.srv.cfg.MaxCalls {
		s.mu.Unlock()
		s.reply(id, nil, &errs.Error{
			Reason: errs.ResourceExceeded, Subject: "session", RetryAfter: 100 * time.Millisecond,
			Message: fmt.Sprintf("%d calls of this session wait for their answer already", s.srv.cfg.MaxCalls),
			Hint:    "wait for one of them first",
		})
		return
	}
	s.mu.calls++
	s.mu.Unlock()
	s.work.Go(func() {
		var b []byte
		err := s.guard("CALL", func() (err error) {
			b, err = call(withLife(shm.WithPeer(s.ctx, s.peer), s.ctx), s.srv.cfg.Service, p)
			return err
		})
		f := result(id, b, err)
		f.sent = func() {
			s.mu.Lock()
			s.mu.calls--
			s.mu.Unlock()
			s.endIfDrained()
		}
		s.out.add(f)
	})
}

// inOrder hands work to the worker, which answers the request when it fails.
func (s *conn) inOrder(h wire.Header, ordered chan<- func(), f func() error) {
	s.mu.Lock()
	s.mu.ordered++
	s.mu.Unlock()
	done := func() {
		s.mu.Lock()
		s.mu.ordered--
		s.mu.Unlock()
		s.endIfDrained()
	}
	run := func() {
		if err := s.guard(h.Type.String(), f); err != nil {
			s.reply(h.ID, nil, toFault(err))
		}
		done()
	}
	select {
	case ordered <- run:
	default:
		s.reply(h.ID, nil, errs.New(errs.ResourceExceeded, "session", "wait for the answers first",
			"%d requests of this session wait for their answer already", maxOrdered))
		done()
	}
}

// guard turns a panic of a handler into an error: one request fails, not the daemon and the training of all its
// clients.
func (s *conn) guard(what string, f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("a handler panicked", "request", what, "panic", p, "stack", string(debug.Stack()))
			err = errs.New(errs.Internal, what, "this is a bug of larder; the daemon's log has the stack",
				"the daemon failed: %v", p)
		}
	}()
	return f()
}

// claim makes an ATTACH or WORK the only one of the session, until unclaim; false = there is or was another one.
func (s *conn) claim() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	free := !s.mu.claimed
	s.mu.claimed = true
	return free
}

// unclaim undoes claim for a request that failed.
func (s *conn) unclaim() {
	s.mu.Lock()
	s.mu.claimed = false
	s.mu.Unlock()
}

func (s *conn) attach(id uint64, p []byte) error {
	req := new(larderv1.AttachRequest)
	if err := wire.UnmarshalStrict(p, req); err != nil {
		return err
	}
	if s.srv.draining() {
		return s.draining()
	}
	if !s.claim() {
		return errs.New(errs.Invalid, req.GetJob(),
			"open another session for another rank, and after the end of an attachment",
			"this session has had its attachment")
	}
	k := &sink{s: s}
	var att Attachment
	done := false
	defer func() { // also when a panic comes by: nothing else would close it, and the rank would stay held
		if done {
			return
		}
		s.unclaim()
		k.end()
		if att != nil {
			att.Close(false)
		}
	}()
	att, err := s.srv.cfg.Engine.Attach(s.ctx, req, s.peer, k)
	if err != nil {
		att = nil
		return err
	}
	info := att.Info()
	b, err := wire.Marshal(info)
	if err != nil {
		return err
	}
	done = true
	log := s.log.With("job", req.GetJob(), "rank", req.GetRank())
	s.mu.Lock()
	s.mu.att, s.mu.sink, s.mu.log, s.mu.epoch = att, k, log, int64(info.GetNextEpoch())-1
	s.mu.Unlock()
	s.rel.Lock()
	s.rel.att = att
	s.rel.Unlock()
	seg := att.Segment()
	seg.Retain()
	if info.GetBoard() != 0 {
		k.board = wire.NewBoard(seg.Bytes()[info.GetBoard():], int(info.GetPosts()))
	}
	k.start(out{t: wire.Ring, id: id, payload: b, seg: seg})
	log.Info("attached", "ring_bytes", seg.Size())
	return nil
}

func (s *conn) startEpoch(id uint64, epoch, from uint32) error {
	s.mu.Lock()
	att, last := s.mu.att, s.mu.epoch
	s.mu.Unlock()
	if att == nil {
		return errs.New(errs.Invalid, "session", "attach first (Loader does this by itself)",
			"epoch %d was asked for without an attachment", epoch)
	}
	// Clients recognise batches of an abandoned epoch by its number, so a number is never used twice in an attachment.
	// What an earlier attachment has finished is not given again either (guarantee G3).
	if int64(epoch) <= last {
		job := att.Info().GetJob().GetSpec().GetName()
		if from > 0 { // all of it was sent before the connection ended, and is given up
			return errs.New(errs.Stale, job, fmt.Sprintf("begin epoch %d", last+1),
				"continue at step %d of epoch %d of job %s: it is over", from-1, epoch, job)
		}
		return errs.New(errs.Invalid, job,
			fmt.Sprintf("ask for epoch %d or a later one; a job that is to start over needs another name", last+1),
			"epoch %d of job %s was asked for, and epoch %d is the first one free: epochs only go up", epoch, job, last+1)
	}
	res, err := att.StartEpoch(s.ctx, epoch, from)
	if err != nil {
		return err
	}
	b, err := wire.Marshal(res)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.mu.epoch = int64(epoch)
	s.mu.Unlock()
	s.reply(id, b, nil)
	return nil
}

func (s *conn) release(r wire.ReleaseFrame) {
	s.rel.Lock()
	defer s.rel.Unlock()
	if s.rel.att != nil {
		s.rel.att.Release(r.Slot, r.Gen, r.Waited)
	}
}

// collect has the engine look at the client's release words: a client that says anything at all may have written some,
// and what it asks for next may depend on them.
func (s *conn) collect() {
	s.rel.Lock()
	defer s.rel.Unlock()
	if s.rel.att != nil {
		s.rel.att.Collect()
	}
}

// detach closes the attachment, if there is one.
func (s *conn) detach(clean bool) {
	s.mu.Lock()
	att, k, log := s.mu.att, s.mu.sink, s.mu.log
	s.mu.att = nil
	s.mu.Unlock()
	if att == nil {
		return
	}
	s.rel.Lock()
	s.rel.att = nil
	s.rel.Unlock()
	k.end()
	_ = s.guard("close", func() error { att.Close(clean); return nil })
	log.Info("detached", "clean", clean)
}

// farewell says why the session ends, and ends it once that has been sent.
func (s *conn) farewell(why *errs.Error) {
	s.mu.Lock()
	k := s.mu.sink
	s.mu.Unlock()
	if k != nil { // a client that takes posts without looking at its socket has to be made to look
		k.Gone(why)
	}
	s.out.add(out{t: wire.Error, payload: wire.MarshalError(why), pushed: true})
	_ = s.c.CloseRead() // the reader sees the end; what waits is still written
}

// endIfDrained ends a session that a draining daemon need not wait for: no attachment that still gets batches, nothing
// in flight.
func (s *conn) endIfDrained() {
	if !s.notified.Load() { // Shutdown asks again once the client has been notified
		return
	}
	s.mu.Lock()
	idle := s.mu.calls == 0 && s.mu.ordered == 0 && !s.works.Load() && (s.mu.att == nil || s.mu.sink.over())
	s.mu.Unlock()
	if idle {
		_ = s.c.CloseRead() // the reader sees the end; what waits is still written
	}
}

// sink is the engine's way to one client. While the ring has not been announced it holds frames back.
type sink struct {
	s     *conn
	board *wire.Board // nil: the ring has none. Set before RING leaves, used under mu while not ended
	mu    struct {
		sync.Mutex
		open   bool // RING is in the queue
		ended  bool
		early  []out
		frames uint64 // pushed so far
	}
}

// start queues RING and what came before it.
func (k *sink) start(ring out) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.s.out.add(append([]out{ring}, k.mu.early...)...)
	k.mu.early, k.mu.open = nil, true
}

// end makes the sink deaf.
func (k *sink) end() {
	k.mu.Lock()
	early := k.mu.early
	k.mu.early, k.mu.ended = nil, true
	k.mu.Unlock()
	drop(early)
}

func (k *sink) over() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.mu.ended
}

// push queues frames in the order of the calls. last ends the attachment.
func (k *sink) push(last bool, frames ...out) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.mu.ended:
		drop(frames)
		return
	case last && k.mu.open && k.board != nil:
		k.board.Last()
	}
	k.mu.frames += uint64(len(frames))
	switch {
	case k.mu.open:
		if !k.s.out.add(frames...) {
			k.s.log.Error("the engine pushes without bound; the session is ended", "frames", maxPushed)
			k.s.c.Close()
		}
	default:
		k.mu.early = append(k.mu.early, frames...)
	}
	k.mu.ended = last
}

// Batch implements Sink.
func (k *sink) Batch(b Batch) {
	if k.post(b) {
		return
	}
	f := out{t: wire.Batch, batch: &b, pushed: true}
	if b.NewSegment == nil {
		k.push(false, f)
		return
	}
	b.NewSegment.Retain()
	seg := wire.SegmentFrame{Segment: b.Segment, Slot: b.Slot, Bytes: uint64(b.NewSegment.Size())}
	k.push(false, out{t: wire.Segment, payload: seg.Append(nil), seg: b.NewSegment, pushed: true}, f)
}

// post shows a batch on the board; false when it has to be sent.
func (k *sink) post(b Batch) bool {
	if b.Segment != 0 || b.NewSegment != nil || b.Report != nil {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.mu.open || k.mu.ended || k.board == nil || !k.board.Open() {
		return false
	}
	f := wire.BatchFrame{Slot: b.Slot, Gen: b.Gen, Epoch: b.Epoch, Step: b.Step, Rank: b.Rank, Rows: b.Rows}
	if k.board.Post(f, k.mu.frames) {
		k.s.out.add(out{t: wire.Wake, pushed: true})
	}
	return true
}

// EpochEnd implements Sink.
func (k *sink) EpochEnd(e *larderv1.EpochEnd) {
	b, err := wire.Marshal(e)
	if err != nil { // a string that is no UTF-8, in words for people
		b, _ = wire.Marshal(&larderv1.EpochEnd{Epoch: e.GetEpoch(), Batches: e.GetBatches(), Samples: e.GetSamples(),
			Final: e.GetFinal()})
	}
	k.push(false, out{t: wire.EpochEnd, payload: b, pushed: true})
}

// Gone implements Sink.
func (k *sink) Gone(err error) {
	if err == nil {
		err = errs.New(errs.JobEnded, "job", "make a new Loader to continue", "the attachment has ended")
	}
	k.push(true, out{t: wire.Gone, payload: wire.MarshalError(toFault(err)), pushed: true})
	k.s.endIfDrained()
}
