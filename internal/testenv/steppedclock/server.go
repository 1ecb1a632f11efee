// Package steppedclock is the clock of a test that daemons in processes of their own follow: `larder serve --clock` in
// a build with -tags failpoints.
//
// It listens on a Unix socket. Lines go over it: the server says `now NS`, the nanoseconds of its clock, at once and at
// each step; a follower answers `ok NS` when it has moved its clock and every timer that was due has fired. The clock
// stands still between steps. A step that must be seen in parts (a lease of a minute with heartbeats between) is made
// in parts by the test, which waits for what each part brings.
package steppedclock

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// start is the first time of every clock, which may also be read as a wall time.
const start = 1_000_000_000_000_000_000

// bound is how long a follower may take for a step: minutes, so that a machine under load decides no test.
const bound = 5 * time.Minute

// Server is the clock of one test.
type Server struct {
	t    testing.TB
	path string
	l    net.Listener

	step sync.Mutex // held during a step: who comes meanwhile gets the new time

	mu        sync.Mutex // guards what follows
	now       int64
	followers map[*follower]struct{}
	changed   chan struct{} // closed when a follower comes, answers or goes
}

type follower struct {
	conn net.Conn
	told int64 // its last answer
}

// Start returns a clock that ends with the test.
func Start(t testing.TB) *Server {
	t.Helper()
	dir, err := os.MkdirTemp("", "clock") // t.TempDir's path may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{t: t, path: filepath.Join(dir, "clock.sock"), now: start, followers: map[*follower]struct{}{},
		changed: make(chan struct{})}
	if s.l, err = net.Listen("unix", s.path); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.l.Close()
		s.mu.Lock()
		for f := range s.followers {
			f.conn.Close()
		}
		s.mu.Unlock()
		os.RemoveAll(dir)
	})
	go s.accept()
	return s
}

// Address returns unix:PATH, the address for followers.
func (s *Server) Address() string { return "unix:" + s.path }

// Now is the time of the clock.
func (s *Server) Now() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Unix(0, s.now)
}

// Advance moves the clock by d, and returns when every follower has done what was due.
func (s *Server) Advance(d time.Duration) {
	s.t.Helper()
	if d <= 0 {
		s.t.Fatalf("advance the clock by %v: it only goes forward", d)
	}
	s.step.Lock()
	defer s.step.Unlock()
	s.mu.Lock()
	s.now += int64(d)
	now := s.now
	for f := range s.followers {
		if f.tell(now) != nil {
			s.drop(f)
		}
	}
	s.mu.Unlock()
	s.await(fmt.Sprintf("a follower of the clock did not answer a step of %v", d), func() bool {
		for f := range s.followers {
			if f.told < now {
				return false
			}
		}
		return true
	})
}

// Await waits until so many followers are connected.
func (s *Server) Await(followers int) {
	s.t.Helper()
	s.await(fmt.Sprintf("%d followers of the clock did not come", followers), func() bool {
		n := 0
		for f := range s.followers {
			if f.told > 0 {
				n++
			}
		}
		return n >= followers
	})
}

// await waits until ok, which is called with the lock, is true.
func (s *Server) await(failure string, ok func() bool) {
	s.t.Helper()
	end := time.NewTimer(bound)
	defer end.Stop()
	for {
		s.mu.Lock()
		done, changed := ok(), s.changed
		s.mu.Unlock()
		if done {
			return
		}
		select {
		case <-changed:
		case <-end.C:
			s.t.Fatalf("%s in %v", failure, bound)
		}
	}
}

func (s *Server) accept() {
	for {
		conn, err := s.l.Accept()
		if err != nil {
			return
		}
		f := &follower{conn: conn}
		s.mu.Lock()
		if f.tell(s.now) == nil {
			s.followers[f] = struct{}{}
			go s.listen(f)
		} else {
			conn.Close()
		}
		s.mu.Unlock()
	}
}

func (f *follower) tell(now int64) error {
	_, err := fmt.Fprintf(f.conn, "now %d\n", now)
	return err
}

// listen notes the answers of a follower until it goes: a killed one is not waited for.
func (s *Server) listen(f *follower) {
	lines := bufio.NewReader(f.conn)
	for {
		var ns int64
		line, err := lines.ReadString('\n')
		if err == nil {
			_, err = fmt.Sscanf(line, "ok %d\n", &ns)
		}
		s.mu.Lock()
		if err != nil {
			s.drop(f)
			s.mu.Unlock()
			return
		}
		f.told = max(f.told, ns)
		s.tell()
		s.mu.Unlock()
	}
}

// drop forgets a follower; the lock is held.
func (s *Server) drop(f *follower) {
	if _, ok := s.followers[f]; ok {
		delete(s.followers, f)
		f.conn.Close()
		s.tell()
	}
}

func (s *Server) tell() {
	close(s.changed)
	s.changed = make(chan struct{})
}
