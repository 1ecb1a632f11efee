package session

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"larder/internal/errs"
)

// StopMark lies beside a socket, in SOCKET.stopped, from the moment in which a user has stopped the daemon until the
// next daemon serves the socket. A client that was made before it starts no daemon; one that finds it when it is made
// may (docs/protocol.md).
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
		by = "an unnamed user"
	}
	if len(by) > 200 {
		by = strings.ToValidUTF8(by[:200], "")
	}
	now := time.Now()
	return StopMark{ID: fmt.Sprintf("%d-%d", now.UnixNano(), os.Getpid()), PID: int32(pid), By: by,
		At: now.UTC().Truncate(time.Second)}
}

// Fault is the error that clients get.
func (m StopMark) Fault(socket string) *errs.Error {
	return errs.New(errs.Stopped, socket,
		"run the script again, or `larder serve`; next() of a live loader continues once a daemon serves the socket",
		"the larder daemon at %s was stopped by %s at %s", socket, m.By, m.At.Format("2006-01-02 15:04:05 UTC"))
}

// write puts the mark beside the socket. The process that serves the socket, or holds its lock, may. Others may have
// the right to make files in the folder (/tmp), so nothing that is there already is opened: the new file has a name
// that no user can have taken, and replaces the old one.
func (m StopMark) write(socket string) (err error) {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	name := markPath(socket)
	f, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".*.tmp") // O_EXCL: no link is followed
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err == nil { // clients read it
		err = os.Rename(f.Name(), name) // replaces a link, and does not follow it
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// Mark leaves the mark of a stop beside the socket that is served.
func (l *Listener) Mark(m StopMark) error { return m.write(l.path) }

// Unmark removes the mark of an earlier stop: a daemon is wanted again. A mark that is not believed may stay.
func (l *Listener) Unmark() error {
	err := os.Remove(markPath(l.path))
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if _, ok := ReadStopMark(l.path); !ok {
		return nil // another user's, in a folder that all may write in: clients do not believe it either
	}
	return err
}

// MarkUnserved leaves the mark beside a socket that no process serves. ALREADY_EXISTS: one serves it, or is starting
// the daemon that will.
func MarkUnserved(socket string, m StopMark) error {
	// Clients that start daemons hold this lock until theirs is ready, and look for the mark when they have it.
	if starting, err := os.OpenFile(socket+".start", os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0); err == nil {
		defer starting.Close()
		if errors.Is(unix.Flock(int(starting.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK) {
			return errs.New(errs.AlreadyExists, socket, "try again", "a client is starting the daemon of %s", socket)
		}
	}
	lock, err := acquire(socket)
	if err != nil {
		return err
	}
	defer release(lock)
	return m.write(socket)
}

// ReadStopMark returns the mark beside a socket; ok is false where there is none that can be read, or one of a user
// who could not have stopped the daemon: it is believed from root, from the reader himself, and from the owner of the
// folder.
func ReadStopMark(socket string) (m StopMark, ok bool) {
	f, err := os.OpenFile(markPath(socket), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return m, false
	}
	defer f.Close()
	var st, dir unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG ||
		unix.Stat(filepath.Dir(f.Name()), &dir) != nil {
		return m, false
	}
	if st.Uid != 0 && st.Uid != uint32(os.Getuid()) && st.Uid != dir.Uid {
		return m, false
	}
	b := make([]byte, maxMark)
	n, _ := f.Read(b)
	return m, json.Unmarshal(b[:n], &m) == nil && m.ID != ""
}

// Held reports whether a daemon has the socket, also one that does not answer any more, or not yet.
func Held(socket string) bool {
	f, err := os.OpenFile(socket+".lock", os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
}
