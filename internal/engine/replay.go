package engine

import (
	"context"

	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/journal"
	larderv1 "larder/proto/larder/v1"
)

// replayOrder is what the name of an order begins with when FILE has it.
const replayOrder = "replay:"

// ListOrders lists what is kept of a job's orders.
func (e *Engine) ListOrders(
	ctx context.Context, req *larderv1.ListOrdersRequest,
) (*larderv1.ListOrdersResponse, error) {
	id, uri, files, seed, err := e.history.recordedOf(req.GetName())
	if err != nil {
		return nil, err
	}
	if err := e.history.mayTouchID(ctx, id, "list the orders of"); err != nil {
		return nil, err
	}
	out := &larderv1.ListOrdersResponse{Job: uint32(id), Dataset: uri, Files: files, Seed: seed}
	for _, epoch := range e.cfg.Journal.Log.Epochs(id) {
		rec, err := e.cfg.Journal.Log.Recorded(id, epoch, journal.AnyInstance)
		if err != nil {
			return nil, err
		}
		if rec == nil {
			continue
		}
		o := &larderv1.Order{Epoch: epoch, Instance: rec.Instance}
		for i := range rec.Batches {
			n := uint64(rec.Batches[i].Len())
			o.Samples += n
			if rec.Batches[i].Rank == journal.Earlier {
				o.Earlier += n
			}
		}
		out.Orders = append(out.Orders, o)
	}
	return out, nil
}

// orderPart is how many samples of an order one answer has: far less than a message may hold.
const orderPart = 1 << 18

// GetOrder returns a part of an order.
func (e *Engine) GetOrder(ctx context.Context, req *larderv1.GetOrderRequest) (*larderv1.GetOrderResponse, error) {
	if err := e.history.mayTouchID(ctx, ident.JobID(req.GetJob()), "read an order of"); err != nil {
		return nil, err
	}
	rec, err := e.cfg.Journal.Log.Recorded(ident.JobID(req.GetJob()), req.GetEpoch(), journal.AnyInstance)
	if err != nil {
		return nil, err
	}
	if rec == nil {
		return nil, errs.New(errs.NotFound, itoa(int(req.GetJob())),
			"`larder orders ls JOB` lists what is kept; state.orders says how much",
			"the order of epoch %d of job %d is not kept", req.GetEpoch(), req.GetJob())
	}
	ids := rec.Given(journal.Earlier)
	out := &larderv1.GetOrderResponse{Total: uint64(len(ids)), Instance: rec.Instance}
	from := min(req.GetFrom(), uint64(len(ids)))
	for _, x := range ids[from:min(from+orderPart, uint64(len(ids)))] {
		out.Samples = append(out.Samples, uint32(x))
	}
	return out, nil
}
