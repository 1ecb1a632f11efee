package jobs

import (
	"fmt"

	"larder/internal/bits"
	"larder/internal/ident"
)

// EpochState is where a job-epoch is.
type EpochState uint8

// A job-epoch runs until everything is accounted for, or until the client leaves it; Violated is a bug of larder.
const (
	Running EpochState = iota
	Complete
	Abandoned
	Violated
)

// String returns the word of the wire contract.
func (s EpochState) String() string {
	return [...]string{"running", "complete", "abandoned", "violated"}[s]
}

// Ledger is the account of one job-epoch. It is the online check of guarantee G1: it knows the subset and what was
// committed independently of the sampler, so a sampler that repeats or invents a sample is caught at the pick.
type Ledger struct {
	Epoch       uint32
	Subset      int
	Delivered   int
	Quarantined int // with those that were removed
	Removed     int // of the quarantined: from the dataset, while the epoch ran
	Dropped     int // by drop_last and even; while running, the most that may be
	Ranks       int // that were sent its end
	State       EpochState
	// Stream: the client says which samples come, so a sample may come many times, and Subset counts what was picked.
	Stream bool

	// Of jobs whose ranks are in step (Spec.InStep): steps that were decided, those of which that is durable, and samples
	// of skipped steps, which went back to the epoch and may be dropped, too.
	Dealing, Dealt, GivenUp int

	member    *bits.Set // the subset; shared, not modified
	committed *bits.Set
	picked    int // of a stream, in place of committed
}

// NewLedger opens the account of an epoch over the subset's members.
func NewLedger(epoch uint32, member *bits.Set, dropped int) *Ledger {
	return &Ledger{Epoch: epoch, Subset: member.Len(), Dropped: dropped, member: member, committed: new(bits.Set)}
}

// NewStreamLedger opens the account of an epoch of an index stream, over the members that it may name.
func NewStreamLedger(epoch uint32, member *bits.Set) *Ledger {
	return &Ledger{Epoch: epoch, Stream: true, member: member, committed: new(bits.Set)}
}

// Commit enters a pick. The error is a violation of exactly-once and marks the epoch.
func (l *Ledger) Commit(x ident.ObjectID) error {
	if l.committed == nil {
		return fmt.Errorf("epoch %d: object %d was picked after its account was %s", l.Epoch, x, l.State)
	}
	if l.Stream {
		l.picked++
		l.Subset = l.picked
		return nil
	}
	if !l.member.Has(uint32(x)) {
		l.State = Violated
		return fmt.Errorf("epoch %d: object %d was picked but is not in the subset", l.Epoch, x)
	}
	if !l.committed.Add(uint32(x)) {
		l.State = Violated
		return fmt.Errorf("epoch %d: object %d was picked twice", l.Epoch, x)
	}
	return nil
}

// CommitAll enters picks, in order, all that Commit does not refuse. The error is the first one.
func (l *Ledger) CommitAll(picks []ident.ObjectID) error {
	if l.committed != nil && !l.Stream && bits.AddNew(l.committed, l.member, picks) {
		return nil
	}
	var first error
	for _, x := range picks { // one of them is refused
		if err := l.Commit(x); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// Return takes back a pick that was never delivered.
func (l *Ledger) Return(x ident.ObjectID) error {
	if l.committed == nil {
		return fmt.Errorf("epoch %d: object %d was returned after its account was %s", l.Epoch, x, l.State)
	}
	if l.Stream && l.picked > 0 {
		l.picked--
		l.Subset = l.picked
		return nil
	}
	if !l.committed.Remove(uint32(x)) {
		l.State = Violated
		return fmt.Errorf("epoch %d: object %d was returned but not picked", l.Epoch, x)
	}
	return nil
}

// Deliver counts rows that left in a batch, and the samples that it had to leave out.
func (l *Ledger) Deliver(rows int, bad []Bad) {
	l.Delivered += rows
	l.Quarantined += len(bad)
	for i := range bad {
		if bad[i].Kind == SampleRemoved {
			l.Removed++
		}
	}
}

// Close ends the account when every rank has got its last batch. What was never picked counts as dropped; more of it
// than the spec drops, or a pick that neither left nor was quarantined, is a violation and comes back as error.
func (l *Ledger) Close() error {
	if l.State != Running {
		return nil
	}
	picked := l.Committed()
	if l.Subset-picked > l.Dropped+l.GivenUp || l.Delivered+l.Quarantined != picked {
		l.State = Violated
		return fmt.Errorf("epoch %d: of a subset of %d, %d were picked, %d delivered and %d quarantined, "+
			"and only %d may be dropped",
			l.Epoch, l.Subset, picked, l.Delivered, l.Quarantined, l.Dropped+l.GivenUp)
	}
	l.Dropped = l.Subset - picked // substitutes may have used what drop_last would have dropped
	l.State = Complete
	l.committed = nil // the account is settled; the order log holds the order
	return nil
}

// Abandon ends the account early.
func (l *Ledger) Abandon() {
	if l.State == Running {
		l.State = Abandoned
		l.committed = nil
	}
}

// Copy returns the account without the sets behind it, to be read elsewhere while the account stays open.
func (l *Ledger) Copy() *Ledger {
	c := *l
	c.member, c.committed = nil, nil
	return &c
}

// Committed counts picks that were not returned, while the account is open; 0 afterwards.
func (l *Ledger) Committed() int {
	if l.committed == nil {
		return 0
	}
	if l.Stream {
		return l.picked
	}
	return l.committed.Len()
}

// Open reports whether picks may still be entered or returned.
func (l *Ledger) Open() bool { return l.State == Running }
