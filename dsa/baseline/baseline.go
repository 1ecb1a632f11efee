package baseline

import (
	"fmt"
	"slices"
	"strings"

	"larder/dsa"
	"larder/internal/bits"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/invariant"
	"larder/internal/xrand"
)

// Pick is one sample of one job.
type Pick struct {
	Job    ident.JobID
	Object ident.ObjectID
}

// rule is where the baselines differ. The table keeps the books and calls it; masks in need are updated before the
// call.
type rule interface {
	started(j *job)         // the job needs all of its subset
	stopped(j *job)         // the job needs nothing any more; need still has what it owed
	taken(j *job, x uint32) // x was committed
	back(j *job, x uint32)  // x is needed again
	leveled(x uint32)       // x came to memory or left it
	choose(j *job) uint32   // the next pick of the job alone
	round(jobs []*job, emit func(j *job, x uint32))
}

// job is one stream of picks.
type job struct {
	id      ident.JobID
	slot    uint8
	subset  []ident.ObjectID
	running bool
	rem     bag // what the running epoch still owes
	own     any // the rule's
}

// Sampler is a baseline. Not safe for concurrent use.
type Sampler struct {
	name  string
	rule  rule
	rng   *xrand.Rand
	byID  map[ident.JobID]*job // lookups only, never ranged over
	slot  [dsa.MaxJobs]*job
	live  bits.JobSet
	need  []bits.JobSet // by object: jobs whose running epoch owes it
	level []bool        // by object: in memory, as SetLevel said
	picks []Pick        // scratch
	jobs  []*job        // scratch
}

var makers = []struct {
	name string
	make func(*Sampler) rule
}{
	{"independent", func(s *Sampler) rule { return &independent{s: s} }},
	{"joader", func(s *Sampler) rule { return newJoader(s) }},
	{"joader-as-released", func(s *Sampler) rule { return &released{s: s} }},
	{"ods", func(s *Sampler) rule { return &ods{s: s} }},
	{"shared-order", func(s *Sampler) rule { return &sharedOrder{s: s, salt: s.rng.Uint64()} }},
}

// Names lists the baselines.
func Names() []string {
	var names []string
	for _, m := range makers {
		names = append(names, m.name)
	}
	return names
}

// New returns a baseline without jobs. All its choices derive from seed. An unknown name is an INVALID_ARGUMENT.
func New(name string, seed uint64) (*Sampler, error) {
	for _, m := range makers {
		if m.name == name {
			s := &Sampler{name: name, rng: xrand.New(0x626173656c696e65, seed), byID: make(map[ident.JobID]*job)}
			s.rule = m.make(s)
			return s, nil
		}
	}
	hint := "the baselines are " + strings.Join(Names(), ", ")
	return nil, errs.New(errs.Invalid, "order", hint, "unknown baseline %.40q", name)
}

// Name is the name that New took.
func (s *Sampler) Name() string { return s.name }

// Joint reports whether Round couples the draws of its jobs, so that a planner should ask for many jobs at once.
func (s *Sampler) Joint() bool { return s.name == "joader" }

// WriteOnly reports whether the jobs of this baseline never look into the cache: each pick is a load but for those that
// other jobs of the same baseline make in the same round.
func (s *Sampler) WriteOnly() bool { return s.name == "joader-as-released" }

// Opportunist reports whether Turnover has something to say.
func (s *Sampler) Opportunist() bool { return s.name == "ods" }

// Join registers a job; it is idle until StartEpoch. Of the spec only the subset counts. The errors are those of dsa.
// On an error nothing has changed.
func (s *Sampler) Join(id ident.JobID, spec dsa.JobSpec) error {
	fail := func(err error) error { return fmt.Errorf("%s: join job %d: %w", s.name, id, err) }
	switch {
	case s.byID[id] != nil:
		return fail(dsa.ErrJobExists)
	case len(spec.Subset) == 0:
		return fail(dsa.ErrEmptySubset)
	case s.live.Len() >= dsa.MaxJobs:
		return fail(dsa.ErrTooManyJobs)
	}
	top := slices.Max(spec.Subset)
	if top >= dsa.MaxObjects {
		return fail(dsa.ErrObjectID)
	}
	j := &job{id: id, subset: spec.Subset}
	for _, x := range spec.Subset {
		if !j.rem.add(uint32(x)) {
			return fail(dsa.ErrDuplicateObject)
		}
	}
	j.rem.clear()
	for s.live.Has(j.slot) {
		j.slot++
	}
	s.byID[id], s.slot[j.slot], s.live = j, j, s.live.With(j.slot)
	s.grow(int(top) + 1)
	return nil
}

func (s *Sampler) grow(n int) {
	if old := len(s.need); n > old {
		s.need = slices.Grow(s.need, n-old)[:n]
		s.level = slices.Grow(s.level, n-old)[:n]
	}
}

// StartEpoch makes the job need its whole subset again. An unfinished epoch is abandoned first. The number of the epoch
// does not matter here.
func (s *Sampler) StartEpoch(id ident.JobID, epoch uint32) error {
	j := s.byID[id]
	if j == nil {
		return fmt.Errorf("%s: start epoch %d of job %d: %w", s.name, epoch, id, dsa.ErrNoJob)
	}
	s.Abandon(id)
	j.running = true
	for _, x := range j.subset {
		s.need[x] = s.need[x].With(j.slot)
		j.rem.add(uint32(x))
	}
	s.rule.started(j)
	return nil
}

// Abandon drops what remains of the job's epoch; the job is idle until StartEpoch.
func (s *Sampler) Abandon(id ident.JobID) {
	j := s.byID[id]
	if j == nil || !j.running {
		return
	}
	s.rule.stopped(j)
	for _, x := range j.rem.items {
		s.need[x] = s.need[x].Without(j.slot)
	}
	j.rem.clear()
	j.running = false
}

// Leave removes the job.
func (s *Sampler) Leave(id ident.JobID) {
	j := s.byID[id]
	if j == nil {
		return
	}
	s.Abandon(id)
	delete(s.byID, id)
	s.slot[j.slot], s.live = nil, s.live.Without(j.slot)
}

// Next commits one pick of the job alone; false when its epoch owes nothing more, the job is idle or unknown.
func (s *Sampler) Next(id ident.JobID) (ident.ObjectID, bool) {
	j := s.byID[id]
	if j == nil || j.rem.len() == 0 {
		return 0, false
	}
	x := s.rule.choose(j)
	s.commit(j, x)
	return ident.ObjectID(x), true
}

// Round commits one pick of each of the jobs together and appends them to out, in the order of the jobs. Jobs that owe
// nothing, are idle or unknown are passed over.
func (s *Sampler) Round(ids []ident.JobID, out []Pick) []Pick {
	s.jobs = s.jobs[:0]
	for _, id := range ids {
		if j := s.byID[id]; j != nil && j.rem.len() > 0 {
			s.jobs = append(s.jobs, j)
		}
	}
	s.picks = s.picks[:0]
	s.rule.round(s.jobs, func(j *job, x uint32) { s.picks = append(s.picks, Pick{j.id, ident.ObjectID(x)}) })
	for _, p := range s.picks { // all draws of a round see what was before it
		s.commit(s.byID[p.Job], uint32(p.Object))
	}
	from := len(out)
	for _, id := range ids {
		if i := slices.IndexFunc(s.picks, func(p Pick) bool { return p.Job == id }); i >= 0 {
			out = append(out, s.picks[i])
		}
	}
	if len(out)-from != len(s.jobs) {
		invariant.Violated("%s: a round of %d jobs gave %d picks", s.name, len(s.jobs), len(out)-from)
	}
	return out
}

func (s *Sampler) commit(j *job, x uint32) {
	if !s.need[x].Has(j.slot) {
		invariant.Violated("%s: job %d was given %d, which it does not owe", s.name, j.id, x)
	}
	s.need[x] = s.need[x].Without(j.slot)
	j.rem.remove(x)
	s.rule.taken(j, x)
}

// Return takes back picks of the running epoch that were never delivered. Others are ignored.
func (s *Sampler) Return(id ident.JobID, ids []ident.ObjectID) {
	j := s.byID[id]
	if j == nil || !j.running {
		return
	}
	for _, x := range ids {
		if j.rem.member(uint32(x)) && j.rem.add(uint32(x)) {
			s.need[x] = s.need[x].With(j.slot)
			s.rule.back(j, uint32(x))
		}
	}
}

// SetLevel says whether x is in memory (above 0).
func (s *Sampler) SetLevel(x ident.ObjectID, level uint8) {
	if x >= dsa.MaxObjects || int(x) >= len(s.level) && level == 0 {
		return
	}
	s.grow(int(x) + 1)
	if s.level[x] != (level > 0) {
		s.level[x] = level > 0
		s.rule.leveled(uint32(x))
	}
}

// Need returns how many jobs still need x in their running epoch: what RefCnt evicts by. Jobs that never look into the
// cache need nothing of it.
func (s *Sampler) Need(x ident.ObjectID) int {
	if int(x) >= len(s.need) || s.WriteOnly() {
		return 0
	}
	return s.need[x].Len()
}

// Needs reports whether the job still needs x in its running epoch.
func (s *Sampler) Needs(id ident.JobID, x ident.ObjectID) bool {
	j := s.byID[id]
	return j != nil && int(x) < len(s.need) && s.need[x].Has(j.slot)
}

// Remaining returns how many samples the job's running epoch still owes; 0 when idle.
func (s *Sampler) Remaining(id ident.JobID) int {
	if j := s.byID[id]; j != nil {
		return j.rem.len()
	}
	return 0
}

// Len returns the size of the job's subset; 0 for an unknown job.
func (s *Sampler) Len(id ident.JobID) int {
	if j := s.byID[id]; j != nil {
		return len(j.subset)
	}
	return 0
}

// Turnover names a sample that ods evicts because enough hits were counted, and the one that is read in its place (ok =
// there is one); more is false when there is nothing to do. The caller drops out, reads in, and says both with
// SetLevel.
func (s *Sampler) Turnover() (out, in ident.ObjectID, ok, more bool) {
	if o, is := s.rule.(*ods); is {
		return o.turnover()
	}
	return 0, 0, false, false
}

// alone draws for each job of a round by itself.
func alone(r rule, jobs []*job, emit func(*job, uint32)) {
	for _, j := range jobs {
		emit(j, r.choose(j))
	}
}

// bag is a set of objects with uniform draws: a dense list, and the place of each object in it.
type bag struct {
	items []uint32
	pos   []uint32 // by object: place + 1; absent: out; gone: out, but it was in before
}

const gone = ^uint32(0)

func (b *bag) len() int { return len(b.items) }

// add puts x in and reports whether it was out.
func (b *bag) add(x uint32) bool {
	if n := int(x) + 1; n > len(b.pos) {
		old := len(b.pos)
		b.pos = slices.Grow(b.pos, n-old)[:n]
	}
	if p := b.pos[x]; p != 0 && p != gone {
		return false
	}
	b.items = append(b.items, x)
	b.pos[x] = uint32(len(b.items))
	return true
}

// remove takes x out and reports whether it was in.
func (b *bag) remove(x uint32) bool {
	if !b.has(x) {
		return false
	}
	i, last := b.pos[x]-1, len(b.items)-1
	b.items[i] = b.items[last]
	b.pos[b.items[i]] = i + 1
	b.items = b.items[:last]
	b.pos[x] = gone
	return true
}

func (b *bag) has(x uint32) bool { return int(x) < len(b.pos) && b.pos[x] != 0 && b.pos[x] != gone }

// member reports whether x was ever in.
func (b *bag) member(x uint32) bool { return int(x) < len(b.pos) && b.pos[x] != 0 }

func (b *bag) draw(r *xrand.Rand) uint32 { return b.items[r.IntN(len(b.items))] }

func (b *bag) clear() {
	for _, x := range b.items {
		b.pos[x] = gone
	}
	b.items = b.items[:0]
}
