package bench

import (
	"math"
	"slices"
	"time"

	"larder/bench/bound"
	"larder/bench/fair"
	"larder/dsa"
	"larder/internal/bits"
	"larder/internal/ident"
	"larder/internal/xrand"
	"larder/tiers/tinylfu"
)

// SamplerReport is what larder bench sampler prints. Counts are of one run: means over the repeats, rounded; Ratio is
// not.
type SamplerReport struct {
	Kind           string             `json:"kind"`            // sampler
	Facts          map[string]string  `json:"facts,omitempty"` // of the caller: scenario, seed, machine
	Repeats        int                `json:"repeats"`
	Policy         string             `json:"policy"`
	PolicyBreaks   string             `json:"policy_breaks,omitempty"` // which order promise, in words
	Requests       int                `json:"requests"`
	Loads          int                `json:"loads"` // refills of ods among them
	LoadsSD        float64            `json:"loads_sd"`
	LowerBound     int                `json:"loads_lower_bound"`
	WindowsBound   int                `json:"loads_lower_bound_windows"`
	Ratio          float64            `json:"ratio"` // of loads to the tighter bound
	ExactlyOnce    bool               `json:"exactly_once"`
	PicksPerSecond float64            `json:"picks_per_second"` // of the whole simulation, cache included
	Jobs           []SamplerJobReport `json:"jobs"`

	askedBytes, missedBytes int64 // of all runs, in the unit of sizes
}

// SamplerJobReport is one job's part. Statistics are over its complete epochs of all repeats, null when there are too
// few.
type SamplerJobReport struct {
	Name      string       `json:"name"`
	Order     string       `json:"order"`
	Requests  int          `json:"requests"`
	Hits      int          `json:"hits"`
	Loads     int          `json:"loads"`
	Refills   int          `json:"refills,omitempty"` // loads in the background (ods)
	Epochs    float64      `json:"epochs"`            // complete ones of a run
	Cells     []CellReport `json:"cells"`
	OverlapQ1 *float64     `json:"epoch_overlap_q1"`
	Rho       *float64     `json:"spearman_rho"`

	// Whether samples are always early or always late: a position is a part of an epoch, 0 to 1. Variances are averaged
	// over the repeats.
	SDOfMeans  *float64           `json:"sd_of_mean_positions"`       // of the samples' means over a run
	SDByChance *float64           `json:"sd_by_chance"`               // what it would be, were the epochs independent
	Lags       []fair.Correlation `json:"lag_correlations,omitempty"` // of positions 1, 2, 5 and 20 epochs apart

	Quartiles []CellReport `json:"quartiles,omitempty"` // by size, when the scenario has sizes
}

// CellReport is where in the epoch the samples of a set were: the k-th of n samples is at (k+0.5)/n.
type CellReport struct {
	Jobs         []string `json:"jobs,omitempty"` // whose subsets hold the cell
	Size         int      `json:"size"`
	MeanPosition float64  `json:"mean_position"`
	// of the mean over what are independent epochs, were every order equally likely
	SDOfMean float64 `json:"sd_of_mean"`
}

// samplerStats gathers over all runs of a scenario.
type samplerStats struct {
	sc       *Scenario
	subsets  [][]uint32
	cell     []uint32 // by sample: its static cell
	masks    []bits.JobSet
	quart    []uint8 // by sample, when there are sizes
	sizes    [4]int64
	budget   int64
	capacity int // most samples that fit the budget
	lags     int // for which correlations are counted
	order    []ident.ObjectID
	jobs     []jobStats
	exact    bool

	loads          []float64 // by run
	bound, windows int
	before         int // loads of earlier runs

	askedBytes, missedBytes int64
}

type jobStats struct {
	requests, hits, loads, refills int
	epochs                         int // complete
	pairs                          int // of complete consecutive ones
	cur, prev                      []uint32
	hasPrev                        bool
	at                             int
	cells                          []float64 // sums of positions, by cell
	quarts                         [4]float64
	overlap, rho                   float64
	training                       *fair.Training // of this run; nil for a job of one epoch
	means                          fair.Account   // of earlier runs
}

func newSamplerStats(sc *Scenario) *samplerStats {
	st := &samplerStats{sc: sc, exact: true, cell: make([]uint32, sc.Samples), jobs: make([]jobStats, len(sc.Jobs))}
	mask := make([]bits.JobSet, sc.Samples)
	for i := range sc.Jobs {
		sub := make([]uint32, len(sc.Jobs[i].samples))
		for k, x := range sc.Jobs[i].samples {
			sub[k] = uint32(x)
			mask[x] = mask[x].With(uint8(i))
		}
		st.subsets = append(st.subsets, sub)
		st.jobs[i].cur, st.jobs[i].prev = make([]uint32, sc.Samples), make([]uint32, sc.Samples)
	}
	known := map[bits.JobSet]uint32{} // lookups only
	for x, m := range mask {
		c, ok := known[m]
		if !ok {
			c = uint32(len(st.masks))
			known[m] = c
			st.masks = append(st.masks, m)
		}
		st.cell[x] = c
	}
	for i := range st.jobs {
		st.jobs[i].cells = make([]float64, len(st.masks))
	}
	st.lags = fair.LagsOf(sc.Samples * len(sc.Jobs))
	st.order = make([]ident.ObjectID, sc.Samples)
	st.measure(mask)
	return st
}

// measure gives samples their sizes and the cache its budget: that of as many samples of mean size as it has places.
func (st *samplerStats) measure(mask []bits.JobSet) {
	if len(st.sc.Quartiles) == 0 {
		st.sizes = [4]int64{1, 1, 1, 1}
		st.budget, st.capacity = int64(st.sc.Cache), st.sc.Cache
		return
	}
	mean := 0.0
	for q, v := range st.sc.Quartiles {
		st.sizes[q] = max(1, int64(v*1000))
		mean += float64(st.sizes[q]) / 4
	}
	st.budget = int64(mean * float64(st.sc.Cache))
	st.quart = make([]uint8, st.sc.Samples)
	var have [4]int64
	for x := range st.quart {
		st.quart[x] = uint8(xrand.Hash(st.sc.Seed, uint64(x)) >> 62)
		if mask[x] != 0 {
			have[st.quart[x]]++
		}
	}
	order := []int{0, 1, 2, 3}
	slices.SortFunc(order, func(a, b int) int { return int(st.sizes[a] - st.sizes[b]) })
	left := st.budget
	for _, q := range order { // no policy keeps more than the smallest that fit
		n := min(have[q], left/st.sizes[q])
		st.capacity += int(n)
		left -= n * st.sizes[q]
	}
}

func (st *samplerStats) size(x ident.ObjectID) int64 {
	if st.quart == nil {
		return 1
	}
	return st.sizes[st.quart[x]]
}

// begin: the job starts an epoch.
func (st *samplerStats) begin(j *samplerJob) {
	s := &st.jobs[j.index]
	if j.epoch == 0 {
		s.hasPrev = false
		if j.Epochs > 1 {
			s.training = fair.New(j.samples, st.lags)
		}
	}
	s.cur, s.prev = s.prev, s.cur
	clear(s.cur)
	s.at = 0
}

// pick: x is the next sample of the job's epoch.
func (st *samplerStats) pick(j *samplerJob, x ident.ObjectID, hit bool) {
	s := &st.jobs[j.index]
	s.requests++
	n := st.size(x)
	st.askedBytes += n
	if hit {
		s.hits++
	} else {
		s.loads++
		st.missedBytes += n
	}
	if s.cur[x] != 0 || !st.masks[st.cell[x]].Has(uint8(j.index)) {
		st.exact = false
	}
	s.at++
	s.cur[x] = uint32(s.at)
}

func (st *samplerStats) refill(j *samplerJob) { st.jobs[j.index].refills++ }

// end: the job's epoch is complete, says the sampler.
func (st *samplerStats) end(j *samplerJob) {
	s := &st.jobs[j.index]
	n := len(j.samples)
	if s.at != n {
		st.exact = false
	}
	early, squares, whole := 0, 0.0, s.at == n
	for _, x := range j.samples {
		at := s.cur[x]
		if at == 0 {
			st.exact, whole = false, false
			continue
		}
		if whole {
			st.order[at-1] = x
		}
		pos := (float64(at) - .5) / float64(n)
		s.cells[st.cell[x]] += pos
		if st.quart != nil {
			s.quarts[st.quart[x]] += pos
		}
		if s.hasPrev {
			was := s.prev[x]
			if int(at) <= n/4 && int(was) <= n/4 {
				early++
			}
			d := float64(at) - float64(was)
			squares += d * d
		}
	}
	if whole && s.training != nil {
		s.training.Add(st.order[:n])
	}
	s.epochs++
	if s.hasPrev {
		s.pairs++
		if n >= 4 {
			s.overlap += float64(early) / float64(n/4)
		}
		if n >= 2 {
			s.rho += 1 - 6*squares/(float64(n)*(float64(n)*float64(n)-1))
		}
	}
	s.hasPrev = true
}

// ranOnce: one run is over. When jobs take their samples does not depend on chance, so all runs have the same bounds.
func (st *samplerStats) ranOnce(w *samplerRun) {
	sum := 0
	for i := range st.jobs {
		sum += st.jobs[i].loads + st.jobs[i].refills
		st.jobs[i].means.Add(st.jobs[i].training)
		st.jobs[i].training = nil
		if j := w.jobs[i]; j.Leave == 0 && j.epoch != j.Epochs {
			st.exact = false
		}
	}
	if len(st.loads) == 0 {
		st.bound, st.windows = bound.Loads(w.trace), bound.Windows(w.trace)
	}
	st.loads = append(st.loads, float64(sum-st.before))
	st.before = sum
}

// progress reports how far the runs are; jobs that leave early make it end before all picks are done.
func (st *samplerStats) progress() {
	if st.sc.Progress == nil {
		return
	}
	done, all := 0, 0
	for i := range st.jobs {
		done += st.jobs[i].requests
		all += len(st.sc.Jobs[i].samples) * st.sc.Jobs[i].Epochs * st.sc.Repeats
	}
	st.sc.Progress(done, all)
}

func (st *samplerStats) report(spent time.Duration) *SamplerReport {
	runs := float64(st.sc.Repeats)
	r := &SamplerReport{Kind: "sampler", Repeats: st.sc.Repeats, Policy: st.sc.Policy,
		PolicyBreaks: tinylfu.BreaksOf(st.sc.Policy), LowerBound: st.bound, WindowsBound: st.windows, ExactlyOnce: st.exact,
		askedBytes: st.askedBytes, missedBytes: st.missedBytes}
	all := 0
	mean := func(sum *int, n int) int { // rounded so that the jobs' figures add up to the rounded total
		was := math.Round(float64(*sum) / runs)
		*sum += n
		return int(math.Round(float64(*sum)/runs) - was)
	}
	var loads, refills int
	for i := range st.jobs {
		j := st.job(i)
		s := &st.jobs[i]
		j.Requests, j.Loads, j.Refills, j.Epochs = mean(&all, s.requests), mean(&loads, s.loads), mean(&refills,
			s.refills), float64(s.epochs)/runs
		j.Hits = j.Requests - j.Loads
		r.Requests += j.Requests
		r.Loads += j.Loads + j.Refills
		r.Jobs = append(r.Jobs, j)
	}
	sum, sq := 0.0, 0.0
	for _, l := range st.loads {
		sum += l
	}
	for _, l := range st.loads {
		sq += (l - sum/runs) * (l - sum/runs)
	}
	if runs > 1 {
		r.LoadsSD = math.Sqrt(sq / (runs - 1))
	}
	if st.bound > 0 {
		r.Ratio = sum / runs / float64(st.bound)
	}
	if spent > 0 {
		r.PicksPerSecond = float64(all) / spent.Seconds()
	}
	return r
}

// independentEpochs reports whether the mode promises that a job's epochs are independent of each other.
func (j *ScenarioJob) independentEpochs() bool {
	switch j.rival {
	case "":
		return j.mode == dsa.Fixed || j.mode == dsa.Strict || j.mode == dsa.Stratified
	case "independent", "joader", "joader-as-released":
		return true
	}
	return false
}

func (st *samplerStats) job(i int) SamplerJobReport {
	sj, s := &st.sc.Jobs[i], &st.jobs[i]
	j := SamplerJobReport{Name: sj.Name, Order: sj.Order, Cells: []CellReport{}}
	if sj.NoShuf {
		j.Order = "sequential"
	}
	if s.epochs == 0 {
		return j
	}
	n := len(sj.samples)
	draws := float64(st.sc.Repeats)
	if sj.independentEpochs() {
		draws = float64(s.epochs)
	} else {
		draws = min(draws, float64(s.epochs))
	}
	set := func(size int, sum float64) CellReport {
		c := CellReport{Size: size, MeanPosition: sum / float64(size) / float64(s.epochs),
			SDOfMean: sdOfMean(n, size) / math.Sqrt(draws)}
		if size == n {
			c.MeanPosition = .5
		}
		return c
	}
	sizes, quarts := make([]int, len(st.masks)), [4]int{}
	for _, x := range sj.samples {
		sizes[st.cell[x]]++
		if st.quart != nil {
			quarts[st.quart[x]]++
		}
	}
	for c, size := range sizes {
		if size == 0 {
			continue
		}
		r := set(size, s.cells[c])
		for k := range st.sc.Jobs {
			if st.masks[c].Has(uint8(k)) {
				r.Jobs = append(r.Jobs, st.sc.Jobs[k].Name)
			}
		}
		j.Cells = append(j.Cells, r)
	}
	for q, size := range quarts {
		if size > 0 {
			j.Quartiles = append(j.Quartiles, set(size, s.quarts[q]))
		}
	}
	if s.pairs > 0 && n >= 4 {
		v, rho := s.overlap/float64(s.pairs), s.rho/float64(s.pairs)
		j.OverlapQ1, j.Rho = &v, &rho
	}
	if f := s.means.Figures(); f != nil {
		j.SDOfMeans, j.SDByChance, j.Lags = &f.SD, &f.Chance, f.Lags
	}
	return j
}

// sdOfMean is the standard deviation of the mean position of size of n samples in a uniform order: sampling without
// replacement from (k+0.5)/n.
func sdOfMean(n, size int) float64 {
	if size >= n {
		return 0
	}
	v := (float64(n)*float64(n) - 1) / (12 * float64(n) * float64(n))
	return math.Sqrt(v / float64(size) * float64(n-size) / float64(n-1))
}
