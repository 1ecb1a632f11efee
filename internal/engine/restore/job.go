package restore

import (
	"slices"

	"larder/dsa"
	"larder/internal/bits"
	"larder/internal/coordinator"
	"larder/internal/engine/record"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/journal"
	"larder/jobs"
)

// Dataset is what must be known of a job's dataset.
type Dataset = record.Samples

// Job is a job in the journal, and what it is completed with.
type Job struct {
	Name   string
	State  *journal.JobState
	Subset record.Subset  // that it was registered with
	Resume *record.Resume // that it began with; nil = it began by itself
	Data   Dataset

	// Select evaluates the expression of a subset.
	Select func(expr string) (Selected, error)
	// OrderBefore is the order of an epoch as sample ids, as far as it is known.
	OrderBefore func(epoch uint32) ([]ident.ObjectID, error)
	// Lives reports whether the client of a rank lives, by its process in the journal.
	Lives func(rank int, inc ident.Incarnation, process string) bool
	// AcceptCorrupt: images that were refused because they are damaged are not refused any more.
	AcceptCorrupt bool
}

// Selected is what an expression selects now: objects in sample order and as a set. They are shared and must not be
// changed.
type Selected struct {
	Objects []ident.ObjectID
	Member  *bits.Set
	Samples int
	Hash    string // of the sample ids, as in record.Subset
}

// Subset is a subset of a restored job.
type Subset struct {
	Mark     uint32
	Document record.Subset
	Objects  []ident.ObjectID
}

// Complete adds to an event, which has what registering the job again gives, what the journal has of the job. It
// returns the subset in force, and the one that waits for the next epoch if there is one.
func (j *Job) Complete(ev *coordinator.Restore) ([]Subset, error) {
	subsets, err := j.epochs(ev)
	if err != nil {
		return nil, err
	}
	js := j.State
	for r := range ev.Spec.World {
		inc := js.Ranks[uint32(r)]
		ev.Ranks = append(ev.Ranks, inc)
		ev.Lives = append(ev.Lives, j.Lives(r, inc, js.Clients[uint32(r)]))
	}
	for _, b := range js.Quarantined() {
		if b.Corrupt && j.AcceptCorrupt {
			continue // another configuration refused it
		}
		kind := jobs.SampleFailed
		if b.Corrupt {
			kind = jobs.SampleDamaged
		}
		for _, x := range record.ToObjects(j.Data, b.Samples) {
			ev.Bad = append(ev.Bad, jobs.Bad{Object: x, Reason: b.Reason, Kind: kind})
		}
	}
	if len(ev.Epochs) > 0 && ev.Epochs[0].Epoch > 0 {
		before, err := j.OrderBefore(ev.Epochs[0].Epoch - 1)
		if err != nil {
			return nil, err
		}
		ev.Before = record.ToObjects(j.Data, before)
	}
	return subsets, nil
}

// marks are the subsets that a job had, by their marks, and when each began.
type marks struct {
	job       *Job
	documents map[uint32]record.Subset
	changes   []journal.SubsetChanged // in their order; the first is the registration
	selected  map[uint32]Selected
}

func (j *Job) marks() (*marks, error) {
	m := &marks{
		job: j, documents: map[uint32]record.Subset{0: j.Subset}, changes: []journal.SubsetChanged{{}},
		selected: map[uint32]Selected{},
	}
	for _, r := range j.State.Subsets() {
		s, err := record.ParseSubset(r.Document)
		if err != nil {
			return nil, errs.New(errs.StateDamaged, j.Name, "register the job again",
				"a subset of job %s cannot be read", j.Name).Because(err)
		}
		m.documents[r.Mark] = s
		m.changes = append(m.changes, r)
	}
	return m, nil
}

// of is the mark of the subset of an epoch, and the first epoch of that subset.
func (m *marks) of(epoch uint32) (mark, first uint32) {
	for _, r := range m.changes {
		if r.Epoch <= epoch {
			mark, first = r.Mark, r.Epoch
		}
	}
	return mark, first
}

// objects are those of a mark. A dataset that selects other samples than it did is an error.
func (m *marks) objects(mark uint32) (Selected, error) {
	if s, ok := m.selected[mark]; ok {
		return s, nil
	}
	want := m.documents[mark]
	got, err := m.job.Select(want.Expr)
	if err != nil {
		return got, err
	}
	if got.Hash != want.Hash || got.Samples != want.Samples {
		data := m.job.Data.Name()
		return got, errs.New(errs.DatasetUnread, data, "register the job again", "job %s drew from %d samples of %s, "+
			"and its subset now selects %d others or in other places: files changed while no daemon ran",
			m.job.Name, want.Samples, data, got.Samples)
	}
	m.selected[mark] = got
	return got, nil
}

func (m *marks) subset(mark uint32) Subset {
	return Subset{Mark: mark, Document: m.documents[mark], Objects: m.selected[mark].Objects}
}

// epochs finds the samples of every subset that the job's epochs had, have or are to have, and the epochs with them.
func (j *Job) epochs(ev *coordinator.Restore) ([]Subset, error) {
	m, err := j.marks()
	if err != nil {
		return nil, err
	}
	newest := uint32(0)
	for _, o := range j.State.Epochs {
		mark, _ := m.of(o.Epoch)
		list, err := m.objects(mark)
		if err != nil {
			return nil, err
		}
		if p, begun := j.epoch(o, list, ev); begun {
			ev.Epochs = append(ev.Epochs, p)
			newest = o.Epoch
		}
	}
	mark, first := m.of(newest)
	list, err := m.objects(mark)
	if err != nil {
		return nil, err
	}
	ev.Mark, ev.Since = mark, first
	ev.Spec.Subset, ev.Sample.Subset, ev.Member = len(list.Objects), list.Objects, list.Member
	if ev.Script != nil {
		s, ok := Scripted(ev.Script, newest)
		if !ok {
			s = ev.Script[0]
		}
		ev.Spec.Subset, ev.Sample.Subset, ev.Member = len(s.Objects), s.Objects, s.Member
	}
	all := []Subset{m.subset(mark)}
	if last := m.changes[len(m.changes)-1]; last.Mark != mark {
		next, err := m.objects(last.Mark)
		if err != nil {
			return nil, err
		}
		ev.Next = &jobs.Next{Mark: last.Mark, Subset: len(next.Objects), Member: next.Member}
		ev.NextIDs = next.Objects
		all = append(all, m.subset(last.Mark))
	}
	return all, nil
}

// epoch translates one epoch; false = nothing of it was given out yet, so the job begins with it again.
func (j *Job) epoch(
	o *journal.EpochState, list Selected, ev *coordinator.Restore,
) (p coordinator.RestoredEpoch, begun bool) {
	p = coordinator.RestoredEpoch{
		Epoch: o.Epoch, Instance: o.Start().Instance, Subset: len(list.Objects), Member: list.Member,
		Dealt: o.Dealt, GivenUp: o.GivenUp, ByPick: !o.Start().Counted,
	}
	sample := ev.Sample
	sample.Subset = list.Objects
	if s, ok := Scripted(ev.Script, o.Epoch); ok {
		sample.Subset, p.Subset, p.Member = s.Objects, len(s.Objects), s.Member
	}
	for i := range o.Batches {
		b := &o.Batches[i]
		objects := record.BecomeObjects(j.Data, b.Objects())
		if b.Rank == journal.Earlier {
			p.Earlier = append(p.Earlier, objects...)
		} else {
			p.Batches = append(p.Batches, coordinator.RestoredBatch{Rank: int(b.Rank), Step: int(b.Step), Objects: objects})
		}
	}
	begun = j.remainder(o, sample, &p)
	return p, begun
}

// remainder takes out of an epoch what an earlier job had of it. False: not all of that was written, so nothing of the
// remainder was given out yet.
func (j *Job) remainder(o *journal.EpochState, sample dsa.JobSpec, p *coordinator.RestoredEpoch) bool {
	if !o.Start().Remainder {
		return true
	}
	if j.Resume == nil || len(p.Earlier) < j.Resume.Before {
		return false
	}
	p.Member = p.Member.Clone() // jobs share what they select
	for _, x := range p.Earlier {
		p.Member.Remove(uint32(x))
	}
	p.Rest, p.Subset, p.Places = true, p.Member.Len(), coordinator.Places(sample, p.Epoch, p.Earlier)
	return true
}

// Scripted is the recorded order of an epoch; false = the script has none.
func Scripted(script []coordinator.Scripted, epoch uint32) (coordinator.Scripted, bool) {
	i := slices.IndexFunc(script, func(s coordinator.Scripted) bool { return s.Epoch == epoch })
	if i < 0 {
		return coordinator.Scripted{}, false
	}
	return script[i], true
}
