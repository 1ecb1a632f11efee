package dsa

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"larder/internal/ident"
	"larder/internal/xrand"
)

// drift collects how far the mean positions of classes of objects lie from the middle of an epoch.
type drift struct {
	n     int
	sumSq float64
	max   float64
	where string
	mean  float64 // at max
}

// add takes the deviate of one class of one job-epoch, summed over repeats.
func (d *drift) add(z, mean float64, where string) {
	d.n++
	d.sumSq += z * z
	if math.Abs(z) > d.max {
		d.max, d.where, d.mean = math.Abs(z), where, mean
	}
}

func (d *drift) rms() float64 { return math.Sqrt(d.sumSq / float64(d.n)) }

// limit is the largest deviate that n fair classes exceed with probability 1e-6 in all.
func (d *drift) limit() float64 {
	p := 1e-6 / float64(2*max(d.n, 1))
	return math.Sqrt2 * math.Erfinv(1-2*p)
}

// measure plays a scenario repeats times and adds, for every job and epoch, the mean position of every membership class
// and of every fifth of the id range with at least least objects. Under a uniform order the position of a class of m of
// n samples has mean 1/2 and the variance of m draws without replacement.
func (d *drift) measure(name string, sc scenario, repeats, least int) error {
	member := map[ident.ObjectID]uint64{}
	top := 0
	for i, j := range sc.jobs {
		for _, x := range j.spec.Subset {
			member[x] |= 1 << i
			top = max(top, int(x)+1)
		}
	}
	type key struct {
		job, epoch int
		class      string
	}
	type sums struct{ m, n, sum, runs float64 }
	all := map[key]*sums{}
	var keys []key
	for rep := range repeats {
		sc.seed = xrand.Hash(sc.seed, uint64(rep))
		sc.jobs = slices.Clone(sc.jobs)
		for i := range sc.jobs { // blind to what an object is, but only over seeds
			sc.jobs[i].spec.Seed = xrand.Hash(sc.seed, uint64(i))
		}
		res, err := sc.run()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		for i, epochs := range res.orders {
			if sc.jobs[i].spec.Mode == Sequential || sc.jobs[i].spec.Mode == Fixed {
				continue
			}
			for e, o := range epochs {
				classes := make(map[key][2]float64)
				for k, x := range o {
					pos := (float64(k) + 0.5) / float64(len(o))
					for _, c := range []string{fmt.Sprintf("members of %b", member[x]), fmt.Sprintf("fifth %d", int(x)*5/top)} {
						v := classes[key{i, e, c}]
						classes[key{i, e, c}] = [2]float64{v[0] + 1, v[1] + pos}
					}
				}
				for k, v := range classes { // sums only: the order does not matter
					s := all[k]
					if s == nil {
						s = &sums{m: v[0], n: float64(len(o))}
						all[k] = s
						keys = append(keys, k)
					}
					s.sum += v[1] / v[0]
					s.runs++
				}
			}
		}
	}
	for _, k := range keys {
		s := all[k]
		if s.m < float64(least) || s.m == s.n {
			continue
		}
		variance := (s.n*s.n - 1) / (12 * s.n * s.n) / s.m * (s.n - s.m) / (s.n - 1) / s.runs
		mean := s.sum / s.runs
		d.add((mean-0.5)/math.Sqrt(variance), mean, fmt.Sprintf("%s: job %d epoch %d %s", name, k.job, k.epoch, k.class))
	}
	return nil
}

// randomScenario draws jobs on nested, crossed, disjoint, identical and random subsets, with unlike modes, speeds,
// starts, batches and caches, some of which join late, leave, stall or return picks, beside a job without shuffling at
// times.
func randomScenario(r *xrand.Rand) scenario {
	n := 240 + r.IntN(160)
	sc := scenario{seed: r.Uint64(), cache: n * []int{0, 1, 5, 10, 20, 40, 100}[r.IntN(7)] / 100, rows: r.IntN(2) == 0}
	sc.flash = sc.cache == 0 && r.IntN(2) == 0
	kind := r.IntN(5)
	jobs := 2 + r.IntN(4)
	if r.IntN(8) == 0 {
		jobs = 6 + r.IntN(7)
	}
	for i := range jobs {
		var sub []ident.ObjectID
		switch kind {
		case 0: // nested
			sub = span(0, n/(i+1))
		case 1: // crossed
			lo := r.IntN(n / 2)
			sub = span(lo, lo+n/2)
		case 2: // random
			sub = sample(r, n, n/2+r.IntN(n/3))
		case 3: // identical
			sub = span(0, n)
		default: // pairs of disjoint halves
			sub = span(i%2*n/2, i%2*n/2+n/2)
		}
		j := simJob{
			spec: JobSpec{Mode: []Mode{Strict, Stratified, Stratified, Epoch}[r.IntN(4)], Tiles: []int{2, 4, 4, 16}[r.IntN(4)],
				Subset: sub},
			speed:  0.5 + r.Float64(),
			epochs: 2 + r.IntN(2),
			batch:  1 + r.IntN(8),
			window: 1 + r.IntN(3),
		}
		if r.IntN(2) == 0 {
			j.start = r.Float64() * float64(n)
		}
		switch r.IntN(8) {
		case 0:
			j.leave = j.start + float64(n)*r.Float64()
		case 1:
			j.back = 0.02
		case 2:
			j.pause = [2]float64{j.start + float64(n)/3, j.start + float64(n)/3 + float64(n)*r.Float64()}
		}
		sc.jobs = append(sc.jobs, j)
	}
	switch r.IntN(4) {
	case 0:
		sc.jobs[len(sc.jobs)-1].spec = JobSpec{Mode: Sequential, Subset: sc.jobs[len(sc.jobs)-1].spec.Subset}
	case 1:
		sc.jobs[0].spec = JobSpec{Mode: Fixed, Seed: r.Uint64(), Subset: sc.jobs[0].spec.Subset}
	}
	return sc
}

// TestNoClassDrifts: whatever set of objects one looks at, its mean position in each epoch of each job is 1/2.
func TestNoClassDrifts(t *testing.T) {
	t.Parallel()
	r := xrand.New(20)
	d := &drift{}
	for i := range 200 {
		sc := randomScenario(r)
		sc.check = i%20 == 0
		if i%4 == 3 {
			sc.slice = 40
		}
		must(t, d.measure(fmt.Sprintf("scenario %d", i), sc, max(1, effort(8)), 30))
	}
	t.Logf("%d classes, rms %.3f, largest %.2f (mean %.3f, %s), limit %.2f", d.n, d.rms(), d.max, d.mean, d.where,
		d.limit())
	if d.max >= d.limit() {
		t.Errorf("%s: mean position %.3f, z = %.1f", d.where, d.mean, d.max)
	}
	// sd of the rms of n fair deviates is 1/sqrt(2n); they overlap, hence the room
	if d.n < 1000 || d.rms() > 1.06 || d.rms() < 0.9 {
		t.Errorf("%d classes, rms %.3f", d.n, d.rms())
	}
}
