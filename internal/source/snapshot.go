package source

import (
	"encoding/binary"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"

	"larder/internal/bits"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/record"
	"larder/internal/source/packed"
)

// dirRow is a folder of a dataset, or a packed file. A row is never removed, because keys of tombstones name it.
type dirRow struct {
	rel, class string // class is the first segment of rel
	dev, ino   uint64
	mtime      int64        // ns when it was listed; 0 = not to be trusted
	size       int64        // of a packed file, bytes
	found      packed.Found // in a packed file, beside samples
	label      int32        // of the class, -1 when the class is gone
	live       bool
}

// snapshot is one version of one root, immutable once published. Columns are indexed by sample id: about 12 bytes a
// sample and its name while it is made, and as few as shortened leaves once it is published; the object takes 57 more,
// or 12 in a packed file.
type snapshot struct {
	root    string
	uri     string   // of packed files; "" = a folder of images
	labels  []int32  // of packed files, by sample; nil = a folder of images, whose folders have labels
	classes []string // label order
	shown   []string // the same as text; classes itself when all are UTF-8
	dirs    []dirRow
	dirOf   []uint32
	names   string   // all file names, end to end
	nameEnd []uint32 // where each ends
	dead    []uint64 // bits
	objs    []ident.ObjectID
	past    []named // objects of files that have changed since
	rev     reverse
	short   shortColumns
	live    int
	total   int64 // bytes of live samples
	fp      uint64
	report  Report
	empty   []int32 // classes without samples
	made    *Made   // of a dataset without files, in which no column has anything; else nil

	lists []dirRow // of images that lists name; nil = the samples lie in the rows of dirs otherwise

	schema record.Schema // of packed files whose samples are records; no fields = they are an image and a label
	mark   uint64        // a part of the identity of records, see recordMark; 0 = the samples are no records
	// outdated: an earlier larder made it, and this one may find other things in the same files.
	outdated outdated
}

// outdated says what may be found otherwise; 0 = nothing.
type outdated uint8

const (
	otherFields  outdated = iota + 1 // the schema, or what the files are that misread names
	otherSamples                     // and which samples there are, or their labels
)

// scheme is that of packed files.
func (s *snapshot) scheme() string {
	scheme, _, _ := strings.Cut(s.uri, ":")
	return scheme
}

// records reports whether the samples are records.
func (s *snapshot) records() bool { return len(s.schema.Fields) > 0 }

// inBlocks reports whether a packed file cannot be read at the places where its samples lie.
func (s *snapshot) inBlocks(dir uint32) bool {
	scheme, _, ok := strings.Cut(s.uri, ":")
	return ok && packed.InBlocks(scheme, s.dirs[dir].rel)
}

// opened reports whether a sample is read through its open file: it is a record, or in a file that is compressed.
func (s *snapshot) opened(id ident.SampleID) bool {
	return s.records() || s.labels != nil && !s.listed() && s.has(id) && s.inBlocks(s.dir(id))
}

// key names the saved index, as that of its place does.
func (s *snapshot) key() string {
	if s.labels != nil {
		return s.uri
	}
	return s.root
}

func (s *snapshot) has(id ident.SampleID) bool { return int64(id) < int64(s.Len()) }

// Len is the number of sample ids, tombstones included.
func (s *snapshot) Len() int {
	if s.made != nil {
		return s.made.Length
	}
	return max(len(s.dirOf), s.short.dirs.n)
}

// Live is false for tombstones and for ids out of range.
func (s *snapshot) Live(id ident.SampleID) bool {
	return s.has(id) && (s.made != nil || s.dead[id>>6]&(1<<(id&63)) == 0)
}

// Label is the class number, -1 out of range and for tombstones whose class is gone.
func (s *snapshot) Label(id ident.SampleID) int64 {
	if !s.has(id) || s.made != nil {
		return -1
	}
	if s.labels != nil {
		return int64(s.label(id))
	}
	return int64(s.dirs[s.dir(id)].label)
}

// Class is the name of the class folder, or what packed files call the label.
func (s *snapshot) Class(id ident.SampleID) string {
	if !s.has(id) || s.made != nil {
		return ""
	}
	if s.labels != nil {
		switch l := s.label(id); {
		case l < 0:
			return ""
		case int(l) < len(s.classes):
			return s.classes[l]
		default: // too many for a list
			return strconv.Itoa(int(l))
		}
	}
	return s.dirs[s.dir(id)].class
}

// Key is the path below the root; of a packed sample, that of its file, and its key in there.
func (s *snapshot) Key(id ident.SampleID) string {
	switch {
	case !s.has(id):
		return ""
	case s.made != nil:
		return strconv.Itoa(int(id))
	}
	return s.fileKey(id)
}

func (s *snapshot) fileKey(id ident.SampleID) string {
	return below(s.dirs[s.dir(id)].rel, s.name(id))
}

func (s *snapshot) path(id ident.SampleID) string {
	if !s.has(id) {
		return ""
	}
	if s.made != nil {
		return s.made.URI() + "#" + s.Key(id)
	}
	if s.labels != nil && !s.listed() {
		return join(s.root, s.dirs[s.dir(id)].rel)
	}
	return join(s.root, below(s.dirs[s.dir(id)].rel, s.name(id)))
}

// limits of the columns.
const (
	maxSamples = math.MaxUint32 - 1
	maxNames   = math.MaxUint32
)

// mergeWalk makes the next version of a root from the last one (nil: none) and a walk: known keys keep their ids, keys
// that are gone become tombstones, new keys follow in torchvision's order. meta has one entry per sample id.
// Object ids are not assigned yet.
func mergeWalk(root string, old *snapshot, w *walkResult) (s *snapshot, meta []fileMeta, err error) {
	if old == nil {
		old = &snapshot{}
	}
	s = &snapshot{root: root, classes: w.classes, report: w.report, dirs: slices.Clone(old.dirs),
		dirOf: slices.Clone(old.dirOf), nameEnd: slices.Clone(old.nameEnd)}
	row := make(map[string]uint32, len(s.dirs))
	for i := range s.dirs {
		s.dirs[i].live, s.dirs[i].mtime = false, 0
		row[s.dirs[i].rel] = uint32(i)
	}
	known := old.byDir()
	found, fresh, nameBytes := bits.NewSet(len(old.dirOf)), 0, len(old.names)
	for _, d := range w.dirs {
		fresh += len(d.files)
	}
	meta = make([]fileMeta, len(old.dirOf), len(old.dirOf)+fresh)
	var names strings.Builder
	names.WriteString(old.names)
	for _, d := range w.dirs {
		i, ok := row[d.rel]
		if !ok {
			i = uint32(len(s.dirs))
			s.dirs = append(s.dirs, dirRow{rel: d.rel, class: d.class})
		}
		r := &s.dirs[i]
		r.dev, r.ino, r.mtime, r.live = d.dev, d.ino, d.mtime, true
		var ids []ident.SampleID
		if int(i) < len(known) {
			ids = known[i]
		}
		for _, f := range d.files {
			for len(ids) > 0 && pyCompare(old.name(ids[0]), f.name) < 0 {
				ids = ids[1:]
			}
			if len(ids) > 0 && old.name(ids[0]) == f.name {
				found.Add(uint32(ids[0]))
				meta[ids[0]] = f.fileMeta
				ids = ids[1:]
				continue
			}
			nameBytes += len(f.name)
			if len(s.dirOf) >= maxSamples || nameBytes > maxNames {
				return nil, nil, errs.New(errs.ResourceExceeded, printable(root), "split the dataset",
					"dataset folder %q has more than %d files, or their names more than %d bytes", root, int64(maxSamples),
					int64(maxNames))
			}
			s.dirOf = append(s.dirOf, i)
			names.WriteString(f.name)
			s.nameEnd = append(s.nameEnd, uint32(nameBytes))
			meta = append(meta, f.fileMeta)
		}
	}
	s.names = names.String()
	s.dead = make([]uint64, (len(s.dirOf)+63)/64)
	for id := range old.dirOf {
		if !found.Has(uint32(id)) {
			s.dead[id>>6] |= 1 << (id & 63)
		}
	}
	s.seal(meta)
	return s, meta, nil
}

// byDir groups the sample ids by row of dirs, sorted by name.
func (s *snapshot) byDir() [][]ident.SampleID {
	counts := make([]int, len(s.dirs))
	for id := range s.Len() {
		counts[s.dir(sampleID(id))]++
	}
	all := make([]ident.SampleID, s.Len())
	out := make([][]ident.SampleID, len(s.dirs))
	from := 0
	for d, n := range counts {
		out[d] = all[from : from : from+n]
		from += n
	}
	for id := range ident.SampleID(s.Len()) {
		d := s.dir(id)
		out[d] = append(out[d], id)
	}
	for _, ids := range out {
		byName := func(a, b ident.SampleID) int { return pyCompare(s.name(a), s.name(b)) }
		if !slices.IsSortedFunc(ids, byName) {
			slices.SortFunc(ids, byName)
		}
	}
	return out
}

// seal computes what follows from the columns and meta: labels, totals, fingerprint.
func (s *snapshot) seal(meta []fileMeta) {
	label := make(map[string]int32, len(s.classes))
	s.shown = s.classes
	for i, c := range s.classes {
		label[c] = int32(i)
		if !utf8.ValidString(c) {
			if &s.shown[0] == &s.classes[0] {
				s.shown = slices.Clone(s.classes)
			}
			s.shown[i] = printable(c)
		}
	}
	for i := range s.dirs {
		d := &s.dirs[i]
		d.label = -1
		if l, ok := label[d.class]; ok {
			d.label = l
		}
	}
	s.live, s.total = 0, 0
	filled := bits.NewSet(len(s.classes))
	for id := range s.dirOf {
		if s.Live(ident.SampleID(id)) {
			s.live++
			s.total += meta[id].size
			if l := s.Label(ident.SampleID(id)); l >= 0 && l < int64(len(s.classes)) {
				filled.Add(uint32(l))
			}
		}
	}
	s.empty = nil
	for l := range s.classes {
		if !filled.Has(uint32(l)) {
			s.empty = append(s.empty, int32(l))
		}
	}
	s.fp = s.fingerprint(meta)
}

// fingerprint hashes what a job can notice: keys, ids, labels, sizes and modification times. It is equal for a copy
// of the tree that keeps modification times, wherever it lies.
func (s *snapshot) fingerprint(meta []fileMeta) uint64 {
	h := xxhash.New()
	buf := make([]byte, 0, 64<<10)
	str := func(x string) {
		buf = binary.AppendUvarint(buf, uint64(len(x)))
		buf = append(buf, x...)
	}
	switch {
	case s.labels == nil:
		str("larder imagefolder 1")
	case s.listed(): // a list says more than its images and labels: properties
		str("larder listed 2")
		for i := range s.lists {
			str(s.lists[i].rel)
			buf = binary.AppendVarint(buf, s.lists[i].size)
			buf = binary.AppendVarint(buf, s.lists[i].mtime)
		}
	case !s.records():
		str("larder packed 1")
	default:
		str("larder records 1")
		buf = binary.LittleEndian.AppendUint64(buf, s.mark)
	}
	buf = binary.AppendUvarint(buf, uint64(len(s.classes)))
	for _, c := range s.classes {
		str(c)
	}
	for id := range s.dirOf {
		if len(buf) > 32<<10 {
			_, _ = h.Write(buf) // a hash never fails
			buf = buf[:0]
		}
		str(s.dirs[s.dir(sampleID(id))].rel)
		str(s.name(ident.SampleID(id)))
		if !s.Live(ident.SampleID(id)) {
			buf = append(buf, 0)
			continue
		}
		buf = append(buf, 1)
		buf = binary.AppendVarint(buf, meta[id].size)
		buf = binary.AppendVarint(buf, meta[id].mtime)
		if s.labels != nil {
			buf = binary.AppendVarint(buf, meta[id].off)
			buf = binary.AppendVarint(buf, int64(s.label(sampleID(id))))
		}
	}
	_, _ = h.Write(buf)
	return h.Sum64()
}

// assignObjects interns the files of a version. A file that did not change keeps its object; a changed one gets
// another, and the old one still leads to its sample, for jobs that picked it before.
func (s *snapshot) assignObjects(t *objectTable, root uint32, old *snapshot, meta []fileMeta) {
	s.objs = make([]ident.ObjectID, len(s.dirOf))
	used := bits.NewSet(t.len() + len(s.dirOf))
	var todo []ident.SampleID
	if old != nil {
		s.past = slices.Clip(old.past)
	}
	for i := range s.objs {
		id, before := ident.SampleID(i), NoObject
		if old != nil {
			before = old.object(id)
		}
		s.objs[id] = before
		if !s.Live(id) {
			continue
		}
		if before != NoObject {
			if m, _ := t.meta(before); m == meta[id] && used.Add(uint32(before)) {
				continue
			}
			s.past = append(s.past, named{before, id, 2})
		}
		todo = append(todo, id)
	}
	// The ordinal to try next for a file that is named again, by its first object: a million links to one file must
	// not try a million ordinals each.
	next := map[ident.ObjectID]uint32{}
	split := func(f func(part []ident.SampleID, isStretch bool)) {
		if s.labels == nil { // each in its own file
			f(todo, false)
			return
		}
		splitStretches(todo, meta, f)
	}
	if t.len() == 0 { // the first dataset: all its files are new
		n := 0
		split(func(part []ident.SampleID, isStretch bool) {
			if !isStretch {
				n += len(part)
			}
		})
		if n > 0 {
			t.making.Lock()
			t.room(n)
			t.making.Unlock()
		}
	}
	split(func(part []ident.SampleID, isStretch bool) {
		for len(part) > 0 {
			rows := len(part)
			if isStretch {
				first, added := ident.ObjectID(0), 0
				first, added, rows = t.internStretch(root, part, meta)
				for k, id := range part[:added] {
					s.objs[id] = first + ident.ObjectID(k)
					used.Add(uint32(s.objs[id]))
				}
				part = part[added:]
			}
			s.assignRows(t, root, part[:rows], meta, handed{used, next})
			part = part[rows:]
		}
	})
	s.rev = s.reversed()
}

// handed is which objects samples of a version have, and the ordinal to try next for a file that is named again.
type handed struct {
	used *bits.Set
	next map[ident.ObjectID]uint32
}

// assignRows interns files one by one.
func (s *snapshot) assignRows(t *objectTable, root uint32, ids []ident.SampleID, meta []fileMeta, h handed) {
	const chunk = 4096 // short enough that readers of the table do not notice
	rows, hashes := make([]object, min(chunk, len(ids))), make([]uint64, min(chunk, len(ids)))
	for part := range slices.Chunk(ids, chunk) {
		t.making.Lock()
		t.room(len(part)) // each gets one new row at most
		t.mu.Lock()
		for k, id := range part { // a loop of its own: a processor has several hashes under way at once then
			rows[k] = t.objectOf(&meta[id], 0, root, id)
			hashes[k] = rows[k].hash()
		}
		for k, id := range part {
			first := t.addLocked(&rows[k], hashes[k])
			o := first
			for !h.used.Add(uint32(o)) {
				h.next[first]++
				o = t.internLocked(meta[id], h.next[first], root, id)
			}
			s.objs[id] = o
		}
		t.mu.Unlock()
		t.making.Unlock()
	}
}

// inOneRun reports whether the objects follow each other as the samples do.
func (s *snapshot) inOneRun() bool {
	for i, o := range s.objs {
		if o != s.objs[0]+ident.ObjectID(i) {
			return false
		}
	}
	return true
}

// reversed maps the objects of a version back to its samples.
func (s *snapshot) reversed() reverse {
	if n := len(s.objs); n > 0 && len(s.past) == 0 && s.live == n && s.inOneRun() { // as it is after a first walk
		return reverse{{s.objs[0], 0, uint32(n)}}
	}
	all := make([]named, 0, len(s.objs)+len(s.past))
	for i, o := range s.objs {
		switch id := ident.SampleID(i); {
		case s.Live(id):
			all = append(all, named{o, id, 0})
		case o != NoObject:
			all = append(all, named{o, id, 1})
		}
	}
	return makeReverse(append(all, s.past...))
}
