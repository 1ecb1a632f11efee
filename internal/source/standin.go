package source

import (
	"bytes"
	"context"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"larder/internal/errs"
	"larder/internal/source/packed"
	"larder/internal/store"
)

// Pointers of Git LFS have so many bytes, but for those of its extensions.
const (
	leastStandIn = 120
	mostStandIn  = 200
)

// refusePointers refuses a folder of images whose files are all as small as pointers of Git LFS, and the first of which
// is one: a clone without the files. A single pointer among images is an image that cannot be decoded.
func refusePointers(ctx context.Context, c *Catalog, root string, w *walkResult) error {
	var rel string
	var first *walkedFile
	for _, d := range w.dirs {
		for i := range d.files {
			if !maybePointer(d.files[i].size) {
				return nil
			}
			if first == nil {
				first, rel = &d.files[i], join(d.rel, d.files[i].name)
			}
		}
	}
	if first == nil {
		return nil
	}
	path := join(root, rel)
	b, err := readFirst(ctx, c, root, path, first)
	if err != nil {
		return nil // a read of the image fails as well
	}
	return pointerError(root, path, b)
}

func maybePointer(size int64) bool { return size >= leastStandIn && size <= mostStandIn }

// pointerError is the error of a dataset whose first image has some bytes; nil = they are no pointer.
func pointerError(dataset, path string, b []byte) error {
	if err := packed.IsPointer(bytes.NewReader(b), int64(len(b))); err != nil {
		return errs.New(errs.DatasetUnread, printable(dataset), "run `git lfs pull` in the repository", "index %s: %s",
			printable(dataset), printable(path)).Because(err)
	}
	return nil
}

// refuseListed is refusePointers of images that lists name.
func refuseListed(rs *rootState, images []listedImage, at *storePlace) error {
	if len(images) == 0 || slices.ContainsFunc(images, func(x listedImage) bool { return !maybePointer(x.meta.size) }) {
		return nil
	}
	path := join(rs.root, images[0].path)
	read := func() ([]byte, error) { return os.ReadFile(path) }
	if at != nil {
		read = func() ([]byte, error) { return at.Read(rs.inPlace(images[0].path), mostStandIn) }
	}
	b, err := read()
	if err != nil {
		return nil // a read of the image fails as well
	}
	return pointerError(rs.uri, path, b)
}

// readFirst reads a small file of a folder.
func readFirst(ctx context.Context, c *Catalog, root, path string, f *walkedFile) ([]byte, error) {
	b := make([]byte, f.size)
	if isStored(root) {
		s, key, err := c.storeOf(ctx, path)
		if err != nil {
			return nil, err
		}
		_, err = s.ReadRange(ctx, store.Info{Key: key, Size: f.size, Version: uint64(f.mtime)}, 0, b)
		return b, err
	}
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	_, err = io.ReadFull(file, b)
	return b, err
}
