package engine

import (
	"fmt"
	"slices"
	"strconv"

	"larder/internal/coordinator"
	"larder/internal/engine/record"
	"larder/internal/ident"
	"larder/internal/resume"
	"larder/internal/source"
)

// recordJobs is what the records of jobs are completed with; see record.Jobs.
type recordJobs struct{ jobs *registry }

var _ record.Jobs = recordJobs{}

// Samples is the dataset of a job; nil = the job is not known any more.
func (k recordJobs) Samples(id ident.JobID) record.Samples {
	if j := k.jobs.byID(id); j != nil {
		return j.Data
	}
	return nil
}

// Registering describes a job that is being registered, and gives it its seed.
func (k recordJobs) Registering(r coordinator.RecordRegistered) (record.Job, error) {
	j := k.jobs.expected(r.Token)
	if j == nil {
		return record.Job{}, fmt.Errorf("job %s was registered by no request", r.Name)
	}
	j.seed.Store(r.Seed)
	spec, err := record.EncodeSpec(j.spec)
	if err != nil {
		return record.Job{}, err
	}
	s, err := recorded(j.Data, j.subsets.last())
	if err != nil {
		return record.Job{}, err
	}
	out := record.Job{Spec: spec, Name: j.Data.Name(), URI: j.Data.URI(), Subset: s, Seed: strconv.FormatUint(r.Seed, 10),
		Registered: j.registered, Owner: (*record.Owner)(j.owner), Client: j.by}
	if j.resume != nil {
		out.Resume = &j.resume.Resume
	}
	return out, nil
}

// Subset describes a subset of a job by its mark.
func (k recordJobs) Subset(id ident.JobID, mark uint32) (record.Subset, error) {
	j := k.jobs.byID(id)
	if j == nil {
		return record.Subset{}, fmt.Errorf("job %d is not known, and its subset changes", id)
	}
	return recorded(j.Data, j.subsets.coming(mark))
}

// recorded is the document of a subset.
func recorded(data *source.Dataset, a asked) (record.Subset, error) {
	files := ""
	if a.sketch != nil {
		files = a.sketch.Text()
	}
	ids := slices.Clone(a.objects)
	if err := record.ToSamples(data, ids); err != nil {
		return record.Subset{}, err
	}
	return record.Subset{Expr: a.expr, Samples: len(ids), Hash: strconv.FormatUint(hashObjects(ids), 16),
		Files: files}, nil
}

// askedOf is the reverse of recorded.
func askedOf(s record.Subset, mark uint32, objects []ident.ObjectID) asked {
	a := asked{mark: mark, expr: s.Expr, objects: objects, samples: len(objects), hash: hashObjects(objects)}
	if k, err := resume.ParseSketch(s.Files); err == nil {
		a.sketch = k
	}
	return a
}
