package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"

	"larder/internal/config"
	"larder/internal/engine"
	"larder/internal/errs"
	"larder/internal/gpu"
	"larder/internal/journal"
	"larder/internal/prep"
	"larder/internal/rpc"
	"larder/internal/session"
	"larder/internal/shm"
	"larder/internal/source"
	"larder/internal/telemetry"
	"larder/internal/units"
	larderv1 "larder/proto/larder/v1"
	"larder/tiers"
)

// daemon is everything between the sockets and the engine.
//
//	listener ─ Mux ─┬─ gRPC ────┐
//	                └─ sessions ┴─ Engine ─ catalogue, tiers, journal, GPUs
//	TCP ── gRPC ────────────────┘    │
//	HTTP ── metrics ─────────────────┘
//
// open builds it from the bottom up; close takes it down from the top: clients first, so that nobody waits for an answer
// that will not come, what the engine uses last.
type daemon struct {
	changing sync.Mutex // holds cfg
	cfg      *config.Config
	load     func(file string, content []byte) (*config.Config, error) // reads the configuration again, or what is given
	resolved config.Resolved
	log      *slog.Logger
	level    *slog.LevelVar
	logPath  string // "" = standard error

	listener *session.Listener
	tcp      net.Listener
	catalog  *source.Catalog
	store    *tiers.Store
	journal  journal.Log
	found    *journal.State // what it held; nil = nothing
	decoding *journal.Decoding
	stateDir string // of journal; "" = it is memory
	seed     uint64
	gpu      gpu.Probe
	engine   *engine.Engine
	evictors []func() // what ends them
	sessions *session.Server
	rpc      []*grpc.Server
	health   *health.Server
	http     *telemetry.HTTPServer

	listeners atomic.Pointer[[]*larderv1.Listener] // what is open, once all is

	sessionHalf, grpcHalf net.Listener

	group     *errgroup.Group
	stop      context.CancelFunc // ends the engine
	gone      chan struct{}      // closed when streams should end
	goneOnce  sync.Once
	broken    <-chan struct{} // closed when a part failed
	draining  atomic.Bool
	ending    chan ending   // what larder stop asks of serve; nil = another program's daemon
	over      chan struct{} // closed when nobody reads ending any more
	marking   sync.Mutex    // held while the mark of a stop is written
	lastError *atomic.Pointer[loggedError]
	closeOnce sync.Once
	closeErr  error
}

// openDaemon starts a daemon that serves cfg.Socket. On an error nothing is left behind.
func openDaemon(cfg *config.Config, log *slog.Logger, level *slog.LevelVar) (*daemon, error) {
	return openReloadable(cfg, log, level, nil)
}

// openReloadable is openDaemon with a way to read the configuration again; nil = there is none.
func openReloadable(cfg *config.Config, log *slog.Logger, level *slog.LevelVar, load func(string, []byte) (*config.Config, error)) (*daemon, error) {
	resolved, err := cfg.Resolve(config.DetectMachine())
	if err != nil {
		return nil, err
	}
	log, lastError := remembering(log)
	d := &daemon{cfg: cfg, resolved: resolved, log: log, lastError: lastError, level: level, load: load, gone: make(chan struct{}), health: health.NewServer()}
	if path, err := filepath.Abs(cfg.Log.File); err == nil && cfg.Log.File != "" {
		d.logPath = path
	}
	if load != nil {
		d.ending, d.over = make(chan ending), make(chan struct{})
	}
	err = d.open()
	if err == nil {
		err = d.listener.Unmark()
	}
	if err != nil {
		if cerr := d.close(); cerr != nil {
			log.Error("close what was opened", "error", cerr)
		}
		return nil, err
	}
	return d, nil
}

func (d *daemon) open() (err error) {
	cfg, log, r := d.cfg, d.log, d.resolved
	path := cfg.Socket
	if path == "" {
		path = session.DefaultSocket()
	}
	group, err := socketGroup(cfg.SocketGroup)
	if err != nil {
		return err
	}
	if d.listener, err = session.ListenGroup(path, group); err != nil {
		return err
	}
	var creds credentials.TransportCredentials
	var tokens *rpc.Tokens
	if cfg.GRPC.Listen != "" {
		if creds, tokens, err = tcpAccess(cfg.GRPC, log); err != nil {
			return err
		}
		if d.tcp, err = net.Listen("tcp", cfg.GRPC.Listen); err != nil {
			return errs.Wrap(err, errs.ConfigInvalid, "grpc.listen", "choose a free address of this machine", "listen for gRPC on %s", cfg.GRPC.Listen)
		}
	}
	if err := d.openEngine(); err != nil {
		return err
	}
	d.sessions = session.NewServer(session.Config{Engine: d.engine, Service: rpc.Service(d.engine, log), Log: log, Group: group})
	d.rpc = append(d.rpc, rpc.NewServer(rpc.Config{Engine: d.engine, Log: log, Health: d.health, Done: d.gone, Creds: rpc.PeerCreds()}))
	if d.tcp != nil {
		d.rpc = append(d.rpc, rpc.NewServer(rpc.Config{Engine: d.engine, Log: log, Health: d.health, Done: d.gone, Creds: creds, Tokens: tokens}))
	}
	d.serve(session.Allow(group))
	if cfg.HTTP != "" {
		d.http, err = telemetry.ListenHTTP(cfg.HTTP, telemetry.HTTPConfig{Stats: d.stats, Ready: d.ready, Version: version, Log: log})
		if err != nil {
			return err
		}
	}
	d.listeners.Store(d.opened())
	for _, w := range r.Warnings() {
		log.Warn("a size of the configuration makes no sense", "what", w)
	}
	for _, w := range policyWarnings(cfg.Tiers) {
		log.Warn("a cache policy breaks a promise", "policy", w, "fix", "choose need, or read docs/policies.md and accept it")
	}
	log.Info("configuration", "memory_limit", units.Size(r.Memory), "tiers_total", units.Size(r.Total),
		"encoded", cfg.Tiers.Encoded.String(), "decoded", cfg.Tiers.Decoded.String(), "augmented", cfg.Tiers.Augmented.String(),
		"rings", units.Size(r.MaxRing), "workers", r.Workers, "decoder", prep.DecoderName(), "parity", prep.Parity(), "gpu", d.gpu.Status())
	return nil
}

func (d *daemon) openEngine() error {
	cfg, r := d.cfg, d.resolved
	if os.Getenv("GOMEMLIMIT") == "" { // tiers and rings are no memory of the Go runtime
		debug.SetMemoryLimit(r.Own)
	}
	var err error
	if d.catalog, err = source.OpenCatalog(source.CatalogConfig{IndexDir: r.IndexDir, StorageLimit: r.StorageLimit, StorageIOPS: r.StorageIOPS, MaxObject: r.MaxMemory, Logger: d.log}); err != nil {
		return err
	}
	if d.store, err = tiers.Open(tiers.Config{VerifyEvery: cfg.Tiers.VerifyEvery}); err != nil {
		return err
	}
	if err := d.openState(); err != nil {
		return err
	}
	d.gpu = gpu.Open()
	first := d.settings(cfg, r)
	d.engine, err = engine.New(engine.Config{
		Version: version, Catalog: d.catalog, Store: d.store, Journal: d.journal, Found: d.found, GPU: d.gpu, Log: d.log,
		Workers: r.Workers, Limits: imageLimits(cfg.Prep, r), SkipCorrupt: cfg.Prep.OnCorrupt == "skip",
		Tiers: first.Tiers, TierSetting: first.TierSetting, MaxRing: first.MaxRing, Strata: first.Strata, ApplyConfig: d.applyConfig,
		Stop: d.askStop, Status: d.status,
		ParseSize: func(s string, total int64) (int64, bool, error) {
			v, err := config.ParseSize(s)
			if total < 0 {
				total = r.Machine
			}
			return v.Of(total), v.IsAuto(), err
		},
		MemoryLimit: r.Memory, Own: r.Own, Lease: cfg.Jobs.Lease, MaxJobs: cfg.Jobs.Max, IdleTimeout: cfg.Jobs.IdleTimeout, Seed: d.seed,
		Evictor: d.newEvictor, Decoding: d.decoding, Trial: tryCommand,
		Listeners: func() []*larderv1.Listener {
			if l := d.listeners.Load(); l != nil {
				return *l
			}
			return nil
		},
	})
	if os.Getenv("GOMAXPROCS") == "" {
		// Workers are in C most of the time. With one place more than they take, what waits in the kernel (the journal's sync above all) keeps none of
		// them from its work, and the runtime has no need to look every 20 microseconds whom it could take a place away from.
		runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), r.Workers+1))
	}
	return err
}

func imageLimits(p config.Prep, r config.Resolved) prep.Limits {
	l := prep.Limits{MaxPixels: p.MaxPixels, MaxScans: p.MaxScans, MaxBytes: r.MaxMemory, Timeout: p.DecodeTimeout, RefuseCorrupt: p.OnCorrupt != "accept"}
	if l.Timeout == 0 {
		l.Timeout = -1
	}
	return l
}

// serve starts every part. The first that fails makes broken close.
func (d *daemon) serve(allow func(shm.Peer) bool) {
	ctx, stop := context.WithCancel(context.Background())
	d.stop = stop
	var gctx context.Context
	d.group, gctx = errgroup.WithContext(ctx)
	d.broken = gctx.Done()
	d.grpcHalf, d.sessionHalf = session.MuxFor(d.listener.Door(), allow)
	part := func(name string, f func() error) {
		d.group.Go(func() error {
			err := f()
			if err != nil && d.draining.Load() { // it was closed before it had begun, say: "larder run -- true"
				d.log.Debug("a part of the daemon ended", "part", name, "error", err)
				return nil
			}
			if err != nil && !errors.Is(err, net.ErrClosed) {
				d.log.Error("a part of the daemon failed", "part", name, "error", err)
				return fmt.Errorf("%s: %w", name, err)
			}
			return nil
		})
	}
	part("engine", func() error {
		if err := d.engine.Run(ctx); err != nil {
			return err
		}
		if ctx.Err() == nil {
			return errors.New("it ended by itself")
		}
		return nil
	})
	part("sessions", func() error { return d.sessions.Serve(d.sessionHalf) })
	part("gRPC", func() error { return d.rpc[0].Serve(d.grpcHalf) })
	if d.tcp != nil {
		part("gRPC over TCP", func() error { return d.rpc[1].Serve(d.tcp) })
	}
}

// stats is what HTTP shows; nil when the engine does not answer.
func (d *daemon) stats() *larderv1.Stats {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	r, err := d.engine.GetStats(ctx, &larderv1.GetStatsRequest{})
	if err != nil {
		d.log.Debug("no counters", "error", err)
		return nil
	}
	return r.GetStats()
}

func (d *daemon) ready() error {
	if d.draining.Load() {
		return errors.New("the daemon is stopping")
	}
	if err := d.journal.Room(); err != nil {
		return err
	}
	select {
	case <-d.broken:
		return errors.New("a part of the daemon failed")
	default:
		return nil
	}
}

// httpAddr is where HTTP listens, "" when it is off.
func (d *daemon) httpAddr() string {
	if d.http == nil {
		return ""
	}
	return d.http.Addr()
}

// drain stops taking work and waits until every client has left, or ctx ends. It does not close anything.
func (d *daemon) drain(ctx context.Context) error {
	if d.draining.Swap(true) {
		return nil
	}
	d.health.Shutdown()
	drained := make(chan error, 1)
	go func() { drained <- d.engine.Drain(ctx) }()
	err := d.sessions.Shutdown(ctx) // tells the clients
	return errors.Join(err, <-drained)
}

// durable tells whether jobs survive the daemon.
func (d *daemon) durable() bool {
	_, ok := d.journal.(*journal.Disk)
	return ok
}

// leave is a stop that the jobs outlive: for clients and the journal it is as if the daemon had died, close comes next.
func (d *daemon) leave() {
	d.draining.Store(true)
	d.health.Shutdown()
	d.engine.Leave()
}

// close ends everything at once. Twice is fine.
func (d *daemon) close() error {
	d.closeOnce.Do(func() {
		d.draining.Store(true)
		var problems []error
		d.goneOnce.Do(func() { close(d.gone) })
		if d.sessions != nil {
			problems = append(problems, d.sessions.Close())
		}
		for _, s := range d.rpc {
			stopGracefully(s, time.Second)
		}
		if d.http != nil {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			if err := d.http.Close(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
				problems = append(problems, err)
			}
			cancel()
		}
		if d.stop != nil {
			d.stop()
			problems = append(problems, d.group.Wait())
			_ = d.grpcHalf.Close()
			_ = d.sessionHalf.Close()
		}
		if d.tcp != nil {
			_ = d.tcp.Close() // closed already by its server, when there was one
		}
		problems = append(problems, d.decoding.Close())
		if d.journal != nil {
			problems = append(problems, d.journal.Close())
		}
		for _, end := range d.evictors { // the engine is gone
			end()
		}
		if d.store != nil {
			problems = append(problems, d.store.Close())
		}
		if d.catalog != nil {
			if n, waited := d.catalog.Throttled(); n > 0 {
				d.log.Info("reads waited for the storage limit", "reads", n, "waited", waited)
			}
			problems = append(problems, d.catalog.Close())
		}
		if d.gpu != nil {
			if err := d.gpu.Close(); err != nil {
				d.log.Debug("close NVML", "error", err)
			}
		}
		if d.listener != nil {
			problems = append(problems, d.listener.Close())
		}
		d.closeErr = errors.Join(problems...)
	})
	return d.closeErr
}

// stopGracefully lets running calls end, but not for long.
func stopGracefully(s *grpc.Server, limit time.Duration) {
	done := make(chan struct{})
	go func() { s.GracefulStop(); close(done) }()
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
		s.Stop()
		<-done
	}
}
