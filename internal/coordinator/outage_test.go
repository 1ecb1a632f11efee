package coordinator

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"larder/dsa"
	"larder/internal/ident"
	"larder/internal/xrand"
	"larder/jobs"
)

func ofDataset(id ident.DatasetID) func(*Register) { return func(e *Register) { e.Dataset = id } }

// wait lets time pass, with the ticks that are asked for.
func (r *rig) wait(d time.Duration) {
	r.t.Helper()
	for end := r.now.Add(d); ; {
		at := r.c.Deadline()
		if at.IsZero() || at.After(end) {
			r.now = end
			return
		}
		r.now = at
		r.step(Tick{})
		r.run()
	}
}

// A place that fails costs no sample: what is to be read from it waits, is tried seldom, and comes when it is back.
// What is in memory, and other datasets, are served meanwhile.
func TestOutage(t *testing.T) {
	r := decodedTier(t, 40)
	p := r.join("a", 0, 60, 4, order(dsa.Stratified), ofDataset(1))
	q := r.join("b", 100, 130, 5, order(dsa.Strict), ofDataset(2))
	p.release(p.must())
	r.run()
	down := true
	r.away = func(x ident.ObjectID) bool { return down && x < 100 }
	before := p.drain()
	tried := len(r.prepares)
	if got := q.drain(); len(got) != 30 {
		t.Errorf("the other dataset gave %d samples", len(got))
	}
	r.wait(10 * time.Minute)
	if n := len(r.prepares) - tried - 30; n < 10 || n > 40 {
		t.Errorf("%d tries in 10 minutes", n)
	}
	if again := p.drain(); len(again) > 0 || len(r.ends) != 1 {
		t.Errorf("%v came meanwhile", again)
	}
	f := r.job(p.job).Facts[0]
	if w := jobs.WaitOf(f, jobs.Machine{}); w.Cause != jobs.Storage ||
		!strings.Contains(w.Text, "the network is down") || !strings.Contains(w.Text, "has failed for") {
		t.Errorf("it waits for %+v", w)
	}
	r.check()
	down = false
	r.wait(time.Minute)
	after := p.drain()
	all := slices.Concat(before, after)
	slices.Sort(all)
	if len(slices.Compact(all)) != 56 || len(before)+len(after) != 56 {
		t.Errorf("%d and %d samples came of 56", len(before), len(after))
	}
	l := r.ends[len(r.ends)-1].Account
	if l == nil || l.Delivered != 60 || l.Quarantined != 0 || r.c.Stats().Quarantined != 0 {
		t.Errorf("the account is %+v, quarantined are %d", l, r.c.Stats().Quarantined)
	}
	if len(r.c.flights.outages) != 0 {
		t.Errorf("outages are left: %+v", r.c.flights.outages)
	}
	r.check()
}

// An outage ends with the last job that waits for it, and asks for no tick then.
func TestAnOutageThatNobodyWaitsFor(t *testing.T) {
	r := decodedTier(t, 0)
	r.away = func(ident.ObjectID) bool { return true }
	p := r.join("a", 0, 60, 4)
	q := r.join("b", 0, 60, 4)
	r.wait(20 * time.Second)
	for _, x := range []*peer{p, q} {
		r.ok(r.ask(func(t Token) Event { return Kill{Token: t, Job: x.job} }))
		r.check()
	}
	if at := r.c.Deadline(); !at.IsZero() || len(r.c.flights.outages) != 0 || len(r.c.flights.flightByID) != 0 {
		t.Errorf("a tick is due at %v, with %d outages and %d flights", at, len(r.c.flights.outages),
			len(r.c.flights.flightByID))
	}
}

// Places fail and answer at any moment, for jobs that share samples, with bad samples among them: each sample comes
// once, only bad ones are quarantined.
func TestOutages(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { outages(t, xrand.New(21, seed)) })
	}
}

func outages(t *testing.T, rng *xrand.Rand) {
	r := decodedTier(t, rng.IntN(40))
	down := false
	r.away = func(ident.ObjectID) bool { return down }
	r.bad[3], r.bad[17] = true, true
	mode := order([]dsa.Mode{dsa.Stratified, dsa.Strict, dsa.Fixed}[rng.IntN(3)])
	peers := []*peer{r.join("a", 0, 30, 4, mode), r.join("b", 10, 40, 3, mode), r.join("c", 0, 40, 5, mode)}
	got := make([][]ident.ObjectID, len(peers))
	want := []int{28, 29, 38}
	for turn := 0; ; turn++ {
		done := 0
		for i, p := range peers {
			if len(got[i]) == want[i] {
				done++
			} else if d := p.next(); d != nil {
				got[i] = append(got[i], r.objects(d)...)
				p.release(d)
				r.run()
			}
		}
		if done == len(peers) {
			break
		}
		if turn == 3000 {
			t.Fatalf("%d, %d and %d samples of %v came", len(got[0]), len(got[1]), len(got[2]), want)
		}
		down = rng.IntN(4) > 0 && turn < 1000
		r.wait(time.Duration(rng.IntN(4)) * time.Second)
		if turn%50 == 0 {
			r.check()
		}
	}
	for i := range got {
		slices.Sort(got[i])
		if n := len(slices.Compact(got[i])); n != want[i] {
			t.Errorf("job %d got %d distinct samples of %d", i, n, want[i])
		}
	}
	if n := r.c.Stats().Quarantined; n != 2 {
		t.Errorf("%d samples are quarantined, 2 are bad", n)
	}
	r.check()
}
