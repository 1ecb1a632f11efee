package engine

import (
	"context"
	"errors"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"larder/internal/coordinator"
	"larder/internal/engine/crashguard"
	"larder/internal/engine/crew"
	"larder/internal/engine/ring"
	"larder/internal/engine/trace"
	"larder/internal/engine/work"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/prep"
	larderv1 "larder/proto/larder/v1"
	"larder/tiers"
)

var pid = os.Getpid()

// Engine is the running daemon without its sockets.
type Engine struct {
	cfg     Config
	core    *coordinator.Core
	started time.Time
	loop    *loop
	jobs    *registry
	memory  *memory
	room    *blockRoom

	library  *library
	compiler *compiler
	history  *history
	views    *views
	follower *follower

	pool     *work.Pool
	crew     *crew.Crew // workers of clients
	rings    *ring.Set
	unread   []ring.Given // of Unread, reused
	meters   *work.Meters
	guard    *crashguard.Guard // against images that crash the decoder
	tierWork *work.Serial      // what changes the tiers
	log      *logQueue

	registering sync.Mutex // one registration, or change of settings, at a time: names must not race

	recorder *trace.Recorder // of what is decided
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
	cfg = cfg.withDefaults()
	core, err := coordinator.New(coordinator.Config{
		Seed: cfg.Seed, Tiers: cfg.Memory.Tiers, Lease: cfg.Jobs.Lease, MaxJobs: cfg.Jobs.Max,
		IdleTimeout: cfg.Jobs.IdleTimeout,
		InFlight:    2 * cfg.Work.Workers, Ahead: cfg.Work.Readers,
		Bytes: cfg.Data.Catalog.ObjectBytes, Place: cfg.Data.Catalog.Place,
		Granule: func(f ident.Form, n int64) int64 {
			g := cfg.Data.Store.Granule(f)
			return (n + g - 1) / g * g
		},
		Usable: tiers.Usable, Evictor: cfg.Memory.Evictor,
	})
	if err != nil {
		return nil, err
	}
	for _, t := range core.Tiers() {
		if err := cfg.Data.Store.SetBudget(t.Form, t.Budget); err != nil {
			return nil, err
		}
	}
	e := &Engine{
		cfg: cfg, core: core, started: time.Now(), memory: newMemory(&cfg.Memory), tierWork: work.NewSerial(),
		log: &logQueue{cfg.Log, work.NewSerial()}, meters: work.NewMeters(cfg.Work.Workers, runtime.GOMAXPROCS(0)),
	}
	e.room = &blockRoom{rings: e.memory.rings}
	cfg.Data.Store.WhenIdle(e.meters.Idle)
	e.broken.ended = make(chan struct{})
	e.recorder = trace.NewRecorder(e.traceConfig())
	e.loop = newLoop(e.recorder.Event)
	e.jobs = newRegistry(e.loop)
	e.rings = ring.NewSet(func(k ring.Key) {
		e.loop.send(coordinator.ClientGone{Job: k.Job, Rank: k.Rank, Inc: k.Inc})
	})
	e.library = &library{catalog: cfg.Data.Catalog, journal: cfg.Journal.Log, skipCorrupt: cfg.Work.SkipCorrupt}
	e.compiler = &compiler{library: e.library, rings: e.memory.rings}
	e.history = &history{journal: cfg.Journal.Log, found: cfg.Journal.Found, jobs: e.jobs, catalog: cfg.Data.Catalog}
	e.crew = crew.New(crew.Config{
		Window: cfg.Crew.Window, MaxRecord: cfg.Crew.MaxRecord, Room: max(cfg.Memory.Own, 256<<20) / 4,
		Store: cfg.Data.Store, Tiers: e.tierWork, Rings: e.rings, Meters: e.meters, Send: e.loop.send,
		SendAll: e.loop.sendAll,
		Owns:    e.ownsRank, Ended: e.jobs.over, Note: e.log.note, Now: cfg.Clock.Now,
		After:  func(d time.Duration, f func()) func() bool { return cfg.Clock.AfterFunc(d, f).Stop },
		Native: e.runNative, Read: e.readRecord,
	})
	e.views = &views{
		loop: e.loop, jobs: e.jobs, memory: e.memory, library: e.library, rings: e.rings, meters: e.meters, crew: e.crew,
		catalog: cfg.Data.Catalog, journal: cfg.Journal.Log, workers: cfg.Work.Workers,
		pages: cfg.Data.Store.Pages, now: cfg.Clock.Now,
	}
	e.follower = &follower{loop: e.loop, jobs: e.jobs, library: e.library, room: e.room, log: e.log,
		registering: &e.registering}
	e.guard = crashguard.New(crashguard.Config{
		Version: cfg.Version, File: cfg.Crash.File, Command: cfg.Crash.Trial, Limits: cfg.Work.Limits,
		Log: cfg.Log, Note: e.log.note,
		Locate: e.history.locate,
		Read:   func(ctx context.Context, o ident.ObjectID) ([]byte, error) { return cfg.Data.Catalog.Read(ctx, o, nil) },
	})
	e.pool = work.New(work.Config{
		Workers: cfg.Work.Workers, Readers: cfg.Work.Readers, Own: cfg.Memory.Own, ReadAhead: cfg.Work.ReadAhead,
		Limits: cfg.Work.Limits, Outside: cfg.Work.Outside, Store: cfg.Data.Store,
		Tiers: e.tierWork, Rings: e.rings, Meters: e.meters, File: cfg.Crash.File,
		Bytes: cfg.Data.Catalog.ObjectBytes, Read: cfg.Data.Catalog.Read, Away: cfg.Data.Catalog.Away,
		InBlock: cfg.Data.Catalog.InBlock,
		Verdict: e.guard.Verdict, Send: e.loop.send, SendAll: e.loop.sendAll,
		Worked: e.recorder.Worked, Note: e.log.note, Made: e.crew.Copy,
	})
	if cfg.Journal.Found != nil {
		r := &restorer{
			core: core, do: e.Do, now: cfg.Clock.Now, jobs: e.jobs, memory: e.memory, room: e.room, library: e.library,
			compiler: e.compiler,
			history:  e.history, rings: e.rings, journal: cfg.Journal.Log, log: cfg.Log,
			acceptCorrupt: !cfg.Work.Limits.RefuseCorrupt,
		}
		if err := r.restore(context.Background(), cfg.Journal.Found); err != nil {
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
	e.crew.Start()
	e.rings.Start()
	e.jobs.claims.start()
	e.background.Go(func() { e.measure(ctx) })
	e.background.Go(func() { e.guard.Run(ctx) })
	err := coordinator.Loop(ctx, e.core, e.loop.events, e, coordinator.Clock{
		Now: e.cfg.Clock.Now, Timer: func(d time.Duration) coordinator.Timer { return e.cfg.Clock.NewTimer(d) },
	})
	close(e.loop.done) // before waiting for the workers: their events are not taken any more
	e.tierWork.Stop()
	e.crew.Stop()
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
	e.jobs.claims.stop()
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

// enoughFresh is how much memory the kernel must have provided before that counts as measured, in bytes.
const enoughFresh = 16 << 20

// measure reports to the coordinator what was measured, until ctx ends. What has not drifted changes nothing there.
func (e *Engine) measure(ctx context.Context) {
	e.meters.MeasureMemory()
	t := time.NewTicker(e.cfg.Work.Measure)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			e.meters.Forget(e.jobs.uses)
			r := e.meters.Rates()
			if n, took := e.cfg.Data.Store.Fresh(); n >= enoughFresh {
				r.Fresh = float64(n) / took.Seconds() * float64(e.meters.Cores())
			}
			if len(r.Recipes) > 0 && !e.loop.send(coordinator.Measured{Rates: r}) {
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
