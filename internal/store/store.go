package store

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"time"

	"github.com/cespare/xxhash/v2"
)

// Store reads the objects of one place: a bucket, a web server, the file system. Safe for concurrent use.
//
// Errors are *errs.Error of reason DATASET_UNREADABLE (gone, changed, unreachable, not allowed; errors.Is finds
// ErrNotExist and ErrChanged), INVALID_ARGUMENT (a key that cannot be one), UNSUPPORTED; or the context's.
type Store interface {
	// Name is the place as a URI without a path, such as s3://bucket, https://host or file:. Fit for messages.
	Name() string
	// Stat asks for one object.
	Stat(ctx context.Context, key string) (Info, error)
	// List calls f for every object whose key begins with prefix, in ascending order of the bytes of keys. It ends with
	// the first error of f and returns that. UNSUPPORTED where a place cannot be listed, as a web server.
	List(ctx context.Context, prefix string, f func(Info) error) error
	// Folder lists what is directly below prefix, which is "" or ends with a slash: objects to f, in any order, and the
	// folders, which are longer prefixes that end with a slash, as a result. With it, parts of a large place can be listed
	// beside each other. The first error of f ends it.
	Folder(ctx context.Context, prefix string, f func(Info) error) (folders []string, err error)
	// ReadRange reads the bytes from off on, 0 <= off, into buf: len(buf) of them, or fewer with io.EOF where the object
	// ends. in is from Stat or List; the bytes are of that version, or the error is ErrChanged. Long reads are several
	// requests beside each other.
	ReadRange(ctx context.Context, in Info, off int64, buf []byte) (int, error)
}

// Info is what a store says of an object.
type Info struct {
	Key  string // whole, as List's prefix is: never relative
	Size int64  // bytes
	// ETag is the store's name of this version, without quotes; "" where it has none.
	ETag string
	// Version is a number for the same, and what reads are checked against: a hash of ETag, or of size and modification
	// time where there is none. 0 = any version. An Info of Key, Size and Version is enough for ReadRange, so an index of
	// many objects need not keep ETags.
	Version uint64
	ModTime time.Time
}

// ErrNotExist and ErrChanged are in the chain of errors about objects that are gone, and that are not the version asked
// for.
var (
	ErrNotExist = fs.ErrNotExist
	ErrChanged  = errors.New("the object changed since it was listed")
)

// version hashes what names a version. It is never 0.
func version(etag string, size int64, modified time.Time) uint64 {
	if etag != "" {
		return max(1, xxhash.Sum64String(etag))
	}
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:], uint64(size))
	binary.LittleEndian.PutUint64(b[8:], uint64(modified.UnixNano()))
	return max(1, xxhash.Sum64(b[:]))
}

// SizeAlone reports whether the version is of the size alone: other bytes of that size have the same version.
func (in Info) SizeAlone() bool { return in.Version == version("", in.Size, time.Unix(0, 0)) }

// clip cuts buf to what an object of that size holds from off on. eof is io.EOF where that is less.
func clip(size, off int64, buf []byte) (in []byte, eof error) {
	if left := max(0, size-off); int64(len(buf)) > left {
		return buf[:left], io.EOF
	}
	return buf, nil
}

// ReaderAt is an object as an io.ReaderAt, for libraries that want one. Its context is that of every read.
type ReaderAt struct {
	Context context.Context //nolint:containedctx // io.ReaderAt has no place for it
	Store   Store
	Object  Info
}

// ReadAt implements io.ReaderAt.
func (r *ReaderAt) ReadAt(p []byte, off int64) (int, error) {
	return r.Store.ReadRange(r.Context, r.Object, off, p)
}

// Size is the length of the object in bytes.
func (r *ReaderAt) Size() int64 { return r.Object.Size }
