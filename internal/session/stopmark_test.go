package session

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"larder/internal/errs"
)

// TestStopMark: the mark of a stop is there from the stop until the next daemon serves the socket, differs from every
// other one, and never appears beside a socket that is served, unless the server puts it there.
func TestStopMark(t *testing.T) {
	path := filepath.Join(t.TempDir(), "l.sock")
	if _, ok := ReadStopMark(path); ok || Held(path) {
		t.Error("there is a mark, or a holder, of nothing")
	}
	one := NewStopMark("alice\x1b[31m\n(larder stop)", 4711)
	if strings.ContainsAny(one.By, "\x1b\n") {
		t.Errorf("who stops is %q", one.By)
	}
	if err := MarkUnserved(path, one); err != nil {
		t.Fatal(err)
	}
	if got, ok := ReadStopMark(path); !ok || got != one {
		t.Errorf("read %+v, %v; left %+v", got, ok, one)
	}
	if Held(path) {
		t.Error("leaving a mark keeps the socket")
	}
	start, err := os.Create(path + ".start")
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(start.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if err := MarkUnserved(path, NewStopMark("bob", 0)); !errs.Is(err, errs.AlreadyExists) ||
		!strings.Contains(err.Error(), "is starting") {
		t.Errorf("a mark while a client starts the daemon: %v", err)
	}
	if err := start.Close(); err != nil {
		t.Fatal(err)
	}
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if !Held(path) {
		t.Error("a socket that is served counts as free")
	}
	if err := MarkUnserved(path, NewStopMark("bob", 0)); !errs.Is(err, errs.AlreadyExists) {
		t.Errorf("a mark beside a socket that is served: %v", err)
	}
	if got, _ := ReadStopMark(path); got != one {
		t.Errorf("the mark has become %+v", got)
	}
	for range 2 {
		if err := l.Unmark(); err != nil {
			t.Error(err)
		}
	}
	if _, ok := ReadStopMark(path); ok {
		t.Error("the mark is there after a daemon has served the socket")
	}
	two := NewStopMark("", 1)
	if err := l.Mark(two); err != nil {
		t.Fatal(err)
	}
	if got, ok := ReadStopMark(path); !ok || got.ID == one.ID || got.By != "an unnamed user" {
		t.Errorf("the next mark is %+v, %v", got, ok)
	}
	if f := two.Fault(path); f.Reason != errs.Stopped ||
		!strings.Contains(f.Message, "was stopped by an unnamed user at ") || !strings.Contains(f.Hint, "larder serve") {
		t.Errorf("clients hear %v", f)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, ok := ReadStopMark(path); !ok || Held(path) {
		t.Error("the mark has gone with the daemon, or the socket is held after it")
	}
	for _, junk := range []string{"", "{", "null", "[]", `{"id": 3}`, `{"id": ""}`, strings.Repeat("x", 1<<20)} {
		if err := os.WriteFile(path+".stopped", []byte(junk), 0o600); err != nil {
			t.Fatal(err)
		}
		if m, ok := ReadStopMark(path); ok {
			t.Errorf("%.20q is read as the mark %+v", junk, m)
		}
	}
}
