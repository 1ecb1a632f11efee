package packed

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"larder/internal/record"
)

// Samples of MDS are records when ?fields= names columns, when no column is an image, or when ?audio= names columns of
// bytes that hold sound. A field is a column, or the rate of a sound.

// ByFirst implements ByFirst.
func (mds) ByFirst() {}

// Schema looks at the columns of the first shard that has samples; of arrays that say their dtype themselves, at its
// first sample.
func (mds) Schema(ctx context.Context, a Address, files []string, open func(string) (Other, error)) (
	s record.Schema, err error,
) {
	for _, path := range files {
		if ctx.Err() != nil {
			return s, ctx.Err()
		}
		f, err := open(path)
		if err != nil {
			return s, err
		}
		fields, image, err := schemaOfShard(a, path, f)
		f.Close()
		switch {
		case err != nil:
			return s, fmt.Errorf("%s: %w", path, err)
		case image || fields != nil:
			return record.Schema{Fields: fields}, nil
		}
	}
	return s, nil // Scan says that there are no samples
}

// schemaOfShard describes the columns; image = samples are an image and a label. Both are nothing where there is no
// sample.
func schemaOfShard(a Address, path string, f Other) (fields []record.Field, image bool, err error) {
	c, size, end, err := openBeginning(path, f)
	if err != nil {
		return nil, false, err
	}
	defer end()
	if c.n == 0 {
		return nil, false, err
	}
	asked := a.Fields()
	if asked == nil && c.image >= 0 && a.audio() == nil {
		return nil, true, nil
	}
	if err := c.checkAudio(a); err != nil {
		return nil, false, err
	}
	if asked == nil {
		asked = c.Names
	}
	raw, err := c.region(context.Background(), c.offset(0), c.offset(1), size)
	if err != nil {
		return nil, false, err
	}
	values, err := c.split(raw)
	if err != nil {
		return nil, false, fmt.Errorf("sample 0, at byte %d: %w", c.offset(0), err)
	}
	for _, name := range c.withRates(a, asked) {
		i, is := c.find(a, name)
		if i < 0 {
			return nil, false, fmt.Errorf("it has no column %q, only %s", name, strings.Join(c.Names, ", "))
		}
		field, err := c.field(i, is, values[i])
		if err != nil {
			return nil, false, fmt.Errorf("column %q: %w", name, err)
		}
		fields = append(fields, field)
	}
	return fields, false, nil
}

// withRates are names of fields with those of the rates of sounds, each behind its sound.
func (c *columns) withRates(a Address, asked []string) []string {
	var out []string
	for _, name := range asked {
		out = append(out, name)
		if _, is := c.find(a, name); is == soundSamples && !slices.Contains(asked, rateName(name)) {
			out = append(out, rateName(name))
		}
	}
	return out
}

// checkAudio checks the names of ?audio=.
func (c *columns) checkAudio(a Address) error {
	for _, name := range a.audio() {
		if i := slices.Index(c.Names, name); i < 0 {
			return noBytes("audio", name, false, c.Names)
		} else if c.Encodings[i] != "bytes" {
			return fmt.Errorf("?audio= names %q, which is %s; sound lies in columns of bytes", name, c.Encodings[i])
		}
	}
	return nil
}

// find is the column of which a field is made; -1 = there is none. is says what the field has of a sound.
func (c *columns) find(a Address, name string) (column int, is sound) {
	if i := slices.Index(c.Names, name); i >= 0 {
		if a.wants("audio", name) && c.Encodings[i] == "bytes" {
			return i, soundSamples
		}
		return i, 0
	}
	if of, ok := strings.CutSuffix(name, rateName("")); ok && a.wants("audio", of) {
		if i := slices.Index(c.Names, of); i >= 0 && c.Encodings[i] == "bytes" {
			return i, soundRate
		}
	}
	return -1, 0
}

// openBeginning opens a shard of so many bytes, for its columns and its first sample. The caller calls end.
func openBeginning(path string, f Other) (c *shard, size int64, end func(), err error) {
	in, size, end := io.ReaderAt(f), f.Len(), func() {}
	if isPackedShard(path) {
		u, err := openUnpacked(path, f, size, 0)
		if err != nil {
			return nil, 0, nil, err
		}
		in, size, end = u, u.size, u.close
	}
	if c, err = openShard(in, size); err != nil {
		end()
	}
	return c, size, end, err
}

// region reads one sample.
func (s *shard) region(ctx context.Context, from, to, size int64) ([]byte, error) {
	if to < from || to > size || to-from > maxRegion {
		return nil, fmt.Errorf("a sample at bytes %d to %d of %d", from, to, size)
	}
	raw := make([]byte, to-from)
	if n, err := within(ctx, s.ReaderAt).ReadAt(raw, from); n < len(raw) {
		return nil, fmt.Errorf("read at byte %d: %w", from, err)
	}
	return raw, nil
}

// split finds the columns in the bytes of a sample.
func (c *columns) split(raw []byte) ([][]byte, error) {
	if len(raw) < 4*c.varying {
		return nil, fmt.Errorf("it has %d bytes, fewer than its sizes", len(raw))
	}
	sizes, rest := raw[:4*c.varying], raw[4*c.varying:]
	out := make([][]byte, len(c.Names))
	for i := range c.Names {
		size := int64(0)
		if c.Sizes[i] != nil {
			size = *c.Sizes[i]
		} else {
			size = int64(binary.LittleEndian.Uint32(sizes))
			sizes = sizes[4:]
		}
		if size > int64(len(rest)) {
			return nil, fmt.Errorf("column %q has %d bytes, and %d are left", c.Names[i], size, len(rest))
		}
		out[i], rest = rest[:size], rest[size:]
	}
	if len(rest) > 0 {
		return nil, fmt.Errorf("%d bytes follow its columns", len(rest))
	}
	return out, nil
}

// mdsScalars are the encodings of single numbers, which are stored as they are.
var mdsScalars = map[string]record.DType{"int": record.Int64, "int8": record.Int8, "int16": record.Int16,
	"int32": record.Int32, "int64": record.Int64, "uint8": record.Uint8, "uint16": record.Uint16,
	"uint32": record.Uint32, "uint64": record.Uint64, "float16": record.Float16, "float32": record.Float32,
	"float64": record.Float64}

// mdsTypes are the dtypes of arrays, by their names and by the codes that arrays have.
var mdsTypes = map[byte]record.DType{8: record.Uint8, 9: record.Int8, 16: record.Uint16, 17: record.Int16,
	18: record.Float16, 32: record.Uint32, 33: record.Int32, 34: record.Float32, 64: record.Uint64, 65: record.Int64,
	66: record.Float64}

// field describes column i, or what a field has of a sound in there, by its encoding and a value of it.
func (c *columns) field(i int, is sound, value []byte) (record.Field, error) {
	name, encoding := c.Names[i], c.Encodings[i]
	switch samples, rate := soundFields(name); is {
	case soundSamples:
		return samples, nil
	case soundRate:
		return rate, nil
	}
	if d, ok := mdsScalars[encoding]; ok {
		return scalarField(name, d), nil
	}
	switch kind, _, _ := strings.Cut(encoding, ":"); kind {
	case "jpeg", "png":
		return imageField(name), nil
	case "str", "json", "str_decimal":
		return textField(name), nil
	case "bytes":
		return bytesField(name), nil
	case "str_int":
		return scalarField(name, record.Int64), nil
	case "str_float":
		return scalarField(name, record.Float64), nil
	case "ndarray":
		x, err := mdsArray(encoding, value)
		if err != nil {
			return record.Field{}, err
		}
		f := looseArray(name, x.dtype, len(x.shape))
		if strings.Count(encoding, ":") == 2 {
			f.Shape = x.shape
		}
		return f, nil
	case "pkl":
		return record.Field{}, errors.New("it holds pickles, which larder never reads, because they run code; leave it out " +
			"with ?fields=, or write it as ndarray, json or str")
	}
	return record.Field{}, fmt.Errorf("its encoding %s is not one that larder reads; leave it out with ?fields=", encoding)
}

// mdsArray reads an array whose dtype and shape are in its encoding, ndarray:DTYPE:D,D, or before its values.
func mdsArray(encoding string, b []byte) (x array, err error) {
	parts := strings.Split(encoding, ":")
	take := func(n int) []byte {
		if n > len(b)-int(x.at) {
			err = fmt.Errorf("an array of %d bytes is cut", len(b))
			return make([]byte, n)
		}
		x.at += int64(n)
		return b[x.at-int64(n) : x.at]
	}
	if len(parts) > 1 {
		for _, d := range mdsTypes { // order-free: names are distinct
			if d.String() == parts[1] {
				x.dtype = d
			}
		}
	} else {
		x.dtype = mdsTypes[take(1)[0]]
	}
	if x.dtype == 0 {
		return x, fmt.Errorf("an array of %s with no dtype that is known", encoding)
	}
	if len(parts) > 2 {
		for p := range strings.SplitSeq(parts[2], ",") {
			d, perr := strconv.ParseInt(p, 10, 32)
			if perr != nil || d < 1 {
				return x, fmt.Errorf("an array of %s", encoding)
			}
			x.shape = append(x.shape, d)
		}
	} else {
		head := take(1)[0]
		for range head >> 2 {
			var word [8]byte
			copy(word[:], take(1<<(head&3)))
			d := binary.LittleEndian.Uint64(word[:])
			if d > math.MaxInt32 {
				return x, fmt.Errorf("an array with %d rows", d)
			}
			x.shape = append(x.shape, int64(d))
		}
	}
	if err == nil && (len(x.shape) > record.MaxDims || x.bytes() != int64(len(b))-x.at) {
		err = fmt.Errorf("%d bytes are no array of shape %v of %s", int64(len(b))-x.at, x.shape, x.dtype)
	}
	return x, err
}

// fits checks that a shard has the columns of a schema, with encodings that give its fields.
func (c *columns) fits(a Address, s *record.Schema) error {
	for i := range s.Fields {
		f := &s.Fields[i]
		k, is := c.find(a, f.Name)
		if k < 0 {
			return fmt.Errorf("it has no column %q, as other shards have", f.Name)
		}
		if strings.HasPrefix(c.Encodings[k], "ndarray") {
			continue // values are checked when they are read
		}
		here, err := c.field(k, is, nil)
		if err != nil {
			return fmt.Errorf("column %q: %w", f.Name, err)
		}
		if here.Kind != f.Kind || here.DType != f.DType || !slices.Equal(here.Shape, f.Shape) {
			return fmt.Errorf("column %q is %s, unlike that of other shards", f.Name, c.Encodings[k])
		}
	}
	return nil
}

// mdsRows are samples of a shard that are records.
type mdsRows struct {
	*shard
	size   int64
	stored record.Schema
	column []int // of each field; -1 = it is of a sound
	sounds []mdsSound
	hear   hearing
}

// mdsSound is a column of sound.
type mdsSound struct {
	column int
	soundInto
}

func (mds) Open(_ context.Context, a Address, f File) (Rows, error) {
	if isPackedShard(f.Path) {
		return openPackedShard(a, f), nil
	}
	c, err := openShard(f, f.Size)
	if err != nil {
		return nil, err
	}
	r, err := newMDSRows(c, a, f.Schema)
	if err != nil {
		return nil, err
	}
	r.size = f.Size
	return r, nil
}

// newMDSRows makes records of the columns of a shard.
func newMDSRows(c *shard, a Address, s *record.Schema) (*mdsRows, error) {
	if err := c.fits(a, s); err != nil {
		return nil, err
	}
	r := &mdsRows{shard: c, hear: hear}
	images := make([]bool, len(s.Fields))
	for i := range s.Fields {
		k, is := c.find(a, s.Fields[i].Name)
		images[i] = c.Encodings[k] == "jpeg" || c.Encodings[k] == "png"
		if is != 0 {
			r.sound(k, i, is)
			k = -1
		}
		r.column = append(r.column, k)
	}
	r.stored = Stored(s, images)
	return r, nil
}

// sound notes that a field is made of a column of sound.
func (r *mdsRows) sound(column, field int, is sound) {
	k := slices.IndexFunc(r.sounds, func(s mdsSound) bool { return s.column == column })
	if k < 0 {
		k = len(r.sounds)
		r.sounds = append(r.sounds, mdsSound{column, soundInto{-1, -1}})
	}
	if is == soundSamples {
		r.sounds[k].samples = field
	} else {
		r.sounds[k].rate = field
	}
}

func (r *mdsRows) Record(ctx context.Context, dst []byte, s Sample) ([]byte, error) {
	raw, err := r.region(ctx, s.Off, s.Off+s.Size, r.size)
	if err != nil {
		return dst, err
	}
	if dst, err = r.append(dst, raw); err != nil {
		err = fmt.Errorf("the sample at byte %d: %w", s.Off, err)
	}
	return dst, err
}

// append makes a record of the bytes of a sample.
func (r *mdsRows) append(dst, raw []byte) ([]byte, error) {
	columns, err := r.split(raw)
	if err != nil {
		return dst, err
	}
	values := make([]record.Content, len(r.column))
	for _, s := range r.sounds {
		if err := s.put(values, columns[s.column], r.hear); err != nil {
			return dst, fmt.Errorf("column %q %w", r.Names[s.column], err)
		}
	}
	for i, k := range r.column {
		if k < 0 {
			continue
		}
		if values[i], err = columnContent(columns[k], r.Encodings[k], &r.stored.Fields[i]); err != nil {
			return dst, fmt.Errorf("column %q: %w", r.Names[k], err)
		}
	}
	return record.Append(dst, &r.stored, values)
}

func (*mdsRows) Close() error { return nil }

// columnContent is what the bytes of a column give for its field.
func columnContent(b []byte, encoding string, f *record.Field) (record.Content, error) {
	switch {
	case strings.HasPrefix(encoding, "ndarray"):
		x, err := mdsArray(encoding, b)
		if err != nil {
			return record.Content{}, err
		}
		if x.dtype != f.DType || len(x.shape) != len(f.Shape) {
			return record.Content{}, fmt.Errorf("it has %d dimensions of %s, and the first sample %d of %s", len(x.shape),
				x.dtype, len(f.Shape), f.DType)
		}
		return record.Content{Dims: x.shape, Data: b[x.at:]}, nil
	case encoding == "str_int" || encoding == "str_float":
		v, err := appendNumber(nil, b, f.DType)
		return record.Content{Data: v}, err
	}
	return record.Content{Data: b}, nil
}

var _ io.ReaderAt = (*shard)(nil)
