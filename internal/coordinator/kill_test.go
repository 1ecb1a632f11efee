package coordinator

import (
	"testing"

	"larder/dsa"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/jobs"
)

func TestKillEndsAJobAtOnce(t *testing.T) {
	r := decodedTier(t, 20)
	r.hold = is[*Fill]
	r.join("a", 0, 12, 2)
	r.hold = nil
	r.token++
	words := r.step(Kill{Token: r.token, Job: 1, Reason: "killed by request"})
	// the answer waits for the record
	if words[0] != "close job 1 rank 0: killed by request" || !hasPrefix(words, "job 1 ended") ||
		hasPrefix(words, "reply") {
		t.Errorf("%v", words)
	}
	r.run()
	r.ok(r.replies[r.token])
	if len(r.got) != 0 || r.c.Pinned(ident.Decoded) != 0 || len(r.c.planner.deliveries) != 0 ||
		len(r.c.roster.streams) != 0 {
		t.Errorf("%d batches were sent, %d planned are left", len(r.got), len(r.c.planner.deliveries))
	}
	refused(t, r.ask(func(t Token) Event { return Kill{Token: t, Job: 1} }), errs.JobEnded)
	r.check()
}

// TestWhatIsAnsweredIsDurable: a subset, a pause or an end that was confirmed is still there after a crash.
func TestWhatIsAnsweredIsDurable(t *testing.T) {
	r := decodedTier(t, 20)
	p := r.join("a", 0, 12, 2)
	asks := map[string]func(Token) Event{
		"subset": func(t Token) Event { return ChangeSubset{Token: t, Job: p.job, Mark: 1, Subset: objectsFrom(0, 6)} },
		"pause":  func(t Token) Event { return Pause{Token: t, Job: p.job, On: true} },
		"resume": func(t Token) Event { return Pause{Token: t, Job: p.job} },
		"kill":   func(t Token) Event { return Kill{Token: t, Job: p.job} },
	}
	for _, what := range []string{"subset", "pause", "resume", "kill"} {
		r.hold = is[Persist]
		r.token++
		r.step(asks[what](r.token))
		r.run()
		if a, ok := r.replies[r.token]; ok {
			t.Errorf("%s: answered before its record was durable: %+v", what, a)
		}
		r.hold = nil
		r.run()
		a, ok := r.replies[r.token]
		if !ok {
			t.Fatalf("%s: no answer", what)
		}
		r.ok(a)
	}
	if r.job(p.job).State != jobs.Dead {
		t.Errorf("%s", r.job(p.job).State)
	}
	r.check()
}

// What a job began and others wait for is the work of one of them once it has ended: the executor forgets it, and is
// asked again where the first try was lost.
func TestFlightsArePassedOn(t *testing.T) {
	for _, making := range []Making{{}, {Workers: true}, {Workers: true, InSteps: true}} {
		r := decodedTier(t, 20)
		r.hold = func(e Effect) bool { return is[Prepare](e) || is[Augment](e) }
		a := r.join("a", 0, 12, 12, order(dsa.Sequential), made(making, 100))
		b := r.join("b", 0, 12, 12, order(dsa.Sequential), made(making, 100))
		r.run()
		var begun []FlightID
		for _, e := range r.todo {
			if x, ok := e.(Prepare); ok && x.Job == a.job {
				begun = append(begun, x.Flight)
			}
		}
		if len(begun) == 0 {
			t.Fatalf("%+v: job 1 began nothing", making)
		}
		r.ok(r.ask(func(t Token) Event { return Kill{Token: t, Job: a.job} }))
		r.check()
		r.todo = nil
		for _, f := range begun {
			r.step(Prepared{Flight: f, Lost: true})
		}
		again := 0
		for _, e := range r.todo {
			if x, ok := e.(Prepare); ok {
				again++
				if x.Job != b.job {
					t.Fatalf("%+v: object %d is to be made for job %d, which has ended", making, x.Key.Object, x.Job)
				}
			}
		}
		if again != len(begun) {
			t.Errorf("%+v: %d of %d are made again", making, again, len(begun))
		}
		r.check()
	}
}
