package source

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/spool"
	"larder/internal/store"
	"larder/internal/xrand"
)

// canaries is how many other samples are looked at before a place counts as failed.
const canaries = 3

// Away reports whether an error of Read says that the place of the object failed as a whole, and not the object: a disk
// that is not mounted, a server that does not answer, credentials that have expired, no file descriptors, a spool that
// is too small for a block. Where the error itself does not say so, it looks at other samples of the dataset: the
// object is what is wrong as soon as one of them can be read. It reads at most canaries bytes.
func (c *Catalog) Away(ctx context.Context, o ident.ObjectID, err error) bool {
	var changed *errChanged
	switch {
	case ctx.Err() != nil, errors.As(err, &changed), errors.Is(err, store.ErrChanged):
		return false
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM), store.Unreachable(err),
		errors.Is(err, spool.ErrFull): // a larger one ends that
		return true
	case !errs.Is(err, errs.DatasetUnread): // what is wrong was read, or was known before
		return false
	}
	row, ok := c.objects.get(o)
	if !ok {
		return false
	}
	rs := c.rootAt(row.root)
	snap := rs.snap.Load()
	if snap == nil || snap.made != nil || snap.Len() == 0 {
		return false
	}
	looked := 0
	rng := xrand.New(uint64(o), 1)
	for range 8 * canaries {
		s := ident.SampleID(rng.IntN(snap.Len()))
		x := snap.object(s)
		if x == o || x == NoObject {
			continue
		}
		if c.readable(ctx, x) {
			return false
		}
		if looked++; looked == canaries {
			break
		}
	}
	return ctx.Err() == nil && (looked > 0 || !isStored(rs.root) && !hasEntries(rs.root))
}

// readable reports whether the first byte of an object can be read, from the place that named it first.
func (c *Catalog) readable(ctx context.Context, o ident.ObjectID) bool {
	row, ok := c.objects.get(o)
	if !ok {
		return false
	}
	rs := c.rootAt(row.root)
	first := make([]byte, min(1, row.size))
	if isStored(rs.root) {
		return c.readStored(ctx, o, row, 0, first) == nil
	}
	return c.tryFile(rs.path(row.sample), rs.guarded.Load(), rs.state(row, row.sample), func(fd int, _ fileState) error {
		_, err := retry(func() (int, error) { return c.sys.pread(fd, first, row.off) })
		return err
	}) == nil
}

// hasEntries reports whether a folder is there with something in it: the empty one is where a disk was mounted.
func hasEntries(root string) bool {
	d, err := os.Open(root)
	if err != nil {
		return false
	}
	defer func() { _ = d.Close() }() // nothing was written
	names, _ := d.Readdirnames(1)
	return len(names) > 0
}
