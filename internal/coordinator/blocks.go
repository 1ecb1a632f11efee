package coordinator

import (
	"slices"

	"larder/dsa"
	"larder/internal/ident"
	"larder/jobs"
)

// Jobs of mode Blocks walk through blocks of samples that lie together in storage (dsa/walk.go). The sampler says which
// blocks such a job draws from; here it is decided how long each stays in memory: from before its first sample is
// prepared until the last one is. A block is held apart from the tiers, in memory that its job was given when it was
// registered, so nothing of it reaches the choices of other jobs.

// heldBy says of a block who has it in memory.
type heldBy struct {
	jobs   int
	reader ident.JobID // for whom it was read
}

// hold has a block held for a job. The first job is the one that it is read for, unless it leaves before that begins
// (blockRead).
func (pl *planner) hold(job ident.JobID, block uint32) {
	h := pl.roster.blocks[block]
	if h == nil {
		h = &heldBy{reader: job}
		pl.roster.blocks[block] = h
	}
	h.jobs++
	pl.step.emit(HoldBlock{Job: job, Block: block})
}

// drop ends hold.
func (pl *planner) drop(job ident.JobID, block uint32) {
	if h := pl.roster.blocks[block]; h != nil {
		if h.jobs--; h.jobs == 0 {
			delete(pl.roster.blocks, block)
		}
	}
	pl.step.emit(DropBlock{Job: job, Block: block})
}

// leaving is a block that the order of a job has left.
type leaving struct {
	block uint32
	after DeliveryID // the newest batch that may have samples of it
}

// walks reports whether the job walks through blocks.
func (s *stream) walks() bool { return s.sample.Mode == dsa.Blocks }

// visible reports whether the choices of the sampler, and of the tiers, know of the job. They do not know of one whose
// order is given, is that of the dataset, or goes through blocks: what it loads is neutral (needs.go).
func (s *stream) visible() bool {
	return !s.job.Spec.Given && s.sample.Mode != dsa.Sequential && !s.walks()
}

// moveBlocks has blocks held that jobs have come to, and notes those that they have left.
func (pl *planner) moveBlocks() {
	for _, m := range pl.sampler.BlockMoves() {
		switch s := pl.roster.streams[m.Job]; {
		case s == nil: // it has ended
			pl.drop(m.Job, m.Block)
		case m.In:
			held := len(s.leaving)
			s.leaving = slices.DeleteFunc(s.leaving, func(l leaving) bool { return l.block == m.Block })
			if held == len(s.leaving) { // else it is held still, for the last batches of an epoch
				pl.hold(m.Job, m.Block)
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
			pl.drop(s.job.ID, s.leaving[n].block)
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
		pl.drop(s.job.ID, l.block)
	}
	s.leaving = nil
}

// blockRead counts a block that came into memory as one read, for the job that it was read for and for the dataset.
func (pl *planner) blockRead(e BlockRead) {
	count := func(reads, bytes *uint64) {
		*reads++
		*bytes += uint64(e.Bytes)
	}
	count(&pl.step.stats.SourceReads, &pl.step.stats.SourceBytes)
	if h := pl.roster.blocks[e.Block]; h != nil {
		h.reader = e.Job
	}
	if s := pl.roster.streams[e.Job]; s != nil {
		count(&s.job.Stats.SourceReads, &s.job.Stats.SourceBytes)
	}
	for i := range pl.roster.datasets { // the job may have ended meanwhile
		if d := &pl.roster.datasets[i]; d.id == e.Dataset {
			count(&d.stats.SourceReads, &d.stats.SourceBytes)
		}
	}
}

// countHeld counts a sample that came from a block in memory, by whether that was read for the job itself.
func (fl *flights) countHeld(f *flight) {
	own := false
	if s := fl.roster.streams[f.job]; s != nil && s.walks() {
		h := fl.roster.blocks[s.sample.Block(f.key.Object)]
		own = h == nil || h.reader == f.job
	}
	add := func(b *jobs.FromBlocks) {
		if own {
			b.Own++
		} else {
			b.Shared++
		}
	}
	add(&fl.step.stats.FromBlocks)
	fl.countWork(f, func(j *jobs.Stats) { add(&j.FromBlocks) })
}

// BlockOf is dsa.JobSpec.Block.
type BlockOf = func(ident.ObjectID) uint32
