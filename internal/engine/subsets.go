package engine

import (
	"context"
	"encoding/binary"
	"slices"
	"sync"

	"github.com/cespare/xxhash/v2"

	"larder/internal/bits"
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
	objects []ident.ObjectID // shared with the coordinator; nil once the job has ended, see job.selects
	samples int              // how many objects there are
	hash    uint64           // of objects
	sketch  *resume.Sketch   // of their files
}

func newSubsets(expr string, objects []ident.ObjectID, seen uint64) *subsets {
	first := asked{expr: expr, objects: objects, samples: len(objects), hash: hashObjects(objects)}
	return &subsets{asked: []asked{first}, seen: seen}
}

// last is the subset that was asked for last.
func (s *subsets) last() asked {
	s.Lock()
	defer s.Unlock()
	return s.asked[len(s.asked)-1]
}

// during is the subset of an epoch; v is the coordinator's view of the job, nil = it has forgotten it.
func (s *subsets) during(v *jobs.Job, epoch uint32) asked {
	if v != nil && v.Begun() && (v.Next == nil || epoch <= v.Epoch) {
		return s.coming(v.Mark)
	}
	return s.last()
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

// shed drops what takes memory in proportion to the dataset, of a job that has ended. What is left says how many
// samples there were, and which.
func (s *subsets) shed() {
	s.Lock()
	defer s.Unlock()
	s.gone, s.next = nil, asked{}
	for i := range s.asked {
		if a := &s.asked[i]; a.sketch != nil {
			a.objects = nil
		}
	}
}

// selects are the objects of a subset: those of a job that has ended are selected again. Nil = the dataset has changed
// since, so that the subset is another one now.
func (j *job) selects(a asked) []ident.ObjectID {
	if a.objects != nil || a.samples == 0 {
		return a.objects
	}
	s, err := (*selections)(nil).in(j.Data, j.spec, a.expr)
	if err != nil || hashObjects(s.objects) != a.hash {
		return nil
	}
	return s.objects
}

// selected is selects for a request.
func (j *job) selected(a asked) ([]ident.ObjectID, error) {
	objects := j.selects(a)
	if len(objects) != a.samples {
		return nil, errs.New(errs.NotFound, j.spec.GetName(), "save the state while the job lives",
			"the state of job %s, which has ended: its dataset has changed since", j.spec.GetName())
	}
	return objects, nil
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
	samples, err := selectNow(ctx, j, req.GetSubset())
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

// open is Catalog.Open; jobs hear of what it finds changed.
func (e *Engine) open(ctx context.Context, nameOrURI string) (*source.Dataset, error) {
	asks := asker(ctx)
	d, err := e.library.openFor(ctx, asks, nameOrURI, false)
	if err != nil {
		return nil, err
	}
	if asks != nil {
		if _, err := e.cfg.Data.Catalog.MayRead(ctx, d, asks.reader()); err != nil {
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
