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
	packedVersion  = 3
	recordsVersion = 4
	listedVersion  = 5
)

// encodePacked writes a version of packed files. meta is where the samples lie.
func encodePacked(s *snapshot, meta []fileMeta) []byte {
	b := make([]byte, indexHeader, indexHeader+len(s.names)+12*len(s.dirOf)+4096)
	copy(b, indexMagic)
	version := uint32(packedVersion)
	if s.records() {
		version = recordsVersion
	}
	binary.LittleEndian.PutUint32(b[8:], version)
	str := func(x string) {
		b = binary.AppendUvarint(b, uint64(len(x)))
		b = append(b, x...)
	}
	str(s.uri)
	str(s.root)
	b = binary.LittleEndian.AppendUint64(b, s.fp)
	if s.records() {
		b = binary.LittleEndian.AppendUint64(b, s.mark)
		b = binary.AppendUvarint(b, uint64(len(s.schema.Fields)))
		for i := range s.schema.Fields {
			f := &s.schema.Fields[i]
			str(f.Name)
			b = append(b, byte(f.Kind), byte(f.DType), byte(len(f.Shape)))
			for _, d := range f.Shape {
				b = binary.AppendVarint(b, d)
			}
		}
	}
	b = binary.AppendUvarint(b, uint64(len(s.classes)))
	for _, c := range s.classes {
		str(c)
	}
	b = binary.AppendUvarint(b, uint64(len(s.dirs)))
	for i := range s.dirs {
		d := &s.dirs[i]
		str(d.rel)
		b = append(b, flag(d.live))
		for _, n := range []uint64{d.dev, d.ino, uint64(d.size), uint64(d.found.Without), uint64(len(d.found.Skipped))} {
			b = binary.AppendUvarint(b, n)
		}
		b = binary.AppendVarint(b, d.mtime)
		for _, kind := range slices.Sorted(maps.Keys(d.found.Skipped)) {
			str(kind)
			b = binary.AppendUvarint(b, uint64(d.found.Skipped[kind]))
		}
	}
	b = binary.AppendUvarint(b, uint64(len(s.dirOf)))
	var last fileMeta
	var lastDir, lastLabel int64
	for i := range s.dirOf {
		b = binary.AppendVarint(b, int64(s.dirOf[i])-lastDir)
		lastDir = int64(s.dirOf[i])
		b = binary.AppendVarint(b, int64(s.labels[i])-lastLabel)
		lastLabel = int64(s.labels[i])
		str(s.name(sampleID(i)))
		live := s.Live(sampleID(i))
		b = append(b, flag(live))
		if live {
			b = binary.AppendVarint(b, meta[i].off-last.off-last.size)
			b = binary.AppendUvarint(b, uint64(meta[i].size))
			last = meta[i]
		}
	}
	binary.LittleEndian.PutUint64(b[16:], uint64(len(b)-indexHeader))
	return binary.LittleEndian.AppendUint64(b, xxhash.Sum64(b))
}

// decodePacked reads the payload that encodePacked wrote, and accepts nothing else, as decodeIndex does.
func decodePacked(r *indexReader, records bool) (*snapshot, []fileMeta, error) {
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
	if records {
		s.readSchema(r)
	}
	s.classes = make([]string, r.count("classes", 1))
	for i := range s.classes {
		s.classes[i] = r.str()
	}
	s.report.Kinds = map[string]int{}
	s.readFiles(r)
	meta := s.readPacked(r)
	switch {
	case r.err != nil:
		return nil, nil, r.err
	case len(r.b) != 0:
		return nil, nil, fmt.Errorf("%d bytes follow the last sample", len(r.b))
	}
	s.report.Folders = len(s.dirs)
	s.seal(meta)
	if s.live == 0 {
		return nil, nil, errors.New("it holds no sample")
	}
	if s.fp != fp {
		return nil, nil, fmt.Errorf("its content has the fingerprint %016x, not %016x", s.fp, fp)
	}
	return s, meta, nil
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

func (s *snapshot) readPacked(r *indexReader) []fileMeta {
	n := r.count("samples", 4)
	meta := make([]fileMeta, n)
	s.dirOf, s.nameEnd, s.labels = make([]uint32, n), make([]uint32, n), make([]int32, n)
	s.dead = make([]uint64, (n+63)/64)
	var names strings.Builder
	var dir, label int64
	var last packed.Sample
	for i := range n {
		dir += r.varint()
		label += r.varint()
		if dir < 0 || dir >= int64(len(s.dirs)) || label < -1 || label > math.MaxInt32 {
			r.fail("sample %d is in file %d, with label %d", i, dir, label)
			return nil
		}
		s.dirOf[i], s.labels[i] = uint32(dir), int32(label)
		name := r.text()
		if len(name) == 0 || slices.Contains(name, 0) || names.Len()+len(name) > maxNames {
			r.fail("sample %d is named %q", i, name)
			return nil
		}
		names.Write(name)
		s.nameEnd[i] = uint32(names.Len())
		if !r.flag() {
			s.dead[i>>6] |= 1 << (i & 63)
			continue
		}
		d := &s.dirs[dir]
		last.Off += last.Size + r.varint()
		last.Size = r.nonNegative("a size")
		inside := s.records() || s.inBlocks(uint32(dir)) || last.Off <= d.size-last.Size
		if !d.live || last.Off < 0 || last.Size < 1 || !inside {
			r.fail("sample %d lies at byte %d of a file of %d", i, last.Off, d.size)
			return nil
		}
		meta[i] = fileMeta{dev: d.dev ^ s.mark, ino: d.ino, mtime: d.mtime, off: last.Off, size: last.Size}
	}
	s.names = names.String()
	return meta
}
