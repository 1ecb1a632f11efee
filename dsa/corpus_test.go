package dsa_test

import (
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"

	"larder/bench/fair"
	"larder/dsa"
	"larder/internal/ident"
	"larder/internal/invariant"
	"larder/internal/xrand"
)

// This file is the corpus: generated worlds of jobs beside a cache of bytes, driven through the exported sampler alone,
// and what the mean position of every class of samples must be in every epoch of every job. It knows nothing of how the
// sampler works.

// corpusSize is how many worlds there are: 240 at night, 24 by day, with the invariants; without them as many as
// LARDER_SIM_SEEDS says.
func corpusSize() int {
	if n, err := strconv.Atoi(os.Getenv("LARDER_SIM_SEEDS")); err == nil && n > 0 && !invariant.Enabled {
		return n
	}
	return effort(240)
}

// class is a set of samples whose mean position is looked at.
type class struct {
	job, epoch int
	kind       string // cell, fifth, size
	which      int
}

func (c class) String() string {
	return fmt.Sprintf("job %d epoch %d %s %d", c.job, c.epoch, c.kind, c.which)
}

// positions collects deviates of class means: of each class of each job-epoch over the repeats, and, over all worlds,
// of each size quartile and fifth of the id range, for a drift too small to be seen in one world.
type positions struct {
	mu     sync.Mutex
	n      int
	sumSq  float64
	max    float64
	where  string
	pooled map[string][]float64 // fifth and size classes: a sum of deviates for each run
}

const least = 30 // samples a class must have

// add plays a world some times.
func (p *positions) add(w world, seed uint64, repeats int) error {
	cells := map[string]int{}
	cell := make([]int, w.n)
	for x := range cell { // membership in every subset anybody ever has
		key := ""
		for i := range w.jobs {
			key += fmt.Sprint(contains(w.jobs[i].spec.Subset, x), contains(w.jobs[i].change, x))
		}
		if _, ok := cells[key]; !ok {
			cells[key] = len(cells)
		}
		cell[x] = cells[key]
	}
	sum := map[class]float64{}
	runs := map[class]float64{}
	pooled := map[string][]float64{}
	for rep := range repeats {
		all := map[string]float64{}
		err := w.run(xrand.Hash(seed, uint64(rep)), func(job, epoch int, order []ident.ObjectID) {
			if m := w.jobs[job].spec.Mode; m == dsa.Sequential {
				return
			}
			n := float64(len(order))
			m := map[class]float64{}
			at := map[class]float64{}
			for k, x := range order {
				for _, c := range []class{{job, epoch, "cell", cell[x]}, {job, epoch, "fifth", int(x) * 5 / w.n},
					{job, epoch, "size", quartile(x)}} {
					m[c]++
					at[c] += (float64(k) + .5) / n
				}
			}
			for c, size := range m { // order-free: sums into places of their own
				if size < least || size == n {
					continue
				}
				z := (at[c]/size - .5) / math.Sqrt((n*n-1)/(12*n*n)/size*(n-size)/(n-1))
				sum[c] += z
				runs[c]++
				if c.kind != "cell" {
					all[fmt.Sprint(c.kind, c.which)] += z
				}
			}
		})
		if err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
		for k, v := range all { // order-free
			pooled[k] = append(pooled[k], v)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for c, v := range sum { // order-free but for ties
		z := v / math.Sqrt(runs[c])
		p.n++
		p.sumSq += z * z
		if math.Abs(z) > p.max {
			p.max, p.where = math.Abs(z), fmt.Sprintf("%s, %s", w.name, c)
		}
	}
	if p.pooled == nil {
		p.pooled = map[string][]float64{}
	}
	for k, v := range pooled { // order-free
		p.pooled[k] = append(p.pooled[k], v...)
	}
	return nil
}

// limit is the deviate that the largest of n fair ones exceeds with probability 1e-6 (Bonferroni, two-sided). Rank sums
// of 30 or more have lighter tails than the normal law this takes.
func limit(n int) float64 { return fair.Limit(n) }

// drifts are the pooled deviates: the mean over runs, which are independent, in units of its standard error.
func (p *positions) drifts() (worst float64, which string) {
	for _, k := range slices.Sorted(maps.Keys(p.pooled)) {
		v := p.pooled[k]
		sum, sq := 0.0, 0.0
		for _, z := range v {
			sum += z
			sq += z * z
		}
		n := float64(len(v))
		se := math.Sqrt((sq/n - sum*sum/n/n) / n)
		if z := math.Abs(sum/n) / se; z > worst {
			worst, which = z, k
		}
	}
	return worst, which
}

// generate draws a world: overlaps of five kinds in turn, 2 to 12 jobs, caches of 0 to 100 %, and everything that
// happens to jobs.
func generate(r *xrand.Rand, i int) world {
	n := 240 + r.IntN(160)
	w := world{n: n, cache: n * []int{0, 1, 3, 5, 10, 20, 40, 70, 100}[r.IntN(9)] / 100}
	kind := i % 5
	w.name = fmt.Sprintf("world %d (%s)", i, []string{"nested", "crossed", "disjoint", "identical", "random"}[kind])
	jobs := 2 + r.IntN(3)
	if i%3 == 0 {
		jobs = 5 + r.IntN(8)
	}
	for k := range jobs {
		var sub []ident.ObjectID
		switch kind {
		case 0:
			sub = span(0, max(60, n/(k+1)))
		case 1:
			lo := r.IntN(n / 2)
			sub = span(lo, lo+n/2)
		case 2: // two or three disjoint parts
			parts := 2 + jobs%2
			sub = span(k%parts*n/parts, (k%parts+1)*n/parts)
		case 3:
			sub = span(0, n)
		default:
			sub = shuffled(r, n)[:n/2+r.IntN(n/3)]
		}
		j := worldJob{
			spec: dsa.JobSpec{
				Mode:   []dsa.Mode{dsa.Strict, dsa.Stratified, dsa.Stratified, dsa.Epoch, dsa.Fixed}[r.IntN(5)],
				Tiles:  []int{2, 4, 4, 16, 256}[r.IntN(5)],
				Subset: sub,
			},
			speed:  0.5 + r.Float64(),
			epochs: 2 + r.IntN(2),
			batch:  1 + r.IntN(12),
			window: 1 + r.IntN(4),
		}
		if r.IntN(2) == 0 {
			j.start = r.Float64() * float64(n)
		}
		switch r.IntN(10) {
		case 0, 1:
			j.leave = j.start + 1.5*float64(n)*r.Float64()
		case 2:
			j.back = 0.03
		case 3:
			j.pause = [2]float64{j.start + float64(n)/3, j.start + float64(n)/3 + float64(n)*r.Float64()}
		case 4:
			lo := r.IntN(n / 2)
			j.change = span(lo, lo+n/2)
		}
		w.jobs = append(w.jobs, j)
	}
	if i%4 == 1 { // beside a job that does not shuffle
		j := &w.jobs[len(w.jobs)-1]
		j.spec.Mode, j.epochs, j.speed = dsa.Sequential, 3, 0.7+r.Float64()
	}
	w.sized = i%4 == 2 || i%4 == 1 && r.IntN(2) == 0
	w.strata = w.sized
	if r.IntN(8) == 0 {
		w.withdraw = float64(n) * r.Float64()
	}
	if r.IntN(4) == 0 {
		w.slices = 20 + r.IntN(60)
	}
	return w
}

// TestCorpusHasNoDrift: in every world of the corpus, in every epoch of every job, every static cell, every fifth of
// the id range and every size quartile of at least 30 samples lies in the middle of the epoch on average: the largest
// deviate stays below what a fair family exceeds once in a million, their spread is that of fair ones, and pooled over
// all worlds no fifth and no size drifts. The bugs that it finds are in TestCorpusFindsBugs.
func TestCorpusHasNoDrift(t *testing.T) {
	t.Parallel()
	p := &positions{}
	r := xrand.New(2030)
	var worlds []world
	for i := range corpusSize() {
		worlds = append(worlds, generate(r, i))
	}
	var wg sync.WaitGroup
	errs := make([]error, len(worlds))
	for half := range 2 {
		wg.Go(func() {
			for i := half; i < len(worlds); i += 2 {
				errs[i] = p.add(worlds[i], uint64(i), effort(12))
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		must(t, err)
	}
	rms := math.Sqrt(p.sumSq / float64(p.n))
	pooled, which := p.drifts()
	t.Logf("%d worlds, %d classes: rms %.3f, largest %.2f (%s), limit %.2f; pooled %.2f (%s), limit %.2f",
		len(worlds), p.n, rms, p.max, p.where, limit(p.n), pooled, which, limit(9))
	if p.max >= limit(p.n) {
		t.Errorf("%s: z = %.1f", p.where, p.max)
	}
	if pooled >= limit(9) {
		t.Errorf("%s drifts in all worlds together: z = %.1f", which, pooled)
	}
	// The rms of n fair deviates has sd 1/sqrt(2n); the classes of an epoch overlap three times, and jobs that share order
	// are as one: at worst the twelve jobs of a world. 5 sd of as many fewer.
	if room := 5 / math.Sqrt(2*float64(p.n)/36); p.n < 30*len(worlds) || math.Abs(rms-1) > room {
		t.Errorf("%d classes, rms %.3f, fair is 1 ± %.3f", p.n, rms, room)
	}
}

// TestCorpusFindsBugs: what the corpus measures sees each of these. Baselines that break the promise by design stand
// for bugs inside a sampler: ods serves hits first without cells, joader-as-released walks blocks of ids upwards.
func TestCorpusFindsBugs(t *testing.T) {
	t.Parallel()
	const n = 300
	mode := func(m dsa.Mode, sub []ident.ObjectID, speed, start float64) worldJob {
		return worldJob{spec: dsa.JobSpec{Mode: m, Subset: sub}, speed: speed, start: start, epochs: 3, batch: 4, window: 2}
	}
	sizes := world{n: n, cache: n / 5, sized: true, strata: true,
		jobs: []worldJob{mode(dsa.Epoch, span(0, n), 1, 0), mode(dsa.Epoch, span(0, n), .62, 0)}}
	crossed := world{n: n, cache: n / 5, jobs: []worldJob{mode(dsa.Epoch, span(0, 2*n/3), 1, 0),
		mode(dsa.Epoch, span(n/3, n), .8, 0)}}
	leaver := world{n: n, cache: n / 5, jobs: []worldJob{mode(dsa.Epoch, span(0, n), .5, 0),
		mode(dsa.Epoch, span(0, n), 1, 0), mode(dsa.Epoch, span(0, n), 1, n/2)}}
	leaver.jobs[1].leave = n / 2
	unclassed := sizes
	unclassed.strata = false
	for _, tc := range []struct {
		name  string
		w     world
		plant func(*world)
	}{
		{"victims by id", leaver, func(w *world) { w.bug.victimByID = true }},
		{"need per byte of the sample itself, sizes not classes", unclassed, func(w *world) { w.bug.ownSize = true }},
		{"large samples available when loaded, sizes not classes", unclassed, func(w *world) { w.bug.late = 60 }},
		{"hits first without cells", crossed, func(w *world) { w.maker = newRival("ods", 5) }},
		{"blocks of ids upwards", crossed, func(w *world) { w.maker = newRival("joader-as-released", 5) }},
	} {
		measure := func(w world) *positions {
			p := &positions{}
			w.name = tc.name
			must(t, p.add(w, 8, 30))
			return p
		}
		if tc.w.strata || !tc.w.sized {
			if p := measure(tc.w); p.max >= limit(p.n) {
				t.Errorf("%s: without the bug z = %.1f (%s)", tc.name, p.max, p.where)
			}
		}
		tc.plant(&tc.w)
		p := measure(tc.w)
		t.Logf("%s: z = %.1f (%s), limit %.2f", tc.name, p.max, p.where, limit(p.n))
		if p.max < limit(p.n) {
			t.Errorf("%s: the largest z is %.1f: the corpus is blind to it", tc.name, p.max)
		}
	}
	// What a size class of its own cures: those two, and a cache of so few bytes that a large sample seldom finds room in
	// it.
	tiny, loose := sizes, unclassed
	tiny.cache, loose.cache = 3, 3
	late, own := sizes, sizes
	late.bug.late, own.bug.ownSize = 60, true
	for i, w := range []world{tiny, late, own} {
		w.name = fmt.Sprintf("cured %d", i)
		p := &positions{}
		must(t, p.add(w, 8, 30))
		if p.max >= limit(p.n) {
			t.Errorf("with strata: z = %.1f (%s)", p.max, p.where)
		}
	}
	p := &positions{}
	must(t, p.add(loose, 8, 30))
	if p.max < limit(p.n) {
		t.Errorf("sizes in bytes and not classes, next to no cache: z = %.1f: the corpus is blind to it", p.max)
	}
}
