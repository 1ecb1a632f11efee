package journal

import (
	"strconv"

	"larder/internal/ident"
)

// Record is one thing that happened: one type a kind, with the fields that this kind has. Log.Append gives it its
// number. Samples are named by their ids in the dataset of the job, which survive a restart; object ids do not.
type Record interface {
	// row is what the file has of it.
	row() row
}

// Registered is a job. The journal does not read the document, which is the caller's.
type Registered struct {
	Job      ident.JobID
	Document string
}

// Attached says that a client took a rank.
type Attached struct {
	Job         ident.JobID
	Rank        uint32
	Incarnation ident.Incarnation
	Client      string // its process
}

// EpochStarted comes once per job-epoch, by whichever rank came first. It restarts the order of the epoch.
type EpochStarted struct {
	Job             ident.JobID
	Epoch, Instance uint32
	Remainder       bool // the epoch has what an earlier job left of it
	Counted         bool // picks of an index stream are numbered by sample; not with Remainder
}

// Assigned promises samples to a rank in a step, in this order. Further ones of that rank and step add to it.
type Assigned struct {
	Job         ident.JobID
	Rank        uint32
	Incarnation ident.Incarnation
	Epoch, Step uint32
	Samples     []ident.ObjectID
}

// GivenEarlier names samples of an epoch that the job does not give out, because an earlier job did. A long list comes
// in chunks, before all batches of the epoch.
type GivenEarlier struct {
	Job          ident.JobID
	Epoch, Chunk uint32
	Samples      []ident.ObjectID
}

// Returned says that these samples of a batch were never delivered; none = the whole batch.
type Returned struct {
	Job         ident.JobID
	Rank        uint32
	Incarnation ident.Incarnation
	Epoch, Step uint32
	Samples     []ident.ObjectID
}

// Dealt says that a step was decided for all ranks together. Its samples are in none of the step's batches any more.
type Dealt struct {
	Job         ident.JobID
	Epoch, Step uint32
	Samples     []ident.ObjectID
	GivenUp     int // samples of the epoch that went back to it so far
}

// Quarantined says that samples cannot be prepared.
type Quarantined struct {
	Job     ident.JobID
	Samples []ident.ObjectID
	Reason  string
	Corrupt bool // they could be decoded, but are damaged, and such images are refused
}

// EpochEnded closes the account of an epoch.
type EpochEnded struct {
	Job     ident.JobID
	Epoch   uint32
	Account string // what became of it
}

// Ended says that a job ended.
type Ended struct {
	Job    ident.JobID
	Reason string
}

// Indexed is a dataset. The journal does not read the document, but only the last one of equal documents counts.
type Indexed struct{ Document string }

// SubsetChanged gives a job another subset from an epoch on. The journal does not read the document.
type SubsetChanged struct {
	Job         ident.JobID
	Epoch, Mark uint32 // Mark names the subset among those of the job
	Document    string
}

// Paused says that a job was paused.
type Paused struct{ Job ident.JobID }

// Unpaused says that the pause of a job ended.
type Unpaused struct{ Job ident.JobID }

// row is a record as the file has it: fields that a kind does not name are zero, and what Step and Text hold depends on
// it.
type row struct {
	Kind        kind
	Job         ident.JobID
	Rank        uint32
	Incarnation ident.Incarnation
	Epoch, Step uint32
	Objects     []ident.ObjectID
	Text        string
}

// kind says what a row is about. The numbers are in the files.
type kind uint8

const (
	kindRegistered    kind = iota + 1 // Text = document
	kindAttached                      // Text = client
	kindEpochStarted                  // Step = instance; Text = remainderText or countedText
	kindAssigned                      // Rank Earlier: GivenEarlier, Step = chunk
	kindSpare                         // was reserved for batches that a client returned; nothing writes it
	kindReturned                      // Objects: none = the whole batch
	kindQuarantined                   // Text = reason; Step = corruptStep when the image is corrupt
	kindEpochEnded                    // Text = account
	kindEnded                         // Text = reason
	kindIndexed                       // Text = document
	kindSubsetChanged                 // Step = mark; Text = document
	kindPaused
	kindUnpaused
	kindDealt // Text = how many went back, in decimal
	numKinds
)

const (
	remainderText = "rest"
	countedText   = "counted"
	corruptStep   = 1
)

var kindNames = [numKinds]string{"", "registered", "attached", "epoch-started", "assigned", "spare", "returned",
	"quarantined", "epoch-ended", "ended", "indexed", "subset-changed", "paused", "resumed", "dealt"}

// String returns the word used in logs.
func (k kind) String() string {
	if k == 0 || k >= numKinds {
		return "unknown"
	}
	return kindNames[k]
}

// known reports whether the kind may be appended.
func (k kind) known() bool { return k != 0 && k != kindSpare && k < numKinds }

func (r Registered) row() row { return row{Kind: kindRegistered, Job: r.Job, Text: r.Document} }

func (r Attached) row() row {
	return row{Kind: kindAttached, Job: r.Job, Rank: r.Rank, Incarnation: r.Incarnation, Text: r.Client}
}

func (r EpochStarted) row() row {
	out := row{Kind: kindEpochStarted, Job: r.Job, Epoch: r.Epoch, Step: r.Instance}
	switch {
	case r.Remainder:
		out.Text = remainderText
	case r.Counted:
		out.Text = countedText
	}
	return out
}

func (r Assigned) row() row {
	return row{Kind: kindAssigned, Job: r.Job, Rank: r.Rank, Incarnation: r.Incarnation, Epoch: r.Epoch, Step: r.Step,
		Objects: r.Samples}
}

func (r GivenEarlier) row() row {
	return row{Kind: kindAssigned, Job: r.Job, Rank: Earlier, Epoch: r.Epoch, Step: r.Chunk, Objects: r.Samples}
}

func (r Returned) row() row {
	return row{Kind: kindReturned, Job: r.Job, Rank: r.Rank, Incarnation: r.Incarnation, Epoch: r.Epoch, Step: r.Step,
		Objects: r.Samples}
}

func (r Dealt) row() row {
	return row{Kind: kindDealt, Job: r.Job, Epoch: r.Epoch, Step: r.Step, Objects: r.Samples,
		Text: strconv.Itoa(r.GivenUp)}
}

func (r Quarantined) row() row {
	out := row{Kind: kindQuarantined, Job: r.Job, Objects: r.Samples, Text: r.Reason}
	if r.Corrupt {
		out.Step = corruptStep
	}
	return out
}

func (r EpochEnded) row() row {
	return row{Kind: kindEpochEnded, Job: r.Job, Epoch: r.Epoch, Text: r.Account}
}

func (r Ended) row() row { return row{Kind: kindEnded, Job: r.Job, Text: r.Reason} }

func (r Indexed) row() row { return row{Kind: kindIndexed, Text: r.Document} }

func (r SubsetChanged) row() row {
	return row{Kind: kindSubsetChanged, Job: r.Job, Epoch: r.Epoch, Step: r.Mark, Text: r.Document}
}

func (r Paused) row() row { return row{Kind: kindPaused, Job: r.Job} }

func (r Unpaused) row() row { return row{Kind: kindUnpaused, Job: r.Job} }

// epochStarted, quarantined and subsetChanged are the reverse of row, for what a State hands out.
func (r row) epochStarted() EpochStarted {
	return EpochStarted{Job: r.Job, Epoch: r.Epoch, Instance: r.Step, Remainder: r.Text == remainderText,
		Counted: r.Text == countedText}
}

func (r row) quarantined() Quarantined {
	return Quarantined{Job: r.Job, Samples: r.Objects, Reason: r.Text, Corrupt: r.Step == corruptStep}
}

func (r row) subsetChanged() SubsetChanged {
	return SubsetChanged{Job: r.Job, Epoch: r.Epoch, Mark: r.Step, Document: r.Text}
}

// givenUp is what a dealt row counts; ok is false where it holds no number.
func (r row) givenUp() (n int, ok bool) {
	n, err := strconv.Atoi(r.Text)
	return n, err == nil
}
