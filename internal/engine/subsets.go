package engine

import (
	"context"
	"encoding/binary"
	"log/slog"
	"slices"
	"sync"

	"github.com/cespare/xxhash/v2"

	"larder/internal/bits"
	"larder/internal/coordinator"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/resume"
	"larder/internal/source"
	"larder/jobs"
	larderv1 "larder/proto/larder/v1"
)

// subsets are what a job was asked to draw, in the order asked: the one in force, and what waits for its next epoch.
// The numbers (marks) are those of the coordinator. Writers hold Engine.registering too.
type subsets struct {
	sync.Mutex
	asked []asked   // never empty; the last one is what the job is to draw in the end
	next  asked     // being asked for
	gone  *bits.Set // objects of asked that do not exist any more; nil = none
	seen  uint64    // fingerprint of the dataset that the last one was selected from
	note  string    // why the last change of the dataset could not be followed
}

type asked struct {
	mark    uint32
	expr    string
	objects []ident.ObjectID // shared with the coordinator
	hash    uint64           // of objects
	sketch  *resume.Sketch   // of their files
}

func newSubsets(expr string, objects []ident.ObjectID, seen uint64) *subsets {
	return &subsets{asked: []asked{{expr: expr, objects: objects, hash: hashObjects(objects)}}, seen: seen}
}

// last is the subset that was asked for last.
func (s *subsets) last() asked {
	s.Lock()
	defer s.Unlock()
	return s.asked[len(s.asked)-1]
}

// coming is the subset of a mark, which may be the one that is being asked for.
func (s *subsets) coming(mark uint32) asked {
	s.Lock()
	defer s.Unlock()
	for _, a := range s.asked {
		if a.mark == mark {
			return a
		}
	}
	return s.next
}

// expr is the text of a subset, by its mark.
func (s *subsets) expr(mark uint32) string {
	s.Lock()
	defer s.Unlock()
	for _, a := range s.asked {
		if a.mark == mark {
			return a.expr
		}
	}
	return s.asked[len(s.asked)-1].expr
}

// forget drops what was asked for before the subset in force.
func (s *subsets) forget(inForce uint32) {
	s.Lock()
	defer s.Unlock()
	s.asked = slices.DeleteFunc(s.asked, func(a asked) bool { return a.mark < inForce })
}

func hashObjects(objects []ident.ObjectID) uint64 {
	h := xxhash.New()
	buf := make([]byte, 0, 4096)
	for part := range slices.Chunk(objects, 1024) {
		buf = buf[:0]
		for _, x := range part {
			buf = binary.LittleEndian.AppendUint32(buf, uint32(x))
		}
		_, _ = h.Write(buf) // a hash never fails
	}
	return h.Sum64()
}

func objectsOf(data *source.Dataset, samples []ident.SampleID) []ident.ObjectID {
	objects := make([]ident.ObjectID, len(samples))
	for i, s := range samples {
		objects[i] = data.Object(s)
	}
	return objects
}

// exists reports whether an object is what the dataset shows of its sample now.
func exists(data *source.Dataset, x ident.ObjectID) bool {
	s, ok := data.Sample(x)
	return ok && data.Live(s) && data.Object(s) == x
}

// faulty leaves out samples that no client hears of: nothing is wrong with removed ones, and damaged ones may be
// skipped by configuration.
func (l *library) faulty(bad []jobs.Bad) []jobs.Bad {
	untold := func(b jobs.Bad) bool { return b.Removed || b.Corrupt && l.skipCorrupt }
	if !slices.ContainsFunc(bad, untold) {
		return bad
	}
	return slices.DeleteFunc(slices.Clone(bad), untold)
}

// diff names the fields in which a spec differs from the job's; empty = it is the same job. Its subset may be the one
// it was registered with, or the one it was given last: scripts that come back still say the first.
func (j *job) diff(spec *larderv1.JobSpec) string {
	if last := j.subsets.last().expr; spec.GetSubset() == last && last != j.spec.GetSubset() {
		return specDiff(j.specWith(last), spec)
	}
	return specDiff(j.spec, spec)
}

// SetSubset gives a job another subset from its next epoch on.
func (e *Engine) SetSubset(ctx context.Context, req *larderv1.SetSubsetRequest) (*larderv1.SetSubsetResponse, error) {
	e.registering.Lock()
	defer e.registering.Unlock()
	j, live, err := e.jobs.live(ctx, req.GetName())
	switch {
	case err != nil:
		return nil, err
	case j == nil:
		return nil, e.jobs.noJob(req.GetName())
	case !live:
		return nil, errs.New(errs.JobEnded, req.GetName(), "make a new Loader with that subset",
			"change the subset of job %s, which has ended", req.GetName())
	}
	if err := mayTouch(ctx, j, "change"); err != nil {
		return nil, err
	}
	if uint64(req.GetRank()) >= uint64(j.life.World) {
		return nil, errs.New(errs.Invalid, "rank", "ranks count from 0",
			"change the subset for rank %d of job %s, which has world_size %d", req.GetRank(), req.GetName(), j.life.World)
	}
	seen := j.Data.Fingerprint()
	samples, err := j.Data.Select(req.GetSubset())
	if err != nil {
		return nil, err
	}
	if err := e.library.mayReadAt(ctx, j.owner, j.Data, seen); err != nil {
		return nil, err
	}
	r, err := e.follower.change(ctx, j, wanted{int(req.GetRank()), req.GetSubset(), objectsOf(j.Data, samples), seen})
	if err != nil {
		return nil, err
	}
	v, err := e.views.describe(ctx, j.ID)
	if err != nil {
		return nil, err
	}
	return &larderv1.SetSubsetResponse{Job: v, Epoch: r.Epoch, NumSamples: uint64(r.Samples),
		BatchesPerEpoch: uint64(r.Batches)}, nil
}

// wanted is a subset that a job is to have.
type wanted struct {
	rank    int // that asks
	expr    string
	objects []ident.ObjectID
	seen    uint64 // fingerprint of the dataset when they were selected
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
	next := asked{mark: last.mark + 1, expr: to.expr, objects: to.objects, hash: hashObjects(to.objects)}
	same := next.hash == last.hash && len(to.objects) == len(last.objects) && next.expr == last.expr
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

// vanished is the set of objects that the job was to draw and that do not exist any more; nil = none.
func (j *job) vanished() *bits.Set {
	j.subsets.Lock()
	defer j.subsets.Unlock()
	var gone *bits.Set
	for _, a := range j.subsets.asked {
		for _, x := range a.objects {
			if exists(j.Data, x) {
				continue
			}
			if gone == nil {
				gone = new(bits.Set)
			}
			gone.Add(uint32(x))
		}
	}
	return gone
}

// follow changes the jobs of changed datasets: what their subset selects now is theirs from their next epoch on, and
// what is gone is not drawn any more. It returns their names. e.registering is held.
func (f *follower) follow(ctx context.Context) ([]string, error) {
	live, err := f.loop.list(ctx, false)
	if err != nil {
		return nil, err
	}
	var told []string
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
				return told, err
			}
			continue
		}
		told = append(told, j.spec.GetName())
	}
	return told, nil
}

// reselect evaluates a job's subset again. When that selects nothing, or the job has no epoch left for it, the job
// keeps the subset it has, without what is gone, and says so.
func (f *follower) reselect(ctx context.Context, j *job, expr string, seen uint64) error {
	samples, err := j.Data.Select(expr)
	if err == nil {
		err = f.library.mayReadAt(ctx, j.owner, j.Data, seen)
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

// open is Catalog.Open; jobs hear of what it finds changed.
func (e *Engine) open(ctx context.Context, nameOrURI string) (*source.Dataset, error) {
	asks := asker(ctx)
	d, err := e.library.openFor(ctx, asks, nameOrURI, false)
	if err != nil {
		return nil, err
	}
	if asks != nil {
		if _, err := e.cfg.Catalog.MayRead(ctx, d, asks.reader()); err != nil {
			return nil, err
		}
	}
	return d, e.follower.followed(ctx)
}

// RefreshDataset looks at every file of a dataset again and changes its jobs.
func (e *Engine) RefreshDataset(
	ctx context.Context, req *larderv1.RefreshDatasetRequest,
) (*larderv1.RefreshDatasetResponse, error) {
	now, before, err := e.library.reindex(ctx, req.GetDataset())
	if err != nil {
		return nil, err
	}
	out := &larderv1.RefreshDatasetResponse{}
	after := liveObjects(now)
	for i := range max(len(before), len(after)) {
		was, is := source.NoObject, source.NoObject
		if i < len(before) {
			was = before[i]
		}
		if i < len(after) {
			is = after[i]
		}
		if was == is {
			continue
		}
		if was != source.NoObject {
			out.Removed++
		}
		if is != source.NoObject {
			out.Added++
		}
	}
	e.registering.Lock()
	defer e.registering.Unlock()
	if out.Jobs, err = e.follower.follow(ctx); err != nil {
		return nil, err
	}
	out.Dataset = e.library.dataset(now)
	e.cfg.Log.Info("dataset refreshed", "name", now.Name(), "added", out.GetAdded(), "removed", out.GetRemoved(), "jobs",
		len(out.GetJobs()))
	return out, nil
}

// reindex looks at a known dataset again, with the rights of the user who asks. before is what it had.
func (l *library) reindex(
	ctx context.Context, nameOrURI string,
) (now *source.Dataset, before []ident.ObjectID, err error) {
	asks := asker(ctx)
	if asks != nil {
		if err := l.catalog.MayList(nameOrURI, asks.reader()); err != nil {
			return nil, nil, err
		}
	}
	d, ok := l.catalog.Get(nameOrURI)
	switch {
	case ok:
		before = liveObjects(d)
	case asks != nil: // the catalogue's own error names other datasets
		return nil, nil, errs.New(errs.NotFound, nameOrURI, "larder dataset add "+nameOrURI,
			"refresh dataset %q, which is not known", nameOrURI)
	}
	if asks == nil {
		now, err = l.catalog.Reindex(ctx, nameOrURI)
		return now, before, err
	}
	if now, err = l.catalog.ReindexFor(ctx, d, asks.reader()); err != nil {
		return nil, nil, err
	}
	_, err = l.catalog.MayRead(ctx, now, asks.reader())
	return now, before, err
}

// liveObjects are the objects of a dataset by sample id, NoObject for samples that are gone.
func liveObjects(d *source.Dataset) []ident.ObjectID {
	out := make([]ident.ObjectID, d.Len())
	for i := range out {
		out[i] = source.NoObject
		if s := ident.SampleID(i); d.Live(s) {
			out[i] = d.Object(s)
		}
	}
	return out
}

// tellSubsets says in a job's public form which subset it draws, which one is next, and what is to be noted.
func (w *views) tellSubsets(out *larderv1.Job, j *job, v *jobs.Job) {
	if expr := j.subsets.expr(v.Mark); expr != out.GetSpec().GetSubset() {
		out.Spec = j.specWith(expr)
	}
	if v.Next != nil {
		out.NextSubset, out.NextSubsetSize = j.subsets.expr(v.Next.Mark), uint64(v.Next.Subset)
	}
	out.Notes = slices.Clone(j.notes)
	j.subsets.Lock()
	note := j.subsets.note
	j.subsets.Unlock()
	if note != "" {
		out.Notes = append(out.Notes, note)
	}
	if d, ok := w.catalog.Get(j.spec.GetDataset()); ok && d != j.Data {
		out.Notes = append(out.Notes, "class folders of the dataset changed, so its labels did: "+
			"the job keeps the files and labels it began with")
	}
}
