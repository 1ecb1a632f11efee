package coordinator

import (
	"testing"
	"time"

	"larder/internal/ident"
	"larder/jobs"
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
			p := r.join(who, 0, 8, 4, func(e *Register) { e.Share = true })
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
