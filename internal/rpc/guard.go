package rpc

import (
	"context"
	"log/slog"

	larderv1 "larder/proto/larder/v1"
)

// guard does for callers other than gRPC what the interceptor does for it.
type guard struct {
	e   Engine
	log *slog.Logger
}

var _ Engine = guard{}

func safely[Req, Res any](g guard, name string, f func(context.Context, Req) (Res, error), ctx context.Context,
	req Req) (res Res, err error) {
	defer func() {
		if r := recover(); r != nil {
			var none Res
			res, err = none, caught(g.log, name, r)
		}
	}()
	return f(ctx, req)
}

func (g guard) RegisterJob(ctx context.Context, r *larderv1.RegisterJobRequest) (*larderv1.RegisterJobResponse, error) {
	return safely(g, "RegisterJob", g.e.RegisterJob, ctx, r)
}

func (g guard) ListJobs(ctx context.Context, r *larderv1.ListJobsRequest) (*larderv1.ListJobsResponse, error) {
	return safely(g, "ListJobs", g.e.ListJobs, ctx, r)
}

func (g guard) DescribeJob(ctx context.Context, r *larderv1.DescribeJobRequest) (*larderv1.DescribeJobResponse, error) {
	return safely(g, "DescribeJob", g.e.DescribeJob, ctx, r)
}

func (g guard) DrainJob(ctx context.Context, r *larderv1.DrainJobRequest) (*larderv1.DrainJobResponse, error) {
	return safely(g, "DrainJob", g.e.DrainJob, ctx, r)
}

func (g guard) KillJob(ctx context.Context, r *larderv1.KillJobRequest) (*larderv1.KillJobResponse, error) {
	return safely(g, "KillJob", g.e.KillJob, ctx, r)
}

func (g guard) AddRecords(ctx context.Context, r *larderv1.AddRecordsRequest) (*larderv1.AddRecordsResponse, error) {
	return safely(g, "AddRecords", g.e.AddRecords, ctx, r)
}

func (g guard) AddDataset(ctx context.Context, r *larderv1.AddDatasetRequest) (*larderv1.AddDatasetResponse, error) {
	return safely(g, "AddDataset", g.e.AddDataset, ctx, r)
}

func (g guard) ListDatasets(ctx context.Context, r *larderv1.ListDatasetsRequest) (*larderv1.ListDatasetsResponse,
	error) {
	return safely(g, "ListDatasets", g.e.ListDatasets, ctx, r)
}

func (g guard) InspectDataset(ctx context.Context, r *larderv1.InspectDatasetRequest) (*larderv1.InspectDatasetResponse,
	error) {
	return safely(g, "InspectDataset", g.e.InspectDataset, ctx, r)
}

func (g guard) ResolveKeys(ctx context.Context, r *larderv1.ResolveKeysRequest) (*larderv1.ResolveKeysResponse, error) {
	return safely(g, "ResolveKeys", g.e.ResolveKeys, ctx, r)
}

func (g guard) GetTiers(ctx context.Context, r *larderv1.GetTiersRequest) (*larderv1.GetTiersResponse, error) {
	return safely(g, "GetTiers", g.e.GetTiers, ctx, r)
}

func (g guard) SetTiers(ctx context.Context, r *larderv1.SetTiersRequest) (*larderv1.SetTiersResponse, error) {
	return safely(g, "SetTiers", g.e.SetTiers, ctx, r)
}

func (g guard) ApplyConfig(ctx context.Context, r *larderv1.ApplyConfigRequest) (*larderv1.ApplyConfigResponse, error) {
	return safely(g, "ApplyConfig", g.e.ApplyConfig, ctx, r)
}

func (g guard) GetStats(ctx context.Context, r *larderv1.GetStatsRequest) (*larderv1.GetStatsResponse, error) {
	return safely(g, "GetStats", g.e.GetStats, ctx, r)
}

func (g guard) PauseJob(ctx context.Context, r *larderv1.PauseJobRequest) (*larderv1.PauseJobResponse, error) {
	return safely(g, "PauseJob", g.e.PauseJob, ctx, r)
}

func (g guard) ResumeJob(ctx context.Context, r *larderv1.ResumeJobRequest) (*larderv1.ResumeJobResponse, error) {
	return safely(g, "ResumeJob", g.e.ResumeJob, ctx, r)
}

func (g guard) SetSubset(ctx context.Context, r *larderv1.SetSubsetRequest) (*larderv1.SetSubsetResponse, error) {
	return safely(g, "SetSubset", g.e.SetSubset, ctx, r)
}

func (g guard) RefreshDataset(ctx context.Context, r *larderv1.RefreshDatasetRequest) (*larderv1.RefreshDatasetResponse,
	error) {
	return safely(g, "RefreshDataset", g.e.RefreshDataset, ctx, r)
}

func (g guard) RemoveDataset(ctx context.Context, r *larderv1.RemoveDatasetRequest) (*larderv1.RemoveDatasetResponse,
	error) {
	return safely(g, "RemoveDataset", g.e.RemoveDataset, ctx, r)
}

func (g guard) RecordTrace(ctx context.Context, r *larderv1.RecordTraceRequest) (*larderv1.RecordTraceResponse, error) {
	return safely(g, "RecordTrace", g.e.RecordTrace, ctx, r)
}

func (g guard) GetState(ctx context.Context, r *larderv1.GetStateRequest) (*larderv1.GetStateResponse, error) {
	return safely(g, "GetState", g.e.GetState, ctx, r)
}

func (g guard) ListOrders(ctx context.Context, r *larderv1.ListOrdersRequest) (*larderv1.ListOrdersResponse, error) {
	return safely(g, "ListOrders", g.e.ListOrders, ctx, r)
}

func (g guard) GetOrder(ctx context.Context, r *larderv1.GetOrderRequest) (*larderv1.GetOrderResponse, error) {
	return safely(g, "GetOrder", g.e.GetOrder, ctx, r)
}

func (g guard) Stop(ctx context.Context, r *larderv1.StopRequest) (*larderv1.StopResponse, error) {
	return safely(g, "Stop", g.e.Stop, ctx, r)
}

func (g guard) Status(ctx context.Context, r *larderv1.StatusRequest) (*larderv1.StatusResponse, error) {
	return safely(g, "Status", g.e.Status, ctx, r)
}
