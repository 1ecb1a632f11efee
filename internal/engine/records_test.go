package engine_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"larder/client"
	"larder/internal/record"
	"larder/internal/session/wire"
	"larder/internal/session/workertest"
	larderv1 "larder/proto/larder/v1"
)

// Samples of the tests: x = [sample, seed, instance, steps that were run], y = a number.
var madeSchema = record.Schema{Fields: []record.Field{
	{Name: "x", Kind: record.Array, DType: record.Int64, Shape: []int64{4}},
	{Name: "y", Kind: record.Scalar, DType: record.Float64},
}}

// declare declares a dataset.
func declare(t testing.TB, c *client.Conn, name string, n int, change ...func(*larderv1.AddRecordsRequest)) string {
	t.Helper()
	parts, _ := structpb.NewStruct(map[string]any{"type": "tests.Dataset", "code": "abc"})
	req := &larderv1.AddRecordsRequest{Name: name, Version: "1", Length: uint64(n), Fingerprint: parts,
		Schema: madeSchema.Proto()}
	for _, f := range change {
		f(req)
	}
	resp := new(larderv1.AddRecordsResponse)
	if err := c.Call(context.Background(), "AddRecords", req, resp); err != nil {
		t.Fatal(err)
	}
	return resp.GetUri()
}

// madeSpec is a job on a dataset that workers make.
func madeSpec(name, uri string, batch uint32, change ...func(*larderv1.JobSpec)) *larderv1.JobSpec {
	s := &larderv1.JobSpec{Name: name, Dataset: uri, BatchSize: batch, Shuffle: true, Seed: 7,
		Schema: madeSchema.Proto(), SampleTimeout: durationpb.New(time.Minute)}
	for _, f := range change {
		f(s)
	}
	return s
}

func pythonOp(name string, random bool) *larderv1.Op {
	o := op(name, map[string]any{"version": "1", "random": random, "source": "00", "args": "00"})
	o.Kind = "python"
	return o
}

func cached(s *larderv1.JobSpec) { s.Cache = "items" }
func shared(s *larderv1.JobSpec) { s.Share = "augmented" }

// sampleOf makes the record of a task as the tests' dataset does.
func sampleOf(t workertest.Task) []byte {
	x := [4]int64{int64(t.Sample), int64(t.Seed), int64(t.Instance), int64(t.Last - t.First)}
	if t.Bytes > 0 {
		v, err := record.Open(t.Input)
		if err != nil {
			panic(err)
		}
		for i, f := range v.All {
			if i == 0 && int64(binary.LittleEndian.Uint64(f.Data)) != x[0] {
				panic(fmt.Sprintf("the input is of sample %d, the task of %d", binary.LittleEndian.Uint64(f.Data), x[0]))
			}
		}
	}
	var b []byte
	for _, n := range x {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	y := binary.LittleEndian.AppendUint64(nil, math.Float64bits(float64(t.Sample)/2))
	r, err := record.Encode(&madeSchema, []record.Content{{Dims: []int64{4}, Data: b}, {Data: y}})
	if err != nil {
		panic(err)
	}
	return r
}

// crewOf is workers of a test.
type crewOf struct {
	mu    sync.Mutex
	tasks []wire.TaskFrame
	wg    sync.WaitGroup
	all   []*workertest.Worker
}

func (c *crewOf) note(t wire.TaskFrame) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tasks = append(c.tasks, t)
}

func (c *crewOf) seen() []wire.TaskFrame {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]wire.TaskFrame(nil), c.tasks...)
}

// workers starts n workers for the recipes of jobs, which do as work says; nil = sampleOf. They leave with the test.
func (w *world) workers(
	n int, work func(workertest.Task) ([]byte, *wire.Failure), jobs ...*larderv1.Job,
) *crewOf {
	w.t.Helper()
	c := &crewOf{}
	req := wire.WorkRequest{Dataset: jobs[0].GetSpec().GetDataset(), Client: "test"}
	for _, j := range jobs {
		req.Recipes = append(req.Recipes, j.GetRecipe())
	}
	for i := range n {
		req := req
		if req.Batch = i%2 == 0; req.Batch { // every second one takes several tasks at once
			req.Mark, req.Window = new(uint64(1<<20-8)), 64
		}
		k, err := workertest.Attach(w.socket, req, 1<<20)
		if err != nil {
			w.t.Fatal(err)
		}
		c.all = append(c.all, k)
		c.wg.Go(func() {
			_ = k.Serve(func(t workertest.Task) ([]byte, *wire.Failure) {
				c.note(t.TaskFrame)
				if work != nil {
					return work(t)
				}
				return sampleOf(t), nil
			})
		})
	}
	w.t.Cleanup(func() { c.leave() })
	return c
}

// leave ends the workers.
func (c *crewOf) leave() {
	for _, k := range c.all {
		_ = k.Conn.Close()
	}
	c.wg.Wait()
	for _, k := range c.all {
		_ = k.Close()
	}
	c.all = nil
}

// madeJob registers a job and attaches its only rank.
func (w *world) madeJob(s *larderv1.JobSpec) (*larderv1.Job, *trainer) {
	w.t.Helper()
	c := w.dial()
	r, err := register(c, s)
	if err != nil {
		w.t.Fatal(err)
	}
	st, err := c.Attach(w.t.Context(), &larderv1.AttachRequest{Job: s.GetName()})
	if err != nil {
		w.t.Fatal(err)
	}
	return r.GetJob(), &trainer{t: w.t, conn: c, st: st}
}

// made is what a client got of one epoch of records.
type made struct {
	ids []int64
	x   map[int64][4]int64
	bad []*larderv1.QuarantinedSample
	end *larderv1.EpochEnd
}

// records takes a whole epoch of records, and checks each against its index.
func (tr *trainer) records(n uint32) (*made, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if err := tr.st.StartEpoch(ctx, n); err != nil {
		return nil, fmt.Errorf("epoch %d: %w", n, err)
	}
	out := &made{x: map[int64][4]int64{}}
	for {
		b, err := tr.st.Next(ctx)
		if b == nil {
			out.end = tr.st.End()
			if out.end == nil {
				return out, fmt.Errorf("epoch %d: %w", n, err)
			}
			return out, nil
		}
		x, y := b.Field("x"), b.Field("y")
		for i, id := range b.Index() {
			var v [4]int64
			for k := range v {
				v[k] = int64(binary.LittleEndian.Uint64(x[32*i+8*k:]))
			}
			if f := math.Float64frombits(binary.LittleEndian.Uint64(y[8*i:])); v[0] != id || f != float64(id)/2 {
				return out, fmt.Errorf("row %d is sample %d: x = %v, y = %v", i, id, v, f)
			}
			out.ids, out.x[id] = append(out.ids, id), v
		}
		out.bad = append(out.bad, b.Report()...)
		b.Release()
	}
}

func (tr *trainer) mustRecords(n uint32) *made {
	tr.t.Helper()
	m, err := tr.records(n)
	if err != nil {
		tr.t.Fatal(err)
	}
	return m
}

// Each call of an uncached dataset is an instance: made once for each epoch, with the job's seed, by any worker.
func TestRecordsAreMadeByWorkers(t *testing.T) {
	w := serve(t)
	const n = 41
	uri := declare(t, w.dial(), "plain", n)
	if uri != "python:plain@1" {
		t.Fatal(uri)
	}
	job, tr := w.madeJob(madeSpec("a", uri, 7, recipe(pythonOp("m.f", false), pythonOp("m.g", true))))
	crew := w.workers(2, nil, job)
	for epoch := range uint32(2) {
		m := tr.mustRecords(epoch)
		exactly(t, "epoch", m.ids, all(n))
		for id, x := range m.x {
			if x != [4]int64{id, 7, int64(epoch), 3} {
				t.Fatalf("epoch %d, sample %d: %v", epoch, id, x)
			}
		}
	}
	if got := len(crew.seen()); got < 2*n || got > 3*n { // the next epoch is prepared ahead
		t.Errorf("%d tasks", got)
	}
	tr.detach()
}

// A cached item is made once for all jobs and epochs, and comes from the tier again.
func TestCachedItemsAreMadeOnce(t *testing.T) {
	w := serve(t)
	const n = 30
	uri := declare(t, w.dial(), "items", n)
	job, a := w.madeJob(madeSpec("a", uri, 7, cached))
	_, b := w.madeJob(madeSpec("b", uri, 4, cached))
	crew := w.workers(2, nil, job)
	var wg sync.WaitGroup
	for _, tr := range []*trainer{a, b} {
		wg.Go(func() {
			for epoch := range uint32(3) {
				if m, err := tr.records(epoch); err != nil {
					t.Error(err)
				} else {
					exactly(t, "epoch", m.ids, all(n))
				}
			}
		})
	}
	wg.Wait()
	tasks := crew.seen()
	if len(tasks) != n {
		t.Errorf("%d tasks for %d samples", len(tasks), n)
	}
	for _, k := range tasks {
		if k.First != 0 || k.Last != 1 || k.Seed != 0 || k.Instance != 0 {
			t.Fatalf("task %+v", k)
		}
	}
	a.detach()
	b.detach()
}

// Random steps run on cached items, which come to the worker as input.
func TestRandomStepsRunOnCachedItems(t *testing.T) {
	w := serve(t)
	const n = 20
	uri := declare(t, w.dial(), "steps", n)
	job, tr := w.madeJob(madeSpec("a", uri, 6, cached, recipe(pythonOp("m.f", false), pythonOp("m.g", true))))
	crew := w.workers(2, nil, job)
	for epoch := range uint32(3) {
		m := tr.mustRecords(epoch)
		exactly(t, "epoch", m.ids, all(n))
		for id, x := range m.x {
			if x != [4]int64{id, 7, int64(epoch), 1} {
				t.Fatalf("epoch %d, sample %d: %v", epoch, id, x)
			}
		}
	}
	items := 0
	for _, k := range crew.seen() {
		switch {
		case k.First == 0 && k.Last == 2 && k.Seed == 0 && k.Bytes == 0:
			items++
		case k.First == 2 && k.Last == 3 && k.Seed == 7 && k.Bytes > 0:
		default:
			t.Fatalf("task %+v", k)
		}
	}
	if items != n {
		t.Errorf("%d items were made of %d samples", items, n)
	}
	tr.detach()
}

// Jobs that share what is not cached get each instance once, and it is made once for all of them.
func TestSharedInstancesAreMadeOnce(t *testing.T) {
	w := serve(t)
	const n = 32
	uri := declare(t, w.dial(), "shared", n)
	job, a := w.madeJob(madeSpec("a", uri, 8, shared))
	_, b := w.madeJob(madeSpec("b", uri, 8, shared))
	crew := w.workers(2, nil, job)
	var wg sync.WaitGroup
	got := make([]*made, 2)
	for i, tr := range []*trainer{a, b} {
		wg.Go(func() {
			var err error
			if got[i], err = tr.records(0); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	exactly(t, "a", got[0].ids, all(n))
	exactly(t, "b", got[1].ids, all(n))
	firsts := 0
	for _, k := range crew.seen() {
		if k.Instance == 0 {
			firsts++
		}
	}
	if firsts > n+n/4 {
		t.Errorf("instance 0 was made %d times for %d samples and two jobs", firsts, n)
	}
	a.detach()
	b.detach()
}

// The worker of examples/worker, a process of its own, serves a job. docs/protocol.md says how short it is.
func TestExampleWorker(t *testing.T) {
	text, err := os.ReadFile("../../examples/worker/main.go")
	if lines := bytes.Count(text, []byte("\n")); err != nil || lines > 100 {
		t.Errorf("it has %d lines, error %v", lines, err)
	}
	bin := filepath.Join(t.TempDir(), "worker")
	if out, err := exec.Command("go", "build", "-o", bin, "larder/examples/worker").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	w := serve(t)
	squares := record.Schema{Fields: []record.Field{{Name: "square", Kind: record.Scalar, DType: record.Int64}}}
	c := w.dial()
	uri := declare(t, c, "squares", 100, func(r *larderv1.AddRecordsRequest) { r.Schema = squares.Proto() })
	job, tr := w.madeJob(madeSpec("a", uri, 16, func(s *larderv1.JobSpec) { s.Schema = squares.Proto() }))
	var stderr bytes.Buffer
	run := exec.Command(bin, w.socket, uri, job.GetRecipe())
	run.Stderr = &stderr
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = run.Process.Kill(), run.Wait() }()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if err := tr.st.StartEpoch(ctx, 0); err != nil {
		t.Fatal(err)
	}
	var ids []int64
	for {
		b, err := tr.st.Next(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%v; the worker says %q", err, stderr.String())
		}
		for i, id := range b.Index() {
			if got := int64(binary.LittleEndian.Uint64(b.Field("square")[8*i:])); got != id*id {
				t.Fatalf("the square of %d is %d", id, got)
			}
			ids = append(ids, id)
		}
		b.Release()
	}
	exactly(t, "squares", ids, all(100))
	tr.detach()
}
