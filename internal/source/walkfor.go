package source

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"larder/internal/errs"
)

// A walk for another user has his rights: it opens and looks at nothing that he could not, and follows no link. What he
// may not read ends it with the same error whatever lies behind. Rights are asked of what was opened, so that nothing
// can take its place in between.

// maxAsked is how many names of files and folders a walk for another user looks at. His folder costs the daemon memory
// before it is known to be good.
const maxAsked = 1 << 24

const isLink = "it is a symbolic link, which is not followed for other users than the daemon's"

// asked counts names against maxAsked, and reports whether the walk continues.
func (w *walker) asked(n int) bool {
	if w.as == nil {
		return true
	}
	if w.names.Add(int64(n)) <= w.maxNames {
		return true
	}
	w.fail(errs.New(errs.ResourceExceeded, printable(w.root), "ask the daemon's user to add it",
		"index %s for uid %d: it has more than %d files and folders",
		printable(w.root), w.as.r.UID, w.maxNames))
	return false
}

// openFolder opens a folder to list it.
func (w *walker) openFolder(path string) (*os.File, error) {
	if w.as == nil {
		return os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	}
	fd, _, err := w.openAs(path, unix.O_PATH|unix.O_DIRECTORY, mayRead|maySearch)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	// the very folder that was looked at
	list, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(list), path), nil
}

// stat is what a name stands for.
func (w *walker) stat(n walkName, path string, st *unix.Stat_t) error {
	if w.as == nil {
		return statRetry(path, st)
	}
	want := uint32(0)
	if isImageName(n.name) {
		want = mayRead
	}
	fd, got, err := w.openAs(path, unix.O_PATH, want)
	if err != nil {
		return err
	}
	*st = got
	return unix.Close(fd)
}

// openAs opens a path without following links, and demands that the user of the walk has rights on it.
func (w *walker) openAs(path string, flags uint64, want uint32) (int, unix.Stat_t, error) {
	var st unix.Stat_t
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{Flags: flags | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS})
	for errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
		fd, err = unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{Flags: flags | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_NO_SYMLINKS})
	}
	if errors.Is(err, unix.ELOOP) {
		err = w.as.denied(path, isLink)
	}
	if err != nil {
		return -1, st, err
	}
	have := uint32(0)
	if err = unix.Fstat(fd, &st); err == nil && want != 0 {
		have, err = w.as.ofOpen(fd, &st)
	}
	if err == nil && have&want != want {
		err = w.as.denied(path, "its owner, mode and access list do not allow it")
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, st, err
	}
	return fd, st, nil
}
