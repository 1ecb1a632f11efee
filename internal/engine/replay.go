package engine

import (
	"context"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"larder/dsa"
	"larder/internal/coordinator"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/journal"
	"larder/internal/resume"
	larderv1 "larder/proto/larder/v1"
)

// replayOrder is what the name of an order begins with when FILE has it.
const replayOrder = "replay:"

// replay makes a job have the orders of a file: the same samples in the same order, in the same instances, with the
// seed that they had. The files must be the very ones.
func (c *compiler) replay(j *job, reg *coordinator.Register) error {
	path := strings.TrimPrefix(j.spec.GetOrder(), replayOrder)
	bad := func(hint, format string, args ...any) error {
		return errs.New(errs.Invalid, "order", hint, "replay %s: "+format, append([]any{path}, args...)...)
	}
	if j.spec.GetShare() != "none" {
		return bad("leave share out", "share=%q has instances of its own", j.spec.GetShare())
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return errs.Wrap(err, errs.NotFound, path,
			"make it with `larder orders export JOB`; the daemon reads it, as its own user", "read a recorded order")
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() { // a pipe might never end
		return bad("make it with `larder orders export JOB`", "it is no regular file")
	}
	o, err := resume.ReadOrders(f)
	if err != nil {
		return bad("make it with `larder orders export JOB`", "%v", err)
	}
	all := reg.Sample.Subset
	if files := j.subsets.last().filed(j.Data).Sum(); files != o.Files {
		return bad("use the dataset and subset that it was recorded from, with the files as they were",
			"it is of %s, with other files than the %d that job %s selects of %s",
			o.Dataset, len(all), j.spec.GetName(), j.Data.URI())
	}
	selected := coordinator.Members(all)
	for _, ep := range o.Epochs {
		if len(ep.Samples) == 0 {
			continue
		}
		s := coordinator.Scripted{Epoch: ep.Epoch, Instance: ep.Instance, Objects: make([]ident.ObjectID, len(ep.Samples))}
		for i, id := range ep.Samples {
			s.Objects[i] = j.Data.Object(ident.SampleID(id))
			if !selected.Has(uint32(s.Objects[i])) {
				return bad("export it again", "epoch %d has sample %d, which is not of the subset", ep.Epoch, id)
			}
		}
		if s.Member = coordinator.Members(s.Objects); s.Member.Len() != len(s.Objects) {
			return bad("export it again", "epoch %d has a sample twice", ep.Epoch)
		}
		life := j.life
		life.Subset = len(s.Objects)
		if err := life.Validate(); err != nil {
			return err
		}
		reg.Script = append(reg.Script, s)
	}
	if len(reg.Script) == 0 {
		return bad("export it when some of an epoch was given out", "it has no sample")
	}
	first := reg.Script[0]
	j.mode, j.life.Subset = dsa.Sequential, len(first.Objects)
	reg.Spec = j.life
	reg.Sample = dsa.JobSpec{Mode: dsa.Sequential, Seed: o.Seed, Subset: first.Objects}
	reg.Member = first.Member
	j.notes = append(j.notes, "its order is that of job "+strconv.Quote(o.Job)+", recorded in "+path)
	return nil
}

// recordedOf finds the newest job of a name that this daemon knows of, and its record.
func (h *history) recordedOf(name string) (id ident.JobID, uri, files string, seed uint64, err error) {
	j := h.jobs.byName(name)
	if j != nil {
		return j.ID, j.Data.URI(), j.subsets.last().filed(j.Data).Sum(), j.seed.Load(), nil
	}
	if h.found != nil {
		for _, js := range slices.Backward(h.found.Jobs()) {
			r := h.foundJob(js.ID)
			if r == nil || !strings.Contains(string(r.Spec), strconv.Quote(name)) {
				continue
			}
			spec, err := r.JobSpec()
			if err != nil || spec.GetName() != name {
				continue
			}
			seed, _ := strconv.ParseUint(r.Seed, 10, 64)
			k, err := resume.ParseSketch(r.Subset.Files)
			if err != nil {
				continue
			}
			return js.ID, r.URI, k.Sum(), seed, nil
		}
	}
	return 0, "", "", 0, h.jobs.noJob(name)
}

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
	for _, epoch := range e.cfg.Journal.Epochs(id) {
		rec, err := e.cfg.Journal.Recorded(id, epoch, journal.AnyInstance)
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
	rec, err := e.cfg.Journal.Recorded(ident.JobID(req.GetJob()), req.GetEpoch(), journal.AnyInstance)
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
