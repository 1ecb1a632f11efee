package coordinator

import (
	"strings"
	"testing"

	"larder/dsa"
	"larder/internal/ident"
	"larder/jobs"
)

func order(m dsa.Mode) func(*Register) { return func(e *Register) { e.Sample.Mode = m } }

// TestALargeJobIsPreparedInSlices: the sampler's work for a job too large for one step continues in the next ones.
// Then batches are planned without another request. A neighbour waits no longer than that.
func TestALargeJobIsPreparedInSlices(t *testing.T) {
	const n = 5 * samplerPerStep
	r := decodedTier(t, 100)
	small := r.join("small", 0, 40, 4, order(dsa.Stratified), slots(2))
	if small.next() == nil {
		t.Fatal("a small job has to wait")
	}
	large := r.join("large", 0, n, 8, order(dsa.Epoch), slots(2))
	if large.next() != nil {
		t.Fatal("so large a job was laid out in one step")
	}
	ticks := 0
	for ; r.c.needs.sampler.Work(0); ticks++ {
		if !r.c.Deadline().Equal(r.now) {
			t.Fatal("work is left and no step is asked for")
		}
		if ticks > 1000 {
			t.Fatal("it never ends")
		}
		r.after(0)
		r.check()
	}
	if ticks < 10 {
		t.Errorf("%d steps for %d samples", ticks, n)
	}
	if d := large.next(); d == nil || len(d.Rows) != 8 {
		t.Errorf("after %d steps: %v", ticks, d)
	}
	got := len(small.drain())
	if got < 8 {
		t.Errorf("the neighbour got %d samples more", got)
	}
	// A job that leaves in the middle of it leaves nothing behind.
	gone := r.join("gone", 100, n, 8, order(dsa.Strict))
	r.after(0)
	gone.detach(true)
	for r.c.needs.sampler.Work(0) {
		r.after(0)
		r.check()
	}
	if ids := r.c.needs.sampler.Jobs(); len(ids) != 2 {
		t.Errorf("the sampler knows jobs %v", ids)
	}
}

// TestASubsetThatIsNoSetEndsTheJob: what the sampler finds out in slices reaches the job.
func TestASubsetThatIsNoSetEndsTheJob(t *testing.T) {
	r := decodedTier(t, 10)
	p := r.join("a", 0, 3*samplerPerStep, 4, func(e *Register) {
		e.Sample.Mode = dsa.Strict
		e.Sample.Subset[len(e.Sample.Subset)-1] = ident.ObjectID(7)
	})
	for r.c.needs.sampler.Work(0) {
		r.after(0)
	}
	if j := r.job(p.job); j.State != jobs.Dead || !strings.Contains(j.Reason, "holds an object twice: 7") {
		t.Errorf("%s: %q", j.State, j.Reason)
	}
	if len(r.c.needs.sampler.Jobs()) != 0 {
		t.Error("the sampler keeps it")
	}
}
