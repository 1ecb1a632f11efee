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
	"larder/jobs"
	larderv1 "larder/proto/larder/v1"
	"larder/tiers"
)

// Config is what an Engine needs. The engine does not close Catalog, Store, Journal or Decoding.
type Config struct {
	Version     string
	Catalog     *source.Catalog
	Store       *tiers.Store
	Journal     journal.Log
	Found       *journal.State   // what the journal held when it was opened; nil = nothing
	Decoding    *crashguard.File // what workers prepare, and prepared when the last daemon died; nil = that is not noted
	Trial       []string         // the command that runs crashguard.Try, for what they prepared then; empty = there is none
	GPU         gpu.Probe        // may be nil
	Log         *slog.Logger
	Workers     int         // preparation workers; at least 1
	Limits      prep.Limits // of one image
	SkipCorrupt bool        // what Limits.RefuseCorrupt refuses is left out without a word to clients
	Tiers       coordinator.TierConfig
	TierSetting map[ident.Form]string // as configured, for people
	// ParseSize reads the size of tiers.total (total is negative), or of a tier, whose percentage is of total.
	ParseSize   func(setting string, total int64) (bytes int64, auto bool, err error)
	MemoryLimit int64                        // bytes of everything
	Own         int64                        // bytes of MemoryLimit that neither tiers nor rings may take: heap, indexes, samples in work
	MaxRing     int64                        // bytes of all rings together; 0 = what tiers leave of MemoryLimit
	Strata      func(names ...string) string // see Settings
	// ApplyConfig answers the method of that name; nil = there is no configuration.
	ApplyConfig func(context.Context, *larderv1.ApplyConfigRequest) (*larderv1.ApplyConfigResponse, error)
	// Listeners tells what the daemon listens on; nil = nothing to tell.
	Listeners func() []*larderv1.Listener
	// Stop and Status answer the methods of these names; nil = the engine is part of another program.
	Stop        func(context.Context, *larderv1.StopRequest) (*larderv1.StopResponse, error)
	Status      func(context.Context, *larderv1.StatusRequest) (*larderv1.StatusResponse, error)
	Measure     time.Duration // between two reports of measured rates; 0 = 2 s
	ReadAhead   int64         // bytes that may be read ahead of the workers; 0 = 64 MiB, or an eighth of Own if that is less
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
	cfg    Config
	core   *coordinator.Core
	events chan coordinator.Event
	pool   *work.Pool
	rings  *ring.Set
	// ringBudget is of rings and of what ragged batches take beside them.
	ringBudget *ring.Budget
	meters     *work.Meters
	tierWork   *work.Serial // what changes the tiers
	notes      *work.Serial // log lines
	started    time.Time

	guard *crashguard.Guard // against images that crash the decoder

	registering sync.Mutex // one registration at a time: names must not race

	mu struct {
		sync.Mutex
		tokens      map[coordinator.Token]chan coordinator.Reply
		next        coordinator.Token
		jobs        map[ident.JobID]*job
		names       map[string]*job            // newest job of a name
		registering map[coordinator.Token]*job // by the Register event that asks for them
		ended       []ident.JobID              // oldest first; jobs holds the last keepEnded of them
		settings    map[ident.Form]string
		total       int64 // of the tiers
		maxRing     int64
		strata      func(names ...string) string
		sketches    []keptSketch             // the last ones, oldest first
		stratified  map[ident.DatasetID]bool // those whose first job has come
		broken      error
	}
	recorder atomic.Pointer[recorder] // of what is decided; nil while nothing is recorded
	recorded atomic.Pointer[recorder] // the last one: who did not get its last answer asks again
	draining atomic.Bool
	leaving  atomic.Bool
	broken   chan struct{}  // closed when the engine cannot go on
	done     chan struct{}  // closed when the loop has ended
	wg       sync.WaitGroup // all but rings
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
		Seed: cfg.Seed, Tiers: cfg.Tiers, Lease: cfg.Lease, MaxJobs: cfg.MaxJobs, IdleTimeout: cfg.IdleTimeout, InFlight: 2 * cfg.Workers, Ahead: work.Readers,
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
		cfg: cfg, core: core, tierWork: work.NewSerial(), notes: work.NewSerial(), started: time.Now(), done: make(chan struct{}), broken: make(chan struct{}),
		events: make(chan coordinator.Event, 4096), // a second of rows at 4,000 images/s; workers wait when it is full
	}
	e.mu.tokens = map[coordinator.Token]chan coordinator.Reply{}
	e.mu.jobs = map[ident.JobID]*job{}
	e.mu.names = map[string]*job{}
	e.mu.registering = map[coordinator.Token]*job{}
	e.mu.settings = cfg.TierSetting
	if e.mu.settings == nil {
		e.mu.settings = map[ident.Form]string{}
	}
	e.mu.total, e.mu.maxRing, e.mu.strata = cfg.Tiers.Total, cfg.MaxRing, cfg.Strata
	e.mu.stratified = map[ident.DatasetID]bool{}
	e.meters = work.NewMeters(cfg.Workers, runtime.GOMAXPROCS(0))
	e.ringBudget = ring.NewBudget(e.ringLimit)
	e.rings = ring.NewSet(func(k ring.Key) { e.send(coordinator.ClientGone{Job: k.Job, Rank: k.Rank, Inc: k.Inc}) })
	e.guard = crashguard.New(crashguard.Config{
		Version: cfg.Version, File: cfg.Decoding, Command: cfg.Trial, Limits: cfg.Limits, Log: cfg.Log, Note: e.note,
		Locate: e.locate,
		Read:   func(ctx context.Context, o ident.ObjectID) ([]byte, error) { return cfg.Catalog.Read(ctx, o, nil) },
	})
	e.pool = work.New(work.Config{
		Workers: cfg.Workers, Own: cfg.Own, ReadAhead: cfg.ReadAhead, Limits: cfg.Limits, Store: cfg.Store, Tiers: e.tierWork,
		Rings: e.rings, Meters: e.meters, File: cfg.Decoding, Bytes: cfg.Catalog.ObjectBytes, Read: cfg.Catalog.Read,
		Verdict: e.guard.Verdict, Send: e.send, Worked: e.worked, Note: e.note,
	})
	if cfg.Found != nil {
		if err := e.restore(context.Background(), cfg.Found); err != nil {
			return nil, err
		}
	}
	e.guard.Locate(context.Background())
	return e, nil
}

// Run works until ctx ends; then it returns nil. An error says why it cannot go on: the journal failed. Rings stay mapped
// in clients that still hold them.
func (e *Engine) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	e.wg.Go(func() {
		select {
		case <-e.broken:
			cancel()
		case <-ctx.Done():
		}
	})
	var kept sync.WaitGroup
	kept.Go(e.tierWork.Run)
	kept.Go(e.notes.Run)
	e.pool.Start(ctx)
	e.rings.Start()
	e.wg.Go(func() { e.measure(ctx) })
	e.wg.Go(func() { e.guard.Run(ctx) })
	err := coordinator.Loop(ctx, e.core, e.events, e, time.Now)
	close(e.done) // before waiting for the workers: nobody takes their events any more
	e.tierWork.Stop()
	e.pool.Stop()
	e.mu.Lock()
	broken := e.mu.broken
	e.mu.Unlock()
	e.rings.Stop(func(job string) error {
		return errs.New(errs.Unavailable, job, "start it again: larder serve", "the daemon has stopped")
	})
	e.rings.Wait()
	e.wg.Wait()
	e.notes.Stop()
	kept.Wait()
	if broken != nil {
		return broken
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return err
}

const maxNotes = 1000

// note writes to the log without waiting for it. When nobody takes the lines the last thousand are lost.
func (e *Engine) note(level slog.Level, msg string, args ...any) {
	if e.notes.Waiting() < maxNotes {
		e.notes.Add(func() { e.cfg.Log.Log(context.Background(), level, msg, args...) })
	}
}

// breakDown ends Run with err. It does not wait.
func (e *Engine) breakDown(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.broken == nil {
		e.mu.broken = err
		close(e.broken)
	}
}

// Drain refuses new jobs and attachments, lets every job end after its running epoch, and waits until no client is
// attached, or ctx ends.
func (e *Engine) Drain(ctx context.Context) error {
	e.registering.Lock() // a registration that is under way ends first, and its job is drained too
	e.draining.Store(true)
	e.registering.Unlock()
	live, err := inspect(ctx, e, func(c *coordinator.Core) []jobs.Job { return c.Jobs(false) })
	if err != nil {
		return err
	}
	for i := range live {
		e.send(coordinator.Drain{Job: live[i].ID})
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

// Leave prepares a stop that the jobs outlive: from now on the engine does not hear that attachments end, so what they were given stays
// given in the journal, and the next engine on it goes on with it. Requests are served until Run ends: what is answered is durable.
func (e *Engine) Leave() { e.leaving.Store(true) }

// Attached counts the ranks that clients hold.
func (e *Engine) Attached() int { return e.rings.Len() }

// send hands an event to the loop; false when the engine has stopped.
func (e *Engine) send(ev coordinator.Event) bool {
	if r := e.recorder.Load(); r != nil {
		r.event(ev)
	}
	if _, end := ev.(coordinator.Detached); end && e.leaving.Load() {
		return true
	}
	select {
	case e.events <- ev:
		return true
	case <-e.done:
		return false
	}
}

var errStopped = errs.New(errs.Unavailable, "", "start it again: larder serve", "the daemon is stopping")

// ask sends the event that make builds around a token and waits for its reply.
func (e *Engine) ask(ctx context.Context, build func(coordinator.Token) coordinator.Event) (coordinator.Reply, error) {
	ch := make(chan coordinator.Reply, 1)
	e.mu.Lock()
	e.mu.next++
	t := e.mu.next
	e.mu.tokens[t] = ch
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		delete(e.mu.tokens, t)
		e.mu.Unlock()
	}()
	if !e.send(build(t)) {
		return coordinator.Reply{}, errStopped
	}
	select {
	case r := <-ch:
		return r, r.Err
	case <-ctx.Done():
		return coordinator.Reply{}, errs.Wrap(ctx.Err(), errs.Unavailable, "", "try again", "the daemon did not answer in time")
	case <-e.done:
		return coordinator.Reply{}, errStopped
	}
}

// inspect runs f in the loop between two steps. f may still run after the caller has given up waiting: it must share
// nothing with him that he goes on to use.
func inspect[T any](ctx context.Context, e *Engine, f func(*coordinator.Core) T) (T, error) {
	var none T
	ran := make(chan T, 1)
	if !e.send(coordinator.Inspect{F: func(c *coordinator.Core) { ran <- f(c) }}) {
		return none, errStopped
	}
	select {
	case v := <-ran:
		return v, nil
	case <-ctx.Done():
		return none, errs.Wrap(ctx.Err(), errs.Unavailable, "", "try again", "the daemon did not answer in time")
	case <-e.done:
		return none, errStopped
	}
}

// lookup finds a job of the coordinator; nil when it has forgotten it.
func (e *Engine) lookup(ctx context.Context, id ident.JobID) (*jobs.Job, error) {
	return inspect(ctx, e, func(c *coordinator.Core) *jobs.Job {
		if v, ok := c.JobByID(id); ok {
			return &v
		}
		return nil
	})
}

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
			e.meters.Forget(e.recipeUsed)
			if r := e.meters.Rates(); len(r.Recipes) > 0 && !e.send(coordinator.Measured{Rates: r}) {
				return
			}
		}
	}
}

// recipeUsed reports whether a job that is remembered has the recipe.
func (e *Engine) recipeUsed(k work.RecipeKey) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, j := range e.mu.jobs {
		if j.RecipeKey() == k {
			return true
		}
	}
	return false
}

// worked passes on what a piece of work took of a core, while a trace is recorded.
func (e *Engine) worked(s work.Step, o ident.ObjectID, took time.Duration) {
	if r := e.recorder.Load(); r != nil {
		r.worked(s, o, took)
	}
}

// Hello introduces the daemon to a session.
func (e *Engine) Hello(*larderv1.HelloRequest) *larderv1.HelloResponse {
	return &larderv1.HelloResponse{Version: e.cfg.Version, Pid: int32(pid), Parity: prep.Parity(), Decoder: prep.DecoderName()}
}
