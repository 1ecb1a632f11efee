package record

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"larder/internal/coordinator"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/journal"
	"larder/jobs"
)

// shelf is a dataset whose object ids are its sample ids and a hundred.
type shelf struct{}

func (shelf) Name() string { return "shelf" }

func (shelf) Sample(o ident.ObjectID) (ident.SampleID, bool) {
	return ident.SampleID(o - 100), o >= 100 && o < 200
}

func (shelf) Object(s ident.SampleID) ident.ObjectID { return ident.ObjectID(s + 100) }

// engine knows job 1.
type engine struct{}

func (engine) Samples(id ident.JobID) Samples {
	if id != 1 {
		return nil
	}
	return shelf{}
}

func (engine) Registering(r coordinator.RecordRegistered) (Job, error) {
	return Job{Spec: json.RawMessage(`{"name":"a"}`), Name: "shelf", URI: "imagefolder:/shelf",
		Subset: Subset{"id < 3", 3, "ff", ""},
		Seed:   "7", Registered: time.Unix(1e9, 0).UTC(), Owner: &Owner{UID: 5, GID: 6}}, nil
}

func (engine) Subset(_ ident.JobID, mark uint32) (Subset, error) {
	return Subset{Expr: "label < 2", Samples: int(mark)}, nil
}

// Every kind of record keeps what it says; objects become samples, and what the coordinator does not know comes from
// the engine.
func TestOf(t *testing.T) {
	objects, samples := []ident.ObjectID{103, 101}, []ident.ObjectID{3, 1}
	for _, c := range []struct {
		in  coordinator.Record
		out journal.Record
	}{
		{coordinator.RecordRegistered{Job: 1, Token: 2, Name: "a", Seed: 7},
			journal.Registered{Job: 1, Document: `{"spec":{"name":"a"},` +
				`"name":"shelf","uri":"imagefolder:/shelf","subset":{"expr":"id \u003c 3","samples":3,"hash":"ff"},"seed":"7",` +
				`"registered":"2001-09-09T01:46:40Z","owner":{"uid":5,"gid":6}}`}},
		{coordinator.RecordAttached{Job: 1, Rank: 2, Inc: 3, Client: "c"},
			journal.Attached{Job: 1, Rank: 2, Incarnation: 3, Client: "c"}},
		{coordinator.RecordEpochStarted{Job: 1, Epoch: 2, Instance: 3, Remainder: true},
			journal.EpochStarted{Job: 1, Epoch: 2, Instance: 3, Remainder: true}},
		{coordinator.RecordEpochStarted{Job: 1, Epoch: 2, Instance: 3, Counted: true},
			journal.EpochStarted{Job: 1, Epoch: 2, Instance: 3, Counted: true}},
		{coordinator.RecordAssigned{Job: 1, Rank: 2, Inc: 3, Epoch: 4, Step: 5, Objects: objects},
			journal.Assigned{Job: 1, Rank: 2, Incarnation: 3, Epoch: 4, Step: 5, Samples: samples}},
		{coordinator.RecordGivenEarlier{Job: 1, Epoch: 4, Chunk: 5, Objects: objects},
			journal.GivenEarlier{Job: 1, Epoch: 4, Chunk: 5, Samples: samples}},
		{coordinator.RecordReturned{Job: 1, Rank: 2, Inc: 3, Epoch: 4, Step: 5},
			journal.Returned{Job: 1, Rank: 2, Incarnation: 3, Epoch: 4, Step: 5}},
		{coordinator.RecordDealt{Job: 1, Epoch: 4, Step: 5, Objects: objects, GivenUp: 6},
			journal.Dealt{Job: 1, Epoch: 4, Step: 5, Samples: samples, GivenUp: 6}},
		{coordinator.RecordEpochEnded{Job: 1, Epoch: 4, State: jobs.Complete},
			journal.EpochEnded{Job: 1, Epoch: 4, Account: "complete"}},
		{coordinator.RecordQuarantined{Job: 1, Object: 103, Reason: "r", Kind: jobs.SampleDamaged},
			journal.Quarantined{Job: 1, Samples: samples[:1], Reason: "r", Corrupt: true}},
		{coordinator.RecordEnded{Job: 9, Reason: "r"}, journal.Ended{Job: 9, Reason: "r"}},
		{coordinator.RecordSubsetChanged{Job: 1, Epoch: 4, Mark: 2},
			journal.SubsetChanged{Job: 1, Epoch: 4, Mark: 2, Document: `{"expr":"label \u003c 2","samples":2,"hash":""}`}},
		{coordinator.RecordPaused{Job: 1}, journal.Paused{Job: 1}},
		{coordinator.RecordUnpaused{Job: 1}, journal.Unpaused{Job: 1}},
	} {
		got, err := Of(c.in, engine{})
		if err != nil || !reflect.DeepEqual(got, c.out) {
			t.Errorf("%T became %+v, %v; want %+v", c.in, got, err, c.out)
		}
	}
	if objects[0] != 103 {
		t.Error("the objects of a record were changed")
	}
	if _, err := Of(coordinator.RecordAssigned{Job: 1, Objects: []ident.ObjectID{7}}, engine{}); !errs.Is(err,
		errs.Internal) {
		t.Errorf("an object of no sample: %v", err)
	}
}

// Documents are read as they were written, also those with fields of their own language.
func TestDocuments(t *testing.T) {
	rec, err := Of(coordinator.RecordRegistered{Job: 1}, engine{})
	if err != nil {
		t.Fatal(err)
	}
	j, err := ParseJob(rec.(journal.Registered).Document)
	if err != nil || j.Subset.Expr != "id < 3" || j.Owner.UID != 5 || j.Resume != nil {
		t.Errorf("%+v, %v", j, err)
	}
	if s, err := j.JobSpec(); err != nil || s.GetName() != "a" {
		t.Errorf("the spec is %v, %v", s, err)
	}
	d := Dataset{Name: "d", URI: "u", SkipEmpty: true}
	indexed, err := Indexed(d)
	if err != nil || indexed.Document != `{"name":"d","uri":"u","skipEmpty":true}` {
		t.Errorf("%+v, %v", indexed, err)
	}
	if got, err := ParseDataset(indexed.Document); err != nil || got != d {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := ParseSubset("no document"); err == nil {
		t.Error("no document was read")
	}
	if got := ToObjects(shelf{}, []ident.ObjectID{3, 1}); !reflect.DeepEqual(got, []ident.ObjectID{103, 101}) {
		t.Errorf("samples became %v", got)
	}
}
