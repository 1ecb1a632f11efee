package main

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// shardServer serves tars of two samples each, and counts which are read.
type shardServer struct {
	*httptest.Server

	mu     sync.Mutex
	reads  map[string]int
	killAt int // when so many different ones are read, victim is killed; 0 = never
	victim *exec.Cmd
}

func newShardServer(t *testing.T, n int) *shardServer {
	t.Helper()
	s := &shardServer{reads: map[string]int{}}
	shards := map[string][]byte{}
	for i := range n {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for k := range 2 {
			body := fmt.Sprintf("image %d of shard %d", k, i)
			if err := w.WriteHeader(&tar.Header{Name: fmt.Sprintf("%d-%d.jpg", i, k), Size: int64(len(body))}); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write([]byte(body)); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		shards[fmt.Sprintf("%03d.tar", i)] = b.Bytes()
	}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := path.Base(r.URL.Path)
		if r.Method == http.MethodGet && s.read(name) {
			return // nobody is there to answer
		}
		w.Header().Set("ETag", `"`+name+`"`)
		http.ServeContent(w, r, name, time.Unix(1e9, 0), bytes.NewReader(shards[name]))
	}))
	t.Cleanup(s.Close)
	return s
}

// read counts a read, and reports whether the reader is dead.
func (s *shardServer) read(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads[name]++
	if s.killAt == 0 || len(s.reads) < s.killAt {
		return false
	}
	_ = s.victim.Process.Kill() // Wait says how it ended
	return true
}

// take returns how many shards were read, and begins anew.
func (s *shardServer) take() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.reads)
	s.reads, s.killAt = map[string]int{}, 0
	return n
}

// entries counts what a scan log has, whole ones only (docs/format/index.md).
func entries(t *testing.T, index string) (files int) {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(index, "*.larderscan"))
	if err != nil || len(logs) > 1 {
		t.Fatalf("scan logs %q, %v", logs, err)
	}
	if len(logs) == 0 {
		return 0
	}
	b, err := os.ReadFile(logs[0])
	if err != nil || len(b) < 24 {
		t.Fatalf("%d bytes, %v", len(b), err)
	}
	b = b[24+binary.LittleEndian.Uint64(b[16:])+8:]
	for len(b) >= 8 {
		n := binary.LittleEndian.Uint64(b)
		if uint64(len(b)) < n+16 {
			break
		}
		if b[8] == 0 {
			files++
		}
		b = b[n+16:]
	}
	return files
}

// TestKilledIndexGoesOn: an index of many shards is killed by SIGKILL; the next one reads the shards that are left, and
// is the same as one that nobody killed.
func TestKilledIndexGoesOn(t *testing.T) {
	const (
		shards   = 300
		scanners = 32  // at most so many are read beside each other
		done     = 150 // so many at least are scanned before
	)
	s, cache := newShardServer(t, shards), t.TempDir()
	uri := fmt.Sprintf("wds:%s/{000..%03d}.tar", s.URL, shards-1)
	command := func(cache string) (*exec.Cmd, *bytes.Buffer) {
		cmd := exec.CommandContext(t.Context(), "larder", "dataset", "index", uri, "-o", "json")
		cmd.Env = append(os.Environ(), "XDG_CACHE_HOME="+cache, "HOME="+cache, "LARDER_CONFIG=", "LARDER_SOCKET="+cache+"/s")
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, os.Stderr
		return cmd, &out
	}
	index := func(cache string) (r indexed) {
		t.Helper()
		cmd, out := command(cache)
		if err := cmd.Run(); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(out.Bytes(), &r); err != nil {
			t.Fatalf("%v in %s", err, out)
		}
		return r
	}
	cmd, _ := command(cache)
	// Who reads another shard has scanned the one before: of those that were read, at most 32 are not scanned.
	s.mu.Lock()
	s.victim, s.killAt = cmd, done+scanners
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.mu.Unlock()
	_ = cmd.Wait()
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !ok || status.Signal() != syscall.SIGKILL {
		t.Fatalf("it ended by %v", cmd.ProcessState)
	}
	read := s.take()
	kept := entries(t, filepath.Join(cache, "larder", "index"))
	if kept < done || kept >= read || read >= shards {
		t.Fatalf("%d shards were read, and %d are in the scan log", read, kept)
	}
	r := index(cache)
	if n := s.take(); n != shards-kept || r.Kept != kept || r.Samples != 2*shards {
		t.Errorf("the next index read %d of %d shards, of which %d were scanned: %+v", n, shards, kept, r)
	}
	if n := entries(t, filepath.Join(cache, "larder", "index")); n != 0 {
		t.Errorf("the scan log is left, with %d files", n)
	}
	whole := index(t.TempDir())
	if n := s.take(); n != shards || whole.Kept != 0 || whole.Fingerprint != r.Fingerprint {
		t.Errorf("an index that nobody killed read %d shards: %+v, not %+v", n, whole, r)
	}
	if r = index(cache); r.Found != 0 || s.take() != 0 {
		t.Errorf("a whole index was made again: %+v", r)
	}
}
