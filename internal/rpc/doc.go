// Package rpc is the gRPC side of larder.v1: the server with its limits, and the connection of the command line and of
// other Go programs to it.
//
// It carries, and decides nothing: every method is the Engine's. An error leaves as a status whose details hold an
// ErrorDetail, and arrives at a client of Dial as the same *errs.Error. Batches never travel here (docs/protocol.md).
package rpc

import (
	"context"

	larderv1 "larder/proto/larder/v1"
)

// Engine answers every unary method of larder.v1.LarderService. Errors that a user can act on are *errs.Error.
// Methods are called concurrently and return soon after ctx ends.
type Engine interface {
	RegisterJob(context.Context, *larderv1.RegisterJobRequest) (*larderv1.RegisterJobResponse, error)
	ListJobs(context.Context, *larderv1.ListJobsRequest) (*larderv1.ListJobsResponse, error)
	DescribeJob(context.Context, *larderv1.DescribeJobRequest) (*larderv1.DescribeJobResponse, error)
	DrainJob(context.Context, *larderv1.DrainJobRequest) (*larderv1.DrainJobResponse, error)
	KillJob(context.Context, *larderv1.KillJobRequest) (*larderv1.KillJobResponse, error)
	PauseJob(context.Context, *larderv1.PauseJobRequest) (*larderv1.PauseJobResponse, error)
	ResumeJob(context.Context, *larderv1.ResumeJobRequest) (*larderv1.ResumeJobResponse, error)
	SetSubset(context.Context, *larderv1.SetSubsetRequest) (*larderv1.SetSubsetResponse, error)
	RefreshDataset(context.Context, *larderv1.RefreshDatasetRequest) (*larderv1.RefreshDatasetResponse, error)
	AddDataset(context.Context, *larderv1.AddDatasetRequest) (*larderv1.AddDatasetResponse, error)
	AddRecords(context.Context, *larderv1.AddRecordsRequest) (*larderv1.AddRecordsResponse, error)
	RemoveDataset(context.Context, *larderv1.RemoveDatasetRequest) (*larderv1.RemoveDatasetResponse, error)
	ListDatasets(context.Context, *larderv1.ListDatasetsRequest) (*larderv1.ListDatasetsResponse, error)
	InspectDataset(context.Context, *larderv1.InspectDatasetRequest) (*larderv1.InspectDatasetResponse, error)
	ResolveKeys(context.Context, *larderv1.ResolveKeysRequest) (*larderv1.ResolveKeysResponse, error)
	GetTiers(context.Context, *larderv1.GetTiersRequest) (*larderv1.GetTiersResponse, error)
	SetTiers(context.Context, *larderv1.SetTiersRequest) (*larderv1.SetTiersResponse, error)
	ApplyConfig(context.Context, *larderv1.ApplyConfigRequest) (*larderv1.ApplyConfigResponse, error)
	GetState(context.Context, *larderv1.GetStateRequest) (*larderv1.GetStateResponse, error)
	ListOrders(context.Context, *larderv1.ListOrdersRequest) (*larderv1.ListOrdersResponse, error)
	GetOrder(context.Context, *larderv1.GetOrderRequest) (*larderv1.GetOrderResponse, error)
	GetStats(context.Context, *larderv1.GetStatsRequest) (*larderv1.GetStatsResponse, error)
	RecordTrace(context.Context, *larderv1.RecordTraceRequest) (*larderv1.RecordTraceResponse, error)
	Stop(context.Context, *larderv1.StopRequest) (*larderv1.StopResponse, error)
	Status(context.Context, *larderv1.StatusRequest) (*larderv1.StatusResponse, error)
}
