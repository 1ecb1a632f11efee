package engine

import (
	"context"

	"larder/internal/coordinator"
	"larder/internal/engine/trace"
	"larder/internal/ident"
	larderv1 "larder/proto/larder/v1"
)

// RecordTrace records what jobs ask for and what is decided about it.
func (e *Engine) RecordTrace(
	ctx context.Context, req *larderv1.RecordTraceRequest,
) (*larderv1.RecordTraceResponse, error) {
	if err := mayRun(ctx, "record a trace"); err != nil {
		return nil, err
	}
	return e.recorder.Answer(ctx, req)
}

// traceConfig is what a recording says of the engine.
func (e *Engine) traceConfig() trace.Config {
	return trace.Config{
		Moment: func(ctx context.Context) (trace.Moment, error) {
			return inspect(ctx, e.loop, func(c *coordinator.Core) trace.Moment {
				return trace.Moment{Jobs: c.Jobs(true), Stats: c.Stats(), Tiers: c.Tiers()}
			})
		},
		Job: func(id ident.JobID) *trace.Job {
			j := e.jobs.byID(id)
			if j == nil {
				return nil
			}
			last := j.subsets.last()
			return &trace.Job{Spec: j.specWith(last.expr), Registered: j.registered, Recipe: j.Recipe, Objects: j.selects(last)}
		},
		Tiers: func() coordinator.TierConfig { return e.Settings().Tiers },
		Machine: func() trace.Machine {
			rates := e.meters.Rates()
			limit, ops := e.cfg.Data.Catalog.StorageLimit()
			return trace.Machine{
				Workers: e.cfg.Work.Workers, Cores: e.meters.Cores(), Storage: rates.Storage, Memory: rates.Cache,
				ReadTime: e.meters.ReadTime(), StorageLimit: limit, StorageOps: ops,
			}
		},
		Bytes: e.cfg.Data.Catalog.ObjectBytes,
	}
}
