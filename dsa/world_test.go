package dsa_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"larder/dsa"
	"larder/dsa/baseline"
	"larder/internal/ident"
	"larder/internal/invariant"
	"larder/internal/testenv/lane"
	"larder/internal/xrand"
)

// drawer is what a world asks of a sampler; dsa.Sampler has it, and so has each baseline through rival.
type drawer interface {
	Join(ident.JobID, dsa.JobSpec) error
	StartEpoch(ident.JobID, uint32) error
	Leave(ident.JobID)
	Next(ident.JobID) (ident.ObjectID, bool)
	Return(ident.JobID, []ident.ObjectID)
	Withdraw(ident.JobID, []ident.ObjectID) int
	Change(ident.JobID, []ident.ObjectID) error
	SetActive(ident.JobID, bool)
	SetLevel(ident.ObjectID, uint8)
	Level(ident.ObjectID) uint8
	Need(ident.ObjectID) int
	Remaining(ident.JobID) int
}

// rival is a baseline in a world of which no job is paused, changed or loses samples.
type rival struct {
	*baseline.Sampler
	level map[ident.ObjectID]uint8
}

func (r *rival) SetLevel(x ident.ObjectID, l uint8)          { r.level[x] = l; r.Sampler.SetLevel(x, l) }
func (r *rival) Level(x ident.ObjectID) uint8                { return r.level[x] }
func (*rival) SetActive(ident.JobID, bool)                   {}
func (*rival) Withdraw(ident.JobID, []ident.ObjectID) int    { return 0 }
func (*rival) Change(ident.JobID, []ident.ObjectID) error    { return nil }
func (r *rival) Join(id ident.JobID, spec dsa.JobSpec) error { return r.Sampler.Join(id, spec) }
func newRival(name string, seed uint64) func() (drawer, error) {
	return func() (drawer, error) {
		s, err := baseline.New(name, seed)
		return &rival{s, map[ident.ObjectID]uint8{}}, err
	}
}

// worldJob is a job of a world.
type worldJob struct {
	spec   dsa.JobSpec
	speed  float64 // samples a step
	start  float64
	leave  float64 // 0 = never
	epochs int
	batch  int
	window int              // batches committed ahead
	change []ident.ObjectID // the subset from epoch 1 on
	pause  [2]float64
	back   float64 // probability that a batch comes back undelivered
	stops  int     // samples after which it gives its epoch up; 0 = never. Such an epoch is not reported
}

// bugs are what a coordinator around a sound sampler can do wrong.
type bugs struct {
	victimByID bool // the lowest id among the least needed leaves
	ownSize    bool // need per byte of the sample itself
	late       int  // large samples are available only that many picks after their commit
}

// world is a run: jobs, a cache, what happens to them.
type world struct {
	name     string
	n        int // ids are 0..n-1
	jobs     []worldJob
	cache    int // in samples of mean size
	sized    bool
	strata   bool                   // the size classes are strata
	withdraw float64                // step at which a random part of everything is withdrawn; 0 = never
	slices   int                    // objects of work at a time; 0 = at once
	indexed  bool                   // the cache is the daemon's own index and policy
	restarts []float64              // steps at which the daemon dies: another sampler takes over, with nothing in memory
	maker    func() (drawer, error) // nil: dsa
	bug      bugs
	loads    int // made by the last run
}

// memory is the cache of a world.
type memory interface {
	take(x ident.ObjectID, sequential bool) // a job has committed x
	refresh()                               // needs have changed: an epoch began, or a job left
	serve(s drawer)                         // all is lost, and another sampler takes over
}

// quartile is the size class of a sample, by a hash of its id: 0..3.
func quartile(x ident.ObjectID) int { return int(xrand.Hash(99, uint64(x)) >> 62) }

// bytes is the size of a sample.
func (w *world) bytes(x ident.ObjectID) int {
	if !w.sized {
		return 1
	}
	return 1 << quartile(x)
}

// shelf is the cache: what is least needed leaves, ties at random, as many as the newcomer's size asks for; all or
// nothing. What only a sequential job has loaded takes free room and leaves first.
type shelf struct {
	w       *world
	s       drawer
	rng     *xrand.Rand
	limit   int
	used    int
	held    []ident.ObjectID
	neutral []ident.ObjectID
	out     []ident.ObjectID // scratch
	picks   int
	due     []arrival
}

type arrival struct {
	x  ident.ObjectID
	at int
}

func (*shelf) refresh() {}

func (c *shelf) serve(s drawer) {
	c.s, c.used, c.held, c.neutral, c.due = s, 0, nil, nil, nil
}

func (c *shelf) drop(from *[]ident.ObjectID, x ident.ObjectID) {
	l := *from
	i := slices.Index(l, x)
	l[i] = l[len(l)-1]
	*from = l[:len(l)-1]
	c.used -= c.w.bytes(x)
	c.s.SetLevel(x, 0)
}

// take books that a job has committed x.
func (c *shelf) take(x ident.ObjectID, sequential bool) {
	c.picks++
	for len(c.due) > 0 && c.due[0].at <= c.picks {
		if slices.Contains(c.held, c.due[0].x) {
			c.s.SetLevel(c.due[0].x, 2)
		}
		c.due = c.due[1:]
	}
	if slices.Contains(c.held, x) || sequential && c.s.Level(x) > 0 {
		return
	}
	c.w.loads++
	size, need := c.w.bytes(x), c.s.Need(x)
	if sequential {
		for c.used+size > c.limit && len(c.neutral) > 0 {
			c.drop(&c.neutral, c.neutral[c.rng.IntN(len(c.neutral))])
		}
		if c.used+size <= c.limit {
			c.neutral = append(c.neutral, x)
			c.used += size
			c.s.SetLevel(x, 2)
		}
		return
	}
	if slices.Contains(c.neutral, x) {
		c.drop(&c.neutral, x)
	}
	if need == 0 || !c.room(size, need) {
		return
	}
	c.held = append(c.held, x)
	c.used += size
	if c.w.bug.late > 0 && c.w.bytes(x) > 2 {
		c.due = append(c.due, arrival{x, c.picks + c.w.bug.late})
		return
	}
	c.s.SetLevel(x, 2)
}

// room makes room for something of a size and need, or changes nothing.
func (c *shelf) room(size, need int) bool {
	free := c.limit - c.used
	for _, x := range c.neutral {
		free += c.w.bytes(x)
	}
	c.out = c.out[:0]
	for free < size {
		v, ok := c.victim(need)
		if !ok {
			return false
		}
		c.out = append(c.out, v)
		free += c.w.bytes(v)
	}
	for _, v := range c.out {
		c.drop(&c.held, v)
	}
	for c.used+size > c.limit {
		c.drop(&c.neutral, c.neutral[c.rng.IntN(len(c.neutral))])
	}
	return true
}

// victim is another one of least need, at most need, that is not to leave already.
func (c *shelf) victim(need int) (v ident.ObjectID, ok bool) {
	least, ties := math.Inf(1), 0
	for _, y := range c.held {
		m := float64(c.s.Need(y))
		if c.w.bug.ownSize {
			m /= float64(c.w.bytes(y))
		}
		if m > least || m > float64(need) || slices.Contains(c.out, y) {
			continue
		}
		switch {
		case m < least:
			least, ties, v, ok = m, 1, y, true
		case c.w.bug.victimByID:
			v = min(v, y)
		default:
			if ties++; c.rng.IntN(ties) == 0 {
				v = y
			}
		}
	}
	return v, ok
}

// run plays the world and calls epoch for each epoch that was completed.
func (w *world) run(seed uint64, epoch func(job, epoch int, order []ident.ObjectID)) error {
	rng := xrand.New(seed, 1)
	s, err := w.sampler(seed)
	if err != nil {
		return err
	}
	mean := 1
	if w.sized {
		mean = 4 // 15/4, rounded up
	}
	w.loads = 0
	var c memory = &shelf{w: w, s: s, rng: rng.Split(), limit: w.cache * mean}
	if w.indexed {
		c = newResident(w, s, seed, w.cache*mean)
	}
	type state struct {
		at, lag      float64
		batches      int
		joined, done bool
		order        []ident.ObjectID
		epoch        int
		lost         int // withdrawn before they were drawn
	}
	st := make([]state, len(w.jobs))
	for i, j := range w.jobs {
		st[i].at = j.start
	}
	withdrawn := w.withdraw == 0
	restarts := w.restarts
	for {
		i := -1
		for k := range st {
			if !st[k].done && (i < 0 || st[k].at < st[i].at) {
				i = k
			}
		}
		if i < 0 {
			return nil
		}
		j, t, id := &w.jobs[i], &st[i], ident.JobID(i+1)
		if len(restarts) > 0 && t.at >= restarts[0] {
			restarts = restarts[1:]
			if s, err = w.sampler(xrand.Hash(seed, uint64(len(restarts)))); err != nil {
				return err
			}
			for k := range st {
				if !st[k].joined || st[k].done {
					continue
				}
				if err := w.rejoin(s, k, seed, st[k].epoch, st[k].order); err != nil {
					return err
				}
			}
			c.serve(s)
		}
		if j.leave > 0 && t.at >= j.leave {
			if t.joined {
				s.Leave(id)
				c.refresh()
			}
			t.done = true
			continue
		}
		if j.pause[1] > 0 && t.lag == 0 && t.joined && t.at >= j.pause[0] {
			s.SetActive(id, false)
			t.lag = j.pause[1] - j.pause[0]
			t.at += t.lag
			continue
		}
		if t.lag > 0 {
			s.SetActive(id, true)
		}
		for k := range st {
			if st[k].joined || st[k].done || st[k].at > t.at {
				continue
			}
			if err := w.rejoin(s, k, seed, 0, nil); err != nil {
				return err
			}
			c.refresh()
			st[k].joined = true
		}
		if !withdrawn && t.at >= w.withdraw {
			withdrawn = true
			var bad []ident.ObjectID
			for _, x := range span(0, w.n) {
				if rng.IntN(10) == 0 {
					bad = append(bad, x)
				}
			}
			for k := range st {
				st[k].lost += s.Withdraw(ident.JobID(k+1), bad)
			}
		}
		if d, ok := s.(*dsa.Sampler); ok && w.slices > 0 {
			d.Work(w.slices)
			if !d.Ready(id) {
				t.at += 0.25
				continue
			}
		}
		from := len(t.order)
		for range j.batch {
			x, ok := s.Next(id)
			if !ok {
				break
			}
			t.order = append(t.order, x)
			c.take(x, j.spec.Mode == dsa.Sequential)
		}
		if j.back > 0 && rng.Float64() < j.back {
			s.Return(id, t.order[from:])
			t.order = t.order[:from]
		}
		t.batches++
		t.at = j.start + t.lag + float64(max(0, t.batches-j.window+1))*float64(j.batch)/j.speed
		if s.Remaining(id) > 0 && (j.stops == 0 || len(t.order) < j.stops) {
			continue
		}
		if want := len(w.subset(i, t.epoch)) - t.lost; j.stops == 0 && len(t.order) != want {
			return fmt.Errorf("job %d epoch %d: %d of %d delivered", i, t.epoch, len(t.order), want)
		}
		if j.stops == 0 {
			epoch(i, t.epoch, t.order)
		}
		t.order, t.lost = nil, 0
		if t.epoch++; t.epoch == j.epochs {
			s.Leave(id)
			c.refresh()
			t.done = true
			continue
		}
		if t.epoch == 1 && j.change != nil {
			if err := s.Change(id, j.change); err != nil {
				return err
			}
		}
		if err := s.StartEpoch(id, uint32(t.epoch)); err != nil {
			return err
		}
		c.refresh()
	}
}

// sampler makes the sampler of a world.
func (w *world) sampler(seed uint64) (drawer, error) {
	if w.maker != nil {
		return w.maker()
	}
	d := dsa.New(seed)
	for q := range 4 {
		if w.strata {
			var class []ident.ObjectID
			for _, x := range span(0, w.n) {
				if quartile(x) == q {
					class = append(class, x)
				}
			}
			if err := d.Stratum(class); err != nil {
				return nil, err
			}
		}
	}
	if w.slices > 0 {
		d.InSlices()
	}
	return d, nil
}

// rejoin makes job k begin an epoch of which it has had something.
func (w *world) rejoin(s drawer, k int, seed uint64, epoch int, had []ident.ObjectID) error {
	id, spec := ident.JobID(k+1), w.jobs[k].spec
	spec.Seed, spec.Subset = xrand.Hash(seed, uint64(k)), w.subset(k, epoch)
	if err := s.Join(id, spec); err != nil {
		return err
	}
	if err := s.StartEpoch(id, uint32(epoch)); err != nil {
		return err
	}
	if n := s.Withdraw(id, had); n != len(had) {
		return fmt.Errorf("job %d had %d samples, %d of them were its own", k, len(had), n)
	}
	return nil
}

// subset is that of a job in one of its epochs.
func (w *world) subset(job, epoch int) []ident.ObjectID {
	if epoch > 0 && w.jobs[job].change != nil {
		return w.jobs[job].change
	}
	return w.jobs[job].spec.Subset
}

// effort is how often something repeats: n times in make nightly, a tenth of that with the invariants, which make
// test has, and a third elsewhere. Thresholds are computed from the number.
func effort(n int) int {
	if invariant.Enabled {
		return max(1, n/10)
	}
	return lane.Times((n+2)/3, n)
}

// span returns the objects lo..hi-1.
func span(lo, hi int) []ident.ObjectID {
	out := make([]ident.ObjectID, 0, hi-lo)
	for x := lo; x < hi; x++ {
		out = append(out, ident.ObjectID(x))
	}
	return out
}

func contains(l []ident.ObjectID, x int) bool { return slices.Contains(l, ident.ObjectID(x)) }

// shuffled is a random order of 0..n-1.
func shuffled(r *xrand.Rand, n int) []ident.ObjectID {
	all := span(0, n)
	r.Shuffle(n, func(a, b int) { all[a], all[b] = all[b], all[a] })
	return all
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
