package engine_test

import (
	"strings"
	"testing"

	"larder/internal/errs"
	larderv1 "larder/proto/larder/v1"
)

// TestADatasetIsRemoved: not while a job uses it; then its name, what memory holds of it alone and its index go, and
// what another dataset names stays.
func TestADatasetIsRemoved(t *testing.T) {
	w := serve(t)
	dir := folder(t, 24)
	remove := func(name string) (*larderv1.RemoveDatasetResponse, error) {
		return w.engine.RemoveDataset(t.Context(), &larderv1.RemoveDatasetRequest{Dataset: name})
	}
	add := func(name string) {
		t.Helper()
		if _, err := w.engine.AddDataset(t.Context(), &larderv1.AddDatasetRequest{Name: name, Uri: "imagefolder:" +
			dir}); err != nil {
			t.Fatal(err)
		}
	}
	add("one")
	add("two")
	s := spec("a", dir, 4, recipe(crops...))
	s.Dataset = "one"
	tr := w.train(s, 0)
	exactly(t, "epoch 0", tr.must(0).ids, all(24))
	if _, err := remove("one"); reasonOf(err) != errs.AlreadyExists || !strings.Contains(err.Error(),
		"which 1 jobs use: a") {
		t.Errorf("%v", err)
	}
	exactly(t, "epoch 1", tr.must(1).ids, all(24))
	if _, err := remove("three"); reasonOf(err) != errs.NotFound {
		t.Errorf("%v", err)
	}
	tr.detach()
	eventually(t, "the job has ended", func() bool { return w.stats().GetJobs() == nil || w.engine.Attached() == 0 })
	if _, err := w.engine.KillJob(t.Context(), &larderv1.KillJobRequest{Name: "a"}); err != nil &&
		reasonOf(err) != errs.JobEnded && reasonOf(err) != errs.NotFound {
		t.Fatal(err)
	}
	used := func() (n uint64) {
		for _, tier := range w.stats().GetTiers() {
			n += tier.GetUsed()
		}
		return n
	}
	held := used()
	if held == 0 {
		t.Fatal("nothing is in memory")
	}
	r, err := remove("two")
	if err != nil || r.GetFreedBytes() != 0 || r.GetIndexBytes() != 0 || used() != held {
		t.Errorf("%v %v: %d bytes are held, %d were", r, err, used(), held)
	}
	r, err = remove("one")
	if err != nil || r.GetFreedBytes() != held || r.GetDataset().GetSamples() != 24 {
		t.Errorf("%v %v: %d bytes were held", r, err, held)
	}
	eventually(t, "memory is free", func() bool { return used() == 0 })
	if l, err := w.engine.ListDatasets(t.Context(), nil); err != nil || len(l.GetDatasets()) != 0 {
		t.Errorf("%v %v", l, err)
	}
	if _, err := remove("one"); reasonOf(err) != errs.NotFound {
		t.Errorf("%v", err)
	}
	add("one")
	b := spec("b", dir, 5, recipe(crops...))
	b.Dataset = "one"
	again := w.train(b, 0)
	exactly(t, "added again", again.must(0).ids, all(24))
	again.detach()
}
