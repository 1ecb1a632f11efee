package engine

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"larder/internal/coordinator"
	"larder/internal/ident"
)

// meters measures, while the daemon works, what larder profile measures (docs/tiers.md): how fast storage is read, how fast the workers
// decode and augment for each recipe, and how fast memory is copied. Old figures fade.
type meters struct {
	cores     int // that workers can use at once
	computing atomic.Int32

	mu struct {
		sync.Mutex
		reading int       // reads under way
		since   time.Time // the first of them began, or was looked at last
		read    fading    // bytes, and the time in which at least one read was under way
		reads   int
		latency float64 // of a read, seconds; what was slow or fast long ago fades
		begun   map[*reading]struct{}
		lately  lately
		recipes map[recipeKey]*costs
		cache   float64 // bytes a second
	}
}

type recipeKey struct {
	dataset        ident.DatasetID
	prefix, suffix ident.RecipeID
}

// costs are seconds of a core for a sample.
type costs struct {
	decode, augment, finish fading
	inPlace                 int // samples that were decoded in place
}

// fading is a sum and what it is to be divided by, in which the past counts less and less.
type fading struct {
	n, seconds float64
	seen       int // of all time
}

func (f *fading) add(n, seconds float64) {
	f.n += n
	f.seconds += seconds
	f.seen++
}

// fade halves what was seen when there is more than enough of it.
func (f *fading) fade(enough float64) {
	if f.seconds > enough {
		f.n /= 2
		f.seconds /= 2
	}
}

const (
	minSeen = 16 // samples without which nothing counts as measured
	enough  = 4  // seconds of work after which the past fades
)

func newMeters(workers, cores int) *meters {
	m := &meters{cores: max(1, min(workers, cores))}
	m.mu.recipes = map[recipeKey]*costs{}
	m.mu.begun = map[*reading]struct{}{}
	return m
}

// reading is a read under way.
type reading struct {
	m     *meters
	begun time.Time
}

// reading begins a read.
func (m *meters) reading() *reading {
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	r := &reading{m, now}
	m.pass(now)
	m.mu.begun[r] = struct{}{}
	m.mu.reading++
	if m.mu.reading == 1 {
		m.mu.since = now
	}
	return r
}

// end ends it.
func (r *reading) end(bytes int) {
	m := r.m
	m.mu.Lock()
	defer m.mu.Unlock()
	m.readFor()
	m.pass(m.mu.since)
	delete(m.mu.begun, r)
	m.mu.reading--
	m.mu.read.n += float64(bytes)
	m.mu.read.seen++
	m.mu.latency += (m.mu.since.Sub(r.begun).Seconds() - m.mu.latency) / minSeen
}

// slow tells whether reads take long enough to be worth more goroutines.
func (m *meters) slow() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.latency > slowRead
}

// readTime is how long a read takes, on average.
func (m *meters) readTime() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Duration(m.mu.latency * float64(time.Second))
}

// readFor counts the time that was read since it was looked at; m.mu is held.
func (m *meters) readFor() {
	now := time.Now()
	if m.mu.reading > 0 {
		m.mu.read.seconds += now.Sub(m.mu.since).Seconds()
	}
	m.mu.since = now
}

// step is one piece of work of a worker.
type step uint8

const (
	stepDecode step = iota
	stepAugment
	stepFinish
	stepInPlace // decode, augment and finish in one, of parts of images: it tells nothing of what each of them costs
)

// piece is a piece of work under way.
type piece struct {
	m        *meters
	key      recipeKey
	step     step
	begun    time.Time
	together int32 // workers that computed then
}

// measureEvery is of how many samples that are decoded in place one is measured.
const measureEvery = 32

// due tells whether the next sample that is decoded in place is to be measured: decoding and augmenting apart, which costs more than both in one.
func (m *meters) due(j *job) bool {
	return m.dueOn(recipeKey{j.data.ID(), j.recipe.Prefix(), j.recipe.SuffixID()})
}

func (m *meters) dueOn(k recipeKey) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.costs(k)
	c.inPlace++
	return c.decode.seen < minSeen || c.augment.seen < minSeen || c.inPlace%measureEvery == 0
}

// costs is what is known of a recipe; m.mu is held.
func (m *meters) costs(k recipeKey) *costs {
	c := m.mu.recipes[k]
	if c == nil {
		c = &costs{}
		m.mu.recipes[k] = c
	}
	return c
}

// work begins a piece of work.
func (m *meters) work(j *job, s step) piece {
	return m.workOn(recipeKey{j.data.ID(), j.recipe.Prefix(), j.recipe.SuffixID()}, s)
}

func (m *meters) workOn(k recipeKey, s step) piece {
	now := time.Now()
	m.mu.Lock()
	m.pass(now)
	n := m.computing.Add(1)
	m.mu.Unlock()
	return piece{m: m, key: k, step: s, begun: now, together: n}
}

// end ends it and tells what it took of a core; the zero piece has ended. waited is time of it that was no work; only what went well counts. While more workers compute than
// there are cores, each has only a part of one.
func (p *piece) end(waited time.Duration, good bool) (core time.Duration) {
	m := p.m
	if m == nil {
		return 0
	}
	now := time.Now()
	took := (now.Sub(p.begun) - waited).Seconds()
	m.mu.Lock()
	m.pass(now)
	both := float64(p.together+m.computing.Load()) / 2
	m.computing.Add(-1)
	m.mu.Unlock()
	if cores := float64(m.cores); both > cores {
		took *= cores / both
	}
	core = time.Duration(max(took, 0) * float64(time.Second))
	if !good || p.step == stepInPlace {
		return core
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.costs(p.key)
	f := &c.finish
	switch p.step {
	case stepDecode:
		f = &c.decode
	case stepAugment:
		f = &c.augment
	case stepFinish, stepInPlace:
	}
	f.add(1, max(took, 0))
	return core
}

// rates is what was measured up to now.
func (m *meters) rates() coordinator.Rates {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.readFor()
	out := coordinator.Rates{Cache: m.mu.cache}
	if r := &m.mu.read; r.seen >= minSeen && r.seconds > 0 {
		out.Storage = r.n / r.seconds
		r.fade(enough)
	}
	rate := func(f *fading) float64 {
		if f.seen < minSeen || f.seconds <= 0 {
			return 0
		}
		v := f.n / f.seconds * float64(m.cores)
		f.fade(enough)
		return v
	}
	for k, c := range m.mu.recipes {
		out.Recipes = append(out.Recipes, coordinator.RecipeRates{Dataset: k.dataset, Prefix: k.prefix, Suffix: k.suffix,
			Decode: rate(&c.decode), Augment: rate(&c.augment), Finish: rate(&c.finish)})
	}
	slices.SortFunc(out.Recipes, func(a, b coordinator.RecipeRates) int {
		for _, d := range [...]int64{int64(a.Dataset) - int64(b.Dataset), cmp64(uint64(a.Prefix), uint64(b.Prefix)), cmp64(uint64(a.Suffix), uint64(b.Suffix))} {
			if d != 0 {
				return int(d)
			}
		}
		return 0
	})
	return out
}

func cmp64(a, b uint64) int64 {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// forget drops the recipes that no job uses any more.
func (m *meters) forget(used func(recipeKey) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k := range m.mu.recipes {
		if !used(k) {
			delete(m.mu.recipes, k)
		}
	}
}

const copied = 8 << 20 // bytes; larger than what a core has of most caches

// measureMemory copies memory for 10 ms in one core, and counts that for all cores that workers use.
func (m *meters) measureMemory() {
	b, err := unix.Mmap(-1, 0, 2*copied, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_POPULATE)
	if err != nil {
		return // then the rule of thumb stays
	}
	defer func() { _ = unix.Munmap(b) }()
	from, to := b[:copied], b[copied:]
	from[0] = 1
	copy(to, from)
	begun, n := time.Now(), 0
	for time.Since(begun) < 10*time.Millisecond {
		copy(to, from)
		n++
	}
	rate := float64(n) * copied / time.Since(begun).Seconds() * float64(m.cores)
	m.mu.Lock()
	m.mu.cache = rate
	m.mu.Unlock()
}

// measure tells the coordinator what was measured, until ctx ends. What has not drifted changes nothing there.
func (e *Engine) measure(ctx context.Context) {
	e.meters.measureMemory()
	every := e.cfg.Measure
	if every <= 0 {
		every = 2 * time.Second
	}
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			e.meters.forget(e.recipeUsed)
			if r := e.meters.rates(); len(r.Recipes) > 0 && !e.send(coordinator.Measured{Rates: r}) {
				return
			}
		}
	}
}

// recipeUsed tells whether a job that is remembered has the recipe.
func (e *Engine) recipeUsed(k recipeKey) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, j := range e.mu.jobs {
		if (recipeKey{j.data.ID(), j.recipe.Prefix(), j.recipe.SuffixID()}) == k {
			return true
		}
	}
	return false
}
