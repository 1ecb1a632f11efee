package coordinator

import (
	"larder/internal/invariant"
	"larder/jobs"
)

// flightPhase is where a flight is.
//
//	waits ─▶ queued ─▶ running ──▶ copied ─▶ over
//	          ▲  │       │ ▲  └─────────────▶ over (its tier keeps the result, or it was given up)
//	          │  └▶ inPlace┘ (it failed: its row waits again)
//	          └──────────┘ (it is tried again)
//
// From queued and from running it may be away, until the place that it is read from answers; then it is queued again.
// A flight may end from each phase, when all that waited for it have left.
type flightPhase uint8

const (
	flightWaits   flightPhase = iota // for the flight that makes its source; it is in no queue
	flightQueued                     // in its turn
	flightAway                       // for the place that it is read from, which failed; see outage
	flightRunning                    // handed to the executor
	flightInPlace                    // the same, and its row is written too; a row that comes now waits for the end
	flightCopied                     // its working copy exists, outside the tiers
	flightOver                       // it is forgotten
	numFlightPhases
)

// flightPhases has a bit for each phase that may follow one.
var flightPhases = [numFlightPhases]uint8{
	flightWaits:   1<<flightQueued | 1<<flightOver,
	flightQueued:  1<<flightAway | 1<<flightRunning | 1<<flightInPlace | 1<<flightOver,
	flightAway:    1<<flightQueued | 1<<flightOver,
	flightRunning: 1<<flightQueued | 1<<flightAway | 1<<flightCopied | 1<<flightOver,
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

// solvePhase is where the decision how memory is split is.
//
//	none ─resolve─▶ out ─solved─▶ none
//	 ▲               └outdate▶ outdated
//	 └─────────solved─────────────┘ (and it is asked again)
type solvePhase uint8

const (
	solveNone     solvePhase = iota // no Solve is out
	solveOut                        // a Solve is out
	solveOutdated                   // the same, and what it was asked has changed
	numSolvePhases
)

// solvePhases has a bit for each phase that may follow one.
var solvePhases = [numSolvePhases]uint8{
	solveNone:     1 << solveOut,
	solveOut:      1<<solveOutdated | 1<<solveNone,
	solveOutdated: 1 << solveNone,
}

// become goes to another phase. One that may not follow is a bug.
func (m *model) become(p solvePhase) {
	if solvePhases[m.phase]&(1<<p) == 0 {
		invariant.Violated("coordinator: the model goes from phase %d to %d", m.phase, p)
	}
	m.phase = p
}

// outdate notes that what a Solve was asked has changed, if one is out.
func (m *model) outdate() {
	if m.phase == solveOut {
		m.become(solveOutdated)
	}
}

// change is the weightiest of what changed since memory was split last. After any change the next decision may move
// memory without delay.
type change uint8

const (
	changeNone  change = iota
	changeJobs         // the jobs
	changeSizes        // the sizes in the configuration: this is decided also when no job draws
)

// sampling is how a job stands with the sampler.
//
//	outside ─join─▶ drawing ◀──▶ waiting
//	   ▲               └──leave──┬──┘
//	   ├─────────────────────────┘
//	   └◀──▶ given
type sampling uint8

const (
	samplingOutside sampling = iota // the sampler does not know it
	samplingDraws                   // samples can be drawn
	samplingWaits                   // it has room for samples, and the sampler is not ready for it
	samplingGiven                   // its client says which samples come, so the sampler does not know it
	numSampling
)

// samplingPhases has a bit for each phase that may follow one.
var samplingPhases = [numSampling]uint8{
	samplingOutside: 1<<samplingDraws | 1<<samplingGiven,
	samplingDraws:   1<<samplingDraws | 1<<samplingWaits | 1<<samplingOutside,
	samplingWaits:   1<<samplingDraws | 1<<samplingWaits | 1<<samplingOutside,
	samplingGiven:   1 << samplingOutside,
}

// become goes to another phase. One that may not follow is a bug.
func (s *stream) become(p sampling) {
	if samplingPhases[s.sampling]&(1<<p) == 0 {
		invariant.Violated("coordinator: job %d goes from phase %d of sampling to %d", s.job.ID, s.sampling, p)
	}
	s.sampling = p
}

// joined reports whether the job is registered with the sampler.
func (s *stream) joined() bool { return s.sampling == samplingDraws || s.sampling == samplingWaits }

// draws reports whether the job has begun to draw samples, from the sampler or as its client says.
func (s *stream) draws() bool { return s.sampling != samplingOutside }

// waits reports whether the job has room for samples, and the sampler is not ready for it.
func (s *stream) waits() bool { return s.sampling == samplingWaits }

// origin says where a batch comes from that a rank gets again.
type origin uint8

const (
	fromPlan    origin = iota // it was planned for a client that is gone, and never sent
	fromClient                // it was sent, and the account has it; its client may not have got it
	fromJournal               // an earlier daemon handed it out, and its client has not said whether it has it
)

// keptPhase is where a client was in its epoch when its connection ended.
type keptPhase uint8

const (
	keptNone     keptPhase = iota // it had asked for no epoch
	keptWaiting                   // the job had not begun the epoch for it
	keptRunning                   // it was in the midst of it
	keptEnded                     // its end was sent
	keptRepeated                  // its end was sent, and the client waited for the same epoch once more
)

// keptPhaseOf is the phase of a rank whose client is lost.
func keptPhaseOf(was *jobs.Rank) keptPhase {
	waiting, ended := was.Phase == jobs.Waiting, was.Ended == was.Asked
	switch {
	case was.Asked < 0:
		return keptNone
	case waiting && ended:
		return keptRepeated
	case waiting:
		return keptWaiting
	case ended:
		return keptEnded
	default:
		return keptRunning
	}
}

// waited reports whether the client waited for an epoch that the job had not begun for it.
func (p keptPhase) waited() bool { return p == keptWaiting || p == keptRepeated }

// ended reports whether the client was sent the end of the epoch that it asked for last.
func (p keptPhase) ended() bool { return p == keptEnded || p == keptRepeated }

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
