package source

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"
	"golang.org/x/sync/errgroup"

	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/store"
)

// A root behind a network is the URI of a prefix, such as s3://bucket/train, without a slash at its end. Everything
// below it is as in a folder: keys are joined to it by a slash, their first part is the class. What differs is here:
// how it is listed, how an object of it is named, and how that is read.

// isStored reports whether a root is in a store and not in the file system.
func isStored(root string) bool { return store.IsRemote(root) }

// storedRoot is the root of a URI such as s3://bucket/train.
func storedRoot(uri, place string) (string, error) {
	l, err := store.Parse(place)
	if err != nil {
		return "", err
	}
	if l.Scheme == "http" || l.Scheme == "https" {
		return "", errs.New(errs.Unsupported, store.Redact(uri), "copy the folder to a bucket or to a local disk",
			"dataset %q: a web server has no list of its files, so no folder of it can be read", store.Redact(uri))
	}
	return strings.TrimRight(l.String(), "/"), nil
}

// storeOf opens the store of a root.
func (c *Catalog) storeOf(ctx context.Context, root string) (store.Store, string, error) {
	if err := c.mayOpen(root); err != nil {
		return nil, "", err
	}
	return c.cfg.Stores.Open(ctx, root)
}

// mayOpen refuses stores where the catalogue has none.
func (c *Catalog) mayOpen(root string) error {
	if isStored(root) && c.cfg.Stores == nil {
		return errs.New(errs.Unsupported, printable(root), "let the daemon read it",
			"%s cannot be read here, only folders are", printable(root))
	}
	return nil
}

// storeDevice marks the devices of stores: no file system has such a number.
const storeDevice = 1 << 63

// storedMeta is the identity of an object: its store, its key, its version.
func storedMeta(place string, in store.Info) fileMeta {
	return fileMeta{dev: storeDevice | xxhash.Sum64String(place), ino: xxhash.Sum64String(in.Key), size: in.Size,
		mtime: int64(in.Version)}
}

// walkStore lists a root in a store as walkFolder lists a folder. Folders are what keys have in common, so an empty one
// exists only as a key that ends with a slash.
func (c *Catalog) walkStore(ctx context.Context, root string, allow allowEmpty) (*walkResult, error) {
	s, prefix, err := c.storeOf(ctx, root)
	if err != nil {
		return nil, err
	}
	if prefix != "" {
		prefix += "/"
	}
	w := &storeWalk{place: s.Name(), dirs: map[string]*walkedDir{}, classes: map[string]bool{},
		walker: walker{root: root, allow: allow}}
	w.report.Kinds = map[string]int{}
	w.folder("")
	if err := w.list(ctx, s, prefix); err != nil {
		if f, ok := errors.AsType[*errs.Error](err); ok {
			return nil, errs.New(f.Reason, printable(root), f.Hint, "index %s: %s", printable(root), f.Message).Because(f.Err)
		}
		return nil, fmt.Errorf("index %s: %w", printable(root), err)
	}
	for name := range w.classes { // order-free: finish sorts
		w.walker.classes = append(w.walker.classes, name)
	}
	w.report.Folders = len(w.walker.dirs)
	return w.finish()
}

// listers is how many class folders of a store are listed beside each other: a page of a list takes as long as a read.
const listers = 16

// storeWalk is a walker that is told of keys. mu of the walker guards what is below.
type storeWalk struct {
	walker
	place   string
	dirs    map[string]*walkedDir // by path
	classes map[string]bool
}

// list takes all keys that begin with prefix, those of each class folder by themselves.
func (w *storeWalk) list(ctx context.Context, s store.Store, prefix string) error {
	take := func(in store.Info) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.add(strings.TrimPrefix(in.Key, prefix), in)
		return nil
	}
	folders, err := s.Folder(ctx, prefix, take)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(listers)
	for _, f := range folders {
		g.Go(func() error { return s.List(ctx, f, take) })
	}
	return g.Wait()
}

func (w *storeWalk) folder(rel string) *walkedDir {
	d := w.dirs[rel]
	if d == nil {
		d = &walkedDir{rel: rel, class: firstSegment(rel)}
		w.dirs[rel] = d
		w.walker.dirs = append(w.walker.dirs, d)
		if rel != "" {
			w.classes[d.class] = true
		}
	}
	return d
}

// add takes a key, below the root.
func (w *storeWalk) add(rel string, in store.Info) {
	dir, name := "", rel
	if i := strings.LastIndexByte(rel, '/'); i >= 0 {
		dir, name = rel[:i], rel[i+1:]
	}
	parts := strings.Split(dir, "/")
	odd := dir != "" && slices.ContainsFunc(parts, func(p string) bool { return p == "" || p == "." || p == ".." })
	switch {
	case odd:
		if isImageName(name) {
			w.bad = append(w.bad, badPath{join(w.root, rel), errOddKey})
		}
		return
	case name == "": // a folder that a console made
		if dir != "" {
			w.folder(dir)
		}
		return
	}
	d := w.folder(dir)
	switch {
	case !isImageName(name):
		var k kinds
		k.add(name)
		w.ignore(k)
	case dir == "":
		w.rootImg++
	default:
		d.files = append(d.files, walkedFile{name, storedMeta(w.place, in)})
	}
}

var errOddKey = errors.New("a part of its key is empty, . or .., which is no name of a folder")

// readStored fills buf with an object that lies in a store, or with a part of it from off on.
func (c *Catalog) readStored(ctx context.Context, o ident.ObjectID, row object, off int64, buf []byte) error {
	rs := c.rootAt(row.root)
	s, key, err := c.storedFile(ctx, rs, row)
	if err != nil {
		return err
	}
	in := store.Info{Key: key, Size: rs.state(row, row.sample).size, Version: uint64(row.mtime)}
	_, err = s.ReadRange(ctx, in, row.off+off, buf)
	if errors.Is(err, store.ErrChanged) || errors.Is(err, store.ErrNotExist) {
		c.markStale(o)
	}
	return err
}

// storedFile is the store and the key of the file that holds an object.
func (c *Catalog) storedFile(ctx context.Context, rs *rootState, row object) (store.Store, string, error) {
	path := rs.path(row.sample)
	if rs.format == nil {
		return c.storeOf(ctx, path)
	}
	s, _, err := c.storeOf(ctx, rs.address.Place) // a path of a web address is not to be decoded twice
	return s, keyOf(strings.TrimPrefix(path, rs.address.Place)), err
}

// markStale has the roots that name an object indexed again at the next chance.
func (c *Catalog) markStale(o ident.ObjectID) {
	c.mu.RLock()
	roots := slices.Clip(c.roots) // append-only: what is there stays
	c.mu.RUnlock()
	for _, rs := range roots {
		if snap := rs.snap.Load(); snap != nil {
			if _, ok := snap.rev.find(o); ok {
				rs.stale.Store(true)
			}
		}
	}
}

// probeStored reads the head of an object at once, and what lies behind it as it is asked for.
func (c *Catalog) probeStored(ctx context.Context, o ident.ObjectID, row object) (p Probe, bad, err error) {
	head := make([]byte, min(probeLimit, row.size))
	if err := c.readStored(ctx, o, row, 0, head); err != nil {
		return Probe{}, nil, err
	}
	h := &header{left: probeLimit, size: row.size, read: func(b []byte, off int64) (int, error) {
		if off < int64(len(head)) {
			return copy(b, head[off:]), nil
		}
		return len(b), c.readStored(ctx, o, row, off, b)
	}}
	p, bad = probe(h)
	return p, bad, h.err
}
