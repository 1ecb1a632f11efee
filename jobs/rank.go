package jobs

import (
	"slices"
	"time"

	"larder/internal/ident"
	"larder/internal/invariant"
)

// SlotState is FREE → FILLING → READY → LEASED → FREE.
type SlotState uint8

// The states of a ring slot.
const (
	Free SlotState = iota
	Filling
	Ready
	Leased
)

// Slot is one batch's place in a ring. Gen rises each time the slot is taken, so an old release cannot free it.
type Slot struct {
	State SlotState
	Gen   uint64
}

// Phase is where a rank is between its clients and the epochs of its job.
//
//	Unclaimed ─Attach─▶ Idle ─Await─▶ Waiting ─Enter─▶ InEpoch
//	                     ▲ │                              │
//	                     │ └──────────── Enter ──────────▶│
//	                     ├◀─ StepOut (drained, or its epoch restarts)
//	                     │
//	            Vanished, Left ◀─Vanish, Leave─ Idle, Waiting, InEpoch
//
// A rank in an epoch may also Await another epoch, or Enter the next one; a Waiting one may Await another.
type Phase uint8

// The phases of a rank. A client holds it when it is Idle, Waiting or InEpoch.
const (
	Unclaimed Phase = iota // no client has come yet
	Idle                   // its client takes part in no epoch
	Waiting                // its client asked for epoch Next, which the job has not begun
	InEpoch                // it takes part in epoch Epoch
	Vanished               // its client is gone without a goodbye
	Left                   // its client left in order
	numPhases
)

// String returns the phase in lower case.
func (p Phase) String() string {
	return [numPhases]string{"unclaimed", "idle", "waiting", "in an epoch", "vanished", "left"}[p]
}

// phases says which phases may follow one; Attach leads to Idle from each.
var phases = [numPhases][]Phase{
	Idle:    {Waiting, InEpoch, Vanished, Left},
	Waiting: {Waiting, InEpoch, Vanished, Left},
	InEpoch: {Idle, Waiting, InEpoch, Vanished, Left},
}

// become goes to another phase. One that may not follow is a bug.
func (r *Rank) become(p Phase) {
	if !slices.Contains(phases[r.Phase], p) {
		invariant.Violated("jobs: a rank that is %s becomes %s", r.Phase, p)
	}
	r.Phase = p
}

// Attached reports whether a client holds the rank.
func (r *Rank) Attached() bool { return r.Phase == Idle || r.Phase == Waiting || r.Phase == InEpoch }

// Await notes that the client asked for an epoch which the job has not begun.
func (r *Rank) Await(epoch uint32) {
	r.become(Waiting)
	r.Asked, r.Next = int64(epoch), epoch
}

// Enter makes the rank take part in an epoch from its first batch.
func (r *Rank) Enter(epoch uint32) {
	r.become(InEpoch)
	r.Epoch, r.Step, r.Sent = epoch, 0, 0
}

// StepOut takes the rank out of its epoch, which its client has left or which is restarted.
func (r *Rank) StepOut() { r.become(Idle) }

// Vanish notes that the client is gone without a goodbye.
func (r *Rank) Vanish() { r.become(Vanished) }

// Leave notes that the client left in order.
func (r *Rank) Leave() { r.become(Left) }

// Rank is one rank of a job. A new client of the same rank gets a new incarnation and a new ring.
type Rank struct {
	Incarnation ident.Incarnation // rises also across jobs of one name; 0 = never attached
	Attaches    int               // times a client attached to this job's rank
	Phase       Phase
	Slots       []Slot

	Epoch  uint32 // the epoch this rank is planned in
	Step   int    // batches of Epoch planned so far
	Sent   int    // batches of Epoch sent to this incarnation
	Got    int    // samples sent of the epoch it asked for
	Asked  int64  // the epoch the client asked for last; -1 = none yet
	Ended  int64  // the last epoch whose end was sent; -1 = none
	Next   uint32 // the epoch it asked for, when Waiting
	Waited time.Duration
	Stream Stream // of order given

	LastTake time.Time     // when it last released a batch
	Heard    time.Time     // since when it has done nothing: it attached, asked for an epoch, released a batch, or got one
	StepTime time.Duration // smoothed time it works on a batch; 0 = unknown
}

// FreeSlot takes a free slot for filling.
func (r *Rank) FreeSlot() (slot int, gen uint64, ok bool) {
	for i := range r.Slots {
		if s := &r.Slots[i]; s.State == Free {
			s.State = Filling
			s.Gen++
			return i, s.Gen, true
		}
	}
	return 0, 0, false
}

// Release gives a leased slot back; false when the generation is not the leased one.
func (r *Rank) Release(slot int, gen uint64) bool {
	if slot < 0 || slot >= len(r.Slots) || r.Slots[slot].Gen != gen || r.Slots[slot].State != Leased {
		return false
	}
	r.Slots[slot].State = Free
	return true
}

// Holds reports whether the client holds a batch.
func (r *Rank) Holds() bool {
	for i := range r.Slots {
		if r.Slots[i].State == Leased {
			return true
		}
	}
	return false
}

// Waiting is for how long the rank's client waits, as far as can be seen without asking it: it has a batch that it
// works on, or none, and works on one for as long as it did before.
func (r *Rank) Waiting(now time.Time) time.Duration {
	held := 0
	for i := range r.Slots {
		if r.Slots[i].State == Leased {
			held++
		}
	}
	if held > 1 || !r.Attached() || r.Heard.IsZero() || held == 1 && r.StepTime == 0 {
		return 0
	}
	since := now.Sub(r.Heard)
	if held == 1 {
		since -= r.StepTime
	}
	return max(since, 0)
}

// Took notes that the client finished with a batch at now, for which it had waited.
func (r *Rank) Took(now time.Time, waited time.Duration) {
	if !r.LastTake.IsZero() {
		d := max(now.Sub(r.LastTake)-waited, 0)
		if r.StepTime == 0 {
			r.StepTime = d
		} else {
			r.StepTime += (d - r.StepTime) / 4 // a short memory: jobs change pace between training and validation
		}
	}
	r.LastTake = now
}
