package engine

import (
	"context"

	"larder/internal/errs"
	larderv1 "larder/proto/larder/v1"
)

// AddRecords would declare a dataset whose samples are records made by workers. This daemon takes none yet.
func (e *Engine) AddRecords(
	_ context.Context, req *larderv1.AddRecordsRequest,
) (*larderv1.AddRecordsResponse, error) {
	return nil, errs.New(errs.Unsupported, req.GetName(), "use a folder of images (imagefolder:DIR)",
		"add dataset %q: this daemon has no datasets made by workers", req.GetName())
}

// noRecords refuses what a job can ask of records only.
func noRecords(s *larderv1.JobSpec) error {
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"cache", s.GetCache() != ""}, {"schema", s.GetSchema() != nil}, {"indices", len(s.GetIndices()) > 0},
		{"sample_timeout", s.GetSampleTimeout() != nil},
	} {
		if f.set {
			return errs.New(errs.Unsupported, f.name, "leave it out; a subset expression selects samples",
				"register job %s: %s belongs to datasets made by workers, which this daemon has not", s.GetName(), f.name)
		}
	}
	return nil
}
