package source

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"larder/internal/errs"
)

// Reader is a user for whom the daemon reads files with rights of its own.
type Reader struct {
	UID, GID uint32
	Groups   []uint32
}

// Rights, as in the bits of a mode.
const (
	mayRead   = 4
	maySearch = 1
)

// MayList checks that r may list the folder of a dataset (a name or a uri), before anything of it is looked at. The
// error is a *errs.Error of reason PERMISSION_DENIED that reveals nothing that r could not find out alone.
func (c *Catalog) MayList(nameOrURI string, r Reader) error {
	var at place
	if IsMade(nameOrURI) {
		d, err := c.openMade(nameOrURI)
		if err != nil {
			return err
		}
		return d.Made().mayUse(r)
	}
	if d, ok := c.Get(nameOrURI); ok {
		at = d.rs.place
	} else {
		parsed, err := parseURI(nameOrURI)
		if err != nil {
			if c.looksLikeName(nameOrURI) { // not c.unknown, which names the others
				return errs.New(errs.NotFound, printable(nameOrURI), "write its uri, as in imagefolder:/data/train",
					"no dataset is named %q", nameOrURI)
			}
			return err
		}
		at = parsed
	}
	if at.format != nil {
		return errs.New(errs.Unsupported, printable(nameOrURI), "ask the daemon's user to register the job, or use a folder "+
			"of images", "read %s: datasets of packed files serve the daemon's user only, and uid %d is another one",
			printable(nameOrURI), r.UID)
	}
	w := rightsOf(r)
	return w.folder(at.root, mayRead|maySearch)
}

// MayRead checks that r may read every file that d has now, and returns the fingerprint of that version. From then on
// no symbolic link is followed below the folder for any reader: what r may write in could lead elsewhere later. The
// error is an *errs.Error (PERMISSION_DENIED names the first file or folder), or the context's.
func (c *Catalog) MayRead(ctx context.Context, d *Dataset, r Reader) (fingerprint uint64, err error) {
	snap := d.snap.Load()
	if snap.made != nil {
		return snap.fp, snap.made.mayUse(r)
	}
	if err := c.mayRead(ctx, snap, r); err != nil {
		return 0, err
	}
	d.rs.guarded.Store(true) // not before: what holds links must stay readable after a refused request
	return snap.fp, nil
}

// MaySee checks that r may learn of d, as MayRead does, and changes nothing. Each folder is looked at every time;
// each file once for a user and a version of d. An error that is not PERMISSION_DENIED is the context's.
func (c *Catalog) MaySee(ctx context.Context, d *Dataset, r Reader) error {
	snap := d.snap.Load()
	if snap.made != nil {
		return snap.made.mayUse(r)
	}
	w := rightsOf(r)
	for i := range snap.dirs {
		if row := &snap.dirs[i]; row.live {
			if err := w.folder(join(snap.root, row.rel), mayRead|maySearch); err != nil {
				return err
			}
		}
	}
	key := seenKey{snap.root, snap.fp, fmt.Sprint(r)}
	if c.seen.has(key) {
		return nil
	}
	return c.mayRead(ctx, snap, r)
}

// seenKey names a version of a folder, and a user.
type seenKey struct {
	root   string
	fp     uint64
	reader string
}

// seenCache remembers what users were found to have the right to read.
type seenCache struct {
	sync.Mutex
	keys map[seenKey]bool
}

const maxSeen = 1024

func (s *seenCache) has(k seenKey) bool {
	s.Lock()
	defer s.Unlock()
	return s.keys[k]
}

func (s *seenCache) add(k seenKey) {
	s.Lock()
	defer s.Unlock()
	if s.keys == nil || len(s.keys) >= maxSeen {
		s.keys = map[seenKey]bool{}
	}
	s.keys[k] = true
}

func (c *Catalog) mayRead(ctx context.Context, snap *snapshot, r Reader) error {
	w := rightsOf(r)
	if err := w.folder(snap.root, mayRead|maySearch); err != nil {
		return err
	}
	for id := range sampleID(snap.Len()) {
		if id&1023 == 1023 && ctx.Err() != nil {
			return ctx.Err()
		}
		if !snap.Live(id) {
			continue
		}
		path := snap.path(id)
		if err := w.folder(filepath.Dir(path), mayRead|maySearch); err != nil {
			return err
		}
		meta, ok := c.objects.meta(snap.object(id))
		if !ok {
			return w.denied(path, "it is not indexed")
		}
		if err := w.file(path, meta); err != nil {
			return err
		}
	}
	c.seen.add(seenKey{snap.root, snap.fp, fmt.Sprint(r)})
	return nil
}

// rights looks at files for one user; folders are looked at once.
type rights struct {
	r    Reader
	seen map[string]uint32 // what the user may do in a folder that he may reach
}

func rightsOf(r Reader) *rights { return &rights{r, map[string]uint32{}} }

func (w *rights) denied(path, why string) error {
	return errs.New(errs.Denied, printable(path),
		"give its user the right to read all of the dataset, by its plain path; docs/security.md says what is looked at",
		"uid %d may not read %s: %s", w.r.UID, printable(path), why)
}

// deniedStore is about what lies in a store: larder has no way to ask what another user could read there.
func (w *rights) deniedStore(root string) error {
	return errs.New(errs.Denied, printable(root), "run a daemon of that user's own, with that user's credentials",
		"uid %d may not read %s: stores are read with the credentials of the daemon's user, for that user and root alone",
		w.r.UID, printable(root))
}

// folder demands rights in a folder, and the right to go through every one above it. None of them may be a link.
func (w *rights) folder(path string, want uint32) error {
	if isStored(path) {
		return w.deniedStore(path)
	}
	have, ok := w.seen[path]
	if !ok {
		if parent := filepath.Dir(path); parent != path {
			if err := w.folder(parent, maySearch); err != nil {
				return err
			}
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return w.denied(path, err.Error())
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
		case unix.S_IFLNK:
			return w.denied(path, "it is a symbolic link, which is not followed for other users than the daemon's")
		default:
			return w.denied(path, "it is no folder")
		}
		var err error
		if have, err = w.of(path, &st); err != nil {
			return w.denied(path, err.Error())
		}
		w.seen[path] = have
	}
	if have&want != want {
		return w.denied(path, "its owner, mode and access list do not allow it")
	}
	return nil
}

// file demands that a file is the one that was indexed, by its own name, and that the user may read it.
func (w *rights) file(path string, meta fileMeta) error {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return w.denied(path, err.Error())
	}
	switch {
	case st.Mode&unix.S_IFMT == unix.S_IFLNK:
		return w.denied(path, "it is a symbolic link, which is not followed for other users than the daemon's")
	case st.Mode&unix.S_IFMT != unix.S_IFREG || st.Dev != meta.dev || st.Ino != meta.ino || st.Size != meta.size ||
		st.Mtim.Nano() != meta.mtime:
		return w.denied(path, "it changed while it was looked at")
	}
	have, err := w.of(path, &st)
	if err != nil {
		return w.denied(path, err.Error())
	}
	if have&mayRead == 0 {
		return w.denied(path, "its owner, mode and access list do not allow it")
	}
	return nil
}

// of is what the user may do with a file: as the kernel decides, by owner, mode and POSIX access list.
func (w *rights) of(path string, st *unix.Stat_t) (uint32, error) {
	return w.by(st, func(acl []byte) (int, error) { return unix.Lgetxattr(path, aclName, acl) })
}

// ofOpen is of for an open file, which may be open as a path alone.
func (w *rights) ofOpen(fd int, st *unix.Stat_t) (uint32, error) {
	return w.by(st, func(acl []byte) (int, error) {
		return unix.Getxattr(fmt.Sprintf("/proc/self/fd/%d", fd), aclName,
			acl)
	})
}

const aclName = "system.posix_acl_access"

func (w *rights) by(st *unix.Stat_t, list func([]byte) (int, error)) (uint32, error) {
	if st.Uid == w.r.UID {
		return st.Mode >> 6 & 7, nil
	}
	acl := make([]byte, 4096)
	n, err := list(acl)
	switch {
	case err == nil:
		return w.byList(acl[:n], st)
	case errors.Is(err, unix.ENODATA), errors.Is(err, unix.EOPNOTSUPP):
	default:
		return 0, fmt.Errorf("its access list cannot be read: %w", err)
	}
	if w.in(st.Gid) {
		return st.Mode >> 3 & 7, nil
	}
	return st.Mode & 7, nil
}

func (w *rights) in(gid uint32) bool { return gid == w.r.GID || slices.Contains(w.r.Groups, gid) }

// Tags of the entries of an access list (linux/posix_acl_xattr.h).
const (
	aclVersion  = 2
	aclUserObj  = 0x01
	aclUser     = 0x02
	aclGroupObj = 0x04
	aclGroup    = 0x08
	aclMask     = 0x10
	aclOther    = 0x20
)

// byList evaluates an access list for a user who is not the owner. Reading and searching are asked for one by one, so
// each may come from another group's entry.
func (w *rights) byList(b []byte, st *unix.Stat_t) (uint32, error) {
	if len(b) < 4 || len(b)%8 != 4 || binary.LittleEndian.Uint32(b) != aclVersion {
		return 0, errors.New("its access list has a form that larder does not know")
	}
	var user, group, other, mask uint32
	mask = 7
	named, member := false, false
	for b = b[4:]; len(b) > 0; b = b[8:] {
		perm, id := uint32(binary.LittleEndian.Uint16(b[2:])), binary.LittleEndian.Uint32(b[4:])
		switch binary.LittleEndian.Uint16(b) {
		case aclUserObj:
		case aclUser:
			if id == w.r.UID {
				user, named = perm, true
			}
		case aclGroupObj, aclGroup:
			if binary.LittleEndian.Uint16(b) == aclGroupObj {
				id = st.Gid
			}
			if w.in(id) {
				member, group = true, group|perm
			}
		case aclMask:
			mask = perm
		case aclOther:
			other = perm
		default:
			return 0, errors.New("its access list has an entry that larder does not know")
		}
	}
	switch {
	case named:
		return user & mask, nil
	case member:
		return group & mask, nil
	}
	return other, nil
}

// openPlain opens a file below a guarded folder: no part of its path may be a symbolic link.
func openPlain(path string) (int, error) {
	if !strings.HasPrefix(path, "/") {
		return -1, unix.EINVAL
	}
	return unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK, Resolve: unix.RESOLVE_NO_SYMLINKS,
	})
}
