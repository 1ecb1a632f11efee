package telemetry

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A page whose name is made to mean this machine reads nothing.
func TestHostsOfOthersAreRefused(t *testing.T) {
	h := NewHandler(HTTPConfig{Stats: sample, Hosts: []string{"Node7", "10.0.0.9"}})
	ask := func(host, path string) (int, string) {
		r := httptest.NewRequest("GET", path, nil)
		r.Host = host
		at := &net.TCPAddr{IP: net.ParseIP("10.0.0.5"), Port: 9464}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r.WithContext(context.WithValue(t.Context(), http.LocalAddrContextKey, at)))
		return w.Code, w.Body.String()
	}
	for _, host := range []string{"localhost", "LOCALHOST:9464", "127.0.0.1", "127.0.0.1:1", "[::1]:9464", "[::1]",
		"node7.", "node7:80", "10.0.0.5:9464", "[::ffff:10.0.0.5]:9464", "10.0.0.9", ""} {
		if code, body := ask(host, "/healthz"); code != 200 || body != "ok\n" {
			t.Errorf("%q: %d %s", host, code, body)
		}
	}
	for _, host := range []string{"evil.example", "evil.example:9464", "10.0.0.6", "node7.evil.example", "127.0.0.1.evil",
		"localhost.evil", "[::2]:9464", "a\"b"} {
		for _, path := range []string{"/", "/metrics", "/healthz", "/readyz", "/debug/vars", "/none"} {
			if code, body := ask(host, path); code != 421 || !strings.Contains(body, "http_hosts") {
				t.Errorf("%q %s: %d %.100s", host, path, code, body)
			}
		}
	}
}

// The host of the configured address is its own.
func TestTheConfiguredHostIsAnswered(t *testing.T) {
	s, err := ListenHTTP("localhost:0", HTTPConfig{Stats: sample, Hosts: []string{"listed"}})
	if err != nil {
		t.Fatal(err)
	}
	c := &http.Client{Transport: &http.Transport{}}
	defer c.CloseIdleConnections()
	for host, want := range map[string]int{"": 200, "localhost": 200, "listed": 200, "evil.example": 421} {
		r, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+s.Addr()+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = host
		got, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = got.Body.Close()
		if got.StatusCode != want {
			t.Errorf("%q: %d", host, got.StatusCode)
		}
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
