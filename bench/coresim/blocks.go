package coresim

import (
	"larder/internal/coordinator"
	"larder/internal/ident"
)

// inBlock reports whether the stored bytes of a sample are taken from a block in memory. Those of a batch that is sent
// again are read one by one: its block may have left.
func (s *machine) inBlock(x coordinator.Prepare) bool {
	j := s.jobs[x.Job]
	return x.From == ident.Stored && j != nil && j.block != nil && s.blocks[j.block(x.Key.Object)] > 0
}

// holdBlock reads a block, unless another job holds it.
func (s *machine) holdBlock(x coordinator.HoldBlock) {
	if s.blocks[x.Block]++; s.blocks[x.Block] > 1 {
		return
	}
	took := s.m.Read
	if s.m.Storage != nil {
		took = s.disk.fetch(s.clock.now, s.m.Block) - s.clock.now
	}
	s.after(took, func() {
		s.report(coordinator.BlockRead{Job: x.Job, Dataset: s.jobs[x.Job].recipe.data, Block: x.Block, Bytes: s.m.Block})
	})
}

func (s *machine) dropBlock(x coordinator.DropBlock) {
	if s.blocks[x.Block]--; s.blocks[x.Block] < 0 {
		s.checks.fail("job %d drops block %d, which is not in memory", x.Job, x.Block)
	}
}
