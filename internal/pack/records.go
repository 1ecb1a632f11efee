package pack

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"

	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/record"
	"larder/internal/source"
	"larder/internal/source/packed"
	"larder/internal/store"
)

// Samples that are records become columns of MDS, or members of tars, one for each field.

// column is a field of records as a pack has it.
type column struct {
	name  string // of the column, or the extension of the member
	form  string // encoding of MDS; of a tar what the member is: npy, txt, json, cls, bin, an image
	size  int64  // of every value of a column, bytes; -1 = they differ
	field int    // its number in the record
	from  string // its name in the source
	kind  record.Kind
	dtype record.DType
	shape []int64
	image bool // its values are image files
	write func(c *column, v *record.Value) ([]byte, error)
}

// columns are the columns of a pack, in the order of their names.
type columns []column

// String is what the bytes of a pack follow from.
func (cs columns) String() string {
	parts := make([]string, len(cs))
	for i := range cs {
		parts[i] = cs[i].name + "=" + cs[i].form
	}
	return strings.Join(parts, ", ")
}

// query is how a uri names the fields of a pack.
func (cs columns) query() string {
	names := make([]string, len(cs))
	for i := range cs {
		names[i] = cs[i].name
	}
	return "?fields=" + strings.Join(names, ",")
}

// columns are those of a dataset of records. Its first sample that can be read says how images are stored.
func (p *packer) columns(ctx context.Context, s *record.Schema) (columns, error) {
	refuse := func(hint, format string, args ...any) error {
		return errs.New(errs.Unsupported, p.data.URI(), hint, "packing %s into %s: %s", p.data.URI(), p.cfg.To.Format,
			fmt.Sprintf(format, args...))
	}
	if p.cfg.Properties {
		return nil, refuse("leave --properties out", "its samples are records, which have fields of their own")
	}
	first, err := p.first(ctx, s)
	if err != nil {
		return nil, err
	}
	out := make(columns, len(s.Fields))
	seen := map[string]string{}
	for i := range s.Fields {
		f := s.Fields[i]
		f.Name = source.FieldKey(f.Name)
		c := column{field: i, from: f.Name, kind: f.Kind, dtype: f.DType, shape: f.Shape, size: -1}
		var image []byte
		if v, ok := first[i]; ok && v.Kind == record.Bytes {
			c.kind, c.shape, c.image, image = record.Bytes, nil, true, v.Data
		}
		why := ""
		if p.cfg.To.Format == MDS {
			why = c.mds(image)
		} else {
			why = c.wds(image)
		}
		if why == "" {
			why = c.badName()
		}
		if was, ok := seen[c.name]; ok && why == "" {
			why = fmt.Sprintf("would be named %q, as field %q is", c.name, was)
		}
		if why != "" {
			return nil, refuse("leave it out: name the others with ?fields=", "field %q %s", f.Name, why)
		}
		seen[c.name], out[i] = f.Name, c
	}
	if p.cfg.encodes() && !slices.ContainsFunc(out, func(c column) bool { return c.image }) {
		return nil, refuse("leave --max-size and --quality out", "none of its fields holds image files, which are what "+
			"--max-size and --quality encode again")
	}
	slices.SortFunc(out, func(a, b column) int { return strings.Compare(a.name, b.name) })
	return out, nil
}

// first is the values of fields that may be images, as they are packed, of the first sample that can be.
func (p *packer) first(ctx context.Context, s *record.Schema) (map[int]record.Value, error) {
	images := false
	for i := range s.Fields {
		images = images || packed.IsImage(&s.Fields[i])
	}
	if !images {
		return nil, nil
	}
	m := newMaker(p.cfg, p.cat, p.data)
	defer m.w.Close()
	for _, id := range p.order {
		out, err := m.images(ctx, id, s)
		if err != nil && p.cfg.SkipBad && ctx.Err() == nil && p.ofSample(ctx, id, err) {
			continue
		}
		if err != nil {
			return nil, p.badSample(ctx, id, err)
		}
		return out, nil
	}
	return nil, nil
}

// images are the values of fields that may be images, of one sample. Image files among them are as they are packed.
func (m *maker) images(ctx context.Context, id ident.SampleID, s *record.Schema) (out map[int]record.Value, err error) {
	defer recovered(&err)
	blob, err := m.cat.Read(ctx, m.data.Object(id), nil)
	if err != nil {
		return nil, err
	}
	v, err := record.Open(blob)
	if err != nil || v.Len() != len(s.Fields) {
		return nil, fmt.Errorf("sample %s has %d fields of %d: %w", m.data.Key(id), v.Len(), len(s.Fields), err)
	}
	out = map[int]record.Value{}
	for i, x := range v.All {
		if !packed.IsImage(&s.Fields[i]) {
			continue
		}
		if x.Kind == record.Bytes && m.cfg.encodes() {
			pic, err := m.picture(x.Data)
			if err != nil {
				return nil, inField(s.Fields[i].Name, err)
			}
			x.Data = pic.file
		}
		out[i] = x
	}
	return out, nil
}

// record makes the values of a record, with its image files encoded again if asked for.
func (m *maker) record(at int, blob []byte) (*sample, error) {
	cs := m.cfg.columns
	s := &sample{at: at}
	var err error
	if s.values, err = cs.encode(blob); err != nil {
		return nil, errs.New(errs.SampleBad, "", "leave it out with --on-error skip", "pack its record: %v", err)
	}
	if !m.cfg.encodes() {
		return s, nil
	}
	for i := range cs {
		if !cs[i].image {
			continue
		}
		pic, err := m.picture(s.values[i])
		if err != nil {
			return nil, inField(cs[i].from, err)
		}
		s.values[i] = pic.file
		if pic.encoded {
			s.encoded++
		}
	}
	return s, nil
}

// inField says which field of a record an error is of.
func inField(name string, err error) error {
	e := errs.From(err)
	return errs.New(e.Reason, e.Subject, e.Hint, "field %q: %s", name, e.Message).Because(e.Err)
}

// badSample is the error of a sample that ends a run.
func (p *packer) badSample(ctx context.Context, id ident.SampleID, err error) error {
	switch {
	case p.ofSample(ctx, id, err):
	case errs.Is(err, errs.DatasetUnread) && !store.IsRemote(p.data.Root()):
		return errs.New(errs.DatasetUnread, p.data.Root(), "see that its disk is mounted and can be read, then run the same "+
			"command again: it goes on after the last finished shard", "packing sample %s: it cannot be read, nor can any "+
			"other that was tried", p.data.Key(id)).Because(err)
	default:
		return err
	}
	return errs.New(errs.From(err).Reason, p.data.Path(id), "repair or remove it, or leave such samples out with "+
		"--on-error skip; what is packed stays packed", "packing sample %s", p.data.Key(id)).Because(err)
}

// badName says why readers could not name the column; "" = they can.
func (c *column) badName() string {
	if strings.ContainsAny(c.name, ",;&?#%\x00") {
		return "has one of , ; & ? # % in its name, which no uri could name"
	}
	return ""
}

// isPNG tells the two encodings of images apart: their readers open other formats under either.
func isPNG(b []byte) bool { return bytes.HasPrefix(b, []byte("\x89PNG\r\n\x1a\n")) }

// mds chooses the encoding of a column, and says why there is none. image is a value, where it is an image file.
func (c *column) mds(image []byte) (why string) {
	c.name = c.from
	number := c.dtype != record.Bool && c.dtype != record.BFloat16
	switch {
	case image != nil:
		c.form, c.write = "jpeg", asStored
		if isPNG(image) {
			c.form = "png"
		}
	case c.kind == record.Text:
		c.form, c.write = "str", asText
	case c.kind == record.Bytes:
		c.form, c.write = "bytes", asStored
	case !number:
		return fmt.Sprintf("is of %s, which MDS has no encoding for", c.dtype)
	case c.kind == record.Scalar:
		c.form, c.size, c.write = c.dtype.String(), c.dtype.Size(), asStored
	case slices.ContainsFunc(c.shape, func(d int64) bool { return d < 1 }):
		c.form, c.write = "ndarray:"+c.dtype.String(), asLoose
	default:
		dims := make([]string, len(c.shape))
		c.size = c.dtype.Size()
		for i, d := range c.shape {
			dims[i] = strconv.FormatInt(d, 10)
			c.size *= d
		}
		c.form, c.write = "ndarray:"+c.dtype.String()+":"+strings.Join(dims, ","), asStored
	}
	return ""
}

// wds chooses the member of a field. A name that ends as such members do stays as it is.
func (c *column) wds(image []byte) (why string) {
	name := strings.ToLower(c.from)
	for _, r := range name {
		if r <= ' ' || r > '~' || strings.ContainsRune(`/\{}`, r) {
			return fmt.Sprintf("has %q in its name, which the name of a tar's member cannot have", r)
		}
	}
	if len(name) > 80 || strings.HasPrefix(name, ".") || strings.HasSuffix(name, ".") {
		return "has a name that is no extension: it has more than 80 bytes, or a dot at its ends"
	}
	last := name[strings.LastIndexByte(name, '.')+1:]
	keeps, form := []string{}, ""
	switch {
	case image != nil:
		keeps, form, c.write = []string{"jpg", "jpeg", "png"}, "jpg", asStored
		if isPNG(image) {
			form = "png"
		}
	case c.kind == record.Text:
		keeps, form, c.write = []string{"txt", "text", "transcript", "json"}, "txt", asText
		if last == "json" {
			c.write = asJSON
		}
	case c.kind == record.Bytes:
		form, c.write = "bin", asStored
	case c.dtype == record.BFloat16:
		return "is of bfloat16, which NumPy's files have not"
	case c.kind == record.Scalar && c.dtype == record.Int64 && last == "cls":
		form, c.write = "cls", asNumber
	default:
		form, c.write = "npy", asNPY
	}
	if c.name, c.form = name, last; last != form && !slices.Contains(keeps, last) {
		c.name, c.form = name+"."+form, form
	}
	return ""
}

// encode gives the values of a record, one for each column.
func (cs columns) encode(blob []byte) ([][]byte, error) {
	v, err := record.Open(blob)
	if err != nil {
		return nil, err
	}
	if v.Len() != len(cs) {
		return nil, fmt.Errorf("it has %d fields, and the dataset %d", v.Len(), len(cs))
	}
	values := make([]record.Value, 0, len(cs))
	for _, x := range v.All {
		values = append(values, x)
	}
	out := make([][]byte, len(cs))
	for i := range cs {
		c, x := &cs[i], &values[cs[i].field]
		if x.Kind != c.kind || x.DType != c.dtype || c.kind == record.Array && x.NDim() != len(c.shape) {
			return nil, fmt.Errorf("field %q is %s of %s, and %s of %s in the first sample", c.from, x.Kind, x.DType, c.kind,
				c.dtype)
		}
		if out[i], err = c.write(c, x); err != nil {
			return nil, fmt.Errorf("field %q: %w", c.from, err)
		}
		if c.size >= 0 && int64(len(out[i])) != c.size {
			return nil, fmt.Errorf("field %q has %d bytes, and %d in the schema", c.from, len(out[i]), c.size)
		}
	}
	return out, nil
}

func asStored(_ *column, v *record.Value) ([]byte, error) { return v.Data, nil }

func asText(_ *column, v *record.Value) ([]byte, error) {
	if !utf8.Valid(v.Data) {
		return nil, fmt.Errorf("its text is not UTF-8")
	}
	return v.Data, nil
}

func asJSON(_ *column, v *record.Value) ([]byte, error) {
	if !json.Valid(v.Data) {
		return nil, fmt.Errorf("its text is no JSON, and a .json member has to be")
	}
	return v.Data, nil
}

func asNumber(_ *column, v *record.Value) ([]byte, error) {
	return strconv.AppendInt(nil, int64(binary.LittleEndian.Uint64(v.Data)), 10), nil
}

// asLoose is an array with its shape before it, as NDArray of streaming.base.format.mds.encodings writes it.
func asLoose(_ *column, v *record.Value) ([]byte, error) {
	dims := v.Dims()
	most := slices.Max(append([]int64{1}, dims...))
	if slices.ContainsFunc(dims, func(d int64) bool { return d < 1 }) {
		return nil, fmt.Errorf("an array of shape %v has no values, and MDS has no form for that: pack into wds", dims)
	}
	width := 0 // its logarithm
	for most >= 1<<(8<<width) && width < 3 {
		width++
	}
	out := []byte{byte(len(dims)<<2 | width)}
	for _, d := range dims {
		out = append(out, binary.LittleEndian.AppendUint64(nil, uint64(d))[:1<<width]...)
	}
	return append(out, v.Data...), nil
}

// npyTypes are NumPy's names of dtypes in files.
var npyTypes = map[record.DType]string{record.Bool: "|b1", record.Uint8: "|u1", record.Int8: "|i1",
	record.Uint16: "<u2", record.Int16: "<i2", record.Uint32: "<u4", record.Int32: "<i4", record.Uint64: "<u8",
	record.Int64: "<i8", record.Float16: "<f2", record.Float32: "<f4", record.Float64: "<f8"}

// asNPY is the file that numpy.save writes.
func asNPY(_ *column, v *record.Value) ([]byte, error) {
	dims := v.Dims()
	parts := make([]string, len(dims))
	for i, d := range dims {
		parts[i] = strconv.FormatInt(d, 10)
	}
	shape := strings.Join(parts, ", ")
	if len(dims) == 1 {
		shape += ","
	}
	head := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", npyTypes[v.DType], shape)
	if len(dims) > 0 { // room for the first dimension to grow, as NumPy leaves it
		head += strings.Repeat(" ", max(0, 21-len(parts[0])))
	}
	const before, align = 10, 64
	head += strings.Repeat(" ", align-(before+len(head)+1)%align) + "\n"
	if len(head) > math.MaxUint16 {
		return nil, fmt.Errorf("its header has %d bytes", len(head))
	}
	out := append(make([]byte, 0, before+len(head)+len(v.Data)), "\x93NUMPY\x01\x00"...)
	out = binary.LittleEndian.AppendUint16(out, uint16(len(head)))
	return append(append(out, head...), v.Data...), nil
}

// hashValues adds a record to the digest of a shard's content.
func hashValues(to *xxhash.Digest, values [][]byte) {
	for _, v := range values {
		_, _ = to.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(v)))) // a hash never fails
		_, _ = to.Write(v)
	}
}

// json is what MDSWriter writes of the columns.
func (cs columns) json() (encodings, names, sizes string) {
	var parts [3][]string
	for i := range cs {
		size := "null"
		if cs[i].size >= 0 {
			size = strconv.FormatInt(cs[i].size, 10)
		}
		for k, text := range []string{pythonString(cs[i].form), pythonString(cs[i].name), size} {
			parts[k] = append(parts[k], text)
		}
	}
	return strings.Join(parts[0], ", "), strings.Join(parts[1], ", "), strings.Join(parts[2], ", ")
}

// pythonString is a string as Python's json.dumps writes it.
func pythonString(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch short := strings.IndexRune("\"\\\b\f\n\r\t", r); {
		case short >= 0:
			b.WriteString([]string{`\"`, `\\`, `\b`, `\f`, `\n`, `\r`, `\t`}[strings.Index("\"\\\b\f\n\r\t", string(r))])
		case r >= ' ' && r <= '~':
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// row is the head of a sample of MDS, and its columns.
func (cs columns) row(values [][]byte) [][]byte {
	head := []byte{}
	for i := range cs {
		if cs[i].size < 0 {
			head = binary.LittleEndian.AppendUint32(head, uint32(len(values[i])))
		}
	}
	return append([][]byte{head}, values...)
}

// members are those of a tar.
func (cs columns) members(values [][]byte) []member {
	out := make([]member, len(cs))
	for i := range cs {
		out[i] = member{cs[i].name, values[i]}
	}
	return out
}
