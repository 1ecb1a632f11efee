package rpc

import (
	"context"
	"errors"
	"strings"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"larder/internal/fault"
	"larder/internal/session/wire"
	larderv1 "larder/proto/larder/v1"
)

// codeOf gives every reason its status code; a test walks fault.Reasons.
var codeOf = map[fault.Reason]codes.Code{
	fault.Invalid:          codes.InvalidArgument,
	fault.NotFound:         codes.NotFound,
	fault.AlreadyExists:    codes.AlreadyExists,
	fault.RankHeld:         codes.AlreadyExists,
	fault.Stale:            codes.Aborted,
	fault.SubsetSyntax:     codes.InvalidArgument,
	fault.SubsetEmpty:      codes.InvalidArgument,
	fault.DatasetEmpty:     codes.FailedPrecondition,
	fault.DatasetUnread:    codes.FailedPrecondition,
	fault.SampleBad:        codes.DataLoss,
	fault.RecipeInvalid:    codes.InvalidArgument,
	fault.ResourceExceeded: codes.ResourceExhausted,
	fault.ConfigInvalid:    codes.InvalidArgument,
	fault.Unavailable:      codes.Unavailable,
	fault.Stopped:          codes.Unavailable,
	fault.JobEnded:         codes.FailedPrecondition,
	fault.Protocol:         codes.InvalidArgument,
	fault.Unsupported:      codes.Unimplemented,
	fault.StateFailed:      codes.Unavailable,
	fault.StateDamaged:     codes.DataLoss,
	fault.Token:            codes.FailedPrecondition,
	fault.Unauthenticated:  codes.Unauthenticated,
	fault.Denied:           codes.PermissionDenied,
	fault.Internal:         codes.Internal,
}

// reasonOf reads a status that carries no ErrorDetail: one made by gRPC itself.
var reasonOf = map[codes.Code]fault.Reason{
	codes.InvalidArgument: fault.Invalid, codes.OutOfRange: fault.Invalid, codes.FailedPrecondition: fault.Invalid,
	codes.NotFound: fault.NotFound, codes.AlreadyExists: fault.AlreadyExists, codes.Aborted: fault.Stale,
	codes.ResourceExhausted: fault.ResourceExceeded, codes.Unavailable: fault.Unavailable,
	codes.Unimplemented: fault.Unsupported, codes.DataLoss: fault.SampleBad, codes.DeadlineExceeded: fault.Unavailable,
	codes.Canceled: fault.Unavailable, codes.Unauthenticated: fault.Unauthenticated, codes.PermissionDenied: fault.Denied,
}

// maxText bounds each text of an error, for the details travel in HTTP/2 headers, which clients bound too.
const maxText = 1024

// Status turns any error into one that gRPC can carry. nil stays nil, a status stays as it is.
func Status(err error) error {
	if err == nil {
		return nil
	}
	var f *fault.Error
	if !errors.As(err, &f) {
		if _, ok := status.FromError(err); ok {
			return err
		}
		switch {
		case errors.Is(err, context.Canceled):
			return status.Error(codes.Canceled, clean(err.Error()))
		case errors.Is(err, context.DeadlineExceeded):
			return status.Error(codes.DeadlineExceeded, clean(err.Error()))
		}
		f = fault.From(err)
	}
	code, ok := codeOf[f.Reason]
	if !ok {
		code = codes.Internal
	}
	d := wire.Detail(f)
	d.Reason, d.Subject, d.Message, d.Hint = clean(d.Reason), clean(d.Subject), clean(d.Message), clean(d.Hint)
	st := status.New(code, clean(f.Error()))
	if with, err := st.WithDetails(d); err == nil {
		st = with
	}
	return st.Err()
}

// clean makes text that protobuf takes, of bounded length: file names need not be UTF-8.
func clean(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= maxText {
		return s
	}
	cut := maxText
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

// Fault is Status backwards: what a client shows and tests. A status without details (one of gRPC's own) gets the
// reason nearest to its code. Errors that are no status are returned as they are.
func Fault(err error) error {
	if err == nil {
		return nil
	}
	st, ok := status.FromError(err)
	if !ok {
		return err
	}
	for _, d := range st.Details() {
		if e, ok := d.(*larderv1.ErrorDetail); ok {
			return wire.Fault(e)
		}
	}
	reason, ok := reasonOf[st.Code()]
	if !ok {
		reason = fault.Internal
	}
	f := fault.New(reason, "", "the daemon's log says more", "%s", st.Message())
	switch st.Code() {
	case codes.Canceled: // so that errors.Is works across the wire
		f.Message, f.Err = "the call was given up", context.Canceled
	case codes.DeadlineExceeded:
		f.Message, f.Err, f.Hint = "the daemon did not answer in time", context.DeadlineExceeded, "try again; larder stats shows what it is doing"
	default:
	}
	return f
}
