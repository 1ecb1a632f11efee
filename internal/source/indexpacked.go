package source

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

	"larder/internal/record"
	"larder/internal/source/packed"
)

// Versions of an index of packed files; docs/format/index.md describes the bytes. One of records has their schema, one
// of lists the identity of each image.
const (
	packedVersion  = 7
	listedVersion  = 8
	recordsVersion = 9
	lastVersion    = recordsVersion

	// These are read, and what they say is found again where it may be another now.
	wordsVersion      = 3 // labels such as 3.0 were words
	bytesVersion      = 4 // of records: what became sound since has bytes in its schema
	listedWordVersion = 5 // of lists, as wordsVersion
	typesVersion      = 6 // of records: types of columns that were compared less, or held numbers less well; any codec
)

// indexWriter appends to a payload.
type indexWriter struct{ b []byte }

func (w *indexWriter) str(x string) {
	w.b = binary.AppendUvarint(w.b, uint64(len(x)))
	w.b = append(w.b, x...)
}

func (w *indexWriter) uvarints(numbers ...uint64) {
	for _, n := range numbers {
		w.b = binary.AppendUvarint(w.b, n)
	}
}

func (w *indexWriter) varints(numbers ...int64) {
	for _, n := range numbers {
		w.b = binary.AppendVarint(w.b, n)
	}
}

// encodePacked writes a version of packed files, or of lists of images. meta is where the samples lie, and what
// identifies the files that lists name.
func encodePacked(s *snapshot, meta []fileMeta) []byte {
	version, each := uint32(packedVersion), 12
	switch {
	case s.listed():
		version, each = listedVersion, 24
	case s.records():
		version = recordsVersion
	}
	w := &indexWriter{make([]byte, indexHeader, indexHeader+len(s.names)+each*s.Len()+4096)}
	copy(w.b, indexMagic)
	binary.LittleEndian.PutUint32(w.b[8:], version)
	w.str(s.uri)
	w.str(s.root)
	w.b = binary.LittleEndian.AppendUint64(w.b, s.fp)
	if s.records() {
		s.writeSchema(w)
	}
	w.uvarints(uint64(len(s.classes)))
	for _, c := range s.classes {
		w.str(c)
	}
	if s.listed() {
		s.writeLists(w)
	} else {
		s.writeFiles(w)
	}
	w.uvarints(uint64(s.Len()))
	var last fileMeta
	var lastDir, lastLabel int64
	for i := range s.Len() {
		dir, label := int64(s.dir(sampleID(i))), int64(s.label(sampleID(i)))
		w.varints(dir-lastDir, label-lastLabel)
		lastDir, lastLabel = dir, label
		w.str(s.name(sampleID(i)))
		live := s.Live(sampleID(i))
		w.b = append(w.b, flag(live))
		if !live {
			continue
		}
		m := meta[i]
		if s.listed() {
			w.varints(int64(m.dev-last.dev), int64(m.ino-last.ino)) // differences wrap around, and back
			w.uvarints(uint64(m.size))
			w.varints(m.mtime - last.mtime)
		} else {
			w.varints(m.off - last.off - last.size)
			w.uvarints(uint64(m.size))
		}
		last = m
	}
	binary.LittleEndian.PutUint64(w.b[16:], uint64(len(w.b)-indexHeader))
	return binary.LittleEndian.AppendUint64(w.b, xxhash.Sum64(w.b))
}

func (s *snapshot) writeSchema(w *indexWriter) {
	w.b = binary.LittleEndian.AppendUint64(w.b, s.mark)
	w.uvarints(uint64(len(s.schema.Fields)))
	for i := range s.schema.Fields {
		f := &s.schema.Fields[i]
		w.str(f.Name)
		w.b = append(w.b, byte(f.Kind), byte(f.DType), byte(len(f.Shape)))
		w.varints(f.Shape...)
	}
}

func (s *snapshot) writeFiles(w *indexWriter) {
	w.uvarints(uint64(len(s.dirs)))
	for i := range s.dirs {
		d := &s.dirs[i]
		w.str(d.rel)
		w.b = append(w.b, flag(d.live))
		w.uvarints(d.dev, d.ino, uint64(d.size), uint64(d.found.Without), uint64(len(d.found.Skipped)))
		w.varints(d.mtime)
		for _, kind := range slices.Sorted(maps.Keys(d.found.Skipped)) {
			w.str(kind)
			w.uvarints(uint64(d.found.Skipped[kind]))
		}
	}
}

// decodePacked reads the payload that encodePacked wrote, and accepts nothing else, as decodeIndex does.
func decodePacked(r *indexReader, version uint32) (*snapshot, []fileMeta, error) {
	s := &snapshot{uri: r.str(), root: r.str()}
	if !cleanPlacedRoot(s.root) {
		r.fail("the root %q is neither a clean absolute path nor a store", s.root)
	}
	fp := uint64(0)
	if len(r.b) >= 8 {
		fp = binary.LittleEndian.Uint64(r.b)
		r.b = r.b[8:]
	} else {
		r.fail("the fingerprint is cut off")
	}
	if version == bytesVersion || version == typesVersion || version == recordsVersion {
		s.readSchema(r)
	}
	s.classes = make([]string, r.count("classes", 1))
	for i := range s.classes {
		s.classes[i] = r.str()
	}
	s.report.Kinds = map[string]int{}
	place := s.placeInFile
	if version == listedVersion || version == listedWordVersion {
		s.readLists(r)
		place = s.placeOfFile
	} else {
		s.readFiles(r)
	}
	meta := s.readLabelled(r, place)
	switch {
	case r.err != nil:
		return nil, nil, r.err
	case len(r.b) != 0:
		return nil, nil, fmt.Errorf("%d bytes follow the last sample", len(r.b))
	}
	s.report.Folders = len(s.dirs) + len(s.lists)
	s.seal(meta)
	if s.live == 0 {
		return nil, nil, errors.New("it holds no sample")
	}
	if s.fp != fp {
		return nil, nil, fmt.Errorf("its content has the fingerprint %016x, not %016x", s.fp, fp)
	}
	s.outdated = outdatedBy(version, s)
	return s, meta, nil
}

// outdatedBy says what this larder may find otherwise than the one that wrote a version of an index.
func outdatedBy(version uint32, s *snapshot) outdated {
	scheme := s.scheme()
	samples := packed.LabelsByWord(scheme) && !numbered(s.classes) && slices.ContainsFunc(s.classes, packed.OldLabel)
	switch version {
	case wordsVersion, listedWordVersion:
		samples = samples || scheme == "mds" && slices.Contains(s.labels, -1)
	case bytesVersion, typesVersion:
		samples = samples || packed.FloatLabels(&s.schema) || scheme == "fasta" // whose .fai was believed
		if !samples && (version == bytesVersion && packed.WasBytes(scheme, &s.schema) ||
			packed.TypedAnew(scheme, &s.schema, len(s.dirs)) || packed.WereOthers(scheme, &s.schema) ||
			slices.ContainsFunc(s.dirs, func(d dirRow) bool { return packed.KeptHalves(scheme, &s.schema, d.rel) })) {
			return otherFields
		}
	default:
		return 0
	}
	switch {
	case samples:
		return otherSamples
	case slices.Contains(misread(s), true):
		return otherFields
	}
	return 0
}

// misread says of each file whether an earlier larder may have read it, and this one does not or finds other samples.
func misread(s *snapshot) []bool {
	rows, samples := s.dirs, make([]int, len(s.dirs))
	if s.listed() { // samples lie elsewhere
		rows, samples = s.lists, make([]int, len(s.lists))
	} else {
		for i := range s.Len() {
			if s.Live(sampleID(i)) {
				samples[s.dir(sampleID(i))]++
			}
		}
	}
	out := make([]bool, len(rows))
	for i := range rows {
		out[i] = rows[i].live && packed.Misread(s.scheme(), rows[i].rel, rows[i].size, samples[i])
	}
	return out
}

// readSchema reads what the samples are.
func (s *snapshot) readSchema(r *indexReader) {
	if len(r.b) < 8 {
		r.fail("the mark of records is cut off")
		return
	}
	s.mark = binary.LittleEndian.Uint64(r.b)
	r.b = r.b[8:]
	s.schema.Fields = make([]record.Field, r.count("fields", 4))
	for i := range s.schema.Fields {
		f := &s.schema.Fields[i]
		f.Name = r.str()
		if r.err != nil || len(r.b) < 3 {
			r.fail("field %d is cut off", i)
			return
		}
		f.Kind, f.DType = record.Kind(r.b[0]), record.DType(r.b[1])
		n := int(r.b[2])
		r.b = r.b[3:]
		if n > record.MaxDims {
			r.fail("field %q has %d dimensions", f.Name, n)
			return
		}
		for range n {
			f.Shape = append(f.Shape, r.varint())
		}
	}
	if r.err != nil {
		return
	}
	if err := s.schema.Check(); err != nil || len(s.schema.Fields) == 0 || s.mark == 0 {
		r.fail("it has no schema that records can have: %v", err)
	}
}

func (s *snapshot) readFiles(r *indexReader) {
	s.dirs = make([]dirRow, r.count("files", 8))
	seen := make(map[string]bool, len(s.dirs))
	for i := range s.dirs {
		d := &s.dirs[i]
		d.rel = r.str()
		d.live = r.flag()
		d.dev, d.ino, d.size = r.uvarint(), r.uvarint(), r.nonNegative("a size")
		d.found.Without = int(r.nonNegative("a counter"))
		n := r.count("kinds", 2)
		d.mtime = r.varint()
		d.found.Skipped = make(map[string]int, n)
		last := ""
		for k := range n {
			kind := r.str()
			if k > 0 && kind <= last {
				r.fail("a kind %q is out of order", kind)
			}
			last, d.found.Skipped[kind] = kind, int(r.nonNegative("a counter"))
		}
		if d.live {
			m := merger{s: s}
			m.report(d.found)
		}
		if seen[d.rel] || !fs.ValidPath(strings.ToValidUTF8(d.rel, "x")) || d.rel == "." ||
			strings.IndexByte(d.rel, 0) >= 0 {
			r.fail("file %q is named twice, or no path below the root", d.rel)
		}
		seen[d.rel] = true
		if r.err != nil {
			return
		}
	}
}

// readLabelled reads the samples; place reads what follows the flag of a live one in a row of dirs.
func (s *snapshot) readLabelled(
	r *indexReader, place func(r *indexReader, i int, dir uint32, last fileMeta) fileMeta,
) []fileMeta {
	n := r.count("samples", 4)
	meta := make([]fileMeta, n)
	s.dirOf, s.nameEnd, s.labels = make([]uint32, n), make([]uint32, n), make([]int32, n)
	s.dead = make([]uint64, (n+63)/64)
	var names strings.Builder
	var dir, label int64
	var last fileMeta
	for i := range n {
		dir += r.varint()
		label += r.varint()
		if dir < 0 || dir >= int64(len(s.dirs)) || label < -1 || label > math.MaxInt32 {
			r.fail("sample %d is in row %d, with label %d", i, dir, label)
			return nil
		}
		s.dirOf[i], s.labels[i] = uint32(dir), int32(label)
		name := r.text()
		if len(name) == 0 || slices.Contains(name, 0) || names.Len()+len(name) > maxNames ||
			s.listed() && (string(name) == "." || string(name) == ".." || slices.Contains(name, '/')) {
			r.fail("sample %d is named %q", i, name)
			return nil
		}
		names.Write(name)
		s.nameEnd[i] = uint32(names.Len())
		if !r.flag() {
			s.dead[i>>6] |= 1 << (i & 63)
			continue
		}
		last = place(r, i, uint32(dir), last)
		meta[i] = last
		if r.err != nil {
			return nil
		}
	}
	s.names = names.String()
	return meta
}

// placeInFile reads where a sample lies in its packed file.
func (s *snapshot) placeInFile(r *indexReader, i int, dir uint32, last fileMeta) fileMeta {
	d := &s.dirs[dir]
	off, size := last.off+last.size+r.varint(), r.nonNegative("a size")
	inside := s.records() || s.inBlocks(dir) || off <= d.size-size
	if !d.live || off < 0 || size < 1 || !inside {
		r.fail("sample %d lies at byte %d of a file of %d", i, off, d.size)
	}
	return fileMeta{dev: d.dev ^ s.mark, ino: d.ino, mtime: d.mtime, off: off, size: size}
}
