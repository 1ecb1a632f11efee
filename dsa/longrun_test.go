package dsa_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"larder/bench/fair"
	"larder/dsa"
	"larder/internal/ident"
	"larder/internal/invariant"
	"larder/internal/testenv/lane"
)

// This file is the corpus of long trainings: worlds of 400 epochs beside the daemon's own index and policy, and what
// must hold of every job's samples over all of them. Short worlds are in corpus_test.go.

const (
	longEpochs = 400
	lags       = 20 // counted
	memoryOf   = 4  // epochs that a stratified order may remember; see longWorld.memory
)

// longWorld is a world with what is promised in it.
type longWorld struct {
	world
	alone  []int   // jobs that share with no other, or only with slow ones: their epochs are independent at every lag
	memory int     // how many epochs positions of the other jobs may be correlated over
	factor float64 // by how much that may enlarge the variance of mean positions, at most
}

// longJob is a job of a subset that takes epochs of them at a speed, in samples of the world a step.
func longJob(m dsa.Mode, subset []ident.ObjectID, speed, start float64, epochs int) worldJob {
	spec := dsa.JobSpec{Mode: m, Subset: subset}
	return worldJob{spec: spec, speed: speed, start: start, epochs: epochs, batch: 4, window: 2}
}

// longWorlds are the worlds of one order and one cache, in percent of n samples.
func longWorlds(m dsa.Mode, n, cache, epochs int) []longWorld {
	step := float64(n)
	job := func(lo, hi int, speed, start float64) worldJob {
		of := float64(hi-lo) / step
		return longJob(m, span(lo, hi), speed, start*step, max(1, int(float64(epochs)*speed/of)))
	}
	all := func(speed, start float64) worldJob { return job(0, n, speed, start) }
	slow := all(.01, 0)
	paused := longJob(m, span(0, n), 1, 0, 2)
	paused.pause = [2]float64{.6 * step, .98 * step * float64(epochs)}
	guests := []worldJob{all(1, 0), all(1, .5)} // and one after the other, each for a while
	for i := range 40 {
		g := longJob(m, span(i%4*n/4, i%4*n/4+n/2), .7, step*float64(epochs*i)/40, 9)
		g.leave = g.start + step
		guests = append(guests, g)
	}
	stopper, changer, returner, inOrder := all(1, 0), all(1, .5), all(1, .5), all(.9, 0)
	stopper.stops = n * 9 / 10 / 4 * 4
	changer.change = span(n/4, n)
	returner.back = .03
	inOrder.spec.Mode = dsa.Sequential
	restarted := []worldJob{all(1, 0), all(1, .5)}
	var at []float64
	for i := range 40 {
		at = append(at, step*(float64(epochs*i)/40+.37))
	}
	both := []worldJob{all(1, 0), all(1, .5)}
	beside := func(more ...worldJob) []worldJob { return append(slices.Clone(both), more...) }
	world := func(name string, jobs ...worldJob) longWorld { return longWorld{world: world{name: name, jobs: jobs}} }
	alone := func(w longWorld, jobs ...int) longWorld { w.alone = jobs; return w }
	restarting := world("restarts", restarted...)
	restarting.restarts = at
	worlds := []longWorld{
		alone(world("one", all(1, 0)), 0),
		alone(world("one and one that stopped", all(1, 0), paused), 0),
		alone(world("one and a slow one", all(1, 0), slow), 0),
		alone(world("disjoint", job(0, n/2, .5, 0), job(n/2, n, .5, .1)), 0, 1),
		world("same", all(1, 0), all(1, 0)),
		world("nested", all(1, 0), job(0, n/2, 1, .1)),
		world("half", job(0, 2*n/3, .67, 0), job(n/3, n, .67, .1)),
		world("staggered", all(1, 0), all(1, .25), all(1, .5), all(1, .75)),
		world("unlike speeds", all(1, 0), all(.7, .25), all(.5, .5)),
		world("same and a slow one", all(1, 0), all(1, 0), slow),
		world("staggered and a slow one", beside(slow)...),
		world("staggered and a slow one on half", beside(job(0, n/2, .01, 0))...),
		world("staggered and one that stopped", beside(paused)...),
		world("six of all kinds", beside(job(0, n/2, .4, 0), job(n/3, n, .5, 0), job(n/4, 3*n/4, .6, 0), slow)...),
		world("guests", guests...),
		restarting,
		world("one that gives epochs up, one and a slow one", stopper, all(1, .5), slow),
		world("staggered, one changes its subset", all(1, 0), changer),
		world("staggered, picks come back", all(1, 0), returner),
		world("staggered and one in order", beside(inOrder)...),
		alone(world("three times as much data, as fast", job(0, n/4, .5, 0), job(n/4, n, .5, 0)), 0, 1),
		world("a part of it shared by two", all(1, 0), job(0, n/4, 1, 0), job(0, n/4, 1, .1)),
	}
	if m == dsa.Stratified {
		for _, tiles := range []int{2, 16, 256} {
			w := world(fmt.Sprintf("staggered, %d tiles", tiles), all(1, 0), all(1, .5))
			for i := range w.jobs {
				w.jobs[i].spec.Tiles = tiles
			}
			worlds = append(worlds, w)
		}
	}
	if cache > 5 { // in caches of a few samples sizes drift unless they are strata (docs/measurements/sampler.md#limits)
		sizes := world("unlike sizes", both...)
		sizes.sized = true
		worlds = append(worlds, sizes)
	}
	for i := range worlds {
		w := &worlds[i]
		w.n, w.cache, w.indexed = n, n*cache/100, true
		w.name = fmt.Sprintf("%s, %s, cache %d %%", w.name, m, cache)
		w.memory, w.factor = memoryOf, 1.3
		if m == dsa.Epoch { // orders resemble those before, and less with every epoch
			w.memory, w.factor = lags, 9
		}
		if m == dsa.Strict || m == dsa.Fixed {
			w.memory, w.factor = 0, 1
		}
	}
	return worlds
}

// deviate is one statistic of a job of a world: about standard normal if the promise holds.
type deviate struct {
	what string
	z    float64
}

// train plays a world and returns the statistics of its jobs that had at least half of the epochs, without the first
// fifth.
func (lw *longWorld) train(seed uint64) (out []deviate, figures string, err error) {
	type account struct{ all, early, late *fair.Training }
	acc := make([]account, len(lw.jobs))
	for i, j := range lw.jobs {
		if j.change != nil { // it is a neighbour: its own figures would be of two subsets
			j.spec.Subset = j.change
		}
		acc[i] = account{fair.New(j.spec.Subset, lags), fair.New(j.spec.Subset, 0), fair.New(j.spec.Subset, 0)}
	}
	whole := true
	err = lw.run(seed, func(job, epoch int, order []ident.ObjectID) {
		n, a := lw.jobs[job].epochs, &acc[job]
		if epoch < n/5 || lw.jobs[job].leave > 0 {
			return
		}
		whole = whole && a.all.Add(order)
		switch gap := lags; { // what is remembered for at most so many epochs is not remembered across it
		case epoch < (n*6/5-gap)/2:
			a.early.Add(order)
		case epoch >= (n*6/5+gap)/2:
			a.late.Add(order)
		}
	})
	if err != nil {
		return nil, "", err
	}
	if !whole {
		return nil, "", fmt.Errorf("%s: an epoch was not the subset", lw.name)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d loads", lw.name, lw.loads)
	for i := range acc {
		t := acc[i].all
		if t.Epochs() < longEpochs/8 || lw.jobs[i].spec.Mode == dsa.Sequential {
			continue
		}
		what := fmt.Sprintf("%s, job %d", lw.name, i)
		memory := lw.memory
		if slices.Contains(lw.alone, i) {
			memory = 0
		}
		factor := max(1, t.Factor(memory))
		sd, chance := t.SD()
		c2, _ := t.Lag(2)
		c5, _ := t.Lag(5)
		fmt.Fprintf(&b, "; job %d: sd %.2f x chance, lag 2 %+.3f, 5 %+.3f", i, sd/chance, c2, c5)
		// At most the factor that is stated, and no lag beyond its memory; then the mean positions are those of chance,
		// and the two ends of the training know nothing of each other.
		ends := fair.Between(acc[i].early, acc[i].late)
		out = append(out, deviate{what + ": mean positions", t.Z(factor)}, deviate{what + ": both ends", ends})
		if memory < lags {
			out = append(out, deviate{what + ": far lags", math.Abs(t.Far(memory+1, lags))})
		}
		if most := lw.factor; factor > most && memory > 0 {
			return nil, "", fmt.Errorf("%s: near epochs make the variance of mean positions %.2f times that of chance, at most "+
				"%.2f is stated", what, factor, most)
		}
	}
	return out, b.String(), nil
}

// trainAll plays worlds on two processors and returns their statistics.
func trainAll(t *testing.T, worlds []longWorld) (out []deviate) {
	t.Helper()
	found, figures, errs := make([][]deviate, len(worlds)), make([]string, len(worlds)), make([]error, len(worlds))
	var wg sync.WaitGroup
	for half := range 2 {
		wg.Go(func() {
			for i := half; i < len(worlds); i += 2 {
				found[i], figures[i], errs[i] = worlds[i].train(uint64(i))
			}
		})
	}
	wg.Wait()
	for i := range worlds {
		must(t, errs[i])
		t.Log(figures[i])
		out = append(out, found[i]...)
	}
	return out
}

// TestNoSampleIsEarlyForEver: over a training the mean positions of a job's samples are those of chance, epochs that
// are far apart are independent, and a job that shares with no other has independent epochs at every lag; in every
// world and cache, for each order with shuffle. For all statistics together a fair sampler fails once in a million.
func TestNoSampleIsEarlyForEver(t *testing.T) {
	if invariant.Enabled {
		t.Skip("make test runs it without the assertions, with which it would take minutes")
	}
	t.Parallel()
	var worlds []longWorld
	samples, caches := 250, []int{5, 30, 80}
	if !lane.Nightly() {
		caches = caches[1:2]
	}
	few := func(w longWorld) bool { return lane.Nightly() || len(w.jobs) < 4 }
	for _, cache := range caches {
		for _, m := range []dsa.Mode{dsa.Stratified, dsa.Epoch} {
			for _, w := range longWorlds(m, samples, cache, longEpochs) {
				if few(w) {
					worlds = append(worlds, w)
				}
			}
		}
	}
	for _, m := range []dsa.Mode{dsa.Strict, dsa.Fixed} {
		for _, w := range longWorlds(m, samples, 30, longEpochs) {
			if len(w.jobs) < 4 {
				worlds = append(worlds, w)
			}
		}
	}
	found := trainAll(t, worlds)
	if want := lane.Times(100, 600); len(found) < want {
		t.Fatalf("%d statistics, at least %d should be", len(found), want)
	}
	worst := slices.MaxFunc(found, func(a, b deviate) int { return int(math.Copysign(1, a.z-b.z)) })
	most := limit(len(found))
	t.Logf("%d worlds, %d statistics, the largest %.2f (%s), limit %.2f", len(worlds), len(found), worst.z, worst.what,
		most)
	for _, d := range found {
		if d.z >= most {
			t.Errorf("%s: z = %.1f, the limit is %.2f", d.what, d.z, most)
		}
	}
}

// TestLongRunFindsBugs: the statistics see each of these bugs in the worlds that are named, and nothing without it.
func TestLongRunFindsBugs(t *testing.T) {
	if !dsa.Patched {
		t.Skip("TestPlantedBugs runs it in a patched copy")
	}
	t.Parallel()
	for _, tc := range []struct {
		bug   string
		maker func(seed uint64) *dsa.Sampler
		in    []string
	}{
		{"all that is cached is preferred", dsa.NewPreferring, []string{
			"one", "disjoint", "nested", "half", "one and a slow one", "one and one that stopped",
		}},
		{"a slow job decides what stays", dsa.NewCountingSlow, []string{"same and a slow one", "staggered and a slow one"}},
	} {
		for _, name := range tc.in {
			for _, w := range longWorlds(dsa.Stratified, 250, 80, longEpochs) {
				if w.name != name+", stratified, cache 80 %" {
					continue
				}
				w.maker = func() (drawer, error) { return tc.maker(9), nil }
				found, figures, err := w.train(3)
				if err != nil {
					figures, found = err.Error(), []deviate{{"", math.Inf(1)}} // a factor above what is stated is found out, too
				}
				worst := slices.MaxFunc(found, func(a, b deviate) int { return int(math.Copysign(1, a.z-b.z)) })
				t.Logf("%s: z = %.1f; %s", tc.bug, worst.z, figures)
				if worst.z < limit(700) {
					t.Errorf("%s, %s: the largest z is %.1f: blind", tc.bug, w.name, worst.z)
				}
			}
		}
	}
}
