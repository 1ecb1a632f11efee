package rpc

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"larder/internal/errs"
	"larder/internal/invariant"
	larderv1 "larder/proto/larder/v1"
)

// Limits of every server. The control plane carries no bulk data: a message of more than 4 MiB is a mistake.
const (
	maxMessage     = 4 << 20
	maxHeaders     = 64 << 10
	maxStreams     = 64 // per connection
	connectTimeout = 10 * time.Second
	minPing        = 10 * time.Second // a client that pings more often is cut off
	idlePing       = time.Minute      // then we ask whether the peer is still there
	pingTimeout    = 20 * time.Second
	workers        = 0 // one goroutine per stream: calls are few
)

// Bounds of WatchStats.
const (
	MinWatch     = 100 * time.Millisecond
	DefaultWatch = time.Second
	maxWatch     = time.Hour
)

// Config of a server. Engine must be set.
type Config struct {
	Engine Engine
	Log    *slog.Logger                     // default: nothing is logged
	Creds  credentials.TransportCredentials // TLS; nil on the Unix socket, where the kernel vouches for the peer
	Tokens *Tokens                          // who may call; nil on the Unix socket, and where certificates say it
	// default: one that always says SERVING; give one to say otherwise while draining
	Health *health.Server
	Done   <-chan struct{} // closed when the daemon stops: ends WatchStats, so that GracefulStop can end
}

// NewServer returns a gRPC server with larder.v1, health and reflection registered, ready for Serve.
func NewServer(cfg Config) *grpc.Server {
	if cfg.Engine == nil {
		invariant.Violated("rpc: a server needs an Engine")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	unary := []grpc.UnaryServerInterceptor{statusUnary, knownUnary}
	stream := []grpc.StreamServerInterceptor{statusStream, knownStream}
	if cfg.Tokens != nil {
		unary, stream = append(unary, cfg.Tokens.unary), append(stream, cfg.Tokens.stream)
	}
	opts := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage), grpc.MaxHeaderListSize(maxHeaders),
		grpc.MaxConcurrentStreams(maxStreams), grpc.ConnectionTimeout(connectTimeout), grpc.NumStreamWorkers(workers),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: idlePing, Timeout: pingTimeout}),
		grpc.ChainUnaryInterceptor(append(unary, Recover(cfg.Log))...),
		grpc.ChainStreamInterceptor(append(stream, recoverStream(cfg.Log))...),
		grpc.WaitForHandlers(true),
	}
	if cfg.Creds != nil {
		opts = append(opts, grpc.Creds(cfg.Creds))
	}
	s := grpc.NewServer(opts...)
	larderv1.RegisterLarderServiceServer(s, &service{Engine: cfg.Engine, done: cfg.Done})
	h := cfg.Health
	if h == nil {
		h = health.NewServer()
	}
	h.SetServingStatus(larderv1.LarderService_ServiceDesc.ServiceName, healthv1.HealthCheckResponse_SERVING)
	healthv1.RegisterHealthServer(s, h)
	reflection.Register(s)
	return s
}

// Service returns the handlers of an engine for callers other than gRPC: the local session dispatches to the same ones.
// Errors are the engine's own; a panic becomes an INTERNAL error, as over gRPC.
func Service(e Engine, log *slog.Logger) larderv1.LarderServiceServer {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &service{Engine: guard{e, log}}
}

// later lies one level deeper than Engine in service, so that the engine's methods win over its refusals.
type later struct {
	larderv1.UnimplementedLarderServiceServer
}

type service struct {
	Engine
	later
	done <-chan struct{}
}

var _ larderv1.LarderServiceServer = (*service)(nil)

// WatchStats sends the counters at once and then at every interval, until the client or the daemon goes.
func (s *service) WatchStats(req *larderv1.WatchStatsRequest,
	out grpc.ServerStreamingServer[larderv1.WatchStatsResponse]) error {
	every := DefaultWatch
	if d := req.GetInterval(); d != nil {
		if err := d.CheckValid(); err != nil {
			return errs.New(errs.Invalid, "interval", "give it as 1s", "watch the counters").Because(err)
		}
		every = d.AsDuration()
	}
	if every < MinWatch || every > maxWatch {
		return errs.New(errs.Invalid, "interval", fmt.Sprintf("choose from %v to %v; %v is usual", MinWatch, maxWatch,
			DefaultWatch),
			"watch the counters every %v", every)
	}
	tick := time.NewTicker(every) // a client that reads slowly misses ticks, it gets no backlog
	defer tick.Stop()
	for {
		res, err := s.GetStats(out.Context(), &larderv1.GetStatsRequest{})
		if err != nil {
			return err
		}
		if err := out.Send(&larderv1.WatchStatsResponse{Stats: res.GetStats()}); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-s.done: // nil: never
			return errs.New(errs.Unavailable, "", "start it again: larder serve", "the daemon is stopping")
		case <-out.Context().Done():
			return out.Context().Err()
		}
	}
}

func statusUnary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	res, err := next(ctx, req)
	return res, Status(err)
}

func statusStream(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	return Status(next(srv, ss))
}

// caught turns a panic into an error for this one caller: one bad request must not end every job's daemon. The stack
// goes to the log. A violated invariant inside the coordinator runs in its own goroutine and still ends the process.
func caught(log *slog.Logger, method string, r any) error {
	log.Error("a handler panicked; this is a bug of larder", "method", method, "panic", r, "stack", string(debug.Stack()))
	return errs.New(errs.Internal, method, "this is a bug of larder; the daemon's log has the stack, please report it",
		"%s could not continue: %v", method, r)
}

// Recover is the interceptor that keeps a panicking handler from ending the daemon.
func Recover(log *slog.Logger) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (res any, err error) {
		defer func() {
			if r := recover(); r != nil {
				res, err = nil, caught(log, info.FullMethod, r)
			}
		}()
		return next(ctx, req)
	}
}

func recoverStream(log *slog.Logger) grpc.StreamServerInterceptor {
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
		defer func() {
			if r := recover(); r != nil {
				err = caught(log, info.FullMethod, r)
			}
		}()
		return next(srv, ss)
	}
}
