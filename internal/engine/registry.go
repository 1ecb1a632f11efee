package engine

import (
	"context"
	"maps"
	"slices"
	"sync"

	"larder/internal/coordinator"
	"larder/internal/engine/ring"
	"larder/internal/engine/work"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/nearest"
	"larder/internal/resume"
	"larder/internal/source"
	"larder/jobs"
	"larder/tiers/disk"
)

// keepEnded is how many jobs are remembered after their end: more than the coordinator lists, and than can still have
// work running.
const keepEnded = 256

// keepSketches is how many sketches of subsets are remembered.
const keepSketches = 16

// registry holds the jobs of this daemon, and for a while those that ended. It is safe for concurrent use.
type registry struct {
	loop   *loop
	claims *claims
	mu     struct {
		sync.Mutex
		jobs        map[ident.JobID]*job
		names       map[string]*job            // the newest job of a name
		registering map[coordinator.Token]*job // by the Register event that asks for them
		ended       []ident.JobID              // oldest first; jobs holds the last keepEnded of them
		sketches    []keptSketch               // the last ones, oldest first
	}
}

func newRegistry(l *loop) *registry {
	r := &registry{loop: l}
	r.claims = newClaims(l.send, r.over)
	r.mu.jobs = map[ident.JobID]*job{}
	r.mu.names = map[string]*job{}
	r.mu.registering = map[coordinator.Token]*job{}
	return r
}

// byID finds a job; nil = it is not known any more. Jobs that ended are kept for a while, since their last work may
// run.
func (r *registry) byID(id ident.JobID) *job {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.jobs[id]
}

// byRecipe finds the newest job of a dataset by its recipe's fingerprint, nil when there is none, and the fingerprints
// that jobs of the dataset have.
func (r *registry) byRecipe(uri, recipe string) (_ *job, known []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var newest *job
	for _, j := range r.mu.jobs { // order-free: the newest is found
		if !j.ByClients() || j.Data.URI() != uri && j.spec.GetDataset() != uri {
			continue
		}
		if j.Recipe.ID().String() == recipe && (newest == nil || newest.ID < j.ID) {
			newest = j
		}
		known = append(known, j.Recipe.ID().String())
	}
	slices.Sort(known)
	return newest, known
}

// byName finds the newest job of a name; nil = there is none.
func (r *registry) byName(name string) *job {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.names[name]
}

// live finds the newest job of a name, nil when there is none, and reports whether it lives.
func (r *registry) live(ctx context.Context, name string) (_ *job, live bool, err error) {
	j := r.byName(name)
	if j == nil {
		return nil, false, nil
	}
	v, err := r.loop.lookup(ctx, j.ID)
	return j, v != nil && !v.State.Ended(), err
}

// expect makes a job known to the record of its registration; unexpect ends that.
func (r *registry) expect(t coordinator.Token, j *job) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.registering[t] = j
}

func (r *registry) unexpect(t coordinator.Token) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.mu.registering, t)
}

// expected is the job that a Register event asks for; nil = no request did.
func (r *registry) expected(t coordinator.Token) *job {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.registering[t]
}

// add makes a job known, as the newest one of its name.
func (r *registry) add(j *job) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.jobs[j.ID], r.mu.names[j.spec.GetName()] = j, j
}

// remove undoes add.
func (r *registry) remove(j *job) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.mu.jobs, j.ID)
	delete(r.mu.names, j.spec.GetName())
}

// end notes that a job ended, and forgets the one that ended longest ago. It returns the job; nil = it is not known.
func (r *registry) end(id ident.JobID) *job {
	r.mu.Lock()
	defer r.mu.Unlock()
	j := r.mu.jobs[id]
	r.mu.ended = append(r.mu.ended, id)
	if len(r.mu.ended) <= keepEnded {
		return j
	}
	old := r.mu.ended[0]
	r.mu.ended = append(r.mu.ended[:0], r.mu.ended[1:]...)
	if k := r.mu.jobs[old]; k != nil {
		if r.mu.names[k.spec.GetName()] == k {
			delete(r.mu.names, k.spec.GetName())
		}
		delete(r.mu.jobs, old)
	}
	return j
}

// readers counts the live jobs that read a dataset, by its uri.
func (r *registry) readers(uri string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, j := range r.mu.jobs { // order-free: they are counted
		if disk.SameGroup(uri, j.Data.URI()) && !slices.Contains(r.mu.ended, id) {
			n++
		}
	}
	return n
}

// over reports whether a job has ended, or is not remembered any more.
func (r *registry) over(id ident.JobID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.jobs[id] == nil || slices.Contains(r.mu.ended, id)
}

// uses reports whether a job that is remembered has the recipe.
func (r *registry) uses(k work.RecipeKey) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, j := range r.mu.jobs { // order-free: one is enough
		if j.RecipeKey() == k {
			return true
		}
	}
	return false
}

// datasetsOf are the datasets that jobs of a user read.
func (r *registry) datasetsOf(uid uint32) map[uint32]bool {
	own := map[uint32]bool{}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, j := range r.mu.jobs { // order-free: a map again
		if j.owner.uid() == uid {
			own[uint32(j.Data.ID())] = true
		}
	}
	return own
}

// noJob is the error of a name that no job has; its hint has the nearest one that a job has.
func (r *registry) noJob(name string) error {
	r.mu.Lock()
	names := slices.Sorted(maps.Keys(r.mu.names))
	r.mu.Unlock()
	hint := "larder jobs ls --ended shows the jobs there are"
	if near := nearest.Word(name, names); near != "" {
		hint = "did you mean " + near + "? " + hint
	}
	return errs.New(errs.NotFound, name, hint, "no job %q here", name)
}

// sketchKey names a subset: objects are versions of files, so that equal ones have equal sketches.
type sketchKey struct {
	data *source.Dataset
	hash uint64
	n    int
}

type keptSketch struct {
	sketchKey
	sketch *resume.Sketch
}

// sketched makes the sketch of the files of a subset. It takes time in proportion, so the caller makes it; the last
// few are remembered, because the ranks of a job, and jobs of a sweep, select the same.
func (r *registry) sketched(data *source.Dataset, a asked) *resume.Sketch {
	key := sketchKey{data, a.hash, len(a.objects)}
	r.mu.Lock()
	i := slices.IndexFunc(r.mu.sketches, func(k keptSketch) bool { return k.sketchKey == key })
	if i >= 0 {
		defer r.mu.Unlock()
		return r.mu.sketches[i].sketch
	}
	r.mu.Unlock()
	k := sketchOf(data, a.objects, true)
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.mu.sketches) == keepSketches {
		r.mu.sketches = slices.Delete(r.mu.sketches, 0, 1)
	}
	r.mu.sketches = append(r.mu.sketches, keptSketch{key, k})
	return k
}

// takeOver makes room for a job that continues from a token: a job of that name whose clients are all gone ends. It
// returns the job instead when it is the very one, made by another rank of it.
func (r *registry) takeOver(
	ctx context.Context, rings *ring.Set, j *job, t *resume.Token,
) (same *job, kill func() error, err error) {
	spec := j.spec
	old, live, err := r.live(ctx, spec.GetName())
	if err != nil || !live {
		return nil, func() error { return nil }, err
	}
	v, err := r.loop.lookup(ctx, old.ID)
	if err != nil || v == nil {
		return nil, func() error { return nil }, err
	}
	if old.resume != nil && old.resume.sum == t.Sum && !v.Begun() && old.diff(j) == "" {
		return old, nil, nil
	}
	for rank := range v.Ranks {
		if v.Ranks[rank].Attached() {
			return nil, nil, heldBy(rings, errs.New(errs.RankHeld, spec.GetName(),
				"end the other process, or give this Loader another job name; all ranks of a job load its state together",
				"job %s, of which rank %d is held by a live client, cannot resume from a state", spec.GetName(), rank),
				old.ID, rank)
		}
	}
	return nil, func() error {
		return r.kill(ctx, old, "its client loaded a state, and continues as another job of that name")
	}, nil
}

// kill ends a job.
func (r *registry) kill(ctx context.Context, j *job, why string) error {
	_, err := r.loop.ask(context.WithoutCancel(ctx), func(t coordinator.Token) coordinator.Event {
		return coordinator.Kill{Token: t, Job: j.ID, Reason: why}
	})
	if errs.Is(err, errs.JobEnded) {
		return nil
	}
	return err
}

// giveWay ends a job that had clients and has none that lives, for another one of its name; else it returns refusal.
func (r *registry) giveWay(ctx context.Context, rings *ring.Set, old *job, refusal error) error {
	v, err := r.loop.lookup(ctx, old.ID)
	if err != nil {
		return err
	}
	if v == nil {
		return refusal
	}
	had := v.State == jobs.Suspect
	for rank := range v.Ranks {
		if rings.Lives(old.ID, rank) {
			return refusal
		}
		had = had || v.Ranks[rank].Attaches > 0
	}
	if !had { // who registered it is yet to come
		return refusal
	}
	return r.kill(ctx, old, "its clients ended, and another job of that name was registered")
}
