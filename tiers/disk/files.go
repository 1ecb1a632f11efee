package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// files is the directory; tests break it.
type files interface {
	open(name string, flags int) (file, error) // unix.O_*; a symbolic link is not followed
	remove(name string) error
	list() ([]os.DirEntry, error)
}

// file is one file of it. What moves fewer bytes than it should returns an error.
type file interface {
	readv(parts [][]byte, off int64) error // io.ErrUnexpectedEOF at the end of the file is errTorn
	writev(parts [][]byte, off int64) error
	truncate(n int64) error
	size() (int64, error)
	lock() error // errHeld
	close() error
}

var errHeld = errors.New("another process holds the lock")

type realFiles struct{ dir string }

func (d realFiles) open(name string, flags int) (file, error) {
	flags |= unix.O_CLOEXEC | unix.O_NOFOLLOW | unix.O_NONBLOCK
	fd, err := again(func() (int, error) { return unix.Open(filepath.Join(d.dir, name), flags, 0o600) })
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, errors.Join(fmt.Errorf("%s is no regular file", name), err, unix.Close(fd))
	}
	// Entries are read one by one: what lies around one is not wanted. Where that cannot be said, it costs reads.
	_ = unix.Fadvise(fd, 0, 0, unix.FADV_RANDOM)
	return realFile(fd), nil
}

func (d realFiles) remove(name string) error { return os.Remove(filepath.Join(d.dir, name)) }

func (d realFiles) list() ([]os.DirEntry, error) { return os.ReadDir(d.dir) }

type realFile int

func (f realFile) readv(parts [][]byte, off int64) error {
	return all(parts, func(p [][]byte, done int64) (int, error) { return unix.Preadv(int(f), p, off+done) })
}

func (f realFile) writev(parts [][]byte, off int64) error {
	return all(parts, func(p [][]byte, done int64) (int, error) { return unix.Pwritev(int(f), p, off+done) })
}

func (f realFile) truncate(n int64) error { return unix.Ftruncate(int(f), n) }

func (f realFile) size() (int64, error) {
	var st unix.Stat_t
	err := unix.Fstat(int(f), &st)
	return st.Size, err
}

func (f realFile) lock() error {
	err := unix.Flock(int(f), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return errHeld
	}
	return err
}

func (f realFile) close() error { return unix.Close(int(f)) }

// all moves all parts, in as many calls as the kernel wants.
func all(parts [][]byte, move func(parts [][]byte, done int64) (int, error)) error {
	var done int64
	for len(parts) > 0 {
		if len(parts[0]) == 0 {
			parts = parts[1:]
			continue
		}
		n, err := again(func() (int, error) { return move(parts, done) })
		switch {
		case err != nil:
			return err
		case n == 0:
			return errTorn
		}
		done += int64(n)
		for len(parts) > 0 && n >= len(parts[0]) {
			n -= len(parts[0])
			parts = parts[1:]
		}
		if n > 0 { // the caller's list stays as it is
			parts = append([][]byte{parts[0][n:]}, parts[1:]...)
		}
	}
	return nil
}

func again[T any](f func() (T, error)) (T, error) {
	for {
		if v, err := f(); !errors.Is(err, unix.EINTR) {
			return v, err
		}
	}
}
