package coordinator

import (
	"fmt"
	"testing"
	"time"

	"larder/internal/bits"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/jobs"
)

// A job whose registrant is gone before any client attached has a lease; one of which that is not said waits.
func TestAJobWithoutItsRegistrantHasALease(t *testing.T) {
	g := decodedTier(t, 10)
	waits, left, back := g.register("waits", 0, 12, 2), g.register("left", 0, 12, 2), g.register("back", 0, 12, 2)
	came := g.register("came", 0, 12, 2)
	g.attach(came, 0)
	for _, id := range []ident.JobID{left, back, came} {
		g.step(Registrant{Job: id})
		g.step(Registrant{Job: id}) // the second of two
	}
	g.check()
	if a, b := g.job(left).State, g.job(came).State; a != jobs.Suspect || b != jobs.Live {
		t.Fatalf("%s without its registrant, %s with a client", a, b)
	}
	g.after(g.c.cfg.Lease - time.Second)
	g.step(Registrant{Job: back, Lives: true})
	g.check()
	g.after(2 * time.Second)
	g.check()
	if a, b, c := g.job(left), g.job(back).State, g.job(waits).State; a.State != jobs.Dead || b != jobs.Joining ||
		c != jobs.Joining {
		t.Errorf("after the lease: %s (%s), %s registered again, %s that only waits", a.State, a.Reason, b, c)
	}
	g.step(Registrant{Job: left, Lives: true}) // too late
	g.step(Registrant{Job: back})
	p := g.attach(back, 0) // within its lease
	g.after(2 * g.c.cfg.Lease)
	if s := g.job(back).State; s != jobs.Live {
		t.Errorf("%s with a client", s)
	}
	p.epoch(0)
	g.run()
	if n := len(p.drain()); n != 12 {
		t.Errorf("%d samples", n)
	}
}

// After a restart of the daemon too.
func TestARestoredJobWithoutItsRegistrantHasALease(t *testing.T) {
	g := decodedTier(t, 10)
	for i, left := range []bool{true, false} {
		reg := registration(0, fmt.Sprint("job", i), 0, 40, 4)
		g.ok(g.ask(func(t Token) Event {
			return Restore{Register: withToken(reg, t), ID: ident.JobID(7 + i), Left: left}
		}))
	}
	g.check()
	g.after(g.c.cfg.Lease + time.Second)
	if a, b := g.job(7).State, g.job(8).State; a != jobs.Dead || b != jobs.Joining {
		t.Errorf("%s without its registrant, %s with it", a, b)
	}
}

// Where all places are taken, one that stays empty is free: that whose lease ends first.
func TestAJobWithoutItsRegistrantGivesWay(t *testing.T) {
	for _, most := range []int{5, bits.MaxJobs, 100} {
		g := decodedTier(t, 10, func(c *Config) { c.MaxJobs = most })
		most = min(most, bits.MaxJobs)
		var ids []ident.JobID
		for i := range most {
			ids = append(ids, g.register(fmt.Sprint("job", i), 0, 12, 2))
		}
		full := registration(0, "more", 0, 12, 2)
		ask := func(t Token) Event { return withToken(full, t) }
		refused(t, g.ask(ask), errs.JobLimit)
		for _, i := range []int{3, 1} {
			g.step(Registrant{Job: ids[i]})
			g.after(time.Second)
		}
		g.ok(g.ask(ask))
		g.check()
		if a, b := g.job(ids[3]).State, g.job(ids[1]).State; a != jobs.Dead || b != jobs.Suspect {
			t.Errorf("%d places: %s, %s", most, a, b)
		}
	}
}
