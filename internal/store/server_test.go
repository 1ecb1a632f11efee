package store

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"

	"larder/internal/clock/stepped"
	"larder/internal/testenv"
)

// faultyProxy stands before a server: every fifth GET that passes gets a fault.
func faultyProxy(target *url.URL, load *proxyLoad) *httptest.Server {
	var n atomic.Int64
	reverse := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.Out.URL.Scheme, r.Out.URL.Host = target.Scheme, target.Host
		r.Out.Host = r.In.Host
	}}
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		load.busy.Add(1)
		defer load.busy.Add(-1)
		k := n.Add(1)
		if r.Method == http.MethodGet && k%5 == 0 {
			load.faults.Add(1)
			switch k / 5 % 4 {
			case 0:
				xmlError(w, http.StatusServiceUnavailable, "SlowDown")
			case 1:
				http.Error(w, "bad gateway", http.StatusBadGateway)
			case 2:
				cutAfter(w, r, reverse, 700)
			case 3:
				load.stalled.Add(1) // no answer
				<-r.Context().Done()
				load.stalled.Add(-1)
			}
			return
		}
		reverse.ServeHTTP(w, r)
	}))
}

// proxyLoad is what a faulty proxy is at.
type proxyLoad struct{ faults, busy, stalled atomic.Int64 }

// until runs f beside the clock, which is stepped while the proxy is at no request that it will answer. A step may hit
// a request that is on its way: it is tried again.
func (l *proxyLoad) until(t *testing.T, what string, clock *stepped.Clock, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	testenv.Eventually(t, what, func() bool {
		select {
		case <-done:
			return true
		default:
		}
		if l.busy.Load() == l.stalled.Load() {
			clock.Advance(time.Second)
		}
		return false
	})
}

// TestARealServer reads from versitygw with If-Match, through a proxy that cuts, stalls and refuses a part of all
// answers: every byte is right, lists hold every key once, and an object that was written again is an error.
func TestARealServer(t *testing.T) {
	srv := testenv.StartS3(t, "data")
	noKeys(t)
	t.Setenv("AWS_ACCESS_KEY_ID", srv.AccessKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", srv.SecretKey)
	target, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	var load proxyLoad
	proxy := faultyProxy(target, &load)
	defer proxy.Close()
	// Signatures hold the name of the host, so the server must be asked under the proxy's.
	clock := stepped.New(time.Unix(1e9, 0))
	set := quickly(proxy.URL).with(func(s *Settings) { s.RetryFor, s.Parallel = 1000*time.Hour, 16 })
	s, _ := openS3At(t, set, clock)
	s.reached.Store(true)
	direct, _ := openS3(t, quickly(srv.URL))
	core := direct.b.(*bucket).core
	put := func(key string, b []byte) {
		t.Helper()
		if _, err := core.Client.PutObject(t.Context(), "data", key, bytes.NewReader(b), int64(len(b)),
			minio.PutObjectOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	const objects = 60
	for i := range objects {
		put(fmt.Sprintf("set/c%d/ö %03d.bin", i%3, i), content(1000+37*i))
	}
	if err := os.WriteFile(filepath.Join(srv.Dir, "data", "plain"), content(5000), 0o600); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var listed []Info
	load.until(t, "the list", clock, func() {
		if err := s.List(t.Context(), "set/", func(in Info) error { listed = append(listed, in); return nil }); err != nil {
			t.Error(err)
		}
	})
	if len(listed) != objects {
		t.Fatalf("listed %d of %d objects", len(listed), objects)
	}
	for _, in := range listed {
		var i, class int
		if _, err := fmt.Sscanf(in.Key, "set/c%d/ö %d.bin", &class, &i); err != nil || in.ETag == "" {
			t.Fatal(in, err)
		}
		wg.Go(func() {
			if got, err := readAll(t.Context(), s, in); err != nil || !bytes.Equal(got, content(1000+37*i)) {
				t.Errorf("%s: %d bytes, %v", in.Key, len(got), err)
			}
		})
	}
	load.until(t, "every read", clock, wg.Wait)
	if c := s.Counters(); load.faults.Load() < 10 || c.Retries < 10 || c.Errors != 0 {
		t.Errorf("%d faults, %+v", load.faults.Load(), c)
	}
	in, err := direct.Stat(t.Context(), "plain") // it has no ETag: size and time count
	if err != nil || in.Size != 5000 {
		t.Fatal(in, err)
	}
	if got, err := readAll(t.Context(), direct, in); err != nil || !bytes.Equal(got, content(5000)) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	put(listed[7].Key, bytes.Repeat([]byte{1}, int(listed[7].Size)))
	if got, err := readAll(t.Context(), direct, listed[7]); !errors.Is(err, ErrChanged) || len(got) > 0 {
		t.Errorf("written again: %d bytes, %v", len(got), err)
	}
	if _, err := direct.Stat(t.Context(), "no/such"); !errors.Is(err, ErrNotExist) {
		t.Errorf("missing: %v", err)
	}
	t.Setenv("AWS_SECRET_ACCESS_KEY", "wrong")
	other, _ := openS3(t, quickly(srv.URL))
	if _, err := other.Stat(t.Context(), "plain"); err == nil || len(saysAll(err.Error(), "signature is wrong")) > 0 {
		t.Errorf("a wrong secret: %v", err)
	}
}
