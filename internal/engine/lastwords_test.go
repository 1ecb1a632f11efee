package engine_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"larder/internal/engine"
	"larder/internal/errs"
	"larder/internal/session/wire"
	"larder/internal/session/workertest"
	larderv1 "larder/proto/larder/v1"
)

// A worker is told what a record and its memory may have, and gets exactly that.
func TestWorkersAreToldTheLimits(t *testing.T) {
	for limit, memory := range map[int64]int64{1 << 20: 4 << 20, 100_001: 400_004, 512: 64 << 10} {
		w := serve(t, func(c *engine.Config) { c.Crew.MaxRecord = limit })
		uri := declare(t, w.dial(), "limits", 8)
		job, tr := w.madeJob(madeSpec("a", uri, 4, func(s *larderv1.JobSpec) { s.OnError = "skip" }))
		got := make(chan *made, 1)
		go func() { m, _ := tr.records(0); got <- m }()
		req := wire.WorkRequest{Dataset: uri, Recipes: []string{job.GetRecipe()}}
		k, err := workertest.Attach(w.socket, req, 4096)
		if err != nil {
			t.Fatal(err)
		}
		if r := k.Result; int64(r.MaxRecord) != limit || int64(r.MaxMemory) != memory || r.MaxWords != wire.MaxWords {
			t.Errorf("limit %d: the worker is told %+v", limit, r)
		}
		task, err := k.Task()
		if err != nil {
			t.Fatal(err)
		}
		if err := k.Grow(memory); err != nil {
			t.Fatal(err)
		}
		b := sampleOf(task)
		if err := k.Done(task.Task, int(memory)-len(b), b); err != nil { // it ends where the memory does
			t.Fatal(err)
		}
		other, err := k.Task()
		if err != nil {
			t.Fatalf("limit %d: after memory of %d bytes: %v", limit, memory, err)
		}
		if err := k.Grow(memory + 1); err != nil {
			t.Fatal(err)
		}
		_ = k.Done(other.Task, 0, sampleOf(other))
		for err == nil {
			_, err = k.Task()
		}
		if reasonOf(err) != errs.Invalid || !strings.Contains(err.Error(), "cannot be used") {
			t.Errorf("limit %d: memory of %d bytes: %v", limit, memory+1, err)
		}
		_ = k.Close()
		honest, err := workertest.Attach(w.socket, req, 4096)
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan error, 1)
		go func() {
			served <- honest.Serve(func(task workertest.Task) ([]byte, *wire.Failure) { return sampleOf(task), nil })
		}()
		if m := <-got; m == nil {
			t.Error("the epoch failed")
		} else {
			exactly(t, "epoch", m.ids, all(8))
		}
		tr.detach()
		_ = honest.Conn.Close()
		<-served
		_ = honest.Close()
	}
}

// What a worker says when it ends is the reason of the sample that it was at, with where that was. Such a sample is
// tried once more, also when no other worker of that client is there a moment later; nothing counts for the others.
func TestLastWordsAreTheReason(t *testing.T) {
	w := serve(t)
	const n = 24
	uri := declare(t, w.dial(), "words", n)
	job, tr := w.madeJob(madeSpec("a", uri, 6, func(s *larderv1.JobSpec) { s.OnError = "skip" }))
	var wg sync.WaitGroup
	ctx, end := context.WithCancel(t.Context())
	lives := make([]int, n) // that each sample ended
	wg.Go(func() {
		for ctx.Err() == nil {
			k, err := workertest.Attach(w.socket, wire.WorkRequest{Dataset: uri, Recipes: []string{job.GetRecipe()}}, 1<<20)
			if err != nil {
				t.Error(err)
				return
			}
			stopped := context.AfterFunc(ctx, func() { _ = k.Conn.Close() })
			if err := k.Words(4096); err != nil {
				t.Error(err)
			}
			_ = k.Serve(func(task workertest.Task) ([]byte, *wire.Failure) {
				switch task.Sample {
				case 3:
					k.Say("it grew by 320MiB\nStack:\n  line 7 in item")
				case 5:
					k.Say("\nFatal error: Segmentation fault\n  line 9")
				default:
					return sampleOf(task), nil
				}
				lives[task.Sample]++
				_ = k.Conn.Close()
				return nil, nil
			})
			stopped()
			_ = k.Close()
		}
	})
	m := tr.mustRecords(0)
	tr.detach()
	end()
	wg.Wait()
	got := map[uint64]*larderv1.QuarantinedSample{}
	for _, b := range m.bad {
		got[b.GetId()] = b
	}
	grew := got[3]
	if grew == nil || !strings.Contains(grew.GetReason(), "ended while it worked on it: it grew by 320MiB") ||
		grew.GetTraceback() != "Stack:\n  line 7 in item" || lives[3] != 2 {
		t.Errorf("sample 3, made %d times: %v", lives[3], grew)
	}
	// One that only left where it was may have ended with its client: it counts as ever, and is tried until it counts.
	crashed := got[5]
	if crashed == nil || !strings.HasSuffix(crashed.GetReason(), "ended while it worked on it") ||
		crashed.GetTraceback() != "Fatal error: Segmentation fault\n  line 9" {
		t.Errorf("sample 5, made %d times: %v", lives[5], crashed)
	}
	if len(m.ids)+len(m.bad) != n || len(m.bad) != 2 {
		t.Errorf("%d samples, bad: %v", len(m.ids), m.bad)
	}
}

// The memory of words is checked as that of records is, and is small.
func TestMemoryOfWordsIsChecked(t *testing.T) {
	w := serve(t)
	uri := declare(t, w.dial(), "words", 4)
	job, tr := w.madeJob(madeSpec("a", uri, 2))
	for name, says := range map[string]string{
		"large": "cannot be used", "unsealed": "not sealed", "none": "no descriptor",
	} {
		k, err := workertest.Attach(w.socket, wire.WorkRequest{Dataset: uri, Recipes: []string{job.GetRecipe()}}, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		switch name {
		case "large":
			err = k.Words(wire.MaxWords + 1)
		case "unsealed":
			err = k.WordsOf(4096, 0)
		default:
			err = k.Send(wire.Words, 0, wire.AppendWords(nil, 4096))
		}
		for err == nil {
			_, err = k.Task()
		}
		if !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", name, err)
		}
		_ = k.Close()
	}
	tr.detach()
}
