package engine

import (
	"context"
	"log/slog"
	"runtime"
	"strconv"
	"sync"
	"time"

	"larder/internal/coordinator"
	"larder/internal/engine/record"
	"larder/internal/engine/ring"
	"larder/internal/errs"
	"larder/internal/journal"
	"larder/internal/source"
	"larder/jobs"
)

// addAgain adds a dataset that an earlier life had.
func (e *Engine) addAgain(ctx context.Context, name, uri string, skipEmpty bool) (*source.Dataset, error) {
	if skipEmpty {
		return e.cfg.Catalog.AddSkipEmpty(ctx, name, uri)
	}
	return e.cfg.Catalog.AddAgain(ctx, name, uri)
}

// restore puts back the jobs that a journal holds, before Run. What cannot be put back ends, with the reason in the log.
func (e *Engine) restore(ctx context.Context, s *journal.State) error {
	last := map[string]record.Dataset{} // what was said last of a name holds
	for _, text := range s.Datasets {
		if d, err := record.ParseDataset(text); err == nil {
			last[d.Name] = d
		}
	}
	for _, text := range s.Datasets {
		d, err := record.ParseDataset(text)
		if err == nil && last[d.Name] != d || d.Removed {
			continue
		}
		if err == nil {
			_, err = e.addAgain(ctx, d.Name, d.URI, d.SkipEmpty)
		}
		if err != nil {
			e.cfg.Log.Warn("a dataset could not be added again", "name", d.Name, "error", err)
		}
	}
	known := newSelections()
	var all []*returning
	var reading sync.WaitGroup
	defer reading.Wait()
	places := make(chan struct{}, runtime.GOMAXPROCS(0))
	for _, js := range s.Jobs() {
		r := &returning{js: js, ready: make(chan struct{})}
		all = append(all, r)
		if js.Ended {
			continue
		}
		if r.err = e.reopen(ctx, r, known); r.err != nil {
			close(r.ready)
			continue
		}
		reading.Go(func() { // beside what the coordinator does with the jobs before
			defer close(r.ready)
			places <- struct{}{}
			defer func() { <-places }()
			r.err = e.reread(r, known)
		})
	}
	for _, r := range all {
		js := r.js
		if js.Ended {
			e.core.Reserve(js.ID)
			continue
		}
		<-r.ready
		err := r.err
		if err == nil {
			err = e.restoreJob(ctx, r)
		}
		*r = returning{} // it may be large
		if err == nil {
			continue
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		e.core.Reserve(js.ID)
		e.cfg.Log.Warn("a job could not be restored", "id", uint32(js.ID), "error", err)
		e.cfg.Journal.Append(journal.Ended{Job: js.ID, Reason: "it could not be restored: " + err.Error()}, nil)
	}
	return nil
}

// returning is a job on its way back.
type returning struct {
	js    *journal.JobState
	rj    *record.Job
	j     *job
	ev    coordinator.Restore
	ready chan struct{} // closed when ev is complete, or err is set
	err   error
}

// reopen finds the dataset of a job. One after the other: names of datasets may have changed from job to job.
func (e *Engine) reopen(ctx context.Context, r *returning, known *selections) error {
	js := r.js
	rj, err := record.ParseJob(js.Spec)
	if err != nil {
		return errs.Wrap(err, errs.StateDamaged, "", "register the job again", "the record of job %d cannot be read", js.ID)
	}
	r.rj = rj
	spec, err := rj.JobSpec()
	if err != nil {
		return errs.Wrap(err, errs.StateDamaged, "", "register the job again", "the spec of job %d cannot be read", js.ID)
	}
	seed, err := strconv.ParseUint(rj.Seed, 10, 64)
	if err != nil {
		return errs.Wrap(err, errs.StateDamaged, spec.GetName(), "register the job again", "the seed of job %d cannot be read", js.ID)
	}
	if _, err := e.addAgain(ctx, rj.Name, rj.URI, spec.GetSkipEmpty()); err != nil { // names of datasets do not survive by themselves
		return err
	}
	j, reg, err := e.compile(ctx, nil, spec, known)
	if err != nil {
		return err
	}
	j.seed.Store(seed)
	if err := e.mayRead(ctx, (*owner)(rj.Owner), j); err != nil {
		return err
	}
	j.ID, j.registered, j.resume, j.owner = js.ID, rj.Registered, resumedFrom(rj.Resume), (*owner)(rj.Owner)
	r.j, r.ev = j, coordinator.Restore{Register: reg, ID: js.ID, Seed: seed, Paused: js.Paused}
	return nil
}

// reread makes objects of what the journal has of a job: its time is in proportion to what was given out.
func (e *Engine) reread(back *returning, known *selections) error {
	j, js, ev, rj := back.j, back.js, &back.ev, back.rj
	if err := e.restoreSubsets(j, js, rj, ev, known); err != nil {
		return err
	}
	for r := range ev.Spec.World {
		ev.Ranks = append(ev.Ranks, js.Ranks[uint32(r)])
		ev.Lives = append(ev.Lives, e.rings.Expect(ring.Key{Job: js.ID, Rank: r, Inc: js.Ranks[uint32(r)]}, js.Clients[uint32(r)]))
	}
	for _, b := range js.Quarantined() {
		for _, x := range record.ToObjects(j.Data, b.Samples) {
			bad := jobs.Bad{Object: x, Reason: b.Reason, Corrupt: b.Corrupt}
			if bad.Corrupt && !e.cfg.Limits.RefuseCorrupt {
				continue // it was refused by another configuration
			}
			ev.Bad = append(ev.Bad, bad)
		}
	}
	if len(ev.Epochs) > 0 && ev.Epochs[0].Epoch > 0 {
		before, err := e.orderBefore(js.ID, j.resume, ev.Epochs[0].Epoch-1)
		if err != nil {
			return err
		}
		ev.Before = record.ToObjects(j.Data, before)
	}
	if j.resume != nil && len(ev.Epochs) == 0 {
		if err := e.resolveAgain(j.resume, j, ev); err != nil {
			return err
		}
	}
	return nil
}

// restoreJob gives a job to the coordinator.
func (e *Engine) restoreJob(ctx context.Context, r *returning) error {
	j, ev, spec := r.j, r.ev, r.j.spec
	ev.Strata = e.strata(j)
	var reply coordinator.Reply
	e.mu.Lock()
	e.mu.jobs[j.ID], e.mu.names[spec.GetName()] = j, j
	e.mu.Unlock()
	ev.Token = restoring
	for _, eff := range e.core.Step(time.Now(), ev, nil) {
		if r, ok := eff.(coordinator.Reply); ok && r.Token == restoring {
			reply = r
			continue
		}
		e.Do(eff)
	}
	if reply.Err != nil {
		e.mu.Lock()
		delete(e.mu.jobs, j.ID)
		delete(e.mu.names, spec.GetName())
		e.mu.Unlock()
		return reply.Err
	}
	e.stratified(j.Data.ID())
	given := 0
	for _, p := range ev.Epochs {
		given += len(p.Batches)
	}
	e.cfg.Log.Log(ctx, slog.LevelInfo, "job restored", "job", spec.GetName(), "id", uint32(j.ID), "epochs", len(ev.Epochs), "batches_given", given)
	return nil
}

// restoring is the token of what New asks the coordinator; requests count from 1 and never get there.
const restoring = ^coordinator.Token(0)

// restoreSubsets finds the samples of every subset that the job's epochs had, has, or is to have, and the epochs with them. A dataset that
// selects other samples than it did is an error: what had been given out could not be told from the rest.
func (e *Engine) restoreSubsets(j *job, js *journal.JobState, rj *record.Job, ev *coordinator.Restore, known *selections) error {
	marks := map[uint32]record.Subset{0: rj.Subset}
	since := []journal.SubsetChanged{{}} // by the order of the changes
	for _, r := range js.Subsets() {
		s, err := record.ParseSubset(r.Document)
		if err != nil {
			return errs.Wrap(err, errs.StateDamaged, j.spec.GetName(), "register the job again", "a subset of job %s cannot be read", j.spec.GetName())
		}
		marks[r.Mark] = s
		since = append(since, r)
	}
	of := func(epoch uint32) (mark, first uint32) {
		for _, r := range since {
			if r.Epoch <= epoch {
				mark, first = r.Mark, r.Epoch
			}
		}
		return mark, first
	}
	made := map[uint32]*selected{}
	objects := func(mark uint32) (*selected, error) {
		if o := made[mark]; o != nil {
			return o, nil
		}
		want := marks[mark]
		o, err := known.of(j.Data, want.Expr)
		if err != nil {
			return nil, err
		}
		got, err := o.record(j.Data, want.Expr)
		if err != nil {
			return nil, err
		}
		if got.Hash != want.Hash || got.Samples != want.Samples {
			return nil, errs.New(errs.DatasetUnread, j.Data.Name(), "register the job again",
				"job %s drew from %d samples of %s, and its subset now selects %d others or in other places: files changed while no daemon ran",
				j.spec.GetName(), want.Samples, j.Data.Name(), got.Samples)
		}
		made[mark] = o
		return o, nil
	}
	newest := uint32(0)
	for _, o := range js.Epochs {
		mark, _ := of(o.Epoch)
		list, err := objects(mark)
		if err != nil {
			return err
		}
		p := coordinator.RestoredEpoch{Epoch: o.Epoch, Instance: o.Start().Instance, Subset: len(list.objects), Member: list.member,
			Dealt: o.Dealt, GivenUp: o.GivenUp}
		objects := list.objects
		if s, ok := scripted(ev.Script, o.Epoch); ok {
			objects, p.Subset, p.Member = s.Objects, len(s.Objects), s.Member
		}
		for i := range o.Batches {
			b := &o.Batches[i]
			if b.Rank == journal.Earlier {
				p.Earlier = append(p.Earlier, record.ToObjects(j.Data, b.Objects())...)
				continue
			}
			p.Batches = append(p.Batches, coordinator.RestoredBatch{Rank: int(b.Rank), Step: int(b.Step), Objects: record.ToObjects(j.Data, b.Objects())})
		}
		sample := ev.Sample
		sample.Subset = objects
		if !restoreRest(j.resume, o, sample, &p) {
			continue // it begins with it again
		}
		ev.Epochs = append(ev.Epochs, p)
		newest = o.Epoch
	}
	mark, first := of(newest)
	list, err := objects(mark)
	if err != nil {
		return err
	}
	all := []asked{askedOf(marks[mark], mark, list.objects)}
	ev.Mark, ev.Since, ev.Spec.Subset, ev.Sample.Subset, ev.Member = mark, first, len(list.objects), list.objects, list.member
	if ev.Script != nil {
		s, ok := scripted(ev.Script, newest)
		if !ok {
			s = ev.Script[0]
		}
		ev.Spec.Subset, ev.Sample.Subset, ev.Member = len(s.Objects), s.Objects, s.Member
	}
	j.life.Subset = ev.Spec.Subset
	if last := since[len(since)-1]; last.Mark != mark {
		next, err := objects(last.Mark)
		if err != nil {
			return err
		}
		ev.Next, ev.NextIDs = &jobs.Next{Mark: last.Mark, Subset: len(next.objects), Member: next.member}, next.objects
		all = append(all, askedOf(marks[last.Mark], last.Mark, next.objects))
	}
	j.subsets.asked = all
	return nil
}
