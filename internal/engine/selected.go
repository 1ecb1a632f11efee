package engine

import (
	"context"
	"sync"

	"larder/internal/bits"
	"larder/internal/coordinator"
	"larder/internal/engine/record"
	"larder/internal/engine/restore"
	"larder/internal/ident"
	"larder/internal/source"
	larderv1 "larder/proto/larder/v1"
)

// selected is what an expression selects of a dataset: objects in sample order and as a set. Jobs share it, so it is
// not to be changed.
type selected struct {
	objects []ident.ObjectID
	member  *bits.Set

	once     sync.Once // of recorded, which restarts alone need
	recorded record.Subset
	err      error
}

func newSelected(data *source.Dataset, samples []ident.SampleID) *selected {
	s := &selected{objects: objectsOf(data, samples)}
	s.member = coordinator.Members(s.objects)
	return s
}

func selectAnew(data *source.Dataset, expr string) (*selected, error) {
	samples, err := data.Select(expr)
	if err != nil {
		return nil, err
	}
	return newSelected(data, samples), nil
}

// selectNow evaluates an expression on the dataset of a job: on the samples that its spec lists, should it
// list any.
func selectNow(ctx context.Context, j *job, expr string) ([]ident.SampleID, error) {
	if expr == "" && len(j.spec.GetIndices()) > 0 {
		return listed(j.Data, j.spec)
	}
	return j.Data.SelectContext(ctx, expr)
}

// record is how the journal has it.
func (s *selected) record(data *source.Dataset, expr string) (record.Subset, error) {
	s.once.Do(func() { s.recorded, s.err = recorded(data, asked{expr: expr, objects: s.objects}) })
	return s.recorded, s.err
}

// selections keeps what was selected while jobs are put back: many jobs of a dataset have the same subset, and each
// took a tenth of a second of a million samples. A nil one keeps nothing.
type selections struct {
	mu   sync.Mutex
	made map[selectionKey]*selecting
}

type selectionKey struct {
	dataset     ident.DatasetID
	fingerprint uint64
	expr        string
}

type selecting struct {
	once sync.Once
	got  *selected
	err  error
}

func newSelections() *selections { return &selections{made: map[selectionKey]*selecting{}} }

// in is what a job's expression selects: of the samples that its spec lists, should it list any.
func (s *selections) in(data *source.Dataset, spec *larderv1.JobSpec, expr string) (*selected, error) {
	if expr == "" && len(spec.GetIndices()) > 0 {
		samples, err := listed(data, spec)
		if err != nil {
			return nil, err
		}
		return newSelected(data, samples), nil
	}
	return s.of(data, expr)
}

func (s *selections) of(data *source.Dataset, expr string) (*selected, error) {
	if s == nil {
		return selectAnew(data, expr)
	}
	k := selectionKey{data.ID(), data.Fingerprint(), expr}
	s.mu.Lock()
	m := s.made[k]
	if m == nil {
		m = &selecting{}
		s.made[k] = m
	}
	s.mu.Unlock()
	m.once.Do(func() { m.got, m.err = selectAnew(data, expr) })
	return m.got, m.err
}

// restored is what an expression selects, for a job that is being restored.
func (s *selections) restored(
	data *source.Dataset, spec *larderv1.JobSpec, expr string,
) (restore.Selected, error) {
	o, err := s.in(data, spec, expr)
	if err != nil {
		return restore.Selected{}, err
	}
	r, err := o.record(data, expr)
	return restore.Selected{Objects: o.objects, Member: o.member, Samples: r.Samples, Hash: r.Hash}, err
}
