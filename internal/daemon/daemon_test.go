package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"larder/client"
	"larder/internal/clock"
	"larder/internal/config"
	"larder/internal/daemon"
	"larder/internal/errs"
	"larder/internal/testenv"
	larderv1 "larder/proto/larder/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const samples = 12

// home is a folder with a dataset and room for the socket and state of daemons, which follow one another.
type home struct {
	clock   clock.Clock // nil = the real one
	t       *testing.T
	dir     string
	file    atomic.Pointer[string] // what the configuration file holds
	log     strings.Builder
	signals chan os.Signal
}

func newHome(t *testing.T, keys string) *home {
	t.Helper()
	dir, err := os.MkdirTemp("", "ld-") // short: the path of a socket has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	h := &home{t: t, dir: dir, signals: make(chan os.Signal, 2)}
	for i := range samples {
		file := filepath.Join(dir, "photos", "class", fmt.Sprintf("%02d.ppm", i))
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		pixels := strings.Repeat(string(rune('a'+i)), 3*4*4)
		if err := os.WriteFile(file, []byte("P6 4 4 255\n"+pixels), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	h.configure(keys)
	return h
}

// configure rewrites the configuration file.
func (h *home) configure(keys string) {
	text := fmt.Sprintf("socket: %s/s\nsource: {index_dir: %s/index}\nprep: {workers: 1}\n%s", h.dir, h.dir, keys)
	h.file.Store(&text)
}

func (h *home) load(string, []byte) (*config.Config, error) {
	return config.LoadContent("larder.yaml", []byte(*h.file.Load()), nil, nil)
}

// open opens a daemon and serves it; the error of Serve and Close comes from the channel.
func (h *home) open(o daemon.ServeOptions) (*daemon.Daemon, <-chan error) {
	h.t.Helper()
	cfg, err := h.load("", nil)
	if err != nil {
		h.t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(&h.log, nil))
	d, err := daemon.Open(daemon.Options{Config: cfg, Log: log, Level: new(slog.LevelVar), Version: "test",
		Reload: h.load, Clock: h.clock})
	if err != nil {
		h.t.Fatal(err)
	}
	o.Signals = h.signals
	ended := make(chan error, 1)
	go func() { ended <- errors.Join(d.Serve(context.Background(), o), d.Close()) }()
	return d, ended
}

// job attaches a client to a job of its own, which it registers where there is none, and starts epoch 0.
func (h *home) job(name string) (*client.Conn, *client.Stream) {
	h.t.Helper()
	ctx := h.t.Context()
	c, err := client.Dial(ctx, h.dir+"/s")
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = c.Close() })
	spec := &larderv1.JobSpec{
		Name: name, Dataset: "imagefolder:" + h.dir + "/photos", BatchSize: 4, Shuffle: true, Prefetch: 1, Epochs: 2,
		Transform: []*larderv1.Op{{Name: "RandomHorizontalFlip"}},
	}
	if err := c.Call(ctx, "RegisterJob", &larderv1.RegisterJobRequest{Spec: spec},
		new(larderv1.RegisterJobResponse)); err != nil {
		h.t.Fatal(err)
	}
	s, err := c.Attach(ctx, &larderv1.AttachRequest{Job: name, Pid: int32(os.Getpid())})
	if err != nil {
		h.t.Fatal(err)
	}
	if err := s.StartEpoch(ctx, 0); err != nil {
		h.t.Fatal(err)
	}
	return c, s
}

// take reads one batch and returns its rows; 0 at the end of the epoch.
func (h *home) take(s *client.Stream) int {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), time.Minute)
	defer cancel()
	b, err := s.Next(ctx)
	if errors.Is(err, io.EOF) {
		return 0
	}
	if err != nil {
		h.t.Fatal(err)
	}
	defer b.Release()
	return b.Rows
}

func (h *home) until(what string, f func() bool) {
	h.t.Helper()
	testenv.Eventually(h.t, what, f)
}

// total asks a daemon for the memory of its tiers.
func total(t *testing.T, c *client.Conn) uint64 {
	t.Helper()
	var r larderv1.StatusResponse
	if err := c.Call(t.Context(), "Status", &larderv1.StatusRequest{}, &r); err != nil {
		t.Fatal(err)
	}
	return r.GetTiersTotal()
}

// TestLifeOfADaemon: a daemon starts, changes its configuration while an epoch runs, all of it or nothing, and drains
// at a signal: the epoch ends whole, then the client hears of it, and nothing is left behind.
func TestLifeOfADaemon(t *testing.T) {
	h := newHome(t, "state: {dir: none}\ntiers: {total: 16MiB}\nhttp: 127.0.0.1:0\n")
	d, ended := h.open(daemon.ServeOptions{DrainTimeout: time.Minute})
	if d.Socket() != h.dir+"/s" || d.HTTP() == "" || d.GRPC() != "" {
		t.Errorf("it serves %q, %q and %q", d.Socket(), d.HTTP(), d.GRPC())
	}
	c, s := h.job("a")
	got := h.take(s)
	var memory larderv1.GetTiersResponse
	if err := c.Call(t.Context(), "GetTiers", &larderv1.GetTiersRequest{}, &memory); err != nil {
		t.Fatal(err)
	}

	h.configure("state: {dir: none}\ntiers: {total: 8MiB}\nhttp: 127.0.0.1:0\n")
	h.signals <- syscall.SIGHUP
	h.until("the reload", func() bool { return total(t, c) == 8<<20 })

	h.configure("state: {dir: none}\ntiers: {total: 4MiB}\nhttp: 127.0.0.1:0\njobs: {max: 3}\n")
	err := c.Call(t.Context(), "ApplyConfig", &larderv1.ApplyConfigRequest{}, new(larderv1.ApplyConfigResponse))
	if !errs.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), "jobs.max") || total(t, c) != 8<<20 {
		t.Errorf("what needs a restart: %v, tiers.total is %d", err, total(t, c))
	}

	h.signals <- syscall.SIGTERM
	h.until("the announcement of the drain", func() bool { return c.Draining() != nil })
	for n := h.take(s); n > 0; n = h.take(s) {
		got += n
	}
	if got != samples || s.End() == nil {
		t.Errorf("%d of %d samples came, end %v", got, samples, s.End())
	}
	if err := s.StartEpoch(t.Context(), 1); err == nil {
		t.Error("a daemon that drains began an epoch")
	}
	if err := <-ended; err != nil {
		t.Errorf("serve and close: %v\n%s", err, h.log.String())
	}
	if err := d.Close(); err != nil {
		t.Errorf("a second Close: %v", err)
	}
	if _, err := os.Lstat(h.dir + "/s"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket: %v", err)
	}
	pages := memory.GetSplit().GetPages()
	if !strings.Contains(pages, " pages: ") || !strings.Contains(h.log.String(), pages) {
		t.Errorf("the daemon says %q of the pages of its tiers, and the log:\n%s", pages, h.log.String())
	}
}

// TestJobsOutliveTheDaemon: with a state directory a signal ends the daemon at once, in the middle of an epoch, and the
// next one on that directory has the job.
func TestJobsOutliveTheDaemon(t *testing.T) {
	h := newHome(t, "")
	h.configure("state: {dir: " + h.dir + "/state}\n")
	_, ended := h.open(daemon.ServeOptions{DrainTimeout: time.Minute})
	c, s := h.job("a")
	h.take(s)
	h.signals <- syscall.SIGTERM
	if err := <-ended; err != nil {
		t.Fatalf("%v\n%s", err, h.log.String())
	}
	_ = c.Close()

	_, ended = h.open(daemon.ServeOptions{})
	c, err := client.Dial(t.Context(), h.dir+"/s")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var r larderv1.ListJobsResponse
	if err := c.Call(t.Context(), "ListJobs", &larderv1.ListJobsRequest{}, &r); err != nil {
		t.Fatal(err)
	}
	if len(r.GetJobs()) != 1 || r.GetJobs()[0].GetSpec().GetName() != "a" {
		t.Errorf("after the restart there are %v", r.GetJobs())
	}
	var stop larderv1.StopResponse
	// The daemon's farewell to all its clients may come before the answer to this one. Both say that it stops.
	err = c.Call(t.Context(), "Stop", &larderv1.StopRequest{By: "test", Force: true}, &stop)
	if err != nil && !strings.Contains(err.Error(), "was stopped by test") || err == nil && !stop.GetStopping() {
		t.Errorf("stop: %v, %v", &stop, err)
	}
	if err := <-ended; err != nil {
		t.Errorf("%v\n%s", err, h.log.String())
	}
}

// TestPrivateDaemon: a daemon that belongs to a program is not stopped or changed by others.
func TestPrivateDaemon(t *testing.T) {
	h := newHome(t, "state: {dir: none}\n")
	cfg, err := h.load("", nil)
	if err != nil {
		t.Fatal(err)
	}
	d, err := daemon.Open(daemon.Options{Config: cfg, Log: slog.New(slog.DiscardHandler), Level: new(slog.LevelVar),
		Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.Dial(t.Context(), d.Socket())
	if err != nil {
		t.Fatal(err)
	}
	err = c.Call(t.Context(), "Stop", &larderv1.StopRequest{Force: true}, new(larderv1.StopResponse))
	if !errs.Is(err, errs.Unsupported) {
		t.Errorf("stop: %v", err)
	}
	err = c.Call(t.Context(), "ApplyConfig", &larderv1.ApplyConfigRequest{}, new(larderv1.ApplyConfigResponse))
	if !errs.Is(err, errs.Unsupported) {
		t.Errorf("config apply: %v", err)
	}
	if err := errors.Join(c.Close(), d.Close()); err != nil {
		t.Error(err)
	}
}

// A daemon that has no program that decodes, or one that does not start, refuses prep.isolation process and leaves
// nothing behind.
func TestIsolationIsRefused(t *testing.T) {
	for _, command := range [][]string{nil, {"/nonexistent/larder", "decode-images"}} {
		h := newHome(t, "state: {dir: none}\n")
		isolated := map[string]string{"prep.isolation": "process"}
		cfg, err := config.LoadContent("larder.yaml", []byte(*h.file.Load()), nil, isolated)
		if err != nil {
			t.Fatal(err)
		}
		_, err = daemon.Open(daemon.Options{Config: cfg, Log: slog.New(slog.DiscardHandler), Level: new(slog.LevelVar),
			Version: "test", Decode: command})
		if !errs.Is(err, errs.ConfigInvalid) || !strings.Contains(err.Error(), "prep.isolation") {
			t.Errorf("%q: %v", command, err)
		}
	}
}
