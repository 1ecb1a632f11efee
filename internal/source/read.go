package source

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/units"
)

// readChunk is how much one system call reads, so that a cancelled read of a large file ends.
const readChunk = 8 << 20

// system is the part of the operating system that reading needs; tests break it.
type system struct {
	open  func(path string) (int, error)
	plain func(path string) (int, error) // open that follows no symbolic link
	stat  func(fd int, st *unix.Stat_t) error
	pread func(fd int, p []byte, off int64) (int, error)
	close func(fd int) error
}

var realSystem = system{
	// O_NONBLOCK: what was a file may be a pipe now, and opening that would hang.
	open: func(path string) (int, error) {
		return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	},
	plain: openPlain,
	stat:  unix.Fstat,
	pread: unix.Pread,
	close: unix.Close,
}

func retry[T any](f func() (T, error)) (T, error) {
	for {
		if v, err := f(); !errors.Is(err, unix.EINTR) {
			return v, err
		}
	}
}

// errChanged says that a file is not what was indexed.
type errChanged struct {
	size, wasSize   int64
	mtime, wasMtime int64
	irregular       bool
}

func (e *errChanged) Error() string {
	at := func(ns int64) string { return time.Unix(0, ns).UTC().Format("2006-01-02T15:04:05.000000000Z") }
	switch {
	case e.irregular:
		return "it is not a regular file any more"
	case e.size != e.wasSize:
		return fmt.Sprintf("it had %d bytes, now %d", e.wasSize, e.size)
	default:
		return fmt.Sprintf("it was modified at %s, now at %s", at(e.wasMtime), at(e.mtime))
	}
}

// Read reads a whole object into buf, or into a new slice when buf's capacity is too small, and returns the slice cut
// to the object's length. Safe for concurrent use. Errors: *errs.Error NOT_FOUND (unknown id), DATASET_UNREADABLE
// (gone, changed since it was indexed, or the storage failed; the message has the path), RESOURCE_EXCEEDED (larger than
// MaxObject, or out of file descriptors); or the context's, which is looked at between system calls only: a read that
// hangs in the kernel cannot be cancelled. Bytes are returned only if size and modification time were those of the
// index before and after.
func (c *Catalog) Read(ctx context.Context, o ident.ObjectID, buf []byte) ([]byte, error) {
	row, ok := c.objects.get(o)
	if !ok {
		return nil, noObject(o)
	}
	if row.size > c.cfg.MaxObject {
		path, _ := c.ObjectPath(o)
		return nil, tooLarge(path, row.size, c.cfg.MaxObject)
	}
	stored := isStored(c.rootAt(row.root).root)
	if held, _ := c.InBlock(o); !stored && !held {
		if err := c.limit.wait(ctx, row.size); err != nil {
			return nil, fmt.Errorf("read object %d: %w", o, err)
		}
	}
	if snap := c.rootAt(row.root).snap.Load(); snap != nil && snap.opened(row.sample) {
		return c.readRecord(ctx, o, row, buf)
	}
	head := int64(c.rootAt(row.root).overhead())
	if int64(cap(buf)) < head+row.size {
		buf = make([]byte, head+row.size)
	}
	whole := buf[:head+row.size]
	buf = whole[head:]
	if stored {
		if err := c.readWhole(ctx, o, row, buf); err != nil {
			return nil, err
		}
		return c.asImage(row, whole)
	}
	if c.fromBlock(ctx, o, buf) {
		return c.asImage(row, whole)
	}
	err := c.withFile(o, row, func(fd int, state fileState) error {
		if err := c.preadFull(ctx, fd, buf, row.off); err != nil {
			return err
		}
		return c.unchanged(fd, state) // a writer may have been at work meanwhile
	})
	if err != nil {
		return nil, err
	}
	return c.asImage(row, whole)
}

// preadFull fills buf with the bytes of a file from off on.
func (c *Catalog) preadFull(ctx context.Context, fd int, buf []byte, off int64) error {
	size := int64(len(buf))
	for done := int64(0); done < size; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := retry(func() (int, error) {
			return c.sys.pread(fd, buf[done:min(size, done+readChunk)], off+done)
		})
		if err != nil {
			return fmt.Errorf("read at byte %d: %w", off+done, err)
		}
		if n == 0 {
			return &errChanged{size: off + done, wasSize: size}
		}
		done += int64(n)
	}
	return nil
}

// fromBlock fills buf with an object that a block in memory has.
func (c *Catalog) fromBlock(ctx context.Context, o ident.ObjectID, buf []byte) bool {
	if c.held.any.Load() == 0 {
		return false
	}
	file, row, ok := c.fileOf(o)
	return ok && c.copyHeld(ctx, file, row.off, buf)
}

// asImage makes an image file of what is stored.
func (c *Catalog) asImage(row object, whole []byte) ([]byte, error) {
	if f := c.rootAt(row.root).format; f != nil {
		return f.Image(whole)
	}
	return whole, nil
}

func tooLarge(path string, size, limit int64) error {
	return errs.New(errs.ResourceExceeded, path, "leave it out of the dataset",
		"%s has %s, the limit for one sample is %s", path, units.Size(size), units.Size(limit))
}

// fileState is what a file must be to be the indexed one.
type fileState struct{ size, mtime int64 }

// state is that of the file that holds an object, for a root that names it.
func (rs *rootState) state(row object, s ident.SampleID) fileState {
	st := fileState{row.size, row.mtime}
	if snap := rs.snap.Load(); snap != nil && snap.labels != nil && !snap.listed() && snap.has(s) {
		st.size = snap.dirs[snap.dir(s)].size
	}
	return st
}

func noObject(o ident.ObjectID) error {
	return errs.New(errs.NotFound, fmt.Sprint(o), "this is a bug of larder: object ids come from a dataset",
		"no object has the id %d", o)
}

// withFile opens the object's file, checks that it is the indexed one, and runs f on it. When the path that named it
// first does not work any more, other datasets may still name it by theirs.
func (c *Catalog) withFile(o ident.ObjectID, row object, f func(fd int, want fileState) error) error {
	named := c.rootAt(row.root)
	if snap := named.snap.Load(); snap != nil && snap.made != nil {
		return errs.New(errs.Unsupported, snap.made.URI(), "look at them in a batch of a Loader",
			"samples of %s are made by workers: nothing of them is stored", snap.made.URI())
	}
	first := named.path(row.sample)
	err := c.tryFile(first, named.guarded.Load(), named.state(row, row.sample), f)
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	c.mu.RLock()
	roots := slices.Clip(c.roots) // append-only: what is there stays
	c.mu.RUnlock()
	for _, rs := range roots {
		snap := rs.snap.Load()
		if snap == nil {
			continue
		}
		s, ok := snap.rev.find(o)
		if !ok {
			continue
		}
		if snap.object(s) == o { // not one that the root has another object for already
			rs.stale.Store(true)
		}
		if other := snap.path(s); other != first && c.tryFile(other, rs.guarded.Load(), rs.state(row, s), f) == nil {
			return nil
		}
	}
	return readError(first, err)
}

func (c *Catalog) tryFile(path string, guarded bool, want fileState, f func(fd int, want fileState) error) error {
	open := c.sys.open
	if guarded {
		open = c.sys.plain
	}
	fd, err := retry(func() (int, error) { return open(path) })
	if err != nil {
		return err
	}
	defer func() { _ = c.sys.close(fd) }() // nothing was written, so nothing can be lost
	if err := c.unchanged(fd, want); err != nil {
		return err
	}
	return f(fd, want)
}

// unchanged compares size and modification time with the index. The inode is left out: some network file systems do
// not keep it, and a file that was replaced with both kept was most likely copied with its content.
func (c *Catalog) unchanged(fd int, want fileState) error {
	var st unix.Stat_t
	if _, err := retry(func() (struct{}, error) { return struct{}{}, c.sys.stat(fd, &st) }); err != nil {
		return err
	}
	irregular := st.Mode&unix.S_IFMT != unix.S_IFREG
	if irregular || st.Size != want.size || st.Mtim.Nano() != want.mtime {
		return &errChanged{size: st.Size, wasSize: want.size, mtime: st.Mtim.Nano(), wasMtime: want.mtime,
			irregular: irregular}
	}
	return nil
}

func readError(path string, err error) error {
	shown := printable(path)
	var changed *errChanged
	const again = "`larder dataset refresh` indexes it again; running jobs have it from their next epoch on"
	switch {
	case errors.As(err, &changed):
		return errs.New(errs.DatasetUnread, shown, again, "%s changed since it was indexed", shown).Because(err)
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return errs.New(errs.DatasetUnread, shown, again, "%s was removed after it was indexed", shown).Because(err)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return errs.New(errs.DatasetUnread, shown, "the daemon runs as "+whoami()+"; make it readable",
			"%s cannot be opened", shown).Because(err)
	case errors.Is(err, unix.ELOOP):
		return errs.New(errs.DatasetUnread, shown, "put the file itself there: jobs of several users draw from the "+
			"dataset, so no link in it is followed",
			"%s is a symbolic link, or lies behind one", shown).Because(err)
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		return errs.New(errs.ResourceExceeded, shown, "raise `ulimit -n` for the daemon", "%s cannot be opened", shown).
			Because(err)
	}
	return errs.New(errs.DatasetUnread, shown, "check the storage; the kernel's log may say more",
		"%s cannot be read", shown).Because(err)
}
