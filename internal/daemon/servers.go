package daemon

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"

	"larder/internal/engine"
	"larder/internal/rpc"
	"larder/internal/session"
	"larder/internal/telemetry"
)

// servers answer clients.
type servers struct {
	sessions   *session.Server
	grpc       []*grpc.Server // for the Unix socket, and for TCP where there is a listener
	health     *health.Server
	streamsEnd chan struct{}         // closed when gRPC streams must end
	http       *telemetry.HTTPServer // nil = the metrics are off
}

func newServers() servers {
	return servers{health: health.NewServer(), streamsEnd: make(chan struct{})}
}

// addGRPC adds a gRPC server for callers that have access.
func (s *servers) addGRPC(e *engine.Engine, log *slog.Logger, access tcpAccess) {
	s.grpc = append(s.grpc, rpc.NewServer(rpc.Config{
		Engine: e, Log: log, Health: s.health, Done: s.streamsEnd, Creds: access.creds, Tokens: access.tokens,
	}))
}

// httpAddr is the address of the metrics, "" when they are off.
func (s *servers) httpAddr() string {
	if s.http == nil {
		return ""
	}
	return s.http.Addr()
}

// close ends the sessions, gRPC and HTTP.
func (s *servers) close() (problems []error) {
	close(s.streamsEnd)
	if s.sessions != nil {
		problems = append(problems, s.sessions.Close())
	}
	for _, g := range s.grpc {
		stopGracefully(g, time.Second)
	}
	if s.http != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		if err := s.http.Close(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			problems = append(problems, err)
		}
		cancel()
	}
	return problems
}

// stopGracefully lets running calls end, but for at most limit.
func stopGracefully(s *grpc.Server, limit time.Duration) {
	done := make(chan struct{})
	go func() { s.GracefulStop(); close(done) }()
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
		s.Stop()
		<-done
	}
}
