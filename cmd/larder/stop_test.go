package main

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"larder/internal/errs"
)

// TestAwaitEndOverTCP: who speaks TLS is there; who refuses, or closes at once, is not.
func TestAwaitEndOverTCP(t *testing.T) {
	served := httptest.NewTLSServer(http.NotFoundHandler())
	at := served.Listener.Addr().String()
	err := awaitEnd(t.Context(), at, 7, 300*time.Millisecond)
	if !errs.Is(err, errs.Unavailable) || !strings.Contains(err.Error(),
		"process 7 was told to stop, and has not ended after 300ms") {
		t.Errorf("%v", err)
	}
	served.Close()
	if err := awaitEnd(t.Context(), at, 7, time.Minute); err != nil {
		t.Errorf("no process listens: %v", err)
	}

	tunnel, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tunnel.Close()
	go func() {
		for {
			c, err := tunnel.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	if err := awaitEnd(t.Context(), tunnel.Addr().String(), 7, time.Minute); err != nil {
		t.Errorf("no daemon behind the tunnel: %v", err)
	}
}
