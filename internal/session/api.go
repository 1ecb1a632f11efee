// Package session is the daemon's end of the local session (docs/protocol.md): it accepts training processes on a Unix
// socket, answers their calls, and carries batches, as places in shared memory, from the engine to them.
//
// It decides nothing about jobs and never touches the bytes of a batch. The Engine owns attachments and their rings; a
// session owns its connection and at most one attachment, which it closes exactly once, however the peer ends. Nothing
// a peer sends, or does not send or read, costs any other session anything.
package session

import (
	"context"
	"time"

	"larder/internal/session/wire"
	"larder/internal/shm"
	larderv1 "larder/proto/larder/v1"
)

// ABI is the version of the session this daemon speaks.
const ABI = wire.ABI

// Batch is a filled slot on its way to the client that leases it.
type Batch struct {
	Segment    uint32
	NewSegment *shm.Segment // not nil: the slot got a memory of its own; it is announced (SEGMENT) before the batch
	Slot       uint32
	Gen        uint64
	Offset     uint64 // of the slot's first byte in the segment
	Epoch      uint32
	Step       uint32
	Rank       uint32
	Rows       uint32
	Report     *larderv1.BatchReport // nil: nothing to say; not to be changed afterwards
}

// Sink takes what the engine has for one client. No method blocks or fails; frames leave in the order of the calls.
// When the peer is gone, or the attachment ended, calls do nothing. Safe for concurrent use.
//
// A sink may be used before Attach has returned: what it is given waits until the client has the ring.
type Sink interface {
	// Batch leases a slot to the client. The sink takes its own reference to NewSegment, the caller keeps its own.
	Batch(Batch)
	// EpochEnd follows the last batch of an epoch.
	EpochEnd(*larderv1.EpochEnd)
	// Gone ends the attachment from the daemon's side, with the reason for the client; nothing follows it. Close is
	// still called.
	Gone(error)
}

// Attachment is a client's hold on one rank of a job. StartEpoch and Close are called by one goroutine, Picks,
// Release and Collect by another one, never after Close has begun.
type Attachment interface {
	// Info is what RING sends to the client. It does not change.
	Info() *larderv1.AttachResponse
	// Segment is the ring. It stays valid until Close returns.
	Segment() *shm.Segment
	// StartEpoch starts an epoch; batches may reach the sink before it returns. It may block until ctx ends. Epochs of one
	// attachment only go up. from is 0, or 1 + the step to continue at after a restart of the daemon. The answer goes to
	// the client; nil = nothing to say.
	StartEpoch(ctx context.Context, epoch, from uint32) (*larderv1.EpochResponse, error)
	// Picks says which samples come next, of a job of order given; called like Release. An error ends the session.
	Picks(ctx context.Context, f wire.PicksFrame) error
	// Release returns a slot. A generation that is not the slot's, or a slot that does not exist, must be ignored.
	// waited is how long the client's next() waited for that batch. Must not block.
	Release(slot uint32, gen uint64, waited time.Duration)
	// Collect looks for slots that the client has given back in memory. Called like Release, whenever the client sends
	// anything else.
	Collect()
	// Close ends the hold, once: clean when the client said goodbye (DETACH), not clean when it vanished. The sink
	// takes nothing more. Must not wait for other sessions.
	Close(clean bool)
}

// Hand takes what the engine has for a worker. No method blocks or fails. When the peer is gone calls do nothing. Safe
// for concurrent use.
type Hand interface {
	// Give sends tasks, and says which records of the worker's memory, by their offsets, were taken over or refused. Both
	// stay the caller's.
	Give(freed []uint64, tasks []wire.TaskFrame)
	// Gone ends the session, with the reason.
	Gone(error)
}

// Worker is the engine's end of a worker process. Its methods are called by one goroutine.
type Worker interface {
	Info() wire.WorkResult
	// Input is the memory for inputs of tasks. It stays valid until Close.
	Input() *shm.Segment
	Start()
	// Done and Failed answer a task. An error is a breach of the protocol, which ends the session.
	Done(wire.DoneFrame) error
	Failed(task uint64, f wire.Failure) error
	// Dones answers several tasks as Done does.
	Dones(wire.DonesFrame) error
	// Settle follows one or more of them, when no other one of the worker has arrived: what it is to have leaves now.
	Settle()
	// Grow replaces the worker's memory for later records. It takes the memory over.
	Grow(*shm.Segment)
	// Words is the memory in which the worker says why it ends. It takes the memory over.
	Words(*shm.Segment)
	// Close ends the worker, once: clean when it said goodbye (DETACH).
	Close(clean bool)
}

// Crew takes worker processes of clients.
type Crew interface {
	// Work takes a worker. memory is what it writes records into; the Crew takes it over, also when it fails. Nothing is
	// handed to out before Start.
	Work(ctx context.Context, req *wire.WorkRequest, peer shm.Peer, memory *shm.Segment, out Hand) (Worker, error)
	// MaxMemory is the most bytes that the memory of a worker may have.
	MaxMemory() int64
}

// Engine is what sessions speak for.
type Engine interface {
	// Attach binds a client to a rank. It may block until ctx ends, which it does when the client vanishes. The sink
	// belongs to the attachment and is dead when Attach fails.
	Attach(ctx context.Context, req *larderv1.AttachRequest, peer shm.Peer, out Sink) (Attachment, error)
	// Hello describes the daemon. The session fills in abi and pid when they are zero.
	Hello(*larderv1.HelloRequest) *larderv1.HelloResponse
}

// PeerFrom returns the process whose CALL the context belongs to.
func PeerFrom(ctx context.Context) (shm.Peer, bool) {
	return shm.PeerFrom(ctx)
}

// DefaultSocket is LARDER_SOCKET, else $XDG_RUNTIME_DIR/larder/larder.sock, else /tmp/larder-UID/larder.sock.
func DefaultSocket() string { return wire.DefaultSocket() }

// UserSocket is DefaultSocket of a user who has not set LARDER_SOCKET.
func UserSocket() string { return wire.UserSocket() }
