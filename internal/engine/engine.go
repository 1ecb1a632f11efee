package engine

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"larder/cachepolicy"
	"larder/internal/coordinator"
	"larder/internal/engine/crashguard"
	"larder/internal/engine/ring"
	"larder/internal/engine/work"
	"larder/internal/errs"
	"larder/internal/gpu"
	"larder/internal/ident"
	"larder/internal/journal"
	"larder/internal/prep"
	"larder/internal/source"
	"larder/internal/xrand"
	larderv1 "larder/proto/larder/v1"
	"larder/tiers"
)

// Config is what an Engine needs. The engine does not close Catalog, Store, Journal or Decoding.
type Config struct {
	Version  string
	Catalog  *source.Catalog
	Store    *tiers.Store
	Journal  journal.Log
	Found    *journal.State   // what the journal held when it was opened; nil = nothing
	Decoding *crashguard.File // what workers prepare, and prepared when the last daemon died; nil = that is not noted
	// the command that runs crashguard.Try, for what they prepared then; empty = there is none
	Trial       []string
	GPU         gpu.Probe // may be nil
	Log         *slog.Logger
	Workers     int         // preparation workers; at least 1
	Limits      prep.Limits // of one image
	SkipCorrupt bool        // what Limits.RefuseCorrupt refuses is left out without a word to clients
	Tiers       coordinator.TierConfig
	TierSetting map[ident.Form]string // as configured, for people
	// ParseSize reads the size of tiers.total (total is negative), or of a tier, whose percentage is of total.
	ParseSize   func(setting string, total int64) (bytes int64, auto bool, err error)
	MemoryLimit int64 // bytes of everything
	// bytes of MemoryLimit that neither tiers nor rings may take: heap, indexes, samples in work
	Own     int64
	MaxRing int64                        // bytes of all rings together; 0 = what tiers leave of MemoryLimit
	Strata  func(names ...string) string // see Settings
	// ApplyConfig answers the method of that name; nil = there is no configuration.
	ApplyConfig func(context.Context, *larderv1.ApplyConfigRequest) (*larderv1.ApplyConfigResponse, error)
	// Listeners are what the daemon listens on; nil = not known.
	Listeners func() []*larderv1.Listener
	// Stop and Status answer the methods of these names; nil = the engine is part of another program.
	Stop    func(context.Context, *larderv1.StopRequest) (*larderv1.StopResponse, error)
	Status  func(context.Context, *larderv1.StatusRequest) (*larderv1.StatusResponse, error)
	Measure time.Duration // between two reports of measured rates; 0 = 2 s
	// bytes that may be read ahead of the workers; 0 = 64 MiB, or an eighth of Own if that is less
	ReadAhead   int64
	Lease       time.Duration
	MaxJobs     int
	IdleTimeout time.Duration // see coordinator.Config
	Seed        uint64
	// Evictor makes the policy of a tier. nil = cachepolicy.New.
	Evictor func(f ident.Form, policy string, r *xrand.Rand) (cachepolicy.Evictor, error)
}

var pid = os.Getpid()

// Engine is the running daemon without its sockets.
type Engine struct {
	cfg     Config
	core    *coordinator.Core
	started time.Time
	loop    *loop
	jobs    *registry
	memory  *memory

	library  *library
	compiler *compiler
	history  *history
	views    *views
	follower *follower

	pool     *work.Pool
	rings    *ring.Set
	meters   *work.Meters
	guard    *crashguard.Guard // against images that crash the decoder
	tierWork *work.Serial      // what changes the tiers
	log      *logQueue

	registering sync.Mutex // one registration, or change of settings, at a time: names must not race

	recorder atomic.Pointer[recorder] // of what is decided; nil while nothing is recorded
	recorded atomic.Pointer[recorder] // the last one: a client that did not get its last answer asks again
	draining atomic.Bool
	broken   struct {
		sync.Once
		ended chan struct{} // closed when the engine cannot continue
		err   error         // why
	}
	background sync.WaitGroup // what Run waits for, beside rings
}

// New returns an engine that does nothing before Run.
func New(cfg Config) (*Engine, error) {
	if cfg.Workers < 1 {
		cfg.Workers = 1
	}
	if cfg.ReadAhead <= 0 {
		cfg.ReadAhead = work.DefaultReadAhead
		if cfg.Own > 0 {
			cfg.ReadAhead = min(work.DefaultReadAhead, cfg.Own/8)
		}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	core, err := coordinator.New(coordinator.Config{
		Seed: cfg.Seed, Tiers: cfg.Tiers, Lease: cfg.Lease, MaxJobs: cfg.MaxJobs, IdleTimeout: cfg.IdleTimeout,
		InFlight: 2 * cfg.Workers, Ahead: work.Readers,
		Bytes: cfg.Catalog.ObjectBytes,
		Granule: func(f ident.Form, n int64) int64 {
			g := cfg.Store.Granule(f)
			return (n + g - 1) / g * g
		},
		Usable: tiers.Usable, Evictor: cfg.Evictor,
	})
	if err != nil {
		return nil, err
	}
	for _, t := range core.Tiers() {
		if err := cfg.Store.SetBudget(t.Form, t.Budget); err != nil {
			return nil, err
		}
	}
	e := &Engine{
		cfg: cfg, core: core, started: time.Now(), memory: newMemory(&cfg), tierWork: work.NewSerial(),
		log: &logQueue{cfg.Log, work.NewSerial()}, meters: work.NewMeters(cfg.Workers, runtime.GOMAXPROCS(0)),
	}
	e.broken.ended = make(chan struct{})
	e.loop = newLoop(func(ev coordinator.Event) {
		if r := e.recorder.Load(); r != nil {
			r.event(ev)
		}
	})
	e.jobs = newRegistry(e.loop)
	e.rings = ring.NewSet(func(k ring.Key) {
		e.loop.send(coordinator.ClientGone{Job: k.Job, Rank: k.Rank, Inc: k.Inc})
	})
	e.library = &library{catalog: cfg.Catalog, journal: cfg.Journal, skipCorrupt: cfg.SkipCorrupt}
	e.compiler = &compiler{library: e.library, rings: e.memory.rings}
	e.history = &history{journal: cfg.Journal, found: cfg.Found, jobs: e.jobs, catalog: cfg.Catalog}
	e.views = &views{
		loop: e.loop, jobs: e.jobs, memory: e.memory, library: e.library, rings: e.rings, meters: e.meters,
		catalog: cfg.Catalog, journal: cfg.Journal, workers: cfg.Workers,
	}
	e.follower = &follower{loop: e.loop, jobs: e.jobs, library: e.library, log: e.log, registering: &e.registering}
	e.guard = crashguard.New(crashguard.Config{
		Version: cfg.Version, File: cfg.Decoding, Command: cfg.Trial, Limits: cfg.Limits, Log: cfg.Log, Note: e.log.note,
		Locate: e.history.locate,
		Read:   func(ctx context.Context, o ident.ObjectID) ([]byte, error) { return cfg.Catalog.Read(ctx, o, nil) },
	})
	e.pool = work.New(work.Config{
		Workers: cfg.Workers, Own: cfg.Own, ReadAhead: cfg.ReadAhead, Limits: cfg.Limits, Store: cfg.Store,
		Tiers: e.tierWork, Rings: e.rings, Meters: e.meters, File: cfg.Decoding,
		Bytes: cfg.Catalog.ObjectBytes, Read: cfg.Catalog.Read, Verdict: e.guard.Verdict, Send: e.loop.send,
		Worked: func(s work.Step, o ident.ObjectID, took time.Duration) {
			if r := e.recorder.Load(); r != nil {
				r.worked(s, o, took)
			}
		},
		Note: e.log.note,
	})
	if cfg.Found != nil {
		r := &restorer{
			core: core, do: e.Do, jobs: e.jobs, memory: e.memory, library: e.library, compiler: e.compiler,
			history: e.history, rings: e.rings, journal: cfg.Journal, log: cfg.Log, acceptCorrupt: !cfg.Limits.RefuseCorrupt,
		}
		if err := r.restore(context.Background(), cfg.Found); err != nil {
			return nil, err
		}
	}
	e.guard.Locate(context.Background())
	return e, nil
}

// Run works until ctx ends; then it returns nil. An error says why it cannot continue: the journal failed. Rings stay
// mapped in clients that still hold them.
func (e *Engine) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	e.background.Go(func() {
		select {
		case <-e.broken.ended:
			cancel()
		case <-ctx.Done():
		}
	})
	var kept sync.WaitGroup
	kept.Go(e.tierWork.Run)
	kept.Go(e.log.serial.Run)
	e.pool.Start(ctx)
	e.rings.Start()
	e.background.Go(func() { e.measure(ctx) })
	e.background.Go(func() { e.guard.Run(ctx) })
	err := coordinator.Loop(ctx, e.core, e.loop.events, e, time.Now)
	close(e.loop.done) // before waiting for the workers: their events are not taken any more
	e.tierWork.Stop()
	e.pool.Stop()
	var broken error // what fails from here on changes nothing
	select {
	case <-e.broken.ended:
		broken = e.broken.err
	default:
	}
	e.rings.Stop(func(job string) error {
		return errs.New(errs.Unavailable, job, "start it again: larder serve", "the daemon has stopped")
	})
	e.rings.Wait()
	e.background.Wait()
	e.log.serial.Stop()
	kept.Wait()
	if broken != nil {
		return broken
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return err
}

// breakDown ends Run with err. It does not wait.
func (e *Engine) breakDown(err error) {
	e.broken.Do(func() {
		e.broken.err = err
		close(e.broken.ended)
	})
}

// Drain refuses new jobs and attachments, lets every job end after its running epoch, and waits until no client is
// attached, or ctx ends.
func (e *Engine) Drain(ctx context.Context) error {
	e.registering.Lock() // a registration that is under way ends first, and its job is drained too
	e.draining.Store(true)
	e.registering.Unlock()
	live, err := e.loop.list(ctx, false)
	if err != nil {
		return err
	}
	for i := range live {
		e.loop.send(coordinator.Drain{Job: live[i].ID})
	}
	for {
		if e.rings.Len() == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Leave prepares a stop that the jobs outlive: from now on the engine does not hear that attachments end, so what
// they were given stays given in the journal, and the next engine on that journal continues with it. Requests are
// served until Run ends: what is answered is durable.
func (e *Engine) Leave() { e.loop.leaving.Store(true) }

// Attached counts the ranks that clients hold.
func (e *Engine) Attached() int { return e.rings.Len() }

// measure reports to the coordinator what was measured, until ctx ends. What has not drifted changes nothing there.
func (e *Engine) measure(ctx context.Context) {
	e.meters.MeasureMemory()
	every := e.cfg.Measure
	if every <= 0 {
		every = 2 * time.Second
	}
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			e.meters.Forget(e.jobs.uses)
			if r := e.meters.Rates(); len(r.Recipes) > 0 && !e.loop.send(coordinator.Measured{Rates: r}) {
				return
			}
		}
	}
}

// Hello introduces the daemon to a session.
func (e *Engine) Hello(*larderv1.HelloRequest) *larderv1.HelloResponse {
	return &larderv1.HelloResponse{Version: e.cfg.Version, Pid: int32(pid), Parity: prep.Parity(),
		Decoder: prep.DecoderName()}
}
