package trace

import (
	"fmt"
	"math"
	"strings"
	"time"

	"larder/internal/errs"
	"larder/internal/nearest"
	"larder/internal/units"
	"larder/internal/xrand"
)

// Families lists the kinds of demand that Generate knows, with what each is.
func Families() []string {
	var names []string
	for i := range families {
		names = append(names, families[i].name)
	}
	return names
}

// About says in words what a family is; "" when it is unknown.
func About(family string) string {
	for i := range families {
		if families[i].name == family {
			return families[i].about
		}
	}
	return ""
}

var families = []struct{ name, about string }{
	{"aligned", "all jobs take all samples, at one speed, from the same moment on"},
	{"staggered", "the same, but each job begins a part of an epoch after the one before: 1/jobs"},
	{"speeds", "the same start, but job k needs k times as long for a sample as the first"},
	{"nested", "job k of n takes the first (n-k+1)/n of the samples"},
	{"crossed", "jobs take windows of the samples, each half of which the next one takes too"},
	{"disjoint", "jobs share nothing: each takes its own 1/jobs of the samples"},
	{"poisson", "jobs on all samples arrive at random, exponentially apart, half an epoch on average unless gap says " +
		"otherwise"},
	{"zipf", "samples are drawn with replacement, the k-th most popular in proportion to k^-skew; an epoch is as many " +
		"draws as there are samples"},
	{"curriculum", "epoch e of n takes the easiest e/n of the samples, shuffled; what is easy is the same for all jobs"},
}

// Spec is what Generate makes a trace from.
type Spec struct {
	Family  string
	Samples int
	Jobs    int
	Epochs  int
	Seed    uint64
	Batch   int           // of all jobs; 0 = 32
	Step    time.Duration // of the fastest job, for a sample; 0 = 1 ms
	Gap     float64       // poisson: mean distance of arrivals in epochs; 0 = 0.5
	Skew    float64       // zipf: exponent; 0 = 1
	Bytes   int           // mean stored size; 0 = all samples have size 1
}

// picks is how many a spec makes.
func (g *Spec) picks() uint64 {
	n, jobs, epochs := uint64(g.Samples), uint64(g.Jobs), uint64(g.Epochs)
	all := n * jobs * epochs
	switch g.Family {
	case "nested":
		return all/2 + n*epochs/2
	case "crossed":
		return 2 * all / (jobs + 1)
	case "disjoint":
		return all / jobs
	case "curriculum":
		return all/2 + n*jobs/2
	}
	return all
}

// Check says what is wrong with a spec: INVALID_ARGUMENT, or RESOURCE_EXCEEDED when its trace would take more than
// maxMemory bytes (0 = no limit).
func (g *Spec) Check(maxMemory uint64) error {
	bad := func(key, hint, format string, args ...any) error {
		return errs.New(errs.Invalid, key, hint, format, args...)
	}
	switch {
	case About(g.Family) == "":
		return bad("family", nearest.DidYouMean(g.Family, Families()), "unknown family %.40q of scenarios", g.Family)
	case g.Samples < 1 || g.Samples > MaxObjects:
		return bad("samples", fmt.Sprintf("choose 1 to %d", MaxObjects), "a trace of %d samples is not possible", g.Samples)
	case g.Jobs < 1 || g.Jobs > 64:
		return bad("jobs", "choose 1 to 64", "a trace of %d jobs cannot be generated", g.Jobs)
	case g.Epochs < 1 || g.Epochs > 1_000_000:
		return bad("epochs", "choose 1 to 1000000", "%d epochs are not possible", g.Epochs)
	case g.Batch < 0 || g.Batch > 65536:
		return bad("batch", "choose 1 to 65536", "a batch of %d is not possible", g.Batch)
	case g.Step < 0 || g.Step > time.Hour:
		return bad("step", "choose at most 1h", "a step of %v for a sample is not possible", g.Step)
	case g.Gap < 0 || g.Gap > 1e6 || g.Gap != g.Gap:
		return bad("gap", "choose 0 to 1000000 epochs", "arrivals cannot be %g epochs apart", g.Gap)
	case g.Skew < 0 || g.Skew > 10 || g.Skew != g.Skew:
		return bad("skew", "choose 0 to 10", "a skew of %g is not possible", g.Skew)
	case g.Bytes < 0 || g.Bytes > 1<<28:
		return bad("bytes", fmt.Sprintf("choose 0 to %d", 1<<28), "samples of %d bytes are not possible", g.Bytes)
	case (g.Family == "disjoint" || g.Family == "nested" || g.Family == "crossed") && g.Samples < g.Jobs+1:
		return bad("samples", "raise samples or lower jobs", "%d samples cannot be parted among %d jobs", g.Samples, g.Jobs)
	}
	if float64(g.Samples)*float64(g.Jobs)*float64(g.Epochs) >= MaxPicks {
		return errs.New(errs.ResourceExceeded, "samples", "lower samples, jobs or epochs",
			"%.3g picks are asked for, the limit is %.3g",
			float64(g.Samples)*float64(g.Jobs)*float64(g.Epochs), float64(MaxPicks))
	}
	need := Memory(g.picks(), uint64(g.Samples), g.Bytes > 0) + 4*uint64(g.Samples)*uint64(g.Jobs)
	if maxMemory > 0 && need > maxMemory {
		return errs.New(errs.ResourceExceeded, "samples", "lower samples, jobs or epochs, or raise --max-memory",
			"the trace of %d picks needs about %s of memory, the limit is %s", g.picks(), units.Size(need),
			units.Size(maxMemory))
	}
	return nil
}

// Generate makes the trace of a spec, whose orders are fresh uniform ones in every epoch of every job (but for zipf):
// the demand, and the picks of independent loaders. Equal specs give equal traces. The errors are those of Check.
func Generate(g Spec, maxMemory uint64) (*Trace, error) {
	if err := g.Check(maxMemory); err != nil {
		return nil, err
	}
	if g.Batch == 0 {
		g.Batch = 32
	}
	if g.Step == 0 {
		g.Step = time.Millisecond
	}
	if g.Gap == 0 {
		g.Gap = .5
	}
	if g.Skew == 0 {
		g.Skew = 1
	}
	r := xrand.New(0x7472616365, g.Seed)
	t := &Trace{Name: fmt.Sprintf("%s, %d samples, %d jobs, %d epochs", g.Family, g.Samples, g.Jobs, g.Epochs),
		Seed: g.Seed, Objects: g.Samples}
	streams := make([]stream, g.Jobs)
	epoch := time.Duration(g.Samples) * g.Step
	at := time.Duration(0)
	for k := range streams {
		j := Job{Name: fmt.Sprintf("job-%d", k+1), Order: "independent", Step: g.Step, Batch: g.Batch, Epochs: g.Epochs}
		lo, hi := 0, g.Samples
		switch g.Family {
		case "staggered":
			j.Arrive = epoch * time.Duration(k) / time.Duration(g.Jobs)
		case "speeds":
			j.Step *= time.Duration(k + 1)
		case "nested":
			hi = max(1, g.Samples*(g.Jobs-k)/g.Jobs)
		case "crossed":
			lo, hi = k*g.Samples/(g.Jobs+1), (k+2)*g.Samples/(g.Jobs+1)
		case "disjoint":
			lo, hi = k*g.Samples/g.Jobs, (k+1)*g.Samples/g.Jobs
		case "poisson":
			j.Arrive = at
			at += time.Duration(exponential(r) * g.Gap * float64(epoch))
		}
		if hi-lo < g.Samples {
			j.Subset = []Range{{uint32(lo), uint32(hi)}}
		}
		t.Jobs = append(t.Jobs, j)
		streams[k] = stream{g: &g, r: r.Split(), next: j.Arrive, lo: uint32(lo), size: hi - lo}
	}
	switch g.Family {
	case "zipf":
		z := newZipf(g.Samples, g.Skew)
		names := ranking(r, g.Samples) // popularity says nothing about ids
		for k := range streams {
			streams[k].zipf, streams[k].names = z, names
		}
	case "curriculum":
		names := ranking(r, g.Samples)
		for k := range streams {
			streams[k].names = names
		}
	}
	if g.Bytes > 0 {
		t.Sizes = PhotoSizes(r, g.Samples, g.Bytes)
	}
	t.Pick = Picks{make([]uint32, 0, g.picks()), make([]uint16, 0, g.picks())}
	for {
		k := -1
		for i := range streams {
			if s := &streams[i]; s.epoch < g.Epochs && (k < 0 || s.next < streams[k].next) {
				k = i
			}
		}
		if k < 0 {
			return t, nil
		}
		x, begins := streams[k].take()
		streams[k].next += t.Jobs[k].Step
		t.Pick.Add(k, x, begins)
	}
}

// stream is what one job asks for.
type stream struct {
	g     *Spec
	r     *xrand.Rand
	next  time.Duration
	epoch int
	at    int // in the epoch
	of    int // samples of the epoch
	lo    uint32
	size  int
	order []uint32
	zipf  *zipf
	names []uint32 // by rank
}

func (s *stream) take() (x uint32, begins bool) {
	if s.at == 0 {
		begins = true
		s.begin()
	}
	if s.zipf != nil {
		x = s.names[s.zipf.draw(s.r)]
	} else {
		k := s.at + s.r.IntN(s.of-s.at) // Fisher-Yates as it goes: any order to begin with will do
		s.order[s.at], s.order[k] = s.order[k], s.order[s.at]
		x = s.order[s.at]
	}
	if s.at++; s.at == s.of {
		s.at = 0
		s.epoch++
	}
	return x, begins
}

func (s *stream) begin() {
	s.of = s.size
	if s.zipf != nil {
		return
	}
	if s.g.Family == "curriculum" {
		s.of = max(1, s.size*(s.epoch+1)/s.g.Epochs)
		s.order = append(s.order[:0], s.names[:s.of]...)
		return
	}
	if s.order == nil {
		s.order = make([]uint32, s.size)
		for i := range s.order {
			s.order[i] = s.lo + uint32(i)
		}
	}
}

func ranking(r *xrand.Rand, n int) []uint32 {
	names := make([]uint32, n)
	for i := range names {
		names[i] = uint32(i)
	}
	r.Shuffle(n, func(a, b int) { names[a], names[b] = names[b], names[a] })
	return names
}

// PhotoSizes draws stored sizes with the spread of photographs: the logarithm is a sum of three uniform numbers, close
// to normal.
func PhotoSizes(r *xrand.Rand, n, mean int) []uint32 {
	const spread = 2.2
	out := make([]uint32, n)
	sum := 0.0
	raw := make([]float64, n)
	for i := range raw {
		raw[i] = r.LogUniform(1/spread, spread) * r.LogUniform(1/spread, spread) * r.LogUniform(1/spread, spread)
		sum += raw[i]
	}
	for i := range raw {
		out[i] = uint32(max(1, raw[i]/sum*float64(n)*float64(mean)))
	}
	return out
}

// exponential draws with mean 1, by von Neumann's comparisons of uniform numbers: no logarithm, so the same on every
// machine.
func exponential(r *xrand.Rand) float64 {
	for whole := 0.0; ; whole++ {
		first := r.Float64()
		last, n := first, 1
		for {
			u := r.Float64()
			if u >= last {
				break
			}
			last = u
			n++
		}
		if n%2 == 1 {
			return whole + first
		}
	}
}

// zipf draws ranks from 0 in proportion to (rank+1)^-skew, by Walker's and Vose's alias table: one draw costs the same
// at any size.
type zipf struct {
	keep  []float64
	alias []uint32
}

func newZipf(n int, skew float64) *zipf {
	w := make([]float64, n)
	sum := 0.0
	for k := range w {
		w[k] = math.Pow(float64(k+1), -skew) // a last bit that differs between machines moves one draw of 2^50
		sum += w[k]
	}
	z := &zipf{make([]float64, n), make([]uint32, n)}
	var small, large []uint32
	for k := range w {
		w[k] *= float64(n) / sum
		if w[k] < 1 {
			small = append(small, uint32(k))
		} else {
			large = append(large, uint32(k))
		}
	}
	for len(small) > 0 && len(large) > 0 {
		s, l := small[len(small)-1], large[len(large)-1]
		small = small[:len(small)-1]
		z.keep[s], z.alias[s] = w[s], l
		if w[l] -= 1 - w[s]; w[l] < 1 {
			large = large[:len(large)-1]
			small = append(small, l)
		}
	}
	for _, k := range append(small, large...) { // 1 but for rounding
		z.keep[k], z.alias[k] = 1, k
	}
	return z
}

func (z *zipf) draw(r *xrand.Rand) int {
	k := r.IntN(len(z.keep))
	if r.Float64() < z.keep[k] {
		return k
	}
	return int(z.alias[k])
}

// TimeAt is when a job takes the n-th sample of its run.
func (j *Job) TimeAt(n int) time.Duration { return j.Arrive + time.Duration(n)*j.Step }

// String is the spec as a scenario has it.
func (g Spec) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "{family: %s, samples: %d, jobs: %d, epochs: %d, seed: %d", g.Family, g.Samples, g.Jobs, g.Epochs,
		g.Seed)
	if g.Batch > 0 {
		fmt.Fprintf(&b, ", batch: %d", g.Batch)
	}
	if g.Step > 0 {
		fmt.Fprintf(&b, ", step: %s", g.Step)
	}
	if g.Gap > 0 {
		fmt.Fprintf(&b, ", gap: %g", g.Gap)
	}
	if g.Skew > 0 {
		fmt.Fprintf(&b, ", skew: %g", g.Skew)
	}
	if g.Bytes > 0 {
		fmt.Fprintf(&b, ", bytes: %d", g.Bytes)
	}
	return b.String() + "}"
}
