// Package record says what the journal has of datasets and jobs: the documents that the Engine writes into its records,
// and what a record of the coordinator becomes in the journal.
//
// The coordinator knows objects and tokens, the journal what survives a restart: sample ids and documents. Jobs, which
// the Engine implements, is all that the translation must know. The package reads no file and keeps no state.
package record

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"larder/internal/coordinator"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/journal"
	larderv1 "larder/proto/larder/v1"
)

// Job is the document of a registered job. 64-bit numbers are text, for readers in other languages.
type Job struct {
	Spec       json.RawMessage `json:"spec"` // larder.v1.JobSpec with defaults
	Name       string          `json:"name"` // of the dataset
	URI        string          `json:"uri"`
	Subset     Subset          `json:"subset"`
	Seed       string          `json:"seed"` // of random parameters; in a share group not the job's own
	Registered time.Time       `json:"registered"`
	Resume     *Resume         `json:"resume,omitempty"`
	Owner      *Owner          `json:"owner,omitempty"`  // absent: the user of the daemon
	Client     *Client         `json:"client,omitempty"` // absent: it waits for its first client, however long
}

// Client is a process that registered a job by a session. The job ends if it is gone before any client attaches.
type Client struct {
	Process string `json:"process"` // empty: it cannot be told from a later one
}

// Subset is the document of a subset of a job.
type Subset struct {
	Expr    string `json:"expr"`
	Samples int    `json:"samples"`
	Hash    string `json:"hash"`            // of the sample ids
	Files   string `json:"files,omitempty"` // a sketch of the files
}

// Resume says what a job that continues from a state_dict began with.
type Resume struct {
	Token   string `json:"token"`
	Changed bool   `json:"changed,omitempty"` // files may have changed
	Epoch   uint32 `json:"epoch"`             // that it begins with
	Before  int    `json:"before"`            // samples of it that it does not give out
	From    uint32 `json:"from"`              // the job before it, 0 = of another log
}

// Owner is the user of a job, as the kernel named it when the job was registered.
type Owner struct {
	UID    uint32   `json:"uid"`
	GID    uint32   `json:"gid"`
	Groups []uint32 `json:"groups,omitempty"`
}

// Dataset is the document of a dataset whose name survives a restart. The last one of a name holds.
type Dataset struct {
	Name      string `json:"name"`
	URI       string `json:"uri"`
	SkipEmpty bool   `json:"skipEmpty,omitempty"`
	Removed   bool   `json:"removed,omitempty"` // the name is free again
	Made      string `json:"made,omitempty"`    // JSON of Made, of a dataset whose samples workers make
}

// Made is what a dataset was declared with whose samples worker processes make.
type Made struct {
	Name        string          `json:"name"`
	Version     string          `json:"version"`
	Length      int             `json:"length"`
	UID         uint32          `json:"uid"`
	Private     bool            `json:"private,omitempty"`
	Fingerprint json.RawMessage `json:"fingerprint"` // named parts
	Schema      json.RawMessage `json:"schema"`      // larder.v1.Schema of its items
}

// ParseJob reads the document of a Registered record.
func ParseJob(document string) (*Job, error) {
	j := new(Job)
	return j, json.Unmarshal([]byte(document), j)
}

// JobSpec decodes the spec.
func (j *Job) JobSpec() (*larderv1.JobSpec, error) {
	s := new(larderv1.JobSpec)
	return s, protojson.Unmarshal(j.Spec, s)
}

// EncodeSpec is the reverse of JobSpec.
func EncodeSpec(s *larderv1.JobSpec) (json.RawMessage, error) { return protojson.Marshal(s) }

// ParseSubset reads the document of a SubsetChanged record.
func ParseSubset(document string) (s Subset, err error) {
	err = json.Unmarshal([]byte(document), &s)
	return s, err
}

// ParseDataset reads the document of an Indexed record.
func ParseDataset(document string) (d Dataset, err error) {
	err = json.Unmarshal([]byte(document), &d)
	return d, err
}

// Indexed makes the record of a dataset.
func Indexed(d Dataset) (journal.Indexed, error) {
	text, err := json.Marshal(d)
	return journal.Indexed{Document: string(text)}, err
}

// Samples translates between the objects of a dataset and its samples.
type Samples interface {
	Name() string
	Sample(ident.ObjectID) (ident.SampleID, bool)
	Object(ident.SampleID) ident.ObjectID
}

// ToSamples turns object ids into sample ids, in place. An object that is no sample is a bug.
func ToSamples(data Samples, ids []ident.ObjectID) error {
	for i, x := range ids {
		s, ok := data.Sample(x)
		if !ok {
			return errs.New(errs.Internal, data.Name(), "please report this", "object %d is no sample of %s", x, data.Name())
		}
		ids[i] = ident.ObjectID(s)
	}
	return nil
}

// ToObjects turns sample ids into object ids, in a new list.
func ToObjects(data Samples, ids []ident.ObjectID) []ident.ObjectID {
	return BecomeObjects(data, slices.Clone(ids))
}

// BecomeObjects turns sample ids into object ids, in place.
func BecomeObjects(data Samples, ids []ident.ObjectID) []ident.ObjectID {
	for i, s := range ids {
		ids[i] = data.Object(ident.SampleID(s))
	}
	return ids
}

// Jobs is what a record of a job is completed with.
type Jobs interface {
	// Samples is the dataset of a job; nil = the job is not known any more.
	Samples(ident.JobID) Samples
	// Registering describes the job whose Register event the coordinator answers with this record.
	Registering(coordinator.RecordRegistered) (Job, error)
	// Subset describes the subset of a job that has this mark.
	Subset(job ident.JobID, mark uint32) (Subset, error)
}

// Of makes the journal's record of what the coordinator persists.
func Of(r coordinator.Record, known Jobs) (journal.Record, error) {
	ids := func(objects []ident.ObjectID) ([]ident.ObjectID, error) {
		data := known.Samples(r.JobID())
		if len(objects) == 0 || data == nil {
			return nil, nil
		}
		samples := slices.Clone(objects)
		return samples, ToSamples(data, samples)
	}
	switch r := r.(type) {
	case coordinator.RecordRegistered:
		j, err := known.Registering(r)
		if err != nil {
			return nil, err
		}
		text, err := json.Marshal(j)
		return journal.Registered{Job: r.Job, Document: string(text)}, err
	case coordinator.RecordAttached:
		return journal.Attached{Job: r.Job, Rank: uint32(r.Rank), Incarnation: r.Inc, Client: r.Client}, nil
	case coordinator.RecordEpochStarted:
		return journal.EpochStarted{Job: r.Job, Epoch: r.Epoch, Instance: r.Instance, Remainder: r.Remainder,
			Counted: r.Counted}, nil
	case coordinator.RecordAssigned:
		samples, err := ids(r.Objects)
		return journal.Assigned{Job: r.Job, Rank: uint32(r.Rank), Incarnation: r.Inc, Epoch: r.Epoch, Step: uint32(r.Step),
			Samples: samples}, err
	case coordinator.RecordGivenEarlier:
		samples, err := ids(r.Objects)
		return journal.GivenEarlier{Job: r.Job, Epoch: r.Epoch, Chunk: uint32(r.Chunk), Samples: samples}, err
	case coordinator.RecordReturned:
		samples, err := ids(r.Objects)
		return journal.Returned{Job: r.Job, Rank: uint32(r.Rank), Incarnation: r.Inc, Epoch: r.Epoch, Step: uint32(r.Step),
			Samples: samples}, err
	case coordinator.RecordDealt:
		samples, err := ids(r.Objects)
		return journal.Dealt{Job: r.Job, Epoch: r.Epoch, Step: uint32(r.Step), Samples: samples, GivenUp: r.GivenUp}, err
	case coordinator.RecordEpochEnded:
		return journal.EpochEnded{Job: r.Job, Epoch: r.Epoch, Account: r.State.String()}, nil
	case coordinator.RecordQuarantined:
		samples, err := ids([]ident.ObjectID{r.Object})
		return journal.Quarantined{Job: r.Job, Samples: samples, Reason: r.Reason, Corrupt: r.Damaged()}, err
	case coordinator.RecordEnded:
		return journal.Ended{Job: r.Job, Reason: r.Reason}, nil
	case coordinator.RecordSubsetChanged:
		s, err := known.Subset(r.Job, r.Mark)
		if err != nil {
			return nil, err
		}
		text, err := json.Marshal(s)
		return journal.SubsetChanged{Job: r.Job, Epoch: r.Epoch, Mark: r.Mark, Document: string(text)}, err
	case coordinator.RecordPaused:
		return journal.Paused{Job: r.Job}, nil
	case coordinator.RecordUnpaused:
		return journal.Unpaused{Job: r.Job}, nil
	}
	return nil, fmt.Errorf("record: unknown record %T", r)
}
