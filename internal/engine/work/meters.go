package work

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"larder/internal/coordinator"
	"larder/internal/ident"
)

// Meters measures, while the daemon works, what larder profile measures (docs/tiers.md): how fast storage is read,
// how fast the workers decode and augment for each recipe, and how fast memory is copied. Old figures fade. It is
// safe for concurrent use.
type Meters struct {
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
		recipes map[RecipeKey]*costs
		cache   float64 // bytes a second
	}
}

// RecipeKey is a recipe on a dataset.
type RecipeKey struct {
	Dataset        ident.DatasetID
	Prefix, Suffix ident.RecipeID
}

// costs are seconds of a core for a sample.
type costs struct {
	decode, augment, finish, inPlace effort
	direct                           int // samples that were decoded in place
}

// fading is a sum and its divisor, in both of which the past counts less and less.
type fading struct {
	n, seconds float64
	seen       int // of all time
}

// Cores is how many cores the workers can use at once.
func (m *Meters) Cores() int { return m.cores }

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
	minSeen = 16 // looks at samples without which nothing counts as measured
	enough  = 4  // seconds of work after which the past fades
	outlier = 16 // times the usual cost of a sample that one sample may count for
)

// effort is what samples cost. The clock also counts what other processes and the host took of a core in between, and
// one such gap of some milliseconds outweighs a hundred samples. So no sample counts for more than outlier times what
// is usual: the median of the first ones, then the mean. Of samples that were measured together one may be that late.
// Where costs grow the mean follows, for each look raises it. A look at several samples is one that was seen.
type effort struct {
	fading
	first [minSeen]amount
}

// amount is so many samples of so many seconds each.
type amount struct{ n, each float64 }

func (e *effort) add(n, seconds float64) {
	a := amount{n, seconds / n}
	if e.seen < minSeen {
		e.first[e.seen] = a
	} else if usual := e.seconds / e.n; usual > 0 {
		a.each = a.capped(usual)
	}
	e.fading.add(n, n*a.each)
	if e.seen == minSeen {
		e.settle()
	}
}

// capped is what each counts for, at most one of them outlier times what is usual.
func (a amount) capped(usual float64) float64 { return min(a.each, usual*(a.n+outlier-1)/a.n) }

// settle looks at the first samples again, when there are enough of them to say what is usual.
func (e *effort) settle() {
	sorted := e.first
	slices.SortFunc(sorted[:], func(a, b amount) int { return cmp.Compare(a.each, b.each) })
	usual := sorted[minSeen/2].each
	if usual <= 0 {
		return
	}
	e.seconds = 0
	for _, a := range e.first {
		e.seconds += a.n * a.capped(usual)
	}
}

// NewMeters returns Meters of a machine whose workers can use so many cores.
func NewMeters(workers, cores int) *Meters {
	m := &Meters{cores: max(1, min(workers, cores))}
	m.mu.recipes = map[RecipeKey]*costs{}
	m.mu.begun = map[*reading]struct{}{}
	return m
}

// reading is a read under way.
type reading struct {
	m     *Meters
	begun time.Time
}

// reading begins a read.
func (m *Meters) reading() *reading {
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

// slow reports whether reads take long enough to be worth more goroutines.
func (m *Meters) slow() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.latency > slowRead
}

// ReadTime is how long a read takes, on average.
func (m *Meters) ReadTime() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Duration(m.mu.latency * float64(time.Second))
}

// readFor counts the time that was read since it was looked at; m.mu is held.
func (m *Meters) readFor() {
	now := time.Now()
	if m.mu.reading > 0 {
		m.mu.read.seconds += now.Sub(m.mu.since).Seconds()
	}
	m.mu.since = now
}

// Step is a kind of work on a sample.
type Step uint8

// The kinds of work that are measured.
const (
	Decode Step = iota
	Augment
	Finish
	InPlace // decode, augment and finish in one, of parts of images: what each of them costs is not known
)

// piece is a piece of work under way.
type piece struct {
	m        *Meters
	key      RecipeKey
	step     Step
	begun    time.Time
	together int32 // workers that computed then
}

// measureEvery is of how many samples that are decoded in place one is measured. It costs half as much again as the
// others: 0.4 % of the work in all.
const measureEvery = 128

// due reports whether the next sample that is decoded in place must be measured: decoding and augmenting apart,
// which costs more than both in one.
func (m *Meters) due(k RecipeKey) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.costs(k)
	c.direct++
	return c.decode.seen < minSeen || c.augment.seen < minSeen || c.direct%measureEvery == 0
}

// costs is what is known of a recipe; m.mu is held.
func (m *Meters) costs(k RecipeKey) *costs {
	c := m.mu.recipes[k]
	if c == nil {
		c = &costs{}
		m.mu.recipes[k] = c
	}
	return c
}

// work begins a piece of work.
func (m *Meters) work(k RecipeKey, s Step) piece {
	now := time.Now()
	m.mu.Lock()
	m.pass(now)
	n := m.computing.Add(1)
	m.mu.Unlock()
	return piece{m: m, key: k, step: s, begun: now, together: n}
}

// end ends it and returns what it took of a core; the zero piece has ended. waited is time of it that was no work; n is
// how many samples went well, and only they count. While more workers compute than there are cores, each has only a
// part of one.
func (p *piece) end(waited time.Duration, n int) (core time.Duration) {
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
	defer m.mu.Unlock()
	if cores := float64(m.cores); both > cores {
		took *= cores / both
	}
	core = time.Duration(max(took, 0) * float64(time.Second))
	if n == 0 {
		return core
	}
	c := m.costs(p.key)
	f := &c.finish
	switch p.step {
	case Decode:
		f = &c.decode
	case Augment:
		f = &c.augment
	case InPlace:
		f = &c.inPlace
	case Finish:
	}
	f.add(float64(n), max(took, 0))
	return core
}

// Foreign counts n samples that one of so many workers of clients made in that time. They are not of the cores that
// rates are of: so many at once do as much as they do.
func (m *Meters) Foreign(k RecipeKey, s Step, n int, took time.Duration, workers int) {
	seconds := max(took.Seconds(), 0) * float64(m.cores) / float64(max(workers, 1))
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.costs(k)
	switch s {
	case Decode:
		c.decode.add(float64(n), seconds)
	case Augment:
		c.augment.add(float64(n), seconds)
	case InPlace:
		c.inPlace.add(float64(n), seconds)
	case Finish:
		c.finish.add(float64(n), seconds)
	}
}

// Rates is what was measured up to now.
func (m *Meters) Rates() coordinator.Rates {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.readFor()
	out := coordinator.Rates{Cache: m.mu.cache}
	if r := &m.mu.read; r.seen >= minSeen && r.seconds > 0 {
		out.Storage = r.n / r.seconds
		r.fade(enough)
	}
	rate := func(f *effort) float64 {
		if f.seen < minSeen || f.seconds <= 0 {
			return 0
		}
		v := f.n / f.seconds * float64(m.cores)
		f.fade(enough)
		return v
	}
	for k, c := range m.mu.recipes {
		out.Recipes = append(out.Recipes, coordinator.RecipeRates{Dataset: k.Dataset, Prefix: k.Prefix, Suffix: k.Suffix,
			Decode: rate(&c.decode), Augment: rate(&c.augment), Finish: rate(&c.finish), InPlace: rate(&c.inPlace)})
	}
	slices.SortFunc(out.Recipes, func(a, b coordinator.RecipeRates) int {
		return cmp.Or(cmp.Compare(a.Dataset, b.Dataset), cmp.Compare(a.Prefix, b.Prefix), cmp.Compare(a.Suffix, b.Suffix))
	})
	return out
}

// Forget drops the recipes that no job uses any more.
func (m *Meters) Forget(used func(RecipeKey) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k := range m.mu.recipes {
		if !used(k) {
			delete(m.mu.recipes, k)
		}
	}
}

const (
	copied    = 8 << 20 // bytes; larger than what a core has of most caches
	copies    = 8       // at least
	copyFor   = 10 * time.Millisecond
	copyCalls = 64 // at most
)

// MeasureMemory copies memory for 10 ms in one core, and counts the fastest copy for all cores that workers use: the
// others may hold what other processes and the host took of the core. It runs once, so what it finds stays.
func (m *Meters) MeasureMemory() {
	b, err := unix.Mmap(-1, 0, 2*copied, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_POPULATE)
	if err != nil {
		return // then the rule of thumb stays
	}
	defer func() { _ = unix.Munmap(b) }()
	from, to := b[:copied], b[copied:]
	from[0] = 1
	copy(to, from)
	var best time.Duration
	for begun, n := time.Now(), 0; n < copies || n < copyCalls && time.Since(begun) < copyFor; n++ {
		at := time.Now()
		copy(to, from)
		if took := time.Since(at); best == 0 || took < best {
			best = took
		}
	}
	if best <= 0 {
		return
	}
	m.mu.Lock()
	m.mu.cache = copied / best.Seconds() * float64(m.cores)
	m.mu.Unlock()
}
