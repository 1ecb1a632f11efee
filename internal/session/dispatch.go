package session

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"larder/internal/errs"
	"larder/internal/session/wire"
	larderv1 "larder/proto/larder/v1"
)

// methods is the generated list of unary methods by name; there is no second list.
var methods = func() map[string]grpc.MethodDesc {
	m := make(map[string]grpc.MethodDesc, len(larderv1.LarderService_ServiceDesc.Methods))
	for _, d := range larderv1.LarderService_ServiceDesc.Methods {
		m[d.MethodName] = d
	}
	return m
}()

// call runs one CALL against the handlers that also serve gRPC.
func call(ctx context.Context, svc larderv1.LarderServiceServer, payload []byte) ([]byte, error) {
	name, body, err := wire.ParseCall(payload)
	if err != nil {
		return nil, err
	}
	d, ok := methods[name]
	if !ok {
		return nil, unknownMethod(name)
	}
	res, err := d.Handler(svc, ctx, func(v any) error {
		m, ok := v.(proto.Message)
		if !ok {
			return fmt.Errorf("the request of %s is a %T", name, v)
		}
		return wire.UnmarshalStrict(body, m)
	}, nil)
	if err != nil {
		return nil, toFault(err)
	}
	m, ok := res.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("the answer of %s is a %T", name, res)
	}
	return wire.Marshal(m)
}

func unknownMethod(name string) error {
	if len(name) > 100 {
		name = name[:100] + "…"
	}
	for _, s := range larderv1.LarderService_ServiceDesc.Streams {
		if s.StreamName == name {
			return errs.New(errs.Unsupported, name, "call GetStats again and again, or use gRPC",
				"%s is a stream, which a session does not carry", name)
		}
	}
	names := make([]string, 0, len(methods))
	for _, d := range larderv1.LarderService_ServiceDesc.Methods {
		names = append(names, d.MethodName)
	}
	return errs.New(errs.Unsupported, name, "the methods are "+strings.Join(names, ", "), "there is no method %q", name)
}

// reasons gives a word to a gRPC status that carries no ErrorDetail.
var reasons = map[codes.Code]errs.Reason{
	codes.InvalidArgument: errs.Invalid, codes.OutOfRange: errs.Invalid, codes.FailedPrecondition: errs.Invalid,
	codes.NotFound: errs.NotFound, codes.AlreadyExists: errs.AlreadyExists, codes.ResourceExhausted: errs.ResourceExceeded,
	codes.Unimplemented: errs.Unsupported, codes.Unavailable: errs.Unavailable, codes.DeadlineExceeded: errs.Unavailable,
	codes.Canceled: errs.Unavailable, codes.Aborted: errs.Stale,
}

// toFault finds the *errs.Error in what a handler returned, also when it was dressed for gRPC.
func toFault(err error) error {
	if f, ok := errors.AsType[*errs.Error](err); ok {
		return f
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return errs.New(errs.Unavailable, "", "try again", "the daemon stopped working on the call").Because(err)
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
	if r, ok := reasons[st.Code()]; ok {
		return errs.New(r, "call", "the daemon's log may say more", "%s", st.Message())
	}
	return err
}

func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
