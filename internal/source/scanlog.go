package source

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"
	"golang.org/x/sys/unix"

	"larder/internal/record"
	"larder/internal/source/packed"
)

// The scan log of one root: what a scan of packed files found in each of them so far, beside the saved index, until
// that is whole. docs/format/index.md describes the bytes. It is a cache: an entry that is torn, or of a file that is
// not what it was, is a file that is scanned again.
const (
	logMagic   = "LARDERSC"
	logVersion = 1
	logSuffix  = ".larderscan"
	// maxLog bounds a scan log, bytes: what comes after that is not kept.
	maxLog = 4 << 30
	// logWaste is how many bytes of entries that count no longer a scan log may have, beside as many as do count.
	logWaste = 1 << 20
	// logAge is how long a scan log is left that no scan takes up again.
	logAge = 30 * 24 * time.Hour
)

// Kinds of entries.
const (
	logFile   = 0
	logSchema = 1
)

// scanLog reads what an earlier scan left, and appends what this one finds. Its zero value, and nil, keep nothing. add
// may be called from any goroutine.
type scanLog struct {
	path, uri string
	mark      uint64 // of the files that others are read with
	log       *slog.Logger

	kept      map[string]*scanned // by rel
	marks     map[string]uint64   // of the schemas that they were scanned with, by rel
	schemas   map[uint64]record.Schema
	schema    *record.Schema // to be written before the first file
	schemaKey uint64

	mu   sync.Mutex // guards what follows
	f    *os.File   // locked; nil = there is none yet, or another process writes it
	seed uint64     // of the checksums of entries
	size int64
	off  bool // nothing is appended any more
}

// scanLog is the scan log of a root; nil = nothing is kept.
func (c *Catalog) scanLog(rs *rootState) *scanLog {
	if c.cfg.IndexDir == "" || rs.format == nil {
		return nil
	}
	if _, lists := rs.format.(packed.Listing); lists { // they are few and small, and read again each time
		return nil
	}
	return &scanLog{path: c.logPath(rs.key()), uri: rs.key(), log: c.log}
}

func (c *Catalog) logPath(key string) string {
	return filepath.Join(c.cfg.IndexDir, strings.TrimSuffix(indexName(key, 0), indexSuffix)+logSuffix)
}

// removeLog deletes the scan log of a root, whose index is whole or is not wanted any more, and returns its size.
func (c *Catalog) removeLog(key string) int64 {
	if c.cfg.IndexDir == "" {
		return 0
	}
	path := c.logPath(key)
	fi, err := os.Lstat(path)
	if err == nil {
		err = os.Remove(path)
	}
	switch {
	case err == nil:
		return fi.Size()
	case !errors.Is(err, fs.ErrNotExist):
		c.log.Warn("a scan log cannot be removed; the next index removes it", "scan_log", path, "error", err)
	}
	return 0
}

// removeOldLogs deletes scan logs that no scan has taken up for long.
func removeOldLogs(dir string) {
	paths, err := filepath.Glob(filepath.Join(dir, "*"+logSuffix))
	if err != nil { // of the pattern: the folder has brackets in its name
		return
	}
	for _, p := range paths {
		if fi, err := os.Lstat(p); err == nil && time.Since(fi.ModTime()) > logAge {
			_ = os.Remove(p) // another start tries again
		}
	}
}

// open reads what an earlier scan left. rows are the files as they are now; beside are those that others are read with.
func (l *scanLog) open(rows, beside []scanned) {
	if l == nil {
		return
	}
	h := xxhash.New()
	for i := range beside {
		_, _ = fmt.Fprintf(h, "\x00%s %+v", beside[i].rel, beside[i].st) // a hash never fails
	}
	l.mark, l.kept, l.marks = h.Sum64(), map[string]*scanned{}, map[string]uint64{}
	l.schemas = map[uint64]record.Schema{}
	l.schemaKey = filesKey(rows)
	f, err := os.OpenFile(l.path, os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			l.stop("read", err)
		}
		return
	}
	locked := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil // else another process indexes the same files
	end, waste, err := l.read(f, rows)
	switch {
	case err != nil:
		l.stop("read", err)
	case !locked || waste < 0: // it is of another dataset, whose hash is the same
		l.off = true
	default:
		anew := waste > end-waste+logWaste
		if anew {
			end = 0
		}
		if err := f.Truncate(end); err != nil {
			l.stop("cut", err)
			break
		}
		l.f, l.size = f, end
		if anew {
			l.rewrite(rows)
		}
		return
	}
	_ = f.Close() // nothing was written
}

// rewrite writes again what is kept, after the file was emptied.
func (l *scanLog) rewrite(rows []scanned) {
	if s, ok := l.schemas[l.schemaKey]; ok {
		l.schema = &s
	}
	for i := range rows {
		if r := l.kept[rows[i].rel]; r != nil {
			l.add(r, l.marks[r.rel])
		}
	}
}

// stop ends the appending: without a scan log everything works, and a scan that fails begins anew.
func (l *scanLog) stop(what string, err error) {
	if !l.off {
		l.log.Warn("the scan log cannot be "+map[string]string{"read": "read", "cut": "cut", "write": "written"}[what]+
			"; should indexing fail, the next try scans these files again", "dataset", printable(l.uri), "scan_log", l.path,
			"error", err)
	}
	l.off = true
}

// read reads entries until the first that is torn, and keeps those of files that are as they were. It returns the end
// of what is whole, and how much of that counts no longer; -1 in a file of another dataset.
func (l *scanLog) read(f *os.File, rows []scanned) (end, waste int64, err error) {
	fi, err := f.Stat()
	if err != nil {
		return 0, 0, err
	}
	if !fi.Mode().IsRegular() {
		return 0, 0, errors.New("it is no regular file")
	}
	in := bufio.NewReaderSize(io.NewSectionReader(f, 0, min(fi.Size(), maxLog)), 1<<16)
	head := make([]byte, indexHeader)
	if _, err := io.ReadFull(in, head); err != nil || string(head[:8]) != logMagic ||
		binary.LittleEndian.Uint32(head[8:]) != logVersion || binary.LittleEndian.Uint32(head[12:]) != 0 {
		return 0, 0, nil
	}
	left := min(fi.Size(), maxLog) - indexHeader
	n := binary.LittleEndian.Uint64(head[16:])
	if left < 8 || n > uint64(left-8) {
		return 0, 0, nil
	}
	payload := make([]byte, n+8)
	if _, err := io.ReadFull(in, payload); err != nil {
		return 0, 0, nil //nolint:nilerr // torn: it is written anew
	}
	sum := xxhash.Sum64(append(head, payload[:n]...))
	if sum != binary.LittleEndian.Uint64(payload[n:]) {
		return 0, 0, nil
	}
	r := &indexReader{b: payload[:n]}
	if uri, mark := r.str(), r.u64(); r.err != nil || uri != l.uri {
		return 0, -1, nil
	} else if mark != l.mark { // with other labels, or another index.json, all files are other ones
		return 0, 0, nil
	}
	now := make(map[string]fileMeta, len(rows))
	for i := range rows {
		now[rows[i].rel] = rows[i].st
	}
	l.seed = sum
	end = indexHeader + int64(n) + 8
	for {
		b, ok := l.entry(in, end, left+indexHeader)
		if !ok {
			return end, waste, nil
		}
		if !l.take(b, now) {
			waste += int64(len(b)) + 16
		}
		end += int64(len(b)) + 16
	}
}

// entry reads the next entry, which begins at a byte of a file of so many; false = there is no whole one.
func (l *scanLog) entry(in io.Reader, at, size int64) ([]byte, bool) {
	var word [8]byte
	if _, err := io.ReadFull(in, word[:]); err != nil {
		return nil, false
	}
	n := binary.LittleEndian.Uint64(word[:])
	if size-at < 16 || n > uint64(size-at-16) {
		return nil, false
	}
	b := make([]byte, n+8)
	if _, err := io.ReadFull(in, b); err != nil {
		return nil, false
	}
	return b[:n], l.sum(at, b[:n]) == binary.LittleEndian.Uint64(b[n:])
}

// sum is the checksum of an entry in its place: what lay there in an earlier life of the file does not count.
func (l *scanLog) sum(at int64, b []byte) uint64 {
	var d xxhash.Digest
	d.ResetWithSeed(l.seed ^ uint64(at))
	_, _ = d.Write(b) // a hash never fails
	return d.Sum64()
}

// take keeps an entry, if it counts.
func (l *scanLog) take(b []byte, now map[string]fileMeta) bool {
	r := &indexReader{b: b}
	if r.kind() == logSchema {
		key := r.u64()
		s := snapshot{}
		if r.flag() { // else samples are an image and a label
			s.readSchema(r)
		}
		if r.err != nil || len(r.b) > 0 || key != l.schemaKey {
			return false
		}
		l.schemas[key] = s.schema
		return true
	}
	row, mark := readScanned(r)
	if st, ok := now[row.rel]; r.err != nil || len(r.b) > 0 || !ok || st != row.st {
		return false
	}
	l.kept[row.rel], l.marks[row.rel] = row, mark
	return true
}

// known is the schema that an earlier scan found in the same files.
func (l *scanLog) known() (record.Schema, bool) {
	if l == nil {
		return record.Schema{}, false
	}
	s, ok := l.schemas[l.schemaKey]
	return s, ok
}

// use fills in what an earlier scan found with the same schema.
func (l *scanLog) use(s *record.Schema, rows []scanned, check func(*scanned) func(*packed.Sample) error) {
	if l == nil {
		return
	}
	if _, ok := l.schemas[l.schemaKey]; !ok {
		l.schema = s
	}
	mark := schemaMark(s)
	for i := range rows {
		r := &rows[i]
		k := l.kept[r.rel]
		if k == nil || r.same > 0 || l.marks[r.rel] != mark {
			continue
		}
		ok, fits := true, check(r)
		for j := range k.samples {
			ok = ok && fits(&k.samples[j]) == nil // nothing forged leads out of the file
		}
		if ok {
			r.samples, r.found, r.kept = k.samples, k.found, true
		}
	}
	l.kept, l.marks = nil, nil
}

// add appends what was found in a file, which mark says the schema of.
func (l *scanLog) add(row *scanned, mark uint64) {
	if l == nil {
		return
	}
	b := appendScanned(row, mark)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.off {
		return
	}
	err := l.begin()
	if err == nil && l.size+int64(len(b))+16 > maxLog {
		err = fmt.Errorf("it would have more than %d bytes", int64(maxLog))
	}
	if err == nil {
		err = l.write(b)
	}
	if err != nil {
		l.stop("write", err)
	}
}

// begin writes what comes before the first file. The caller holds mu.
func (l *scanLog) begin() error {
	if l.f == nil {
		f, err := os.OpenFile(l.path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			_ = f.Close() // nothing was written
			return err
		}
		l.f = f
	}
	if l.size == 0 {
		w := &indexWriter{make([]byte, indexHeader, 256)}
		copy(w.b, logMagic)
		binary.LittleEndian.PutUint32(w.b[8:], logVersion)
		w.str(l.uri)
		w.b = binary.LittleEndian.AppendUint64(w.b, l.mark)
		binary.LittleEndian.PutUint64(w.b[16:], uint64(len(w.b)-indexHeader))
		l.seed = xxhash.Sum64(w.b)
		w.b = binary.LittleEndian.AppendUint64(w.b, l.seed)
		if _, err := l.f.WriteAt(w.b, 0); err != nil {
			return err
		}
		l.size = int64(len(w.b))
	}
	if l.schema == nil {
		return nil
	}
	w := &indexWriter{[]byte{logSchema}}
	w.b = binary.LittleEndian.AppendUint64(w.b, l.schemaKey)
	w.b = append(w.b, flag(len(l.schema.Fields) > 0))
	if len(l.schema.Fields) > 0 {
		s := snapshot{schema: *l.schema, mark: 1} // what the mark says depends on l.mark, too
		s.writeSchema(w)
	}
	l.schema = nil
	return l.write(w.b)
}

// write appends an entry. The caller holds mu.
func (l *scanLog) write(b []byte) error {
	out := make([]byte, 8, len(b)+16)
	binary.LittleEndian.PutUint64(out, uint64(len(b)))
	out = binary.LittleEndian.AppendUint64(append(out, b...), l.sum(l.size, b))
	if _, err := l.f.WriteAt(out, l.size); err != nil {
		return err
	}
	l.size += int64(len(out))
	return nil
}

// close ends the appending. What was written is there for the next scan, whether or not this process lives.
func (l *scanLog) close() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.off = true
	if l.f != nil {
		_ = l.f.Close() // what is lost is torn, and scanned again
		l.f = nil
	}
}

// filesKey names the files that a schema was found in.
func filesKey(rows []scanned) uint64 {
	h := xxhash.New()
	for i := range rows {
		_, _ = fmt.Fprintf(h, "\x00%s %+v", rows[i].rel, rows[i].st) // a hash never fails
	}
	return h.Sum64()
}

// schemaMark names a schema.
func schemaMark(s *record.Schema) uint64 {
	h := xxhash.New()
	s.Describe(h)
	return h.Sum64()
}

func (r *indexReader) kind() byte {
	if len(r.b) == 0 || r.b[0] > logSchema {
		r.fail("an entry of no known kind")
		return logFile
	}
	k := r.b[0]
	r.b = r.b[1:]
	return k
}

// appendScanned writes an entry of a file.
func appendScanned(row *scanned, mark uint64) []byte {
	w := &indexWriter{make([]byte, 1, 128+24*len(row.samples))}
	w.b[0] = logFile
	w.b = binary.LittleEndian.AppendUint64(w.b, mark)
	w.str(row.rel)
	w.uvarints(row.st.dev, row.st.ino, uint64(row.st.size), uint64(row.found.Without), uint64(len(row.found.Skipped)))
	w.varints(row.st.mtime)
	for _, kind := range slices.Sorted(maps.Keys(row.found.Skipped)) {
		w.str(kind)
		w.uvarints(uint64(row.found.Skipped[kind]))
	}
	w.uvarints(uint64(len(row.samples)))
	end := int64(0)
	for i := range row.samples {
		s := &row.samples[i]
		w.str(s.Key)
		w.varints(s.Off-end, s.Label)
		w.uvarints(uint64(s.Size))
		w.str(s.Class)
		end = s.Off + s.Size // may wrap around, and back
	}
	return w.b
}

// readScanned reads an entry of a file behind its kind.
func readScanned(r *indexReader) (*scanned, uint64) {
	mark := r.u64()
	row := &scanned{rel: r.str()}
	row.st = fileMeta{dev: r.uvarint(), ino: r.uvarint(), size: r.nonNegative("a size")}
	row.found.Without = int(r.nonNegative("a counter"))
	kinds := r.count("kinds", 2)
	row.st.mtime = r.varint()
	row.found.Skipped = make(map[string]int, kinds)
	for range kinds {
		kind := r.str()
		row.found.Skipped[kind] = int(r.nonNegative("a counter"))
	}
	n := r.count("samples", 5)
	if n > 0 {
		row.samples = make([]packed.Sample, n)
	}
	end := int64(0)
	for i := range row.samples {
		s := &row.samples[i]
		s.Key = r.str()
		s.Off = end + r.varint()
		s.Label = r.varint()
		s.Size = r.nonNegative("a size")
		s.Class = r.str()
		if r.err != nil {
			return row, mark
		}
		if s.Key == "" || strings.IndexByte(s.Key, 0) >= 0 || s.Label > math.MaxInt32 {
			r.fail("sample %d is named %q, with label %d", i, s.Key, s.Label)
		}
		end = s.Off + s.Size
	}
	return row, mark
}
