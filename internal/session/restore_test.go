package session_test

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"

	"larder/internal/errs"
	"larder/internal/session"
)

// answers reports whether the listener gets what dials its path.
func answers(t *testing.T, l *session.Listener, accepted <-chan net.Conn) {
	t.Helper()
	c, err := net.Dial("unix", l.Path())
	if err != nil {
		t.Error(err)
		return
	}
	_ = c.Close()
	if got := <-accepted; got != nil {
		_ = got.Close()
	}
}

// A socket whose file somebody removed, with its folder or without, is bound again; what is accepted stays.
func TestARemovedSocketIsBoundAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run", "larder")
	path := filepath.Join(dir, "s")
	l, err := session.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan net.Conn)
	go func() {
		defer close(accepted)
		for {
			c, err := l.Door().Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	restore := func(want bool) {
		t.Helper()
		if got, err := l.Restore(); err != nil || got != want {
			t.Fatalf("%v, %v; want %v", got, err, want)
		}
		answers(t, l, accepted)
	}
	restore(false)
	for _, remove := range []func(string) error{
		func(string) error { return os.Remove(path) },
		func(string) error { return os.Remove(path + ".lock") },
		func(string) error { return os.RemoveAll(filepath.Dir(dir)) },
		func(string) error { return errors.Join(os.Remove(path), os.Remove(path+".lock")) },
	} {
		if err := remove(path); err != nil {
			t.Fatal(err)
		}
		_, err := os.Lstat(path)
		restore(errors.Is(err, fs.ErrNotExist))
		restore(false)
		if st, err := os.Stat(path); err != nil || st.Mode() != fs.ModeSocket|0o600 {
			t.Errorf("%v, %v", st, err)
		}
		if _, err := session.Listen(path); !errs.Is(err, errs.AlreadyExists) {
			t.Errorf("a second daemon: %v", err)
		}
	}
	// Another daemon has taken the place: it keeps it.
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	other, err := session.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := l.Restore(); got || !errs.Is(err, errs.AlreadyExists) {
		t.Errorf("%v, %v", got, err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	for range accepted { // until it has ended
		continue
	}
	if got, err := l.Restore(); got || err != nil {
		t.Errorf("after Close: %v, %v", got, err)
	}
	for _, name := range []string{path, path + ".lock"} {
		if _, err := os.Lstat(name); err != nil {
			t.Errorf("the other daemon's: %v", err)
		}
	}
	if err := other.Close(); err != nil {
		t.Error(err)
	}
}
