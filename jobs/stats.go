package jobs

import (
	"time"

	"larder/internal/ident"
)

// BadKind says why a batch had to leave out a sample.
type BadKind uint8

// The kinds of bad samples.
const (
	SampleFailed  BadKind = iota // it cannot be read, decoded or augmented
	SampleDamaged                // it could be decoded, but is damaged, and such images are refused
	SampleRemoved                // it was taken out of the dataset: nothing is wrong with it, and it is not reported
)

// Bad is a sample that a batch had to leave out.
type Bad struct {
	Object ident.ObjectID
	At     int64 // 1 + the byte of the object at which its decoder met the damage; 0 = not known
	Reason string
	Kind   BadKind
}

// Stats counts a job's part. Work that several jobs wanted is counted for the one that asked first.
type Stats struct {
	SourceReads, SourceBytes, Decodes, Augments uint64
	Hits                                        [ident.NumForms]uint64
	FromBlocks                                  FromBlocks
	Samples, Batches, Quarantined               uint64
	Wait                                        time.Duration
	Bad                                         []Bad // the first keepBad
}

// FromBlocks counts samples that came from blocks that jobs of mode Blocks hold in memory.
type FromBlocks struct {
	Own    uint64 // the block was read for this job
	Shared uint64 // it was read for another one
}

const keepBad = 1000

// Note remembers samples that were left out.
func (s *Stats) Note(bad []Bad) {
	s.Quarantined += uint64(len(bad))
	if n := keepBad - len(s.Bad); n < len(bad) {
		bad = bad[:n]
	}
	s.Bad = append(s.Bad, bad...)
}
