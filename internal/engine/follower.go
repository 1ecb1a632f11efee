package engine

import (
	"context"
	"log/slog"
	"sync"

	"larder/internal/coordinator"
)

// follower changes the subsets of jobs: because a user asks, or because their datasets changed.
type follower struct {
	loop        *loop
	jobs        *registry
	library     *library
	room        *blockRoom
	log         *logQueue
	registering *sync.Mutex // the Engine's
}

// change asks the coordinator for another subset, unless it has been asked for already, and says what does not exist
// any more. Engine.registering is held.
func (f *follower) change(ctx context.Context, j *job, to wanted) (coordinator.Reply, error) {
	if err := j.roomFor(len(to.objects)); err != nil {
		return coordinator.Reply{}, err
	}
	v, err := f.loop.lookup(ctx, j.ID)
	if err != nil {
		return coordinator.Reply{}, err
	}
	if v != nil {
		j.subsets.forget(v.Mark)
	}
	last := j.subsets.last()
	next := asked{mark: last.mark + 1, expr: to.expr, objects: to.objects, samples: len(to.objects),
		hash: hashObjects(to.objects)}
	same := next.hash == last.hash && next.samples == last.samples && next.expr == last.expr
	ev := coordinator.ChangeSubset{Job: j.ID, Rank: to.rank, Gone: j.vanished()}
	if !same {
		next.sketch = f.jobs.sketched(j.Data, next)
		ev.Mark, ev.Subset, ev.Member = next.mark, to.objects, coordinator.Members(to.objects)
	}
	j.subsets.Lock()
	j.subsets.next = next // the record is made before the answer comes
	j.subsets.Unlock()
	r, err := f.loop.ask(context.WithoutCancel(ctx), func(t coordinator.Token) coordinator.Event {
		ev.Token = t
		return ev
	})
	if err != nil {
		return r, err
	}
	j.subsets.Lock()
	defer j.subsets.Unlock()
	j.subsets.gone, j.subsets.seen, j.subsets.note = ev.Gone, to.seen, ""
	if !same {
		j.subsets.asked = append(j.subsets.asked, next)
		f.log.log.Info("subset changed", "job", j.spec.GetName(), "subset", to.expr,
			"samples", len(to.objects), "from_epoch", r.Epoch)
	}
	return r, nil
}

// follow changes the jobs of changed datasets: what their subset selects now is theirs from their next epoch on, and
// what is gone is not drawn any more. It returns their names. e.registering is held.
func (f *follower) follow(ctx context.Context) ([]string, error) {
	live, err := f.loop.list(ctx, false)
	if err != nil {
		return nil, err
	}
	var names []string
	for i := range live {
		j := f.jobs.byID(live[i].ID)
		if j == nil {
			continue
		}
		seen := j.Data.Fingerprint()
		j.subsets.Lock()
		fresh := j.subsets.seen == seen
		expr := j.subsets.asked[len(j.subsets.asked)-1].expr
		j.subsets.Unlock()
		if fresh {
			continue
		}
		if err := f.reselect(ctx, j, expr, seen); err != nil {
			if ctx.Err() != nil {
				return names, err
			}
			continue
		}
		names = append(names, j.spec.GetName())
	}
	return names, nil
}

// reselect evaluates a job's subset again. When that selects nothing, or the job has no epoch left for it, the job
// keeps the subset it has, without what is gone, and says so.
func (f *follower) reselect(ctx context.Context, j *job, expr string, seen uint64) error {
	samples, err := selectNow(ctx, j, expr)
	if err == nil {
		err = f.library.mayReadAt(ctx, j.owner, j.Data, seen)
	}
	if err == nil {
		err = f.relay(ctx, j)
	}
	if err == nil {
		if _, err = f.change(ctx, j, wanted{0, expr, objectsOf(j.Data, samples), seen}); err == nil {
			return nil
		}
	}
	last := j.subsets.last()
	if _, again := f.change(ctx, j, wanted{0, last.expr, last.objects, seen}); again != nil {
		return again
	}
	note := "the dataset has changed, and the job keeps the samples it has: " + err.Error()
	f.log.note(slog.LevelWarn, "a job cannot follow its dataset", "job", j.spec.GetName(), "err", err)
	j.subsets.Lock()
	j.subsets.note = note
	j.subsets.Unlock()
	return nil
}

// followed is follow for who does not hold e.registering.
func (f *follower) followed(ctx context.Context) error {
	f.registering.Lock()
	defer f.registering.Unlock()
	_, err := f.follow(ctx)
	return err
}
