package engine

import (
	"context"
	"os"

	"larder/internal/errs"
	"larder/internal/shm"
	"larder/internal/source"
	larderv1 "larder/proto/larder/v1"
)

// owner is a user whose job it is, where that is neither the user of the daemon nor root: as the kernel named it when
// the job was registered. What it may read is looked at by these numbers, also after a restart. The methods of a nil
// owner speak for the daemon's own user.
type owner struct {
	UID    uint32   `json:"uid"`
	GID    uint32   `json:"gid"`
	Groups []uint32 `json:"groups,omitempty"`
}

func (o *owner) uid() uint32 {
	if o == nil {
		return uint32(os.Getuid())
	}
	return o.UID
}

func (o *owner) reader() source.Reader {
	return source.Reader{UID: o.UID, GID: o.GID, Groups: o.Groups}
}

// asker is who makes a request; nil for the daemon's own user, root and who came over TCP with a token or certificate:
// they may do everything.
func asker(ctx context.Context) *owner {
	p, ok := shm.PeerFrom(ctx)
	if !ok || p.UID == 0 || p.UID == uint32(os.Getuid()) {
		return nil
	}
	return &owner{UID: p.UID, GID: p.GID, Groups: p.Groups}
}

// mayRun refuses what concerns all jobs.
func mayRun(ctx context.Context, what string) error {
	if o := asker(ctx); o != nil {
		return errs.New(errs.Denied, "daemon", "ask its user: what it has concerns all jobs",
			"%s: that is for uid %d, who runs the daemon, and root, not for uid %d", what, os.Getuid(), o.UID)
	}
	return nil
}

// mayTouch refuses a job of another user.
func mayTouch(ctx context.Context, j *job, what string) error {
	return mayTouchOf(ctx, j.owner, j.spec.GetName(), what)
}

func mayTouchOf(ctx context.Context, of *owner, name, what string) error {
	o := asker(ctx)
	if o == nil || of != nil && of.UID == o.UID {
		return nil
	}
	return errs.New(errs.Denied, name, "choose another job name, or ask its user",
		"%s job %s: it is a job of uid %d, and uid %d asks", what, name, of.uid(), o.UID)
}

// shown is view for the user who asks: another user's job shows how the machine is used, and nothing of its data.
func shown(ctx context.Context, out *larderv1.Job) *larderv1.Job {
	o := asker(ctx)
	if out == nil || o == nil || out.GetOwner() == o.UID {
		return out
	}
	s := out.GetSpec()
	var ranks []*larderv1.RankInfo // whether a client holds them, and what they cost
	for _, r := range out.GetRanks() {
		ranks = append(ranks, &larderv1.RankInfo{Rank: r.GetRank(), Attached: r.GetAttached(), RingBytes: r.GetRingBytes()})
	}
	return &larderv1.Job{
		Id: out.GetId(), State: out.GetState(), SubsetSize: out.GetSubsetSize(), BatchesPerEpoch: out.GetBatchesPerEpoch(),
		Counters:     out.GetCounters(),
		RegisteredAt: out.GetRegisteredAt(), Paused: out.GetPaused(), Owner: out.GetOwner(), Others: true, Ranks: ranks,
		SamplesPerSecond: out.GetSamplesPerSecond(),
		Spec: &larderv1.JobSpec{Name: s.GetName(), BatchSize: s.GetBatchSize(), WorldSize: s.GetWorldSize(),
			Epochs: s.GetEpochs()},
	}
}

// shownSplit leaves the names of datasets out for other users.
func shownSplit(ctx context.Context, s *larderv1.Split) *larderv1.Split {
	if asker(ctx) != nil && s != nil {
		s.Datasets = nil
	}
	return s
}
