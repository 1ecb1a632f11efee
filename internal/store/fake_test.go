package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"larder/internal/errs"
)

const (
	testKey    = "AKIDEXAMPLE"
	testSecret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYSECRETKEY"
	testToken  = "FwoGZXIvYXdzEXAMPLESESSIONTOKEN"
)

// s3Server is an S3 server in this process, with faults before it.
type s3Server struct {
	*httptest.Server
	mem *s3mem.Backend

	mu    sync.Mutex
	seen  []*http.Request
	fault func(n int, w http.ResponseWriter, r *http.Request, next http.Handler) // n counts from 0; nil = none
}

func newS3(t *testing.T) *s3Server {
	t.Helper()
	s := &s3Server{mem: s3mem.New()}
	next := gofakes3.New(s.mem, gofakes3.WithTimeSkewLimit(0)).Server()
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		n, fault := len(s.seen), s.fault
		s.seen = append(s.seen, r)
		s.mu.Unlock()
		if fault == nil {
			next.ServeHTTP(w, r)
			return
		}
		fault(n, w, r, next)
	}))
	t.Cleanup(s.Close)
	if err := s.mem.CreateBucket("data"); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *s3Server) put(t *testing.T, key string, content []byte) {
	t.Helper()
	if _, err := s.mem.PutObject("data", key, map[string]string{"Last-Modified": "Mon, 02 Jan 2023 15:04:05 GMT"},
		bytes.NewReader(content), int64(len(content)), nil); err != nil {
		t.Fatal(err)
	}
}

// faulty sets a fault, counted from the next request on.
func (s *s3Server) faulty(f func(n int, w http.ResponseWriter, r *http.Request, next http.Handler)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen, s.fault = nil, f
}

func (s *s3Server) requests() []*http.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*http.Request(nil), s.seen...)
}

// quickly are settings with small times.
func quickly(endpoint string) Settings {
	s := Default()
	s.Endpoint, s.Region, s.IMDS = endpoint, "us-east-1", false
	s.Timeout, s.RetryFor, s.Parallel, s.Hedge = 5*time.Second, 20*time.Second, 8, 0
	return s
}

// withKeys puts credentials into the environment, and nothing else that could be found.
func withKeys(t *testing.T) {
	t.Helper()
	noKeys(t)
	t.Setenv("AWS_ACCESS_KEY_ID", testKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", testSecret)
}

func noKeys(t *testing.T) {
	t.Helper()
	for _, v := range []string{"AWS_ACCESS_KEY_ID", "AWS_ACCESS_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_SECRET_KEY",
		"AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3",
		"AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
		"AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CA_BUNDLE", "AWS_EC2_METADATA_DISABLED",
		"AWS_EC2_METADATA_SERVICE_ENDPOINT", "GS_ACCESS_KEY_ID", "GS_SECRET_ACCESS_KEY",
		"HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"} {
		t.Setenv(v, "")
	}
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", home+"/credentials")
	t.Setenv("AWS_CONFIG_FILE", home+"/config")
}

// logged is a log in memory.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// openS3 opens the bucket data of the server.
func openS3(t *testing.T, set Settings) (*remote, *logged) {
	t.Helper()
	log := &logged{}
	all := New(Config{Settings: func(string, string) Settings { return set },
		Log: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	t.Cleanup(all.Close)
	s, key, err := all.Open(t.Context(), "s3://data")
	if err != nil || key != "" {
		t.Fatal(key, err)
	}
	return s.(*remote), log
}

// content is bytes that tell where they are.
func content(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 ^ i>>8*13 ^ i>>16)
	}
	return b
}

func readAll(ctx context.Context, s Store, in Info) ([]byte, error) {
	buf := make([]byte, in.Size)
	n, err := s.ReadRange(ctx, in, 0, buf)
	return buf[:n], err
}

// hint is the fix that an error names.
func hint(err error) string {
	if e, ok := errors.AsType[*errs.Error](err); ok {
		return e.Hint
	}
	return ""
}

// saysAll reports what of words the text does not say.
func saysAll(text string, words ...string) (missing []string) {
	for _, w := range words {
		if !strings.Contains(text, w) {
			missing = append(missing, w)
		}
	}
	return missing
}

func xmlError(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, "<?xml version=\"1.0\"?><Error><Code>%s</Code><Message>%s of %s</Message></Error>", code, testSecret,
		testKey)
}

// rewrite sends the answer of next, changed.
func rewrite(w http.ResponseWriter, r *http.Request, next http.Handler, f func(h http.Header, body []byte) []byte) {
	rec := httptest.NewRecorder()
	next.ServeHTTP(rec, r)
	body := f(rec.Header(), rec.Body.Bytes())
	maps.Copy(w.Header(), rec.Header())
	w.WriteHeader(rec.Code)
	_, _ = w.Write(body)
}

// cutAfter sends the head of the answer and n bytes of its body, then ends the connection.
func cutAfter(w http.ResponseWriter, r *http.Request, next http.Handler, n int) {
	rec := httptest.NewRecorder()
	next.ServeHTTP(rec, r)
	maps.Copy(w.Header(), rec.Header())
	w.Header().Set("Content-Length", strconv.Itoa(rec.Body.Len()))
	w.WriteHeader(rec.Code)
	_, _ = w.Write(rec.Body.Bytes()[:min(n, rec.Body.Len())])
	if f, ok := w.(http.Flusher); ok {
		f.Flush()
	}
	panic(http.ErrAbortHandler)
}

// scripted is a backend whose requests are functions.
type scripted struct {
	onGet  func(ctx context.Context, nth int, in Info, off, n int64) (Info, io.ReadCloser, error)
	onList func(nth int, prefix, after string) ([]Info, bool, error)
	renews int

	mu     sync.Mutex
	nth    int
	closed int
}

func (s *scripted) next() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nth++
	return s.nth - 1
}

func (s *scripted) get(ctx context.Context, in Info, off, n int64) (Info, io.ReadCloser, error) {
	return s.onGet(ctx, s.next(), in, off, n)
}

func (s *scripted) stat(context.Context, string) (Info, error) {
	return Info{}, errors.New("not asked")
}

func (s *scripted) list(_ context.Context, prefix, after string) ([]Info, bool, error) {
	return s.onList(s.next(), prefix, after)
}

func (s *scripted) folder(context.Context, string, func()) ([]Info, []string, error) {
	return nil, nil, errors.New("not asked")
}

func (s *scripted) renew() bool { s.renews++; return true }

func (s *scripted) close() { s.closed++ }

// scriptedStore is a store over a backend without a network.
func scriptedStore(b backend, change func(*Settings)) *remote {
	set := quickly("")
	change(&set)
	return newRemote("s3://data", b, set, &counters{}, slog.New(slog.DiscardHandler), clock.Real())
}

func (s Settings) with(change func(*Settings)) Settings {
	change(&s)
	return s
}
