package jobs

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

// inEpoch is a rank whose client waits for its next batch.
func inEpoch(change ...func(*Facts)) Facts {
	f := Facts{Name: "a", World: 1, Client: Present, Progress: Preparing, Over: -1, Slots: 4, Rows: 8, There: 3,
		Waiting: 5 * time.Second}
	for _, c := range change {
		c(&f)
	}
	return f
}

// TestWaitOf: what is waited for, from facts alone.
func TestWaitOf(t *testing.T) {
	reading := Machine{Workers: 2, Reads: 4, Oldest: 1500 * time.Millisecond, Storage: .9,
		Limit: "1MB/s by source.storage_limit"}
	computing := Machine{Workers: 2, Busy: 2, Cores: .97}
	full := Machine{Workers: 2, Full: "the disk of /state is full"}
	for _, c := range []struct {
		name  string
		f     Facts
		m     Machine
		cause Cause
		text  string
	}{
		{"storage", inEpoch(func(f *Facts) { f.Stored = 5 }), reading, Storage,
			"4 reads are under way, the oldest for 1.5 s, held to 1MB/s by source.storage_limit; " +
				"3 of the 8 samples of the next batch are ready"},
		{"nothing has been read yet", inEpoch(func(f *Facts) { f.Stored = 5 }), Machine{Workers: 2, Storage: .8}, Storage,
			"80 % of the time"},
		{"cores", inEpoch(func(f *Facts) { f.Stored = 5 }), computing, Cores, "2 of 2 workers decode or augment"},
		{"cores, while reads are ahead of them", inEpoch(func(f *Facts) { f.Stored = 5 }),
			Machine{Workers: 2, Busy: 1, Cores: .9, Reads: 4, Storage: 1},
			Cores, "90 % of the cores"},
		{"cores, of a sample that is in memory", inEpoch(), Machine{Workers: 1, Busy: 1, Reads: 3, Storage: 1, Cores: .1},
			Cores, "1 of 1 workers"},
		{"under way", inEpoch(), Machine{Workers: 2}, Work, "3 of the 8"},
		{"not planned", inEpoch(func(f *Facts) { f.Rows, f.There = 0, 0 }), Machine{Workers: 2}, Work, "not planned yet"},
		{"the script has batches", inEpoch(func(f *Facts) { f.Held, f.Waiting = 3, 0 }), reading, Script,
			"2 batches are ready"},
		{"a script that keeps batches and waits", inEpoch(func(f *Facts) { f.Held, f.Stored = 3, 5 }), reading, Storage,
			"4 reads"},
		{"the script has not begun", inEpoch(func(f *Facts) { f.Progress = NoEpoch }), reading, Script,
			"not begun to iterate"},
		{"between epochs", inEpoch(func(f *Facts) { f.Progress, f.Over = NoEpoch, 2 }), reading, Script,
			"since the end of epoch 2"},
		{"paused", inEpoch(func(f *Facts) { f.Course, f.Stored = CoursePaused, 5 }), full, Pause, "larder jobs unpause a"},
		{"full", inEpoch(func(f *Facts) { f.Held = 4 }), full, FullDisk, "the disk of /state is full"},
		{"recorded", inEpoch(func(f *Facts) { f.There, f.Progress = 8, Recording }), Machine{Workers: 2}, Log,
			"is being recorded"},
		{"order", inEpoch(func(f *Facts) { f.Progress = Ordering }), Machine{Workers: 2}, Order, "its order"},
		{"no client yet", Facts{Over: -1}, reading, Client, "none has come yet"},
		{"client left", Facts{Client: Departed}, reading, Client, "left"},
		{"client gone", Facts{Client: Gone}, reading, Client, "gone without a word"},
		{"connection lost", Facts{Client: Disconnected}, reading, Client, "lost its connection"},
		{"ended", Facts{State: Done}, full, Nothing, ""},
	} {
		w := WaitOf(c.f, c.m)
		if w.Cause != c.cause || !strings.Contains(w.Text, c.text) {
			t.Errorf("%s: %q: %s; want %q with %q", c.name, w.Cause, w.Text, c.cause, c.text)
		}
		now := c.f.Waiting
		if c.cause == Script || c.cause == Client || c.cause == Nothing {
			now = 0
		}
		if w.For != now {
			t.Errorf("%s: it has waited %v", c.name, w.For)
		}
	}
}

// TestWaitForRanks: each rank that an epoch waits for is named, with the reason.
func TestWaitForRanks(t *testing.T) {
	f := inEpoch(func(f *Facts) {
		f.World, f.Rank, f.Progress = 6, 1, AwaitsEpoch
		f.Behind = []Behind{{Rank: 0}, {Rank: 2, Client: Gone}, {Rank: 3, Client: Present, InEpoch: true, Epoch: 4},
			{Rank: 4, Client: Present}, {Rank: 5, Client: Disconnected}}
	})
	w := WaitOf(f, Machine{Workers: 2})
	if w.Cause != OtherRank || w.Rank != 1 || !slices.Equal(w.Ranks, []int{0, 2, 3, 4, 5}) {
		t.Errorf("%+v", w)
	}
	for _, want := range []string{"rank 0, which has not come", "rank 2, whose client is gone",
		"rank 3, which is still in epoch 4", "rank 4, which has not asked",
		"rank 5, whose client lost its connection", "all 6 ranks"} {
		if !strings.Contains(w.Text, want) {
			t.Errorf("%q is missing in %s", want, w.Text)
		}
	}
	for r := range 20 {
		f.Behind = append(f.Behind, Behind{Rank: 10 + r})
	}
	if w := WaitOf(f, Machine{}); len(w.Ranks) != 25 || !strings.Contains(w.Text, "and 21 more ranks") {
		t.Errorf("%+v", w)
	}
}

// A rank that a step waits for may have lost its connection alone: its client comes back by itself.
func TestWaitForAStep(t *testing.T) {
	w := WaitOf(inEpoch(func(f *Facts) {
		f.World, f.Progress = 4, AwaitsStep
		f.Step = []Behind{{Rank: 1, Client: Present}, {Rank: 2, Client: Gone}, {Rank: 3, Client: Disconnected}}
	}), Machine{Workers: 2})
	if w.Cause != OtherRank || !slices.Equal(w.Ranks, []int{1, 2, 3}) {
		t.Errorf("%q of %v", w.Cause, w.Ranks)
	}
	for _, want := range []string{"rank 1, whose batch of this step is not ready", "rank 2, whose client is gone",
		"rank 3, whose client lost its connection, and lives", "all 4 ranks"} {
		if !strings.Contains(w.Text, want) {
			t.Errorf("%q does not say %q", w.Text, want)
		}
	}
}

// TestWorst: of a job with several ranks the cause is reported, not which rank waits for which.
func TestWorst(t *testing.T) {
	slow := Wait{Cause: Storage, Rank: 1, For: time.Second}
	for _, c := range []struct {
		ranks []Wait
		want  Wait
	}{
		{nil, Wait{}},
		{[]Wait{{Cause: OtherRank, For: time.Hour, Ranks: []int{1}}, slow}, slow},
		{[]Wait{{Cause: Script}, slow, {Cause: Client, Rank: 2}}, slow},
		{[]Wait{slow, {Cause: Storage, Rank: 2, For: time.Minute}}, Wait{Cause: Storage, Rank: 2, For: time.Minute}},
		{[]Wait{{Cause: Client}, {Cause: Script, Rank: 1}}, Wait{Cause: Script, Rank: 1}},
	} {
		if got := Worst(c.ranks); got.Cause != c.want.Cause || got.Rank != c.want.Rank || got.For != c.want.For {
			t.Errorf("%+v of %+v", got, c.ranks)
		}
	}
	for _, c := range []Cause{Nothing, Script, Storage, Cores, OtherRank, Pause, FullDisk, Log, Order, Client, Work} {
		if c.weight() < 0 {
			t.Errorf("%q has no weight", c)
		}
	}
}

// TestRankWaiting: for how long a client waits that does not say so itself.
func TestRankWaiting(t *testing.T) {
	now := time.Unix(1000, 0)
	j := NewJob(1, Spec{World: 1, Slots: 4}, nil)
	j.Attach(0, now)
	k := &j.Ranks[0]
	at := func(d time.Duration, want time.Duration) {
		t.Helper()
		if got := k.Waiting(now.Add(d)); got != want {
			t.Errorf("%v, want %v", got, want)
		}
	}
	at(3*time.Second, 3*time.Second) // it has nothing
	k.Slots[0].State = Leased
	at(3*time.Second, 0) // it works, for who knows how long
	k.StepTime = time.Second
	at(3*time.Second, 2*time.Second)
	at(time.Second/2, 0)
	k.Slots[1].State = Leased
	at(3*time.Second, 0) // there is another one for it
	k.Phase, k.Slots = Vanished, nil
	at(3*time.Second, 0)
}

// TestRate: what came over the last 30 s.
func TestRate(t *testing.T) {
	var r Rate
	now := time.Unix(1000, 0)
	near := func(what string, want float64) {
		t.Helper()
		if got := r.At(now); math.Abs(got-want) > want*0.07 {
			t.Errorf("%s: %g a second, want %g", what, got, want)
		}
	}
	near("before anything came", 0)
	r.Add(now, 64)
	near("at once", 64) // not less than a second is divided by
	step := func(n, samples int, pause time.Duration) {
		for range n {
			now = now.Add(pause)
			r.Add(now, samples)
		}
	}
	step(40, 64, 100*time.Millisecond)
	near("after 4 s", 640)
	step(1000, 64, 100*time.Millisecond)
	near("after 104 s", 640)
	step(60, 1, time.Second)
	near("slower", 1)
	now = now.Add(15 * time.Second)
	near("half of the time nothing", 0.5)
	now = now.Add(time.Hour)
	near("nothing", 0)
	r.Add(now, 30)
	near("again", 1)
	now = now.Add(-time.Hour) // a clock that goes back harms nothing
	if got := r.At(now); got < 0 || math.IsNaN(got) || math.IsInf(got, 0) {
		t.Errorf("%g", got)
	}
}
