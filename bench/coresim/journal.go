package coresim

import (
	"slices"

	"larder/internal/coordinator"
	"larder/internal/ident"
	"larder/jobs"
)

// journal holds the durable state of all jobs: a daemon restores it from the daemon before it.
type journal struct {
	jobs map[ident.JobID]*journalJob
	ids  []ident.JobID // in the order of registration
	// registrations that are not durable yet, by their tokens; nil = nothing is kept
	asked map[coordinator.Token]coordinator.Register
}

// journalJob holds the durable state of one job.
type journalJob struct {
	reg    coordinator.Register
	seed   uint64
	incs   []ident.Incarnation
	epochs []coordinator.RestoredEpoch // the newest two
	before []ident.ObjectID            // the order of the epoch before those
	bad    []jobs.Bad
	paused bool
	ended  bool
}

// journals reports whether anything will be asked of the journal.
func (m *Model) journals(clients []Client) bool {
	return len(m.Restarts) > 0 || slices.ContainsFunc(clients, func(c Client) bool { return c.Then != nil })
}

func newJournal(on bool) journal {
	if !on {
		return journal{}
	}
	return journal{jobs: map[ident.JobID]*journalJob{}, asked: map[coordinator.Token]coordinator.Register{}}
}

// registers learns of a registration.
func (l *journal) registers(reg coordinator.Register) {
	if l.asked != nil {
		l.asked[reg.Token] = reg
	}
}

// add enters a durable record.
func (l *journal) add(r coordinator.Record) {
	if l.asked == nil {
		return
	}
	j := l.jobs[r.JobID()]
	switch r := r.(type) {
	case coordinator.RecordRegistered:
		reg := l.asked[r.Token]
		delete(l.asked, r.Token)
		reg.Token = 0
		l.jobs[r.Job] = &journalJob{reg: reg, seed: r.Seed, incs: make([]ident.Incarnation, reg.Spec.World)}
		l.ids = append(l.ids, r.Job)
	case coordinator.RecordAttached:
		j.incs[r.Rank] = r.Inc
	case coordinator.RecordEpochStarted:
		j.begin(r)
	case coordinator.RecordGivenEarlier:
		if e := j.epoch(r.Epoch); e != nil {
			e.Earlier = append(e.Earlier, r.Objects...)
		}
	case coordinator.RecordAssigned:
		if e := j.epoch(r.Epoch); e != nil {
			e.Batches = append(e.Batches, coordinator.RestoredBatch{Rank: r.Rank, Step: r.Step, Objects: r.Objects})
		}
	case coordinator.RecordReturned:
		j.returned(r)
	case coordinator.RecordDealt:
		if e := j.epoch(r.Epoch); e != nil {
			e.Dealt, e.GivenUp = max(e.Dealt, r.Step+1), r.GivenUp
			takeOut(e, r.Objects, func(b coordinator.RestoredBatch) bool { return b.Step == r.Step })
		}
	case coordinator.RecordQuarantined:
		j.bad = append(j.bad, jobs.Bad{Object: r.Object, Reason: r.Reason, Kind: r.Kind})
	case coordinator.RecordPaused:
		j.paused = true
	case coordinator.RecordUnpaused:
		j.paused = false
	case coordinator.RecordEnded:
		j.ended = true
	}
}

// epoch finds an epoch; nil = it is not known any more.
func (j *journalJob) epoch(epoch uint32) *coordinator.RestoredEpoch {
	for i := range j.epochs {
		if j.epochs[i].Epoch == epoch {
			return &j.epochs[i]
		}
	}
	return nil
}

func (j *journalJob) begin(r coordinator.RecordEpochStarted) {
	j.epochs = slices.DeleteFunc(j.epochs, func(e coordinator.RestoredEpoch) bool { return e.Epoch == r.Epoch })
	e := coordinator.RestoredEpoch{Epoch: r.Epoch, Instance: r.Instance, Subset: j.reg.Spec.Subset, Rest: r.Remainder,
		Member: coordinator.Members(j.reg.Sample.Subset), ByPick: !r.Counted}
	if j.epochs = append(j.epochs, e); len(j.epochs) > 2 {
		j.before = order(&j.epochs[0])
		j.epochs = slices.Delete(j.epochs, 0, 1)
	}
}

func (j *journalJob) returned(r coordinator.RecordReturned) {
	e := j.epoch(r.Epoch)
	of := func(b coordinator.RestoredBatch) bool { return b.Rank == r.Rank && b.Step == r.Step }
	switch {
	case e == nil:
	case len(r.Objects) == 0:
		e.Batches = slices.DeleteFunc(e.Batches, of)
	default:
		takeOut(e, r.Objects, of)
	}
}

// takeOut takes samples out of some batches.
func takeOut(e *coordinator.RestoredEpoch, gone []ident.ObjectID, of func(coordinator.RestoredBatch) bool) {
	for i, b := range e.Batches {
		if of(b) {
			e.Batches[i].Objects = slices.DeleteFunc(slices.Clone(b.Objects), func(x ident.ObjectID) bool {
				return slices.Contains(gone, x)
			})
		}
	}
}

// order lists the samples that an epoch has given out.
func order(e *coordinator.RestoredEpoch) []ident.ObjectID {
	out := slices.Clone(e.Earlier)
	for _, b := range e.Batches {
		out = append(out, b.Objects...)
	}
	return out
}

// left returns the rest of an epoch for a job that resumes it, when each rank has had the steps below one.
func (j *journalJob) left(epoch uint32, step int) *coordinator.Rest {
	e := j.epoch(epoch)
	if e == nil {
		return nil
	}
	had := *e
	had.Batches = slices.DeleteFunc(slices.Clone(e.Batches), func(b coordinator.RestoredBatch) bool {
		return b.Step >= step
	})
	slices.SortStableFunc(had.Batches, func(a, b coordinator.RestoredBatch) int {
		return (a.Step-b.Step)*j.reg.Spec.World + a.Rank - b.Rank
	})
	rest := &coordinator.Rest{Epoch: epoch, Instance: e.Instance, Before: order(&had)}
	rest.Places = coordinator.Places(j.reg.Sample, epoch, rest.Before)
	if epoch > 0 {
		if p := j.epoch(epoch - 1); p != nil {
			rest.Previous = order(p)
		}
	}
	return rest
}

// restores are the events by which the next daemon gets the jobs that have not ended; lives says of a rank whether the
// process of its client lives.
func (l *journal) restores(lives func(ident.JobID, int) bool) (out []coordinator.Restore) {
	for _, id := range l.ids {
		j := l.jobs[id]
		if j.ended {
			continue
		}
		ev := coordinator.Restore{Register: j.reg, ID: id, Seed: j.seed, Bad: slices.Clone(j.bad), Paused: j.paused,
			Ranks: slices.Clone(j.incs), Lives: make([]bool, len(j.incs)), Before: j.before}
		ev.Rest = nil
		for r := range ev.Lives {
			ev.Lives[r] = lives(id, r)
		}
		for _, e := range j.epochs {
			if e.Batches = slices.Clone(e.Batches); e.Rest && !j.restore(&e) {
				ev.Rest = j.reg.Rest
				continue
			}
			ev.Epochs = append(ev.Epochs, e)
		}
		if len(j.epochs) == 0 {
			ev.Rest = j.reg.Rest
		}
		out = append(out, ev)
	}
	return out
}

// restore completes an epoch that a job resumed; false if what was given out before is not durable yet, so that the job
// resumes it once more.
func (j *journalJob) restore(e *coordinator.RestoredEpoch) bool {
	if len(e.Earlier) < len(j.reg.Rest.Before) {
		return false
	}
	e.Member = e.Member.Clone()
	for _, x := range e.Earlier {
		e.Member.Remove(uint32(x))
	}
	e.Subset, e.Places = e.Member.Len(), coordinator.Places(j.reg.Sample, e.Epoch, e.Earlier)
	return true
}
