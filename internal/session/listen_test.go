package session_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"larder/internal/errs"
	"larder/internal/session"
	"larder/internal/session/wire"
	"larder/internal/testenv"
)

func TestListen(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "new", "folder", "s")
	l, err := session.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]fs.FileMode{filepath.Dir(path): fs.ModeDir | 0o700, path: fs.ModeSocket | 0o600,
		path + ".lock": 0o600} {
		if st, err := os.Stat(name); err != nil || st.Mode() != want {
			t.Errorf("%s: %v, %v; want %v", name, st.Mode(), err, want)
		}
	}
	_, err = session.Listen(path)
	if !errs.Is(err, errs.AlreadyExists) || !strings.Contains(err.Error(), fmt.Sprintf("process %d", os.Getpid())) ||
		!strings.Contains(err.Error(), "--socket") {
		t.Errorf("a second daemon: %v", err)
	}
	if err := errors.Join(l.Close(), l.Close()); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 0 {
		t.Errorf("left: %v", left)
	}

	// A daemon that was killed leaves its files.
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	if _, err := session.Listen(path); !errs.Is(err, errs.AlreadyExists) { // alive, without a lock
		t.Errorf("another process's socket: %v", err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("another process's socket was removed: %v", err)
	}
	_ = dead.Close()
	if err := os.WriteFile(path+".lock", []byte("999999999\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if l, err = session.Listen(path); err != nil {
		t.Fatalf("after a dead daemon: %v", err)
	}
	if c, err := net.Dial("unix", path); err != nil {
		t.Error(err)
	} else {
		_ = c.Close()
	}
	// Close must not remove what is not its own.
	if err := os.Rename(path, path+".moved"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	if _, err := os.Stat(path); err != nil {
		t.Errorf("a strange file was removed: %v", err)
	}
	if _, err := session.Listen(path); !errs.Is(err, errs.Invalid) {
		t.Errorf("a file in the way: %v", err)
	}
}

func TestListenRefusals(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	open := filepath.Join(dir, "open")
	if err := errors.Join(os.Mkdir(open, 0o700), os.Chmod(open, 0o777)); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{
		"long": filepath.Join(dir, strings.Repeat("x", 108)), "below a file": filepath.Join(file, "s"),
		"open to others": filepath.Join(open, "s"),
		"a folder":       open,
	} {
		if l, err := session.Listen(path); !errs.Is(err, errs.Invalid) || errs.From(err).Hint == "" {
			t.Errorf("%s: %v", name, err)
			if err == nil {
				_ = l.Close()
			}
		}
	}
	// The sticky bit makes a shared folder good enough, as /tmp.
	if err := os.Chmod(open, 0o777|fs.ModeSticky); err != nil {
		t.Fatal(err)
	}
	l, err := session.Listen(filepath.Join(open, "s"))
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	// The default folder is closed to others, whatever an earlier run did.
	t.Setenv("LARDER_SOCKET", "")
	t.Setenv("XDG_RUNTIME_DIR", dir)
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "larder"), 0o700),
		os.Chmod(filepath.Join(dir, "larder"), 0o755)); err != nil {
		t.Fatal(err)
	}
	if l, err = session.Listen(session.DefaultSocket()); err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	if st, err := os.Stat(filepath.Join(dir, "larder")); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("the default folder: %v, %v", st.Mode(), err)
	}
	if err := os.RemoveAll(filepath.Join(dir, "larder")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(open, filepath.Join(dir, "larder")); err != nil {
		t.Fatal(err)
	}
	if l, err := session.Listen(session.DefaultSocket()); !errs.Is(err, errs.Invalid) {
		t.Errorf("a link in place of the default folder: %v", err)
		if err == nil {
			_ = l.Close()
		}
	}
}

// TestListenRace: of many that start, stop and start again at once, never two hold the socket, and one always can.
func TestListenRace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	var holders, wins atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for won := 0; won < 10; {
				l, err := session.Listen(path)
				if err != nil {
					if !errs.Is(err, errs.AlreadyExists) {
						t.Error(err)
						return
					}
					continue
				}
				if n := holders.Add(1); n != 1 {
					t.Errorf("%d hold the socket", n)
				}
				if c, err := net.Dial("unix", path); err != nil {
					t.Errorf("the holder cannot be reached: %v", err)
				} else {
					_ = c.Close()
				}
				holders.Add(-1)
				_ = l.Close()
				won++
				wins.Add(1)
			}
		})
	}
	wg.Wait()
	if wins.Load() != 80 {
		t.Errorf("%d wins", wins.Load())
	}
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// reached is what came over a connection, and the half that it came to.
type reached struct{ half, text string }

// acceptAll takes the connections of a half until it is closed.
func acceptAll(t *testing.T, wg *sync.WaitGroup, name string, h net.Listener, out chan<- reached) {
	for {
		c, err := h.Accept()
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				t.Error(err)
			}
			return
		}
		if _, ok := c.(*net.UnixConn); !ok {
			t.Errorf("a %T", c)
		}
		wg.Go(func() {
			b, _ := io.ReadAll(c)
			_ = c.Close()
			out <- reached{name, string(b)}
		})
	}
}

// TestMux: each connection reaches the half of its first bytes, none of which is lost; silent peers delay no other.
func TestMux(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := session.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	grpc, sessions := session.Mux(l)
	out := make(chan reached, 100)
	var wg sync.WaitGroup
	for name, h := range map[string]net.Listener{"grpc": grpc, "session": sessions} {
		wg.Go(func() { acceptAll(t, &wg, name, h, out) })
	}
	dial := func() net.Conn {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	var silent []net.Conn
	for i := range 50 {
		c := dial()
		if _, err := io.WriteString(c, "PRI "[:i%4]); err != nil {
			t.Fatal(err)
		}
		silent = append(silent, c)
	}
	header := string(wire.AppendHeader(nil, wire.Header{Type: wire.Hello, Length: 2}))
	for _, c := range []struct {
		parts []string
		half  string
	}{
		{[]string{"PRI * HTTP/2.0\r\n"}, "grpc"},
		{[]string{"P", "R", "I", " ", "*"}, "grpc"},
		{[]string{"PRI "}, "grpc"},
		{[]string{header}, "session"},
		{[]string{"\x01"}, "session"},
		{[]string{"P", "RO"}, "session"},
		{[]string{"PRI", "!"}, "session"},
		{[]string{"\x00"}, "session"},
	} {
		x := dial()
		for _, p := range c.parts {
			if _, err := io.WriteString(x, p); err != nil {
				t.Fatal(err)
			}
			testenv.Eventually(t, "what came was looked at", func() bool { // one by one, mostly; either way must do
				waiting, all := testenv.Parked("session.peek")
				return waiting == all
			})
		}
		_ = x.Close()
		if g := <-out; g.half != c.half || g.text != strings.Join(c.parts, "") {
			t.Errorf("%q reached %s as %q", c.parts, g.half, g.text)
		}
	}
	_ = dial().Close() // comes and goes
	if err := grpc.Close(); err != nil {
		t.Error(err)
	}
	x := dial()
	if _, err := io.WriteString(x, "\x01still"); err != nil {
		t.Fatal(err)
	}
	_ = x.Close()
	if g := <-out; g.half != "session" || g.text != "\x01still" {
		t.Errorf("with one half closed: %+v", g)
	}
	if err := errors.Join(sessions.Close(), sessions.Close(), grpc.Close()); err != nil {
		t.Error(err)
	}
	wg.Wait()
	for _, c := range silent { // all were hung up
		if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("a silent peer after the end: %d, %v", n, err)
		}
		_ = c.Close()
	}
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// TestMuxListenerClosed: closing the listener below ends both halves.
func TestMuxListenerClosed(t *testing.T) {
	l, err := session.Listen(filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	grpc, sessions := session.Mux(l)
	done := make(chan error, 1)
	go func() { _, err := grpc.Accept(); done <- err }()
	_ = l.Close()
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	if _, err := sessions.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	if err := errors.Join(grpc.Close(), sessions.Close()); err != nil {
		t.Error(err)
	}
	if _, err := grpc.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

// TestMuxUnused: halves without an Accept can be closed.
func TestMuxUnused(t *testing.T) {
	l, err := session.Listen(filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	grpc, sessions := session.Mux(l)
	if err := errors.Join(grpc.Close(), sessions.Close()); err != nil {
		t.Error(err)
	}
}

// TestDoorKeepsTheLock: a daemon that closed its door serves no client, and still keeps the next daemon
// from beginning.
func TestDoorKeepsTheLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "l.sock")
	l, err := session.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	first, second := session.Mux(l.Door())
	for range 2 {
		if err := errors.Join(first.Close(), second.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is there: %v", err)
	}
	if !session.Held(path) {
		t.Error("the lock went with the door")
	}
	for range 2 {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	if session.Held(path) {
		t.Error("the lock is there after the listener was closed")
	}
	next, err := session.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := next.Close(); err != nil {
		t.Error(err)
	}
}
