package session_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"larder/client"
	"larder/internal/clock/stepped"
	"larder/internal/errs"
	"larder/internal/session"
	"larder/internal/session/sessiontest"
	"larder/internal/session/wire"
	"larder/internal/shm"
	"larder/internal/testenv"
	larderv1 "larder/proto/larder/v1"

	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// service answers in every way a handler can.
type service struct {
	larderv1.UnimplementedLarderServiceServer
}

func (service) GetStats(ctx context.Context, _ *larderv1.GetStatsRequest) (*larderv1.GetStatsResponse, error) {
	p, ok := session.PeerFrom(ctx)
	if !ok {
		return nil, errors.New("no peer in the context")
	}
	return &larderv1.GetStatsResponse{Stats: &larderv1.Stats{Pid: p.PID}}, nil
}

func (service) ListJobs(ctx context.Context, _ *larderv1.ListJobsRequest) (*larderv1.ListJobsResponse, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (service) ListDatasets(context.Context, *larderv1.ListDatasetsRequest) (*larderv1.ListDatasetsResponse, error) {
	panic("a bug")
}

func (service) GetTiers(context.Context, *larderv1.GetTiersRequest) (*larderv1.GetTiersResponse, error) {
	return &larderv1.GetTiersResponse{Tiers: []*larderv1.Tier{{Form: strings.Repeat("x", wire.MaxPayload)}}}, nil
}

func (service) SetTiers(context.Context, *larderv1.SetTiersRequest) (*larderv1.SetTiersResponse, error) {
	st, err := status.New(codes.ResourceExhausted,
		"in short").WithDetails(&larderv1.ErrorDetail{Reason: string(errs.ResourceExceeded), Message: "at length"})
	if err != nil {
		return nil, err
	}
	return nil, st.Err()
}

func (service) DrainJob(context.Context, *larderv1.DrainJobRequest) (*larderv1.DrainJobResponse, error) {
	return nil, status.Error(codes.NotFound, "no such job")
}

func (service) KillJob(context.Context, *larderv1.KillJobRequest) (*larderv1.KillJobResponse, error) {
	return nil, errors.New("the disk is on fire")
}

// daemon serves until the test ends.
type daemon struct {
	*session.Server
	t      testing.TB
	socket string
	engine *sessiontest.Engine
}

func start(t testing.TB, cfg session.Config, jobs map[string]sessiontest.Job) *daemon {
	t.Helper()
	d := &daemon{t: t, socket: filepath.Join(t.TempDir(), "s"), engine: sessiontest.New(jobs)}
	cfg.Engine, cfg.Service = d.engine, service{}
	d.Server = session.NewServer(cfg)
	l, err := session.Listen(d.socket)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- d.Serve(l) }()
	t.Cleanup(func() {
		if err := errors.Join(d.Close(), d.Close(), <-done); err != nil {
			t.Error(err)
		}
		if n, _ := d.Sessions(); n != 0 {
			t.Errorf("%d sessions left", n)
		}
		if n := d.engine.Counts(); n.Held != 0 || len(n.Violations) != 0 {
			t.Errorf("%+v", n)
		}
		if n, _ := shm.Live(); n != 0 {
			t.Errorf("%d segments left", n)
		}
	})
	return d
}

// peer speaks raw bytes.
type peer struct {
	*net.UnixConn
	t testing.TB
	r *wire.Reader
}

func (d *daemon) peer() *peer {
	d.t.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: d.socket, Net: "unix"})
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { _ = c.Close() })
	return &peer{c, d.t, wire.NewReader(c)}
}

func (p *peer) send(t wire.Type, id uint64, payload string) {
	p.t.Helper()
	if _, err := p.Write(wire.AppendFrame(nil, t, id, []byte(payload))); err != nil {
		p.t.Fatal(err)
	}
}

const hello = `{"client":"raw","abiMin":1,"abiMax":1}`

// greeted has said HELLO.
func (d *daemon) greeted() *peer {
	d.t.Helper()
	p := d.peer()
	p.send(wire.Hello, 1, hello)
	if b := p.expect(wire.Welcome, 1); !strings.Contains(b, `"abi":1`) && !strings.Contains(b, `"abi": 1`) {
		d.t.Errorf("WELCOME %s", b)
	}
	return p
}

func (p *peer) expect(t wire.Type, id uint64) string {
	p.t.Helper()
	h, b, _, err := p.r.Next()
	if err != nil || h.Type != t || h.ID != id {
		p.t.Fatalf("%s %d %s, %v; want %s %d", h.Type, h.ID, b, err, t, id)
	}
	return string(b)
}

func (p *peer) expectError(id uint64, reason errs.Reason) *errs.Error {
	p.t.Helper()
	f := wire.ParseError([]byte(p.expect(wire.Error, id)))
	if f.Reason != reason || f.Message == "" {
		p.t.Errorf("%+v, want %s", f, reason)
	}
	return f
}

// expectEnd: nothing more comes.
func (p *peer) expectEnd() {
	p.t.Helper()
	if h, b, _, err := p.r.Next(); err == nil {
		p.t.Errorf("%s %d %s after the end", h.Type, h.ID, b)
	}
}

// TestViolations: bytes that break the protocol get one ERROR and the end of that session, and nothing else happens.
func TestViolations(t *testing.T) {
	d := start(t, session.Config{}, map[string]sessiontest.Job{"a": {}})
	good := d.greeted()
	frame := func(typ wire.Type, payload string) string {
		return string(wire.AppendFrame(nil, typ, 9, []byte(payload)))
	}
	abi2 := []byte(frame(wire.Ping, ""))
	abi2[0] = 2
	first := map[string]string{
		"HTTP": "GET / HTTP/1.1\r\n\r\n", "zeros": strings.Repeat("\x00", 100),
		"CALL first":    frame(wire.Call, `{"method":"GetStats"}`),
		"RELEASE first": frame(wire.Release, strings.Repeat("\x00", 16)), "HELLO without JSON": frame(wire.Hello, "{{"),
		"unknown field": frame(wire.Hello, `{"abiMin":1,"abiMax":1,"who":"me"}`),
		"newer abi":     frame(wire.Hello, `{"abiMin":2,"abiMax":3}`),
		"no abi":        frame(wire.Hello, `{}`), "large HELLO": string(wire.AppendHeader(nil,
			wire.Header{Type: wire.Hello, Length: 1 << 20})),
	}
	for name, b := range first {
		t.Run(name, func(t *testing.T) {
			p := d.peer()
			if _, err := p.Write([]byte(b)); err != nil {
				t.Fatal(err)
			}
			want := errs.Protocol
			if strings.Contains(name, "JSON") || strings.Contains(name, "field") {
				want = errs.Invalid
			}
			p.expectError(0, want)
			p.expectEnd()
		})
	}
	for name, b := range map[string]string{
		"HELLO again": frame(wire.Hello,
			hello), "unknown type": "\x01\x00\x63\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
		"abi 2": string(abi2), "BATCH from a client": frame(wire.Batch, strings.Repeat("\x00", 48)),
		"WELCOME from a client": frame(wire.Welcome, "{}"),
		"EPOCH of 16 bytes":     frame(wire.Epoch, strings.Repeat("\x00", 16)),
		"noise":                 "\xff\xfe\xfd\xfc\xfb\xfa\xf9\xf8\xf7\xf6\xf5\xf4\xf3\xf2\xf1\xf0",
	} {
		t.Run(name, func(t *testing.T) {
			p := d.greeted()
			if _, err := p.Write([]byte(b)); err != nil {
				t.Fatal(err)
			}
			p.expectError(0, errs.Protocol)
			p.expectEnd()
		})
	}
	good.send(wire.Ping, 77, "")
	good.expect(wire.Pong, 77)
}

// TestBadRequests: a request that cannot be served fails alone.
func TestBadRequests(t *testing.T) {
	d := start(t, session.Config{}, map[string]sessiontest.Job{"a": {Epochs: 5}})
	p := d.greeted()
	id := uint64(1)
	for _, c := range []struct {
		t       wire.Type
		payload string
		want    errs.Reason
	}{
		{wire.Call, "not JSON", errs.Protocol},
		{wire.Call, `{"method":"GetStats","body":{}} trailing`, errs.Protocol},
		{wire.Call, `{"method":"GetStats","body":[]}`, errs.Invalid},
		{wire.Call, `{"method":"GetStats","body":{"jobb":"a"}}`, errs.Invalid},
		{wire.Call, `{"method":"Getstats"}`, errs.Unsupported},
		{wire.Call, `{"method":"WatchStats"}`, errs.Unsupported},
		{wire.Call, `{"method":"AddDataset"}`, errs.Unsupported}, // not implemented by the service
		{wire.Call, `{"method":"ListDatasets"}`, errs.Internal},  // panics
		{wire.Call, `{"method":"GetTiers"}`, errs.ResourceExceeded},
		{wire.Call, `{"method":"SetTiers"}`, errs.ResourceExceeded},
		{wire.Call, `{"method":"DrainJob"}`, errs.NotFound},
		{wire.Call, `{"method":"KillJob"}`, errs.Internal},
		{wire.Attach, `{`, errs.Invalid},
		{wire.Attach, `{"job":"a","color":"red"}`, errs.Invalid},
		{wire.Attach, `{"job":"b"}`, errs.NotFound},
		{wire.Epoch, string(wire.AppendEpoch(nil, 0)), errs.Invalid}, // not attached
	} {
		id++
		p.send(c.t, id, c.payload)
		f := p.expectError(id, c.want)
		if c.payload == `{"method":"SetTiers"}` && f.Message != "at length" {
			t.Errorf("the detail of a gRPC status was lost: %+v", f)
		}
	}
	p.send(wire.Release, 0, string(wire.ReleaseFrame{Slot: 9, Gen: 9}.Append(nil))) // no slot: ignored
	p.send(wire.Detach, 98, "")                                                     // nothing to leave: fine
	p.expect(wire.Result, 98)
	p.send(wire.Call, 99, `{"method":"GetStats"}`)
	if b := p.expect(wire.Result, 99); !strings.Contains(strings.ReplaceAll(b, " ", ""),
		fmt.Sprintf(`"pid":%d`, os.Getpid())) {
		t.Errorf("the peer's pid: %s", b)
	}
}

// TestCallsAreBounded, and a call that takes long holds up neither other calls nor anything else of the session.
func TestCallsAreBounded(t *testing.T) {
	d := start(t, session.Config{MaxCalls: 3}, nil)
	p := d.greeted()
	for id := range uint64(3) {
		p.send(wire.Call, 10+id, `{"method":"ListJobs"}`) // until the session ends
	}
	p.send(wire.Call, 20, `{"method":"GetStats"}`)
	if f := p.expectError(20, errs.ResourceExceeded); f.RetryAfter <= 0 {
		t.Errorf("%+v", f)
	}
	p.send(wire.Ping, 21, "")
	p.expect(wire.Pong, 21)
}

// TestAttachIsInOrder: requests for the attachment may be sent without waiting, and are answered in order.
func TestAttachIsInOrder(t *testing.T) {
	d := start(t, session.Config{}, map[string]sessiontest.Job{"a": {Batches: 1}})
	p := d.greeted()
	var b []byte
	b = wire.AppendFrame(b, wire.Attach, 2, []byte(`{"job":"a"}`))
	b = wire.AppendFrame(b, wire.Epoch, 3, wire.AppendEpoch(nil, 4))
	b = wire.AppendFrame(b, wire.Detach, 4, nil)
	b = wire.AppendFrame(b, wire.Attach, 5, []byte(`{"job":"a"}`))
	if _, err := p.Write(b); err != nil {
		t.Fatal(err)
	}
	p.expect(wire.Ring, 2)
	answers := map[wire.Type]int{}
	for {
		h, _, _, err := p.r.Next()
		if err != nil {
			t.Fatal(err)
		}
		answers[h.Type]++
		if h.Type == wire.Error {
			if h.ID != 5 || answers[wire.Result] != 2 {
				t.Errorf("a second attachment: %v, then ERROR %d", answers, h.ID)
			}
			break
		}
	}
	if n := d.engine.Counts(); n.Clean != 1 {
		t.Errorf("%+v", n)
	}
	// Too many at once are refused, not queued without bound.
	p = d.greeted()
	b = wire.AppendFrame(b[:0], wire.Attach, 100, []byte(`{"job":"slow"}`))
	for id := range uint64(30) {
		b = wire.AppendFrame(b, wire.Detach, id, nil)
	}
	if _, err := p.Write(b); err != nil {
		t.Fatal(err)
	}
	h, e, _, err := p.r.Next()
	if err != nil || h.Type != wire.Error || h.ID > 29 || wire.ParseError(e).Reason != errs.ResourceExceeded {
		t.Errorf("%s %d %s %v", h.Type, h.ID, e, err)
	}
}

// TestVanish: a client that ends while the engine still attaches it leaves nothing attached.
func TestVanish(t *testing.T) {
	d := start(t, session.Config{}, map[string]sessiontest.Job{"a": {}})
	for _, payload := range []string{`{"job":"slow"}`, `{"job":"a"}`} {
		p := d.greeted()
		p.send(wire.Attach, 2, payload)
		p.send(wire.Epoch, 3, string(wire.AppendEpoch(nil, 0)))
		_ = p.Close()
	}
	testenv.Eventually(t, "no session is left", func() bool { n, _ := d.Sessions(); return n == 0 })
	if n := d.engine.Counts(); n.Clean != 0 || n.Torn != 1 {
		t.Errorf("%+v", n)
	}
}

// TestHalfFrame: a peer that stops in the middle of a frame holds only its own session, and its end is seen.
func TestHalfFrame(t *testing.T) {
	d := start(t, session.Config{}, nil)
	for cut := 1; cut < 40; cut += 3 {
		p := d.greeted()
		f := wire.AppendFrame(nil, wire.Call, 5, []byte(`{"method":"GetStats","body":{}}`))
		if _, err := p.Write(f[:cut]); err != nil {
			t.Fatal(err)
		}
		if cut%2 == 0 {
			_ = p.Close()
		}
	}
	big := d.greeted()
	if _, err := big.Write(wire.AppendHeader(nil, wire.Header{Type: wire.Call, ID: 1,
		Length: wire.MaxPayload})); err != nil {
		t.Fatal(err)
	}
	p := d.greeted()
	p.send(wire.Ping, 5, "")
	p.expect(wire.Pong, 5)
}

// TestSilence: who says nothing is turned away when the time for HELLO is over, and not before.
func TestSilence(t *testing.T) {
	clock := stepped.New(time.Unix(1e9, 0))
	d := start(t, session.Config{HelloTimeout: 10 * time.Second, Clock: clock}, nil)
	p := d.peer()
	if err := clock.Await(t.Context(), 1); err != nil { // the session has begun to wait
		t.Fatal(err)
	}
	late := d.peer()
	if err := clock.Await(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	clock.Advance(10*time.Second - 1)
	late.send(wire.Hello, 1, hello)
	late.expect(wire.Welcome, 1)
	clock.Advance(1)
	p.expectError(0, errs.Protocol)
	p.expectEnd()
	clock.Advance(time.Hour)
	late.send(wire.Ping, 5, "")
	late.expect(wire.Pong, 5)
}

// TestNeverReads: a peer that asks and never reads is held back, then dropped; no other peer notices, and what it was
// sent is bounded.
func TestNeverReads(t *testing.T) {
	const timeout = time.Minute
	clock := stepped.New(time.Unix(1e9, 0))
	d := start(t, session.Config{WriteTimeout: timeout, Clock: clock}, map[string]sessiontest.Job{"a": {Batches: 1000}})
	p := d.greeted()
	other := d.greeted()
	ping := bytes.Repeat(wire.AppendFrame(nil, wire.Ping, 1, nil), 1000)
	hungUp := make(chan struct{})
	go func() {
		defer close(hungUp)
		for {
			if _, err := p.Write(ping); err != nil {
				return
			}
		}
	}()
	testenv.Eventually(t, "the writer of its session waits for room in the socket", func() bool {
		waiting, _ := testenv.Parked("session.send")
		return waiting == 1
	})
	clock.Advance(timeout - 1)
	if n, _ := d.Sessions(); n != 2 {
		t.Errorf("%d sessions before the time for a write is over", n)
	}
	clock.Advance(1)
	<-hungUp
	other.send(wire.Ping, 5, "")
	other.expect(wire.Pong, 5)

	// One that reads no batches is not dropped: its few frames lie in the socket.
	q := d.greeted()
	q.r = wire.NewReader(iotest.OneByteReader(q)) // it takes no byte of the next frame out of the socket
	q.send(wire.Attach, 2, `{"job":"a"}`)
	q.expect(wire.Ring, 2)
	q.send(wire.Epoch, 3, string(wire.AppendEpoch(nil, 0)))
	testenv.Eventually(t, "its frames lie in the socket", func() bool { return q.inSocket(t, wire.Batch) == 4 })
	clock.Advance(2 * timeout)
	seen := 0
	for range 5 {
		if h, _, _, err := q.r.Next(); err != nil {
			t.Fatal(err)
		} else if h.Type == wire.Batch {
			seen++
		}
	}
	if seen != 4 {
		t.Errorf("%d batches for 4 slots", seen)
	}
}

// inSocket counts frames of a type that have come and were not read.
func (p *peer) inSocket(t *testing.T, typ wire.Type) (n int) {
	raw, err := p.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1<<16)
	if err := raw.Control(func(fd uintptr) {
		k, _, err := unix.Recvfrom(int(fd), buf, unix.MSG_PEEK|unix.MSG_DONTWAIT)
		buf = buf[:max(k, 0)]
		if err != nil && !errors.Is(err, unix.EAGAIN) {
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	for r := wire.NewReader(bytes.NewReader(buf)); ; {
		h, _, _, err := r.Next()
		if err != nil {
			return n
		}
		if h.Type == typ {
			n++
		}
	}
}

// TestStrangers: descriptors that a client sends are not kept, other users are refused, and so is one session too many.
func TestStrangers(t *testing.T) {
	d := start(t, session.Config{MaxSessions: 2}, nil)
	before := fds(t)
	p := d.peer()
	if err := shm.WriteWithFD(p.UnixConn, wire.AppendFrame(nil, wire.Hello, 1, []byte(hello)), 0); err != nil {
		t.Fatal(err)
	}
	p.expect(wire.Welcome, 1)
	for id := range uint64(20) {
		if err := shm.WriteWithFD(p.UnixConn, wire.AppendFrame(nil, wire.Ping, id, nil), 0); err != nil {
			t.Fatal(err)
		}
		p.expect(wire.Pong, id)
	}
	if n := fds(t); n > before+3 { // our end, theirs, and the watch of the process
		t.Errorf("%d descriptors before, %d after", before, n)
	}
	d.greeted()
	q := d.peer()
	q.expectError(0, errs.ResourceExceeded)
	q.expectEnd()

	d = start(t, session.Config{Allow: func(p shm.Peer) bool { return p.UID == uint32(os.Getuid()+1) }}, nil)
	q = d.peer()
	if f := q.expectError(0, errs.Denied); !strings.Contains(f.Message, fmt.Sprint(os.Getuid())) {
		t.Errorf("%+v", f)
	}
	q.expectEnd()
	if !session.SameUser(shm.Peer{UID: uint32(os.Getuid())}) || !session.SameUser(shm.Peer{UID: 0}) ||
		session.SameUser(shm.Peer{UID: uint32(os.Getuid() + 1)}) {
		t.Error("who may speak")
	}
}

func fds(t testing.TB) int {
	ents, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(ents)
}

// TestEarlySink: what the engine pushes before Attach returns comes after RING, in order; GONE is the last.
func TestEarlySink(t *testing.T) {
	e := earlyEngine{t}
	s := session.NewServer(session.Config{Engine: e, Service: service{}})
	l, err := session.Listen(filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	defer func() {
		_ = s.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if n, _ := shm.Live(); n != 0 {
			t.Errorf("%d segments left", n)
		}
	}()
	c, err := client.Dial(t.Context(), l.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Attach(t.Context(), &larderv1.AttachRequest{Job: "fail"}); !errs.Is(err, errs.NotFound) {
		t.Fatal(err)
	}
	for _, job := range []string{"panics", "no info"} { // what was taken for them is released, see the segments left
		if _, err := c.Attach(t.Context(), &larderv1.AttachRequest{Job: job}); !errs.Is(err, errs.Internal) {
			t.Fatalf("%s: %v", job, err)
		}
	}
	st, err := c.Attach(t.Context(), &larderv1.AttachRequest{Job: "x"})
	if err != nil {
		t.Fatal(err)
	}
	if err := st.StartEpoch(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	for step := range uint32(3) {
		b, err := st.Next(t.Context())
		if err != nil || b.Step != step || b.Index()[0] != 42 {
			t.Fatalf("step %d: %v", step, err)
		}
		b.Release()
	}
	if _, err := st.Next(t.Context()); !errors.Is(err, io.EOF) {
		t.Errorf("the end of the epoch: %v", err)
	}
	if err := st.StartEpoch(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if _, err := st.Next(t.Context()); !errs.Is(err, errs.JobEnded) {
		t.Errorf("GONE: %v", err)
	}
}

// earlyEngine pushes a whole epoch before Attach returns.
type earlyEngine struct{ t *testing.T }

func (earlyEngine) Hello(*larderv1.HelloRequest) *larderv1.HelloResponse { return nil }

func (e earlyEngine) Attach(_ context.Context, req *larderv1.AttachRequest, p shm.Peer,
	out session.Sink) (session.Attachment, error) {
	if p.UID != uint32(os.Getuid()) {
		e.t.Errorf("peer %+v", p)
	}
	seg, err := shm.Create("ring", 4096)
	if err != nil {
		return nil, err
	}
	seg.Bytes()[0] = 42
	out.Batch(session.Batch{Rows: 1})
	grown, err := shm.Create("grown", 8192)
	if err != nil {
		return nil, err
	}
	grown.Bytes()[0] = 42
	out.Batch(session.Batch{Rows: 1, Step: 1, Segment: 1, NewSegment: grown})
	grown.Release() // the sink has its own reference
	out.Batch(session.Batch{Rows: 1, Step: 2, Segment: 1})
	out.EpochEnd(&larderv1.EpochEnd{Batches: 3, Account: &larderv1.EpochAccount{State: "no UTF-8: \xff"}})
	if req.GetJob() == "fail" {
		seg.Release()
		return nil, errs.New(errs.NotFound, "fail", "", "no such job")
	}
	if req.GetJob() == "panics" {
		seg.Release()
		panic("a bug")
	}
	out.Gone(errs.New(errs.JobEnded, "x", "", "over"))
	out.Batch(session.Batch{Rows: 1, Step: 3}) // too late: nothing follows GONE
	out.Gone(nil)
	return earlyAttachment{seg, req.GetJob()}, nil
}

type earlyAttachment struct {
	seg *shm.Segment
	job string
}

func (a earlyAttachment) Info() *larderv1.AttachResponse {
	if a.job == "no info" {
		panic("another bug")
	}
	return &larderv1.AttachResponse{Job: &larderv1.Job{Spec: &larderv1.JobSpec{BatchSize: 1}}, Slots: 1, SlotBytes: 4096,
		SegmentBytes: 4096, Fields: []*larderv1.Field{{Name: "index", Dtype: "int64", SampleBytes: 8}}}
}
func (a earlyAttachment) Segment() *shm.Segment { return a.seg }
func (earlyAttachment) StartEpoch(context.Context, uint32, uint32) (*larderv1.EpochResponse, error) {
	return nil, nil
}
func (earlyAttachment) Release(_ uint32, _ uint64, _ time.Duration)  {}
func (earlyAttachment) Picks(context.Context, wire.PicksFrame) error { return nil }
func (earlyAttachment) Collect()                                     {}
func (a earlyAttachment) Close(bool)                                 { a.seg.Release() }

// TestMethods: every unary method of the service can be called by name, and no other.
func TestMethods(t *testing.T) {
	d := start(t, session.Config{}, nil)
	p := d.greeted()
	for i, m := range larderv1.LarderService_ServiceDesc.Methods {
		if m.MethodName == "ListJobs" || m.MethodName == "GetTiers" {
			continue // never answers; answers 16 MiB
		}
		id := uint64(10 + i)
		call, err := json.Marshal(map[string]any{"method": m.MethodName})
		if err != nil {
			t.Fatal(err)
		}
		p.send(wire.Call, id, string(call))
		h, b, _, err := p.r.Next()
		if err != nil || h.ID != id {
			t.Fatalf("%s: %s %d, %v", m.MethodName, h.Type, h.ID, err)
		}
		if h.Type == wire.Error && strings.Contains(wire.ParseError(b).Message, "there is no method") {
			t.Errorf("%s is unknown", m.MethodName)
		}
	}
}
