package store

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"larder/internal/errs"
)

func TestS3ReadsWhatWasPut(t *testing.T) {
	withKeys(t)
	srv := newS3(t)
	want := map[string][]byte{"a.bin": content(70_000), "c/d/empty": {}, "c/d/ü and space+plus%20.bin": content(33),
		"c/x?y=1&z#frag": content(7), "c-d": content(1), "big": content(2*partSize + 5)}
	for k, b := range want {
		srv.put(t, k, b)
	}
	s, _ := openS3(t, quickly(srv.URL))
	var keys []string
	if err := s.List(t.Context(), "c", func(in Info) error {
		keys = append(keys, in.Key)
		got, err := readAll(t.Context(), s, in)
		if err != nil || !bytes.Equal(got, want[in.Key]) {
			t.Errorf("%q: %d bytes, %v", in.Key, len(got), err)
		}
		bare := Info{Key: in.Key, Size: in.Size, Version: in.Version} // what an index keeps
		if got, err = readAll(t.Context(), s, bare); err != nil || !bytes.Equal(got, want[in.Key]) {
			t.Errorf("%q of a version alone: %d bytes, %v", in.Key, len(got), err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(keys) != fmt.Sprint([]string{"c-d", "c/d/empty", "c/d/ü and space+plus%20.bin", "c/x?y=1&z#frag"}) {
		t.Errorf("listed %q", keys)
	}
	for k, b := range want {
		in, err := s.Stat(t.Context(), k)
		if err != nil || in.Size != int64(len(b)) || in.ETag == "" {
			t.Fatalf("%q: %+v, %v", k, in, err)
		}
		if got, err := readAll(t.Context(), s, in); err != nil || !bytes.Equal(got, b) {
			t.Errorf("%q: %d of %d bytes, %v", k, len(got), len(b), err)
		}
	}
	in, err := s.Stat(t.Context(), "a.bin")
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 100)
	for _, off := range []int64{0, 1, 69_900, 69_950, 70_000, 90_000} {
		n, err := s.ReadRange(t.Context(), in, off, buf)
		left := want["a.bin"][min(off, 70_000):]
		wantErr := error(nil)
		if len(left) < 100 {
			wantErr = io.EOF
		}
		if !errors.Is(err, wantErr) || !bytes.Equal(buf[:n], left[:min(100, len(left))]) {
			t.Errorf("from %d: %d bytes, %v", off, n, err)
		}
	}
	if _, err := s.ReadRange(t.Context(), in, -1, buf); !errs.Is(err, errs.Invalid) {
		t.Errorf("a negative offset: %v", err)
	}
	for _, key := range []string{"no/such", "../a.bin", "", "a\x00b", "\xff"} {
		_, err := s.Stat(t.Context(), key)
		if err == nil || errors.Is(err, ErrNotExist) != (key == "no/such") {
			t.Errorf("Stat(%q) = %v", key, err)
		}
	}
	c := s.Counters()
	var bytesPut uint64
	for _, b := range want {
		bytesPut += uint64(len(b))
	}
	if c.Reads == 0 || c.Lists != 1 || c.Bytes < bytesPut || c.Retries != 0 || c.Errors != 4-3 {
		t.Errorf("%+v", c)
	}
}

func TestS3Folders(t *testing.T) {
	withKeys(t)
	srv := newS3(t)
	for _, k := range []string{"top", "a/1", "a/2", "a/b/1", "a-/1", "ü /x/y/z", "a/b/", "empty/"} {
		srv.put(t, k, []byte(k))
	}
	for i := range pageSize + 7 {
		srv.put(t, fmt.Sprintf("many/%04d/x", i), nil)
	}
	s, _ := openS3(t, quickly(srv.URL))
	for prefix, want := range map[string]string{
		"":     "[a-/ a/ empty/ many/ ü /] [top]",
		"a/":   "[a/b/] [a/1 a/2]",
		"a/b/": "[] [a/b/ a/b/1]",
		"no/":  "[] []",
	} {
		var direct []string
		folders, err := s.Folder(t.Context(), prefix, func(in Info) error { direct = append(direct, in.Key); return nil })
		slices.Sort(folders)
		slices.Sort(direct)
		if got := fmt.Sprint(folders, direct); err != nil || got != want {
			t.Errorf("%q holds %s, want %s, %v", prefix, got, want, err)
		}
	}
	srv.faulty(func(n int, w http.ResponseWriter, r *http.Request, next http.Handler) {
		if n == 1 { // the second page
			xmlError(w, 503, "SlowDown")
			return
		}
		next.ServeHTTP(w, r)
	})
	folders, err := s.Folder(t.Context(), "many/", func(Info) error { return nil })
	if err != nil || len(slices.Compact(folders)) != pageSize+7 || s.Counters().Retries != 1 {
		t.Errorf("%d folders, %v", len(folders), err)
	}
}

func TestS3ListsManyPages(t *testing.T) {
	withKeys(t)
	srv := newS3(t)
	const n = 2*pageSize + 3
	for i := range n {
		srv.put(t, fmt.Sprintf("k/%05d", i), []byte{1})
	}
	failed := false
	srv.faulty(func(k int, w http.ResponseWriter, r *http.Request, next http.Handler) {
		if k == 1 {
			failed = true
			xmlError(w, 503, "SlowDown")
			return
		}
		next.ServeHTTP(w, r)
	})
	s, _ := openS3(t, quickly(srv.URL))
	seen := 0
	if err := s.List(t.Context(), "k/", func(in Info) error {
		if want := fmt.Sprintf("k/%05d", seen); in.Key != want {
			t.Fatalf("listed %q, want %q", in.Key, want)
		}
		seen++
		return nil
	}); err != nil || seen != n || !failed {
		t.Errorf("%d of %d objects, %v", seen, n, err)
	}
}

// Whatever a server does to a read, the bytes are right or there is an error that says what happened.
func TestS3FaultsArePassedOver(t *testing.T) {
	withKeys(t)
	body := content(50_000)
	for name, fault := range map[string]func(w http.ResponseWriter, r *http.Request, next http.Handler){
		"500": func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { xmlError(w, 500, "InternalError") },
		"502 html": func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			http.Error(w, "<html>", http.StatusBadGateway)
		},
		"slow down": func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { xmlError(w, 503, "SlowDown") },
		"429": func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			http.Error(w, "", http.StatusTooManyRequests)
		},
		"cut head":    func(http.ResponseWriter, *http.Request, http.Handler) { panic(http.ErrAbortHandler) },
		"cut at 0":    func(w http.ResponseWriter, r *http.Request, next http.Handler) { cutAfter(w, r, next, 0) },
		"cut at 999":  func(w http.ResponseWriter, r *http.Request, next http.Handler) { cutAfter(w, r, next, 999) },
		"cut at last": func(w http.ResponseWriter, r *http.Request, next http.Handler) { cutAfter(w, r, next, 49_999) },
		"short": func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			rewrite(w, r, next, func(h http.Header, b []byte) []byte { h.Set("Content-Length", "40000"); return b[:40_000] })
		},
		"short without length": func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			rewrite(w, r, next, func(h http.Header, b []byte) []byte { h.Del("Content-Length"); return b[:40_000] })
		},
		"long": func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			rewrite(w, r, next, func(h http.Header, b []byte) []byte {
				h.Set("Content-Length", "50003")
				return append(b, 1, 2, 3)
			})
		},
		"other range": func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			rewrite(w, r, next, func(h http.Header, b []byte) []byte {
				h.Set("Content-Range", "bytes 5-50004/50005")
				return b
			})
		},
		"no range": func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			rewrite(w, r, next, func(h http.Header, b []byte) []byte { h.Set("Content-Range", "pages 1/2"); return b })
		},
		"bad date": func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			rewrite(w, r, next, func(h http.Header, b []byte) []byte { h.Set("Last-Modified", "yesterday"); return b })
		},
	} {
		t.Run(name, func(t *testing.T) {
			srv := newS3(t)
			srv.put(t, "k", body)
			s, _ := openS3(t, quickly(srv.URL))
			in, err := s.Stat(t.Context(), "k")
			if err != nil {
				t.Fatal(err)
			}
			srv.faulty(func(n int, w http.ResponseWriter, r *http.Request, next http.Handler) {
				if n == 0 {
					fault(w, r, next)
					return
				}
				next.ServeHTTP(w, r)
			})
			got, err := readAll(t.Context(), s, in)
			if name == "other range" { // the object is longer now, if the server is right
				if !errors.Is(err, ErrChanged) && !bytes.Equal(got, body) {
					t.Errorf("%d bytes, %v", len(got), err)
				}
				return
			}
			if err != nil || !bytes.Equal(got, body) {
				t.Fatalf("%d of %d bytes, %v", len(got), len(body), err)
			}
			if n := s.Counters().Retries; n != 1 && name != "cut head" { // which HTTP itself sends again
				t.Errorf("%d retries", n)
			}
		})
	}
}

// Failures that stay are told at once, with the cause and the fix, and without a secret in any text.
func TestS3FailuresThatStay(t *testing.T) {
	withKeys(t)
	t.Setenv("AWS_SESSION_TOKEN", testToken)
	for code, c := range map[string]struct {
		status int
		words  []string
	}{
		"AccessDenied":                 {403, []string{"access is denied", "s3:GetObject"}},
		"ExpiredToken":                 {400, []string{"the credentials have expired", "aws sso login"}},
		"RequestTimeTooSkewed":         {403, []string{"the clock of this machine is wrong by 2h", "NTP"}},
		"InvalidAccessKeyId":           {403, []string{"does not know the access key", "endpoint"}},
		"SignatureDoesNotMatch":        {403, []string{"the signature is wrong", "stores.s3.region"}},
		"NoSuchBucket":                 {404, []string{"no such bucket"}},
		"AuthorizationHeaderMalformed": {400, []string{"another region", "stores.s3.region"}},
		"InvalidObjectState":           {403, []string{"archived", "restore it"}},
		testSecret:                     {418, []string{"418"}},
	} {
		t.Run(code[:12], func(t *testing.T) {
			srv := newS3(t)
			srv.put(t, "k", content(10))
			s, log := openS3(t, quickly(srv.URL))
			in, err := s.Stat(t.Context(), "k")
			if err != nil {
				t.Fatal(err)
			}
			srv.faulty(func(_ int, w http.ResponseWriter, _ *http.Request, _ http.Handler) {
				w.Header().Set("Date", time.Now().Add(2*time.Hour+time.Second/2).UTC().Format(http.TimeFormat))
				xmlError(w, c.status, code)
			})
			for _, f := range []func() error{
				func() error { _, err := readAll(t.Context(), s, in); return err },
				func() error { _, err := s.Stat(t.Context(), "k"); return err },
				func() error { return s.List(t.Context(), "", func(Info) error { return nil }) },
			} {
				err := f()
				if !errs.Is(err, errs.DatasetUnread) || hint(err) == "" {
					t.Fatalf("%v", err)
				}
				if m := saysAll(err.Error(), append(c.words, "s3://data")...); m != nil && code != testSecret {
					t.Errorf("%v does not say %q", err, m)
				}
				for _, secret := range []string{testKey, testSecret, testToken} {
					if strings.Contains(fmt.Sprintf("%v %+v %#v", err, err, err)+log.String(), secret) {
						t.Errorf("%v, or the log, holds a secret", err)
					}
				}
			}
			most := 6
			if code == "ExpiredToken" {
				most = 12 // they were looked for again
			}
			if n := len(srv.requests()); n > most {
				t.Errorf("%d requests", n)
			}
		})
	}
}

// An object that was written again is an error, with If-Match and without, and during a read of several requests.
func TestS3ObjectsThatChange(t *testing.T) {
	withKeys(t)
	srv := newS3(t)
	srv.put(t, "k", content(100))
	s, _ := openS3(t, quickly(srv.URL))
	in, err := s.Stat(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	other := bytes.Repeat([]byte{7}, 100)
	srv.put(t, "k", other)
	for _, old := range []Info{in, {Key: in.Key, Size: in.Size, Version: in.Version}} {
		if got, err := readAll(t.Context(), s, old); !errors.Is(err, ErrChanged) || len(got) > 0 {
			t.Errorf("%d bytes, %v", len(got), err)
		}
	}
	srv.put(t, "k", content(40)) // what is asked for begins beyond its end
	if n, err := s.ReadRange(t.Context(), in, 50, make([]byte, 10)); !errors.Is(err, ErrChanged) || n > 0 {
		t.Errorf("%d bytes, %v", n, err)
	}
	if got, err := readAll(t.Context(), s, Info{Key: "k", Size: 40}); err != nil || !bytes.Equal(got, content(40)) {
		t.Errorf("any version: %d bytes, %v", len(got), err)
	}

	big := content(3 * partSize)
	srv.put(t, "big", big)
	if in, err = s.Stat(t.Context(), "big"); err != nil {
		t.Fatal(err)
	}
	srv.faulty(func(n int, w http.ResponseWriter, r *http.Request, next http.Handler) {
		if n == 1 {
			srv.put(t, "big", bytes.Repeat([]byte{9}, len(big)))
		}
		next.ServeHTTP(w, r)
	})
	if got, err := readAll(t.Context(), s, in); !errors.Is(err, ErrChanged) || len(got) > 0 {
		t.Errorf("changed meanwhile: %d bytes, %v", len(got), err)
	}
}

// Proxies come from the environment, which a process reads once: the reader is a process of its own.
func TestS3ThroughAProxy(t *testing.T) {
	const child = "STORE_TEST_PROXY_CHILD"
	if os.Getenv(child) != "" {
		set := quickly("http://s3.example.test:9000")
		set.Insecure = true
		s, _ := openS3(t, set)
		if _, err := s.Stat(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		return
	}
	withKeys(t)
	srv := newS3(t)
	srv.put(t, "k", content(10))
	target, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	var passed atomic.Int64
	proxy := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		passed.Add(1)
		r.Out.URL.Scheme, r.Out.URL.Host = "http", target.Host
	}})
	defer proxy.Close()
	cmd := exec.Command(os.Args[0], "-test.run=^TestS3ThroughAProxy$", "-test.count=1") //nolint:gosec // this program
	cmd.Env = append(os.Environ(), child+"=1", "HTTP_PROXY="+proxy.URL, "NO_PROXY=")
	if out, err := cmd.CombinedOutput(); err != nil || passed.Load() != 1 {
		t.Errorf("%v after %d requests through the proxy\n%s", err, passed.Load(), out)
	}
}

func TestEndpoints(t *testing.T) {
	withKeys(t)
	for text, want := range map[string]string{
		"http://10.0.0.1:9000": "not encrypted", "ftp://x": "no address of a server", "localhost:9000": "no address",
		"https://a/b": "no address", "https://user:" + testSecret + "@host": "no address", "http://": "no address",
		"http://127.0.0.1:9000": "", "https://s3.example.com/": "", "http://localhost": "", "http://[::1]:80": "",
	} {
		s := New(Config{Settings: func(string, string) Settings { return quickly(text) }})
		_, _, err := s.Open(t.Context(), "s3://data/x")
		s.Close()
		if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || hint(err) == "" ||
			strings.Contains(err.Error(), testSecret)) {
			t.Errorf("endpoint %q: %v, want %q", text, err, want)
		}
	}
}

// AWS tells where a bucket is, and requests are signed for there.
func TestTheRegionOfABucketIsAsked(t *testing.T) {
	noKeys(t)
	asked := roundTrip(func(r *http.Request) (*http.Response, error) {
		if r.Method != http.MethodHead || r.URL.String() != "https://s3.amazonaws.com/data" ||
			r.Header.Get("Authorization") != "" {
			return nil, errors.New("another question: " + r.URL.String())
		}
		return &http.Response{StatusCode: 301, Body: http.NoBody,
			Header: http.Header{"X-Amz-Bucket-Region": {"ap-south-1"}}}, nil
	})
	l := Location{Scheme: "s3", Place: "data"}
	u := &url.URL{Scheme: "https", Host: awsHost}
	set := quickly("").with(func(s *Settings) { s.Region = "" })
	if got := region(t.Context(), l, set, u, asked); got != "ap-south-1" {
		t.Errorf("region %q", got)
	}
	silent := roundTrip(func(*http.Request) (*http.Response, error) { return nil, errors.New("no network") })
	t.Setenv("AWS_DEFAULT_REGION", "eu-west-1")
	if got := region(t.Context(), l, set, u, silent); got != "eu-west-1" {
		t.Errorf("region %q", got)
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
