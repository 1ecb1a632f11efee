package packed

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf8"
)

// wds is WebDataset: tar files whose members belong together when their names are equal up to the first dot
// (webdataset.tariterators.base_plus_ext).
type wds struct{ identity }

func (wds) Scheme() string { return "wds" }

// images are the extensions that are delivered; a sample has one of them.
var images = []string{"jpg", "jpeg", "png", "webp", "ppm", "pgm", "bmp", "tif", "tiff"}

func isImage(ext string) bool {
	for _, x := range images {
		if ext == x || strings.HasSuffix(ext, "."+x) {
			return true
		}
	}
	return false
}

// Files expands braces and lists; a folder stands for its *.tar, or for its compressed tars where it has no other.
func (wds) Files(a Address) (files, beside []string, err error) {
	for part := range strings.SplitSeq(a.Path, "::") {
		if a.isFolderOfTars(part) {
			tars, err := a.tarsOf(part)
			if err != nil {
				return nil, nil, err
			}
			files = append(files, tars...)
			continue
		}
		if a.At == nil {
			if _, err := os.Lstat(part); err == nil && isTar(part) {
				files = append(files, part) // also one whose name has braces
				continue
			}
		}
		some, err := expand(part)
		if err != nil {
			return nil, nil, err
		}
		if files = append(files, some...); len(files) > maxFiles {
			return nil, nil, fmt.Errorf("it names more than %d files", maxFiles)
		}
	}
	for _, f := range files {
		switch {
		case isTar(f):
		case isCompressed(f):
			return nil, nil, fmt.Errorf("%q is compressed in a way that larder does not read; unpack it to a .tar, or write "+
				"%s", f, strings.Join(tarPackings, ", "))
		default:
			if there, err := a.exists(f); err == nil && !there {
				return nil, nil, fmt.Errorf("%q does not exist", f)
			}
			return nil, nil, fmt.Errorf("%q is neither a folder nor does it end in .tar, %s", f, strings.Join(tarPackings, ", "))
		}
	}
	return files, nil, unique(files)
}

// isTar reports whether a name is that of a tar, compressed or not.
func isTar(path string) bool { return hasSuffix(path, suffixesOf("wds")) }

// isFolderOfTars reports whether a path stands for the *.tar in it. In a store names decide: to look would be a list.
func (a *Address) isFolderOfTars(path string) bool {
	if a.At != nil {
		return !strings.HasSuffix(path, ".tar") && !strings.Contains(path, "{") && !isCompressed(path)
	}
	return a.isDir(path)
}

func isCompressed(name string) bool {
	for _, z := range []string{".gz", ".tgz", ".zst", ".bz2", ".xz"} {
		if strings.HasSuffix(name, z) {
			return true
		}
	}
	return false
}

// position reads a file from the front and keeps its position; archive/tar asks for headers only and seeks over the
// rest. Of a file of this machine it reads several headers at once where they lie close together: that costs less than
// a call to the system for each.
type position struct {
	f   File
	at  int64
	end bool // a read found nothing more

	ahead  bool // it reads more than it was asked for
	buf    []byte
	from   int64 // where buf lies
	stride int   // bytes that the next one has
}

const (
	// mostStride is how much is read at once, and strideOver the distance between two headers up to which it is.
	mostStride = 64 << 10
	strideOver = 8 << 10
)

// readAt is ReadAt of the file, from a stride where it can be.
func (p *position) readAt(b []byte, off int64) (int, error) {
	if !p.ahead || len(b) > tarBlock {
		return p.f.ReadAt(b, off)
	}
	end := p.from + int64(len(p.buf))
	if off < p.from || off+int64(len(b)) > end {
		if off >= p.from && off-end < strideOver {
			p.stride = min(2*max(p.stride, tarBlock), mostStride)
		} else {
			p.stride = tarBlock
		}
		if cap(p.buf) < p.stride { // small files, of which there may be many, need little
			p.buf = make([]byte, 0, p.stride)
		}
		n, err := p.f.ReadAt(p.buf[:p.stride], off)
		p.buf, p.from = p.buf[:n], off
		if n < len(b) {
			return copy(b, p.buf), err
		}
	}
	return copy(b, p.buf[off-p.from:]), nil
}

func (p *position) Read(b []byte) (int, error) {
	n, err := p.readAt(b, p.at)
	p.at += int64(n)
	if errors.Is(err, io.EOF) {
		if n > 0 {
			err = nil
		} else {
			p.end = true
		}
	}
	return n, err
}

func (p *position) Seek(off int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		off += p.at
	case io.SeekEnd:
		off += p.f.Size
	}
	if off < 0 {
		return p.at, fmt.Errorf("seek to byte %d", off)
	}
	p.at = off
	return off, nil
}

// group collects the members of one sample.
type group struct {
	key   string
	image bool
	off   int64
	size  int64
	label Sample // its Label and Class
	any   bool

	labels int // its members that are labels

	begin, end int64           // all its members in the file, with their headers
	exts       map[string]bool // of a record
	members    map[string][]byte
}

// behind says which sample came last, for messages.
func (g *group) behind() string {
	if !g.any {
		return ""
	}
	return fmt.Sprintf(", behind sample %q", g.key)
}

// has reports whether a sample has all parts of a record.
func (g *group) has(parts []part) bool {
	return !slices.ContainsFunc(parts, func(p part) bool {
		return !slices.ContainsFunc(p.exts, func(ext string) bool { return g.exts[ext] })
	})
}

// sample is what the group is in a file of so many bytes; false = it has not what is delivered.
func (g *group) sample(parts []part, size int64) (Sample, bool) {
	s := Sample{Key: g.key, Off: g.off, Size: g.size, Label: g.label.Label, Class: g.label.Class}
	if parts != nil {
		s.Off, s.Size = g.begin, min(g.end, size)-g.begin
	}
	return s, parts == nil && g.image || parts != nil && g.has(parts)
}

// roundBlock is where the next block of a tar begins.
func roundBlock(at int64) int64 { return (at + tarBlock - 1) / tarBlock * tarBlock }

// maxClass is the longest label that is read, bytes.
const maxClass = 1024

// Scan reads the headers of a tar file.
func (wds) Scan(ctx context.Context, a Address, f File, emit func(Sample) error) (Found, error) {
	found := Found{Skipped: map[string]int{}}
	in, err := openTar(f)
	if err != nil {
		return found, err
	}
	if p, ok := in.(*position); ok {
		p.ahead = a.At == nil // else what reads from a store does
	}
	defer in.close()
	seen := map[string]bool{}
	var parts []part // of records; nil = samples are an image and a label
	if f.Schema != nil {
		parts = partsOfSchema(a, f.Schema)
	}
	size, number := f.Size, int64(0)
	if isPackedTar(f.Path) {
		size = maxTar
	}
	w := tarWalk{in: in, size: f.Size, parts: parts, skipped: found.Skipped, take: func(g *group) error {
		if seen[g.key] {
			return fmt.Errorf("key %q comes twice, the second time before byte %d", g.key, in.where())
		}
		seen[g.key] = true
		s, ok := g.sample(parts, size)
		if !ok {
			found.Without++
			return nil
		}
		if isPackedTar(f.Path) {
			s.Off = number
			number++
		}
		return emit(s)
	}}
	err = w.run(ctx)
	return found, err
}

// tarWalk goes through the samples of a tar.
type tarWalk struct {
	in      tarInput
	size    int64 // of the file, bytes
	parts   []part
	skipped map[string]int
	keep    func(ext string) bool // members that groups hold; nil = none
	take    func(g *group) error
}

func (w *tarWalk) run(ctx context.Context) error {
	r := tar.NewReader(w.in)
	var g group
	flush := func() error {
		if !g.any {
			return nil
		}
		return w.take(&g)
	}
	next := int64(0) // where the next member begins
	for n := 0; ; n++ {
		if n&255 == 255 && ctx.Err() != nil {
			return ctx.Err()
		}
		head, begin := w.in.where(), next
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			if w.in.ended() { // the blocks of zeros that end a tar file are missing
				return fmt.Errorf("it has %d bytes and is cut after the member at byte %d%s", w.size, head, g.behind())
			}
			if err := flush(); err != nil {
				return err
			}
			return w.in.rest()
		}
		if err != nil {
			return fmt.Errorf("after byte %d%s: %w", head, g.behind(), err)
		}
		next = roundBlock(w.in.where() + h.Size)
		key, ext := splitMember(h.Name)
		if h.Typeflag != tar.TypeReg || key == "" {
			if h.Typeflag != tar.TypeDir && h.Typeflag != tar.TypeXGlobalHeader && !meta(h.Name) {
				skip(w.skipped, kindOf(h))
			}
			continue
		}
		if key != g.key || !g.any {
			if err := flush(); err != nil {
				return err
			}
			g = group{key: key, any: true, begin: begin, label: Sample{Label: -1}}
			if w.parts != nil {
				g.exts = map[string]bool{}
			}
		}
		g.end = next
		off, content := w.in.where(), io.Reader(r)
		if w.keep != nil && w.keep(ext) {
			if content, err = g.keepMember(h.Name, ext, h.Size, r); err != nil {
				return err
			}
		}
		if err := g.member(h, ext, off, content, w.skipped); err != nil {
			return err
		}
	}
}

// member takes one member of the group; its content begins at byte off of the file.
func (g *group) member(h *tar.Header, ext string, off int64, r io.Reader, skipped map[string]int) error {
	at := func(format string, args ...any) error {
		return fmt.Errorf("member %q at byte %d %w", h.Name, off, fmt.Errorf(format, args...))
	}
	for k := range h.PAXRecords {
		if strings.HasPrefix(k, "GNU.sparse.") {
			return at("is sparse, so that its bytes do not lie together; write the tar without --sparse")
		}
	}
	if g.exts != nil {
		if g.exts[ext] {
			return at("is the second .%s of sample %q", ext, g.key)
		}
		g.exts[ext] = true
	}
	switch {
	case isImage(ext) && g.exts == nil:
		if g.image {
			return at("is the second image of sample %q", g.key)
		}
		if h.Size == 0 {
			return at("is empty")
		}
		g.image, g.off, g.size = true, off, h.Size
	case ext == "cls" || strings.HasSuffix(ext, ".cls"):
		if g.labels++; g.labels > 1 && g.exts == nil {
			return at("is the second label of sample %q", g.key)
		}
		if h.Size > maxClass {
			return at("is a label of %d bytes", h.Size)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			return fmt.Errorf("member %q at byte %d cannot be read: %w", h.Name, off, err)
		}
		if !utf8.Valid(b) {
			return at("is a label that is not UTF-8")
		}
		g.label = Sample{Label: -1}
		if err := g.label.labelled(b); err != nil && g.exts == nil { // of records it counts for subsets only
			return at("is %w", err)
		}
	case g.exts != nil: // what is not asked for is nothing to report
	default:
		skip(skipped, "."+ext[strings.LastIndexByte(ext, '.')+1:])
	}
	return nil
}

// maxKinds bounds the kinds of members that are told apart.
const maxKinds = 64

func skip(skipped map[string]int, kind string) {
	if _, ok := skipped[kind]; !ok && len(skipped) >= maxKinds || len(kind) > maxKinds {
		kind = "other members"
	}
	skipped[kind]++
}

// splitMember is webdataset's base_plus_ext: the key ends at the first dot of the last part of the path.
func splitMember(name string) (key, ext string) {
	if meta(name) || strings.IndexByte(name, 0) >= 0 {
		return "", ""
	}
	slash := strings.LastIndexByte(name, '/') + 1
	dot := strings.IndexByte(name[slash:], '.')
	if dot <= 0 { // no extension, or a hidden file
		return "", ""
	}
	return name[:slash+dot], strings.ToLower(name[slash+dot+1:])
}

// meta reports a member that is no sample: __meta__ and its like.
func meta(name string) bool {
	base := name[strings.LastIndexByte(name, '/')+1:]
	return strings.HasPrefix(base, "__") && strings.HasSuffix(base, "__")
}

func kindOf(h *tar.Header) string {
	if h.Typeflag != tar.TypeReg {
		return "links and devices"
	}
	return "members without a key"
}
