package engine_test

import (
	"context"
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/durationpb"

	"larder/internal/clock/stepped"
	"larder/internal/engine"
	"larder/internal/errs"
	"larder/internal/record"
	"larder/internal/session/wire"
	"larder/internal/session/workertest"
	larderv1 "larder/proto/larder/v1"
)

// lie makes something that no honest worker makes of its task.
type lie func(w *workertest.Worker, t workertest.Task) error

func done(w *workertest.Worker, task, offset, bytes uint64) error {
	return w.Send(wire.Done, 0, wire.DoneFrame{Task: task, Offset: offset, Bytes: bytes}.Append(nil))
}

// altered is the right record after a change.
func altered(change func(b []byte) []byte) lie {
	return func(w *workertest.Worker, t workertest.Task) error { return w.Done(t.Task, 0, change(sampleOf(t))) }
}

func ofSchema(s record.Schema, values ...record.Content) lie {
	b, err := record.Encode(&s, values)
	if err != nil {
		panic(err)
	}
	return func(w *workertest.Worker, t workertest.Task) error { return w.Done(t.Task, 0, b) }
}

var lies = map[string]struct {
	do   lie
	says string
}{
	"offset": {func(w *workertest.Worker, t workertest.Task) error { return done(w, t.Task, 1<<40, 100) }, "lies outside"},
	"overflow": {func(w *workertest.Worker, t workertest.Task) error {
		return done(w, t.Task, math.MaxUint64-10, 100)
	}, "lies outside"},
	"bytes": {func(w *workertest.Worker, t workertest.Task) error { return done(w, t.Task, 0, math.MaxUint64) },
		"workers.max_record"},
	"end": {func(w *workertest.Worker, t workertest.Task) error { return done(w, t.Task, 1<<20-8, 200) },
		"lies outside"},
	"none": {func(w *workertest.Worker, t workertest.Task) error { return done(w, t.Task, 0, 0) },
		"0 bytes are no record"},
	"magic": {altered(func(b []byte) []byte { b[0]++; return b }), "it begins with"},
	"short": {altered(func(b []byte) []byte { return b[:len(b)-64] }), "the header says"},
	"long field": {altered(func(b []byte) []byte {
		binary.LittleEndian.PutUint64(b[24+16:], 1<<50)
		return b
	}), "field 0"},
	"far field": {altered(func(b []byte) []byte {
		binary.LittleEndian.PutUint64(b[24+8:], 1<<40)
		return b
	}), "field 0"},
	"dims": {ofSchema(record.Schema{Fields: []record.Field{
		{Name: "x", Kind: record.Array, DType: record.Int64, Shape: []int64{5}}, madeSchema.Fields[1]}},
		record.Content{Dims: []int64{5}, Data: make([]byte, 40)}, record.Content{Data: make([]byte, 8)}),
		"field x: shape [5]"},
	"dtype": {ofSchema(record.Schema{Fields: []record.Field{
		{Name: "x", Kind: record.Array, DType: record.Uint64, Shape: []int64{4}}, madeSchema.Fields[1]}},
		record.Content{Dims: []int64{4}, Data: make([]byte, 32)}, record.Content{Data: make([]byte, 8)}),
		"field x: dtype uint64"},
	"fields": {ofSchema(record.Schema{Fields: madeSchema.Fields[:1]},
		record.Content{Dims: []int64{4}, Data: make([]byte, 32)}), "1 fields, the schema says 2"},
}

// serveLies does every task by a lie until the session ends.
func serveLies(w *workertest.Worker, do lie) {
	for {
		t, err := w.Task()
		if err != nil || do(w, t) != nil {
			return
		}
	}
}

func (w *world) liar(job *larderv1.Job, do lie) (leave func()) {
	w.t.Helper()
	k, err := workertest.Attach(w.socket, wire.WorkRequest{Dataset: job.GetSpec().GetDataset(),
		Recipes: []string{job.GetRecipe()}}, 1<<20)
	if err != nil {
		w.t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { serveLies(k, do) })
	leave = sync.OnceFunc(func() {
		_ = k.Conn.Close()
		wg.Wait()
		_ = k.Close()
	})
	w.t.Cleanup(leave)
	return leave
}

// A worker that lies about its records costs a try: beside an honest one nothing is lost, alone it makes bad samples
// whose reason says both sides. Nothing crashes, and nobody else notices.
func TestLiesCostARetry(t *testing.T) {
	w := serve(t)
	for name, x := range lies {
		t.Run(name, func(t *testing.T) {
			w := *w
			w.t = t
			uri := declare(t, w.dial(), "lies "+name, 12)
			job, tr := w.madeJob(madeSpec("honest "+name, uri, 5, func(s *larderv1.JobSpec) { s.OnError = "skip" }))
			leave := w.liar(job, x.do)
			crew := w.workers(1, nil, job)
			m := tr.mustRecords(0)
			exactly(t, "beside an honest worker", m.ids, all(12))
			crew.leave()
			tr.detach()
			leave()
			eventually(t, "the workers have gone", func() bool { return w.stats().GetWorkers().GetAttached() == 0 })
			job, tr = w.madeJob(madeSpec("alone "+name, uri, 5, func(s *larderv1.JobSpec) { s.OnError, s.Seed = "skip", 9 }))
			w.liar(job, x.do)
			m = tr.mustRecords(0)
			if len(m.ids) != 0 || len(m.bad) != 12 || !strings.Contains(m.bad[0].GetReason(), x.says) {
				t.Errorf("alone: %d samples, %d bad: %v", len(m.ids), len(m.bad), m.bad[:min(len(m.bad), 1)])
			}
			tr.detach()
		})
	}
	if st := w.stats().GetWorkers(); st.GetRefused() < uint64(12*len(lies)) || st.GetFailed() < uint64(12*len(lies)) {
		t.Errorf("%v", st)
	}
}

// A worker that breaks the protocol loses its session; its tasks go to others.
func TestRuleBreakersLeave(t *testing.T) {
	w := serve(t)
	uri := declare(t, w.dial(), "rules", 40)
	job, tr := w.madeJob(madeSpec("a", uri, 8))
	breaks := map[string]lie{
		"twice": func(k *workertest.Worker, t workertest.Task) error {
			if err := k.Done(t.Task, 0, sampleOf(t)); err != nil {
				return err
			}
			return k.Done(t.Task, 0, sampleOf(t))
		},
		"foreign": func(k *workertest.Worker, t workertest.Task) error { return done(k, t.Task+1000, 0, 64) },
		"work":    func(k *workertest.Worker, _ workertest.Task) error { return k.Send(wire.Work, 3, []byte("{}")) },
		"no grow": func(k *workertest.Worker, _ workertest.Task) error { return k.Send(wire.Grow, 0, make([]byte, 8)) },
		"no frame": func(k *workertest.Worker, _ workertest.Task) error {
			_, err := k.Conn.Write(make([]byte, 4096))
			return err
		},
		"task": func(k *workertest.Worker, t workertest.Task) error {
			return k.Send(wire.Task, 0, t.Append(nil))
		},
		"failed": func(k *workertest.Worker, _ workertest.Task) error {
			return k.Send(wire.Failed, 0, []byte("12345678{"))
		},
		"dies": func(k *workertest.Worker, _ workertest.Task) error { return k.Conn.CloseWrite() },
	}
	var wg sync.WaitGroup
	for name, do := range breaks {
		k, err := workertest.Attach(w.socket, wire.WorkRequest{Dataset: uri, Recipes: []string{job.GetRecipe()}}, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			defer k.Close()
			task, err := k.Task()
			if err != nil {
				t.Errorf("%s: %v", name, err)
				return
			}
			_ = do(k, task)
			for {
				if _, err := k.Task(); err != nil { // it is shown the door
					return
				}
			}
		})
	}
	got := make(chan *made, 1)
	wg.Go(func() { got <- tr.mustRecords(0) })
	eventually(t, "every breaker has left", func() bool { return w.stats().GetWorkers().GetAttached() == 0 })
	w.workers(2, nil, job)
	wg.Wait()
	m := <-got
	if len(m.bad) > 8 || len(m.ids)+len(m.bad) != 40 { // each blames at most one sample, once: two may meet on one
		t.Errorf("%d samples, %d bad", len(m.ids), len(m.bad))
	}
	tr.detach()
}

// What a worker offers as its memory must be a sealed memfd of the size it says.
func TestMemoryOfWorkersIsChecked(t *testing.T) {
	w := serve(t)
	uri := declare(t, w.dial(), "memory", 4)
	job, tr := w.madeJob(madeSpec("a", uri, 2))
	file, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(1 << 20); err != nil {
		t.Fatal(err)
	}
	memory := func(n int64, seals int) int {
		fd, mem, err := workertest.NewMemory(n, seals)
		if err != nil {
			t.Fatal(err)
		}
		_ = unix.Munmap(mem)
		t.Cleanup(func() { _ = unix.Close(fd) })
		return fd
	}
	for name, x := range map[string]struct {
		fd    int
		bytes uint64
		says  string
	}{
		"unsealed":   {memory(1<<20, 0), 1 << 20, "not sealed"},
		"shrinkable": {memory(1<<20, unix.F_SEAL_GROW|unix.F_SEAL_SEAL), 1 << 20, "not sealed"},
		"small":      {memory(1<<10, workertest.Seals), 1 << 20, "has 1024 bytes"},
		"large":      {memory(1<<20, workertest.Seals), 1 << 50, "cannot be used"},
		"none":       {memory(1<<20, workertest.Seals), 0, "cannot be used"},
		"file":       {int(file.Fd()), 1 << 20, "memfd"},
		"pipe":       {0, 1 << 20, "memfd"},
	} {
		k, err := workertest.Greet(w.socket)
		if err != nil {
			t.Fatal(err)
		}
		err = k.Work(wire.WorkRequest{Dataset: uri, Recipes: []string{job.GetRecipe()}, OutBytes: x.bytes}, x.fd)
		if reasonOf(err) != errs.Invalid || !strings.Contains(err.Error(), x.says) || errs.From(err).Hint == "" {
			t.Errorf("%s: %v", name, err)
		}
		_ = k.Close()
	}
	tr.detach()
}

// WORK is refused with words where it cannot work.
func TestWorkIsRefused(t *testing.T) {
	w := serve(t)
	uri := declare(t, w.dial(), "refused", 4)
	job, tr := w.madeJob(madeSpec("a", uri, 2))
	for name, x := range map[string]struct {
		req    wire.WorkRequest
		reason errs.Reason
	}{
		"recipe":  {wire.WorkRequest{Dataset: uri, Recipes: []string{"0123456789abcdef"}}, errs.NotFound},
		"dataset": {wire.WorkRequest{Dataset: "python:nobody@1", Recipes: []string{job.GetRecipe()}}, errs.NotFound},
		"images":  {wire.WorkRequest{Dataset: "imagefolder:/tmp", Recipes: []string{job.GetRecipe()}}, errs.Invalid},
		"none":    {wire.WorkRequest{Dataset: uri}, errs.Protocol},
	} {
		_, err := workertest.Attach(w.socket, x.req, 1<<16)
		if reasonOf(err) != x.reason || errs.From(err).Hint == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	tr.detach()
}

// givingUp is for recordsWhile: it steps the clock until the daemon has given up the worker that says through hangs
// that it is at a sample, says so through late, and counts.
func (w *world) givingUp(
	clock *stepped.Clock, timeout time.Duration, hangs <-chan uint32, late chan<- struct{}, hung *int,
) func() {
	at := uint32(0)
	return func() {
		select {
		case at = <-hangs:
			*hung++
		default:
		}
		if at == 0 {
			clock.Advance(10 * time.Millisecond) // for what looks whether a client outlives its worker
			return
		}
		d, err := w.engine.DescribeJob(w.t.Context(), &larderv1.DescribeJobRequest{Name: "a"})
		if err != nil {
			w.t.Error(err)
			return
		}
		workers := d.GetJob().GetWorkers()
		switch {
		case !slices.ContainsFunc(workers, func(v *larderv1.WorkerInfo) bool { return v.GetId() == at }):
			at = 0
			late <- struct{}{}
		case len(workers) == 1: // the daemon has seen the ends of those before
			clock.Advance(timeout) // again, if it learns only now that the tasks before are done
		}
	}
}

// A sample that no worker survives is left out after two of them, with the reason; one that fails keeps its traceback;
// one that hangs costs two workers.
func TestPoisonIsLeftOut(t *testing.T) {
	const n, timeout = 24, time.Hour
	mark := uint64(1<<20 - 64) // samples of a batch are answered together: it says which one the worker is at
	clock := stepped.New(time.Unix(1e9, 0))
	w := serve(t, func(c *engine.Config) { c.Clock = clock })
	uri := declare(t, w.dial(), "poison", n)
	job, tr := w.madeJob(madeSpec("a", uri, 6, func(s *larderv1.JobSpec) {
		s.OnError, s.SampleTimeout = "skip", durationpb.New(timeout)
	}))
	var wg sync.WaitGroup
	ctx, end := context.WithCancel(t.Context())
	hangs, late := make(chan uint32), make(chan struct{}, 1)
	// One place of workers, which are started again when they die: with two, the other might be late, too.
	wg.Go(func() {
		for ctx.Err() == nil {
			k, err := workertest.Attach(w.socket, wire.WorkRequest{Dataset: uri, Recipes: []string{job.GetRecipe()},
				Client: "poison", Mark: &mark}, 1<<20)
			if err != nil {
				t.Error(err)
				return
			}
			ended := context.AfterFunc(ctx, func() { _ = k.Conn.Close() })
			_ = k.Serve(func(task workertest.Task) ([]byte, *wire.Failure) {
				atomic.StoreUint64((*uint64)(unsafe.Pointer(&k.Memory[mark])), task.Task)
				switch task.Sample {
				case 3:
					_ = k.Conn.Close()
				case 5:
					return nil, &wire.Failure{Type: "ValueError", Message: "no", Traceback: "Traceback\n  line 7"}
				case 7:
					select {
					case hangs <- k.Result.Worker:
						select {
						case <-late: // now it was given up
						case <-ctx.Done(): // and the epoch ended with that
						}
					case <-ctx.Done():
					}
					_ = k.Conn.Close()
				}
				return sampleOf(task), nil
			})
			ended()
			_ = k.Close()
		}
	})
	hung := 0 // how often a worker has begun with the sample that hangs
	m := tr.recordsWhile(w.givingUp(clock, timeout, hangs, late, &hung))
	if hung != 2 {
		t.Errorf("the sample that hangs cost %d workers", hung)
	}
	end()
	wg.Wait()
	tr.detach()
	want := map[uint64]string{3: "ended while it worked on it", 5: "ValueError: no", 7: "sample_timeout"}
	bad := map[uint64]bool{}
	for _, b := range m.bad {
		bad[b.GetId()] = true
		if says := want[b.GetId()]; says != "" && !strings.Contains(b.GetReason(), says) {
			t.Errorf("sample %d: %s", b.GetId(), b.GetReason())
		}
		if b.GetId() == 5 && b.GetTraceback() != "Traceback\n  line 7" {
			t.Errorf("traceback %q", b.GetTraceback())
		}
	}
	if !bad[3] || !bad[5] || !bad[7] || len(m.ids)+len(m.bad) != n {
		t.Errorf("%d samples, bad: %v", len(m.ids), m.bad)
	}
}

// recordsWhile takes the first epoch, and does something else again and again meanwhile.
func (tr *trainer) recordsWhile(f func()) *made {
	tr.t.Helper()
	var m *made
	ended := make(chan error, 1)
	go func() {
		var err error
		m, err = tr.records(0)
		ended <- err
	}()
	eventually(tr.t, "the epoch ends", func() bool {
		f()
		return len(ended) > 0
	})
	if err := <-ended; err != nil {
		tr.t.Fatal(err)
	}
	return m
}

// A job without workers stalls nobody: images are delivered meanwhile, and its own samples as soon as a worker comes.
func TestJobWithoutWorkersStallsNobody(t *testing.T) {
	w := serve(t)
	const n = 200 // more tasks than the daemon's own workers may have at once
	uri := declare(t, w.dial(), "alone", n)
	job, tr := w.madeJob(madeSpec("python", uri, 50, cached, recipe(pythonOp("m.g", true))))
	got := make(chan *made, 1)
	go func() { m, _ := tr.records(0); got <- m }()
	eventually(t, "tasks wait", func() bool { return w.stats().GetWorkers().GetWaiting() > 20 })
	images := w.train(spec("images", folder(t, 40), 8, recipe(crops...)), 0)
	for epoch := range uint32(2) {
		exactly(t, "images", images.must(epoch).ids, all(40))
	}
	v, err := w.engine.DescribeJob(t.Context(), &larderv1.DescribeJobRequest{Name: "python"})
	if err != nil || v.GetJob().GetWait().GetCause() != "worker" || v.GetJob().GetTasksWaiting() < 20 ||
		!strings.Contains(v.GetJob().GetWait().GetText(), "no process is attached") {
		t.Errorf("%v, %v", v.GetJob().GetWait(), err)
	}
	w.workers(2, nil, job)
	if m := <-got; m == nil {
		t.Error("the epoch failed")
	} else {
		exactly(t, "records", m.ids, all(n))
	}
	v, err = w.engine.DescribeJob(t.Context(), &larderv1.DescribeJobRequest{Name: "python"})
	if err != nil || len(v.GetJob().GetWorkers()) != 2 || v.GetJob().GetWorkers()[0].GetDone() == 0 {
		t.Errorf("%v, %v", v.GetJob().GetWorkers(), err)
	}
	images.detach()
	tr.detach()
}

// When a client leaves with its workers, the followers' workers serve on; a job that has none of its own is served by
// those of others; with none left it waits for the next.
func TestFollowersContinueWithOtherWorkers(t *testing.T) {
	w := serve(t)
	const n = 60
	uri := declare(t, w.dial(), "follow", n)
	jobA, a := w.madeJob(madeSpec("a", uri, 5, shared))
	_, b := w.madeJob(madeSpec("b", uri, 7, shared))
	jobC, c := w.madeJob(madeSpec("c", uri, 9, shared))
	own := w.workers(2, nil, jobA)
	others := w.workers(1, nil, jobC)
	var wg sync.WaitGroup
	follow := func(tr *trainer, epochs uint32) {
		wg.Go(func() {
			for epoch := range epochs {
				m, err := tr.records(epoch)
				if err != nil {
					t.Error(err)
					return
				}
				exactly(t, "follower", m.ids, all(n))
			}
		})
	}
	follow(b, 3)
	follow(c, 3)
	exactly(t, "leader", a.mustRecords(0).ids, all(n))
	a.detach()
	own.leave()
	wg.Wait()
	others.leave()
	m := make(chan *made, 1)
	go func() { x, _ := b.records(3); m <- x }()
	eventually(t, "its tasks wait", func() bool { return w.stats().GetWorkers().GetWaiting() > 0 })
	w.workers(1, nil, jobC)
	if x := <-m; x == nil {
		t.Error("the follower's epoch failed")
	} else {
		exactly(t, "alone", x.ids, all(n))
	}
	b.detach()
	c.detach()
}

// A daemon is replaced under jobs and workers: the dataset and the job are there again, the client continues where it
// was, and workers attach again.
// One name and version has one content: what differs is said. Another user is refused, with words.
// A private dataset goes with its last job.
// A worker's memory grows for a record that it has no room for. An inline worker works for its own process, and for
// others only where no worker process does.
func TestWorkersGrowAndInline(t *testing.T) {
	w := serve(t, func(c *engine.Config) { c.Crew.MaxRecord = 1 << 20 })
	uri := declare(t, w.dial(), "grow", 6)
	job, tr := w.madeJob(madeSpec("a", uri, 3))
	var wg sync.WaitGroup
	k, err := workertest.Attach(w.socket, wire.WorkRequest{Dataset: uri, Recipes: []string{job.GetRecipe()}, Inline: true,
		Window: 1}, 128)
	if err != nil || k.Result.Window != 1 {
		t.Fatal(err, k.Result)
	}
	wg.Go(func() {
		for grown := false; ; grown = true {
			task, err := k.Task()
			if err != nil {
				return
			}
			if !grown {
				if err := k.Grow(1 << 16); err != nil {
					t.Error(err)
				}
			}
			_ = k.Done(task.Task, 4096, sampleOf(task))
		}
	})
	exactly(t, "epoch", tr.mustRecords(0).ids, all(6))
	_ = k.Conn.Close()
	wg.Wait()
	_ = k.Close()
	process := w.workers(1, nil, job)
	stranger, err := workertest.Attach(w.socket, wire.WorkRequest{Dataset: uri, Recipes: []string{job.GetRecipe()},
		Inline: true, PID: 1}, 1<<16)
	if err != nil {
		t.Fatal(err)
	}
	wg.Go(func() {
		if task, err := stranger.Task(); err == nil {
			t.Errorf("an inline worker of another process got %+v", task.TaskFrame)
		}
	})
	exactly(t, "epoch", tr.mustRecords(1).ids, all(6))
	tr.detach()
	_ = stranger.Conn.Close()
	wg.Wait()
	_ = stranger.Close()
	process.leave()
}

// A daemon that stops lets the running epoch end, for which it needs the workers, and then ends their sessions.
func TestWorkersStayUntilTheLastClientLeaves(t *testing.T) {
	w := serve(t)
	const n = 64
	uri := declare(t, w.dial(), "drain", n)
	job, tr := w.madeJob(madeSpec("a", uri, 4))
	crew := w.workers(2, nil, job)
	if err := tr.st.StartEpoch(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	down := make(chan error, 1)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	go func() { down <- w.server.Shutdown(ctx) }()
	eventually(t, "it refuses workers", func() bool {
		k, err := workertest.Attach(w.socket, wire.WorkRequest{Dataset: uri, Recipes: []string{job.GetRecipe()}}, 1<<16)
		if err == nil {
			_ = k.Close()
		}
		return err != nil
	})
	rows := 0
	for rows < n {
		b, err := tr.st.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		rows += b.Rows
		b.Release()
	}
	tr.detach()
	if err := <-down; err != nil {
		t.Errorf("%v", err)
	}
	crew.wg.Wait() // their sessions have ended
}

// What a job on records may not ask is refused, with words, before anything is made of it.
