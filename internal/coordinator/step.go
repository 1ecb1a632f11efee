package coordinator

import (
	"time"

	"larder/internal/ident"
)

// step is what all components share of the running Step: the time, the effects, the work that may still be done, and
// the counters. It knows no component.
type step struct {
	now   time.Time
	out   []Effect
	slice int // objects of the sampler's work that this Step may still do
	count int // objects of subsets that this Step may still count
	spent spent
	stats Stats

	persists map[uint64]func() // what waits for a record
	nextSeq  uint64
	durable  uint64 // the newest record that is
}

// begin is the beginning of a Step at now, whose effects follow those in out.
func (c *step) begin(now time.Time, out []Effect) {
	c.now, c.out, c.slice, c.count, c.spent = now, out, samplerPerStep, countPerStep, spent{}
}

// end returns the effects of the Step.
func (c *step) end() []Effect {
	out := c.out
	c.out = nil
	return out
}

// spent is the work of the running Step that grows with subsets or tiers, for tests that bound it: objects of subsets
// and entries of tiers looked at.
type spent struct{ sampler, counted, refresh, shrunk int }

func (c *step) emit(e Effect) { c.out = append(c.out, e) }

// persist has a record made durable, and does then once it is.
func (c *step) persist(r Record, then func()) {
	c.nextSeq++
	if then != nil {
		c.persists[c.nextSeq] = then
	}
	c.emit(Persist{Seq: c.nextSeq, Record: r})
}

func (c *step) persisted(e Persisted) {
	c.durable = max(c.durable, e.Seq)
	if then := c.persists[e.Seq]; then != nil {
		delete(c.persists, e.Seq)
		then()
	}
}

// answer is reply, once all that was persisted before is durable: what a client was answered holds after a crash too.
func (c *step) answer(t Token, r Reply) {
	if c.durable >= c.nextSeq {
		c.reply(t, r)
		return
	}
	before := c.persists[c.nextSeq]
	c.persists[c.nextSeq] = func() {
		if before != nil {
			before()
		}
		c.reply(t, r)
	}
}

func (c *step) reply(t Token, r Reply) {
	if t != 0 {
		r.Token = t
		c.emit(r)
	}
}

func (c *step) complain(j ident.JobID, err error) {
	c.stats.Violations++
	c.emit(Complain{Job: j, Text: err.Error()})
}
