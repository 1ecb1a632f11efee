// Package policysim replays one trace against many cache policies and capacities at once: each block of requests is
// handed to every policy before the next one is read. It is right where orders do not depend on what is in memory
// (trace.Prescribed); where they do, bench.RunSampler runs one sampler for each policy.
//
// It holds no policy: the registry of cachepolicy is the daemon's own. What it owns is the cache around it (a dense
// table from object to handle), what jobs still need, and the future that belady and clairvoyant-k are given. Beside
// them it reports what no cache, an unlimited one and no order at all would do.
package policysim

import (
	"fmt"
	"runtime"
	"slices"
	"sync"

	"larder/bench/bound"
	"larder/bench/trace"
	"larder/cachepolicy"
	"larder/internal/errs"
	"larder/internal/units"
	"larder/internal/xrand"
	"larder/tiers/tinylfu"
)

// Config says what to run.
type Config struct {
	Policies  []string // of the registry, or tinylfu; none = all of the registry, whose figures are the same every time
	Caches    []int64  // capacities in bytes (samples, when all have size 1); at least one
	Warm      int      // epochs of each job that hits are not counted in
	Seed      uint64   // of policies that draw
	Workers   int      // goroutines; 0 = one for each core
	MaxMemory uint64   // bytes; 0 = no limit
	UnitSize  bool     // ignore the sizes of the trace
	Progress  func(done, all int)

	tellNeeds bool // to all policies, for a test
}

// Report is what Run found. Ratios are of the counted requests, those after the warm-up; Loads and bounds are of the
// whole trace.
type Report struct {
	Trace      string   `json:"trace"`
	TraceSeed  uint64   `json:"trace_seed"`
	Seed       uint64   `json:"seed"`
	Jobs       []string `json:"jobs"`
	Objects    int      `json:"objects"`
	Unique     int      `json:"unique"`       // objects that are asked for
	Bytes      int64    `json:"unique_bytes"` // of those
	Requests   int      `json:"requests"`
	Counted    int      `json:"counted"`
	Warm       int      `json:"warm_epochs"`
	UnitSize   bool     `json:"unit_size"`
	Prescribed bool     `json:"prescribed"`          // no order depended on what was in memory
	LooksJob   string   `json:"looks_job,omitempty"` // one whose did
	// some job asks twice for an object in an epoch: the bound is the compulsory one
	Repeats bool  `json:"repeats_in_an_epoch"`
	Rows    []Row `json:"rows"` // by capacity, then in the order asked for
}

// Row is one policy at one capacity.
type Row struct {
	Policy    string  `json:"policy"`
	Cache     int64   `json:"cache"`       // bytes, or samples of size 1
	Share     float64 `json:"cache_share"` // of the unique bytes
	Hits      int     `json:"hits"`        // of the counted requests
	HitRatio  float64 `json:"hit_ratio"`
	MissRatio float64 `json:"miss_ratio"`
	// of lower-bound: every object once, and what is loaded again as if it were the smallest
	ByteMiss  float64   `json:"byte_miss_ratio"`
	Loads     int       `json:"loads"`            // of the whole trace
	PerUnique float64   `json:"loads_per_unique"` // loads / unique
	Bound     int       `json:"loads_lower_bound"`
	OverBound float64   `json:"loads_over_bound"`
	Admitted  int       `json:"admitted"`
	Evicted   int       `json:"evicted"`
	JobRatios []float64 `json:"job_hit_ratios,omitempty"`
	Jain      float64   `json:"jain_of_job_hit_ratios"`
	// a row that no daemon can have: unbounded, belady, clairvoyant-k, lower-bound
	Bounding bool   `json:"bound,omitempty"`
	Breaks   string `json:"breaks,omitempty"`
}

// Rows that are always there beside the policies.
const (
	Independent = "independent" // no cache at all
	Unbounded   = "unbounded"
	LowerBound  = "lower-bound" // no order, policy or foresight loads less
)

// MaxCaches is how many capacities a run may have.
const MaxCaches = 64

// block is how many requests every policy handles before the next ones: few enough that they stay in the processor's
// cache.
const block = 1024

// Run replays the trace. The errors are INVALID_ARGUMENT (an unknown policy, no capacity, an empty trace),
// RESOURCE_EXCEEDED with the estimate, and what stop, which may be nil, returns.
func Run(t *trace.Trace, c Config, stop func() error) (*Report, error) {
	if err := c.check(t); err != nil {
		return nil, err
	}
	r := &run{t: t, c: &c}
	r.measure()
	if r.counted == 0 {
		return nil, errs.New(errs.Invalid, "warm", "count fewer epochs as warm-up",
			"no job has more than %d epochs: a warm-up of %d leaves no request to count", r.epochs(), c.Warm)
	}
	if err := r.fits(); err != nil {
		return nil, err
	}
	defer r.close()
	if err := r.lanes(); err != nil {
		return nil, err
	}
	if err := r.replay(stop); err != nil {
		return nil, err
	}
	return r.report(), nil
}

func (c *Config) check(t *trace.Trace) error {
	if t.Pick.Len() == 0 {
		return errs.New(errs.Invalid, "trace", "name a trace with picks in it", "the trace %.60q has no requests", t.Name)
	}
	if len(c.Policies) == 0 {
		c.Policies = cachepolicy.Names()
	}
	for _, p := range c.Policies {
		if !known(p) {
			return errs.New(errs.Invalid, "policies", cachepolicy.Hint(p, tinylfu.Names()), "unknown cache policy %.40q", p)
		}
	}
	if len(c.Caches) == 0 || len(c.Caches) > MaxCaches {
		return errs.New(errs.Invalid, "cache", "e.g. 1%,5%,20%", "%d capacities are asked for, 1 to %d are possible",
			len(c.Caches), MaxCaches)
	}
	if i := slices.IndexFunc(c.Caches, func(n int64) bool { return n < 0 }); i >= 0 {
		return errs.New(errs.Invalid, "cache", "e.g. 1%,5%,20%", "a cache of %d bytes is not possible", c.Caches[i])
	}
	if c.Warm < 0 {
		return errs.New(errs.Invalid, "warm", "choose 0 or more", "%d epochs cannot be left out", c.Warm)
	}
	if c.Workers <= 0 {
		c.Workers = runtime.GOMAXPROCS(0)
	}
	return nil
}

// known asks the registry, clairvoyant-100 and tinylfu included.
func known(policy string) bool { return policy != "" && tinylfu.Known(policy) }

// run is one replay.
type run struct {
	t        *trace.Trace
	c        *Config
	sizes    []uint32 // nil = 1 each
	unique   int
	bytes    int64
	repeats  bool
	counted  int
	countedB int64
	first    []int // by job: counted requests that are the first for their object
	firstB   int64
	allB     int64    // bytes of all requests
	least    int64    // bytes of the smallest object that is asked for
	perJob   []int    // counted requests
	next     []uint32 // for belady
	jobNext  []uint32 // for clairvoyant-k, when repeats
	all      []*lane
}

// measure goes over the trace once for what every row needs.
func (r *run) measure() {
	t := r.t
	if !r.c.UnitSize {
		r.sizes = t.Sizes
	}
	jobs := len(t.Jobs)
	r.first, r.perJob = make([]int, jobs), make([]int, jobs)
	seen := make([]bool, t.Objects)
	epoch := make([]int, jobs)
	words := (t.Objects + 63) / 64
	got := make([][]uint64, jobs)
	for i, x := range t.Pick.Object {
		j := t.Pick.Job[i]
		k := j & trace.JobMask
		if j&trace.Begins != 0 {
			epoch[k]++
			if got[k] == nil {
				got[k] = make([]uint64, words)
			}
			clear(got[k])
		}
		if b := uint64(1) << (x & 63); got[k][x>>6]&b != 0 {
			r.repeats = true
		} else {
			got[k][x>>6] |= b
		}
		n := r.size(x)
		r.allB += n
		if epoch[k] > r.c.Warm {
			r.perJob[k]++
			r.counted++
			r.countedB += n
			if !seen[x] {
				r.first[k]++
				r.firstB += n
			}
		}
		if !seen[x] {
			seen[x] = true
			r.unique++
			r.bytes += n
			if r.unique == 1 || n < r.least {
				r.least = n
			}
		}
	}
}

// epochs is how many the job with the most has.
func (r *run) epochs() int {
	n := make([]int, len(r.t.Jobs))
	for _, j := range r.t.Pick.Job {
		if j&trace.Begins != 0 {
			n[j&trace.JobMask]++
		}
	}
	return slices.Max(n)
}

func (r *run) size(x uint32) int64 {
	if r.sizes == nil {
		return 1
	}
	return int64(r.sizes[x])
}

// fits refuses what would not fit the memory: by lane a table of objects and about 48 bytes an entry of index and
// policy, by worker the needs.
func (r *run) fits() error {
	n, jobs := uint64(r.t.Objects), uint64(len(r.t.Jobs))
	need := trace.Memory(uint64(r.t.Pick.Len()), n, r.t.Sizes != nil) + uint64(r.c.Workers)*(n*2+n*jobs/8)
	mean := max(1, r.bytes/int64(max(1, r.unique)))
	future := false
	for _, cap := range r.c.Caches {
		entries := min(uint64(r.unique), uint64(cap/mean)+1)
		for _, p := range r.c.Policies {
			need += n*4 + entries*48
			if cachepolicy.NeedsFuture(p) {
				future = true
				need += n * 4 * max(1, jobs)
			}
		}
	}
	if future {
		need += 4 * uint64(r.t.Pick.Len())
	}
	if r.c.MaxMemory > 0 && need > r.c.MaxMemory {
		return errs.New(errs.ResourceExceeded, "trace", "name fewer policies or capacities, a shorter trace, or raise "+
			"--max-memory",
			"%d policies at %d capacities on %d requests need about %s of memory, the limit is %s", len(r.c.Policies),
			len(r.c.Caches), r.t.Pick.Len(), units.Size(need), units.Size(r.c.MaxMemory))
	}
	return nil
}

func (r *run) lanes() error {
	for ci, cap := range r.c.Caches {
		for _, p := range r.c.Policies {
			l := &lane{run: r, policy: p, capacity: cap, blind: !r.c.tellNeeds && slices.Contains(needBlind, p),
				in: make([]uint32, r.t.Objects), jobHits: make([]int, len(r.t.Jobs))}
			given := cachepolicy.Given{}
			if cachepolicy.NeedsFuture(p) {
				if p == "belady" {
					if r.next == nil {
						r.next = trace.NextUse(r.t)
					}
					l.whole = &whole{next: r.next, at: firstUse(r.t)}
					given.Future = l.whole
				} else {
					if r.repeats && r.jobNext == nil {
						r.jobNext = nextInEpoch(r.t)
					}
					l.epochs = &epochs{t: r.t, next: r.jobNext, turn: make([][]uint32, len(r.t.Jobs))}
					given.Future = l.epochs
				}
			}
			entries := int(min(int64(r.unique), cap/max(1, r.bytes/int64(max(1, r.unique)))+1))
			e, err := tinylfu.Make(p, xrand.New(r.c.Seed, uint64(ci), 0x706f6c696379), given, entries)
			if err != nil {
				return err
			}
			l.ev = e
			l.sighted, _ = e.(cachepolicy.Sighted)
			r.all = append(r.all, l)
		}
	}
	return nil
}

// close ends what policies have running: tinylfu has goroutines.
func (r *run) close() {
	for _, l := range r.all {
		if c, ok := l.ev.(interface{ Close() }); ok {
			c.Close()
		}
	}
}

// replay shares the lanes among the workers; each goes over the trace once.
func (r *run) replay(stop func() error) error {
	workers := min(r.c.Workers, len(r.all))
	shares := make([][]*lane, workers)
	order := slices.Clone(r.all)
	slices.SortStableFunc(order, func(a, b *lane) int { return b.weight() - a.weight() })
	loads := make([]int, workers)
	for _, l := range order { // the heaviest first, to whom has least
		w := 0
		for k := range loads {
			if loads[k] < loads[w] {
				w = k
			}
		}
		loads[w] += l.weight()
		shares[w] = append(shares[w], l)
	}
	problems := make([]error, workers)
	var wg sync.WaitGroup
	var mu sync.Mutex
	done := make([]int, workers)
	for w := range workers {
		wg.Go(func() {
			problems[w] = newFeed(r.t, r.c.Warm).over(shares[w], stop, func(n int) {
				if r.c.Progress == nil {
					return
				}
				mu.Lock()
				defer mu.Unlock()
				done[w] = n
				r.c.Progress(slices.Min(done), r.t.Pick.Len())
			})
		})
	}
	wg.Wait()
	for _, err := range problems {
		if err != nil {
			return err
		}
	}
	return nil
}

// bounds is the lower bound of loads at each capacity.
func (r *run) bounds() []int {
	out := make([]int, len(r.c.Caches))
	if r.repeats { // an epoch is no set of distinct samples: what is asked for at all must be loaded
		for i := range out {
			out[i] = r.unique
		}
		return out
	}
	b := bound.Trace{}
	for k := range r.t.Jobs {
		b.Subsets = append(b.Subsets, r.t.Members(k))
	}
	// Requests of one instant may be shared without a cache; instants that are longer than they need to be leave the bound
	// valid.
	per := max(1, r.t.Pick.Len()/(1<<16))
	open := make([]int, len(r.t.Jobs))
	for i, j := range r.t.Pick.Job {
		k := int(j & trace.JobMask)
		if j&trace.Begins != 0 {
			open[k] = len(b.Epochs)
			b.Epochs = append(b.Epochs, bound.Epoch{Job: k})
		}
		e := &b.Epochs[open[k]]
		if n := len(e.Steps); n > 0 && e.Steps[n-1].At == int64(i/per) {
			e.Steps[n-1].N++
		} else {
			e.Steps = append(e.Steps, bound.Step{At: int64(i / per), N: 1})
		}
	}
	small := r.smallest()
	for i, cap := range r.c.Caches {
		b.Cache, _ = slices.BinarySearch(small, cap+1)
		out[i] = max(r.unique, bound.Loads(b))
	}
	return out
}

// smallest is, for each number of objects, the bytes of as many of the smallest ones: no cache keeps more.
func (r *run) smallest() []int64 {
	seen := make([]bool, r.t.Objects)
	var out []int64
	for _, x := range r.t.Pick.Object {
		if !seen[x] {
			seen[x] = true
			out = append(out, r.size(x))
		}
	}
	slices.Sort(out)
	for i := 1; i < len(out); i++ {
		out[i] += out[i-1]
	}
	return out
}

func (r *run) report() *Report {
	looks, prescribed := r.t.Prescribed()
	rep := &Report{
		Trace: r.t.Name, TraceSeed: r.t.Seed, Seed: r.c.Seed, Objects: r.t.Objects, Unique: r.unique, Bytes: r.bytes,
		Requests: r.t.Pick.Len(), Counted: r.counted,
		Warm: r.c.Warm, UnitSize: r.sizes == nil, Prescribed: prescribed, LooksJob: looks, Repeats: r.repeats,
	}
	for i := range r.t.Jobs {
		rep.Jobs = append(rep.Jobs, r.t.Jobs[i].Name)
	}
	bounds := r.bounds()
	row := func(policy string, ci, loads int, jobHits []int, missBytes int64) Row {
		x := Row{Policy: policy, Cache: r.c.Caches[ci], Share: float64(r.c.Caches[ci]) / float64(r.bytes), Loads: loads,
			PerUnique: float64(loads) / float64(r.unique),
			Bound:     bounds[ci], OverBound: float64(loads) / float64(bounds[ci]), Breaks: tinylfu.BreaksOf(policy),
			Bounding: cachepolicy.NeedsFuture(policy)}
		sum, sq, n := 0.0, 0.0, 0.0
		for k, h := range jobHits {
			x.Hits += h
			ratio := 0.0
			if r.perJob[k] > 0 {
				ratio = float64(h) / float64(r.perJob[k])
				sum, sq, n = sum+ratio, sq+ratio*ratio, n+1
			}
			x.JobRatios = append(x.JobRatios, ratio)
		}
		x.Jain = 1
		if sq > 0 {
			x.Jain = sum * sum / (n * sq)
		}
		if r.counted > 0 {
			x.HitRatio = float64(x.Hits) / float64(r.counted)
			x.MissRatio = 1 - x.HitRatio
			x.ByteMiss = float64(missBytes) / float64(max(1, r.countedB))
		}
		return x
	}
	for ci := range r.c.Caches {
		unlimited := make([]int, len(r.t.Jobs))
		for k := range unlimited {
			unlimited[k] = r.perJob[k] - r.first[k]
		}
		none := row(Independent, ci, r.t.Pick.Len(), make([]int, len(r.t.Jobs)), r.countedB)
		rep.Rows = append(rep.Rows, none)
		for _, l := range r.all[ci*len(r.c.Policies) : (ci+1)*len(r.c.Policies)] {
			x := row(l.policy, ci, l.misses, l.jobHits, r.countedB-l.hitBytes)
			x.Admitted, x.Evicted = l.admitted, l.evicted
			rep.Rows = append(rep.Rows, x)
		}
		u := row(Unbounded, ci, r.unique, unlimited, r.firstB)
		u.Bounding, u.Bound, u.OverBound = true, r.unique, 1 // the bound of the capacity does not hold for it
		rep.Rows = append(rep.Rows, u)
		low := Row{Policy: LowerBound, Cache: r.c.Caches[ci], Share: u.Share, Loads: bounds[ci],
			PerUnique: float64(bounds[ci]) / float64(r.unique), Bound: bounds[ci],
			OverBound: 1, Bounding: true}
		low.HitRatio = 1 - float64(bounds[ci])/float64(r.t.Pick.Len()) // of the whole trace
		low.MissRatio = 1 - low.HitRatio
		low.ByteMiss = float64(r.bytes+int64(bounds[ci]-r.unique)*r.least) / float64(max(1, r.allB))
		low.Hits, low.Jain = r.t.Pick.Len()-bounds[ci], 1
		rep.Rows = append(rep.Rows, low)
	}
	return rep
}

// Find is the row of a policy at a capacity; nil when there is none.
func (r *Report) Find(policy string, cache int64) *Row {
	for i := range r.Rows {
		if r.Rows[i].Policy == policy && r.Rows[i].Cache == cache {
			return &r.Rows[i]
		}
	}
	return nil
}

// String describes what was run.
func (r *Report) String() string {
	return fmt.Sprintf("%s: %d requests of %d jobs for %d objects", r.Trace, r.Requests, len(r.Jobs), r.Unique)
}
