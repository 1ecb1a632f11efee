package source

import (
	"io/fs"
	"strings"
)

// writeLists writes the rows of the lists, and of the folders that they name images in.
func (s *snapshot) writeLists(w *indexWriter) {
	w.uvarints(uint64(len(s.lists)))
	for i := range s.lists {
		l := &s.lists[i]
		w.str(l.rel)
		w.uvarints(l.dev, l.ino, uint64(l.size))
		w.varints(l.mtime)
	}
	w.uvarints(uint64(len(s.dirs)))
	for i := range s.dirs {
		w.str(s.dirs[i].rel)
		w.b = append(w.b, flag(s.dirs[i].live))
	}
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

// placeOfFile reads what identifies the file of an image.
func (s *snapshot) placeOfFile(r *indexReader, i int, dir uint32, last fileMeta) fileMeta {
	if !s.dirs[dir].live {
		r.fail("sample %d is in a folder that is gone", i)
	}
	return fileMeta{dev: last.dev + uint64(r.varint()), ino: last.ino + uint64(r.varint()),
		size: r.nonNegative("a size"), mtime: last.mtime + r.varint()}
}
