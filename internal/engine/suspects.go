package engine

import (
	"context"
	"fmt"

	"larder/internal/engine/crashguard"
	"larder/internal/ident"
	"larder/internal/prep"
	"larder/internal/source"
	larderv1 "larder/proto/larder/v1"
)

// locate finds the object of a piece of work that an earlier daemon left.
func (h *history) locate(ctx context.Context, p crashguard.Piece) (crashguard.Sample, error) {
	data, recipe, err := h.locateJob(ctx, p.Job)
	if err != nil {
		return crashguard.Sample{}, err
	}
	o := source.NoObject
	if int(p.Sample) < data.Len() {
		o = data.Object(p.Sample)
	}
	if o == source.NoObject {
		return crashguard.Sample{}, fmt.Errorf("%s has no such sample", data.Name())
	}
	return crashguard.Sample{
		Object: o, Path: data.Path(p.Sample), Ops: recipe.Ops(),
		Key: prep.RandKey{Seed: p.Seed, Instance: p.Instance, Sample: uint64(p.Sample)},
	}, nil
}

// locateJob finds a restored job, or what the journal still says of one that is not restored: it may have ended, or its
// files changed.
func (h *history) locateJob(ctx context.Context, id ident.JobID) (*source.Dataset, *prep.Recipe, error) {
	if j := h.jobs.byID(id); j != nil {
		return j.Data, j.Recipe, nil
	}
	r := h.foundJob(id)
	if r == nil {
		return nil, nil, fmt.Errorf("job %d is not known any more", id)
	}
	spec, err := r.JobSpec()
	if err != nil {
		return nil, nil, err
	}
	recipe, err := prep.ParseRecipe(opsOf(spec))
	if err != nil {
		return nil, nil, err
	}
	data, err := h.catalog.Add(ctx, r.Name, r.URI)
	return data, recipe, err
}

// opsOf are the ops of a job's recipe as they came.
func opsOf(spec *larderv1.JobSpec) []prep.OpSpec {
	ops := make([]prep.OpSpec, 0, len(spec.GetTransform()))
	for _, o := range spec.GetTransform() {
		ops = append(ops, prep.OpSpec{Kind: o.GetKind(), Name: o.GetName(), Args: o.GetArgs().AsMap()})
	}
	return ops
}
