package jobs

import (
	"fmt"

	"larder/internal/errs"
)

// OnError says what happens to a sample that cannot be prepared.
type OnError uint8

// The three answers. Raise and Skip are the same to the daemon: the batch goes out without the sample and with a
// report; under Raise the client turns the report into an exception.
const (
	Raise OnError = iota
	Skip
	Substitute
)

// Spec is what the coordinator must know of a job to deal its epochs.
type Spec struct {
	Name     string
	Subset   int    // n, samples in the subset
	Batch    int    // samples per rank and batch
	World    int    // ranks
	DropLast bool   // drop a final batch that is shorter than Batch
	Even     bool   // every rank gets the same number of samples; what is left over is dropped
	Slots    int    // slots of a rank's ring
	Epochs   uint32 // epochs until the job ends; 0 = until its client leaves
	OnError  OnError
	Advance  Advance
	// Given: the client says which samples come, in batches of at most Batch, for as long as it likes. Such a job has one
	// rank, and none of the numbers below.
	Given bool
}

// Validate refuses what can never deliver a batch. Numbers in the message are the user's.
func (s Spec) Validate() error {
	switch {
	case s.Subset < 1:
		return errs.New(errs.SubsetEmpty, s.Name, "widen the subset expression", "job %s: the subset selects no sample",
			s.Name)
	case s.Batch < 1 || s.Batch > 1<<16:
		return errs.New(errs.Invalid, s.Name, "choose 1 to 65,536", "job %s: batch_size %d", s.Name, s.Batch)
	case s.World < 1 || s.World > 1024:
		return errs.New(errs.Invalid, s.Name, "choose 1 to 1,024", "job %s: world_size %d", s.Name, s.World)
	case s.Slots < 2 || s.Slots > 66:
		return errs.New(errs.Invalid, s.Name, "choose a prefetch of 1 to 64", "job %s: a ring of %d slots", s.Name, s.Slots)
	case s.Given && s.World != 1:
		return errs.New(errs.Unsupported, s.Name, "register a job for each process: each one has a stream of its own",
			"job %s: order given, with %d ranks", s.Name, s.World)
	case s.Given && (s.OnError == Substitute || s.DropLast):
		return errs.New(errs.Unsupported, s.Name, "choose on_error raise or skip, and leave a short batch out of the stream",
			"job %s: order given, where the client alone says which samples come, with on_error substitute or drop_last",
			s.Name)
	case s.Subset < s.World:
		return errs.New(errs.SubsetEmpty, s.Name, "use fewer ranks or a wider subset",
			"job %s: %d samples cannot be dealt to %d ranks", s.Name, s.Subset, s.World)
	}
	for r := range s.World {
		if s.RankSamples(r) == 0 {
			whose := "of its subset"
			if s.World > 1 {
				whose = fmt.Sprintf("that each of its %d ranks gets", s.World)
			}
			return errs.New(errs.SubsetEmpty, s.Name, "lower batch_size, or set drop_last=False",
				"job %s: batch_size %d is larger than the %d samples %s, and drop_last drops such a batch",
				s.Name, s.Batch, s.Subset/s.World, whose)
		}
	}
	return nil
}

// InStep reports whether a step is given to all ranks or to none: a batch that replaces bad samples can find nothing
// left to replace them with, and all ranks are to get equally many batches. A batch may then be shorter, and a step
// skipped.
func (s Spec) InStep() bool { return s.World > 1 && s.Even && s.OnError == Substitute }

// share is what rank r would get before drop_last.
func (s Spec) share(r int) int {
	q := s.Subset / s.World
	if !s.Even && r < s.Subset%s.World {
		q++
	}
	return q
}

// RankSamples is how many samples rank r gets in an epoch without quarantined ones. It is 0 only in what is left of an
// epoch: Validate refuses a job of which it is.
func (s Spec) RankSamples(r int) int {
	q := s.share(r)
	if s.DropLast {
		q -= q % s.Batch
	}
	return q
}

// Batches is how many batches rank r gets in an epoch. It is equal for all ranks, except with Even off and DropLast on
// or Batch 1, where a rank that has one sample less may lack a batch. It is 0 where it is not known: of order given.
func (s Spec) Batches(r int) int {
	if s.Given {
		return 0
	}
	own := (s.RankSamples(r) + s.Batch - 1) / s.Batch
	if s.DropLast || s.Batch == 1 || own == 0 {
		return own
	}
	return max(own, (s.RankSamples(0)+s.Batch-1)/s.Batch)
}

// before is how many samples rank r got in its first step batches. A rank whose samples fill one batch less than rank
// 0's gives one sample of its last full batch to a batch of its own, so that all ranks have equally many.
func (s Spec) before(r, step int) int {
	q, n := s.RankSamples(r), s.Batches(r)
	if step >= n {
		return q
	}
	if step == n-1 && q == s.Batch*(n-1) {
		return q - 1
	}
	return min(q, step*s.Batch)
}

// Rows is the size of batch step of rank r.
func (s Spec) Rows(r, step int) int { return s.before(r, step+1) - s.before(r, step) }

// Position is where batch step of rank r starts in the global order of the epoch: all ranks' batches of a step lie side
// by side, so that a prefix of the order is a whole number of steps whatever the world size.
func (s Spec) Position(r, step int) int {
	pos := 0
	for k := range s.World {
		pos += s.before(k, step)
		if k < r {
			pos += s.Rows(k, step)
		}
	}
	return pos
}

// Dealt is how many samples all ranks get together.
func (s Spec) Dealt() int {
	n := 0
	for r := range s.World {
		n += s.RankSamples(r)
	}
	return n
}

// Dropped is how many samples of the subset no rank gets in an epoch (DropLast, Even).
func (s Spec) Dropped() int { return s.Subset - s.Dealt() }
