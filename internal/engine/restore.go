package engine

import (
	"context"
	"log/slog"
	"strconv"
	"time"

	"larder/internal/coordinator"
	"larder/internal/engine/record"
	"larder/internal/engine/restore"
	"larder/internal/engine/ring"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/journal"
	"larder/internal/source"
)

// restorer restores the jobs of a journal, before Run.
type restorer struct {
	core          *coordinator.Core
	do            func(coordinator.Effect)
	jobs          *registry
	memory        *memory
	room          *blockRoom
	library       *library
	compiler      *compiler
	history       *history
	rings         *ring.Set
	journal       journal.Log
	log           *slog.Logger
	now           func() time.Time
	acceptCorrupt bool // damaged images are not refused
}

// restore restores the jobs that a journal holds, before Run. A job that cannot be restored ends, with the reason in
// the log.
func (t *restorer) restore(ctx context.Context, s *journal.State) error {
	for d, err := range restore.Datasets(s.Datasets) {
		if err == nil {
			err = t.readd(ctx, d)
		}
		if err != nil {
			t.log.Warn("a dataset could not be added again", "name", d.Name, "error", err)
		}
	}
	known := newSelections()
	err := restore.All(s.Jobs(), restore.Steps[*returning]{
		Open:    func(js *journal.JobState) (*returning, error) { return t.reopen(ctx, js, known) },
		Read:    func(r *returning) error { return t.reread(r, known) },
		Put:     func(r *returning) error { return t.restoreJob(ctx, r) },
		Reserve: t.core.Reserve,
		Failed: func(js *journal.JobState, err error) error {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			t.core.Reserve(js.ID)
			t.log.Warn("a job could not be restored", "id", uint32(js.ID), "error", err)
			t.journal.Append(journal.Ended{Job: js.ID, Reason: "it could not be restored: " + err.Error()}, nil)
			return nil
		},
	})
	if err != nil {
		return err
	}
	return t.removeUnused(ctx)
}

// readd adds a dataset of the journal.
func (t *restorer) readd(ctx context.Context, d record.Dataset) error {
	if d.Made != "" {
		return t.library.declareAgain(ctx, d.Made)
	}
	_, err := t.library.addAgain(ctx, d.Name, d.URI, d.SkipEmpty)
	return err
}

// returning is a job that is being restored.
type returning struct {
	js *journal.JobState
	rj *record.Job
	j  *job
	ev coordinator.Restore
}

// reopen finds the dataset of a job, and compiles the job again.
func (t *restorer) reopen(ctx context.Context, js *journal.JobState, known *selections) (*returning, error) {
	rj, err := record.ParseJob(js.Spec)
	if err != nil {
		return nil, errs.New(errs.StateDamaged, "", "register the job again", "the record of job %d cannot be read",
			js.ID).Because(err)
	}
	spec, err := rj.JobSpec()
	if err != nil {
		return nil, errs.New(errs.StateDamaged, "", "register the job again", "the spec of job %d cannot be read",
			js.ID).Because(err)
	}
	seed, err := strconv.ParseUint(rj.Seed, 10, 64)
	if err != nil {
		return nil, errs.New(errs.StateDamaged, spec.GetName(), "register the job again",
			"the seed of job %d cannot be read", js.ID).Because(err)
	}
	// names of datasets do not survive by themselves
	if !source.IsMade(rj.URI) {
		if _, err := t.library.addAgain(ctx, rj.Name, rj.URI, spec.GetSkipEmpty()); err != nil {
			return nil, err
		}
	}
	j, reg, err := t.compiler.compile(ctx, nil, spec, known)
	if err != nil {
		return nil, err
	}
	j.seed.Store(seed)
	if err := t.library.mayRead(ctx, (*owner)(rj.Owner), j); err != nil {
		return nil, err
	}
	j.ID, j.registered, j.resume, j.owner = js.ID, rj.Registered, resumedFrom(rj.Resume), (*owner)(rj.Owner)
	j.by = rj.Client
	left := j.by != nil && len(js.Ranks) == 0 && !t.jobs.claims.expect(js.ID, j.by.Process)
	return &returning{js, rj, j, coordinator.Restore{Register: reg, ID: js.ID, Seed: seed, Paused: js.Paused, Left: left}},
		nil
}

// reread makes objects of what the journal has of a job: its time is in proportion to what was given out.
func (t *restorer) reread(back *returning, known *selections) error {
	j, js := back.j, back.js
	of := restore.Job{
		Name: j.spec.GetName(), State: js, Subset: back.rj.Subset, Resume: back.rj.Resume, Data: j.Data,
		AcceptCorrupt: t.acceptCorrupt,
		Select:        func(expr string) (restore.Selected, error) { return known.restored(j.Data, j.spec, expr) },
		OrderBefore: func(epoch uint32) ([]ident.ObjectID, error) {
			return t.history.orderBefore(js.ID, j.resume, epoch)
		},
		Lives: func(rank int, inc ident.Incarnation, process string) bool {
			return t.rings.Expect(ring.Key{Job: js.ID, Rank: rank, Inc: inc}, process)
		},
	}
	subsets, err := of.Complete(&back.ev)
	if err != nil {
		return err
	}
	j.life.Subset, j.subsets.asked = back.ev.Spec.Subset, nil
	for _, s := range subsets {
		j.subsets.asked = append(j.subsets.asked, askedOf(s.Document, s.Mark, s.Objects))
	}
	if j.resume != nil && len(back.ev.Epochs) == 0 {
		return t.history.resolveAgain(j.resume, j, &back.ev)
	}
	return nil
}

// restoreJob gives a job to the coordinator.
func (t *restorer) restoreJob(ctx context.Context, r *returning) error {
	j, ev, spec := r.j, r.ev, r.j.spec
	if err := j.holdWindow(t.room); err != nil {
		return err
	}
	ev.Strata = t.memory.strata(j)
	var reply coordinator.Reply
	t.jobs.add(j)
	ev.Token = restoring
	for _, eff := range t.core.Step(t.now(), ev, nil) {
		if r, ok := eff.(coordinator.Reply); ok && r.Token == restoring {
			reply = r
			continue
		}
		t.do(eff)
	}
	if reply.Err != nil {
		t.jobs.remove(j)
		j.dropWindow(t.room)
		return reply.Err
	}
	t.memory.stratified(j.Data.ID())
	given := 0
	for _, p := range ev.Epochs {
		given += len(p.Batches)
	}
	t.log.Log(ctx, slog.LevelInfo, "job restored", "job", spec.GetName(), "id", uint32(j.ID), "epochs", len(ev.Epochs),
		"batches_given", given)
	return nil
}

// restoring is the token of what New asks the coordinator; requests count from 1 and never get there.
const restoring = ^coordinator.Token(0)
