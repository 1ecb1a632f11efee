package bench

import (
	"container/heap"
	"fmt"
	"time"

	"github.com/cespare/xxhash/v2"

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
	// Hang stops it from taking anything for ever when it got that many batches in all, without dying; 0 = never.
	Hang int
	// Change gives the job another subset when a rank got that many batches in all: asked for by rank 0, or by each rank alike.
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

// Model is the world around the coordinator.
type Model struct {
	Seed    uint64
	Workers int
	Ahead   int           // preparations handed out beyond what the workers take, as coordinator.Config.Ahead
	Read    time.Duration // per object from storage
	Decode  func(ident.ObjectID) time.Duration
	Fill    time.Duration
	Bytes   func(ident.ObjectID) int64 // stored
	Decoded func(ident.ObjectID) int64
	Augment int64                     // bytes of an augmented sample
	Bad     map[ident.ObjectID]string // cannot be decoded
	Lose    int                       // loses a cached entry at every n-th use; 0 = never
	Tiers   coordinator.TierConfig
	Resize  map[time.Duration]coordinator.TierConfig
	Rates   map[time.Duration]coordinator.Rates // as measured from then on
	Data    []DataChange
	Lease   time.Duration
	Usable  func(int64) int64 // as coordinator.Config
	Refill  func(sharers int) bool
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
	Ended    bool // told that it is over
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

type action struct {
	at  time.Duration
	seq int
	do  func()
}

type agenda []action

func (a agenda) Len() int { return len(a) }
func (a agenda) Less(i, j int) bool {
	if a[i].at != a[j].at {
		return a[i].at < a[j].at
	}
	return a[i].seq < a[j].seq
}
func (a agenda) Swap(i, j int) { a[i], a[j] = a[j], a[i] }
func (a *agenda) Push(x any)   { *a = append(*a, x.(action)) }
func (a *agenda) Pop() any {
	old := *a
	x := old[len(old)-1]
	*a = old[:len(old)-1]
	return x
}

// sim runs one scenario.
type sim struct {
	m      Model
	core   *coordinator.Core
	now    time.Duration
	seq    int
	agenda agenda
	steps  int
	rng    *xrand.Rand
	hash   *xxhash.Digest
	res    *Result

	clients map[ident.JobID]*simClient
	tokens  map[coordinator.Token]func(coordinator.Reply)
	token   coordinator.Token

	store  map[ident.Key]int64 // bytes really held
	used   [ident.NumForms]int64
	budget [ident.NumForms]int64
	copies map[coordinator.FlightID]bool
	rows   map[coordinator.DeliveryID]map[int]simRow
	idle   int    // workers
	tasks  agenda // by turn
	uses   int
	timer  time.Time
	gone   map[ident.ObjectID]bool
}

type simRow struct {
	object   ident.ObjectID
	instance uint32
}

type simClient struct {
	c     *Client
	id    ident.JobID
	ranks []*simRank

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
	rec     *Received
	inbox   []coordinator.Deliver
	ended   map[uint32]*coordinator.EndEpoch
	busy    bool
	asked   bool
	gone    bool
	batches int // of its epoch
}

var simEpoch = time.Unix(1_700_000_000, 0)

// Run simulates until every client left, or until limit of virtual time.
func Run(m Model, clients []Client, limit time.Duration) (*Result, error) {
	s := &sim{
		m: m, rng: xrand.New(m.Seed, 99), hash: xxhash.New(), res: &Result{Subsets: map[string][]Selection{}}, gone: map[ident.ObjectID]bool{}, clients: map[ident.JobID]*simClient{},
		tokens: map[coordinator.Token]func(coordinator.Reply){}, store: map[ident.Key]int64{}, copies: map[coordinator.FlightID]bool{},
		rows: map[coordinator.DeliveryID]map[int]simRow{}, idle: max(m.Workers, 1),
	}
	core, err := coordinator.New(coordinator.Config{
		Seed: m.Seed, Tiers: m.Tiers, Lease: m.Lease, InFlight: 2 * max(m.Workers, 1), Ahead: m.Ahead, Bytes: m.Bytes, Usable: m.Usable, Refill: m.Refill,
	})
	if err != nil {
		return nil, err
	}
	s.core = core
	for _, t := range core.Tiers() {
		s.budget[t.Form] = t.Budget
	}
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
	for len(s.agenda) > 0 && s.now <= limit && len(s.res.Failures) == 0 {
		a := heap.Pop(&s.agenda).(action)
		s.now = a.at
		a.do()
	}
	if s.now > limit {
		s.fail("still running after %s of virtual time", limit)
	}
	s.res.Stats, s.res.Elapsed, s.res.Hash, s.res.Jobs = core.Stats(), s.now, s.hash.Sum64(), core.Jobs(true)
	return s.res, nil
}

func (s *sim) fail(format string, args ...any) {
	s.res.Failures = append(s.res.Failures, fmt.Sprintf("at %s: ", s.now)+fmt.Sprintf(format, args...))
}

func (s *sim) at(t time.Duration, do func()) {
	s.seq++
	heap.Push(&s.agenda, action{max(t, s.now), s.seq, do})
}

func (s *sim) after(d time.Duration, do func()) { s.at(s.now+d, do) }

func (s *sim) step(ev coordinator.Event) {
	out := s.core.Step(simEpoch.Add(s.now), ev, nil)
	s.steps++
	for _, e := range out {
		fmt.Fprintf(s.hash, "%T%+v", e, describeEffect(e))
		s.do(e)
	}
	if s.m.Check > 0 && s.steps%s.m.Check == 0 {
		if err := s.core.Check(); err != nil {
			s.fail("after %T: %v", ev, err)
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

// describeEffect leaves out what is no value: errors and accounts print as addresses.
func describeEffect(e coordinator.Effect) any {
	switch x := e.(type) {
	case coordinator.Reply:
		return [3]any{x.Token, x.Job, x.Inc}
	case coordinator.EndEpoch:
		return [4]any{x.Job, x.Rank, x.Epoch, x.Batches}
	case coordinator.Prepare:
		if x.Into == nil {
			return x
		}
		into := *x.Into
		x.Into = nil
		return [2]any{x, into}
	case coordinator.Solve: // its demand has pointers
		return [2]any{x.Seq, x.Now}
	}
	return e
}

func (s *sim) ask(build func(coordinator.Token) coordinator.Event, then func(coordinator.Reply)) {
	s.token++
	s.tokens[s.token] = then
	s.step(build(s.token))
}

func (s *sim) do(eff coordinator.Effect) {
	switch x := eff.(type) {
	case coordinator.Prepare:
		cost := s.m.Read + s.m.Decode(x.Key.Object)
		if x.Into != nil {
			cost += s.m.Fill
		}
		s.work(x.Turn, cost, func() { s.prepared(x) })
	case coordinator.Augment:
		s.work(x.Turn, s.m.Fill, func() { s.augmented(x) })
	case *coordinator.Fill:
		s.work(x.Turn, s.m.Fill, func() { s.fill(x) })
	case coordinator.Discard:
		if !s.copies[x.Flight] {
			s.fail("working copy %d is discarded but does not exist", x.Flight)
		}
		delete(s.copies, x.Flight)
	case coordinator.FreeKey:
		s.used[x.Key.Form] -= s.store[x.Key]
		delete(s.store, x.Key)
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

// work queues a task for the workers, who take tasks by turn.
func (s *sim) work(turn uint64, cost time.Duration, done func()) {
	s.seq++
	heap.Push(&s.tasks, action{time.Duration(turn), s.seq, func() {
		s.after(cost, func() {
			s.idle++
			done()
			s.serve()
		})
	}})
	s.serve()
}

func (s *sim) serve() {
	for s.idle > 0 && len(s.tasks) > 0 {
		s.idle--
		heap.Pop(&s.tasks).(action).do()
	}
}

// put is the store: it refuses what exceeds the budget.
func (s *sim) put(k ident.Key, n int64) bool {
	if s.used[k.Form]+n > s.budget[k.Form] {
		return false
	}
	if _, there := s.store[k]; there {
		s.fail("%s is stored twice", k)
	}
	s.store[k] = n
	s.used[k.Form] += n
	s.res.Peak[k.Form] = max(s.res.Peak[k.Form], s.used[k.Form])
	return true
}

func (s *sim) copy(id coordinator.FlightID) {
	s.copies[id] = true
	s.res.Copies = max(s.res.Copies, len(s.copies))
}

// lost makes a cache lose an entry now and then.
func (s *sim) lost(k ident.Key) bool {
	s.uses++
	if s.m.Lose > 0 && s.uses%s.m.Lose == 0 {
		s.used[k.Form] -= s.store[k]
		delete(s.store, k)
		return true
	}
	return false
}

func (s *sim) prepared(x coordinator.Prepare) {
	o := x.Key.Object
	ev := coordinator.Prepared{Flight: x.Flight, Bytes: s.m.Decoded(o)}
	ekey := ident.Key{Object: o, Form: ident.Encoded}
	if x.From == ident.Encoded {
		if _, there := s.store[ekey]; !there || s.lost(ekey) {
			ev.Lost = true
			s.step(ev)
			return
		}
	} else {
		ev.Read = s.m.Bytes(o)
		if x.KeepEncoded {
			ev.Encoded = s.put(ekey, ev.Read)
		}
	}
	if why, bad := s.m.Bad[o]; bad {
		ev.Err = why
	} else if s.gone[o] && x.From == ident.Stored {
		ev.Err, ev.Read, ev.Encoded = "no such file", 0, false
		if x.KeepEncoded && s.store[ekey] > 0 {
			s.used[ident.Encoded] -= s.store[ekey]
			delete(s.store, ekey)
		}
	} else if x.Into != nil {
		if x.Keep {
			s.fail("%s is prepared in place, and to be kept", x.Key)
		}
		s.row(x.Into)
		ev.Augments = 1
	} else if ev.Kept = x.Keep && s.put(x.Key, ev.Bytes); !ev.Kept {
		s.copy(x.Flight)
	}
	s.step(ev)
}

func (s *sim) row(x *coordinator.Fill) {
	if s.rows[x.Delivery] == nil {
		s.rows[x.Delivery] = map[int]simRow{}
	}
	s.rows[x.Delivery][x.Row] = simRow{x.Object, x.Instance}
}

// source checks that what the coordinator points to is really there.
func (s *sim) source(from coordinator.Source) (ok bool) {
	if from.Flight != 0 {
		if !s.copies[from.Flight] {
			s.fail("working copy %d is read but does not exist", from.Flight)
		}
		return true
	}
	if _, there := s.store[from.Key]; !there {
		if s.m.Lose == 0 && !s.gone[from.Key.Object] { // else a job knows that it is gone, and this one does not yet
			s.fail("%s is read but not stored", from.Key)
		}
		return false
	}
	return !s.lost(from.Key)
}

func (s *sim) augmented(x coordinator.Augment) {
	ev := coordinator.Prepared{Flight: x.Flight, Bytes: s.m.Augment}
	if !s.source(x.From) {
		ev.Lost = true
	} else if ev.Kept = x.Keep && s.put(x.Key, ev.Bytes); !ev.Kept {
		s.copy(x.Flight)
	}
	s.step(ev)
}

func (s *sim) fill(x *coordinator.Fill) {
	ev := coordinator.Filled{Delivery: x.Delivery, Row: x.Row}
	if !s.source(x.From) {
		ev.Lost = true
	} else {
		s.row(x)
		if x.From.Key.Form == ident.Decoded {
			ev.Augments = 1
		} else if x.From.Key.Instance != x.Instance {
			s.fail("instance %d was put where %d belongs", x.From.Key.Instance, x.Instance)
		}
	}
	s.step(ev)
}
