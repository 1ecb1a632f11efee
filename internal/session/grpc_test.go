package session_test

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"larder/client"
	"larder/internal/session"
	"larder/internal/session/sessiontest"
	larderv1 "larder/proto/larder/v1"
)

// TestOneSocket: gRPC and sessions at once on one socket, answered by the same handlers.
func TestOneSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := session.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	gl, sl := session.Mux(l)
	g := grpc.NewServer()
	larderv1.RegisterLarderServiceServer(g, service{})
	s := session.NewServer(session.Config{Engine: sessiontest.New(nil), Service: service{}})
	served := make(chan error, 2)
	go func() { served <- g.Serve(gl) }()
	go func() { served <- s.Serve(sl) }()

	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			cc, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Error(err)
				return
			}
			defer cc.Close()
			// The handler refuses without a peer in its context, which only a session sets: the message says that it was
			// reached.
			if _, err := larderv1.NewLarderServiceClient(cc).GetStats(t.Context(), &larderv1.GetStatsRequest{}); err == nil ||
				status.Code(err) != codes.Unknown {
				t.Errorf("gRPC: %v", err)
			}
		})
		wg.Go(func() {
			c, err := client.Dial(t.Context(), path)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			res := new(larderv1.GetStatsResponse)
			if err := c.Call(t.Context(), "GetStats", &larderv1.GetStatsRequest{}, res); err != nil ||
				res.GetStats().GetPid() != int32(os.Getpid()) {
				t.Errorf("session: %v %v", res, err)
			}
		})
	}
	wg.Wait()
	g.GracefulStop() // closes its half only
	c, err := client.Dial(t.Context(), path)
	if err != nil {
		t.Fatalf("sessions after the end of gRPC: %v", err)
	}
	_ = c.Close()
	if err := errors.Join(s.Close(), <-served, <-served); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}
