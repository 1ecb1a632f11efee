package engine_test

import (
	"encoding/binary"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"larder/internal/errs"
	"larder/internal/journal"
	"larder/internal/session/wire"
	"larder/internal/session/workertest"
	"larder/internal/shm"
	larderv1 "larder/proto/larder/v1"
)

func TestRestartUnderWorkers(t *testing.T) {
	fs := journal.NewMemFS()
	const n = 50
	t.Run("before", func(t *testing.T) {
		w := onDisk(t, fs)
		c := w.dial()
		uri := declare(t, c, "again", n)
		job, tr := w.madeJob(madeSpec("a", uri, 5, cached, func(s *larderv1.JobSpec) {
			for i := range uint32(30) {
				s.Indices = binary.LittleEndian.AppendUint32(s.Indices, i)
			}
		}))
		crew := w.workers(2, nil, job)
		exactly(t, "before", tr.mustRecords(0).ids, all(30))
		w.engine.Leave()
		crew.leave()
	})
	t.Run("after", func(t *testing.T) {
		w := onDisk(t, fs)
		r, err := w.engine.InspectDataset(t.Context(), &larderv1.InspectDatasetRequest{Dataset: "python:again@1"})
		if err != nil || r.GetDataset().GetSamples() != n {
			t.Fatalf("%v, %v", r, err)
		}
		v, err := w.engine.DescribeJob(t.Context(), &larderv1.DescribeJobRequest{Name: "a"})
		if err != nil || v.GetJob().GetSubsetSize() != 30 || len(v.GetJob().GetSpec().GetIndices()) != 0 {
			t.Fatalf("%v, %v", v, err)
		}
		w.workers(1, nil, v.GetJob())
		c := w.dial()
		st, err := c.Attach(t.Context(), &larderv1.AttachRequest{Job: "a"})
		if err != nil {
			t.Fatal(err)
		}
		tr := &trainer{t: t, conn: c, st: st}
		exactly(t, "after", tr.mustRecords(st.Info().GetNextEpoch()).ids, all(30))
		tr.detach()
	})
}

func TestDeclarationsAgree(t *testing.T) {
	w := serve(t)
	c := w.dial()
	declare(t, c, "one", 10)
	declare(t, c, "one", 10)
	for says, change := range map[string]func(*larderv1.AddRecordsRequest){
		"it has 10 samples there and 11 here": func(r *larderv1.AddRecordsRequest) { r.Length = 11 },
		`code is "abc" there and "xyz" here`: func(r *larderv1.AddRecordsRequest) {
			r.Fingerprint, _ = structpb.NewStruct(map[string]any{"type": "tests.Dataset", "code": "xyz"})
		},
		"its fields are": func(r *larderv1.AddRecordsRequest) { r.Schema.Fields[0].Dtype = "float32" },
	} {
		parts, _ := structpb.NewStruct(map[string]any{"type": "tests.Dataset", "code": "abc"})
		req := &larderv1.AddRecordsRequest{Name: "one", Version: "1", Length: 10, Fingerprint: parts,
			Schema: madeSchema.Proto()}
		change(req)
		_, err := w.engine.AddRecords(t.Context(), req)
		if reasonOf(err) != errs.AlreadyExists || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
	req := &larderv1.AddRecordsRequest{Name: "one", Version: "1", Length: 10, Schema: madeSchema.Proto()}
	if _, err := w.engine.AddRecords(as(t, 61002), req); reasonOf(err) != errs.Denied {
		t.Errorf("another user: %v", err)
	}
	s := madeSpec("theirs", "python:one@1", 2)
	if _, err := w.engine.RegisterJob(as(t, 61002), &larderv1.RegisterJobRequest{Spec: s}); reasonOf(err) != errs.Denied {
		t.Errorf("a job of another user: %v", err)
	}
	job, tr := w.madeJob(madeSpec("mine", "python:one@1", 2))
	fd, mem, err := workertest.NewMemory(1<<16, workertest.Seals)
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Munmap(mem)
	seg, err := shm.MapForeign(fd, 1<<16, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.engine.Work(t.Context(), &wire.WorkRequest{Dataset: "python:one@1", Recipes: []string{job.GetRecipe()}},
		shm.Peer{UID: 61002}, seg, nil)
	if reasonOf(err) != errs.Denied || !strings.Contains(err.Error(), "takes no workers of uid 61002") {
		t.Errorf("a worker of another user: %v", err)
	}
	tr.detach()
}

func TestPrivateDatasetGoesWithItsJob(t *testing.T) {
	w := serve(t)
	uri := declare(t, w.dial(), "PID-1/1", 10, func(r *larderv1.AddRecordsRequest) { r.Private = true })
	job, tr := w.madeJob(madeSpec("a", uri, 5, func(s *larderv1.JobSpec) { s.Epochs = 1 }))
	_, other := w.madeJob(madeSpec("b", uri, 5, func(s *larderv1.JobSpec) { s.Epochs = 1 }))
	w.workers(1, nil, job)
	exactly(t, "a", tr.mustRecords(0).ids, all(10))
	tr.detach()
	if _, ok := w.catalog.Get(uri); !ok {
		t.Error("it went with the first job")
	}
	exactly(t, "b", other.mustRecords(0).ids, all(10))
	other.detach()
	eventually(t, "it is gone", func() bool { _, ok := w.catalog.Get(uri); return !ok })

	// Declared again, and while its last job ends, it is there for the next one; workers find it by its recipe.
	private := func(r *larderv1.AddRecordsRequest) { r.Private = true }
	declare(t, w.dial(), "PID-1/1", 10, private)
	_, third := w.madeJob(madeSpec("c", uri, 5, func(s *larderv1.JobSpec) { s.Epochs = 1 }))
	exactly(t, "c", third.mustRecords(0).ids, all(10)) // by the worker of the first job
	declare(t, w.dial(), "PID-1/1", 10, private)
	third.detach()
	eventually(t, "job c has ended", func() bool {
		j, err := w.engine.DescribeJob(t.Context(), &larderv1.DescribeJobRequest{Name: "c"})
		return err == nil && j.GetJob().GetState() == larderv1.JobState_JOB_STATE_DONE
	})
	_, fourth := w.madeJob(madeSpec("d", uri, 5, func(s *larderv1.JobSpec) { s.Epochs = 1 }))
	exactly(t, "d", fourth.mustRecords(0).ids, all(10))
	fourth.detach()
	eventually(t, "it is gone again", func() bool { _, ok := w.catalog.Get(uri); return !ok })
}

func privately(r *larderv1.AddRecordsRequest) { r.Private = true }

func TestPrivateDatasetGoesWithAFailedRegistration(t *testing.T) {
	w := serve(t)
	c := w.dial()
	bad := func(s *larderv1.JobSpec) { s.Cache = "all" }
	there := func(uri string) bool { _, ok := w.catalog.Get(uri); return ok }
	uri := declare(t, c, "PID-1/1", 10, privately)
	theirs := &larderv1.RegisterJobRequest{Spec: madeSpec("x", uri, 5)}
	if _, err := w.engine.RegisterJob(as(t, 61002), theirs); reasonOf(err) != errs.Denied {
		t.Error("another user registered a job")
	}
	if !there(uri) {
		t.Fatal("another user removed it")
	}
	if _, err := register(c, madeSpec("a", uri, 5, bad)); reasonOf(err) != errs.Invalid {
		t.Fatal(err)
	}
	if there(uri) {
		t.Error("it stays, and no job uses it")
	}
	declare(t, c, "PID-1/1", 10, privately)
	declare(t, c, "PID-1/1", 10, privately) // by two Loaders: what one cannot use the other can
	if _, err := register(c, madeSpec("a", uri, 5, bad)); reasonOf(err) != errs.Invalid {
		t.Fatal(err)
	}
	job, tr := w.madeJob(madeSpec("b", uri, 5, func(s *larderv1.JobSpec) { s.Epochs = 1 }))
	declare(t, c, "PID-1/1", 10, privately)
	if _, err := register(c, madeSpec("a", uri, 5, bad)); reasonOf(err) != errs.Invalid {
		t.Fatal(err)
	}
	declare(t, c, "PID-1/1", 10, privately) // as another rank of a job does
	if _, err := register(c, madeSpec("b", uri, 5, func(s *larderv1.JobSpec) { s.Epochs = 1 })); err != nil {
		t.Fatal(err)
	}
	w.workers(1, nil, job)
	exactly(t, "b", tr.mustRecords(0).ids, all(10))
	tr.detach()
	eventually(t, "it is gone", func() bool { return !there(uri) })
}

func TestPrivateDatasetsWithoutJobsEndWithTheDaemon(t *testing.T) {
	fs := journal.NewMemFS()
	used, unused, named := "python:PID-1/1@1", "python:PID-1/2@1", "python:named@1"
	t.Run("before", func(t *testing.T) {
		w := onDisk(t, fs)
		c := w.dial()
		declare(t, c, "PID-1/1", 10, privately)
		declare(t, c, "PID-1/2", 10, privately)
		declare(t, c, "named", 10)
		if _, err := register(c, madeSpec("a", used, 5)); err != nil {
			t.Fatal(err)
		}
		w.engine.Leave()
	})
	for _, life := range []string{"after", "once more"} {
		t.Run(life, func(t *testing.T) {
			w := onDisk(t, fs)
			w.dial()
			for uri, want := range map[string]bool{used: true, unused: false, named: true} {
				if _, ok := w.catalog.Get(uri); ok != want {
					t.Errorf("%s is there: %v", uri, ok)
				}
			}
			w.engine.Leave()
		})
	}
}

func TestBadSpecsOnRecords(t *testing.T) {
	w := serve(t)
	c := w.dial()
	uri := declare(t, c, "specs", 10)
	u32 := func(ids ...uint32) (b []byte) {
		for _, id := range ids {
			b = binary.LittleEndian.AppendUint32(b, id)
		}
		return b
	}
	for says, change := range map[string]func(*larderv1.JobSpec){
		"no schema":                  func(s *larderv1.JobSpec) { s.Schema = nil },
		"no fields":                  func(s *larderv1.JobSpec) { s.Schema = &larderv1.Schema{} },
		"unknown kind":               func(s *larderv1.JobSpec) { s.Schema.Fields[0].Kind = "tensor" },
		"cache is":                   func(s *larderv1.JobSpec) { s.Cache = "all" },
		"0 fields of the records":    recipe(op("Resize", map[string]any{"size": 3.0})),
		"has no name":                recipe(pythonOp("", false)),
		"have 3 bytes":               func(s *larderv1.JobSpec) { s.Indices = []byte{1, 2, 3} },
		"id 1 follows 1":             func(s *larderv1.JobSpec) { s.Indices = u32(1, 1) },
		"sample 10 is not in":        func(s *larderv1.JobSpec) { s.Indices = u32(1, 10) },
		"are the most":               func(s *larderv1.JobSpec) { s.Indices = make([]byte, 4<<21+4) },
		"both indices and":           func(s *larderv1.JobSpec) { s.Indices, s.Subset = u32(1), "id < 3" },
		"sample_timeout is":          func(s *larderv1.JobSpec) { s.SampleTimeout = durationpb.New(-1) },
		"no dataset \"python:no@1\"": func(s *larderv1.JobSpec) { s.Dataset = "python:no@1" },
	} {
		_, err := register(c, madeSpec("bad", uri, 2, change))
		if err == nil || !strings.Contains(err.Error(), says) || errs.From(err).Hint == "" {
			t.Errorf("%s: %v", says, err)
		}
	}
	for says, req := range map[string]*larderv1.AddRecordsRequest{
		"1 to 67108864 samples": {Name: "n", Version: "1"},
		"a version without @":   {Name: "n", Version: "1@2", Length: 3},
		"name of 1 to 256":      {Length: 3},
		"printable":             {Name: "a\nb", Length: 3},
		"two fields": {Name: "n", Length: 3, Schema: &larderv1.Schema{
			Fields: append(madeSchema.Proto().GetFields(), madeSchema.Proto().GetFields()...)}},
	} {
		if _, err := w.engine.AddRecords(t.Context(), req); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
	_, err := register(c, spec("folder", t.TempDir(), 2, func(s *larderv1.JobSpec) { s.Cache = "items" }))
	const says = `cache belongs to datasets made by workers, and dataset "imagefolder:`
	if err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), " is not one") {
		t.Errorf("%v", err)
	}
}
