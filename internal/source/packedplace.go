package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"larder/internal/errs"
	"larder/internal/source/packed"
	"larder/internal/store"
)

// Packed files may lie in a store. Then the paths of their address are those in the store, with a slash before them,
// and the root is the store and the path that all of them have in common. What differs is here: how such an address is
// written, how its files are listed, looked at and opened.

// parsePacked reads the uri of packed files.
func parsePacked(scheme, rest string) (packed.Address, error) {
	if !strings.Contains(rest, "://") {
		return packed.ParseAddress(scheme, rest)
	}
	paths, query, has := strings.Cut(rest, "?")
	name := ""
	parts := strings.Split(paths, "::")
	for i, p := range parts {
		l, err := store.Parse(p)
		if err != nil {
			return packed.Address{}, err
		}
		if l.Scheme == "file" {
			return packed.Address{}, fmt.Errorf("%q is in the file system, and other parts are in a store", p)
		}
		here := store.Location{Scheme: l.Scheme, Place: l.Place}.String()
		if i > 0 && here != name {
			return packed.Address{}, fmt.Errorf("its files lie in %s and in %s; larder reads the files of one dataset from "+
				"one place", name, here)
		}
		key := strings.TrimRight(l.Prefix, "/")
		if clean := path.Clean("/" + key); clean != "/"+key {
			return packed.Address{}, fmt.Errorf("the key %q has a part that is no name of a folder", l.Prefix)
		}
		name, parts[i] = here, "/"+key
	}
	if !packed.InPlaces(scheme) {
		return packed.Address{}, fmt.Errorf("%s: files are read from folders only, not from %s", scheme, name)
	}
	rest = "/" // paths may hold a question mark, decoded
	if has {
		rest += "?" + query
	}
	a, err := packed.ParseAddress(scheme, rest)
	a.Path, a.Place = strings.Join(parts, "::"), name
	return a, err
}

// cleanPlacedRoot reports whether the root of packed files is written as placedRoot writes it.
func cleanPlacedRoot(root string) bool {
	if !isStored(root) {
		return cleanRoot(root)
	}
	scheme, rest, _ := strings.Cut(root, "://")
	name, key, _ := strings.Cut(rest, "/")
	l, err := store.Parse(scheme + "://" + name)
	return err == nil && l.String() == scheme+"://"+name && path.Clean("/"+key) == "/"+key
}

// redactPacked is a uri for messages, without secrets in any of the paths that :: joins.
func redactPacked(uri string) string {
	if from, at := strings.Index(uri, "://"), strings.LastIndexByte(uri, '@'); from >= 0 && at > from {
		uri = uri[:from+3] + "***" + uri[at:]
	}
	parts := strings.Split(uri, "::")
	for i, p := range parts {
		parts[i] = store.Redact(p)
	}
	return strings.Join(parts, "::")
}

// placedRoot is the root of an address: the folder of its files, behind the name of their store.
func placedRoot(a packed.Address) string {
	root := packed.Root(a)
	if a.Place != "" {
		root = a.Place + strings.TrimSuffix(root, "/")
	}
	return root
}

// listMost is how many times as many objects as it looks for a list may name before it is given up.
const listMost = 4

// storePlace is a store as the place of packed files. It remembers what it was told, so that files that a list named
// are not asked for one by one.
type storePlace struct {
	ctx context.Context //nolint:containedctx // it lives as long as one walk
	st  store.Store
	// indexed knows files, and kept reads small ones through the disk tier; nil = the store is asked.
	indexed func(path string) (store.Info, bool)
	kept    func(in store.Info) io.ReaderAt
	rs      *rootState

	mu    sync.Mutex // guards what follows
	known map[string]store.Info
}

// look returns the address with the place that its files lie in. The place is for one walk.
func (rs *rootState) look(ctx context.Context) (packed.Address, *storePlace, error) {
	a := rs.address
	if a.Place == "" {
		return a, nil, nil
	}
	st, _, err := rs.stores.Open(ctx, a.Place)
	if err != nil {
		return a, nil, err
	}
	at := &storePlace{ctx: ctx, st: st, rs: rs, known: map[string]store.Info{}}
	a.At = at
	return a, at, nil
}

func keyOf(path string) string { return strings.TrimPrefix(path, "/") }

func (p *storePlace) learn(in store.Info) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known[in.Key] = in
	return nil
}

// info is what the store says of a file.
func (p *storePlace) info(path string) (store.Info, error) {
	if p.indexed != nil {
		if in, ok := p.indexed(path); ok {
			return in, nil
		}
	}
	p.mu.Lock()
	in, ok := p.known[keyOf(path)]
	p.mu.Unlock()
	if ok {
		return in, nil
	}
	in, err := p.st.Stat(p.ctx, keyOf(path))
	if err != nil {
		return store.Info{}, err
	}
	return in, p.learn(in)
}

// learnAll lists the files of some paths together, where that takes fewer requests than asking for each. What it does
// not learn is asked for later.
func (p *storePlace) learnAll(paths []string) {
	wanted := make(map[string]bool, len(paths))
	prefix := ""
	p.mu.Lock()
	for _, f := range paths {
		key := keyOf(f)
		if _, ok := p.known[key]; ok {
			continue
		}
		if len(wanted) == 0 {
			prefix = key
		}
		for !strings.HasPrefix(key, prefix) {
			prefix = prefix[:len(prefix)-1]
		}
		wanted[key] = true
	}
	p.mu.Unlock()
	const few = 4
	if len(wanted) <= few {
		return
	}
	seen := 0
	// Without the right to list, or without a list, files are asked for one by one, and errors are theirs.
	_ = p.st.List(p.ctx, prefix, func(in store.Info) error {
		if seen++; seen > 1000+listMost*len(wanted) {
			return errTooMany
		}
		if wanted[in.Key] {
			return p.learn(in)
		}
		return nil
	})
}

var errTooMany = errors.New("the list names too many other objects")

// Size implements packed.Place.
func (p *storePlace) Size(path string) (int64, error) {
	in, err := p.info(path)
	return in.Size, err
}

// List implements packed.Place.
func (p *storePlace) List(dir string) ([]string, error) {
	prefix := keyOf(dir)
	if prefix != "" {
		prefix += "/"
	}
	var names []string
	folders, err := p.st.Folder(p.ctx, prefix, func(in store.Info) error {
		if name := strings.TrimPrefix(in.Key, prefix); name != "" {
			names = append(names, name)
		}
		return p.learn(in)
	})
	for _, f := range folders {
		names = append(names, strings.TrimPrefix(f, prefix))
	}
	return names, err
}

// Read implements packed.Place.
func (p *storePlace) Read(path string, most int64) ([]byte, error) {
	in, err := p.info(path)
	if err != nil {
		return nil, err
	}
	if in.Size > most {
		return nil, fmt.Errorf("%q has %d bytes, more than %d", path, in.Size, most)
	}
	b := make([]byte, in.Size)
	var r io.ReaderAt = &store.ReaderAt{Context: p.ctx, Store: p.st, Object: in}
	if p.kept != nil {
		r = p.kept(in)
	}
	if _, err := r.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return b, nil
}

// inPlace is a path of a file in the place of the address: rel is below the root.
func (rs *rootState) inPlace(rel string) string {
	if rs.address.Place == "" {
		return join(rs.root, rel)
	}
	return strings.TrimPrefix(rs.root, rs.address.Place) + "/" + rel
}

// openFile opens a packed file that is as it was looked at, to read it from the front. The caller closes it after its
// last read; ctx is that of all reads.
func (rs *rootState) openFile(ctx context.Context, rel string, was fileMeta) (
	packed.File, io.Closer, error,
) {
	path := rs.inPlace(rel)
	if rs.address.Place == "" {
		f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			return packed.File{}, nil, err
		}
		return packed.File{ReaderAt: f, Path: path, Size: was.size, Beside: openOther}, f, nil
	}
	_, at, err := rs.look(ctx)
	if err != nil {
		return packed.File{}, nil, err
	}
	in := store.Info{Key: keyOf(path), Size: was.size, Version: uint64(was.mtime)}
	ahead := rs.aheadOf(ctx, at.st, in)
	return packed.File{ReaderAt: ahead, Path: path, Size: was.size, Beside: at.openBeside}, ahead, nil
}

// besideObject is an object beside the one that is scanned.
type besideObject struct {
	*store.Ahead
	size int64
}

func (b besideObject) Len() int64 { return b.size }

func (p *storePlace) openBeside(path string) (packed.Other, error) {
	in, err := p.info(path)
	if err != nil {
		return nil, err
	}
	f := besideObject{p.rs.aheadOf(p.ctx, p.st, in), in.Size}
	if err := packed.IsPointer(f, f.size); err != nil {
		_ = f.Close() // nothing was written, so nothing can be lost
		return nil, err
	}
	return f, nil
}

// scanners is how many files of a store are scanned beside each other: most of the time they wait for an answer.
const scanners = 32

// scanners is how many files are scanned beside each other.
func (rs *rootState) scanners() int {
	if rs.address.Place == "" {
		return walkers
	}
	return scanners
}

// storeError is the error of a store about a dataset, under the dataset's name; nil where err is another one.
func (rs *rootState) storeError(what string, err error) error {
	f, ok := errors.AsType[*errs.Error](err)
	if !ok || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return errs.New(f.Reason, redactPacked(printable(rs.uri)), f.Hint, "%s: %s", what, f.Message).Because(f.Err)
}
