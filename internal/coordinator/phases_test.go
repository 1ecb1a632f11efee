package coordinator

import "testing"

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
