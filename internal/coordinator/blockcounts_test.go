package coordinator

import (
	"testing"

	"larder/dsa"
	"larder/internal/ident"
	"larder/jobs"
)

const blockBytes = 800

// library answers for storage: a block that comes is one read of blockBytes, and samples of blocks that are there cost
// none.
type library struct {
	*shelf
	r    *rig
	read map[ident.JobID]uint64 // blocks by the job that they were read for
}

func newLibrary(r *rig) *library {
	l := &library{watch(r), r, map[ident.JobID]uint64{}}
	r.see = func(e Effect) {
		x, ok := e.(HoldBlock)
		fresh := ok && !l.any(x.Block)
		l.shelf.see(e) //nolint:staticcheck // the rig has a see, too
		if fresh {
			l.read[x.Job]++
			r.step(BlockRead{Job: x.Job, Block: x.Block, Bytes: blockBytes})
		}
	}
	r.inBlock = func(x ident.ObjectID) bool { return l.any(blockOf(x)) }
	return l
}

// walker registers a job that walks through all blocks.
func (l *library) walker(name string, n int) *peer {
	return l.r.join(name, 0, n, 4, order(dsa.Blocks), func(e *Register) {
		e.Sample.Window, e.Sample.Seed, e.Spec.Advance = 4, uint64(len(name)), jobs.OnRequest
	})
}

// take hands a job up to n samples of its epoch.
func (l *library) take(p *peer, n int) (got int) {
	for got < n {
		d := p.next()
		if d == nil {
			break
		}
		got += len(d.Rows)
		p.release(d)
		l.r.run()
	}
	return got
}

// Of jobs that share blocks each one's counts say what was read for it, and where each of its samples came from: a
// block that was read for it, one that was read for another job, or what another job was just preparing.
func TestEachJobCountsItsBlocks(t *testing.T) {
	const n = 320
	for _, names := range [][]string{{"a"}, {"a", "bb"}, {"a", "bb", "ccc"}} {
		r := decodedTier(t, 0)
		l := newLibrary(r)
		var peers []*peer
		for _, name := range names {
			peers = append(peers, l.walker(name, n))
		}
		for epoch := range uint32(3) {
			for i, p := range peers {
				if epoch > 0 {
					p.epoch(epoch)
				}
				l.take(p, 16*i)
			}
			for more := true; more; {
				more = false
				for _, p := range peers {
					more = l.take(p, 4) > 0 || more
				}
			}
		}
		var all jobs.Stats
		for i, p := range peers {
			s := r.job(p.job).Stats
			from := s.FromBlocks.Own + s.FromBlocks.Shared + s.Hits[ident.Decoded]
			if s.Samples != 3*n || from != s.Samples {
				t.Errorf("%d jobs: %s had %d samples, %d of them from somewhere: %+v", len(names), names[i], s.Samples, from, s)
			}
			if s.SourceReads != l.read[p.job] || s.SourceBytes != blockBytes*s.SourceReads {
				t.Errorf("%d jobs: %d reads of %d bytes are counted for %s, and %d blocks were", len(names), s.SourceReads,
					s.SourceBytes, names[i], l.read[p.job])
			}
			if alone := len(names) == 1; alone != (s.FromBlocks.Shared == 0) {
				t.Errorf("%d jobs: %s had %d samples of others' blocks", len(names), names[i], s.FromBlocks.Shared)
			}
			all.SourceReads += s.SourceReads
			all.FromBlocks.Own += s.FromBlocks.Own
			all.FromBlocks.Shared += s.FromBlocks.Shared
		}
		sum := r.c.Stats()
		if sum.SourceReads != all.SourceReads || sum.FromBlocks != all.FromBlocks || sum.SourceReads != uint64(l.reads) {
			t.Errorf("%d jobs: all is %d reads and %+v; of jobs %d and %+v", len(names), sum.SourceReads, sum.FromBlocks,
				all.SourceReads, all.FromBlocks)
		}
		if len(names) > 1 && sum.SourceReads > 3*n/blockSize*11/10 {
			t.Errorf("%d jobs: %d reads of %d blocks in 3 epochs", len(names), sum.SourceReads, n/blockSize)
		}
	}
}

// A job that leaves takes nothing of what the others have: the block that was read for it is one of another job to
// them, and what is read for it after it has left counts for its dataset.
func TestBlocksOfAJobThatLeaves(t *testing.T) {
	const n = 320
	r := decodedTier(t, 0)
	l := newLibrary(r)
	a, b, c := l.walker("a", n), l.walker("bb", n), l.walker("ccc", n)
	had := map[*peer]int{}
	for range 6 {
		for _, p := range []*peer{a, b, c} {
			had[p] += l.take(p, 4)
		}
	}
	ofA := r.job(a.job).Stats
	if ofA.SourceReads == 0 || ofA.SourceReads != l.read[a.job] {
		t.Fatalf("%d reads are counted, and %d blocks were", ofA.SourceReads, l.read[a.job])
	}
	before := r.job(b.job).Stats.FromBlocks.Shared
	r.ask(func(t Token) Event { return Kill{Token: t, Job: a.job, Reason: "enough"} })
	reads := r.c.Stats().SourceReads
	late := uint32(n) // a block that comes now was begun for the job that left
	r.step(BlockRead{Job: a.job, Block: late, Bytes: blockBytes})
	if s := r.c.Stats(); s.SourceReads != reads+1 || r.c.Datasets()[0].Stats.SourceReads != reads+1 {
		t.Errorf("%d reads are counted, %d for the dataset, not %d", s.SourceReads, r.c.Datasets()[0].Stats.SourceReads,
			reads+1)
	}
	for more := true; more; {
		more = false
		for _, p := range []*peer{b, c} {
			k := l.take(p, 4)
			had[p] += k
			more = more || k > 0
		}
	}
	for _, p := range []*peer{b, c} {
		s := r.job(p.job).Stats
		if from := s.FromBlocks.Own + s.FromBlocks.Shared + s.Hits[ident.Decoded]; had[p] != n || from != n ||
			s.SourceReads != l.read[p.job] {
			t.Errorf("it had %d samples, %d from somewhere, %d reads of %d blocks", had[p], from, s.SourceReads, l.read[p.job])
		}
	}
	if r.job(b.job).Stats.FromBlocks.Shared <= before {
		t.Error("it had nothing of the blocks that the others brought")
	}
	if len(l.held[a.job]) > 0 {
		t.Errorf("the job that left holds %d blocks", len(l.held[a.job]))
	}
}
