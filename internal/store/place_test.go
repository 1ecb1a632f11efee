package store

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"larder/internal/errs"
)

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	want := map[string][]byte{"a/b.bin": content(40_000), "a.bin": content(3), "a/empty": {}, "z": content(9),
		"a/\xff no text": content(5)}
	for k, b := range want {
		path := filepath.Join(dir, k)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("z", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(".", filepath.Join(dir, "loop")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", filepath.Join(dir, "nothing")); err != nil {
		t.Fatal(err)
	}
	all := New(Config{})
	defer all.Close()
	s, prefix, err := all.Open(t.Context(), "file:"+dir+"/")
	if err != nil || prefix != dir+"/" || s.Name() != "file:" {
		t.Fatal(s, prefix, err)
	}
	list := func(s Store, prefix string) (keys []string) {
		t.Helper()
		if err := s.List(t.Context(), prefix, func(in Info) error {
			keys = append(keys, strings.TrimPrefix(in.Key, dir+"/"))
			got, err := readAll(t.Context(), s, in)
			if err != nil || !bytes.Equal(got, want[keys[len(keys)-1]]) && !strings.HasSuffix(in.Key, "link") {
				t.Errorf("%q: %d bytes, %v", in.Key, len(got), err)
			}
			if now, err := s.Stat(t.Context(), in.Key); err != nil || now != in {
				t.Errorf("%+v, then %+v, %v", in, now, err)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
		return keys
	}
	if got, want := fmt.Sprint(list(s, prefix)), "[a.bin a/b.bin a/empty a/\xff no text link z]"; got != want {
		t.Errorf("listed %q, want %q", got, want)
	}
	if got, want := fmt.Sprint(list(s, prefix+"a/b")), "[a/b.bin]"; got != want {
		t.Errorf("listed %q, want %q", got, want)
	}
	var direct []string
	folders, err := s.Folder(t.Context(), prefix, func(in Info) error {
		direct = append(direct, strings.TrimPrefix(in.Key, prefix))
		return nil
	})
	if slices.Sort(direct); err != nil || fmt.Sprint(folders, direct) != fmt.Sprintf("[%sa/] [a.bin link z]", prefix) {
		t.Errorf("%q holds %q and %q, %v", prefix, folders, direct, err)
	}
	if _, err := s.Folder(t.Context(), dir, nil); !errs.Is(err, errs.Invalid) {
		t.Errorf("a folder without its slash: %v", err)
	}
	if got := list(Files{Plain: true}, prefix); slices.Contains(got, "link") {
		t.Errorf("listed %q", got)
	}
	if _, err := (Files{Plain: true}).Stat(t.Context(), dir+"/link"); err == nil ||
		!strings.Contains(err.Error(), "symbolic link") {
		t.Errorf("a link where none is followed: %v", err)
	}
	for key, words := range map[string]string{dir + "/no": "file does not exist", dir + "/a": "not a regular file",
		"relative": "no absolute path", dir + "/nothing": "file does not exist", dir + "/a\x00": "no absolute path"} {
		if _, err := s.Stat(t.Context(), key); err == nil || !strings.Contains(err.Error(), words) || hint(err) == "" {
			t.Errorf("Stat(%q) = %v", key, err)
		}
	}
	if err := s.List(t.Context(), dir+"/no/", func(Info) error { return nil }); !errors.Is(err, ErrNotExist) {
		t.Errorf("a folder that is not there: %v", err)
	}
}

func TestFilesThatChange(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	write := func(b []byte, at time.Time) {
		t.Helper()
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	at := time.Unix(1e9, 0)
	write(content(100), at)
	in, err := Files{}.Stat(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(){
		"time":  func() { write(content(100), at.Add(time.Nanosecond)) },
		"size":  func() { write(content(101), at) },
		"short": func() { write(content(7), at) },
	} {
		change()
		if got, err := readAll(t.Context(), Files{}, in); !errors.Is(err, ErrChanged) || len(got) > 0 {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
	write(content(100), at)
	if got, err := readAll(t.Context(), Files{}, in); err != nil || !bytes.Equal(got, content(100)) {
		t.Errorf("as it was: %d bytes, %v", len(got), err)
	}
}

// webServer has objects, and answers about each in its own way.
type webServer struct {
	body       []byte
	at         time.Time
	etag       string
	redirected string   // where /away leads
	seen       []string // requests
}

func (v *webServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	v.seen = append(v.seen, r.Method+" "+r.RequestURI)
	switch r.URL.Path {
	case "/sub dir/ü.bin":
		w.Header().Set("ETag", v.etag)
		http.ServeContent(w, r, "", v.at, bytes.NewReader(v.body))
	case "/dated":
		http.ServeContent(w, r, "", v.at, bytes.NewReader(v.body))
	case "/nohead":
		if r.Method == http.MethodHead {
			http.Error(w, "", http.StatusMethodNotAllowed)
			return
		}
		http.ServeContent(w, r, "", v.at, bytes.NewReader(v.body))
	case "/noranges":
		w.Header().Set("Content-Length", fmt.Sprint(len(v.body)))
		_, _ = w.Write(v.body)
	case "/packed":
		w.Header().Set("Content-Encoding", "gzip")
		http.ServeContent(w, r, "", v.at, bytes.NewReader(v.body))
	case "/away":
		http.Redirect(w, r, v.redirected, http.StatusFound)
	case "/round":
		http.Redirect(w, r, "/round", http.StatusFound)
	case "/private":
		http.Error(w, "", http.StatusUnauthorized)
	default:
		http.NotFound(w, r)
	}
}

// openOverWeb opens a place of the web that is tried again for a moment only.
func openOverWeb(t *testing.T, uri string) (Store, string) {
	t.Helper()
	all := New(Config{Settings: func(string, string) Settings {
		return quickly("").with(func(s *Settings) { s.RetryFor = time.Second / 5 })
	}})
	t.Cleanup(all.Close)
	s, key, err := all.Open(t.Context(), uri)
	if err != nil {
		t.Fatal(err)
	}
	return s, key
}

func TestWebServers(t *testing.T) {
	web := &webServer{body: content(30_000), at: time.Unix(1_600_000_000, 0), etag: `"v1"`}
	srv := httptest.NewTLSServer(web)
	defer srv.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}),
		0o600); err != nil {
		t.Fatal(err)
	}
	s, _ := openOverWeb(t, srv.URL)
	if _, err := s.Stat(t.Context(), "dated"); err == nil || !strings.Contains(hint(err), "AWS_CA_BUNDLE") {
		t.Errorf("a certificate that nobody knows: %v", err)
	}
	t.Setenv("AWS_CA_BUNDLE", ca)
	s, key := openOverWeb(t, srv.URL+"/sub%20dir/%C3%BC.bin")
	in, err := s.Stat(t.Context(), key)
	if err != nil || in.Size != int64(len(web.body)) || in.ETag != "v1" || !in.ModTime.Equal(web.at) {
		t.Fatalf("%q: %+v, %v", key, in, err)
	}
	buf := make([]byte, 1000)
	if n, err := s.ReadRange(t.Context(), in, 29_500, buf); n != 500 || !errors.Is(err, io.EOF) ||
		!bytes.Equal(buf[:n], web.body[29_500:]) {
		t.Errorf("%d bytes, %v", n, err)
	}
	web.etag = `"v2"`
	if got, err := readAll(t.Context(), s, in); !errors.Is(err, ErrChanged) || len(got) > 0 {
		t.Errorf("changed: %d bytes, %v", len(got), err)
	}
	web.redirected = srv.URL + "/dated?X-Amz-Signature=" + testSecret
	for _, key := range []string{"dated", "nohead", "noranges", "away"} {
		in, err := s.Stat(t.Context(), key)
		if err != nil || in.Size != int64(len(web.body)) {
			t.Errorf("%s: %+v, %v", key, in, err)
			continue
		}
		if got, err := readAll(t.Context(), s, in); err != nil || !bytes.Equal(got, web.body) {
			t.Errorf("%s: %d bytes, %v", key, len(got), err)
		}
	}
	web.at = web.at.Add(time.Second)
	if got, err := readAll(t.Context(), s, Info{Key: "dated", Size: 30_000, Version: version("", 30_000,
		web.at.Add(-time.Second))}); !errors.Is(err, ErrChanged) || len(got) > 0 {
		t.Errorf("changed: %d bytes, %v", len(got), err)
	}
	web.redirected = "https://127.0.0.1:1/?X-Amz-Signature=" + testSecret
	for key, words := range map[string]string{"no": "404", "private": "401", "round": "redirections",
		"away": "connection refused", "packed": "Content-Encoding"} {
		_, err := s.ReadRange(t.Context(), Info{Key: key, Size: 100}, 0, buf[:10])
		if err == nil || !strings.Contains(err.Error(), words) || hint(err) == "" ||
			strings.Contains(err.Error(), testSecret) || errors.Is(err, ErrNotExist) != (key == "no") {
			t.Errorf("%s: %v", key, err)
		}
	}
	if _, err := s.ReadRange(t.Context(), Info{Key: "noranges", Size: 30_000}, 5, buf[:10]); err == nil ||
		!strings.Contains(err.Error(), "whole object") {
		t.Errorf("a range of a server that knows none: %v", err)
	}
	before := len(web.seen)
	if err := s.List(t.Context(), "", func(Info) error { return nil }); !errs.Is(err, errs.Unsupported) ||
		len(web.seen) != before {
		t.Errorf("a list: %v after %q", err, web.seen[before:])
	}
	if _, err := s.Folder(t.Context(), "", func(Info) error { return nil }); !errs.Is(err, errs.Unsupported) ||
		len(web.seen) != before {
		t.Errorf("a folder: %v after %q", err, web.seen[before:])
	}
	web.redirected = "http://example.test/"
	if _, err := s.Stat(t.Context(), "away"); err == nil || !strings.Contains(err.Error(), "not encrypted") {
		t.Errorf("led to http: %v", err)
	}
	if srv.TLS.MinVersion > tls.VersionTLS12 {
		t.Error("the server of this test should take TLS 1.2")
	}
}

// memory is an object in memory that counts its reads.
type memory struct {
	object []byte

	mu           sync.Mutex
	reads, bytes int
}

func (m *memory) Name() string { return "memory:" }

func (m *memory) Stat(context.Context, string) (Info, error) { return Info{}, ErrNotExist }

func (m *memory) List(context.Context, string, func(Info) error) error { return nil }

func (m *memory) Folder(context.Context, string, func(Info) error) ([]string, error) { return nil, nil }

func (m *memory) ReadRange(_ context.Context, in Info, off int64, buf []byte) (int, error) {
	buf, eof := clip(in.Size, off, buf)
	copy(buf, m.object[min(off, in.Size):])
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reads++
	m.bytes += len(buf)
	return len(buf), eof
}

func TestRangesAreJoined(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &memory{object: content(rapid.IntRange(1, 5000).Draw(t, "size"))}
		in := Info{Key: "k", Size: int64(len(s.object))}
		ranges := make([]Range, rapid.IntRange(0, 40).Draw(t, "n"))
		for i := range ranges {
			off := rapid.IntRange(0, len(s.object)).Draw(t, "off")
			ranges[i] = Range{int64(off), make([]byte, rapid.IntRange(0, min(300, len(s.object)-off)).Draw(t, "len"))}
		}
		gap := rapid.Int64Range(0, 500).Draw(t, "gap")
		if err := ReadRanges(context.Background(), s, in, ranges, gap); err != nil {
			t.Fatal(err)
		}
		covered := map[int]bool{}
		for _, r := range ranges {
			if !bytes.Equal(r.Buf, s.object[r.Off:][:len(r.Buf)]) {
				t.Fatalf("%d bytes from %d are wrong", len(r.Buf), r.Off)
			}
			for i := range r.Buf {
				covered[int(r.Off)+i] = true
			}
		}
		if extra := s.bytes - len(covered); extra > int(gap)*max(0, len(ranges)-1) || s.reads > len(ranges) {
			t.Fatalf("%d reads of %d bytes for %d bytes in %d ranges, gap %d", s.reads, s.bytes, len(covered),
				len(ranges), gap)
		}
	})
	s := &memory{object: content(100)}
	one := []Range{{90, make([]byte, 10)}, {0, make([]byte, 10)}, {10, make([]byte, 10)}, {25, make([]byte, 5)}}
	if err := ReadRanges(t.Context(), s, Info{Size: 100}, one, 5); err != nil || s.reads != 2 || s.bytes != 40 {
		t.Errorf("%v: %d reads of %d bytes, want 2 of 40", err, s.reads, s.bytes)
	}
	for _, r := range []Range{{95, make([]byte, 6)}, {200, make([]byte, 1)}} {
		if err := ReadRanges(t.Context(), s, Info{Size: 100}, []Range{r}, 0); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("from %d: %v", r.Off, err)
		}
	}
	at := &ReaderAt{Context: t.Context(), Store: s, Object: Info{Size: 100}}
	if got, err := io.ReadAll(io.NewSectionReader(at, 20, at.Size())); err != nil || !bytes.Equal(got, s.object[20:]) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

func TestURIs(t *testing.T) {
	for uri, want := range map[string]Location{
		"s3://bucket":                  {"s3", "bucket", ""},
		"s3://bucket/":                 {"s3", "bucket", ""},
		"s3://bucket/a b/ü/%20?x#y":    {"s3", "bucket", "a b/ü/%20?x#y"},
		"s3://my.bucket-1/a@b:c/":      {"s3", "my.bucket-1", "a@b:c/"},
		"gs://b_k/x":                   {"gs", "b_k", "x"},
		"https://Host.Example/A%20b/c": {"https", "host.example", "A b/c"},
		"http://[::1]:9000/x":          {"http", "[::1]:9000", "x"},
		"file:/a/b/":                   {"file", "", "/a/b/"},
		"file:///a//b/../c":            {"file", "", "/a/c"},
		"/a/b: c":                      {"file", "", "/a/b: c"},
		"/a/s3://x":                    {"file", "", "/a/s3:/x"},
	} {
		got, err := Parse(uri)
		if err != nil || got != want {
			t.Errorf("Parse(%q) = %+v, %v; want %+v", uri, got, err, want)
		}
	}
	for uri, words := range map[string]string{
		"":                                   "names nothing",
		"s3:bucket/x":                        "two slashes",
		"s3://":                              "BUCKET/PREFIX",
		"s3:///x":                            "BUCKET/PREFIX",
		"s3://host:9000/bucket":              "stores.s3.endpoint",
		"s3://a/x":                           "3 to 222",
		"s3://bu cket/x":                     "3 to 222",
		"s3://bucket/a/../b":                 "has a part . or ..",
		"s3://bucket/a\nb":                   "control character",
		"s3://bucket/\xff":                   "UTF-8",
		"S3://bucket":                        "did you mean s3://",
		"s3a://bucket":                       "did you mean s3://",
		"s4://bucket":                        "did you mean s3://",
		"abfs://c/x":                         "write az://CONTAINER/PREFIX",
		"r2://c/x":                           "stores.s3.endpoint",
		"hdfs://c/x":                         "NFS",
		"zzzzzzz://c/x":                      "known are",
		"file://host/x":                      "names a host",
		"file:":                              "names no folder",
		"https://":                           "names no host",
		"https://h/x?sig=1":                  "a query",
		"https://h/x#1":                      "a query",
		"https://h/a/../b":                   "has a part . or ..",
		"https://h/%zz":                      "no web address",
		"https://u:p@h/x":                    "a secret",
		"s3://u@bucket/x":                    "a secret",
		"s3://AK:a/b@bucket/x":               "a secret",
		"gs://u:p@bucket":                    "a secret",
		"s3://b-1/x?sig=geheim":              "holds a signature",
		"gs://b-1/x?X-Goog-Signature=geheim": "holds a signature",
	} {
		_, err := Parse(uri)
		if err == nil || !strings.Contains(err.Error(), words) || hint(err) == "" {
			t.Errorf("Parse(%q) = %v, want %q", uri, err, words)
		}
	}
	for uri, want := range map[string]string{
		"s3://AK:se/cret@bucket/x":       "s3://***@bucket/x",
		"https://u:p@h/x?X-Amz-Sig=1":    "https://***@h/x?***",
		"s3://bucket/a@b?c":              "s3://bucket/a@b?c",
		"imagefolder:s3://a:b@c":         "imagefolder:s3://***@c",
		"wds:https://h/x.tar?sig=secret": "wds:https://h/x.tar?***",
		"plain":                          "plain",
	} {
		if got := Redact(uri); got != want {
			t.Errorf("Redact(%q) = %q, want %q", uri, got, want)
		}
	}
}

// FuzzURI: no URI panics, what is taken is stable, and no secret comes back in an error.
func FuzzURI(f *testing.F) {
	for _, s := range []string{"s3://bucket/x", "https://h:1/a%20b", "file:///x", "/x", "s3://a:b@c", "az://", "::",
		"s3://%", "http://[::1]/", "gs://b_c/é", "s3://" + strings.Repeat("a", 300)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, uri string) {
		const secret = "hunter2hunter2"
		for _, u := range []string{uri, strings.Replace(uri, "://", "://key:"+secret+"@", 1)} {
			l, err := Parse(u)
			if err != nil {
				if u != uri && !strings.Contains(uri, secret) && strings.Contains(err.Error(), secret) && IsRemote(u) {
					t.Fatalf("%v repeats the secret", err)
				}
				continue
			}
			if u != uri && IsRemote(u) {
				t.Fatalf("%q was taken, with its secret", u)
			}
			if l.Scheme == schemeHTTP || l.Scheme == schemeHTTPS { // which were decoded
				continue
			}
			again, err := Parse(l.String())
			if err != nil || again != l {
				t.Fatalf("%q is %+v, and that is %+v, %v", u, l, again, err)
			}
		}
	})
}

func TestOpenSharesStores(t *testing.T) {
	withKeys(t)
	var asked []string
	all := New(Config{Settings: func(scheme, name string) Settings {
		asked = append(asked, scheme+" "+name)
		return quickly("http://127.0.0.1:1")
	}})
	defer all.Close()
	a, key, err := all.Open(t.Context(), "s3://data/x/y")
	b, other, err2 := all.Open(t.Context(), "s3://data/z")
	if err != nil || err2 != nil || a != b || key != "x/y" || other != "z" || a.Name() != "s3://data" {
		t.Errorf("%v %v %q %q %v %v", a, b, key, other, err, err2)
	}
	if _, _, err := all.Open(t.Context(), "gs://data"); err != nil {
		t.Error(err)
	}
	if fmt.Sprint(asked) != "[s3 s3://data gs gs://data]" {
		t.Errorf("asked for settings of %q", asked)
	}
	if c := all.Counters(); len(c) != 2 || c[0].Name != "gs://data" || c[1].Name != "s3://data" {
		t.Errorf("%+v", c)
	}
	bad := New(Config{Settings: func(string, string) Settings { return Settings{} }})
	if _, _, err := bad.Open(t.Context(), "s3://data"); !errs.Is(err, errs.ConfigInvalid) {
		t.Errorf("settings that make no sense: %v", err)
	}
}
