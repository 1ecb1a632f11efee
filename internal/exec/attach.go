package exec

import (
	"context"
	"errors"
	"time"

	"larder/internal/coordinator"
	"larder/internal/fault"
	"larder/internal/ident"
	"larder/internal/session"
	"larder/internal/shm"
	larderv1 "larder/proto/larder/v1"
)

// attachment is a session's hold on one incarnation of a rank.
type attachment struct {
	e    *Engine
	ring *ring
	info *larderv1.AttachResponse
}

// Attach binds a session to a rank: a new incarnation, a new ring.
func (e *Engine) Attach(ctx context.Context, req *larderv1.AttachRequest, peer shm.Peer, out session.Sink) (session.Attachment, error) {
	j, live := e.liveJob(ctx, req.GetJob())
	if !live {
		return nil, fault.New(fault.NotFound, req.GetJob(), "register it first; larder jobs ls shows what lives", "attach to job %q, which does not live here", req.GetJob())
	}
	if err := e.fitsRing(j); err != nil {
		return nil, err
	}
	r, err := e.ask(ctx, func(t coordinator.Token) coordinator.Event {
		return coordinator.Attach{Token: t, Job: j.id, Rank: int(req.GetRank()), Held: ident.Incarnation(req.GetIncarnation())}
	})
	if err != nil {
		return nil, e.holder(err, j.id, int(req.GetRank()))
	}
	k := ringKey{j.id, int(req.GetRank()), r.Inc}
	if req.GetPid() > 0 {
		peer.PID = req.GetPid()
	}
	ring, err := newRing(k, j, e.layout(j), out, peer)
	if err != nil {
		e.send(coordinator.Detached{Job: j.id, Rank: k.rank, Inc: k.inc})
		return nil, err
	}
	e.ringBytes.Add(ring.seg.Size())
	e.mu.Lock()
	e.mu.rings[k] = ring
	e.mu.Unlock()
	e.wg.Go(func() { ring.run(e) })
	v, err := e.describe(ctx, j.id)
	if err != nil {
		e.send(coordinator.Detached{Job: j.id, Rank: k.rank, Inc: k.inc})
		return nil, err
	}
	ring.seg.Retain() // the session's hold, until Close
	return &attachment{e: e, ring: ring, info: &larderv1.AttachResponse{
		Job: v, Incarnation: uint64(r.Inc), Slots: uint32(ring.slots), SlotBytes: uint64(ring.slotBytes),
		SegmentBytes: uint64(ring.seg.Size()), Fields: ring.fields, BatchesPerEpoch: uint64(j.life.Batches(k.rank)),
		NumSamples: uint64(j.life.Subset), NextEpoch: r.Epoch,
	}}, nil
}

// holder adds to a RANK_HELD error who holds it.
func (e *Engine) holder(err error, id ident.JobID, rank int) error {
	var f *fault.Error
	if !errors.As(err, &f) || f.Reason != fault.RankHeld {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for k, r := range e.mu.rings {
		if k.job == id && k.rank == rank {
			cp := *f
			cp.Err = errors.New("pid " + itoa(int(r.peer.PID)) + " of uid " + itoa(int(r.peer.UID)))
			return &cp
		}
	}
	return err
}

// fitsRing refuses one more ring when the memory for rings is used up.
func (e *Engine) fitsRing(j *job) error {
	one := *j
	one.life.World = 1
	return e.fits(&one)
}

func (e *Engine) ring(j ident.JobID, rank int, inc ident.Incarnation) *ring {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mu.rings[ringKey{j, rank, inc}]
}

// closeRing ends an attachment from the coordinator's side.
func (e *Engine) closeRing(x coordinator.CloseRank) {
	k := ringKey{x.Job, x.Rank, x.Inc}
	e.mu.Lock()
	r := e.mu.rings[k]
	delete(e.mu.rings, k)
	e.mu.Unlock()
	if r == nil {
		return
	}
	var reason error
	if x.Reason != "" {
		reason = fault.New(fault.JobEnded, r.job.spec.GetName(), "make a new Loader to go on", "job %s has ended: %s", r.job.spec.GetName(), x.Reason)
	}
	r.close(reason)
}

// Info describes the ring.
func (a *attachment) Info() *larderv1.AttachResponse { return a.info }

// Segment is segment 0 of the ring, valid until Close.
func (a *attachment) Segment() *shm.Segment { return a.ring.seg }

// StartEpoch begins an epoch for this rank.
func (a *attachment) StartEpoch(ctx context.Context, epoch uint32) error {
	k := a.ring.key
	_, err := a.e.ask(ctx, func(t coordinator.Token) coordinator.Event {
		return coordinator.StartEpoch{Token: t, Job: k.job, Rank: k.rank, Inc: k.inc, Epoch: epoch}
	})
	return err
}

// Release gives a slot back.
func (a *attachment) Release(slot uint32, gen uint64, waited time.Duration) {
	k := a.ring.key
	a.e.send(coordinator.Released{Job: k.job, Rank: k.rank, Inc: k.inc, Slot: int(slot), Gen: gen, Waited: waited})
}

// Close ends the attachment; clean means that the client said goodbye.
func (a *attachment) Close(clean bool) {
	k := a.ring.key
	a.e.send(coordinator.Detached{Job: k.job, Rank: k.rank, Inc: k.inc, Clean: clean})
	a.ring.seg.Release()
}
