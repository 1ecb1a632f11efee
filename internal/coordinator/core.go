package coordinator

import (
	"fmt"
	"time"

	"larder/cachepolicy"
	"larder/dsa"
	"larder/internal/bits"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/invariant"
	"larder/internal/xrand"
	"larder/jobs"
)

// TierConfig is the sizes of the tiers in bytes; a negative size is "auto": the partitioner decides it within Total.
type TierConfig struct {
	Total    int64
	Sizes    [ident.NumForms]int64 // Encoded, Decoded, Augmented
	Policy   [ident.NumForms]string
	Model    string   // of partition.New, "" = its default, or SimpleModel
	Fairness *float64 // see partition.Demand; nil = the default
	Quotas   []Quota  // of datasets
}

// Config is what a Core needs. Zero values of the tunables mean their defaults.
type Config struct {
	Seed    uint64
	Tiers   TierConfig
	Lease   time.Duration // how long a vanished client may reconnect; default 30 s
	MaxJobs int           // live jobs; default 256 (the daemon passes jobs.max)
	// IdleTimeout is how long a client may leave its batches untouched before it loses its rank; 0 = without limit.
	IdleTimeout time.Duration
	InFlight    int // preparations handed to the executor at once; default 8
	// Ahead is how many more may be handed out, so that the executor can read ahead. It must not begin one while 2 x
	// InFlight working copies exist.
	Ahead int
	// Bytes is the stored size of an object. It must be a pure lookup.
	Bytes func(ident.ObjectID) int64
	// Place is what an object is read from: what fails together. It must be a pure lookup. nil = all of a dataset is one.
	Place func(ident.ObjectID) ident.Place
	// Granule rounds the bytes of an entry of a form up to what the tier really uses. nil = exact.
	Granule func(f ident.Form, bytes int64) int64
	// Usable is how much of a tier's budget may be resident; the rest holds what was evicted while it is still being read.
	// nil = all of it.
	Usable func(budget int64) int64
	// Refill reports whether it pays to augment, while workers are idle and a client waits, what so many jobs of a share
	// group will take. nil = the model decides, from measured rates; a simulator without rates decides itself.
	Refill func(sharers int) bool
	// Evictor makes the policy of a tier. nil = cachepolicy.New.
	Evictor func(f ident.Form, policy string, r *xrand.Rand) (cachepolicy.Evictor, error)
}

// Core is the state machine: it composes the components of the package, and passes each event to the one that decides.
// They are listed from the lowest layer to the highest (see the package doc).
// Core is owned by Loop (or a simulator); it is not safe for concurrent use.
type Core struct {
	cfg     *Config
	step    *step      // the running Step: its time, its effects, its work
	roster  *roster    // live jobs, prefixes, share groups and datasets
	needs   *needs     // what is cached for whom, and who still needs it
	tiering *tiering   // how large the tiers are
	flights *flights   // preparations under way
	planner *planner   // batches, from the picks to the account
	life    *lifecycle // jobs, clients and epochs
}

// New returns a Core without jobs. Unknown policies are an error.
func New(cfg Config) (*Core, error) {
	if cfg.Lease <= 0 {
		cfg.Lease = 30 * time.Second
	}
	if cfg.MaxJobs <= 0 {
		cfg.MaxJobs = 256
	}
	if cfg.InFlight <= 0 {
		cfg.InFlight = 8
	}
	if cfg.Usable == nil {
		cfg.Usable = func(n int64) int64 { return n }
	}
	if cfg.Granule == nil {
		cfg.Granule = func(_ ident.Form, n int64) int64 { return n }
	}
	if cfg.Evictor == nil {
		cfg.Evictor = func(_ ident.Form, policy string, r *xrand.Rand) (cachepolicy.Evictor, error) {
			return cachepolicy.New(policy, r)
		}
	}
	c := compose(&cfg)
	index, err := c.tiering.begin()
	if err != nil {
		return nil, err
	}
	c.needs.index, c.flights.index = index, index
	return c, nil
}

// compose connects the components from the lowest layer to the highest, then gives the lower ones the functions that
// they need of higher ones. The index of the tiers is set by New.
func compose(cfg *Config) *Core {
	sampler := dsa.New(xrand.Hash(cfg.Seed, 2))
	sampler.InSlices()
	sampler.KeepApart()
	flying := new(flying)
	c := &Core{cfg: cfg}
	c.step = &step{persists: map[uint64]func(){}}
	c.roster = &roster{streams: map[ident.JobID]*stream{}, blocks: map[uint32]*heldBy{}}
	c.needs = &needs{step: c.step, roster: c.roster, sampler: sampler, flying: flying}
	c.tiering = &tiering{cfg: cfg, step: c.step, roster: c.roster, needs: c.needs, sampler: sampler}
	c.flights = &flights{
		cfg: cfg, step: c.step, roster: c.roster, needs: c.needs, tiering: c.tiering, sampler: sampler, flying: flying,
		flightByID: map[FlightID]*flight{}, quarantine: map[ident.Key]jobs.Bad{}, rng: xrand.New(cfg.Seed, 1),
	}
	c.planner = &planner{
		step: c.step, roster: c.roster, flights: c.flights, sampler: sampler, deliveries: map[DeliveryID]*delivery{},
	}
	c.life = &lifecycle{
		cfg: cfg, step: c.step, roster: c.roster, needs: c.needs, tiering: c.tiering, flights: c.flights, planner: c.planner,
		sampler: sampler, jobs: jobs.NewRegistry(cfg.Lease, cfg.MaxJobs),
	}
	c.flights.failRow, c.flights.settle = c.planner.failRow, c.planner.settle
	c.planner.advance, c.planner.endJob, c.planner.endIfDrained = c.life.advance, c.life.endJob, c.life.endIfDrained
	return c
}

var tierForms = [...]ident.Form{ident.Encoded, ident.Decoded, ident.Augmented}

// Step takes one event and appends its effects to out. The answers of the executor, of which there are most, may
// also come as pointers: they are not kept.
func (c *Core) Step(now time.Time, ev Event, out []Effect) []Effect {
	c.step.begin(now, out)
	c.handle(ev)

	// Work that grows with subsets or tiers is done in slices: each Step does a bounded part, see Deadline.
	c.planner.catchUp()
	c.planner.samplerSlice()
	c.planner.deal()
	c.planner.dropBlocks()
	c.tiering.countSlice()
	c.needs.refreshSlice()
	c.needs.sweepSlice()
	c.tiering.resizeSlice()
	c.needs.rankEncoded()

	c.flights.tryPlaces()
	c.flights.dispatch()
	c.flights.refill()
	c.needs.rankEncoded() // again, because refill may have displaced decoded samples

	return c.step.end()
}

// handle passes an event to the component that decides.
func (c *Core) handle(ev Event) {
	switch e := ev.(type) {
	case Register:
		c.life.register(e)
	case Attach:
		c.life.attach(e)
	case Registrant:
		registrant(c.life, e)
	case StartEpoch:
		c.life.startEpoch(e)
	case Picks:
		c.life.picks(e)
	case Released:
		c.life.released(e)
	case Detached:
		c.life.detached(e)
	case ClientGone:
		c.life.clientGone(e)
	case *Prepared:
		c.flights.prepared(*e)
	case Prepared:
		c.flights.prepared(e)
	case ItemRead:
		c.flights.itemRead(e)
	case *Filled:
		c.planner.filled(*e)
	case Filled:
		c.planner.filled(e)
	case BlockRead:
		c.planner.blockRead(e)
	case Persisted:
		c.step.persisted(e)
	case Tick:
		c.life.tick()
	case Reconfigure:
		c.tiering.reconfigure(e)
	case Drain:
		c.life.drain(e)
	case Kill:
		c.life.kill(e)
	case ChangeSubset:
		c.life.changeSubset(e)
	case Pause:
		c.life.pause(e)
	case Forget:
		c.needs.forget(e)
	case Restore:
		c.life.restore(e)
	case Measured:
		c.tiering.measured(e)
	case Solved:
		c.tiering.solved(e)
	default:
		invariant.Violated("coordinator: unknown event %T", ev)
	}
}

// Deadline returns when the next Tick is needed; zero = none is.
func (c *Core) Deadline() time.Time {
	if c.tiering.hasWork() || c.needs.hasWork() || c.planner.catchesUp() {
		return c.step.now
	}
	d := c.life.jobs.Deadline()
	if at := c.flights.nextTry(); !at.IsZero() && (d.IsZero() || at.Before(d)) {
		d = at
	}
	for _, s := range c.roster.order {
		for r := range s.job.Ranks {
			if at := c.life.idleOut(s, r); !at.IsZero() && (d.IsZero() || at.Before(d)) {
				d = at
			}
		}
		if !s.job.Active() || !s.draws() {
			continue
		}
		if at := c.life.idleAt(s); !at.IsZero() && (d.IsZero() || at.Before(d)) {
			d = at
		}
	}
	return d
}

// Members makes the set of a subset, for Register and ChangeSubset: it takes time in proportion (3 ms for 1.28 M
// objects), so callers use it outside of Step. Ids that the sampler will refuse are left out.
func Members(objects []ident.ObjectID) *bits.Set {
	m := new(bits.Set)
	for _, x := range objects {
		if x < dsa.MaxObjects {
			m.Add(uint32(x))
		}
	}
	return m
}

func jobGone(j ident.JobID, name string) error {
	who := fmt.Sprintf("job %d", j)
	if name != "" {
		who += " " + name
	}
	return errs.New(errs.JobEnded, name, "register it again", "%s has ended or was never registered", who)
}
