package session

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"larder/internal/errs"
)

const maxLinks = 40 // as many as the kernel follows

// guarded refuses a folder of a shared socket that users other than root and this one could replace: where a user may
// rename or remove a part of its path, he may put a folder of his own there, with a socket of his own. What does not
// exist yet is not looked at.
func guarded(dir string) error {
	parts := strings.Split(dir, "/")
	links := 0
	if err := kept("/"); err != nil {
		return err
	}
	for at := "/"; len(parts) > 0; {
		name := parts[0]
		parts = parts[1:]
		if name == "" || name == "." {
			continue
		}
		next := filepath.Join(at, name)
		st, err := os.Lstat(next)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return unlooked(err, next)
		case st.Mode().Type() != fs.ModeSymlink:
			at = next
			if err := kept(at); err != nil {
				return err
			}
			continue
		}
		if links++; links > maxLinks {
			return unlooked(unix.ELOOP, next)
		}
		if err := keptLink(next); err != nil {
			return err
		}
		target, err := os.Readlink(next)
		if err != nil {
			return unlooked(err, next)
		}
		if filepath.IsAbs(target) {
			at = "/"
		}
		parts = append(strings.Split(target, "/"), parts...)
	}
	return nil
}

func unlooked(err error, path string) error {
	return errs.New(errs.Invalid, path, "choose another folder with --socket or LARDER_SOCKET",
		"look at the socket's folder").Because(err)
}

const elsewhere = "choose another folder with --socket, e.g. /run/larder/larder.sock"

// kept refuses a folder in which another user may rename what is root's or this user's.
func kept(d string) error {
	var st unix.Stat_t
	if err := unix.Lstat(d, &st); err != nil {
		return unlooked(err, d)
	}
	if st.Uid != 0 && st.Uid != uint32(os.Getuid()) {
		return owned(d, st.Uid)
	}
	if st.Mode&0o022 != 0 && st.Mode&unix.S_ISVTX == 0 {
		return errs.New(errs.Invalid, d, fmt.Sprintf("run: chmod go-w %s; or %s", d, elsewhere),
			"others may write in %s (mode %04o), so they could replace the socket or its folder", d, st.Mode&0o7777)
	}
	return nil
}

func keptLink(path string) error {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return unlooked(err, path)
	}
	if st.Uid != 0 && st.Uid != uint32(os.Getuid()) {
		return owned(path, st.Uid)
	}
	return nil
}

func owned(path string, uid uint32) error {
	return errs.New(errs.Invalid, path, fmt.Sprintf("run: chown %d %s; or %s", os.Getuid(), path, elsewhere),
		"%s belongs to uid %d, who could replace the socket or its folder; this process is uid %d", path, uid, os.Getuid())
}
