package store

import (
	"context"
	"crypto/md5" //nolint:gosec // what servers check a body against
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"golang.org/x/sync/errgroup"

	"larder/internal/clock"
	"larder/internal/errs"
)

// Writer is a Store that takes objects. A written object is there whole, or not at all: no reader ever finds a part of
// one. Safe for concurrent use. Errors are those of Store; errors.Is finds ErrExist.
type Writer interface {
	Store
	// Put writes the size bytes of body as an object, over one that is there, and asks the store what it has then. Large
	// ones go in pieces, several at once, and each is tried again by itself. body is read more than once, and must not
	// change.
	Put(ctx context.Context, key string, body io.ReaderAt, size int64) (Info, error)
	// Create is Put where no object is: else it is ErrExist, of servers that know If-None-Match. Of small objects.
	Create(ctx context.Context, key string, body io.ReaderAt, size int64) (Info, error)
	// Remove deletes an object. One that is not there is no error.
	Remove(ctx context.Context, key string) error
	// Sweep forgets the pieces that earlier writes of keys with that prefix left behind, whose process was killed; of
	// those keys only that are the caller's own.
	Sweep(ctx context.Context, prefix string, own func(key string) bool) error
}

// ErrExist is in the chain of errors about objects that are there and should not be.
var ErrExist = fs.ErrExist

const (
	// pieceSize is the least of what is sent in one request, unless the object is smaller. S3 wants 5 MiB at least.
	pieceSize = 16 << 20
	// mostPieces is what S3 takes for one object.
	mostPieces = 10_000
	// wholeTries is how often an upload begins again that the server no longer knows.
	wholeTries = 3
	// abortWait bounds the farewell of an upload that was given up.
	abortWait = 5 * time.Second
)

// writing is a backend whose place takes objects, one request at a time as backend says.
type writing interface {
	// put stores an object whole and returns its ETag. fresh = it is altered where there is one.
	put(ctx context.Context, key string, p *piece, fresh bool) (etag string, err error)
	// begin starts an upload of pieces.
	begin(ctx context.Context, key string) (upload string, err error)
	// part sends the n-th piece, from 1 on, and returns what commit calls it.
	part(ctx context.Context, u upload, n int, p *piece) (name string, err error)
	// commit makes an object of the pieces; it is missing where the upload is not known any more.
	commit(ctx context.Context, u upload, names []string) (etag string, err error)
	// landed is the ETag of an object of these pieces; "" = not known.
	landed(names []string) string
	abort(ctx context.Context, u upload) error
	// unfinished are uploads of keys with a prefix.
	unfinished(ctx context.Context, prefix string) ([]upload, error)
	remove(ctx context.Context, key string) error
}

// upload is an object that comes in pieces.
type upload struct{ key, id string }

// piece is the body of one request.
type piece struct {
	from      io.ReaderAt
	off, size int64
	md5       [md5.Size]byte
	sha256    [sha256.Size]byte
	alive     func() // called as it is sent; nil = nobody waits
}

func newPiece(from io.ReaderAt, off, size int64) (*piece, error) {
	p := &piece{from: from, off: off, size: size}
	a, b := md5.New(), sha256.New() //nolint:gosec // as above
	if n, err := io.Copy(io.MultiWriter(a, b), io.NewSectionReader(from, off, size)); err != nil || n != size {
		if err == nil {
			err = fmt.Errorf("it ends after %d of %d bytes", off+n, off+size)
		}
		return nil, &failure{kind: final, what: "read what is to be written", cause: err}
	}
	a.Sum(p.md5[:0])
	b.Sum(p.sha256[:0])
	return p, nil
}

func (p *piece) md5Base64() string { return base64.StdEncoding.EncodeToString(p.md5[:]) }
func (p *piece) sha256Hex() string { return hex.EncodeToString(p.sha256[:]) }

// reader reads the piece from its beginning.
func (p *piece) reader() *pieceReader {
	return &pieceReader{io.NewSectionReader(p.from, p.off, p.size), p.alive}
}

type pieceReader struct {
	*io.SectionReader
	alive func()
}

func (r *pieceReader) Read(b []byte) (int, error) {
	n, err := r.SectionReader.Read(b)
	if n > 0 && r.alive != nil {
		r.alive()
	}
	return n, err
}

func (r *pieceReader) Close() error { return nil }

// Writer is Open for writing. Errors are those of Open; UNSUPPORTED where objects cannot be written.
func (s *Stores) Writer(ctx context.Context, uri string) (w Writer, key string, err error) {
	st, key, err := s.Open(ctx, uri)
	if err != nil {
		return nil, "", err
	}
	if r, ok := st.(*remote); ok {
		if _, ok := r.b.(writing); ok {
			return r, key, nil
		}
	}
	return nil, "", errs.New(errs.Unsupported, Redact(uri), "write to a folder, s3://, gs:// or az://",
		"%s: larder reads there and cannot write", Redact(uri))
}

// Put implements Writer.
func (r *remote) Put(ctx context.Context, key string, body io.ReaderAt, size int64) (Info, error) {
	return r.write(ctx, key, body, size, false)
}

// Create implements Writer.
func (r *remote) Create(ctx context.Context, key string, body io.ReaderAt, size int64) (Info, error) {
	return r.write(ctx, key, body, size, true)
}

func (r *remote) writer(key string) (writing, error) {
	if err := checkKey(r.name, key); err != nil {
		return nil, err
	}
	w, ok := r.b.(writing)
	if !ok {
		return nil, errs.New(errs.Unsupported, r.name, "write to a folder, s3://, gs:// or az://",
			"%s: larder reads there and cannot write", r.name)
	}
	return w, nil
}

// write writes an object, and compares what the store then has with what it said.
func (r *remote) write(ctx context.Context, key string, body io.ReaderAt, size int64, fresh bool) (Info, error) {
	w, err := r.writer(key)
	if err != nil {
		return Info{}, err
	}
	etag := ""
	if fresh || size <= r.piece {
		etag, err = r.putWhole(ctx, w, key, body, size, fresh)
	} else {
		etag, err = r.putPieces(ctx, w, key, body, size)
	}
	if err != nil {
		return Info{}, err
	}
	in, err := r.Stat(ctx, key)
	switch {
	case err != nil:
		return Info{}, err
	case in.Size != size || !sameETag(in.ETag, etag, body, size):
		return Info{}, r.report("write", key, &failure{kind: final, what: fmt.Sprintf("%d bytes were written, and the store "+
			"has an object of %d", size, in.Size), hint: "another program may write there; try again"}, 1, 0)
	}
	return in, nil
}

// sameETag reports whether an object is the one that was written: its ETag is what the write was answered, or, of some
// servers that make pieces one, the MD5 of it all.
func sameETag(got, answered string, body io.ReaderAt, size int64) bool {
	if answered == "" || got == answered {
		return true
	}
	h := md5.New() //nolint:gosec // as above
	_, err := io.Copy(h, io.NewSectionReader(body, 0, size))
	return err == nil && got == hex.EncodeToString(h.Sum(nil))
}

func (r *remote) putWhole(ctx context.Context, w writing, key string, body io.ReaderAt, size int64, fresh bool) (
	etag string, err error,
) {
	p, err := newPiece(body, 0, size)
	if err != nil {
		return "", r.report("write", key, failureOf(err), 1, 0)
	}
	err = r.again(ctx, "write", key, func(wt *watcher) (err error) {
		p.alive = wt.alive
		etag, err = w.put(wt.ctx, key, p, fresh)
		if f := failureOf(err); err != nil && fresh && f.kind == altered {
			return &failure{kind: final, what: "an object of that name is there", hint: "name another place", cause: ErrExist}
		}
		return err
	})
	return etag, err
}

// putPieces uploads in pieces. Where the answer to the last request was lost, the upload is not known any more; then
// the object is there, or all begins again.
func (r *remote) putPieces(ctx context.Context, w writing, key string, body io.ReaderAt, size int64) (string, error) {
	for tries := 1; ; tries++ {
		names, etag, err := r.onePiecewise(ctx, w, key, body, size)
		if !errors.Is(err, errForgotten) {
			return etag, err
		}
		if in, serr := r.Stat(ctx, key); serr == nil && in.Size == size && in.ETag != "" &&
			w.landed(names) != "" && sameETag(in.ETag, w.landed(names), body, size) {
			return in.ETag, nil
		}
		if tries == wholeTries {
			return "", err
		}
	}
}

// errForgotten is an upload that its server does not know.
var errForgotten = errors.New("the server does not know the upload any more")

func (r *remote) onePiecewise(ctx context.Context, w writing, key string, body io.ReaderAt, size int64) (
	names []string, etag string, err error,
) {
	u := upload{key: key}
	err = r.again(ctx, "begin to write", key, func(wt *watcher) (err error) {
		u.id, err = w.begin(wt.ctx, key)
		return err
	})
	if err != nil {
		return nil, "", err
	}
	defer func() {
		if err != nil && !errors.Is(err, errForgotten) {
			last, cancel := clock.WithTimeout(context.WithoutCancel(ctx), r.clock, abortWait)
			defer cancel()
			_ = r.once(last, func(wt *watcher) error { return w.abort(wt.ctx, u) }) // the next run sweeps
		}
	}()
	each := max(r.piece, (size+mostPieces-1)/mostPieces)
	names = make([]string, (size+each-1)/each)
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(r.set.Parallel)
	for i := range names {
		g.Go(func() error {
			p, err := newPiece(body, int64(i)*each, min(each, size-int64(i)*each))
			if err != nil {
				return r.report("write", key, failureOf(err), 1, 0)
			}
			return forgotten(r.again(gctx, "write", key, func(wt *watcher) (err error) {
				p.alive = wt.alive
				names[i], err = w.part(wt.ctx, u, i+1, p)
				return err
			}))
		})
	}
	if err := g.Wait(); err != nil {
		return names, "", err
	}
	err = forgotten(r.again(ctx, "write", key, func(wt *watcher) (err error) {
		etag, err = w.commit(wt.ctx, u, names)
		return err
	}))
	return names, etag, err
}

// forgotten marks an error that says that an upload is not known.
func forgotten(err error) error {
	if f, ok := errors.AsType[*failure](err); ok && f.kind == missing {
		return fmt.Errorf("%w (%w)", err, errForgotten)
	}
	return err
}

// Remove implements Writer.
func (r *remote) Remove(ctx context.Context, key string) error {
	w, err := r.writer(key)
	if err != nil {
		return err
	}
	err = r.again(ctx, "delete", key, func(wt *watcher) error { return w.remove(wt.ctx, key) })
	if errors.Is(err, ErrNotExist) {
		return nil
	}
	return err
}

// Sweep implements Writer.
func (r *remote) Sweep(ctx context.Context, prefix string, own func(key string) bool) error {
	w, err := r.writer(prefix)
	if err != nil {
		return err
	}
	var left []upload
	err = r.again(ctx, "list the unfinished uploads of", prefix, func(wt *watcher) (err error) {
		left, err = w.unfinished(wt.ctx, prefix)
		return err
	})
	for _, u := range left {
		if !own(u.key) {
			continue
		}
		if err == nil {
			err = r.again(ctx, "forget an upload of", u.key, func(wt *watcher) error { return w.abort(wt.ctx, u) })
		}
		if errors.Is(err, ErrNotExist) {
			err = nil // it has ended meanwhile
		}
	}
	return err
}
