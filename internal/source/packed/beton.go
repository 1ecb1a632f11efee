package packed

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"larder/internal/record"
)

// beton is FFCV's format (ffcv/types.py, version 2): a header, a description of each field, a row of metadata for each
// sample, pages of data, and at the end a table of what was allocated in them, which alone says how long a JPEG is.
type beton struct{ identity }

const (
	betonVersion = 2
	betonHead    = 24
	betonField   = 1 + 16 + 1024
	betonAlloc   = 24 // sample, place, size
	// maxBetonFields bounds the fields of a file, maxBetonRows the bytes of its metadata, which are read at once.
	maxBetonFields = 1024
	maxBetonRows   = 4 << 30
)

// betonKind is what a field is; its values are FFCV's numbers.
type betonKind uint8

const (
	betonFloat betonKind = iota
	betonInt
	betonImage
	betonBytes
	betonArray
	betonJSON
	betonTensor
)

// betonColumn is a field of a file.
type betonColumn struct {
	kind  betonKind
	field record.Field // as records have it
	at    int64        // in a row of metadata
	bytes int64        // of an array
}

// betonFile is what the head of a file says.
type betonFile struct {
	io.ReaderAt
	columns []betonColumn
	n       int64 // samples
	rows    int64 // where the metadata begin
	each    int64 // bytes of those of one sample
	table   int64 // where the table of allocations is
	size    int64
}

func (beton) Scheme() string { return "beton" }

func (beton) Files(a Address) (files, beside []string, err error) {
	files, err = filesOf(a, suffixesOf("beton")...)
	return files, nil, err
}

// openBeton reads the head of a file.
func openBeton(r io.ReaderAt, size int64) (*betonFile, error) {
	head := make([]byte, betonHead)
	if err := readFull(r, head, 0); err != nil {
		return nil, fmt.Errorf("its header: %w", err)
	}
	le := binary.LittleEndian
	b := &betonFile{ReaderAt: r, size: size, n: int64(le.Uint64(head[8:])), table: int64(le.Uint64(head[16:]))}
	fields := int64(le.Uint16(head[2:]))
	b.rows = betonHead + fields*betonField
	switch v := le.Uint16(head); {
	case v != betonVersion:
		return nil, fmt.Errorf("its version is %d; larder reads version %d of FFCV's files", v, betonVersion)
	case fields == 0 || fields > maxBetonFields:
		return nil, fmt.Errorf("it has %d fields", fields)
	case b.table == 0:
		return nil, errors.New("it was not written to its end: it has no table of allocations")
	case b.table < b.rows || b.table > size || (size-b.table)%betonAlloc != 0:
		return nil, fmt.Errorf("its table of allocations should lie at byte %d of %d: it is cut", b.table, size)
	}
	descriptions := make([]byte, fields*betonField)
	if err := readFull(r, descriptions, betonHead); err != nil {
		return nil, fmt.Errorf("its fields: %w", err)
	}
	if err := b.describe(descriptions); err != nil {
		return nil, err
	}
	if b.n < 0 || b.n > (b.table-b.rows)/b.each || b.n*b.each > maxBetonRows {
		return nil, fmt.Errorf("it says that it has %d samples of %d bytes of metadata, and %d bytes are there", b.n, b.each,
			b.table-b.rows)
	}
	return b, nil
}

// describe reads the descriptions of the fields, and lays out a row as NumPy does.
func (b *betonFile) describe(all []byte) error {
	align := int64(1)
	seen := map[string]bool{}
	for d := range slices.Chunk(all, betonField) {
		name, _, _ := strings.Cut(string(d[1:17]), "\x00")
		if name == "" || seen[name] {
			return fmt.Errorf("two of its fields are called %q", name)
		}
		seen[name] = true
		c := betonColumn{kind: betonKind(d[0])}
		size, own := int64(8), int64(8)
		switch c.kind {
		case betonFloat:
			c.field = scalarField(name, record.Float64)
		case betonInt:
			c.field = scalarField(name, record.Int64)
		case betonImage:
			c.field, size, own = imageField(name), 13, 1
		case betonBytes:
			c.field, size, own = bytesField(name), 16, 1
		case betonJSON:
			c.field, size, own = textField(name), 16, 1
		case betonArray, betonTensor:
			var err error
			if c.field, c.bytes, err = betonShape(name, d[17:]); err != nil {
				return fmt.Errorf("field %q: %w", name, err)
			}
		default:
			return fmt.Errorf("field %q is of the kind %d, a class of the script that wrote it, which larder does not know; "+
				"write it as bytes, an array or JSON", name, d[0])
		}
		c.at = (b.each + own - 1) / own * own
		b.each, align = c.at+size, max(align, own)
		b.columns = append(b.columns, c)
	}
	b.each = (b.each + align - 1) / align * align
	return nil
}

// betonShape reads the shape and dtype of arrays: 32 sizes, the length of a text, and NumPy's description in JSON.
func betonShape(name string, b []byte) (f record.Field, size int64, err error) {
	const dims = 32
	le := binary.LittleEndian
	var shape []int64
	for i := range dims {
		n := int64(le.Uint64(b[8*i:]))
		if n == 0 {
			break
		}
		if n < 0 || n > maxRegion {
			return f, 0, fmt.Errorf("a size of %d", n)
		}
		shape = append(shape, n)
	}
	text := b[8*dims+8:]
	n := le.Uint64(b[8*dims:])
	if n > uint64(len(text)) {
		return f, 0, fmt.Errorf("a dtype of %d bytes", n)
	}
	var descr [][]any
	if err := json.Unmarshal(text[:n], &descr); err != nil || len(descr) != 1 || len(descr[0]) != 2 {
		return f, 0, fmt.Errorf("its dtype %.60q is no plain number; larder reads arrays of bool, integers and floats",
			text[:n])
	}
	code, _ := descr[0][1].(string)
	if len(code) < 2 {
		return f, 0, fmt.Errorf("its dtype is %.60q", text[:n])
	}
	d, swap, err := dtypeOf(code)
	if err != nil || swap {
		return f, 0, fmt.Errorf("its dtype %.60q is not read: bool, and little-endian integers and floats are", code)
	}
	size = d.Size()
	for _, x := range shape {
		if size *= x; size > maxRegion {
			return f, 0, fmt.Errorf("an array of the shape %v", shape)
		}
	}
	if len(shape) == 0 {
		return scalarField(name, d), size, nil
	}
	if len(shape) > record.MaxDims {
		return f, 0, fmt.Errorf("%d dimensions, and %d are the most", len(shape), record.MaxDims)
	}
	return arrayField(name, d, shape...), size, nil
}

// image is the column of the image, -1 = there is none: the only one, or the one called image.
func (b *betonFile) image() (int, error) {
	found := -1
	for i := range b.columns {
		switch c := &b.columns[i]; {
		case c.kind != betonImage:
		case c.field.Name == "image":
			return i, nil
		case found >= 0:
			return -1, errors.New("it has several images, and none is called image; name those that you want with ?fields=")
		default:
			found = i
		}
	}
	return found, nil
}

// label is the column of the label, -1 = there is none: one of the usual names, or the only whole number.
func (b *betonFile) label() int {
	s := b.schema()
	if i := labelField(&s, labelNames); i >= 0 && b.columns[i].kind == betonInt {
		return i
	}
	found := -1
	for i := range b.columns {
		if b.columns[i].kind != betonInt {
			continue
		}
		if found >= 0 {
			return -1
		}
		found = i
	}
	return found
}

func (b *betonFile) schema() (s record.Schema) {
	for i := range b.columns {
		s.Fields = append(s.Fields, b.columns[i].field)
	}
	return s
}

// columnsOf are the columns of some fields, in their order.
func (b *betonFile) columnsOf(s *record.Schema) ([]*betonColumn, error) {
	out := make([]*betonColumn, len(s.Fields))
	for i := range s.Fields {
		k := slices.IndexFunc(b.columns, func(c betonColumn) bool { return c.field.Name == s.Fields[i].Name })
		if k < 0 {
			return nil, fmt.Errorf("it has no field %q, as the files before", s.Fields[i].Name)
		}
		out[i] = &b.columns[k]
		if one := (record.Schema{Fields: []record.Field{out[i].field}}); !one.Equal(&record.Schema{
			Fields: []record.Field{s.Fields[i]}}) {
			return nil, fmt.Errorf("its field %q is another one than in the files before", s.Fields[i].Name)
		}
	}
	return out, nil
}

// firstBeton reads the head of the first file; nothing more of it can be read.
func firstBeton(files []string, open func(string) (Other, error)) (*betonFile, error) {
	if len(files) == 0 {
		return nil, errNoFiles
	}
	f, err := open(files[0])
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := openBeton(f, f.Len())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", files[0], err)
	}
	return b, nil
}

// Schema asks the first file. Without ?fields=, samples with an image are an image and a label.
func (beton) Schema(
	_ context.Context, a Address, files []string, open func(string) (Other, error),
) (s record.Schema, err error) {
	b, err := firstBeton(files, open)
	if err != nil {
		return s, err
	}
	if a.Fields() == nil {
		if image, err := b.image(); image >= 0 || err != nil {
			return record.Schema{}, err
		}
	}
	all := b.schema()
	s.Fields, err = choose(all.Fields, a)
	return s, err
}

// ByFirst implements ByFirst.
func (beton) ByFirst() {}

// PropertyNames implements Named.
func (beton) PropertyNames(
	_ context.Context, _ Address, files []string, open func(string) (Other, error),
) ([]string, error) {
	b, err := firstBeton(files, open)
	if err != nil {
		return nil, err
	}
	s := b.schema()
	return PropertyNamesOf(&s), nil
}

func (beton) Scan(ctx context.Context, _ Address, f File, emit func(Sample) error) (Found, error) {
	found := Found{Skipped: map[string]int{}}
	r, err := openBetonRows(f)
	if err != nil {
		return found, err
	}
	label := r.label()
	for i := range r.n {
		if i&1023 == 1023 && ctx.Err() != nil {
			return found, ctx.Err()
		}
		s := Sample{Key: rowKey(i), Off: i, Label: -1}
		if s.Size, err = r.check(i); err != nil {
			return found, fmt.Errorf("sample %d: %w", i, err)
		}
		if label >= 0 {
			s.Label = labelValue(record.Int64, r.row(i)[r.columns[label].at:][:8])
		}
		if err := emit(s); err != nil {
			return found, err
		}
	}
	if r.image >= 0 {
		for i := range r.columns {
			if i != r.image && i != label && r.n > 0 {
				skip(found.Skipped, r.columns[i].field.Name)
				found.Skipped[r.columns[i].field.Name] = int(r.n)
			}
		}
	}
	return found, nil
}

// betonRows are the samples of an open file: their metadata, and the places and sizes of what was allocated.
type betonRows struct {
	*betonFile
	image  int // the column that is delivered alone; -1 = samples are records
	chosen []*betonColumn
	stored *record.Schema
	meta   []byte
	places []betonPlace // by place
}

type betonPlace struct{ at, size int64 }

func openBetonRows(f File) (*betonRows, error) {
	b, err := openBeton(f, f.Size)
	if err != nil {
		return nil, err
	}
	r := &betonRows{betonFile: b, image: -1}
	if f.Schema == nil {
		if r.image, err = b.image(); err == nil && r.image < 0 {
			err = errors.New("it has no image, as the files before")
		}
		if err != nil {
			return nil, err
		}
		r.chosen = []*betonColumn{&b.columns[r.image]}
	} else {
		r.stored = storedSchema(f.Schema)
		if r.chosen, err = b.columnsOf(f.Schema); err != nil {
			return nil, err
		}
	}
	r.meta = make([]byte, b.n*b.each)
	if err := readFull(f, r.meta, b.rows); err != nil {
		return nil, fmt.Errorf("its metadata: %w", err)
	}
	if slices.ContainsFunc(r.chosen, func(c *betonColumn) bool { return c.kind == betonImage }) {
		err = r.readPlaces()
	}
	return r, err
}

// readPlaces reads the table of allocations.
func (r *betonRows) readPlaces() error {
	const most = 4096
	r.places = make([]betonPlace, 0, (r.size-r.table)/betonAlloc)
	buf := make([]byte, most*betonAlloc)
	for at := r.table; at < r.size; {
		part := buf[:min(int64(len(buf)), r.size-at)]
		if err := readFull(r, part, at); err != nil {
			return fmt.Errorf("its table of allocations: %w", err)
		}
		for x := range slices.Chunk(part, betonAlloc) {
			r.places = append(r.places, betonPlace{int64(leUint(x[8:16])), int64(leUint(x[16:24]))})
		}
		at += int64(len(part))
	}
	byPlace := func(x, y betonPlace) int { return cmp.Or(cmp.Compare(x.at, y.at), cmp.Compare(x.size, y.size)) }
	if !slices.IsSortedFunc(r.places, byPlace) {
		slices.SortFunc(r.places, byPlace)
	}
	return nil
}

func (r *betonRows) row(i int64) []byte { return r.meta[i*r.each:][:r.each] }

// region is where the data of a column of a sample lie.
func (r *betonRows) region(i int64, c *betonColumn) (at, size int64, err error) {
	m := r.row(i)[c.at:]
	switch c.kind {
	case betonFloat, betonInt:
		return 0, 0, nil
	case betonImage:
		at = int64(leUint(m[5:13]))
		switch m[0] {
		case betonJPEG:
			k, _ := slices.BinarySearchFunc(r.places, at+1, func(p betonPlace, at int64) int { return cmp.Compare(p.at, at) })
			if k == 0 || r.places[k-1].at != at {
				return 0, 0, fmt.Errorf("field %q: nothing was allocated at byte %d", c.field.Name, at)
			}
			size = r.places[k-1].size
		case betonRaw:
			size = 3 * int64(leUint(m[1:3])) * int64(leUint(m[3:5]))
		default:
			return 0, 0, fmt.Errorf("field %q: an image of the mode %d", c.field.Name, m[0])
		}
		if size < 1 {
			return 0, 0, fmt.Errorf("field %q: an image of no bytes", c.field.Name)
		}
	case betonBytes, betonJSON:
		at, size = int64(leUint(m[:8])), int64(leUint(m[8:16]))
	case betonArray, betonTensor:
		at, size = int64(leUint(m[:8])), c.bytes
	}
	if size == 0 { // it has a place of no meaning
		return 0, 0, nil
	}
	if at < r.rows+int64(len(r.meta)) || size < 0 || size > maxRegion || at > r.table-size {
		return 0, 0, fmt.Errorf("field %q should lie at bytes %d to %d, and data lie at %d to %d", c.field.Name, at,
			at+size, r.rows+int64(len(r.meta)), r.table)
	}
	return at, size, nil
}

// Modes of images.
const (
	betonJPEG = 0
	betonRaw  = 1
)

// check looks where the data of a sample lie, and returns about how many bytes it has; of an image exactly.
func (r *betonRows) check(i int64) (int64, error) {
	total := int64(0)
	for _, c := range r.chosen {
		_, size, err := r.region(i, c)
		if err != nil {
			return 0, err
		}
		if c.kind == betonImage {
			size += int64(len(r.ppm(i, c)))
		}
		total += size
	}
	if r.stored != nil {
		total += rowHead * int64(len(r.chosen)+1)
	}
	return total, nil
}

// ppm is what goes before the pixels of a raw image, so that they are a file; "" = it is one.
func (r *betonRows) ppm(i int64, c *betonColumn) string {
	m := r.row(i)[c.at:]
	if m[0] == betonJPEG {
		return ""
	}
	return fmt.Sprintf("P6\n%d %d\n255\n", leUint(m[1:3]), leUint(m[3:5]))
}

func (beton) Open(_ context.Context, _ Address, f File) (Rows, error) { return openBetonRows(f) }

func (*betonRows) Close() error { return nil }

func (r *betonRows) Record(ctx context.Context, dst []byte, s Sample) ([]byte, error) {
	if s.Off < 0 || s.Off >= r.n {
		return dst, fmt.Errorf("sample %d of %d", s.Off, r.n)
	}
	if r.stored == nil {
		return r.value(ctx, dst, s.Off, r.chosen[0])
	}
	values := make([]record.Content, len(r.chosen))
	for i, c := range r.chosen {
		b, err := r.value(ctx, nil, s.Off, c)
		if err != nil {
			return dst, err
		}
		if c.kind == betonJSON {
			b = bytes.TrimSuffix(b, []byte{0})
		}
		values[i].Data = b
		if c.kind == betonArray || c.kind == betonTensor {
			values[i].Dims = c.field.Shape
		}
	}
	out, err := record.Append(dst, r.stored, values)
	if err != nil {
		return dst, fmt.Errorf("sample %d: %w", s.Off, err)
	}
	return out, nil
}

// value appends what a sample has in a column.
func (r *betonRows) value(ctx context.Context, dst []byte, i int64, c *betonColumn) ([]byte, error) {
	if c.kind == betonInt || c.kind == betonFloat {
		return append(dst, r.row(i)[c.at:][:8]...), nil
	}
	at, size, err := r.region(i, c)
	if err != nil {
		return dst, err
	}
	if c.kind == betonImage {
		dst = append(dst, r.ppm(i, c)...)
	}
	from := len(dst)
	dst = append(dst, make([]byte, size)...)
	if err := readFull(within(ctx, r.ReaderAt), dst[from:], at); err != nil {
		return dst[:from], fmt.Errorf("field %q at byte %d: %w", c.field.Name, at, err)
	}
	return dst, nil
}
