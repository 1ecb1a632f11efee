// Package errs is the one shape of an error a user can see: what was attempted, what is wrong, and the fix.
//
// It travels unchanged through gRPC (status details), the local session (ERROR frames) and Python (larder.Error).
// Errors that no user can act on stay ordinary wrapped errors until the edge turns them into Internal.
package errs

import (
	"errors"
	"fmt"
	"time"
)

// Reason is a stable word that programs may test; docs/errors.md lists every one.
type Reason string

// The reasons. A test walks them all to a gRPC code, an exit code and a line in docs/errors.md.
const (
	Invalid          Reason = "INVALID_ARGUMENT"   // a value that can never work
	NotFound         Reason = "NOT_FOUND"          // no such job, dataset, sample
	AlreadyExists    Reason = "ALREADY_EXISTS"     // the name is taken by something different
	RankHeld         Reason = "RANK_HELD"          // a live client holds this (job, rank)
	Stale            Reason = "STALE"              // an older incarnation, or a slot that was taken back
	SubsetSyntax     Reason = "SUBSET_SYNTAX"      // the subset expression does not parse
	SubsetEmpty      Reason = "SUBSET_EMPTY"       // the subset selects nothing, or less than one batch
	DatasetEmpty     Reason = "DATASET_EMPTY"      // the folder holds no samples
	DatasetUnread    Reason = "DATASET_UNREADABLE" // the folder or file cannot be read
	SampleBad        Reason = "SAMPLE_BAD"         // a sample cannot be decoded
	RecipeInvalid    Reason = "RECIPE_INVALID"     // unknown op or argument, or a combination that cannot work
	ResourceExceeded Reason = "RESOURCE_EXCEEDED"  // a size that exceeds a limit; both numbers are in the message
	JobLimit         Reason = "JOB_LIMIT"          // as many jobs live as may
	DiskFull         Reason = "DISK_FULL"          // the disk of the state directory has no room
	RingMemory       Reason = "RING_MEMORY"        // rings do not fit; both numbers are in the message
	ConfigInvalid    Reason = "CONFIG_INVALID"     // the configuration file or a flag
	Unavailable      Reason = "UNAVAILABLE"        // the daemon is draining, gone, or not reachable
	// Stopped says that a user stopped the daemon on purpose: no client starts another one by itself.
	Stopped     Reason = "STOPPED"
	JobEnded    Reason = "JOB_ENDED"    // the job was killed, drained or has finished
	Protocol    Reason = "PROTOCOL"     // a frame or message that breaks the protocol
	Unsupported Reason = "UNSUPPORTED"  // reserved for later
	StateFailed Reason = "STATE_FAILED" // the state directory cannot be written: the daemon stops
	// StateDamaged says that the state directory does not hold what larder wrote; file and offset are in the message.
	StateDamaged Reason = "STATE_DAMAGED"
	// Token is a state_dict that cannot be resumed from: edited, of another dataset or log, or no longer kept.
	Token           Reason = "TOKEN_INVALID"
	Unauthenticated Reason = "UNAUTHENTICATED"   // who asks over TCP has no token, or a wrong one
	Denied          Reason = "PERMISSION_DENIED" // who asks may not do that
	Internal        Reason = "INTERNAL"          // a bug of larder, or the machine failed
)

// Reasons lists every reason, for tests and docs.
var Reasons = []Reason{
	Invalid, NotFound, AlreadyExists, RankHeld, Stale, SubsetSyntax, SubsetEmpty, DatasetEmpty, DatasetUnread, SampleBad,
	RecipeInvalid, ResourceExceeded, JobLimit, DiskFull, RingMemory, ConfigInvalid, Unavailable, Stopped, JobEnded,
	Protocol, Unsupported, StateFailed, StateDamaged, Token, Unauthenticated, Denied, Internal,
}

// Error is an error for people and programs.
type Error struct {
	Reason     Reason
	Subject    string        // what it is about: a job, a path, a key of the configuration
	Message    string        // what was attempted and what is wrong
	Hint       string        // what to do
	RetryAfter time.Duration // when trying again can help, else 0
	Err        error         // cause, may be nil
}

// New returns an error without a cause; the message is formatted. Because adds the cause.
func New(reason Reason, subject, hint, format string, args ...any) *Error {
	return &Error{Reason: reason, Subject: subject, Hint: hint, Message: fmt.Sprintf(format, args...)}
}

// Because adds a cause to e and returns e. Error prints it after the message, and errors.Is and errors.As find it. A
// nil cause changes nothing. A second cause does not replace the first: both are kept.
func (e *Error) Because(cause error) *Error {
	switch {
	case cause == nil:
	case e.Err == nil:
		e.Err = cause
	default:
		e.Err = fmt.Errorf("%w; %w", e.Err, cause)
	}
	return e
}

// Error prints message, cause and hint on one line.
func (e *Error) Error() string {
	s := e.Message
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	if e.Hint != "" {
		s += " (" + e.Hint + ")"
	}
	return s
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// From finds the Error in a chain, or makes an Internal one.
func From(err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return &Error{Reason: Internal, Message: "the daemon could not continue", Err: err,
		Hint: "this is a bug of larder or a failure of the machine; the daemon's log has more"}
}

// Is reports whether the chain holds an Error of that reason.
func Is(err error, reason Reason) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Reason == reason
}
