package engine_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"testing"

	"larder/internal/engine"
	"larder/internal/errs"
	larderv1 "larder/proto/larder/v1"
)

// TestTheDatasetAndTheSubsetChangeUnderAJob: what a registration or a refresh finds, and what a script asks for,
// comes with the next epoch.
func TestTheDatasetAndTheSubsetChangeUnderAJob(t *testing.T) {
	w := serve(t)
	dir := folder(t, 24)
	tr := w.train(spec("a", dir, 4, subset("id < 1000")), 0)
	exactly(t, "epoch 0", tr.must(0).ids, all(24))

	draw(t, file(dir, 24, 0)+".more.jpg", 40, 30, 99)
	r, err := w.engine.RefreshDataset(t.Context(), &larderv1.RefreshDatasetRequest{Dataset: "imagefolder:" + dir})
	if err != nil || r.GetAdded() != 1 || r.GetRemoved() != 0 || len(r.GetJobs()) != 1 ||
		r.GetDataset().GetSamples() != 25 {
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
	if err != nil || s.GetEpoch() != 3 || s.GetNumSamples() != 15 || s.GetBatchesPerEpoch() != 4 ||
		s.GetJob().GetSpec().GetSubset() != "id >= 10" {
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
	if _, err := register(w.dial(), spec("a", dir, 4, subset("id < 3"))); reasonOf(err) != errs.AlreadyExists {
		t.Errorf("%v", err)
	}
	for expr, want := range map[string]errs.Reason{"id >= 10 and": errs.SubsetSyntax, "id > 5000": errs.SubsetEmpty} {
		if _, err := set(expr); reasonOf(err) != want {
			t.Errorf("%s: %v", expr, err)
		}
	}
	if _, err := w.engine.SetSubset(t.Context(), &larderv1.SetSubsetRequest{Name: "a",
		Rank: 1}); reasonOf(err) != errs.Invalid {
		t.Errorf("rank 1 of 1: %v", err)
	}
	if _, err := w.engine.SetSubset(t.Context(),
		&larderv1.SetSubsetRequest{Name: "nobody"}); reasonOf(err) != errs.NotFound {
		t.Errorf("%v", err)
	}
	if _, err := w.engine.RefreshDataset(t.Context(),
		&larderv1.RefreshDatasetRequest{Dataset: "nothing"}); reasonOf(err) != errs.NotFound {
		t.Errorf("%v", err)
	}
}

// TestAJobThatListsItsSamplesFollowsItsFolder: files that come later are not its own, and files that go are left out.
func TestAJobThatListsItsSamplesFollowsItsFolder(t *testing.T) {
	w := serve(t)
	dir := folder(t, 12)
	listed := func(ids ...uint32) func(*larderv1.JobSpec) {
		return func(s *larderv1.JobSpec) {
			for _, id := range ids {
				s.Indices = binary.LittleEndian.AppendUint32(s.Indices, id)
			}
		}
	}
	tr := w.train(spec("a", dir, 2, listed(1, 3, 5, 7)), 0)
	exactly(t, "epoch 0", tr.must(0).ids, []int64{1, 3, 5, 7})
	draw(t, file(dir, 12, 0)+".more.jpg", 40, 30, 99)
	if err := os.Remove(file(dir, 12, 3)); err != nil {
		t.Fatal(err)
	}
	if _, err := w.engine.RefreshDataset(t.Context(),
		&larderv1.RefreshDatasetRequest{Dataset: "imagefolder:" + dir}); err != nil {
		t.Fatal(err)
	}
	exactly(t, "without a file", tr.must(1).ids, []int64{1, 5, 7})
	set := func(expr string) {
		t.Helper()
		if _, err := w.engine.SetSubset(t.Context(), &larderv1.SetSubsetRequest{Name: "a", Subset: expr}); err != nil {
			t.Fatal(err)
		}
	}
	set("id < 2")
	exactly(t, "another subset", tr.must(2).ids, []int64{0, 1})
	set("")
	exactly(t, "its own again", tr.must(3).ids, []int64{1, 5, 7})
	if r, err := register(w.dial(), spec("a", dir, 2, listed(1, 3, 5, 7))); err != nil || r.GetCreated() {
		t.Errorf("its script starts again: %v %v", r, err)
	}
	for want, ids := range map[errs.Reason][]uint32{errs.Invalid: {5, 4}, errs.SubsetEmpty: {3}} {
		if _, err := register(w.dial(), spec("b", dir, 2, listed(ids...))); reasonOf(err) != want {
			t.Errorf("%v: %v", ids, err)
		}
	}
}

// TestRingsAreAsLargeAsTheDataset: a batch that is larger than the dataset costs no memory for samples that do not
// exist; a dataset that grows beyond what the rings hold is not followed, and the job says so; one that grows within
// is.
func TestRingsAreAsLargeAsTheDataset(t *testing.T) {
	const size = 64.0
	// a quarter of it has room for 42 samples of 12,288 bytes in each of 4 slots
	w := serve(t, func(c *engine.Config) { c.Memory.MaxRing = 8 << 20 })
	dir := folder(t, 24)
	crop := recipe(op("RandomResizedCrop", map[string]any{"size": size}))
	tr := w.train(spec("a", dir, 2000, crop), 0)
	exactly(t, "epoch 0", tr.must(0).ids, all(24))
	if ring := w.stats().GetJobs()[0].GetRanks()[0].GetRingBytes(); ring < 4*24*size*size*3 || ring > 8<<20/3 {
		t.Errorf("a ring of %d bytes", ring)
	}
	tr.detach()

	two := spec("two", dir, 2000, crop, func(s *larderv1.JobSpec) { s.WorldSize, s.Even = 2, "none" })
	ranks := []*trainer{w.train(two, 0), w.train(two, 1)}
	got := make(chan []int64, len(ranks))
	for _, r := range ranks {
		go func() {
			s, err := r.epoch(0)
			if err != nil {
				t.Error(err)
			}
			got <- s.ids
		}()
	}
	exactly(t, "two ranks", append(<-got, <-got...), all(24))
	for _, r := range ranks {
		r.detach()
	}

	dirB := folder(t, 24)
	b := w.train(spec("b", dirB, 2000, crop, subset("id < 10")), 0)
	exactly(t, "a small subset", b.must(0).ids, all(10))
	if _, err := w.engine.SetSubset(t.Context(), &larderv1.SetSubsetRequest{Name: "b", Subset: "all"}); err != nil {
		t.Fatal(err)
	}
	exactly(t, "the whole dataset", b.must(1).ids, all(24))
	refresh := func() {
		t.Helper()
		if _, err := w.engine.RefreshDataset(t.Context(), &larderv1.RefreshDatasetRequest{Dataset: "imagefolder:" +
			dirB}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 40 {
		draw(t, file(dirB, 24, 0)+fmt.Sprintf(".more%02d.jpg", i), 40, 30, uint64(99+i))
	}
	refresh()
	exactly(t, "it has grown beyond the rings", b.must(2).ids, all(24))
	d, err := w.engine.DescribeJob(t.Context(), &larderv1.DescribeJobRequest{Name: "b"})
	if err != nil || len(d.GetJob().GetNotes()) != 1 || !strings.Contains(d.GetJob().GetNotes()[0],
		"its rings were made when the dataset had fewer samples") {
		t.Errorf("%v %q", err, d.GetJob().GetNotes())
	}
	if _, err := w.engine.SetSubset(t.Context(), &larderv1.SetSubsetRequest{Name: "b",
		Subset: "all"}); reasonOf(err) != errs.ResourceExceeded {
		t.Errorf("%v", err)
	}
	for i := range 39 {
		if err := os.Remove(file(dirB, 24, 0) + fmt.Sprintf(".more%02d.jpg", i)); err != nil {
			t.Fatal(err)
		}
	}
	refresh()
	if n := len(b.must(3).ids); n != 25 {
		t.Errorf("%d samples, and 25 are in the dataset, which the rings have room for", n)
	}
	b.detach()
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
	for name, want := range map[string]errs.Reason{"nobody": errs.NotFound} {
		if _, err := w.engine.PauseJob(t.Context(), &larderv1.PauseJobRequest{Name: name}); reasonOf(err) != want {
			t.Errorf("%v", err)
		}
	}
}
