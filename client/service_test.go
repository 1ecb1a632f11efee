package client_test

import (
	"context"
	"time"

	"larder/internal/errs"
	larderv1 "larder/proto/larder/v1"
)

type service struct {
	larderv1.UnimplementedLarderServiceServer

	listing func() // called when ListJobs is asked, which does not answer
}

func (service) GetStats(_ context.Context, r *larderv1.GetStatsRequest) (*larderv1.GetStatsResponse, error) {
	return &larderv1.GetStatsResponse{Stats: &larderv1.Stats{Version: "v" + r.GetJob()}}, nil
}

func (service) RegisterJob(context.Context, *larderv1.RegisterJobRequest) (*larderv1.RegisterJobResponse, error) {
	return nil, &errs.Error{Reason: errs.SubsetEmpty, Subject: "label < 0", Message: "selects nothing",
		Hint: "try label < 6", RetryAfter: time.Second}
}

func (s service) ListJobs(ctx context.Context, _ *larderv1.ListJobsRequest) (*larderv1.ListJobsResponse, error) {
	if s.listing != nil {
		s.listing()
	}
	<-ctx.Done()
	return nil, ctx.Err()
}
