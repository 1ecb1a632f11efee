package systems

import (
	"fmt"
	"slices"

	"larder/dsa"
	"larder/dsa/baseline"
	"larder/internal/ident"
)

// sampledSystem is a sampler and a policy beside one cache: larder's modes, Joader, Seneca's ODS.
type sampledSystem struct {
	w      *World
	dsa    *dsa.Sampler      // one of the two
	rival  *baseline.Sampler // is nil
	mode   dsa.Mode
	joint  bool
	page   *box
	stamp  []float64 // by sample: when its load began; what is loaded at one instant is shared
	fly    []uint32
	flyAt  float64
	buffer [][]pick // by job: drawn ahead, by rounds of all
	state  []jobState
}

type pick struct {
	x   uint32
	hit bool
	end bool // the last of its epoch
}

type jobState struct {
	joined, done bool
	epoch        int
	over         bool // the epoch's last batch was delivered
}

func sampled(order, policy string) func(*World) (System, string) {
	return func(w *World) (System, string) {
		if len(w.Jobs) > dsa.MaxJobs {
			return nil, fmt.Sprintf("it takes %d jobs", dsa.MaxJobs)
		}
		s := &sampledSystem{w: w, page: newBox(policy, w.Samples, w.Cache, w.rng.Split()), stamp: make([]float64, w.Samples),
			buffer: make([][]pick, len(w.Jobs)), state: make([]jobState, len(w.Jobs)), flyAt: -1}
		for x := range s.stamp {
			s.stamp[x] = -1
		}
		if slices.Contains(baseline.Names(), order) {
			r, err := baseline.New(order, w.rng.Uint64())
			if err != nil {
				return nil, err.Error()
			}
			s.rival, s.joint = r, r.Joint()
		} else {
			m, err := dsa.ParseMode(order)
			if err != nil {
				return nil, err.Error()
			}
			s.dsa, s.mode, s.joint = dsa.New(w.rng.Uint64()), m, m == dsa.Strict
			s.dsa.SetRoom(w.Cache)
		}
		s.page.dropped = func(x uint32) {
			if s.stamp[x] != s.flyAt {
				s.level(x, 0)
			}
		}
		return s, ""
	}
}

func id(job int) ident.JobID { return ident.JobID(job + 1) }

func (s *sampledSystem) level(x uint32, l uint8) {
	if s.dsa != nil {
		s.dsa.SetLevel(ident.ObjectID(x), l)
	} else {
		s.rival.SetLevel(ident.ObjectID(x), l)
	}
}

func (s *sampledSystem) need(x uint32) int {
	if s.dsa != nil {
		return s.dsa.Need(ident.ObjectID(x))
	}
	return s.rival.Need(ident.ObjectID(x))
}

func (s *sampledSystem) Join(job int, _ float64) {
	subset := make([]ident.ObjectID, len(s.w.Jobs[job].Subset))
	for i, x := range s.w.Jobs[job].Subset {
		subset[i] = ident.ObjectID(x)
	}
	spec := dsa.JobSpec{Mode: s.mode, Seed: s.w.Seed, Subset: subset}
	var err error
	if s.dsa != nil {
		err = s.dsa.Join(id(job), spec)
	} else {
		err = s.rival.Join(id(job), spec)
	}
	if err == nil {
		s.state[job].joined = true
		err = s.start(job)
	}
	if err != nil {
		panic(fmt.Sprintf("systems: job %d cannot join: %v", job, err)) // the driver makes only jobs that can
	}
}

// start begins the job's next epoch, and updates the policy with what is needed now.
func (s *sampledSystem) start(job int) error {
	var err error
	if s.dsa != nil {
		err = s.dsa.StartEpoch(id(job), uint32(s.state[job].epoch))
	} else {
		err = s.rival.StartEpoch(id(job), uint32(s.state[job].epoch))
	}
	s.refresh()
	return err
}

func (s *sampledSystem) refresh() {
	for h, x := range s.page.object {
		if s.page.in[x] == uint32(h+1) {
			s.page.ev.Update(uint32(h), s.need(x))
		}
	}
}

func (s *sampledSystem) remaining(job int) int {
	if s.dsa != nil {
		return s.dsa.Remaining(id(job))
	}
	return s.rival.Remaining(id(job))
}

func (*sampledSystem) Done(int, float64) {}

func (s *sampledSystem) Gone(job int, _ float64, _ bool) {
	if st := &s.state[job]; st.joined && !st.done {
		st.done = true
		if s.dsa != nil {
			s.dsa.Leave(id(job))
		} else {
			s.rival.Leave(id(job))
		}
		s.refresh()
	}
}

// commit books a pick in the cache.
func (s *sampledSystem) commit(job int, x uint32) {
	p := pick{x: x}
	switch {
	case s.rival != nil && s.rival.WriteOnly():
	case s.page.has(x):
		p.hit = s.page.take(x, s.need(x))
	case s.shares() && s.stamp[x] == s.flyAt:
		p.hit = true
	default:
		s.load(x)
	}
	if s.rival != nil && s.rival.Opportunist() {
		for {
			out, in, ok, more := s.rival.Turnover()
			if !more {
				break
			}
			if s.page.has(uint32(out)) {
				s.page.drop(uint32(out))
				s.level(uint32(out), 0)
			}
			if ok {
				s.load(uint32(in))
				s.w.work(s.flyAt, 1, 1)
			}
		}
	}
	if s.remaining(job) == 0 {
		p.end = true
	}
	s.buffer[job] = append(s.buffer[job], p)
}

func (s *sampledSystem) load(x uint32) {
	s.stamp[x] = s.flyAt
	s.fly = append(s.fly, x)
	s.level(x, 2)
	if !s.page.put(x, s.need(x)) && !s.shares() {
		s.level(x, 0)
	}
}

// shares reports whether jobs that ask at one instant share what is loaded in it: larder and Joader plan for them
// together, ODS knows only what is in memory.
func (s *sampledSystem) shares() bool { return s.rival == nil || s.rival.Joint() }

// instant ends the loads of an earlier instant.
func (s *sampledSystem) instant(now float64) {
	if now == s.flyAt {
		return
	}
	for _, x := range s.fly {
		if !s.page.has(x) {
			s.level(x, 0)
		}
	}
	s.fly, s.flyAt = s.fly[:0], now
}

// draw fills a job's buffer with a batch; coupled jobs are drawn for in rounds, to equal depth.
func (s *sampledSystem) draw(job int) {
	depth := s.w.Jobs[job].Batch
	owes := func(k int) bool {
		st := &s.state[k]
		n := len(s.buffer[k])
		return st.joined && !st.done && n < depth && s.remaining(k) > 0 && (n == 0 || !s.buffer[k][n-1].end)
	}
	for owes(job) {
		if !s.joint {
			s.next(job)
			continue
		}
		var ids []ident.JobID
		for k := range s.state {
			if owes(k) {
				ids = append(ids, id(k))
			}
		}
		if s.rival != nil {
			for _, p := range s.rival.Round(ids, nil) {
				s.commit(int(p.Job)-1, uint32(p.Object))
			}
			continue
		}
		for _, k := range ids {
			s.next(int(k) - 1)
		}
	}
}

func (s *sampledSystem) next(job int) {
	var x ident.ObjectID
	var ok bool
	if s.dsa != nil {
		x, ok = s.dsa.Next(id(job))
	} else {
		x, ok = s.rival.Next(id(job))
	}
	if !ok {
		panic(fmt.Sprintf("systems: job %d owes %d samples and gets none", job, s.remaining(job)))
	}
	s.commit(job, uint32(x))
}

func (s *sampledSystem) Next(job int, now float64) (Batch, Status) {
	st := &s.state[job]
	if st.done {
		return Batch{}, Wait
	}
	s.instant(now)
	if st.over {
		st.over = false
		st.epoch++
		if st.epoch < s.w.Jobs[job].Epochs {
			if err := s.start(job); err != nil {
				panic(fmt.Sprintf("systems: epoch %d of job %d: %v", st.epoch, job, err))
			}
		}
		return Batch{}, EpochOver
	}
	s.draw(job)
	b := Batch{}
	n := 0
	for n < len(s.buffer[job]) && n < s.w.Jobs[job].Batch {
		p := s.buffer[job][n]
		n++
		b.IDs = append(b.IDs, p.x)
		if p.hit {
			b.Hits++
		}
		if p.end {
			st.over = true
			break
		}
	}
	s.buffer[job] = slices.Delete(s.buffer[job], 0, n)
	b.Ready = s.w.work(now, n-b.Hits, n-b.Hits)
	return b, Got
}
