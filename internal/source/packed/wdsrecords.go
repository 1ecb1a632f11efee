package packed

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"larder/internal/record"
)

// Samples of WebDataset are records when ?fields= names extensions, or when none of the first ones has an image. A
// field is a member: what ends in .jpg and its like is an image, .cls a number, .json and .txt text, .npy an array,
// .wav and .flac float32 of [channels, frames] with the rate in a second field; the rest is bytes.

const (
	tarBlock = 512
	// maxRegion bounds the bytes of one sample in a tar.
	maxRegion = 1 << 30
	// firstMembers is how many members of the first file are looked at for the fields.
	firstMembers = 4096
)

// part is one field, and the extensions that hold it, the best first: "jpg;png" as webdataset writes them.
type part struct {
	name string
	exts []string
}

func partsOf(names []string) []part {
	out := make([]part, len(names))
	for i, n := range names {
		exts := strings.Split(strings.ToLower(n), ";")
		out[i] = part{exts[0], exts}
	}
	return out
}

// kindOfMember is what the last part of an extension says.
func kindOfMember(ext string) string {
	last := ext[strings.LastIndexByte(ext, '.')+1:]
	switch {
	case isImage(last):
		return "image"
	case slices.Contains([]string{"cls", "cls2", "class", "count", "index", "inx", "id"}, last):
		return "number"
	case slices.Contains([]string{"txt", "text", "transcript", "json", "jsn"}, last):
		return "text"
	case last == "npy", last == "wav", last == "flac":
		return last
	case slices.Contains([]string{"pkl", "pickle", "pyd", "pth", "pt", "ten", "tb", "mp", "msg", "npz"}, last):
		return "refused"
	}
	return "bytes"
}

// ByFirst implements ByFirst.
func (wds) ByFirst() {}

// Schema looks at the members of the first samples of the first file.
func (w wds) Schema(ctx context.Context, a Address, files []string, open func(string) (Other, error)) (
	record.Schema, error,
) {
	asked := a.Fields()
	s := record.Schema{}
	seen := map[string]bool{}
	for _, path := range files {
		f, err := open(path)
		if err != nil {
			return s, err
		}
		first, image, err := firstOf(ctx, path, f, asked, seen)
		f.Close()
		switch {
		case err != nil:
			return s, fmt.Errorf("%s: %w", path, err)
		case asked == nil && image: // an image and a label
			return s, nil
		case first == nil:
			continue // it has no samples
		}
		if asked == nil {
			asked = first.names()
		}
		for _, p := range partsOf(asked) {
			fields, err := first.fields(p)
			if err != nil {
				return s, fmt.Errorf("%s: sample %q: %w", path, first.key, err)
			}
			s.Fields = append(s.Fields, fields...)
		}
		return s, nil
	}
	if len(a.Fields()) > 0 && len(seen) > 0 {
		return s, notTogether(partsOf(a.Fields()), seen)
	}
	return s, nil // Scan says that there are no samples
}

// notTogether says that no sample of those looked at has all parts.
func notTogether(parts []part, seen map[string]bool) error {
	there := slices.Sorted(maps.Keys(seen))
	for _, p := range parts {
		if !slices.ContainsFunc(p.exts, func(ext string) bool { return seen[ext] }) {
			return fmt.Errorf("?fields= names %q, and the first %d members of each file have the extensions %s",
				p.name, firstMembers, quoted(there))
		}
	}
	return fmt.Errorf("?fields= names %d extensions, and none of the first samples of a file has them all; they have %s",
		len(parts), quoted(there))
}

// tarSample is the members of one sample, read.
type tarSample struct {
	key     string
	order   []string // extensions
	members map[string][]byte
}

func (t *tarSample) names() []string {
	var out []string
	for _, ext := range t.order {
		if kindOfMember(ext) != "refused" {
			out = append(out, ext)
		}
	}
	return out
}

// get finds the member of a part.
func (t *tarSample) get(p *part) ([]byte, string, bool) {
	for _, ext := range p.exts {
		if b, ok := t.members[ext]; ok {
			return b, ext, true
		}
	}
	return nil, "", false
}

// firstOf reads the first sample that has all the parts; nil = there is none. Without parts it is the first one, and
// image says that one of the first has an image. Extensions go to seen.
func firstOf(ctx context.Context, path string, f Other, asked []string, seen map[string]bool) (
	first *tarSample, image bool, err error,
) {
	in, err := openTar(File{ReaderAt: f, Path: path, Size: f.Len()})
	if err != nil {
		return nil, false, err
	}
	defer in.close()
	r := tar.NewReader(in)
	parts := partsOf(asked)
	now := &tarSample{members: map[string][]byte{}}
	whole := func() bool {
		return len(now.order) > 0 && !slices.ContainsFunc(parts, func(p part) bool {
			_, _, ok := now.get(&p)
			return !ok
		})
	}
	for n := 0; n < firstMembers && ctx.Err() == nil; n++ {
		head := in.where()
		h, err := r.Next()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				return nil, false, fmt.Errorf("after byte %d: %w", head, err)
			}
			break
		}
		key, ext := splitMember(h.Name)
		if h.Typeflag != tar.TypeReg || key == "" {
			continue
		}
		if key != now.key {
			if first == nil && whole() {
				first = now
			}
			now = &tarSample{key: key, members: map[string][]byte{}}
		}
		seen[ext] = true
		if image = image || isImage(ext); first != nil {
			if image || parts != nil {
				break
			}
			continue
		}
		if h.Size > maxRegion {
			return nil, false, fmt.Errorf("member %q has %d bytes", h.Name, h.Size)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			return nil, false, fmt.Errorf("read member %q: %w", h.Name, err)
		}
		now.order = append(now.order, ext)
		now.members[ext] = b
	}
	if first == nil && whole() {
		first = now
	}
	return first, image, ctx.Err()
}

// fields describes a part by a member of it.
func (t *tarSample) fields(p part) ([]record.Field, error) {
	b, ext, _ := t.get(&p)
	switch kindOfMember(ext) {
	case "refused":
		return nil, fmt.Errorf("its member .%s is a pickle, or of a library that larder has not; larder never unpickles, "+
			"because that runs code: write .npy, .json or .txt, or leave it out of ?fields=", ext)
	case "image":
		return []record.Field{imageField(p.name)}, nil
	case "text":
		return []record.Field{textField(p.name)}, nil
	case "number":
		if trimmed(string(b)) == "" {
			return nil, fmt.Errorf("its member .%s is empty, and it is the first one, whose form all have: write a number or a "+
				"name into it", ext)
		}
		if _, err := wholeText(trimmed(string(b))); err != nil {
			return []record.Field{textField(p.name)}, nil
		}
		return []record.Field{{Name: p.name, Kind: record.Scalar, DType: record.Int64}}, nil
	case "npy":
		x, err := readArrayHeader(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			return nil, fmt.Errorf("its member .%s: %w", ext, err)
		}
		return []record.Field{looseArray(p.name, x.dtype, len(x.shape))}, nil
	case "wav", "flac":
		samples, rate := soundFields(p.name)
		return []record.Field{samples, rate}, nil
	}
	return []record.Field{bytesField(p.name)}, nil
}

// looseArray is an array whose sizes differ between samples.
func looseArray(name string, d record.DType, dims int) record.Field {
	if dims == 0 {
		return scalarField(name, d)
	}
	return arrayField(name, d, slices.Repeat([]int64{record.Ragged}, min(dims, record.MaxDims+1))...)
}

// partsOfSchema are the parts of which a schema was made.
func partsOfSchema(a Address, s *record.Schema) []part {
	if names := a.Fields(); names != nil {
		return partsOf(names)
	}
	var names []string
	for i := range s.Fields {
		name := s.Fields[i].Name
		if i > 0 && name == rateName(s.Fields[i-1].Name) {
			continue
		}
		names = append(names, name)
	}
	return partsOf(names)
}

// regionRows are samples of a tar that are records.
type regionRows struct {
	File
	parts  []part
	stored record.Schema
}

func (w wds) Open(_ context.Context, a Address, f File) (Rows, error) {
	if isPackedTar(f.Path) {
		return w.openBlock(a, f), nil
	}
	r := newRegionRows(a, f)
	return &r, nil
}

func newRegionRows(a Address, f File) regionRows {
	stored := *f.Schema
	images := make([]bool, len(stored.Fields))
	for i := range images {
		images[i] = true
	}
	return regionRows{f, partsOfSchema(a, f.Schema), Stored(&stored, images)}
}

func (r *regionRows) Record(ctx context.Context, dst []byte, s Sample) ([]byte, error) {
	if s.Size > maxRegion || s.Off > r.Size-s.Size {
		return dst, fmt.Errorf("bytes %d to %d of %d", s.Off, s.Off+s.Size, r.Size)
	}
	in, err := r.bytesOf(ctx, s)
	if err != nil {
		return dst, err
	}
	found := &tarSample{members: map[string][]byte{}}
	for t := tar.NewReader(in); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return dst, fmt.Errorf("at byte %d: %w", s.Off, err)
		}
		key, ext := splitMember(h.Name)
		if h.Typeflag != tar.TypeReg || key == "" || !r.wants(ext) {
			continue
		}
		if found.members[ext], err = io.ReadAll(t); err != nil {
			return dst, fmt.Errorf("member %q of the sample at byte %d: %w", h.Name, s.Off, err)
		}
	}
	values, err := r.contents(found, s.Off)
	if err != nil {
		return dst, err
	}
	return record.Append(dst, &r.stored, values)
}

// bytesOf reads a sample at once; of a local file only the headers, and members as they are asked for, where no large
// ones are.
func (r *regionRows) bytesOf(ctx context.Context, s Sample) (io.Reader, error) {
	const large = 64 << 10
	if _, local := r.ReaderAt.(*os.File); local && s.Size > large && !slices.ContainsFunc(r.parts, part.large) {
		return io.NewSectionReader(r, s.Off, s.Size), nil
	}
	raw := make([]byte, s.Size)
	if n, err := within(ctx, r.File).ReadAt(raw, s.Off); n < len(raw) {
		return nil, fmt.Errorf("read at byte %d: %w", s.Off, err)
	}
	return bytes.NewReader(raw), nil
}

// large reports whether members of a part may have most of a sample's bytes.
func (p part) large() bool {
	return slices.ContainsFunc(p.exts, func(ext string) bool {
		k := kindOfMember(ext)
		return k != "number" && k != "text"
	})
}

// contents are the values of the fields of a sample that begins at byte off.
func (r *regionRows) contents(found *tarSample, off int64) ([]record.Content, error) {
	values := make([]record.Content, 0, len(r.stored.Fields))
	for i := range r.parts {
		p := &r.parts[i]
		b, ext, ok := found.get(p)
		if !ok {
			return nil, fmt.Errorf("the sample at byte %d has no .%s", off, p.name)
		}
		more, err := memberContent(b, ext, &r.stored.Fields[len(values)])
		if err != nil {
			return nil, fmt.Errorf("member .%s of the sample at byte %d: %w", ext, off, err)
		}
		values = append(values, more...)
	}
	return values, nil
}

func (r *regionRows) wants(ext string) bool {
	return slices.ContainsFunc(r.parts, func(p part) bool { return slices.Contains(p.exts, ext) })
}

func (*regionRows) Close() error { return nil }

// memberContent is what a member gives for its field, or its two.
func memberContent(b []byte, ext string, f *record.Field) ([]record.Content, error) {
	switch kindOfMember(ext) {
	case "number":
		text := trimmed(string(b))
		if f.Kind == record.Text {
			return []record.Content{{Data: []byte(text)}}, nil
		}
		n, err := wholeText(text)
		if err != nil {
			err = fmt.Errorf("its member .%s is %.40q, and that of the first sample is a whole number", ext, text)
		}
		return []record.Content{{Data: le64(n)}}, err
	case "npy":
		c, err := arrayContent(b, f)
		return []record.Content{c}, err
	case "wav", "flac":
		read := wave
		if kindOfMember(ext) == "flac" {
			read = flacSound
		}
		w, rate, err := read(b, false)
		if err != nil {
			return nil, err
		}
		return []record.Content{w, rate}, nil
	}
	return []record.Content{{Data: b}}, nil
}

// arrayContent reads an .npy file into a field.
func arrayContent(b []byte, f *record.Field) (record.Content, error) {
	x, err := readArrayHeader(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		return record.Content{}, err
	}
	n := x.bytes()
	if n < 0 || n > int64(len(b))-x.at {
		return record.Content{}, fmt.Errorf("shape %v of %s does not fit its %d bytes: it is cut", x.shape, x.dtype, len(b))
	}
	if n < int64(len(b))-x.at {
		return record.Content{}, x.more(int64(len(b)))
	}
	if x.dtype != f.DType || len(x.shape) != len(f.Shape) {
		return record.Content{}, fmt.Errorf("it has %d dimensions of %s, and the first sample %d of %s", len(x.shape),
			x.dtype, len(f.Shape), f.DType)
	}
	data := b[x.at : x.at+n]
	if x.swap {
		swapBytes(data, x.dtype.Size())
	}
	c := record.Content{Dims: x.shape, Data: data}
	if len(x.shape) == 0 {
		c.Dims = nil
	}
	return c, nil
}
