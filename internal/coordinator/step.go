package coordinator

import (
	"time"

	"larder/internal/ident"
)

// step is what all components share of the running Step: the time, the effects, the work that may still be done, and
// the counters. It depends on no component.
type step struct {
	now   time.Time
	out   []Effect
	slice int // objects of the sampler's work that this Step may still do
	count int // objects of subsets that this Step may still count
	spent spent
	stats Stats

	persists map[uint64]func() // callbacks that wait for a record, by its number
	nextSeq  uint64            // the number of the newest record
	durable  uint64            // the newest record that is durable
}

// begin starts a Step at now. Its effects are appended to out.
func (st *step) begin(now time.Time, out []Effect) {
	st.now, st.out, st.slice, st.count, st.spent = now, out, samplerPerStep, countPerStep, spent{}
}

// end returns the effects of the Step.
func (st *step) end() []Effect {
	out := st.out
	st.out = nil
	return out
}

// spent counts the work of the running Step that grows with subsets or tiers, for tests that bound it: objects of
// subsets and entries of tiers that were visited.
type spent struct{ sampler, counted, refresh, shrunk int }

func (st *step) emit(e Effect) { st.out = append(st.out, e) }

// persist emits the effect that makes a record durable, and calls then once it is.
func (st *step) persist(r Record, then func()) {
	st.nextSeq++
	if then != nil {
		st.persists[st.nextSeq] = then
	}
	st.emit(Persist{Seq: st.nextSeq, Record: r})
}

func (st *step) persisted(e Persisted) {
	st.durable = max(st.durable, e.Seq)
	if then := st.persists[e.Seq]; then != nil {
		delete(st.persists, e.Seq)
		then()
	}
}

// answer is reply, once all that was persisted before is durable: what a client was answered holds after a crash too.
func (st *step) answer(t Token, r Reply) {
	if st.durable >= st.nextSeq {
		st.reply(t, r)
		return
	}
	before := st.persists[st.nextSeq]
	st.persists[st.nextSeq] = func() {
		if before != nil {
			before()
		}
		st.reply(t, r)
	}
}

func (st *step) reply(t Token, r Reply) {
	if t != 0 {
		r.Token = t
		st.emit(r)
	}
}

func (st *step) complain(j ident.JobID, err error) {
	st.stats.Violations++
	st.emit(Complain{Job: j, Text: err.Error()})
}
