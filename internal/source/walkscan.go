package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"

	"larder/internal/errs"
	"larder/internal/record"
	"larder/internal/source/packed"
)

// scan is how the files of an address are scanned.
type scan struct {
	a      packed.Address
	format packed.Format
	schema *record.Schema // nil = samples are an image and a label
	log    *scanLog       // where what was found in a file is kept until all are scanned; nil = nowhere
	lists  bool           // the files are lists of samples, which are looked at themselves afterwards
	mark   uint64         // of the schema
	each   int            // goroutines for one file
}

// scanFiles scans the files that are not the same. It goes on where some are damaged, and names them together.
func (rs *rootState) scanFiles(ctx context.Context, how *scan, rows []scanned) error {
	how.mark = schemaMark(how.schema)
	schema := how.schema
	if len(schema.Fields) == 0 {
		how.schema = nil
	}
	how.log.use(schema, rows, how.check)
	var todo []int
	var all Indexed
	for i := range rows {
		r := &rows[i]
		if r.same > 0 {
			continue
		}
		all.AllFiles++
		all.AllBytes += r.st.size
		if r.err != nil { // it is damaged, as was seen before
			continue
		}
		if r.kept {
			all.KeptFiles++
			all.KeptBytes += r.st.size
			all.Samples += int64(len(r.samples))
			continue
		}
		todo = append(todo, i)
	}
	all.Files, all.Bytes = all.KeptFiles, all.KeptBytes
	if all.AllFiles == 1 {
		how.log = nil // no other file can fail after it
	}
	how.each = max(1, runtime.GOMAXPROCS(0)/max(1, len(todo)))
	progressOf(ctx).add(all)
	err := inParallel(ctx, rs.scanners(), len(todo), func(i int) error {
		r := &rows[todo[i]]
		err := rs.scanFile(ctx, how, r)
		switch {
		case err == nil:
			how.log.add(r, how.mark)
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("index %s: %w", printable(rs.uri), ctx.Err())
		}
		r.samples, r.err = nil, err
		return rs.storeError("index "+printable(rs.uri), err) // what is wrong with a store is so for all its files
	})
	if err != nil {
		return err
	}
	return rs.damaged(rows)
}

// damaged is the error about the files that could not be scanned; nil = there are none.
func (rs *rootState) damaged(rows []scanned) error {
	const hint = "write the file again, or name the others only"
	first, n := -1, 0
	several := &severalProblems{}
	for i := range rows {
		r := &rows[i]
		if r.err == nil {
			continue
		}
		if n++; n == 1 {
			first = i
		}
		if n <= maxProblems {
			path := join(rs.root, r.rel) // an error about its fields names it, too
			several.lines = append(several.lines, printable(path)+": "+strings.TrimPrefix(r.err.Error(), path+": "))
			several.causes = append(several.causes, r.err)
		}
	}
	switch n {
	case 0:
		return nil
	case 1:
		path := printable(join(rs.root, rows[first].rel))
		return errs.New(errs.DatasetUnread, path, hint, "index %s: scan %s", printable(rs.uri), path).
			Because(rows[first].err)
	}
	if n > maxProblems {
		several.lines = append(several.lines, fmt.Sprintf("and %d more", n-maxProblems))
	}
	return errs.New(errs.DatasetUnread, printable(rs.uri), "write these files again, or name the others only",
		"index %s: %d of %d files cannot be scanned", printable(rs.uri), n, len(rows)).Because(several)
}

// schemaOfSound is schemaOf, which goes on where the first files are damaged: so the scan, which names all that are
// damaged, begins.
func (rs *rootState) schemaOfSound(
	ctx context.Context, a packed.Address, at *storePlace, rows []scanned,
) (record.Schema, error) {
	files := make([]string, len(rows))
	for i := range rows {
		files[i] = rs.inPlace(rows[i].rel)
	}
	s, err := rs.schemaOf(ctx, a, at, files)
	if _, ok := rs.format.(packed.ByFirst); err == nil || !ok {
		return s, err
	}
	for i := range min(len(files), maxProblems) {
		_, alone := rs.schemaOf(ctx, a, at, files[i:i+1])
		if alone == nil || rs.storeError("", errors.Unwrap(alone)) != nil || ctx.Err() != nil || i+1 == len(files) {
			break
		}
		rows[i].err = cmp.Or(errors.Unwrap(alone), alone)
		if s, rest := rs.schemaOf(ctx, a, at, files[i+1:]); rest == nil {
			return s, nil
		}
	}
	for i := range rows {
		rows[i].err = nil
	}
	return record.Schema{}, err
}

// check returns what says what is wrong with the place or label that a sample of a file was given.
func (how *scan) check(row *scanned) func(*packed.Sample) error {
	// Samples of records, and those that do not lie in the file as they are, have places for the format alone.
	anywhere := how.schema != nil || how.lists || packed.InBlocks(how.a.Scheme, row.rel)
	size := row.st.size
	return func(s *packed.Sample) error {
		switch {
		case anywhere && (s.Off < 0 || s.Size < 1):
			return fmt.Errorf("sample %q has the place %d and %d bytes", s.Key, s.Off, s.Size)
		case !anywhere && (s.Off < 0 || s.Size < 1 || s.Off > size-s.Size):
			return fmt.Errorf("sample %q should lie at bytes %d to %d of %d", s.Key, s.Off, s.Off+s.Size, size)
		case s.Label < -1 || s.Label > math.MaxInt32:
			return fmt.Errorf("sample %q has the label %d; labels are 0 to %d", s.Key, s.Label, math.MaxInt32)
		}
		return nil
	}
}

// scanFile scans one file.
func (rs *rootState) scanFile(ctx context.Context, how *scan, row *scanned) error {
	file, closer, err := rs.openFile(ctx, row.rel, row.st)
	if err != nil {
		return err
	}
	defer closer.Close()
	if err := packed.IsPointer(file, row.st.size); err != nil {
		return err
	}
	at := &fileProgress{ReaderAt: file.ReaderAt, of: progressOf(ctx), size: row.st.size,
		sum: packed.ReadsOnce(how.a.Scheme)}
	if at.of != nil && (at.sum || packed.InRanges(how.a.Scheme, "")) {
		file.ReaderAt = at
	}
	file.Schema, file.Goroutines = how.schema, how.each
	check := how.check(row)
	row.found, err = how.format.Scan(ctx, how.a, file, func(s packed.Sample) error {
		if err := check(&s); err != nil {
			return err
		}
		if len(row.samples) >= maxSamples {
			return fmt.Errorf("it has more than %d samples", int64(maxSamples))
		}
		row.samples = append(row.samples, s)
		if !how.lists {
			at.sample()
		}
		return nil
	})
	if err != nil {
		return err
	}
	if how.a.At == nil { // else every read was of the version that it had
		if now, err := rs.statFile(row.rel, nil); err != nil || now != row.st {
			return errors.New("it changed while it was scanned")
		}
	}
	at.end()
	return nil
}

// looks counts what is read of files for the fields of their samples, and ends all where a store fails: what is wrong
// with it is so for all files.
type looks struct {
	rs     *rootState
	of     *Progress
	cancel context.CancelFunc
}

func (l *looks) see(err error) {
	if err != nil && l.rs.storeError("", err) != nil {
		l.cancel()
	}
}

func (l *looks) open(open func(path string) (packed.Other, error)) func(string) (packed.Other, error) {
	return func(path string) (packed.Other, error) {
		f, err := open(path)
		if l.see(err); err != nil {
			return nil, err
		}
		return &lookedFile{f, l, path}, nil
	}
}

type lookedFile struct {
	packed.Other
	*looks

	path string
}

var _ packed.Noting = (*lookedFile)(nil)

// Note implements packed.Noting.
func (f *lookedFile) Note() []byte { return f.rs.notes.get(f.path) }

// SetNote implements packed.Noting.
func (f *lookedFile) SetNote(b []byte) { f.rs.notes.set(f.path, b) }

// ReadAt implements io.ReaderAt.
func (f *lookedFile) ReadAt(b []byte, off int64) (int, error) {
	n, err := f.Other.ReadAt(b, off)
	f.of.add(Indexed{Looked: int64(n)})
	f.see(err)
	return n, err
}
