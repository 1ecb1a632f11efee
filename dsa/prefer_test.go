package dsa

import (
	"fmt"
	"slices"
	"testing"

	"larder/internal/bits"
	"larder/internal/ident"
	"larder/internal/xrand"
)

// preferTwin is the rule of prefer.go written down naively: by object and job, who prefers it.
type preferTwin struct {
	s        *Sampler
	decoding bool
	jobs     []ident.JobID
	subset   map[ident.JobID][]ident.ObjectID
	recipe   map[ident.JobID]uint32
	tape     map[ident.JobID]bool
	laid     map[ident.JobID]bool                    // it has drawn in this epoch or an earlier one
	begun    map[ident.JobID]bool                    // it has begun an epoch before
	left     map[ident.JobID]map[ident.ObjectID]bool // what a running epoch owes; nil = the job is idle
	prefer   map[ident.ObjectID]map[ident.JobID]bool // of what is available
}

func newPreferTwin(s *Sampler, decoding bool) *preferTwin {
	return &preferTwin{
		s: s, decoding: decoding, subset: map[ident.JobID][]ident.ObjectID{}, recipe: map[ident.JobID]uint32{},
		tape: map[ident.JobID]bool{}, laid: map[ident.JobID]bool{}, begun: map[ident.JobID]bool{},
		left: map[ident.JobID]map[ident.ObjectID]bool{}, prefer: map[ident.ObjectID]map[ident.JobID]bool{},
	}
}

// encodedToo reports whether an encoded object is as good as a decoded one for the job.
func (w *preferTwin) encodedToo(j ident.JobID) bool { return !w.decoding && w.laid[j] && w.tape[j] }

// begin is a job's epoch start.
func (w *preferTwin) begin(j ident.JobID) {
	for x, p := range w.prefer { // order-free
		if !slices.Contains(w.subset[j], x) || !p[j] && w.begun[j] {
			continue
		}
		decodedFor := w.s.LevelOf(x, j) >= uint8(decoded)
		keep := false
		for k, left := range w.left { // order-free
			took := k != j && left != nil && slices.Contains(w.subset[k], x) && !left[x]
			keep = keep || took && (!decodedFor || w.recipe[k] == w.recipe[j])
		}
		p[j] = keep
	}
	w.begun[j], w.left[j] = true, map[ident.ObjectID]bool{}
	for _, x := range w.subset[j] {
		w.left[j][x] = true
	}
}

// take is a pick.
func (w *preferTwin) take(by ident.JobID, x ident.ObjectID) {
	delete(w.left[by], x)
	p := w.prefer[x]
	if p == nil {
		return
	}
	for _, j := range w.jobs {
		decodedFor := w.s.LevelOf(x, j) >= uint8(decoded)
		p[j] = j != by && (p[j] || decodedFor && w.recipe[j] == w.recipe[by] || !decodedFor && w.encodedToo(j))
	}
}

// set records in what form x is cached after a pick: decoded for the recipe of the job that took it, encoded for the
// rest, or neither.
func (w *preferTwin) set(by ident.JobID, x ident.ObjectID, level, rest uint8, kin bits.JobSet) {
	before := map[ident.JobID]uint8{}
	for _, j := range w.jobs {
		before[j] = w.s.LevelOf(x, j)
	}
	had := 0                   // encoded, or more, for all
	for _, l := range before { // order-free
		if l > 0 {
			had++
		}
	}
	if level == 0 {
		w.s.SetLevel(x, 0)
		delete(w.prefer, x)
		return
	}
	w.s.SetLevelFor(x, level, kin, rest)
	if w.prefer[x] == nil {
		w.prefer[x] = map[ident.JobID]bool{}
		w.take(by, x)
	}
	p := w.prefer[x]
	for _, j := range w.jobs {
		now := w.s.LevelOf(x, j)
		switch {
		case before[j] >= uint8(decoded) && now < uint8(decoded) && !w.encodedToo(j):
			p[j] = false
		case before[j] < uint8(decoded) && now >= uint8(decoded):
			p[j] = p[j] || j != by && w.recipe[j] == w.recipe[by]
		}
		if now < uint8(decoded) && rest > 0 && had < len(w.jobs) {
			p[j] = p[j] || j != by // it was read
		}
	}
}

// compare holds the marks of all entries to the twin's, and counts those in entries and beside them.
func (w *preferTwin) compare(n int) (inside, beside int, err error) {
	for _, x := range span(0, n) {
		e := w.s.pool.entry(uint32(x))
		if (e != nil) != (w.prefer[x] != nil) {
			return 0, 0, fmt.Errorf("object %d: available %v", x, e != nil)
		}
		for _, j := range w.jobs {
			if e == nil || !w.begun[j] || !slices.Contains(w.subset[j], x) || !w.decoding && !w.tape[j] {
				continue
			}
			slot := w.s.jobs.byID[j].slot
			switch got := w.s.pool.preferring(e).Has(slot); {
			case got != w.prefer[x][j]:
				return 0, 0, fmt.Errorf("job %d in slot %d prefers %d: %v, the rule says %v", j, slot, x, got, !got)
			case got && slot < inlineSlots:
				inside++
			case got:
				beside++
			}
		}
	}
	return inside, beside, nil
}

// TestPreferenceFollowsTheRule: in a history of 20 jobs of two recipes, so that marks lie in and beside the entries,
// every job prefers what the rule written down naively says. All go equally fast: pace has tests of its own.
func TestPreferenceFollowsTheRule(t *testing.T) {
	t.Parallel()
	for _, decoding := range []bool{true, false} {
		const n, jobs, steps = 60, 20, 30_000
		r, s := xrand.New(77), New(5)
		s.SetDecoding(decoding)
		w := newPreferTwin(s, decoding)
		var kin [2]bits.JobSet
		for id := ident.JobID(1); id <= jobs; id++ {
			lo := r.IntN(n / 2)
			mode := []Mode{Strict, Stratified, Epoch, Fixed}[r.IntN(4)]
			w.jobs, w.subset[id], w.recipe[id] = append(w.jobs, id), span(lo, lo+n/2), uint32(id)%2
			w.tape[id] = mode == Stratified || mode == Epoch
			must(t, s.Join(id, JobSpec{Mode: mode, Recipe: w.recipe[id], Subset: w.subset[id], Seed: uint64(id)}))
			kin[w.recipe[id]] |= s.JobSet(id)
		}
		inside, beside := 0, 0
		for step := range steps {
			if step%jobs == 0 { // all go equally fast, in any order
				r.Shuffle(jobs, func(a, b int) { w.jobs[a], w.jobs[b] = w.jobs[b], w.jobs[a] })
			}
			id := w.jobs[step%jobs]
			w.laid[id] = w.laid[id] || w.begun[id]
			x, ok := s.Next(id)
			if !ok {
				must(t, s.StartEpoch(id, uint32(step)))
				w.begin(id)
				continue
			}
			w.take(id, x)
			switch r.IntN(6) { // what becomes of it: its forms come and go
			case 0, 1:
				w.set(id, x, uint8(decoded), 0, kin[w.recipe[id]])
			case 2:
				w.set(id, x, uint8(decoded), 1, kin[w.recipe[id]])
			case 3:
				w.set(id, x, 1, 1, allJobs)
			case 4:
				w.set(id, x, 0, 0, allJobs)
			}
			if step%50 > 0 {
				continue
			}
			must(t, s.Check())
			a, b, err := w.compare(n)
			if err != nil {
				t.Fatalf("decoding %v, step %d: %v", decoding, step, err)
			}
			inside, beside = inside+a, beside+b
		}
		if inside < 1000 || beside < 100 {
			t.Errorf("decoding %v: %d marks in entries and %d beside them: the history shows too little", decoding, inside,
				beside)
		}
	}
}

// paced plays jobs on the same n objects, job i taking speeds[i] objects a round, and returns the sampler.
func paced(t *testing.T, n, rounds int, speeds ...int) *Sampler {
	t.Helper()
	s := New(3)
	for i := range speeds {
		must(t, s.Join(ident.JobID(i+1), byEpoch(span(0, n))))
		must(t, s.StartEpoch(ident.JobID(i+1), 0))
	}
	run(t, s, rounds, speeds...)
	return s
}

func run(t *testing.T, s *Sampler, rounds int, speeds ...int) {
	t.Helper()
	for r := range rounds {
		for i, speed := range speeds {
			for range speed {
				if _, ok := s.Next(ident.JobID(i + 1)); !ok {
					must(t, s.StartEpoch(ident.JobID(i+1), uint32(r)))
				}
			}
		}
	}
	must(t, s.Check())
}

// slowBeside lists pairs of a slow job and one that it is slow beside.
func slowBeside(s *Sampler) (out []string) {
	for _, j := range s.jobs.slot {
		if j == nil {
			continue
		}
		for m := j.pace.faster; m != 0; m &= m - 1 {
			out = append(out, fmt.Sprintf("%d beside %d", j.id, s.jobs.slot[first(m)].id))
		}
	}
	return out
}

// TestPace: a job is slow beside one that goes more than four times as fast, and no more when that has left, or goes
// less than three times as fast.
func TestPace(t *testing.T) {
	s := paced(t, 100, 40, 10, 10, 1, 3)
	if got, want := slowBeside(s), []string{"3 beside 1", "3 beside 2"}; !slices.Equal(got, want) {
		t.Fatalf("%v, want %v", got, want)
	}
	run(t, s, 100, 10, 10, 1, 3)
	// Job 4 is a third as fast, which is not slow.
	if got, want := slowBeside(s), []string{"3 beside 1", "3 beside 2"}; !slices.Equal(got, want) {
		t.Errorf("later: %v, want %v", got, want)
	}
	s.Leave(1)
	if got, want := slowBeside(s), []string{"3 beside 2"}; !slices.Equal(got, want) {
		t.Errorf("one has left: %v, want %v", got, want)
	}
	must(t, s.Join(1, byEpoch(span(0, 100))))
	must(t, s.StartEpoch(1, 0))
	if got, want := slowBeside(s), []string{"3 beside 2"}; !slices.Equal(got, want) {
		t.Errorf("another one is in its slot: %v, want %v", got, want)
	}
	run(t, s, 60, 10, 7, 3, 3) // more than a quarter of 10, so that no job becomes slow, and more than a third of 7
	if got := slowBeside(s); len(got) > 0 {
		t.Errorf("faster: %v, want none", got)
	}
}

// TestPaceNeedsWholeEpochs: an epoch that was given up, and one that a neighbour was not there for from its beginning,
// says nothing of anybody's pace.
func TestPaceNeedsWholeEpochs(t *testing.T) {
	s := paced(t, 100, 0, 1, 1)
	for e := range uint32(5) {
		for range 10 {
			s.Next(1)
		}
		must(t, s.StartEpoch(1, e)) // given up
	}
	if got := slowBeside(s); len(got) > 0 {
		t.Errorf("epochs that were given up: %v", got)
	}
	for range 90 {
		s.Next(1)
	}
	must(t, s.Join(3, byEpoch(span(0, 100))))
	must(t, s.StartEpoch(3, 0))
	for range 10 {
		s.Next(1)
	}
	must(t, s.StartEpoch(1, 9))
	if got, want := slowBeside(s), []string{"2 beside 1"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v: job 3 had a tenth of the epoch", got, want)
	}
}

// TestPaceOfParts: a job that gives every epoch up before its end is compared all the same, when it has taken as many
// samples as it has.
func TestPaceOfParts(t *testing.T) {
	s := paced(t, 100, 0, 1, 1)
	for e := range uint32(3) {
		for range 60 {
			s.Next(1)
		}
		s.Next(2)
		must(t, s.StartEpoch(1, e))
	}
	if got, want := slowBeside(s), []string{"2 beside 1"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestPaceOfResumedEpochs: what a job had before it resumed is no measure of pace, whether anything is in memory or
// not.
func TestPaceOfResumedEpochs(t *testing.T) {
	for _, cached := range []bool{false, true} {
		s := paced(t, 100, 0, 1, 1, 1)
		if cached {
			s.SetLevel(5, uint8(decoded))
		}
		s.Withdraw(1, span(0, 95))
		for range 5 {
			for id := ident.JobID(1); id <= 3; id++ {
				s.Next(id)
			}
		}
		must(t, s.StartEpoch(1, 1))
		if got := slowBeside(s); len(got) > 0 {
			t.Errorf("cached %v: after five picks each: %v", cached, got)
		}
	}
}

// TestPaceIsForgotten: a job that stopped, or has another subset, is not slow for what it did before.
func TestPaceIsForgotten(t *testing.T) {
	for name, forget := range map[string]func(*Sampler){
		"stopped and came back": func(s *Sampler) { s.SetActive(2, false); s.SetActive(2, true) },
		"another subset": func(s *Sampler) {
			must(t, s.Change(2, span(0, 50)))
			must(t, s.StartEpoch(2, 9))
		},
	} {
		s := paced(t, 100, 30, 10, 1)
		if got, want := slowBeside(s), []string{"2 beside 1"}; !slices.Equal(got, want) {
			t.Fatalf("%v, want %v", got, want)
		}
		if forget(s); len(slowBeside(s)) > 0 {
			t.Errorf("%s: %v", name, slowBeside(s))
		}
		must(t, s.Check())
	}
}

// TestSlowNeedsDoNotCount: beside two fast jobs a slow one's need keeps nothing in memory that they want too; beside
// one it does, and where only it wants.
func TestSlowNeedsDoNotCount(t *testing.T) {
	fast := New(3)
	for id, sub := range [][]ident.ObjectID{span(0, 100), span(0, 100), span(50, 250)} {
		must(t, fast.Join(ident.JobID(id+1), byEpoch(sub)))
		must(t, fast.StartEpoch(ident.JobID(id+1), 0))
	}
	for e := range uint32(3) {
		for id := ident.JobID(1); id <= 2; id++ {
			for range 100 {
				fast.Next(id)
			}
			if e < 2 {
				must(t, fast.StartEpoch(id, e))
			}
		}
		fast.Next(3)
	}
	// Both have taken all of their last epoch; the slow one needs nearly all of its own.
	shared, own := 0, 0
	for x := range ident.ObjectID(250) {
		if !fast.Needs(3, x) {
			continue
		}
		switch n := fast.Need(x); {
		case x < 100 && n != 0:
			t.Errorf("object %d, which two fast jobs want too, has need %d", x, n)
		case x < 100:
			shared++
		case n != 1:
			t.Errorf("object %d, which it wants alone, has need %d", x, n)
		default:
			own++
		}
	}
	if shared == 0 || own == 0 {
		t.Fatal("nothing is needed")
	}
	if n := fast.NeedOf(60, fast.JobSet(3)); fast.Needs(3, 60) && n != 1 { // a form that serves it alone
		t.Errorf("a form of the slow job's own has need %d", n)
	}
	fast.SetActive(2, false)
	for x := ident.ObjectID(50); x < 100; x++ {
		if fast.Needs(3, x) && fast.Need(x) != 1 {
			t.Errorf("object %d, which one fast job wants too, has need %d", x, fast.Need(x))
		}
	}
}
