package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/record"
	"larder/internal/source/packed"
)

// scanned is one packed file, looked at.
type scanned struct {
	rel     string
	st      fileMeta // size and mtime of the whole file
	samples []packed.Sample
	found   packed.Found
	same    int  // 1 + its row in the last version, when it did not change: samples are taken from there
	kept    bool // an earlier scan, which did not come to its end, found samples
	err     error
}

// packedWalk is what a walk of packed files looks at: their address, their place (nil = the file system), and they.
type packedWalk struct {
	a    packed.Address
	at   *storePlace
	rows []scanned
}

// maxListed is the highest label that makes a list of classes; beyond it classes are their numbers.
const maxListed = 1 << 16

// walkPacked scans the files of a root that changed since the last version.
//
// meta is where the samples of that version lie.
func (rs *rootState) walkPacked(
	ctx context.Context, old *snapshot, meta func(ident.SampleID) fileMeta, how walkHow,
) (*snapshot, []fileMeta, error) {
	if how.force {
		ctx = anew(ctx)
	}
	a, at, err := rs.look(ctx)
	if err != nil {
		return nil, nil, err
	}
	listed := a
	listed.Left = &packed.LeftOut{}
	format, files, beside, err := rs.listFiles(listed)
	if err != nil {
		return nil, nil, err
	}
	rows := make([]scanned, len(files)+len(beside))
	for i, path := range append(slices.Clone(files), beside...) {
		if rows[i].rel, err = filepath.Rel(rs.inPlace("."), path); err != nil || strings.HasPrefix(rows[i].rel, "../") {
			return nil, nil, errs.New(errs.Invalid, printable(rs.uri), "name files below one folder",
				"%q is not below %q", path, rs.root)
		}
	}
	if at != nil {
		at.learnAll(append(slices.Clone(files), beside...))
	}
	if err := rs.statFiles(ctx, rows, at); err != nil {
		return nil, nil, err
	}
	if f, ok := rs.format.(packed.Listing); ok {
		return rs.walkListed(ctx, f, &packedWalk{a, at, rows}, merger{old: old, metaOf: meta, left: listed.Left})
	}
	log := how.log
	if how.force { // also in a store: a version may be the size alone, and what was kept may be wrong
		log = nil
	}
	rs.notes = how.notes
	rs.notes.open(rs, rows[:len(files)], how.force)
	defer func() { rs.notes = nil }()
	log.open(rows[:len(files)], rows[len(files):])
	defer log.close()
	schema, known := rs.knownSchema(rows, old)
	if !known {
		schema, known = log.known()
	}
	if !known || how.force {
		schema, err = rs.schemaOfSound(ctx, a, at, rows[:len(files)])
		rs.notes.save() // also where some files could not be looked at
		if err != nil {
			return nil, nil, err
		}
	}
	if old != nil && !how.force && old.outdated < otherSamples && old.schema.Equal(&schema) {
		markSame(rows, old, len(files))
		markMisread(rows, old)
	}
	if err := rs.scanFiles(ctx, &scan{a: a, format: format, schema: &schema, log: log}, rows[:len(files)]); err != nil {
		return nil, nil, err
	}
	return rs.mergePacked(a, merger{old: old, metaOf: meta, left: listed.Left, schema: schema, beside: rows[len(files):]},
		rows)
}

// listFiles are the files of the address, and the format that scans them.
func (rs *rootState) listFiles(a packed.Address) (f packed.Format, files, beside []string, err error) {
	f, files, beside, err = packed.Prepare(rs.format, a)
	if err == nil {
		return f, files, beside, nil
	}
	if e := rs.storeError("list the files of "+printable(rs.uri), err); e != nil {
		return nil, nil, nil, e
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return nil, nil, nil, fmt.Errorf("index %s: %w", printable(rs.uri), err)
	}
	hint := hintFor(rs.format.Scheme(), rs.address.Path)
	if u, ok := errors.AsType[*packed.Unlike](err); ok && u.Hint != "" {
		hint = u.Hint + " Or " + hint
	}
	if errors.Is(err, fs.ErrPermission) {
		hint = "the daemon runs as " + whoami() + "; make it readable for it"
	}
	return nil, nil, nil, errs.New(errs.DatasetUnread, printable(rs.uri), hint, "list the files of %s", printable(rs.uri)).
		Because(err)
}

// statFiles looks at every file, and reports all that are missing.
func (rs *rootState) statFiles(ctx context.Context, rows []scanned, at *storePlace) error {
	missing := make([]error, len(rows))
	err := inParallel(ctx, rs.scanners(), len(rows), func(i int) error {
		rows[i].st, missing[i] = rs.statFile(rows[i].rel, at)
		return rs.storeError("index "+printable(rs.uri), missing[i])
	})
	if _, ok := errors.AsType[*errs.Error](err); ok {
		return err
	}
	if err != nil {
		return fmt.Errorf("look at the files of %s: %w", printable(rs.uri), err)
	}
	var lines []string
	for i, err := range missing {
		if err != nil {
			lines = append(lines, fmt.Sprintf("%q: %v", join(rs.root, rows[i].rel), err))
		}
	}
	if len(lines) == 0 {
		return nil
	}
	more := ""
	if n := len(lines) - maxProblems; n > 0 {
		lines, more = lines[:maxProblems], fmt.Sprintf("; and %d more", n)
	}
	return errs.New(errs.DatasetUnread, printable(rs.uri), "name the files that are there; the daemon runs as "+whoami(),
		"index %s: %s%s", printable(rs.uri), strings.Join(lines, "; "), more)
}

// statFile says what identifies a file of the root, in a store if at is not nil.
func (rs *rootState) statFile(rel string, at *storePlace) (fileMeta, error) {
	if at != nil {
		in, err := at.info(rs.inPlace(rel))
		return storedMeta(at.st.Name(), in), err
	}
	var st unix.Stat_t
	if err := statRetry(join(rs.root, rel), &st); err != nil {
		return fileMeta{}, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return fileMeta{}, errors.New("it is not a regular file")
	}
	return fileMeta{dev: st.Dev, ino: st.Ino, size: st.Size, mtime: st.Mtim.Nano()}, nil
}

// markSame finds the files that are as they were. When one that others are read with changed, all are scanned.
func markSame(rows []scanned, old *snapshot, files int) {
	was := make(map[string]int, len(old.dirs))
	for i := range old.dirs {
		if old.dirs[i].live {
			was[old.dirs[i].rel] = i
		}
	}
	for i := range slices.Backward(rows) {
		r := &rows[i]
		k, ok := was[r.rel]
		if ok && old.dirs[k].is(r.st) {
			r.same = k + 1
		} else if i >= files {
			for j := range rows {
				rows[j].same = 0
			}
			return
		}
	}
}

// markMisread has those files scanned again that an earlier larder may have misread.
func markMisread(rows []scanned, old *snapshot) {
	if old.outdated == 0 {
		return
	}
	was := misread(old)
	for i := range rows {
		if k := rows[i].same; k > 0 && was[k-1] {
			rows[i].same = 0
		}
	}
}

// is reports whether a packed file has the identity that it had.
func (d *dirRow) is(st fileMeta) bool {
	return d.dev == st.dev && d.ino == st.ino && d.size == st.size && d.mtime == st.mtime
}

type besideFile struct {
	*os.File
	size int64
}

func (b *besideFile) Len() int64 { return b.size }

// openOther is openBeside for formats.
func openOther(path string) (packed.Other, error) {
	f, err := openBeside(path)
	if err != nil {
		return nil, err
	}
	if err := packed.IsPointer(f, f.size); err != nil {
		_ = f.Close() // nothing was written, so nothing can be lost
		return nil, err
	}
	return f, nil
}

func openBeside(path string) (*besideFile, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	fi, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	return &besideFile{f, fi.Size()}, nil
}

// inParallel calls f for 0 to n-1 from some goroutines, until one fails: that error, or the context's.
func inParallel(ctx context.Context, goroutines, n int, f func(i int) error) error {
	var next atomic.Int64
	var mu sync.Mutex
	var first error
	var failed atomic.Bool
	var wg sync.WaitGroup
	for range min(goroutines, n) {
		wg.Go(func() {
			for !failed.Load() && ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if err := f(i); err != nil {
					failed.Store(true)
					mu.Lock()
					first = cmp.Or(first, err)
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	if first != nil {
		return first
	}
	return ctx.Err()
}

// unchangedFiles reports whether the address names the files that it named, and each is as it was.
func (rs *rootState) unchangedFiles(ctx context.Context, s *snapshot) (bool, error) {
	files, beside, err := rs.format.Files(rs.address)
	if err != nil {
		return false, ctx.Err() // the walk that follows says what is wrong
	}
	rows := s.dirs
	if s.listed() { // of images, reads notice what changed
		rows = s.lists
	}
	was := make(map[string]*dirRow, len(rows))
	for i := range rows {
		if d := &rows[i]; d.live {
			was[join(s.root, d.rel)] = d
		}
	}
	files = append(files, beside...)
	if len(files) != len(was) {
		return false, ctx.Err()
	}
	var changed atomic.Bool
	err = inParallel(ctx, rs.scanners(), len(files), func(i int) error {
		d := was[files[i]]
		if d == nil {
			changed.Store(true)
			return nil
		}
		if now, err := rs.statFile(d.rel, nil); err != nil || !d.is(now) {
			changed.Store(true)
		}
		return nil
	})
	return !changed.Load(), err
}

// merger puts the next version of packed files together.
type merger struct {
	left   *packed.LeftOut // when the files were listed
	schema record.Schema   // of the next version
	beside []scanned       // files that its records depend on, and that hold no samples
	s      *snapshot
	old    *snapshot
	metaOf func(ident.SampleID) fileMeta
	meta   []fileMeta
	found  []bool // old samples that are there
	names  strings.Builder
	words  map[string]int32 // labels by class; nil = labels are the numbers that the format has
}

// mergePacked makes the next version: known keys keep their ids, keys that are gone become tombstones, new samples
// follow in the order of the files.
func (rs *rootState) mergePacked(a packed.Address, was merger, rows []scanned) (*snapshot, []fileMeta, error) {
	old := was.old
	if old == nil {
		old = &snapshot{}
	}
	m := &merger{old: old, metaOf: was.metaOf, found: make([]bool, len(old.dirOf)), meta: make([]fileMeta, len(old.dirOf))}
	m.s = &snapshot{root: rs.root, uri: rs.uri, dirs: slices.Clone(old.dirs), dirOf: slices.Clone(old.dirOf),
		nameEnd: slices.Clone(old.nameEnd), labels: slices.Clone(old.labels), report: Report{Kinds: map[string]int{}},
		schema: was.schema, mark: recordMark(rs.address, &was.schema, was.beside)}
	if m.s.labels == nil {
		m.s.labels = []int32{}
	}
	m.names.WriteString(old.names)
	if err := m.classes(rs, a, rows); err != nil {
		return nil, nil, err
	}
	row := make(map[string]int, len(m.s.dirs))
	for i := range m.s.dirs {
		m.s.dirs[i].live = false
		row[m.s.dirs[i].rel] = i
	}
	known := old.byDir()
	for i := range rows {
		r := &rows[i]
		k, ok := row[r.rel]
		if !ok {
			k = len(m.s.dirs)
			m.s.dirs = append(m.s.dirs, dirRow{rel: r.rel})
		}
		d := &m.s.dirs[k]
		d.dev, d.ino, d.size, d.mtime, d.live = r.st.dev, r.st.ino, r.st.size, r.st.mtime, true
		if r.same == 0 {
			d.found = r.found
		}
		d.found = withLeftOut(d.found, was.left, i == 0)
		m.report(d.found)
		var ids []ident.SampleID
		if k < len(known) {
			ids = known[k]
		}
		if err := m.file(uint32(k), r, ids); err != nil {
			return nil, nil, err
		}
	}
	return m.finish(rs)
}

// withLeftOut adds the files that a folder does not stand for to those found in its first file, and to no other.
func withLeftOut(f packed.Found, left *packed.LeftOut, first bool) packed.Found {
	is := func(kind string, _ int) bool { return packed.IsLeftOutKind(kind) }
	out := packed.Found{Skipped: maps.Clone(f.Skipped), Without: f.Without}
	maps.DeleteFunc(out.Skipped, is)
	if first && left.Files > 0 {
		if out.Skipped == nil {
			out.Skipped = map[string]int{}
		}
		out.Skipped[left.Kind()] = left.Files
	}
	return out
}

// classes fills the list of classes; those that there were keep their labels.
func (m *merger) classes(rs *rootState, a packed.Address, rows []scanned) error {
	given, err := rs.format.Names(a)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return errs.New(errs.DatasetUnread, printable(rs.uri), "repair or remove that file", "read the class names of %s",
			printable(rs.uri)).Because(err)
	}
	highest, words := int32(-1), false
	for i := range rows {
		for j := range rows[i].samples {
			s := &rows[i].samples[j]
			switch {
			case s.Class != "":
				words = true
			case s.Label >= 0:
				highest = max(highest, int32(s.Label))
			}
		}
	}
	was := m.old.classes
	switch {
	case given != nil:
		m.s.classes = given
	case words || !numbered(was) && m.old.outdated < otherSamples:
		m.byWord(rows)
	default:
		for _, l := range m.old.labels {
			highest = max(highest, l)
		}
		if highest < maxListed {
			for l := range highest + 1 {
				m.s.classes = append(m.s.classes, strconv.Itoa(int(l)))
			}
		}
	}
	return nil
}

// numbered reports whether classes are called by their numbers.
func numbered(classes []string) bool {
	for i, c := range classes {
		if c != strconv.Itoa(i) {
			return false
		}
	}
	return true
}

// byWord gives words labels: sorted at the first index, new ones behind.
func (m *merger) byWord(rows []scanned) {
	m.words = map[string]int32{}
	m.s.classes = slices.Clone(m.old.classes)
	for l, w := range m.s.classes {
		m.words[w] = int32(l)
	}
	var fresh []string
	for i := range rows {
		for j := range rows[i].samples {
			w := word(&rows[i].samples[j])
			if _, ok := m.words[w]; !ok && w != "" {
				m.words[w] = 0
				fresh = append(fresh, w)
			}
		}
	}
	slices.SortFunc(fresh, pyCompare)
	for _, w := range fresh {
		m.words[w] = int32(len(m.s.classes))
		m.s.classes = append(m.s.classes, w)
	}
}

func word(s *packed.Sample) string {
	if s.Class == "" && s.Label >= 0 {
		return strconv.FormatInt(s.Label, 10)
	}
	return s.Class
}

func (m *merger) label(s *packed.Sample) int32 {
	if m.words == nil {
		return int32(s.Label)
	}
	if w := word(s); w != "" {
		return m.words[w]
	}
	return -1
}

func (m *merger) report(f packed.Found) {
	for _, kind := range slices.Sorted(maps.Keys(f.Skipped)) {
		n := f.Skipped[kind]
		if _, ok := m.s.report.Kinds[kind]; !ok && len(m.s.report.Kinds) >= maxKinds {
			kind = otherKind
		}
		m.s.report.Kinds[kind] += n
		m.s.report.Ignored += n
	}
	m.s.report.Without += f.Without
}

// file adds the samples of one file. ids are the samples that it had, by name.
func (m *merger) file(row uint32, r *scanned, ids []ident.SampleID) error {
	if r.same > 0 {
		for _, id := range ids {
			if m.old.Live(id) {
				m.found[id] = true
				m.meta[id] = m.metaOf(id)
			}
		}
		return nil
	}
	was := make(map[string]ident.SampleID, len(ids))
	for _, id := range ids {
		was[m.old.name(id)] = id
	}
	for i := range r.samples {
		s := &r.samples[i]
		meta := fileMeta{dev: r.st.dev ^ m.s.mark, ino: r.st.ino, mtime: r.st.mtime, off: s.Off, size: s.Size}
		label := m.label(s)
		if id, ok := was[s.Key]; ok && m.s.labels[id] == label {
			m.found[id], m.meta[id] = true, meta
			continue
		}
		if err := m.add(row, s.Key, label, meta); err != nil {
			return err
		}
	}
	return nil
}

// add appends a new sample.
func (m *merger) add(row uint32, name string, label int32, meta fileMeta) error {
	if len(m.s.dirOf) >= maxSamples || m.names.Len()+len(name) > maxNames {
		return errs.New(errs.ResourceExceeded, printable(m.s.uri), "split the dataset",
			"%s has more than %d samples, or their keys more than %d bytes", printable(m.s.uri), int64(maxSamples),
			int64(maxNames))
	}
	m.s.dirOf = append(m.s.dirOf, row)
	m.names.WriteString(name)
	m.s.nameEnd = append(m.s.nameEnd, uint32(m.names.Len()))
	m.s.labels = append(m.s.labels, label)
	m.meta = append(m.meta, meta)
	return nil
}

func (m *merger) finish(rs *rootState) (*snapshot, []fileMeta, error) {
	m.s.names = m.names.String()
	m.s.dead = make([]uint64, (len(m.s.dirOf)+63)/64)
	for id, ok := range m.found {
		if !ok {
			m.s.dead[id>>6] |= 1 << (id & 63)
		}
	}
	m.s.report.Folders = len(m.s.dirs) + len(m.s.lists)
	m.s.seal(m.meta)
	if m.s.live == 0 {
		hint := packedHint[rs.format.Scheme()]
		if m.s.report.Kinds[packed.ShortFiles] > 0 {
			hint = "lower ?seq_len=: a window has one id more"
		}
		return nil, nil, errs.New(errs.DatasetEmpty, printable(rs.uri), hint, "none of the %d files of %s holds %s%s",
			m.s.report.Folders, printable(rs.uri), m.s.kindOfSample(), seen(m.s.report.Kinds))
	}
	return m.s, m.meta, nil
}

// kindOfSample is what the files should hold, in words.
func (s *snapshot) kindOfSample() string {
	if s.records() {
		return "a sample"
	}
	return "an image"
}

// seen says in words what there is instead of images.
func seen(kinds map[string]int) string {
	if len(kinds) == 0 {
		return ""
	}
	var parts []string
	for kind, n := range kinds {
		parts = append(parts, count(n)+" "+printable(kind))
	}
	slices.Sort(parts)
	return "; they hold " + list(parts)
}
