package journal

import (
	"cmp"
	"slices"

	"larder/internal/ident"
)

// Earlier is the rank of batches whose samples a job did not give out because an earlier one had (GivenEarlier). They
// come before all others of their epoch.
const Earlier = 1<<32 - 1

// AnyInstance asks for the newest beginning of an epoch of which anything was given, whatever instance it has.
const AnyInstance = -1

// Recorded is the order of a job-epoch, without what was returned. It belongs to the caller; its batches are not to be
// changed.
type Recorded struct {
	Epoch, Instance uint32
	Remainder       bool    // it has what an earlier job left
	Batches         []Batch // as they were assigned; of one step and rank there may be several
}

// Given returns the samples that had been handed out when every rank had taken its first step batches, those of earlier
// jobs first, then by step and rank.
func (r *Recorded) Given(step uint32) (ids []ident.ObjectID) {
	var mine []*Batch
	for i := range r.Batches {
		b := &r.Batches[i]
		if b.Rank == Earlier {
			ids = append(ids, b.Objects()...)
		} else if b.Step < step {
			mine = append(mine, b)
		}
	}
	slices.SortStableFunc(mine, func(a, b *Batch) int {
		return cmp.Or(cmp.Compare(a.Step, b.Step),
			cmp.Compare(a.Rank, b.Rank))
	})
	for _, b := range mine {
		ids = append(ids, b.Objects()...)
	}
	return ids
}

// Steps is how many steps the rank that was given most of the epoch has.
func (r *Recorded) Steps() (most uint32) {
	for i := range r.Batches {
		if b := &r.Batches[i]; b.Rank != Earlier {
			most = max(most, b.Step+1)
		}
	}
	return most
}

// Earlier counts the samples that an earlier job had.
func (r *Recorded) Earlier() (n int) {
	for i := range r.Batches {
		if r.Batches[i].Rank == Earlier {
			n += r.Batches[i].n
		}
	}
	return n
}

func (o *EpochState) is(epoch uint32, instance int64) bool {
	return o.Epoch == epoch && (instance == AnyInstance && len(o.Batches) > 0 || int64(o.start.Step) == instance)
}

// recorded copies what is asked for while the state is locked.
func (o *EpochState) recorded() *Recorded {
	if o == nil {
		return nil
	}
	return &Recorded{Epoch: o.Epoch, Instance: o.start.Step, Remainder: o.Start().Remainder,
		Batches: slices.Clone(o.Batches)}
}

func (r *Recorded) objects() [][]ident.ObjectID {
	if r == nil {
		return [][]ident.ObjectID{}
	}
	out := make([][]ident.ObjectID, len(r.Batches))
	for i := range r.Batches {
		out[i] = r.Batches[i].Objects()
	}
	return out
}

// ID names the state directory; see Log.
func (d *Disk) ID() uint64 { return d.id }

// Order returns the batches of a job-epoch; see Log.
func (d *Disk) Order(job ident.JobID, epoch uint32) ([][]ident.ObjectID, error) {
	r, err := d.Recorded(job, epoch, AnyInstance)
	return r.objects(), err
}

// Recorded returns what is kept of a job-epoch; see Log. Orders of epochs that are over are read from their files.
func (d *Disk) Recorded(job ident.JobID, epoch uint32, instance int64) (*Recorded, error) {
	d.mu.Lock()
	r := d.mu.state.order(job, epoch, instance).recorded()
	files := slices.Clone(d.mu.orders)
	d.mu.Unlock()
	if r != nil {
		return r, nil
	}
	im := &image{fs: d.fs, id: d.id, known: true}
	o, err := im.findOrder(files, job, epoch, instance)
	return o.recorded(), err
}

// ID names this log; see Log.
func (m *Memory) ID() uint64 { return m.id }

// Order returns the batches of a job-epoch; see Log.
func (m *Memory) Order(job ident.JobID, epoch uint32) ([][]ident.ObjectID, error) {
	r, err := m.Recorded(job, epoch, AnyInstance)
	return r.objects(), err
}

func (o *order) is(instance int64) bool {
	return instance == AnyInstance && len(o.batches) > 0 || int64(o.instance) == instance
}

// Recorded returns what is kept of a job-epoch; see Log.
func (m *Memory) Recorded(job ident.JobID, epoch uint32, instance int64) (*Recorded, error) {
	m.mu.Lock()
	key := epochKey{job: job, epoch: epoch}
	o := m.mu.orders[key]
	if o == nil || !o.is(instance) {
		i := len(m.mu.ages) - 1
		for ; i >= 0; i-- {
			if k := m.mu.ages[i]; k.job == job && k.epoch == epoch && m.mu.orders[k].is(instance) {
				break
			}
		}
		if i >= 0 {
			o = m.mu.orders[m.mu.ages[i]]
		} else {
			o = nil
		}
	}
	if o == nil {
		m.mu.Unlock()
		return nil, nil
	}
	batches := slices.Clone(o.batches) // encoded ids never change in place
	out := &Recorded{Epoch: epoch, Instance: o.instance, Remainder: o.remainder}
	m.mu.Unlock()
	for _, b := range batches {
		out.Batches = append(out.Batches, Batch{Rank: b.rank, Step: b.step, n: b.n, packed: pack(nil, decode(b.ids, b.n))})
	}
	return out, nil
}

// Epochs lists the epochs that are kept of a job; see Log. A file that cannot be read has none.
func (d *Disk) Epochs(job ident.JobID) []uint32 {
	var out []uint32
	d.mu.Lock()
	if j := d.mu.state.jobs[job]; j != nil {
		for _, o := range j.Epochs {
			out = append(out, o.Epoch)
		}
	}
	for _, c := range d.mu.state.closed {
		if c.job == job {
			out = append(out, c.Epoch)
		}
	}
	files := slices.Clone(d.mu.orders)
	d.mu.Unlock()
	im := &image{fs: d.fs, id: d.id, known: true}
	for _, name := range files {
		_, list, err := im.contents(name)
		if err != nil {
			continue
		}
		for _, c := range list {
			if c.job == uint64(job) {
				out = append(out, uint32(c.epoch))
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Epochs lists the epochs that are kept of a job; see Log.
func (m *Memory) Epochs(job ident.JobID) []uint32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []uint32
	for _, k := range m.mu.ages {
		if k.job == job {
			out = append(out, k.epoch)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
