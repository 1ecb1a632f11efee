package session

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"larder/internal/errs"
	"larder/internal/proc"
	"larder/internal/session/wire"
	"larder/internal/shm"
)

// maxPath is the longest path that fits into a socket address.
const maxPath = 107

// Listener is a Unix socket that this process alone serves: it holds a lock beside the socket until Close, which
// removes both files.
type Listener struct {
	path  string
	group int // see ListenGroup
	mu    struct {
		sync.Mutex
		bound
		stopped, released bool
		err               error // of stopping
	}
}

// bound is a socket that is listened on.
type bound struct {
	socket *net.UnixListener
	lock   *os.File
	own    os.FileInfo // the socket file that is ours
}

// Listen makes the socket (0600) and, where it is missing, its folder (0700). It refuses with ALREADY_EXISTS, naming
// the process, when a daemon serves the path; a socket file that a dead daemon left is replaced. Of two daemons that
// start at once exactly one wins.
func Listen(path string) (*Listener, error) { return ListenGroup(path, 0) }

// ListenGroup is Listen for a socket that the members of a group may use too (0660); 0 = no group's. They must be able
// to reach it: a folder that it makes has the mode 0710 and the group.
func ListenGroup(path string, group int) (*Listener, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, errs.New(errs.Invalid, path, "give an absolute path with --socket", "find the socket's folder").
			Because(err)
	}
	if len(path) > maxPath {
		return nil, errs.New(errs.Invalid, path, "choose a shorter one with --socket or LARDER_SOCKET",
			"the path of the socket has %d bytes, the kernel takes at most %d", len(path), maxPath)
	}
	if private(path) && group > 0 {
		return nil, errs.New(errs.Invalid, path,
			"name one in a folder that they can reach, e.g. --socket /run/larder/larder.sock; they set LARDER_SOCKET to it",
			"the socket %s is in this user's private folder, where the group has no access", path)
	}
	if err := folders(path, group); err != nil {
		return nil, err
	}
	lock, err := acquire(path)
	if err != nil {
		return nil, err
	}
	b, err := bind(path, lock, group)
	if err != nil {
		release(lock)
		return nil, err
	}
	l := &Listener{path: path, group: group}
	l.mu.bound = *b
	return l, nil
}

// private reports whether a socket is the default one of this user.
func private(path string) bool {
	return path == wire.DefaultSocket() && os.Getenv("LARDER_SOCKET") == ""
}

// folders makes the folder of a socket, and checks it.
func folders(path string, group int) error {
	if err := shared(filepath.Dir(path), group); err != nil {
		return err
	}
	return folder(filepath.Dir(path), private(path))
}

// folder makes the socket's folder and refuses one in which another user could put a socket in our place.
// A private one (the default place) is also closed to others when an earlier run left it open.
func folder(dir string, private bool) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return errs.New(errs.Invalid, dir, "choose a folder that you may write, with --socket or LARDER_SOCKET",
			"make the socket's folder").Because(err)
	}
	var st unix.Stat_t
	stat := unix.Stat
	if private {
		stat = unix.Lstat // under /tmp any user could have left a link
	}
	if err := stat(dir, &st); err != nil {
		return errs.New(errs.Invalid, dir, "choose another folder with --socket or LARDER_SOCKET",
			"look at the socket's folder").Because(err)
	}
	me := uint32(os.Getuid())
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return errs.New(errs.Invalid, dir, "remove it, or choose another folder with --socket or LARDER_SOCKET",
			"the socket's folder %s is no folder", dir)
	case st.Uid != me && st.Uid != 0, private && st.Uid != me:
		return errs.New(errs.Invalid, dir, "choose a folder of your own with --socket or LARDER_SOCKET",
			"the socket's folder %s belongs to uid %d, this process is uid %d", dir, st.Uid, me)
	case st.Mode&0o022 != 0 && st.Mode&unix.S_ISVTX == 0 && !private:
		return errs.New(errs.Invalid, dir, "run: chmod go-w "+dir,
			"others may write in the socket's folder %s, so they could replace the socket", dir)
	case private && st.Mode&0o077 != 0:
		if err := os.Chmod(dir, 0o700); err != nil { //nolint:gosec // a folder needs its x bit
			return errs.New(errs.Invalid, dir, "run: chmod 700 "+dir, "close the socket's folder to others").Because(err)
		}
	}
	return nil
}

// acquire takes the lock beside the socket. It waits for a holder that is dying, and for one that does not serve: it
// ends, or begins to serve.
func acquire(path string) (lock *os.File, err error) {
	holds := 0
	err = proc.Until(func() error {
		lock, holds, err = tryAcquire(path)
		return err
	}, func() bool { return holds != 0 && (proc.Dying(holds) || serving(path) == 0) })
	if err != nil && holds != 0 {
		return nil, taken(path, holds)
	}
	return lock, err
}

// tryAcquire is acquire without patience; where another process has the lock it returns its PID, or -1.
func tryAcquire(path string) (lock *os.File, holds int, err error) {
	name := path + ".lock"
	for {
		f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
		if err != nil {
			return nil, 0, errs.New(errs.Invalid, path,
				"choose a folder that you may write, with --socket or LARDER_SOCKET", "open the lock of the socket").Because(err)
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			if errors.Is(err, unix.EWOULDBLOCK) {
				if holds = holder(path, f); holds == 0 {
					holds = -1
				}
			} else {
				err = errs.New(errs.Invalid, path, "choose a folder on a local file system with --socket", "lock the socket").
					Because(err)
			}
			_ = f.Close()
			return nil, holds, err
		}
		// The lock counts only for the file that still has the name: the last holder may have removed it between our
		// open and our flock, and then another process can lock the next one.
		mine, err1 := f.Stat()
		named, err2 := os.Lstat(name)
		if err1 == nil && err2 == nil && os.SameFile(mine, named) {
			if st, ok := mine.Sys().(*syscall.Stat_t); !ok || !mine.Mode().IsRegular() || st.Nlink != 1 {
				_ = f.Close() // what has another name too may be of another user, and must not be written
				return nil, 0, errs.New(errs.Invalid, path, "remove it, or choose another socket with --socket",
					"the lock %s is not a file of its own", name)
			}
			if err := errors.Join(f.Truncate(0), writeAt(f, strconv.Itoa(os.Getpid())+"\n")); err != nil {
				release(f)
				return nil, 0, errs.New(errs.Invalid, path, "is the disk full?", "write the lock of the socket").Because(err)
			}
			return f, 0, nil
		}
		_ = f.Close()
	}
}

func writeAt(f *os.File, s string) error {
	_, err := f.WriteAt([]byte(s), 0)
	return err
}

// release removes the lock's file while it is still locked, then unlocks it.
func release(f *os.File) {
	_ = os.Remove(f.Name())
	_ = f.Close()
}

// holder asks the kernel who serves the socket, else reads the note in the lock.
func holder(path string, lock *os.File) int {
	if pid := serving(path); pid > 0 {
		return pid
	}
	b := make([]byte, 20)
	n, _ := lock.ReadAt(b, 0)
	pid, _ := strconv.Atoi(strings.TrimSpace(string(b[:n])))
	return pid
}

// serving returns the PID of the process that listens at path; 0: none, -1: perhaps one whose PID is not visible.
func serving(path string) int {
	c, err := net.DialTimeout("unix", path, time.Second)
	if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) {
		return 0
	}
	if err != nil { // its backlog is full, or it is not ours to ask
		return -1
	}
	defer c.Close()
	p, err := shm.PeerOf(c.(*net.UnixConn))
	if err != nil || p.PID == 0 {
		return -1
	}
	return int(p.PID)
}

func taken(path string, pid int) error {
	who, fix := "another process", "use it"
	if pid > 0 {
		who, fix = fmt.Sprintf("process %d", pid), fmt.Sprintf("use it, stop it with `larder stop --socket %s`", path)
	}
	return errs.New(errs.AlreadyExists, path, fix+", or choose another socket with --socket", "%s serves %s already", who,
		path)
}

func bind(path string, lock *os.File, group int) (*bound, error) {
	switch st, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, errs.New(errs.Invalid, path, "choose another socket with --socket", "look for an old socket").Because(err)
	case st.Mode().Type() != fs.ModeSocket:
		return nil, errs.New(errs.Invalid, path, "choose another path with --socket, or move the file away",
			"%s exists and is no socket", path)
	default:
		// The process that answers here has no lock: a program of another kind, or its lock was removed by hand.
		if pid := serving(path); pid != 0 {
			return nil, taken(path, pid)
		}
		if err := os.Remove(path); err != nil {
			return nil, errs.New(errs.Invalid, path, "remove it by hand", "replace the socket of a dead daemon").Because(err)
		}
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, errs.New(errs.Invalid, path, "choose another path with --socket", "listen on the socket").Because(err)
	}
	l.SetUnlinkOnClose(false) // Close does it, when the file is still ours
	// Between bind and chmod the folder's mode guards the socket, and the check of the peer's uid always does.
	if err := open(path, group); err != nil {
		return nil, errors.Join(errs.New(errs.Invalid, path, "choose another path with --socket",
			"close the socket to others").Because(err), l.Close(), os.Remove(path))
	}
	own, err := os.Lstat(path)
	if err != nil {
		return nil, errors.Join(errs.New(errs.Invalid, path, "choose another path with --socket", "look at the socket").
			Because(err),
			l.Close(), os.Remove(path))
	}
	return &bound{socket: l, lock: lock, own: own}, nil
}

// open gives the socket its mode. The group comes first: before it, the old one must not get in.
func open(path string, group int) error {
	if group == 0 {
		return os.Chmod(path, 0o600)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return err
	}
	if err := os.Chown(path, -1, group); err != nil {
		return errs.New(errs.Invalid, path, "run the daemon as a member of the group, or as root",
			"give the socket to group %d", group).Because(err)
	}
	return os.Chmod(path, 0o660) //nolint:gosec // this is what was asked for
}

// shared makes the folder of a socket for a group where it is missing, and refuses a place that the group cannot
// reach, or in which another user could put a folder.
func shared(dir string, group int) error {
	if group == 0 {
		return nil
	}
	if err := guarded(dir); err != nil { // before a folder is made
		return err
	}
	if err := os.Mkdir(dir, 0o700); err == nil {
		if err := os.Chown(dir, -1, group); err != nil {
			return errs.New(errs.Invalid, dir, "run the daemon as a member of the group, or as root",
				"give the socket's folder to group %d", group).Because(err)
		}
		if err := os.Chmod(dir, 0o710); err != nil { //nolint:gosec // the group goes through, and lists nothing
			return errs.New(errs.Invalid, dir, "choose another folder with --socket",
				"open the socket's folder to group %d", group).Because(err)
		}
	} else if !errors.Is(err, fs.ErrExist) {
		return errs.New(errs.Invalid, dir, "choose a folder that you may write, with --socket or LARDER_SOCKET",
			"make the socket's folder").Because(err)
	}
	if err := guarded(dir); err != nil { // it may have been there, or come since
		return err
	}
	for d := dir; ; d = filepath.Dir(d) {
		var st unix.Stat_t
		if err := unix.Stat(d, &st); err != nil {
			return errs.New(errs.Invalid, d, "choose another folder with --socket or LARDER_SOCKET",
				"look at the socket's folder").Because(err)
		}
		need := uint32(0o001)
		if st.Gid == uint32(group) {
			need = 0o010
		}
		if st.Mode&need == 0 {
			return errs.New(errs.Invalid, d, fmt.Sprintf("run: chgrp %d %s && chmod g+x %s; or choose another folder with "+
				"--socket, e.g. /run/larder/larder.sock", group, d, d),
				"group %d cannot reach the socket: it may not go through %s (mode %04o)", group, d, st.Mode&0o7777)
		}
		if d == filepath.Dir(d) {
			return nil
		}
	}
}

// Path is where the socket is.
func (l *Listener) Path() string { return l.path }

// Close stops listening and removes socket and lock. Twice is fine.
func (l *Listener) Close() error {
	err := l.stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.mu.released {
		l.mu.released = true
		if l.locked() {
			release(l.mu.lock)
		} else {
			_ = l.mu.lock.Close() // its file is gone, and one of that name is another daemon's
		}
	}
	return err
}

// stop stops listening and removes the socket.
func (l *Listener) stop() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.mu.stopped {
		l.mu.stopped = true
		if l.there() {
			_ = os.Remove(l.path)
		}
		l.mu.err = l.mu.socket.Close()
	}
	return l.mu.err
}

// there reports whether the socket still has its name. l.mu is held.
func (l *Listener) there() bool {
	st, err := os.Lstat(l.path)
	return err == nil && os.SameFile(st, l.mu.own)
}

// locked reports whether the lock still has its name. l.mu is held.
func (l *Listener) locked() bool {
	mine, err1 := l.mu.lock.Stat()
	named, err2 := os.Lstat(l.path + ".lock")
	return err1 == nil && err2 == nil && os.SameFile(mine, named)
}

// Restore binds the socket again when its file was removed, with its folder or without, and reports whether it did.
// Sessions stay as they are. The error says why the socket cannot be reached: another daemon serves its path, or the
// folder cannot be made.
func (l *Listener) Restore() (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.stopped || l.there() {
		return false, nil
	}
	if err := folders(l.path, l.group); err != nil {
		return false, err
	}
	lock, kept := l.mu.lock, l.locked()
	if !kept {
		var holds int
		var err error
		if lock, holds, err = tryAcquire(l.path); err != nil && holds != 0 {
			return false, taken(l.path, holds)
		} else if err != nil {
			return false, err
		}
	}
	b, err := bind(l.path, lock, l.group)
	if err != nil {
		if !kept {
			release(lock)
		}
		return false, err
	}
	old := l.mu.bound
	l.mu.bound = *b
	if !kept {
		_ = old.lock.Close()
	}
	return true, old.socket.Close() // wakes Accept
}

// Door is the listener for who serves it: closing it ends the listening and leaves the lock, so that the next daemon on
// the socket does not begin before this one has released all that it has.
func (l *Listener) Door() net.Listener { return door{l} }

type door struct{ *Listener }

// Close implements net.Listener.
func (d door) Close() error { return d.stop() }

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		now := l.listening()
		c, err := now.Accept()
		if err == nil || l.listening() == now {
			return c, err
		}
	}
}

// Addr implements net.Listener.
func (l *Listener) Addr() net.Addr { return l.listening().Addr() }

func (l *Listener) listening() *net.UnixListener {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.socket
}

var _ io.Closer = (*Listener)(nil)
