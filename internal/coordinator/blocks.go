package coordinator

import (
	"slices"

	"larder/dsa"
	"larder/internal/ident"
)

// Jobs of mode Blocks walk through blocks of samples that lie together in storage (dsa/walk.go). The sampler says which
// blocks such a job draws from; here it is decided how long each stays in memory: from before its first sample is
// prepared until the last one is. A block is held apart from the tiers, in memory that its job was given when it was
// registered, so nothing of it reaches the choices of other jobs.

// leaving is a block that the order of a job has left.
type leaving struct {
	block uint32
	after DeliveryID // the newest batch that may have samples of it
}

// walks reports whether the job walks through blocks.
func (s *stream) walks() bool { return s.sample.Mode == dsa.Blocks }

// inStorageOrder reports whether the job's order follows from where samples lie: what it loads is neutral.
func (s *stream) inStorageOrder() bool { return s.sample.Mode == dsa.Sequential || s.walks() }

// moveBlocks has blocks held that jobs have come to, and notes those that they have left.
func (pl *planner) moveBlocks() {
	for _, m := range pl.sampler.BlockMoves() {
		switch s := pl.roster.streams[m.Job]; {
		case s == nil: // it has ended
			pl.step.emit(DropBlock{Job: m.Job, Block: m.Block})
		case m.In:
			held := len(s.leaving)
			s.leaving = slices.DeleteFunc(s.leaving, func(l leaving) bool { return l.block == m.Block })
			if held == len(s.leaving) { // else it is held still, for the last batches of an epoch
				pl.step.emit(HoldBlock{Job: m.Job, Block: m.Block})
			}
		default:
			s.leaving = append(s.leaving, leaving{m.Block, pl.nextDelivery})
			pl.leaving = true
		}
	}
}

// dropBlocks drops the blocks of which every sample that was picked is prepared.
func (pl *planner) dropBlocks() {
	if !pl.leaving {
		return
	}
	pl.leaving = false
	for _, s := range pl.roster.order {
		if len(s.leaving) == 0 {
			continue
		}
		oldest := pl.oldestPending(s)
		n := 0
		for n < len(s.leaving) && s.leaving[n].after < oldest {
			pl.step.emit(DropBlock{Job: s.job.ID, Block: s.leaving[n].block})
			n++
		}
		s.leaving = slices.Delete(s.leaving, 0, n)
		pl.leaving = pl.leaving || len(s.leaving) > 0
	}
}

// oldestPending is the oldest batch of a job that waits for a sample; if there is none, one that does not exist yet.
func (pl *planner) oldestPending(s *stream) DeliveryID {
	oldest := pl.nextDelivery + 1
	for r := range s.ranks {
		for _, d := range s.ranks[r].planned {
			if d.pending > 0 {
				oldest = min(oldest, d.id)
			}
		}
	}
	return oldest
}

// dropAll drops what a job holds that has ended.
func (pl *planner) dropAll(s *stream) {
	for _, l := range s.leaving {
		pl.step.emit(DropBlock{Job: s.job.ID, Block: l.block})
	}
	s.leaving = nil
}

// blockRead counts a block that came into memory as one read.
func (pl *planner) blockRead(e BlockRead) {
	pl.step.stats.SourceReads++
	pl.step.stats.SourceBytes += uint64(e.Bytes)
	if s := pl.roster.streams[e.Job]; s != nil {
		s.job.Stats.SourceReads++
		s.job.Stats.SourceBytes += uint64(e.Bytes)
		all := &pl.roster.datasets[s.dataset].stats
		all.SourceReads++
		all.SourceBytes += uint64(e.Bytes)
	}
}

// BlockOf is dsa.JobSpec.Block.
type BlockOf = func(ident.ObjectID) uint32
