package session

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"larder/internal/fault"
)

// StopMark lies beside a socket, in SOCKET.stopped, from the moment in which somebody has stopped the daemon until the next daemon serves the
// socket. A client that was made before it starts no daemon; one that finds it when it is made may (docs/protocol.md).
type StopMark struct {
	ID  string    `json:"id"`  // differs from that of every other stop
	PID int32     `json:"pid"` // of the daemon that was stopped, 0 = none ran
	By  string    `json:"by"`
	At  time.Time `json:"at"`
}

const maxMark = 4096

func markPath(socket string) string { return socket + ".stopped" }

// NewStopMark makes a mark of this moment. by is who stops, as he says.
func NewStopMark(by string, pid int) StopMark {
	by = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return -1
	}, by)
	if by == "" {
		by = "somebody"
	}
	if len(by) > 200 {
		by = strings.ToValidUTF8(by[:200], "")
	}
	now := time.Now()
	return StopMark{ID: fmt.Sprintf("%d-%d", now.UnixNano(), os.Getpid()), PID: int32(pid), By: by, At: now.UTC().Truncate(time.Second)}
}

// Fault is what clients are told.
func (m StopMark) Fault(socket string) *fault.Error {
	return fault.New(fault.Stopped, socket, "run the script again, or `larder serve`; next() of a loader that lives goes on once a daemon serves the socket",
		"the larder daemon at %s was stopped by %s at %s", socket, m.By, m.At.Format("2006-01-02 15:04:05 UTC"))
}

// write puts the mark beside the socket. Whoever serves the socket, or holds its lock, may.
func (m StopMark) write(socket string) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	name := markPath(socket)
	if err := os.WriteFile(name+".tmp", append(b, '\n'), 0o644); err != nil { //nolint:gosec // clients read it
		return err
	}
	return os.Rename(name+".tmp", name)
}

// Mark leaves the mark of a stop beside the socket that is served.
func (l *Listener) Mark(m StopMark) error { return m.write(l.path) }

// Unmark removes the mark of an earlier stop: somebody wants a daemon again.
func (l *Listener) Unmark() error {
	if err := os.Remove(markPath(l.path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// MarkUnserved leaves the mark beside a socket that nobody serves. ALREADY_EXISTS: somebody does, or is starting the daemon that will.
func MarkUnserved(socket string, m StopMark) error {
	// Clients that start daemons hold this lock until theirs is ready, and look for the mark when they have it.
	if starting, err := os.OpenFile(socket+".start", os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0); err == nil {
		defer starting.Close()
		if errors.Is(unix.Flock(int(starting.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK) {
			return fault.New(fault.AlreadyExists, socket, "try again", "a client is starting the daemon of %s", socket)
		}
	}
	lock, err := acquire(socket)
	if err != nil {
		return err
	}
	defer release(lock)
	return m.write(socket)
}

// ReadStopMark returns the mark beside a socket; ok is false where there is none that can be read.
func ReadStopMark(socket string) (m StopMark, ok bool) {
	f, err := os.OpenFile(markPath(socket), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return m, false
	}
	defer f.Close()
	b := make([]byte, maxMark)
	n, _ := f.Read(b)
	return m, json.Unmarshal(b[:n], &m) == nil && m.ID != ""
}

// Held tells whether a daemon has the socket, also one that does not answer any more, or not yet.
func Held(socket string) bool {
	f, err := os.OpenFile(socket+".lock", os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
}
