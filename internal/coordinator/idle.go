package coordinator

import (
	"fmt"
	"time"

	"larder/internal/errs"
	"larder/internal/ident"
	"larder/jobs"
)

// idleOut is when the client of a rank has been silent for so long that it loses the rank (Config.IdleTimeout). Zero =
// it does not: it waits for the daemon, for the other ranks, or for its job to be unpaused. A client has no thread that
// could say that it lives, so what counts is what it does with its batches.
func (lc *lifecycle) idleOut(s *stream, r int) time.Time {
	j, k := s.job, &s.job.Ranks[r]
	switch {
	case lc.cfg.IdleTimeout <= 0 || !k.Attached() || j.Paused() || k.Phase == jobs.Waiting:
		return time.Time{}
	case !k.Holds() && (k.Phase == jobs.InEpoch && k.Asked == int64(k.Epoch) && j.HasBatch(r) ||
		s.batchUnderWay(r)):
		return time.Time{}
	}
	return k.Heard.Add(lc.cfg.IdleTimeout)
}

// detachIdle ends the attachment of clients that were silent for too long. They count as dead: samples that they were
// not given return to the epoch, their memory is no longer the daemon's, and another client may take the rank, with a
// higher incarnation. When such a client wakes after all, the end of its attachment (STALE) is the first thing it
// hears, and its memory is as it left it: no other client has it.
func (lc *lifecycle) detachIdle() {
	for i := 0; i < len(lc.roster.order); {
		s := lc.roster.order[i]
		for r := range s.job.Ranks {
			if at := lc.idleOut(s, r); at.IsZero() || at.After(lc.step.now) {
				continue
			}
			lc.endAttachment(s, r, false, CloseRank{
				Stale: true, Reason: fmt.Sprintf("nothing was heard of its client for %s (jobs.idle_timeout)", lc.cfg.IdleTimeout),
			})
			if s.job.State.Ended() {
				break
			}
		}
		if i < len(lc.roster.order) && lc.roster.order[i] == s { // else the job has ended
			i++
		}
	}
}

// rankLost says why a client does not hold its rank: the job has ended, or it lost the rank.
func (lc *lifecycle) rankLost(id ident.JobID, rank int, inc ident.Incarnation) error {
	s := lc.roster.streams[id]
	if s == nil {
		return jobGone(id, "")
	}
	return errs.New(errs.Stale, s.job.Spec.Name, "make a new Loader to continue",
		"incarnation %d of rank %d of job %s has lost its rank", inc, rank, s.job.Spec.Name)
}

// idleAt is when a job that takes nothing stops counting as needing something: ten of its steps, at least 2 s; before a
// step time is known, 30 s (guarantee G5). Zero = it is waiting for us, which is no idleness.
func (lc *lifecycle) idleAt(s *stream) time.Time {
	var at time.Time
	for r := range s.job.Ranks {
		k := &s.job.Ranks[r]
		if !k.Attached() {
			continue
		}
		if !k.Holds() && (k.Phase == jobs.InEpoch && k.Asked == int64(k.Epoch) && s.job.HasBatch(r) ||
			s.batchUnderWay(r)) {
			return time.Time{}
		}
		wait := 30 * time.Second
		if k.StepTime > 0 {
			wait = max(10*k.StepTime, 2*time.Second)
		}
		if t := k.LastTake.Add(wait); t.After(at) {
			at = t
		}
	}
	return at
}
