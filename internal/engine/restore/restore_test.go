package restore

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"larder/internal/bits"
	"larder/internal/coordinator"
	"larder/internal/engine/record"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/journal"
	"larder/jobs"
)

// shifted is a dataset whose object of sample s is 100 + s.
type shifted struct{}

func (shifted) Name() string { return "data" }
func (shifted) Sample(x ident.ObjectID) (ident.SampleID, bool) {
	return ident.SampleID(x - 100), x >= 100
}
func (shifted) Object(s ident.SampleID) ident.ObjectID { return ident.ObjectID(s) + 100 }

// journaled is what a journal has after these records.
func journaled(t *testing.T, records ...journal.Record) *journal.State {
	t.Helper()
	fs := journal.NewMemFS()
	for range 2 {
		d, err := journal.OpenDisk(fs, journal.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if len(records) == 0 {
			t.Cleanup(func() { _ = d.Close() })
			return d.Found()
		}
		for _, r := range records {
			d.Append(r, nil)
		}
		records = nil
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return nil
}

func first(n int) Selected {
	s := Selected{Member: new(bits.Set), Samples: n, Hash: fmt.Sprint("hash", n)}
	for i := range n {
		s.Objects = append(s.Objects, ident.ObjectID(100+i))
		s.Member.Add(uint32(100 + i))
	}
	return s
}

// of is job 1 of a journal, whose subsets "N" are the first N samples.
func of(s *journal.State) *Job {
	return &Job{
		Name: "a", State: s.Job(1), Subset: record.Subset{Expr: "8", Samples: 8, Hash: "hash8"}, Data: shifted{},
		Select: func(expr string) (Selected, error) {
			n := 0
			_, err := fmt.Sscan(expr, &n)
			return first(n), err
		},
		OrderBefore: func(epoch uint32) ([]ident.ObjectID, error) { return []ident.ObjectID{ident.ObjectID(epoch), 7}, nil },
		Lives:       func(_ int, _ ident.Incarnation, process string) bool { return process == "lives" },
	}
}

func world(n int) coordinator.Restore {
	return coordinator.Restore{Register: coordinator.Register{Spec: jobs.Spec{World: n}}}
}

func document(t *testing.T, s record.Subset) string {
	t.Helper()
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Samples become objects; every epoch has the subset that was in force; the client of each rank is asked for.
func TestComplete(t *testing.T) {
	six := document(t, record.Subset{Expr: "6", Samples: 6, Hash: "hash6"})
	s := journaled(t,
		journal.Registered{Job: 1, Document: "{}"},
		journal.Attached{Job: 1, Rank: 0, Incarnation: 3, Client: "lives"},
		journal.Attached{Job: 1, Rank: 1, Incarnation: 4, Client: "gone"},
		journal.EpochStarted{Job: 1, Epoch: 2, Instance: 5},
		journal.Assigned{Job: 1, Rank: 1, Epoch: 2, Step: 0, Incarnation: 4, Samples: []ident.ObjectID{3, 1}},
		journal.Quarantined{Job: 1, Samples: []ident.ObjectID{4}, Reason: "no image"},
		journal.Quarantined{Job: 1, Samples: []ident.ObjectID{5}, Reason: "damaged", Corrupt: true},
		journal.SubsetChanged{Job: 1, Epoch: 3, Mark: 9, Document: six},
	)
	j, ev := of(s), world(2)
	subsets, err := j.Complete(&ev)
	if err != nil {
		t.Fatal(err)
	}
	if len(ev.Epochs) != 1 || ev.Epochs[0].Subset != 8 || ev.Epochs[0].Instance != 5 || len(ev.Epochs[0].Batches) != 1 {
		t.Fatalf("epochs %+v", ev.Epochs)
	}
	if b := ev.Epochs[0].Batches[0]; b.Rank != 1 || !slices.Equal(b.Objects, []ident.ObjectID{103, 101}) {
		t.Errorf("batch %+v", b)
	}
	if !slices.Equal(ev.Ranks, []ident.Incarnation{3, 4}) || !slices.Equal(ev.Lives, []bool{true, false}) {
		t.Errorf("ranks %v, of which %v live", ev.Ranks, ev.Lives)
	}
	if !slices.Equal(ev.Before, []ident.ObjectID{101, 107}) {
		t.Errorf("the order before is %v", ev.Before)
	}
	if len(ev.Bad) != 2 || ev.Bad[0].Object != 104 || ev.Bad[1].Kind != jobs.SampleDamaged {
		t.Errorf("bad are %+v", ev.Bad)
	}
	if ev.Mark != 0 || ev.Next == nil || ev.Next.Mark != 9 || ev.Next.Subset != 6 || len(ev.NextIDs) != 6 {
		t.Errorf("mark %d, next %+v", ev.Mark, ev.Next)
	}
	if len(subsets) != 2 || subsets[0].Document.Expr != "8" || subsets[1].Mark != 9 || len(subsets[1].Objects) != 6 {
		t.Errorf("subsets %+v", subsets)
	}
	j, ev = of(s), world(1)
	j.AcceptCorrupt = true
	if _, err := j.Complete(&ev); err != nil || len(ev.Bad) != 1 {
		t.Errorf("%+v, %v", ev.Bad, err)
	}
}

// How picks of an index stream are numbered follows from the journal: one of an older build says nothing of it.
func TestCompleteNumbering(t *testing.T) {
	for _, counted := range []bool{false, true} {
		s := journaled(t,
			journal.Registered{Job: 1, Document: "{}"},
			journal.EpochStarted{Job: 1, Epoch: 1, Instance: 7, Counted: counted},
			journal.Assigned{Job: 1, Epoch: 1, Step: 0, Incarnation: 4, Samples: []ident.ObjectID{3, 1}},
		)
		j, ev := of(s), world(1)
		if _, err := j.Complete(&ev); err != nil || len(ev.Epochs) != 1 || ev.Epochs[0].ByPick == counted {
			t.Errorf("counted %v: %+v, %v", counted, ev.Epochs, err)
		}
	}
}

// What an earlier job had is taken out of the epoch; where that was not all written the epoch has not begun.
func TestCompleteRemainder(t *testing.T) {
	s := journaled(t,
		journal.Registered{Job: 1, Document: "{}"},
		journal.EpochStarted{Job: 1, Epoch: 1, Remainder: true},
		journal.GivenEarlier{Job: 1, Epoch: 1, Samples: []ident.ObjectID{0, 2}},
	)
	for before, epochs := range map[int]int{2: 1, 3: 0} {
		j, ev := of(s), world(1)
		j.Resume = &record.Resume{Before: before}
		if _, err := j.Complete(&ev); err != nil || len(ev.Epochs) != epochs {
			t.Fatalf("%d before: %+v, %v", before, ev.Epochs, err)
		}
		if epochs > 0 {
			p := ev.Epochs[0]
			if !p.Rest || p.Subset != 6 || p.Member.Has(102) || !slices.Equal(p.Earlier, []ident.ObjectID{100, 102}) {
				t.Errorf("%+v", p)
			}
		}
	}
}

// A dataset that selects other samples than it did, or a document that cannot be read, is an error.
func TestCompleteRefuses(t *testing.T) {
	s := journaled(t, journal.Registered{Job: 1, Document: "{}"})
	j, ev := of(s), world(1)
	j.Subset.Hash = "another"
	if _, err := j.Complete(&ev); !errs.Is(err, errs.DatasetUnread) || !strings.Contains(err.Error(), "files changed") {
		t.Errorf("%v", err)
	}
	s = journaled(t, journal.Registered{Job: 1, Document: "{}"}, journal.SubsetChanged{Job: 1, Mark: 1, Document: "?"})
	j, ev = of(s), world(1)
	if _, err := j.Complete(&ev); !errs.Is(err, errs.StateDamaged) {
		t.Errorf("%v", err)
	}
}

// The last document of a name holds, and a removed name is free.
func TestDatasets(t *testing.T) {
	var names []string
	bad := 0
	for d, err := range Datasets([]string{
		`{"name":"a","uri":"1"}`, `{"name":"b","uri":"2"}`, `?`, `{"name":"a","uri":"3"}`,
		`{"name":"b","uri":"2","removed":true}`,
	}) {
		if err != nil {
			bad++
			continue
		}
		names = append(names, d.Name+d.URI)
	}
	if !slices.Equal(names, []string{"a3"}) || bad != 1 {
		t.Errorf("%v, %d cannot be read", names, bad)
	}
}

// Jobs are opened and put in order; those that fail are reported, and those that ended keep their ids.
func TestAll(t *testing.T) {
	s := journaled(t, journal.Registered{Job: 1}, journal.Registered{Job: 2}, journal.Registered{Job: 3},
		journal.Registered{Job: 4}, journal.Ended{Job: 2})
	var opened, put, reserved, failed []ident.JobID
	planned := errors.New("planned")
	err := All(s.Jobs(), Steps[ident.JobID]{
		Open: func(js *journal.JobState) (ident.JobID, error) { opened = append(opened, js.ID); return js.ID, nil },
		Read: func(id ident.JobID) error {
			if id == 3 {
				return planned
			}
			return nil
		},
		Put:     func(id ident.JobID) error { put = append(put, id); return nil },
		Reserve: func(id ident.JobID) { reserved = append(reserved, id) },
		Failed: func(js *journal.JobState, err error) error {
			failed = append(failed, js.ID)
			if !errors.Is(err, planned) {
				t.Errorf("%v", err)
			}
			return nil
		},
	})
	if err != nil || !slices.Equal(opened, []ident.JobID{1, 3, 4}) || !slices.Equal(put, []ident.JobID{1, 4}) ||
		!slices.Equal(failed, []ident.JobID{3}) {
		t.Errorf("opened %v, put %v, failed %v: %v", opened, put, failed, err)
	}
	t.Logf("reserved %v", reserved)
}
