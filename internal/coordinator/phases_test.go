package coordinator

import (
	"testing"

	"larder/jobs"
)

// panics reports whether f does.
func panics(f func()) (did bool) {
	defer func() { did = recover() != nil }()
	f()
	return false
}

// Each phase can be reached, and what is over stays over.
func TestPhases(t *testing.T) {
	var flights, batches uint8 = 1 << flightWaits, 1 << deliveryFilling
	for p := range numFlightPhases {
		flights |= flightPhases[p]
		if !panics(func() { (&flight{phase: flightOver}).become(p) }) {
			t.Errorf("a flight that is over goes to phase %d", p)
		}
	}
	for p := range numDeliveryPhases {
		batches |= deliveryPhases[p]
		for _, end := range []deliveryPhase{deliverySent, deliveryReleased} {
			if !panics(func() { (&delivery{phase: end}).become(p) }) {
				t.Errorf("a batch in phase %d goes to phase %d", end, p)
			}
		}
	}
	if flights != 1<<numFlightPhases-1 || batches != 1<<numDeliveryPhases-1 {
		t.Errorf("phases that nothing leads to: %b, %b", flights, batches)
	}
	f := &flight{}
	f.become(flightQueued)
	f.become(flightInPlace)
	if !f.handedOut() || !panics(func() { f.become(flightCopied) }) {
		t.Errorf("in place, a flight is in phase %d", f.phase)
	}
}

// A job leaves the sampler only after it joined it, and the model is asked once at a time.
func TestPhasesOfSamplingAndSolving(t *testing.T) {
	s := &stream{job: &jobs.Job{}}
	if s.joined() || !panics(func() { s.become(samplingWaits) }) {
		t.Errorf("outside the sampler, a job is in phase %d", s.sampling)
	}
	s.become(samplingDraws)
	if s.become(samplingWaits); !s.joined() || !s.waits() {
		t.Errorf("a job that waits for the sampler is in phase %d", s.sampling)
	}
	m := &model{}
	if m.outdate(); m.phase != solveNone {
		t.Errorf("without a Solve, the model is in phase %d", m.phase)
	}
	m.become(solveOut)
	if !panics(func() { m.become(solveOut) }) {
		t.Error("two are out at once")
	}
	if m.outdate(); m.phase != solveOutdated {
		t.Errorf("an outdated Solve is in phase %d", m.phase)
	}
}

// Where a client was is known from what it asked for, what began and what ended.
func TestKeptPhases(t *testing.T) {
	for want, k := range map[keptPhase]jobs.Rank{
		keptNone:     {Asked: -1, Ended: -1, Phase: jobs.Idle},
		keptWaiting:  {Asked: 1, Ended: 0, Phase: jobs.Waiting},
		keptRunning:  {Asked: 1, Ended: 0, Phase: jobs.InEpoch},
		keptEnded:    {Asked: 1, Ended: 1, Phase: jobs.InEpoch},
		keptRepeated: {Asked: 1, Ended: 1, Phase: jobs.Waiting},
	} {
		if got := keptPhaseOf(&k); got != want {
			t.Errorf("%+v: phase %d, want %d", k, got, want)
		}
	}
}
