package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"larder/internal/errs"
)

// Files is the file system as a store. Keys are absolute paths, in the bytes of the file system.
type Files struct {
	// Plain refuses a path that has a symbolic link in any part of it: for files that are read for another user.
	Plain bool
}

// readChunk is how much one system call reads, so that a cancelled read of a large file ends.
const readChunk = 8 << 20

// Name implements Store.
func (Files) Name() string { return schemeFile + ":" }

func (f Files) open(path string) (*os.File, error) {
	if !filepath.IsAbs(path) || strings.IndexByte(path, 0) >= 0 {
		return nil, errs.New(errs.Invalid, printable(path), "write it from the root", "%q is no absolute path", path)
	}
	for {
		// O_NONBLOCK: what was a file may be a pipe now, and opening that would hang.
		how := unix.OpenHow{Flags: unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK}
		var fd int
		var err error
		if f.Plain {
			how.Resolve = unix.RESOLVE_NO_SYMLINKS
			fd, err = unix.Openat2(unix.AT_FDCWD, path, &how)
		} else {
			fd, err = unix.Open(path, int(how.Flags), 0)
		}
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return nil, fileError(path, err)
		}
		return os.NewFile(uintptr(fd), path), nil
	}
}

// stat is the state of an open file; it must be a regular one.
func (f Files) stat(file *os.File) (Info, error) {
	fi, err := file.Stat()
	if err != nil {
		return Info{}, fileError(file.Name(), err)
	}
	if !fi.Mode().IsRegular() {
		return Info{}, errs.New(errs.DatasetUnread, printable(file.Name()), "name a file",
			"%s is not a regular file", printable(file.Name()))
	}
	return fileInfo(file.Name(), fi), nil
}

func fileInfo(path string, fi fs.FileInfo) Info {
	return Info{Key: path, Size: fi.Size(), ModTime: fi.ModTime(), Version: version("", fi.Size(), fi.ModTime())}
}

// Stat implements Store.
func (f Files) Stat(ctx context.Context, key string) (Info, error) {
	if err := ctx.Err(); err != nil {
		return Info{}, err
	}
	file, err := f.open(key)
	if err != nil {
		return Info{}, err
	}
	defer file.Close()
	return f.stat(file)
}

// ReadRange implements Store. A version is size and modification time, looked at before and after reading.
func (f Files) ReadRange(ctx context.Context, in Info, off int64, buf []byte) (int, error) {
	if off < 0 {
		return 0, negative(in.Key, off)
	}
	file, err := f.open(in.Key)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	if err := f.unchanged(file, in); err != nil {
		return 0, err
	}
	buf, eof := clip(in.Size, off, buf)
	for done := 0; done < len(buf); {
		if err := ctx.Err(); err != nil {
			return done, err
		}
		n, err := file.ReadAt(buf[done:min(len(buf), done+readChunk)], off+int64(done))
		done += n
		switch {
		case errors.Is(err, io.EOF) && done < len(buf):
			return done, changed(schemeFile+":", in.Key,
				fmt.Sprintf("it ends at byte %d of %d", off+int64(done), in.Size))
		case err != nil && !errors.Is(err, io.EOF):
			return done, fileError(in.Key, err)
		}
	}
	if err := f.unchanged(file, in); err != nil { // a writer may have been at work meanwhile
		return 0, err
	}
	return len(buf), eof
}

func (f Files) unchanged(file *os.File, in Info) error {
	now, err := f.stat(file)
	switch {
	case err != nil:
		return err
	case now.Size != in.Size:
		return changed(schemeFile+":", in.Key, fmt.Sprintf("it had %d bytes, now %d", in.Size, now.Size))
	case in.Version != 0 && now.Version != in.Version:
		return changed(schemeFile+":", in.Key, "it was modified")
	}
	return nil
}

// List implements Store. Links to files are followed, links to folders are not; what is neither file nor folder is
// left out.
func (f Files) List(ctx context.Context, prefix string, each func(Info) error) error {
	dir := prefix[:strings.LastIndexByte(prefix, '/')+1]
	if dir == "" {
		return errs.New(errs.Invalid, printable(prefix), "write it from the root", "%q is no absolute path", prefix)
	}
	fi, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && !fi.IsDir():
		return fileError(prefix, unix.ENOENT)
	case err != nil:
		return fileError(dir, err)
	}
	return f.walk(ctx, dir, prefix, each)
}

// Folder implements Store, with the links that List follows.
func (f Files) Folder(ctx context.Context, prefix string, each func(Info) error) (folders []string, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if !strings.HasPrefix(prefix, "/") || !strings.HasSuffix(prefix, "/") {
		return nil, errs.New(errs.Invalid, printable(prefix), "write it from the root, with a slash at its end",
			"%q is no absolute path of a folder", prefix)
	}
	entries, err := os.ReadDir(prefix)
	if err != nil {
		return nil, fileError(prefix, err)
	}
	for _, e := range entries {
		if e.IsDir() {
			folders = append(folders, prefix+e.Name()+"/")
			continue
		}
		if err := f.entry(prefix+e.Name(), e, each); err != nil {
			return nil, err
		}
	}
	return folders, nil
}

// entry calls each for a file, and for a link to one.
func (f Files) entry(path string, e fs.DirEntry, each func(Info) error) error {
	if e.Type()&fs.ModeSymlink != 0 && f.Plain {
		return nil
	}
	fi, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist): // removed meanwhile, or a link to nothing
		return nil
	case err != nil:
		return fileError(path, err)
	case !fi.Mode().IsRegular():
		return nil
	}
	return each(fileInfo(path, fi))
}

// walk lists a folder, whose path ends with a slash, in the order of whole keys: a folder sorts as its name and a
// slash.
func (f Files) walk(ctx context.Context, dir, prefix string, each func(Info) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fileError(dir, err)
	}
	key := func(e fs.DirEntry) string {
		if e.IsDir() {
			return e.Name() + "/"
		}
		return e.Name()
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return cmp.Compare(key(a), key(b)) })
	for _, e := range entries {
		path := dir + key(e)
		if !strings.HasPrefix(path, prefix) && !strings.HasPrefix(prefix, path) {
			continue
		}
		if e.IsDir() {
			if err := f.walk(ctx, path, prefix, each); err != nil {
				return err
			}
			continue
		}
		if !strings.HasPrefix(path, prefix) {
			continue
		}
		if err := f.entry(path, e, each); err != nil {
			return err
		}
	}
	return nil
}

func fileError(path string, err error) error {
	if e, ok := errors.AsType[*errs.Error](err); ok {
		return e
	}
	shown := printable(path)
	if in, ok := errors.AsType[*fs.PathError](err); ok {
		err = in.Err // the path is in the message already
	}
	reason, hint, what := errs.DatasetUnread, "check the storage; the kernel's log may say more", "cannot be read"
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		err, hint = ErrNotExist, "check the path on the machine of the daemon"
	case errors.Is(err, fs.ErrPermission):
		hint = fmt.Sprintf("the daemon runs as uid %d; make it readable", os.Getuid())
	case errors.Is(err, unix.ELOOP):
		hint, what = "put the file itself there", "is a symbolic link, or lies behind one"
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		reason, hint = errs.ResourceExceeded, "raise `ulimit -n` for the daemon"
	}
	return errs.New(reason, shown, hint, "%s %s", shown, what).Because(err)
}

func printable(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// refreshHint is what helps after an object changed.
const refreshHint = "`larder dataset refresh` indexes it again; running jobs have it from their next epoch on"

// changed is the error about an object of another version than asked for.
func changed(place, key, how string) error {
	shown := shownKey(place, key)
	return errs.New(errs.DatasetUnread, shown, refreshHint, "%s: %s", shown, how).Because(ErrChanged)
}

// shownKey is the name of an object for messages.
func shownKey(place, key string) string {
	if place == schemeFile+":" {
		return printable(key)
	}
	return place + "/" + printable(key)
}

func negative(key string, off int64) error {
	return errs.New(errs.Invalid, printable(key), "this is a bug of larder: offsets come from an index",
		"read %s from byte %d on", printable(key), off)
}
