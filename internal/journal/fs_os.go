package journal

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"larder/internal/errs"
	"larder/internal/proc"
)

// lockName is the file that is locked; it holds the id of the process, for people.
const lockName = "lock"

// dir is a folder of the operating system.
type dir struct {
	root *os.Root
	path string
}

// OpenDir opens a folder as a state directory; it is made when it is missing and make is true. It must belong to the
// user and no other may write to it. Errors are *errs.Error.
func OpenDir(path string, make bool) (FS, error) {
	bad := func(err error, hint, what string) error {
		return errs.New(errs.ConfigInvalid, path, hint, "open the state directory %s: %s", path, what).Because(err)
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, bad(err, "name an absolute path", "no such path")
	}
	if make {
		if err := os.MkdirAll(abs, 0o700); err != nil {
			return nil, bad(err, "set state.dir to a folder that you may write to, or state.dir: none", "it cannot be made")
		}
	}
	info, err := os.Stat(abs)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, errs.New(errs.NotFound, path, "larder serve makes it at its first start; "+
			"see state.dir in larder config show", "there is no state directory %s", path)
	case err != nil:
		return nil, bad(err, "check the path and its rights", "it cannot be looked at")
	case !info.IsDir():
		return nil, errs.New(errs.ConfigInvalid, path, "name a folder", "open the state directory %s: it is a file", path)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() {
		return nil, errs.New(errs.ConfigInvalid, path, "set state.dir to a folder of your own, or start larder as its owner",
			"open the state directory %s: it belongs to user %d, and this is user %d", path, st.Uid, os.Geteuid())
	}
	if info.Mode().Perm()&0o022 != 0 {
		return nil, errs.New(errs.ConfigInvalid, path, "chmod go-w "+path,
			"open the state directory %s: others may write to it (%v)", path, info.Mode().Perm())
	}
	root, err := os.OpenRoot(abs)
	if err != nil {
		return nil, bad(err, "check its rights", "it cannot be opened")
	}
	return &dir{root: root, path: abs}, nil
}

func (d *dir) Path(name string) string { return filepath.Join(d.path, name) }

func (d *dir) List() ([]string, error) {
	f, err := d.root.Open(".")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	all, err := f.ReadDir(-1)
	var out []string
	for _, e := range all {
		if e.Type().IsRegular() {
			out = append(out, e.Name())
		}
	}
	slices.Sort(out)
	return out, err
}

func (d *dir) ReadFile(name string) ([]byte, error) { return d.root.ReadFile(name) }

func (d *dir) ReadInto(name string, buf []byte) ([]byte, error) {
	f, err := d.root.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	buf = slices.Grow(buf[:0], int(info.Size())+1) // and one, to see the end
	for {
		n, err := f.Read(buf[len(buf):cap(buf)])
		switch buf = buf[:len(buf)+n]; {
		case errors.Is(err, io.EOF):
			return buf, nil
		case err != nil:
			return buf, err
		}
		buf = slices.Grow(buf, 1)
	}
}

func (d *dir) ReadAt(name string, p []byte, off int64) (int, error) {
	f, err := d.root.Open(name)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	n, err := f.ReadAt(p, off)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

func (d *dir) Size(name string) (int64, error) {
	info, err := d.root.Stat(name)
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

func (d *dir) Create(name string, exclusive bool) (File, error) {
	flags := os.O_RDWR | os.O_CREATE
	if exclusive {
		flags |= os.O_EXCL
	}
	f, err := d.root.OpenFile(name, flags, 0o600)
	if err != nil {
		return nil, err
	}
	return &osFile{f}, nil
}

func (d *dir) Rename(from, to string) error { return d.root.Rename(from, to) }
func (d *dir) Remove(name string) error     { return d.root.Remove(name) }

func (d *dir) Sync() error {
	f, err := d.root.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// Lock takes an flock, which the kernel releases when the process ends, however it ends.
// Lock waits for a holder that is dying.
func (d *dir) Lock() (lock io.Closer, err error) {
	err = proc.Until(func() error {
		lock, err = d.tryLock()
		return err
	}, func() bool {
		held, ok := errors.AsType[*LockedError](err)
		return ok && proc.Dying(held.PID)
	})
	return lock, err
}

func (d *dir) tryLock() (io.Closer, error) {
	f, err := d.root.OpenFile(lockName, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		if err = f.Truncate(0); err == nil {
			_, err = fmt.Fprintf(f, "%d\n", os.Getpid())
		}
		if err == nil {
			return f, nil
		}
	}
	if errors.Is(err, unix.EWOULDBLOCK) {
		holder, pid := "another process", 0
		if b, rerr := io.ReadAll(io.LimitReader(f, 32)); rerr == nil && len(b) > 0 {
			holder = "process " + strings.TrimSpace(string(b))
			pid, _ = strconv.Atoi(strings.TrimSpace(string(b)))
		}
		err = &LockedError{Holder: holder, PID: pid}
	}
	_ = f.Close()
	return nil, err
}

// osFile syncs data and size, not the times.
type osFile struct{ *os.File }

func (f *osFile) Reserve(size int64) error {
	for {
		err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, size)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EINVAL):
			return nil
		default:
			return err
		}
	}
}

func (f *osFile) Sync() error {
	for {
		err := unix.Fdatasync(int(f.Fd()))
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
