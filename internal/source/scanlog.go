package source

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"

	"larder/internal/record"
	"larder/internal/source/packed"
)

// The scan log of a root: what a scan of packed files found in each of them so far, beside the saved index, until
// that is whole. docs/format/index.md describes the bytes. It is a cache: an entry that is torn, or of a file that is
// not what it was, is a file that is scanned again.
const (
	logMagic   = "LARDERSC"
	logVersion = 3 // earlier ones may have other fields and labels of the same files
	logSuffix  = ".larderscan"
	// maxLog bounds a scan log, bytes: what comes after that is not kept.
	maxLog = 4 << 30
	// logWaste is how many bytes of entries that count no longer a scan log may have, beside as many as do count.
	logWaste = 1 << 20
	// maxLogs is how many processes that index the same files at once have a file each.
	maxLogs = 8
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
	paths []string // where its file, and those of other processes, may be
	uri   string
	mark  uint64 // of the files that others are read with
	log   *slog.Logger

	parts     []*logPart // files that this process has the lock of, until it takes them over
	kept      map[logKey]*scanned
	schemas   map[uint64]record.Schema
	schema    *record.Schema // to be written before the first file
	schemaKey uint64

	mu   sync.Mutex // guards what follows
	path string     // of f
	f    *os.File   // locked; nil = there is none yet
	seed uint64     // of the checksums of entries
	size int64
	off  bool // nothing is appended any more
}

// logKey names an entry of a file: its path, and the mark of the schema that it was scanned with.
type logKey struct {
	rel  string
	mark uint64
}

func (k logKey) compare(other logKey) int {
	return cmp.Or(strings.Compare(k.rel, other.rel), cmp.Compare(k.mark, other.mark))
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

// read reads the entries of a file until the first that is torn, and keeps those of files that are as they were.
func (l *scanLog) read(p *logPart, rows []scanned) error {
	fi, err := p.f.Stat()
	if err != nil {
		return err
	}
	if !fi.Mode().IsRegular() {
		return errors.New("it is no regular file")
	}
	in := bufio.NewReaderSize(io.NewSectionReader(p.f, 0, min(fi.Size(), maxLog)), 1<<16)
	head := make([]byte, indexHeader)
	if _, err := io.ReadFull(in, head); err != nil || string(head[:8]) != logMagic ||
		binary.LittleEndian.Uint32(head[8:]) != logVersion || binary.LittleEndian.Uint32(head[12:]) != 0 {
		return nil
	}
	left := min(fi.Size(), maxLog) - indexHeader
	n := binary.LittleEndian.Uint64(head[16:])
	if left < 8 || n > uint64(left-8) {
		return nil
	}
	payload := make([]byte, n+8)
	if _, err := io.ReadFull(in, payload); err != nil {
		return nil //nolint:nilerr // torn: it is written anew
	}
	sum := xxhash.Sum64(append(head, payload[:n]...))
	if sum != binary.LittleEndian.Uint64(payload[n:]) {
		return nil
	}
	r := &indexReader{b: payload[:n]}
	if uri, mark := r.str(), r.u64(); r.err != nil || uri != l.uri {
		p.foreign = true
		return nil
	} else if mark != l.mark { // with other labels, or another index.json, all files are other ones
		return nil
	}
	now := make(map[string]fileMeta, len(rows))
	for i := range rows {
		now[rows[i].rel] = rows[i].st
	}
	p.seed = sum
	p.end = indexHeader + int64(n) + 8
	for {
		b, ok := p.entry(in, left+indexHeader)
		if !ok {
			return nil
		}
		if !l.take(p, b, now) {
			p.waste += int64(len(b)) + 16
		}
		p.end += int64(len(b)) + 16
	}
}

// entry reads the next entry of a file of so many bytes; false = there is no whole one.
func (p *logPart) entry(in io.Reader, size int64) ([]byte, bool) {
	var word [8]byte
	if _, err := io.ReadFull(in, word[:]); err != nil {
		return nil, false
	}
	n := binary.LittleEndian.Uint64(word[:])
	if size-p.end < 16 || n > uint64(size-p.end-16) {
		return nil, false
	}
	b := make([]byte, n+8)
	if _, err := io.ReadFull(in, b); err != nil {
		return nil, false
	}
	return b[:n], sumOf(p.seed, p.end, b[:n]) == binary.LittleEndian.Uint64(b[n:])
}

// sumOf is the checksum of an entry in its place: what lay there in an earlier life of the file does not count.
func sumOf(seed uint64, at int64, b []byte) uint64 {
	var d xxhash.Digest
	d.ResetWithSeed(seed ^ uint64(at))
	_, _ = d.Write(b) // a hash never fails
	return d.Sum64()
}

// take keeps an entry of a file, if it counts.
func (l *scanLog) take(p *logPart, b []byte, now map[string]fileMeta) bool {
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
		l.schemas[key], p.said = s.schema, true
		return true
	}
	row, mark := readScanned(r)
	if st, ok := now[row.rel]; r.err != nil || len(r.b) > 0 || !ok || st != row.st {
		return false
	}
	key := logKey{row.rel, mark}
	l.kept[key] = row
	p.waste += p.has[key] // an earlier entry of the file
	p.has[key] = int64(len(b)) + 16
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

// use fills in what an earlier scan found with the same schema, and goes on with what that left.
func (l *scanLog) use(s *record.Schema, rows []scanned, check func(*scanned) func(*packed.Sample) error) {
	if l == nil {
		return
	}
	l.schema = s
	mark := schemaMark(s)
	l.takeOver(mark)
	for i := range rows {
		r := &rows[i]
		k := l.kept[logKey{r.rel, mark}]
		if k == nil || r.same > 0 {
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
	l.kept = nil
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
	if errors.Is(err, errLogsTaken) {
		l.off = true
	} else if err != nil {
		l.stop("write", err)
	}
}

// begin writes what comes before the first file. The caller holds mu.
func (l *scanLog) begin() error {
	if l.f == nil {
		if err := l.create(); err != nil {
			return err
		}
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
	out = binary.LittleEndian.AppendUint64(append(out, b...), sumOf(l.seed, l.size, b))
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
	for _, p := range l.parts {
		p.close()
	}
	l.parts = nil
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
