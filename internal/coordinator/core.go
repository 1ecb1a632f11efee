package coordinator

import (
	"time"

	"larder/cachepolicy"
	"larder/cachepolicy/partition"
	"larder/dsa"
	"larder/internal/bits"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/invariant"
	"larder/internal/xrand"
	"larder/jobs"
	"larder/tiers/residency"
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
	Lease   time.Duration // a vanished client may come back within it; default 30 s
	MaxJobs int           // live jobs; default 256
	// IdleTimeout is how long a client may do nothing with its batches before it loses its rank; 0 = for ever.
	IdleTimeout time.Duration
	InFlight    int // preparations handed to the executor at once; default 8
	// Ahead is how many more may be handed out, so that the executor can read ahead. It must not begin one while 2 x InFlight working copies exist.
	Ahead int
	// Bytes is the stored size of an object. It must be a pure lookup.
	Bytes func(ident.ObjectID) int64
	// Granule rounds the bytes of an entry of a form up to what the tier really uses. nil = exact.
	Granule func(f ident.Form, bytes int64) int64
	// Usable is how much of a tier's budget may be resident; the rest holds what was evicted while it is still being read.
	// nil = all of it.
	Usable func(budget int64) int64
	// Refill tells whether it pays to augment, while workers are idle and a client waits, what so many jobs of a share group will take.
	// nil = the model tells, from measured rates; a simulator without rates tells it itself.
	Refill func(sharers int) bool
	// Evictor makes the policy of a tier. nil = cachepolicy.New.
	Evictor func(f ident.Form, policy string, r *xrand.Rand) (cachepolicy.Evictor, error)
}

// Core is the state machine. Owned by Loop (or a simulator); not safe for concurrent use.
type Core struct {
	cfg     Config
	now     time.Time
	out     []Effect // of the running Step
	rng     *xrand.Rand
	sampler *dsa.Sampler
	index   *residency.Index
	budgets [ident.NumForms]int64 // of the tiers; index knows the usable part
	jobs    *jobs.Registry
	streams map[ident.JobID]*stream // lookups only; iteration goes through order
	order   []*stream               // live streams by job id
	// What nearly every Step would look for in vain is looked for only when it may be there.
	awaiting bool // some stream waits or is owed rows
	catching bool // some stream is catching up
	dealing  bool // steps of some stream are to be looked at

	prefixes []prefix // recipe prefixes ever used, few; position is stable
	groups   []*group // share groups that have members
	lastID   uint32   // of a group
	inOrder  bool     // a job whose order is not exchangeable has drawn, for Check

	flights    flying // under way, by what they make
	flightByID map[FlightID]*flight
	nextFlight FlightID
	queue      turns  // not yet handed out
	onCopies   turns  // the same, of those that start from a working copy
	copies     int    // working copies that are there
	turn       uint64 // the latest turn served
	running    int    // handed out

	deliveries   map[DeliveryID]*delivery
	nextDelivery DeliveryID
	persists     map[uint64]func() // what waits for a record
	nextSeq      uint64
	durable      uint64 // the newest record that is

	quarantine map[ident.Key]jobs.Bad // decoded forms that cannot be made; lookups only
	slice      int                    // objects of the sampler's work that this Step may still do
	count      int                    // objects of subsets that this Step may still count
	spent      spent
	auto       [ident.NumForms]bool
	target     [ident.NumForms]int64 // what budgets are to become
	resizing   bool                  // they are not that yet
	resizers   []Token               // who waits for it
	model      model
	datasets   []dataset               // of all jobs that ever were; position is stable
	shares     [ident.NumForms]*shares // nil without quotas
	wanted     wanted                  // the union of all subsets
	refresh    refresh                 // needs being recomputed in slices
	bared      []ident.ObjectID        // objects of which a decoded form left in this Step

	stats Stats
}

// stream is a job's part in the core.
type stream struct {
	job      *jobs.Job
	dataset  int // index in datasets
	since    mark
	sample   dsa.JobSpec
	prefix   int // index in prefixes
	suffix   ident.RecipeID
	group    *group // nil unless it shares augmented samples
	seed     uint64 // of its random parameters
	augBytes int64
	joined   bool             // the sampler knows it
	set      bits.JobSet      // it alone, when it is joined
	given    bool             // something of instance last was given to it
	last     uint32           // the newest instance of which it was given something
	turn     uint64           // of its last planned sample
	stored   meter            // bytes of the objects that were prepared for it
	waits    bool             // it has room, and the sampler is not ready for it
	owed     []owed           // rows that wait for the sampler to be ready
	next     []ident.ObjectID // the subset of job.Next
	gone     *bits.Set        // objects that do not exist any more; nil = none
	tail     int              // positional orders: positions from here on were used as substitutes
	ranks    []rankQueue
	knownBad *bits.Set  // quarantined samples that the journal has for it
	rest     *Rest      // what the job is to begin with
	places   []uint32   // positional orders, in what is left of an epoch: its positions
	catching []catching // what the sampler is to be told of it
	deal     bool       // its steps are to be looked at
	script   []Scripted // orders that were given; nil = none
}

// rankQueue is what is planned for a rank and not sent yet, in order of delivery.
type rankQueue struct {
	planned []*delivery
	back    []back // restored; to be given again, oldest first
	// returned says that its client held the rank before it attached: it may go on where it was.
	returned bool
	recovery recovery
	sent     []*delivery // that the client has not given back: it may not have got them
	lastEnd  EndEpoch    // the last that was sent
	lives    bool        // the process of the client that vanished does: it has not looked yet
	kept     *kept       // where its client was that vanished; nil = it is there, or nothing is kept
}

type prefix struct {
	id      ident.RecipeID
	decoded meter       // bytes of decoded samples of this prefix
	jobs    bits.JobSet // joined jobs that have it
}

// group is jobs that share augmented samples: equal dataset and recipe, one seed.
type group struct {
	id      uint32
	key     ident.RecipeID
	seed    uint64
	suffix  ident.RecipeID
	members []*stream // live
	degree  float64   // members that one augmentation served when it was measured last, without what the tier served; 0 = not measured
}

// meter keeps a mean of sizes.
type meter struct {
	n   int64
	sum int64
}

func (m *meter) add(v int64) { m.n++; m.sum += v }

func (m *meter) mean(fallback int64) int64 {
	if m.n == 0 {
		return fallback
	}
	return m.sum / m.n
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
	c := &Core{
		cfg: cfg, rng: xrand.New(cfg.Seed, 1), sampler: dsa.New(xrand.Hash(cfg.Seed, 2)),
		jobs: jobs.NewRegistry(cfg.Lease, cfg.MaxJobs), streams: map[ident.JobID]*stream{},
		flightByID: map[FlightID]*flight{},
		deliveries: map[DeliveryID]*delivery{}, persists: map[uint64]func(){}, quarantine: map[ident.Key]jobs.Bad{},
	}
	c.sampler.InSlices()
	var budgets [ident.NumForms]int64
	var evict [ident.NumForms]residency.Evictor
	for _, f := range tierForms {
		p := cfg.Tiers.Policy[f]
		if p == "" {
			p = "need"
		}
		e, err := c.evictor(f, p)
		if err != nil {
			return nil, err
		}
		evict[f] = e
	}
	if m := cfg.Tiers.Model; m != SimpleModel {
		if _, err := partition.New(m); err != nil {
			return nil, err
		}
	}
	split, why, err := c.split(cfg.Tiers)
	c.stats.Why = why
	if err == nil {
		err = c.checkQuotas(cfg.Tiers)
	}
	if err != nil {
		return nil, err
	}
	c.budgets, c.target = split, split
	for _, f := range tierForms {
		budgets[f] = cfg.Usable(split[f])
		c.auto[f] = cfg.Tiers.Sizes[f] < 0
	}
	c.index = residency.New(budgets, evict)
	for _, f := range tierForms {
		c.index.SetLeavingLimit(f, c.leaving(f))
	}
	c.setRoom()
	return c, nil
}

// spent is the work of the running Step that grows with subsets or tiers, for tests that bound it: objects of subsets and entries
// of tiers looked at.
type spent struct{ sampler, counted, refresh, shrunk int }

var tierForms = [...]ident.Form{ident.Encoded, ident.Decoded, ident.Augmented}

// Step takes one event and appends what is to be done to out. The answers of the executor, of which there are most, may also come as pointers: they
// are not kept.
func (c *Core) Step(now time.Time, ev Event, out []Effect) []Effect {
	c.now, c.out, c.slice, c.count, c.spent = now, out, samplerPerStep, countPerStep, spent{}
	switch e := ev.(type) {
	case Register:
		c.register(e)
	case Attach:
		c.attach(e)
	case StartEpoch:
		c.startEpoch(e)
	case Released:
		c.released(e)
	case Detached:
		c.detached(e)
	case ClientGone:
		c.clientGone(e)
	case *Prepared:
		c.prepared(*e)
	case Prepared:
		c.prepared(e)
	case *Filled:
		c.filled(*e)
	case Filled:
		c.filled(e)
	case Persisted:
		c.persisted(e)
	case Tick:
		c.tick()
	case Reconfigure:
		c.reconfigure(e)
	case Drain:
		c.drain(e)
	case Kill:
		c.kill(e)
	case ChangeSubset:
		c.changeSubset(e)
	case Pause:
		c.pause(e)
	case Forget:
		c.forget(e)
	case Restore:
		c.restore(e)
	case Measured:
		c.measured(e)
	case Solved:
		c.solved(e)
	default:
		invariant.Violated("coordinator: unknown event %T", ev)
	}
	c.catchUp()
	c.samplerSlice()
	c.deal()
	c.countSlice()
	c.refreshSlice()
	c.resizeSlice()
	c.rankEncoded()
	c.dispatch()
	c.refill()
	c.rankEncoded()
	out, c.out = c.out, nil
	return out
}

// Deadline is when Tick is next needed; zero = not at all.
func (c *Core) Deadline() time.Time {
	if c.resizing || c.refresh.left > 0 || len(c.wanted.walks) > 0 || c.sampler.Work(0) || c.catchesUp() {
		return c.now
	}
	d := c.jobs.Deadline()
	for _, s := range c.order {
		for r := range s.job.Ranks {
			if at := c.idleOut(s, r); !at.IsZero() && (d.IsZero() || at.Before(d)) {
				d = at
			}
		}
		if !s.job.Active || !s.joined {
			continue
		}
		if at := c.idleAt(s); !at.IsZero() && (d.IsZero() || at.Before(d)) {
			d = at
		}
	}
	return d
}

func (c *Core) emit(e Effect) { c.out = append(c.out, e) }

// persist has a record made durable, and does then once it is.
func (c *Core) persist(r Record, then func()) {
	c.nextSeq++
	if then != nil {
		c.persists[c.nextSeq] = then
	}
	c.emit(Persist{Seq: c.nextSeq, Record: r})
}

func (c *Core) persisted(e Persisted) {
	c.durable = max(c.durable, e.Seq)
	if then := c.persists[e.Seq]; then != nil {
		delete(c.persists, e.Seq)
		then()
	}
}

// answer is reply, once all that was persisted before is durable: what a client was told is so after a crash too.
func (c *Core) answer(t Token, r Reply) {
	if c.durable >= c.nextSeq {
		c.reply(t, r)
		return
	}
	before := c.persists[c.nextSeq]
	c.persists[c.nextSeq] = func() {
		if before != nil {
			before()
		}
		c.reply(t, r)
	}
}

func (c *Core) reply(t Token, r Reply) {
	if t != 0 {
		r.Token = t
		c.emit(r)
	}
}

func (c *Core) complain(j ident.JobID, err error) {
	c.stats.Violations++
	c.emit(Complain{Job: j, Text: err.Error()})
}

// live returns the stream and the rank if the incarnation still holds it.
func (c *Core) live(j ident.JobID, r int, inc ident.Incarnation) (*stream, *jobs.Rank) {
	s := c.streams[j]
	if s == nil || r < 0 || r >= len(s.job.Ranks) {
		return nil, nil
	}
	k := &s.job.Ranks[r]
	if !k.Attached() || k.Incarnation != inc {
		return nil, nil
	}
	return s, k
}

// Members makes the set of a subset, for Register and ChangeSubset: it takes time in proportion (3 ms for 1.28 M objects), so it is for
// who asks, not for Step. Ids that the sampler will refuse are left out.
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
	return errs.New(errs.JobEnded, name, "register it again", "job %d %s has ended or was never registered", j, name)
}
