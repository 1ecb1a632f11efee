package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"larder/client"
	"larder/internal/errs"
	"larder/internal/session"
	"larder/internal/session/sessiontest"
	"larder/internal/shm"
	"larder/internal/testenv"
	larderv1 "larder/proto/larder/v1"
)

func TestMain(m *testing.M) {
	if os.Getenv("LARDER_TEST_CHILD") != "" {
		child()
	}
	goleak.VerifyTestMain(m)
}

// daemon serves an engine on a socket of its own until the test ends, and checks that nothing stays behind.
type daemon struct {
	*session.Server
	t      testing.TB
	socket string
	engine *sessiontest.Engine
}

func start(t testing.TB, jobs map[string]sessiontest.Job) *daemon {
	t.Helper()
	return serve(t, jobs, service{})
}

func serve(t testing.TB, jobs map[string]sessiontest.Job, as service) *daemon {
	t.Helper()
	fds, segs := openFDs(t), segments()
	dir, err := os.MkdirTemp("", "larder-test")
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{t: t, socket: filepath.Join(dir, "s"), engine: sessiontest.New(jobs)}
	d.Server = session.NewServer(session.Config{Engine: d.engine, Service: as})
	l, err := session.Listen(d.socket)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- d.Serve(l) }()
	t.Cleanup(func() {
		if err := errors.Join(d.Close(), <-done); err != nil {
			t.Error(err)
		}
		if v := d.engine.Counts(); len(v.Violations) > 0 || v.Held > 0 {
			t.Errorf("after the end: %+v", v)
		}
		if left, _ := os.ReadDir(dir); len(left) > 0 {
			t.Errorf("files left: %v", left)
		}
		_ = os.RemoveAll(dir)
		if n := segments(); n != segs {
			t.Errorf("%d segments before, %d after", segs, n)
		}
		if n := openFDs(t); n > fds {
			t.Errorf("%d descriptors before, %d after", fds, n)
		}
	})
	return d
}

func segments() int { n, _ := shm.Live(); return n }

// openFDs does not count what the runtime opens once for its poller.
func openFDs(t testing.TB) int {
	ents, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, e := range ents {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && !strings.HasPrefix(to, "anon_inode:[event") {
			n++
		}
	}
	return n
}

func (d *daemon) dial() *client.Conn {
	d.t.Helper()
	c, err := client.Dial(d.t.Context(), d.socket)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { _ = c.Close() })
	return c
}

func (d *daemon) attach(job string, rank uint32) *client.Stream {
	d.t.Helper()
	s, err := d.dial().Attach(d.t.Context(), &larderv1.AttachRequest{Job: job, Rank: rank})
	if err != nil {
		d.t.Fatal(err)
	}
	return s
}

// check compares a batch with what the engine must have written.
func check(j sessiontest.Job, job string, b *client.Batch) error {
	ids, labels := b.Index(), b.Label()
	if len(ids) != b.Rows || len(labels) != b.Rows {
		return fmt.Errorf("%d ids and %d labels for %d rows", len(ids), len(labels), b.Rows)
	}
	for row := range b.Rows {
		v := sessiontest.Value(job, b.Rank, b.Epoch, b.Step, row)
		if ids[row] != v || labels[row] != v&127 {
			return fmt.Errorf("epoch %d step %d row %d: id %d label %d, want %d %d", b.Epoch, b.Step, row, ids[row], labels[row],
				v, v&127)
		}
		pix, h, w, c := b.Image(row)
		wantH, wantW := j.Size(v)
		if h != wantH || w != wantW || c != 3 || len(pix) != 3*h*w {
			return fmt.Errorf("epoch %d step %d row %d: %dx%dx%d, %d bytes, want %dx%d", b.Epoch, b.Step, row, h, w, c, len(pix),
				wantH, wantW)
		}
		for _, p := range pix {
			if p != byte(v) {
				return fmt.Errorf("epoch %d step %d row %d: pixel %d, want %d", b.Epoch, b.Step, row, p, byte(v))
			}
		}
	}
	return nil
}

// epoch reads an epoch to its end, holding up to hold batches at a time.
func epoch(ctx context.Context, s *client.Stream, j sessiontest.Job, job string, e uint32, hold int) error {
	if err := s.StartEpoch(ctx, e); err != nil {
		return err
	}
	var held []*client.Batch
	for step := uint32(0); ; step++ {
		b, err := s.Next(ctx)
		if errors.Is(err, io.EOF) {
			for _, b := range held {
				if err := check(j, job, b); err != nil {
					return fmt.Errorf("held batch changed: %w", err)
				}
				b.Release()
			}
			if end := s.End(); end.GetEpoch() != e || end.GetBatches() != uint64(step) {
				return fmt.Errorf("after %d batches of epoch %d: %v", step, e, end)
			}
			return nil
		}
		if err != nil {
			return err
		}
		if b.Epoch != e || b.Step != step {
			return fmt.Errorf("epoch %d step %d, want %d %d", b.Epoch, b.Step, e, step)
		}
		if err := check(j, job, b); err != nil {
			return err
		}
		if held = append(held, b); len(held) > hold {
			if err := check(j, job, held[0]); err != nil {
				return fmt.Errorf("held batch changed: %w", err)
			}
			held[0].Release()
			held[0].Release() // twice is fine
			if held[0].Index() != nil {
				return errors.New("a released batch shows memory")
			}
			held = held[1:]
		}
	}
}

func TestHandOver(t *testing.T) {
	for name, j := range map[string]sessiontest.Job{
		"fixed":  {Batches: 50, Epochs: 3},
		"ragged": {Batches: 50, Epochs: 3, Ragged: true, Rows: 5},
		"report": {Batches: 11, Epochs: 3, Report: true},
	} {
		t.Run(name, func(t *testing.T) {
			d := start(t, map[string]sessiontest.Job{"a": j})
			s := d.attach("a", 0)
			for e := range uint32(3) {
				if err := epoch(t.Context(), s, j, "a", e, 2); err != nil {
					t.Fatal(err)
				}
				if s.End().GetFinal() != (e == 2) {
					t.Errorf("end of epoch %d: %v", e, s.End())
				}
				if _, err := s.Next(t.Context()); !errors.Is(err, io.EOF) {
					t.Errorf("Next after the end: %v", err)
				}
			}
			if err := s.StartEpoch(t.Context(), 3); !errs.Is(err, errs.JobEnded) {
				t.Errorf("one epoch too many: %v", err)
			}
			if err := s.Detach(t.Context()); err != nil {
				t.Error(err)
			}
			if n := d.engine.Counts(); n.Clean != 1 || n.Torn != 0 || n.Stale != 0 {
				t.Errorf("%+v", n)
			}
		})
	}
}

// TestWaitedIsTold: the daemon adds up what the client measured, in whole microseconds per batch. How much that is
// belongs to the machine: a client that is scheduled late never waits.
func TestWaitedIsTold(t *testing.T) {
	d := start(t, map[string]sessiontest.Job{"a": {Batches: 50}})
	s := d.attach("a", 0)
	if err := s.StartEpoch(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	var want time.Duration
	for range 50 {
		b, err := s.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		want += b.Waited().Truncate(time.Microsecond)
		b.Release()
	}
	if err := s.Detach(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := d.engine.Counts(); n.Waited != want {
		t.Errorf("the daemon counts %v, the client waited %v", n.Waited, want)
	}
}

func TestReport(t *testing.T) {
	d := start(t, map[string]sessiontest.Job{"a": {Report: true}})
	s := d.attach("a", 0)
	if err := s.StartEpoch(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	for step := range 6 {
		b, err := s.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		r := b.Report()
		if (len(r) == 1) != (step%2 == 1) {
			t.Fatalf("step %d: report %v", step, r)
		}
		if len(r) == 1 && (r[0].GetId() != uint64(step) || r[0].GetPath() != "bad\uFFFD.jpg" ||
			r[0].GetReason() != "truncated") {
			t.Errorf("step %d: report %v", step, r)
		}
		b.Release()
	}
}

// TestAbandon: a break is free, and no batch of an abandoned epoch is seen afterwards.
func TestAbandon(t *testing.T) {
	j := sessiontest.Job{Batches: 40}
	d := start(t, map[string]sessiontest.Job{"a": j})
	s := d.attach("a", 0)
	if _, err := s.Next(t.Context()); !errs.Is(err, errs.Invalid) {
		t.Errorf("Next before StartEpoch: %v", err)
	}
	for e := range uint32(20) {
		if err := s.StartEpoch(t.Context(), 2*e); err != nil {
			t.Fatal(err)
		}
		for range e % 4 {
			b, err := s.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if b.Epoch != 2*e {
				t.Fatalf("a batch of epoch %d in epoch %d", b.Epoch, 2*e)
			}
			b.Release()
		}
	}
	if err := epoch(t.Context(), s, j, "a", 50, 0); err != nil {
		t.Fatal(err)
	}
	if err := s.StartEpoch(t.Context(), 50); !errs.Is(err, errs.Invalid) {
		t.Errorf("the same epoch again: %v", err)
	}
	if err := s.Detach(t.Context()); err != nil {
		t.Error(err)
	}
	if n := d.engine.Counts(); n.Stale != 0 {
		t.Errorf("%d stale releases", n.Stale)
	}
}

// TestEpochsOnlyGoUp: over sessions too. The error says which epoch is free, and the attachment continues as it was.
func TestEpochsOnlyGoUp(t *testing.T) {
	j := sessiontest.Job{Next: 5}
	d := start(t, map[string]sessiontest.Job{"a": j})
	s := d.attach("a", 0)
	for _, e := range []uint32{0, 4} {
		err := s.StartEpoch(t.Context(), e)
		if !errs.Is(err, errs.Invalid) || !strings.Contains(err.Error(), "job a") ||
			!strings.Contains(err.Error(), "epoch 5") {
			t.Errorf("epoch %d: %v", e, err)
		}
	}
	if err := s.StartEpoch(t.Context(), 5); err != nil {
		t.Fatal(err)
	}
	b, err := s.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range []uint32{0, 5} {
		if err := s.StartEpoch(t.Context(), e); !errs.Is(err, errs.Invalid) || !strings.Contains(err.Error(), "epoch 6") {
			t.Errorf("epoch %d after 5: %v", e, err)
		}
	}
	b.Release()
	for step := uint32(1); ; step++ { // the refusals took nothing from the epoch that runs
		b, err := s.Next(t.Context())
		if errors.Is(err, io.EOF) {
			if end := s.End(); end.GetEpoch() != 5 || end.GetBatches() != uint64(step) {
				t.Errorf("after %d batches: %v", step, end)
			}
			break
		}
		if err != nil || b.Epoch != 5 || b.Step != step {
			t.Fatalf("step %d: %+v, %v", step, b, err)
		}
		b.Release()
	}
}

func TestErrors(t *testing.T) {
	ends := testenv.NewDeadline(t.Context())
	d := serve(t, map[string]sessiontest.Job{"a": {}}, service{listing: ends.Pass})
	c := d.dial()
	if h := c.Hello(); h.GetVersion() != "test" || h.GetAbi() != session.ABI || h.GetPid() != int32(os.Getpid()) {
		t.Errorf("hello: %v", h)
	}
	stats := new(larderv1.GetStatsResponse)
	if err := c.Call(t.Context(), "GetStats", &larderv1.GetStatsRequest{Job: "x"}, stats); err != nil ||
		stats.GetStats().GetVersion() != "vx" {
		t.Errorf("GetStats: %v, %v", stats, err)
	}
	err := c.Call(t.Context(), "RegisterJob", &larderv1.RegisterJobRequest{}, new(larderv1.RegisterJobResponse))
	var f *errs.Error
	if !errors.As(err, &f) || f.Reason != errs.SubsetEmpty || f.Subject != "label < 0" || f.Message != "selects nothing" ||
		f.Hint != "try label < 6" || f.RetryAfter != time.Second {
		t.Errorf("an error on its way: %#v", err)
	}
	for method, want := range map[string]errs.Reason{"WatchStats": errs.Unsupported, "Nonsense": errs.Unsupported,
		"KillJob": errs.Unsupported} {
		if err := c.Call(t.Context(), method, &larderv1.GetStatsRequest{}, stats); !errs.Is(err, want) {
			t.Errorf("%s: %v", method, err)
		}
	}
	if err := c.Call(ends, "ListJobs", &larderv1.ListJobsRequest{}, new(larderv1.ListJobsResponse)); !errors.Is(err,
		context.DeadlineExceeded) {
		t.Errorf("a call that takes too long: %v", err)
	}
	if _, err := c.Attach(t.Context(), &larderv1.AttachRequest{Job: "none"}); !errs.Is(err, errs.NotFound) {
		t.Errorf("attach to nothing: %v", err)
	}
	s, err := c.Attach(t.Context(), &larderv1.AttachRequest{Job: "a"})
	if err != nil {
		t.Fatalf("attach after a refused one: %v", err)
	}
	if _, err := c.Attach(t.Context(), &larderv1.AttachRequest{Job: "a", Rank: 1}); !errs.Is(err, errs.Invalid) {
		t.Errorf("a second attachment: %v", err)
	}
	if _, err := d.dial().Attach(t.Context(), &larderv1.AttachRequest{Job: "a"}); !errs.Is(err, errs.RankHeld) {
		t.Errorf("a rank that is held: %v", err)
	}
	d.engine.Gone("a", 0, errs.New(errs.JobEnded, "a", "", "killed by a test"))
	if err := epoch(t.Context(), s, sessiontest.Job{}, "a", 0, 0); !errs.Is(err, errs.JobEnded) {
		t.Errorf("after GONE: %v", err)
	}
	if err := c.Call(t.Context(), "GetStats", &larderv1.GetStatsRequest{}, stats); err != nil {
		t.Errorf("a call after GONE: %v", err)
	}
}

func TestNoDaemon(t *testing.T) {
	dir := t.TempDir()
	_, err := client.Dial(t.Context(), filepath.Join(dir, "none"))
	if !errs.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), "larder serve") {
		t.Errorf("nothing there: %v", err)
	}
	dead := filepath.Join(dir, "dead")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dead, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	if _, err := client.Dial(t.Context(), dead); !errs.Is(err, errs.Unavailable) {
		t.Errorf("a dead socket: %v", err)
	}
	if _, err := client.Dial(t.Context(), "/"+strings.Repeat("x", 200)); !errs.Is(err, errs.Invalid) {
		t.Errorf("a long path: %v", err)
	}
	// A process listens and never answers.
	l, err = net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "mute"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ends, heard := testenv.NewDeadline(t.Context()), make(chan error, 1)
	go func() {
		defer ends.Pass()
		c, err := l.Accept()
		if err == nil {
			_, err = c.Read(make([]byte, 1))
			defer c.Close()
		}
		heard <- err
	}()
	if _, err := client.Dial(ends, l.Addr().String()); !errs.Is(err, errs.Unavailable) {
		t.Errorf("a mute daemon: %v", err)
	}
	if err := <-heard; err != nil {
		t.Errorf("the mute daemon was told nothing: %v", err)
	}
}

// TestDaemonDeath: every waiting call fails at once; batches that the client holds stay readable.
func TestDaemonDeath(t *testing.T) {
	j := sessiontest.Job{Batches: 100}
	d := start(t, map[string]sessiontest.Job{"a": j})
	s := d.attach("a", 0)
	if err := s.StartEpoch(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	var held []*client.Batch
	for range 4 { // all slots: the next one cannot come
		b, err := s.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, b)
	}
	other := d.dial()
	problems := make(chan error, 2)
	go func() { _, err := s.Next(t.Context()); problems <- err }()
	go func() {
		problems <- other.Call(t.Context(), "ListJobs", &larderv1.ListJobsRequest{}, new(larderv1.ListJobsResponse))
	}()
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := <-problems; !errs.Is(err, errs.Unavailable) {
			t.Errorf("after the daemon's death: %v", err)
		}
	}
	if err := other.Call(t.Context(), "GetStats", &larderv1.GetStatsRequest{},
		new(larderv1.GetStatsResponse)); !errs.Is(err, errs.Unavailable) {
		t.Errorf("a call to a dead daemon: %v", err)
	}
	for _, b := range held {
		if err := check(j, "a", b); err != nil {
			t.Error(err)
		}
		b.Release()
	}
}

// TestDrain: the running epoch is finished, then Shutdown returns; nothing new begins.
func TestDrain(t *testing.T) {
	j := sessiontest.Job{Batches: 30}
	d := start(t, map[string]sessiontest.Job{"a": j, "b": j})
	s := d.attach("a", 0)
	idle := d.dial()
	if err := s.StartEpoch(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- d.Shutdown(t.Context()) }()
	for idle.Call(t.Context(), "GetStats", &larderv1.GetStatsRequest{}, new(larderv1.GetStatsResponse)) == nil {
		// until the idle session has ended
	}
	if err := idle.Draining(); !errs.Is(err, errs.Unavailable) {
		t.Errorf("DRAIN: %v", err)
	}
	if _, err := client.Dial(t.Context(), d.socket); !errs.Is(err, errs.Unavailable) {
		t.Errorf("a new session while draining: %v", err)
	}
	for step := range uint32(30) {
		b, err := s.Next(t.Context())
		if err != nil || b.Step != step || check(j, "a", b) != nil {
			t.Fatalf("step %d: %v", step, err)
		}
		b.Release()
	}
	if _, err := s.Next(t.Context()); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	select {
	case err := <-done:
		t.Fatalf("Shutdown did not wait: %v", err)
	default:
	}
	d.engine.Gone("a", 0, errs.New(errs.Unavailable, "daemon", "", "stopping"))
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := s.StartEpoch(t.Context(), 1); !errs.Is(err, errs.Unavailable) {
		t.Errorf("an epoch after the drain: %v", err)
	}
}

func TestDrainGivesUp(t *testing.T) {
	d := start(t, map[string]sessiontest.Job{"a": {}})
	d.attach("a", 0)
	if err := d.Shutdown(testenv.DeadlineOnWait(t.Context())); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Shutdown with a client attached: %v", err)
	}
}

// TestManySessions: sessions at once, each correct, with slow and dying ones among them.
func TestManySessions(t *testing.T) {
	jobs := map[string]sessiontest.Job{"fixed": {Batches: 12}, "ragged": {Batches: 12, Ragged: true},
		"stuck": {Batches: 1000}}
	d := start(t, jobs)
	for i := range uint32(4) { // start an epoch and never read
		if err := d.attach("stuck", i).StartEpoch(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	for i := range uint32(60) {
		wg.Go(func() {
			name := []string{"fixed", "ragged"}[i%2]
			c, err := client.Dial(t.Context(), d.socket)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			s, err := c.Attach(t.Context(), &larderv1.AttachRequest{Job: name, Rank: i})
			if err != nil {
				t.Error(err)
				return
			}
			for e := range uint32(3) {
				if i%5 == 4 && e == 2 {
					if err := s.StartEpoch(t.Context(), e); err != nil {
						t.Error(err)
					}
					return // dies with batches under way
				}
				if err := epoch(t.Context(), s, jobs[name], name, e, int(i%4)); err != nil {
					t.Errorf("%s/%d epoch %d: %v", name, i, e, err)
					return
				}
			}
			if err := s.Detach(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	d.await(func(n sessiontest.Counts) bool { return n.Clean == 48 && n.Torn == 12 && n.Held == 4 })
	if n := d.engine.Counts(); n.Stale != 0 {
		t.Errorf("%d stale releases", n.Stale)
	}
}

// await waits until the engine has seen something.
func (d *daemon) await(ok func(sessiontest.Counts) bool) {
	d.t.Helper()
	defer func() {
		if d.t.Failed() {
			d.t.Logf("the engine has seen %+v", d.engine.Counts())
		}
	}()
	testenv.Eventually(d.t, "what the engine is to see", func() bool { return ok(d.engine.Counts()) })
}
