package dsa

import (
	"fmt"
	"math"
	"slices"

	"larder/internal/ident"
	"larder/internal/invariant"
	"larder/internal/testenv/lane"
	"larder/internal/xrand"
)

// simJob is a job of a scenario. It takes batches at its own speed and commits them window batches ahead.
type simJob struct {
	spec   JobSpec
	speed  float64 // samples a step, default 1
	start  float64 // step of the first commit
	leave  float64 // step from which it is gone; 0 = never
	epochs int
	batch  int              // default 1
	window int              // batches committed ahead, default 1
	change []ident.ObjectID // its subset from epoch 1 on
	pause  [2]float64       // inactive and drawing nothing from .. to
	back   float64          // probability that a committed batch comes back undelivered
	class  int              // jobs of one class can use what was made for each other
}

// scenario is a virtual-time run of a sampler with a cache that admits and evicts at the commit of a pick.
type scenario struct {
	jobs     []simJob
	cache    int // objects
	seed     uint64
	bugs     planted
	left     func(*Sampler)   // planted bug: runs after a leave
	victimID bool             // planted bug: the lowest id instead of a random one among the least needed
	stratum  bool             // the large ones are a stratum
	late     []ident.ObjectID // a stratum that comes at step lateAt
	lateAt   float64
	large    ident.ObjectID // objects from here on are eight times as large; 0 = none are
	perByte  bool           // planted bug: victims by need per byte
	slow     int            // planted bug: large objects count as available only after so many more picks
	flash    bool           // nothing is held: what is loaded is there for who takes it at the same time
	scan     bool           // jobs scan, however few their cells are
	rows     bool           // every cell counts as large
	labels   bool           // planted bug: see forms
	check    bool           // run Check after every join and at every epoch start
	slice    int            // objects of work done at a time; 0 = all at once
}

// result is what came out: loads, and the order each job saw in each completed epoch.
type result struct {
	requests, loads int
	orders          [][][]ident.ObjectID // job, epoch, position
	loadsEpoch      []int                // loads while the first job was in its n-th epoch
}

// store is the cache: evicts a random object of least need, admits on equal need and only what some job needs. What
// only a sequential job has loaded fills the room that is left, and leaves first.
type store struct {
	s        *Sampler
	rng      *xrand.Rand
	limit    int
	held     []ident.ObjectID
	neutral  []ident.ObjectID
	has      map[ident.ObjectID]bool // in held
	victimID bool

	large   ident.ObjectID
	perByte bool
	slow    int
	picks   int
	late    []arrival
}

// arrival is an object that is held and not yet said to be.
type arrival struct {
	x   ident.ObjectID
	due int
}

// cost is what need is divided by, for a victim by need per byte.
func (c *store) cost(x ident.ObjectID) int {
	if c.perByte && x >= c.large {
		return 8
	}
	return 1
}

// arrive says what is due.
func (c *store) arrive() {
	c.picks++
	for len(c.late) > 0 && c.late[0].due <= c.picks {
		if x := c.late[0].x; c.has[x] {
			c.s.SetLevel(x, 2)
		}
		c.late = c.late[1:]
	}
}

// drop takes element i out of a list, and out of memory.
func (c *store) drop(list *[]ident.ObjectID, i int) {
	l := *list
	c.s.SetLevel(l[i], 0)
	l[i] = l[len(l)-1]
	*list = l[:len(l)-1]
}

// sequential notes that a sequential job has taken x.
func (c *store) sequential(x ident.ObjectID) (miss bool) {
	miss = c.s.Level(x) == 0
	if !miss || c.limit == 0 {
		return miss
	}
	if len(c.held)+len(c.neutral) >= c.limit {
		if len(c.neutral) == 0 {
			return miss
		}
		c.drop(&c.neutral, c.rng.IntN(len(c.neutral)))
	}
	c.neutral = append(c.neutral, x)
	c.s.SetLevel(x, 2)
	return miss
}

// visible notes that any other job has taken x, and decides whether x is held.
func (c *store) visible(x ident.ObjectID) (miss bool) {
	c.arrive()
	if c.has[x] {
		return false
	}
	miss = c.s.Level(x) == 0
	if i := slices.Index(c.neutral, x); i >= 0 {
		c.drop(&c.neutral, i)
	}
	n := c.s.Need(x)
	if c.limit == 0 || n == 0 {
		return miss
	}
	if len(c.held) >= c.limit {
		i := c.victim(n)
		if i < 0 {
			return miss
		}
		delete(c.has, c.held[i])
		c.drop(&c.held, i)
	}
	if len(c.held)+len(c.neutral) >= c.limit {
		c.drop(&c.neutral, c.rng.IntN(len(c.neutral)))
	}
	c.held = append(c.held, x)
	c.has[x] = true
	if c.slow > 0 && x >= c.large {
		c.late = append(c.late, arrival{x, c.picks + c.slow})
	} else {
		c.s.SetLevel(x, 2)
	}
	return miss
}

// victim returns which held object leaves for one of need n, or -1.
func (c *store) victim(n int) int {
	least, at, ties := math.MaxInt, 0, 0
	for i, y := range c.held {
		switch m := 8 * c.s.Need(y) / c.cost(y); {
		case m < least:
			least, at, ties = m, i, 1
		case m == least && c.victimID:
			if y < c.held[at] {
				at = i
			}
		case m == least:
			if ties++; c.rng.IntN(ties) == 0 {
				at = i
			}
		}
	}
	if least > 8*n {
		return -1
	}
	return at
}

// run plays a scenario to its end.
func (sc scenario) run() (*result, error) {
	s := New(sc.seed)
	plant(s, sc.bugs)
	if sc.rows {
		s.cells.scanSize = 0
	}
	if sc.scan {
		scanAlways(s)
		s.SetRoom(sc.cache)
	}
	if sc.flash {
		s.SetRoom(0)
	}
	var there []ident.ObjectID // flash: loaded now
	now := 0.0
	if sc.slice > 0 {
		s.InSlices()
	}
	if sc.stratum {
		if err := s.Stratum(span(int(sc.large), 2*int(sc.large))); err != nil {
			return nil, err
		}
	}
	c := &store{s: s, rng: xrand.New(sc.seed, 1), limit: sc.cache, has: map[ident.ObjectID]bool{}, victimID: sc.victimID,
		large: sc.large, perByte: sc.perByte, slow: sc.slow}
	classed := &forms{s: s, rng: c.rng, limit: sc.cache, labels: sc.labels}
	for _, j := range sc.jobs {
		classed.classes = append(classed.classes, j.class)
	}
	rng := xrand.New(sc.seed, 2)
	res := &result{orders: make([][][]ident.ObjectID, len(sc.jobs))}
	type state struct {
		lag     float64 // how long the job has paused
		at      float64 // time of the next commit
		batches int     // committed since the start
		joined  bool
		done    bool
		order   []ident.ObjectID // of the running epoch
		epoch   int
	}
	st := make([]state, len(sc.jobs))
	for i, j := range sc.jobs {
		st[i].at = j.start
	}
	for {
		i := -1
		for k := range st {
			if !st[k].done && (i < 0 || st[k].at < st[i].at) {
				i = k
			}
		}
		if i < 0 {
			return res, nil
		}
		j, t, id := sc.jobs[i], &st[i], ident.JobID(i+1)
		if t.at > now {
			for _, x := range there {
				s.SetLevel(x, 0)
			}
			now, there = t.at, there[:0]
		}
		if j.leave > 0 && t.at >= j.leave {
			s.Leave(id)
			if sc.left != nil {
				sc.left(s)
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
		for k := range st { // a job that starts now has joined before any job draws
			if st[k].joined || st[k].done || st[k].at > t.at {
				continue
			}
			if err := s.Join(ident.JobID(k+1), sc.jobs[k].spec); err != nil {
				return nil, err
			}
			if err := s.StartEpoch(ident.JobID(k+1), 0); err != nil {
				return nil, err
			}
			st[k].joined = true
			if sc.check {
				if err := s.Check(); err != nil {
					return nil, err
				}
			}
		}
		if sc.slice > 0 {
			s.Work(sc.slice)
			if !s.Ready(id) { // others may continue
				t.at += 0.25
				continue
			}
		}
		if sc.late != nil && t.at >= sc.lateAt {
			if err := s.Stratum(sc.late); err != nil {
				return nil, err
			}
			if sc.late = nil; sc.slice > 0 {
				continue
			}
		}
		batch, window, speed := max(j.batch, 1), max(j.window, 1), j.speed
		if speed == 0 {
			speed = 1
		}
		from := len(t.order)
		for range batch {
			x, ok := s.Next(id)
			if !ok {
				break
			}
			t.order = append(t.order, x)
			res.requests++
			var miss bool
			switch {
			case sc.flash:
				if miss = s.LevelOf(x, id) == 0; miss { // it serves those of its class, and takes the place of what another has
					there = append(there, x)
					s.SetLevelFor(x, 2, classed.serves(j.class), 0)
				}
			case slices.Max(classed.classes) > 0:
				miss = classed.take(j.class, x)
			case j.spec.Mode == Sequential && !sc.bugs.seqVisible:
				miss = c.sequential(x)
			default:
				miss = c.visible(x)
			}
			if miss {
				res.loads++
				for len(res.loadsEpoch) <= st[0].epoch {
					res.loadsEpoch = append(res.loadsEpoch, 0)
				}
				res.loadsEpoch[st[0].epoch]++
			}
		}
		if j.back > 0 && rng.Float64() < j.back { // the client died before it had the batch
			s.Return(id, t.order[from:])
			t.order = t.order[:from]
		}
		t.batches++
		t.at = j.start + t.lag + float64(max(0, t.batches-window+1))*float64(batch)/speed
		if s.Remaining(id) == 0 {
			if len(t.order) != s.Len(id) {
				return nil, fmt.Errorf("job %d delivered %d of %d", id, len(t.order), s.Len(id))
			}
			res.orders[i] = append(res.orders[i], t.order)
			t.order = nil
			t.epoch++
			if sc.check {
				if err := s.Check(); err != nil {
					return nil, err
				}
			}
			if t.epoch == j.epochs {
				s.Leave(id)
				if sc.left != nil {
					sc.left(s)
				}
				t.done = true
				continue
			}
			if t.epoch == 1 && j.change != nil {
				if err := s.Change(id, j.change); err != nil {
					return nil, err
				}
			}
			if err := s.StartEpoch(id, uint32(t.epoch)); err != nil {
				return nil, err
			}
		}
	}
}

// span returns the objects lo..hi-1.
func span(lo, hi int) []ident.ObjectID {
	var out []ident.ObjectID
	for x := lo; x < hi; x++ {
		out = append(out, ident.ObjectID(x))
	}
	return out
}

// objects is a subset written out.
func objects(ids ...ident.ObjectID) []ident.ObjectID { return ids }

// sample draws k of n objects.
func sample(r *xrand.Rand, n, k int) []ident.ObjectID {
	all := span(0, n)
	r.Shuffle(n, func(a, b int) { all[a], all[b] = all[b], all[a] })
	return all[:k]
}

// strat and epoch are the two modes that share.
func strat(tiles int, subset []ident.ObjectID) JobSpec {
	return JobSpec{Mode: Stratified, Tiles: tiles, Subset: subset}
}

func byEpoch(subset []ident.ObjectID) JobSpec { return JobSpec{Mode: Epoch, Subset: subset} }

// rankOrder numbers the permutations of a sorted list of k distinct objects, 0..k!-1 (Lehmer code).
func rankOrder(order []ident.ObjectID) int {
	rank := 0
	for i, x := range order {
		smaller := 0
		for _, y := range order[i+1:] {
			if y < x {
				smaller++
			}
		}
		rank = rank*(len(order)-i) + smaller
	}
	return rank
}

func factorial(n int) int {
	f := 1
	for ; n > 1; n-- {
		f *= n
	}
	return f
}

// effort is how often a statistical test repeats: n times in make nightly, a tenth of that with the invariants, which
// make test has, and a third elsewhere. Thresholds are computed from the number.
func effort(n int) int {
	if invariant.Enabled {
		return n / 10
	}
	return lane.Times((n+2)/3, n)
}
