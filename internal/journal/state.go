package journal

import (
	"maps"
	"slices"

	"larder/internal/ident"
)

// Limits of what a State keeps of the past.
const (
	keepEnded    = 256     // ended jobs: their spec, and the incarnations that fence their clients
	keepBad      = 1 << 17 // quarantined samples of a job
	keepIndexed  = 1 << 12 // datasets
	runningAtOne = 2       // epochs of a job at a time: ranks may be one ahead of each other
)

// State is what the records of a log come to: all that a daemon needs to continue. It is not safe for concurrent use;
// what it hands out is not to be changed.
type State struct {
	Seq  uint64 // of the last record in it
	Term uint64 // the highest
	// Datasets are the Indexed records' texts, oldest first.
	Datasets []string

	jobs   map[ident.JobID]*JobState
	ended  int
	closed []closedEpoch // whose order is in no file yet, oldest first
	whole  bool          // packed objects stay where they are: in memory that nobody else uses
}

// keepPiece is the size in bytes of the pieces of memory in which the batches of a job lie together. A batch alone is
// some hundred bytes, and a folder has a million of them. A piece stays until all batches in it are dropped.
const keepPiece = 1 << 15

// keep returns packed objects that stay what they are.
func (j *JobState) keep(b []byte) []byte {
	if len(b) > keepPiece/8 {
		return slices.Clone(b)
	}
	if len(b) > len(j.room) {
		j.room = make([]byte, keepPiece)
	}
	out := j.room[:len(b):len(b)]
	j.room = j.room[copy(out, b):]
	return out
}

// JobState is what is known of a job.
type JobState struct {
	ID      ident.JobID
	Spec    string                       // document of Registered
	Ranks   map[uint32]ident.Incarnation // the newest of each rank
	Clients map[uint32]string            // client of its Attached
	Paused  bool
	// the newest that were begun, at most two, the newest last: a client may not have had the last batches of the one
	// before
	Epochs []*EpochState
	Ended  bool
	Reason string // why it ended

	subsets []entry // kindSubsetChanged, oldest first
	bad     []entry // kindQuarantined, oldest first
	room    []byte  // what is left of the newest piece, see keep
}

// Subsets are the changes of the job's subset, oldest first.
func (j *JobState) Subsets() []SubsetChanged {
	out := make([]SubsetChanged, len(j.subsets))
	for i := range j.subsets {
		out[i] = j.subsets[i].subsetChanged()
	}
	return out
}

// Quarantined are the samples that the job could not have, oldest first.
func (j *JobState) Quarantined() []Quarantined {
	out := make([]Quarantined, len(j.bad))
	for i := range j.bad {
		out[i] = j.bad[i].quarantined()
	}
	return out
}

// EpochState is an epoch that runs: the newest one of a job, and the one before it until its account is closed.
type EpochState struct {
	Epoch   uint32
	Over    bool // it ended, with this account
	Account string
	Batches []Batch
	// Of jobs whose ranks get their steps together: steps that were decided, and samples that went back to the epoch.
	Dealt, GivenUp int

	start entry // kindEpochStarted
}

// Start is the record that began the epoch.
func (o *EpochState) Start() EpochStarted { return o.start.epochStarted() }

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
	if e.Kind == kindIndexed {
		s.Datasets = append(slices.DeleteFunc(s.Datasets, func(t string) bool { return t == e.Text }), e.Text)
		if n := len(s.Datasets) - keepIndexed; n > 0 {
			s.Datasets = slices.Delete(s.Datasets, 0, n)
		}
		return
	}
	j := s.job(e.Job)
	switch e.Kind {
	case kindRegistered:
		j.Spec = e.Text
	case kindAttached:
		if e.Incarnation >= j.Ranks[e.Rank] {
			j.Ranks[e.Rank], j.Clients[e.Rank] = e.Incarnation, e.Text
		}
	case kindEpochStarted:
		s.start(j, e)
	case kindAssigned:
		o := j.running(e.Epoch)
		if o == nil {
			o = s.start(j, &entry{row: row{Kind: kindEpochStarted, Job: e.Job, Epoch: e.Epoch}})
		}
		packed := e.packed
		if !s.whole {
			packed = j.keep(packed)
		}
		o.Batches = append(o.Batches, Batch{Rank: e.Rank, Step: e.Step, Incarnation: e.Incarnation, n: e.n, packed: packed})
	case kindReturned:
		if o := j.running(e.Epoch); o != nil {
			o.dropUndelivered(e)
		}
	case kindDealt:
		if o := j.running(e.Epoch); o != nil {
			o.deal(e)
		}
	case kindQuarantined:
		rec := e.unpacked()
		same := func(r entry) bool { return slices.Equal(r.Objects, rec.Objects) }
		late := j.bad[max(0, len(j.bad)-64):]
		if !slices.ContainsFunc(late, same) && len(j.bad) < keepBad { // a batch that is tried again reports again
			j.bad = append(j.bad, rec)
		}
	case kindEpochEnded:
		if o := j.running(e.Epoch); o != nil {
			o.Over, o.Account = true, e.Text
		}
	case kindEnded:
		for len(j.Epochs) > 0 {
			s.close(j, 0)
		}
		if !j.Ended {
			s.ended++
		}
		*j = JobState{ID: j.ID, Spec: j.Spec, Ranks: j.Ranks, Clients: map[uint32]string{}, Ended: true, Reason: e.Text}
		s.forget()
	case kindSubsetChanged:
		j.subsets = append(j.subsets, e.unpacked())
	case kindPaused, kindUnpaused:
		j.Paused = e.Kind == kindPaused
	default:
	}
}

// start restarts an epoch's order.
func (s *State) start(j *JobState, e *entry) *EpochState {
	if i := slices.IndexFunc(j.Epochs, func(o *EpochState) bool { return o.Epoch == e.Epoch }); i >= 0 {
		s.close(j, i) // it is begun again; tokens of what there was stay good
	}
	for len(j.Epochs) >= runningAtOne { // its ranks have all left it
		s.close(j, 0)
	}
	o := &EpochState{Epoch: e.Epoch, start: e.unpacked()}
	j.Epochs = append(j.Epochs, o)
	return o
}

// close takes an epoch out of those that a client may continue.
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

// dropUndelivered removes samples that were never delivered from the batches of that rank and step.
func (o *EpochState) dropUndelivered(e *entry) {
	var gone []ident.ObjectID
	if e.n > 0 {
		gone = unpack(e.packed, e.n)
	}
	o.Batches = slices.DeleteFunc(o.Batches, func(b Batch) bool {
		return b.Rank == e.Rank && b.Step == e.Step &&
			e.n == 0
	})
	for i := range o.Batches {
		b := &o.Batches[i]
		if e.n == 0 || b.Rank != e.Rank || b.Step != e.Step {
			continue
		}
		kept := slices.DeleteFunc(b.Objects(), func(x ident.ObjectID) bool { return slices.Contains(gone, x) })
		b.n, b.packed = len(kept), pack(nil, kept)
	}
	o.Batches = slices.DeleteFunc(o.Batches, func(b Batch) bool {
		return b.Rank == e.Rank && b.Step == e.Step &&
			b.n == 0
	})
}

// deal notes that a step was decided. What went back to the epoch is taken out of its batches, which stay, also without
// any: they have their numbers.
func (o *EpochState) deal(e *entry) {
	o.Dealt = max(o.Dealt, int(e.Step)+1)
	if n, ok := e.givenUp(); ok {
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

// unpacked is the entry with its objects as a list, which does not point into what was read.
func (e *entry) unpacked() entry {
	out := entry{row: e.row, Seq: e.Seq, Term: e.Term}
	if e.n > 0 {
		out.Objects = unpack(e.packed, e.n)
	}
	return out
}

// clone returns a copy that later records do not change. Batches are copied by value; packed objects never change.
func (s *State) clone() *State {
	out := &State{Seq: s.Seq, Term: s.Term, Datasets: slices.Clone(s.Datasets),
		jobs: make(map[ident.JobID]*JobState, len(s.jobs)), ended: s.ended,
		closed: slices.Clone(s.closed)}
	for id, j := range s.jobs { // order-free: into another map
		c := *j
		c.Clients, c.room = maps.Clone(j.Clients), nil
		c.Ranks, c.subsets, c.bad = maps.Clone(j.Ranks), slices.Clip(j.subsets), slices.Clip(j.bad)
		c.Epochs = make([]*EpochState, len(j.Epochs))
		for i, o := range j.Epochs {
			copied := *o
			copied.Batches = slices.Clone(o.Batches)
			c.Epochs[i] = &copied
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
	rec := func(k kind, j ident.JobID, text string) { put(entry{row: row{Kind: k, Job: j, Text: text}}) }
	for _, d := range s.Datasets {
		rec(kindIndexed, 0, d)
	}
	for _, j := range s.Jobs() {
		rec(kindRegistered, j.ID, j.Spec)
		for _, r := range slices.Sorted(maps.Keys(j.Ranks)) {
			put(entry{row: row{Kind: kindAttached, Job: j.ID, Rank: r, Incarnation: j.Ranks[r], Text: j.Clients[r]}})
		}
		for _, r := range j.subsets {
			put(r)
		}
		for _, r := range j.bad {
			put(r)
		}
		for _, o := range j.Epochs {
			putEpoch(put, j.ID, o)
		}
		if j.Paused {
			rec(kindPaused, j.ID, "")
		}
		if j.Ended {
			rec(kindEnded, j.ID, j.Reason)
		}
	}
}

func putEpoch(put func(entry), job ident.JobID, o *EpochState) {
	put(o.start)
	for i := range o.Batches {
		b := &o.Batches[i]
		put(entry{row: row{Kind: kindAssigned, Job: job, Epoch: o.Epoch, Rank: b.Rank, Step: b.Step,
			Incarnation: b.Incarnation}, n: b.n, packed: b.packed})
	}
	if o.Dealt > 0 {
		put(entry{row: Dealt{Job: job, Epoch: o.Epoch, Step: uint32(o.Dealt - 1), GivenUp: o.GivenUp}.row()})
	}
	if o.Over {
		put(entry{row: row{Kind: kindEpochEnded, Job: job, Epoch: o.Epoch, Text: o.Account}})
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
