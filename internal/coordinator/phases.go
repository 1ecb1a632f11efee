package coordinator

import "larder/internal/invariant"

// flightPhase is where a flight is.
//
//	waits ─▶ queued ─▶ running ──▶ copied ─▶ over
//	          ▲  │       │ ▲  └─────────────▶ over (its tier keeps the result, or it was given up)
//	          │  └▶ inPlace┘ (it failed: its row waits again)
//	          └──────────┘ (it is tried again)
//
// A flight may end from each phase, when all that waited for it have left.
type flightPhase uint8

const (
	flightWaits   flightPhase = iota // for the flight that makes its source; it is in no queue
	flightQueued                     // in its turn
	flightRunning                    // handed to the executor
	flightInPlace                    // the same, and the executor writes its row at once; who comes now waits for its end
	flightCopied                     // its working copy exists, outside the tiers
	flightOver                       // it is forgotten
	numFlightPhases
)

// flightPhases has a bit for each phase that may follow one.
var flightPhases = [numFlightPhases]uint8{
	flightWaits:   1<<flightQueued | 1<<flightOver,
	flightQueued:  1<<flightRunning | 1<<flightInPlace | 1<<flightOver,
	flightRunning: 1<<flightQueued | 1<<flightCopied | 1<<flightOver,
	flightInPlace: 1<<flightRunning | 1<<flightOver,
	flightCopied:  1 << flightOver,
}

// become goes to another phase. One that may not follow is a bug.
func (f *flight) become(p flightPhase) {
	if flightPhases[f.phase]&(1<<p) == 0 {
		invariant.Violated("coordinator: flight %d of %s goes from phase %d to %d", f.id, f.key, f.phase, p)
	}
	f.phase = p
}

// handedOut reports whether the executor works on it.
func (f *flight) handedOut() bool { return f.phase == flightRunning || f.phase == flightInPlace }

// deliveryPhase is where a batch is between its plan and its client.
//
//	filling ◀─▶ complete ─▶ sent
//	   │           │
//	   └▶ canceled ◀┘ ─▶ released
//
// A complete batch is filling again when it is given a sample of another rank's batch of its step.
type deliveryPhase uint8

const (
	deliveryFilling  deliveryPhase = iota // rows are missing, or records are not durable
	deliveryComplete                      // it waits for its turn
	deliverySent
	deliveryCanceled // taken back; its slot is not free while something writes into it
	deliveryReleased // forgotten; its slot may be another batch's
	numDeliveryPhases
)

// deliveryPhases has a bit for each phase that may follow one.
var deliveryPhases = [numDeliveryPhases]uint8{
	deliveryFilling:  1<<deliveryComplete | 1<<deliveryCanceled,
	deliveryComplete: 1<<deliveryFilling | 1<<deliverySent | 1<<deliveryCanceled,
	deliveryCanceled: 1 << deliveryReleased,
}

// become goes to another phase. One that may not follow is a bug.
func (d *delivery) become(p deliveryPhase) {
	if deliveryPhases[d.phase]&(1<<p) == 0 {
		invariant.Violated("coordinator: batch %d goes from phase %d to %d", d.id, d.phase, p)
	}
	d.phase = p
}

// origin says where a batch comes from that a rank gets again.
type origin uint8

const (
	fromPlan    origin = iota // it was planned for a client that is gone, and never sent
	fromClient                // it was sent, and the account has it; its client may not have got it
	fromJournal               // an earlier daemon handed it out, and its client has not said whether it has it
)

// recovery is what a restored rank may still do with what an earlier daemon handed out. It ends for all ranks when an
// epoch begins.
//
//	none ─restore─▶ offered ─a client says where it is─▶ continued ─an epoch begins─▶ none
type recovery uint8

const (
	recoveryNone recovery = iota
	recoveryOffered
	recoveryContinued
)
