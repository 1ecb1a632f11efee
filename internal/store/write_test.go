package store

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"larder/internal/clock/stepped"
	"larder/internal/errs"
)

// pieces makes uploads of few bytes pieces.
func pieces(s *remote, n int64) *remote {
	s.piece = n
	return s
}

func TestWrittenObjectsAreThere(t *testing.T) {
	withKeys(t)
	srv := newS3(t)
	s, _ := openS3(t, quickly(srv.URL))
	pieces(s, 1000)
	for key, size := range map[string]int{"empty": 0, "one": 1, "just": 1000, "a/b c+ü?x#y": 1001, "many": 12_345} {
		body := content(size)
		in, err := s.Put(t.Context(), key, bytes.NewReader(body), int64(size))
		if err != nil || in.Size != int64(size) || in.ETag == "" {
			t.Fatalf("%s: %+v, %v", key, in, err)
		}
		if got, err := readAll(t.Context(), s, in); err != nil || !bytes.Equal(got, body) {
			t.Errorf("%s: %d of %d bytes, %v", key, len(got), size, err)
		}
	}
	c := s.Counters()
	// 3 whole ones, and a begin, an end and 2 or 13 pieces of the others.
	if c.Writes != 3+4+15 || c.Sent < 1+1000+1001+12_345 || c.Sent > 20_000 || c.Errors != 0 || c.Retries != 0 {
		t.Errorf("%+v", c)
	}
	if got := s.count.read("", Settings{PriceList: 5}).Money; got != 5*22.0/1000 {
		t.Errorf("22 writes cost %v", got)
	}
	if _, err := s.Create(t.Context(), "one", bytes.NewReader(nil), 0); !errors.Is(err, ErrExist) {
		t.Errorf("an object was written over another: %v", err)
	}
	if _, err := s.Create(t.Context(), "two", bytes.NewReader(content(2)), 2); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := s.Remove(t.Context(), "two"); err != nil {
			t.Error(err)
		}
	}
	if _, err := s.Stat(t.Context(), "two"); !errors.Is(err, ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
	if _, err := s.Put(t.Context(), "../x", bytes.NewReader(nil), 0); !errs.Is(err, errs.Invalid) {
		t.Errorf("a key with dots gave %v", err)
	}
	if _, err := s.Put(t.Context(), "x", bytes.NewReader(content(5)), 6); err == nil ||
		!strings.Contains(err.Error(), "ends after 5 of 6") {
		t.Errorf("a body that is too short gave %v", err)
	}
}

// lost passes the request on, and cuts the connection instead of answering.
func lost(r *http.Request, next http.Handler) {
	next.ServeHTTP(httptest.NewRecorder(), r)
	panic(http.ErrAbortHandler)
}

// Whatever a server does to an upload, the object is whole or there is none, and the error says what happened.
func TestWritesPassOverFaults(t *testing.T) {
	withKeys(t)
	type fault func(w http.ResponseWriter, r *http.Request, next http.Handler)
	flip := func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		b, _ := io.ReadAll(r.Body) // what is missing fails the request
		if len(b) > 0 {
			b[len(b)/2] ^= 1
		}
		r.Body = io.NopCloser(bytes.NewReader(b))
		next.ServeHTTP(w, r)
	}
	cut := func(_ http.ResponseWriter, r *http.Request, _ http.Handler) {
		_, _ = io.CopyN(io.Discard, r.Body, 300)
		panic(http.ErrAbortHandler)
	}
	for name, f := range map[string]fault{
		"500":       func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { xmlError(w, 500, "InternalError") },
		"slow down": func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { xmlError(w, 503, "SlowDown") },
		"expired":   func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { xmlError(w, 400, "ExpiredToken") },
		"cut":       cut,
		"lost":      func(_ http.ResponseWriter, r *http.Request, next http.Handler) { lost(r, next) },
		"flipped": func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if r.Method != http.MethodPut {
				xmlError(w, 500, "InternalError")
				return
			}
			flip(w, r, next)
		},
	} {
		for _, size := range []int{900, 4500} {
			srv := newS3(t)
			s, _ := openS3(t, quickly(srv.URL))
			pieces(s, 1000)
			var mu sync.Mutex
			met := map[string]bool{} // each request fails once
			srv.faulty(func(_ int, w http.ResponseWriter, r *http.Request, next http.Handler) {
				mu.Lock()
				id := r.Method + r.URL.Query().Get("partNumber")
				first := !met[id]
				met[id] = true
				mu.Unlock()
				if first && r.Method != http.MethodHead {
					f(w, r, next)
					return
				}
				next.ServeHTTP(w, r)
			})
			body := content(size)
			in, err := s.Put(t.Context(), "k", bytes.NewReader(body), int64(size))
			if err != nil || in.Size != int64(size) {
				t.Errorf("%s, %d bytes: %v", name, size, err)
				continue
			}
			srv.faulty(nil)
			if got, err := readAll(t.Context(), s, in); err != nil || !bytes.Equal(got, body) {
				t.Errorf("%s: %d of %d bytes, %v", name, len(got), size, err)
			}
			if s.Counters().Retries == 0 {
				t.Errorf("%s: no request was sent again", name)
			}
		}
	}
}

// An upload whose last answer is lost is found; one that the server forgot begins again, a few times.
func TestForgottenUploads(t *testing.T) {
	withKeys(t)
	for _, forgets := range []int{0, 1, wholeTries} {
		srv := newS3(t)
		s, _ := openS3(t, quickly(srv.URL))
		pieces(s, 1000)
		begun, ended := 0, 0
		var mu sync.Mutex
		srv.faulty(func(_ int, w http.ResponseWriter, r *http.Request, next http.Handler) {
			mu.Lock()
			defer mu.Unlock()
			q := r.URL.Query()
			if q.Has("uploads") && r.Method == http.MethodPost {
				begun++
			}
			if q.Has("uploadId") && r.Method == http.MethodPost {
				ended++
				switch {
				case forgets > 0 && begun <= forgets:
					xmlError(w, 404, "NoSuchUpload")
					return
				case forgets == 0 && ended == 1:
					lost(r, next)
				}
			}
			next.ServeHTTP(w, r)
		})
		_, err := s.Put(t.Context(), "k", bytes.NewReader(content(2500)), 2500)
		want := min(forgets+1, wholeTries)
		if (err == nil) != (forgets < wholeTries) || begun != want {
			t.Errorf("forgotten %d times: %d uploads, %v", forgets, begun, err)
		}
	}
}

// A write that fails for good leaves no object and no pieces, and says why.
func TestWritesThatFail(t *testing.T) {
	withKeys(t)
	for code, want := range map[string]string{"AccessDenied": "s3:PutObject", "QuotaExceeded": "free some room",
		"NoSuchBucket": "check its name", "ExpiredToken": "renew"} {
		srv := newS3(t)
		s, log := openS3(t, quickly(srv.URL))
		pieces(s, 1000)
		srv.faulty(func(_ int, w http.ResponseWriter, r *http.Request, next http.Handler) {
			if r.Method == http.MethodPut && r.URL.Query().Get("partNumber") != "1" {
				xmlError(w, 403, code)
				return
			}
			next.ServeHTTP(w, r)
		})
		for _, size := range []int{10, 4000} {
			_, err := s.Put(t.Context(), "k", bytes.NewReader(content(size)), int64(size))
			if err == nil || !strings.Contains(hint(err), want) || strings.Contains(err.Error()+log.String(), testSecret) {
				t.Errorf("%s: %v (%s)", code, err, hint(err))
			}
			if _, err := s.Stat(t.Context(), "k"); !errors.Is(err, ErrNotExist) {
				t.Errorf("%s left an object: %v", code, err)
			}
			if left, err := s.b.(writing).unfinished(t.Context(), "k"); err != nil || len(left) > 0 {
				t.Errorf("%s left pieces: %v, %v", code, left, err)
			}
		}
	}
}

// Sweep forgets what killed processes left, and nothing of others, nor what is not the caller's.
func TestSweep(t *testing.T) {
	withKeys(t)
	srv := newS3(t)
	s, _ := openS3(t, quickly(srv.URL))
	w := s.b.(writing)
	for _, key := range []string{"a/1", "a/2", "a/2", "a/other", "b/1"} {
		id, err := w.begin(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		p, err := newPiece(bytes.NewReader(content(9)), 0, 9)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.part(t.Context(), upload{key, id}, 1, p); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Sweep(t.Context(), "a/", func(key string) bool { return key != "a/other" }); err != nil {
		t.Fatal(err)
	}
	for prefix, want := range map[string]int{"a/": 1, "b/": 1} {
		if left, err := w.unfinished(t.Context(), prefix); err != nil || len(left) != want {
			t.Errorf("%s has %v, %v", prefix, left, err)
		}
	}
}

// A write ends with its context, and its pieces are forgotten.
func TestACancelledWrite(t *testing.T) {
	withKeys(t)
	srv := newS3(t)
	s, _ := openS3(t, quickly(srv.URL))
	pieces(s, 1000)
	ctx, cancel := context.WithCancel(t.Context())
	srv.faulty(func(_ int, w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.URL.Query().Get("partNumber") == "3" {
			cancel()
			_, _ = io.Copy(io.Discard, r.Body) // it was given up
			return
		}
		next.ServeHTTP(w, r)
	})
	if _, err := s.Put(ctx, "k", bytes.NewReader(content(5000)), 5000); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	srv.faulty(nil)
	if left, err := s.b.(writing).unfinished(t.Context(), ""); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
}

// A server that took a body and says nothing has failed.
func TestWritesThatAreNotAnswered(t *testing.T) {
	withKeys(t)
	srv := newS3(t)
	clock, taken := stepped.New(time.Unix(1e9, 0)), make(chan struct{})
	s, _ := openS3At(t, quickly(srv.URL).with(func(s *Settings) { s.RetryFor = 0 }), clock)
	srv.faulty(func(_ int, w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.Method == http.MethodPut {
			_, _ = io.Copy(io.Discard, r.Body) // its end is seen only by who has read it
			close(taken)
			<-r.Context().Done()
			return
		}
		next.ServeHTTP(w, r)
	})
	put := make(chan error, 1)
	go func() {
		_, err := s.Put(t.Context(), "k", bytes.NewReader(content(9)), 9)
		put <- err
	}()
	<-taken
	clock.Advance(time.Minute - 1)
	if len(put) > 0 {
		t.Error("it failed before its time")
	}
	clock.Advance(1)
	if err := <-put; err == nil || !strings.Contains(err.Error(), "no byte came for 1m0s") {
		t.Errorf("got %v", err)
	}
}

// What another program writes at the same time is noticed, also where it has as many bytes.
func TestAnotherObjectThanWasWritten(t *testing.T) {
	withKeys(t)
	srv := newS3(t)
	s, _ := openS3(t, quickly(srv.URL))
	pieces(s, 1000)
	srv.faulty(func(_ int, w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.Method == http.MethodHead {
			srv.put(t, "k", make([]byte, 2500))
		}
		next.ServeHTTP(w, r)
	})
	for _, size := range []int64{900, 2500} {
		_, err := s.Put(t.Context(), "k", bytes.NewReader(content(int(size))), size)
		if err == nil || !strings.Contains(err.Error(), "has an object of 2500") {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}

func TestPlacesThatTakeNoObjects(t *testing.T) {
	all := New(Config{})
	defer all.Close()
	for _, uri := range []string{"https://example.org/x", "/tmp"} {
		_, _, err := all.Writer(t.Context(), uri)
		if !errs.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), "cannot write") {
			t.Errorf("%s: %v", uri, err)
		}
	}
	noKeys(t)
	if _, key, err := all.Writer(t.Context(), "s3://bucket/a/b"); err != nil || key != "a/b" {
		t.Errorf("%q, %v", key, err)
	}
}
