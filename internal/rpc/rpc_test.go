package rpc

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"larder/internal/errs"
	"larder/internal/testenv"
	larderv1 "larder/proto/larder/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake answers GetStats and DescribeJob through functions; every other method panics on its nil Engine.
type fake struct {
	Engine
	stats    func(context.Context) (*larderv1.GetStatsResponse, error)
	describe func(context.Context, string) (*larderv1.DescribeJobResponse, error)
}

func (f *fake) GetStats(ctx context.Context, _ *larderv1.GetStatsRequest) (*larderv1.GetStatsResponse, error) {
	return f.stats(ctx)
}

func (f *fake) DescribeJob(ctx context.Context, r *larderv1.DescribeJobRequest) (*larderv1.DescribeJobResponse, error) {
	return f.describe(ctx, r.GetName())
}

// serve runs a server over memory and returns a client made by Dial and the plain connection.
func serve(t *testing.T, cfg Config) (larderv1.LarderServiceClient, *grpc.ClientConn, *grpc.Server) {
	t.Helper()
	l := bufconn.Listen(1 << 20)
	s := NewServer(cfg)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Serve(l); err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	dial := grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) })
	client, closer, err := Dial(t.Context(), "/in/memory", dial)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := grpc.NewClient("passthrough:///x", dial, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		closer.Close()
		raw.Close()
		s.Stop()
		wg.Wait()
	})
	return client, raw, s
}

// Every reason has a code, and an error crosses the wire unchanged.
func TestEveryReasonCrosses(t *testing.T) {
	if len(codeOf) != len(errs.Reasons) {
		t.Errorf("%d codes for %d reasons", len(codeOf), len(errs.Reasons))
	}
	var now error
	client, _, _ := serve(t, Config{Engine: &fake{describe: func(context.Context, string) (*larderv1.DescribeJobResponse,
		error) {
		return nil, now
	}}})
	for _, r := range errs.Reasons {
		code, ok := codeOf[r]
		if !ok || code == codes.OK || code == codes.Unknown {
			t.Errorf("%s has code %v", r, code)
		}
		f := errs.New(r, "job-é", "do this", "it is %d", 7)
		f.RetryAfter = 1500 * time.Millisecond
		now = fmt.Errorf("wrapped: %w", f)
		if st, _ := status.FromError(Status(now)); st.Code() != code {
			t.Errorf("%s left as %v", r, st.Code())
		}
		_, err := client.DescribeJob(t.Context(), &larderv1.DescribeJobRequest{})
		var got *errs.Error
		if !errors.As(err, &got) || !reflect.DeepEqual(got, f) {
			t.Errorf("%s arrived as %#v", r, err)
		}
	}
	now = errs.New(errs.DatasetUnread, "/data", "mount it", "read").Because(errors.New("EIO"))
	if _, err := client.DescribeJob(t.Context(), &larderv1.DescribeJobRequest{}); err == nil ||
		err.Error() != "read: EIO (mount it)" {
		t.Errorf("a cause arrived as %v", err)
	}
}

// docs/errors.md gives every reason its code.
func TestErrorDocs(t *testing.T) {
	raw, err := os.ReadFile("../../docs/errors.md")
	if err != nil {
		t.Fatal(err)
	}
	upper := regexp.MustCompile("([a-z])([A-Z])")
	for r, c := range codeOf {
		if row := fmt.Sprintf("| `%s` | %s |", r, strings.ToUpper(upper.ReplaceAllString(c.String(),
			"${1}_$2"))); !strings.Contains(string(raw), row) {
			t.Errorf("docs/errors.md has no %s", row)
		}
	}
}

func TestOtherErrors(t *testing.T) {
	for _, tc := range []struct {
		in   error
		code codes.Code
	}{
		{errors.New("plain"), codes.Internal},
		{context.Canceled, codes.Canceled},
		{fmt.Errorf("x: %w", context.DeadlineExceeded), codes.DeadlineExceeded},
		{status.Error(codes.Unimplemented, "no"), codes.Unimplemented},
		{errs.New("NEW_WORD", "", "", "x"), codes.Internal},
	} {
		if got := status.Code(Status(tc.in)); got != tc.code {
			t.Errorf("%v became %v, want %v", tc.in, got, tc.code)
		}
	}
	if Status(nil) != nil || Fault(nil) != nil {
		t.Error("nil became an error")
	}
	if err := errors.New("x"); !errors.Is(Fault(err), err) || Fault(err).Error() != "x" {
		t.Error("a plain error was changed")
	}
	if err := Fault(status.Error(codes.Canceled, "context canceled")); !errors.Is(err, context.Canceled) {
		t.Errorf("cancellation arrived as %v", err)
	}
	if err := Fault(status.Error(codes.DeadlineExceeded, "x")); !errors.Is(err, context.DeadlineExceeded) ||
		!errs.Is(err, errs.Unavailable) {
		t.Errorf("deadline arrived as %v", err)
	}
	if err := Fault(status.Error(codes.Unknown, "x")); !errs.Is(err, errs.Internal) {
		t.Errorf("unknown arrived as %v", err)
	}
	// Text of a file name that is no UTF-8, and of absurd length, still crosses.
	f := errs.New(errs.SampleBad, "a\xff"+strings.Repeat("é", 5000), "h", "bad\xfe")
	got := errs.From(Fault(Status(f)))
	if got.Reason != errs.SampleBad || got.Message != "bad\uFFFD" || len(got.Subject) > maxText+8 ||
		!strings.HasPrefix(got.Subject, "a\uFFFDé") || !strings.HasSuffix(got.Subject, "é…") {
		t.Errorf("arrived as %q %q", got.Message, got.Subject[max(0, len(got.Subject)-20):])
	}
}

func TestPanicIsOneCallersError(t *testing.T) {
	var buf bytes.Buffer
	log := slog.New(slog.NewTextHandler(&buf, nil))
	e := &fake{describe: func(_ context.Context, name string) (*larderv1.DescribeJobResponse, error) {
		if name == "bad" {
			panic("out of cheese")
		}
		return &larderv1.DescribeJobResponse{Job: &larderv1.Job{Id: 3}}, nil
	}, stats: func(context.Context) (*larderv1.GetStatsResponse, error) { panic("stats") }}
	client, _, _ := serve(t, Config{Engine: e, Log: log})
	_, err := client.DescribeJob(t.Context(), &larderv1.DescribeJobRequest{Name: "bad"})
	if !errs.Is(err, errs.Internal) || !strings.Contains(err.Error(), "out of cheese") {
		t.Errorf("unary: %v", err)
	}
	w, err := client.WatchStats(t.Context(), &larderv1.WatchStatsRequest{})
	if err == nil {
		_, err = w.Recv()
	}
	if !errs.Is(err, errs.Internal) {
		t.Errorf("stream: %v", err)
	}
	if r, err := client.DescribeJob(t.Context(), &larderv1.DescribeJobRequest{Name: "good"}); err != nil ||
		r.GetJob().GetId() != 3 {
		t.Errorf("afterwards: %v, %v", r, err)
	}
	if s := buf.String(); strings.Count(s, "stack=") != 2 || !strings.Contains(s, "rpc_test.go") {
		t.Errorf("log:\n%s", s)
	}
	// The handlers of the local session guard themselves, every one of them.
	svc := Service(&fake{}, log)
	v := reflect.ValueOf(svc)
	for _, m := range larderv1.LarderService_ServiceDesc.Methods {
		f := v.MethodByName(m.MethodName)
		out := f.Call([]reflect.Value{reflect.ValueOf(t.Context()), reflect.New(f.Type().In(1).Elem())})
		if err, _ := reflect.TypeAssert[error](out[1]); !errs.Is(err, errs.Internal) || !out[0].IsNil() {
			t.Errorf("%s over a session: %v", m.MethodName, err)
		}
	}
	ok := Service(e, nil)
	if r, err := ok.DescribeJob(t.Context(), &larderv1.DescribeJobRequest{Name: "good"}); err != nil ||
		r.GetJob().GetId() != 3 {
		t.Errorf("session: %v, %v", r, err)
	}
}

// In virtual time: WatchStats sends at once and at every interval, and ends when the client goes or the daemon stops.
func TestWatchStats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int32
		e := &fake{stats: func(context.Context) (*larderv1.GetStatsResponse, error) {
			return &larderv1.GetStatsResponse{Stats: &larderv1.Stats{Pid: n.Add(1)}}, nil
		}}
		done := make(chan struct{})
		client, _, s := serve(t, Config{Engine: e, Done: done})
		start := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		w, err := client.WatchStats(ctx, &larderv1.WatchStatsRequest{Interval: durationpb.New(250 * time.Millisecond)})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 9 {
			r, err := w.Recv()
			if err != nil || r.GetStats().GetPid() != int32(i+1) {
				t.Fatalf("message %d: %v, %v", i, r, err)
			}
			if got := time.Since(start); got != time.Duration(i)*250*time.Millisecond {
				t.Fatalf("message %d came after %v", i, got)
			}
		}
		cancel()
		if _, err := w.Recv(); !errors.Is(err, context.Canceled) {
			t.Errorf("after cancel: %v", err)
		}
		w, err = client.WatchStats(t.Context(), &larderv1.WatchStatsRequest{}) // default: 1 s
		if err != nil {
			t.Fatal(err)
		}
		start = time.Now()
		for range 3 {
			if _, err := w.Recv(); err != nil {
				t.Fatal(err)
			}
		}
		if got := time.Since(start); got != 2*time.Second {
			t.Errorf("three messages took %v", got)
		}
		close(done)
		s.GracefulStop() // would hang forever if the stream continued
		if _, err := w.Recv(); !errs.Is(err, errs.Unavailable) {
			t.Errorf("after the stop: %v", err)
		}
	})
}

func TestWatchInterval(t *testing.T) {
	client, _, _ := serve(t, Config{Engine: &fake{stats: func(context.Context) (*larderv1.GetStatsResponse,
		error) {
		return &larderv1.GetStatsResponse{}, nil
	}}})
	for _, d := range []*durationpb.Duration{durationpb.New(99 * time.Millisecond), durationpb.New(0),
		durationpb.New(-time.Second), durationpb.New(2 * time.Hour), {Seconds: 1 << 62}, {Nanos: -1, Seconds: 1}} {
		w, err := client.WatchStats(t.Context(), &larderv1.WatchStatsRequest{Interval: d})
		if err == nil {
			_, err = w.Recv()
		}
		if !errs.Is(err, errs.Invalid) || errs.From(err).Hint == "" {
			t.Errorf("interval %v: %v", d, err)
		}
	}
}

func TestHealthAndReflection(t *testing.T) {
	h := health.NewServer()
	_, raw, _ := serve(t, Config{Engine: &fake{}, Health: h})
	hc := healthv1.NewHealthClient(raw)
	check := func(want healthv1.HealthCheckResponse_ServingStatus) {
		t.Helper()
		for _, name := range []string{"", "larder.v1.LarderService"} {
			if r, err := hc.Check(t.Context(), &healthv1.HealthCheckRequest{Service: name}); err != nil ||
				r.GetStatus() != want {
				t.Errorf("health of %q: %v, %v", name, r, err)
			}
		}
	}
	check(healthv1.HealthCheckResponse_SERVING)
	h.Shutdown()
	check(healthv1.HealthCheckResponse_NOT_SERVING)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := reflectionv1.NewServerReflectionClient(raw).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	list := &reflectionv1.ServerReflectionRequest_ListServices{}
	if err := stream.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: list}); err != nil {
		t.Fatal(err)
	}
	r, err := stream.Recv()
	if err != nil || !strings.Contains(fmt.Sprint(r.GetListServicesResponse()), "larder.v1.LarderService") {
		t.Errorf("reflection: %v, %v", r, err)
	}
}

func TestLimits(t *testing.T) {
	block := make(chan struct{})
	var inside atomic.Int32
	var early, released atomic.Bool
	e := &fake{describe: func(ctx context.Context, name string) (*larderv1.DescribeJobResponse, error) {
		switch name {
		case "wait":
			inside.Add(1)
			<-block
		case "one more":
			early.Store(!released.Load())
		}
		return &larderv1.DescribeJobResponse{}, nil
	}}
	client, raw, _ := serve(t, Config{Engine: e})
	direct := larderv1.NewLarderServiceClient(raw)
	huge := &larderv1.DescribeJobRequest{Name: strings.Repeat("x", maxMessage+1)}
	if _, err := direct.DescribeJob(t.Context(), huge); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a message of %d bytes: %v", proto.Size(huge), err)
	}
	var wg sync.WaitGroup
	for range maxStreams {
		wg.Go(func() {
			if _, err := client.DescribeJob(t.Context(), &larderv1.DescribeJobRequest{Name: "wait"}); err != nil {
				t.Error(err)
			}
		})
	}
	testenv.Eventually(t, "as many calls have begun as may", func() bool { return inside.Load() == maxStreams })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	given := make(chan error, 1)
	go func() {
		_, err := client.DescribeJob(ctx, &larderv1.DescribeJobRequest{Name: "given up"})
		given <- err
	}()
	wg.Go(func() {
		if _, err := client.DescribeJob(t.Context(), &larderv1.DescribeJobRequest{Name: "one more"}); err != nil {
			t.Error(err)
		}
	})
	for range 100 { // time enough for a call that does not wait
		if _, err := direct.DescribeJob(t.Context(), &larderv1.DescribeJobRequest{}); err != nil {
			t.Errorf("another connection: %v", err)
		}
	}
	if cancel(); !errors.Is(<-given, context.Canceled) {
		t.Errorf("stream %d of one connection was not given up", maxStreams+1)
	}
	released.Store(true)
	close(block)
	wg.Wait()
	if early.Load() {
		t.Errorf("a call beyond %d streams did not wait", maxStreams)
	}
}

func TestDialErrors(t *testing.T) {
	dir := t.TempDir()
	dead := filepath.Join(dir, "dead.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dead})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	for target, want := range map[string]string{
		filepath.Join(dir, "none.sock"):           "larder serve",
		"unix:" + filepath.Join(dir, "none.sock"): "no daemon runs at",
		dead:          "no daemon listens",
		"127.0.0.1:1": "no daemon listens",
		"nonsense":    "neither the path",
		"unix:":       "no address",
	} {
		_, _, err := Dial(t.Context(), target)
		if err == nil || !strings.Contains(err.Error(), want) || errs.From(err).Hint == "" ||
			!errs.Is(err, errs.Unavailable) && !errs.Is(err, errs.Invalid) {
			t.Errorf("%s: %v; want %q", target, err, want)
		}
	}
	if os.Getuid() != 0 {
		locked := filepath.Join(dir, "locked")
		if err := os.Mkdir(locked, 0o000); err != nil {
			t.Fatal(err)
		}
		if _, _, err := Dial(t.Context(), filepath.Join(locked, "x.sock")); err == nil ||
			!strings.Contains(err.Error(), "no right to speak") {
			t.Errorf("a folder without rights: %v", err)
		}
	}
	d := &dialer{target: "/x", network: "unix"}
	d.mu.err = &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", errors.Join(os.ErrPermission))}
	if err := d.failure(nil); !strings.Contains(err.Error(), "no right to speak") ||
		!strings.Contains(err.Error(), "run as one of them") {
		t.Errorf("EACCES: %v", err)
	}
}

// A listener that accepts and says nothing makes Dial wait for its context, not forever.
func TestDialSilentPeer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan net.Conn, 8)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				close(accepted)
				return
			}
			accepted <- c
		}
	}()
	ctx, cancel := context.WithCancelCause(t.Context())
	first := make(chan net.Conn, 1)
	go func() {
		first <- <-accepted
		cancel(errors.New("enough"))
	}()
	if _, _, err := Dial(ctx, path); !errs.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("silent peer: %v", err)
	}
	(<-first).Close() // not before: it would not have been silent
	l.Close()
	for c := range accepted {
		c.Close()
	}
}

// Over a real socket: a call, then the daemon dies under the client.
func TestDaemonDies(t *testing.T) {
	path := filepath.Join(t.TempDir(), "l.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := NewServer(Config{Engine: &fake{stats: func(context.Context) (*larderv1.GetStatsResponse, error) {
		return &larderv1.GetStatsResponse{Stats: &larderv1.Stats{Pid: 9}}, nil
	}}})
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	client, closer, err := Dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer closer.Close()
	if r, err := client.GetStats(t.Context(), &larderv1.GetStatsRequest{}); err != nil || r.GetStats().GetPid() != 9 {
		t.Fatalf("%v, %v", r, err)
	}
	w, err := client.WatchStats(t.Context(), &larderv1.WatchStatsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Recv(); err != nil {
		t.Fatal(err)
	}
	s.Stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
	for err == nil {
		_, err = w.Recv()
	}
	if !errs.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), "larder serve") {
		t.Errorf("stream of a dead daemon: %v", err)
	}
	if _, err := client.GetStats(t.Context(), &larderv1.GetStatsRequest{}); !errs.Is(err, errs.Unavailable) ||
		!strings.Contains(err.Error(), "larder serve") {
		t.Errorf("call to a dead daemon: %v", err)
	}
}

// TCP beyond loopback is never spoken in the clear: a plain server sees a TLS hello.
func TestDialTLSBeyondLoopback(t *testing.T) {
	first := make(chan []byte, 1)
	server, conn := net.Pipe()
	go func() {
		b := make([]byte, 5)
		_, _ = server.Read(b)
		first <- b
		server.Close()
	}()
	used := false
	_, closer, err := Dial(t.Context(), "larder.example:7000",
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			if used {
				return nil, errors.New("once")
			}
			used = true
			return conn, nil
		}))
	if err == nil {
		closer.Close()
		t.Error("connected without TLS")
	}
	if b := <-first; b[0] != 0x16 || b[1] != tls.VersionTLS10>>8 {
		t.Errorf("the first bytes were %q", b)
	}
}
