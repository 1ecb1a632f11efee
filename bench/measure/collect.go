package measure

import (
	"math"
	"math/bits"
	"slices"
	"time"

	"larder/bench/bound"
	"larder/bench/fair"
	"larder/internal/ident"
)

// Demand is what one job asks for.
type Demand struct {
	Name, Order string
	// distinct samples; kept, not to be changed. Jobs that have the same slice share what is made of it
	Subset   []uint32
	Batch    int
	World    int    // ranks; 0 = 1
	Buffered int    // samples that may lie in its rings
	Group    string // jobs of one name share augmented samples; empty = it shares none
	InOrder  bool   // its order is not random: nothing is said of it
	OneDraw  bool   // its epochs may resemble each other, so that they are one draw
}

// Samples is what is known of all samples.
type Samples struct {
	Count int                // ids are below it
	Label func(x uint32) int // nil = no labels
	Size  func(x uint32) int64
}

// Collector gathers what clients see, one call after the other. Times are since the run began.
type Collector struct {
	all     Samples
	jobs    []*collected
	subsets []*subset
	exact   bool
	order   []ident.ObjectID // of an epoch, for a moment
}

// subset is what is made of one list of samples, for all jobs that have it.
type subset struct {
	ids    []uint32
	at     []uint32 // by sample: 1 + its index in ids; 0 = it is not in it
	size   []uint8  // by index: quarter by stored size
	labels []uint32 // by label: samples of it
	invs   float64  // sum of samples / those of a label
}

type collected struct {
	Demand
	set    *subset
	groups []group
	open   []*epoch
	last   *epoch // the complete one before
	spare  [][]uint32
	out    Job
	exact  bool

	registered, ended time.Duration
	first             time.Duration
	waits             []float32 // seconds
	steps             []bound.Epoch
	rho               float64
	pairs             int
	chi               float64
	chis              int
	chiVar            float64
	counts            []uint16
	over              []Point
	overAt            time.Duration
	left              bool
	overEvery         int
	overCount         int
	steady            time.Duration // in steps
	lags              int
	training          *fair.Training // nil until there are two whole epochs
}

type epoch struct {
	number uint32
	began  time.Duration
	pos    []uint32 // by index in the subset: 1 + position
	n      int      // samples had
	bad    int
	again  int // of those had: repeated
	ranks  int // that have ended it
	steps  []bound.Step
}

// group is samples that a cache could tell from the rest of the subset.
type group struct {
	name  string
	in    func(index int) bool
	size  int
	other *subset // = those that are in it too
	hist  [places]uint32
	draws int
}

const places = 128

// New returns a Collector.
func New(all Samples) *Collector { return &Collector{all: all, exact: true} }

// Register notes a job and returns its number.
func (c *Collector) Register(at time.Duration, d Demand) int {
	if d.World < 1 {
		d.World = 1
	}
	j := &collected{Demand: d, set: c.subset(d.Subset), exact: true, registered: at, ended: at, overEvery: 1}
	j.out = Job{Name: d.Name, Order: d.Order, Subset: len(d.Subset), Batch: d.Batch, Began: at.Seconds()}
	if j.set.labels != nil {
		j.counts = make([]uint16, len(j.set.labels))
	}
	c.jobs = append(c.jobs, j)
	j.lags = fair.LagsOf(c.all.Count * len(c.jobs))
	return len(c.jobs) - 1
}

func (c *Collector) subset(ids []uint32) *subset {
	for _, s := range c.subsets {
		if len(s.ids) == len(ids) && (len(ids) == 0 || &s.ids[0] == &ids[0]) || slices.Equal(s.ids, ids) {
			return s
		}
	}
	s := &subset{ids: ids, at: make([]uint32, c.all.Count)}
	for i, x := range ids {
		s.at[x] = uint32(i) + 1
	}
	if c.all.Size != nil {
		sizes := make([]int64, len(ids))
		for i, x := range ids {
			sizes[i] = c.all.Size(x)
		}
		sorted := slices.Sorted(slices.Values(sizes))
		if n := len(sorted); n >= 8 && sorted[0] < sorted[n-1] {
			s.size = make([]uint8, n)
			for i, v := range sizes {
				for q := 1; q < 4; q++ {
					if v >= sorted[q*n/4] {
						s.size[i] = uint8(q)
					}
				}
			}
		}
	}
	if c.all.Label != nil {
		for _, x := range ids {
			l := c.all.Label(x)
			for l >= len(s.labels) {
				s.labels = append(s.labels, 0)
			}
			s.labels[l]++
		}
		for _, n := range s.labels {
			if n > 0 {
				s.invs += float64(len(ids)) / float64(n)
			}
		}
	}
	c.subsets = append(c.subsets, s)
	return s
}

// Begin notes that a rank asks for an epoch.
func (c *Collector) Begin(job int, at time.Duration, number uint32) { c.jobs[job].epoch(number, at) }

func (j *collected) epoch(number uint32, at time.Duration) *epoch {
	for _, e := range j.open {
		if e.number == number {
			return e
		}
	}
	e := &epoch{number: number, began: at}
	if n := len(j.spare); n > 0 {
		e.pos, j.spare = j.spare[n-1], j.spare[:n-1]
		clear(e.pos)
	} else {
		e.pos = make([]uint32, len(j.Subset))
	}
	j.open = append(j.open, e)
	return e
}

// Batch notes that a rank got a batch for which it waited so long. ids is not kept.
func (c *Collector) Batch(job int, at time.Duration, number uint32, waited time.Duration, ids []uint32) {
	j := c.jobs[job]
	e := j.epoch(number, at)
	if j.out.Batches == 0 {
		j.first = at - j.registered
	}
	j.out.Batches++
	j.out.Samples += uint64(len(ids))
	j.waits = append(j.waits, float32(waited.Seconds()))
	for _, x := range ids {
		if int(x) >= len(j.set.at) || j.set.at[x] == 0 {
			j.exact = false
			j.out.Foreign++
			continue
		}
		i := j.set.at[x] - 1
		e.n++
		if e.pos[i] != 0 {
			j.exact = false
			j.out.Repeated++
			e.again++
		}
		e.pos[i] = uint32(e.n)
	}
	if k := len(e.steps); k > 0 && e.steps[k-1].At >= int64(at) {
		e.steps[k-1].N += int32(len(ids))
	} else if len(ids) > 0 {
		e.steps = append(e.steps, bound.Step{At: int64(at), N: int32(len(ids))})
	}
	if j.counts != nil && len(ids) == j.Batch && !j.InOrder {
		j.labels(c.all.Label, ids)
	}
	j.point(at)
}

// labels adds chi-square of a batch: sum of o²/e less b.
func (j *collected) labels(label func(uint32) int, ids []uint32) {
	n, b := float64(len(j.Subset)), float64(len(ids))
	kinds := 0
	for _, m := range j.set.labels {
		if m > 0 {
			kinds++
		}
	}
	if kinds < 2 || b >= n {
		return
	}
	chi := -b
	for _, x := range ids {
		if l := label(x); l < len(j.counts) {
			j.counts[l]++
		}
	}
	for _, x := range ids {
		l := label(x)
		if l >= len(j.counts) || j.counts[l] == 0 {
			continue
		}
		o, e := float64(j.counts[l]), b*float64(j.set.labels[l])/n
		chi += o * o / e
		j.counts[l] = 0
	}
	left := (n - b) / (n - 1)
	k := float64(kinds)
	j.chi += chi / ((k - 1) * left)
	// Variance of chi-square of a multinomial sample (Haldane 1937); without replacement it is smaller.
	j.chiVar += (2*(k-1) + (j.set.invs-k*k-2*k+2)/b) / ((k - 1) * (k - 1))
	j.chis++
}

// point keeps at most 2 x pointsKept points of throughput, as evenly as it can without knowing the end.
func (j *collected) point(at time.Duration) {
	const pointsKept = 60
	if j.overCount++; j.overCount%j.overEvery != 0 {
		return
	}
	if at <= max(j.registered, j.overAt) {
		return
	}
	j.over = append(j.over, Point{At: at.Seconds(), Throughput: float64(j.out.Samples)})
	j.overAt = at
	if len(j.over) >= 2*pointsKept {
		for i := range pointsKept {
			j.over[i] = j.over[2*i+1]
		}
		j.over = j.over[:pointsKept]
		j.overEvery *= 2
	}
}

// Step notes that a rank worked on a batch for so long.
func (c *Collector) Step(job int, took time.Duration) { c.jobs[job].steady += took }

// End notes that a rank was notified of the end of an epoch; bad samples were left out with a report, dropped ones
// belong to no batch.
func (c *Collector) End(job int, at time.Duration, number uint32, bad, dropped int) {
	j := c.jobs[job]
	j.ended = max(j.ended, at)
	e := j.epoch(number, at)
	e.ranks++
	e.bad += bad
	if e.ranks < j.World {
		return
	}
	j.open = slices.DeleteFunc(j.open, func(o *epoch) bool { return o == e })
	if e.n+e.bad+dropped != len(j.Subset) {
		j.exact = false
	}
	j.out.Lost += max(0, len(j.Subset)-(e.n-e.again)-e.bad-dropped)
	j.out.Epochs++
	if j.out.FirstEpoch == 0 {
		j.out.FirstEpoch = (at - e.began).Seconds()
	}
	j.keep(e)
	if !j.InOrder {
		c.compare(j, e)
	}
	if j.last != nil {
		j.spare = append(j.spare, j.last.pos)
	}
	j.last = e
}

func (j *collected) keep(e *epoch) {
	if len(e.steps) > 0 {
		j.steps = append(j.steps, bound.Epoch{Steps: e.steps})
		e.steps = nil
	}
}

// compare takes the positions of a complete epoch into account.
func (c *Collector) compare(j *collected, e *epoch) {
	n := float64(e.n)
	if !j.whole(e) {
		return
	}
	c.positions(j, e)
	if j.last != nil && j.last.n == e.n && j.last.number+1 == e.number {
		sum := 0.0
		for i, p := range e.pos {
			d := float64(p) - float64(j.last.pos[i])
			sum += d * d
		}
		j.rho += 1 - 6*sum/(n*(n*n-1))
		j.pairs++
	}
	c.groups(j)
	for k := range j.groups {
		g := &j.groups[k]
		if g.size == 0 {
			continue
		}
		for i, p := range e.pos {
			if g.in(i) {
				g.hist[int(p-1)*places/e.n]++
			}
		}
		g.draws++
	}
}

// whole reports whether an epoch was the job's subset, each sample once. Bad or dropped samples leave holes: ranks
// would not be those of all.
func (j *collected) whole(e *epoch) bool { return e.n == len(j.Subset) && e.again == 0 && e.n >= 8 }

// groups are those of all jobs that have come so far.
func (c *Collector) groups(j *collected) {
	n := len(j.Subset)
	if j.groups == nil {
		for q := range 4 {
			j.groups = append(j.groups, group{name: [4]string{"first", "second", "third", "last"}[q] + " quarter by id",
				in: func(i int) bool { return i*4/n == q }, size: (q+1)*n/4 - q*n/4})
			if s := j.set.size; s != nil {
				g := group{name: [4]string{"smallest", "second", "third", "largest"}[q] + " quarter by size",
					in: func(i int) bool { return s[i] == uint8(q) }}
				for i := range n {
					if g.in(i) {
						g.size++
					}
				}
				j.groups = append(j.groups, g)
			}
		}
	}
	const most = 24
	for _, o := range c.jobs {
		if o.set == j.set || len(j.groups) >= most ||
			slices.ContainsFunc(j.groups, func(g group) bool { return g.other == o.set }) {
			continue
		}
		at, ids := o.set.at, j.set.ids
		g := group{name: "samples that " + o.Name + " wants too", other: o.set,
			in: func(i int) bool { return at[ids[i]] != 0 }}
		for i := range n {
			if g.in(i) {
				g.size++
			}
		}
		if g.size == n {
			g.size = 0
		}
		j.groups = append(j.groups, g)
	}
}

// Leave notes that the last client of a job is gone.
func (c *Collector) Leave(job int, at time.Duration) {
	j := c.jobs[job]
	j.ended, j.left = max(j.ended, at), true
}

// Cut notes that the run was ended at a time: jobs that were there until then end with it.
func (c *Collector) Cut(at time.Duration) {
	for _, j := range c.jobs {
		if !j.left {
			j.ended = max(j.ended, at)
		}
	}
}

// Capacity is how many samples may be resident in forms that save a read, and a decode; used for the lower bounds.
type Capacity struct{ Reads, Decodes int }

// Finish fills in what the clients saw: jobs, unique samples, bounds, makespan. Counts must be there already, and Hits
// of jobs by name are kept.
func (c *Collector) Finish(r *Run, room Capacity) {
	t := bound.Trace{}
	wanted := make([]uint64, (c.all.Count+63)/64)
	last := time.Duration(0)
	alone, groups := 0, map[string]int{}
	var order []string
	sum, squares, k := 0.0, 0.0, 0.0
	r.ExactlyOnce = true
	for i, j := range c.jobs {
		for _, e := range j.open { // broken off
			j.keep(e)
		}
		for _, x := range j.Subset {
			wanted[x>>6] |= 1 << (x & 63)
		}
		t.Subsets = append(t.Subsets, j.Subset)
		for _, e := range j.steps {
			e.Job = i
			t.Epochs = append(t.Epochs, e)
		}
		last = max(last, j.ended)
		r.LowerBound.Buffers += j.Buffered
		if had := int(j.out.Samples); j.Group == "" {
			alone += had
		} else {
			if _, ok := groups[j.Group]; !ok {
				order = append(order, j.Group)
			}
			groups[j.Group] = max(groups[j.Group], had)
		}
		r.ExactlyOnce = r.ExactlyOnce && j.exact
		r.Jobs = append(r.Jobs, j.finish())
		if p := r.Jobs[i].Speed; p > 0 {
			sum, squares, k = sum+p, squares+p*p, k+1
		}
	}
	r.Jain = 1
	if squares > 0 {
		r.Jain = sum * sum / (k * squares)
	}
	for _, w := range wanted {
		r.Unique += bits.OnesCount64(w)
	}
	r.Makespan = last.Seconds()
	b := &r.LowerBound
	of := func(cache int) int {
		t.Cache = cache
		return bound.Loads(t)
	}
	b.CacheOnly.Reads, b.CacheOnly.Decodes = of(room.Reads), of(room.Decodes)
	b.Reads, b.Decodes = of(room.Reads+b.Buffers), of(room.Decodes+b.Buffers)
	b.Augments = alone
	for _, g := range order {
		b.Augments += groups[g]
	}
	over := func(n uint64, by int) float64 {
		if by == 0 {
			return 0
		}
		return float64(n) / float64(by)
	}
	n := &r.Counts
	r.PerUnique = Ratios{over(n.SourceReads, r.Unique), over(n.Decodes, r.Unique), over(n.Augments, r.Unique)}
	r.OverBound = Ratios{over(n.SourceReads, b.Reads), over(n.Decodes, b.Decodes), over(n.Augments, b.Augments)}
}

// crossed is the tail probability of the limits.
const crossed = 1e-3

func (j *collected) finish() Job {
	o := j.out
	o.Ended, o.Exact = j.ended.Seconds(), j.exact
	o.FirstBatch = j.first.Seconds()
	o.Stepping = j.steady.Seconds()
	if d := (j.ended - j.registered).Seconds(); d > 0 {
		o.Throughput = float64(o.Samples) / d
	}
	was, at := 0.0, j.registered.Seconds()
	for i, p := range j.over {
		j.over[i].Throughput = (p.Throughput - was) / (p.At - at)
		was, at = p.Throughput, p.At
	}
	o.Over = j.over
	o.Wait = waits(j.waits)
	if all := o.Stepping + o.Wait.Total; all > 0 {
		o.Speed = o.Stepping / all
	}
	j.quality(&o.Quality)
	var a fair.Account
	a.Add(j.training)
	o.MeanPositions = a.Figures()
	return o
}

func waits(w []float32) (out Wait) {
	if len(w) == 0 {
		return out
	}
	s := slices.Sorted(slices.Values(w))
	at := func(p float64) float64 { return float64(s[min(len(s)-1, int(math.Ceil(p*float64(len(s))))-1)]) }
	out.P50, out.P99, out.P999, out.Max = at(.5), at(.99), at(.999), float64(s[len(s)-1])
	for _, v := range s {
		out.Total += float64(v)
		k := 0
		for limit := 1e-6; float64(v) > limit && k < 40; limit *= 2 {
			k++
		}
		for k >= len(out.Histogram) {
			out.Histogram = append(out.Histogram, 0)
		}
		out.Histogram[k]++
	}
	return out
}

func (j *collected) quality(q *Quality) {
	n := float64(len(j.Subset))
	if j.pairs > 0 {
		rho := j.rho / float64(j.pairs)
		q.EpochCorrelation, q.EpochCorrelationLimit = &rho, 3.3/math.Sqrt((n-1)*float64(j.pairs))
	}
	worst := 0.0
	tests := 0
	for k := range j.groups {
		if j.groups[k].size > 0 {
			tests++
		}
	}
	for k := range j.groups {
		g := &j.groups[k]
		if g.size == 0 || g.draws == 0 {
			continue
		}
		m, sum, d := float64(g.size)*float64(g.draws), 0.0, 0.0
		for i, h := range g.hist {
			sum += float64(h)
			// An edge of the places is between two positions: the uniform distribution there is exactly the part of positions
			// before it.
			before := math.Ceil(float64(i+1)*n/places) / n
			d = max(d, math.Abs(sum/m-min(1, before)))
		}
		draws := float64(g.draws)
		if j.OneDraw {
			draws = 1
		}
		// Kolmogorov's limit for the two samples of a split (Smirnov 1939), of the group against everything; Bonferroni over
		// the groups.
		limit := math.Sqrt(-.5*math.Log(crossed/2/float64(tests))) * math.Sqrt((n-float64(g.size))/(n*float64(g.size)*draws))
		if q.PositionKS == nil || d/limit > worst {
			worst = d / limit
			v := d
			q.PositionKS, q.PositionKSLimit, q.PositionGroup = &v, limit, g.name
		}
	}
	if j.chis > 0 {
		v := j.chi / float64(j.chis)
		q.LabelChi2, q.LabelChi2Limit = &v, 1+3.3*math.Sqrt(j.chiVar)/float64(j.chis)
	}
}
