// Package journal keeps what must survive: who registered, which sample was promised to whom, what came back, what is
// quarantined.
//
// A record is durable before anyone acts on it: Append hands it over and the log calls back when it is safe. This log
// is in memory (Memory); one on disk will stand behind the same interface, with the same order of callbacks. It decides
// nothing and reads no clock. Records belong to the log once appended; what Order returns belongs to the caller.
package journal

import (
	"context"

	"larder/internal/ident"
)

// Kind says what a record is about.
type Kind uint8

// The kinds of records.
const (
	Registered    Kind = iota + 1 // a job: Text is its spec
	Attached                      // a rank was taken: Incarnation
	EpochStarted                  // once per job-epoch, by whichever rank came first; starts its order anew. Step is its instance; Text is Rest when it has what another job left
	Assigned                      // Objects are promised to (Rank, Step) of Epoch, in this order; Rank Earlier: a job before this one had them
	spare                         // was reserved for batches that were given back. Nothing writes it: who knows what was used is the client
	Returned                      // Objects of (Rank, Step) were never delivered; none = the whole batch
	Quarantined                   // Objects cannot be prepared: Text says why
	EpochEnded                    // Text is its account
	Ended                         // of a job: Text says why
	Indexed                       // a dataset: Text is its uri and fingerprint
	SubsetChanged                 // of a job, from Epoch on; Step is which of its subsets that is
	Paused                        // of a job
	Resumed                       // of a job
	Dealt                         // Step of Epoch was decided for all ranks: Objects are in none of its batches any more, Text counts all of that epoch
	numKinds
)

var kindNames = [numKinds]string{"", "registered", "attached", "epoch-started", "assigned", "spare", "returned",
	"quarantined", "epoch-ended", "ended", "indexed", "subset-changed", "paused", "resumed", "dealt"}

// String returns the word used in logs.
func (k Kind) String() string {
	if k == 0 || k >= numKinds {
		return "unknown"
	}
	return kindNames[k]
}

// Record is one thing that happened. Fields that a kind does not name are zero.
type Record struct {
	Seq         uint64 // given by the log, from 1
	Term        uint64 // of the daemon: how often its state was opened
	Kind        Kind
	Job         ident.JobID
	Rank        uint32
	Incarnation ident.Incarnation // of the rank
	Epoch, Step uint32
	Objects     []ident.ObjectID
	Text        string
}

// Log is an ordered log. Safe for concurrent use.
type Log interface {
	// Append adds a record and returns its number at once, without waiting for anything. done, which may be nil, is
	// called once, from the log's own goroutine and in the order of the numbers, when the record and all before it are
	// durable, or with the error why they never will be: then the daemon must stop. done must not block.
	// Objects is read before Append returns and may be used again. After Close nothing is added: Append returns 0 and
	// done is not called.
	Append(rec Record, done func(error)) uint64
	// Sync waits until everything appended so far is durable and its callbacks have returned.
	Sync(ctx context.Context) error
	// Order returns the batches a job-epoch was promised, in the order of the log, without what was returned; empty
	// when the order is no longer kept. Batches of several ranks stand as they were assigned. The error says that it is kept
	// and cannot be read.
	Order(job ident.JobID, epoch uint32) ([][]ident.ObjectID, error)
	// Room is nil, or says why nothing becomes durable for the time being (RESOURCE_EXCEEDED, with what is needed): new work is to be refused.
	Room() error
	// Recorded returns what is kept of a job-epoch; nil when nothing is. It may have been begun several times, each with an instance of its own: the
	// newest one of that instance, or with AnyInstance the newest. The error says that it is kept and cannot be read.
	Recorded(job ident.JobID, epoch uint32, instance int64) (*Recorded, error)
	// Epochs lists the epochs of a job of which something is kept, ascending.
	Epochs(job ident.JobID) []uint32
	// ID names the log: two that differ in it have nothing in common.
	ID() uint64
	// Close makes everything durable, calls what is to be called, and waits for it; twice is fine.
	Close() error
}
