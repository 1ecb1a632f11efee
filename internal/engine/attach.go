package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"larder/internal/coordinator"
	"larder/internal/engine/ring"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/session"
	"larder/internal/session/wire"
	"larder/internal/shm"
	"larder/internal/source"
	"larder/jobs"
	larderv1 "larder/proto/larder/v1"
)

// attachment is a session's hold on one incarnation of a rank.
type attachment struct {
	loop  *loop
	rings *ring.Set
	ring  *ring.Ring
	job   *job
	info  *larderv1.AttachResponse
}

// Attach binds a session to a rank: a new incarnation, a new ring.
func (e *Engine) Attach(
	ctx context.Context, req *larderv1.AttachRequest, peer shm.Peer, out session.Sink,
) (session.Attachment, error) {
	if e.draining.Load() {
		return nil, errDraining
	}
	if err := e.cfg.Journal.Log.Room(); err != nil {
		return nil, err
	}
	if n := req.GetNodeRank(); n != 0 {
		return nil, errs.New(errs.Unsupported, "node_rank", oneMachine,
			"attach to job %q: node_rank is %d, and a job of several machines does not work yet", req.GetJob(), n)
	}
	j, live, err := e.jobs.live(ctx, req.GetJob())
	if err != nil {
		return nil, err
	}
	if !live {
		return nil, errs.New(errs.NotFound, req.GetJob(), "register it first; larder jobs ls shows what lives",
			"attach to job %q, which does not live here", req.GetJob())
	}
	if err := mayTouch(shm.WithPeer(ctx, peer), j, "attach to"); err != nil {
		return nil, err
	}
	if err := e.compiler.fitsRing(j); err != nil {
		return nil, err
	}
	// The client may be gone meanwhile: what the coordinator gives to it must come here, to be returned.
	process, rank := ring.ProcessOf(peer), int(req.GetRank())
	done, err := e.rings.Claim(ctx, j.ID, rank, req.GetClient())
	if err != nil {
		return nil, err
	}
	defer done()
	again := e.rings.HeldBy(j.ID, rank, req.GetClient())
	r, err := e.loop.ask(context.WithoutCancel(ctx), func(t coordinator.Token) coordinator.Event {
		return coordinator.Attach{
			Token: t, Job: j.ID, Rank: rank, Held: ident.Incarnation(req.GetIncarnation()), Client: process, Again: again,
		}
	})
	if err != nil {
		return nil, heldBy(e.rings, err, j.ID, rank)
	}
	e.jobs.claims.drop(j.ID)
	k := ring.Key{Job: j.ID, Rank: rank, Inc: r.Inc}
	if req.GetPid() > 0 {
		peer.PID = req.GetPid()
	}
	at, err := newRing(e.rings, ring.Config{
		Key: k, Name: j.spec.GetName(), Layout: j.layout(), Sink: out, Peer: peer, Client: req.GetClient(), Process: process,
		Budget: e.memory.rings,
		Failed: func(k ring.Key, err error) { // for the coordinator its client has vanished
			e.log.note(slog.LevelError, "an attachment was ended", "job", j.spec.GetName(), "rank", k.Rank, "err", err)
			e.loop.send(coordinator.Detached{Job: k.Job, Rank: k.Rank, Inc: k.Inc})
		},
		Report: func(bad []jobs.Bad) *larderv1.BatchReport { return e.library.report(j, bad) },
	})
	if err != nil {
		e.loop.send(coordinator.Detached{Job: k.Job, Rank: k.Rank, Inc: k.Inc})
		return nil, err
	}
	now, v, err := e.views.attached(ctx, k)
	if err != nil {
		e.rings.Take(k)
		at.Close(nil)
		at.Release()
		e.loop.send(coordinator.Detached{Job: k.Job, Rank: k.Rank, Inc: k.Inc})
		return nil, err
	}
	spec := now.Upcoming()
	return &attachment{loop: e.loop, rings: e.rings, ring: at, job: j, info: &larderv1.AttachResponse{
		Job: v, Incarnation: uint64(r.Inc), Slots: uint32(at.Slots), SlotBytes: uint64(at.SlotBytes),
		SegmentBytes: uint64(at.Segment().Size()), Fields: at.Fields, BatchesPerEpoch: uint64(spec.Batches(k.Rank)),
		NumSamples: uint64(spec.Subset), NextEpoch: r.Epoch, Rest: r.Rest,
		Board: uint64(at.Board), Posts: uint32(at.Posts), Releases: uint64(at.Releases()), Rows: uint32(at.Rows),
	}}, nil
}

// newRing makes a ring and starts it. The caller's hold on it is the session's, until Close.
func newRing(set *ring.Set, cfg ring.Config) (*ring.Ring, error) {
	r, err := ring.New(cfg)
	if err != nil {
		return nil, err
	}
	if !set.Add(r) {
		r.Release()
		return nil, errStopped
	}
	return r, nil
}

// heldBy adds to a RANK_HELD error who holds the rank.
func heldBy(rings *ring.Set, err error, id ident.JobID, rank int) error {
	var f *errs.Error
	if !errors.As(err, &f) || f.Reason != errs.RankHeld {
		return err
	}
	peer, held := rings.Holder(id, rank)
	if !held {
		return err
	}
	cp := *f
	cp.Err = errors.New("pid " + itoa(int(peer.PID)) + " of uid " + itoa(int(peer.UID)))
	return &cp
}

// closeReason is what the client hears of a ring that the coordinator closes; nil = nothing.
func closeReason(x *coordinator.CloseRank, job string) error {
	switch {
	case x.Stale:
		return errs.New(errs.Stale, job, "make a new Loader to continue, or raise jobs.idle_timeout",
			"rank %d of job %s was given up: %s", x.Rank, job, x.Reason)
	case x.Reason != "":
		return errs.New(errs.JobEnded, job, "make a new Loader to continue", "job %s has ended: %s", job, x.Reason)
	}
	return nil
}

// Info describes the ring.
func (a *attachment) Info() *larderv1.AttachResponse { return a.info }

// Segment is segment 0 of the ring, valid until Close.
func (a *attachment) Segment() *shm.Segment { return a.ring.Segment() }

// StartEpoch begins an epoch for this rank, or continues it.
func (a *attachment) StartEpoch(ctx context.Context, epoch, from uint32) (*larderv1.EpochResponse, error) {
	k := a.ring.Key()
	r, err := a.loop.ask(ctx, func(t coordinator.Token) coordinator.Event {
		return coordinator.StartEpoch{Token: t, Job: k.Job, Rank: k.Rank, Inc: k.Inc, Epoch: epoch, From: int(from)}
	})
	if err != nil {
		return nil, err
	}
	return &larderv1.EpochResponse{NumSamples: uint64(r.Samples), BatchesPerEpoch: uint64(r.Batches),
		Whole: uint64(r.Whole), WholeBatches: uint64(r.WholeBatches)}, nil
}

// Picks says which samples the next batches have.
func (a *attachment) Picks(ctx context.Context, f wire.PicksFrame) error {
	batches, err := a.objects(f)
	if err != nil {
		return err
	}
	k := a.ring.Key()
	_, err = a.loop.ask(ctx, func(t coordinator.Token) coordinator.Event {
		return coordinator.Picks{Token: t, Job: k.Job, Rank: k.Rank, Inc: k.Inc, Epoch: f.Epoch, First: int(f.First),
			Batches: batches, End: f.End}
	})
	return err
}

// objects makes objects of the sample ids of picks.
func (a *attachment) objects(f wire.PicksFrame) ([][]ident.ObjectID, error) {
	data, name := a.job.Data, a.job.spec.GetName()
	batches := make([][]ident.ObjectID, len(f.Batches))
	for i, ids := range f.Batches {
		step := uint64(f.First) + uint64(i)
		if len(ids) > a.ring.Rows {
			return nil, errs.New(errs.Invalid, name, "register the job with the size of its largest batch",
				"step %d of job %s has %d samples, and its slots have room for %d", step, name, len(ids), a.ring.Rows)
		}
		batches[i] = make([]ident.ObjectID, len(ids))
		for row, id := range ids {
			x := source.NoObject
			if uint64(id) < uint64(data.Len()) {
				x = data.Object(ident.SampleID(id))
			}
			if x == source.NoObject {
				return nil, errs.New(errs.Invalid, name, fmt.Sprintf("indices go from 0 to %d", data.Len()-1),
					"row %d of step %d of job %s is index %d, and dataset %s has %d samples", row, step, name, id, data.Name(),
					data.Len())
			}
			batches[i][row] = x
		}
	}
	return batches, nil
}

// Release returns a slot.
func (a *attachment) Release(slot uint32, gen uint64, waited time.Duration) {
	k := a.ring.Key()
	a.ring.Reported(int(slot))
	a.loop.send(coordinator.Released{Job: k.Job, Rank: k.Rank, Inc: k.Inc, Slot: int(slot), Gen: gen, Waited: waited})
}

// Collect takes what this client gave back in release words.
func (a *attachment) Collect() {
	for _, g := range a.ring.Collect() {
		a.loop.send(released(&g))
	}
}

// released is the event of a slot that was given back in release words.
func released(g *ring.Given) coordinator.Released {
	return coordinator.Released{
		Job: g.Key.Job, Rank: g.Key.Rank, Inc: g.Key.Inc, Slot: g.Slot, Gen: g.Gen, Waited: g.Waited, Ago: g.Ago,
	}
}

// Close ends the attachment; clean means that the client said goodbye.
func (a *attachment) Close(clean bool) {
	k := a.ring.Key()
	for _, g := range a.ring.Collect() { // the client may have ended before it told
		a.loop.send(released(&g))
	}
	waiting, _ := a.ring.WaitNow()
	var client *shm.Exit
	if !clean {
		client = ring.Living(a.ring.Process())
	}
	a.loop.send(coordinator.Detached{Job: k.Job, Rank: k.Rank, Inc: k.Inc, Clean: clean, Lives: client != nil,
		Waited: a.ring.Unreported() + waiting})
	a.rings.Watch(k, client)
	a.ring.Release()
}
