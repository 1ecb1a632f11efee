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
	places := rng.IntN(3) + 1
	r := decodedTier(t, rng.IntN(40), func(c *Config) {
		c.Place = func(x ident.ObjectID) ident.Place { return ident.Place{Device: uint64(int(x) % places)} }
	})
	down := make([]bool, places)
	r.away = func(x ident.ObjectID) bool { return down[int(x)%places] }
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
		down[rng.IntN(places)] = rng.IntN(4) > 0
		if turn >= 1000 {
			clear(down)
		}
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

// One of several places that fails holds up those jobs alone that need samples from there, and is counted.
func TestOutageOfOnePlace(t *testing.T) {
	r := decodedTier(t, 0, func(c *Config) {
		c.Place = func(x ident.ObjectID) ident.Place { return ident.Place{Root: 1, Device: uint64(x / 100)} }
	})
	p := r.join("a", 0, 200, 5, order(dsa.Stratified), ofDataset(1))
	q := r.join("b", 0, 100, 5, order(dsa.Strict), ofDataset(1))
	down := true
	r.away = func(x ident.ObjectID) bool { return down && x >= 100 }
	if got := q.drain(); len(got) != 100 {
		t.Errorf("a job that needs nothing from the place gave %d samples", len(got))
	}
	before := p.drain()
	r.wait(3 * time.Minute)
	before = append(before, p.drain()...)
	if len(before) == 200 || len(r.ends) != 1 {
		t.Errorf("%d samples came", len(before))
	}
	v := r.c.Datasets()[0].Storage
	if v.Outages != 1 || v.Lasted(r.now) < 3*time.Minute || v.Why != "the network is down" ||
		len(r.c.flights.outages) != 1 {
		t.Errorf("in the outage: %+v, %d outages", v, len(r.c.flights.outages))
	}
	f := r.job(p.job).Facts[0]
	if w := jobs.WaitOf(f, jobs.Machine{Outage: time.Minute}); w.Outage == nil || !w.Outage.Over() {
		t.Errorf("it waits for %+v", w)
	}
	if w := jobs.WaitOf(f, jobs.Machine{Outage: time.Hour}); w.Outage == nil || w.Outage.Over() {
		t.Errorf("it waits for %+v", w)
	}
	down = false
	r.wait(time.Minute)
	all := slices.Concat(before, p.drain())
	slices.Sort(all)
	if len(slices.Compact(all)) != 200 || len(all) != 200 || r.c.Stats().Quarantined != 0 {
		t.Errorf("%d samples came, %d are bad", len(all), r.c.Stats().Quarantined)
	}
	if v = r.c.Datasets()[0].Storage; v.Outages != 1 || !v.Since.IsZero() || v.Lasted(r.now) < 3*time.Minute ||
		v.Lasted(r.now) != v.Lasted(r.now.Add(time.Hour)) {
		t.Errorf("after the outage: %+v", v)
	}
	r.check()
}

// clientWorkers has the workers of clients make the samples of a job, which lie with those of other jobs.
func clientWorkers(e *Register) {
	made(Making{Workers: true}, 100)(e)
	e.Dataset = 1
}

// probeOf is the flight that tries the only outage.
func probeOf(t *testing.T, r *rig) *flight {
	t.Helper()
	if o := r.c.flights.outages; len(o) != 1 || o[0].probe == nil {
		t.Fatalf("outages %+v", o)
	}
	return r.c.flights.outages[0].probe
}

// An outage that a job with workers shares with others is tried by a flight that needs no worker.
func TestAnOutageIsTriedWithoutWorkersOfClients(t *testing.T) {
	r := decodedTier(t, 0)
	down := true
	r.away = func(ident.ObjectID) bool { return down }
	py := r.join("python", 0, 40, 4, order(dsa.Stratified), clientWorkers)
	q := r.join("builtin", 50, 90, 4, order(dsa.Stratified), ofDataset(1))
	r.run()
	r.wait(100 * time.Millisecond)
	if len(r.c.flights.outages) != 1 {
		t.Fatal("no outage")
	}
	down = false
	r.hold = func(e Effect) bool { p, ok := e.(Prepare); return ok && p.Job == py.job }
	r.wait(time.Minute)
	r.over(py, q)
}

// over is what holds when an outage has ended: the job of built-in steps has had its 40 samples, and the one of outside
// workers has them once those do their part.
func (r *rig) over(py, q *peer) {
	r.t.Helper()
	if got := q.drain(); len(got) != 40 || len(r.c.flights.outages) != 0 {
		r.t.Errorf("%d samples came, %d outages are left", len(got), len(r.c.flights.outages))
	}
	r.hold = nil
	r.run()
	if got := py.drain(); len(got) != 40 {
		r.t.Errorf("%d samples of the workers came", len(got))
	}
	r.check()
}

// An outage that workers of clients alone can try ends when an item is read, whether or not they do their part.
func TestAnOutageEndsBeforeWorkersOfClientsDoTheirPart(t *testing.T) {
	r := decodedTier(t, 0)
	down := true
	r.away = func(ident.ObjectID) bool { return down }
	py := r.join("python", 0, 40, 4, order(dsa.Stratified), clientWorkers)
	r.run()
	down = false
	r.hold = func(e Effect) bool { p, ok := e.(Prepare); return ok && p.Job == py.job }
	r.wait(10 * time.Second)
	f := probeOf(t, r)
	i := slices.IndexFunc(r.todo, func(e Effect) bool { p, ok := e.(Prepare); return ok && p.Flight == f.id })
	if i < 0 || !r.todo[i].(Prepare).Probe {
		t.Fatalf("flight %d is not asked for as a probe: %+v", f.id, r.todo)
	}
	q := r.join("builtin", 50, 90, 4, order(dsa.Stratified), ofDataset(1))
	r.wait(time.Minute)
	if got := q.drain(); len(got) != 0 {
		t.Errorf("%d samples came from a place that was not tried", len(got))
	}
	r.step(ItemRead{Flight: f.id + 1000})
	r.step(ItemRead{Flight: f.id})
	r.step(ItemRead{Flight: f.id})
	r.check()
	r.run()
	r.over(py, q)
}

// A probe that workers of clients were to make and that is lost waits for the outage again, and tries it again.
func TestALostProbeOfWorkersOfClientsWaitsAgain(t *testing.T) {
	r := decodedTier(t, 0)
	down := true
	r.away = func(ident.ObjectID) bool { return down }
	p := r.join("python", 0, 1, 1, order(dsa.Stratified), clientWorkers)
	r.run()
	down = false
	r.hold = func(e Effect) bool { _, ok := e.(Prepare); return ok }
	r.wait(2 * time.Second)
	f := probeOf(t, r)
	r.todo, r.hold = nil, nil
	r.step(Prepared{Flight: f.id, Lost: true})
	r.check()
	if f.phase != flightAway || r.c.Deadline().IsZero() {
		t.Errorf("the flight is in phase %v, a tick is due at %v", f.phase, r.c.Deadline())
	}
	r.wait(time.Minute)
	if got := p.drain(); len(got) != 1 || len(r.c.flights.outages) != 0 {
		t.Errorf("%d samples came, %d outages are left", len(got), len(r.c.flights.outages))
	}
	r.check()
}

// A probe of a job that has ended, which its workers did not make, ends an outage for which nobody waits any more.
func TestALostProbeThatNobodyWaitsForEndsTheOutage(t *testing.T) {
	r := decodedTier(t, 0)
	down := true
	r.away = func(ident.ObjectID) bool { return down }
	p := r.join("python", 0, 1, 1, order(dsa.Stratified), clientWorkers)
	r.run()
	r.hold = func(e Effect) bool { _, ok := e.(Prepare); return ok }
	r.wait(2 * time.Second)
	f := probeOf(t, r)
	r.ok(r.ask(func(t Token) Event { return Kill{Token: t, Job: p.job} }))
	r.todo, r.hold = nil, nil
	r.step(Prepared{Flight: f.id, Lost: true})
	v := r.c.Datasets()[0].Storage
	if len(r.c.flights.outages) != 0 || !v.Since.IsZero() || !r.c.Deadline().IsZero() {
		t.Errorf("%d outages are left, of storage that fails since %v; a tick is due at %v", len(r.c.flights.outages),
			v.Since, r.c.Deadline())
	}
	r.check()
}
