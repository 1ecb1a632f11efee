package coordinator

import (
	"fmt"
	"testing"
	"time"

	"larder/dsa"
	"larder/internal/ident"
	"larder/internal/invariant"
	"larder/jobs"
)

// largeWorld is a core with jobs on overlapping subsets of n samples and a tier that holds a tenth of them.
func largeWorld(tb testing.TB, n int, watch func(what string, c *Core, took time.Duration)) *Core {
	tb.Helper()
	sizes := [ident.NumForms]int64{ident.Decoded: -1, ident.Encoded: -1}
	c, err := New(Config{Seed: 1, InFlight: 4, Bytes: func(x ident.ObjectID) int64 { return 100 + int64(x)%7 },
		Tiers: TierConfig{Total: int64(n) * sampleBytes / 10, Sizes: sizes}})
	if err != nil {
		tb.Fatal(err)
	}
	now := time.Unix(1_700_000_000, 0)
	token := Token(0)
	replies := map[Token]Reply{}
	var todo []Effect
	step := func(what string, ev Event) {
		start := time.Now()
		out := c.Step(now, ev, nil)
		watch(what, c, time.Since(start))
		todo = append(todo, out...)
	}
	run := func(what string, most int) {
		for i := 0; len(todo) > 0 && i < most; i++ {
			e := todo[0]
			todo = todo[1:]
			switch x := e.(type) {
			case Prepare:
				step(what, Prepared{Flight: x.Flight, Kept: x.Keep, Bytes: sampleBytes, Encoded: x.KeepEncoded, Read: 100})
			case *Fill:
				step(what, Filled{Delivery: x.Delivery, Row: x.Row, Augments: 1})
			case Persist:
				step(what, Persisted{Seq: x.Seq})
			case Deliver:
				step(what, Released{Job: x.Job, Rank: x.Rank, Inc: x.Inc, Slot: x.Slot, Gen: x.Gen})
			case Reply:
				if x.Err != nil {
					tb.Fatal(x.Err)
				}
				replies[x.Token] = x
			case Complain:
				tb.Fatal(x.Text)
			}
		}
		if len(todo) == 0 {
			for i := 0; !c.Deadline().IsZero() && !c.Deadline().After(now) && i < 4; i++ {
				step(what, Tick{})
			}
		}
	}
	settle := func(what string) {
		for i := 0; c.needs.refresh.phase != refreshNone || len(c.tiering.wanted.walks) > 0 || c.needs.sampler.Work(0); i++ {
			if i > 100*n {
				tb.Fatalf("%s: it never ends", what)
			}
			step(what, Tick{})
		}
	}
	ask := func(what string, ev Event) Reply {
		token++
		switch x := ev.(type) {
		case Register:
			x.Token = token
			ev = x
		case Attach:
			x.Token = token
			ev = x
		case ChangeSubset:
			x.Token = token
			ev = x
		}
		step(what, ev)
		for range 1000 {
			if r, ok := replies[token]; ok {
				return r
			}
			run(what, 1)
		}
		tb.Fatalf("%s: no reply", what)
		return Reply{}
	}
	part := func(from, to int) []ident.ObjectID {
		out := make([]ident.ObjectID, 0, to-from)
		for x := from; x < to; x++ {
			out = append(out, ident.ObjectID(x))
		}
		return out
	}
	type running struct {
		id  ident.JobID
		inc ident.Incarnation
	}
	var all []running
	for i, m := range []dsa.Mode{dsa.Stratified, dsa.Strict, dsa.Epoch, dsa.Fixed} {
		sub := part(i*n/8, n/2+i*n/8)
		r := ask("register "+m.String(), Register{Spec: jobs.Spec{Name: fmt.Sprint("job", i), Subset: len(sub), Batch: 64,
			World: 1, Slots: 4},
			Sample: dsa.JobSpec{Mode: m, Subset: sub}, Member: Members(sub), Prefix: 1, Suffix: 2})
		a := ask("attach", Attach{Job: r.Job})
		all = append(all, running{r.Job, a.Inc})
		step("start "+m.String(), StartEpoch{Job: r.Job, Inc: a.Inc})
		settle("join " + m.String())
		run("batches", 4000)
	}
	sub := part(n/4, n*3/4)
	ask("change the subset", ChangeSubset{Job: all[0].id, Mark: 1, Subset: sub, Member: Members(sub),
		Gone: Members(part(0, n/100))})
	step("begin another epoch", StartEpoch{Job: all[0].id, Inc: all[0].inc, Epoch: 1})
	settle("another epoch")
	run("batches", 4000)
	for _, on := range []bool{true, false} {
		step(fmt.Sprintf("pause %v", on), Pause{Job: all[1].id, On: on})
		settle("pause")
		run("batches", 4000)
	}
	step("kill", Kill{Job: all[2].id})
	settle("kill")
	step("detach", Detached{Job: all[3].id, Inc: all[3].inc})
	settle("detach")
	run("batches", 4000)
	return c
}

// TestNoStepIsLongerForALargerDataset counts the work of each step while jobs on 1.28 M samples come, change, pause and
// go: objects of subsets and entries of tiers looked at are bounded, whatever the size.
func TestNoStepIsLongerForALargerDataset(t *testing.T) {
	n := 1_280_000
	if testing.Short() || invariant.Enabled {
		n = 64_000
	}
	var most spent
	steps, counted := 0, 0
	c := largeWorld(t, n, func(_ string, c *Core, _ time.Duration) {
		steps++
		counted += c.step.spent.counted
		most = spent{max(most.sampler, c.step.spent.sampler), max(most.counted, c.step.spent.counted),
			max(most.refresh, c.step.spent.refresh), max(most.shrunk, c.step.spent.shrunk)}
	})
	t.Logf("%d steps, at most %+v", steps, most)
	if most.sampler > samplerPerStep || most.counted > countPerStep || most.refresh > refreshPerStep ||
		most.shrunk > shrinkPerStep {
		t.Errorf("a step did %+v", most)
	}
	if want := 4*n/2 + n/2*2 + n/2; counted != want { // four subsets in, one for another, one out
		t.Errorf("%d objects of subsets were counted, want %d", counted, want)
	}
	union := map[ident.ObjectID]bool{}
	var bytes int64
	for _, s := range c.roster.order {
		for _, x := range s.sample.Subset {
			if !union[x] {
				union[x] = true
				bytes += c.cfg.Bytes(x)
			}
		}
	}
	if c.tiering.wanted.objects != int64(len(union)) || c.tiering.wanted.bytes != bytes {
		t.Errorf("the union is counted as %d objects of %d bytes, it is %d of %d", c.tiering.wanted.objects,
			c.tiering.wanted.bytes, len(union), bytes)
	}
}

// BenchmarkLongestStep reports the longest step of each kind, in microseconds, while jobs on 1.28 M samples come,
// change, pause and go.
func BenchmarkLongestStep(b *testing.B) {
	longest := map[string]time.Duration{}
	var all time.Duration
	steps := 0
	for b.Loop() {
		largeWorld(b, 1_280_000, func(what string, _ *Core, took time.Duration) {
			steps++
			longest[what] = max(longest[what], took)
			all = max(all, took)
		})
	}
	for what, d := range longest { // order-free: each is reported by its name
		b.Logf("%-24s %8.0f us", what, float64(d.Nanoseconds())/1e3)
	}
	b.ReportMetric(float64(all.Nanoseconds())/1e3, "longest-us")
	b.ReportMetric(float64(steps)/float64(b.N), "steps/op")
}
