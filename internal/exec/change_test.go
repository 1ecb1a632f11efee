package exec_test

import (
	"os"
	"strings"
	"testing"

	"larder/internal/fault"
	larderv1 "larder/proto/larder/v1"
)

// TestTheDatasetAndTheSubsetChangeUnderAJob: what a registration or a refresh finds, and what a script asks for, comes with the next epoch.
func TestTheDatasetAndTheSubsetChangeUnderAJob(t *testing.T) {
	w := serve(t)
	dir := folder(t, 24)
	tr := w.train(spec("a", dir, 4, subset("id < 1000")), 0)
	exactly(t, "epoch 0", tr.must(0).ids, all(24))

	draw(t, file(dir, 24, 0)+".more.jpg", 40, 30, 99)
	r, err := w.engine.RefreshDataset(t.Context(), &larderv1.RefreshDatasetRequest{Dataset: "imagefolder:" + dir})
	if err != nil || r.GetAdded() != 1 || r.GetRemoved() != 0 || len(r.GetJobs()) != 1 || r.GetDataset().GetSamples() != 25 {
		t.Fatalf("%v %v", r, err)
	}
	exactly(t, "with a new file", tr.must(1).ids, all(25))

	if err := os.Remove(file(dir, 24, 3)); err != nil {
		t.Fatal(err)
	}
	if _, err := register(w.dial(), spec("b", dir, 4)); err != nil { // it finds the folder changed
		t.Fatal(err)
	}
	exactly(t, "without a file", tr.must(2).ids, where(25, func(i int) bool { return i != 3 }))

	set := func(expr string) (*larderv1.SetSubsetResponse, error) {
		return w.engine.SetSubset(t.Context(), &larderv1.SetSubsetRequest{Name: "a", Subset: expr})
	}
	s, err := set("id >= 10")
	if err != nil || s.GetEpoch() != 3 || s.GetNumSamples() != 15 || s.GetBatchesPerEpoch() != 4 || s.GetJob().GetSpec().GetSubset() != "id >= 10" {
		t.Fatalf("%v %v", s, err)
	}
	if again, err := set("id >= 10"); err != nil || again.GetEpoch() != 3 || again.GetNumSamples() != 15 {
		t.Errorf("an equal call of another rank: %v %v", again, err)
	}
	exactly(t, "another subset", tr.must(3).ids, where(25, func(i int) bool { return i >= 10 }))
	for _, old := range []string{"id < 1000", "id >= 10"} { // its script starts again, in another process
		if r, err := register(w.dial(), spec("a", dir, 4, subset(old))); err != nil || r.GetCreated() {
			t.Errorf("%s: %v %v", old, r, err)
		}
	}
	if _, err := register(w.dial(), spec("a", dir, 4, subset("id < 3"))); reasonOf(err) != fault.AlreadyExists {
		t.Errorf("%v", err)
	}
	for expr, want := range map[string]fault.Reason{"id >= 10 and": fault.SubsetSyntax, "id > 5000": fault.SubsetEmpty} {
		if _, err := set(expr); reasonOf(err) != want {
			t.Errorf("%s: %v", expr, err)
		}
	}
	if _, err := w.engine.SetSubset(t.Context(), &larderv1.SetSubsetRequest{Name: "a", Rank: 1}); reasonOf(err) != fault.Invalid {
		t.Errorf("rank 1 of 1: %v", err)
	}
	if _, err := w.engine.SetSubset(t.Context(), &larderv1.SetSubsetRequest{Name: "nobody"}); reasonOf(err) != fault.NotFound {
		t.Errorf("%v", err)
	}
	if _, err := w.engine.RefreshDataset(t.Context(), &larderv1.RefreshDatasetRequest{Dataset: "nothing"}); reasonOf(err) != fault.NotFound {
		t.Errorf("%v", err)
	}
}

func TestPauseIsSeenAndEnds(t *testing.T) {
	w := serve(t)
	dir := folder(t, 12)
	tr := w.train(spec("a", dir, 2), 0)
	p, err := w.engine.PauseJob(t.Context(), &larderv1.PauseJobRequest{Name: "a"})
	if err != nil || !p.GetJob().GetPaused() {
		t.Fatalf("%v %v", p, err)
	}
	if !strings.Contains(p.GetJob().GetPromise(), "exactly once") {
		t.Errorf("promise %q before the first epoch", p.GetJob().GetPromise())
	}
	if err := tr.st.StartEpoch(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	r, err := w.engine.ResumeJob(t.Context(), &larderv1.ResumeJobRequest{Name: "a"})
	if err != nil || r.GetJob().GetPaused() {
		t.Fatalf("%v %v", r, err)
	}
	exactly(t, "after the pause", tr.rest(t), all(12))
	for name, want := range map[string]fault.Reason{"nobody": fault.NotFound} {
		if _, err := w.engine.PauseJob(t.Context(), &larderv1.PauseJobRequest{Name: name}); reasonOf(err) != want {
			t.Errorf("%v", err)
		}
	}
}
