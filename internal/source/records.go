package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/cespare/xxhash/v2"
	"golang.org/x/sys/unix"

	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/record"
	"larder/internal/source/packed"
	"larder/internal/spool"
	"larder/internal/store"
)

// Files of records stay open when no read uses them, as many as maxIdle bytes stand for. Each counts as what its format
// holds of it in memory. One of the file system has a descriptor, and counts as ofLocal beside that. One of a store
// costs requests to open again, and counts at least as what was read for that, and as ofStored. The fewIdle that were
// used last stay open whatever they hold: to open one that holds much reads much.
const (
	maxIdle  = 64 << 20
	fewIdle  = 8
	ofLocal  = 1 << 20
	ofStored = 16 << 10 // beside what was read
)

// Schema describes the records that the samples are; nil = they are an image and a label. The caller must not change
// it. A field called index has another name, see FieldKey, because every batch has an index of its own.
func (d *Dataset) Schema() *record.Schema { return d.snap.Load().shownSchema() }

func (s *snapshot) shownSchema() *record.Schema {
	if len(s.schema.Fields) == 0 {
		return nil
	}
	out := &record.Schema{Fields: slices.Clone(s.schema.Fields)}
	for i := range out.Fields {
		if f := &out.Fields[i]; f.Name == "index" {
			f.Name = renamed
		}
	}
	return out
}

// renamed is the field index of a format.
const renamed = "['index']"

// FieldKey is the name that a field has in its format.
func FieldKey(name string) string {
	if name == renamed {
		return "index"
	}
	return name
}

// schemaOf asks the format what the samples are. at is the place of the files; nil = the file system.
func (rs *rootState) schemaOf(
	ctx context.Context, a packed.Address, at *storePlace, files []string,
) (record.Schema, error) {
	f, ok := rs.format.(packed.Records)
	if !ok {
		return record.Schema{}, nil
	}
	open := openOther
	if at != nil {
		open = at.openBeside
	}
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	l := &looks{rs, progressOf(ctx), cancel}
	s, err := f.Schema(within, a, files, l.open(open))
	if err == nil {
		err = s.Check()
	}
	what := "index " + printable(rs.uri) + ": find the fields of its samples"
	if err == nil || ctx.Err() != nil {
		return s, ctx.Err()
	}
	if e := rs.storeError(what, err); e != nil {
		return record.Schema{}, e
	}
	return record.Schema{}, errs.New(errs.DatasetUnread, redactPacked(printable(rs.uri)), packedHint[rs.format.Scheme()],
		"%s", what).Because(err)
}

// knownSchema is that of the last version, where the first file says it alone and is as it was.
func (rs *rootState) knownSchema(rows []scanned, old *snapshot) (record.Schema, bool) {
	if _, ok := rs.format.(packed.ByFirst); !ok || old == nil || old.outdated > 0 || len(rows) == 0 {
		return record.Schema{}, false
	}
	for i := range old.dirs {
		if d := &old.dirs[i]; d.live && d.rel == rows[0].rel {
			return old.schema, d.is(rows[0].st)
		}
	}
	return record.Schema{}, false
}

// recordMark tells objects that are records from others of the same bytes: it is a part of their identity, and depends
// on all that the record of given bytes depends on. 0 = the samples are no records.
func recordMark(a packed.Address, s *record.Schema, beside []scanned) uint64 {
	if len(s.Fields) == 0 {
		return 0
	}
	h := xxhash.New()
	a.Path, a.Place = "", ""
	_, _ = h.WriteString("larder record objects 1 " + a.String()) // a hash never fails
	s.Describe(h)
	for i := range beside {
		_, _ = fmt.Fprintf(h, "\x00%s %+v", beside[i].rel, beside[i].st)
	}
	return max(h.Sum64(), 1)
}

// openKey names an open file: the same path with another content is another file.
type openKey struct {
	fileKey

	mark uint64
}

// openFile is a file of records. refs and its place in the list are guarded by openFiles.mu; what follows ready is
// written before ready is closed.
type openFile struct {
	key   openKey
	refs  int
	bytes int64 // of maxIdle; set before ready is closed
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
	bytes  int64       // of them
	closed bool
}

// use returns the open file of a key, opened by open if need be. The caller calls done with it. Whose context ends does
// not wait for another's open, and one that ended with its opener's context is tried again.
func (o *openFiles) use(ctx context.Context, k openKey, open func(*openFile) error) (*openFile, error) {
	for {
		f, err := o.useOnce(ctx, k, open)
		if err == nil || ctx.Err() != nil || !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
			return f, err
		}
	}
}

func (o *openFiles) useOnce(ctx context.Context, k openKey, open func(*openFile) error) (*openFile, error) {
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
		if i := slices.Index(o.idle, f); i >= 0 {
			o.idle = slices.Delete(o.idle, i, i+1)
			o.bytes -= f.bytes
		}
	}
	o.mu.Unlock()
	if ok {
		select {
		case <-f.ready:
		case <-ctx.Done():
			o.done(f, false)
			return nil, ctx.Err()
		}
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
	var out []*openFile
	switch {
	case f.refs > 0:
	case o.byKey[f.key] != f:
		out = append(out, f)
	default:
		o.idle = append(o.idle, f)
		o.bytes += f.bytes
		for o.bytes > maxIdle && len(o.idle) > fewIdle {
			old := o.idle[0]
			out, o.idle = append(out, old), o.idle[1:]
			o.bytes -= old.bytes
			delete(o.byKey, old.key)
		}
	}
	o.mu.Unlock()
	for _, f := range out {
		f.close()
	}
}

// close closes what is not used; the rest is closed with its last use.
func (o *openFiles) close() {
	o.mu.Lock()
	idle := o.idle
	o.idle, o.bytes, o.closed = nil, 0, true
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
	b, err := c.recordOf(ctx, first, o, row.sample, buf)
	if err == nil || ctx.Err() != nil || errs.Is(err, errs.SampleBad) || errs.Is(err, errs.ResourceExceeded) {
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
		if b, err := c.recordOf(ctx, rs, o, s, buf); err == nil {
			return b, nil
		}
	}
	if _, ok := errors.AsType[*errs.Error](err); ok {
		return nil, err
	}
	return nil, readError(first.path(row.sample), err)
}

// recordOf reads a record as sample s of one root. An error about its content has the reason SAMPLE_BAD.
func (c *Catalog) recordOf(
	ctx context.Context, rs *rootState, o ident.ObjectID, s ident.SampleID, buf []byte,
) ([]byte, error) {
	row, _ := c.objects.get(o)
	snap := rs.snap.Load()
	// An object of an earlier version, with other fields or arguments, cannot be made with what this one says.
	if snap == nil || !snap.has(s) || !snap.opened(s) || snap.object(s) != o {
		return nil, os.ErrNotExist
	}
	dir := snap.dir(s)
	d := &snap.dirs[dir]
	k := openKey{keyOfFile(rs.index, dir, d, row.mtime), snap.mark}
	f, err := c.openOnce(ctx, rs, snap, k, d)
	if err != nil {
		c.noteChange(o, err)
		return nil, err
	}
	at := packed.Sample{Key: snap.name(s), Off: row.off, Size: row.size}
	within, end := c.withHeld(ctx, k.fileKey, row.off)
	b, err := f.rows.Record(within, buf[:0], at)
	end()
	same := f.same()
	c.files.done(f, same != nil)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case same != nil:
		return nil, same
	case ofPlace(err):
		c.noteChange(o, err)
		return nil, err
	case errors.Is(err, spool.ErrFull):
		return nil, errs.New(errs.ResourceExceeded, printable(join(snap.root, d.rel)), "make the disk tier larger "+
			"(tiers.disk), or write several smaller files", "unpack %s", printable(join(snap.root, d.rel))).Because(err)
	case err != nil:
		return nil, errs.New(errs.SampleBad, printable(join(snap.root, d.rel)), "repair the file, or leave the sample out",
			"sample %s of %s: %v", printable(at.Key), printable(join(snap.root, d.rel)), err)
	case int64(len(b)) > c.cfg.MaxObject:
		return nil, tooLarge(printable(join(snap.root, d.rel)), int64(len(b)), c.cfg.MaxObject)
	}
	return b, nil
}

// openOnce opens a file of records, or returns it as it is open. The caller calls c.files.done with it.
func (c *Catalog) openOnce(
	ctx context.Context, rs *rootState, snap *snapshot, k openKey, d *dirRow,
) (*openFile, error) {
	return c.files.use(ctx, k, func(f *openFile) error { return c.openRecords(ctx, rs, snap, d, f) })
}

// ofPlace reports whether an error is about the place where files lie, not about what is in them.
func ofPlace(err error) bool {
	e, ok := errors.AsType[*errs.Error](err)
	return ok && e.Reason != errs.SampleBad
}

// noteChange has an object indexed again where err says that a file of it is not the indexed one.
func (c *Catalog) noteChange(o ident.ObjectID, err error) {
	_, changed := errors.AsType[*errChanged](err)
	if changed || errors.Is(err, store.ErrChanged) || errors.Is(err, store.ErrNotExist) {
		c.markStale(o)
	}
}

// openRecords opens a file for reading its records.
func (c *Catalog) openRecords(ctx context.Context, rs *rootState, snap *snapshot, d *dirRow, f *openFile) error {
	format, ok := rs.format.(packed.Records)
	if !ok {
		return errors.New("its format has no records")
	}
	reads := &openReads{ctx: ctx}
	// What is opened lives longer than the read that opens it: later reads that have no context of their own never end.
	defer func() { reads.ctx = context.WithoutCancel(ctx) }()
	a, file, err := c.openIndexed(reads, rs, snap, d, f)
	if err != nil {
		return err
	}
	if err := f.same(); err != nil {
		_ = f.file.Close() // nothing was written, so nothing can be lost
		return err
	}
	if packed.InRanges(rs.format.Scheme(), d.rel) {
		file.ReaderAt = &blockReader{file.ReaderAt, reads, c, f.key.fileKey}
	}
	if snap.records() {
		file.Schema = &snap.schema
	}
	// A file that takes the place of another one may have its size and time: device and inode tell them apart.
	file.ID = fmt.Sprintf("%s\x00%s\x00%d\x00%d\x00%d\x00%d", c.placeOf(rs), file.Path, d.size, f.key.mtime, d.dev, d.ino)
	f.rows, err = packed.OpenRows(ctx, format, a, file)
	if err != nil {
		_ = f.file.Close()
		if ofPlace(err) || ctx.Err() != nil {
			return err
		}
		path := printable(join(snap.root, d.rel))
		return errs.New(errs.SampleBad, path, "write the file again", "open %s: %v", path, err)
	}
	holds := packed.HeldBytes(f.rows)
	if f.bytes = ofLocal + holds; rs.address.Place != "" {
		f.bytes = ofStored + max(reads.bytes.Load(), holds)
	}
	return nil
}

// openIndexed opens a packed file, and fills in how it is closed and compared with the index. What lies beside it has
// to be what was indexed, too.
func (c *Catalog) openIndexed(reads *openReads, rs *rootState, snap *snapshot, d *dirRow, f *openFile) (
	packed.Address, packed.File, error,
) {
	blocks := spool.For(c.cfg.Spool, rs.uri)
	if rs.address.Place != "" { // a read compares versions
		a, file, err := c.openStored(reads, rs, snap, d)
		f.file, f.same, file.Spool = io.NopCloser(nil), func() error { return nil }, storedSpool{blocks}
		return a, file, err
	}
	open := c.sys.open
	if rs.guarded.Load() {
		open = c.sys.plain
	}
	path := join(rs.root, d.rel)
	fd, err := retry(func() (int, error) { return open(path) })
	if err != nil {
		return rs.address, packed.File{}, err
	}
	file := os.NewFile(uintptr(fd), path)
	f.file, f.same = file, func() error { return c.unchanged(fd, fileState{d.size, f.key.mtime}) }
	in := packed.File{ReaderAt: file, Path: path, Size: d.size, Spool: blocks}
	in.Beside = func(path string) (packed.Other, error) { return openIndexedBeside(snap, path) }
	if scheme := rs.format.Scheme(); packed.Decoded(scheme, d.rel) || scheme == "tfrecord" { // it may be compressed
		in.ReaderAt = countedFile{file}
		in.Beside = func(path string) (packed.Other, error) {
			o, err := openIndexedBeside(snap, path)
			return countedOther{o, countedFile{o}}, err
		}
	}
	return rs.address, in, nil
}

// openIndexedBeside opens a file of the file system that was indexed, and is as it was.
func openIndexedBeside(snap *snapshot, path string) (packed.Other, error) {
	d := snap.fileAt(strings.TrimSuffix(snap.root, "/")+"/", path)
	if d == nil {
		return nil, notIndexed(snap.uri, path)
	}
	f, err := openBeside(path)
	if err != nil {
		return nil, readError(path, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		_ = f.Close()
		return nil, readError(path, err)
	}
	if st.Size != d.size || st.Mtim.Nano() != d.mtime {
		_ = f.Close()
		return nil, readError(path, &errChanged{size: st.Size, wasSize: d.size, mtime: st.Mtim.Nano(), wasMtime: d.mtime})
	}
	return f, nil
}

// notIndexed is the error about a file that is not one of the dataset's.
func notIndexed(uri, path string) error {
	return fmt.Errorf("%q was not there when %s was indexed: %w", path, printable(uri), fs.ErrNotExist)
}

// fieldsText names the fields of a schema, for messages.
func fieldsText(s *record.Schema) string {
	out := make([]string, len(s.Fields))
	for i := range s.Fields {
		out[i] = s.Fields[i].Name
	}
	return strings.Join(out, ", ")
}
