package jobs

import (
	"testing"
	"time"
)

var t0 = time.Unix(1_700_000_000, 0)

func newJob(world int) *Job {
	return NewJob(1, Spec{Name: "j", Subset: 40, Batch: 4, World: world, Slots: 3}, set(1))
}

func TestSlotsGoRoundAndOldReleasesAreIgnored(t *testing.T) {
	j := newJob(1)
	j.Attach(0, t0)
	k := &j.Ranks[0]
	var gens []uint64
	for i := range 3 {
		slot, gen, ok := k.FreeSlot()
		if !ok || slot != i || gen != 1 {
			t.Fatalf("slot %d generation %d %v", slot, gen, ok)
		}
		gens = append(gens, gen)
	}
	if _, _, ok := k.FreeSlot(); ok {
		t.Fatal("a fourth slot of three")
	}
	if k.Release(1, gens[1]) {
		t.Error("a slot that is being filled was released")
	}
	k.Slots[1].State = Leased
	if !k.Holds() {
		t.Error("a leased slot is not held")
	}
	for _, bad := range []struct {
		slot int
		gen  uint64
	}{{1, gens[1] + 1}, {1, gens[1] - 1}, {-1, 1}, {3, 1}, {0, 1}} {
		if k.Release(bad.slot, bad.gen) {
			t.Errorf("slot %d generation %d was released", bad.slot, bad.gen)
		}
	}
	if !k.Release(1, gens[1]) || k.Release(1, gens[1]) {
		t.Error("a lease ends once")
	}
	slot, gen, ok := k.FreeSlot()
	if !ok || slot != 1 || gen != gens[1]+1 {
		t.Errorf("slot %d generation %d %v", slot, gen, ok)
	}
	k.Slots[1].State = Leased
	if k.Release(1, gens[1]) {
		t.Error("the release of an earlier lease ended this one")
	}
	if k.Holds() != true {
		t.Error("the lease is gone")
	}
}

func TestAttachingAgainStartsAnew(t *testing.T) {
	j := newJob(2)
	if inc := j.Attach(0, t0); inc != 1 || j.State != Live || j.Attached() != 1 {
		t.Fatalf("incarnation %d, %s, %d attached", inc, j.State, j.Attached())
	}
	k := &j.Ranks[0]
	_, _, _ = k.FreeSlot()
	k.Step, k.Sent, k.Phase, k.Asked, k.Ended, k.StepTime = 3, 2, InEpoch, 5, 4, time.Second
	if inc := j.Attach(0, t0.Add(time.Second)); inc != 2 {
		t.Fatalf("incarnation %d", inc)
	}
	if k.Step != 0 || k.Sent != 0 || k.Phase == InEpoch || k.Asked != -1 || k.Ended != -1 || k.StepTime != 0 ||
		k.Attaches != 2 || k.Slots[0].State != Free {
		t.Errorf("%+v", *k)
	}
	if j.Attach(1, t0); j.Attached() != 2 {
		t.Errorf("%d attached", j.Attached())
	}
}

func TestStepTimeLeavesOutTheWaiting(t *testing.T) {
	var k Rank
	k.Took(t0, 0)
	if k.StepTime != 0 {
		t.Errorf("a step time of %s from one take", k.StepTime)
	}
	k.Took(t0.Add(10*time.Second), 6*time.Second)
	if k.StepTime != 4*time.Second {
		t.Errorf("step time %s", k.StepTime)
	}
	k.Took(t0.Add(18*time.Second), 0)
	if k.StepTime != 5*time.Second { // a quarter of the way from 4 s to 8 s
		t.Errorf("step time %s", k.StepTime)
	}
	k.Took(t0.Add(19*time.Second), time.Hour) // a client's word is not to be trusted
	if k.StepTime < 0 {
		t.Errorf("step time %s", k.StepTime)
	}
}

func TestExhausted(t *testing.T) {
	j := newJob(1)
	j.Attach(0, t0)
	k := &j.Ranks[0]
	if j.Exhausted(0) {
		t.Error("a rank that has asked for nothing is not done with an epoch")
	}
	k.Phase, k.Step = InEpoch, 9
	if j.Exhausted(0) {
		t.Error("9 of 10 batches")
	}
	if k.Step = 10; !j.Exhausted(0) {
		t.Error("10 of 10 batches")
	}
	k.Step, k.Phase = 2, Waiting
	if !j.Exhausted(0) {
		t.Error("it asked for another epoch")
	}
	k.Phase = Left
	if !j.Exhausted(0) {
		t.Error("it left")
	}
}

func TestLedgersAreKeptForAWhile(t *testing.T) {
	j := newJob(1)
	if j.Ledger() != nil {
		t.Error("an account before the first epoch")
	}
	for e := range uint32(keepLedgers + 5) {
		j.Open(e)
	}
	if len(j.Ledgers) != keepLedgers || j.Ledger().Epoch != keepLedgers+4 || j.Ledgers[0].Epoch != 5 {
		t.Errorf("%d ledgers from epoch %d to %d", len(j.Ledgers), j.Ledgers[0].Epoch, j.Ledger().Epoch)
	}
}

func TestBadSamplesAreCountedBeyondThoseKept(t *testing.T) {
	var s Stats
	for range keepBad/10 + 3 {
		s.Note(make([]Bad, 10))
	}
	if s.Quarantined != keepBad+30 || len(s.Bad) != keepBad {
		t.Errorf("%d counted, %d kept", s.Quarantined, len(s.Bad))
	}
}

func TestWordsOfStates(t *testing.T) {
	for s, want := range map[State]string{Joining: "joining", Live: "live", Suspect: "suspect", Dead: "dead",
		Done: "done"} {
		if s.String() != want || s.Ended() != (want == "dead" || want == "done") {
			t.Errorf("%s: %v", s, s.Ended())
		}
	}
	for s, want := range map[EpochState]string{Running: "running", Complete: "complete", Abandoned: "abandoned",
		Violated: "violated"} {
		if s.String() != want {
			t.Errorf("%s", s)
		}
	}
}

// TestCourse: a job that drains stays so, and its pause ends with it.
func TestCourse(t *testing.T) {
	j := NewJob(1, Spec{World: 1}, nil)
	if j.Pause(); !j.Paused() || !panics(j.Pause) {
		t.Error("a paused job is paused twice")
	}
	if !panics(func() { j.SetActive(true) }) {
		t.Error("a paused job that has begun no epoch needs samples")
	}
	j.StartDraining()
	j.StartDraining()
	if j.Paused() || !j.Draining() || !panics(j.Pause) || !panics(j.Unpause) {
		t.Errorf("a job that drains has course %d", j.Course)
	}
}

// TestDraw: a job needs samples once it has begun an epoch.
func TestDraw(t *testing.T) {
	j := NewJob(1, Spec{World: 1}, nil)
	j.SetActive(false)
	if j.Begun() || j.Active() || !panics(func() { j.SetActive(true) }) {
		t.Error("a job needs samples before it has begun an epoch")
	}
	j.Begin(3)
	j.SetActive(true)
	if j.Begin(4); !j.Begun() || !j.Active() || j.Epoch != 4 {
		t.Errorf("in epoch %d, a job's drawing is in phase %d", j.Epoch, j.Draw)
	}
	if j.SetActive(false); j.Active() || !j.Begun() {
		t.Errorf("a stalled job's drawing is in phase %d", j.Draw)
	}
}
