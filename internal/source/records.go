package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/cespare/xxhash/v2"

	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/record"
	"larder/internal/source/packed"
)

// maxOpen is how many files of records stay open when no read uses them.
const maxOpen = 64

// Schema describes the records that the samples are; nil = they are an image and a label. The caller must not change
// it. A field called index has the name ['index'], because every batch has an index of its own.
func (d *Dataset) Schema() *record.Schema { return d.snap.Load().shownSchema() }

func (s *snapshot) shownSchema() *record.Schema {
	if len(s.schema.Fields) == 0 {
		return nil
	}
	out := &record.Schema{Fields: slices.Clone(s.schema.Fields)}
	for i := range out.Fields {
		if f := &out.Fields[i]; f.Name == "index" {
			f.Name = "['index']"
		}
	}
	return out
}

// schemaOf asks the format what the samples are.
func (rs *rootState) schemaOf(ctx context.Context, files []string) (record.Schema, error) {
	f, ok := rs.format.(packed.Records)
	if !ok {
		return record.Schema{}, nil
	}
	s, err := f.Schema(ctx, rs.address, files, openBeside)
	if err == nil {
		err = s.Check()
	}
	if err == nil || ctx.Err() != nil {
		return s, ctx.Err()
	}
	return record.Schema{}, errs.New(errs.DatasetUnread, printable(rs.uri), packedHint[rs.format.Scheme()],
		"index %s: find the fields of its samples", printable(rs.uri)).Because(err)
}

// recordMark tells objects that are records from others of the same bytes: it is a part of their identity, and depends
// on all that the record of given bytes depends on. 0 = the samples are no records.
func recordMark(a packed.Address, s *record.Schema) uint64 {
	if len(s.Fields) == 0 {
		return 0
	}
	h := xxhash.New()
	a.Path = ""
	_, _ = h.WriteString("larder record objects 1 " + a.String()) // a hash never fails
	for i := range s.Fields {
		_, _ = fmt.Fprintf(h, "%+v", s.Fields[i])
	}
	return max(h.Sum64(), 1)
}

// openKey names an open file: the same path with another content is another file.
type openKey struct {
	root, file  uint32
	size, mtime int64
	mark        uint64
}

// openFile is a file of records. refs and its place in the list are guarded by openFiles.mu; what follows ready is
// written before ready is closed.
type openFile struct {
	key   openKey
	refs  int
	ready chan struct{}
	rows  packed.Rows
	file  io.Closer
	same  func() error // that the file still is the indexed one
	err   error
}

func (f *openFile) close() {
	if f.rows != nil {
		_ = f.rows.Close() // nothing was written, so nothing can be lost
	}
	if f.file != nil {
		_ = f.file.Close()
	}
}

// openFiles keeps some files of records open between reads. The zero value is empty.
type openFiles struct {
	mu     sync.Mutex
	byKey  map[openKey]*openFile
	idle   []*openFile // not used now, the longest first
	closed bool
}

// use returns the open file of a key, opened by open if need be. The caller calls done with it.
func (o *openFiles) use(k openKey, open func(*openFile) error) (*openFile, error) {
	o.mu.Lock()
	f, ok := o.byKey[k]
	if !ok {
		f = &openFile{key: k, ready: make(chan struct{})}
		if o.byKey == nil {
			o.byKey = map[openKey]*openFile{}
		}
		o.byKey[k] = f
	}
	if f.refs++; f.refs == 1 {
		o.idle = slices.DeleteFunc(o.idle, func(x *openFile) bool { return x == f })
	}
	o.mu.Unlock()
	if ok {
		<-f.ready
	} else {
		f.err = open(f)
		close(f.ready)
	}
	if f.err != nil {
		o.done(f, true)
		return nil, f.err
	}
	return f, nil
}

// done ends a use. A file that is not what it was is not used again.
func (o *openFiles) done(f *openFile, spoilt bool) {
	o.mu.Lock()
	f.refs--
	if (spoilt || o.closed) && o.byKey[f.key] == f {
		delete(o.byKey, f.key)
	}
	var out *openFile
	switch {
	case f.refs > 0:
	case o.byKey[f.key] != f:
		out = f
	default:
		if o.idle = append(o.idle, f); len(o.idle) > maxOpen {
			out, o.idle = o.idle[0], o.idle[1:]
			delete(o.byKey, out.key)
		}
	}
	o.mu.Unlock()
	if out != nil {
		out.close()
	}
}

// close closes what is not used; the rest is closed with its last use.
func (o *openFiles) close() {
	o.mu.Lock()
	idle := o.idle
	o.idle, o.closed = nil, true
	for _, f := range idle {
		delete(o.byKey, f.key)
	}
	o.mu.Unlock()
	for _, f := range idle {
		f.close()
	}
}

// readRecord is Read of a sample that is a record: the record follows what buf holds, which is nothing.
func (c *Catalog) readRecord(ctx context.Context, o ident.ObjectID, row object, buf []byte) ([]byte, error) {
	first := c.rootAt(row.root)
	b, err := c.recordOf(ctx, first, row, row.sample, buf)
	if err == nil || ctx.Err() != nil || errs.Is(err, errs.SampleBad) {
		return b, err
	}
	c.mu.RLock()
	roots := slices.Clip(c.roots) // append-only: what is there stays
	c.mu.RUnlock()
	for _, rs := range roots {
		snap := rs.snap.Load()
		if snap == nil || rs.format == nil {
			continue
		}
		s, ok := snap.rev.find(o)
		if !ok {
			continue
		}
		if snap.object(s) == o { // not one that the root has another object for already
			rs.stale.Store(true)
		}
		if rs == first {
			continue
		}
		if b, err := c.recordOf(ctx, rs, row, s, buf); err == nil {
			return b, nil
		}
	}
	return nil, readError(first.path(row.sample), err)
}

// recordOf reads a record as sample s of one root. An error about its content has the reason SAMPLE_BAD.
func (c *Catalog) recordOf(
	ctx context.Context, rs *rootState, row object, s ident.SampleID, buf []byte,
) ([]byte, error) {
	snap := rs.snap.Load()
	if snap == nil || !snap.has(s) || len(snap.schema.Fields) == 0 {
		return nil, os.ErrNotExist
	}
	dir := snap.dirOf[s]
	d := &snap.dirs[dir]
	k := openKey{rs.index, dir, d.size, row.mtime, snap.mark}
	f, err := c.files.use(k, func(f *openFile) error {
		return c.openRecords(ctx, rs, snap, fileState{d.size, row.mtime}, join(snap.root, d.rel), f)
	})
	if err != nil {
		return nil, err
	}
	at := packed.Sample{Key: snap.name(s), Off: row.off, Size: row.size}
	b, err := f.rows.Record(ctx, buf[:0], at)
	same := f.same()
	c.files.done(f, same != nil)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case same != nil:
		return nil, same
	case err != nil:
		return nil, errs.New(errs.SampleBad, printable(join(snap.root, d.rel)), "repair the file, or leave the sample out",
			"sample %s of %s: %v", printable(at.Key), printable(join(snap.root, d.rel)), err)
	case int64(len(b)) > c.cfg.MaxObject:
		return nil, tooLarge(printable(join(snap.root, d.rel)), int64(len(b)), c.cfg.MaxObject)
	}
	return b, nil
}

// openRecords opens a file for reading its records.
func (c *Catalog) openRecords(
	ctx context.Context, rs *rootState, snap *snapshot, want fileState, path string, f *openFile,
) error {
	format, ok := rs.format.(packed.Records)
	if !ok {
		return errors.New("its format has no records")
	}
	open := c.sys.open
	if rs.guarded.Load() {
		open = c.sys.plain
	}
	fd, err := retry(func() (int, error) { return open(path) })
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), path)
	f.same = func() error { return c.unchanged(fd, want) }
	if err := f.same(); err != nil {
		_ = file.Close() // nothing was written, so nothing can be lost
		return err
	}
	// Its life is longer than that of the read that opens it.
	rows, err := format.Open(context.WithoutCancel(ctx), rs.address,
		packed.File{ReaderAt: file, Path: path, Size: want.size, Beside: openBeside, Schema: &snap.schema})
	if err != nil {
		_ = file.Close()
		return errs.New(errs.SampleBad, printable(path), "write the file again", "open %s: %v", printable(path), err)
	}
	f.rows, f.file = rows, file
	return nil
}

// fieldsText names the fields of a schema, for messages.
func fieldsText(s *record.Schema) string {
	out := make([]string, len(s.Fields))
	for i := range s.Fields {
		out[i] = s.Fields[i].Name
	}
	return strings.Join(out, ", ")
}
