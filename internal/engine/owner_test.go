package engine_test

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"larder/internal/engine"
	"larder/internal/errs"
	"larder/internal/journal"
	"larder/internal/rpc"
	"larder/internal/shm"
	larderv1 "larder/proto/larder/v1"
)

// as is a context of requests of another user.
func as(t *testing.T, uid uint32) context.Context {
	return shm.WithPeer(t.Context(), shm.Peer{PID: 1, UID: uid, GID: uid, Groups: []uint32{62000}})
}

// openFolder is folder for all users.
func openFolder(t *testing.T, n int) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "larder-open-") // t.TempDir lies in a folder of mode 0700
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	for i := range n {
		draw(t, file(dir, n, i), 24+i%17, 20+i%13, uint64(i))
	}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		mode := fs.FileMode(0o644)
		if d.IsDir() {
			mode = 0o755
		}
		return os.Chmod(path, mode)
	})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// request is what a method is asked, and whether another user than the job's is answered.
type request struct {
	ask    func(context.Context, *engine.Engine) error
	others bool
}

func method[Req, Res any](f func(*engine.Engine, context.Context, Req) (Res, error), req Req, others bool) request {
	return request{func(ctx context.Context, e *engine.Engine) error { _, err := f(e, ctx, req); return err }, others}
}

// requests has every method there is, each about job a on a folder that its user alone may read.
func requests(dir string) map[string]request {
	uri := "imagefolder:" + dir
	return map[string]request{
		"RegisterJob":    method((*engine.Engine).RegisterJob, &larderv1.RegisterJobRequest{Spec: spec("a", dir, 4)}, false),
		"ListJobs":       method((*engine.Engine).ListJobs, &larderv1.ListJobsRequest{IncludeEnded: true}, true),
		"DescribeJob":    method((*engine.Engine).DescribeJob, &larderv1.DescribeJobRequest{Name: "a"}, false),
		"PauseJob":       method((*engine.Engine).PauseJob, &larderv1.PauseJobRequest{Name: "a"}, false),
		"ResumeJob":      method((*engine.Engine).ResumeJob, &larderv1.ResumeJobRequest{Name: "a"}, false),
		"SetSubset":      method((*engine.Engine).SetSubset, &larderv1.SetSubsetRequest{Name: "a", Subset: "id < 10"}, false),
		"GetState":       method((*engine.Engine).GetState, &larderv1.GetStateRequest{Name: "a"}, false),
		"ListOrders":     method((*engine.Engine).ListOrders, &larderv1.ListOrdersRequest{Name: "a"}, false),
		"GetOrder":       method((*engine.Engine).GetOrder, &larderv1.GetOrderRequest{Job: 1}, false),
		"AddDataset":     method((*engine.Engine).AddDataset, &larderv1.AddDatasetRequest{Uri: uri}, false),
		"AddRecords":     method((*engine.Engine).AddRecords, &larderv1.AddRecordsRequest{Name: "n", Length: 1}, true),
		"RefreshDataset": method((*engine.Engine).RefreshDataset, &larderv1.RefreshDatasetRequest{Dataset: uri}, false),
		"ListDatasets":   method((*engine.Engine).ListDatasets, &larderv1.ListDatasetsRequest{}, true),
		"RemoveDataset":  method((*engine.Engine).RemoveDataset, &larderv1.RemoveDatasetRequest{Dataset: uri}, false),
		"InspectDataset": method((*engine.Engine).InspectDataset, &larderv1.InspectDatasetRequest{Dataset: uri}, false),
		"ResolveKeys": method((*engine.Engine).ResolveKeys, &larderv1.ResolveKeysRequest{Dataset: uri, Ids: []uint64{0}},
			false),
		"GetTiers":    method((*engine.Engine).GetTiers, &larderv1.GetTiersRequest{}, true),
		"SetTiers":    method((*engine.Engine).SetTiers, &larderv1.SetTiersRequest{Decoded: "1MiB"}, false),
		"ApplyConfig": method((*engine.Engine).ApplyConfig, &larderv1.ApplyConfigRequest{}, false),
		"GetStats":    method((*engine.Engine).GetStats, &larderv1.GetStatsRequest{}, true),
		"RecordTrace": method((*engine.Engine).RecordTrace, &larderv1.RecordTraceRequest{}, false),
		"DrainJob":    method((*engine.Engine).DrainJob, &larderv1.DrainJobRequest{Name: "a"}, false),
		"Stop":        method((*engine.Engine).Stop, &larderv1.StopRequest{}, false),
		"Status":      method((*engine.Engine).Status, &larderv1.StatusRequest{}, true),
		"KillJob":     method((*engine.Engine).KillJob, &larderv1.KillJobRequest{Name: "a"}, false),
	}
}

// Another user of the socket's group sees that there is a job, and how much it does, and can do nothing with it.
func TestJobsOfOthers(t *testing.T) {
	dir := openFolder(t, 20)
	if err := os.Chmod(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, -1, 61001); err != nil {
		t.Skipf("only root can give a folder to another group: %v", err)
	}
	w := serve(t)
	w.dial() // it serves now, so it can be closed
	e := w.engine
	r, err := e.RegisterJob(as(t, 61001), &larderv1.RegisterJobRequest{Spec: spec("a", dir, 4)})
	if err != nil || r.GetJob().GetOwner() != 61001 || r.GetJob().GetOthers() {
		t.Fatalf("%v, %v", r, err)
	}
	all := requests(dir)
	for m := range reflect.TypeFor[rpc.Engine]().Methods() {
		x, ok := all[m.Name]
		if !ok {
			t.Errorf("no entry says whether other users may ask %s", m.Name)
			continue
		}
		err := x.ask(as(t, 61002), e)
		switch {
		case x.others && err != nil && reasonOf(err) != errs.Unsupported: // this engine has no program around it to report on
			t.Errorf("%s: %v", m.Name, err)
		case !x.others && (reasonOf(err) != errs.Denied || errs.From(err).Hint == "" || !strings.Contains(err.Error(),
			"61002")):
			t.Errorf("%s is answered with %v", m.Name, err)
		}
	}
	_, err = e.Attach(t.Context(), &larderv1.AttachRequest{Job: "a"}, shm.Peer{UID: 61002, GID: 61002}, nil)
	if reasonOf(err) != errs.Denied || !strings.Contains(err.Error(),
		"attach to job a: it is a job of uid 61001, and uid 61002 asks") {
		t.Errorf("attach: %v", err)
	}
	list, err := e.ListJobs(as(t, 61002), &larderv1.ListJobsRequest{})
	if err != nil || len(list.GetJobs()) != 1 {
		t.Fatalf("%v, %v", list, err)
	}
	if j := list.GetJobs()[0]; j.GetOwner() != 61001 || !j.GetOthers() || j.GetSpec().GetName() != "a" ||
		j.GetSubsetSize() != 20 || j.GetPaused() ||
		strings.Contains(j.String(), dir) || j.GetPromise() != "" || j.GetRecipe() != "" {
		t.Errorf("another user's job is visible: %v", j)
	}
	if s, err := e.GetStats(as(t, 61002), &larderv1.GetStatsRequest{}); err != nil || strings.Contains(s.String(), dir) {
		t.Errorf("the counters reveal it: %v, %v", s, err)
	}
	for uid, want := range map[uint32]int{61002: 1, 61003: 0} { // what 61002 has declared above, and nobody else's
		d, err := e.ListDatasets(as(t, uid), &larderv1.ListDatasetsRequest{})
		if err != nil || len(d.GetDatasets()) != want || want > 0 && d.GetDatasets()[0].GetUri() != "python:n@" {
			t.Errorf("datasets that uid %d sees: %v, %v", uid, d, err)
		}
	}
	for _, uid := range []uint32{61001, 0} { // its user, and root
		for _, name := range []string{"DescribeJob", "PauseJob", "ResumeJob", "SetSubset", "ListOrders", "ResolveKeys",
			"RegisterJob"} {
			if name == "RegisterJob" && uid == 61001 {
				continue // it has another subset now
			}
			if err := all[name].ask(as(t, uid), e); err != nil && name != "RegisterJob" {
				t.Errorf("%s of uid %d: %v", name, uid, err)
			}
		}
	}
	if err := all["KillJob"].ask(as(t, 61001), e); err != nil {
		t.Error(err)
	}
}

// What its user may not read is not read for that job: at the registration, and when files change under a job.
func TestReadsForOthers(t *testing.T) {
	dir, mine := openFolder(t, 20), folder(t, 8)
	w := serve(t)
	w.dial() // it serves now, so it can be closed
	e := w.engine
	reg := func(uid uint32, s *larderv1.JobSpec) error {
		_, err := e.RegisterJob(as(t, uid), &larderv1.RegisterJobRequest{Spec: s})
		return err
	}
	if err := reg(61001, spec("x", mine, 4)); reasonOf(err) != errs.Denied || !strings.Contains(err.Error(),
		"uid 61001 may not read") {
		t.Errorf("a folder of the daemon's user: %v", err)
	}
	if _, ok := w.catalog.Get("imagefolder:" + mine); ok {
		t.Error("it was indexed for a user who may not list it")
	}
	replay := spec("x", dir, 4, func(s *larderv1.JobSpec) { s.Order = "replay:/etc/shadow" })
	if err := reg(61001, replay); reasonOf(err) != errs.Unsupported || !strings.Contains(err.Error(),
		"does not work yet for uid 61001") {
		t.Errorf("a replay: %v", err)
	}
	_, err := e.AddDataset(as(t, 61001), &larderv1.AddDatasetRequest{Name: "train", Uri: "imagefolder:" + dir})
	if reasonOf(err) != errs.Denied || !strings.Contains(err.Error(), "a name is for all users") {
		t.Errorf("a name: %v", err)
	}
	if err := reg(61001, spec("a", dir, 4)); err != nil {
		t.Fatal(err)
	}
	if err := reg(61002, spec("a", dir, 4)); reasonOf(err) != errs.Denied || !strings.Contains(err.Error(),
		"join or replace job a: it is a job of uid 61001") {
		t.Errorf("the name of another user's job: %v", err)
	}
	state, err := e.GetState(as(t, 61001), &larderv1.GetStateRequest{Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = e.RegisterJob(as(t, 61002), &larderv1.RegisterJobRequest{Spec: spec("y", dir, 4), Resume: state.GetToken()})
	if reasonOf(err) != errs.Denied || !strings.Contains(err.Error(), "continue from job a: it is a job of uid 61001") {
		t.Errorf("the state of another user's job: %v", err)
	}
	size := func() uint64 {
		t.Helper()
		d, err := e.DescribeJob(t.Context(), &larderv1.DescribeJobRequest{Name: "a"})
		if err != nil {
			t.Fatal(err)
		}
		return max(d.GetJob().GetSubsetSize(), d.GetJob().GetNextSubsetSize())
	}
	refresh := func() {
		t.Helper()
		if _, err := e.RefreshDataset(t.Context(), &larderv1.RefreshDatasetRequest{Dataset: "imagefolder:" +
			dir}); err != nil {
			t.Fatal(err)
		}
	}
	class := filepath.Dir(file(dir, 20, 0))
	draw(t, filepath.Join(class, "new1.jpg"), 24, 24, 99)
	if err := os.Chmod(filepath.Join(class, "new1.jpg"), 0o600); err != nil {
		t.Fatal(err)
	}
	refresh()
	d, err := e.DescribeJob(t.Context(), &larderv1.DescribeJobRequest{Name: "a"})
	if n := size(); n != 20 || err != nil || !strings.Contains(strings.Join(d.GetJob().GetNotes(), "\n"),
		"uid 61001 may not read") {
		t.Errorf("a private file came: the job has %d samples, %v, %v", n, d.GetJob().GetNotes(), err)
	}
	if err := os.Chmod(filepath.Join(class, "new1.jpg"), 0o644); err != nil {
		t.Fatal(err)
	}
	draw(t, filepath.Join(class, "new2.jpg"), 24, 24, 98)
	if err := os.Chmod(filepath.Join(class, "new2.jpg"), 0o644); err != nil {
		t.Fatal(err)
	}
	refresh()
	if n := size(); n != 22 {
		t.Errorf("all may be read again: the job has %d samples", n)
	}
}

// A refused dataset leaves nothing that its user, or another one, sees; nor does one that another user added reveal
// what is closed in it.
func TestRefusedDatasetIsNotSeen(t *testing.T) {
	dir, closed := openFolder(t, 6), openFolder(t, 20)
	if err := os.Symlink(folder(t, 8), filepath.Join(dir, "c")); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(file(closed, 20, 0)), 0o700); err != nil { //nolint:gosec // a folder
		t.Fatal(err)
	}
	w := serve(t)
	w.dial() // it serves now, so it can be closed
	e := w.engine
	ctx := as(t, 61001)
	for what, err := range map[string]error{
		"add": method((*engine.Engine).AddDataset, &larderv1.AddDatasetRequest{Uri: "imagefolder:" + dir},
			false).ask(ctx, e),
		"register": method((*engine.Engine).RegisterJob, &larderv1.RegisterJobRequest{Spec: spec("x", dir, 4)},
			false).ask(ctx, e),
		"inspect": method((*engine.Engine).InspectDataset, &larderv1.InspectDatasetRequest{Dataset: "imagefolder:" + dir},
			false).ask(ctx, e),
	} {
		if reasonOf(err) != errs.Denied || !strings.Contains(err.Error(), dir+"/c: it is a symbolic link") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if got := w.catalog.List(); len(got) != 0 {
		t.Errorf("%d datasets are left", len(got))
	}
	err := method((*engine.Engine).RefreshDataset, &larderv1.RefreshDatasetRequest{Dataset: "imagefolder:" + dir},
		false).ask(ctx, e)
	if reasonOf(err) != errs.NotFound || strings.Contains(errs.From(err).Hint, "known:") {
		t.Errorf("refresh: %v", err)
	}
	for _, uri := range []string{dir, closed} { // the daemon's own user may
		if _, err := e.AddDataset(t.Context(), &larderv1.AddDatasetRequest{Name: "n" + filepath.Base(uri),
			Uri: "imagefolder:" + uri}); err != nil {
			t.Fatal(err)
		}
		for what, err := range map[string]error{
			"refresh": method((*engine.Engine).RefreshDataset, &larderv1.RefreshDatasetRequest{Dataset: "n" +
				filepath.Base(uri)}, false).ask(ctx, e),
			"add": method((*engine.Engine).AddDataset, &larderv1.AddDatasetRequest{Uri: "imagefolder:" + uri},
				false).ask(ctx, e),
		} {
			if reasonOf(err) != errs.Denied {
				t.Errorf("%s of what is closed in part: %v", what, err)
			}
		}
	}
	if d, err := e.ListDatasets(ctx, &larderv1.ListDatasetsRequest{}); err != nil || len(d.GetDatasets()) != 0 {
		t.Errorf("listed: %v, %v", d, err)
	}
	if d, err := e.ListDatasets(t.Context(), &larderv1.ListDatasetsRequest{}); err != nil || len(d.GetDatasets()) != 2 {
		t.Errorf("listed to the daemon's user: %v, %v", d, err)
	}
}

// What other users see of a job says whether a client has it, so that counts are right, and not who that is.
func TestRanksOfOthers(t *testing.T) {
	dir := openFolder(t, 20)
	w := serve(t)
	e := w.engine
	w.train(spec("a", dir, 4), 0)
	list, err := e.ListJobs(as(t, 61002), &larderv1.ListJobsRequest{})
	if err != nil || len(list.GetJobs()) != 1 || len(list.GetJobs()[0].GetRanks()) != 1 {
		t.Fatalf("%v, %v", list, err)
	}
	if r := list.GetJobs()[0].GetRanks()[0]; !r.GetAttached() || r.GetRingBytes() == 0 || r.GetPid() != 0 ||
		r.GetUid() != 0 {
		t.Errorf("its rank is visible: %v", r)
	}
}

// A dataset that a user may read he may add, see and refresh.
func TestReadableDatasetIsSeen(t *testing.T) {
	dir := openFolder(t, 6)
	w := serve(t)
	w.dial() // it serves now, so it can be closed
	e := w.engine
	ctx := as(t, 61001)
	if d, err := e.AddDataset(ctx, &larderv1.AddDatasetRequest{Uri: "imagefolder:" + dir}); err != nil ||
		d.GetDataset().GetSamples() != 6 {
		t.Fatalf("%v, %v", d, err)
	}
	if err := os.Remove(file(dir, 6, 0)); err != nil {
		t.Fatal(err)
	}
	if r, err := e.RefreshDataset(ctx, &larderv1.RefreshDatasetRequest{Dataset: "imagefolder:" + dir}); err != nil ||
		r.GetRemoved() != 1 || r.GetDataset().GetSamples() != 5 {
		t.Errorf("%v, %v", r, err)
	}
	if d, err := e.ListDatasets(ctx, &larderv1.ListDatasetsRequest{}); err != nil || len(d.GetDatasets()) != 1 ||
		d.GetDatasets()[0].GetSamples() != 5 {
		t.Errorf("%v, %v", d, err)
	}
}

// Whose a job is outlives the daemon, and so does what it may read.
func TestOwnersSurvive(t *testing.T) {
	dir := openFolder(t, 20)
	disk := journal.NewMemFS()
	died := func(what string, f func(*testing.T, *engine.Engine)) {
		t.Run(what, func(t *testing.T) {
			w := onDisk(t, disk)
			w.dial() // it serves now, so it can be closed
			f(t, w.engine)
			disk = disk.Clone() // as a killed process leaves it
		})
	}
	describe := func(t *testing.T, e *engine.Engine, name string) (*larderv1.DescribeJobResponse, error) {
		return e.DescribeJob(as(t, 61001), &larderv1.DescribeJobRequest{Name: name})
	}
	died("registered", func(t *testing.T, e *engine.Engine) {
		for _, name := range []string{"a", "b"} {
			if _, err := e.RegisterJob(as(t, 61001), &larderv1.RegisterJobRequest{Spec: spec(name, dir, 4)}); err != nil {
				t.Fatal(err)
			}
		}
	})
	died("back", func(t *testing.T, e *engine.Engine) {
		if d, err := describe(t, e, "a"); err != nil || d.GetJob().GetOwner() != 61001 {
			t.Errorf("%v, %v", d, err)
		}
		if err := requests(dir)["KillJob"].ask(as(t, 61002), e); reasonOf(err) != errs.Denied {
			t.Errorf("another user: %v", err)
		}
		if err := requests(dir)["KillJob"].ask(as(t, 61001), e); err != nil {
			t.Errorf("its user: %v", err)
		}
	})
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	died("closed", func(t *testing.T, e *engine.Engine) {
		if d, err := describe(t, e, "b"); reasonOf(err) != errs.NotFound {
			t.Errorf("a job on what its user may not read any more came back: %v, %v", d, err)
		}
	})
}
