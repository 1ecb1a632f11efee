// Package journal keeps what must survive: who registered, which sample was promised to whom, what came back, what is
// quarantined.
//
// Append hands a record over, and the log calls back when it is durable; who must not act before waits for that call.
// Who waits for what is decided in internal/coordinator (step.persist, planner.persistOf), and docs/architecture.md has
// the table. Disk keeps records in a state directory; Memory keeps them for as long as the process lives, behind the
// same interface and with the same order of callbacks. The journal decides nothing and reads no clock. Records belong
// to the log once appended; what Order returns belongs to the caller.
package journal

import (
	"context"

	"larder/internal/ident"
)

// Log is an ordered log. Safe for concurrent use.
type Log interface {
	// Append adds a record and returns its number at once, without waiting for anything. done, which may be nil, is
	// called once, from the log's own goroutine and in the order of the numbers, when the record and all before it are
	// durable, or with the error why they never will be: then the daemon must stop. done must not block. The samples of
	// rec are read before Append returns and may be used again. After Close nothing is added: Append returns 0 and done
	// is not called.
	Append(rec Record, done func(error)) uint64
	// Sync waits until everything appended so far is durable and its callbacks have returned.
	Sync(ctx context.Context) error
	// Order returns the batches a job-epoch was promised, in the order of the log, without what was returned; empty
	// when the order is no longer kept. Batches of several ranks stand as they were assigned. The error says that it is
	// kept and cannot be read.
	Order(job ident.JobID, epoch uint32) ([][]ident.ObjectID, error)
	// Room is nil, or says why nothing becomes durable for the time being (DISK_FULL, with what is needed): new
	// work must be refused.
	Room() error
	// Recorded returns what is kept of a job-epoch; nil when nothing is. It may have been begun several times, each
	// with an instance of its own: the newest one of that instance, or with AnyInstance the newest. The error says that
	// it is kept and cannot be read.
	Recorded(job ident.JobID, epoch uint32, instance int64) (*Recorded, error)
	// Epochs lists the epochs of a job of which something is kept, ascending.
	Epochs(job ident.JobID) []uint32
	// ID names the log: two that differ in it have nothing in common.
	ID() uint64
	// Close makes everything durable, runs the pending callbacks, and waits for it; twice is fine.
	Close() error
}
