package rpc

import (
	"context"
	"errors"
	"strings"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"larder/internal/errs"
	"larder/internal/session/wire"
	larderv1 "larder/proto/larder/v1"
)

// Code returns the gRPC status code of a reason.
func Code(r errs.Reason) codes.Code {
	if c, ok := codeOf[r]; ok {
		return c
	}
	return codes.Internal
}

// codeOf gives every reason its status code; a test walks errs.Reasons.
var codeOf = map[errs.Reason]codes.Code{
	errs.Invalid:          codes.InvalidArgument,
	errs.NotFound:         codes.NotFound,
	errs.AlreadyExists:    codes.AlreadyExists,
	errs.RankHeld:         codes.AlreadyExists,
	errs.Stale:            codes.Aborted,
	errs.SubsetSyntax:     codes.InvalidArgument,
	errs.SubsetEmpty:      codes.InvalidArgument,
	errs.DatasetEmpty:     codes.FailedPrecondition,
	errs.DatasetUnread:    codes.FailedPrecondition,
	errs.SampleBad:        codes.DataLoss,
	errs.RecipeInvalid:    codes.InvalidArgument,
	errs.ResourceExceeded: codes.ResourceExhausted,
	errs.JobLimit:         codes.ResourceExhausted,
	errs.DiskFull:         codes.ResourceExhausted,
	errs.RingMemory:       codes.ResourceExhausted,
	errs.ConfigInvalid:    codes.InvalidArgument,
	errs.Unavailable:      codes.Unavailable,
	errs.Stopped:          codes.Unavailable,
	errs.JobEnded:         codes.FailedPrecondition,
	errs.Protocol:         codes.InvalidArgument,
	errs.Unsupported:      codes.Unimplemented,
	errs.StateFailed:      codes.Unavailable,
	errs.StateDamaged:     codes.DataLoss,
	errs.Token:            codes.FailedPrecondition,
	errs.Unauthenticated:  codes.Unauthenticated,
	errs.Denied:           codes.PermissionDenied,
	errs.Internal:         codes.Internal,
}

// reasonOf reads a status that carries no ErrorDetail: one made by gRPC itself.
var reasonOf = map[codes.Code]errs.Reason{
	codes.InvalidArgument: errs.Invalid, codes.OutOfRange: errs.Invalid, codes.FailedPrecondition: errs.Invalid,
	codes.NotFound: errs.NotFound, codes.AlreadyExists: errs.AlreadyExists, codes.Aborted: errs.Stale,
	codes.ResourceExhausted: errs.ResourceExceeded, codes.Unavailable: errs.Unavailable,
	codes.Unimplemented: errs.Unsupported, codes.DataLoss: errs.SampleBad, codes.DeadlineExceeded: errs.Unavailable,
	codes.Canceled: errs.Unavailable, codes.Unauthenticated: errs.Unauthenticated, codes.PermissionDenied: errs.Denied,
}

// maxText bounds each text of an error, for the details travel in HTTP/2 headers, which clients bound too.
const maxText = 1024

// Status turns any error into one that gRPC can carry. nil stays nil, a status stays as it is.
func Status(err error) error {
	if err == nil {
		return nil
	}
	var f *errs.Error
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
		f = errs.From(err)
	}
	code := Code(f.Reason)
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
		reason = errs.Internal
	}
	f := errs.New(reason, "", "the daemon's log says more", "%s", st.Message())
	switch st.Code() {
	case codes.Canceled: // so that errors.Is works across the wire
		f.Message, f.Err = "the call was given up", context.Canceled
	case codes.DeadlineExceeded:
		f.Message, f.Err, f.Hint = "the daemon did not answer in time", context.DeadlineExceeded,
			"try again; larder stats shows what it is doing"
	default:
	}
	return f
}
