package source

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/spool"
	"larder/internal/store"
	"larder/internal/xrand"
)

const (
	// mostWitnesses is how many other files of a place are looked at before the place counts as failed.
	mostWitnesses = 3
	// randomLooks and nearLooks bound the search for them: samples drawn at random, then those beside the one that failed.
	randomLooks, nearLooks = 64, 1 << 15
)

// Place is what an object is read from: its dataset on one device, or in one store. It is a pure lookup.
func (c *Catalog) Place(o ident.ObjectID) ident.Place {
	row, ok := c.objects.get(o)
	if !ok {
		return ident.Place{}
	}
	return ident.Place{Root: row.root, Device: uint64(row.dev)}
}

// blame is whose an error is, by its kind alone.
type blame uint8

const (
	blameOpen   blame = iota // the object's or the place's: other objects decide
	blameObject              // what is wrong was read, or was known before
	blamePlace               // no single object has such an error
)

func blameOf(err error) blame {
	var changed *errChanged
	switch {
	case errors.As(err, &changed), errors.Is(err, store.ErrChanged):
		return blameObject
	case store.Unreachable(err), errors.Is(err, spool.ErrFull): // a larger one ends that
		return blamePlace
	}
	for _, e := range []unix.Errno{unix.EMFILE, unix.ENFILE, unix.ENOMEM, // the daemon's own
		unix.ENODEV, unix.ENXIO, unix.ENOMEDIUM, unix.ESHUTDOWN, // a device that is gone
		unix.ENOTCONN, unix.ECONNABORTED, unix.EHOSTDOWN, unix.EHOSTUNREACH, unix.ENETDOWN, unix.ENETUNREACH,
		unix.ETIMEDOUT} { // a network file system, or one of a process that has ended
		if errors.Is(err, e) {
			return blamePlace
		}
	}
	if !errs.Is(err, errs.DatasetUnread) {
		return blameObject
	}
	return blameOpen
}

// evidence is what is known of a place when an object of it could not be read.
type evidence struct {
	blame    blame
	looked   int  // other objects of the place that were tried
	readable int  // of them
	missing  bool // nothing is where the place was: its folder is empty or gone
}

// away decides whether the place has failed. One object of it that can be read acquits it.
func (e evidence) away() bool {
	switch {
	case e.blame != blameOpen:
		return e.blame == blamePlace
	case e.looked > 0:
		return e.readable == 0
	}
	return e.missing
}

// Away reports whether an error of Read says that the place of the object failed as a whole, and not the object: a disk
// that is not mounted, a server that does not answer, credentials that have expired, no file descriptors, a spool that
// is too small for a block. Where the error itself does not say so, it looks at other files of the place: the object is
// what is wrong as soon as one of them can be read. It reads at most mostWitnesses bytes.
func (c *Catalog) Away(ctx context.Context, o ident.ObjectID, err error) bool {
	if ctx.Err() != nil {
		return false
	}
	e := evidence{blame: blameOf(err)}
	if e.blame != blameOpen {
		return e.away()
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
	for _, x := range c.witnesses(snap, o, row) {
		e.looked++
		if c.readable(ctx, x) {
			e.readable++
			break
		}
	}
	if e.looked == 0 && !isStored(rs.root) {
		meta, _ := c.objects.meta(o)
		e.missing = !hasEntries(rs.root) || notMounted(filepath.Dir(rs.path(row.sample)), meta.dev^snap.mark)
	}
	return ctx.Err() == nil && e.away()
}

// witnesses are other objects of the place of one that could not be read, each in a file of its own; where the place
// has one file only, others of that file. Each call draws others.
func (c *Catalog) witnesses(snap *snapshot, o ident.ObjectID, row object) []ident.ObjectID {
	var others, beside []ident.ObjectID
	files := map[uint64]bool{row.ino: true}
	look := func(s ident.SampleID) (enough bool) {
		x := snap.object(s)
		if x == o || x == NoObject || !snap.Live(s) {
			return false
		}
		r, ok := c.objects.get(x)
		switch {
		case !ok || r.dev != row.dev:
		case !files[r.ino]:
			files[r.ino] = true
			others = append(others, x)
		case r.ino == row.ino && len(beside) < mostWitnesses:
			beside = append(beside, x)
		}
		return len(others) == mostWitnesses
	}
	rng := xrand.New(uint64(o), c.looks.Add(1))
	for range randomLooks {
		if look(ident.SampleID(rng.IntN(snap.Len()))) {
			return others
		}
	}
	for d := range ident.SampleID(min(nearLooks, snap.Len())) { // ids follow paths: what is beside lies nearby
		if d > 0 && (look(row.sample+d) || d <= row.sample && look(row.sample-d)) {
			break
		}
	}
	if len(others) == 0 {
		return beside
	}
	return others
}

// readable reports whether the first byte of an object can be read from its device, not from the memory of the kernel.
// The place is that which named the object first.
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
		_ = unix.Fadvise(fd, row.off, 1, unix.FADV_DONTNEED) // what cannot be dropped is read from memory
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

// notMounted reports whether a folder is there, empty, and on another device than what was indexed in it.
func notMounted(dir string, device uint64) bool {
	var st unix.Stat_t
	return unix.Stat(dir, &st) == nil && st.Dev != device && !hasEntries(dir)
}
