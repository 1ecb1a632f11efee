package source

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"

	"larder/internal/errs"
	"larder/internal/source/packed"
)

// The saved index of one root; docs/format/index.md describes the bytes.
const (
	indexMagic   = "LARDERIX"
	indexVersion = 2 // and 1 is read: it has no kinds of files
	indexHeader  = 8 + 4 + 4 + 8
	indexSuffix  = ".larderix"
	indexTries   = 4 // names to try when the hashes of two roots collide
)

func indexName(root string, try uint64) string {
	var d xxhash.Digest
	d.ResetWithSeed(try)
	_, _ = d.WriteString(root) // a hash never fails
	return fmt.Sprintf("%016x%s", d.Sum64(), indexSuffix)
}

// encodeIndex writes a version and the identities of its files.
func encodeIndex(s *snapshot, meta []fileMeta) []byte {
	if s.labels != nil {
		return encodePacked(s, meta)
	}
	b := make([]byte, indexHeader, indexHeader+len(s.names)+24*s.Len()+4096)
	copy(b, indexMagic)
	binary.LittleEndian.PutUint32(b[8:], indexVersion)
	str := func(x string) {
		b = binary.AppendUvarint(b, uint64(len(x)))
		b = append(b, x...)
	}
	str(s.root)
	b = binary.LittleEndian.AppendUint64(b, s.fp)
	for _, n := range []int{s.report.Folders, s.report.Ignored, s.report.Irregular, s.report.Loops} {
		b = binary.AppendUvarint(b, uint64(n))
	}
	b = binary.AppendUvarint(b, uint64(s.report.RootImage))
	b = binary.AppendUvarint(b, uint64(len(s.report.Kinds)))
	for _, kind := range slices.Sorted(maps.Keys(s.report.Kinds)) {
		str(kind)
		b = binary.AppendUvarint(b, uint64(s.report.Kinds[kind]))
	}
	b = binary.AppendUvarint(b, uint64(len(s.classes)))
	for _, c := range s.classes {
		str(c)
	}
	var devs []uint64
	dev := func(d uint64) uint64 {
		i := slices.Index(devs, d)
		if i < 0 {
			i = len(devs)
			devs = append(devs, d)
		}
		return uint64(i)
	}
	for i := range s.dirs {
		dev(s.dirs[i].dev)
	}
	for i := range meta {
		if s.Live(sampleID(i)) {
			dev(meta[i].dev)
		}
	}
	b = binary.AppendUvarint(b, uint64(len(devs)))
	for _, d := range devs {
		b = binary.AppendUvarint(b, d)
	}
	b = binary.AppendUvarint(b, uint64(len(s.dirs)))
	for i := range s.dirs {
		d := &s.dirs[i]
		str(d.rel)
		b = append(b, flag(d.live))
		b = binary.AppendUvarint(b, dev(d.dev))
		b = binary.AppendUvarint(b, d.ino)
		b = binary.AppendVarint(b, d.mtime)
	}
	b = binary.AppendUvarint(b, uint64(s.Len()))
	var lastDir uint32
	var last fileMeta
	for i := range s.Len() {
		b = binary.AppendVarint(b, int64(s.dir(sampleID(i)))-int64(lastDir))
		lastDir = s.dir(sampleID(i))
		str(s.name(sampleID(i)))
		live := s.Live(sampleID(i))
		b = append(b, flag(live))
		if !live {
			continue
		}
		m := meta[i]
		b = binary.AppendUvarint(b, dev(m.dev))
		b = binary.AppendVarint(b, int64(m.ino-last.ino)) // differences wrap around, and back
		b = binary.AppendUvarint(b, uint64(m.size))
		b = binary.AppendVarint(b, m.mtime-last.mtime)
		last = m
	}
	binary.LittleEndian.PutUint64(b[16:], uint64(len(b)-indexHeader))
	return binary.LittleEndian.AppendUint64(b, xxhash.Sum64(b))
}

func flag(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// indexReader reads fields; after the first error every read gives zero.
type indexReader struct {
	b   []byte
	err error
}

func (r *indexReader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
		r.b = nil
	}
}

func (r *indexReader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail("a number is cut off or too long")
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *indexReader) varint() int64 {
	u := r.uvarint()
	v := int64(u >> 1)
	if u&1 != 0 {
		v = ^v
	}
	return v
}

// count reads a number of things that take at least size bytes each, so that memory is bounded by the file's length.
func (r *indexReader) count(what string, size int) int {
	n := r.uvarint()
	if n > uint64(len(r.b)/size) {
		r.fail("%d %s do not fit", n, what)
		return 0
	}
	return int(n)
}

func (r *indexReader) str() string { return string(r.text()) }

// text is str without a copy.
func (r *indexReader) text() []byte {
	n := r.count("bytes of text", 1)
	s := r.b[:n]
	r.b = r.b[n:]
	return s
}

func (r *indexReader) flag() bool {
	if len(r.b) == 0 || r.b[0] > 1 {
		r.fail("a flag is neither 0 nor 1")
		return false
	}
	v := r.b[0] == 1
	r.b = r.b[1:]
	return v
}

func (r *indexReader) nonNegative(what string) int64 {
	v := r.uvarint()
	if v > math.MaxInt64 {
		r.fail("%s %d is too large", what, v)
	}
	return int64(v)
}

// decodeIndex reads what encodeIndex wrote. It accepts nothing else: a checksum guards against damage, the rest
// against forged files, so that no content leads outside the root or to memory beyond its own size.
func decodeIndex(b []byte) (s *snapshot, meta []fileMeta, err error) {
	switch {
	case len(b) < indexHeader+8 || string(b[:8]) != indexMagic:
		return nil, nil, errors.New("it is no index of larder, or cut off")
	case binary.LittleEndian.Uint32(b[8:])-1 >= lastVersion || binary.LittleEndian.Uint32(b[12:]) != 0:
		return nil, nil, fmt.Errorf("its version is %d, this larder reads 1 to %d", binary.LittleEndian.Uint32(b[8:]),
			lastVersion)
	case binary.LittleEndian.Uint64(b[16:]) != uint64(len(b)-indexHeader-8):
		return nil, nil, fmt.Errorf("it should have %d bytes and has %d", binary.LittleEndian.Uint64(b[16:])+indexHeader+8,
			len(b))
	case binary.LittleEndian.Uint64(b[len(b)-8:]) != xxhash.Sum64(b[:len(b)-8]):
		return nil, nil, errors.New("its checksum is wrong")
	}
	r := &indexReader{b: b[indexHeader : len(b)-8]}
	switch v := binary.LittleEndian.Uint32(b[8:]); v {
	case 1, indexVersion:
		return decodeFolders(r, v)
	default:
		return decodePacked(r, v)
	}
}

// decodeFolders reads the payload of a folder of images.
func decodeFolders(r *indexReader, version uint32) (s *snapshot, meta []fileMeta, err error) {
	s = &snapshot{root: r.str()}
	if !cleanRoot(s.root) {
		r.fail("the root %q is no clean absolute path and no place in a store", s.root)
	}
	fp := uint64(0)
	if len(r.b) >= 8 {
		fp = binary.LittleEndian.Uint64(r.b)
		r.b = r.b[8:]
	} else {
		r.fail("the fingerprint is cut off")
	}
	for _, n := range []*int{&s.report.Folders, &s.report.Ignored, &s.report.Irregular, &s.report.Loops} {
		*n = int(r.nonNegative("a counter"))
	}
	if version > 1 {
		s.report.RootImage = int(r.nonNegative("a counter"))
		n := r.count("kinds of files", 2)
		s.report.Kinds = make(map[string]int, n)
		last := ""
		for i := range n {
			kind := r.str()
			if i > 0 && kind <= last {
				r.fail("a kind of files %q is out of order", kind)
			}
			last, s.report.Kinds[kind] = kind, int(r.nonNegative("a counter"))
		}
	}
	s.classes = make([]string, r.count("classes", 2))
	for i := range s.classes {
		s.classes[i] = r.str()
		if i > 0 && pyCompare(s.classes[i-1], s.classes[i]) >= 0 {
			r.fail("class %q is out of order", s.classes[i])
		}
	}
	devs := make([]uint64, r.count("devices", 1))
	for i := range devs {
		devs[i] = r.uvarint()
	}
	dev := func() uint64 {
		i := r.uvarint()
		if i >= uint64(len(devs)) {
			r.fail("device %d of %d", i, len(devs))
			return 0
		}
		return devs[i]
	}
	s.readDirs(r, dev)
	meta = s.readSamples(r, dev)
	switch {
	case r.err != nil:
		return nil, nil, r.err
	case len(r.b) != 0:
		return nil, nil, fmt.Errorf("%d bytes follow the last sample", len(r.b))
	}
	s.seal(meta)
	if s.live == 0 {
		return nil, nil, errors.New("it holds no sample")
	}
	if s.fp != fp {
		return nil, nil, fmt.Errorf("its content has the fingerprint %016x, not %016x", s.fp, fp)
	}
	return s, meta, nil
}

func (s *snapshot) readDirs(r *indexReader, dev func() uint64) {
	s.dirs = make([]dirRow, r.count("folders", 5))
	seen := make(map[string]bool, len(s.dirs))
	for i := range s.dirs {
		d := &s.dirs[i]
		d.rel = r.str()
		d.class = firstSegment(d.rel)
		d.live = r.flag()
		d.dev, d.ino, d.mtime = dev(), r.uvarint(), r.varint()
		if seen[d.rel] || d.rel != "" && !fs.ValidPath(strings.ToValidUTF8(d.rel, "x")) || d.rel == "." ||
			strings.IndexByte(d.rel, 0) >= 0 {
			r.fail("folder %q is named twice, or no path below the root", d.rel)
		}
		if d.live && d.rel != "" {
			if _, ok := slices.BinarySearchFunc(s.classes, d.class, pyCompare); !ok {
				r.fail("folder %q is of no class", d.rel)
			}
		}
		seen[d.rel] = true
		if r.err != nil {
			return
		}
	}
}

func (s *snapshot) readSamples(r *indexReader, dev func() uint64) []fileMeta {
	n := r.count("samples", 4)
	meta := make([]fileMeta, n)
	s.dirOf, s.nameEnd, s.dead = make([]uint32, n), make([]uint32, n), make([]uint64, (n+63)/64)
	var names strings.Builder
	var dir int64
	var last fileMeta
	for i := range n {
		if i == 1024 { // as much room as the rest needs, if its names are as long
			names.Grow(min(maxNames, (names.Len()/i+1)*(n-i)))
		}
		dir += r.varint()
		if dir < 0 || dir >= int64(len(s.dirs)) || s.dirs[dir].rel == "" {
			r.fail("sample %d is in no class folder", i)
			return nil
		}
		s.dirOf[i] = uint32(dir)
		name := r.text()
		if len(name) == 0 || string(name) == "." || string(name) == ".." || bytes.IndexByte(name, '/') >= 0 ||
			bytes.IndexByte(name, 0) >= 0 {
			r.fail("sample %d is named %q", i, name)
			return nil
		}
		names.Write(name)
		if names.Len() > maxNames {
			r.fail("the names of the samples are too long")
			return nil
		}
		s.nameEnd[i] = uint32(names.Len())
		if !r.flag() {
			s.dead[i>>6] |= 1 << (i & 63)
			continue
		}
		if !s.dirs[dir].live {
			r.fail("sample %d is in a folder that is gone", i)
		}
		last = fileMeta{dev: dev(), ino: last.ino + uint64(r.varint()), size: r.nonNegative("a size"), mtime: last.mtime +
			r.varint()}
		meta[i] = last
		if r.err != nil {
			return nil
		}
	}
	s.names = names.String()
	return meta
}

// loadIndex returns the saved version of a root, or nil. Damage is a warning, never an error: the dataset is walked
// again, and the damaged file kept aside once, because ids of files added since the first walk were in it.
func (c *Catalog) loadIndex(at place) (*snapshot, []fileMeta) {
	root := at.key()
	for try := range uint64(indexTries) {
		path := filepath.Join(c.cfg.IndexDir, indexName(root, try))
		b, err := os.ReadFile(path)
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				c.log.Warn("a saved index cannot be read; the dataset is walked again", "dataset", root, "index", path, "error",
					err)
			}
			return nil, nil
		}
		s, meta, err := decodeIndex(b)
		if err != nil {
			c.log.Warn("a saved index is damaged; the dataset is walked again, and ids of files added since its first walk "+
				"may change",
				"dataset", root, "index", path, "kept_as", path+".damaged", "error", err)
			if err := os.Rename(path, path+".damaged"); err != nil {
				c.log.Warn("the damaged index cannot be kept", "index", path, "error", err)
			}
			return nil, nil
		}
		if s.key() == root {
			_, lists := at.format.(packed.Listing)
			if s.root != at.root || (s.labels != nil) != (at.format != nil) || s.listed() != lists {
				return nil, nil // forged: it would lead elsewhere
			}
			return s, meta
		}
	}
	return nil, nil
}

// saveIndex writes the file aside and renames it, so that a crash leaves the old or the new one.
func (c *Catalog) saveIndex(s *snapshot, meta []fileMeta) (err error) {
	path := ""
	for try := range uint64(indexTries) {
		p := filepath.Join(c.cfg.IndexDir, indexName(s.key(), try))
		if owner, ok := indexOwner(p); !ok || owner == s.key() {
			path = p
			break
		}
	}
	if path == "" {
		return fmt.Errorf("%d roots have the same hash as %s", indexTries, s.key())
	}
	f, err := os.CreateTemp(c.cfg.IndexDir, filepath.Base(path)+".*.tmp")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name()) // what is left is removed at a later start
		}
	}()
	_, err = f.Write(encodeIndex(s, meta))
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	err = os.Rename(f.Name(), path)
	if err != nil {
		return err
	}
	return syncDir(c.cfg.IndexDir)
}

// removeIndex deletes the saved index of a root, and returns its size.
func (c *Catalog) removeIndex(root string) (int64, error) {
	if c.cfg.IndexDir == "" {
		return 0, nil
	}
	for try := range uint64(indexTries) {
		path := filepath.Join(c.cfg.IndexDir, indexName(root, try))
		owner, ok := indexOwner(path)
		if !ok {
			return 0, nil
		}
		if owner != root {
			continue
		}
		fi, err := os.Stat(path)
		if err == nil {
			err = os.Remove(path)
		}
		if err == nil {
			err = syncDir(c.cfg.IndexDir)
		}
		if err != nil {
			return 0, errs.New(errs.StateFailed, printable(path), "remove the file",
				"the saved index of %q cannot be removed", root).Because(err)
		}
		return fi.Size(), nil
	}
	return 0, nil
}

// cleanRoot reports whether a root is written as parseURI writes it.
func cleanRoot(root string) bool {
	if isStored(root) {
		again, err := storedRoot(root, root)
		return err == nil && again == root
	}
	return filepath.IsAbs(root) && filepath.Clean(root) == root && strings.IndexByte(root, 0) < 0
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if cerr := d.Close(); err == nil {
		err = cerr
	}
	return err
}

// indexOwner reads the root out of an index file, without checking the rest.
func indexOwner(path string) (root string, ok bool) { return ownerOf(path, indexMagic) }

func ownerOf(path, magic string) (root string, ok bool) {
	f, err := os.Open(path)
	if err != nil {
		return "", false
	}
	defer f.Close()
	b := make([]byte, indexHeader+binary.MaxVarintLen64+4096)
	n, _ := f.Read(b) // a short or unreadable file has no owner and may be replaced
	if n < indexHeader || string(b[:8]) != magic {
		return "", false
	}
	r := &indexReader{b: b[indexHeader:n]}
	root = r.str()
	return root, r.err == nil
}

// removeLeftovers deletes files that a crash left while saving. Young ones may belong to another daemon.
func removeLeftovers(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return // saving will say so
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".tmp") || !strings.Contains(e.Name(), indexSuffix+".") {
			continue
		}
		if fi, err := e.Info(); err == nil && time.Since(fi.ModTime()) > time.Hour {
			_ = os.Remove(filepath.Join(dir, e.Name())) // another start tries again
		}
	}
}
