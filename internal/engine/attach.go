package engine

import (
	"context"
	"errors"
	"time"

	"larder/internal/coordinator"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/session"
	"larder/internal/shm"
	"larder/jobs"
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
	if e.draining.Load() {
		return nil, errDraining
	}
	if err := e.cfg.Journal.Room(); err != nil {
		return nil, err
	}
	if n := req.GetNodeRank(); n != 0 {
		return nil, errs.New(errs.Unsupported, "node_rank", oneMachine, "attach to job %q: node_rank is %d, and a job of several machines does not work yet", req.GetJob(), n)
	}
	j, live, err := e.liveJob(ctx, req.GetJob())
	if err != nil {
		return nil, err
	}
	if !live {
		return nil, errs.New(errs.NotFound, req.GetJob(), "register it first; larder jobs ls shows what lives", "attach to job %q, which does not live here", req.GetJob())
	}
	if err := mayTouch(shm.WithPeer(ctx, peer), j, "attach to"); err != nil {
		return nil, err
	}
	if err := e.fitsRing(j); err != nil {
		return nil, err
	}
	// The client may be gone meanwhile: what the coordinator gives to it must come here, to be given back.
	who := whoIs(peer)
	again := e.heldBy(j.id, int(req.GetRank()), req.GetClient())
	r, err := e.ask(context.WithoutCancel(ctx), func(t coordinator.Token) coordinator.Event {
		return coordinator.Attach{Token: t, Job: j.id, Rank: int(req.GetRank()), Held: ident.Incarnation(req.GetIncarnation()), Client: who, Again: again}
	})
	if err != nil {
		return nil, e.holder(err, j.id, int(req.GetRank()))
	}
	k := ringKey{j.id, int(req.GetRank()), r.Inc}
	if req.GetPid() > 0 {
		peer.PID = req.GetPid()
	}
	ring, err := newRing(e, k, j, e.layout(j), out, peer)
	if err == nil {
		ring.client, ring.who = req.GetClient(), who
		err = e.addRing(ring)
	}
	if err != nil {
		e.send(coordinator.Detached{Job: j.id, Rank: k.rank, Inc: k.inc})
		return nil, err
	}
	now, v, err := e.attached(ctx, k)
	if err != nil {
		e.takeRing(k)
		ring.close(nil)
		ring.release()
		e.send(coordinator.Detached{Job: j.id, Rank: k.rank, Inc: k.inc})
		return nil, err
	}
	spec := now.Upcoming()
	return &attachment{e: e, ring: ring, info: &larderv1.AttachResponse{
		Job: v, Incarnation: uint64(r.Inc), Slots: uint32(ring.slots), SlotBytes: uint64(ring.slotBytes),
		SegmentBytes: uint64(ring.seg.Size()), Fields: ring.fields, BatchesPerEpoch: uint64(spec.Batches(k.rank)),
		NumSamples: uint64(spec.Subset), NextEpoch: r.Epoch, Rest: r.Rest, Board: uint64(ring.board), Posts: uint32(ring.posts), Rows: uint32(ring.rows),
	}}, nil
}

// addRing starts a ring; the caller's hold on it is the session's, until Close.
func (e *Engine) addRing(r *ring) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.stopped {
		r.release()
		return errStopped
	}
	e.mu.rings[r.key] = r
	e.came(r.key)
	r.hold()
	e.wg.Go(r.run)
	return nil
}

// takeRing takes a ring out of those that get batches; nil when it is out already.
func (e *Engine) takeRing(k ringKey) *ring {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.mu.rings[k]
	delete(e.mu.rings, k)
	return r
}

// attached describes the job of a ring that was just added, if the coordinator has not ended the attachment before it
// could know the ring.
func (e *Engine) attached(ctx context.Context, k ringKey) (*jobs.Job, *larderv1.Job, error) {
	v, err := e.lookup(ctx, k.job)
	if err != nil {
		return nil, nil, err
	}
	if v != nil && v.Ranks[k.rank].Attached() && v.Ranks[k.rank].Incarnation == k.inc {
		if j := e.view(*v); j != nil {
			return v, j, nil
		}
	}
	return nil, nil, errs.New(errs.JobEnded, itoa(int(k.job)), "register it again", "job %d ended while rank %d was being attached", k.job, k.rank)
}

// heldBy is the incarnation of a rank that this very client holds by another connection; 0 = none.
func (e *Engine) heldBy(id ident.JobID, rank int, client string) ident.Incarnation {
	if client == "" {
		return 0
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	inc := ident.Incarnation(0)
	for k, r := range e.mu.rings { // order-free: the newest
		if k.job == id && k.rank == rank && r.client == client {
			inc = max(inc, k.inc)
		}
	}
	return inc
}

// holder adds to a RANK_HELD error who holds it.
func (e *Engine) holder(err error, id ident.JobID, rank int) error {
	var f *errs.Error
	if !errors.As(err, &f) || f.Reason != errs.RankHeld {
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

// holdRing is ring for a writer: nothing is unmapped under it until it lets go.
func (e *Engine) holdRing(j ident.JobID, rank int, inc ident.Incarnation) *ring {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.mu.rings[ringKey{j, rank, inc}]
	if r != nil {
		r.hold()
	}
	return r
}

// closeRing ends an attachment from the coordinator's side.
func (e *Engine) closeRing(x coordinator.CloseRank) {
	r := e.takeRing(ringKey{x.Job, x.Rank, x.Inc})
	if r == nil {
		return
	}
	var reason error
	switch name := r.job.spec.GetName(); {
	case x.Stale:
		reason = errs.New(errs.Stale, name, "make a new Loader to go on, or raise jobs.idle_timeout", "rank %d of job %s was given up: %s", x.Rank, name, x.Reason)
	case x.Reason != "":
		reason = errs.New(errs.JobEnded, r.job.spec.GetName(), "make a new Loader to go on", "job %s has ended: %s", r.job.spec.GetName(), x.Reason)
	}
	r.close(reason)
}

// Info describes the ring.
func (a *attachment) Info() *larderv1.AttachResponse { return a.info }

// Segment is segment 0 of the ring, valid until Close.
func (a *attachment) Segment() *shm.Segment { return a.ring.seg }

// StartEpoch begins an epoch for this rank, or goes on with it.
func (a *attachment) StartEpoch(ctx context.Context, epoch, from uint32) (*larderv1.EpochResponse, error) {
	k := a.ring.key
	r, err := a.e.ask(ctx, func(t coordinator.Token) coordinator.Event {
		return coordinator.StartEpoch{Token: t, Job: k.job, Rank: k.rank, Inc: k.inc, Epoch: epoch, From: int(from)}
	})
	if err != nil {
		return nil, err
	}
	return &larderv1.EpochResponse{NumSamples: uint64(r.Samples), BatchesPerEpoch: uint64(r.Batches), Whole: uint64(r.Whole), WholeBatches: uint64(r.WholeBatches)}, nil
}

// Release gives a slot back.
func (a *attachment) Release(slot uint32, gen uint64, waited time.Duration) {
	k := a.ring.key
	if int(slot) < len(a.ring.waited) {
		a.ring.waited[slot].Store(0)
	}
	a.e.send(coordinator.Released{Job: k.job, Rank: k.rank, Inc: k.inc, Slot: int(slot), Gen: gen, Waited: waited})
}

// Close ends the attachment; clean means that the client said goodbye.
func (a *attachment) Close(clean bool) {
	k := a.ring.key
	waiting, _ := a.ring.waiting()
	var client *shm.Exit
	if !clean {
		client = a.e.living(a.ring.who)
	}
	a.e.send(coordinator.Detached{Job: k.job, Rank: k.rank, Inc: k.inc, Clean: clean, Lives: client != nil, Waited: a.ring.owed() + waiting})
	a.e.await(k, client)
	a.ring.release()
}
