package coordinator

import (
	"strings"
	"testing"
	"time"

	"larder/dsa"
	"larder/internal/ident"
	"larder/jobs"
	"larder/tiers/residency"
)

// TestCheckFindsWhatIsBroken: each of these components notices when its own state is spoiled.
func TestCheckFindsWhatIsBroken(t *testing.T) {
	for name, spoil := range map[string]func(c *Core){
		"a record is durable that was never written": func(c *Core) { c.step.durable = c.step.nextSeq + 1 },
		"an effect is left over":                     func(c *Core) { c.step.emit(Discard{}) },
		"a callback waits for a durable record":      func(c *Core) { c.step.persists[c.step.durable] = func() {} },
		"a job is not listed":                        func(c *Core) { c.roster.order = c.roster.order[1:] },
		"a job is listed under another id":           func(c *Core) { c.roster.streams[9] = c.roster.order[0] },
		"a prefix lacks a job":                       func(c *Core) { c.roster.prefixes[0].jobs = 0 },
		"a group lacks a member": func(c *Core) {
			g := c.roster.groups[0]
			g.members = g.members[:1]
		},
		"the sampler does not know a job that began": func(c *Core) { c.roster.order[0].sampling = samplingOutside },
		"a lease runs for a live job": func(c *Core) {
			c.life.jobs.Suspect(job(c), time.Now())
			job(c).State = jobs.Live
		},
		"a suspect job has no lease":              func(c *Core) { job(c).State = jobs.Suspect },
		"a rank in an epoch of a job without one": func(c *Core) { job(c).Draw = jobs.DrawUnbegun },
		"a rank without client has a batch":       func(c *Core) { job(c).Ranks[0].Phase = jobs.Vanished },
		"something is kept for a client that is there": func(c *Core) {
			c.roster.order[0].ranks[0].kept = &kept{}
		},
	} {
		r := newRig(t, [ident.NumForms]int64{})
		for _, who := range []string{"a", "b"} {
			p := r.join(who, 0, 8, 4, func(e *Register) { e.Share, e.Sample.Mode = true, dsa.Fixed })
			r.run()
			p.next()
		}
		r.check()
		r.spoiled = true
		if spoil(r.c); r.c.Check() == nil {
			t.Errorf("unnoticed: %s", name)
		}
	}
}

// job is the first job.
func job(c *Core) *jobs.Job { return c.roster.order[0].job }

// TestCheckComparesPins: what the index counts with what flights and rows hold.
func TestCheckComparesPins(t *testing.T) {
	for name, spoil := range map[string]func(c *Core, h residency.Handle){
		"":                               func(*Core, residency.Handle) {},
		"has 1 pins, and flights and":    func(c *Core, h residency.Handle) { c.needs.index.Pin(h) },
		"is held 1 times, and is not pi": func(c *Core, h residency.Handle) { anyDelivery(c).rows[0].pin = pin{h, true} },
	} {
		r := newRig(t, [ident.NumForms]int64{ident.Decoded: 1 << 30})
		p := r.join("a", 0, 8, 4)
		r.run()
		p.next()
		r.run()
		r.check()
		kept := r.c.needs.entries(ident.Decoded)
		if len(kept) == 0 || r.c.Pinned(ident.Decoded) != 0 {
			t.Fatalf("%d entries are kept", len(kept))
		}
		h, _ := r.c.needs.index.Lookup(kept[0])
		spoil(r.c, h)
		r.spoiled = name != ""
		err := r.c.Check()
		if name == "" && err != nil || name != "" && (err == nil || !strings.Contains(err.Error(), name)) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// anyDelivery is one that is planned or sent.
func anyDelivery(c *Core) *delivery {
	for _, d := range c.planner.deliveries { // order-free: any of them
		return d
	}
	return nil
}
