package journal

import (
	"maps"
	"slices"
	"strconv"

	"larder/internal/ident"
)

// Limits of what a State keeps of the past.
const (
	keepEnded    = 256     // ended jobs: their spec, and the incarnations that fence their clients
	keepBad      = 1 << 17 // quarantined samples of a job
	keepIndexed  = 1 << 12 // datasets
	runningAtOne = 2       // epochs of a job at a time: ranks may be one ahead of each other
)

// State is what the records of a log come to: all that a daemon needs to go on. It is not safe for concurrent use; what it hands
// out is not to be changed.
type State struct {
	Seq  uint64 // of the last record in it
	Term uint64 // the highest
	// Datasets are the Indexed records' texts, oldest first.
	Datasets []string

	jobs   map[ident.JobID]*JobState
	ended  int
	closed []closedEpoch // whose order is in no file yet, oldest first
}

// JobState is what is known of a job.
type JobState struct {
	ID      ident.JobID
	Spec    string                       // text of Registered
	Ranks   map[uint32]ident.Incarnation // the newest of each rank
	Clients map[uint32]string            // text of its Attached
	Subsets []Record                     // SubsetChanged, oldest first
	Paused  bool
	Bad     []Record      // Quarantined, oldest first
	Epochs  []*EpochState // the newest that were begun, at most two, the newest last: a client may not have had the last batches of the one before
	Ended   bool
	Reason  string // why it ended
}

// EpochState is an epoch that runs: the newest one of a job, and the one before it until its account is closed.
type EpochState struct {
	Epoch   uint32
	Start   Record // EpochStarted
	Over    bool   // EpochEnded, and its text
	Account string
	Batches []Batch
	// Of jobs whose ranks get their steps together: steps that were decided, and samples that went back to the epoch.
	Dealt, GivenUp int
}

// Batch is what was promised to a rank in one step.
type Batch struct {
	Rank, Step  uint32
	Incarnation ident.Incarnation
	n           int
	packed      []byte
}

// Len counts its samples.
func (b *Batch) Len() int { return b.n }

// Objects returns its samples, in order.
func (b *Batch) Objects() []ident.ObjectID { return unpack(b.packed, b.n) }

type closedEpoch struct {
	job ident.JobID
	*EpochState
}

func newState() *State { return &State{jobs: map[ident.JobID]*JobState{}} }

// Jobs returns the jobs by id, ended ones among them.
func (s *State) Jobs() []*JobState {
	out := make([]*JobState, 0, len(s.jobs))
	for _, id := range slices.Sorted(maps.Keys(s.jobs)) {
		out = append(out, s.jobs[id])
	}
	return out
}

// Job returns a job; nil when it is not known.
func (s *State) Job(id ident.JobID) *JobState { return s.jobs[id] }

func (s *State) job(id ident.JobID) *JobState {
	j := s.jobs[id]
	if j == nil {
		j = &JobState{ID: id, Ranks: map[uint32]ident.Incarnation{}, Clients: map[uint32]string{}}
		s.jobs[id] = j
	}
	return j
}

func (j *JobState) running(epoch uint32) *EpochState {
	for _, o := range slices.Backward(j.Epochs) {
		if o.Epoch == epoch {
			return o
		}
	}
	return nil
}

// apply folds one record in. It accepts every record, in any order: a log that was cut says less, never nonsense.
func (s *State) apply(e *entry) {
	s.Seq, s.Term = e.Seq, max(s.Term, e.Term)
	if e.Kind == Indexed {
		s.Datasets = append(slices.DeleteFunc(s.Datasets, func(t string) bool { return t == e.Text }), e.Text)
		if n := len(s.Datasets) - keepIndexed; n > 0 {
			s.Datasets = slices.Delete(s.Datasets, 0, n)
		}
		return
	}
	j := s.job(e.Job)
	switch e.Kind {
	case Registered:
		j.Spec = e.Text
	case Attached:
		if e.Incarnation >= j.Ranks[e.Rank] {
			j.Ranks[e.Rank], j.Clients[e.Rank] = e.Incarnation, e.Text
		}
	case EpochStarted:
		s.start(j, e)
	case Assigned:
		o := j.running(e.Epoch)
		if o == nil {
			o = s.start(j, &entry{Record: Record{Kind: EpochStarted, Job: e.Job, Epoch: e.Epoch}})
		}
		o.Batches = append(o.Batches, Batch{Rank: e.Rank, Step: e.Step, Incarnation: e.Incarnation, n: e.n, packed: slices.Clone(e.packed)})
	case Returned:
		if o := j.running(e.Epoch); o != nil {
			o.giveBack(e)
		}
	case Dealt:
		if o := j.running(e.Epoch); o != nil {
			o.deal(e)
		}
	case Quarantined:
		rec := e.record()
		same := func(r Record) bool { return slices.Equal(r.Objects, rec.Objects) }
		if !slices.ContainsFunc(j.Bad[max(0, len(j.Bad)-64):], same) && len(j.Bad) < keepBad { // a batch that is tried again reports again
			j.Bad = append(j.Bad, rec)
		}
	case EpochEnded:
		if o := j.running(e.Epoch); o != nil {
			o.Over, o.Account = true, e.Text
		}
	case Ended:
		for len(j.Epochs) > 0 {
			s.close(j, 0)
		}
		if !j.Ended {
			s.ended++
		}
		*j = JobState{ID: j.ID, Spec: j.Spec, Ranks: j.Ranks, Clients: map[uint32]string{}, Ended: true, Reason: e.Text}
		s.forget()
	case SubsetChanged:
		j.Subsets = append(j.Subsets, e.record())
	case Paused, Resumed:
		j.Paused = e.Kind == Paused
	default:
	}
}

// start begins an epoch's order anew.
func (s *State) start(j *JobState, e *entry) *EpochState {
	if i := slices.IndexFunc(j.Epochs, func(o *EpochState) bool { return o.Epoch == e.Epoch }); i >= 0 {
		s.close(j, i) // it is begun again; tokens of what there was stay good
	}
	for len(j.Epochs) >= runningAtOne { // its ranks have all left it
		s.close(j, 0)
	}
	o := &EpochState{Epoch: e.Epoch, Start: e.record()}
	j.Epochs = append(j.Epochs, o)
	return o
}

// close takes an epoch out of those that a client may go on with.
func (s *State) close(j *JobState, i int) {
	o := j.Epochs[i]
	j.Epochs = slices.Delete(j.Epochs, i, i+1)
	if len(o.Batches) > 0 {
		s.closed = append(s.closed, closedEpoch{j.ID, o})
	}
}

// forget drops the oldest ended jobs; the newest id always stays, so that none is given twice.
func (s *State) forget() {
	if s.ended <= keepEnded+keepEnded/4 {
		return
	}
	ids := slices.Sorted(maps.Keys(s.jobs))
	for _, id := range ids[:len(ids)-1] {
		if s.ended > keepEnded && s.jobs[id].Ended {
			delete(s.jobs, id)
			s.ended--
		}
	}
}

// giveBack takes what was never delivered out of the batches of that rank and step.
func (o *EpochState) giveBack(e *entry) {
	var gone []ident.ObjectID
	if e.n > 0 {
		gone = unpack(e.packed, e.n)
	}
	o.Batches = slices.DeleteFunc(o.Batches, func(b Batch) bool { return b.Rank == e.Rank && b.Step == e.Step && e.n == 0 })
	for i := range o.Batches {
		b := &o.Batches[i]
		if e.n == 0 || b.Rank != e.Rank || b.Step != e.Step {
			continue
		}
		kept := slices.DeleteFunc(b.Objects(), func(x ident.ObjectID) bool { return slices.Contains(gone, x) })
		b.n, b.packed = len(kept), pack(nil, kept)
	}
	o.Batches = slices.DeleteFunc(o.Batches, func(b Batch) bool { return b.Rank == e.Rank && b.Step == e.Step && b.n == 0 })
}

// deal notes that a step was decided. What went back to the epoch is taken out of its batches, which stay, also without any: they have their numbers.
func (o *EpochState) deal(e *entry) {
	o.Dealt = max(o.Dealt, int(e.Step)+1)
	if n, err := strconv.Atoi(e.Text); err == nil {
		o.GivenUp = max(o.GivenUp, n)
	}
	if e.n == 0 {
		return
	}
	gone := unpack(e.packed, e.n)
	for i := range o.Batches {
		b := &o.Batches[i]
		if b.Step != e.Step || b.Rank == Earlier {
			continue
		}
		kept := slices.DeleteFunc(b.Objects(), func(x ident.ObjectID) bool { return slices.Contains(gone, x) })
		b.n, b.packed = len(kept), pack(nil, kept)
	}
}

// record unpacks the objects.
func (e *entry) record() Record {
	r := e.Record
	if e.n > 0 {
		r.Objects = unpack(e.packed, e.n)
	}
	return r
}

// clone returns a copy that later records do not change. Batches are copied by value; packed objects never change.
func (s *State) clone() *State {
	out := &State{Seq: s.Seq, Term: s.Term, Datasets: slices.Clone(s.Datasets), jobs: make(map[ident.JobID]*JobState, len(s.jobs)), ended: s.ended,
		closed: slices.Clone(s.closed)}
	for id, j := range s.jobs { // order-free: into another map
		c := *j
		c.Clients = maps.Clone(j.Clients)
		c.Ranks, c.Subsets, c.Bad = maps.Clone(j.Ranks), slices.Clip(j.Subsets), slices.Clip(j.Bad)
		c.Epochs = make([]*EpochState, len(j.Epochs))
		for i, o := range j.Epochs {
			c.Epochs[i] = &EpochState{Epoch: o.Epoch, Start: o.Start, Over: o.Over, Account: o.Account, Batches: slices.Clone(o.Batches), Dealt: o.Dealt, GivenUp: o.GivenUp}
		}
		out.jobs[id] = &c
	}
	return out
}

// entries yields records that, applied to an empty state, make this one. Closed epochs are among them.
func (s *State) entries(yield func(*entry) bool) {
	ok := true
	put := func(e entry) {
		if ok {
			if e.packed == nil && len(e.Objects) > 0 {
				e.n, e.packed = len(e.Objects), pack(nil, e.Objects)
			}
			ok = yield(&e)
		}
	}
	rec := func(k Kind, j ident.JobID, text string) { put(entry{Record: Record{Kind: k, Job: j, Text: text}}) }
	for _, d := range s.Datasets {
		rec(Indexed, 0, d)
	}
	for _, j := range s.Jobs() {
		rec(Registered, j.ID, j.Spec)
		for _, r := range slices.Sorted(maps.Keys(j.Ranks)) {
			put(entry{Record: Record{Kind: Attached, Job: j.ID, Rank: r, Incarnation: j.Ranks[r], Text: j.Clients[r]}})
		}
		for _, r := range j.Subsets {
			put(entry{Record: r})
		}
		for _, r := range j.Bad {
			put(entry{Record: r})
		}
		for _, o := range j.Epochs {
			putEpoch(put, j.ID, o)
		}
		if j.Paused {
			rec(Paused, j.ID, "")
		}
		if j.Ended {
			rec(Ended, j.ID, j.Reason)
		}
	}
}

func putEpoch(put func(entry), job ident.JobID, o *EpochState) {
	put(entry{Record: o.Start})
	for i := range o.Batches {
		b := &o.Batches[i]
		put(entry{Record: Record{Kind: Assigned, Job: job, Epoch: o.Epoch, Rank: b.Rank, Step: b.Step, Incarnation: b.Incarnation}, n: b.n, packed: b.packed})
	}
	if o.Dealt > 0 {
		put(entry{Record: Record{Kind: Dealt, Job: job, Epoch: o.Epoch, Step: uint32(o.Dealt - 1), Text: strconv.Itoa(o.GivenUp)}})
	}
	if o.Over {
		put(entry{Record: Record{Kind: EpochEnded, Job: job, Epoch: o.Epoch, Text: o.Account}})
	}
}

// filed forgets the oldest n closed epochs: their order is in a file.
func (s *State) filed(n int) { s.closed = slices.Delete(s.closed, 0, n) }

// order returns a job-epoch of an instance; nil when the state does not hold it.
func (s *State) order(job ident.JobID, epoch uint32, instance int64) *EpochState {
	if j := s.jobs[job]; j != nil {
		if o := j.running(epoch); o != nil && o.is(epoch, instance) {
			return o
		}
	}
	for _, c := range slices.Backward(s.closed) {
		if c.job == job && c.is(epoch, instance) {
			return c.EpochState
		}
	}
	return nil
}
