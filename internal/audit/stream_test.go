package audit

import (
	"bytes"
	"testing"
)

// streamLog is what a client with an index stream notes of one epoch of three batches.
func streamLog(t *testing.T, change func(records []*Record)) []byte {
	t.Helper()
	sum := uint32(7)
	records := []*Record{
		{Kind: KindLog, Version: Version, PID: 1},
		{Kind: KindEpoch, Run: 1, Start: &Start{Job: "a", ID: 1, Registered: "2026-01-02T03:04:05Z", World: 1, Inc: 1, N: 9,
			Batch: 3, Stream: true, Dataset: "d"}},
		{Kind: KindBatch, Run: 1, Step: 0, IDs: []int64{5, 5, 0}, Rows: 3, Hash: &sum},
		{Kind: KindBatch, Run: 1, Step: 1, IDs: []int64{5}, Rows: 1, Bad: []int64{3, 3}, Hash: &sum},
		{Kind: KindBatch, Run: 1, Step: 2, IDs: []int64{8, 0}, Rows: 2, Hash: &sum},
		{Kind: KindEnd, Run: 1, Batches: 3, Samples: 6, Account: &Account{Subset: 8, Delivered: 6, Quarantined: 2,
			State: "complete"}},
	}
	change(records)
	var out bytes.Buffer
	for i, r := range records {
		r.Line = uint64(i + 1)
		b, err := r.encode(nil)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(b)
	}
	return out.Bytes()
}

// The client of an index stream may name a sample many times. A step that is lost, or an account that does not fit, is
// found all the same.
func TestIndexStreams(t *testing.T) {
	for name, c := range map[string]struct {
		change func(records []*Record)
		want   string
	}{
		"repeats":              {func([]*Record) {}, ""},
		"a step that is gone":  {func(r []*Record) { r[3].Step = 9 }, Lost},
		"a step twice":         {func(r []*Record) { r[4].Step = 1 }, Altered},
		"another account":      {func(r []*Record) { r[5].Account.Delivered = 7 }, Disputed},
		"too large a batch":    {func(r []*Record) { r[1].Start.Batch = 2 }, Foreign},
		"no stream, a subset":  {func(r []*Record) { r[1].Start.Stream = false }, Repeated},
		"an end before it was": {func(r []*Record) { r[5].Batches = 4 }, Lost},
	} {
		r := check(t, [][]byte{streamLog(t, c.change)}, Options{})
		if found := len(r.Findings) > 0; found != (c.want != "") || found && r.Findings[0].Kind != c.want {
			t.Errorf("%s: %+v", name, r.Findings)
		}
		if c.want == "" && (r.States[Whole] != 1 || r.Epochs[0].Subset != 8 || r.Epochs[0].Delivered != 6) {
			t.Errorf("%s: %+v", name, r)
		}
	}
}
