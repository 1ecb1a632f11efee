package jobs

import (
	"iter"
	"slices"
	"time"

	"larder/internal/bits"
	"larder/internal/ident"
	"larder/internal/invariant"
)

// State is where a job is in its life.
//
//	Joining ─Attach─▶ Live ◀──Attach── Suspect
//	   │               │ └─client gone─▶ │ ▲ (its lease restarts)
//	   │               │                 │─┘
//	   └──────────────▶└─▶ Dead, Done ◀──┘
//
// A restored job goes from Joining to Suspect: its clients have a lease to come back. So does one that no client ever
// attached to when the process that registered it is gone; it is Joining again when another process registers it.
type State uint8

// The states of the wire contract.
const (
	Joining State = iota
	Live
	Suspect
	Dead
	Done
)

// states says which states may follow one.
var states = [...][]State{
	Joining: {Live, Suspect, Dead, Done},
	Live:    {Live, Suspect, Dead, Done},
	Suspect: {Joining, Live, Suspect, Dead, Done},
	Dead:    {},
	Done:    {},
}

// become goes to another state. One that may not follow is a bug.
func (j *Job) become(s State) {
	if !slices.Contains(states[j.State], s) {
		invariant.Violated("jobs: job %d, which is %s, becomes %s", j.ID, j.State, s)
	}
	j.State = s
}

// Ended reports whether the job will never draw again.
func (s State) Ended() bool { return s == Dead || s == Done }

// String returns the state in lower case.
func (s State) String() string {
	return [...]string{"joining", "live", "suspect", "dead", "done"}[s]
}

// Course is what a job is allowed to do next.
//
//	Running ◀──▶ Paused
//	   └▶ Draining ◀┘
//
// Draining is final: the job finishes its epoch, so its pause ends with it.
type Course uint8

// The courses of a job.
const (
	CourseRunning  Course = iota
	CoursePaused          // it plans nothing and needs nothing until it is unpaused
	CourseDraining        // it ends after the running epoch
	numCourses
)

// courses says which courses may follow one.
var courses = [numCourses][]Course{
	CourseRunning: {CoursePaused, CourseDraining},
	CoursePaused:  {CourseRunning, CourseDraining},
}

// Draw is whether a job draws samples.
//
//	Unbegun ─Begin─▶ Inactive ◀─SetActive─▶ Active
type Draw uint8

// The phases of drawing.
const (
	DrawUnbegun  Draw = iota // no epoch was begun
	DrawInactive             // it counts as needing no sample: it has no client, is paused, or its clients have stalled
	DrawActive               // it counts as needing what remains of its epoch (guarantee G5)
)

// follow changes the course of the job. One that may not follow is a bug.
func (j *Job) follow(c Course) {
	if !slices.Contains(courses[j.Course], c) {
		invariant.Violated("jobs: job %d of course %d takes course %d", j.ID, j.Course, c)
	}
	j.Course = c
}

// Pause makes the job plan nothing until Unpause.
func (j *Job) Pause() { j.follow(CoursePaused) }

// Unpause ends the pause of the job.
func (j *Job) Unpause() { j.follow(CourseRunning) }

// StartDraining makes the job end after its running epoch; it does nothing when the job drains already.
func (j *Job) StartDraining() {
	if j.Course != CourseDraining {
		j.follow(CourseDraining)
	}
}

// Paused reports whether the job plans nothing until it is unpaused.
func (j *Job) Paused() bool { return j.Course == CoursePaused }

// Draining reports whether the job ends after its running epoch.
func (j *Job) Draining() bool { return j.Course == CourseDraining }

// Begin enters an epoch.
func (j *Job) Begin(epoch uint32) {
	j.Epoch = epoch
	if j.Draw == DrawUnbegun {
		j.Draw = DrawInactive
	}
}

// SetActive says whether the job counts as needing what remains of its epoch. A job that has begun no epoch, or is
// paused, cannot.
func (j *Job) SetActive(on bool) {
	switch {
	case on && (j.Draw == DrawUnbegun || j.Paused()):
		invariant.Violated("jobs: job %d, which has begun no epoch or is paused, becomes active", j.ID)
	case on:
		j.Draw = DrawActive
	case j.Draw == DrawActive:
		j.Draw = DrawInactive
	}
}

// Begun reports whether some epoch was begun.
func (j *Job) Begun() bool { return j.Draw != DrawUnbegun }

// Active reports whether the job counts as needing what remains of its epoch.
func (j *Job) Active() bool { return j.Draw == DrawActive }

// Job is one training run's stream.
type Job struct {
	ID     ident.JobID
	Spec   Spec
	State  State
	Reason string // why it ended

	Member *bits.Set // the subset as object ids
	Ranks  []Rank
	Epoch  uint32 // the epoch the sampler is in, once an epoch was begun
	Course Course
	Draw   Draw
	Mark   uint32 // which of the subsets it was given is in force; 0 = the one it was registered with
	Since  uint32 // the first epoch of that subset
	Next   *Next  // the subset of its next epoch; nil = the same
	// while the epoch is what an earlier job left of one: the subset in force. Spec and Member are of the rest
	Whole *Next

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

// NewJob returns a job that no client has attached to.
func NewJob(id ident.JobID, spec Spec, member *bits.Set) *Job {
	return &Job{ID: id, Spec: spec, Member: member, Ranks: make([]Rank, spec.World)}
}

// Attach gives rank r a new incarnation and a ring of free slots.
func (j *Job) Attach(r int, now time.Time) ident.Incarnation {
	k := &j.Ranks[r]
	*k = Rank{
		Incarnation: k.Incarnation + 1, Attaches: k.Attaches + 1, Phase: Idle, Slots: make([]Slot,
			j.Spec.Slots), Asked: -1, Ended: -1,
		LastTake: now, Heard: now,
	}
	j.become(Live)
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
	case j.Whole != nil && j.Begun(): // the rest is of the running epoch, not of the next
		s.Subset = j.Whole.Subset
	}
	return s
}

// Attached counts the ranks a client holds.
func (j *Job) Attached() int {
	n := 0
	for i := range j.Ranks {
		if j.Ranks[i].Attached() {
			n++
		}
	}
	return n
}

// Open opens the ledger of an epoch.
func (j *Job) Open(epoch uint32) *Ledger {
	l := j.Spec.Ledger(epoch, j.Member)
	j.Ledgers = append(j.Ledgers, l)
	if len(j.Ledgers) > keepLedgers {
		j.Ledgers = append(j.Ledgers[:0], j.Ledgers[1:]...)
	}
	return l
}

// Ledger is an account that is open, of an epoch with those members.
func (s Spec) Ledger(epoch uint32, member *bits.Set) *Ledger {
	if s.Given {
		return NewStreamLedger(epoch, member)
	}
	return NewLedger(epoch, member, s.Dropped())
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

// Unattached reports whether no client ever attached to the job.
func Unattached(j *Job) bool {
	return !slices.ContainsFunc(j.Ranks, func(k Rank) bool { return k.Attaches > 0 })
}

// Shed drops what takes memory in proportion to the subset, of a job that has ended: its accounts are settled.
func Shed(j *Job) {
	j.Member = nil
	if w := j.Whole; w != nil {
		j.Whole = &Next{Mark: w.Mark, Subset: w.Subset} // views share the old one
	}
	for _, l := range j.Ledgers {
		l.member, l.committed = nil, nil
	}
	for r := range j.Ranks {
		j.Ranks[r].Stream.Ahead = nil
	}
}

// SetBytes counts the bytes of the sets of samples of jobs; one that several share counts once.
func SetBytes(list iter.Seq[*Job]) (n int) {
	counted := map[*bits.Set]bool{nil: true}
	count := func(s *bits.Set) {
		if !counted[s] {
			counted[s] = true
			n += s.Bytes()
		}
	}
	for j := range list {
		count(j.Member)
		for _, x := range []*Next{j.Whole, j.Next} {
			if x != nil {
				count(x.Member)
			}
		}
		for _, l := range j.Ledgers {
			count(l.member)
			count(l.committed)
		}
	}
	return n
}

// Busy reports whether rank r's client is in the midst of an epoch: it asked for it, the epoch began, and its end was
// not sent.
func (j *Job) Busy(r int) bool {
	k := &j.Ranks[r]
	return (k.Phase == Idle || k.Phase == InEpoch) && k.Asked >= 0 && k.Asked != k.Ended
}

// Vanished is a rank whose client is gone without goodbye and has not come back; -1 = none.
func (j *Job) Vanished() int {
	for r := range j.Ranks {
		if j.Ranks[r].Phase == Vanished {
			return r
		}
	}
	return -1
}

// Exhausted reports whether rank r has planned all its batches of the running epoch, or will not plan any more of it.
func (j *Job) Exhausted(r int) bool {
	k := &j.Ranks[r]
	switch k.Phase {
	case Waiting, Left:
		return true
	case InEpoch:
		if j.Spec.Given {
			return k.Stream.Over(k.Step)
		}
		return !j.HasBatch(r)
	default:
		return false
	}
}
