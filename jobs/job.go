package jobs

import (
	"time"

	"larder/internal/bits"
	"larder/internal/ident"
)

// State is where a job is in its life: Joining → Live ⇄ Suspect → Dead, or Live → Done.
type State uint8

// The states of the wire contract.
const (
	Joining State = iota
	Live
	Suspect
	Dead
	Done
)

// Ended tells whether the job will never draw again.
func (s State) Ended() bool { return s == Dead || s == Done }

// String returns the state in lower case.
func (s State) String() string {
	return [...]string{"joining", "live", "suspect", "dead", "done"}[s]
}

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

// Rank is one rank of a job. A new client of the same rank gets a new incarnation and a new ring.
type Rank struct {
	Incarnation ident.Incarnation // rises also across jobs of one name; 0 = never attached
	Attaches    int               // times a client attached to this job's rank
	Attached    bool
	Left        bool // detached in order
	Slots       []Slot

	Epoch  uint32 // the epoch this rank is planned in
	InRun  bool   // takes part in the job's running epoch
	Step   int    // batches of Epoch planned so far
	Sent   int    // batches of Epoch sent to this incarnation
	Got    int    // samples sent of the epoch it asked for
	Asked  int64  // the epoch the client asked for last; -1 = none yet
	Wants  bool   // asked for an epoch that the job has not begun
	Ended  int64  // the last epoch whose end was told; -1 = none
	Next   uint32 // the epoch it wants, when Wants
	Waited time.Duration

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

// Holds tells whether the client holds a batch.
func (r *Rank) Holds() bool {
	for i := range r.Slots {
		if r.Slots[i].State == Leased {
			return true
		}
	}
	return false
}

// Waiting is for how long the rank's client waits, as far as can be seen without asking it: it has a batch that it works on, or none, and works on one
// for as long as it did before.
func (r *Rank) Waiting(now time.Time) time.Duration {
	held := 0
	for i := range r.Slots {
		if r.Slots[i].State == Leased {
			held++
		}
	}
	if held > 1 || !r.Attached || r.Heard.IsZero() || held == 1 && r.StepTime == 0 {
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

// Job is one training run's stream.
type Job struct {
	ID     ident.JobID
	Spec   Spec
	State  State
	Reason string // why it ended

	Member *bits.Set // the subset as object ids
	Ranks  []Rank
	Epoch  uint32 // the epoch the sampler is in, when Begun
	Begun  bool   // some epoch was begun
	Drain  bool   // ends after the running epoch
	Active bool   // counts as needing samples (guarantee G5)
	Paused bool   // plans nothing and needs nothing until it is resumed
	Mark   uint32 // which of the subsets it was given is in force; 0 = the one it was registered with
	Since  uint32 // the first epoch of that subset
	Next   *Next  // the subset of its next epoch; nil = the same
	Whole  *Next  // while the epoch is what an earlier job left of one: the subset in force. Spec and Member are of the rest

	Stats   Stats
	Rate    Rate      // of samples delivered
	Facts   []Facts   // of its ranks, in views
	Group   uint32    // share group, 0 = none
	Offset  uint32    // instance = epoch + Offset (guarantee G3)
	Promise string    // what its order promises, once it draws
	Ledgers []*Ledger // newest last; the last keepLedgers epochs
	Lease   time.Time // when a Suspect job becomes Dead
}

// Next is a subset that the next epoch will have.
type Next struct {
	Mark   uint32 // names it
	Subset int    // samples
	Member *bits.Set
}

const keepLedgers = 32

// NewJob returns a job that nobody has attached to.
func NewJob(id ident.JobID, spec Spec, member *bits.Set) *Job {
	return &Job{ID: id, Spec: spec, Member: member, Ranks: make([]Rank, spec.World)}
}

// Attach gives rank r a new incarnation and a ring of free slots.
func (j *Job) Attach(r int, now time.Time) ident.Incarnation {
	k := &j.Ranks[r]
	*k = Rank{
		Incarnation: k.Incarnation + 1, Attaches: k.Attaches + 1, Attached: true, Slots: make([]Slot, j.Spec.Slots), Asked: -1, Ended: -1,
		LastTake: now, Heard: now,
	}
	j.State = Live
	return k.Incarnation
}

// Change puts the job on another subset, from the epoch that is opened next.
func (j *Job) Change(n Next, since uint32) {
	j.Spec.Subset, j.Member, j.Mark, j.Since = n.Subset, n.Member, n.Mark, since
}

// Rest puts the job on what is left of an epoch, until another one is opened.
func (j *Job) Rest(member *bits.Set) {
	j.Whole = &Next{Mark: j.Mark, Subset: j.Spec.Subset, Member: j.Member}
	j.Spec.Subset, j.Member = member.Len(), member
}

// Restore puts it on its whole subset again.
func (j *Job) Restore() {
	if w := j.Whole; w != nil {
		j.Spec.Subset, j.Member, j.Whole = w.Subset, w.Member, nil
	}
}

// Upcoming is the spec of the next epoch that is opened.
func (j *Job) Upcoming() Spec {
	s := j.Spec
	switch {
	case j.Next != nil:
		s.Subset = j.Next.Subset
	case j.Whole != nil && j.Begun: // the rest is of the running epoch, not of the next
		s.Subset = j.Whole.Subset
	}
	return s
}

// Attached counts the ranks a client holds.
func (j *Job) Attached() int {
	n := 0
	for i := range j.Ranks {
		if j.Ranks[i].Attached {
			n++
		}
	}
	return n
}

// Open opens the ledger of an epoch.
func (j *Job) Open(epoch uint32) *Ledger {
	l := NewLedger(epoch, j.Member, j.Spec.Dropped())
	j.Ledgers = append(j.Ledgers, l)
	if len(j.Ledgers) > keepLedgers {
		j.Ledgers = append(j.Ledgers[:0], j.Ledgers[1:]...)
	}
	return l
}

// Forget drops the newest account, of an epoch that no client has seen.
func (j *Job) Forget() {
	if n := len(j.Ledgers); n > 0 {
		j.Ledgers[n-1].Abandon()
		j.Ledgers[n-1] = nil
		j.Ledgers = j.Ledgers[:n-1]
	}
}

// Ledger returns the newest account, nil before the first epoch.
func (j *Job) Ledger() *Ledger {
	if len(j.Ledgers) == 0 {
		return nil
	}
	return j.Ledgers[len(j.Ledgers)-1]
}

// Busy tells whether rank r's client is in the midst of an epoch: it asked for it, the epoch began, and its end was not told.
func (j *Job) Busy(r int) bool {
	k := &j.Ranks[r]
	return k.Attached && !k.Wants && k.Asked >= 0 && k.Asked != k.Ended
}

// Vanished is a rank whose client is gone without goodbye and has not come back; -1 = none.
func (j *Job) Vanished() int {
	for r := range j.Ranks {
		if k := &j.Ranks[r]; k.Attaches > 0 && !k.Attached && !k.Left {
			return r
		}
	}
	return -1
}

// Exhausted tells whether rank r has planned all its batches of the running epoch, or will not plan any more of it.
func (j *Job) Exhausted(r int) bool {
	k := &j.Ranks[r]
	return k.Wants || k.Left || (k.InRun && k.Step >= j.Spec.Batches(r))
}
