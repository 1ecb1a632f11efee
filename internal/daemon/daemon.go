package daemon

import (
	"cmp"
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

// Options says what a daemon serves and who it belongs to.
type Options struct {
	Config  *config.Config // validated; its Socket may be empty, for the user's own
	Log     *slog.Logger
	Level   *slog.LevelVar // of Log; a reload changes it
	Version string         // reported to clients
	// Reload reads the configuration again, or content in place of the file of that name. A nil Reload makes the daemon
	// private to the program that opened it: its configuration is fixed, and `larder stop` is refused.
	Reload func(file string, content []byte) (*config.Config, error)
	// Trial is a command that runs crashguard.Try on its standard input and output. The engine has it prepare images that
	// may have crashed an earlier daemon, in a process of its own. Empty: such images are not tried.
	Trial []string
}

// Daemon serves one Unix socket, and TCP and HTTP where the configuration says so. Its methods are safe for
// concurrent use, but Serve is called at most once.
type Daemon struct {
	opt      Options
	log      *slog.Logger // opt.Log, which also remembers its last error
	life     life
	resolved config.Resolved // of the configuration at the start

	config struct {
		sync.Mutex // held while a change is applied
		now        *config.Config
	}

	listener  *session.Listener
	tcp       net.Listener
	access    tcpAccess
	catalog   *source.Catalog
	store     *tiers.Store
	state     state
	gpu       gpu.Probe
	engine    *engine.Engine
	evictors  []func() // end the policies that have something to end
	sessions  *session.Server
	rpc       []*grpc.Server
	health    *health.Server
	http      *telemetry.HTTPServer
	listeners atomic.Pointer[[]*larderv1.Listener] // set when all are open

	sessionHalf, grpcHalf net.Listener

	parts struct {
		group  *errgroup.Group
		stop   context.CancelFunc // ends the engine
		broken <-chan struct{}    // closed when a part failed
	}
	streamsEnd chan struct{} // closed when gRPC streams must end

	stops     stops
	logPath   string // absolute; "" is standard error
	lastError *atomic.Pointer[loggedError]

	closeOnce sync.Once
	closeErr  error
}

// Open starts a daemon. When it returns, clients can connect. On an error nothing is left behind. Errors that a user
// can act on are *errs.Error.
func Open(o Options) (*Daemon, error) {
	resolved, err := o.Config.Resolve(config.DetectMachine())
	if err != nil {
		return nil, err
	}
	d := &Daemon{opt: o, resolved: resolved, streamsEnd: make(chan struct{}), health: health.NewServer()}
	d.config.now = o.Config
	d.log, d.lastError = rememberErrors(o.Log)
	if file := o.Config.Log.File; file != "" {
		if path, err := filepath.Abs(file); err == nil {
			d.logPath = path
		}
	}
	if o.Reload != nil {
		d.stops = newStops()
	}
	err = d.open()
	if err == nil {
		err = d.listener.Unmark()
	}
	if err != nil {
		if cerr := d.Close(); cerr != nil {
			d.log.Error("close what was opened", "error", cerr)
		}
		return nil, err
	}
	d.life.become(serving)
	return d, nil
}

// Socket is the path of the Unix socket.
func (d *Daemon) Socket() string { return d.listener.Path() }

// HTTP is the address of the metrics, "" when they are off.
func (d *Daemon) HTTP() string {
	if d.http == nil {
		return ""
	}
	return d.http.Addr()
}

// GRPC is the TCP address of gRPC, "" when it is off.
func (d *Daemon) GRPC() string {
	if d.tcp == nil {
		return ""
	}
	return d.tcp.Addr().String()
}

func (d *Daemon) open() error {
	cfg := d.config.now
	group, err := socketGroup(cfg.SocketGroup)
	if err != nil {
		return err
	}
	if d.listener, err = session.ListenGroup(cmp.Or(cfg.Socket, session.DefaultSocket()), group); err != nil {
		return err
	}
	if err := d.listenTCP(cfg.GRPC); err != nil {
		return err
	}
	if err := d.openEngine(cfg); err != nil {
		return err
	}
	d.sessions = session.NewServer(session.Config{
		Engine: d.engine, Service: rpc.Service(d.engine, d.log), Log: d.log, Group: group,
	})
	d.rpc = append(d.rpc, d.grpcServer(rpc.PeerCreds(), nil))
	if d.tcp != nil {
		d.rpc = append(d.rpc, d.grpcServer(d.access.creds, d.access.tokens))
	}
	d.start(session.Allow(group))
	if cfg.HTTP != "" {
		d.http, err = telemetry.ListenHTTP(cfg.HTTP, telemetry.HTTPConfig{
			Stats: d.stats, Ready: d.ready, Version: d.opt.Version, Log: d.log,
		})
		if err != nil {
			return err
		}
	}
	list := d.describeListeners()
	d.listeners.Store(&list)
	d.logStart(cfg)
	return nil
}

func (d *Daemon) grpcServer(creds credentials.TransportCredentials, tokens *rpc.Tokens) *grpc.Server {
	return rpc.NewServer(rpc.Config{
		Engine: d.engine, Log: d.log, Health: d.health, Done: d.streamsEnd, Creds: creds, Tokens: tokens,
	})
}

// listenTCP opens the TCP listener of gRPC, where there is one, and reads who may call.
func (d *Daemon) listenTCP(g config.GRPC) (err error) {
	if g.Listen == "" {
		return nil
	}
	if d.access, err = openAccess(g, d.log); err != nil {
		return err
	}
	if d.tcp, err = net.Listen("tcp", g.Listen); err != nil {
		return errs.Wrap(err, errs.ConfigInvalid, "grpc.listen", "choose a free address of this machine",
			"listen for gRPC on %s", g.Listen)
	}
	return nil
}

// logStart logs what the configuration came to, and what is wrong with it without being an error.
func (d *Daemon) logStart(cfg *config.Config) {
	r := d.resolved
	for _, w := range r.Warnings() {
		d.log.Warn("a size of the configuration makes no sense", "what", w)
	}
	for _, w := range PolicyWarnings(cfg.Tiers) {
		d.log.Warn("a cache policy breaks a promise", "policy", w,
			"fix", "choose need, or read docs/policies.md and accept it")
	}
	d.log.Info("configuration", "memory_limit", units.Size(r.Memory), "tiers_total", units.Size(r.Total),
		"encoded", cfg.Tiers.Encoded.String(), "decoded", cfg.Tiers.Decoded.String(),
		"augmented", cfg.Tiers.Augmented.String(), "rings", units.Size(r.MaxRing), "workers", r.Workers,
		"decoder", prep.DecoderName(), "parity", prep.Parity(), "gpu", d.gpu.Status())
}

// openEngine opens what the engine uses, and the engine.
func (d *Daemon) openEngine(cfg *config.Config) error {
	r := d.resolved
	if os.Getenv("GOMEMLIMIT") == "" { // tiers and rings are no memory of the Go runtime
		debug.SetMemoryLimit(r.Own)
	}
	var err error
	if d.catalog, err = source.OpenCatalog(source.CatalogConfig{
		IndexDir: r.IndexDir, StorageLimit: r.StorageLimit, StorageIOPS: r.StorageIOPS, MaxObject: r.MaxMemory,
		Logger: d.log,
	}); err != nil {
		return err
	}
	if d.store, err = tiers.Open(tiers.Config{VerifyEvery: cfg.Tiers.VerifyEvery}); err != nil {
		return err
	}
	if d.state, err = d.openState(cfg.Sampler.Seed); err != nil {
		return err
	}
	d.gpu = gpu.Open()
	d.engine, err = engine.New(d.engineConfig(cfg))
	if os.Getenv("GOMAXPROCS") == "" {
		// Workers are in C most of the time. With one place more than they take, a goroutine that waits in the kernel
		// (the journal's sync above all) keeps no worker from its work, and the runtime need not look every 20
		// microseconds for a place to take away.
		runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), r.Workers+1))
	}
	return err
}

func (d *Daemon) engineConfig(cfg *config.Config) engine.Config {
	r := d.resolved
	first := settings(cfg, r)
	return engine.Config{
		Version: d.opt.Version, Catalog: d.catalog, Store: d.store, Journal: d.state.journal, Found: d.state.found,
		GPU: d.gpu, Log: d.log, Workers: r.Workers, Limits: imageLimits(cfg.Prep, r),
		SkipCorrupt: cfg.Prep.OnCorrupt == "skip", Tiers: first.Tiers, TierSetting: first.TierSetting,
		MaxRing: first.MaxRing, Strata: first.Strata, ApplyConfig: d.applyConfig, Stop: d.askStop, Status: d.status,
		ParseSize: func(s string, total int64) (int64, bool, error) {
			v, err := config.ParseSize(s)
			if total < 0 {
				total = r.Machine
			}
			return v.Of(total), v.IsAuto(), err
		},
		MemoryLimit: r.Memory, Own: r.Own, Lease: cfg.Jobs.Lease, MaxJobs: cfg.Jobs.Max,
		IdleTimeout: cfg.Jobs.IdleTimeout, Seed: d.state.seed, Evictor: d.newEvictor, Decoding: d.state.decoding,
		Trial: d.opt.Trial,
		Listeners: func() []*larderv1.Listener {
			if l := d.listeners.Load(); l != nil {
				return *l
			}
			return nil
		},
	}
}

func imageLimits(p config.Prep, r config.Resolved) prep.Limits {
	l := prep.Limits{
		MaxPixels: p.MaxPixels, MaxScans: p.MaxScans, MaxBytes: r.MaxMemory, Timeout: p.DecodeTimeout,
		RefuseCorrupt: p.OnCorrupt != "accept",
	}
	if l.Timeout == 0 {
		l.Timeout = -1
	}
	return l
}

// start runs every part in a goroutine. The first that fails closes broken.
func (d *Daemon) start(allow func(shm.Peer) bool) {
	ctx, stop := context.WithCancel(context.Background())
	d.parts.stop = stop
	group, gctx := errgroup.WithContext(ctx)
	d.parts.group, d.parts.broken = group, gctx.Done()
	d.grpcHalf, d.sessionHalf = session.MuxFor(d.listener.Door(), allow)
	part := func(name string, f func() error) {
		group.Go(func() error {
			err := f()
			if err != nil && d.life.stopping() { // e.g. larder run -- true: closed before the part had begun
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

// stats returns the counters that HTTP shows; nil when the engine does not answer.
func (d *Daemon) stats() *larderv1.Stats {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	r, err := d.engine.GetStats(ctx, &larderv1.GetStatsRequest{})
	if err != nil {
		d.log.Debug("no counters", "error", err)
		return nil
	}
	return r.GetStats()
}

// ready says why the daemon takes no work; nil = it does.
func (d *Daemon) ready() error {
	if d.life.stopping() {
		return errors.New("the daemon is stopping")
	}
	if err := d.state.journal.Room(); err != nil {
		return err
	}
	select {
	case <-d.parts.broken:
		return errors.New("a part of the daemon failed")
	default:
		return nil
	}
}

// drain stops taking work and waits until every client has left, or ctx ends. It closes nothing.
func (d *Daemon) drain(ctx context.Context) error {
	if !d.life.become(stopping) {
		return nil
	}
	d.health.Shutdown()
	drained := make(chan error, 1)
	go func() { drained <- d.engine.Drain(ctx) }()
	err := d.sessions.Shutdown(ctx) // notifies the clients
	return errors.Join(err, <-drained)
}

// leave stops the daemon but keeps its jobs: for clients and the journal it is as if the daemon had died. Close
// follows.
func (d *Daemon) leave() {
	d.life.become(stopping)
	d.health.Shutdown()
	d.engine.Leave()
}

// Close ends everything at once, and is idempotent. Jobs that were not drained before are in the journal for the next
// daemon, where there is a state directory.
func (d *Daemon) Close() error {
	d.closeOnce.Do(func() {
		d.life.become(closed)
		d.stops.finish()
		close(d.streamsEnd)
		d.closeErr = errors.Join(append(d.closeServers(), d.closeResources()...)...)
	})
	return d.closeErr
}

// closeServers ends the sessions, gRPC and HTTP, then the engine.
func (d *Daemon) closeServers() (problems []error) {
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
	if d.parts.stop != nil {
		d.parts.stop()
		problems = append(problems, d.parts.group.Wait())
		_ = d.grpcHalf.Close()
		_ = d.sessionHalf.Close()
	}
	if d.tcp != nil {
		_ = d.tcp.Close() // its server, where there was one, has closed it already
	}
	return problems
}

// closeResources closes what the engine used; the engine has ended.
func (d *Daemon) closeResources() (problems []error) {
	problems = append(problems, d.state.close())
	for _, end := range d.evictors {
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
	return problems
}

// stopGracefully lets running calls end, but for at most limit.
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
