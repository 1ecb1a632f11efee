package dsa

import (
	"strings"
	"testing"

	"larder/internal/bits"
	"larder/internal/ident"
	"larder/internal/xrand/xrandtest"
)

// The tests of this file switch planted bugs on and prove that the checks named in them fail. A check that cannot fail
// proves nothing.

// halves is two jobs on subsets that overlap by half.
func halves(n, cache int) scenario {
	return scenario{seed: 3, cache: cache, jobs: []simJob{
		{spec: strat(4, span(0, n)), epochs: 2, batch: 4, window: 2},
		{spec: strat(4, span(n/2, n/2+n)), epochs: 2, batch: 8, window: 2, speed: 0.8},
	}}
}

// halvesBySize is two jobs of unlike speed on a set of which one half is large.
func halvesBySize(n, cache int) scenario {
	return scenario{seed: 6, cache: cache, large: ident.ObjectID(n / 2), jobs: []simJob{
		{spec: byEpoch(span(0, n)), epochs: 2},
		{spec: byEpoch(span(0, n)), epochs: 2, speed: 0.62},
	}}
}

// leaver is a job on half the data that leaves while another continues and a third comes.
func leaver(n, cache int) scenario {
	return scenario{seed: 4, cache: cache, jobs: []simJob{
		{spec: byEpoch(span(0, n)), epochs: 2, speed: 0.5},
		{spec: byEpoch(span(0, n/2)), epochs: 9, leave: float64(n) / 2},
		{spec: byEpoch(span(0, n)), epochs: 2, start: float64(n)/2 + 1},
	}}
}

// beside is a shuffling job and one that reads in the order of the dataset.
func beside(n, cache int) scenario {
	return scenario{seed: 5, cache: cache, jobs: []simJob{
		{spec: byEpoch(span(0, n)), epochs: 2, speed: 0.9},
		{spec: JobSpec{Mode: Sequential, Subset: span(0, n)}, epochs: 3},
		{spec: byEpoch(span(0, n)), epochs: 2, speed: 0.4},
	}}
}

// driftOf is the largest deviate of the class means of a scenario, with the limit of fair ones.
func driftOf(t *testing.T, name string, sc scenario) *drift {
	t.Helper()
	d := &drift{}
	must(t, d.measure(name, sc, 30, 20))
	t.Logf("%s: largest z %.1f of %d (mean %.3f, %s), limit %.2f", name, d.max, d.n, d.mean, d.where, d.limit())
	return d
}

func TestPlantedBugsDriftAndAreCaught(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		sound scenario
		plant func(*scenario)
	}{
		{"hits first without cells", halves(400, 80), func(sc *scenario) { sc.bugs.oneCell = true }},
		{"ties by id", halves(400, 80), func(sc *scenario) { sc.bugs.tiesByID = true }},
		{"victims by id", leaver(400, 80), func(sc *scenario) { sc.victimID = true }},
		{"victims by need per byte", halvesBySize(400, 80), func(sc *scenario) { sc.perByte = true }},
		{"available when loaded, and large ones load slowly", halvesBySize(400, 80), func(sc *scenario) { sc.slow = 80 }},
		{"cells forgotten on leave", leaver(400, 160), func(sc *scenario) { sc.left = mergeCells }},
		{"a sequential neighbour made visible", beside(400, 80), func(sc *scenario) { sc.bugs.seqVisible = true }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if !patched {
				if d := driftOf(t, "sound", tc.sound); d.max >= d.limit() {
					t.Errorf("without the bug: %s, z = %.1f", d.where, d.max)
				}
			}
			if tc.plant(&tc.sound); patched != (tc.sound.bugs != planted{}) {
				return // it is caught in the other copy of this package
			}
			if d := driftOf(t, "planted", tc.sound); d.max < d.limit() {
				t.Errorf("with the bug the largest z is %.1f, below %.2f: the check is blind to it", d.max, d.limit())
			}
		})
	}
}

// mergeCells is what forgetting a left job's subset amounts to: cells with the same living members become one.
func mergeCells(s *Sampler) {
	into := map[bits.JobSet]uint32{0: 0}
	cells := []cell{{}}
	for x := range uint32(s.objects.n) {
		c := s.objects.at(x).cell
		m := s.cells.list[c].live
		d, ok := into[m]
		if !ok {
			d = uint32(len(cells))
			into[m] = d
			cells = append(cells, cell{live: m})
		}
		s.objects.at(x).cell = d
		cells[d].size++
	}
	cells[0] = cell{}
	s.cells.members.empty()
	for d := 1; d < len(cells); d++ {
		cells[d].lo, cells[d].base = uint32(s.cells.members.n), absent
		for x := range uint32(s.objects.n) {
			if s.objects.at(x).cell == uint32(d) {
				s.cells.members.extend(s.cells.members.n + 1)
				*s.cells.members.at(uint32(s.cells.members.n - 1)) = x
			}
		}
	}
	s.cells.list = cells
	o := s.tapes.newOrder(s.jobs.taped)
	for _, j := range s.jobs.slot {
		if j != nil && j.running() && j.usesTape() {
			s.tapes.use(j, o, 0)
		}
	}
}

// TestPlantedOrdersAreCaught plants bugs under the count of all orders.
func TestPlantedOrdersAreCaught(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, on string
		plant    func(*scenario)
	}{
		{"ties by id", "no cache", func(sc *scenario) { sc.bugs.tiesByID = true }},
		{"hits first without cells", "crossed, starts", func(sc *scenario) { sc.bugs.oneCell = true }},
		{"tape not rebuilt at a join", "joins in mid-epoch split cells", func(sc *scenario) { sc.bugs.keepTape = true }},
		{"a sequential neighbour made visible", "strict, fixed and sequential neighbours",
			func(sc *scenario) { sc.bugs.seqVisible = true }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if !patched {
				t.Skip("TestPlantedBugs runs it in a patched copy")
			}
			for _, c := range tinyCases {
				if c.name != tc.on {
					continue
				}
				worst, where, err := orderDeviates(c, 10_000, tc.plant)
				must(t, err)
				t.Logf("worst z %.1f (%s)", worst, where)
				if worst < 4 {
					t.Errorf("with the bug the largest z is %.1f (%s): the check is blind to it", worst, where)
				}
				return
			}
			t.Fatalf("no tiny case %q", tc.on)
		})
	}
}

// TestPlantedTapeFailsCheck: Check itself sees a tape that was read under other cells than it was made for.
func TestPlantedTapeFailsCheck(t *testing.T) {
	for _, keep := range []bool{false, true} {
		if keep != patched {
			continue
		}
		s := New(1)
		plant(s, planted{keepTape: keep})
		must(t, s.Join(1, byEpoch(span(0, 300))))
		must(t, s.StartEpoch(1, 0))
		for range 50 {
			x, _ := s.Next(1)
			s.SetLevel(x, 2)
		}
		must(t, s.Join(2, byEpoch(span(100, 200))))
		for range 50 {
			s.Next(1)
		}
		err := s.Check()
		if keep && (err == nil || !strings.Contains(err.Error(), "the tape names it")) {
			t.Errorf("kept tape: Check says %v", err)
		}
		if !keep && err != nil {
			t.Errorf("rebuilt tape: %v", err)
		}
	}
}

// TestCheckSeesDamage breaks one thing at a time.
func TestCheckSeesDamage(t *testing.T) {
	fresh := func() *Sampler {
		s := New(1)
		s.cells.scanSize = 0
		must(t, s.Join(1, strat(4, span(0, 40))))
		must(t, s.Join(2, byEpoch(span(20, 60))))
		must(t, s.Join(3, strict(span(0, 60))))
		must(t, s.Join(4, strict(span(0, 60))))
		for id := range ident.JobID(4) {
			must(t, s.StartEpoch(id+1, 0))
		}
		for range 10 {
			x, _ := s.Next(2)
			s.SetLevel(x, 2)
			s.Next(1)
			s.Next(4)
		}
		must(t, s.Check())
		return s
	}
	held := func(s *Sampler) *available { // of one that some job needs
		for i := range uint32(s.pool.entries.n) {
			if e := s.pool.entries.at(i); e.state != 0 && e.need != 0 {
				return e
			}
		}
		t.Fatal("nothing is held")
		return nil
	}
	next := func(j *job) uint32 { return uint32(next1(j.owed.left, 0, j.index.places())) }
	for name, damage := range map[string]func(*Sampler){
		"left":    func(s *Sampler) { unset(s.jobs.byID[1].owed.left, next(s.jobs.byID[1])) },
		"need":    func(s *Sampler) { held(s).need ^= 2 },
		"ghost":   func(s *Sampler) { held(s).need = held(s).need.With(40) },
		"level":   func(s *Sampler) { held(s).state = 1 | 2<<visShift },
		"visible": func(s *Sampler) { s.pool.visible++ },
		"held":    func(s *Sampler) { unset(s.objects.pooled, held(s).x) },
		"entry":   func(s *Sampler) { held(s).x++ },
		"free":    func(s *Sampler) { s.pool.entries.extend(s.pool.entries.n + 1) },
		"cell": func(s *Sampler) {
			s.objects.at(5).cell, s.objects.at(45).cell = s.objects.at(45).cell, s.objects.at(5).cell
		},
		"size":    func(s *Sampler) { s.cells.list[1].size++ },
		"base":    func(s *Sampler) { s.cells.list[1].base++ },
		"members": func(s *Sampler) { s.cells.list[1].base, *s.cells.members.at(s.cells.list[1].lo) = absent, 45 },
		"rem":     func(s *Sampler) { s.jobs.byID[1].owed.remaining-- },
		"index":   func(s *Sampler) { unset(s.jobs.byID[1].index.in, 5) },
		"group":   func(s *Sampler) { s.jobs.byID[1].groups.group[0].left-- },
		"row":     func(s *Sampler) { s.jobs.byID[1].groups.row[0].left-- },
		"list": func(s *Sampler) {
			for k := range s.jobs.byID[1].groups.group {
				s.jobs.byID[1].groups.group[k].lists = [numLists][]uint32{}
			}
		},
		"from":    func(s *Sampler) { s.jobs.byID[1].tape.initial = make([]uint64, len(s.jobs.byID[1].owed.left)) },
		"plain":   func(s *Sampler) { s.jobs.byID[1].tape.order.oneCell = true },
		"passed":  func(s *Sampler) { s.jobs.byID[1].tape.passed++ },
		"near":    func(s *Sampler) { s.jobs.byID[1].peers.neighbours = 0 },
		"slot":    func(s *Sampler) { s.jobs.byID[1].slot = 9 },
		"grouped": func(s *Sampler) { s.jobs.laidOut = 0 },
		"live":    func(s *Sampler) { s.jobs.live = s.jobs.live.With(33) },
		"open":    func(s *Sampler) { j := s.jobs.byID[3]; set(j.queue.open, j.index.of(j.queue.drawn[j.queue.head])) },
		"queue":   func(s *Sampler) { s.jobs.byID[3].queue.head++ },
		"ahead":   func(s *Sampler) { s.strict.ahead = 0 },
		"layout":  func(s *Sampler) { s.layouts.current.done++ },
		"pending": func(s *Sampler) { s.jobs.byID[1].stale, s.layouts.pending = true, false },
	} {
		s := fresh()
		damage(s)
		err := s.Check()
		if err == nil {
			t.Errorf("%s: Check sees nothing", name)
		}
	}
}

// TestCheckSeesDamageOfFollowers: Check does the same for what jobs without tapes and a layout under way keep.
func TestCheckSeesDamageOfFollowers(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(*Sampler){
		"common":  func(s *Sampler) { s.jobs.byID[1].follower.common[int(s.jobs.byID[2].slot)*4]++ },
		"turn":    func(s *Sampler) { s.jobs.byID[2].follower.last.turn = s.follows.turn + 1 },
		"drew":    func(s *Sampler) { s.jobs.byID[2].follower.last.from = 0 },
		"counted": func(s *Sampler) { s.jobs.byID[3].groups.row[0].left++ },
		"passed":  func(s *Sampler) { s.layouts.current.done = 1 << 20 },
		"stale":   func(s *Sampler) { s.jobs.byID[3].stale = false },
		"listed":  func(s *Sampler) { s.jobs.laidOut = s.jobs.laidOut.Without(s.jobs.byID[3].slot) },
	} {
		s := New(1)
		s.SetRoom(0)
		must(t, s.Join(1, strat(4, span(0, 60))))
		must(t, s.Join(2, byEpoch(span(0, 60))))
		must(t, s.StartEpoch(1, 0))
		must(t, s.StartEpoch(2, 0))
		for range 10 {
			s.Next(2)
			s.Next(1)
		}
		s.InSlices()
		must(t, s.Join(3, byEpoch(span(0, 1000))))
		for s.Work(100) {
		}
		must(t, s.StartEpoch(3, 0))
		for s.jobs.byID[1].stale || s.jobs.byID[2].stale || s.layouts.current.job == nil {
			s.Work(100)
		}
		s.Next(1)
		s.Next(2)
		must(t, s.Check())
		damage(s)
		if err := s.Check(); err == nil {
			t.Errorf("%s: Check sees nothing", name)
		}
	}
}

// TestOwnOrderRepeats: continuing with the order of the job's own previous epoch makes consecutive epochs visit cells
// alike, which is why adopt refuses it.
func TestOwnOrderRepeats(t *testing.T) {
	t.Parallel()
	tc := tinyCase{cache: 0, dual: []int{0}, jobs: []simJob{
		{spec: strat(4, span(0, 4)), epochs: 3},
		{spec: strat(4, span(2, 7)), epochs: 1, speed: 0.4},
	}}
	if !patched {
		worst, where, err := orderDeviates(tc, 20_000, nil)
		must(t, err)
		if worst >= 4 {
			t.Errorf("%s: z = %.1f", where, worst)
		}
		return
	}
	worst, where, err := orderDeviates(tc, 20_000, func(sc *scenario) { sc.bugs.ownOrder = true })
	must(t, err)
	t.Logf("planted: z = %.1f (%s)", worst, where)
	if worst < 4 {
		t.Errorf("planted: z = %.1f: the check is blind to it", worst)
	}
}

// TestPlantedFirstBitIsCaught: Joader's released pick, a random block of 64 ids and in it the first that remains, fails
// the count of first picks.
func TestPlantedFirstBitIsCaught(t *testing.T) {
	t.Parallel()
	for _, firstBit := range []bool{false, true} {
		if firstBit != patched {
			continue
		}
		const n = 200
		counts := make([]int, n)
		for seed := range uint64(4000) {
			s := New(seed)
			plant(s, planted{firstBit: firstBit})
			must(t, s.Join(1, byEpoch(span(0, n))))
			must(t, s.StartEpoch(1, 0))
			x, _ := s.Next(1)
			counts[x]++
		}
		if z := xrandtest.Deviate(counts); (z >= 4) != firstBit {
			t.Errorf("planted %v: z = %.1f", firstBit, z)
		}
	}
}

// TestPlantedLossOnLeaveIsCaught: Joader's delete takes what a leaver shared with others from them too. The others then
// owe less than they should, and Check says so.
func TestPlantedLossOnLeaveIsCaught(t *testing.T) {
	for _, planted := range []bool{false, true} {
		s := New(3)
		must(t, s.Join(1, strat(4, span(0, 60))))
		must(t, s.Join(2, byEpoch(span(30, 90))))
		for id := range ident.JobID(3) {
			if id > 0 {
				must(t, s.StartEpoch(id, 0))
				s.Next(id)
			}
		}
		s.Leave(2)
		if planted {
			for x := range 30 {
				unset(s.jobs.byID[1].owed.left, s.jobs.byID[1].index.of(uint32(30+x)))
			}
		}
		err := s.Check()
		if planted && (err == nil || !strings.Contains(err.Error(), "samples are left, counted")) {
			t.Errorf("planted: Check says %v", err)
		}
		if !planted {
			must(t, err)
		}
	}
}
