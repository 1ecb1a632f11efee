package daemon

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"larder/internal/clock"
	"larder/internal/config"
	"larder/internal/engine"
	"larder/internal/prep"
	"larder/internal/rpc"
	"larder/internal/session"
	"larder/internal/shm"
	"larder/internal/telemetry"
	"larder/internal/units"
	larderv1 "larder/proto/larder/v1"
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
	// Clock is that of deadlines (internal/clock says which); nil = the real one.
	Clock clock.Clock
	// Decode is a command that runs sandbox.Serve, for prep.isolation process. Empty: that is refused.
	Decode []string
}

// Daemon serves one Unix socket, and TCP and HTTP where the configuration says so. Its methods are safe for
// concurrent use, but Serve is called at most once.
type Daemon struct {
	opt       Options
	log       *slog.Logger // opt.Log, which also remembers its last error
	lastError *atomic.Pointer[loggedError]
	life      life
	config    configuration

	doors     doors
	resources resources
	engine    *engine.Engine
	servers   servers
	parts     parts
	stops     stops

	closing struct {
		sync.Once
		err error
	}
}

// configuration is what the daemon was started with, and what is in force now.
type configuration struct {
	sync.Mutex // held while a change is applied
	now        *config.Config
	resolved   config.Resolved // of the configuration at the start
}

// Open starts a daemon. When it returns, clients can connect. On an error nothing is left behind. Errors that a user
// can act on are *errs.Error.
func Open(o Options) (*Daemon, error) {
	resolved, err := o.Config.Resolve(config.DetectMachine())
	if err != nil {
		return nil, err
	}
	o.Clock = clock.Or(o.Clock)
	d := &Daemon{opt: o, servers: newServers()}
	d.config.now, d.config.resolved = o.Config, resolved
	d.log, d.lastError = rememberErrors(o.Log)
	if o.Reload != nil {
		d.stops = newStops()
	}
	err = d.open()
	if err == nil {
		err = d.doors.unix.Unmark()
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
func (d *Daemon) Socket() string { return d.doors.socket() }

// HTTP is the address of the metrics, "" when they are off.
func (d *Daemon) HTTP() string { return d.servers.httpAddr() }

// GRPC is the TCP address of gRPC, "" when it is off.
func (d *Daemon) GRPC() string { return d.doors.grpc() }

func (d *Daemon) open() error {
	cfg := d.config.now
	group, err := socketGroup(cfg.SocketGroup)
	if err != nil {
		return err
	}
	if err := d.doors.open(cfg, group, d.log); err != nil {
		return err
	}
	if err := d.openEngine(cfg); err != nil {
		return err
	}
	d.servers.sessions = session.NewServer(session.Config{
		Engine: d.engine, Crew: d.engine, Service: rpc.Service(d.engine, d.log), Log: d.log, Group: group,
		Clock: d.opt.Clock,
	})
	d.servers.addGRPC(d.engine, d.log, tcpAccess{creds: rpc.PeerCreds()})
	if d.doors.tcp != nil {
		d.servers.addGRPC(d.engine, d.log, d.doors.access)
	}
	d.start(session.Allow(group))
	if cfg.HTTP.Listen != "" {
		d.servers.http, err = telemetry.ListenHTTP(cfg.HTTP.Listen, telemetry.HTTPConfig{
			Stats: d.stats, Ready: d.ready, Version: d.opt.Version, Log: d.log, Hosts: cfg.HTTP.Names(),
		})
		if err != nil {
			return err
		}
	}
	d.doors.describe(cfg, d.HTTP())
	d.logStart(cfg)
	return nil
}

// logStart logs what the configuration came to, and what is wrong with it without being an error.
func (d *Daemon) logStart(cfg *config.Config) {
	r := d.config.resolved
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
		"decoder", prep.DecoderName(), "parity", prep.Parity(), "gpu", d.resources.gpu.Status())
}

// openEngine opens what the engine uses, and the engine.
func (d *Daemon) openEngine(cfg *config.Config) error {
	r := d.config.resolved
	if os.Getenv("GOMEMLIMIT") == "" { // tiers and rings are no memory of the Go runtime
		debug.SetMemoryLimit(r.Own)
	}
	err := d.resources.open(resourceOptions{config: cfg, resolved: r, socket: d.Socket(), decode: d.opt.Decode,
		log: d.log, clock: d.opt.Clock})
	if err != nil {
		return err
	}
	d.engine, err = engine.New(d.engineConfig(cfg))
	if err == nil {
		readers := d.engine.Readers
		d.resources.disks.readers.Store(&readers)
	}
	if os.Getenv("GOMAXPROCS") == "" {
		// Workers are in C most of the time. With one place more than they take, a goroutine that waits in the kernel
		// (the journal's sync above all) keeps no worker from its work, and the runtime need not look every 20
		// microseconds for a place to take away.
		runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), r.Workers+1))
	}
	return err
}

func (d *Daemon) engineConfig(cfg *config.Config) engine.Config {
	r := d.config.resolved
	return engine.Config{
		Version: d.opt.Version, Seed: d.resources.state.seed, Log: d.log, Clock: d.opt.Clock,
		Data:    engine.DataConfig{Catalog: d.resources.catalog, Store: d.resources.store},
		Journal: engine.JournalConfig{Log: d.resources.state.journal, Found: d.resources.state.found},
		Crash:   engine.CrashConfig{File: d.resources.state.decoding, Trial: d.opt.Trial},
		Work: engine.WorkConfig{Workers: r.Workers, Readers: cfg.Source.Readers, Limits: imageLimits(cfg.Prep, r),
			Outside: d.resources.outside(), SkipCorrupt: cfg.Prep.OnCorrupt == "skip"},
		Crew: engine.CrewConfig{Window: cfg.Workers.Window, MaxRecord: r.MaxRecord},
		Memory: engine.MemoryConfig{
			Settings: settings(cfg, r), Limit: r.Memory, Own: r.Own, Evictor: d.resources.newEvictor,
			ParseSize: func(s string, total int64) (int64, bool, error) {
				v, err := config.ParseSize(s)
				if total < 0 {
					total = r.Machine
				}
				return v.Of(total), v.IsAuto(), err
			},
		},
		Jobs: engine.JobConfig{Lease: cfg.Jobs.Lease, Max: cfg.Jobs.Max, IdleTimeout: cfg.Jobs.IdleTimeout},
		Daemon: engine.DaemonConfig{
			ApplyConfig: d.applyConfig, Stop: d.askStop, Status: d.status, GPU: d.resources.gpu,
			Listeners: d.doors.described, Stores: d.resources.storeStats,
			Disk: d.resources.disks.stats, ResizeDisk: d.resources.disks.resize(),
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

// start runs every part in a goroutine.
func (d *Daemon) start(allow func(shm.Peer) bool) {
	ctx := d.parts.begin(d.log, d.life.stopping)
	grpcHalf, sessionHalf := session.MuxFor(d.doors.unix.Door(), allow, d.opt.Clock)
	d.parts.halves = []net.Listener{grpcHalf, sessionHalf}
	d.parts.run("engine", func() error {
		if err := d.engine.Run(ctx); err != nil {
			return err
		}
		if ctx.Err() == nil {
			return errors.New("it ended by itself")
		}
		return nil
	})
	d.parts.run("sessions", func() error { return d.servers.sessions.Serve(sessionHalf) })
	d.parts.run("gRPC", func() error { return d.servers.grpc[0].Serve(grpcHalf) })
	if d.doors.tcp != nil {
		d.parts.run("gRPC over TCP", func() error { return d.servers.grpc[1].Serve(d.doors.tcp) })
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
	if err := d.resources.state.journal.Room(); err != nil {
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
	d.servers.health.Shutdown()
	drained := make(chan error, 1)
	go func() { drained <- d.engine.Drain(ctx) }()
	err := d.servers.sessions.Shutdown(ctx) // notifies the clients
	return errors.Join(err, <-drained)
}

// leave stops the daemon but keeps its jobs: for clients and the journal it is as if the daemon had died. Close
// follows.
func (d *Daemon) leave() {
	d.life.become(stopping)
	d.servers.health.Shutdown()
	d.engine.Leave()
}

// Close ends everything at once, and is idempotent. Jobs that were not drained before are in the journal for the next
// daemon, where there is a state directory.
func (d *Daemon) Close() error {
	d.closing.Do(func() {
		d.life.become(closed)
		d.stops.finish()
		problems := d.servers.close()
		d.resources.stopDecoders() // no worker of the engine waits for one that does not start
		problems = append(problems, d.parts.end())
		d.doors.closeTCP()
		problems = append(problems, d.resources.close(d.log)...) // the engine has ended
		problems = append(problems, d.doors.closeUnix())
		d.closing.err = errors.Join(problems...)
	})
	return d.closing.err
}
