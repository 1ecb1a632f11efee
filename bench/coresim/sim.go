package coresim

import (
	"fmt"
	"io"
	"time"

	"github.com/cespare/xxhash/v2"

	"larder/bench/measure"
	"larder/dsa"
	"larder/internal/coordinator"
	"larder/internal/ident"
	"larder/internal/xrand"
	"larder/jobs"
)

// Client is a model of one job's training script; all its ranks behave alike.
type Client struct {
	Spec   jobs.Spec
	Sample dsa.JobSpec
	Prefix ident.RecipeID
	Suffix ident.RecipeID
	Share  bool
	Key    ident.RecipeID
	Data   ident.DatasetID // of its samples
	Names  []string        // of that dataset
	Start  time.Duration   // when it registers
	Step   time.Duration   // time it works on a batch
	Epochs int             // epochs it iterates, then it leaves
	// Break leaves every epoch of that number modulo after half of its batches, as a script's break does; 0 = never.
	Break int
	// Die kills rank 0's client (SIGKILL: no goodbye) when it got that many batches in all; 0 = never.
	Die int
	// Back is how long after its death another client takes rank 0 over; 0 = never.
	Back time.Duration
	// Steps are the times of single ranks in place of Step.
	Steps []time.Duration
	// Next is the time of the n-th batch of a rank in place of Step and Steps; nil = those.
	Next func(rank, n int) time.Duration
	// Leave is when it goes away, before its epochs are over; 0 = never.
	Leave time.Duration
	// Augmented is the bytes of one of its augmented samples; 0 = Model.Augment.
	Augmented int64
	// Measure is what the Collector gets to know of it.
	Measure measure.Demand
	// Hang stops it from taking anything for ever when it got that many batches in all, without dying; 0 = never.
	Hang int
	// Change gives the job another subset when a rank got that many batches in all: asked for by rank 0, or by each rank
	// alike.
	Change map[int][]ident.ObjectID
	Alike  bool
	// Pause pauses the job when rank 0 got that many batches in all, for PauseFor; 0 = never.
	Pause    int
	PauseFor time.Duration
}

// DataChange is something that happens to the dataset of all jobs: their subsets are selected again.
type DataChange struct {
	At   time.Duration
	Add  []ident.ObjectID // new objects, which every subset selects
	Gone []ident.ObjectID // objects that cannot be read any more
}

// Selection is a subset that a job was given and the first epoch of it.
type Selection struct {
	Epoch  uint32
	Subset []ident.ObjectID
}

// Storage is what objects are read from, by all workers and readers together: a token bucket as source.storage_limit is
// one, and a latency.
type Storage struct {
	Bandwidth float64       // bytes a second; 0 = no limit
	IOPS      float64       // objects a second; 0 = no limit
	Latency   time.Duration // of each read, beside what it waits
	Readers   int           // that read ahead of the workers while reads are slow, as exec's
}

// Model is the world around the coordinator.
type Model struct {
	Seed    uint64
	Workers int
	Cores   int           // that the workers have; 0 = one each
	Ahead   int           // preparations handed out beyond what the workers take, as coordinator.Config.Ahead
	Read    time.Duration // per object from storage, by the worker; only without Storage
	Storage *Storage
	Memory  float64 // bytes a second that rows are copied with, by all workers together; 0 = no limit
	Decode  func(ident.ObjectID) time.Duration
	Fill    time.Duration                      // augmenting a sample, and writing or copying its row
	Suffix  func(ident.ObjectID) time.Duration // augmenting a decoded sample into its row, in place of Fill; nil = Fill
	Finish  time.Duration                      // copying an augmented sample into its row, with Suffix
	InPlace func(ident.ObjectID) time.Duration // decoding straight into a row; nil = Decode and Fill, or Suffix
	Granule int64                              // bytes that entries are rounded up to; 0 = exact
	Measure time.Duration                      // between two reports of measured rates; 0 = there are none but Rates
	// Collect receives what clients see; nil = it is kept in the Result, and what the coordinator asks for is checked.
	Collect *measure.Collector
	// Decisions takes all that was decided, in order, as bytes; nil = only its hash is made.
	Decisions io.Writer
	// Progress is called with the virtual time now and then; an error that it returns ends the run. nil = no calls.
	Progress func(now time.Duration, samples uint64) error
	Bytes    func(ident.ObjectID) int64 // stored
	Decoded  func(ident.ObjectID) int64
	Augment  int64                     // bytes of an augmented sample
	Bad      map[ident.ObjectID]string // cannot be decoded
	Lose     int                       // loses a cached entry at every n-th use; 0 = never
	Tiers    coordinator.TierConfig
	Resize   map[time.Duration]coordinator.TierConfig
	Rates    map[time.Duration]coordinator.Rates // as measured from then on
	Data     []DataChange
	Lease    time.Duration
	Usable   func(int64) int64 // as coordinator.Config
	Refill   func(sharers int) bool
	// Check runs Core.Check after every n-th step; 0 = never.
	Check int
}

// Received is what one client saw of one epoch.
type Received struct {
	Job      string
	Rank     int
	Epoch    uint32
	IDs      []ident.ObjectID // in order
	Sizes    []int            // of batches
	Bad      []jobs.Bad
	Ended    bool // the client was notified that it is over
	Again    bool // by a client that took the rank over from a dead one
	Begun    time.Duration
	Finished time.Duration // 0 = it was not
	Account  *jobs.Ledger
	Instance map[ident.ObjectID]uint32
}

// Result is the outcome of a run.
type Result struct {
	Stats    coordinator.Stats
	Epochs   []*Received // in order of their beginning
	Elapsed  time.Duration
	Hash     uint64 // of every effect in order: equal seeds must give equal hashes
	Peak     [ident.NumForms]int64
	Solves   int // times that the split was asked for
	Copies   int // largest number of working copies at once
	Failures []string
	Jobs     []jobs.Job             // at the end
	Paused   int                    // pauses
	Subsets  map[string][]Selection // by job, in the order given; a later one for the same epoch replaces the earlier
	Tiers    []coordinator.TierView // at the end
	Events   uint64                 // that the coordinator handled, and picks
	Picks    uint64                 // among Events
	CutOff   bool                   // at the limit of virtual time; only with a Collector
}

// Subset is what a job was to draw in an epoch.
func (r *Result) Subset(job string, epoch uint32) []ident.ObjectID {
	var out []ident.ObjectID
	for _, s := range r.Subsets[job] {
		if s.Epoch <= epoch {
			out = s.Subset
		}
	}
	return out
}

// sim runs one scenario.
type sim struct {
	m      Model
	core   *coordinator.Core
	now    time.Duration
	seq    uint64
	agenda agenda
	steps  int
	events uint64 // steps and picks
	picks  uint64
	rng    *xrand.Rand
	hash   *xxhash.Digest
	note   []byte // what was decided and is not in the hash yet
	out    []coordinator.Effect
	res    *Result
	strict bool // nothing is believed, everything kept

	clients map[ident.JobID]*simClient
	tokens  map[coordinator.Token]func(coordinator.Reply)
	token   coordinator.Token

	augments []augmented // what jobs make
	ids      []uint32    // of the batch that is being received
	world
	filled coordinator.Filled // the one under way, so that a sample costs no allocation; so with what is made
	made   coordinator.Prepared
	timer  time.Time
	gone   map[ident.ObjectID]bool
}

// augmented is the size of what a suffix makes.
type augmented struct {
	suffix ident.RecipeID
	bytes  int64
}

type simClient struct {
	c        *Client
	id       ident.JobID
	ranks    []*simRank
	number   int // its number at the Collector
	departed bool
	rates    *rates // of what it prepares

	subset []ident.ObjectID // asked for last
	had    []ident.ObjectID // of all subsets that it was given
	mark   uint32
}

type simRank struct {
	rank    int
	inc     ident.Incarnation
	epoch   uint32
	got     int // batches in all
	inEpoch int
	bad     int // samples of the epoch that were left out with a report
	rec     *Received
	inbox   []coordinator.Deliver
	ended   map[uint32]*coordinator.EndEpoch
	busy    bool
	asked   bool
	gone    bool
	batches int           // of its epoch
	since   time.Duration // it wants a batch
}

var simEpoch = time.Unix(1_700_000_000, 0)

// Run simulates until every client left, or until limit of virtual time: then CutOff is set with a Collector, else it
// is a failure. The errors are those of the coordinator's configuration, and what Progress or Decisions return.
func Run(m Model, clients []Client, limit time.Duration) (*Result, error) {
	s := &sim{
		m: m, rng: xrand.New(m.Seed, 99), hash: xxhash.New(), res: &Result{Subsets: map[string][]Selection{}},
		gone: map[ident.ObjectID]bool{}, clients: map[ident.JobID]*simClient{},
		tokens: map[coordinator.Token]func(coordinator.Reply){}, strict: m.Collect == nil,
	}
	s.open()
	core, err := coordinator.New(coordinator.Config{
		Seed: m.Seed, Tiers: m.Tiers, Lease: m.Lease, InFlight: 2 * max(m.Workers, 1), Ahead: m.Ahead, Bytes: m.Bytes,
		Usable: m.Usable, Refill: m.Refill,
		Granule: func(_ ident.Form, n int64) int64 { return s.granules(n) },
	})
	if err != nil {
		return nil, err
	}
	s.core = core
	for _, t := range core.Tiers() {
		s.budget[t.Form] = t.Budget
	}
	s.pending = len(clients)
	for i := range clients {
		c := &clients[i]
		s.at(c.Start, func() { s.join(c) })
	}
	for at, t := range m.Resize {
		s.at(at, func() { s.step(coordinator.Reconfigure{Tiers: t}) })
	}
	for at, r := range m.Rates {
		s.at(at, func() { s.step(coordinator.Measured{Rates: r}) })
	}
	for _, d := range m.Data {
		s.at(d.At, func() { s.changeData(d) })
	}
	if m.Measure > 0 {
		s.at(m.Measure, s.measure)
	}
	err = func() (err error) {
		defer func() { // also in a panic: what was decided last shows why
			if late := s.settle(); err == nil {
				err = late
			}
		}()
		return s.loop(limit)
	}()
	if err != nil {
		return nil, err
	}
	r := s.res
	r.Stats, r.Elapsed, r.Hash, r.Jobs, r.Tiers, r.Events, r.Picks = core.Stats(), s.now, s.hash.Sum64(), core.Jobs(true),
		core.Tiers(), s.events, s.picks
	return r, nil
}

const progressEvery = 1 << 16 // events

func (s *sim) loop(limit time.Duration) error {
	last := s.events
	for len(s.agenda) > 0 && s.now <= limit && len(s.res.Failures) == 0 {
		if s.idle() {
			return nil
		}
		a := s.agenda.Pop()
		s.now = a.at
		switch {
		case a.do != nil:
			a.do()
		case a.read:
			s.haveRead(a.task)
		default:
			s.worked(a.task)
		}
		if s.events-last >= progressEvery {
			last = s.events
			if s.m.Progress != nil {
				if err := s.m.Progress(s.now, s.core.Stats().Samples); err != nil {
					return err
				}
			}
		}
		if len(s.note) >= noteAtOnce {
			if err := s.settle(); err != nil {
				return err
			}
		}
	}
	if s.now > limit {
		if s.strict {
			s.fail("still running after %s of virtual time", limit)
		}
		s.res.CutOff = true
	}
	return nil
}

const noteAtOnce = 1 << 14 // bytes

// settle enters what was decided into the hash, and writes it down.
func (s *sim) settle() error {
	_, _ = s.hash.Write(s.note)
	if s.m.Decisions != nil && len(s.note) > 0 {
		if _, err := s.m.Decisions.Write(s.note); err != nil {
			return fmt.Errorf("write down the decisions: %w", err)
		}
	}
	s.note = s.note[:0]
	return nil
}

// idle reports whether nothing but reports of rates is to come: all clients have come and gone. Only with a Collector:
// tests let every timer run out.
func (s *sim) idle() bool {
	return !s.strict && s.left == s.joined && s.pending == 0
}

func (s *sim) fail(format string, args ...any) {
	s.res.Failures = append(s.res.Failures, fmt.Sprintf("at %s: ", s.now)+fmt.Sprintf(format, args...))
}

func (s *sim) at(t time.Duration, do func()) {
	s.seq++
	s.agenda.Push(action{at: max(t, s.now), seq: s.seq, do: do})
}

func (s *sim) after(d time.Duration, do func()) { s.at(s.now+d, do) }

func (s *sim) step(ev coordinator.Event) {
	s.out = s.core.Step(simEpoch.Add(s.now), ev, s.out[:0])
	out := s.out
	s.out = nil // a step inside of what is done below has its own
	s.steps++
	s.events++
	for _, e := range out {
		s.describe(e)
	}
	for i, e := range out {
		s.do(e)
		out[i] = nil
	}
	s.out = out
	if s.m.Check > 0 && s.steps%s.m.Check == 0 {
		if err := s.core.Check(); err != nil {
			s.fail("after %T: %v", ev, err)
		}
	}
	switch ev.(type) {
	case *coordinator.Filled, *coordinator.Prepared: // most of all; others follow soon that look at the time
		if !s.strict {
			return
		}
	}
	if d := s.core.Deadline(); !d.IsZero() && !d.Equal(s.timer) {
		s.timer = d
		s.at(d.Sub(simEpoch), func() {
			if s.timer.Equal(d) {
				s.timer = time.Time{}
				s.step(coordinator.Tick{})
			}
		})
	}
}

func (s *sim) ask(build func(coordinator.Token) coordinator.Event, then func(coordinator.Reply)) {
	s.token++
	s.tokens[s.token] = then
	s.step(build(s.token))
}

func (s *sim) do(eff coordinator.Effect) {
	switch x := eff.(type) {
	case coordinator.Prepare:
		s.work(task{turn: x.Turn, what: eff, object: x.Key.Object, fresh: x.Into == nil, read: x.From == ident.Stored})
	case coordinator.Augment:
		s.work(task{turn: x.Turn, what: eff, object: x.Key.Object})
	case *coordinator.Fill:
		s.work(task{turn: x.Turn, what: eff, object: x.Object})
	case coordinator.Discard:
		if !s.copies[x.Flight] {
			s.fail("working copy %d is discarded but does not exist", x.Flight)
		}
		delete(s.copies, x.Flight)
		s.serve() // a worker may wait for room
	case coordinator.FreeKey:
		s.free(x.Key)
	case coordinator.SetBudget:
		s.budget[x.Form] = x.Bytes
	case coordinator.Solve: // the daemon takes milliseconds for it; here they do not count
		s.res.Solves++
		s.after(0, func() { s.step(x.Do()) })
	case coordinator.Deliver:
		s.deliver(x)
	case coordinator.EndEpoch:
		s.endEpoch(x)
	case coordinator.CloseRank:
		if c := s.clients[x.Job]; c != nil && c.ranks[x.Rank] != nil && c.ranks[x.Rank].inc == x.Inc {
			c.ranks[x.Rank].gone = true
		}
	case coordinator.Persist:
		if n := assigned(x.Record); n > 0 {
			s.events, s.picks = s.events+n, s.picks+n
		}
		s.after(50*time.Microsecond, func() { s.step(coordinator.Persisted{Seq: x.Seq}) })
	case coordinator.Reply:
		if then := s.tokens[x.Token]; then != nil {
			delete(s.tokens, x.Token)
			s.after(0, func() { then(x) })
		}
	case coordinator.Complain:
		s.fail("job %d: %s", x.Job, x.Text)
	}
}
