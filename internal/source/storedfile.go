package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"

	"larder/internal/source/packed"
	"larder/internal/spool"
	"larder/internal/store"
	"larder/tiers/disk"
)

// storedFile is an indexed file of a store as reads of its records see it: its bytes come from the disk tier where that
// has them, else from the store, within the storage limit. Reads are of the version that was indexed.
type storedFile struct {
	c     *Catalog
	rs    *rootState
	st    store.Store
	in    store.Info
	reads *openReads

	pieces *keptPieces // that the index read
}

var _ packed.RangesReader = (*storedFile)(nil)

// Len implements packed.Other.
func (f *storedFile) Len() int64 { return f.in.Size }

// Close implements packed.Other.
func (f *storedFile) Close() error { return nil }

// ReadAt implements io.ReaderAt.
func (f *storedFile) ReadAt(p []byte, off int64) (int, error) {
	f.reads.bytes.Add(int64(len(p)))
	return f.ReadAtContext(f.reads.ctx, p, off)
}

// ReadAtContext implements packed.ContextReader.
func (f *storedFile) ReadAtContext(ctx context.Context, p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("read at byte %d", off)
	}
	if off >= f.in.Size {
		return 0, io.EOF
	}
	var eof error
	if left := f.in.Size - off; int64(len(p)) > left {
		p, eof = p[:left], io.EOF
	}
	if len(p) == 0 {
		return 0, ctx.Err()
	}
	if f.get(ctx, p, off) {
		return len(p), eof
	}
	if err := f.c.limit.wait(ctx, int64(len(p))); err != nil {
		return 0, err
	}
	n, err := f.st.ReadRange(ctx, f.in, off, p)
	if errors.Is(err, io.EOF) && n == len(p) {
		err = nil
	}
	if err != nil {
		return n, err
	}
	if err := countRead(ctx, n); err != nil {
		return n, err
	}
	f.put(ctx, p, off)
	return n, eof
}

// joinGap is how far apart two ranges of one record may lie to be one request. It is less than what a request costs in
// time (store.DefaultGap), because requests of one record run beside each other.
const joinGap = 32 << 10

// ReadRanges implements packed.RangesReader.
func (f *storedFile) ReadRanges(ctx context.Context, ranges []packed.Range) error {
	missing := make([]store.Range, 0, len(ranges))
	size := int64(0)
	for _, r := range ranges {
		if len(r.Buf) == 0 || f.get(ctx, r.Buf, r.Off) {
			continue
		}
		if err := f.c.limit.wait(ctx, int64(len(r.Buf))); err != nil {
			return err
		}
		missing = append(missing, store.Range{Off: r.Off, Buf: r.Buf})
		size += int64(len(r.Buf))
	}
	if len(missing) == 0 {
		return ctx.Err()
	}
	if err := store.ReadRanges(ctx, f.st, f.in, missing, joinGap); err != nil {
		return err
	}
	if err := countRead(ctx, int(size)); err != nil {
		return err
	}
	for _, r := range missing {
		f.put(ctx, r.Buf, r.Off)
	}
	return nil
}

// get fills p with bytes of the file from the disk tier, and reports whether it could.
func (f *storedFile) get(ctx context.Context, p []byte, off int64) bool {
	if f.pieces.get(f.rs.whom(ctx), p, off) {
		return true
	}
	kept := f.kept(ctx)
	return kept != nil && kept.Get(f.rs.whom(ctx), f.key(off, len(p)), p)
}

// put offers bytes of the file to the disk tier.
func (f *storedFile) put(ctx context.Context, p []byte, off int64) {
	if kept := f.kept(ctx); kept != nil {
		kept.Put(f.rs.whom(ctx), f.key(off, len(p)), p)
	}
}

// kept is the disk tier; nil = there is none for these bytes.
func (f *storedFile) kept(ctx context.Context) Kept {
	if ctx.Value(inBlock{}) != nil { // its records are kept, and so its bytes need not be
		return nil
	}
	if f.in.SizeAlone() { // what is kept may be of other contents
		return nil
	}
	return f.c.cfg.Kept
}

func (f *storedFile) key(off int64, n int) disk.Key {
	return disk.Key{Place: f.rs.placeName(), Object: f.rs.address.Place + "/" + f.in.Key, Version: f.in.Version,
		Off: off, Size: int64(n)}
}

// inBlock marks the context in which a block is made.
type inBlock struct{}

// storedSpool is a spool for the blocks of files in stores.
type storedSpool struct{ spool.Spool }

// Block implements spool.Spool.
func (s storedSpool) Block(ctx context.Context, key string, make spool.Make) (spool.Reader, error) {
	return s.Spool.Block(ctx, key, func(ctx context.Context, w spool.Writer) error {
		return make(context.WithValue(ctx, inBlock{}, true), w)
	})
}

// openReads are the reads that have no context of their own, such as those that open a file.
type openReads struct {
	ctx   context.Context //nolint:containedctx // formats open files through an io.ReaderAt
	bytes atomic.Int64    // that they asked for
}

// openStored is openIndexed of a file in a store.
func (c *Catalog) openStored(reads *openReads, rs *rootState, snap *snapshot, d *dirRow) (
	packed.Address, packed.File, error,
) {
	a, at, err := rs.look(reads.ctx)
	if err != nil {
		return a, packed.File{}, err
	}
	file := func(in store.Info) *storedFile {
		return &storedFile{c: c, rs: rs, st: at.st, in: in, reads: reads, pieces: rs.pieces(in)}
	}
	folder := rs.inPlace("")
	at.indexed = func(path string) (store.Info, bool) {
		if row := snap.fileAt(folder, path); row != nil {
			return row.info(path), true
		}
		return store.Info{}, false
	}
	at.kept = func(in store.Info) io.ReaderAt { return file(in) }
	path := rs.inPlace(d.rel)
	beside := func(path string) (packed.Other, error) {
		in, ok := at.indexed(path)
		if !ok {
			return nil, notIndexed(rs.uri, path)
		}
		return file(in), nil
	}
	return a, packed.File{ReaderAt: file(d.info(path)), Path: path, Size: d.size, Beside: beside}, nil
}

// fileAt is the row of a packed file by its path, which begins with the folder of all; nil = there is none.
func (s *snapshot) fileAt(folder, path string) *dirRow {
	rel, ok := strings.CutPrefix(path, folder)
	if !ok {
		return nil
	}
	for i := range s.dirs {
		if d := &s.dirs[i]; d.live && d.rel == rel {
			return d
		}
	}
	return nil
}

// info is what the store said of a file when it was indexed.
func (d *dirRow) info(path string) store.Info {
	return store.Info{Key: keyOf(path), Size: d.size, Version: uint64(d.mtime)}
}
