package trace

import (
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"larder/internal/ident"
	"larder/jobs"
	larderv1 "larder/proto/larder/v1"
)

// describe prepares what is known of jobs, objects and the machine, as pages that follow what was recorded. A
// recording may be under way: its lock, which the loop takes, is held for no longer than a page of it takes to be
// copied.
func (t *Recorder) describe(ctx context.Context, r *recording) error {
	now, err := t.cfg.Moment(ctx)
	if err != nil {
		return err
	}
	tiers := t.cfg.Tiers()
	r.Lock()
	followed := make(map[ident.JobID]followed, len(r.jobs))
	for id, f := range r.jobs { // order-free: a map again
		followed[id] = *f
	}
	measured := means{length: r.ended, finish: r.done, apart: r.apart, inOne: r.inOne}
	if r.phase == running {
		measured.length = time.Since(r.began)
	}
	r.Unlock()
	rest, used := t.describeJobs(now.Jobs, r.began, followed)
	for lo := 0; lo < len(used); lo += recordColumn {
		page := []*larderv1.RecordedObjects{t.describeObjects(r, used, lo)}
		rest = append(rest, &larderv1.RecordTraceResponse{Objects: page})
	}
	m := describeMachine(t.cfg.Machine(), measured)
	m.Total, m.Model = uint64(max(0, tiers.Total)), tiers.Model
	for _, v := range now.Tiers {
		x := &larderv1.RecordedTier{Form: v.Form.String(), Policy: v.Policy}
		if n := tiers.Sizes[v.Form]; n >= 0 {
			bytes := uint64(n)
			x.Bytes = &bytes
		}
		m.Tiers = append(m.Tiers, x)
	}
	s, b := now.Stats, r.base
	m.Counted = &larderv1.Counters{SourceReads: s.SourceReads - b.SourceReads, SourceBytes: s.SourceBytes - b.SourceBytes,
		Decodes: s.Decodes - b.Decodes, Augments: s.Augments - b.Augments,
		SamplesDelivered: s.Samples - b.Samples, BatchesDelivered: s.Batches - b.Batches}
	rest = append(rest, &larderv1.RecordTraceResponse{Machine: m})
	r.Lock()
	defer r.Unlock()
	r.rest = rest
	return nil
}

// describeJobs makes the pages of jobs that lived while it was recorded, and says which objects their subsets have.
func (t *Recorder) describeJobs(
	all []jobs.Job, began time.Time, followed map[ident.JobID]followed,
) (pages []*larderv1.RecordTraceResponse, used []bool) {
	for i := range all {
		v := &all[i]
		known, seen := followed[v.ID]
		j := t.cfg.Job(v.ID)
		if j == nil || v.State.Ended() && !seen {
			continue // it ended before
		}
		for _, page := range describeJob(j, v, began, known) {
			pages = append(pages, &larderv1.RecordTraceResponse{Jobs: []*larderv1.RecordedJob{page}})
		}
		for _, o := range j.Objects {
			if n := int(o) + 1 - len(used); n > 0 {
				used = append(used, make([]bool, n)...)
			}
			used[o] = true
		}
	}
	return pages, used
}

// means are the sums that the description of the machine needs.
type means struct {
	length        time.Duration
	finish, inOne total
	apart         [2]total
}

func describeMachine(of Machine, w means) *larderv1.RecordedMachine {
	m := &larderv1.RecordedMachine{
		Duration: durationpb.New(w.length), Workers: uint32(of.Workers), Cores: uint32(of.Cores),
		StorageBandwidth: of.Storage, StorageLatency: durationpb.New(of.ReadTime), MemoryBandwidth: of.Memory,
		FinishNs: uint64(w.finish.mean() * 1e9), StorageLimit: uint64(of.StorageLimit), StorageIops: uint64(of.StorageOps),
	}
	if both := w.apart[0].mean() + w.apart[1].mean(); w.apart[0].n > 0 && w.apart[1].n > 0 && w.inOne.n > 0 {
		m.InPlace = w.inOne.mean() / both
	}
	return m
}

// describeObjects is what is known of the objects from first on, as many as a page has; used says which ones jobs draw.
func (t *Recorder) describeObjects(r *recording, used []bool, first int) *larderv1.RecordedObjects {
	r.Lock()
	costs := slices.Clone(r.costs[min(first, len(r.costs)):min(first+recordColumn, len(r.costs))])
	r.Unlock()
	page := &larderv1.RecordedObjects{First: uint32(first)}
	for o := ident.ObjectID(first); int(o) < min(len(used), first+recordColumn); o++ {
		var c objectCost
		if k := int(o) - first; k < len(costs) {
			c = costs[k]
		}
		stored := int64(0)
		if used[o] {
			stored = t.cfg.Bytes(o)
		}
		page.Stored, page.Decoded = append(page.Stored, uint32(min(stored, 1<<32-1))), append(page.Decoded, c.decoded)
		page.DecodeNs = append(page.DecodeNs, uint64(float64(c.decode)*1e9))
		page.AugmentNs = append(page.AugmentNs, uint64(float64(c.augment)*1e9))
	}
	return page
}

// describeJob is a job in as many parts as its subset needs.
func describeJob(j *Job, v *jobs.Job, began time.Time, known followed) []*larderv1.RecordedJob {
	first := &larderv1.RecordedJob{Job: uint32(v.ID), Spec: j.Spec,
		Registered: durationpb.New(max(0, j.Registered.Sub(began))), Dropped: uint64(v.Spec.Dropped()),
		Recipe: j.Recipe.ID().String()}
	if out := j.Recipe.Output(); !out.Ragged && len(out.Shape) == 3 {
		first.AugmentedBytes = uint64(out.Shape[0]) * uint64(out.Shape[1]) * uint64(out.Shape[2])
	}
	step := time.Duration(0)
	for i := range v.Ranks {
		step = max(step, v.Ranks[i].StepTime)
	}
	if known.ended > 0 {
		first.Ended = durationpb.New(known.ended)
	}
	if known.step.n > 0 {
		step = time.Duration(known.step.mean() * float64(time.Second))
	}
	first.Step = durationpb.New(step)
	var out []*larderv1.RecordedJob
	for _, part := range subsetParts(j.Objects, recordRanges) {
		first.Subset = part
		out = append(out, first)
		first = &larderv1.RecordedJob{Job: first.Job}
	}
	return out
}

// subsetParts are gaps and lengths of the ranges of a subset, ascending, in lists of so many ranges; there is at least
// one list.
func subsetParts(subset []ident.ObjectID, ranges int) [][]uint32 {
	out := [][]uint32{nil}
	at := uint32(0)
	objects := slices.Sorted(slices.Values(subset))
	for i := 0; i < len(objects); {
		k := i + 1
		for k < len(objects) && objects[k] == objects[k-1]+1 {
			k++
		}
		if len(out[len(out)-1]) >= 2*ranges {
			out = append(out, nil)
		}
		last := &out[len(out)-1]
		*last = append(*last, uint32(objects[i])-at, uint32(k-i))
		at = uint32(objects[k-1]) + 1
		i = k
	}
	return out
}
