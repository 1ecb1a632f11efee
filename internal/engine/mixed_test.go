package engine_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"larder/client"
	"larder/internal/clock"
	"larder/internal/engine"
	"larder/internal/ident"
	"larder/internal/journal"
	"larder/internal/prep/fields"
	"larder/internal/record"
	"larder/internal/session/wire"
	"larder/internal/session/workertest"
	"larder/internal/xrand"
	larderv1 "larder/proto/larder/v1"
)

// Samples whose steps are done by turns: by workers of clients and by the daemon's own.
const (
	mixedSide = 24 // pixels of an item
	mixedCrop = 16 // of what the job is handed
)

func mixedSchema(side int64) record.Schema {
	return record.Schema{Fields: []record.Field{
		{Name: "image", Kind: record.Array, DType: record.Uint8, Shape: []int64{side, side, 3}},
		{Name: "id", Kind: record.Scalar, DType: record.Int64},
		{Name: "instance", Kind: record.Scalar, DType: record.Int64}, // that the last step was told
	}}
}

// mixedRecord says what steps in Python leave.
var mixedRecord = op(fields.OpName, map[string]any{"image": "image", "record": []any{
	map[string]any{"name": "image", "kind": "array", "dtype": "uint8", "shape": []any{-1.0, -1.0, 3.0}},
	map[string]any{"name": "id", "kind": "scalar", "dtype": "int64"},
	map[string]any{"name": "instance", "kind": "scalar", "dtype": "int64"},
}})

// mixedOps are the steps: Python ones before, between and behind built-in ones.
var mixedOps = []*larderv1.Op{
	pythonOp("m.sharpen", false), mixedRecord, op("RandomHorizontalFlip", nil), pythonOp("m.noise", true),
	mixedRecord, op("RandomResizedCrop", map[string]any{"size": float64(mixedCrop)}), pythonOp("m.last", false),
}

// mixed does steps of a task as the job's Python does: each changes every pixel, by what the step may depend on.
func mixed(t workertest.Task) []byte {
	image, side := make([]byte, mixedSide*mixedSide*3), int64(mixedSide)
	if t.First > 0 {
		v, err := record.Open(t.Input)
		if err != nil {
			panic(err)
		}
		for i, f := range v.All {
			if i == 0 {
				image, side = slices.Clone(f.Data), f.Dims()[0]
			} else if id := binary.LittleEndian.Uint64(f.Data); i == 1 && id != t.Sample {
				panic(fmt.Sprintf("the input is of sample %d, the task of %d", id, t.Sample))
			}
		}
	}
	for s := t.First; s < t.Last; s++ {
		key := xrand.Hash(uint64(s), t.Sample, t.Seed, uint64(t.Instance))
		for i := range image {
			image[i] = image[i]*3 + byte(xrand.Hash(key, uint64(i)))
		}
	}
	schema := mixedSchema(side)
	r, err := record.Encode(&schema, []record.Content{{Dims: []int64{side, side, 3}, Data: image},
		{Data: binary.LittleEndian.AppendUint64(nil, t.Sample)},
		{Data: binary.LittleEndian.AppendUint64(nil, uint64(t.Instance))}})
	if err != nil {
		panic(err)
	}
	return r
}

// shift is workers of one job, each replaced when it ends.
type shift struct {
	w     *world
	job   *larderv1.Job
	kills int // of a hundred tasks, at random; and at any time
	seed  uint64
	stop  atomic.Bool
	wg    sync.WaitGroup
	dead  atomic.Int64

	mu  sync.Mutex
	now []*workertest.Worker
}

func (w *world) shift(job *larderv1.Job, workers, kills int) *shift {
	s := &shift{w: w, job: job, kills: kills, seed: 11}
	for i := range workers {
		s.wg.Go(func() { s.chair(uint64(i)) })
	}
	if kills > 0 {
		s.wg.Go(s.killer)
	}
	w.t.Cleanup(s.leave)
	return s
}

// chair has a worker, and another one when that has ended. Each is of a client of its own: such deaths count for no
// sample.
func (s *shift) chair(n uint64) {
	r := xrand.New(s.seed, n)
	for life := 0; !s.stop.Load(); life++ {
		k, err := workertest.Attach(s.w.socket, wire.WorkRequest{Dataset: s.job.GetSpec().GetDataset(),
			Client: fmt.Sprintf("%d/%d", n, life), Recipes: []string{s.job.GetRecipe()}}, 1<<18)
		if err != nil {
			if !s.stop.Load() {
				s.w.t.Errorf("attach: %v", err)
			}
			return
		}
		s.mu.Lock()
		s.now = append(s.now, k)
		s.mu.Unlock()
		if s.stop.Load() {
			_ = k.Conn.Close()
		}
		_ = k.Serve(func(t workertest.Task) ([]byte, *wire.Failure) {
			if r.IntN(100) < s.kills {
				s.dead.Add(1)
				_ = k.Conn.Close()
			}
			return mixed(t), nil
		})
		s.mu.Lock()
		s.now = slices.DeleteFunc(s.now, func(o *workertest.Worker) bool { return o == k })
		s.mu.Unlock()
		_ = k.Close()
	}
}

// killer ends workers at any time, whatever they do.
func (s *shift) killer() {
	r := xrand.New(s.seed, 99)
	for !s.stop.Load() {
		time.Sleep(time.Duration(r.IntN(4000)) * time.Microsecond)
		s.mu.Lock()
		if len(s.now) > 0 {
			s.dead.Add(1)
			_ = s.now[r.IntN(len(s.now))].Conn.Close()
		}
		s.mu.Unlock()
	}
}

func (s *shift) leave() {
	s.stop.Store(true)
	s.mu.Lock()
	for _, k := range s.now {
		_ = k.Conn.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

// mixedRow names what a job is given of a sample.
type mixedRow struct{ id, instance int64 }

// mixedGot is what a job got.
type mixedGot struct {
	batches [][]byte // with all bytes
	ids     [][]int64
	rows    map[mixedRow]string
}

// batchesOf takes whole epochs.
func (tr *trainer) batchesOf(epochs uint32) (got mixedGot, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	got.rows = map[mixedRow]string{}
	for e := range epochs {
		if err := tr.st.StartEpoch(ctx, e); err != nil {
			return got, err
		}
		var ids []int64
		for {
			b, err := tr.st.Next(ctx)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return got, fmt.Errorf("epoch %d: %w", e, err)
			}
			if n := len(b.Report()); n > 0 {
				return got, fmt.Errorf("epoch %d: %d samples are bad: %v", e, n, b.Report()[0])
			}
			const size = mixedCrop * mixedCrop * 3
			image := b.Field("image")[:b.Rows*size]
			for i, id := range b.Index() {
				row := mixedRow{id, int64(binary.LittleEndian.Uint64(b.Field("instance")[8*i:]))}
				if said := int64(binary.LittleEndian.Uint64(b.Field("id")[8*i:])); said != id {
					return got, fmt.Errorf("row %d of sample %d is of sample %d", i, id, said)
				}
				if got.rows[row] != "" {
					return got, fmt.Errorf("%+v came twice", row)
				}
				got.rows[row] = string(image[i*size : (i+1)*size])
			}
			ids = append(ids, b.Index()...)
			got.batches = append(got.batches, slices.Clone(image))
			b.Release()
		}
		got.ids = append(got.ids, ids)
	}
	return got, nil
}

// hurry has what waits to learn whether a client outlives its worker wait less.
func hurry(c *engine.Config) {
	c.Clock = hasty{clock.Real()}
}

// hasty calls functions after a hundredth of their time.
type hasty struct{ clock.Clock }

func (c hasty) AfterFunc(d time.Duration, f func()) clock.Timer { return c.Clock.AfterFunc(d/100, f) }

func declareMixed(t *testing.T, w *world, n int) (uri string) {
	t.Helper()
	return declare(t, w.dial(), "mixed", n, func(r *larderv1.AddRecordsRequest) {
		s := mixedSchema(record.Ragged)
		r.Schema = s.Proto()
	})
}

// mixedRun is jobs on one dataset, with workers that are killed now and then, or not. It returns what each got.
func mixedRun(t *testing.T, n, kills int, epochs []uint32, change ...func(*larderv1.JobSpec)) []mixedGot {
	t.Helper()
	w := serve(t, hurry)
	uri := declareMixed(t, w, n)
	trainers, jobs, got := make([]*trainer, len(epochs)), make([]*larderv1.Job, len(epochs)), make([]mixedGot, len(epochs))
	for i := range trainers {
		jobs[i], trainers[i] = w.madeJob(madeSpec(fmt.Sprint("job", i), uri, uint32(7+4*i), append(change,
			recipe(mixedOps...), func(s *larderv1.JobSpec) {
				out := mixedSchema(mixedCrop)
				s.Schema, s.Order, s.SampleTimeout = out.Proto(), "fixed", durationpb.New(0)
			})...))
	}
	crew := w.shift(jobs[0], 3, kills)
	var wg sync.WaitGroup
	for i, tr := range trainers {
		wg.Go(func() {
			var err error
			if got[i], err = tr.batchesOf(epochs[i]); err != nil {
				t.Error(err)
			}
			for _, e := range got[i].ids {
				exactly(t, fmt.Sprint("job ", i), e, all(n))
			}
		})
	}
	wg.Wait()
	for _, tr := range trainers {
		tr.detach()
	}
	crew.leave()
	if st := w.stats().GetWorkers(); kills > 0 && (crew.dead.Load() == 0 || st.GetRetries() == 0) || st.GetFailed() > 0 {
		t.Errorf("%d workers were killed: %v", crew.dead.Load(), st)
	}
	w.nothingIsHeld()
	if t.Failed() {
		t.FailNow()
	}
	return got
}

// nothingIsHeld looks, after all jobs have ended, for what they should have given back.
func (w *world) nothingIsHeld() {
	w.t.Helper()
	eventually(w.t, "all is given back", func() bool {
		copies, rings := w.engine.Held()
		st := w.stats().GetWorkers()
		return copies == 0 && rings == 0 && st.GetAttached() == 0 && st.GetWaiting() == 0
	})
	for _, f := range []ident.Form{ident.Decoded, ident.Augmented} {
		eventually(w.t, "tier "+f.String()+" holds what is known", func() bool {
			known, err := w.engine.Entries(w.t.Context(), f)
			st := w.store.Stats(f)
			return err == nil && st.Entries == known && (st.Used > 0) == (known > 0)
		})
	}
}

// Steps that workers and the daemon do by turns give the same bits whether workers are killed or not, in the same
// batches, each sample once; and what was under way when they died is given back.
func TestKilledWorkersBetweenStages(t *testing.T) {
	n := 60
	if testing.Short() {
		n = 40
	}
	for name, change := range map[string][]func(*larderv1.JobSpec){"none": nil, "items": {cached}} {
		t.Run(name, func(t *testing.T) {
			calm := mixedRun(t, n, 0, []uint32{2, 5}, change...)
			killed := mixedRun(t, n, 12, []uint32{2, 2}, change...)
			for i, got := range killed {
				for b := range got.batches {
					if !bytes.Equal(calm[i].batches[b], got.batches[b]) {
						t.Errorf("job %d, batch %d differs", i, b)
					}
				}
			}
			// Which instance an epoch takes depends on where the others of the group are; what it holds does not.
			for i, got := range mixedRun(t, n, 12, []uint32{2, 2}, append(change, shared)...) {
				for row, image := range got.rows {
					if want, there := calm[1].rows[row]; !there || image != want {
						t.Errorf("job %d of a group: %+v differs, or is none", i, row)
					}
				}
			}
		})
	}
}

// A daemon dies at any moment, under workers that are killed now and then. The next one continues every job where its
// client is, with the same bytes under the same numbers, once workers have come back.
func TestDaemonDiesUnderWorkers(t *testing.T) {
	const n, lives = 50, 3
	for name, change := range map[string]func(*larderv1.JobSpec){"none": nil, "items": cached, "shared": shared} {
		r := xrand.New(uint64(len(name)), 5)
		fs := journal.NewMemFS()
		var clients []*survivor
		for i, order := range []string{"stratified", "fixed"} {
			c := &survivor{seen: map[string][]byte{}, bytes: func(b *client.Batch, row int) []byte {
				const size = mixedCrop * mixedCrop * 3
				return b.Field("image")[row*size : (row+1)*size]
			}}
			c.spec = madeSpec(order, "python:mixed@1", uint32(5+3*i), recipe(mixedOps...), func(s *larderv1.JobSpec) {
				out := mixedSchema(mixedCrop)
				s.Schema, s.Order, s.SampleTimeout = out.Proto(), order, durationpb.New(0)
			})
			if change != nil {
				change(c.spec)
			}
			clients = append(clients, c)
		}
		for life := range lives {
			t.Run(fmt.Sprint(name, " life ", life), func(t *testing.T) {
				w := onDisk(t, fs, hurry)
				if life == 0 {
					declareMixed(t, w, n)
				}
				fs = liveUnderWorkers(t, w, fs, clients, r, life == lives-1)
			})
		}
		for _, c := range clients {
			want := all(n)
			for _, id := range all(n) {
				want = append(want, 1<<32|id)
			}
			exactly(t, name+" "+c.spec.GetName(), c.ids, want)
		}
	}
}

// liveUnderWorkers is one life of a daemon: clients take some batches, or all that are left, and the disk is as its
// death leaves it.
func liveUnderWorkers(
	t *testing.T, w *world, fs *journal.MemFS, clients []*survivor, r *xrand.Rand, last bool,
) *journal.MemFS {
	t.Helper()
	var jobs []*larderv1.Job
	clients = slices.DeleteFunc(slices.Clone(clients), func(c *survivor) bool { return c.done })
	for _, c := range clients {
		c.t = t
		c.attach(w)
		job, err := register(w.dial(), c.spec)
		if err != nil {
			t.Fatal(err)
		}
		jobs = append(jobs, job.GetJob())
	}
	if len(jobs) > 0 {
		w.shift(jobs[0], 2, 8)
	}
	problems := make(chan error)
	for _, c := range clients {
		k, use := 1+r.IntN(8), r.IntN(2) == 0
		if last {
			k, use = 1000, true
		}
		go func() { problems <- c.take(k, use, 2) }()
	}
	for range clients {
		if err := <-problems; err != nil {
			t.Error(err)
		}
	}
	return diedUnder(fs, r, clients)
}
