package dsa

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"larder/internal/bits"
	"larder/internal/ident"
	"larder/internal/xrand"
)

// modelJob is the naive twin of a job: a set of what is owed, nothing else.
type modelJob struct {
	spec    JobSpec
	owed    map[ident.ObjectID]bool // nil = idle
	given   []ident.ObjectID        // delivered in this epoch
	epoch   uint32
	active  bool
	next    []ident.ObjectID // from the next epoch on
	marking bool             // its epoch start is not complete, and not counted
	noSet   bool             // next is no set
	reached []bool           // positions taken, Fixed and Sequential
}

// model is the naive twin of a Sampler.
type model struct {
	jobs  map[ident.JobID]*modelJob
	bad   map[ident.JobID]bool // whose subset is no set; they deliver nothing
	level map[ident.ObjectID]uint8
}

func (m *model) need(x ident.ObjectID) int {
	n := 0
	for _, j := range m.jobs {
		if j.active && !j.marking && j.spec.Mode != Sequential && j.owed[x] {
			n++
		}
	}
	return n
}

// picked checks a pick against the model and records it.
func (m *model) picked(j *modelJob, x ident.ObjectID) error {
	if !j.owed[x] {
		return fmt.Errorf("picked %d, which is not owed", x)
	}
	delete(j.owed, x)
	j.given = append(j.given, x)
	return nil
}

// complete checks that an epoch without an owed sample has delivered the subset exactly once.
func (j *modelJob) complete() error {
	got, want := slices.Clone(j.given), slices.Clone(j.spec.Subset)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		return fmt.Errorf("delivered %v of %v", got, want)
	}
	return nil
}

// compare verifies what the sampler says about itself against the model.
func (m *model) compare(s *Sampler, universe int) error {
	for id, j := range m.jobs { // order-free
		j.marking = s.jobs.byID[id].passes.has(passMark)
	}
	for x := range ident.ObjectID(universe) {
		want := m.need(x)
		for id, j := range m.jobs { // order-free
			if q := s.jobs.byID[id]; j.active && !j.marking && !q.passes.has(passIndex) && j.owed[x] && q.mode == Strict &&
				q.queue.queued() > 0 && !q.mayDraw(uint32(x)) {
				want += soon - 1
			}
			if q := s.jobs.byID[id]; j.active && !j.marking && j.owed[x] && s.jobs.scanning.Has(q.slot) {
				want += s.scans.weight(q, uint32(x)) - 1
			}
		}
		if got := s.Need(x); got != want {
			return fmt.Errorf("need of %d: %d, model %d", x, got, want)
		}
		if got, want := s.Level(x), m.level[x]; got != want {
			return fmt.Errorf("level of %d: %d, model %d", x, got, want)
		}
		for id, j := range m.jobs {
			if !s.jobs.byID[id].passes.has(passIndex) && s.Needs(id, x) != j.owed[x] {
				return fmt.Errorf("job %d needs %d: %v, model %v", id, x, s.Needs(id, x), j.owed[x])
			}
		}
	}
	for id, j := range m.jobs {
		if s.Remaining(id) != len(j.owed) || s.Len(id) != len(j.spec.Subset) {
			return fmt.Errorf("job %d: %d of %d remain, model %d of %d", id, s.Remaining(id), s.Len(id), len(j.owed),
				len(j.spec.Subset))
		}
	}
	return nil
}

const modelUniverse = 700 // three pages of an index

// source draws the choices of a history: from rapid, or from the bytes of a fuzzer.
type source func(n int) int

// subset draws a subset of a shape that occurs: all, a range, every k-th, random; in a random order.
func (pick source) subset() []ident.ObjectID {
	var out []ident.ObjectID
	n := []int{1, 3, 12, 60, modelUniverse}[pick(5)]
	lo := pick(modelUniverse - n + 1)
	switch pick(4) {
	case 0:
		for x := range n {
			out = append(out, ident.ObjectID(lo+x))
		}
	case 1:
		k := 1 + pick(9)
		for x := lo; x < lo+n; x += k {
			out = append(out, ident.ObjectID(x))
		}
	default:
		r := xrand.New(uint64(pick(1 << 16)))
		for range n {
			out = append(out, ident.ObjectID(r.IntN(modelUniverse)))
		}
		slices.Sort(out)
		out = slices.Compact(out)
		r.Shuffle(len(out), func(a, b int) { out[a], out[b] = out[b], out[a] })
	}
	return out
}

// history runs operations drawn by pick on a sampler and its twin.
func history(pick source, ops int) error {
	s := New(uint64(pick(1 << 10)))
	if pick(2) == 0 {
		scanAlways(s)
		s.SetRoom(3)
	}
	sliced := pick(2) == 1
	if sliced {
		s.InSlices()
	}
	s.cells.scanSize = []int{smallCell, 0, 20}[pick(3)]
	m := &model{jobs: map[ident.JobID]*modelJob{}, level: map[ident.ObjectID]uint8{}, bad: map[ident.JobID]bool{}}
	next := ident.JobID(1)
	slow := sliced && pick(2) == 0 // calls come at every boundary of a slice, and few that do all the work
	for op := range ops {
		ids := s.Jobs()
		id := next // unknown
		if len(ids) > 0 && pick(30) > 0 {
			id = ids[pick(len(ids))]
		}
		j := m.jobs[id]
		what, err := "", error(nil)
		k := pick(20)
		if slow && k >= 9 && k <= 11 && pick(5) > 0 { // they settle
			k = pick(9)
		}
		switch {
		case k == 0 && len(ids) < 12:
			what = "join"
			spec := JobSpec{Mode: Mode(pick(int(numModes))), Tiles: pick(7), Seed: uint64(pick(3)), Subset: pick.subset()}
			if pick(12) == 0 {
				spec.Subset = append(spec.Subset, spec.Subset[pick(len(spec.Subset))])
				switch err = s.Join(next, spec); {
				case sliced == (err != nil), !sliced && !errors.Is(err, ErrDuplicateObject):
					return fmt.Errorf("op %d: join of what is no set: %w", op, err)
				case sliced:
					m.bad[next] = true
				default:
				}
				err = nil
			} else {
				err = s.Join(next, spec)
				m.jobs[next] = &modelJob{spec: spec, active: true}
			}
			next++
		case k == 1:
			what = "leave"
			s.Leave(id)
			delete(m.jobs, id)
			delete(m.bad, id)
		case k <= 3:
			what = "start"
			e := uint32(pick(4))
			err = s.StartEpoch(id, e)
			if j != nil && j.noSet {
				delete(m.jobs, id)
				m.bad[id], j = true, nil
			}
			if j == nil {
				if !errors.Is(err, ErrNoJob) && (!m.bad[id] || err != nil && !errors.Is(err, ErrDuplicateObject) ||
					err == nil && !sliced) {
					return fmt.Errorf("op %d: start of a job that is unknown or without a set: %w", op, err)
				}
				err = nil
				break
			}
			if j.next != nil {
				j.spec.Subset, j.next = j.next, nil
			}
			j.owed, j.given, j.epoch = map[ident.ObjectID]bool{}, nil, e
			j.reached = make([]bool, len(j.spec.Subset))
			for _, x := range j.spec.Subset {
				j.owed[x] = true
			}
		case k == 4 && pick(4) == 0:
			what = "change"
			sub := pick.subset()
			noSet := j != nil && pick(8) == 0
			if noSet {
				sub = append(sub, sub[0])
			}
			if err = s.Change(id, sub); j == nil {
				if !errors.Is(err, ErrNoJob) && (err != nil || !m.bad[id]) {
					return fmt.Errorf("op %d: change of an unknown job: %w", op, err)
				}
				err = nil
			} else {
				j.next, j.noSet = sub, noSet
			}
		case k == 4 && pick(3) == 0:
			what = "room"
			s.SetRoom([]int{0, 100, 3}[pick(3)])
		case k == 4 && pick(6) == 0 && len(s.cells.strata) < 12:
			what = "stratum"
			err = s.Stratum(pick.subset())
		case k == 4 && pick(4) == 0:
			what = "abandon"
			s.Abandon(id)
			if j != nil {
				j.owed, j.given = nil, nil
			}
		case k <= 5:
			what = "active"
			on := pick(2) == 0
			s.SetActive(id, on)
			if j != nil {
				j.active = on
			}
		case k <= 8:
			what = "level"
			for range 1 + pick(40) {
				x, l := ident.ObjectID(pick(modelUniverse)), uint8(pick(4))
				if pick(2) == 0 {
					l = min(l, 2)
					s.SetLevel(x, l)
				} else {
					s.SetLevelFor(x, l, s.JobSet(id)|bits.JobSet(pick(4)), uint8(pick(int(l)+1)))
				}
				m.level[x] = l
			}
		case k <= 10:
			what = "return"
			back := []ident.ObjectID{ident.ObjectID(pick(2 * modelUniverse))} // may be any object
			if j != nil {
				for range min(len(j.given), pick(6)) {
					back = append(back, j.given[pick(len(j.given))])
				}
			}
			s.Return(id, back)
			if j == nil || j.owed == nil {
				break
			}
			for _, x := range back {
				if p := slices.Index(j.given, x); p >= 0 {
					j.given = slices.Delete(j.given, p, p+1)
					j.owed[x] = true
				}
			}
		case k == 11:
			what = "withdraw"
			out := []ident.ObjectID{ident.ObjectID(pick(2 * modelUniverse)), ident.ObjectID(pick(modelUniverse))}
			want := 0
			if j != nil {
				for p, x := range out {
					if j.owed[x] && slices.Index(out, x) == p {
						want++
						delete(j.owed, x)
						j.given = append(j.given, x)
					}
				}
			}
			if n := s.Withdraw(id, out); n != want {
				return fmt.Errorf("op %d: withdrew %d, model %d", op, n, want)
			}
		default:
			what = "pick"
			for range 1 + pick(60) {
				if err = m.pickOne(s, id, j, pick); err != nil {
					break
				}
			}
		}
		if err == nil {
			err = s.Check()
		}
		if err == nil && (ops < 200 || op%4 == 0) { // the model is slow
			err = m.compare(s, modelUniverse)
		}
		if sliced && err == nil && pick(3) > 0 {
			budget := []int{10, 300, 3000}[pick(3)]
			if slow {
				budget = 1 << pick(9)
			}
			s.Work(1 + pick(budget))
			err = s.Check()
		}
		if err != nil {
			return fmt.Errorf("op %d (%s, job %d): %w", op, what, id, err)
		}
	}
	for n := 0; s.Work(300); n++ {
		if err := s.Check(); err != nil {
			return fmt.Errorf("while work is done: %w", err)
		}
		if n > 10_000 {
			return errors.New("the work never ends")
		}
	}
	if err := s.Check(); err != nil {
		return fmt.Errorf("when all work is done: %w", err)
	}
	for id, j := range m.jobs {
		if !s.Ready(id) {
			return fmt.Errorf("job %d is not ready, and there is no work", id)
		}
		for len(j.owed) > 0 {
			if err := m.pickOne(s, id, j, func(int) int { return 0 }); err != nil {
				return fmt.Errorf("draining job %d: %w", id, err)
			}
		}
		if j.owed != nil {
			if err := j.complete(); err != nil {
				return fmt.Errorf("job %d: %w", id, err)
			}
		}
		if err := s.Check(); err != nil {
			return fmt.Errorf("after the epoch of job %d: %w", id, err)
		}
	}
	return m.compare(s, modelUniverse)
}

// pickOne takes one sample by Next or At and makes it available or not.
func (m *model) pickOne(s *Sampler, id ident.JobID, j *modelJob, pick source) error {
	var x ident.ObjectID
	var ok bool
	if j != nil && !s.Ready(id) {
		if _, ok = s.Next(id); !ok {
			_, ok = s.At(id, 0)
		}
		if ok {
			return errors.New("picked for a job that is not ready")
		}
		return nil
	}
	if j != nil && len(j.reached) > 0 && j.spec.Mode <= Fixed && pick(2) == 1 {
		pos := pick(len(j.spec.Subset)+2) - 1
		x, ok = s.At(id, pos)
		in := pos >= 0 && pos < len(j.spec.Subset)
		var want ident.ObjectID
		if in {
			want = j.spec.Subset[pos]
			if j.spec.Mode == Fixed {
				want = j.spec.Subset[FixedOrder(nil, j.spec.Seed, j.epoch, len(j.spec.Subset))[pos]]
			}
		}
		if ok != (in && j.owed[want]) || ok && x != want {
			return fmt.Errorf("position %d gave %d, %v; the order says %d", pos, x, ok, want)
		}
	} else {
		x, ok = s.Next(id)
		if ok != (j != nil && len(j.owed) > 0) {
			return fmt.Errorf("next said %v", ok)
		}
	}
	if !ok {
		return nil
	}
	if err := m.picked(j, x); err != nil {
		return err
	}
	if l := uint8(pick(4)); l < 3 {
		s.SetLevel(x, l)
		m.level[x] = l
	}
	return nil
}

func TestHistoriesAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := xrand.New(rapid.Uint64().Draw(t, "seed"))
		ops := rapid.IntRange(1, 60).Draw(t, "ops")
		if err := history(func(n int) int { return r.IntN(n) }, ops); err != nil {
			t.Fatal(err)
		}
	})
}

// TestLongHistory is histories of 10,000 operations in all: slots are reused, cells split over and over.
func TestLongHistory(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		r := xrand.New(7, seed)
		if err := history(func(n int) int { return r.IntN(n) }, effort(2500)); err != nil {
			t.Fatalf("history %d: %v", seed, err)
		}
	}
}

func FuzzHistory(f *testing.F) {
	f.Add([]byte{1, 0, 0, 3, 4, 0, 1, 2, 0, 9, 9, 2, 1, 14, 50})
	f.Add([]byte("join start pick return leave join start"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		i := 0
		pick := func(n int) int {
			if len(data) == 0 {
				return 0
			}
			v := 0
			for w := n - 1; w > 0; w >>= 8 {
				v = v<<8 | int(data[i%len(data)])
				i++
				if i > len(data) { // go round, but not in a loop of the same choices
					v ^= i >> 3
				}
			}
			return v % n
		}
		if err := history(pick, min(4+len(data)/4, 200)); err != nil {
			t.Fatal(err)
		}
	})
}
