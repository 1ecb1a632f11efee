package coordinator

import (
	"larder/internal/ident"
	"larder/jobs"
)

// Persist makes a record durable; Persisted{Seq} must follow.
type Persist struct {
	Seq    uint64
	Record Record
}

func (Persist) isEffect() {}

// Record is what the journal must have of a job, so that a restarted daemon can put the job back: one type a kind.
type Record interface {
	// JobID names the job that the record is of.
	JobID() ident.JobID
}

// RecordRegistered is a new job. Token is that of its Register event, whose sender knows the rest of the job: the core
// does not.
type RecordRegistered struct {
	Job   ident.JobID
	Token Token
	Name  string
	Seed  uint64 // of its random parameters
}

// RecordAttached says that a client took a rank.
type RecordAttached struct {
	Job    ident.JobID
	Rank   int
	Inc    ident.Incarnation
	Client string // its process
}

// RecordEpochStarted says that an epoch began.
type RecordEpochStarted struct {
	Job             ident.JobID
	Epoch, Instance uint32
	Remainder       bool // it has what an earlier job left of the epoch
	Counted         bool // of order given: a sample's instance tells how often it came before, see picks
}

// RecordAssigned commits objects to a batch. Several records of one batch add up.
type RecordAssigned struct {
	Job     ident.JobID
	Rank    int
	Inc     ident.Incarnation
	Epoch   uint32
	Step    int
	Objects []ident.ObjectID
}

// RecordGivenEarlier names objects of a remainder's epoch that an earlier job had. A long list comes in chunks.
type RecordGivenEarlier struct {
	Job     ident.JobID
	Epoch   uint32
	Chunk   int
	Objects []ident.ObjectID
}

// RecordReturned says that these objects of a batch were never delivered; none = the whole batch.
type RecordReturned struct {
	Job     ident.JobID
	Rank    int
	Inc     ident.Incarnation
	Epoch   uint32
	Step    int
	Objects []ident.ObjectID
}

// RecordDealt says that a step of an epoch was decided for all ranks, see planner.deal. Objects return to the epoch.
type RecordDealt struct {
	Job     ident.JobID
	Epoch   uint32
	Step    int
	Objects []ident.ObjectID
	GivenUp int // objects that returned to the epoch so far, these included
}

// RecordEpochEnded says what became of the account of an epoch.
type RecordEpochEnded struct {
	Job   ident.JobID
	Epoch uint32
	State jobs.EpochState
}

// RecordQuarantined says that a sample cannot be prepared; Reason and Kind are as in jobs.Bad.
type RecordQuarantined struct {
	Job    ident.JobID
	Object ident.ObjectID
	Reason string
	Kind   jobs.BadKind // SampleFailed or SampleDamaged
}

// Damaged reports whether the sample could be decoded and was refused because it is damaged.
func (r RecordQuarantined) Damaged() bool { return r.Kind == jobs.SampleDamaged }

// RecordEnded says that a job ended.
type RecordEnded struct {
	Job    ident.JobID
	Reason string
}

// RecordSubsetChanged says that a job has another subset from an epoch on. Mark is that of the ChangeSubset event.
type RecordSubsetChanged struct {
	Job         ident.JobID
	Epoch, Mark uint32
}

// RecordPaused says that a job was paused.
type RecordPaused struct{ Job ident.JobID }

// RecordUnpaused says that the pause of a job ended.
type RecordUnpaused struct{ Job ident.JobID }

// JobID implements Record.
func (r RecordRegistered) JobID() ident.JobID { return r.Job }

// JobID implements Record.
func (r RecordAttached) JobID() ident.JobID { return r.Job }

// JobID implements Record.
func (r RecordEpochStarted) JobID() ident.JobID { return r.Job }

// JobID implements Record.
func (r RecordAssigned) JobID() ident.JobID { return r.Job }

// JobID implements Record.
func (r RecordGivenEarlier) JobID() ident.JobID { return r.Job }

// JobID implements Record.
func (r RecordReturned) JobID() ident.JobID { return r.Job }

// JobID implements Record.
func (r RecordDealt) JobID() ident.JobID { return r.Job }

// JobID implements Record.
func (r RecordEpochEnded) JobID() ident.JobID { return r.Job }

// JobID implements Record.
func (r RecordQuarantined) JobID() ident.JobID { return r.Job }

// JobID implements Record.
func (r RecordEnded) JobID() ident.JobID { return r.Job }

// JobID implements Record.
func (r RecordSubsetChanged) JobID() ident.JobID { return r.Job }

// JobID implements Record.
func (r RecordPaused) JobID() ident.JobID { return r.Job }

// JobID implements Record.
func (r RecordUnpaused) JobID() ident.JobID { return r.Job }
