package engine_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"larder/internal/session/wire"
	"larder/internal/session/workertest"
	"larder/internal/testenv"
	larderv1 "larder/proto/larder/v1"
)

// Workers are killed at random while three jobs train, LARDER_WORKER_KILLS of them: every epoch is whole, no draw comes
// twice, and the auditor finds nothing lost, repeated or altered.
func TestWorkersAreKilledAtRandom(t *testing.T) {
	kills := int64(testenv.Count(t, "LARDER_WORKER_KILLS", 30))
	w := serve(t)
	const n = 120
	uri := declare(t, w.dial(), "killed", n)
	ctx, stop := context.WithCancel(t.Context())
	var killers, trains sync.WaitGroup
	var killed, epochs, bad atomic.Int64
	var jobs []*larderv1.Job
	for i, change := range []func(*larderv1.JobSpec){cached, shared, shared} {
		s := madeSpec([]string{"a", "b", "c"}[i], uri, uint32(7+i), change, recipe(pythonOp("m.f", false),
			pythonOp("m.g", true)), func(s *larderv1.JobSpec) { s.OnError = "skip" })
		job, tr := w.madeJob(s)
		jobs = append(jobs, job)
		trains.Go(func() {
			drawn := map[[3]int64]bool{} // sample, seed and instance of what came
			for epoch := uint32(0); epoch < 4 || killed.Load() < kills; epoch++ {
				m, err := tr.records(epoch)
				if err != nil {
					t.Error(err)
					return
				}
				if len(m.ids)+len(m.bad) != n {
					t.Errorf("epoch %d: %d samples, %d bad", epoch, len(m.ids), len(m.bad))
				}
				for id, x := range m.x {
					draw := [3]int64{id, x[1], x[2]}
					if drawn[draw] {
						t.Errorf("epoch %d: sample %d has instance %d once more", epoch, id, x[2])
					}
					drawn[draw] = true
				}
				if len(m.x) != len(m.ids) {
					t.Errorf("epoch %d: %d samples, %d of them distinct", epoch, len(m.ids), len(m.x))
				}
				epochs.Add(1)
				bad.Add(int64(len(m.bad)))
			}
			tr.detach()
		})
	}
	req := wire.WorkRequest{Dataset: uri, Client: "killed"}
	for _, j := range jobs {
		req.Recipes = append(req.Recipes, j.GetRecipe())
	}
	for i := range 3 {
		killers.Go(func() {
			for life := 1; ctx.Err() == nil; life++ {
				req := req
				if req.Batch = life%2 == 0; req.Batch { // with stacks: it ends in the middle of one
					req.Mark, req.Window = new(uint64(1<<20-8)), 64
				}
				k, err := workertest.Attach(w.socket, req, 1<<20)
				if err != nil {
					return
				}
				left := 5 + (life*7+i*3)%40
				stopped := context.AfterFunc(ctx, func() { _ = k.Conn.Close() })
				_ = k.Serve(func(task workertest.Task) ([]byte, *wire.Failure) {
					if left--; left == 0 {
						killed.Add(1)
						_ = k.Conn.Close()
					}
					return sampleOf(task), nil
				})
				stopped()
				_ = k.Close()
			}
		})
	}
	trains.Wait()
	stop()
	killers.Wait()
	t.Logf("nightly: %d workers killed in %d epochs of %d samples, of three jobs: %d samples left out", killed.Load(),
		epochs.Load(), n, bad.Load())
	if killed.Load() < kills {
		t.Errorf("%d workers were killed, %d should have been", killed.Load(), kills)
	}
}
