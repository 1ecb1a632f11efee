package engine

import (
	"context"
	"fmt"
	"strings"

	"larder/internal/coordinator"
	"larder/internal/engine/record"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/source"
	larderv1 "larder/proto/larder/v1"
)

// AddDataset indexes a dataset under a name.
func (e *Engine) AddDataset(
	ctx context.Context, req *larderv1.AddDatasetRequest,
) (*larderv1.AddDatasetResponse, error) {
	if req.GetUri() == "" {
		return nil, errs.New(errs.Invalid, "uri", "give a uri such as imagefolder:/data/train", "add a dataset without a uri")
	}
	asks := asker(ctx)
	if asks != nil {
		if req.GetName() != "" && req.GetName() != req.GetUri() {
			return nil, errs.New(errs.Denied, req.GetName(), "leave the name out, and use the uri",
				"add a dataset under a name: a name is for all users of the daemon, so only its own user gives one")
		}
	}
	add := e.cfg.Data.Catalog.Add
	if req.GetSkipEmpty() {
		add = e.cfg.Data.Catalog.AddSkipEmpty
	}
	if asks != nil {
		add = func(ctx context.Context, _, uri string) (*source.Dataset, error) {
			return e.library.openFor(ctx, asks, uri, req.GetSkipEmpty())
		}
	}
	d, err := add(ctx, req.GetName(), req.GetUri())
	if err != nil {
		return nil, err
	}
	if asks != nil {
		if _, err := e.cfg.Data.Catalog.MayRead(ctx, d, asks.reader()); err != nil {
			return nil, err
		}
	}
	if err := e.follower.followed(ctx); err != nil {
		return nil, err
	}
	if d.Name() != d.URI() && asks == nil && d.Made() == nil { // the name is to survive
		if err := e.library.recordDataset(d); err != nil {
			return nil, err
		}
	}
	e.cfg.Log.Info("dataset indexed", "name", d.Name(), "uri", d.URI(), "samples", d.LiveCount())
	return &larderv1.AddDatasetResponse{Dataset: e.library.dataset(d)}, nil
}

// RemoveDataset forgets a dataset that no live job uses.
func (e *Engine) RemoveDataset(
	ctx context.Context, req *larderv1.RemoveDatasetRequest,
) (*larderv1.RemoveDatasetResponse, error) {
	if err := mayRun(ctx, "remove a dataset"); err != nil {
		return nil, err
	}
	d, ok := e.cfg.Data.Catalog.Get(req.GetDataset())
	if !ok {
		return nil, errs.New(errs.NotFound, req.GetDataset(), "larder dataset ls shows what there is",
			"remove dataset %q, which is not known", req.GetDataset())
	}
	return e.remove(ctx, d, func() bool { return true })
}

// remove forgets a dataset that no live job uses, if it still may be.
func (e *Engine) remove(
	ctx context.Context, d *source.Dataset, may func() bool,
) (*larderv1.RemoveDatasetResponse, error) {
	e.registering.Lock()
	defer e.registering.Unlock()
	if !may() {
		return &larderv1.RemoveDatasetResponse{}, nil
	}
	live, err := e.loop.list(ctx, false)
	if err != nil {
		return nil, err
	}
	var users []string
	for i := range live {
		if j := e.jobs.byID(live[i].ID); j != nil && !live[i].State.Ended() && j.Data.Name() == d.Name() &&
			j.Data.Root() == d.Root() {
			users = append(users, j.spec.GetName())
		}
	}
	if len(users) > 0 {
		return nil, errs.New(errs.AlreadyExists, d.Name(), "wait for them, or end them: larder jobs kill NAME",
			"remove dataset %s, which %d jobs use: %s", d.Name(), len(users), strings.Join(users[:min(len(users), 5)], ", "))
	}
	out := &larderv1.RemoveDatasetResponse{Dataset: e.library.dataset(d)}
	own, index, err := e.cfg.Data.Catalog.Remove(ctx, d)
	if err != nil {
		return nil, err
	}
	out.IndexBytes = uint64(index)
	e.library.declared.set(d.URI(), nil)
	if d.Name() != d.URI() || d.Made() != nil {
		if err := e.library.recordName(record.Dataset{Name: d.Name(), URI: d.URI(), Removed: true}); err != nil {
			return nil, err
		}
	}
	for from := 0; ; {
		r, err := e.loop.ask(ctx, func(t coordinator.Token) coordinator.Event {
			return coordinator.Forget{Token: t, Objects: own, From: from}
		})
		if err != nil {
			return nil, err
		}
		out.FreedBytes += uint64(r.Freed)
		if from = r.Next; from == 0 {
			break
		}
	}
	e.cfg.Log.Info("dataset removed", "name", d.Name(), "uri", d.URI(), "freed_bytes", out.GetFreedBytes(), "index_bytes",
		out.GetIndexBytes())
	return out, nil
}

// ListDatasets lists datasets by id: to other users those of which they may read all.
func (e *Engine) ListDatasets(
	ctx context.Context, _ *larderv1.ListDatasetsRequest,
) (*larderv1.ListDatasetsResponse, error) {
	out := &larderv1.ListDatasetsResponse{}
	asks := asker(ctx)
	for _, d := range e.cfg.Data.Catalog.List() {
		if asks != nil {
			switch err := e.cfg.Data.Catalog.MaySee(ctx, d, asks.reader()); {
			case ctx.Err() != nil:
				return nil, ctx.Err()
			case err != nil:
				continue // another user's, whose name stays hidden
			}
		}
		out.Datasets = append(out.Datasets, e.library.dataset(d))
	}
	return out, nil
}

// InspectDataset shows a dataset and the first samples of a subset.
func (e *Engine) InspectDataset(
	ctx context.Context, req *larderv1.InspectDatasetRequest,
) (*larderv1.InspectDatasetResponse, error) {
	d, err := e.open(ctx, req.GetDataset())
	if err != nil {
		return nil, err
	}
	ids, err := d.SelectContext(ctx, req.GetSubset())
	if err != nil {
		return nil, err
	}
	n := int(req.GetSamples())
	if n == 0 {
		n = 3
	}
	out := &larderv1.InspectDatasetResponse{Dataset: e.library.dataset(d), Selected: uint64(len(ids))}
	for _, s := range ids[:min(n, len(ids), 1000)] {
		v := e.library.sample(d, s)
		if p, err := e.cfg.Data.Catalog.Probe(ctx, d.Object(s)); err == nil {
			v.Format, v.Width, v.Height = p.Format, uint32(p.Width), uint32(p.Height)
		} else if ctx.Err() != nil {
			return nil, ctx.Err()
		} else {
			v.Format = "unreadable: " + err.Error()
		}
		out.Samples = append(out.Samples, v)
	}
	if req.GetListing() {
		byID, keys := listing(d)
		out.Listing = &larderv1.Listing{ById: byID, Keys: keys}
	}
	return out, nil
}

// ResolveKeys translates ids to keys, or keys to ids.
func (e *Engine) ResolveKeys(
	ctx context.Context, req *larderv1.ResolveKeysRequest,
) (*larderv1.ResolveKeysResponse, error) {
	d, err := e.open(ctx, req.GetDataset())
	if err != nil {
		return nil, err
	}
	if len(req.GetKeys()) > 0 {
		return e.library.keys.idsOf(ctx, d, req)
	}
	out := &larderv1.ResolveKeysResponse{}
	for _, id := range req.GetIds() {
		if id >= uint64(d.Len()) {
			return nil, errs.New(errs.NotFound, req.GetDataset(), fmt.Sprintf("ids are 0 to %d", d.Len()-1),
				"no sample %d in %s", id, d.Name())
		}
		out.Samples = append(out.Samples, e.library.sample(d, ident.SampleID(id)))
	}
	return out, nil
}
