package source

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"
)

// encodeListed writes a version of lists of images. meta is what identifies their files.
func encodeListed(s *snapshot, meta []fileMeta) []byte {
	b := make([]byte, indexHeader, indexHeader+len(s.names)+24*len(s.dirOf)+4096)
	copy(b, indexMagic)
	binary.LittleEndian.PutUint32(b[8:], listedVersion)
	str := func(x string) {
		b = binary.AppendUvarint(b, uint64(len(x)))
		b = append(b, x...)
	}
	str(s.uri)
	str(s.root)
	b = binary.LittleEndian.AppendUint64(b, s.fp)
	b = binary.AppendUvarint(b, uint64(len(s.classes)))
	for _, c := range s.classes {
		str(c)
	}
	b = binary.AppendUvarint(b, uint64(len(s.lists)))
	for i := range s.lists {
		l := &s.lists[i]
		str(l.rel)
		for _, n := range []uint64{l.dev, l.ino, uint64(l.size)} {
			b = binary.AppendUvarint(b, n)
		}
		b = binary.AppendVarint(b, l.mtime)
	}
	b = binary.AppendUvarint(b, uint64(len(s.dirs)))
	for i := range s.dirs {
		str(s.dirs[i].rel)
		b = append(b, flag(s.dirs[i].live))
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
			m := meta[i]
			b = binary.AppendVarint(b, int64(m.dev-last.dev)) // differences wrap around, and back
			b = binary.AppendVarint(b, int64(m.ino-last.ino))
			b = binary.AppendUvarint(b, uint64(m.size))
			b = binary.AppendVarint(b, m.mtime-last.mtime)
			last = m
		}
	}
	binary.LittleEndian.PutUint64(b[16:], uint64(len(b)-indexHeader))
	return binary.LittleEndian.AppendUint64(b, xxhash.Sum64(b))
}

// decodeListed reads the payload that encodeListed wrote, and accepts nothing else, as decodeIndex does.
func decodeListed(r *indexReader) (*snapshot, []fileMeta, error) {
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
	s.classes = make([]string, r.count("classes", 1))
	for i := range s.classes {
		s.classes[i] = r.str()
	}
	s.report.Kinds = map[string]int{}
	s.readLists(r)
	meta := s.readListed(r)
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
	return s, meta, nil
}

// readLists reads the rows of the lists, and of the folders that they name images in.
func (s *snapshot) readLists(r *indexReader) {
	path := func(what, rel string, empty bool, seen map[string]bool) {
		if seen[rel] || (rel != "" || !empty) && !fs.ValidPath(strings.ToValidUTF8(rel, "x")) || rel == "." ||
			strings.IndexByte(rel, 0) >= 0 {
			r.fail("%s %q is named twice, or no path below the root", what, rel)
		}
		seen[rel] = true
	}
	s.lists = make([]dirRow, r.count("lists", 5))
	seen := map[string]bool{}
	for i := range s.lists {
		l := &s.lists[i]
		l.rel, l.live = r.str(), true
		l.dev, l.ino, l.size = r.uvarint(), r.uvarint(), r.nonNegative("a size")
		l.mtime = r.varint()
		path("list", l.rel, false, seen)
	}
	s.dirs = make([]dirRow, r.count("folders", 2))
	seen = map[string]bool{}
	for i := range s.dirs {
		s.dirs[i].rel = r.str()
		s.dirs[i].live = r.flag()
		path("folder", s.dirs[i].rel, true, seen)
	}
}

func (s *snapshot) readListed(r *indexReader) []fileMeta {
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
			r.fail("sample %d is in folder %d, with label %d", i, dir, label)
			return nil
		}
		s.dirOf[i], s.labels[i] = uint32(dir), int32(label)
		name := r.text()
		if len(name) == 0 || string(name) == "." || string(name) == ".." || slices.Contains(name, '/') ||
			slices.Contains(name, 0) || names.Len()+len(name) > maxNames {
			r.fail("sample %d is named %q", i, name)
			return nil
		}
		names.Write(name)
		s.nameEnd[i] = uint32(names.Len())
		if !r.flag() {
			s.dead[i>>6] |= 1 << (i & 63)
			continue
		}
		if !s.dirs[dir].live {
			r.fail("sample %d is in a folder that is gone", i)
		}
		last = fileMeta{dev: last.dev + uint64(r.varint()), ino: last.ino + uint64(r.varint()),
			size: r.nonNegative("a size"), mtime: last.mtime + r.varint()}
		meta[i] = last
		if r.err != nil {
			return nil
		}
	}
	s.names = names.String()
	return meta
}
