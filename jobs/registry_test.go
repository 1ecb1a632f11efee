package jobs

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"larder/internal/errs"
	"larder/internal/ident"
)

func spec(name string, world int) Spec {
	return Spec{Name: name, Subset: 10, Batch: 2, World: world, Slots: 3}
}

func add(t testing.TB, g *Registry, name string) *Job {
	t.Helper()
	j, err := g.Add(spec(name, 1), set(1))
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func reason(err error) errs.Reason {
	if f, ok := errors.AsType[*errs.Error](err); ok {
		return f.Reason
	}
	return ""
}

func ids(g *Registry) []ident.JobID {
	var out []ident.JobID
	for j := range g.All() {
		out = append(out, j.ID)
	}
	return out
}

func TestALiveNameIsTakenAndADeadOneIsFree(t *testing.T) {
	g := NewRegistry(time.Second, 8)
	a := add(t, g, "a")
	if _, err := g.Add(spec("a", 1), set(1)); reason(err) != errs.AlreadyExists {
		t.Fatalf("a second a: %v", err)
	}
	a.Attach(0, t0)
	a.Open(0)
	g.End(a, Done, "its client left")
	if a.State != Done || a.Reason != "its client left" || a.Attached() != 0 || a.Ledger().State != Abandoned {
		t.Errorf("%s %q %d attached, epoch %s", a.State, a.Reason, a.Attached(), a.Ledger().State)
	}
	b := add(t, g, "a")
	if b.ID == a.ID || g.Named("a") != b || g.Get(a.ID) != a || g.Get(b.ID) != b || g.Get(99) != nil {
		t.Error("the name does not mean the new job, or the old one is lost")
	}
}

func TestIncarnationsRiseAcrossJobsOfOneName(t *testing.T) {
	g := NewRegistry(time.Second, 8)
	a, err := g.Add(spec("a", 2), set(1))
	must(t, err)
	a.Attach(0, t0)
	a.Attach(0, t0)
	a.Attach(1, t0)
	g.End(a, Dead, "killed")
	b, err := g.Add(spec("a", 2), set(1))
	must(t, err)
	if b.Attach(0, t0) != 3 || b.Attach(1, t0) != 2 {
		t.Errorf("incarnations %d and %d", b.Ranks[0].Incarnation, b.Ranks[1].Incarnation)
	}
	if b.Ranks[0].Attaches != 1 {
		t.Errorf("%d attaches of the new job", b.Ranks[0].Attaches)
	}
}

func TestLiveJobsAreBoundedAndTheLimitIsNamed(t *testing.T) {
	g := NewRegistry(time.Second, 2)
	add(t, g, "a")
	b := add(t, g, "b")
	if _, err := g.Add(spec("c", 1), set(1)); reason(err) != errs.JobLimit {
		t.Fatalf("a third job: %v", err)
	}
	g.End(b, Done, "")
	if add(t, g, "c"); g.Live() != 2 {
		t.Errorf("%d live", g.Live())
	}
}

func TestNoEpochOfAnEndedJobRuns(t *testing.T) {
	g := NewRegistry(time.Second, 8)
	j := add(t, g, "a")
	j.Open(0)
	j.Open(1) // prepared ahead
	g.End(j, Dead, "killed")
	for _, l := range j.Ledgers {
		if l.State != Abandoned {
			t.Errorf("epoch %d is %s", l.Epoch, l.State)
		}
	}
}

func TestEndedJobsAreForgottenOldestFirstAndLiveOnesNever(t *testing.T) {
	g := NewRegistry(time.Second, 8)
	keep := add(t, g, "keep")
	for i := range keepEnded + 10 {
		g.End(add(t, g, fmt.Sprint("j", i)), Done, "")
	}
	add(t, g, "last")
	list := ids(g)
	if len(list) != keepEnded+2 || list[0] != keep.ID || !slices.IsSorted(list) {
		t.Errorf("%d jobs, the first is %d", len(list), list[0])
	}
	if g.Named("keep") != keep || g.Named("j0") != nil || g.Named(fmt.Sprint("j", keepEnded+9)) == nil {
		t.Error("names do not follow their jobs")
	}
}

func TestAForgottenJobDoesNotTakeTheNameOfItsSuccessor(t *testing.T) {
	g := NewRegistry(time.Second, 8)
	g.End(add(t, g, "a"), Done, "")
	a := add(t, g, "a")
	for range keepEnded + 1 {
		g.End(add(t, g, "b"), Done, "")
	}
	add(t, g, "b")
	if g.Named("a") != a {
		t.Error("the live a lost its name with the old one")
	}
}

func TestLeasesRunOutInTheirOrder(t *testing.T) {
	g := NewRegistry(10*time.Second, 8)
	a, b, c := add(t, g, "a"), add(t, g, "b"), add(t, g, "c")
	if !g.Deadline().IsZero() {
		t.Error("a deadline without a lease")
	}
	g.Suspect(b, t0)
	g.Suspect(a, t0.Add(time.Second))
	g.Suspect(c, t0.Add(2*time.Second))
	if a.State != Suspect || !g.Deadline().Equal(t0.Add(10*time.Second)) {
		t.Errorf("%s, deadline %s", a.State, g.Deadline())
	}
	g.Recover(c)
	if !c.Lease.IsZero() {
		t.Error("a lease after the recovery")
	}
	if got := g.Expired(t0.Add(10*time.Second - 1)); len(got) != 0 {
		t.Errorf("%d leases ran out early", len(got))
	}
	got := g.Expired(t0.Add(time.Minute))
	if len(got) != 2 || got[0] != b || got[1] != a {
		t.Fatalf("%d leases ran out", len(got))
	}
	g.End(b, Dead, "")
	g.End(a, Dead, "")
	if !g.Deadline().IsZero() || len(g.Expired(t0.Add(time.Hour))) != 0 {
		t.Error("a lease outlives its job")
	}
}

func TestALeaseThatStartsAnewDoesNotRunOutByTheOldDate(t *testing.T) {
	g := NewRegistry(10*time.Second, 8)
	a := add(t, g, "a")
	g.Suspect(a, t0)
	g.Suspect(a, t0.Add(5*time.Second))
	if got := g.Expired(t0.Add(12 * time.Second)); len(got) != 0 {
		t.Error("the old lease ran out")
	}
	if got := g.Expired(t0.Add(15 * time.Second)); len(got) != 1 {
		t.Errorf("%d leases ran out", len(got))
	}
}

// Leases against a model: whatever happens, those that are due are the suspects whose time has come.
func TestLeasesAgainstAModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		g := NewRegistry(time.Duration(rapid.IntRange(1, 5).Draw(rt, "lease"))*time.Second, 99)
		var list []*Job
		now, due := t0, map[*Job]time.Time{}
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 2000).Draw(rt, "ms")) * time.Millisecond)
			if len(list) == 0 || rapid.IntRange(0, 3).Draw(rt, "what") == 0 {
				list = append(list, add(t, g, fmt.Sprint(len(list))))
			}
			j := list[rapid.IntRange(0, len(list)-1).Draw(rt, "job")]
			switch {
			case j.State.Ended():
			case rapid.IntRange(0, 4).Draw(rt, "end") == 0:
				g.End(j, Dead, "")
				delete(due, j)
			case rapid.Bool().Draw(rt, "suspect"):
				g.Suspect(j, now)
				due[j] = now.Add(g.lease)
			default:
				g.Recover(j)
				delete(due, j)
			}
			want, first := 0, time.Time{}
			for _, at := range due {
				if !at.After(now) {
					want++
				}
				if first.IsZero() || at.Before(first) {
					first = at
				}
			}
			if got := g.Expired(now); len(got) != want || !g.Deadline().Equal(first) {
				rt.Fatalf("%d due, want %d; deadline %s, want %s", len(got), want, g.Deadline(), first)
			}
		}
	})
}
